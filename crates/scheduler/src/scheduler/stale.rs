//! Marks of waiting pods whose class may have changed.
//!
//! Marking is cheap and may happen many times; the pods are selected once, before the next decision. Reads the waiting
//! pods; changes nothing but its own marks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Waiting;
use berth_model::{Pod, PodOwner};

/// Waiting pods to be reclassified.
#[derive(Debug, Default)]
pub(super) struct Stale {
    everyone: bool,
    namespaces: BTreeSet<Arc<str>>,
    /// All pods with claims.
    claimants: bool,
    /// By uid.
    pods: BTreeSet<Arc<str>>,
    /// Namespace and name of a controller.
    owners: BTreeSet<(Arc<str>, Arc<str>)>,
}

impl Stale {
    pub(super) fn is_empty(&self) -> bool {
        self.only_some() && self.pods.is_empty()
    }

    pub(super) fn mark_all(&mut self) {
        self.everyone = true;
    }

    pub(super) fn mark_namespace(&mut self, namespace: Arc<str>) {
        self.namespaces.insert(namespace);
    }

    pub(super) fn mark_owned(&mut self, namespace: Arc<str>, owner: Arc<str>) {
        self.owners.insert((namespace, owner));
    }

    /// Marks all pods with claims.
    pub(super) fn mark_claimants(&mut self) {
        self.claimants = true;
    }

    pub(super) fn mark_pod(&mut self, uid: &Arc<str>) {
        self.pods.insert(uid.clone());
    }

    /// Takes the marked pods that have no node yet, as last observed, in the order of their arrival. A pod with a node
    /// is reclassified if it loses it.
    pub(super) fn take(&mut self, waiting: &HashMap<Arc<str>, Waiting>) -> Vec<Pod> {
        let stale = std::mem::take(self);
        let source = |pod: &Waiting| (!pod.state.has_node()).then(|| (pod.seq, Pod::clone(&pod.source)));
        let mut pods: Vec<_> = if stale.only_some() {
            stale.pods.iter().filter_map(|uid| source(waiting.get(uid)?)).collect()
        } else {
            waiting.values().filter(|pod| stale.concerns(&pod.source)).filter_map(source).collect()
        };
        pods.sort_by_key(|(seq, _)| *seq);
        pods.into_iter().map(|(_, pod)| pod).collect()
    }

    /// Returns whether no pods other than those in `pods` are marked.
    fn only_some(&self) -> bool {
        !self.everyone && !self.claimants && self.namespaces.is_empty() && self.owners.is_empty()
    }

    fn concerns(&self, pod: &Pod) -> bool {
        let namespace = &pod.peer.identity.namespace;
        let owned = |owner: &PodOwner| self.owners.contains(&(namespace.clone(), owner.name.clone()));
        self.everyone
            || self.claimants && pod.volumes.is_some()
            || self.namespaces.contains(namespace)
            || !self.owners.is_empty() && pod.owner.as_ref().is_some_and(owned)
            || self.pods.contains(&pod.uid)
    }
}
