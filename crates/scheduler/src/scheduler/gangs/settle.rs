//! Commit of an agent's plan for a gang.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{GangState, GangTask};
use crate::agent::Agent;
use crate::gang::{AllocationName, GangPlan, GangTopologyMode, UnboundMember, WantedMembers};
use crate::inventory::{NodeId, Revision, Row};
use crate::rules;
use crate::scheduler::claims::Outdated;
use crate::scheduler::{Scheduler, Settled};
use berth_model::{ClaimName, PreemptionPolicy};

/// Reason why a plan could not be committed.
enum Refusal {
    /// A node no longer fits.
    Conflict,
    /// Another pod used the rest of its quota.
    Quota,
    /// This member has changed.
    Changed(Arc<str>),
}

impl Scheduler {
    pub(in crate::scheduler) fn settle_gang(
        &mut self,
        (at, agent): (usize, &mut Agent),
        task: &GangTask,
        work: u64,
        plan: &GangPlan,
        seen: Revision,
        now: Duration,
    ) -> Settled {
        task.wanted.members.iter().for_each(|member| self.classify_if_marked(&member.uid, now));
        let name = &task.name;
        let Some(gang) = self.gangs.all.get_mut(name).filter(|gang| gang.state == GangState::Placing(work))
        else {
            return Settled::Done;
        };
        if gang.version != task.version || !self.cluster.leading {
            gang.state = GangState::Idle;
            self.decide_gang(name, now);
            return Settled::Done;
        }
        gang.tried_at = now;
        if !plan.complete {
            self.stats.unschedulable += 1;
            self.park_gang(at, task, plan, seen, now);
            return Settled::Done;
        }
        if self.gang_yields(at, task, plan, now) {
            self.gangs.set_state(name, GangState::BackingOff(now));
            return Settled::Done;
        }
        match self.commit_gang(agent, task, plan, seen) {
            Ok(charged) => {
                self.gang_placed(at, task, plan, (charged, seen), now);
                Settled::Done
            }
            Err(Refusal::Changed(uid)) => {
                self.gangs.set_state(name, GangState::Idle);
                if let Some(pod) = self.cluster.waiting.get(&uid).map(|waiting| waiting.source.clone()) {
                    self.wait(*pod, now);
                }
                self.decide_gang(name, now);
                Settled::Done
            }
            Err(Refusal::Quota) => {
                self.gangs.set_state(name, GangState::Idle);
                self.decide_gang(name, now);
                Settled::Done
            }
            Err(Refusal::Conflict) => self.gang_conflict(name, now),
        }
    }

    /// Commits all places of the plan, or none.
    fn commit_gang(
        &mut self,
        agent: &mut Agent,
        task: &GangTask,
        plan: &GangPlan,
        seen: Revision,
    ) -> Result<Vec<Vec<ClaimName>>, Refusal> {
        let planned_on = self.inventory().revision() == seen;
        // The plan ignores the reservations of its own members.
        self.preemption.lift(&task.wanted, &mut self.cluster);
        let mut claims = Vec::with_capacity(plan.places.len());
        let mut charged: Vec<&Arc<str>> = Vec::with_capacity(plan.places.len());
        let mut refused = None;
        for (at, node) in &plan.places {
            let member = &task.wanted.members[*at];
            match self.commit_member(agent, member, *node, seen, planned_on) {
                Ok(wants) => claims.push(wants),
                Err(refusal) => {
                    refused = Some(refusal);
                    break;
                }
            }
            charged.push(&member.uid);
        }
        let Some(refusal) = refused else {
            return Ok(claims);
        };
        for uid in charged {
            self.release_devices(uid, false);
            self.cluster.ledger.release_growth(uid);
        }
        self.preemption.restore(&task.wanted, &mut self.cluster);
        Err(refusal)
    }

    /// Commits one member. `planned_on`: nothing but the plan's own members has changed since it was made.
    fn commit_member(
        &mut self,
        agent: &mut Agent,
        member: &UnboundMember,
        node: NodeId,
        seen: Revision,
        planned_on: bool,
    ) -> Result<Vec<ClaimName>, Refusal> {
        let changed = || Refusal::Changed(member.uid.clone());
        let claims = self.cluster.unbound_claims(&member.uid).map_err(|Outdated| changed())?;
        if self.cluster.over_quota(member.holding.quota.as_ref(), &member.holding.usage).is_some() {
            return Err(Refusal::Quota);
        }
        let class = &member.class;
        let inventory = self.cluster.ledger.inventory();
        let alone = planned_on || !class.is_excluded_by_pods();
        let admitted = alone || agent.still_admits(class.id, node, inventory);
        let fits = |row: &Row| admitted && rules::still_admits(class, row, seen);
        self.cluster
            .ledger
            .commit(&member.uid, &member.holding, node, fits)
            .map_err(|_| Refusal::Conflict)?;
        if !self.promise_devices(&member.uid, &claims.devices, node) {
            // Another member has the last ones.
            self.cluster.ledger.release_growth(&member.uid);
            return Err(Refusal::Conflict);
        }
        Ok(claims.volumes)
    }

    /// Continues with the members, which all have their node in the ledger.
    fn gang_placed(
        &mut self,
        agent: usize,
        task: &GangTask,
        plan: &GangPlan,
        (claims, seen): (Vec<Vec<ClaimName>>, Revision),
        now: Duration,
    ) {
        let name = &task.name;
        self.gangs.largest = self.gangs.largest.max(plan.places.len());
        for ((at, node), claims) in plan.places.iter().zip(claims) {
            let member = &task.wanted.members[*at];
            self.leave_gang(&member.uid);
            self.gangs.gained(&member.uid, name, member.role);
            self.note_decision(&member.uid, *node, Some(agent), &[], now);
            self.has_node(&member.uid, claims, *node, now);
        }
        self.preemption.restore(&task.wanted, &mut self.cluster);
        if let Some(gang) = self.gangs.all.get_mut(name) {
            (gang.failures, gang.lacking, gang.complete_since) = (0, None, None);
            gang.state = GangState::Idle;
        }
        match plan.places.len() < task.wanted.members.len() {
            true => self.park_gang(agent, task, plan, seen, now),
            false => self.gangs.stop_listening(name),
        }
    }

    fn gang_conflict(&mut self, name: &AllocationName, now: Duration) -> Settled {
        self.stats.conflicts += 1;
        let tries = self.cluster.config.max_tries;
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return Settled::Done;
        };
        if gang.tries < tries {
            gang.tries += 1;
            return Settled::Again;
        }
        gang.failures += 1;
        gang.state = GangState::BackingOff(now + self.cluster.config.backoff.after(gang.failures));
        self.stats.errors += 1;
        let why = format!("{tries} plans in a row conflicted with node changes; retrying after a backoff");
        self.gang_lacks(name, why.into(), now);
        Settled::Done
    }

    /// Parks the gang: its remaining members fit nowhere until resources are freed.
    fn park_gang(&mut self, agent: usize, task: &GangTask, plan: &GangPlan, seen: Revision, now: Duration) {
        let name = &task.name;
        let why: Arc<str> = lacking_message(name, &task.wanted, plan).into();
        self.gangs.set_state(name, GangState::Parked(seen));
        for member in &task.wanted.members {
            self.offer_quota_again(member.holding.quota.as_ref());
        }
        if self.preemption.has_nominated_gang(name, &self.gangs) {
            let awaits = self.preemption.gang_awaits_victims(name, &self.gangs, &self.cluster);
            match (task.awaits_victims, awaits) {
                (_, true) => return,
                // The last victim left while the agent planned.
                (true, false) => return self.enqueue_gang(name, now),
                (false, false) => self.end_gang_nominations(name),
            }
        }
        let (cluster, actions) = (&self.cluster, &mut self.actions);
        if !self.preemption.hunt_together(agent, (name, &why), cluster, &self.gangs, actions) {
            self.gang_lacks(name, why, now);
        }
    }
}

/// Returns the message for members: kube-scheduler's text about the first unplaced one, and the consequence for the
/// gang.
pub fn lacking_message(name: &AllocationName, wanted: &WantedMembers, plan: &GangPlan) -> String {
    let nowhere = plan.lacking.as_ref().is_none_or(|lacking| lacking.diagnosis.nodes() == 0);
    let mut text = match &plan.lacking {
        _ if nowhere && wanted.topology.is_some() => {
            let topology = wanted.topology.as_ref().map_or("", |topology| &topology.key);
            format!("no nodes available to schedule pods: none has the label {topology}.")
        }
        Some(lacking) => {
            let mut text =
                lacking.diagnosis.message_of(&lacking.class, PreemptionPolicy::PreemptLowerPriority, None);
            if let Some(domain) = &lacking.domain {
                let _ = write!(text, " These are the nodes of {domain}, the closest domain.");
            }
            text
        }
        None => "no nodes available to schedule pods".to_owned(),
    };
    let need: u64 = wanted.need.iter().map(|need| u64::from(*need)).sum();
    let found = plan.places.len();
    let _ = match (plan.complete, &wanted.topology) {
        (true, _) => write!(text, " {}/{} has reached its minimum.", name.namespace, name.name),
        (false, Some(topology)) if topology.mode == GangTopologyMode::Required => write!(
            text,
            " {}/{} must place {need} pods at once in one {}; {found} fit.",
            name.namespace, name.name, topology.key
        ),
        (false, _) => {
            write!(text, " {}/{} must place {need} pods at once; {found} fit.", name.namespace, name.name)
        }
    };
    text
}
