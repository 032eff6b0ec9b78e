//! What the pods of each quota hold.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::resources::wants;
use super::{Limit, Limits, Resource, Sums};
use berth_model::{Holding, Usage};

/// What the pods of one quota hold that have a node, assumed ones included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    pub pods: u64,
    pub used: Sums,
    /// What those of them hold that are being deleted.
    pub leaving: Sums,
}

/// Why something does not fit a quota: the first resource that it would go beyond the maximum of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    pub resource: Resource,
    pub wanted: i128,
    pub used: i128,
    pub maximum: i64,
}

impl Lack {
    /// What does not fit alone, whatever goes.
    pub fn is_for_ever(&self) -> bool {
        self.wanted > self.maximum.into()
    }

    /// For the pod that waits.
    pub fn message(&self, quota: &str) -> String {
        let Lack { resource, wanted, used, maximum } = self;
        let (wanted, used) = (resource.show(*wanted), resource.show(*used));
        let (name, maximum) = (resource.name(), resource.show((*maximum).into()));
        match self.is_for_ever() {
            true => {
                format!("quota {quota}: wants {wanted} of {name}, more than its maximum of {maximum} at all")
            }
            false => {
                format!("quota {quota}: wants {wanted} of {name}, but {used} of at most {maximum} is used")
            }
        }
    }
}

impl Account {
    /// What `wanted` lacks beside what is used.
    pub fn lacks(&self, maximum: &Limit, wanted: &Sums) -> Option<Lack> {
        wanted.iter().filter(|(_, amount)| *amount > 0).find_map(|(resource, amount)| {
            let limit = maximum.get(resource)?;
            let used = self.used.get(resource);
            let over = used.saturating_add(amount) > limit.into();
            over.then(|| Lack { resource: resource.clone(), wanted: amount, used, maximum: limit })
        })
    }

    /// The same for one pod, without making a sum of it.
    pub fn lacks_for(&self, maximum: &Limit, usage: &Usage) -> Option<Lack> {
        wants(usage).find_map(|(resource, amount)| {
            let limit = maximum.get(&resource)?;
            let used = self.used.get(&resource);
            let over = used.saturating_add(amount.into()) > limit.into();
            over.then(|| Lack { resource, wanted: amount.into(), used, maximum: limit })
        })
    }

    /// What is used beyond the guarantee, of the resources that it names; of all if it names none.
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

/// All quotas that have pods with a node.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    /// Never iterated where order could matter.
    by_quota: HashMap<Arc<str>, Account>,
    nothing: Account,
    /// Quotas in which something became free since this was last asked.
    freed: BTreeSet<Arc<str>>,
    /// Grows with every change.
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

    /// A pod with this holding has a node.
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

    /// Takes back what [`Accounts::charge`] did.
    pub fn discharge(&mut self, holding: &Holding) {
        let Some(quota) = &holding.quota else {
            return;
        };
        self.version += 1;
        let Some(account) = self.by_quota.get_mut(quota) else {
            debug_assert!(false, "it was charged");
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

    /// Quotas in which something became free since the last call. Sorted.
    pub fn take_freed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.freed)
    }

    /// Everything was counted anew.
    pub fn replace(&mut self, fresh: Accounts) {
        let all = self.by_quota.keys().chain(fresh.by_quota.keys()).cloned();
        self.freed.extend(all);
        self.version += 1;
        self.by_quota = fresh.by_quota;
    }

    /// Quotas with pods, sorted.
    pub fn quotas(&self) -> Vec<&Arc<str>> {
        let mut quotas: Vec<_> = self.by_quota.keys().collect();
        quotas.sort();
        quotas
    }
}
