//! Gang members as victims of preemption: a gang is never left below its minimum, nor with a part of its members if it
//! may only be evicted whole. Members beyond the minimum are evicted one by one, the least important first; beyond that,
//! all members that are less important than the preemptor are evicted, or none: members that are too important stay and
//! protect no others.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Gang, Gangs};
use crate::gang::{Allocation, AllocationName, GangRole};
use crate::inventory::Occupant;
use crate::preempt::VictimGroup;
use crate::scheduler::{Cluster, Preemption};

/// Victim groups computed so far.
pub(in crate::scheduler) type KnownGroups = RefCell<BTreeMap<AllocationName, Arc<VictimGroup>>>;

impl Gangs {
    /// Returns the gang of this pod (by uid), unless the pod is leaving anyway.
    pub(in crate::scheduler) fn victim_group(
        &self,
        uid: &str,
        known: &KnownGroups,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> Option<Arc<VictimGroup>> {
        let (name, _) = self.placed.get(uid)?;
        let allocation = self.allocations.get(name)?;
        let gang = self.all.get(name)?;
        if is_leaving(uid, cluster, preemption) {
            return None;
        }
        if let Some(group) = known.borrow().get(name) {
            return Some(group.clone());
        }
        let stay: Vec<_> =
            gang.placed.iter().filter(|(uid, _)| !is_leaving(uid, cluster, preemption)).collect();
        let member = |(uid, role): &(&Arc<str>, &usize)| {
            Some(((*uid).clone(), (Arc::new(cluster.ledger.occupant(uid)?), **role)))
        };
        let members: BTreeMap<_, _> = stay.iter().filter_map(member).collect();
        let unsettled = members.len() < stay.len();
        let placed = Gang::count(allocation.roles.len(), stay.iter().map(|(_, role)| *role));
        let spare = |(role, placed): (&GangRole, u32)| match allocation.evicted_whole {
            true => 0,
            false => placed.saturating_sub(role.minimum) as usize,
        };
        let spare = allocation.roles.iter().zip(placed).map(spare).collect();
        let group = Arc::new(VictimGroup { name: gang.key.clone(), members, spare, unsettled });
        known.borrow_mut().insert(name.clone(), group.clone());
        Some(group)
    }

    /// Returns whether each gang of these victims keeps its minimum or loses all members below this priority. A gang
    /// already below its minimum may lose any, and one that may only be evicted whole must lose all.
    pub(in crate::scheduler) fn bear<'a>(
        &self,
        priority: i32,
        victims: impl Iterator<Item = &'a Arc<Occupant>>,
        cluster: &Cluster,
        preemption: &Preemption,
    ) -> bool {
        let gone: BTreeSet<&str> = victims.map(|victim| &*victim.pod.uid).collect();
        let names: BTreeSet<_> = gone.iter().filter_map(|uid| Some(&self.placed.get(uid)?.0)).collect();
        names.into_iter().all(|name| {
            let (Some(allocation), Some(gang)) = (self.allocations.get(name), self.all.get(name)) else {
                return true;
            };
            let enough = |roles: Vec<u32>| {
                allocation.roles.iter().zip(roles).all(|(role, members)| members >= role.minimum)
            };
            let stay = || gang.placed.iter().filter(|(uid, _)| !is_leaving(uid, cluster, preemption));
            let left: Vec<_> = stay().filter(|(uid, _)| !gone.contains(&***uid)).collect();
            let is_important =
                |uid: &str| cluster.ledger.charge_of(uid).is_some_and(|pod| pod.holding.priority >= priority);
            let count = allocation.roles.len();
            let is_kept = || {
                enough(Gang::count(count, left.iter().map(|(_, role)| *role)))
                    || !enough(Gang::count(count, stay().map(|(_, role)| role)))
            };
            left.iter().all(|(uid, _)| is_important(uid)) || !allocation.evicted_whole && is_kept()
        })
    }

    /// Records that these pods are about to be evicted: a gang left with too few members counts as never scheduled.
    pub(in crate::scheduler) fn lose(&mut self, victims: &[Arc<Occupant>]) {
        for victim in victims {
            let Some((name, _)) = self.placed.get(&victim.pod.uid).cloned() else {
                continue;
            };
            self.lost(&victim.pod.uid);
            let allocation = self.allocations.get(&name).cloned();
            if let (Some(allocation), Some(gang)) = (allocation, self.all.get_mut(&name)) {
                gang.scheduled &= has_minimum(gang, &allocation);
            }
        }
    }
}

fn has_minimum(gang: &Gang, allocation: &Allocation) -> bool {
    let placed = Gang::count(allocation.roles.len(), gang.placed.values());
    allocation.roles.iter().zip(placed).all(|(role, placed)| placed >= role.minimum)
}

/// Returns whether the member is being evicted, or was deleted while its bind is in flight.
fn is_leaving(uid: &str, cluster: &Cluster, preemption: &Preemption) -> bool {
    let news = cluster.waiting.get(uid).and_then(|waiting| waiting.news.as_ref());
    preemption.is_evicting(uid) || news.is_some_and(|pod| pod.deleting)
}
