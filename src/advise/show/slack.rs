//! A message for Slack, in its Block Kit.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::units::{self, cpu, cut, memory};
use crate::advise::advice::{AdviceReport, ContainerAdvice, Severity, totals};
use berth_rightsizing::recommend::Amount;

/// Workloads that a message lists: more are no use to a reader, and Slack allows 50 blocks.
const WORKLOADS_MAX: usize = 10;
/// Slack allows 3,000 characters for a text.
const TEXT_CHARS_MAX: usize = 2_900;
/// Longest name of a namespace or workload that is shown in full.
const NAME_CHARS_MAX: usize = 120;

/// Containers of one workload.
type Workload<'a> = Vec<&'a ContainerAdvice>;

/// Formats a message with the totals and the workloads whose advice saves most.
///
/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn slack(report: &AdviceReport) -> anyhow::Result<String> {
    let workloads = workloads(report);
    let saving = workloads.iter().filter(|workload| saved(workload) > 0).count();
    let mut blocks =
        vec![json!({"type": "header", "text": {"type": "plain_text", "text": "Sizes for containers"}})];
    blocks.push(section(&summary(report)));
    if saving > 0 {
        let shown = saving.min(WORKLOADS_MAX);
        blocks.push(section(&format!("*The largest savings*, {shown} of {saving} workloads that can save")));
    }
    let listed = workloads.iter().take(saving.min(WORKLOADS_MAX));
    blocks.extend(listed.map(|workload| section(&line(report, workload))));
    if !report.notes.is_empty() {
        let notes: Vec<String> = report.notes.iter().map(|note| escape(note)).collect();
        let text = limited(&notes.join("\n"));
        blocks.push(json!({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}));
    }
    // Shown in notifications, which have no blocks.
    let message = json!({"text": summary(report), "blocks": blocks});
    Ok(serde_json::to_string_pretty(&message)? + "\n")
}

/// Returns the workloads of a report, those with the largest savings first.
fn workloads(report: &AdviceReport) -> Vec<Workload<'_>> {
    let mut workloads: BTreeMap<_, Workload<'_>> = BTreeMap::new();
    for advice in &report.advice {
        workloads.entry((&advice.namespace, &advice.kind, &advice.workload)).or_default().push(advice);
    }
    let mut workloads: Vec<_> = workloads.into_values().collect();
    // Stable: equal ones stay sorted by name.
    workloads.sort_by_key(|workload| Reverse(saved(workload)));
    workloads
}

fn saved(workload: &Workload<'_>) -> i128 {
    workload.iter().map(|advice| advice.saved()).sum()
}

fn summary(report: &AdviceReport) -> String {
    let severe = |severity| report.advice.iter().filter(|each| each.severity == severity).count();
    let mut text = format!(
        "{} containers by their usage in the {} before {}: {} critical, {} warning. {}",
        report.advice.len(),
        escape(&report.history),
        escape(&report.at),
        severe(Severity::Critical),
        severe(Severity::Warning),
        change(&report.advice.iter().collect(), " requested"),
    );
    if let Some(prices) = &report.prices {
        let cost = units::cost(Some(prices.of_all(&report.advice)), "→");
        text += &format!(", cost {} a month", escape(&units::money(&cost, &prices.currency)));
    }
    limited(text.trim())
}

/// Formats one workload.
fn line(report: &AdviceReport, workload: &Workload<'_>) -> String {
    let Some(first) = workload.first() else { return String::new() };
    let guess = if first.guessed { "~" } else { "" };
    let name = format!("{}/{guess}{}/{}", first.namespace, units::kind(&first.kind), first.workload);
    let pods = workload.iter().map(|advice| advice.pods).max().unwrap_or(0);
    let mut text = format!("{}: {}, {pods} pods", code(&name), change(workload, ""));
    if let Some(prices) = &report.prices {
        let cost = workload.iter().filter_map(|advice| prices.of_container(advice)).sum();
        let cost = units::money(&units::cost(Some(cost), "→"), &prices.currency);
        text += &format!(", {} a month", escape(&cost));
    }
    limited(&text)
}

/// Formats the requests of all pods of these containers, now and as advised.
fn change(workload: &Workload<'_>, what: &str) -> String {
    let totals = totals(workload.iter().copied());
    let one = |name: &str, total: Option<(Amount, Amount)>, unit: fn(Amount) -> String| {
        total.map(|(now, then)| format!("{name}{what} {} → {}", unit(now), unit(then)))
    };
    let both = [one("CPU", totals.cpu, cpu), one("memory", totals.memory, memory)];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn section(text: &str) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})
}

/// Formats a name as code, in which Slack sees no markup.
fn code(name: &str) -> String {
    format!("`{}`", escape(&cut(name, NAME_CHARS_MAX).replace('`', "'")))
}

/// Escapes the characters that begin Slack's links, mentions and entities.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn limited(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
