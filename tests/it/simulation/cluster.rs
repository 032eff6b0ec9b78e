//! State of the cluster in the API server: pods in a `MemoryStore`, nodes, other objects, and pending watch events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::{Node, Pod, Usage};
use berth_scheduler::objects::{ClusterObject, ObjectKind};
use berth_scheduler::placement::MemoryStore;

use super::objects::{ObjectKey, key_of};
use super::watches::{NODES, PODS};

#[derive(Debug, Clone)]
pub enum PodEvent {
    Applied(Box<Pod>),
    Deleted(Arc<str>),
}

#[derive(Debug, Clone)]
pub enum NodeEvent {
    Applied(Node),
    Deleted(Arc<str>),
}

#[derive(Debug, Clone)]
pub enum ObjectEvent {
    Applied(Box<ClusterObject>),
    Deleted(ObjectKey),
}

impl ObjectEvent {
    pub fn is_of_budget(&self) -> bool {
        match self {
            ObjectEvent::Applied(object) => matches!(**object, ClusterObject::DisruptionBudget(_)),
            ObjectEvent::Deleted((kind, _)) => *kind == ObjectKind::DisruptionBudget,
        }
    }
}

/// Every change goes into a log; a watch is a position in it.
#[derive(Default)]
pub struct Cluster {
    pub store: MemoryStore,
    pub nodes: BTreeMap<Arc<str>, Node>,
    pub objects: BTreeMap<ObjectKey, ClusterObject>,
    pub pod_log: Vec<PodEvent>,
    pub node_log: Vec<NodeEvent>,
    pub object_log: Vec<ObjectEvent>,
    /// Whether the API server is up.
    pub up: bool,
    /// Nodes that may be overcommitted, for reasons that are not berth's.
    pub excused: BTreeSet<Arc<str>>,
    uids: u64,
}

impl Cluster {
    pub fn new_uid(&mut self) -> Arc<str> {
        self.uids += 1;
        format!("u{}", self.uids).into()
    }

    pub fn create_pod(&mut self, pod: Pod) {
        if self.store.create(pod.clone()) {
            self.pod_log.push(PodEvent::Applied(pod.into()));
        }
    }

    pub fn update_pod(&mut self, pod: &Pod, change: impl FnOnce(&mut Pod)) {
        if self.store.get(&pod.namespace, &pod.name).is_some_and(|now| now.uid == pod.uid)
            && let Some(pod) = self.store.update(&pod.namespace, &pod.name, change)
        {
            self.pod_log.push(PodEvent::Applied(pod.into()));
        }
    }

    pub fn delete_pod(&mut self, pod: &Pod) {
        if self.store.get(&pod.namespace, &pod.name).is_some_and(|now| now.uid == pod.uid)
            && self.store.delete(&pod.namespace, &pod.name).is_some()
        {
            self.pod_log.push(PodEvent::Deleted(pod.uid.clone()));
        }
    }

    /// Records that the store was changed by a bind.
    pub fn pod_was_bound(&mut self, namespace: &str, name: &str) {
        if let Some(pod) = self.store.get(namespace, name) {
            self.pod_log.push(PodEvent::Applied(pod.into()));
        }
    }

    pub fn apply_node(&mut self, node: Node) {
        self.nodes.insert(node.name.clone(), node.clone());
        self.node_log.push(NodeEvent::Applied(node));
    }

    pub fn delete_node(&mut self, name: &Arc<str>) {
        self.excused.insert(name.clone());
        if self.nodes.remove(name).is_some() {
            self.node_log.push(NodeEvent::Deleted(name.clone()));
        }
    }

    pub fn apply_object(&mut self, object: ClusterObject) {
        self.objects.insert(key_of(&object), object.clone());
        self.object_log.push(ObjectEvent::Applied(object.into()));
    }

    pub fn delete_object(&mut self, key: &ObjectKey) {
        if self.objects.remove(key).is_some() {
            self.object_log.push(ObjectEvent::Deleted(key.clone()));
        }
    }

    /// Returns the number of events that a watch of this kind can deliver.
    pub fn logged(&self, kind: usize) -> usize {
        match kind {
            PODS => self.pod_log.len(),
            NODES => self.node_log.len(),
            _ => self.object_log.len(),
        }
    }

    /// Returns the usage of live pods on `node`, except the pods `except`.
    pub fn usage_on(&self, node: &str, except: &BTreeSet<Arc<str>>) -> Vec<Arc<Usage>> {
        self.store
            .list()
            .iter()
            .filter(|pod| pod.node_name.as_deref() == Some(node) && !pod.finished)
            .filter(|pod| !except.contains(&pod.uid))
            .map(|pod| pod.usage.clone())
            .collect()
    }
}
