//! Gang members as victims of preemption: a gang is never left below its minimum; it is evicted as a whole or not at
//! all.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Gang;
use crate::gang::{Allocation, AllocationName};
use crate::inventory::Occupant;
use crate::preempt::VictimGroup;
use crate::scheduler::Scheduler;

/// Victim groups computed so far.
pub(in crate::scheduler) type KnownGroups = RefCell<BTreeMap<AllocationName, Arc<VictimGroup>>>;

impl Scheduler {
    /// Returns the pods that must be evicted with this one (by uid): its whole gang, if its role has no spare members
    /// on other nodes.
    pub(in crate::scheduler) fn victim_group(
        &self,
        uid: &str,
        known: &KnownGroups,
    ) -> Option<Arc<VictimGroup>> {
        let (name, role) = self.gangs.placed.get(uid)?;
        let allocation = self.gangs.allocations.get(name)?;
        let gang = self.gangs.all.get(name)?;
        let node = self.cluster.ledger.charge_of(uid)?.node;
        // All members on this node may become victims of one preemptor; members being evicted count as gone.
        let stays = |uid: &Arc<str>| {
            !self.is_leaving(uid)
                && self.cluster.ledger.charge_of(uid).is_some_and(|charge| charge.node != node)
        };
        let elsewhere = gang.placed.iter().filter(|(uid, other)| *other == role && stays(uid)).count();
        if elsewhere >= allocation.roles.get(*role)?.minimum as usize {
            return None;
        }
        if let Some(group) = known.borrow().get(name) {
            return Some(group.clone());
        }
        let members: Vec<_> =
            gang.placed.keys().filter_map(|uid| self.cluster.ledger.occupant(uid)).map(Arc::new).collect();
        let unsettled = members.len() < gang.placed.len();
        let group = Arc::new(VictimGroup { name: gang.key.clone(), members, unsettled });
        known.borrow_mut().insert(name.clone(), group.clone());
        Some(group)
    }

    /// Returns whether the member is being evicted, or was deleted while its bind is in flight.
    fn is_leaving(&self, uid: &str) -> bool {
        let news = self.cluster.waiting.get(uid).and_then(|waiting| waiting.news.as_ref());
        self.preemption.is_evicting(uid) || news.is_some_and(|pod| pod.deleting)
    }

    /// Returns whether each gang of these victims keeps its minimum or loses all members. A gang already below its
    /// minimum may lose any.
    pub(in crate::scheduler) fn gangs_bear<'a>(
        &self,
        victims: impl Iterator<Item = &'a Arc<Occupant>>,
    ) -> bool {
        let gone: BTreeSet<&str> = victims.map(|victim| &*victim.pod.uid).collect();
        let names: BTreeSet<_> =
            gone.iter().filter_map(|uid| Some(&self.gangs.placed.get(*uid)?.0)).collect();
        names.into_iter().all(|name| {
            let (Some(allocation), Some(gang)) = (self.gangs.allocations.get(name), self.gangs.all.get(name))
            else {
                return true;
            };
            let enough = |roles: Vec<u32>| {
                allocation.roles.iter().zip(roles).all(|(role, members)| members >= role.minimum)
            };
            let stay = || gang.placed.iter().filter(|(uid, _)| !self.is_leaving(uid));
            let left: Vec<_> =
                stay().filter(|(uid, _)| !gone.contains(&***uid)).map(|(_, role)| role).collect();
            let count = allocation.roles.len();
            left.is_empty()
                || enough(Gang::count(count, left.into_iter()))
                || !enough(Gang::count(count, stay().map(|(_, role)| role)))
        })
    }

    /// Records that these pods are about to be evicted: a gang left with too few members counts as never scheduled.
    pub(in crate::scheduler) fn gangs_lose(&mut self, victims: &[Arc<Occupant>]) {
        for victim in victims {
            let Some((name, _)) = self.gangs.placed.get(&victim.pod.uid).cloned() else {
                continue;
            };
            self.gangs.lost(&victim.pod.uid);
            let allocation = self.gangs.allocations.get(&name).cloned();
            if let (Some(allocation), Some(gang)) = (allocation, self.gangs.all.get_mut(&name)) {
                gang.scheduled &= has_minimum(gang, &allocation);
            }
        }
    }
}

fn has_minimum(gang: &Gang, allocation: &Allocation) -> bool {
    let placed = Gang::count(allocation.roles.len(), gang.placed.values());
    allocation.roles.iter().zip(placed).all(|(role, placed)| placed >= role.minimum)
}
