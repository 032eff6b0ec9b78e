//! Preemption: a parked pod whose class fits nowhere evicts lower-priority pods from a node, and is placed there when
//! they are gone (upstream: DefaultPreemption and its executor).
//!
//! `hunts.rs` finds victims, one class at a time, `gangs.rs` for a whole gang. A pod with victims is *nominated*: it
//! stays parked, and `nominations.rs` keeps its reservation until they are gone.

mod aged;
mod gangs;
mod guarantees;
mod hunts;
mod nominations;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Scheduler, State};
use crate::class::ClassId;
use crate::gang::AllocationName;
use crate::quota::Sums;
use aged::Aged;
use berth_model::PodRef;
use gangs::GangHunt;
pub use gangs::{GangAttempt, GangFound};
use hunts::Hunt;
pub use hunts::{Attempt, Found};
pub(super) use hunts::{Step, survey};
use nominations::Nomination;

/// Eviction of a pod for a pod of higher priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub victim: PodRef,
    pub preemptor: PodRef,
    pub node: Arc<str>,
    /// Generation of the victim.
    pub generation: i64,
}

#[derive(Debug, Default)]
pub(super) struct Preemption {
    /// By uid of the preemptor.
    nominations: BTreeMap<Arc<str>, Nomination>,
    /// Uids of the preemptors, by nominated node.
    by_node: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Requests of the nominated pods of each quota.
    promised: BTreeMap<Arc<str>, Sums>,
    /// Preemptors whose node changed.
    due: BTreeSet<Arc<str>>,
    /// Uids of victims whose eviction was requested, until they are gone.
    evicting: BTreeSet<Arc<str>>,
    hunts: BTreeMap<ClassId, Hunt>,
    /// Hunts that an agent is to continue.
    wanted: BTreeSet<Want>,
    gangs: BTreeMap<AllocationName, GangHunt>,
    /// Lowest priority of any pod with a node, at the last check.
    lowest: Option<i32>,
    aged: Aged,
}

/// Agent, priority and class.
type Want = (usize, Reverse<i32>, ClassId);

impl Preemption {
    pub(super) fn has_nominated(&self, uid: &str) -> bool {
        self.nominations.contains_key(uid)
    }

    /// Returns the node it is nominated for.
    pub(super) fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.nominations.get(uid).map(|nomination| &nomination.node)
    }

    pub(super) fn nominated(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.nominations.iter().map(|(uid, nomination)| (uid, &nomination.node))
    }

    /// Returns whether preemption for a pod of this class is still to be tried.
    pub(super) fn hunts(&self, class: ClassId) -> bool {
        self.hunts.get(&class).is_some_and(|hunt| hunt.want.is_some() || hunt.under_way)
    }

    /// Returns whether its eviction was requested and it is still there.
    pub(super) fn is_evicting(&self, uid: &str) -> bool {
        self.evicting.contains(uid)
    }

    /// Retries failed preemption attempts after a change of quotas or gangs.
    pub(super) fn hope_again(&mut self) {
        let hopeless = self.hunts.values_mut().flat_map(|hunt| hunt.hopeless.values_mut());
        hopeless.for_each(|hopeless| hopeless.revision = 0);
        self.gangs.values_mut().for_each(GangHunt::hope_again);
    }

    /// Marks the nominated pods of a changed node to be checked.
    pub(super) fn node_changed(&mut self, node: &str) {
        self.due.extend(self.by_node.get(node).into_iter().flatten().cloned());
    }

    /// Returns whether a nominated pod is to be checked.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    fn want(&mut self, want: Want) {
        let hunt = self.hunts.entry(want.2).or_default();
        if let Some(former) = hunt.want.replace(want) {
            self.wanted.remove(&former);
        }
        self.wanted.insert(want);
    }

    fn forget(&mut self, class: ClassId) {
        if let Some(want) = self.hunts.remove(&class).and_then(|hunt| hunt.want) {
            self.wanted.remove(&want);
        }
    }
}

impl Scheduler {
    /// Adopts the nominations of the previous leader, and tries preemption for the remaining parked pods.
    pub(super) fn begin_preemption(&mut self) {
        let mut pods: Vec<_> =
            self.cluster.waiting.values().map(|pod| (pod.seq, pod.pod.uid.clone())).collect();
        pods.sort();
        for (_, uid) in pods {
            self.adopt_nomination(&uid);
            self.hunt(&uid);
        }
    }

    /// Starts preemption for a pod that was just parked. Returns whether it is still unknown if preemption helps its
    /// class.
    pub(super) fn parked_pod_hunts(&mut self, uid: &Arc<str>) -> bool {
        if self.preemption.has_nominated(uid) {
            self.preemption.due.insert(uid.clone());
        }
        self.clear_old_nomination(uid);
        self.hunt(uid);
        self.cluster.waiting.get(uid).is_some_and(|pod| self.preemption.hunts(pod.class.id))
    }

    /// Drops all reservations: only the leader keeps them, and publishes them in the pods' status.
    pub(super) fn end_preemption(&mut self) {
        let uids: Vec<_> = self.preemption.nominations.keys().cloned().collect();
        uids.iter().for_each(|uid| self.end_nomination(uid, false));
        let preemption = std::mem::take(&mut self.preemption);
        preemption.evicting.iter().for_each(|uid| self.stays(uid));
    }

    /// Records that the pod (by uid) has left its node or is about to.
    pub(super) fn victim_left(&mut self, uid: &str) {
        self.preemption.evicting.remove(uid);
        if let Some(charge) = self.cluster.ledger.charge_of(uid) {
            let node = self.cluster.ledger.inventory().name(charge.node);
            self.preemption.node_changed(node);
        }
    }

    /// Settles an [`Action::Evict`](super::Action::Evict): the victim is terminating or gone, or could not be evicted
    /// for this reason.
    pub fn eviction_finished(&mut self, eviction: &Eviction, ended: Result<(), String>, now: Duration) {
        let Err(why) = ended else {
            return;
        };
        let victim = &eviction.victim;
        if self.preemption.evicting.remove(&victim.uid) {
            self.stays(&victim.uid);
        }
        let waits = |nomination: &Nomination| nomination.victims.contains(&victim.uid);
        let preemptors: Vec<_> = (self.preemption.nominations.iter())
            .filter(|(_, nomination)| waits(nomination))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in preemptors {
            let (namespace, name) = (&victim.namespace, &victim.name);
            let message = format!("preemption: the pod {namespace}/{name} could not be evicted: {why}");
            if let Some(gang) = self.gang_of_waiting(&uid) {
                self.end_gang_nominations(&gang);
                self.gang_backs_off(&gang, message.into(), now);
                continue;
            }
            self.end_nomination(&uid, true);
            if self.cluster.waiting.get(&uid).is_some_and(|pod| pod.state == State::Parked) {
                self.withdraw(&uid);
                self.back_off(&uid, message, now);
            }
        }
    }
}
