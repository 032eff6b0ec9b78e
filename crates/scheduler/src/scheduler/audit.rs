//! The self-check: what the scheduler believes against what the API server has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Scheduler, State};
use berth_model::{Node, Pod};

/// Something that the scheduler has otherwise than the API server. Between a list and a watch that lags, differences are
/// ordinary; one that is found again unchanged some time later is an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Difference {
    /// This pod is not charged to the node it is on, or does not wait though it should.
    Pod { uid: Arc<str>, node: Option<Arc<str>> },
    /// This pod is known, and does not exist.
    PodGone { uid: Arc<str> },
    /// This node is known otherwise, or not at all.
    Node { name: Arc<str> },
    /// This node is known, and does not exist.
    NodeGone { name: Arc<str> },
}

impl Scheduler {
    /// Compares with a complete list of live pods and nodes. Sorted.
    pub fn differences(&self, pods: &[Pod], nodes: &[Node]) -> Vec<Difference> {
        let mut found = Vec::new();
        let listed: HashMap<&str, &Pod> = pods.iter().map(|pod| (&*pod.uid, pod)).collect();
        for pod in pods {
            if !self.knows(pod) {
                found.push(Difference::Pod { uid: pod.uid.clone(), node: pod.node_name.clone() });
            }
        }
        let gone = |uid: &&Arc<str>| !listed.contains_key(&***uid);
        let known = self.ledger.charged().chain(self.waiting.keys()).chain(self.ledger.reserved());
        found.extend(known.filter(gone).map(|uid| Difference::PodGone { uid: uid.clone() }));

        let inventory = self.inventory();
        let listed: HashMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        for node in nodes {
            let row = inventory.find(&node.name).map(|id| inventory.row(id));
            if row.and_then(|row| row.node.as_deref()) != Some(node) {
                found.push(Difference::Node { name: node.name.clone() });
            }
        }
        let gone = inventory.node_names().filter(|name| !listed.contains_key(&***name));
        found.extend(gone.map(|name| Difference::NodeGone { name: name.clone() }));
        found.sort();
        found.dedup();
        found
    }

    fn knows(&self, pod: &Pod) -> bool {
        let charge = self.ledger.charge_of(&pod.uid);
        match &pod.node_name {
            _ if pod.finished => charge.is_none(),
            Some(node) => charge.is_some_and(|charge| {
                self.inventory().name(charge.node) == node && charge.holding.usage == pod.usage
            }),
            None if !self.is_ours(pod) || pod.deleting => true,
            // Assumed on a node, or waiting.
            None => charge.is_some() || self.waiting.contains_key(&pod.uid),
        }
    }

    /// Takes over what the API server has, for each of these differences. Returns how many were mended.
    pub fn mend(&mut self, differences: &[Difference], pods: &[Pod], nodes: &[Node], now: Duration) -> usize {
        let pods: HashMap<&str, &Pod> = pods.iter().map(|pod| (&*pod.uid, pod)).collect();
        let nodes: HashMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        for difference in differences {
            match difference {
                Difference::Pod { uid, .. } => {
                    if let Some(pod) = pods.get(&**uid) {
                        self.apply_pod((*pod).clone(), now);
                    }
                }
                Difference::PodGone { uid } => {
                    // A bind in flight will find out by itself.
                    if !self.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Binding) {
                        self.delete_pod(uid);
                    }
                }
                Difference::Node { name } => {
                    if let Some(node) = nodes.get(&**name) {
                        self.apply_node((*node).clone());
                    }
                }
                Difference::NodeGone { name } => {
                    self.delete_node(name);
                }
            }
        }
        self.stats.healed += differences.len() as u64;
        differences.len()
    }
}
