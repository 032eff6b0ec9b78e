//! Cluster events: what the watches deliver, and whether they have delivered everything once.
//!
//! An event of one pod or node takes time in proportion to that object, beside waking the agents. Pods that the change of another
//! object concerns are only marked, and classified again at the next tick or task.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use super::{Engine, Operation};
use crate::hints::{Hint, Taken};
use crate::inventory::NodeId;
use crate::objects::{ClusterObject, ObjectKind, ObjectName};
use crate::recording::Input;
use berth_model::{Node, Pod};

impl Engine {
    /// Upserts a pod of any scheduler: queues it, or charges it to its node.
    pub fn apply_pod(&self, pod: Pod) {
        let heard = self.heard(|| Input::Pod(Cow::Borrowed(&pod)));
        self.hear(Operation::PodEvent, heard, |scheduler, now| scheduler.apply_pod(pod, now));
    }

    /// Forgets a pod and releases what it is charged for.
    pub fn delete_pod(&self, uid: &Arc<str>) {
        let heard = self.heard(|| Input::PodGone(uid.clone()));
        self.hear(Operation::PodEvent, heard, |scheduler, _| scheduler.delete_pod(uid));
    }

    /// Ends a list of pods: forgets all other pods. Returns [`Engine::synced`]. In slices of a few hundred pods; the last one is
    /// bounded by the number of waiting pods of other schedulers.
    pub fn retain_pods(&self, uids: &HashSet<Arc<str>>) -> bool {
        let (mut listed, mut next) = (Some(Cow::Borrowed(uids)), Some(NodeId(0)));
        while let Some(from) = next {
            let heard = self.heard(|| Input::RetainPods { listed: listed.take(), from });
            next =
                self.hear(Operation::PodList, heard, |scheduler, _| scheduler.retain_pods_from(uids, from));
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let heard = self.heard(|| Input::RetainWaiting { from });
            next = self
                .hear(Operation::PodList, heard, |scheduler, _| scheduler.retain_waiting_from(uids, from));
        }
        let heard = self.heard(|| Input::FinishPodList);
        self.hear(Operation::PodList, heard, |scheduler, _| {
            scheduler.finish_pod_list(uids);
            scheduler.synced()
        })
    }

    /// Upserts a node.
    pub fn apply_node(&self, node: Node) {
        let heard = self.heard(|| Input::Node(Cow::Borrowed(&node)));
        self.hear(Operation::NodeEvent, heard, |scheduler, _| scheduler.apply_node(node));
    }

    /// Removes a node. Pods on it stay charged until they are deleted.
    pub fn delete_node(&self, name: &str) {
        let heard = self.heard(|| Input::NodeGone(name.into()));
        self.hear(Operation::NodeEvent, heard, |scheduler, _| scheduler.delete_node(name));
    }

    /// Ends a list of nodes: removes all other nodes. Returns [`Engine::synced`]. In slices of a few hundred nodes.
    pub fn retain_nodes(&self, names: &HashSet<Arc<str>>) -> bool {
        let (mut listed, mut next) = (Some(Cow::Borrowed(names)), Some(NodeId(0)));
        while let Some(from) = next {
            let heard = self.heard(|| Input::RetainNodes { listed: listed.take(), from });
            next = self
                .hear(Operation::NodeList, heard, |scheduler, _| scheduler.retain_nodes_from(names, from));
        }
        self.synced()
    }

    /// Upserts an object of another kind. Marks the pods that it concerns, which are classified again in slices.
    pub fn apply_object(&self, object: ClusterObject) {
        let heard = self.heard(|| Input::Object(Cow::Borrowed(&object)));
        self.hear(Operation::ObjectEvent, heard, |scheduler, _| scheduler.apply_object(object));
    }

    /// Removes an object of another kind. Bounded as [`Engine::apply_object`].
    pub fn delete_object(&self, kind: ObjectKind, object: &ObjectName) {
        let heard = self.heard(|| Input::ObjectGone(kind, Cow::Borrowed(object)));
        self.hear(Operation::ObjectEvent, heard, |scheduler, _| scheduler.delete_object(kind, object));
    }

    /// Ends a list of objects of this kind: removes all others. Returns [`Engine::synced`]. Bounded by the number of known objects of
    /// the kind, and for each that is removed as [`Engine::apply_object`].
    pub fn retain_objects(&self, kind: ObjectKind, listed: &HashSet<ObjectName>) -> bool {
        let heard = self.heard(|| Input::RetainObjects(kind, Cow::Borrowed(listed)));
        self.hear(Operation::ObjectList, heard, |scheduler, _| {
            scheduler.retain_objects(kind, listed);
            scheduler.synced()
        })
    }

    /// Replaces all placement hints, and marks the waiting pods whose terms change. Bounded by waiting pods times hints.
    pub fn hints_changed(&self, hints: Vec<Hint>) -> Taken {
        let heard = self.heard(|| Input::Hints(Cow::Borrowed(&hints)));
        self.hear(Operation::Hints, heard, |scheduler, _| scheduler.hints_changed(hints))
    }

    /// Whether nodes, pods and all other kinds have been listed once. Nothing is scheduled before. Constant time.
    pub fn synced(&self) -> bool {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.synced())
    }

    /// Removes from `uids` the pods that are charged to a node, in slices.
    pub fn retain_uncharged(&self, uids: &mut Vec<String>) {
        const SLICE_MAX: usize = 256;
        let mut charged = Vec::with_capacity(uids.len());
        for slice in uids.chunks(SLICE_MAX) {
            self.read(Operation::Snapshot, |scheduler, _| {
                charged.extend(slice.iter().map(|uid| scheduler.ledger().charge_of(uid).is_some()));
            });
        }
        let mut charged = charged.into_iter();
        uids.retain(|_| charged.next() == Some(false));
    }
}
