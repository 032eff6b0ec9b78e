//! Index of quotas: finds the quota of a pod: the most specific one, of equally specific ones the older, then
//! the first by name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{QUEUE_LABEL, Quota};
use crate::objects::ObjectName;
use crate::policy::SelectedNamespaces;
use berth_model::Identity;

/// All quotas.
#[derive(Debug, Default)]
pub struct Index {
    by_name: BTreeMap<Arc<str>, Arc<Quota>>,
    /// Valid quotas, in order of precedence.
    ranked: Vec<Arc<Quota>>,
    /// Quotas by queue: indices in `ranked`.
    queues: HashMap<Arc<str>, Vec<usize>>,
    /// Quotas without a queue that name the namespace.
    named: HashMap<Arc<str>, Vec<usize>>,
    /// Quotas without a queue for selected namespaces or for all.
    others: Vec<usize>,
}

/// Effect of a change of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaChange {
    Nothing,
    /// The same pods belong to it, but its limits may have changed.
    Limits,
    /// Pods may belong to a different quota.
    Pods,
}

impl Index {
    pub fn get(&self, name: &str) -> Option<&Arc<Quota>> {
        self.by_name.get(name)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns all quotas, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Quota>> {
        self.by_name.values()
    }

    /// Returns the quotas in force, in order of precedence.
    pub fn ranked(&self) -> impl Iterator<Item = &Arc<Quota>> {
        self.ranked.iter()
    }

    pub fn apply(&mut self, quota: Quota) -> QuotaChange {
        let known = self.by_name.get(&quota.name);
        let change = match known {
            Some(known) if **known == quota => return QuotaChange::Nothing,
            Some(known)
                if known.scope == quota.scope
                    && known.created == quota.created
                    && known.limits.is_ok() == quota.limits.is_ok() =>
            {
                QuotaChange::Limits
            }
            None if quota.limits.is_err() => QuotaChange::Limits,
            _ => QuotaChange::Pods,
        };
        self.by_name.insert(quota.name.clone(), Arc::new(quota));
        self.rank();
        change
    }

    pub fn delete(&mut self, name: &str) -> QuotaChange {
        let Some(quota) = self.by_name.remove(name) else {
            return QuotaChange::Nothing;
        };
        self.rank();
        if quota.limits.is_ok() { QuotaChange::Pods } else { QuotaChange::Limits }
    }

    /// Returns the quotas that are not in `listed`, sorted.
    pub fn unlisted(&self, listed: &HashSet<ObjectName>) -> Vec<Arc<str>> {
        let listed: HashSet<&str> = listed.iter().map(|object| &*object.name).collect();
        self.by_name.keys().filter(|name| !listed.contains(&***name)).cloned().collect()
    }

    fn rank(&mut self) {
        self.ranked = self.by_name.values().filter(|quota| quota.limits.is_ok()).cloned().collect();
        self.ranked.sort_by(|a, b| {
            let key = |quota: &Quota| (Reverse(quota.scope.rank()), quota.created);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        (self.queues, self.named, self.others) = Default::default();
        for (at, quota) in self.ranked.iter().enumerate() {
            match (&quota.scope.queue, &quota.scope.namespaces) {
                (Some(queue), _) => self.queues.entry(queue.clone()).or_default().push(at),
                (None, SelectedNamespaces::Named(names)) => {
                    names.iter().for_each(|name| self.named.entry(name.clone()).or_default().push(at));
                }
                (None, _) => self.others.push(at),
            }
        }
    }

    /// Returns the quota of such a pod, with the labels of its namespace.
    pub fn find(&self, pod: &Identity) -> Option<&Arc<str>> {
        if self.ranked.is_empty() {
            return None;
        }
        let includes = |at: &&usize| self.ranked[**at].scope.includes(pod);
        let queue = pod.labels.get(QUEUE_LABEL).and_then(|queue| self.queues.get(queue));
        let queued = queue.and_then(|places| places.iter().find(includes));
        let named = self.named.get(&pod.namespace).and_then(|places| places.first());
        let found = queued.into_iter().chain(named).chain(self.others.iter().find(includes)).min();
        found.map(|at| &self.ranked[*at].name)
    }
}
