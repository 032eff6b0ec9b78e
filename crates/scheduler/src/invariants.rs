//! Invariants as named predicates, numbered as in the design. Tests and the simulation evaluate them after every step.
//! `Scheduler::check` evaluates the cheap ones in production, where a violation is counted and logged.
//!
//! I4 (allocations of several pods) has no check here yet. I8 (no event is lost between list and watch) is a property
//! of the watches and is tested there.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::{Agent, AgentChoice, AgentConfig, CacheLimits};
use crate::class::{Class, ClassId, Classifier};
use crate::inventory::{Inventory, KEPT_FROM_ALL, Ledger, Row};
use crate::quota::{Account, Limit, Sums};
use crate::rules::{self, Key};
use berth_model::{Identity, Node, Pod, PodSpec, Usage};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("I{invariant} violated: {what}")]
pub struct Violation {
    /// Number of the invariant in the design.
    pub invariant: u8,
    pub what: String,
}

impl Violation {
    pub fn new(invariant: u8, what: impl Into<String>) -> Self {
        let what = what.into();
        Violation { invariant, what }
    }
}

/// `Err`: the invariant is violated.
pub type Checked = Result<(), Violation>;

/// Returns a violation with the text unless `holds`.
pub(crate) fn ensure(invariant: u8, holds: bool, what: impl FnOnce() -> String) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(Violation::new(invariant, what())),
    }
}

/// Checks I1: a uid is bound at most once. `bound` has the uid and node of every bind the store carried out, for all
/// processes.
pub fn bound_once<U: Eq + Hash + Display, N: Display>(bound: impl IntoIterator<Item = (U, N)>) -> Checked {
    let mut seen = HashSet::new();
    for (uid, node) in bound {
        if let Some(uid) = seen.replace(uid) {
            return Err(Violation::new(1, format!("pod {uid} was bound twice, last to {node}")));
        }
    }
    Ok(())
}

/// Checks I9: every retry is bounded. `what` describes the operation and its subject.
pub fn bounded(times: u32, most: u32, what: impl FnOnce() -> String) -> Checked {
    ensure(9, times <= most, || format!("{} {times} times, the limit is {most}", what()))
}

/// Checks I2: of the resources the newly charged pod requests, the node holds no more than its allocatable. Resources
/// the pod does not request may already be overcommitted by other pods.
pub fn within_allocatable(row: &Row, usage: &Usage) -> Checked {
    let (wanted, taken, all) = (&usage.requests, &row.requested, &row.allocatable);
    let within = |name: &str, wanted: i64, taken: i64, all: i64| {
        ensure(2, wanted <= 0 || taken <= all, || {
            let node = row.node.as_ref().map_or("(deleted)", |node| &node.name);
            format!("node {node} holds {taken} of {all} {name} after a commit")
        })
    };
    within("pods", 1, taken.pods, all.pods)?;
    within("milli-cpu", wanted.cpu_milli, taken.cpu_milli, all.cpu_milli)?;
    within("bytes of memory", wanted.memory, taken.memory, all.memory)?;
    let (taken, all) = (taken.ephemeral_storage, all.ephemeral_storage);
    within("bytes of ephemeral storage", wanted.ephemeral_storage, taken, all)?;
    for (name, wanted) in usage.extended.iter() {
        if let Some(all) = row.extended_allocatable(name) {
            within(name, wanted, row.extended_requested(name), all)?;
        }
    }
    Ok(())
}

/// Checks I12: of the resources the newly charged pod requests, the quota uses no more than its maximum. Resources the
/// pod does not request may already exceed it.
pub fn within_maximum(quota: &str, maximum: &Limit, account: &Account, usage: &Usage) -> Checked {
    let wanted = Sums::from(usage);
    for (resource, most) in maximum.iter().filter(|(resource, _)| wanted.get(resource) > 0) {
        let used = account.used.get(resource);
        ensure(12, used <= most.into(), || {
            format!("quota {quota} uses {used} of {most} {} after a commit", resource.name())
        })?;
    }
    Ok(())
}

/// Checks I3: only a pod without gates that is not being deleted is bound.
pub fn may_be_bound(pod: &Pod) -> Checked {
    ensure(3, pod.gates.is_empty() && !pod.deleting && !pod.finished, || {
        format!("pod {} is gated, finished or being deleted", pod.uid)
    })
}

/// Checks I5: a repaired list equals a list built now. Both agents have the same seed and revision, and have the list
/// cached.
pub fn same_list(repaired: &Agent, fresh: &Agent, class: ClassId) -> Checked {
    let (a, b) = (repaired.standings(class), fresh.standings(class));
    let differs = (0..a.len().max(b.len())).find(|at| a.get(*at) != b.get(*at));
    match differs {
        None => {
            let (a, b) = (repaired.best(class), fresh.best(class));
            ensure(5, a == b, || format!("best of the repaired list is {a:?}, of a new list {b:?}"))
        }
        Some(at) => {
            Err(Violation::new(5, format!("repaired list has {:?}, a new list {:?}", a.get(at), b.get(at))))
        }
    }
}

/// Checks I7: two inventories hold the same nodes with the same sums. Room that a process keeps from all other pods is its
/// own decision of the moment, and left out.
pub fn same_accounting(a: &Inventory, b: &Inventory) -> Checked {
    let sums = |inventory: &Inventory| -> Vec<(Arc<str>, String)> {
        let mut all: Vec<_> = (0..inventory.len() as u32)
            .map(crate::inventory::NodeId)
            .map(|id| (inventory.name(id).clone(), inventory.row(id)))
            // A free id has neither a node nor a pod.
            .filter(|(_, row)| row.node.is_some() || row.requested.pods != 0 || row.reserved.is_some())
            .map(|(name, row)| (name, content(row)))
            .collect();
        all.sort();
        all
    };
    let (a, b) = (sums(a), sums(b));
    match a.iter().zip(&b).find(|(a, b)| a != b) {
        Some((a, b)) => Err(Violation::new(7, format!("{} {} differs from {} {}", a.0, a.1, b.0, b.1))),
        None => {
            ensure(7, a.len() == b.len(), || format!("{} rows, the other inventory has {}", a.len(), b.len()))
        }
    }
}

/// Formats a row without its revisions.
fn content(row: &Row) -> String {
    let mut ports = row.ports.as_deref().cloned().unwrap_or_default();
    ports.sort();
    let mut reserved = row.reserved.as_deref().cloned().unwrap_or_default();
    reserved.retain(|reservation| reservation.priority != KEPT_FROM_ALL);
    reserved.sort_by(|a, b| a.uid.cmp(&b.uid));
    format!(
        "{:?} {} {} {:?} {ports:?} {reserved:?} {:?}",
        row.requested,
        row.nonzero_cpu_milli,
        row.nonzero_memory,
        row.extended.as_deref().cloned().unwrap_or_default(),
        row.node,
    )
}

/// Checks I2 and I10 from scratch: a pod with this spec may go to `node`, which already runs pods with the usages
/// `others`.
pub fn admits<'a>(spec: &Arc<PodSpec>, node: &Node, others: impl Iterator<Item = &'a Arc<Usage>>) -> Checked {
    let mut ledger = Ledger::default();
    ledger.apply_node(node.clone());
    for (at, usage) in others.enumerate() {
        ledger.bound(&Arc::from(at.to_string()), &node.name, usage);
    }
    let class = Classifier::default().classify(spec, &Identity::default(), 0);
    let inventory = ledger.inventory();
    let key = (inventory.find(&node.name)).map(|id| rules::rank_uncached(&class, inventory.row(id)));
    ensure(10, key.is_some_and(Key::is_valid), || {
        let why = key.and_then(Key::reasons);
        format!("node {} does not admit the pod: {why:?}", node.name)
    })
}

/// Evaluates a pod of `class` on every node of `inventory`. Returns whether a valid node exists, and the FailedScheduling
/// message if not.
pub fn evaluate(
    class: &Arc<Class>,
    policy: berth_model::PreemptionPolicy,
    inventory: &Inventory,
) -> (bool, String) {
    match fresh_agent(inventory).choose(class, Duration::ZERO, |_| {}) {
        AgentChoice::Node { .. } => (true, String::new()),
        AgentChoice::Nowhere(diagnosis) => (false, diagnosis.message(class, policy)),
    }
}

/// Returns an agent with empty caches.
fn fresh_agent(inventory: &Inventory) -> Agent {
    let cache = CacheLimits::unlimited();
    let mut agent = Agent::new(AgentConfig { cache, seed: 1 });
    agent.catch_up(inventory);
    agent
}

/// Checks I6: the conditions say what is expected. Both maps are keyed by uid.
pub fn reported_conditions(
    expected: &HashMap<Arc<str>, String>,
    conditions: &HashMap<Arc<str>, Arc<str>>,
) -> Checked {
    same_messages(6, expected.iter().map(|(uid, message)| (uid, &**message)), conditions)
}

/// Checks I13: at rest the conditions in the API server say what was last reported, whatever was lost on the way.
/// `reported` has uids and messages; `conditions` is keyed by uid.
pub fn conditions_written<'a>(
    reported: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
    conditions: &HashMap<Arc<str>, Arc<str>>,
) -> Checked {
    same_messages(13, reported.map(|(uid, message)| (uid, &**message)), conditions)
}

fn same_messages<'a>(
    invariant: u8,
    expected: impl Iterator<Item = (&'a Arc<str>, &'a str)>,
    conditions: &HashMap<Arc<str>, Arc<str>>,
) -> Checked {
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    for (uid, expected) in expected {
        let condition = conditions.get(uid);
        ensure(invariant, condition.is_some_and(|condition| **condition == *expected), || {
            format!("pod {uid} has the condition message {condition:?}, expected {expected:?}")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::Amounts;

    fn usage(cpu_milli: i64) -> Arc<Usage> {
        let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
        Arc::new(Usage { requests, ..Usage::default() })
    }

    fn node(cpu_milli: i64) -> Node {
        Node {
            name: "n".into(),
            allocatable: Amounts { cpu_milli, pods: 10, ..Amounts::default() },
            ..Node::default()
        }
    }

    fn ledger(allocatable: i64, pods: &[i64]) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.apply_node(node(allocatable));
        for (at, cpu_milli) in pods.iter().enumerate() {
            ledger.bound(&Arc::from(at.to_string()), &"n".into(), &usage(*cpu_milli));
        }
        ledger
    }

    #[test]
    fn a_second_bind_of_a_uid_breaks_i1() {
        let bound = |uids: &[&'static str]| bound_once(uids.iter().map(|uid| (*uid, "n")));
        assert_eq!(bound(&["a", "b"]), Ok(()));
        assert_eq!(bound(&["a", "b", "a"]).unwrap_err().invariant, 1);
    }

    #[test]
    fn one_try_too_many_breaks_i9() {
        assert_eq!(bounded(10, 10, String::new), Ok(()));
        assert_eq!(bounded(11, 10, || "pod a was tried".into()).unwrap_err().invariant, 9);
    }

    #[test]
    fn overcommit_breaks_i2_only_in_what_the_pod_asks_for() {
        let full = ledger(1000, &[600, 600]);
        let row = full.inventory().row(crate::inventory::NodeId(0));
        assert_eq!(within_allocatable(row, &usage(600)).unwrap_err().invariant, 2);
        assert_eq!(within_allocatable(row, &usage(0)), Ok(()));
        let spec = Arc::new(PodSpec { usage: usage(500), ..PodSpec::default() });
        assert_eq!(admits(&spec, &node(1000), [&usage(500)].into_iter()), Ok(()));
        assert!(admits(&spec, &node(1000), [&usage(501)].into_iter()).is_err());
    }

    #[test]
    fn accounting_differs_by_a_pod_a_node_or_what_a_node_is() {
        let one = ledger(1000, &[100]);
        let same = |other: &Ledger| same_accounting(one.inventory(), other.inventory()).is_ok();
        assert!(same(&ledger(1000, &[100])));
        assert!(!same(&ledger(1000, &[101])));
        assert!(!same(&ledger(1001, &[100])));
        assert!(!same(&Ledger::default()));
        let mut gone = ledger(1000, &[]);
        gone.delete_node("n");
        assert!(same_accounting(gone.inventory(), Ledger::default().inventory()).is_ok());
    }
}
