//! Interface of gangs for preemption.

use std::sync::Arc;
use std::time::Duration;

use super::quota::members_within_quotas;
use super::{Gang, GangState, Gangs};
use crate::gang::{Allocation, AllocationName, UnboundMember, WantedMembers};
use crate::scheduler::{Cluster, Preemption, Scheduler};

impl Gangs {
    /// Returns the members without a node, in queue order.
    pub(in crate::scheduler) fn waiting_uids(&self, name: &AllocationName) -> Vec<Arc<str>> {
        let members = self.all.get(name).into_iter().flat_map(|gang| gang.waiting.values());
        members.map(|(uid, _)| uid.clone()).collect()
    }

    pub(in crate::scheduler) fn has_waiting_members(&self, name: &AllocationName) -> bool {
        self.all.get(name).is_some_and(|gang| !gang.waiting.is_empty())
    }

    /// Returns whether this pod has a node and is a member of this gang.
    pub(in crate::scheduler) fn is_placed_member(&self, uid: &str, name: &AllocationName) -> bool {
        self.placed.get(uid).is_some_and(|(of, _)| of == name)
    }

    /// Returns whether the gang is parked and unchanged since this version.
    pub(in crate::scheduler) fn is_parked_at(&self, name: &AllocationName, version: u64) -> bool {
        let parked = |gang: &Gang| matches!(gang.state, GangState::Parked(_)) && gang.version == version;
        self.all.get(name).is_some_and(parked)
    }

    /// Returns what is to be placed of a gang: all its waiting members.
    pub(super) fn wanted(
        &self,
        gang: &Gang,
        allocation: &Allocation,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> Option<WantedMembers> {
        let mut members = Vec::with_capacity(gang.waiting.len());
        let mut reserved = Vec::new();
        for (uid, role) in gang.waiting.values() {
            let waiting = cluster.waiting.get(uid)?;
            members.push(UnboundMember {
                uid: uid.clone(),
                class: waiting.class.clone(),
                holding: waiting.holding.clone(),
                role: *role,
            });
            let node = preemption.node_of(uid).and_then(|node| cluster.ledger.inventory().find(node));
            reserved.extend(node.map(|node| (node, uid.clone())));
        }
        let node_of = |uid: &Arc<str>| Some(cluster.ledger.charge_of(uid)?.node);
        Some(WantedMembers {
            members,
            need: gang.need(allocation),
            topology: allocation.topology.clone(),
            placed: gang.placed.keys().filter_map(node_of).collect(),
            reserved,
        })
    }

    /// Returns the version of a parked gang and the members it may preempt for: those its roles need, or one more
    /// member if all minimums are met.
    pub(in crate::scheduler) fn preempting(
        &self,
        name: &AllocationName,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> Option<(u64, WantedMembers)> {
        let gang = self.all.get(name)?;
        let allocation = self.allocations.get(name)?;
        if !matches!(gang.state, GangState::Parked(_)) {
            return None;
        }
        let mut wanted = self.wanted(gang, allocation, cluster, preemption)?;
        wanted.members = members_within_quotas(wanted.members, &wanted.need, cluster)?;
        if wanted.need.iter().all(|need| *need == 0) {
            *wanted.need.get_mut(wanted.members.first()?.role)? = 1;
        }
        // Preempts nothing for members beyond their quotas.
        wanted.members = members_within_quotas(wanted.members, &wanted.need, cluster)?;
        Some((gang.version, wanted))
    }
}

impl Scheduler {
    /// Retries a parked gang after a change it has waited for.
    pub(in crate::scheduler) fn try_gang_again(&mut self, name: &AllocationName, now: Duration) {
        let gang = self.gangs.all.get(name);
        if gang.is_some_and(|gang| matches!(gang.state, GangState::Parked(_))) {
            self.enqueue_gang(name, now);
        }
    }

    /// Backs off because a victim of this gang could not be evicted.
    pub(in crate::scheduler) fn gang_backs_off(
        &mut self,
        name: &AllocationName,
        why: Arc<str>,
        now: Duration,
    ) {
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return;
        };
        gang.members_reported_at = None;
        if matches!(gang.state, GangState::Parked(_)) {
            gang.failures += 1;
            gang.state = GangState::BackingOff(now + self.cluster.config.backoff.after(gang.failures));
        }
        self.gang_lacks(name, why, now);
    }
}
