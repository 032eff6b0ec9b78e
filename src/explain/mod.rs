//! Explanation of why a pod is pending and which changes would help, from the scheduler's own verdict about each pod.
//!
//! A [`World`] is a scheduler that is fed once, from a dump or from lists, and queried. Each pod is judged alone on
//! the current cluster: the demand of the other waiting pods is ignored. May not know: kube's client, tokio, clocks;
//! only `dump.rs` knows JSON.

mod change;
mod cures;
pub mod dump;
mod remedy;
pub mod servicescaler;
pub mod show;
pub mod show_moves;
pub mod vpa;
mod what_if;
mod world;

use std::collections::HashMap;

pub use change::{NodeChange, ResourceQuantity};
pub use remedy::Remedy;
pub use what_if::{Unanswerable, WhatIfSubject, what_if};
pub use world::{ExplainSettings, World};

use berth_model::Pod;
use berth_scheduler::scheduler::{PodRefusal, Verdict};

/// Selection of pods to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Pods waiting for a scheduler named in the settings.
    Waiting,
    /// All pods without a node, of any scheduler.
    AllPending,
    /// The named pod, bound or not.
    Named { namespace: String, name: String },
}

/// Pods with the same answer.
#[derive(Debug)]
pub struct AnswerGroup {
    /// Stable across runs for the same class.
    pub class: String,
    /// Sorted by namespace and name.
    pub pods: Vec<Pod>,
    /// Number of waiting pods of this class, selected or not.
    pub waiting: usize,
    /// Number of nodes.
    pub nodes: usize,
    pub verdict: Verdict,
    /// Whether remedies were searched.
    pub remedied: bool,
    /// If it fits no node: the smallest changes verified to help, best first.
    pub remedies: Vec<Remedy>,
}

/// Maximum number of groups with remedies in one run: the search takes some milliseconds in a large cluster. A pod
/// selected by name always gets them.
const MOST_REMEDIED: usize = 32;

/// Explains the selected pods, in groups sorted by their first pod.
pub fn explain(world: &mut World, which: &Which) -> Vec<AnswerGroup> {
    world.settle();
    let pods = world.select(which);
    let mut waiting: HashMap<_, usize> = HashMap::new();
    for pod in world.select(&Which::Waiting) {
        *waiting.entry(world.class_of(&pod).id).or_default() += 1;
    }
    let mut groups: Vec<AnswerGroup> = Vec::new();
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut searches = 0;
    for pod in pods {
        let class = world.class_of(&pod);
        // A pod that uses resources is judged on the cluster without it.
        let alone = world::holds(&pod);
        let gang = world.gang_of(&pod);
        let key = (class.id, gang, PodRefusal::of(&pod).map(|refusal| refusal.to_string()));
        if !alone && let Some(at) = known.get(&key) {
            groups[*at].pods.push(pod);
            continue;
        }
        let (verdict, remedies, remedied) = world.without(&pod, |world| {
            let mut verdict = world.verdict(&pod);
            if let Some(refused) = &verdict.refused {
                // The rules were evaluated for a pod without requests; no node can actually take it.
                let nodes = verdict.feasible.drain(..).map(|candidate| candidate.node);
                verdict.reasons.extend(nodes.map(|node| (node, Vec::new())));
                verdict.reasons.values_mut().for_each(|why| *why = vec![refused.to_string()]);
                verdict.chosen = None;
            }
            let hopeless = is_hopeless(&verdict);
            let look = hopeless && searches < MOST_REMEDIED;
            searches += usize::from(look);
            let remedies = if look { remedy::remedies(world, &pod) } else { Vec::new() };
            (verdict, remedies, look || !hopeless)
        });
        if !alone {
            known.insert(key, groups.len());
        }
        groups.push(AnswerGroup {
            class: format!("{:016x}", class.fingerprint()),
            waiting: waiting.get(&class.id).copied().unwrap_or(0),
            nodes: world.nodes(),
            pods: vec![pod],
            verdict,
            remedied,
            remedies,
        });
    }
    groups
}

/// Returns the smallest changes that make a waiting pod fit, best first; none if it fits a node.
pub(crate) fn remedies(world: &mut World, pod: &Pod) -> Vec<Remedy> {
    match is_hopeless(&world.verdict(pod)) {
        true => remedy::remedies(world, pod),
        false => Vec::new(),
    }
}

/// Returns whether the rules exclude every node.
fn is_hopeless(verdict: &Verdict) -> bool {
    verdict.refused.is_none() && verdict.feasible.is_empty()
}
