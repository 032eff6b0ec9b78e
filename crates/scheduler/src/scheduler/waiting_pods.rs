//! The waiting pods, with the indexes that keep walks over them short.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use super::Waiting;
use crate::class::Class;
use crate::gang::{AllocationName, Membership};
use crate::sharded::ShardedMap;
use crate::visits::Visits;
use berth_model::Pod;

/// All waiting pods by uid. Never iterated where order could matter.
#[derive(Debug, Default)]
pub(super) struct WaitingPods {
    by_uid: ShardedMap<Waiting>,
    /// In the order of their arrival.
    by_arrival: BTreeMap<u64, Arc<str>>,
    by_namespace: HashMap<Arc<str>, BTreeMap<u64, Arc<str>>>,
    /// Pods whose status has a nominated node, in the order of their arrival.
    nominated: BTreeMap<u64, Arc<str>>,
    /// By gang: the number of its members here that need devices.
    need_devices: HashMap<AllocationName, usize>,
    turned: BTreeSet<AllocationName>,
    visits: Visits,
}

impl Deref for WaitingPods {
    type Target = ShardedMap<Waiting>;

    fn deref(&self) -> &Self::Target {
        &self.by_uid
    }
}

impl WaitingPods {
    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut Waiting> {
        self.by_uid.get_mut(uid)
    }

    /// Replaces the observed object of a pod, if it waits.
    pub(super) fn observe(&mut self, source: &Pod) -> Option<&mut Waiting> {
        let pod = self.by_uid.get_mut(&source.uid)?;
        match source.nominated_node {
            Some(_) => drop(self.nominated.insert(pod.seq, source.uid.clone())),
            None => drop(self.nominated.remove(&pod.seq)),
        }
        *pod.source = source.clone();
        Some(pod)
    }

    pub(super) fn insert(&mut self, uid: Arc<str>, pod: Waiting) {
        if pod.source.nominated_node.is_some() {
            self.nominated.insert(pod.seq, uid.clone());
        }
        self.by_arrival.insert(pod.seq, uid.clone());
        self.by_namespace.entry(pod.namespace().clone()).or_default().insert(pod.seq, uid.clone());
        self.count_member(&pod.class, pod.gang.as_ref());
        self.by_uid.insert(uid, pod);
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Waiting> {
        let pod = self.by_uid.remove(uid)?;
        self.by_arrival.remove(&pod.seq);
        self.nominated.remove(&pod.seq);
        self.discount_member(&pod.class, pod.gang.as_ref());
        if let Some(pods) = self.by_namespace.get_mut(pod.namespace()) {
            pods.remove(&pod.seq);
            if pods.is_empty() {
                self.by_namespace.remove(pod.namespace());
            }
        }
        Some(pod)
    }

    /// Gives a pod another class, priority and gang.
    pub(super) fn reclassify(
        &mut self,
        uid: &str,
        class: Arc<Class>,
        priority: i32,
        gang: Option<Membership>,
    ) {
        let Some(pod) = self.by_uid.get_mut(uid) else { return };
        pod.priority = priority;
        let class_before = std::mem::replace(&mut pod.class, class.clone());
        let gang_before = std::mem::replace(&mut pod.gang, gang.clone());
        self.count_member(&class, gang.as_ref());
        self.discount_member(&class_before, gang_before.as_ref());
    }

    fn count_member(&mut self, class: &Class, gang: Option<&Membership>) {
        let Some(gang) = gang.filter(|_| class.spec.devices.is_some()) else { return };
        let count = self.need_devices.entry(gang.name.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.turned.insert(gang.name.clone());
        }
    }

    fn discount_member(&mut self, class: &Class, gang: Option<&Membership>) {
        let Some(gang) = gang.filter(|_| class.spec.devices.is_some()) else { return };
        if let Some(count) = self.need_devices.get_mut(&gang.name) {
            *count -= 1;
            if *count == 0 {
                self.need_devices.remove(&gang.name);
                self.turned.insert(gang.name.clone());
            }
        }
    }

    /// Returns the gangs of which [`Self::needs_devices`] has changed since the last call.
    pub(super) fn take_turned(&mut self) -> BTreeSet<AllocationName> {
        std::mem::take(&mut self.turned)
    }

    /// Returns whether a member of the gang that waits here needs devices.
    pub(super) fn needs_devices(&self, gang: &AllocationName) -> bool {
        self.need_devices.contains_key(gang)
    }

    /// Returns the pods of this namespace, or of all, that arrived as number `from` or later, in that order.
    pub(super) fn arrived_since(&self, namespace: Option<&str>, from: u64) -> impl Iterator<Item = &Waiting> {
        let pods = match namespace {
            Some(namespace) => self.by_namespace.get(namespace),
            None => Some(&self.by_arrival),
        };
        let pods = pods.into_iter().flat_map(move |pods| pods.range(from..));
        pods.inspect(|_| self.visits.add_one()).filter_map(|(_, uid)| self.by_uid.get(uid))
    }

    /// Returns all pods by uid, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Waiting)> {
        self.by_uid.iter().inspect(|_| self.visits.add_one())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Waiting> {
        self.iter().map(|(_, pod)| pod)
    }

    /// Returns the number of pods that walks have visited.
    pub(super) fn visits(&self) -> u64 {
        self.visits.count()
    }

    /// Returns the pods whose status has a nominated node, in the order of their arrival.
    pub(super) fn nominated(&self) -> Vec<Arc<str>> {
        self.nominated.values().inspect(|_| self.visits.add_one()).cloned().collect()
    }

    /// Returns the namespaces of the pods, in no particular order.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_namespace.keys()
    }

    /// Returns the number of the pod that arrived last.
    pub(super) fn last_arrival(&self) -> u64 {
        self.by_arrival.last_key_value().map_or(0, |(seq, _)| *seq)
    }
}
