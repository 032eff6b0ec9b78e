//! Output of suggested pod moves as a table and as JSON.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use super::show::wrapped;
use crate::columns;
use berth_scheduler::repack::{Entry, FragmentationReport};

const HEADS: [&str; 3] = ["node", "pod", "could go to"];

/// Writes one block per waiting pod, class or gang.
///
/// # Errors
/// Writing to `out` fails.
pub fn table(report: &FragmentationReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(60);
    for (at, entry) in report.waiting.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        block(entry, width, out)?;
    }
    if report.left_out > 0 {
        writeln!(out)?;
        wrapped(out, "", &format!("{} more are waiting: query one of them by name", report.left_out), width)?;
    }
    Ok(())
}

fn block(entry: &Entry, width: usize, out: &mut impl Write) -> io::Result<()> {
    let Entry { kind, namespace, name, pods, .. } = entry;
    let waiting = match (*kind, pods) {
        ("Pod", 1) => format!("Pod {namespace}/{name}"),
        ("Pod", pods) => format!("Pod {namespace}/{name} and {} more of its class", pods - 1),
        (kind, 1) => format!("{kind} {namespace}/{name} (1 pod waits)"),
        (kind, pods) => format!("{kind} {namespace}/{name} ({pods} pods wait)"),
    };
    wrapped(out, "", &waiting, width)?;
    if entry.fits {
        return wrapped(out, "  ", "fits as it is: nothing needs to move", width);
    }
    if let Some(why) = &entry.why {
        return wrapped(out, "  ", &format!("no moves were found that would help: {why}"), width);
    }
    let room = match (*kind, entry.makes_room_for) {
        ("Pod", 1) if *pods == 1 => "it".to_owned(),
        ("Pod", room) if room < *pods => format!("{room} of these {pods} pods"),
        _ if *kind == "Pod" => "them all".to_owned(),
        _ => "it".to_owned(),
    };
    wrapped(out, "  ", &format!("these moves, one after the other, would make room for {room}:"), width)?;
    let mut rows: Vec<[&str; 3]> = vec![HEADS];
    let mut last: Option<&Arc<str>> = None;
    for step in &entry.moves {
        let from = if last == Some(&step.from) { "" } else { &*step.from };
        rows.push([from, &step.pod, &step.to]);
        last = Some(&step.from);
    }
    for line in columns::table(&rows, &columns::widths(&rows), &[0, 1, 2]).lines() {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

/// `{"nodes":["node",…],"waiting":[{"kind":"Allocation","namespace":"…","name":"…","moves":[…],…}],…}`
///
/// # Errors
/// Writing to `out` fails.
pub fn json(report: &FragmentationReport, out: &mut impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Output<'a> {
        nodes: Vec<Arc<str>>,
        #[serde(flatten)]
        report: &'a FragmentationReport,
    }
    serde_json::to_writer(&mut *out, &Output { nodes: report.nodes(), report })?;
    writeln!(out)
}
