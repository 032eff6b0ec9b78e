//! Preemption for gangs: as a whole or not at all. No pod is evicted before a node is found for every needed member.
//! Then all of them are nominated, including those without victims, and the gang is planned again when the victims are
//! gone.
//!
//! [`GangHunts`] reads the cluster, the gangs and the nominations. It changes only itself and wakes agents; what it
//! finds is returned, and the caller nominates or reports. A gang preempts in one place at a time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::guarantees::Guarantees;
use super::hunts::{FIRST_PAUSE, LONGEST_PAUSE};
use super::nominations::Nominations;
use crate::agent::{Agent, Part};
use crate::class::Class;
use crate::gang::{AllocationName, WantedMembers};
use crate::inventory::{Ledger, NodeId, Occupant, Revision};
use crate::preempt::{Prospect, Takeover, Together};
use crate::quota::Rights;
use crate::scheduler::gangs::Gangs;
use crate::scheduler::{Action, Cluster};
use berth_model::PreemptionPolicy;

/// Maximum number of attempts for a gang whose nodes change in the meantime, before it counts as failed.
const MOST_TRIES: u32 = 5;

/// One step of preemption for a gang.
#[derive(Debug)]
pub struct GangAttempt {
    pub(super) name: AllocationName,
    pub(super) version: u64,
    pub(super) priority: i32,
    /// What its quotas allow it to preempt.
    pub(super) rights: Rights,
    pub(super) wanted: WantedMembers,
    /// `None`: first survey where preemption could help.
    pub(super) together: Option<Together>,
}

/// Result of an agent's step for a gang.
#[derive(Debug)]
pub enum GangHuntResult {
    Prospects(Vec<Prospect<NodeId>>),
    Takeovers(Option<Vec<Takeover>>),
}

/// The gangs that preempt or have failed to.
#[derive(Debug, Default)]
pub(super) struct GangHunts {
    by_name: BTreeMap<AllocationName, GangHunt>,
}

/// Preemption state of one gang.
#[derive(Debug, Default)]
struct GangHunt {
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

impl GangAttempt {
    /// Returns the class of the first member.
    pub(in crate::scheduler) fn class(&self) -> &Arc<Class> {
        &self.wanted.members[0].class
    }

    pub(in crate::scheduler) fn carry_out(
        &self,
        agent: &mut Agent,
        now: Duration,
        mut lap: impl FnMut(Part),
    ) -> GangHuntResult {
        let found = match &self.together {
            None => {
                let lenders = &self.rights.lenders;
                GangHuntResult::Prospects(agent.prospects(&self.wanted, self.priority, lenders, now))
            }
            Some(together) => GangHuntResult::Takeovers(agent.take_over(&self.wanted, together, now)),
        };
        lap(Part::GangPreemption);
        found
    }

    /// Returns each class of the members once.
    pub(in crate::scheduler) fn classes(&self) -> Vec<&Arc<Class>> {
        self.wanted.classes()
    }

    /// Returns whether the nodes of the preempting members are unchanged since they were evaluated, and the quotas
    /// still allow to preempt all victims.
    pub(super) fn is_current(
        &self,
        takeovers: &[Takeover],
        cluster: &Cluster,
        nominations: &Nominations,
    ) -> bool {
        let sites = self.together.iter().flat_map(|together| &together.prospects);
        let known: BTreeMap<NodeId, Revision> =
            sites.flat_map(|prospect| &prospect.nodes).map(|site| (site.node, site.revision)).collect();
        let row = |node: NodeId| cluster.inventory().row(node);
        let same = |takeover: &Takeover| {
            known.get(&takeover.node).is_none_or(|at| row(takeover.node).revision == *at)
        };
        let guarantees = Guarantees::of(cluster, nominations);
        takeovers.iter().all(same)
            && (cluster.objects.quotas.is_empty() || guarantees.rights_together(&self.wanted) == self.rights)
            && guarantees.still_allow((self.priority, &self.rights), victims_of(takeovers))
    }
}

/// Returns all victims of a gang.
pub(super) fn victims_of(takeovers: &[Takeover]) -> impl Iterator<Item = &Arc<Occupant>> {
    takeovers.iter().flat_map(|takeover| &takeover.victims)
}

/// Returns the priority at which a gang preempts: the lowest of its members. `None`: it may not preempt, or has done
/// so.
pub(super) fn priority_of(
    name: &AllocationName,
    cluster: &Cluster,
    gangs: &Gangs,
    nominations: &Nominations,
) -> Option<i32> {
    let uids = gangs.waiting_uids(name);
    if !cluster.config.preemption || !cluster.leading || uids.iter().any(|uid| nominations.has(uid)) {
        return None;
    }
    let members: Vec<_> = uids.iter().filter_map(|uid| cluster.waiting.get(uid)).collect();
    let willing = |policy: PreemptionPolicy| policy == PreemptionPolicy::PreemptLowerPriority;
    let priority = members.iter().map(|pod| pod.priority).min()?;
    let lower = cluster.ledger.lowest_priority().is_some_and(|lowest| lowest < priority);
    let guarantees = Guarantees::of(cluster, nominations);
    let reclaims = || members.first().is_some_and(|pod| guarantees.may_reclaim(pod));
    (members.iter().all(|pod| willing(pod.policy)) && (lower || reclaims())).then_some(priority)
}

/// Result of a step of a gang.
#[derive(Debug)]
pub(super) enum GangChosen {
    Takeovers(Vec<Takeover>),
    /// No victims make room for it now; the message for its members.
    Failed(Arc<str>),
}

impl GangHunts {
    /// Retries failed attempts after a change of quotas or gangs.
    pub(super) fn retry_preemption(&mut self) {
        for hunt in self.by_name.values_mut() {
            if let GangHuntState::Hopeless(revision, _) = &mut hunt.state {
                *revision = 0;
            }
        }
    }

    /// Starts preemption for a gang that fits nowhere, with the message `lacking`, if it may preempt now. Returns
    /// whether it does.
    pub(super) fn start(
        &mut self,
        agent: usize,
        name: &AllocationName,
        lacking: &Arc<str>,
        may: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        let hunt = self.by_name.entry(name.clone()).or_default();
        hunt.lacking = lacking.clone();
        match hunt.state {
            _ if !may => hunt.state = GangHuntState::Over,
            GangHuntState::UnderWay => return true,
            GangHuntState::Hopeless(..) => {}
            GangHuntState::Over | GangHuntState::Wanted(..) => {
                (hunt.tries, hunt.state) = (0, GangHuntState::Wanted(agent, None));
                actions.push(Action::WakeAgent(agent));
                return true;
            }
        }
        false
    }

    /// Returns the next gang that preempts at this agent, highest priority first.
    pub(super) fn next(
        &self,
        agent: usize,
        cluster: &Cluster,
        gangs: &Gangs,
        nominations: &Nominations,
    ) -> Option<AllocationName> {
        let mine =
            |hunt: &GangHunt| matches!(&hunt.state, GangHuntState::Wanted(wanted, _) if *wanted == agent);
        let wanted = self.by_name.iter().filter(|(_, hunt)| mine(hunt)).map(|(name, _)| name);
        let ranked = wanted.map(|name| (Reverse(priority_of(name, cluster, gangs, nominations)), name));
        Some(ranked.min()?.1.clone())
    }

    /// Ends preemption of a gang that is no longer parked: it starts over if the gang parks again.
    pub(super) fn end(&mut self, name: &AllocationName) {
        if let Some(hunt) = self.by_name.get_mut(name) {
            hunt.state = GangHuntState::Over;
        }
    }

    /// Begins the next step of the gang. Returns the nodes found so far; `None`: they are to be surveyed.
    pub(super) fn begin(&mut self, name: &AllocationName, ledger: &Ledger) -> Option<Vec<Prospect<NodeId>>> {
        let hunt = self.by_name.get_mut(name)?;
        let GangHuntState::Wanted(_, prospects) = std::mem::replace(&mut hunt.state, GangHuntState::UnderWay)
        else {
            debug_assert!(false, "only a gang that is to continue begins a step");
            return None;
        };
        if prospects.is_none() {
            hunt.began = ledger.occupancy();
        }
        prospects
    }

    /// Settles a step of the gang at this agent. `current`: it still preempts. `changed`: its nodes or its victims have
    /// changed.
    pub(super) fn settle(
        &mut self,
        (agent, name): (usize, &AllocationName),
        found: GangHuntResult,
        (current, changed): (bool, bool),
        now: Duration,
        actions: &mut Vec<Action>,
    ) -> Option<GangChosen> {
        let hunt = self.by_name.get_mut(name)?;
        hunt.state = GangHuntState::Over;
        if !current {
            return None;
        }
        let again = match found {
            GangHuntResult::Prospects(prospects) if !prospects.is_empty() => Some(prospects),
            GangHuntResult::Takeovers(Some(_)) if changed && hunt.tries < MOST_TRIES => {
                hunt.tries += 1;
                None
            }
            GangHuntResult::Takeovers(Some(takeovers)) if !changed => {
                return Some(GangChosen::Takeovers(takeovers));
            }
            _ => return Some(GangChosen::Failed(hunt.gave_up(now))),
        };
        hunt.state = GangHuntState::Wanted(agent, again);
        actions.push(Action::WakeAgent(agent));
        None
    }

    /// Records that the gang was nominated. Returns the message for its members, which wait for this number of victims
    /// on this number of nodes.
    pub(super) fn succeeded(&mut self, name: &AllocationName, victims: usize, on: usize) -> Option<Arc<str>> {
        let hunt = self.by_name.get_mut(name)?;
        hunt.failures = 0;
        let pods = if victims == 1 { "pod is" } else { "pods are" };
        let on = if on == 1 { "one node".to_owned() } else { format!("{on} nodes") };
        Some(format!("{} preemption: {victims} victim {pods} to leave {on} for it.", hunt.lacking).into())
    }

    /// Retries gangs whose preemption failed, if something changed. `lower`: pods of a new lowest priority were added.
    pub(super) fn retry(
        &mut self,
        lower: bool,
        cluster: &Cluster,
        gangs: &Gangs,
        agents: usize,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let revision = cluster.ledger.occupancy();
        self.by_name.retain(|name, hunt| {
            matches!(hunt.state, GangHuntState::UnderWay) || gangs.has_waiting_members(name)
        });
        for (at, hunt) in self.by_name.values_mut().enumerate() {
            let again = match hunt.state {
                GangHuntState::Hopeless(known, until) => until <= now && known != revision,
                GangHuntState::Over => lower,
                _ => false,
            };
            if again {
                (hunt.tries, hunt.state) = (0, GangHuntState::Wanted(at % agents, None));
                actions.push(Action::WakeAgent(at % agents));
            }
        }
    }
}

impl GangHunt {
    /// Records that preemption fails now. Returns the message for the members.
    fn gave_up(&mut self, now: Duration) -> Arc<str> {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.state = GangHuntState::Hopeless(self.began, now + pause);
        format!("{} preemption: no victims found that could make room for it.", self.lacking).into()
    }
}
