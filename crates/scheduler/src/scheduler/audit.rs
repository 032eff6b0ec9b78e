//! Self-check: compares the scheduler's state with the objects of the API server, page by page.

use std::sync::Arc;
use std::time::Duration;

use super::charge_walks::SLICE_MAX;
use super::{Scheduler, State};
use berth_model::{Node, Pod};

/// A difference between the scheduler's state and the API server. While a watch lags behind a list, differences are
/// normal; a difference that is found again unchanged later is an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateDifference {
    /// The pod is not charged to its node, or is not queued though it should be.
    Pod { uid: Arc<str>, node: Option<Arc<str>> },
    /// The scheduler has the pod, but it does not exist.
    PodGone { uid: Arc<str> },
    /// The scheduler's copy of the node differs or is missing.
    Node { name: Arc<str> },
    /// The scheduler has the node, but it does not exist.
    NodeGone { name: Arc<str> },
}

/// How far the known pods of one namespace have been visited: those with a node by uid, then those without in the order of their
/// arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodWalk {
    /// The uid of the pod that was visited last.
    Charged(Option<Arc<str>>),
    /// Number of the next pod.
    Waiting(u64),
}

impl Default for PodWalk {
    fn default() -> Self {
        PodWalk::Charged(None)
    }
}

impl Scheduler {
    /// Returns whether the state agrees with this live pod.
    pub fn knows(&self, pod: &Pod) -> bool {
        let charge = self.cluster.ledger.charge_of(&pod.uid);
        match &pod.node_name {
            _ if pod.finished => charge.is_none(),
            Some(node) => charge.is_some_and(|charge| {
                self.inventory().name(charge.node) == node && charge.holding.usage == pod.usage
            }),
            None if !self.cluster.schedules(pod) || pod.deleting => true,
            // Either assumed on a node, or waiting.
            None => charge.is_some() || self.cluster.waiting.contains_key(&pod.uid),
        }
    }

    /// Returns whether the state agrees with this node.
    pub fn knows_node(&self, node: &Node) -> bool {
        let row = self.inventory().find(&node.name).map(|id| self.inventory().row(id));
        row.and_then(|row| row.node.as_deref()) == Some(node)
    }

    /// Returns the uids of some known pods of a namespace; none: all have been visited.
    pub fn known_pods(&self, namespace: &str, walk: &mut PodWalk) -> Vec<Arc<str>> {
        if let PodWalk::Charged(after) = walk {
            let charged = self.cluster.ledger.charged_in(namespace, after.as_ref(), SLICE_MAX);
            if let Some(last) = charged.last() {
                *after = Some(last.clone());
                return charged;
            }
            *walk = PodWalk::Waiting(0);
        }
        let PodWalk::Waiting(from) = walk else { return Vec::new() };
        let waiting = self.cluster.waiting.arrived_since(Some(namespace), *from).take(SLICE_MAX);
        let waiting: Vec<_> = waiting.map(|pod| (pod.seq, pod.pod.uid.clone())).collect();
        *from = waiting.last().map_or(*from, |(seq, _)| seq + 1);
        waiting.into_iter().map(|(_, uid)| uid).collect()
    }

    /// Returns the namespaces of all known pods, in no particular order, some twice.
    pub fn pod_namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.cluster.ledger.namespaces().chain(self.cluster.waiting.namespaces())
    }

    /// Returns the pods with a reservation that are not waiting pods of this scheduler, in no particular order.
    pub fn reserved_for_others(&self) -> impl Iterator<Item = &Arc<str>> {
        self.cluster.ledger.reserved().filter(|uid| !self.cluster.waiting.contains_key(uid))
    }

    /// Applies the state of the API server for a pod that differs.
    pub fn mend_pod(&mut self, pod: Pod, now: Duration) {
        self.stats.healed += 1;
        self.apply_pod(pod, now);
    }

    /// Forgets a pod that does not exist.
    pub fn mend_pod_gone(&mut self, uid: &Arc<str>) {
        self.stats.healed += 1;
        // A bind in flight will report the deletion itself.
        if !self.cluster.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Binding) {
            self.delete_pod(uid);
        }
    }

    /// Applies the state of the API server for a node that differs.
    pub fn mend_node(&mut self, node: Node) {
        self.stats.healed += 1;
        self.apply_node(node);
    }

    /// Forgets a node that does not exist.
    pub fn mend_node_gone(&mut self, name: &str) {
        self.stats.healed += 1;
        self.delete_node(name);
    }
}
