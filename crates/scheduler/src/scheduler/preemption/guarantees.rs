//! Preemption under quota guarantees: which pods may reclaim what their quota has lent, and from which pods.
//!
//! [`Guarantees`] reads the quotas, their accounts, and what is promised to nominated pods. It changes nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::nominations::Nominations;
use crate::gang::WantedMembers;
use crate::inventory::Occupant;
use crate::preempt::importance;
use crate::quota::{Account, Limits, Quota, Reclaim, Rights, Sums, Toll, VictimClaim};
use crate::scheduler::{Cluster, Waiting};

/// What each quota loses by requested evictions that no watch has reported yet.
pub(super) type Leaving = BTreeMap<Arc<str>, Sums>;

/// Priority and rights of a preemptor.
pub(super) type By<'a> = (i32, &'a Rights);

/// What quotas allow at this moment.
#[derive(Clone, Copy)]
pub(super) struct Guarantees<'a> {
    cluster: &'a Cluster,
    nominations: &'a Nominations,
}

impl<'a> Guarantees<'a> {
    pub(super) fn of(cluster: &'a Cluster, nominations: &'a Nominations) -> Self {
        Guarantees { cluster, nominations }
    }

    /// Returns what quotas allow this waiting pod to preempt.
    pub(super) fn rights_of(&self, pod: &Waiting) -> Rights {
        let quotas = &self.cluster.objects.quotas;
        let Some(quota) = self.quota_of(pod).filter(|quota| quota.valid().is_some()) else {
            return Rights::default();
        };
        let within = self.is_guaranteed(pod);
        let mut lenders = Vec::new();
        if within && quota.reclaims() == Reclaim::Any {
            let borrows = |other: &&Arc<Quota>| {
                let account = self.cluster.ledger.accounts().of(&other.name);
                other.name != quota.name && other.valid().is_some_and(|limits| account.borrows(limits))
            };
            lenders = quotas.iter().filter(borrows).map(|other| other.name.clone()).collect();
        }
        Rights { quota: Some(quota.name.clone()), within, reclaim: quota.reclaims(), lenders }
    }

    /// Returns what quotas allow these members to preempt: members of one quota that fit into its guarantee together
    /// may reclaim what it lent.
    pub(super) fn rights_together(&self, wanted: &WantedMembers) -> Rights {
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

    /// Returns whether this pod may reclaim resources that other quotas borrow.
    pub(super) fn may_reclaim(&self, pod: &Waiting) -> bool {
        self.quota_of(pod).is_some_and(|quota| quota.reclaims() == Reclaim::Any) && self.is_guaranteed(pod)
    }

    fn quota_of(&self, pod: &Waiting) -> Option<&'a Arc<Quota>> {
        self.cluster.objects.quotas.get(pod.holding.quota.as_ref()?)
    }

    /// Returns whether the pod fits into the guarantee of its quota, in addition to the quota's placed and nominated
    /// pods.
    fn is_guaranteed(&self, pod: &Waiting) -> bool {
        let Some((quota, limits)) = self.quota_of(pod).and_then(guarantee) else {
            return false;
        };
        let account = self.cluster.ledger.accounts().of(&quota.name);
        match self.nominations.promised(&quota.name) {
            None => account.guarantees(limits, &pod.holding.usage),
            Some(promised) => {
                let mut account = account.clone();
                account.used.add(promised);
                account.guarantees(limits, &pod.holding.usage)
            }
        }
    }

    /// Returns whether the pods' total fits into the guarantee of their quota, in addition to its placed and nominated
    /// pods.
    fn guarantees_together(&self, quota: &Arc<str>, wanted: &Sums) -> bool {
        let Some((quota, limits)) = self.cluster.objects.quotas.get(quota).and_then(guarantee) else {
            return false;
        };
        let mut account = self.cluster.ledger.accounts().of(&quota.name).clone();
        self.nominations.promised(&quota.name).into_iter().for_each(|promised| account.used.add(promised));
        account.guarantees_all(limits, wanted)
    }

    pub(super) fn leaving(&self) -> Leaving {
        let mut leaving = Leaving::new();
        if self.cluster.objects.quotas.is_empty() {
            return leaving;
        }
        let evicting = self.nominations.evicting();
        for charge in evicting.filter_map(|uid| self.cluster.ledger.charge_of(uid)) {
            let holding = &charge.holding;
            if let Some(quota) = holding.quota.as_ref().filter(|_| !holding.peer.terminating) {
                leaving.entry(quota.clone()).or_default().charge(&holding.usage);
            }
        }
        leaving
    }

    /// Returns how this pod may become a victim of a preemptor, after the victims counted in `toll`.
    pub(super) fn claim_on(
        &self,
        victim: &Occupant,
        (priority, rights): By,
        leaving: &Leaving,
        toll: &mut Toll,
    ) -> VictimClaim {
        let holding = &victim.holding;
        let lower = holding.priority < priority;
        let leaves = holding.peer.terminating || self.nominations.is_evicting(&victim.pod.uid);
        rights.claim(toll, holding, lower, leaves, |name| self.account_left(name, leaving))
    }

    /// Returns the usage of the quota without pods that leave it anyway.
    fn account_left(&self, name: &Arc<str>, leaving: &Leaving) -> Option<(Arc<Quota>, Account)> {
        let quota = self.cluster.objects.quotas.get(name)?.clone();
        let mut account = self.cluster.ledger.accounts().of(name).clone();
        let gone = account.leaving.clone();
        account.used.sub(&gone);
        if let Some(leaving) = leaving.get(name) {
            account.used.sub(leaving);
        }
        Some((quota, account))
    }

    /// Returns whether quotas still allow to preempt all of these: other pods of their quotas may have left in the
    /// meantime.
    pub(super) fn still_allow<'v>(
        &self,
        by: By,
        victims: impl IntoIterator<Item = &'v Arc<Occupant>>,
    ) -> bool {
        if self.cluster.objects.quotas.is_empty() {
            return true;
        }
        let (leaving, mut toll) = (self.leaving(), Toll::default());
        let mut pods: Vec<_> = victims.into_iter().collect();
        pods.sort_by_cached_key(|pod| Reverse(importance(pod)));
        pods.into_iter().all(|pod| self.claim_on(pod, by, &leaving, &mut toll) != VictimClaim::No)
    }
}

/// Returns the quota with its limits if it is valid and guarantees something.
fn guarantee(quota: &Arc<Quota>) -> Option<(&Arc<Quota>, &Limits)> {
    Some((quota, quota.valid().filter(|limits| !limits.guaranteed.is_empty())?))
}
