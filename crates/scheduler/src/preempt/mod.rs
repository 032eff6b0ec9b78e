//! Preemption: which pods must leave which node so that a more important pod fits (upstream: DefaultPreemption).
//!
//! A *survey* of all nodes finds those where it could help, from what rows know of each priority, cheapest first
//! (`survey.rs`). A *dry run* of one of them finds its victims as upstream does (`dry_run.rs`), and of some dry runs the one
//! with the least cost is taken (`cost.rs`). May not know: kube, tokio, clocks, and who carries it out.

mod cost;
mod dry_run;
mod survey;
mod together;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use cost::Cost;
pub use dry_run::dry_run;
pub(crate) use survey::removable;
pub use survey::{Survey, survey};
pub use together::{Prospect, Takeover, Together};

use crate::inventory::{Ledger, NodeId, Occupant, Revision};
use crate::quota::Claim;
use crate::rules::Reasons;
use berth_model::Holding;

/// A node and those of its pods that the preemptor may preempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub node: NodeId,
    /// Of the node's row when the pods were read.
    pub revision: Revision,
    pub pods: Vec<Potential>,
    /// The preemptor may take back what is guaranteed to it: those that have borrowed go first.
    pub reclaims: bool,
}

/// A pod that may be preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Potential {
    pub pod: Arc<Occupant>,
    /// It holds what is lent to it.
    pub lent: bool,
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
    /// Of those that go because of a guarantee, the quotas; one for each pod.
    pub lent: Vec<Arc<str>>,
    /// How many others go beside such.
    pub unlent: usize,
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

impl Victims {
    pub(crate) fn none(node: NodeId) -> Victims {
        Victims { node, pods: Vec::new(), violations: 0, groups: 0, lent: Vec::new(), unlent: 0 }
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
        let lower = |pod: &Occupant| if pod.holding.priority < priority { Claim::Lower } else { Claim::No };
        Site::claimed(ledger, node, false, lower, group_of)
    }

    /// The same where `claim` says which pods may be preempted; it is asked about the least important ones first. A group goes
    /// only if all of it may.
    pub fn claimed(
        ledger: &Ledger,
        node: NodeId,
        reclaims: bool,
        mut claim: impl FnMut(&Occupant) -> Claim,
        group_of: &dyn Fn(&str) -> Option<Arc<VictimGroup>>,
    ) -> Site {
        let mut occupants = ledger.occupants(node);
        occupants.sort_by_cached_key(|pod| std::cmp::Reverse(importance(pod)));
        let mut groups: BTreeMap<Arc<str>, Claim> = BTreeMap::new();
        let mut pods = Vec::new();
        for pod in occupants {
            let group = group_of(&pod.pod.uid);
            let claim = match &group {
                None => claim(&pod),
                Some(group) => {
                    *groups.entry(group.name.clone()).or_insert_with(|| claim_all(group, &mut claim))
                }
            };
            if claim != Claim::No {
                pods.push(Potential { pod: Arc::new(pod), lent: claim == Claim::Lent, group });
            }
        }
        Site { node, revision: ledger.inventory().row(node).revision, pods, reclaims }
    }
}

/// Whether all of a group may go; it is lent something if one of them is.
fn claim_all(group: &VictimGroup, claim: &mut impl FnMut(&Occupant) -> Claim) -> Claim {
    let mut members: Vec<_> = group.members.iter().collect();
    members.sort_by_cached_key(|pod| std::cmp::Reverse(importance(pod)));
    let mut lent = false;
    for member in members {
        match claim(member) {
            Claim::No => return Claim::No,
            Claim::Lent => lent = true,
            Claim::Lower => {}
        }
    }
    if lent { Claim::Lent } else { Claim::Lower }
}

/// More important pods come first (upstream: `MoreImportantPod`): by priority, then by who started earlier; one that has not
/// started yet counts as started now.
pub(crate) fn importance(pod: &Occupant) -> impl Ord + use<> {
    (std::cmp::Reverse(pod.holding.priority), started(pod), pod.pod.uid.clone())
}

fn started(pod: &Occupant) -> i64 {
    pod.started_s.unwrap_or(i64::MAX)
}
