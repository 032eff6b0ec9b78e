//! Preemption: selects the pods to evict from a node so that a pod with higher priority fits (upstream:
//! DefaultPreemption).
//!
//! A *survey* of all nodes finds those where preemption could help, from the rows' sums by priority, cheapest first
//! (`survey.rs`). A *dry run* of one of them finds its victims as upstream does (`dry_run.rs`), and of several dry runs
//! the cheapest is taken (`cost.rs`). Must not depend on kube, tokio or clocks, or on the code that evicts the victims.

mod cost;
mod devices;
mod dry_run;
mod survey;
mod together;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use cost::Cost;
pub use devices::{HeldDevices, SiteDevices};
pub use dry_run::dry_run;
pub(crate) use survey::removable;
pub use survey::{Survey, stands_in_the_way, survey};
pub use together::{Prospect, Takeover, Together};

use crate::inventory::{Ledger, NodeId, Occupant, Revision, Row};
use crate::quota::VictimClaim;
use crate::rules::Reasons;
use berth_model::ClaimName;

/// A node and its pods that the preemptor may preempt.
#[derive(Debug, Clone)]
pub struct Site {
    pub node: NodeId,
    /// Revision of the node's row when the pods were read.
    pub revision: Revision,
    pub pods: Vec<Potential>,
    /// The preemptor may reclaim its guarantee: pods that borrow are evicted first.
    pub reclaims: bool,
    /// `None`: the preemptor needs no devices.
    pub devices: Option<SiteDevices>,
    /// Claims of the preemptor that only one pod may use, and others do.
    pub once: Vec<UsedClaim>,
}

/// A `ReadWriteOncePod` claim.
#[derive(Debug, Clone)]
pub struct UsedClaim {
    pub claim: ClaimName,
    /// Uids of the pods that use it, on any node.
    pub users: Vec<Arc<str>>,
}

/// A pod that may be preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Potential {
    pub pod: Arc<Occupant>,
    /// It uses borrowed resources.
    pub lent: bool,
    /// Its group, if it has one.
    pub group: Option<Arc<VictimGroup>>,
    /// The group can do without it, and without all other spare pods of the site: it may be evicted alone.
    pub spare: bool,
}

/// Pods of which a minimum needs each other: if one of that minimum is evicted, all pods of the group are, on any node,
/// except those that are too important for the preemptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimGroup {
    /// Identifies the group.
    pub name: Arc<str>,
    /// All pods of the group that are not leaving, by uid, with their roles.
    pub members: BTreeMap<Arc<str>, (Arc<Occupant>, usize)>,
    /// Number of pods by role that the group can do without.
    pub spare: Vec<usize>,
    /// Some of them are being bound, so that they cannot all be evicted now.
    pub unsettled: bool,
}

impl VictimGroup {
    fn pods(&self) -> impl Iterator<Item = &Arc<Occupant>> {
        self.members.values().map(|(pod, _)| pod)
    }

    fn role_of(&self, uid: &str) -> Option<usize> {
        self.members.get(uid).map(|(_, role)| *role)
    }

    /// Returns the group once these pods are gone.
    fn without(self: &Arc<Self>, gone: &BTreeSet<Arc<str>>) -> Arc<Self> {
        let mut left = self.clone();
        for uid in gone.iter().filter(|uid| self.members.contains_key(*uid)) {
            let left = Arc::make_mut(&mut left);
            let role = left.members.remove(uid).map(|(_, role)| role);
            take_one(role.and_then(|role| left.spare.get_mut(role)));
        }
        left
    }
}

/// Pods to evict so that the preemptor may go to `node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victims {
    pub node: NodeId,
    /// Not empty; most important first.
    pub pods: Vec<Arc<Occupant>>,
    /// Number of victims whose eviction violates a disruption budget.
    pub violations: u32,
    /// Number of groups that are evicted as a whole.
    pub groups: u32,
    /// Quotas of the victims that are reclaimed; one entry per pod.
    pub lent: Vec<Arc<str>>,
    /// Number of further victims when the preemptor reclaims.
    pub unlent: usize,
}

/// Why preemption does not help on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fruitless {
    /// No pod on the node may be preempted.
    NoVictims,
    /// Even without all pods that may be preempted, the node is not valid for these reasons.
    StillOut(Reasons),
}

impl Fruitless {
    /// Returns why the node is not valid without all pods that may be preempted; no reasons: there are no such pods.
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

/// A node on which the removal of pods can be simulated.
pub trait Ground {
    /// Simulates that these pods are gone from the node.
    fn remove(&mut self, pods: &mut dyn Iterator<Item = &Occupant>);
    /// Returns whether the preemptor may go to the simulated node.
    fn admits(&mut self) -> bool;
    /// Returns why it may not.
    fn reasons(&mut self) -> Reasons;
    /// Puts these pods back if the preemptor may still go there. Returns whether it may.
    fn put_back(&mut self, pods: &mut dyn Iterator<Item = &Occupant>) -> bool;
}

impl Site {
    /// Removes in the row of the node what becomes free without the pods with these uids, but for their requests.
    pub(crate) fn free_without(&self, gone: &BTreeSet<Arc<str>>, row: &mut Row) {
        if let Some(devices) = &self.devices {
            devices.free_without(gone, row);
        }
        self.vacate(gone, row);
    }

    /// Reverts that for the pods in `back`, which are among those in `gone`.
    pub(crate) fn use_again(&self, back: &BTreeSet<Arc<str>>, gone: &BTreeSet<Arc<str>>, row: &mut Row) {
        if let Some(devices) = &self.devices {
            devices.use_again(back, gone, row);
        }
        self.vacate(&gone.difference(back).cloned().collect(), row);
    }

    fn vacate(&self, gone: &BTreeSet<Arc<str>>, row: &mut Row) {
        if self.once.is_empty() {
            return;
        }
        let is_vacated = |used: &&UsedClaim| used.users.iter().all(|uid| gone.contains(uid));
        let vacated = self.once.iter().filter(is_vacated).map(|used| used.claim.clone());
        row.vacated = Some(Arc::new(vacated.collect()));
    }

    /// Returns the site once these pods are gone, here or on other nodes, and what those here used is free.
    pub fn left_without(mut self, gone: &BTreeSet<Arc<str>>) -> Site {
        let before = self.pods.len();
        self.pods.retain(|known| !gone.contains(&known.pod.pod.uid));
        let is_as_before = self.pods.len() == before;
        self = self.left_by_groups(gone);
        if is_as_before {
            return self;
        }
        self.devices = self.devices.map(|devices| devices.left_without(gone));
        for used in &mut self.once {
            used.users.retain(|uid| !gone.contains(uid));
        }
        self
    }

    /// Returns the site without the most important spare pods of groups that cannot do without them as well once these pods
    /// are gone, on any node.
    fn left_by_groups(mut self, gone: &BTreeSet<Arc<str>>) -> Site {
        // The members of a group that may be evicted whole are not all of it.
        let mut groups: BTreeMap<(Arc<str>, bool), ClaimsOnGroup> = BTreeMap::new();
        self.pods.retain_mut(|known| {
            let Some(group) = &mut known.group else {
                return true;
            };
            let left = groups.entry((group.name.clone(), known.spare));
            let left = left.or_insert_with(|| ClaimsOnGroup::new(&group.without(gone)));
            *group = left.group.clone();
            !known.spare || take_one(left.spare_like(&known.pod.pod.uid))
        });
        self
    }

    /// Returns the pods of lower priority on `node`.
    #[cfg(test)]
    fn new(
        ledger: &Ledger,
        node: NodeId,
        priority: i32,
        group_of: &dyn Fn(&str) -> Option<Arc<VictimGroup>>,
    ) -> Site {
        let lower = |pod: &Occupant| {
            if pod.holding.priority < priority { VictimClaim::Lower } else { VictimClaim::No }
        };
        Site::claimed(ledger, node, (priority, false), lower, group_of)
    }

    /// Returns the pods that a pod with this priority may preempt on `node`: `claim` decides, and is called for the least
    /// important ones first. `group_of` returns the group of a pod (by uid). The least important of its pods that it can
    /// do without are preempted one by one. Beyond that, a group may only be preempted if all of its pods with a lower
    /// priority may: those with a higher one stay, and protect no others.
    pub fn claimed(
        ledger: &Ledger,
        node: NodeId,
        (priority, reclaims): (i32, bool),
        mut claim: impl FnMut(&Occupant) -> VictimClaim,
        group_of: &dyn Fn(&str) -> Option<Arc<VictimGroup>>,
    ) -> Site {
        let mut occupants = ledger.occupants(node);
        occupants.sort_by_cached_key(|pod| std::cmp::Reverse(importance(pod)));
        let mut groups: BTreeMap<Arc<str>, ClaimsOnGroup> = BTreeMap::new();
        let mut pods = Vec::new();
        for pod in occupants {
            let Some(group) = group_of(&pod.pod.uid) else {
                let lent = match claim(&pod) {
                    VictimClaim::No => continue,
                    claim => claim == VictimClaim::Lent,
                };
                pods.push(Potential { pod: Arc::new(pod), lent, group: None, spare: false });
                continue;
            };
            let claims = groups.entry(group.name.clone()).or_insert_with(|| ClaimsOnGroup::new(&group));
            if claims.has_spare(&pod.pod.uid) {
                let lent = match claims.on(&pod, &mut claim) {
                    VictimClaim::No => continue,
                    claim => claim == VictimClaim::Lent,
                };
                take_one(claims.spare_like(&pod.pod.uid));
                pods.push(Potential { pod: Arc::new(pod), lent, group: Some(group), spare: true });
            } else if let Some(all) = claims.all(priority, &mut claim)
                && !all.stay.contains(&pod.pod.uid)
            {
                let (lent, group) = (all.lent, Some(all.victims.clone()));
                pods.push(Potential { pod: Arc::new(pod), lent, group, spare: false });
            }
        }
        Site {
            node,
            revision: ledger.inventory().row(node).revision,
            pods,
            reclaims,
            devices: None,
            once: Vec::new(),
        }
    }
}

/// What a preemptor may preempt of a group, as far as it was asked.
struct ClaimsOnGroup {
    group: Arc<VictimGroup>,
    /// Remaining spare pods by role.
    spare: Vec<usize>,
    /// Answers by uid: each pod is asked for once.
    asked: BTreeMap<Arc<str>, VictimClaim>,
    /// The whole group, once asked for. `Some(None)`: a pod with a lower priority is protected.
    all: Option<Option<ClaimedGroup>>,
}

/// What a preemptor may preempt of a whole group.
struct ClaimedGroup {
    victims: Arc<VictimGroup>,
    /// One of the victims is lent.
    lent: bool,
    /// Uids of the pods that are too important.
    stay: BTreeSet<Arc<str>>,
}

impl ClaimsOnGroup {
    fn new(group: &Arc<VictimGroup>) -> Self {
        let (group, spare) = (group.clone(), group.spare.clone());
        ClaimsOnGroup { group, spare, asked: BTreeMap::new(), all: None }
    }

    fn spare_like(&mut self, uid: &str) -> Option<&mut usize> {
        self.spare.get_mut(self.group.role_of(uid)?)
    }

    fn has_spare(&mut self, uid: &str) -> bool {
        self.spare_like(uid).is_some_and(|spare| *spare > 0)
    }

    fn on(&mut self, pod: &Occupant, claim: &mut impl FnMut(&Occupant) -> VictimClaim) -> VictimClaim {
        *self.asked.entry(pod.pod.uid.clone()).or_insert_with(|| claim(pod))
    }

    fn all(
        &mut self,
        priority: i32,
        claim: &mut impl FnMut(&Occupant) -> VictimClaim,
    ) -> Option<&ClaimedGroup> {
        if self.all.is_none() {
            self.all = Some(self.claim_all(priority, claim));
        }
        self.all.as_ref().and_then(Option::as_ref)
    }

    /// Returns what a preemptor with this priority may preempt of the whole group; `None`: nothing, because a pod with a
    /// lower priority is protected.
    fn claim_all(
        &mut self,
        priority: i32,
        claim: &mut impl FnMut(&Occupant) -> VictimClaim,
    ) -> Option<ClaimedGroup> {
        let group = self.group.clone();
        let mut members: Vec<_> = group.pods().collect();
        members.sort_by_cached_key(|pod| std::cmp::Reverse(importance(pod)));
        let (mut lent, mut stay) = (false, BTreeSet::new());
        for member in members {
            match self.on(member, claim) {
                VictimClaim::No if member.holding.priority >= priority => {
                    stay.insert(member.pod.uid.clone());
                }
                VictimClaim::No => return None,
                VictimClaim::Lent => lent = true,
                VictimClaim::Lower => {}
            }
        }
        let mut victims = group;
        if !stay.is_empty() {
            Arc::make_mut(&mut victims).members.retain(|uid, _| !stay.contains(uid));
        }
        Some(ClaimedGroup { victims, lent, stay })
    }
}

fn take_one(left: Option<&mut usize>) -> bool {
    left.is_some_and(|left| {
        let any = *left > 0;
        *left = left.saturating_sub(1);
        any
    })
}

/// Sort key: more important pods first (upstream: `MoreImportantPod`): by priority, then by earlier start; a pod that
/// has not started counts as started now.
pub(crate) fn importance(pod: &Occupant) -> impl Ord + use<> {
    (std::cmp::Reverse(pod.holding.priority), started(pod), pod.pod.uid.clone())
}

fn started(pod: &Occupant) -> i64 {
    pod.started_s.unwrap_or(i64::MAX)
}
