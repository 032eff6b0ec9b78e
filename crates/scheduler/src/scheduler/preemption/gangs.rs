//! Preemption for gangs: as a whole or not at all. No pod is evicted before a node is found for every needed member.
//! Then all of them are nominated, including those without victims, and the gang is planned again when the victims are
//! gone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::hunts::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::agent::Agent;
use crate::class::Class;
use crate::gang::{AllocationName, Wanted};
use crate::inventory::{NodeId, Revision};
use crate::preempt::{Prospect, Site, Takeover, Together, importance};
use crate::quota::{Claim, Rights, Sums, Toll};
use crate::scheduler::{Action, Sample, Scheduler, State};
use berth_model::PreemptionPolicy;

/// Maximum number of attempts for a gang whose nodes change in the meantime, before it counts as failed.
const MOST_TRIES: u32 = 5;

/// One step of preemption for a gang.
#[derive(Debug)]
pub struct GangAttempt {
    name: AllocationName,
    version: u64,
    priority: i32,
    /// What its quotas allow it to preempt.
    rights: Rights,
    pub(in crate::scheduler) wanted: Wanted,
    /// `None`: first survey where preemption could help.
    together: Option<Together>,
}

/// Result of an agent's step for a gang.
#[derive(Debug)]
pub enum GangFound {
    Prospects(Vec<Prospect<NodeId>>),
    Takeovers(Option<Vec<Takeover>>),
}

/// Preemption state of one gang.
#[derive(Debug, Default)]
pub(super) struct GangHunt {
    state: GangHuntState,
    /// Message for its members if preemption fails.
    lacking: Arc<str>,
    tries: u32,
    /// Occupancy revision at the start of the latest survey.
    began: Revision,
    /// Consecutive failures.
    failures: u32,
}

#[derive(Debug, Default)]
enum GangHuntState {
    /// Nothing to do.
    #[default]
    Over,
    /// This agent is to continue, with the nodes found so far.
    Wanted(usize, Option<Vec<Prospect<NodeId>>>),
    UnderWay,
    /// Preemption failed as of this occupancy revision; not retried before this time.
    Hopeless(Revision, Duration),
}

impl GangHunt {
    pub(super) fn hope_again(&mut self) {
        if let GangHuntState::Hopeless(revision, _) = &mut self.state {
            *revision = 0;
        }
    }
}

impl GangAttempt {
    /// Returns the class of the first member.
    pub(in crate::scheduler) fn class(&self) -> &Arc<Class> {
        &self.wanted.members[0].class
    }

    pub(in crate::scheduler) fn carry_out(&self, agent: &mut Agent, now: Duration) -> GangFound {
        match &self.together {
            None => {
                let lenders = &self.rights.lenders;
                GangFound::Prospects(agent.prospects(&self.wanted, self.priority, lenders, now))
            }
            Some(together) => GangFound::Takeovers(agent.take_over(&self.wanted, together, now)),
        }
    }
}

impl Scheduler {
    /// Returns the priority at which a gang preempts: the lowest of its members. `None`: it may not preempt, or has
    /// done so.
    fn gang_priority(&self, name: &AllocationName) -> Option<i32> {
        if !self.cluster.config.preemption || !self.cluster.leading || self.has_gang_nominations(name) {
            return None;
        }
        let members = self.gangs.waiting_uids(name).into_iter();
        let members: Vec<_> = members.filter_map(|uid| self.cluster.waiting.get(&uid)).collect();
        let willing = |policy: PreemptionPolicy| policy == PreemptionPolicy::PreemptLowerPriority;
        let priority = members.iter().map(|pod| pod.priority).min()?;
        let lower = self.cluster.ledger.lowest_priority().is_some_and(|lowest| lowest < priority);
        let reclaims = || members.first().is_some_and(|pod| self.may_reclaim(pod));
        (members.iter().all(|pod| willing(pod.policy)) && (lower || reclaims())).then_some(priority)
    }

    /// Returns what quotas allow these members to preempt: members of one quota that fit into its guarantee together
    /// may reclaim what it lent.
    fn gang_rights(&self, wanted: &Wanted) -> Rights {
        let first = wanted.members.first().and_then(|member| self.cluster.waiting.get(&member.uid));
        let rights = first.map(|pod| self.rights_of(pod)).unwrap_or_default();
        let mut need = wanted.need.to_vec();
        let mut usage = Sums::default();
        for member in &wanted.members {
            if let Some(open) = need.get_mut(member.role).filter(|open| **open > 0) {
                *open -= 1;
                if member.holding.quota != rights.quota {
                    return Rights { within: false, lenders: Vec::new(), ..rights };
                }
                usage.charge(&member.holding.usage);
            }
        }
        match rights.quota.as_ref().is_none_or(|quota| self.guarantees_together(quota, &usage)) {
            true => rights,
            false => Rights { within: false, lenders: Vec::new(), ..rights },
        }
    }

    /// Starts preemption for a gang that fits nowhere, with the message `lacking`, if it may preempt now. Returns
    /// whether it does.
    pub(in crate::scheduler) fn hunt_together(
        &mut self,
        agent: usize,
        name: &AllocationName,
        lacking: &Arc<str>,
    ) -> bool {
        let may = self.gang_priority(name).is_some();
        let hunt = self.preemption.gangs.entry(name.clone()).or_default();
        hunt.lacking = lacking.clone();
        match hunt.state {
            _ if !may => hunt.state = GangHuntState::Over,
            GangHuntState::UnderWay => return true,
            GangHuntState::Hopeless(..) => {}
            GangHuntState::Over | GangHuntState::Wanted(..) => {
                (hunt.tries, hunt.state) = (0, GangHuntState::Wanted(agent, None));
                self.actions.push(Action::WakeAgent(agent));
                return true;
            }
        }
        false
    }

    /// Returns this agent's next step for gangs that preempt, highest priority first.
    pub(in crate::scheduler) fn next_gang_step(&mut self, agent: usize) -> Option<Box<GangAttempt>> {
        loop {
            let mine =
                |hunt: &GangHunt| matches!(&hunt.state, GangHuntState::Wanted(wanted, _) if *wanted == agent);
            let wanted = self.preemption.gangs.iter().filter(|(_, hunt)| mine(hunt)).map(|(name, _)| name);
            let (_, name) = wanted.map(|name| (Reverse(self.gang_priority(name)), name)).min()?;
            let name = name.clone();
            match self.gang_step(&name) {
                Some(step) => return Some(Box::new(step)),
                // It is no longer parked: its preemption starts over if it parks again.
                None => self.gang_hunt_is_over(&name),
            }
        }
    }

    fn gang_hunt_is_over(&mut self, name: &AllocationName) {
        if let Some(hunt) = self.preemption.gangs.get_mut(name) {
            hunt.state = GangHuntState::Over;
        }
    }

    fn gang_step(&mut self, name: &AllocationName) -> Option<GangAttempt> {
        let priority = self.gang_priority(name)?;
        let (version, wanted) = self.gang_that_preempts(name)?;
        let rights = self.gang_rights(&wanted);
        let occupancy = self.cluster.ledger.occupancy();
        let hunt = self.preemption.gangs.get_mut(name)?;
        let GangHuntState::Wanted(_, prospects) = std::mem::replace(&mut hunt.state, GangHuntState::UnderWay)
        else {
            return None;
        };
        if prospects.is_none() {
            hunt.began = occupancy;
        }
        let by = (priority, &rights);
        let together = prospects.map(|prospects| Together {
            prospects: prospects.into_iter().map(|prospect| self.sites(name, by, prospect)).collect(),
            budgets: self.cluster.objects.budgets.clone(),
        });
        Some(GangAttempt { name: name.clone(), version, priority, rights, wanted, together })
    }

    fn sites(&self, name: &AllocationName, by: (i32, &Rights), prospect: Prospect<NodeId>) -> Prospect<Site> {
        let known = Default::default();
        let group_of = |uid: &str| self.victim_group(uid, &known);
        // All victims together must leave quotas their guarantees.
        let (leaving, mut toll) = (self.leaving(), Toll::default());
        let nodes = prospect.nodes.into_iter().filter(|id| self.inventory().row(*id).node.is_some());
        let sites = nodes.map(|node| {
            let claim = |pod: &_| self.claim_on(pod, by, &leaving, &mut toll);
            let mut site = Site::claimed(&self.cluster.ledger, node, by.1.reclaims(), claim, &group_of);
            site.pods.retain(|known| !self.gangs.is_placed_member(&known.pod.pod.uid, name));
            site
        });
        Prospect { domain: prospect.domain, nodes: sites.collect() }
    }

    pub(in crate::scheduler) fn settle_gang_step(
        &mut self,
        agent: usize,
        attempt: &GangAttempt,
        found: GangFound,
        now: Duration,
    ) {
        let name = &attempt.name;
        let current = self.gangs.is_parked_at(name, attempt.version) && self.gang_priority(name).is_some();
        let news = match &found {
            GangFound::Takeovers(Some(takeovers)) => !self.are_current(attempt, takeovers),
            _ => false,
        };
        let Some(hunt) = self.preemption.gangs.get_mut(name) else {
            return;
        };
        hunt.state = GangHuntState::Over;
        if !current {
            return;
        }
        let again = match found {
            GangFound::Prospects(prospects) if !prospects.is_empty() => Some(prospects),
            GangFound::Takeovers(Some(_)) if news && hunt.tries < MOST_TRIES => {
                hunt.tries += 1;
                None
            }
            GangFound::Takeovers(Some(takeovers)) if !news => {
                return self.nominate_gang(attempt, &takeovers, now);
            }
            _ => return self.gang_is_hopeless(name, now),
        };
        hunt.state = GangHuntState::Wanted(agent, again);
        self.actions.push(Action::WakeAgent(agent));
    }

    /// Returns whether the nodes of the preempting members are unchanged since they were evaluated.
    fn are_current(&self, attempt: &GangAttempt, takeovers: &[Takeover]) -> bool {
        let sites = attempt.together.iter().flat_map(|together| &together.prospects);
        let known: BTreeMap<NodeId, Revision> =
            sites.flat_map(|prospect| &prospect.nodes).map(|site| (site.node, site.revision)).collect();
        let same = |takeover: &Takeover| {
            known.get(&takeover.node).is_none_or(|at| self.inventory().row(takeover.node).revision == *at)
        };
        takeovers.iter().all(same) && self.still_claims_together(attempt, takeovers)
    }

    /// Returns whether all victims may still be preempted: other pods of their quotas and gangs may have left in the
    /// meantime.
    fn still_claims_together(&self, attempt: &GangAttempt, takeovers: &[Takeover]) -> bool {
        if !self.gangs_bear(takeovers.iter().flat_map(|takeover| &takeover.victims)) {
            return false;
        }
        if self.cluster.objects.quotas.is_empty() {
            return true;
        }
        let (leaving, mut toll) = (self.leaving(), Toll::default());
        let mut pods: Vec<_> = takeovers.iter().flat_map(|takeover| &takeover.victims).collect();
        pods.sort_by_cached_key(|pod| Reverse(importance(pod)));
        let by = (attempt.priority, &attempt.rights);
        self.gang_rights(&attempt.wanted) == attempt.rights
            && pods.into_iter().all(|pod| self.claim_on(pod, by, &leaving, &mut toll) != Claim::No)
    }

    fn gang_is_hopeless(&mut self, name: &AllocationName, now: Duration) {
        self.stats.preemption_attempts += 1;
        let Some(hunt) = self.preemption.gangs.get_mut(name) else {
            return;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << hunt.failures.min(8)).min(LONGEST_PAUSE);
        hunt.failures += 1;
        hunt.state = GangHuntState::Hopeless(hunt.began, now + pause);
        let lacking = format!("{} preemption: no victims found that could make room for it.", hunt.lacking);
        self.gang_lacks(name, lacking.into(), now);
    }

    /// Reserves resources for all needed members, and evicts all victims.
    fn nominate_gang(&mut self, attempt: &GangAttempt, takeovers: &[Takeover], now: Duration) {
        let name = &attempt.name;
        self.stats.preemption_attempts += 1;
        let mut nodes = BTreeSet::new();
        let mut victims = 0;
        for takeover in takeovers {
            let uid = &attempt.wanted.members[takeover.member].uid;
            let node = self.inventory().name(takeover.node).clone();
            self.nominate_for(uid, &node, &takeover.victims, &takeover.lent);
            victims += takeover.victims.len();
            if !takeover.victims.is_empty() {
                nodes.insert(takeover.node);
            }
        }
        self.actions.push(Action::Observe(Sample::Victims { pods: victims }));
        if !self.gang_awaits_victims(name) {
            let first = takeovers.first().map(|takeover| takeover.member);
            let uid = first.map(|member| attempt.wanted.members[member].uid.clone());
            self.preemption.due.extend(uid);
        }
        let Some(hunt) = self.preemption.gangs.get_mut(name) else {
            return;
        };
        hunt.failures = 0;
        let (pods, on) = (if victims == 1 { "pod is" } else { "pods are" }, nodes.len());
        let on = if on == 1 { "one node".to_owned() } else { format!("{on} nodes") };
        let lacking = format!("{} preemption: {victims} victim {pods} to leave {on} for it.", hunt.lacking);
        self.gang_lacks(name, lacking.into(), now);
    }

    pub fn gang_of_waiting(&self, uid: &str) -> Option<AllocationName> {
        let pod = self.cluster.waiting.get(uid).filter(|pod| pod.state == State::Grouped)?;
        Some(pod.gang.as_ref()?.name.clone())
    }

    /// Checks a nominated member of a gang after its node changed.
    pub(super) fn look_at_member(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(name) = self.gang_of_waiting(uid).filter(|_| self.preemption.has_nominated(uid)) else {
            return;
        };
        if !self.can_still_come(uid) {
            self.end_gang_nominations(&name);
            self.try_gang_again(&name, now);
        } else if !self.gang_awaits_victims(&name) {
            self.try_gang_again(&name, now);
        }
    }

    /// Returns whether the member fits its node once all victims of the gang have left it.
    fn can_still_come(&mut self, uid: &Arc<str>) -> bool {
        let Some((id, _)) = self.follow_victims(uid) else {
            return false;
        };
        let Some(class) = self.cluster.waiting.get(uid).map(|pod| pod.class.clone()) else {
            return false;
        };
        let there = self.preemption.by_node.get(self.inventory().name(id)).into_iter().flatten();
        let nominations = there.filter_map(|uid| self.preemption.nominations.get(uid));
        let victims: Vec<&str> =
            nominations.flat_map(|nomination| &nomination.victims).map(|victim| &**victim).collect();
        class.looks_at_pods() || self.cluster.rank_there(&class, id, uid, &victims).is_valid()
    }

    /// Returns whether some victims of the gang are still there.
    pub(in crate::scheduler) fn gang_awaits_victims(&self, name: &AllocationName) -> bool {
        let of = |uid: &Arc<str>| self.preemption.nominations.get(uid);
        let members = self.gangs.waiting_uids(name);
        members.iter().filter_map(of).any(|nomination| !nomination.victims.is_empty() || nomination.adopted)
    }

    pub(in crate::scheduler) fn has_gang_nominations(&self, name: &AllocationName) -> bool {
        self.gangs.waiting_uids(name).iter().any(|uid| self.preemption.has_nominated(uid))
    }

    /// Drops the reservations of the gang's members.
    pub(in crate::scheduler) fn end_gang_nominations(&mut self, name: &AllocationName) {
        for uid in self.gangs.waiting_uids(name) {
            self.end_nomination(&uid, true);
        }
    }

    /// Retries gangs whose preemption failed, if something changed. `lower`: pods of a new lowest priority were added.
    pub(super) fn hunt_together_again(&mut self, lower: bool, now: Duration) {
        let revision = self.cluster.ledger.occupancy();
        let gangs = &self.gangs;
        self.preemption.gangs.retain(|name, hunt| {
            matches!(hunt.state, GangHuntState::UnderWay) || gangs.has_waiting_members(name)
        });
        let agents = self.dispatcher.agents();
        for (at, hunt) in self.preemption.gangs.values_mut().enumerate() {
            let again = match hunt.state {
                GangHuntState::Hopeless(known, until) => until <= now && known != revision,
                GangHuntState::Over => lower,
                _ => false,
            };
            if again {
                (hunt.tries, hunt.state) = (0, GangHuntState::Wanted(at % agents, None));
                self.actions.push(Action::WakeAgent(at % agents));
            }
        }
    }
}
