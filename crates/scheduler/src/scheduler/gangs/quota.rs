//! Gangs and quotas: a gang is admitted with all needed members at once, or waits in the queue of the quota that lacks
//! resources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{GangState, Gangs};
use crate::gang::{AllocationName, UnboundMember};
use crate::queue::Place;
use crate::quota::{Account, Sums};
use crate::scheduler::{Cluster, Scheduler, Waiting, quotas};

impl Gangs {
    /// Returns the number of gangs waiting for a quota.
    pub(in crate::scheduler) fn over_quota(&self) -> usize {
        self.all.values().filter(|gang| gang.state == GangState::OverQuota).count()
    }

    /// Returns whether this waiting pod's gang waits for a quota.
    pub(in crate::scheduler) fn awaits_quota(&self, pod: &Waiting) -> bool {
        let gang = pod.gang.as_ref().and_then(|gang| self.all.get(&gang.name));
        gang.is_some_and(|gang| gang.state == GangState::OverQuota)
    }

    /// Returns the gang's place and its needs of each quota at once. Once its minimum is placed, the needs are those of
    /// its first waiting member.
    fn quota_needs(
        &self,
        name: &AllocationName,
        cluster: &Cluster,
    ) -> Option<(Place, BTreeMap<Arc<str>, Sums>)> {
        let allocation = self.allocations.get(name)?;
        let gang = self.all.get(name)?;
        let place = *gang.waiting.first_key_value()?.0;
        let mut need = gang.need(allocation);
        let scheduled = need.iter().all(|need| *need == 0);
        let mut wants: BTreeMap<Arc<str>, Sums> = BTreeMap::new();
        for (uid, role) in gang.waiting.values() {
            let needed = need.get_mut(*role).filter(|need| **need > 0);
            if needed.is_none() && !scheduled {
                continue;
            }
            needed.into_iter().for_each(|need| *need -= 1);
            let holding = &cluster.waiting.get(uid)?.holding;
            if let Some(quota) = &holding.quota {
                wants.entry(quota.clone()).or_default().charge(&holding.usage);
            }
            if scheduled {
                break;
            }
        }
        Some((place, wants))
    }
}

impl Scheduler {
    /// Queues the gang at a quota that lacks resources for its needed members. Returns whether it waits there. `first`:
    /// it was its turn already.
    pub(super) fn gang_queues_for_quota(
        &mut self,
        name: &AllocationName,
        first: bool,
        now: Duration,
    ) -> bool {
        let Some((place, wants)) = self.gangs.quota_needs(name, &self.cluster) else {
            return false;
        };
        let lacking = wants.into_iter().find(|(quota, wanted)| {
            !first && self.quotas.lines().is_before(quota, place)
                || self.cluster.together_over_quota(quota, wanted).is_some()
        });
        let Some((quota, wanted)) = lacking else {
            return false;
        };
        let why: Arc<str> = quotas::gang_message(&quota, &wanted, &self.cluster).into();
        let refresh = self.cluster.config.refresh;
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return false;
        };
        gang.state = GangState::OverQuota;
        gang.lacking = Some(why.clone());
        gang.complete_since.get_or_insert(now);
        let due = gang.members_reported_at.is_none_or(|at| now.saturating_sub(at) >= refresh);
        if due {
            gang.members_reported_at = Some(now);
        }
        let (key, members) =
            (gang.key.clone(), gang.waiting.values().map(|(uid, _)| uid.clone()).collect::<Vec<_>>());
        self.gangs.unreported.insert(name.clone());
        self.join_line(&quota, &key, wanted, place);
        // Pods that may not be placed keep no reservation.
        self.end_gang_nominations(name);
        for uid in members {
            if due || self.cluster.waiting.get(&uid).is_some_and(|waiting| waiting.reported.is_none()) {
                self.report(&uid, quotas::REASON, why.clone(), true);
            }
        }
        true
    }

    /// Continues with the gang, whose turn it is in the quota's queue.
    pub(in crate::scheduler) fn gang_has_quota(&mut self, key: &str, now: Duration) {
        let Some(name) = self.gangs.by_key.get(key).cloned() else {
            return;
        };
        let Some(gang) = self.gangs.all.get_mut(&name) else {
            return;
        };
        gang.state = GangState::Idle;
        gang.lacking = None;
        let allocation = self.gangs.allocations.get(&name);
        if allocation.is_some_and(|allocation| gang.is_ready(allocation))
            && !self.gang_queues_for_quota(&name, true, now)
        {
            self.hand_out_gang(&name, now);
        }
    }

    /// Removes the gang from the quota's queue.
    pub(super) fn gang_leaves_line(&mut self, name: &AllocationName) {
        let Some(gang) = self.gangs.all.get_mut(name).filter(|gang| gang.state == GangState::OverQuota)
        else {
            return;
        };
        gang.state = GangState::Idle;
        gang.lacking = None;
        let key = gang.key.clone();
        self.leave_line(&key);
    }
}

/// Returns the members that quotas have resources for: needed ones first, then the rest in order. `None`: not
/// enough.
pub(super) fn members_within_quotas(
    members: Vec<UnboundMember>,
    need: &[u32],
    cluster: &Cluster,
) -> Option<Vec<UnboundMember>> {
    if members.iter().all(|member| member.holding.quota.is_none()) {
        return Some(members);
    }
    let mut need = need.to_vec();
    let mut taken: BTreeMap<Arc<str>, Account> = BTreeMap::new();
    let mut kept = vec![false; members.len()];
    let is_needed: Vec<bool> = members
        .iter()
        .map(|member| match need.get_mut(member.role).filter(|need| **need > 0) {
            Some(need) => {
                *need -= 1;
                true
            }
            None => false,
        })
        .collect();
    for needed in [true, false] {
        for (at, member) in members.iter().enumerate().filter(|(at, _)| is_needed[*at] == needed) {
            kept[at] = takes_quota(&mut taken, member, cluster);
            if needed && !kept[at] {
                return None;
            }
        }
    }
    let kept: Vec<_> =
        members.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(member, _)| member).collect();
    (!kept.is_empty()).then_some(kept)
}

/// Charges this member to `taken` if its quota has enough left. Returns whether it did.
fn takes_quota(taken: &mut BTreeMap<Arc<str>, Account>, member: &UnboundMember, cluster: &Cluster) -> bool {
    let Some(quota) = member.holding.quota.as_ref().and_then(|name| cluster.objects.quotas.get(name)) else {
        return true;
    };
    let Some(limits) = quota.valid() else {
        return true;
    };
    let account =
        taken.entry(quota.name.clone()).or_insert_with(|| cluster.ledger.accounts().of(&quota.name).clone());
    let fits = account.lacks_for(&limits.maximum, &member.holding.usage).is_none();
    if fits {
        account.used.charge(&member.holding.usage);
    }
    fits
}
