//! Self-check: compares the scheduler's state with the objects of the API server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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

impl Scheduler {
    /// Compares with a complete list of live pods and nodes. Sorted.
    pub fn differences(&self, pods: &[Pod], nodes: &[Node]) -> Vec<StateDifference> {
        let mut found = Vec::new();
        let listed: HashMap<&str, &Pod> = pods.iter().map(|pod| (&*pod.uid, pod)).collect();
        for pod in pods {
            if !self.knows(pod) {
                found.push(StateDifference::Pod { uid: pod.uid.clone(), node: pod.node_name.clone() });
            }
        }
        let gone = |uid: &&Arc<str>| !listed.contains_key(&***uid);
        let known = self
            .cluster
            .ledger
            .charged()
            .chain(self.cluster.waiting.keys())
            .chain(self.cluster.ledger.reserved());
        found.extend(known.filter(gone).map(|uid| StateDifference::PodGone { uid: uid.clone() }));

        let inventory = self.inventory();
        let listed: HashMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        for node in nodes {
            let row = inventory.find(&node.name).map(|id| inventory.row(id));
            if row.and_then(|row| row.node.as_deref()) != Some(node) {
                found.push(StateDifference::Node { name: node.name.clone() });
            }
        }
        let gone = inventory.node_names().filter(|name| !listed.contains_key(&***name));
        found.extend(gone.map(|name| StateDifference::NodeGone { name: name.clone() }));
        found.sort();
        found.dedup();
        found
    }

    fn knows(&self, pod: &Pod) -> bool {
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

    /// Applies the API server's state for each of these differences. Returns the number repaired.
    pub fn mend(
        &mut self,
        differences: &[StateDifference],
        pods: &[Pod],
        nodes: &[Node],
        now: Duration,
    ) -> usize {
        let pods: HashMap<&str, &Pod> = pods.iter().map(|pod| (&*pod.uid, pod)).collect();
        let nodes: HashMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        for difference in differences {
            match difference {
                StateDifference::Pod { uid, .. } => {
                    if let Some(pod) = pods.get(&**uid) {
                        self.apply_pod((*pod).clone(), now);
                    }
                }
                StateDifference::PodGone { uid } => {
                    // A bind in flight will report the deletion itself.
                    if !self.cluster.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Binding) {
                        self.delete_pod(uid);
                    }
                }
                StateDifference::Node { name } => {
                    if let Some(node) = nodes.get(&**name) {
                        self.apply_node((*node).clone());
                    }
                }
                StateDifference::NodeGone { name } => {
                    self.delete_node(name);
                }
            }
        }
        self.stats.healed += differences.len() as u64;
        differences.len()
    }
}
