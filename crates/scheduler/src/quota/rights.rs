//! Preemption rights from quotas: what a pod may preempt regardless of priority, and what it may not.
//!
//! Within its guarantee a pod may preempt pods that borrow: pods of other quotas, only as many as leave their quota at
//! or above its guarantee. A pod beyond its guarantee may not preempt pods that another quota's guarantee covers,
//! whatever its priority. This prevents preemption in a cycle: a quota that lost what it had borrowed is beyond its
//! guarantee, and the new owner is covered by its own guarantee.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resources::{Sums, wanted};
use super::{Account, Limits, Quota, Reclaim};
use berth_model::{Holding, Usage};

/// Rights of one preemptor from quotas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Quota of the preemptor.
    pub quota: Option<Arc<str>>,
    /// The preemptor fits into the guarantee of its quota.
    pub within: bool,
    pub reclaim: Reclaim,
    /// Borrowing quotas from which it may reclaim. Sorted.
    pub lenders: Vec<Arc<str>>,
}

/// Remaining usage of each quota while its pods are considered as victims, one by one.
#[derive(Debug, Default)]
pub struct Toll {
    left: BTreeMap<Arc<str>, Option<(Arc<Quota>, Account)>>,
}

/// Why a pod may become a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VictimClaim {
    No,
    /// By priority.
    Lower,
    /// It uses borrowed resources.
    Lent,
}

impl Account {
    /// Returns whether `usage` fits into the guarantee, for the resources that the guarantee lists and the pod
    /// requests; there must be at least one.
    pub fn guarantees(&self, limits: &Limits, usage: &Usage) -> bool {
        let mut named = false;
        let within = limits.guaranteed.iter().all(|(resource, guaranteed)| {
            let wanted = wanted(usage, resource);
            named |= wanted > 0;
            wanted <= 0 || self.used.get(resource).saturating_add(wanted.into()) <= guaranteed.into()
        });
        within && named
    }

    /// Returns the same for the requests of several pods together.
    pub fn guarantees_all(&self, limits: &Limits, wanted: &Sums) -> bool {
        let mut named = false;
        let within = limits.guaranteed.iter().all(|(resource, guaranteed)| {
            let wanted = wanted.get(resource);
            named |= wanted > 0;
            wanted <= 0 || self.used.get(resource).saturating_add(wanted) <= guaranteed.into()
        });
        within && named
    }

    /// Returns whether the guarantee covers a pod that is counted here: without the pod, usage would be below the
    /// guarantee.
    pub fn covers(&self, limits: &Limits, usage: &Usage) -> bool {
        limits.guaranteed.iter().any(|(resource, guaranteed)| {
            let wanted = wanted(usage, resource);
            wanted > 0 && self.used.get(resource).saturating_sub(wanted.into()) < guaranteed.into()
        })
    }

    /// Returns whether usage exceeds the guarantee in any resource that the guarantee lists; any usage, if it lists
    /// none.
    pub fn borrows(&self, limits: &Limits) -> bool {
        let more = |(resource, guaranteed): (&_, i64)| self.used.get(resource) > guaranteed.into();
        self.pods > 0 && (limits.guaranteed.is_empty() || limits.guaranteed.iter().any(more))
    }
}

impl Rights {
    /// Returns whether it may preempt pods regardless of their priority.
    pub fn reclaims(&self) -> bool {
        !self.lenders.is_empty()
    }

    /// Returns whether and why the pod with this holding may become a victim, after the pods passed before. Pass the
    /// least important pods first. `lower`: its priority is lower than the preemptor's. `account_of` returns the usage
    /// of its quota without pods that leave it anyway.
    pub fn claim(
        &self,
        toll: &mut Toll,
        holding: &Holding,
        lower: bool,
        leaves: bool,
        account_of: impl FnOnce(&Arc<str>) -> Option<(Arc<Quota>, Account)>,
    ) -> VictimClaim {
        let by_priority = if lower { VictimClaim::Lower } else { VictimClaim::No };
        let Some(name) = holding.quota.as_ref().filter(|name| self.quota.as_ref() != Some(*name)) else {
            return by_priority;
        };
        if self.quota.is_some() && self.reclaim == Reclaim::Never {
            return VictimClaim::No;
        }
        let lent = self.lenders.binary_search(name).is_ok();
        if leaves {
            return if lent { VictimClaim::Lent } else { by_priority };
        }
        let left = toll.left.entry(name.clone()).or_insert_with(|| account_of(name));
        let Some((quota, account)) = left else {
            return by_priority;
        };
        let Some(limits) = quota.valid() else {
            return by_priority;
        };
        let claim = match account.covers(limits, &holding.usage) {
            false if lent && account.borrows(limits) => VictimClaim::Lent,
            // The preemptor is beyond its guarantee; pods without a quota preempt by priority as usual.
            true if self.quota.is_some() && !self.within => VictimClaim::No,
            _ => by_priority,
        };
        if claim != VictimClaim::No {
            account.used.discharge(&holding.usage);
        }
        claim
    }
}
