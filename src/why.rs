//! Why a placed pod has its node, as people and programs read it.

use std::io::{self, Write};

use crate::columns;
use crate::explain::show::{BALANCE_WORST, IMAGES_WORST, SHARE_WORST, UNITS, counted, percent, wrapped};
use berth_scheduler::decisions::{CandidateReport, DecisionReport, HintReport, StageReport};

/// Writes the reasons for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn table(report: &DecisionReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let width = width.max(60);
    let DecisionReport { namespace, pod, node, class, .. } = report;
    let at = report.placed_at.as_ref().map_or(String::new(), |at| format!(" at {at}"));
    wrapped(out, "", &format!("{namespace}/{pod} was placed on {node}{at}"), width)?;
    let policy = report.policy.as_ref().map_or(String::new(), |policy| format!(", policy {policy}"));
    wrapped(out, "  ", &format!("class {class}{policy}"), width)?;
    if let Some(gang) = &report.gang {
        wrapped(
            out,
            "  ",
            &format!("with its gang {gang}: the nodes of all members were planned together"),
            width,
        )?;
    }
    if report.preempted {
        wrapped(
            out,
            "  ",
            "the room on this node was kept for it after a preemption or a reservation",
            width,
        )?;
    }
    for hint in &report.hints {
        wrapped(out, "  ", &hinted(hint), width)?;
    }
    if let Some(text) = decided(report) {
        wrapped(out, "  ", &text, width)?;
    }
    candidates(report, width, out)?;
    wrapped(out, "  ", &stages(&report.stages), width)
}

fn hinted(hint: &HintReport) -> String {
    let HintReport { weight, namespaces, selector } = hint;
    let place = if *weight > 0 { "near" } else { "apart from" };
    format!("hint: {place} pods {selector} in {} (weight {})", namespaces.join(", "), weight.abs())
}

/// Returns what set the node apart from the best other one.
fn decided(report: &DecisionReport) -> Option<String> {
    let chosen = report.candidates.iter().find(|candidate| candidate.node == report.node)?;
    let Some(other) = report.candidates.iter().find(|candidate| candidate.node != report.node) else {
        return Some("no other node was valid".to_owned());
    };
    let Some(preference) = &report.decided_by else {
        return Some(format!("tied with {}; ties are broken at random", other.node));
    };
    let at = HEADS.iter().position(|(name, _)| name == preference)?;
    let (ours, theirs) = (&scores(chosen)[at], &scores(other)[at]);
    // Of a few among which an agent chooses, it may be another one.
    let than = if report.candidates.first() == Some(chosen) { "better" } else { "chosen at random, worse" };
    Some(format!("{than} than {} by {preference}: {} is {ours}, not {theirs}", other.node, HEADS[at].1))
}

/// Preferences and the heads of their columns, in the default order.
const HEADS: [(&str, &str); 7] = [
    ("TaintToleration", "taints"),
    ("NodeAffinity", "node affinity"),
    ("InterPodAffinity", "pod affinity"),
    ("PodTopologySpread", "spread"),
    ("NodeResourcesFit", "share"),
    ("NodeResourcesBalancedAllocation", "balance"),
    ("ImageLocality", "images"),
];

fn scores(candidate: &CandidateReport) -> [String; 7] {
    [
        candidate.taints.to_string(),
        candidate.node_affinity.to_string(),
        candidate.pod_affinity.to_string(),
        format!("{:.1}", candidate.spread),
        percent(candidate.share.into(), SHARE_WORST),
        percent(candidate.balance.into(), BALANCE_WORST),
        percent(candidate.images.into(), IMAGES_WORST),
    ]
}

/// Writes the compared nodes, with the columns in the order in which they are compared.
fn candidates(report: &DecisionReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    if report.candidates.is_empty() {
        return Ok(());
    }
    let place = |preference: &String| HEADS.iter().position(|(name, _)| name == preference);
    let columns: Vec<usize> = report.preferences.iter().filter_map(place).collect();
    let head = ["node", "free CPU", "free memory"].into_iter();
    let mut rows: Vec<Vec<String>> =
        vec![head.chain(columns.iter().map(|at| HEADS[*at].1)).map(str::to_owned).collect()];
    rows.extend(report.candidates.iter().map(|candidate| {
        let scores = scores(candidate);
        let free_cpu = format!("{:.1}", f64::from(candidate.free_cpu_milli) / 1000.0);
        let free_memory = format!("{:.1} GiB", f64::from(candidate.free_memory_mib) / 1024.0);
        let first = [candidate.node.clone(), free_cpu, free_memory].into_iter();
        first.chain(columns.iter().map(|at| scores[*at].clone())).collect()
    }));
    for line in columns::table(&rows, &columns::widths(&rows), &[0]).lines() {
        writeln!(out, "    {line}")?;
    }
    let note =
        format!("(less is better; columns after the free amounts are compared from left to right; {UNITS})");
    wrapped(out, "    ", &note, width)
}

fn stages(stages: &StageReport) -> String {
    let attempts = counted(stages.attempts as usize, "attempt");
    let mut text = format!("chosen {} ms after it came, in {attempts}", stages.waited_ms);
    if let Some(agent) = stages.agent {
        text += &format!(", by agent {agent}");
    }
    if let Some(list) = stages.list {
        text += &format!(" in {} us (list: {})", stages.choice_us, list.name());
    }
    if stages.conflicts > 0 {
        text += &format!(" after {}", counted(stages.conflicts.into(), "conflict"));
    }
    if let Some(bind_ms) = stages.bind_ms {
        text += &format!("; bound {bind_ms} ms later");
    }
    text
}
