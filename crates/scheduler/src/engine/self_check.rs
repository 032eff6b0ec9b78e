//! Self-check: invariants, recounts, and comparison with lists of the API server, in slices.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::{Engine, Operation};
use crate::invariants::Violation;
use crate::inventory::{Discrepancy, NodeId};
use crate::recording::Input;
use crate::scheduler::{PodWalk, Scheduler};
use berth_model::{Node, Pod};

/// Objects that are compared or repaired under one acquisition of the lock.
const SLICE_MAX: usize = 128;

impl Engine {
    /// Returns violated invariants. Changes nothing. The last of its slices counts the queues: bounded by the number of waiting pods.
    pub fn check_invariants(&self) -> Vec<Violation> {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (of_pods, more) =
                self.read(Operation::SelfCheck, |scheduler, _| scheduler.check_pods_from(from));
            found.extend(of_pods);
            next = more;
        }
        found.extend(self.read(Operation::SelfCheck, |scheduler, _| scheduler.check_queues()));
        found
    }

    /// Recounts the resource sums of all nodes and quotas, corrects them and returns the wrong ones. The last of its slices recounts
    /// the quotas, and is bounded by the number of pods if there are any.
    pub fn heal(&self) -> Vec<Discrepancy> {
        let (mut wrong, mut next) = (Vec::new(), Some(NodeId(0)));
        while let Some(node) = next {
            let heard = self.heard(|| Input::Heal { from: node });
            let (found, more) =
                self.hear(Operation::SelfCheck, heard, |scheduler, _| scheduler.heal_from(node));
            wrong.extend(found);
            next = more;
        }
        wrong
    }

    /// Returns those of these live pods that the state lacks or has otherwise.
    pub fn differing_pods(&self, pods: Vec<Pod>) -> Vec<Pod> {
        self.differing(pods, Scheduler::knows)
    }

    /// Returns those of these nodes that the state lacks or has otherwise.
    pub fn differing_nodes(&self, nodes: Vec<Node>) -> Vec<Node> {
        self.differing(nodes, Scheduler::knows_node)
    }

    fn differing<T>(&self, objects: Vec<T>, knows: impl Fn(&Scheduler, &T) -> bool) -> Vec<T> {
        let mut known = Vec::with_capacity(objects.len());
        for slice in objects.chunks(SLICE_MAX) {
            self.read(Operation::SelfCheck, |scheduler, _| {
                known.extend(slice.iter().map(|object| knows(scheduler, object)))
            });
        }
        objects.into_iter().zip(known).filter_map(|(object, known)| (!known).then_some(object)).collect()
    }

    /// Returns the known pods of a namespace that are not listed.
    pub fn unlisted_pods(&self, namespace: &str, is_listed: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let (mut unlisted, mut walk) = (Vec::new(), PodWalk::default());
        loop {
            let known =
                self.read(Operation::SelfCheck, |scheduler, _| scheduler.known_pods(namespace, &mut walk));
            if known.is_empty() {
                return unlisted;
            }
            unlisted.extend(known.into_iter().filter(|uid| !is_listed(uid)));
        }
    }

    /// Returns the namespaces of all known pods. Bounded by their number.
    pub fn pod_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.read(Operation::SelfCheck, |scheduler, _| scheduler.pod_namespaces().cloned().collect())
    }

    /// Returns the pods with a reservation that are not waiting pods of this scheduler. Bounded by the number of nominated pods.
    pub fn reserved_for_others(&self) -> BTreeSet<Arc<str>> {
        self.read(Operation::SelfCheck, |scheduler, _| scheduler.reserved_for_others().cloned().collect())
    }

    /// Returns the known nodes that are not listed.
    pub fn unlisted_nodes(&self, listed: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let (mut unlisted, mut next) = (Vec::new(), Some(NodeId(0)));
        while let Some(node) = next {
            next = self.read(Operation::SelfCheck, |scheduler, _| {
                let (names, more) = scheduler.inventory().node_names_from(node, SLICE_MAX);
                unlisted.extend(names.filter(|name| !listed.contains(*name)).cloned());
                more
            });
        }
        unlisted
    }

    /// Takes over the state of the API server for a pod that differs.
    pub fn mend_pod(&self, pod: Pod) {
        let heard = self.heard(|| Input::MendPod(Cow::Borrowed(&pod)));
        self.hear(Operation::SelfCheck, heard, |scheduler, now| scheduler.mend_pod(pod, now));
    }

    /// Forgets a pod that does not exist.
    pub fn mend_pod_gone(&self, uid: &Arc<str>) {
        let heard = self.heard(|| Input::MendPodGone(uid.clone()));
        self.hear(Operation::SelfCheck, heard, |scheduler, _| scheduler.mend_pod_gone(uid));
    }

    /// Takes over the state of the API server for a node that differs.
    pub fn mend_node(&self, node: Node) {
        let heard = self.heard(|| Input::MendNode(Cow::Borrowed(&node)));
        self.hear(Operation::SelfCheck, heard, |scheduler, _| scheduler.mend_node(node));
    }

    /// Forgets a node that does not exist.
    pub fn mend_node_gone(&self, name: &str) {
        let heard = self.heard(|| Input::MendNodeGone(name.into()));
        self.hear(Operation::SelfCheck, heard, |scheduler, _| scheduler.mend_node_gone(name));
    }
}
