//! Nominated pods: the ledger keeps a reservation for each until its victims have left, and its node is checked
//! whenever a pod leaves it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Eviction;
use crate::gang::Wanted;
use crate::inventory::{NodeId, Occupant};
use crate::preempt::Victims;
use crate::quota::Sums;
use crate::scheduler::{Action, Sample, Scheduler, State};

/// Reservation of a pod on its nominated node.
#[derive(Debug)]
pub(super) struct Nomination {
    pub(super) node: Arc<str>,
    /// Uids of the victims that are still there.
    pub(super) victims: BTreeSet<Arc<str>>,
    /// Made by another process, or before a restart: its victims are the terminating pods there.
    pub(super) adopted: bool,
    /// Pods of lower priority cannot take the reservation.
    priority: i32,
    /// Requests that count against its quota.
    promise: Option<(Arc<str>, Sums)>,
}

impl Scheduler {
    /// Returns the nominated pods, each with its node.
    pub fn nominated_pods(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.preemption.nominated()
    }

    /// Returns whether its eviction was requested and it is still there.
    pub fn is_evicting(&self, uid: &str) -> bool {
        self.preemption.is_evicting(uid)
    }

    /// Reserves the node for the pod, and evicts its victims.
    pub(super) fn nominate(&mut self, uid: &Arc<str>, victims: &Victims) {
        let Some(class) = self.cluster.waiting.get(uid).map(|waiting| waiting.class.id) else {
            return;
        };
        let node = self.inventory().name(victims.node).clone();
        self.nominate_for(uid, &node, &victims.pods, &victims.lent);
        if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
            hunt.failures = 0;
        }
        self.stats.preemption_attempts += 1;
        self.actions.push(Action::Observe(Sample::Victims { pods: victims.pods.len() }));
        self.tell_why(uid, true);
    }

    /// Does the same with explicit victims. `lent`: quotas that lose what they had borrowed.
    pub(super) fn nominate_for(
        &mut self,
        uid: &Arc<str>,
        node: &Arc<str>,
        victims: &[Arc<Occupant>],
        lent: &[Arc<str>],
    ) {
        let Some(preemptor) = self.cluster.waiting.get(uid).map(|waiting| waiting.pod.clone()) else {
            return;
        };
        // Reclaimed resources are reserved against pods of any priority, or the borrowers would take them again.
        self.keep_nominated(uid, node, (false, !lent.is_empty()));
        let mut pending = BTreeSet::new();
        for pod in victims {
            let victim = &pod.pod;
            pending.insert(victim.uid.clone());
            if !pod.holding.peer.terminating && self.preemption.evicting.insert(victim.uid.clone()) {
                let (victim, preemptor) = (victim.clone(), preemptor.clone());
                let generation = pod.generation;
                let eviction = Eviction { victim, preemptor, node: node.clone(), generation };
                self.actions.push(Action::Evict(Box::new(eviction)));
                if let Some(quota) = pod.holding.quota.as_ref().filter(|quota| lent.contains(quota)) {
                    self.quotas.reclaimed(quota);
                }
            }
        }
        if let Some(nomination) = self.preemption.nominations.get_mut(uid) {
            nomination.victims = pending;
        }
        self.gangs_lose(victims);
        self.actions.push(Action::Nominate { pod: preemptor, node: Some(node.clone()) });
        // Lower-priority pods nominated for the node may no longer fit.
        self.preemption.node_changed(node);
        self.preemption.due.remove(uid);
    }

    /// Reserves the node for the pod. `adopted`: see [`Nomination`]. `from_all`: against pods of any priority.
    pub(super) fn keep_nominated(
        &mut self,
        uid: &Arc<str>,
        node: &Arc<str>,
        (adopted, from_all): (bool, bool),
    ) {
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return;
        };
        let priority = if from_all { i32::MAX } else { pod.priority };
        let usage = pod.holding.usage.clone();
        let promise = pod.holding.quota.as_ref().map(|quota| (quota.clone(), Sums::from(&*usage)));
        self.cluster.ledger.reserve(uid, Some((node, priority, &usage)));
        if let Some((quota, sums)) = &promise {
            self.preemption.promised.entry(quota.clone()).or_default().add(sums);
        }
        let nomination =
            Nomination { node: node.clone(), victims: BTreeSet::new(), adopted, priority, promise };
        self.preemption.nominations.insert(uid.clone(), nomination);
        self.preemption.by_node.entry(node.clone()).or_default().insert(uid.clone());
        self.note_reservations();
    }

    /// Adopts the nomination in the pod's status, which another process wrote, or this one before a restart.
    pub(in crate::scheduler) fn adopt_nomination(&mut self, uid: &Arc<str>) {
        let known = self.preemption.has_nominated(uid) || self.cluster.ledger.charge_of(uid).is_some();
        if !self.cluster.leading || !self.cluster.config.preemption || known {
            return;
        }
        let Some(node) = self.cluster.waiting.get(uid).and_then(|pod| pod.source.nominated_node.clone())
        else {
            return;
        };
        let reclaims =
            self.cluster.waiting.get(uid).is_some_and(|pod| pod.gang.is_none() && self.may_reclaim(pod));
        self.keep_nominated(uid, &node, (true, reclaims));
        self.preemption.due.insert(uid.clone());
    }

    /// Drops the pod's nomination and reservation. `told`: the pod's status still has it and must be cleared.
    pub(in crate::scheduler) fn end_nomination(&mut self, uid: &Arc<str>, told: bool) {
        let Some(nomination) = self.preemption.nominations.remove(uid) else {
            return;
        };
        self.preemption.due.remove(uid);
        self.break_promise(nomination.promise.as_ref());
        if let Some(preemptors) = self.preemption.by_node.get_mut(&nomination.node) {
            preemptors.remove(uid);
            if preemptors.is_empty() {
                self.preemption.by_node.remove(&nomination.node);
            }
        }
        self.cluster.ledger.reserve(uid, None);
        self.note_reservations();
        self.preemption.node_changed(&nomination.node);
        if told && let Some(pod) = self.cluster.waiting.get(uid) {
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    fn break_promise(&mut self, promise: Option<&(Arc<str>, Sums)>) {
        let Some((quota, sums)) = promise else { return };
        if let Some(promised) = self.preemption.promised.get_mut(quota) {
            promised.sub(sums);
            if promised.is_empty() {
                self.preemption.promised.remove(quota);
            }
        }
    }

    /// Clears a nomination in the pod's status that no longer exists.
    pub(super) fn clear_old_nomination(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.cluster.waiting.get(uid).filter(|pod| pod.source.nominated_node.is_some())
        else {
            return;
        };
        if self.cluster.config.preemption && self.cluster.leading && !self.preemption.has_nominated(uid) {
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    /// Handles a watch event of a waiting pod: its status may have our nomination, an outdated one, or one of the
    /// replica that schedules its class.
    pub(in crate::scheduler) fn follow_nomination(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return;
        };
        match pod.state {
            State::Parked | State::Grouped => self.clear_old_nomination(uid),
            State::Elsewhere => {
                let node = pod.source.nominated_node.as_ref();
                let known = self.preemption.nominations.get(uid).map(|nomination| &nomination.node);
                if known != node {
                    self.end_nomination(uid, false);
                    self.adopt_nomination(uid);
                }
            }
            _ => {}
        }
    }

    /// Places the nominated pods that now fit their node, and drops nominations that can no longer succeed.
    pub(in crate::scheduler) fn look_at_nominated(&mut self, now: Duration) {
        while self.binds < self.cluster.config.max_waiting_binds
            && let Some(uid) = self.preemption.due.pop_first()
        {
            self.look_at(&uid, now);
        }
    }

    fn look_at(&mut self, uid: &Arc<str>, now: Duration) {
        let class = match self.cluster.waiting.get(uid).map(|pod| (&pod.state, &pod.class)) {
            Some((State::Parked, class)) => class.clone(),
            Some((State::Grouped, _)) => return self.look_at_member(uid, now),
            // It is being placed; when it parks again, it is checked again.
            _ => return,
        };
        let Some((id, victims)) = self.follow_victims(uid) else {
            return self.give_up_nomination(uid);
        };
        let plain = !class.looks_at_pods() && class.spec.volumes.is_none();
        if (plain || victims.is_empty()) && self.cluster.rank_there(&class, id, uid, &[]).is_valid() {
            return self.place_nominated(uid, id, plain, now);
        }
        // Victims of other pods nominated here also free resources for this one.
        let there = |victim: &&Arc<str>| {
            self.cluster.ledger.charge_of(victim).is_some_and(|charge| charge.node == id)
        };
        let evicting = self.preemption.evicting.iter().filter(there);
        let victims: BTreeSet<&str> = victims.iter().chain(evicting).map(|victim| &**victim).collect();
        let victims: Vec<&str> = victims.into_iter().collect();
        if self.is_kept_for_aged(uid, id) {
            return;
        }
        if victims.is_empty() || !self.cluster.rank_there(&class, id, uid, &victims).is_valid() {
            self.give_up_nomination(uid);
        }
    }

    /// Returns the node the pod is nominated for, if it still exists, and its victims that are still on it.
    pub(super) fn follow_victims(&mut self, uid: &Arc<str>) -> Option<(NodeId, Vec<Arc<str>>)> {
        let waiting = self.cluster.waiting.get(uid)?;
        // The promise of a nominated pod must not be counted twice: it was within its guarantee when nominated.
        let reclaims = waiting.holding.quota.is_some();
        let nomination = self.preemption.nominations.get_mut(uid)?;
        let id = self.cluster.ledger.inventory().find(&nomination.node);
        let id = id.filter(|id| self.cluster.ledger.inventory().row(*id).node.is_some())?;
        if std::mem::take(&mut nomination.adopted) {
            let leaving = self.cluster.ledger.occupants(id).into_iter();
            let may = |pod: &Occupant| {
                let holding = &pod.holding;
                let lent = reclaims && holding.quota.is_some() && holding.quota != waiting.holding.quota;
                holding.priority < waiting.priority || lent
            };
            let leaving = leaving.filter(|pod| pod.holding.peer.terminating && may(pod));
            nomination.victims = leaving.map(|pod| pod.pod.uid).collect();
        }
        let there =
            |victim: &Arc<str>| self.cluster.ledger.charge_of(victim).is_some_and(|charge| charge.node == id);
        nomination.victims.retain(there);
        Some((id, nomination.victims.iter().cloned().collect()))
    }

    /// Lifts the reservations of these members, so that they can use them.
    pub(in crate::scheduler) fn free_nominated(&mut self, wanted: &Wanted) {
        for (_, uid) in &wanted.reserved {
            self.cluster.ledger.reserve(uid, None);
        }
    }

    /// Restores the reservations of the members that are still nominated.
    pub(in crate::scheduler) fn keep_nominated_again(&mut self, wanted: &Wanted) {
        for (_, uid) in &wanted.reserved {
            let known = self.preemption.nominations.get(uid).zip(self.cluster.waiting.get(uid));
            if let Some((nomination, pod)) = known {
                let wanted = (&nomination.node, nomination.priority, &pod.holding.usage);
                self.cluster.ledger.reserve(uid, Some(wanted));
            }
        }
    }

    /// Drops a nomination that cannot succeed: the pod may preempt elsewhere.
    fn give_up_nomination(&mut self, uid: &Arc<str>) {
        self.end_nomination(uid, true);
        if let Some(group) = self.cluster.waiting.get(uid).and_then(|pod| self.parked.get_mut(pod.class.id)) {
            // Its message differs from that of its group.
            group.told = false;
        }
        self.hunt(uid);
    }

    /// Places a nominated pod that fits its node. `plain`: only node-local rules apply, so that no agent is needed.
    fn place_nominated(&mut self, uid: &Arc<str>, node: NodeId, plain: bool, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        let (class, place) = (waiting.class.clone(), waiting.place());
        if !plain {
            // Without the reservation the list of its class has the node again, and this pod is tried first.
            self.end_nomination(uid, false);
            if let Some(agent) = self.parked.wake_this(class.id, place) {
                self.awake(uid, &class, agent);
            }
            return;
        }
        if self.cluster.lacks_quota(uid).is_some() {
            return self.wait_for_quota(uid);
        }
        self.end_nomination(uid, false);
        self.withdraw(uid);
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        (waiting.tries, waiting.attempts) = (1, waiting.attempts + 1);
        let holding = waiting.holding.clone();
        match self.cluster.ledger.commit(uid, holding, node, |_| true) {
            Ok(host) => self.bind(uid, host),
            Err(_) => self.admit(uid, now),
        }
    }
}
