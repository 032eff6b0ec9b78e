//! Handlers of watch events.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::charge_walks::Charged;
use super::charge_walks::SLICE_MAX;
use super::cluster::Cluster;
use super::waiting::unscheduled_message;
use super::{Action, PodRefusal, Scheduler, State, Waiting};
use crate::gang::AllocationName;
use crate::inventory::{Discrepancy, NodeId};
use crate::objects::{Affected, ClusterObject, ObjectKind, ObjectName};
use berth_model::{ClaimName, Holding, Node, Pod, PodRef};

impl Scheduler {
    /// Upserts a node. Returns whether anything changed.
    pub fn apply_node(&mut self, node: Node) -> bool {
        if !node.problems.is_empty() {
            self.stats.bad_nodes += 1;
        }
        let name = node.name.clone();
        let changed = self.cluster.ledger.apply_node(node);
        if changed {
            if !self.cluster.kept_devices.is_empty_on(&name) {
                // What pods can take of its devices depends on its labels.
                self.cluster.show_devices(&name, true);
            }
            self.preemption.node_changed(&name);
            self.wake_for_parked();
        }
        changed
    }

    pub fn delete_node(&mut self, name: &str) -> bool {
        let changed = self.cluster.ledger.delete_node(name);
        if changed {
            self.preemption.node_changed(name);
            self.wake_for_parked();
        }
        changed
    }

    /// Deletes the nodes that are not in a complete list.
    pub fn retain_nodes(&mut self, names: &HashSet<Arc<str>>) {
        let mut next = Some(NodeId(0));
        while let Some(node) = next {
            next = self.retain_nodes_from(names, node);
        }
    }

    /// Deletes the next nodes, from this id on, that are not in a complete list. Returns the id of the next node, `None` after
    /// the last one.
    pub fn retain_nodes_from(&mut self, names: &HashSet<Arc<str>>, node: NodeId) -> Option<NodeId> {
        let (known, next) = self.inventory().node_names_from(node, SLICE_MAX);
        let gone: Vec<_> = known.filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            self.delete_node(&name);
        }
        if next.is_none() {
            self.cluster.nodes_listed = true;
            self.wake_all();
        }
        next
    }

    /// Upserts a pod, of any scheduler.
    pub fn apply_pod(&mut self, pod: Pod, now: Duration) {
        if pod.finished {
            self.delete_pod(&pod.uid);
            return;
        }
        let waits_elsewhere = pod.node_name.is_none() && !self.cluster.schedules(&pod);
        if pod.node_name.is_none() {
            self.renew_charge(&pod);
        }
        if pod.node_name.is_some() || !self.preemption.has_nominated(&pod.uid) {
            self.keep_room(&pod.uid, Some(&pod).filter(|_| waits_elsewhere));
        }
        if let Some(node) = &pod.node_name {
            let holding = self.cluster.objects.holding(&pod);
            let before = self.inventory().revision();
            self.cluster.ledger.bound(&pod.uid, node, &holding);
            let leaves = pod.deleting || self.preemption.is_evicting(&pod.uid);
            self.gangs.note_placed(&pod.uid, &holding.peer, leaves);
            self.note_resident(&pod);
            self.cluster.ledger.note_seen(pod_ref(&pod), pod.generation, pod.started_s);
            if self.inventory().revision() != before {
                self.preemption.node_changed(node);
            }
            // While our own bind is in flight, its result will settle the pod; otherwise it is no longer waiting.
            if self.cluster.waiting.get(&pod.uid).is_some_and(|waiting| waiting.state != State::Binding) {
                self.forget(&pod.uid);
            }
            self.forget_foreign(&pod.uid);
            self.wake_for_parked();
            return;
        }
        if !self.cluster.schedules(&pod) {
            if self.cluster.config.knows_others && !pod.deleting {
                self.foreign.insert(pod);
            }
            return;
        }
        if self.cluster.ledger.charge_of(&pod.uid).is_some() {
            let uid = pod.uid.clone();
            // Either it is bound and this event is older; or it is being bound, and this is its state if the bind
            // fails.
            if let Some(binding) = self.cluster.waiting.get_mut(&pod.uid) {
                if pod.deleting {
                    // It leaves, bound or not: its gang needs another member.
                    self.gangs.lost(&uid);
                }
                binding.news = Some(Box::new(pod));
                self.claims.mark_due(&uid);
            } else if self.foreign.holds(&uid) && !pod.deleting {
                // Another replica requested its bind before the watch reported the pod.
                self.wait(pod, now);
                self.wait_held(&uid);
            }
            return;
        }
        if pod.deleting {
            self.forget(&pod.uid);
            return;
        }
        self.wait(pod, now);
    }

    /// Lets other pods count one that is being bound as what it is now: with other labels, or as leaving.
    fn renew_charge(&mut self, pod: &Pod) {
        let Some(node) = self.cluster.ledger.charge_of(&pod.uid).map(|charge| charge.node) else {
            return;
        };
        let before = self.inventory().revision();
        let Cluster { ledger, objects, .. } = &mut self.cluster;
        ledger.rehold_pod(&pod.uid, |holding| {
            objects.renewed(&Holding { peer: pod.peer.clone(), ..holding.clone() })
        });
        if self.inventory().revision() != before {
            let node = self.inventory().name(node).clone();
            self.preemption.node_changed(&node);
            self.wake_for_parked();
        }
    }

    /// Deletes a pod.
    pub fn delete_pod(&mut self, uid: &Arc<str>) {
        self.forget(uid);
        self.forget_foreign(uid);
        self.keep_room(uid, None);
        self.preemption.victim_left(uid, &self.cluster.ledger);
        self.forget_resident(uid);
        if self.discharge(uid) {
            self.wake_for_parked();
        }
    }

    /// Deletes the pods that are not in a complete list.
    pub fn retain_pods(&mut self, uids: &HashSet<Arc<str>>) {
        let mut next = Some(NodeId(0));
        while let Some(node) = next {
            next = self.retain_pods_from(uids, node);
        }
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.retain_waiting_from(uids, from);
        }
        self.finish_pod_list(uids);
    }

    /// Deletes some of the pods with a node that are not in a complete list: those of the next nodes, from this id on. Returns
    /// the id of the next node, `None` after the last one. What was granted to others stays charged: the pod may have been
    /// created after the list was made, and every grant ends by a fact of its own.
    pub fn retain_pods_from(&mut self, uids: &HashSet<Arc<str>>, node: NodeId) -> Option<NodeId> {
        let (mut pods, next) = self.cluster.ledger.charged_from(node, SLICE_MAX);
        pods.retain(|uid| !uids.contains(uid) && !self.foreign.is_granted(uid));
        pods.sort();
        for uid in pods {
            self.delete_pod(&uid);
        }
        next
    }

    /// Deletes some of the waiting pods that are not in a complete list: of the next ones that arrived as number `from` or
    /// later. Returns the number of the next pod, `None` after the last one.
    pub fn retain_waiting_from(&mut self, uids: &HashSet<Arc<str>>, from: u64) -> Option<u64> {
        let mut gone = Vec::new();
        let mut next = None;
        for (at, pod) in self.cluster.waiting.arrived_since(None, from).enumerate() {
            if at == SLICE_MAX {
                next = Some(pod.seq);
                break;
            }
            if !uids.contains(&pod.pod.uid) && !self.foreign.is_granted(&pod.pod.uid) {
                gone.push(pod.pod.uid.clone());
            }
        }
        for uid in gone {
            self.delete_pod(&uid);
        }
        next
    }

    /// Deletes the waiting pods of other schedulers and the reservations for pods that are not in a complete list, after all
    /// other pods.
    pub fn finish_pod_list(&mut self, uids: &HashSet<Arc<str>>) {
        let is_gone = |uid: &&Arc<str>| !uids.contains(*uid) && !self.foreign.is_granted(uid);
        let reserved = self.cluster.ledger.reserved().filter(|uid| !self.foreign.is_former(uid));
        let waiting = self.foreign.pods().map(|pod| &pod.uid).chain(reserved);
        let mut gone: Vec<Arc<str>> = waiting.filter(is_gone).cloned().collect();
        gone.sort();
        gone.dedup();
        for uid in gone {
            self.delete_pod(&uid);
        }
        self.cluster.pods_listed = true;
        self.wake_all();
    }

    /// Upserts another object.
    pub fn apply_object(&mut self, object: ClusterObject) {
        let object = match object {
            ClusterObject::Allocation(allocation) => return self.apply_allocation(*allocation),
            ClusterObject::Policy(policy) => return self.apply_policy(*policy),
            ClusterObject::Quota(quota) => return self.apply_quota(*quota),
            object => object,
        };
        let of_namespace = matches!(object, ClusterObject::Namespace { .. });
        let affected = self.cluster.objects.apply(object);
        if of_namespace && affected != Affected::Nothing {
            self.policies.namespace_changed();
            self.quotas.namespace_changed();
        }
        self.requeue_affected(affected);
    }

    pub fn delete_object(&mut self, kind: ObjectKind, object: &ObjectName) {
        if let Some(kind) = kind.allocation() {
            let (namespace, name) = (object.namespace.clone(), object.name.clone());
            return self.delete_allocation(&AllocationName { kind, namespace, name });
        }
        match kind {
            ObjectKind::AllocationPolicy => return self.delete_policy(&object.name),
            ObjectKind::Quota => return self.delete_quota(&object.name),
            ObjectKind::Namespace => {
                self.policies.namespace_changed();
                self.quotas.namespace_changed();
            }
            _ => {}
        }
        let affected = self.cluster.objects.delete(kind, object);
        self.requeue_affected(affected);
    }

    /// Deletes the objects of this kind that are not in a complete list.
    pub fn retain_objects(&mut self, kind: ObjectKind, listed: &HashSet<ObjectName>) {
        if let Some(kind) = kind.allocation() {
            self.retain_allocations(kind, listed);
        }
        match kind {
            ObjectKind::AllocationPolicy => self.retain_policies(listed),
            ObjectKind::Quota => self.retain_quotas(listed),
            ObjectKind::Namespace => {
                self.policies.namespace_changed();
                self.quotas.namespace_changed();
            }
            _ => {}
        }
        for affected in self.cluster.objects.retain(kind, listed) {
            self.requeue_affected(affected);
        }
        self.cluster.unlisted.remove(&kind);
        self.wake_all();
    }

    /// Requeues the pods affected by a change: updates those with a node now, reclassifies waiting ones before the next
    /// decision.
    pub(super) fn requeue_affected(&mut self, affected: Affected) {
        let namespace = match affected {
            Affected::Nothing => return,
            Affected::Waiting(namespace) => namespace,
            Affected::Volumes(news) => {
                self.requeue_for_volumes(*news);
                return self.wake_for_claims();
            }
            Affected::Devices(changed) => {
                self.requeue_for_devices(*changed, true);
                return self.wake_for_claims();
            }
            Affected::Owned { namespace, owner } => {
                self.stale.mark_owned(namespace, owner);
                return self.wake_all();
            }
            Affected::Everyone(namespace) => {
                self.recharge_for_quotas(Charged::In(namespace.clone()));
                namespace
            }
        };
        self.stale.mark_namespace(namespace);
        self.wake_for_parked();
        self.wake_all();
    }

    fn wake_for_claims(&mut self) {
        self.wake_for_parked();
        if !self.stale.is_empty() {
            self.wake_all();
        }
    }

    /// Reserves resources for a pod of another scheduler on its nominated node, where it has preempted.
    fn keep_room(&mut self, uid: &Arc<str>, pod: Option<&Pod>) {
        let wanted = pod.and_then(|pod| Some((pod.nominated_node.as_ref()?, pod.priority, &pod.usage)));
        if self.cluster.ledger.reserve(uid, wanted) {
            self.note_reservations();
        }
    }

    /// Handles a new or dropped reservation.
    pub(super) fn note_reservations(&mut self) {
        if self.cluster.ledger.reserved().next().is_some() && self.classifier.note_reservations() {
            self.stale.mark_all();
        }
        self.wake_for_parked();
    }

    /// Reclassifies some of the waiting pods marked as stale, and charges some of the marked pods anew. If more are left,
    /// an agent is woken to carry on.
    pub(super) fn classify_again(&mut self, now: Duration) {
        if !self.recharges.is_empty() {
            self.recharge();
        }
        self.collect_marks();
        if self.stale.is_empty() {
            return;
        }
        for pod in self.stale.take_slice(&self.cluster.waiting) {
            self.wait(pod, now);
        }
        if !self.stale.is_empty() {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Marks pods to be charged anew, to other quotas perhaps. Until that is done, no quota has room.
    pub(super) fn recharge_for_quotas(&mut self, which: Charged) {
        self.cluster.recounting_quotas |= !self.cluster.objects.quotas.is_empty();
        self.recharges.mark(which);
        self.recharge();
    }

    /// Charges the next marked pods anew: their quotas, their volumes, and what other pods read of them may have
    /// changed. If more are left, an agent is woken to carry on.
    pub(super) fn recharge(&mut self) {
        let Cluster { ledger, objects, .. } = &mut self.cluster;
        for uid in self.recharges.next_slice(ledger) {
            ledger.rehold_pod(&uid, |holding| objects.renewed(holding));
        }
        if !self.recharges.is_empty() {
            self.actions.push(Action::WakeAgent(0));
        } else if std::mem::take(&mut self.cluster.recounting_quotas) {
            self.quotas_recounted();
        }
    }

    fn collect_marks(&mut self) {
        for claim in self.cluster.ledger.take_claims_changed() {
            self.claims.claim_changed(&claim, &mut self.stale);
        }
        if self.cluster.ledger.take_claims_moved() {
            self.stale.mark_claimants();
        }
        for selector in self.cluster.ledger.take_new_selectors() {
            self.stale.mark_selected(&selector);
        }
        for namespace in self.cluster.ledger.take_relieved_namespaces() {
            self.stale.mark_namespace(namespace);
        }
    }

    /// Reclassifies this pod now if it is marked. Must be called before a decision about it.
    pub(super) fn classify_if_marked(&mut self, uid: &str, now: Duration) {
        self.collect_marks();
        if let Some(waiting) = self.cluster.waiting.get(uid)
            && !waiting.state.has_node()
            && self.stale.is_marked(uid, waiting)
        {
            let pod = Pod::clone(&waiting.source);
            self.wait(pod, now);
        }
    }

    /// Recounts the sums of the next nodes, from this id on, and repairs wrong ones. Returns the discrepancies, and the id of
    /// the next node, `None` after the last one, with which the quotas are recounted.
    pub fn heal_from(&mut self, node: NodeId) -> (Vec<Discrepancy>, Option<NodeId>) {
        /// Of one call.
        const ROWS_MAX: usize = 64;
        let (wrong, next) = self.cluster.ledger.heal_rows(node, ROWS_MAX);
        self.stats.healed += wrong.len() as u64;
        if !wrong.is_empty() {
            self.wake_for_parked();
        }
        (wrong, next)
    }

    /// Queues or updates a pod of this scheduler that has no node.
    pub(super) fn wait(&mut self, pod: Pod, now: Duration) {
        let used = |claim: &ClaimName| self.cluster.ledger.is_used(claim);
        let spec = self.cluster.objects.effective_spec(&pod.spec.clone().unwrap_or_default(), &pod, &used);
        let holding = self.cluster.objects.holding(&pod);
        let (namespace, affinity) = (&holding.peer.identity.namespace, &holding.peer.affinity);
        let refusal = PodRefusal::of(&pod).or_else(|| {
            let is_full = !self.cluster.ledger.has_room_for_terms(namespace, affinity);
            is_full.then(|| PodRefusal::TooManySelectors { namespace: namespace.clone() })
        });
        // The terms of a pod that is refused concern nobody.
        let expected = if refusal.is_none() { affinity.clone() } else { Arc::default() };
        // Before it is classified: most terms select the pod itself.
        self.cluster.ledger.expect(namespace, &expected);
        if let Some(known) = self.cluster.waiting.get_mut(&pod.uid) {
            let before = std::mem::replace(&mut known.expected, expected.clone());
            self.cluster.ledger.stop_expecting(namespace, &before);
        }
        if self.cluster.objects.devices.left_behind(&pod).is_some() {
            self.claims.note_left_behind(&pod.uid);
        }
        let class = self.classify(&pod, &spec, &holding);
        let gang = self.gangs.find(&holding.peer);
        let misplaced =
            self.cluster.waiting.get(&pod.uid).is_some_and(|known| self.cluster.is_misplaced(known));
        if let Some(known) = self.cluster.waiting.observe(&pod) {
            known.generation = pod.generation;
            let was_tried = known.reported.is_some();
            if !self.cluster.leading {
                // Only the leader writes conditions.
                known.reported = unscheduled_message(&pod);
            }
            let same_order =
                was_tried == known.reported.is_some() || !matches!(known.state, State::Queued(_));
            let same_quota = known.holding.quota == holding.quota;
            // Labels used by no class now may matter to later pods.
            let before = std::mem::replace(&mut known.holding, holding.clone());
            if before.devices != holding.devices {
                self.claims.remove_user(&pod.uid, &before);
                self.claims.add_user(&pod.uid, &holding);
            }
            let same = known.class.id == class.id
                && same_quota
                && same_order
                && !misplaced
                && known.gang == gang
                && known.priority == pod.priority
                && (known.state == State::Gated) != pod.gates.is_empty()
                && known.state.refusal() == refusal.as_ref();
            if same {
                if refusal.is_some() {
                    // This replica may own it only now.
                    self.report_reason(&pod.uid, true);
                }
                return self.follow_nomination(&pod.uid);
            }
            if known.state == State::Gated {
                // Time behind scheduling gates does not count as scheduling latency.
                known.arrived = now;
            }
            self.withdraw(&pod.uid);
            self.leave_crowd(&pod.uid);
        }
        let uid = pod.uid.clone();
        match self.cluster.waiting.contains_key(&uid) {
            true => self.cluster.waiting.reclassify(&uid, class, pod.priority, gang),
            false => {
                self.next_seq += 1;
                self.claims.add_user(&uid, &holding);
                let mut waiting = Waiting::new(pod.clone(), class, holding, self.next_seq, now);
                (waiting.gang, waiting.expected) = (gang, expected);
                self.cluster.waiting.insert(uid.clone(), waiting);
            }
        }
        self.mark_turned_gangs();
        if !pod.gates.is_empty() {
            return;
        }
        match refusal {
            None => self.admit(&uid, now),
            Some(refusal) => {
                self.stats.bad_pods += u64::from(matches!(refusal, PodRefusal::Invalid(_)));
                self.stats.over_limit += u64::from(refusal.is_by_limit());
                if let Some(waiting) = self.cluster.waiting.get_mut(&uid) {
                    waiting.state = State::Refused(Box::new(refusal));
                }
                self.report_reason(&uid, true);
            }
        }
    }

    /// Rechecks the parked classes and gangs that wait for pods like those that came to a node since the last call,
    /// whoever placed them.
    pub(super) fn notice_arrivals(&mut self) {
        let revision = self.inventory().revision();
        for pod in self.cluster.ledger.take_arrived() {
            self.gangs.pod_arrived(&pod.identity, revision);
            for agent in self.parked.mark_due_for(&pod.identity, revision) {
                self.actions.push(Action::WakeAgent(agent));
            }
        }
    }

    /// Wakes the agents if a change may help parked classes or nominated pods.
    pub(super) fn wake_for_parked(&mut self) {
        self.wake_for_quotas();
        let loosened = self.inventory().loosened();
        if loosened > self.woken_for && !self.parked.is_empty() {
            self.woken_for = loosened;
            self.wake_all();
        } else if self.preemption.is_due() {
            // Any agent can do it.
            self.actions.push(Action::WakeAgent(0));
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.actions.extend((0..self.dispatcher.agents()).map(Action::WakeAgent));
    }
}

/// Returns the reference to the pod.
pub(super) fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        scheduler_name: pod.scheduler_name.clone(),
    }
}
