//! Pods that do not exist: what the scheduler would know of them, for the question whether they would fit.

use std::sync::Arc;

use super::Scheduler;
use super::preemption::Needed;
use crate::class::Class;
use crate::gang::Allocation;
use crate::inventory::NodeId;
use crate::objects::{Budgets, ClusterObject};
use crate::preempt::Site;
use crate::quota::{Account, Lack, Limit, Rights};
use berth_model::{Holding, Pod, Usage};

/// A pod that does not exist, as the scheduler would know it.
#[derive(Debug, Clone)]
pub struct SupposedPod {
    pub class: Arc<Class>,
    pub holding: Holding,
    /// Its allocation in the cluster, and its role there.
    pub allocation: Option<(Arc<Allocation>, usize)>,
    pub quota: Option<QuotaRoom>,
}

/// What a quota admits.
#[derive(Debug, Clone)]
pub struct QuotaRoom {
    pub name: Arc<str>,
    maximum: Limit,
    account: Account,
    recounting: bool,
}

impl QuotaRoom {
    /// Returns why the quota does not admit a pod with these requests, if so.
    pub fn refuses(&self, usage: &Usage) -> Option<String> {
        let lack = match self.recounting {
            true => Some(Lack::Recounting),
            false => self.account.lacks_for(&self.maximum, usage),
        };
        Some(lack?.message(&self.name))
    }

    /// Counts a pod with these requests.
    pub fn charge(&mut self, usage: &Usage) {
        self.account.used.charge(usage);
    }
}

impl Scheduler {
    /// Returns what would be known of `pod` if it and the objects `beside` it existed. Of these, objects that exist stay as they are,
    /// and the others are known only until this call returns. Changes only the classifier.
    pub fn suppose(&mut self, pod: &Pod, beside: &[ClusterObject]) -> SupposedPod {
        let mut added = Vec::new();
        for object in beside {
            if let Some(key) = object.beside_key()
                && !self.cluster.objects.has(key.0, &key.1)
            {
                self.cluster.objects.apply(object.clone());
                added.push(key);
            }
        }
        let class = self.class_of(pod);
        let holding = self.cluster.objects.holding(pod);
        for (kind, name) in &added {
            self.cluster.objects.delete(*kind, name);
        }
        let quota = holding.quota.as_ref().and_then(|name| self.cluster.objects.quotas.get(name));
        let quota = quota.and_then(|quota| {
            let maximum = quota.valid()?.maximum.clone();
            let account = self.cluster.ledger.accounts().of(&quota.name).clone();
            let recounting = self.cluster.recounting_quotas;
            Some(QuotaRoom { name: quota.name.clone(), maximum, account, recounting })
        });
        let allocation = self.gangs.find(&holding.peer);
        let allocation = allocation.and_then(|found| Some((self.gangs.allocation(&found.name)?, found.role)));
        SupposedPod { class, holding, allocation, quota }
    }

    /// Does what Kubernetes does in time for a placed pod that was evicted: it is gone, and claims that only it used are deallocated.
    pub fn suppose_evicted(&mut self, uid: &Arc<str>) {
        let claims = self.cluster.ledger.charge_of(uid).and_then(|charge| charge.holding.devices.clone());
        self.delete_pod(uid);
        for claim in self.cluster.objects.devices.without_user(uid, claims.as_deref().map_or(&[], |all| all))
        {
            self.apply_object(ClusterObject::ResourceClaim(claim.into()));
        }
    }

    /// Returns the pods that a pod of this class and priority, beyond the guarantee of any quota, may preempt on each of these nodes, and the
    /// disruption budgets.
    pub fn sites_of(&self, nodes: &[NodeId], class: &Class, priority: i32) -> (Vec<Site>, Budgets) {
        let exists = |id: &NodeId| self.inventory().row(*id).node.is_some();
        let nodes = nodes.iter().copied().filter(exists).collect();
        let by = (priority, &Rights::default());
        let needed = Needed::of([class]);
        let sites = self.preemption.sites(nodes, by, (false, &needed), &self.cluster, &self.gangs);
        (sites, self.cluster.objects.budgets.clone())
    }
}
