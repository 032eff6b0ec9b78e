//! Preemption: on every node where the pod does not fit, berth's dry run finds the victims that upstream's DefaultPreemption finds,
//! in their order and with as many violations of disruption budgets, or the same reasons why there are none. berth's survey
//! leaves out no node that upstream has victims on; the cheapest of what it leaves is what upstream chooses, or costs the
//! same; and without its victims the pod passes upstream's filters there.

use std::fmt::Write;

use serde_json::Value;

use super::generator::Features;
use super::oracle::{Oracle, Preempts as Upstream, Rejection};
use super::scenario::{Pods, Question, Step};
use super::subject::{Preempts as Berth, Says};

const CLUSTERS: u64 = 400;
const FEATURES: Features = Features { domains: true, owners: false, volumes: false, preemption: true };

/// What must have been compared often for the test to mean something.
const MUST_BE_SEEN: &[&str] = &[
    "preemption: candidate",
    "preemption: several victims",
    "preemption: a budget violated",
    "preemption: choice",
    "preemption: choice by violations",
    "preemption: nowhere",
    "preemption: may not",
    "No preemption victims found for incoming pod",
    "Insufficient cpu",
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
];

#[test]
fn on_random_clusters_every_preemption_is_kube_schedulers() {
    super::agree_on_random_clusters(FEATURES, CLUSTERS, MUST_BE_SEEN);
}

pub fn note(upstream: &Upstream, count: &mut impl FnMut(&str)) {
    let candidates = &upstream.candidates;
    for victims in candidates.values() {
        count("preemption: candidate");
        if victims.pods.len() > 1 {
            count("preemption: several victims");
        }
        if victims.violations > 0 {
            count("preemption: a budget violated");
        }
    }
    if candidates.len() > 1 {
        count("preemption: choice");
    }
    let violations = || candidates.values().map(|victims| victims.violations);
    if violations().max() != violations().min() {
        count("preemption: choice by violations");
    }
    upstream.message.iter().for_each(|_| count("preemption: nowhere"));
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
        choice_difference(upstream, berth, text);
    }
    message_difference(upstream, berth, text);
}

fn is_tried(upstream: &Upstream, node: &str) -> bool {
    upstream.candidates.contains_key(node) || upstream.fruitless.contains_key(node)
}

/// Where upstream does not try, what berth's dry run would find is of no interest.
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

fn choice_difference(upstream: &Upstream, berth: &Berth, text: &mut String) {
    let (Some(chosen), Some((ours, _, least))) = (&upstream.chosen, berth.least()) else {
        if upstream.chosen.is_some() || berth.least().is_some() {
            let _ = writeln!(text, "only one of the two chooses a node");
        }
        return;
    };
    let cost = berth.dry_runs.get(chosen).and_then(|found| found.as_ref().ok()).map(|(_, cost)| *cost);
    if cost != Some(least) {
        let _ = writeln!(text, "the choice differs");
        let _ = writeln!(text, "  kube-scheduler chooses {chosen} ({cost:?}), berth {ours} ({least:?})");
    }
}

/// A survey tells what resources lack, where upstream's dry run would find a port taken first: it is not looked for. Without
/// any node, kube-scheduler does not come to preemption.
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
        let _ = writeln!(text, "  kube-scheduler tells {told:?}, berth {ours:?}");
    }
}

/// Takes the victims of berth's choice away, and asks upstream's filters whether the pod fits then.
///
/// # Errors
/// When the oracle cannot be asked.
pub fn chosen_in_vain(
    pod: &Value,
    berth: &Says,
    pods: &Pods,
    oracle: &mut Oracle,
) -> anyhow::Result<Option<String>> {
    let Some((node, victims, _)) = berth.preemption.as_ref().and_then(Berth::least) else {
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
