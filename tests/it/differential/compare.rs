//! Comparison of berth and kube-scheduler, and descriptions of their differences.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::oracle::{Oracle, Says as Upstream};
use super::preemption;
use super::scenario::{Pods, Step};
use super::subject::{Says as Berth, Subject};

/// kube-scheduler's score plugins in the order in which berth compares preferences.
const PREFERENCES: [&str; 4] = ["TaintToleration", "NodeAffinity", "InterPodAffinity", "PodTopologySpread"];

/// The first pod of a scenario with a difference.
#[derive(Debug)]
pub struct Difference {
    pub step: usize,
    pub question: usize,
    /// The difference, and both complete answers.
    pub text: String,
}

impl Difference {
    /// Returns the first difference, without node names.
    pub fn kind(&self) -> &str {
        let line = self.text.lines().next().unwrap_or_default();
        line.split_once(": ").filter(|(node, _)| node.starts_with("node-")).map_or(line, |(_, rest)| rest)
    }
}

/// Number of times that kube-scheduler gave an answer, as a measure of coverage. Reasons and messages by their text,
/// feasible nodes as [`FEASIBLE`], scores that differed between nodes by their plugin.
pub type Seen = BTreeMap<String, u64>;

pub const FEASIBLE: &str = "feasible";

/// Runs both through the whole history.
///
/// # Errors
/// The oracle fails.
pub fn first_difference(
    scenario: &[Step],
    oracle: &mut Oracle,
    seen: &mut Seen,
) -> anyhow::Result<Option<Difference>> {
    let (mut subject, mut pods) = (Subject::new(7), Pods::default());
    for (at, step) in scenario.iter().enumerate() {
        let (upstream, berth) = (oracle.step(step)?, subject.step(step));
        pods.step(step);
        for (question, (upstream, berth)) in upstream.iter().zip(&berth).enumerate() {
            note(upstream, seen);
            let text = match difference(upstream, berth) {
                None => {
                    preemption::chosen_in_vain(&step.ask[question].pod, (upstream, berth), &pods, oracle)?
                }
                found => found,
            };
            if let Some(text) = text {
                return Ok(Some(Difference { step: at, question, text }));
            }
        }
    }
    Ok(None)
}

fn note(upstream: &Upstream, seen: &mut Seen) {
    let mut count = |what: &str| match seen.get_mut(what) {
        Some(count) => *count += 1,
        None => _ = seen.insert(what.to_owned(), 1),
    };
    upstream.pre_filter.iter().for_each(|message| count(message));
    upstream.feasible.iter().flatten().for_each(|_| count(FEASIBLE));
    let rejected = upstream.rejected.iter().flat_map(BTreeMap::values);
    rejected.flat_map(|rejection| &rejection.reasons).for_each(|reason| count(reason));
    if let Some((plugin, _)) = deciding(upstream) {
        count(plugin);
    }
    preemption::note(upstream, &mut count);
}

/// Returns the first preference with different scores, with the score of each node.
fn deciding(upstream: &Upstream) -> Option<(&'static str, &BTreeMap<String, i64>)> {
    let scores = PREFERENCES.iter().filter_map(|plugin| Some((*plugin, upstream.scores.get(*plugin)?)));
    let mut telling = scores.filter(|(_, scores)| scores.values().max() != scores.values().min());
    telling.next()
}

fn difference(upstream: &Upstream, berth: &Berth) -> Option<String> {
    let mut text = String::new();
    if let Some(error) = &upstream.error {
        let _ = writeln!(text, "kube-scheduler fails: {error}");
    } else if let Some(message) = &upstream.pre_filter {
        let nodes = berth.feasible.len() + berth.rejected.len();
        let told = berth.message.as_deref().unwrap_or_default();
        // Without any node, kube-scheduler does not run its plugins.
        if nodes > 0 && !told.starts_with(&format!("0/{nodes} nodes are available: {message}. ")) {
            let _ = writeln!(text, "kube-scheduler looks at no node: {message}; berth says: {told}");
        }
    } else {
        node_differences(upstream, berth, &mut text);
        choice_difference(upstream, berth, &mut text);
        if let (Some(upstream), Some(berth)) = (&upstream.preemption, &berth.preemption) {
            preemption::differences(upstream, berth, &mut text);
        }
    }
    (!text.is_empty()).then(|| format!("{text}kube-scheduler: {upstream:?}\nberth: {berth:?}\n"))
}

fn node_differences(upstream: &Upstream, berth: &Berth, text: &mut String) {
    if let Some(refused) = &berth.refused {
        let _ = writeln!(text, "berth does not schedule it: {refused}");
        return;
    }
    let (no_nodes, no_reasons) = (Vec::new(), Default::default());
    let feasible = upstream.feasible.as_ref().unwrap_or(&no_nodes);
    let rejected = upstream.rejected.as_ref().unwrap_or(&no_reasons);
    for node in feasible.iter().filter(|node| !berth.feasible.contains(*node)) {
        let _ = writeln!(text, "{node}: kube-scheduler takes it, berth says {:?}", berth.rejected.get(node));
    }
    for (node, rejection) in rejected {
        let sorted = |reasons: &[String]| {
            let mut reasons = reasons.to_vec();
            reasons.sort();
            reasons
        };
        let upstream = sorted(&rejection.reasons);
        let berth = berth.rejected.get(node).map(|reasons| sorted(reasons));
        if berth.as_ref() != Some(&upstream) {
            let _ = writeln!(text, "{node}: kube-scheduler says {upstream:?}, berth {berth:?}");
        }
    }
    let known = feasible.len() + rejected.len();
    if berth.feasible.len() + berth.rejected.len() > known {
        let _ = writeln!(text, "berth knows of more than {known} nodes");
    }
}

/// Checks that kube-scheduler also accepts the chosen node, and that no node has a higher score in the first
/// preference with different scores.
fn choice_difference(upstream: &Upstream, berth: &Berth, text: &mut String) {
    let feasible = upstream.feasible.iter().flatten();
    let Some(chosen) = &berth.chosen else {
        if feasible.count() > 0 {
            let _ = writeln!(text, "berth chooses no node");
        }
        return;
    };
    if !feasible.into_iter().any(|node| node == chosen) {
        let _ = writeln!(text, "berth chooses {chosen}");
        return;
    }
    if let Some((plugin, scores)) = deciding(upstream)
        && scores.get(chosen) != scores.values().max()
    {
        let _ = writeln!(text, "berth chooses {chosen}, which is not the best for {plugin}: {scores:?}");
    }
}
