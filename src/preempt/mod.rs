//! Preemption: which pods must leave which node so that a more important pod fits (upstream: DefaultPreemption).
//!
//! A *survey* of all nodes finds those where it could help, from what rows know of each priority, cheapest first
//! (`survey.rs`). A *dry run* of one of them finds its victims as upstream does (`dry_run.rs`), and of some dry runs the one
//! with the least cost is taken (`cost.rs`). May not know: kube, tokio, clocks, and who carries it out.

mod cost;
mod dry_run;
mod survey;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use cost::Cost;
pub use dry_run::dry_run;
pub use survey::{Survey, survey};

use crate::inventory::{Ledger, NodeId, Occupant, Revision};
use crate::model::Holding;
use crate::rules::Reasons;

/// A node and those of its pods that the preemptor may preempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub node: NodeId,
    /// Of the node's row when the pods were read.
    pub revision: Revision,
    /// All of a lower priority than the preemptor's.
    pub pods: Vec<Potential>,
}

/// A pod that may be preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Potential {
    pub pod: Arc<Occupant>,
    /// Pods that must go with it; `None`: it goes alone.
    pub group: Option<Arc<VictimGroup>>,
}

/// Pods that are of no use without each other: if one is evicted, all are, wherever they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimGroup {
    /// Tells groups apart.
    pub name: Arc<str>,
    /// All of them.
    pub members: Vec<Arc<Occupant>>,
    /// Some of them are on their way to a node, so that they cannot all be evicted now.
    pub unsettled: bool,
}

/// What to evict so that the preemptor may go to `node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victims {
    pub node: NodeId,
    /// Never empty; most important first.
    pub pods: Vec<Arc<Occupant>>,
    /// How many of them a disruption budget wants kept.
    pub violations: u32,
    /// How many groups are evicted as a whole.
    pub groups: u32,
}

/// Why preemption does not help on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fruitless {
    /// No pod there may be preempted.
    NoVictims,
    /// Without all that may be preempted it is still out for these reasons.
    StillOut(Reasons),
}

impl Fruitless {
    /// Why the node is out without all that may be preempted; none: nothing may be.
    pub fn reasons(self) -> Reasons {
        match self {
            Fruitless::NoVictims => Reasons::NONE,
            Fruitless::StillOut(reasons) => reasons,
        }
    }
}

/// A node on which pods can be supposed to be gone.
pub trait Ground {
    /// Supposes that these pods are gone from the node.
    fn remove(&mut self, pods: &mut dyn Iterator<Item = &Holding>);
    /// Whether the preemptor may go to the node, as it is supposed to be.
    fn admits(&mut self) -> bool;
    /// Why it may not.
    fn reasons(&mut self) -> Reasons;
    /// Supposes that these pods are there again if the preemptor may go there all the same. Returns whether it may.
    fn put_back(&mut self, pods: &mut dyn Iterator<Item = &Holding>) -> bool;
}

impl Site {
    /// What a pod of this priority may preempt on `node`. `group_of` tells of a pod (by uid) who must go with it.
    pub fn new(
        ledger: &Ledger,
        node: NodeId,
        priority: i32,
        group_of: &dyn Fn(&str) -> Option<Arc<VictimGroup>>,
    ) -> Site {
        let lower = |pod: &Occupant| pod.holding.priority < priority;
        let pods = ledger.occupants(node).into_iter().filter(lower).map(|pod| {
            let group = group_of(&pod.pod.uid);
            Potential { pod: Arc::new(pod), group }
        });
        Site { node, revision: ledger.inventory().row(node).revision, pods: pods.collect() }
    }
}

/// More important pods come first (upstream: `MoreImportantPod`): by priority, then by who started earlier; one that has not
/// started yet counts as started now.
fn importance(pod: &Occupant) -> impl Ord + use<> {
    (std::cmp::Reverse(pod.holding.priority), started(pod), pod.pod.uid.clone())
}

fn started(pod: &Occupant) -> i64 {
    pod.started_s.unwrap_or(i64::MAX)
}
