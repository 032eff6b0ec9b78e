//! Gangs for fragmentation advice: those that wait, and members that could be moved.

use std::sync::Arc;
use std::time::Duration;

use super::report::status;
use super::settle::lacking_message;
use super::{Gang, GangState, Gangs};
use crate::agent::Agent;
use crate::gang::{AllocationName, Phase, WantedMembers};
use crate::queue::Place;
use crate::repack::{self, Case, Waits};
use crate::scheduler::{Cluster, Preemption, Scheduler};

/// State of a gang for advice.
#[derive(Debug)]
pub enum GangCase {
    /// No such allocation exists.
    Unknown,
    /// It is not tried, for this reason.
    NotTried(String),
    /// All its pods have nodes.
    Placed,
    Waits(Case),
}

impl Gangs {
    /// Returns the gang of this pod with a node.
    pub(in crate::scheduler) fn of_placed(&self, uid: &str) -> Option<repack::Gang> {
        let (name, role) = self.placed.get(uid)?;
        let gang = self.all.get(name)?;
        let placed = Gang::count(role + 1, gang.placed.values()).pop().unwrap_or(0);
        let allocation = self.allocations.get(name)?;
        let needed = if allocation.evicted_whole { u32::MAX } else { allocation.roles.get(*role)?.minimum };
        let whose = format!("{}/{}", name.namespace, name.name).into();
        Some(repack::Gang { name: whose, role: *role, spare: placed.saturating_sub(needed) })
    }

    /// Returns the gangs that did not fit.
    pub(in crate::scheduler) fn stuck(
        &self,
        cluster: &Cluster,
    ) -> impl Iterator<Item = (Place, &AllocationName)> {
        let stuck = |gang: &Gang| {
            gang.lacking.is_some() && !matches!(gang.state, GangState::Placing(_) | GangState::Idle)
        };
        let gangs = self.waiting().filter(move |(name, gang)| stuck(gang) && cluster.owns_gang(name));
        gangs.filter_map(|(name, gang)| Some((*gang.waiting.first_key_value()?.0, name)))
    }

    /// Returns the gangs with enough members without a node.
    pub(in crate::scheduler) fn unplaced(
        &self,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> Vec<(Place, Case)> {
        self.with_waiting.iter().filter_map(|name| self.case(name, cluster, preemption)).collect()
    }

    pub(in crate::scheduler) fn case(
        &self,
        name: &AllocationName,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> Option<(Place, Case)> {
        let allocation = self.allocations.get(name)?;
        let gang = self.all.get(name).filter(|gang| gang.is_ready(allocation))?;
        let (place, _) = gang.waiting.first_key_value()?;
        let wanted = self.wanted(gang, allocation, cluster, preemption)?;
        let waiting = gang.waiting.len();
        Some((*place, Case { what: Waits::Allocation(name.clone()), wanted, waiting }))
    }

    pub(in crate::scheduler) fn mark_unreported(&mut self, name: &AllocationName) {
        if self.all.contains_key(name) {
            self.unreported.insert(name.clone());
        }
    }
}

/// What is known under the lock about the gang of a waiting pod.
#[derive(Debug)]
pub(in crate::scheduler) enum GangInquiry {
    Told(Arc<str>),
    /// It has not been tried yet, or the result is outdated.
    Plan(AllocationName, WantedMembers),
}

impl GangInquiry {
    /// Returns what the gang waits for, or that it fits. The agent plans it if needed.
    pub(in crate::scheduler) fn answer(self, agent: &mut Agent) -> Arc<str> {
        let (name, wanted) = match self {
            GangInquiry::Told(message) => return message,
            GangInquiry::Plan(name, wanted) => (name, wanted),
        };
        let plan = agent.plan(&wanted, Duration::ZERO, |_| {});
        match wanted.members.len() {
            pods if plan.places.len() < pods => {
                format!("{name}: {}", lacking_message(&name, &wanted, &plan)).into()
            }
            1 => format!("{name}: its waiting pod fits").into(),
            pods => format!("{name}: its {pods} waiting pods fit together").into(),
        }
    }
}

impl Scheduler {
    /// Returns the state of the gang of this waiting pod, if it is a member of one.
    pub(in crate::scheduler) fn inquire_gang(&self, uid: &str) -> Option<GangInquiry> {
        let name = self.gang_of_waiting(uid)?;
        let gang = self.gangs.all.get(&name)?;
        Some(match (&gang.lacking, self.gangs.case(&name, &self.cluster, &self.preemption)) {
            (_, None) => GangInquiry::Told(self.gangs.incomplete_message(&name, gang)),
            (Some(lacking), Some(_)) => GangInquiry::Told(format!("{name}: {lacking}").into()),
            (None, Some((_, case))) => GangInquiry::Plan(name, case.wanted),
        })
    }

    pub fn gang_case(&self, name: &AllocationName) -> GangCase {
        let Some(allocation) = self.gangs.allocations.get(name) else {
            return GangCase::Unknown;
        };
        if let Some((_, case)) = self.gangs.case(name, &self.cluster, &self.preemption) {
            return GangCase::Waits(case);
        }
        let Some(gang) = self.gangs.all.get(name) else {
            return GangCase::NotTried("it has no pods".to_owned());
        };
        let status = status(allocation, gang, &self.cluster, None);
        match status.phase {
            Phase::Pending | Phase::Invalid => GangCase::NotTried(status.message.to_string()),
            _ => GangCase::Placed,
        }
    }
}
