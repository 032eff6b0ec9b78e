//! Gangs for fragmentation advice: those that wait, and members that could be moved.

use super::report::status;
use super::{Gang, GangState, Gangs};
use crate::gang::{AllocationName, Phase};
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
        let minimum = self.allocations.get(name)?.roles.get(*role)?.minimum;
        let whose = format!("{}/{}", name.namespace, name.name).into();
        Some(repack::Gang { name: whose, role: *role, spare: placed.saturating_sub(minimum) })
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

impl Scheduler {
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
