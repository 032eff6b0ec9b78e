//! Preemption: on every infeasible node, berth's dry run finds the same victims as upstream's DefaultPreemption, in
//! the same order and with the same number of disruption budget violations, or the same reasons for having none.
//! berth's survey keeps every node on which upstream has victims; the cheapest of these is upstream's choice, or has
//! the same cost; and without its victims the pod passes upstream's filters there.

use std::fmt::Write;

use berth_scheduler::preempt::Cost;
use serde_json::Value;

use super::generator::Features;
use super::oracle::{self, Oracle, Preempts as Upstream, Rejection, Victims};
use super::scenario::{Pods, Question, Step};
use super::subject::{Preempts as Berth, Says};

const CLUSTERS: u64 = 400;
const FEATURES: Features = Features { preemption: true, ..super::FEATURES };

/// Answers that must have been compared often for the test to be meaningful.
const MUST_BE_SEEN: &[&str] = &[
    "preemption: several victims",
    "preemption: a budget violated",
    "preemption: choice by violations",
    "preemption: choice by victims",
    "preemption: nowhere",
    "preemption: may not",
    "No preemption victims found for incoming pod",
    "resolved: Too many pods",
    "resolved: Insufficient cpu",
    "resolved: Insufficient memory",
    "resolved: Insufficient example.com/gpu",
    "resolved: node(s) didn't have free ports for the requested pod ports",
    "resolved: node(s) didn't match pod topology spread constraints",
    "resolved: node(s) didn't match pod anti-affinity rules",
    "resolved: node(s) didn't satisfy existing pods anti-affinity rules",
    "resolved: node(s) had no available disk",
    "resolved: node(s) exceed max volume count",
];

#[test]
fn on_random_clusters_every_preemption_is_kube_schedulers() {
    super::agree_on_random_clusters(FEATURES, CLUSTERS, MUST_BE_SEEN);
}

pub fn note(says: &oracle::Says, count: &mut impl FnMut(&str)) {
    let Some(upstream) = &says.preemption else { return };
    let candidates = &upstream.candidates;
    for (node, victims) in candidates {
        let resolved = says.rejected.as_ref().and_then(|rejected| rejected.get(node));
        let reasons = resolved.iter().flat_map(|rejection| &rejection.reasons);
        reasons.for_each(|reason| count(&format!("resolved: {reason}")));
        if victims.pods.len() > 1 {
            count("preemption: several victims");
        }
        if victims.violations > 0 {
            count("preemption: a budget violated");
        }
    }
    let violations = || candidates.values().map(|victims| victims.violations);
    if violations().max() != violations().min() {
        count("preemption: choice by violations");
    } else if candidates.len() > 1 {
        count("preemption: choice by victims");
    }
    if says.feasible.as_ref().is_some_and(Vec::is_empty) && candidates.is_empty() {
        count("preemption: nowhere");
    }
    upstream.ineligible.iter().for_each(|_| count("preemption: may not"));
    upstream.fruitless.values().flat_map(|why| &why.reasons).for_each(|reason| count(reason));
}

pub fn differences(upstream: &Upstream, berth: &Berth, text: &mut String) {
    dry_run_differences(upstream, berth, text);
    if let Some(surveyed) = &berth.surveyed {
        for node in upstream.candidates.keys().filter(|node| !surveyed.contains(*node)) {
            let _ = writeln!(text, "{node}: kube-scheduler has victims here, berth's survey leaves it out");
        }
        for node in surveyed.iter().filter(|node| !is_tried(upstream, node)) {
            let _ = writeln!(text, "{node}: berth's survey wants it tried, kube-scheduler does not");
        }
    }
    choice_difference(upstream, berth, text);
    message_difference(upstream, berth, text);
}

fn is_tried(upstream: &Upstream, node: &str) -> bool {
    upstream.candidates.contains_key(node) || upstream.fruitless.contains_key(node)
}

/// Nodes that upstream does not try are not compared.
fn dry_run_differences(upstream: &Upstream, berth: &Berth, text: &mut String) {
    for (node, theirs) in &upstream.candidates {
        match berth.dry_runs.get(node) {
            Some(Ok((ours, _))) if ours == theirs => {}
            Some(Ok((ours, _))) => {
                let kind = if ours.violations > theirs.violations {
                    "berth violates more budgets"
                } else if ours.pods.len() > theirs.pods.len() {
                    "berth has more victims"
                } else {
                    "other victims"
                };
                let _ = writeln!(text, "{node}: {kind}");
                let _ = writeln!(text, "  on {node} kube-scheduler preempts {theirs:?}, berth {ours:?}");
            }
            why => {
                let _ = writeln!(text, "{node}: berth finds no victims");
                let _ = writeln!(text, "  on {node} kube-scheduler preempts {theirs:?}, berth says {why:?}");
            }
        }
    }
    for (node, why) in &upstream.fruitless {
        let mut theirs = why.reasons.clone();
        theirs.retain(|reason| reason != "No preemption victims found for incoming pod");
        theirs.sort();
        let ours = berth.dry_runs.get(node).map(|found| {
            found.as_ref().map_err(|reasons| {
                let mut reasons = reasons.clone();
                reasons.sort();
                reasons
            })
        });
        if ours != Some(Err(theirs)) {
            let _ = writeln!(text, "{node}: kube-scheduler finds no victims");
            let _ = writeln!(text, "  on {node} kube-scheduler says {why:?}, berth {ours:?}");
        }
    }
}

/// Returns the node, the victims and the cost of berth's choice: among the surveyed nodes or, where the pod fits
/// somewhere and there is no survey, among those that upstream tries.
fn choice<'a>(upstream: &Upstream, berth: &'a Berth) -> Option<(&'a String, &'a (Victims, Cost))> {
    let counts = |node: &str| match &berth.surveyed {
        Some(surveyed) => surveyed.contains(node),
        None => is_tried(upstream, node),
    };
    let found = berth.dry_runs.iter().filter(|(node, _)| counts(node));
    let found = found.filter_map(|(node, found)| Some((node, found.as_ref().ok()?)));
    found.min_by_key(|(_, (_, cost))| *cost)
}

fn choice_difference(upstream: &Upstream, berth: &Berth, text: &mut String) {
    let ours = choice(upstream, berth);
    let best = upstream.best.iter().flatten();
    let agree = match ours {
        Some((ours, ..)) => best.clone().any(|node| node == ours),
        None => best.clone().count() == 0,
    };
    if !agree {
        let _ = writeln!(text, "the choice differs");
        let best: Vec<_> = best.map(|node| (node, upstream.candidates.get(node))).collect();
        let _ = writeln!(text, "  kube-scheduler chooses of {best:?}, berth {ours:?}");
    }
}

/// Skipped where a survey reports missing resources but upstream's dry run would find an occupied port first. Without
/// any node, kube-scheduler does not reach preemption.
fn message_difference(upstream: &Upstream, berth: &Berth, text: &mut String) {
    let ports = |why: &Rejection| why.reasons.iter().any(|reason| reason.contains("free ports"));
    if berth.dry_runs.is_empty() || upstream.fruitless.values().any(ports) {
        return;
    }
    let (Some(told), Some(ours)) =
        (upstream.ineligible.as_ref().or(upstream.message.as_ref()), &berth.message)
    else {
        return;
    };
    if !ours.ends_with(&format!(" preemption: {told}")) {
        let _ = writeln!(text, "another message");
        let _ = writeln!(text, "  kube-scheduler reports {told:?}, berth {ours:?}");
    }
}

/// Removes the victims of berth's choice, and asks upstream's filters whether the pod then fits.
///
/// # Errors
/// The oracle fails.
pub fn chosen_in_vain(
    pod: &Value,
    (upstream, berth): (&oracle::Says, &Says),
    pods: &Pods,
    oracle: &mut Oracle,
) -> anyhow::Result<Option<String>> {
    let Some((upstream, berth)) = upstream.preemption.as_ref().zip(berth.preemption.as_ref()) else {
        return Ok(None);
    };
    let Some((node, (victims, _))) = choice(upstream, berth) else {
        return Ok(None);
    };
    let priority = |pod: &Value| pod["spec"]["priority"].as_i64().unwrap_or(0);
    let mut text = String::new();
    let (mut without, mut back) = (Step::default(), Step::default());
    for key in &victims.pods {
        let victim = pods.get(key).cloned().unwrap_or_default();
        if priority(&victim) >= priority(pod) {
            let _ = writeln!(text, "berth preempts a pod that is not less important");
            let _ = writeln!(text, "  it is {victim}");
        }
        without.delete("pods", key);
        back.apply("pods", victim);
    }
    without.ask.push(Question { pod: pod.clone(), scores: false, preempt: false });
    let answers = oracle.step(&without)?;
    oracle.step(&back)?;
    if !answers[0].feasible.iter().flatten().any(|feasible| feasible == node) {
        let _ = writeln!(text, "without berth's victims kube-scheduler's filters refuse the pod");
        let _ = writeln!(text, "  berth preempts {victims:?} on {node}, then: {:?}", answers[0]);
    }
    Ok((!text.is_empty()).then_some(text))
}
