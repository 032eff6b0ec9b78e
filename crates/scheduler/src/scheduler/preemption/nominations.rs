//! Nominated pods: each has a reservation on its node until its victims have left, and is checked whenever a pod leaves
//! that node.
//!
//! [`Nominations`] reads waiting pods and charges. It changes itself and the reservations in the ledger: the caller
//! must note them (`note_reservations`) after each change. Only waiting pods are nominated, each for one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::class::{Class, ClassId};
use crate::gang::WantedMembers;
use crate::inventory::{KEPT_FROM_ALL, Ledger, NodeId, Occupant};
use crate::quota::Sums;
use crate::scheduler::waiting_pods::WaitingPods;
use crate::scheduler::{Action, Cluster, Waiting};

/// All nominations, and the evictions requested for them.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Nominations {
    /// By uid of the preemptor.
    all: BTreeMap<Arc<str>, Nomination>,
    /// Uids of the preemptors, by nominated node.
    by_node: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Requests of the nominated pods of each quota.
    promised: BTreeMap<Arc<str>, Sums>,
    /// Preemptors whose node changed.
    due: BTreeSet<Arc<str>>,
    /// Preemptors that fit their node while another pod of their class is being placed.
    after: BTreeMap<ClassId, BTreeSet<Arc<str>>>,
    /// Uids of victims whose eviction was requested, until they are gone.
    evicting: BTreeSet<Arc<str>>,
}

/// Reservation of a pod on its nominated node.
#[derive(Debug)]
struct Nomination {
    node: Arc<str>,
    /// Uids of the victims that are still there.
    victims: BTreeSet<Arc<str>>,
    /// Made by another process, or before a restart: its victims are the terminating pods there.
    adopted: bool,
    /// Pods of lower priority cannot take the reservation.
    priority: i32,
    /// The reservation does not apply to pods of its own priority, so that an agent can place it.
    yielded: bool,
    /// Requests that count against its quota.
    promise: Option<(Arc<str>, Sums)>,
}

/// Prospect of a nominated pod on its node.
#[derive(Debug)]
pub(super) enum Outlook {
    /// It fits now.
    Fits(NodeId),
    /// It will fit when its victims have left.
    Waits,
    Hopeless,
}

impl Nominations {
    pub(in crate::scheduler) fn has(&self, uid: &str) -> bool {
        self.all.contains_key(uid)
    }

    /// Returns the node the pod is nominated for.
    pub(in crate::scheduler) fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.all.get(uid).map(|nomination| &nomination.node)
    }

    /// Returns the nominated pods, each with its node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.all.iter().map(|(uid, nomination)| (uid, &nomination.node))
    }

    /// Returns whether the pod's eviction was requested and it is still there.
    pub(in crate::scheduler) fn is_evicting(&self, uid: &str) -> bool {
        self.evicting.contains(uid)
    }

    /// Returns the uids of the pods whose eviction was requested and that are still there.
    pub(super) fn evicting(&self) -> impl Iterator<Item = &Arc<str>> {
        self.evicting.iter()
    }

    /// Returns the requests of the quota's nominated pods.
    pub(super) fn promised(&self, quota: &str) -> Option<&Sums> {
        self.promised.get(quota)
    }

    /// Returns whether some victims of these pods are still there.
    pub(super) fn await_victims(&self, uids: &[Arc<str>]) -> bool {
        let mut nominations = uids.iter().filter_map(|uid| self.all.get(uid));
        nominations.any(|nomination| !nomination.victims.is_empty() || nomination.adopted)
    }

    /// Returns the nominated pods that wait for this victim.
    pub(super) fn preemptors_of(&self, victim: &str) -> Vec<Arc<str>> {
        let waits = |nomination: &Nomination| nomination.victims.contains(victim);
        let preemptors = self.all.iter().filter(|(_, nomination)| waits(nomination));
        preemptors.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns whether a nominated pod is to be checked.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes the next nominated pod to check.
    pub(super) fn next_due(&mut self) -> Option<Arc<str>> {
        self.due.pop_first()
    }

    /// Marks the pod to be checked if it is nominated.
    pub(super) fn mark_due(&mut self, uid: &Arc<str>) {
        if self.has(uid) {
            self.due.insert(uid.clone());
        }
    }

    /// Checks the pod again when no other pod of its class is being placed.
    pub(super) fn check_after_probe(&mut self, class: ClassId, uid: &Arc<str>) {
        self.after.entry(class).or_default().insert(uid.clone());
    }

    /// Records that no pod of the class is being placed.
    pub(super) fn probe_over(&mut self, class: ClassId) {
        for uid in self.after.remove(&class).unwrap_or_default() {
            self.mark_due(&uid);
        }
    }

    /// Marks the nominated pods of a changed node to be checked.
    pub(super) fn node_changed(&mut self, node: &str) {
        self.due.extend(self.by_node.get(node).into_iter().flatten().cloned());
    }

    /// Records that the pod (by uid) has left its node or is about to.
    pub(super) fn victim_left(&mut self, uid: &str, ledger: &Ledger) {
        self.evicting.remove(uid);
        if let Some(charge) = ledger.charge_of(uid) {
            self.node_changed(ledger.inventory().name(charge.node));
        }
    }

    /// Records that the pod could not be evicted. Returns whether its eviction was requested.
    pub(super) fn not_evicted(&mut self, uid: &str) -> bool {
        self.evicting.remove(uid)
    }

    /// Nominates the pod and reserves the node for it. `from_all`: against pods of any priority.
    pub(super) fn keep(&mut self, pod: &Waiting, node: &Arc<str>, from_all: bool, ledger: &mut Ledger) {
        let uid = &pod.pod.uid;
        let priority = if from_all { KEPT_FROM_ALL } else { pod.priority };
        let usage = &pod.holding.usage;
        let promise = pod.holding.quota.as_ref().map(|quota| (quota.clone(), Sums::from(&**usage)));
        ledger.reserve(uid, Some((node, priority, usage)));
        if let Some((quota, sums)) = &promise {
            self.promised.entry(quota.clone()).or_default().add(sums);
        }
        let node = node.clone();
        let nomination = Nomination {
            node: node.clone(),
            victims: BTreeSet::new(),
            adopted: false,
            priority,
            yielded: false,
            promise,
        };
        self.all.insert(uid.clone(), nomination);
        self.by_node.entry(node).or_default().insert(uid.clone());
    }

    /// Keeps the room of a pod, which is tried now, from less important pods only. Returns `false` if it must be let go:
    /// the room is kept from all pods, or was yielded before and did not help.
    pub(super) fn yield_room(&mut self, pod: &Waiting, ledger: &mut Ledger) -> bool {
        let uid = &pod.pod.uid;
        let Some(nomination) = self.all.get_mut(uid) else {
            return false;
        };
        if nomination.yielded || nomination.priority != pod.priority {
            return false;
        }
        nomination.yielded = true;
        nomination.priority = pod.priority.saturating_sub(1);
        ledger.reserve(uid, Some((&nomination.node, nomination.priority, &pod.holding.usage)));
        true
    }

    /// Returns whether the pod was tried with its room and found no place.
    pub(super) fn has_yielded(&self, uid: &str) -> bool {
        self.all.get(uid).is_some_and(|nomination| nomination.yielded)
    }

    /// Records that the pod's nomination was made by another process, or before a restart.
    pub(super) fn adopted(&mut self, uid: &Arc<str>) {
        if let Some(nomination) = self.all.get_mut(uid) {
            nomination.adopted = true;
            self.due.insert(uid.clone());
        }
    }

    /// Records the victims of a nominated pod. Returns those whose eviction is to be requested.
    pub(super) fn evict<'a>(
        &mut self,
        uid: &Arc<str>,
        victims: &'a [Arc<Occupant>],
    ) -> Vec<&'a Arc<Occupant>> {
        if let Some(nomination) = self.all.get_mut(uid) {
            nomination.victims = victims.iter().map(|pod| pod.pod.uid.clone()).collect();
            // Lower-priority pods nominated for the node may no longer fit.
            self.due.extend(self.by_node.get(&nomination.node).into_iter().flatten().cloned());
            self.due.remove(uid);
        }
        let new =
            |pod: &&Arc<Occupant>| !pod.holding.peer.terminating && self.evicting.insert(pod.pod.uid.clone());
        victims.iter().filter(new).collect()
    }

    /// Drops the pod's nomination and reservation. Returns the node.
    pub(super) fn end(&mut self, uid: &Arc<str>, ledger: &mut Ledger) -> Option<Arc<str>> {
        let nomination = self.all.remove(uid)?;
        self.due.remove(uid);
        if let Some((quota, sums)) = &nomination.promise
            && let Some(promised) = self.promised.get_mut(quota)
        {
            promised.sub(sums);
            if promised.is_empty() {
                self.promised.remove(quota);
            }
        }
        if let Some(preemptors) = self.by_node.get_mut(&nomination.node) {
            preemptors.remove(uid);
            if preemptors.is_empty() {
                self.by_node.remove(&nomination.node);
            }
        }
        ledger.reserve(uid, None);
        Some(nomination.node)
    }

    /// Lifts the reservations of these members, so that they can use them.
    pub(super) fn lift(&self, wanted: &WantedMembers, ledger: &mut Ledger) {
        for (_, uid) in &wanted.reserved {
            ledger.reserve(uid, None);
        }
    }

    /// Restores the reservations of the members that are still nominated.
    pub(super) fn restore(&self, wanted: &WantedMembers, waiting: &WaitingPods, ledger: &mut Ledger) {
        for (_, uid) in &wanted.reserved {
            if let Some((nomination, pod)) = self.all.get(uid).zip(waiting.get(uid)) {
                let wanted = (&nomination.node, nomination.priority, &pod.holding.usage);
                ledger.reserve(uid, Some(wanted));
            }
        }
    }

    /// Clears a nomination in the pod's status that no longer exists.
    pub(super) fn clear_outdated(&self, uid: &str, cluster: &Cluster, actions: &mut Vec<Action>) {
        let outdated = |pod: &&Waiting| pod.source.nominated_node.is_some() && !self.has(uid);
        if cluster.config.preemption
            && cluster.leading
            && let Some(pod) = cluster.waiting.get(uid).filter(outdated)
        {
            actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    /// Returns the prospect of a nominated pod. `waits`: it waits on this node although it has no victims there.
    pub(super) fn outlook(
        &mut self,
        uid: &str,
        class: &Class,
        cluster: &Cluster,
        waits: impl FnOnce(NodeId) -> bool,
    ) -> Outlook {
        let Some((id, victims)) = self.follow_victims(uid, cluster) else {
            return Outlook::Hopeless;
        };
        if (is_plain(class) || victims.is_empty()) && cluster.rank_on(class, id, uid, &[], false).is_valid() {
            return Outlook::Fits(id);
        }
        // Victims of other pods nominated here also free resources for this one.
        let there = |victim: &&Arc<str>| is_at(victim, id, &cluster.ledger);
        let evicting = self.evicting.iter().filter(there);
        let victims: BTreeSet<&str> = victims.iter().chain(evicting).map(|victim| &**victim).collect();
        let victims: Vec<&str> = victims.into_iter().collect();
        let awaits = !victims.is_empty() || cluster.awaits_devices(uid);
        let fits = || awaits && cluster.rank_on(class, id, uid, &victims, true).is_valid();
        if waits(id) || fits() { Outlook::Waits } else { Outlook::Hopeless }
    }

    /// Returns whether the nominated member of a gang fits its node once all victims have left it.
    pub(super) fn can_still_come(&mut self, uid: &str, cluster: &Cluster) -> bool {
        let Some((id, _)) = self.follow_victims(uid, cluster) else {
            return false;
        };
        let Some(class) = cluster.waiting.get(uid).map(|pod| &pod.class) else {
            return false;
        };
        let there = self.by_node.get(cluster.inventory().name(id)).into_iter().flatten();
        let nominations = there.filter_map(|uid| self.all.get(uid));
        let victims: Vec<&str> =
            nominations.flat_map(|nomination| &nomination.victims).map(|victim| &**victim).collect();
        class.is_excluded_by_pods() || cluster.rank_on(class, id, uid, &victims, true).is_valid()
    }

    /// Returns the node the pod is nominated for, if it still exists, and its victims that are still on it.
    fn follow_victims(&mut self, uid: &str, cluster: &Cluster) -> Option<(NodeId, Vec<Arc<str>>)> {
        let (waiting, ledger) = (cluster.waiting.get(uid)?, &cluster.ledger);
        // The promise of a nominated pod must not be counted twice: it was within its guarantee when nominated.
        let reclaims = waiting.holding.quota.is_some();
        let nomination = self.all.get_mut(uid)?;
        let id = cluster.existing(&nomination.node)?;
        if std::mem::take(&mut nomination.adopted) {
            let leaving = ledger.occupants(id).into_iter();
            let may = |pod: &Occupant| {
                let holding = &pod.holding;
                let lent = reclaims && holding.quota.is_some() && holding.quota != waiting.holding.quota;
                holding.priority < waiting.priority || lent
            };
            let leaving = leaving.filter(|pod| pod.holding.peer.terminating && may(pod));
            nomination.victims = leaving.map(|pod| pod.pod.uid).collect();
        }
        nomination.victims.retain(|victim| is_at(victim, id, ledger));
        Some((id, nomination.victims.iter().cloned().collect()))
    }
}

/// Returns whether only node-local rules apply to pods of the class, so that no agent is needed to place them.
pub(super) fn is_plain(class: &Class) -> bool {
    !class.is_excluded_by_pods() && class.spec.volumes.is_none() && class.spec.devices.is_none()
}

fn is_at(uid: &str, node: NodeId, ledger: &Ledger) -> bool {
    ledger.charge_of(uid).is_some_and(|charge| charge.node == node)
}
