//! Why a pod waits, and what would help: the scheduler's own verdict about each pod, put into words.
//!
//! A [`World`] is a scheduler that is fed once, from a dump or from lists, and asked. Each pod is judged on the cluster as it is,
//! by itself: what the other waiting pods would take is not counted. May not know: kube's client, tokio, clocks; `dump.rs` alone
//! knows JSON.

mod change;
mod cures;
pub mod dump;
mod remedy;
pub mod show;
pub mod show_moves;
mod what_if;
mod world;

use std::collections::HashMap;
use std::sync::Arc;

pub use change::{Change, Resource};
pub use remedy::Remedy;
pub use what_if::{Subject, Unanswerable, what_if};
pub use world::{Settings, World};

use berth_model::Pod;
use berth_scheduler::scheduler::Verdict;

/// Which pods are asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Those that wait for a scheduler of these settings.
    Waiting,
    /// All without a node, whoever schedules them.
    AllPending,
    /// This one, wherever it is.
    Named { namespace: String, name: String },
}

/// Pods that have one answer.
#[derive(Debug)]
pub struct Group {
    /// The same in every run for the same class.
    pub class: String,
    /// Sorted by namespace and name.
    pub pods: Vec<Pod>,
    /// Waiting pods of this class, of those asked about and others.
    pub waiting: usize,
    /// How many nodes there are.
    pub nodes: usize,
    pub verdict: Verdict,
    /// Remedies were looked for.
    pub remedied: bool,
    /// If it fits nowhere: the smallest changes that are known to help, best first.
    pub remedies: Vec<Remedy>,
}

/// Groups that get remedies in one run: the search takes some milliseconds in a large cluster. A pod asked for by its name
/// always gets them.
const MOST_REMEDIED: usize = 32;

/// The answer about each of these pods, in groups, sorted by their first pod.
pub fn explain(world: &mut World, which: &Which) -> Vec<Group> {
    let pods = world.select(which);
    let mut waiting: HashMap<_, usize> = HashMap::new();
    for pod in world.select(&Which::Waiting) {
        *waiting.entry(world.class_of(&pod).id).or_default() += 1;
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<(_, Option<Arc<str>>), usize> = HashMap::new();
    let mut searches = 0;
    for pod in pods {
        let class = world.class_of(&pod);
        // For a pod that holds something, the cluster is another one: without it.
        let alone = world::holds(&pod);
        let key = (class.id, world.refusal(&pod));
        if !alone && let Some(at) = known.get(&key) {
            groups[*at].pods.push(pod);
            continue;
        }
        let (verdict, remedies, remedied) = world.without(&pod, |world| {
            let mut verdict = world.verdict(&pod);
            if let Some(refused) = &verdict.refused {
                // The rules were asked about a pod that asks for nothing; the truth is that no node will do.
                let nodes = verdict.feasible.drain(..).map(|candidate| candidate.node);
                verdict.reasons.extend(nodes.map(|node| (node, Vec::new())));
                verdict.reasons.values_mut().for_each(|why| *why = vec![refused.to_string()]);
                verdict.chosen = None;
            }
            let hopeless = verdict.refused.is_none() && verdict.feasible.is_empty();
            let look = hopeless && searches < MOST_REMEDIED;
            searches += usize::from(look);
            let remedies = if look { remedy::remedies(world, &pod) } else { Vec::new() };
            (verdict, remedies, look || !hopeless)
        });
        if !alone {
            known.insert(key, groups.len());
        }
        groups.push(Group {
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
