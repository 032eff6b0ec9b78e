//! What a pod may preempt beyond what its priority allows, and what it may not.
//!
//! Within its guarantee a pod may make those leave that hold what is lent to them: pods of other quotas, only as many as
//! leave their quota at or above its guarantee. A pod beyond its guarantee takes nothing that another quota's guarantee covers,
//! however important it is. So nothing is taken back and forth: who lost what it had borrowed is beyond its guarantee, and
//! whoever took it is covered by theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resources::{Sums, wanted};
use super::{Account, Limits, Quota, Reclaim};
use berth_model::{Holding, Usage};

/// What quotas say of what one pod preempts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Of the preemptor.
    pub quota: Option<Arc<str>>,
    /// It fits into the guarantee of its quota.
    pub within: bool,
    pub reclaim: Reclaim,
    /// Quotas that borrow and that it may take that back from. Sorted.
    pub lenders: Vec<Arc<str>>,
}

/// What becomes of each quota while its pods are considered as victims, one after the other.
#[derive(Debug, Default)]
pub struct Toll {
    left: BTreeMap<Arc<str>, Option<(Arc<Quota>, Account)>>,
}

/// How a pod may become a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    No,
    /// By priority.
    Lower,
    /// It holds what is lent to it.
    Lent,
}

impl Account {
    /// Whether `usage` fits into what is guaranteed, of the resources that the guarantee names and it wants; there must be one.
    pub fn guarantees(&self, limits: &Limits, usage: &Usage) -> bool {
        let mut named = false;
        let within = limits.guaranteed.iter().all(|(resource, guaranteed)| {
            let wanted = wanted(usage, resource);
            named |= wanted > 0;
            wanted <= 0 || self.used.get(resource).saturating_add(wanted.into()) <= guaranteed.into()
        });
        within && named
    }

    /// The same for what several pods want together.
    pub fn guarantees_all(&self, limits: &Limits, wanted: &Sums) -> bool {
        let mut named = false;
        let within = limits.guaranteed.iter().all(|(resource, guaranteed)| {
            let wanted = wanted.get(resource);
            named |= wanted > 0;
            wanted <= 0 || self.used.get(resource).saturating_add(wanted) <= guaranteed.into()
        });
        within && named
    }

    /// Whether the guarantee covers a pod that is counted here: without it less would be used than is guaranteed.
    pub fn covers(&self, limits: &Limits, usage: &Usage) -> bool {
        limits.guaranteed.iter().any(|(resource, guaranteed)| {
            let wanted = wanted(usage, resource);
            wanted > 0 && self.used.get(resource).saturating_sub(wanted.into()) < guaranteed.into()
        })
    }

    /// Whether it uses more than it is guaranteed, of any resource that the guarantee names; anything, if it names none.
    pub fn borrows(&self, limits: &Limits) -> bool {
        let more = |(resource, guaranteed): (&_, i64)| self.used.get(resource) > guaranteed.into();
        self.pods > 0 && (limits.guaranteed.is_empty() || limits.guaranteed.iter().any(more))
    }
}

impl Rights {
    /// Whether it may preempt pods whatever their priority.
    pub fn reclaims(&self) -> bool {
        !self.lenders.is_empty()
    }

    /// How the pod that holds this may become a victim, after those that were asked about before. Ask about the least important
    /// first. `lower`: it is less important than the preemptor. `account_of` gives what its quota uses without what leaves it
    /// anyway.
    pub fn claim(
        &self,
        toll: &mut Toll,
        holding: &Holding,
        lower: bool,
        leaves: bool,
        account_of: impl FnOnce(&Arc<str>) -> Option<(Arc<Quota>, Account)>,
    ) -> Claim {
        let by_priority = if lower { Claim::Lower } else { Claim::No };
        let Some(name) = holding.quota.as_ref().filter(|name| self.quota.as_ref() != Some(*name)) else {
            return by_priority;
        };
        if self.quota.is_some() && self.reclaim == Reclaim::Never {
            return Claim::No;
        }
        let lent = self.lenders.binary_search(name).is_ok();
        if leaves {
            return if lent { Claim::Lent } else { by_priority };
        }
        let left = toll.left.entry(name.clone()).or_insert_with(|| account_of(name));
        let Some((quota, account)) = left else {
            return by_priority;
        };
        let Some(limits) = quota.valid() else {
            return by_priority;
        };
        let claim = match account.covers(limits, &holding.usage) {
            false if lent && account.borrows(limits) => Claim::Lent,
            // Somebody beyond its guarantee; pods without a quota preempt as ever.
            true if self.quota.is_some() && !self.within => Claim::No,
            _ => by_priority,
        };
        if claim != Claim::No {
            account.used.discharge(&holding.usage);
        }
        claim
    }
}
