//! Output of answers as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{AnswerGroup, Remedy};
use crate::columns;
use berth_model::Pod;
use berth_scheduler::scheduler::NodeCandidate;

/// Amount of detail in the table.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Width in columns, at least 60.
    pub width: usize,
    /// Show every node, feasible or not, instead of examples.
    pub all_nodes: bool,
}

/// Number of feasible nodes shown by default.
const SHOWN_NODES: usize = 10;
/// Number of pods of a group that are listed.
const SHOWN_PODS: usize = 8;

/// Writes one block per group of pods.
///
/// # Errors
/// Writing to `out` fails.
pub fn table(groups: &[AnswerGroup], style: Style, out: &mut impl Write) -> io::Result<()> {
    for (at, group) in groups.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        block(group, style, out)?;
    }
    Ok(())
}

fn block(group: &AnswerGroup, style: Style, out: &mut impl Write) -> io::Result<()> {
    let width = style.width.max(60);
    let pods: Vec<_> = group.pods.iter().map(name).collect();
    wrapped(out, "", &some(&pods, SHOWN_PODS, style.all_nodes), width)?;
    let pod = &group.pods[0];
    let waiting = counted(group.waiting, "waiting pod");
    wrapped(
        out,
        "  ",
        &format!("class {} ({waiting}), scheduler {}", group.class, pod.scheduler_name),
        width,
    )?;
    for note in notes(pod) {
        wrapped(out, "  ", &note, width)?;
    }
    let verdict = &group.verdict;
    if let Some(refused) = &verdict.refused {
        return wrapped(out, "  ", &format!("not scheduled at all: {refused}"), width);
    }
    if let Some(policy) = &verdict.policy {
        let order: Vec<_> = verdict.order.iter().map(|preference| preference.name()).collect();
        let text = match order.is_empty() {
            true => format!("policy {policy}: no preferences"),
            false => format!("policy {policy}: by {}", order.join(", ")),
        };
        wrapped(out, "  ", &text, width)?;
    }
    let fits = format!("fits {} of {} nodes", verdict.feasible.len(), group.nodes);
    let best = verdict.chosen.as_ref().map_or(String::new(), |node| format!("; the best is {node}"));
    wrapped(out, "  ", &format!("{fits}{best}"), width)?;
    if let Some(gang) = &verdict.gang {
        wrapped(out, "  ", &format!("gang: {gang}"), width)?;
    }
    candidates(&verdict.feasible, verdict.policy.is_some(), style, out)?;
    outsiders(&verdict.reasons, style, out)?;
    if !group.remedied {
        let name = name(pod);
        let hint = format!("to see what would help, query it by name: berth explain {name}");
        wrapped(out, "  ", &hint, width)?;
    }
    remedies(&group.remedies, width, out)
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn notes(pod: &Pod) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(node) = &pod.node_name {
        notes.push(format!("it is on node {node}; this is as if it were not"));
    }
    if pod.deleting {
        notes.push("it is being deleted, so it is not scheduled any more".to_owned());
    }
    if !pod.gates.is_empty() {
        notes.push(format!("it is not scheduled before its gates are gone: {}", pod.gates.join(", ")));
    }
    notes
}

/// Writes the feasible nodes with their scores.
fn candidates(
    feasible: &[NodeCandidate],
    under_policy: bool,
    style: Style,
    out: &mut impl Write,
) -> io::Result<()> {
    const HEADS: [&str; 8] =
        ["node", "taints", "node affinity", "pod affinity", "spread", "share", "balance", "images"];
    if feasible.is_empty() {
        return Ok(());
    }
    let shown = if style.all_nodes { feasible.len() } else { feasible.len().min(SHOWN_NODES) };
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(feasible[..shown].iter().map(|candidate| {
        let scores = candidate.scores;
        [
            candidate.node.to_string(),
            scores.taints.to_string(),
            scores.node_affinity.to_string(),
            scores.pod_affinity.to_string(),
            format!("{:.1}", scores.spread),
            percent(scores.share, SHARE_WORST),
            percent(scores.balance, BALANCE_WORST),
            percent(scores.images, IMAGES_WORST),
        ]
    }));
    for line in columns::table(&rows, &columns::widths(&rows), &[0]).lines() {
        writeln!(out, "    {line}")?;
    }
    if shown < feasible.len() {
        writeln!(out, "    and {} more", feasible.len() - shown)?;
    }
    let order = match under_policy {
        true => "columns are compared in the order of the policy",
        false => "columns are compared from left to right",
    };
    wrapped(out, "    ", &format!("(less is better; {order}; {UNITS})"), style.width.max(60))
}

/// The worst scores.
pub const SHARE_WORST: u16 = 63;
pub const BALANCE_WORST: u16 = 15;
pub const IMAGES_WORST: u16 = 7;
/// What the scores count.
pub const UNITS: &str = "taints: untolerated ones; node affinity: weights not met; pod affinity: weights met, negated; spread: \
                         points of kube-scheduler; share: of the node that would be requested or, when packing, free, and of its \
                         devices where the pod needs some; balance: between the shares of CPU and memory; images: to be pulled";

/// Returns a score in percent of the worst one.
pub fn percent(score: u16, worst: u16) -> String {
    format!("{:.0} %", 100.0 * f64::from(score) / f64::from(worst))
}

/// Writes the reasons why the other nodes are rejected.
fn outsiders(
    reasons: &BTreeMap<Arc<str>, Vec<String>>,
    style: Style,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut groups: BTreeMap<&[String], Vec<&Arc<str>>> = BTreeMap::new();
    for (node, why) in reasons {
        groups.entry(why).or_default().push(node);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    if !groups.is_empty() {
        writeln!(out, "  out:")?;
    }
    for (why, nodes) in groups {
        let (count, why) = (nodes.len(), why.join(", "));
        let nodes = some(&nodes, 3, style.all_nodes);
        wrapped(out, "    ", &format!("{count} {why}: {nodes}"), style.width.max(60))?;
    }
    Ok(())
}

fn remedies(remedies: &[Remedy], width: usize, out: &mut impl Write) -> io::Result<()> {
    if !remedies.is_empty() {
        writeln!(out, "  any one of these would make it fit:")?;
    }
    for remedy in remedies {
        let changes: Vec<_> = remedy.changes.iter().map(ToString::to_string).collect();
        let nodes = some(&remedy.nodes, 3, false);
        wrapped(out, "    - ", &format!("{} (then it fits {nodes})", changes.join("; ")), width)?;
    }
    Ok(())
}

/// Formats as `1 pod`, or `2 pods`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Formats as `a, b`, or `a, b and 15 more`.
pub(crate) fn some(names: &[impl AsRef<str>], most: usize, all: bool) -> String {
    // If only one would be left out, list it too.
    let shown = if all || names.len() <= most + 1 { names.len() } else { most };
    let named: Vec<&str> = names[..shown].iter().map(AsRef::as_ref).collect();
    let mut text = named.join(", ");
    if shown < names.len() {
        let _ = write!(text, " and {} more", names.len() - shown);
    }
    text
}

/// Writes `text` in lines of at most `width`, as far as word breaks allow. The first line begins with `indent`; the
/// rest are indented by two more.
pub(crate) fn wrapped(out: &mut impl Write, indent: &str, text: &str, width: usize) -> io::Result<()> {
    let mut line = indent.to_owned();
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            writeln!(out, "{line}")?;
            line = " ".repeat(indent.len() + 2);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(out, "{line}")
}

/// Writes `[{"pod":"ns/name","class":"…","feasible":["node",…],"reasons":{"node":["text",…]},…}]`, one object per
/// pod, sorted by name.
///
/// # Errors
/// Writing to `out` fails.
pub fn json(groups: &[AnswerGroup], out: &mut impl Write) -> io::Result<()> {
    let mut answers: Vec<_> =
        groups.iter().flat_map(|group| group.pods.iter().map(move |pod| (pod, group))).collect();
    answers.sort_by(|(a, _), (b, _)| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let answers = answers.into_iter().map(|(pod, group)| Answer::new(pod, group));
    let mut serializer = serde_json::Serializer::new(&mut *out);
    serializer.collect_seq(answers)?;
    writeln!(out)
}

/// One pod.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    pod: String,
    class: &'a str,
    /// In berth's order.
    feasible: Vec<&'a Arc<str>>,
    reasons: &'a BTreeMap<Arc<str>, Vec<String>>,
    /// Number of waiting pods of the class.
    waiting: usize,
    scheduler: &'a str,
    /// What its gang waits for, or that it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    gang: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    gates: &'a [Arc<str>],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remedies: Vec<JsonRemedy<'a>>,
}

#[derive(Serialize)]
struct JsonRemedy<'a> {
    changes: Vec<String>,
    /// Number of feasible nodes after the changes.
    fits: usize,
    /// The first of these nodes.
    nodes: &'a [Arc<str>],
}

impl<'a> Answer<'a> {
    fn new(pod: &'a Pod, group: &'a AnswerGroup) -> Self {
        let verdict = &group.verdict;
        let remedy = |remedy: &'a Remedy| JsonRemedy {
            changes: remedy.changes.iter().map(ToString::to_string).collect(),
            fits: remedy.nodes.len(),
            nodes: &remedy.nodes[..remedy.nodes.len().min(SHOWN_NODES)],
        };
        Answer {
            pod: name(pod),
            class: &group.class,
            feasible: verdict.feasible.iter().map(|candidate| &candidate.node).collect(),
            reasons: &verdict.reasons,
            waiting: group.waiting,
            scheduler: &pod.scheduler_name,
            gang: verdict.gang.as_deref(),
            refused: verdict.refused.as_deref(),
            gates: &pod.gates,
            remedies: group.remedies.iter().map(remedy).collect(),
        }
    }
}
