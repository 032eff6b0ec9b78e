//! Entry points of preemption: they carry out what its components decide.
//!
//! Requests evictions, notes reservations, parks, wakes and places pods, and writes their conditions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::gangs::{self, GangAttempt, GangChosen, GangHuntResult};
use super::hunts::{Attempt, Chosen, Next};
use super::nominations::{Outlook, is_plain};
use super::{Eviction, Needed, Preemption, aged};
use crate::agent::AgentChoice;
use crate::class::{Class, ClassId};
use crate::gang::AllocationName;
use crate::inventory::{NodeId, Occupant, Revision};
use crate::preempt::{Fruitless, Survey, Takeover, Victims};
use crate::quota::Rights;
use crate::scheduler::{Action, Cluster, LatencySample, Scheduler, State, Task};
use berth_model::ClaimName;

impl Scheduler {
    // Queries.

    /// Returns the nominated pods, each with its node.
    pub fn nominated_pods(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.preemption.nominations.iter()
    }

    /// Returns whether its eviction was requested and it is still there.
    pub fn is_evicting(&self, uid: &str) -> bool {
        self.preemption.is_evicting(uid)
    }

    /// Returns the number of pods with a reservation due to aging.
    pub fn aged(&self) -> usize {
        self.preemption.aged.len()
    }

    /// Returns the number of pods and nodes that searches for aged pods have examined.
    pub fn examined_for_aged(&self) -> u64 {
        self.preemption.aged.examined()
    }

    // Leadership.

    /// Adopts the nominations of the previous leader.
    pub(in crate::scheduler) fn begin_preemption(&mut self) {
        for uid in self.cluster.waiting.nominated() {
            self.adopt_nomination(&uid);
        }
    }

    /// Drops all reservations: only the leader keeps them, and publishes them in the pods' status.
    pub(in crate::scheduler) fn end_preemption(&mut self) {
        let uids: Vec<_> = self.nominated_pods().map(|(uid, _)| uid.clone()).collect();
        uids.iter().for_each(|uid| self.end_nomination(uid, false));
        let Preemption { nominations, aged, .. } = std::mem::take(&mut self.preemption);
        self.preemption.aged.count_on_from(&aged);
        nominations.evicting().for_each(|uid| self.gangs.stays(uid, &self.cluster.ledger));
    }

    // Nominations.

    /// Nominates the pod for the node and evicts its victims. `lent`: quotas that lose what they had borrowed.
    fn nominate(&mut self, uid: &Arc<str>, node: &Arc<str>, victims: &[Arc<Occupant>], lent: &[Arc<str>]) {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        let preemptor = waiting.pod.clone();
        let group = waiting.gang.as_ref().and_then(|gang| self.gangs.pod_group(&gang.name));
        // Reclaimed resources are reserved against pods of any priority, or the borrowers would take them again.
        self.keep_nominated(uid, node, !lent.is_empty());
        self.expect_devices(uid, node, victims.iter().map(|pod| &**pod));
        for pod in self.preemption.nominations.evict(uid, victims) {
            let eviction = Eviction {
                victim: pod.pod.clone(),
                preemptor: preemptor.clone(),
                group: group.clone(),
                node: node.clone(),
                generation: pod.generation,
            };
            self.actions.push(Action::Evict(Box::new(eviction)));
            if let Some(quota) = pod.holding.quota.as_ref().filter(|quota| lent.contains(quota)) {
                self.quotas.reclaimed(quota);
            }
        }
        self.gangs.lose(victims);
        self.actions.push(Action::Nominate { pod: preemptor, node: Some(node.clone()) });
    }

    fn keep_nominated(&mut self, uid: &Arc<str>, node: &Arc<str>, from_all: bool) {
        let Cluster { waiting, ledger, .. } = &mut self.cluster;
        if let Some(pod) = waiting.get(uid) {
            self.preemption.nominations.keep(pod, node, from_all, ledger);
            self.keep_devices(uid);
            self.note_reservations();
        }
    }

    /// Keeps devices of its node for the nominated pod, if it needs some.
    fn keep_devices(&mut self, uid: &str) {
        let Cluster { waiting, kept_devices, .. } = &mut self.cluster;
        let Some((pod, node)) = waiting.get(uid).zip(self.preemption.node_of(uid)) else {
            return;
        };
        if pod.class.spec.devices.is_some() {
            kept_devices.keep(pod, node);
            self.cluster.show_devices(node, true);
        }
    }

    /// Keeps devices for the pod no longer.
    fn let_devices_go(&mut self, uid: &str) {
        if let Some((node, claims)) = self.cluster.kept_devices.let_go(uid) {
            self.await_claims(claims);
            self.cluster.show_devices(&node, true);
        }
    }

    /// Reclassifies pods that would use claims whose devices a nominated pod waits for, or does so no longer.
    fn await_claims(&mut self, claims: impl IntoIterator<Item = ClaimName>) {
        for claim in self.cluster.await_claims(claims) {
            self.claims.device_claim_changed(&claim, &mut self.stale);
        }
    }

    /// Lets the pod, which is about to be placed, take the devices that are kept for it.
    pub(in crate::scheduler) fn yield_devices(&mut self, uid: &str) {
        if let Some(node) = self.cluster.kept_devices.yield_to(uid) {
            self.cluster.show_devices(&node, true);
        }
    }

    /// Adopts the nomination in the pod's status, which another process wrote, or this one before a restart.
    pub(in crate::scheduler) fn adopt_nomination(&mut self, uid: &Arc<str>) {
        let has_node = self.cluster.ledger.charge_of(uid).is_some();
        if !self.cluster.leading || !self.cluster.config.preemption || has_node {
            return;
        }
        // While another replica scheduled it, nobody here looked at it.
        if self.preemption.has_nominated(uid) {
            self.keep_devices(uid);
            return self.preemption.nominations.mark_due(uid);
        }
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return;
        };
        if pod.state == State::OverQuota || self.gangs.awaits_quota(pod) {
            // It may not be placed; that the nomination was withdrawn has not been written.
            return self.preemption.nominations.clear_outdated(uid, &self.cluster, &mut self.actions);
        }
        if let Some(node) = pod.source.nominated_node.clone() {
            let reclaims = pod.gang.is_none() && self.preemption.guarantees(&self.cluster).may_reclaim(pod);
            self.keep_nominated(uid, &node, reclaims);
            self.preemption.nominations.adopted(uid);
            let there = self.cluster.existing(&node).map(|id| self.cluster.ledger.occupants(id));
            let leaving = there.iter().flatten().filter(|pod| pod.holding.peer.terminating);
            self.expect_devices(uid, &node, leaving);
        }
    }

    /// Records the victims of a nominated pod: their claims are deallocated some time after they have left.
    fn expect_devices<'a>(
        &mut self,
        uid: &str,
        node: &Arc<str>,
        victims: impl Iterator<Item = &'a Occupant>,
    ) {
        let claims = self.cluster.kept_devices.expect(uid, victims);
        if !claims.is_empty() {
            self.await_claims(claims);
            self.cluster.show_devices(node, false);
        }
    }

    /// Drops the pod's nomination and reservation. `told`: the pod's status still has it and must be cleared.
    pub(in crate::scheduler) fn end_nomination(&mut self, uid: &Arc<str>, told: bool) {
        let Some(node) = self.preemption.nominations.end(uid, &mut self.cluster.ledger) else {
            return;
        };
        self.preemption.aged.ended(uid, &self.cluster);
        self.let_devices_go(uid);
        self.note_reservations();
        self.preemption.node_changed(&node);
        if told && let Some(pod) = self.cluster.waiting.get(uid) {
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    /// Drops the nominations of the gang's members.
    pub(in crate::scheduler) fn end_gang_nominations(&mut self, name: &AllocationName) {
        for uid in self.gangs.waiting_uids(name) {
            self.end_nomination(&uid, true);
        }
    }

    /// Handles a watch event of a waiting pod: its status may have our nomination, an outdated one, or one of the
    /// replica that schedules its class.
    pub(in crate::scheduler) fn follow_nomination(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return;
        };
        let nominations = &self.preemption.nominations;
        match pod.state {
            State::Parked | State::Grouped | State::OverQuota => {
                nominations.clear_outdated(uid, &self.cluster, &mut self.actions);
            }
            State::Elsewhere if nominations.node_of(uid) != pod.source.nominated_node.as_ref() => {
                self.end_nomination(uid, false);
                self.adopt_nomination(uid);
            }
            _ => {}
        }
    }

    /// Settles an [`Action::Evict`]: the victim is terminating or gone, or could not be evicted for this reason.
    pub fn eviction_finished(&mut self, eviction: &Eviction, ended: Result<(), String>, now: Duration) {
        let Err(why) = ended else {
            return;
        };
        let victim = &eviction.victim;
        if self.preemption.nominations.not_evicted(&victim.uid) {
            self.gangs.stays(&victim.uid, &self.cluster.ledger);
        }
        for uid in self.preemption.nominations.preemptors_of(&victim.uid) {
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

    /// Places the nominated pods that now fit their node, and drops nominations that can no longer succeed.
    pub(in crate::scheduler) fn look_at_nominated(&mut self, now: Duration) {
        while self.binds < self.cluster.config.max_waiting_binds
            && let Some(uid) = self.preemption.nominations.next_due()
        {
            match self.cluster.waiting.get(&uid).map(|pod| &pod.state) {
                Some(State::Parked) => self.look_at(&uid, now),
                Some(State::Grouped) => self.look_at_member(&uid, now),
                // It is being placed; when it parks again, it is checked again.
                _ => {}
            }
        }
    }

    fn look_at(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(class) = self.cluster.waiting.get(uid).map(|pod| pod.class.clone()) else {
            return;
        };
        let Preemption { nominations, aged, .. } = &mut self.preemption;
        let waits = |node| aged.is_kept(uid, node, &self.cluster);
        match nominations.outlook(uid, &class, &self.cluster, waits) {
            Outlook::Fits(node) if !self.preemption.nominations.has_yielded(uid) => {
                self.place_nominated(uid, &class, node, now);
            }
            Outlook::Waits => {}
            Outlook::Fits(_) | Outlook::Hopeless => {
                self.end_nomination(uid, true);
                if let Some(group) = self.parked.get_mut(class.id) {
                    // Its message differs from that of its group.
                    group.is_reported = false;
                }
                self.preemption.hunt(uid, &self.cluster, &self.parked, &mut self.actions);
            }
        }
    }

    /// Places a nominated pod that fits its node.
    fn place_nominated(&mut self, uid: &Arc<str>, class: &Arc<Class>, node: NodeId, now: Duration) {
        self.classify_if_marked(uid, now);
        if self.cluster.waiting.get(uid).is_none_or(|waiting| waiting.class.id != class.id) {
            return;
        }
        if is_plain(class) && self.cluster.lacks_quota(uid).is_some() {
            return self.wait_for_quota(uid, now);
        }
        if !is_plain(class) && self.parked.get(class.id).is_some_and(|group| group.probe.is_some()) {
            return self.preemption.nominations.check_after_probe(class.id, uid);
        }
        if !is_plain(class) {
            // The list of its class must have the node again; this pod is tried first. Until it is placed, less important
            // pods do not get its room.
            let Cluster { waiting, ledger, .. } = &mut self.cluster;
            let nominations = &mut self.preemption.nominations;
            match waiting.get(uid).is_some_and(|pod| nominations.yield_room(pod, ledger)) {
                true => {
                    self.yield_devices(uid);
                    self.note_reservations();
                }
                false => self.end_nomination(uid, false),
            }
            let place = self.cluster.waiting.get(uid).map(|pod| pod.place());
            if place.is_some_and(|place| self.parked.wake_this(class.id, place)) {
                self.awake(uid, class, now);
            }
            return;
        }
        self.end_nomination(uid, false);
        self.withdraw(uid);
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        (waiting.tries, waiting.attempts) = (1, waiting.attempts + 1);
        match self.cluster.ledger.commit(uid, waiting.holding.clone(), node, |_| true) {
            Ok(host) => {
                self.note_decision(uid, node, None, &[], now);
                self.bind(uid, host);
            }
            Err(_) => self.admit(uid, now),
        }
    }

    /// Checks a nominated member of a gang after its node changed.
    fn look_at_member(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(name) = self.gang_of_waiting(uid).filter(|_| self.preemption.has_nominated(uid)) else {
            return;
        };
        if !self.preemption.nominations.can_still_come(uid, &self.cluster) {
            self.end_gang_nominations(&name);
            self.try_gang_again(&name, now);
        } else if !self.preemption.gang_awaits_victims(&name, &self.gangs, &self.cluster) {
            self.try_gang_again(&name, now);
        }
    }

    /// Gives reservations to pods that have waited long, and drops those that did not help in time.
    pub(in crate::scheduler) fn reserve_for_aged(&mut self, now: Duration) {
        for uid in self.preemption.aged.begin(&self.cluster, &self.parked, now) {
            self.end_nomination(&uid, false);
            self.preemption.hunt(&uid, &self.cluster, &self.parked, &mut self.actions);
        }
        let mut work = aged::WORK_MAX;
        loop {
            let Preemption { aged, nominations, .. } = &mut self.preemption;
            let Some((uid, node)) = aged.next(&self.cluster, &self.parked, nominations, now, &mut work)
            else {
                return;
            };
            self.keep_nominated(&uid, &node, true);
            self.preemption.nominations.mark_due(&uid);
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Checks the nominated pods that have waited for the devices of their victims as long as they may.
    pub(in crate::scheduler) fn look_for_late_devices(&mut self, now: Duration) {
        for uid in self.cluster.give_up_late_devices(now) {
            self.preemption.nominations.mark_due(&uid);
            self.wake_for_parked();
        }
    }

    // Hunts of classes.

    /// Returns this agent's next step of a hunt.
    pub(in crate::scheduler) fn next_preemption(&mut self, agent: usize, now: Duration) -> Option<Task> {
        loop {
            let (hunts, actions) = (&mut self.preemption.hunts, &mut self.actions);
            let class = hunts.next_class(agent, &self.cluster, &self.parked, now, actions)?;
            loop {
                let Preemption { hunts, nominations, .. } = &mut self.preemption;
                match hunts.step(class, &self.cluster, &self.parked, nominations, now) {
                    Some(Next::Survey(class, priority, rights)) => {
                        return Some(Task::Survey { class, priority, rights });
                    }
                    Some(Next::DryRuns(mut attempt, nodes)) => {
                        let by = (attempt.priority, &*attempt.rights);
                        let needed = Needed::of([&*attempt.class]);
                        attempt.sites =
                            self.preemption.sites(nodes, by, (false, &needed), &self.cluster, &self.gangs);
                        return Some(Task::Preempt(attempt));
                    }
                    Some(Next::Chosen(chosen)) => self.settle_hunt(class, chosen),
                    None => break,
                }
            }
            self.report_unreported(class);
        }
    }

    /// Nominates a pod for the chosen victims if they may still be preempted, or records that there are none.
    fn settle_hunt(&mut self, class: ClassId, chosen: Chosen) {
        let still_claims = |uid: &str, victims: &Victims| {
            self.preemption.still_claims(uid, victims, &self.cluster, &self.gangs)
        };
        match chosen {
            Chosen::Victims(uid, victims) if !still_claims(&uid, &victims) => {
                self.preemption.hunts.leave_out(class, victims.node);
            }
            Chosen::Victims(uid, victims) => {
                let node = self.inventory().name(victims.node).clone();
                self.nominate(&uid, &node, &victims.pods, &victims.lent);
                self.preemption.hunts.succeeded(class);
                self.stats.preemption_attempts += 1;
                self.actions.push(Action::Observe(LatencySample::Victims { pods: victims.pods.len() }));
                self.report_reason(&uid, true);
            }
            Chosen::Failed(unhelped) => {
                self.stats.preemption_attempts += 1;
                unhelped.into_iter().for_each(|unhelped| self.parked.preemption_failed(class, unhelped));
            }
        }
    }

    /// Settles a survey of the nodes for a class.
    pub(in crate::scheduler) fn settle_survey(
        &mut self,
        agent: usize,
        class: &Arc<Class>,
        by: (i32, &Arc<Rights>),
        found: Result<Survey, AgentChoice>,
        seen: Revision,
        now: Duration,
    ) {
        if !self.preemption.hunts.step_ended(class.id) {
            return;
        }
        match found {
            Ok(survey) => self.preemption.hunts.surveyed(class.id, by, survey, seen, now),
            // There is a valid node by now.
            Err(choice) if self.parked.get(class.id).is_some() => {
                self.settle_check(agent, class, choice, seen, now);
            }
            Err(_) => {}
        }
        self.preemption.hunt_on(class.id, &self.parked, &mut self.actions);
    }

    /// Settles the dry runs on some nodes.
    pub(in crate::scheduler) fn settle_attempt(
        &mut self,
        attempt: &Attempt,
        found: Vec<Result<Victims, Fruitless>>,
        seen: Revision,
        now: Duration,
    ) {
        let class = attempt.class.id;
        let Preemption { hunts, nominations, .. } = &mut self.preemption;
        if !hunts.step_ended(class) {
            return;
        }
        hunts.evaluated(attempt, found, seen);
        if let Some(chosen) = hunts.choose(attempt, &self.cluster, nominations, now) {
            self.settle_hunt(class, chosen);
        }
        self.preemption.hunt_on(class, &self.parked, &mut self.actions);
        self.report_unreported(class);
    }

    // Hunts of gangs.

    /// Settles a step of a gang at this agent.
    pub(in crate::scheduler) fn settle_gang_step(
        &mut self,
        agent: usize,
        attempt: &GangAttempt,
        found: GangHuntResult,
        now: Duration,
    ) {
        let (name, nominations) = (&attempt.name, &self.preemption.nominations);
        let priority = gangs::priority_of(name, &self.cluster, &self.gangs, nominations);
        let current = self.gangs.is_parked_at(name, attempt.version) && priority.is_some();
        let changed = match &found {
            GangHuntResult::Takeovers(Some(takeovers)) => {
                !attempt.is_current(takeovers, &self.cluster, nominations)
                    || !self.gangs.bear(
                        attempt.priority,
                        gangs::victims_of(takeovers),
                        &self.cluster,
                        &self.preemption,
                    )
            }
            _ => false,
        };
        let (hunts, actions) = (&mut self.preemption.gangs, &mut self.actions);
        match hunts.settle((agent, name), found, (current, changed), now, actions) {
            Some(GangChosen::Takeovers(takeovers)) => self.nominate_gang(attempt, &takeovers, now),
            Some(GangChosen::Failed(lacking)) => {
                self.stats.preemption_attempts += 1;
                self.gang_lacks(name, lacking, now);
            }
            None => {}
        }
    }

    /// Nominates all needed members, and evicts all victims.
    fn nominate_gang(&mut self, attempt: &GangAttempt, takeovers: &[Takeover], now: Duration) {
        let name = &attempt.name;
        self.stats.preemption_attempts += 1;
        for takeover in takeovers {
            let uid = &attempt.wanted.members[takeover.member].uid;
            let node = self.inventory().name(takeover.node).clone();
            self.nominate(uid, &node, &takeover.victims, &takeover.lent);
        }
        let victims = gangs::victims_of(takeovers).count();
        self.actions.push(Action::Observe(LatencySample::Victims { pods: victims }));
        if !self.preemption.gang_awaits_victims(name, &self.gangs, &self.cluster)
            && let Some(first) = takeovers.first()
        {
            self.preemption.nominations.mark_due(&attempt.wanted.members[first.member].uid);
        }
        let with_victims = takeovers.iter().filter(|takeover| !takeover.victims.is_empty());
        let nodes: BTreeSet<_> = with_victims.map(|takeover| takeover.node).collect();
        if let Some(lacking) = self.preemption.gangs.succeeded(name, victims, nodes.len()) {
            self.gang_lacks(name, lacking, now);
        }
    }

    /// Returns the allocation this waiting member belongs to.
    pub fn gang_of_waiting(&self, uid: &str) -> Option<AllocationName> {
        let pod = self.cluster.waiting.get(uid).filter(|pod| pod.state == State::Grouped)?;
        Some(pod.gang.as_ref()?.name.clone())
    }
}
