//! Accounts of the pods' holdings per quota.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::resources::wants;
use super::{Limit, Limits, QuotaResource, Sums};
use berth_model::{Holding, Usage};

/// Holdings of the bound pods of one quota, including assumed ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    pub pods: u64,
    pub used: Sums,
    /// Holdings of those pods that are being deleted.
    pub leaving: Sums,
}

/// Why a request does not fit into a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// The first resource whose maximum it would exceed.
    Room { resource: QuotaResource, wanted: i128, used: i128, maximum: i64 },
    /// What the quota's pods use is being counted again, as other pods belong to it now.
    Recounting,
}

impl Lack {
    /// Returns the text for the pod that waits.
    pub fn message(&self, quota: &str) -> String {
        let Lack::Room { resource, wanted, used, maximum } = self else {
            return format!("quota {quota}: its usage is being counted");
        };
        let is_for_ever = *wanted > (*maximum).into();
        let (wanted, used) = (resource.show(*wanted), resource.show(*used));
        let (name, maximum) = (resource.name(), resource.show((*maximum).into()));
        match is_for_ever {
            true => {
                format!("quota {quota}: requested {name}={wanted} exceeds the maximum {name}={maximum}")
            }
            false => {
                format!(
                    "quota {quota}: requested {name}={wanted}, used {name}={used}, maximum {name}={maximum}"
                )
            }
        }
    }
}

impl Account {
    /// Returns what `wanted` lacks, given the current usage.
    pub fn lacks(&self, maximum: &Limit, wanted: &Sums) -> Option<Lack> {
        wanted.iter().filter(|(_, amount)| *amount > 0).find_map(|(resource, amount)| {
            let limit = maximum.get(resource)?;
            let used = self.used.get(resource);
            let over = used.saturating_add(amount) > limit.into();
            over.then(|| Lack::Room { resource: resource.clone(), wanted: amount, used, maximum: limit })
        })
    }

    /// Returns the same for one pod, without allocating a sum.
    pub fn lacks_for(&self, maximum: &Limit, usage: &Usage) -> Option<Lack> {
        wants(usage).find_map(|(resource, amount)| {
            let limit = maximum.get(&resource)?;
            let used = self.used.get(&resource);
            let over = used.saturating_add(amount.into()) > limit.into();
            over.then(|| Lack::Room { resource, wanted: amount.into(), used, maximum: limit })
        })
    }

    /// Returns the usage beyond the guarantee, for the resources that the guarantee lists; for all if it
    /// lists none.
    pub fn borrowed(&self, limits: &Limits) -> Sums {
        let mut borrowed = Sums::default();
        for (resource, used) in self.used.iter() {
            let guaranteed = match limits.guaranteed.get(resource) {
                Some(amount) => i128::from(amount),
                None if limits.guaranteed.is_empty() => 0,
                None => continue,
            };
            borrowed.change(resource.clone(), (used - guaranteed).max(0));
        }
        borrowed
    }
}

/// Accounts of all quotas that have bound pods.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    /// Never iterated where order could matter.
    by_quota: HashMap<Arc<str>, Account>,
    nothing: Account,
    /// Quotas whose usage decreased since the last call of `take_freed`.
    freed: BTreeSet<Arc<str>>,
    /// Increments with every change.
    version: u64,
}

impl PartialEq for Accounts {
    fn eq(&self, other: &Self) -> bool {
        self.by_quota == other.by_quota
    }
}

impl Accounts {
    pub fn of(&self, quota: &str) -> &Account {
        self.by_quota.get(quota).unwrap_or(&self.nothing)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Adds the holding of a bound pod.
    pub fn charge(&mut self, holding: &Holding) {
        let Some(quota) = &holding.quota else {
            return;
        };
        self.version += 1;
        let account = match self.by_quota.get_mut(quota) {
            Some(account) => account,
            None => self.by_quota.entry(quota.clone()).or_default(),
        };
        account.pods += 1;
        account.used.charge(&holding.usage);
        if holding.peer.terminating {
            account.leaving.charge(&holding.usage);
        }
    }

    /// Reverts [`Accounts::charge`].
    pub fn discharge(&mut self, holding: &Holding) {
        let Some(quota) = &holding.quota else {
            return;
        };
        self.version += 1;
        let Some(account) = self.by_quota.get_mut(quota) else {
            debug_assert!(false, "discharged a pod that was not charged");
            return;
        };
        account.pods = account.pods.saturating_sub(1);
        account.used.discharge(&holding.usage);
        if holding.peer.terminating {
            account.leaving.discharge(&holding.usage);
        }
        if account.pods == 0 {
            self.by_quota.remove(quota);
        }
        self.freed.insert(quota.clone());
    }

    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Returns the quotas whose usage decreased since the last call. Sorted.
    pub fn take_freed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.freed)
    }

    /// Replaces all accounts by recounted ones.
    pub fn replace(&mut self, fresh: Accounts) {
        let all = self.by_quota.keys().chain(fresh.by_quota.keys()).cloned();
        self.freed.extend(all);
        self.version += 1;
        self.by_quota = fresh.by_quota;
    }

    /// Returns the quotas with pods, sorted.
    pub fn quotas(&self) -> Vec<&Arc<str>> {
        let mut quotas: Vec<_> = self.by_quota.keys().collect();
        quotas.sort();
        quotas
    }
}
