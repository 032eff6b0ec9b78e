//! Gangs: members of an allocation wait together, are planned by one agent, and are committed all or none.
//!
//! A member without a node waits in its gang, not in a queue of its own. Once enough members exist, the gang is one
//! request: an agent plans nodes for all of them on its own view, and the commit takes all or none. A gang that is not
//! placed holds nothing, so two gangs cannot deadlock.

mod advice;
mod preempt;
mod quota;
mod report;
mod settle;
mod victims;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

pub use advice::GangCase;
pub(super) use advice::GangInquiry;
use quota::members_within_quotas;
pub use settle::lacking_message;

use super::charge_walks::{ChargeWalks, Charged};
use super::{Action, Cluster, Preemption, Scheduler, State, Waiting};
use crate::class::Class;
use crate::dispatch::{Request, Ticket};
use crate::gang::{
    Allocation, AllocationKind, AllocationName, Allocations, GangStatus, Membership, Shift, WantedMembers,
};
use crate::inventory::{Ledger, Revision};
use crate::objects::{ObjectKind, ObjectName};
use crate::queue::Place;
use crate::sharded::ShardedMap;
use berth_model::{Identity, Peer};

/// Minimum interval between attempts of a parked gang, however often nodes change.
const PACE: Duration = Duration::from_secs(1);
/// With n parked gangs the interval is at least n times this, so that together they use a small part of an agent's time.
const PACE_EACH: Duration = Duration::from_millis(10);
/// Maximum number of waiting gangs whose time is checked at once; the rest follow in the next calls.
const CHECKED_MAX: usize = 512;

/// All gangs with an object or a waiting member.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    allocations: Allocations,
    all: BTreeMap<AllocationName, Gang>,
    /// Gangs with members without a node: only these have anything to wait for.
    with_waiting: BTreeSet<AllocationName>,
    /// Names by dispatcher key.
    by_key: HashMap<Arc<str>, AllocationName>,
    /// By uid: the gang and role of each member with a node.
    placed: ShardedMap<(AllocationName, usize)>,
    /// Gangs with changes: whether to retry them is still to be decided.
    pub(super) due: BTreeSet<AllocationName>,
    /// Gangs whose status may have changed.
    pub(super) unreported: BTreeSet<AllocationName>,
    /// By namespace: allocations beyond its limit whose status is still to be written.
    untold_beyond: BTreeMap<Arc<str>, BTreeSet<AllocationName>>,
    /// The last namespace of those to which a status was written.
    told_beyond_in: Option<Arc<str>>,
    /// Last gang of `untold` whose status was computed.
    checked_up_to: Option<AllocationName>,
    /// Namespaces whose pods with a node may be members that are not recorded yet, or not any more.
    recounts: ChargeWalks,
    next_check: Duration,
    /// The last waiting gang whose time was checked, if there are more.
    checked: Option<AllocationName>,
    /// Classes of members of gangs being or last placed that may wait for another pod.
    listeners: BTreeMap<AllocationName, Vec<Arc<Class>>>,
    /// Largest number of members placed by one commit.
    largest: usize,
}

/// Scheduling state of one allocation.
#[derive(Debug)]
pub(super) struct Gang {
    key: Arc<str>,
    /// Members without a node, each with its role.
    waiting: BTreeMap<Place, (Arc<str>, usize)>,
    /// Members with a node, bound or assumed, each with its role.
    placed: BTreeMap<Arc<str>, usize>,
    /// Pods it selects that belong to an older allocation.
    contested: BTreeSet<Arc<str>>,
    state: GangState,
    /// Grows with every change of its members or of its object.
    version: u64,
    /// Its minimum was bound once: later members are placed one by one.
    scheduled: bool,
    /// Time since which enough members have been waiting.
    complete_since: Option<Duration>,
    tried_at: Duration,
    tries: u32,
    failures: u32,
    /// The revision at which a pod last came to a node that a member may wait for.
    arrived: Revision,
    /// Message of the last incomplete plan, for its members and its object.
    lacking: Option<Arc<str>>,
    /// Time of the last report to its members.
    members_reported_at: Option<Duration>,
    reported: Option<GangStatus>,
    reported_at: Duration,
}

#[derive(Debug, Clone, PartialEq)]
enum GangState {
    /// Nothing to do: too few members, or all placed.
    Idle,
    Queued(Ticket),
    /// An agent is placing it.
    Placing(u64),
    /// It did not fit as of this revision.
    Parked(Revision),
    BackingOff(Duration),
    /// It waits in the queue of a quota.
    OverQuota,
    /// It waited longer than its timeout.
    TimedOut,
}

/// Task of an agent: places a whole gang.
#[derive(Debug)]
pub struct GangTask {
    pub(super) name: AllocationName,
    pub(super) version: u64,
    pub wanted: WantedMembers,
    /// Victims of its preemption were still on their nodes.
    awaits_victims: bool,
}

impl Gang {
    fn new(name: &AllocationName) -> Gang {
        Gang {
            key: format!("{:?} {}/{}", name.kind, name.namespace, name.name).into(),
            waiting: BTreeMap::new(),
            placed: BTreeMap::new(),
            contested: BTreeSet::new(),
            state: GangState::Idle,
            version: 0,
            scheduled: false,
            complete_since: None,
            tried_at: Duration::ZERO,
            tries: 0,
            failures: 0,
            arrived: 0,
            lacking: None,
            members_reported_at: None,
            reported: None,
            reported_at: Duration::ZERO,
        }
    }

    fn count<'a>(roles: usize, members: impl Iterator<Item = &'a usize>) -> Vec<u32> {
        let mut counts = vec![0; roles];
        members.for_each(|role| {
            if let Some(count) = counts.get_mut(*role) {
                *count += 1;
            }
        });
        counts
    }

    /// Returns, by role, the number of members that must still be placed together.
    fn need(&self, allocation: &Allocation) -> Box<[u32]> {
        let placed = Gang::count(allocation.roles.len(), self.placed.values());
        let need = |(role, placed): (&crate::gang::GangRole, &u32)| match self.scheduled {
            true => 0,
            false => role.minimum.saturating_sub(*placed),
        };
        allocation.roles.iter().zip(&placed).map(need).collect()
    }

    /// Returns whether enough members wait to be placed.
    fn is_ready(&self, allocation: &Allocation) -> bool {
        let waiting = Gang::count(allocation.roles.len(), self.waiting.values().map(|(_, role)| role));
        let need = self.need(allocation);
        allocation.problem.is_none()
            && !self.waiting.is_empty()
            && need.iter().zip(&waiting).all(|(need, waiting)| need <= waiting)
    }
}

impl Gangs {
    pub(super) fn find(&self, pod: &Peer) -> Option<Membership> {
        self.allocations.find(pod)
    }

    pub(super) fn allocation(&self, name: &AllocationName) -> Option<Arc<Allocation>> {
        self.allocations.get(name).cloned()
    }

    /// Returns the uid of this gang's object, if it is a PodGroup of Kubernetes.
    pub(super) fn pod_group(&self, name: &AllocationName) -> Option<Arc<str>> {
        let group = self.allocations.get(name).filter(|_| name.kind == AllocationKind::PodGroup);
        group.map(|group| group.uid.clone())
    }

    fn gang(&mut self, name: &AllocationName) -> &mut Gang {
        let by_key = &mut self.by_key;
        self.all.entry(name.clone()).or_insert_with(|| {
            let gang = Gang::new(name);
            by_key.insert(gang.key.clone(), name.clone());
            gang
        })
    }

    /// Notes that the status of an allocation beyond the limit is to be written.
    fn tell_beyond(&mut self, name: AllocationName) {
        self.untold_beyond.entry(name.namespace.clone()).or_default().insert(name);
    }

    /// Notes that no such status is to be written any more.
    fn told_beyond(&mut self, name: &AllocationName) {
        if let Some(untold) = self.untold_beyond.get_mut(&name.namespace) {
            untold.remove(name);
            if untold.is_empty() {
                self.untold_beyond.remove(&name.namespace);
            }
        }
    }

    /// Takes the next allocation beyond the limit whose status is to be written. Namespaces take turns.
    fn next_beyond(&mut self) -> Option<AllocationName> {
        let after = self.told_beyond_in.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.untold_beyond.range((after, Bound::Unbounded));
        let untold = rest.next().or_else(|| self.untold_beyond.first_key_value())?.1;
        let name = untold.first()?.clone();
        self.told_beyond_in = Some(name.namespace.clone());
        self.told_beyond(&name);
        Some(name)
    }

    fn changed(&mut self, name: &AllocationName) {
        if let Some(gang) = self.all.get_mut(name) {
            gang.version += 1;
            self.unreported.insert(name.clone());
            let is_empty = gang.waiting.is_empty() && gang.placed.is_empty();
            if !is_empty || gang.state != GangState::Idle || self.allocations.get(name).is_none() {
                self.due.insert(name.clone());
            }
        }
    }

    /// Returns the next gangs with members without a node whose time is to be checked, in rotation.
    fn next_to_check(&mut self) -> Vec<AllocationName> {
        let after = self.checked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.with_waiting.range((after, Bound::Unbounded));
        let names: Vec<_> = rest.take(CHECKED_MAX).cloned().collect();
        self.checked = names.last().filter(|_| names.len() == CHECKED_MAX).cloned();
        names
    }

    /// Returns the gangs with members without a node.
    fn waiting(&self) -> impl Iterator<Item = (&AllocationName, &Gang)> {
        self.with_waiting.iter().filter_map(|name| self.all.get_key_value(name))
    }

    /// Returns the number of allocations that can have no pods: see [`Allocations::ignored`].
    pub(super) fn ignored_allocations(&self) -> usize {
        self.allocations.ignored()
    }

    /// Drops a gang without an object and without pods.
    fn forget_if_empty(&mut self, name: &AllocationName) {
        let exists = self.allocations.get(name).is_some();
        let empty =
            |gang: &Gang| gang.waiting.is_empty() && gang.placed.is_empty() && gang.contested.is_empty();
        if !exists
            && let Some(gang) = self.all.get(name).filter(|gang| empty(gang) && gang.state == GangState::Idle)
        {
            self.by_key.remove(&gang.key);
            self.all.remove(name);
            self.due.remove(name);
            self.unreported.remove(name);
            self.listeners.remove(name);
        }
    }

    /// Notes that no member of the gang waits for another pod any more.
    fn stop_listening(&mut self, name: &AllocationName) {
        self.listeners.remove(name);
    }

    /// Notes that a pod came to a node: gangs with a member that waits for such a pod are tried again.
    pub(super) fn pod_arrived(&mut self, pod: &Identity, revision: Revision) {
        for (name, classes) in &self.listeners {
            if classes.iter().any(|class| class.waits_for(pod))
                && let Some(gang) = self.all.get_mut(name)
            {
                gang.arrived = revision;
            }
        }
    }

    /// Records that the pod has lost its node.
    pub(super) fn lost(&mut self, uid: &str) {
        let Some((name, _)) = self.placed.remove(uid) else {
            return;
        };
        if let Some(gang) = self.all.get_mut(&name) {
            gang.placed.remove(uid);
        }
        self.changed(&name);
    }

    fn gained(&mut self, uid: &Arc<str>, name: &AllocationName, role: usize) {
        let now = (name.clone(), role);
        if self.placed.get(uid) == Some(&now) {
            self.unreported.insert(name.clone());
            return;
        }
        self.lost(uid);
        self.placed.insert(uid.clone(), now);
        self.gang(name).placed.insert(uid.clone(), role);
        self.changed(name);
    }

    fn contest(&mut self, uid: &Arc<str>, losers: &[AllocationName]) {
        for name in losers {
            self.gang(name).contested.insert(uid.clone());
            self.unreported.insert(name.clone());
        }
    }

    fn concede(&mut self, uid: &str, losers: &[AllocationName]) {
        for name in losers {
            if let Some(gang) = self.all.get_mut(name) {
                gang.contested.remove(uid);
                self.unreported.insert(name.clone());
                self.forget_if_empty(name);
            }
        }
    }

    /// Returns the gangs after this name, each with the status that was written last.
    pub(super) fn from(
        &self,
        after: Bound<&AllocationName>,
    ) -> impl Iterator<Item = (&AllocationName, Option<&GangStatus>)> {
        self.all.range((after, Bound::Unbounded)).map(|(name, gang)| (name, gang.reported.as_ref()))
    }

    /// Returns the number of gangs queued at an agent.
    pub(super) fn queued(&self) -> usize {
        self.all.values().filter(|gang| matches!(gang.state, GangState::Queued(_))).count()
    }

    /// Returns the numbers of members of incomplete gangs and of members of unschedulable gangs.
    pub(super) fn waiting_members(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for (_, gang) in self.waiting() {
            match gang.state {
                GangState::Idle => counts.0 += gang.waiting.len(),
                GangState::Parked(_) | GangState::TimedOut => counts.1 += gang.waiting.len(),
                _ => {}
            }
        }
        counts
    }

    pub(super) fn has_waiting(&self, name: &AllocationName, place: Place, uid: &str) -> bool {
        let gang = self.all.get(name);
        gang.and_then(|gang| gang.waiting.get(&place)).is_some_and(|(known, _)| **known == *uid)
    }

    /// Returns the ticket and dispatcher key of each queued gang; for the invariants.
    pub(super) fn tickets(&self) -> impl Iterator<Item = (&Arc<str>, Ticket)> {
        self.all.values().filter_map(|gang| match gang.state {
            GangState::Queued(ticket) => Some((&gang.key, ticket)),
            _ => None,
        })
    }

    pub(super) fn largest(&self) -> usize {
        self.largest
    }

    /// Records a pod with a node, which may be a member. `leaves`: it is deleted or being evicted.
    pub(super) fn note_placed(&mut self, uid: &Arc<str>, peer: &Peer, leaves: bool) {
        match self.find(peer).filter(|_| !leaves) {
            Some(membership) => self.gained(uid, &membership.name, membership.role),
            None => self.lost(uid),
        }
    }

    /// Records that a victim stays on its node after all: it counts as a member of its gang again.
    pub(super) fn stays(&mut self, uid: &Arc<str>, ledger: &Ledger) {
        let peer = ledger.charge_of(uid).map(|charge| &charge.holding.peer).filter(|peer| !peer.terminating);
        if let Some(membership) = peer.and_then(|peer| self.find(peer)) {
            self.gained(uid, &membership.name, membership.role);
        }
    }

    /// Records the successful bind of a member.
    pub(super) fn member_bound(&mut self, uid: &str) {
        if let Some((name, _)) = self.placed.get(uid) {
            self.due.insert(name.clone());
            self.unreported.insert(name.clone());
        }
    }

    /// Finds the members among the pods with a node, if they are not known. Returns whether it found any change.
    fn recount(&mut self, cluster: &Cluster, preemption: &Preemption) -> bool {
        let mut found: Vec<(Arc<str>, Option<Membership>)> = Vec::new();
        for uid in self.recounts.next_slice(&cluster.ledger) {
            let Some(charge) = cluster.ledger.charge_of(&uid) else {
                continue;
            };
            let peer = &charge.holding.peer;
            let is_deleted = cluster.waiting.get(&uid).is_some_and(Waiting::is_deleted);
            let leaves = peer.terminating || is_deleted || preemption.is_evicting(&uid);
            let membership = if leaves { None } else { self.find(peer) };
            if membership.is_some() || self.placed.contains_key(&uid) {
                found.push((uid, membership));
            }
        }
        let is_change = |(uid, membership): &(Arc<str>, Option<Membership>)| match membership {
            Some(now) => {
                self.placed.get(uid).is_none_or(|(name, role)| (name, *role) != (&now.name, now.role))
            }
            None => true,
        };
        let changed = found.iter().any(is_change);
        for (uid, membership) in found {
            match membership {
                Some(membership) => self.gained(&uid, &membership.name, membership.role),
                None => self.lost(&uid),
            }
        }
        changed
    }

    fn set_state(&mut self, name: &AllocationName, state: GangState) {
        if let Some(gang) = self.all.get_mut(name) {
            gang.state = state;
        }
    }
}

impl Scheduler {
    // Objects.

    /// Upserts an allocation.
    pub(super) fn apply_allocation(&mut self, allocation: Allocation) {
        let name = allocation.name.clone();
        let (was_scheduled, generation) = (allocation.was_scheduled, allocation.generation);
        let uid = allocation.uid.clone();
        let before = self.gangs.allocations.get(&name).cloned();
        let Some(Shift { promoted, displaced }) = self.gangs.allocations.apply(allocation) else {
            return;
        };
        if let Some(promoted) = promoted {
            self.allocation_counts(&promoted);
        }
        if let Some(displaced) = displaced {
            let name = displaced.name.clone();
            self.allocation_ends(&name, Some(displaced));
            self.gangs.tell_beyond(name);
        }
        if self.gangs.allocations.beyond(&name).is_some() {
            self.gangs.tell_beyond(name.clone());
            if before.is_some() {
                self.allocation_ends(&name, before);
            }
            return;
        }
        self.gangs.told_beyond(&name);
        let gang = self.gangs.gang(&name);
        match &before {
            Some(before) if before.uid == uid => {
                if before.generation == generation {
                    // Only its status changed, which we wrote.
                    return;
                }
                gang.scheduled = false;
            }
            _ => gang.scheduled = was_scheduled,
        }
        self.allocation_changed(&name, before);
    }

    pub(super) fn delete_allocation(&mut self, name: &AllocationName) {
        let counted = self.gangs.allocations.get(name).is_some();
        let Some((gone, promoted)) = self.gangs.allocations.delete(name) else {
            return;
        };
        if !counted {
            return self.gangs.told_beyond(name);
        }
        self.allocation_ends(name, Some(gone));
        if let Some(promoted) = promoted {
            self.allocation_counts(&promoted);
        }
    }

    /// Handles that an allocation is gone, or does not count any more.
    fn allocation_ends(&mut self, name: &AllocationName, before: Option<Arc<Allocation>>) {
        self.allocation_changed(name, before);
        self.gangs.forget_if_empty(name);
    }

    /// Handles that an allocation was beyond the limit of its namespace, and counts now.
    fn allocation_counts(&mut self, name: &AllocationName) {
        self.gangs.told_beyond(name);
        let was_scheduled = self.gangs.allocations.get(name).is_some_and(|it| it.was_scheduled);
        self.gangs.gang(name).scheduled = was_scheduled;
        self.allocation_changed(name, None);
    }

    /// Deletes the allocations of this kind that are not in a complete list.
    pub(super) fn retain_allocations(
        &mut self,
        kind: AllocationKind,
        listed: &std::collections::HashSet<ObjectName>,
    ) {
        let is_listed = |name: &AllocationName| {
            listed.contains(&ObjectName { namespace: name.namespace.clone(), name: name.name.clone() })
        };
        let names = self.gangs.allocations.names().filter(|name| name.kind == kind && !is_listed(name));
        for name in names.cloned().collect::<Vec<_>>() {
            self.delete_allocation(&name);
        }
    }

    /// Marks the pods that it had or has now to be reclassified before the next decision.
    fn allocation_changed(&mut self, name: &AllocationName, before: Option<Arc<Allocation>>) {
        self.gang_leaves_line(name);
        let after = self.gangs.allocations.get(name).cloned();
        if self.gangs.all.get(name).is_some_and(|gang| !gang.placed.is_empty()) {
            self.preemption.retry_preemption();
        }
        if let Some(gang) = self.gangs.all.get_mut(name) {
            gang.failures = 0;
            gang.complete_since = None;
            gang.reported = None;
        }
        self.gangs.changed(name);
        let same_members = match (&before, &after) {
            (Some(before), Some(after)) => before.roles == after.roles,
            _ => false,
        };
        if same_members {
            return;
        }
        self.gangs.recounts.mark(Charged::In(name.namespace.clone()));
        self.stale.mark_namespace(name.namespace.clone());
        self.wake_all();
    }

    // Members.

    /// Adds a waiting pod to its gang; `false`: it has none.
    pub(super) fn join_gang(&mut self, uid: &Arc<str>, now: Duration) -> bool {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return false;
        };
        let Some(membership) = waiting.gang.clone() else {
            return false;
        };
        let place = waiting.place();
        if !self.cluster.owns_gang(&membership.name) {
            self.leave_to_replica(uid);
            return true;
        }
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Grouped;
        }
        self.adopt_nomination(uid);
        let name = &membership.name;
        self.gangs.gang(name).waiting.insert(place, (uid.clone(), membership.role));
        self.gangs.with_waiting.insert(name.clone());
        self.gangs.contest(uid, &membership.losers);
        self.gangs.changed(name);
        self.gangs.due.remove(name);
        self.decide_gang(name, now);
        true
    }

    /// Marks the members of gangs that another replica may own now: those with a member that needs devices, or without one now.
    pub(super) fn mark_turned_gangs(&mut self) {
        let turned = self.cluster.waiting.take_turned();
        for gang in turned.into_iter().filter(|_| self.cluster.share.is_some()) {
            self.stale.mark_namespace(gang.namespace);
        }
    }

    /// Removes a waiting pod from its gang.
    pub(super) fn leave_gang(&mut self, uid: &Arc<str>) {
        let Some((membership, place)) =
            self.cluster.waiting.get(uid).and_then(|waiting| Some((waiting.gang.clone()?, waiting.place())))
        else {
            return;
        };
        if let Some(gang) = self.gangs.all.get_mut(&membership.name) {
            gang.waiting.remove(&place);
            if gang.waiting.is_empty() {
                self.gangs.with_waiting.remove(&membership.name);
            }
        }
        self.gangs.changed(&membership.name);
        self.gangs.concede(uid, &membership.losers);
        let quota = self.cluster.waiting.get(uid).and_then(|waiting| waiting.holding.quota.clone());
        self.offer_quota_again(quota.as_ref());
    }

    // Time.

    /// Decides about gangs that are marked due or whose time has come.
    pub(super) fn maintain_gangs(&mut self, now: Duration) {
        let is_empty = self.gangs.all.is_empty() && self.gangs.untold_beyond.is_empty();
        if is_empty && self.gangs.recounts.is_empty() {
            return;
        }
        // A member is evicted only with its gang.
        if self.synced() && self.gangs.recount(&self.cluster, &self.preemption) {
            self.preemption.retry_preemption();
        }
        for name in std::mem::take(&mut self.gangs.due) {
            self.decide_gang(&name, now);
            self.gangs.forget_if_empty(&name);
        }
        if now < self.gangs.next_check {
            return;
        }
        self.gangs.next_check = now + Duration::from_millis(50);
        let loosened = self.inventory().loosened();
        let parked = self.gangs.with_waiting.len();
        let pace = PACE.max(PACE_EACH * u32::try_from(parked).unwrap_or(u32::MAX));
        let names = self.gangs.next_to_check();
        let ripe = |name: AllocationName| {
            let gang = self.gangs.all.get(&name)?;
            let timeout = self.gangs.allocations.get(&name).and_then(|allocation| allocation.timeout);
            let late = timeout.zip(gang.complete_since).is_some_and(|(limit, since)| now >= since + limit);
            let again = match gang.state {
                GangState::Parked(checked) => {
                    late || checked < loosened.max(gang.arrived) && now >= gang.tried_at + pace
                }
                GangState::BackingOff(until) => late || now >= until,
                GangState::OverQuota => late,
                _ => false,
            };
            again.then_some((name, late))
        };
        for (name, late) in names.into_iter().filter_map(ripe).collect::<Vec<_>>() {
            if late { self.time_out(&name, now) } else { self.enqueue_gang(&name, now) }
        }
        self.report_gangs(now);
    }

    /// Queues a gang that is ready, or withdraws the request of one that is not.
    fn decide_gang(&mut self, name: &AllocationName, now: Duration) {
        let allocation = self.gangs.allocations.get(name).cloned();
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return;
        };
        if let Some(allocation) = &allocation {
            let enough = |minimum: u32, bound: u32| bound >= minimum;
            let bound = Gang::count(allocation.roles.len(), gang.placed.values());
            let mut roles = allocation.roles.iter().zip(bound);
            // Assumed members are soon bound or lost; the decision is made again then.
            let settled =
                gang.placed.keys().all(|uid| self.cluster.ledger.charge_of(uid).is_some_and(|c| !c.assumed));
            gang.scheduled |= settled && roles.all(|(role, bound)| enough(role.minimum, bound));
        }
        let ready = allocation.is_some_and(|allocation| gang.is_ready(&allocation));
        if !ready {
            gang.complete_since = None;
            self.end_gang_nominations(name);
        }
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return;
        };
        match (&gang.state, ready) {
            (GangState::Idle | GangState::TimedOut, true) => self.enqueue_gang(name, now),
            // Its members changed: it may fit now, but it is retried no more often than its interval.
            (GangState::Parked(_), true) => {
                if now >= gang.tried_at + PACE {
                    self.enqueue_gang(name, now);
                } else {
                    gang.state = GangState::Parked(0);
                }
            }
            (GangState::Queued(ticket), false) => {
                let ticket = *ticket;
                gang.state = GangState::Idle;
                self.dispatcher.withdraw(ticket);
            }
            (GangState::OverQuota, false) => self.gang_leaves_line(name),
            (GangState::Parked(_) | GangState::BackingOff(_) | GangState::TimedOut, false) => {
                gang.state = GangState::Idle;
                gang.lacking = None;
            }
            _ => {}
        }
    }

    /// Assigns a gang to an agent if its quotas have enough left.
    fn enqueue_gang(&mut self, name: &AllocationName, now: Duration) {
        if !self.gang_queues_for_quota(name, false, now) {
            self.hand_out_gang(name, now);
        }
    }

    fn hand_out_gang(&mut self, name: &AllocationName, now: Duration) {
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return;
        };
        let classes =
            gang.waiting.values().filter_map(|(uid, _)| Some(&self.cluster.waiting.get(uid)?.class));
        let request = Request::of_gang(&gang.key, classes);
        let first = gang.waiting.values().next().and_then(|(uid, _)| self.cluster.waiting.get(uid));
        let Some((request, first)) = request.zip(first) else {
            gang.state = GangState::Idle;
            return;
        };
        let place = (Reverse(first.priority), first.order(first.attempts == 0));
        gang.complete_since.get_or_insert(now);
        gang.tries = 0;
        let assigned = self.dispatcher.assign_request(request, place, None, now);
        gang.state = GangState::Queued(assigned.ticket);
        self.actions.push(Action::WakeAgent(assigned.wake));
    }

    /// Returns the task for a dispatched request if it belongs to a gang that is still ready.
    pub(super) fn start_gang(&mut self, request: &Request) -> Option<(GangTask, u64)> {
        let name = self.gangs.by_key.get(&request.uid)?.clone();
        let allocation = self.gangs.allocations.get(&name).cloned();
        let gang = self.gangs.all.get_mut(&name)?;
        gang.state = GangState::Idle;
        let allocation = allocation.filter(|allocation| gang.is_ready(allocation))?;
        let gang = self.gangs.all.get(&name)?;
        let mut wanted = self.gangs.wanted(gang, &allocation, &self.cluster, &self.preemption)?;
        let awaits_victims = self.preemption.gang_awaits_victims(&name, &self.gangs, &self.cluster);
        if !awaits_victims {
            wanted.reserved.iter().for_each(|(_, uid)| self.yield_devices(uid));
        }
        let Some(members) =
            members_within_quotas(std::mem::take(&mut wanted.members), &wanted.need, &self.cluster)
        else {
            self.gangs.due.insert(name);
            return None;
        };
        wanted.members = members;
        for member in &wanted.members {
            if let Some(waiting) = self.cluster.waiting.get_mut(&member.uid) {
                waiting.attempts += 1;
                if waiting.taken_after == 0 {
                    waiting.taken_after = self.next_seq;
                }
            }
        }
        let mut listening: Vec<_> = wanted.members.iter().map(|member| member.class.clone()).collect();
        listening.retain(|class| class.listens());
        listening.dedup_by_key(|class| class.id);
        match listening.is_empty() {
            true => drop(self.gangs.listeners.remove(&name)),
            false => drop(self.gangs.listeners.insert(name.clone(), listening)),
        }
        let gang = self.gangs.all.get_mut(&name)?;
        self.next_work += 1;
        gang.state = GangState::Placing(self.next_work);
        gang.tries += 1;
        Some((GangTask { name, version: gang.version, wanted, awaits_victims }, self.next_work))
    }
}

impl ObjectKind {
    /// Returns the kind of allocation for objects of this kind, if it is one.
    pub(super) fn allocation(self) -> Option<AllocationKind> {
        match self {
            ObjectKind::Allocation => Some(AllocationKind::Allocation),
            ObjectKind::PodGroup => Some(AllocationKind::PodGroup),
            ObjectKind::CoschedulingPodGroup => Some(AllocationKind::Coscheduling),
            _ => None,
        }
    }
}
