//! Preemption under quota guarantees: which pods may reclaim what their quota has lent, and from which pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::inventory::Occupant;
use crate::preempt::{Victims, importance};
use crate::quota::{Account, Claim, Quota, Reclaim, Rights, Sums, Toll};
use crate::scheduler::{Scheduler, Waiting};
use berth_model::{PreemptionPolicy, Usage};

/// What each quota loses by requested evictions that no watch has reported yet.
pub(in crate::scheduler) type Leaving = BTreeMap<Arc<str>, Sums>;

impl Scheduler {
    /// Returns what quotas allow this waiting pod to preempt.
    pub(in crate::scheduler) fn rights_of(&self, pod: &Waiting) -> Rights {
        let none = Rights::default();
        let Some(quota) = pod.holding.quota.as_ref().and_then(|name| self.cluster.objects.quotas.get(name))
        else {
            return none;
        };
        if quota.valid().is_none() {
            return none;
        }
        let within = self.is_guaranteed(pod);
        let mut lenders = Vec::new();
        if within && quota.reclaim == Reclaim::Any {
            let borrows = |other: &&Arc<Quota>| {
                let account = self.cluster.ledger.accounts().of(&other.name);
                other.name != quota.name && other.valid().is_some_and(|limits| account.borrows(limits))
            };
            lenders =
                self.cluster.objects.quotas.iter().filter(borrows).map(|other| other.name.clone()).collect();
        }
        Rights { quota: Some(quota.name.clone()), within, reclaim: quota.reclaim, lenders }
    }

    /// Returns whether the pod fits into the guarantee of its quota, in addition to the quota's placed and nominated
    /// pods.
    fn is_guaranteed(&self, pod: &Waiting) -> bool {
        let Some(quota) = pod.holding.quota.as_ref().and_then(|name| self.cluster.objects.quotas.get(name))
        else {
            return false;
        };
        let Some(limits) = quota.valid().filter(|limits| !limits.guaranteed.is_empty()) else {
            return false;
        };
        let account = self.cluster.ledger.accounts().of(&quota.name);
        let usage: &Usage = &pod.holding.usage;
        match self.preemption.promised.get(&quota.name) {
            None => account.guarantees(limits, usage),
            Some(promised) => {
                let mut account = account.clone();
                account.used.add(promised);
                account.guarantees(limits, usage)
            }
        }
    }

    /// Returns whether the pods' total fits into the guarantee of their quota, in addition to its placed and nominated
    /// pods.
    pub(super) fn guarantees_together(&self, quota: &Arc<str>, wanted: &Sums) -> bool {
        let Some(quota) = self.cluster.objects.quotas.get(quota) else {
            return false;
        };
        let Some(limits) = quota.valid().filter(|limits| !limits.guaranteed.is_empty()) else {
            return false;
        };
        let mut account = self.cluster.ledger.accounts().of(&quota.name).clone();
        self.preemption.promised.get(&quota.name).into_iter().for_each(|promised| account.used.add(promised));
        account.guarantees_all(limits, wanted)
    }

    /// Returns whether this pod may reclaim resources that other quotas borrow.
    pub(in crate::scheduler) fn may_reclaim(&self, pod: &Waiting) -> bool {
        let quota = pod.holding.quota.as_ref().and_then(|name| self.cluster.objects.quotas.get(name));
        quota.is_some_and(|quota| quota.reclaim == Reclaim::Any) && self.is_guaranteed(pod)
    }

    pub(in crate::scheduler) fn leaving(&self) -> Leaving {
        let mut leaving = Leaving::new();
        if self.cluster.objects.quotas.is_empty() {
            return leaving;
        }
        for holding in self.preemption.evicting.iter().filter_map(|uid| self.cluster.ledger.charge_of(uid)) {
            let holding = &holding.holding;
            if let Some(quota) = holding.quota.as_ref().filter(|_| !holding.peer.terminating) {
                leaving.entry(quota.clone()).or_default().charge(&holding.usage);
            }
        }
        leaving
    }

    /// Returns how this pod may become a victim of a preemptor with this priority and these rights, after the victims
    /// counted in `toll`.
    pub(in crate::scheduler) fn claim_on(
        &self,
        victim: &Occupant,
        (priority, rights): (i32, &Rights),
        leaving: &Leaving,
        toll: &mut Toll,
    ) -> Claim {
        let holding = &victim.holding;
        let lower = holding.priority < priority;
        let leaves = holding.peer.terminating || self.preemption.evicting.contains(&victim.pod.uid);
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

    /// Returns whether all of these may still be preempted: other pods of their quotas and gangs may have left in the
    /// meantime.
    pub(in crate::scheduler) fn still_claims(&self, preemptor: &Waiting, victims: &Victims) -> bool {
        if !self.gangs_bear(victims.pods.iter()) {
            return false;
        }
        if self.cluster.objects.quotas.is_empty() {
            return true;
        }
        let (rights, leaving, mut toll) = (self.rights_of(preemptor), self.leaving(), Toll::default());
        let mut pods: Vec<_> = victims.pods.iter().collect();
        pods.sort_by_cached_key(|pod| std::cmp::Reverse(importance(pod)));
        let by = (preemptor.priority, &rights);
        pods.into_iter().all(|pod| self.claim_on(pod, by, &leaving, &mut toll) != Claim::No)
    }

    /// Retries preemption for pods that may be able to reclaim after quotas changed.
    pub(in crate::scheduler) fn hunt_for_quotas(&mut self) {
        if !self.cluster.config.preemption || self.cluster.objects.quotas.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for group in self.parked.groups() {
            let eligible = |uid: &&Arc<str>| {
                let pod = self.cluster.waiting.get(*uid);
                pod.is_some_and(|pod| {
                    pod.policy == PreemptionPolicy::PreemptLowerPriority
                        && pod.holding.quota.is_some()
                        && self.may_preempt(pod)
                        && self.may_reclaim(pod)
                })
            };
            found.extend(group.pods.values().find(eligible).cloned());
        }
        found.iter().for_each(|uid| self.hunt(uid));
    }
}
