//! Which quota a pod belongs to: the most specific one, of two alike the older one, then the first by name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{QUEUE_LABEL, Quota};
use crate::objects::ObjectName;
use crate::policy::Namespaces;
use berth_model::Identity;

/// All quotas.
#[derive(Debug, Default)]
pub struct Index {
    by_name: BTreeMap<Arc<str>, Arc<Quota>>,
    /// Those that are valid, the one that goes first first.
    ranked: Vec<Arc<Quota>>,
    /// By queue: places in `ranked`.
    queues: HashMap<Arc<str>, Vec<usize>>,
    /// By namespace, those without a queue that name it.
    named: HashMap<Arc<str>, Vec<usize>>,
    /// Without a queue, of selected namespaces or of all.
    others: Vec<usize>,
}

/// What a change of a quota means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The same pods belong to it, but how much they may have changed.
    Limits,
    /// Other pods may belong to other quotas.
    Pods,
}

impl Index {
    pub fn get(&self, name: &str) -> Option<&Arc<Quota>> {
        self.by_name.get(name)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Quota>> {
        self.by_name.values()
    }

    /// Those that are in force, in the order in which pods fall to them.
    pub fn ranked(&self) -> impl Iterator<Item = &Arc<Quota>> {
        self.ranked.iter()
    }

    pub fn apply(&mut self, quota: Quota) -> Change {
        let known = self.by_name.get(&quota.name);
        let change = match known {
            Some(known) if **known == quota => return Change::Nothing,
            Some(known)
                if known.scope == quota.scope
                    && known.created == quota.created
                    && known.limits.is_ok() == quota.limits.is_ok() =>
            {
                Change::Limits
            }
            None if quota.limits.is_err() => Change::Limits,
            _ => Change::Pods,
        };
        self.by_name.insert(quota.name.clone(), Arc::new(quota));
        self.rank();
        change
    }

    pub fn delete(&mut self, name: &str) -> Change {
        let Some(quota) = self.by_name.remove(name) else {
            return Change::Nothing;
        };
        self.rank();
        if quota.limits.is_ok() { Change::Pods } else { Change::Limits }
    }

    /// Those that are not among these, sorted.
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
                (None, Namespaces::Named(names)) => {
                    names.iter().for_each(|name| self.named.entry(name.clone()).or_default().push(at));
                }
                (None, _) => self.others.push(at),
            }
        }
    }

    /// The quota of such a pod, with the labels of its namespace.
    pub fn find(&self, pod: &Identity) -> Option<&Arc<str>> {
        if self.ranked.is_empty() {
            return None;
        }
        let includes = |at: &&usize| self.ranked[**at].scope.includes(pod);
        let queue = pod.labels.get(QUEUE_LABEL).and_then(|queue| self.queues.get(queue));
        let found = queue.and_then(|places| places.iter().find(includes)).or_else(|| {
            let named = self.named.get(&pod.namespace).and_then(|places| places.first());
            named.into_iter().chain(self.others.iter().find(includes)).min()
        });
        found.map(|at| &self.ranked[*at].name)
    }
}
