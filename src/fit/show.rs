//! Output of the answer as a table.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{FitReport, Unplaced, WorkloadFit};
use crate::explain::show::{counted, some, wrapped};

/// Nodes listed for one workload.
const SHOWN_NODES: usize = 10;
/// Pods listed with their victims.
const SHOWN_PODS: usize = 8;

/// Writes one block per workload.
///
/// # Errors
/// Writing to `out` fails.
pub fn table(report: &FitReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(60);
    let waiting = report.waiting;
    if waiting.placed + waiting.unplaced > 0 {
        let total = waiting.placed + waiting.unplaced;
        let of = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
        let text = format!(
            "{} that {} already {} first: {} {} a node, {} {} not",
            counted(total, "pod"),
            of(total, "waits", "wait"),
            of(total, "comes", "come"),
            waiting.placed,
            of(waiting.placed, "gets", "get"),
            waiting.unplaced,
            of(waiting.unplaced, "does", "do"),
        );
        wrapped(out, "", &text, width)?;
    }
    report.workloads.iter().try_for_each(|fit| block(fit, width, out))
}

fn block(fit: &WorkloadFit, width: usize, out: &mut impl Write) -> io::Result<()> {
    let WorkloadFit { kind, namespace, name, .. } = fit;
    let verb = if fit.fit == 1 { "fits" } else { "fit" };
    writeln!(out, "{kind} {namespace}/{name}: {} of {} {verb}", fit.fit, counted(fit.pods, "pod"))?;
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    fit.placements.iter().for_each(|placement| *nodes.entry(&placement.node).or_default() += 1);
    if !nodes.is_empty() {
        let named = |(node, count): (&str, usize)| match count {
            1 => node.to_owned(),
            count => format!("{node} ({count})"),
        };
        let named: Vec<_> = nodes.into_iter().map(named).collect();
        wrapped(out, "  ", &format!("on {}", some(&named, SHOWN_NODES, false)), width)?;
    }
    for preempting in fit.preempting.iter().take(SHOWN_PODS) {
        let on = preempting.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        let victims = some(&preempting.victims, SHOWN_PODS, false);
        wrapped(out, "  ", &format!("{}{on} only after preempting {victims}", preempting.pod), width)?;
    }
    if fit.preempting.len() > SHOWN_PODS {
        writeln!(out, "  and {} more only after preempting others", fit.preempting.len() - SHOWN_PODS)?;
    }
    fit.unplaced.iter().try_for_each(|unplaced| reason(unplaced, width, out))?;
    match fit.more {
        Some(more) if more.at_limit => writeln!(out, "  {} more would fit, and maybe others", more.pods),
        Some(more) => writeln!(out, "  {} more would fit", more.pods),
        None => Ok(()),
    }
}

fn reason(unplaced: &Unplaced, width: usize, out: &mut impl Write) -> io::Result<()> {
    let who = match unplaced.pods {
        1 => unplaced.pod.clone(),
        count => format!("{} and {} more", unplaced.pod, count - 1),
    };
    wrapped(out, "  ", &format!("{who}: {}", unplaced.message), width)?;
    if !unplaced.remedies.is_empty() {
        writeln!(out, "    any one of these would make one fit:")?;
    }
    for help in &unplaced.remedies {
        let nodes = some(&help.nodes, help.nodes.len(), false);
        wrapped(out, "    - ", &format!("{} (then it fits {nodes})", help.changes.join("; ")), width)?;
    }
    Ok(())
}
