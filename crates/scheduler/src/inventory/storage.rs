//! Storage of nodes, keyed by the names other objects use for nodes. An entry may arrive before its node.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{NodeId, Row};
use berth_model::{NodeStorage, StaticVolume};

const HOSTNAME: &str = "kubernetes.io/hostname";

#[derive(Debug, Default)]
pub(super) struct Storage {
    /// By node name.
    by_node: HashMap<Arc<str>, Arc<NodeStorage>>,
    /// By the label `kubernetes.io/hostname`.
    by_host: HashMap<Arc<str>, Arc<Vec<Arc<StaticVolume>>>>,
    /// Rows of each host; usually one.
    hosts: HashMap<Arc<str>, BTreeSet<NodeId>>,
    host_of: HashMap<NodeId, Arc<str>>,
}

impl Storage {
    pub fn set_node(&mut self, node: &Arc<str>, storage: Option<NodeStorage>) {
        match storage {
            Some(storage) => self.by_node.insert(node.clone(), storage.into()),
            None => self.by_node.remove(node),
        };
    }

    /// Sets the local volumes of a host. Returns the rows of that host.
    pub fn set_host(
        &mut self,
        host: &Arc<str>,
        volumes: Option<Arc<Vec<Arc<StaticVolume>>>>,
    ) -> BTreeSet<NodeId> {
        match volumes {
            Some(volumes) => self.by_host.insert(host.clone(), volumes),
            None => self.by_host.remove(host),
        };
        self.hosts.get(host).cloned().unwrap_or_default()
    }

    /// Updates the host of this row after its node changed.
    pub fn node_changed(&mut self, id: NodeId, row: &mut Row) {
        let host = row.node.as_ref().and_then(|node| node.labels.get(HOSTNAME)).map(Arc::<str>::from);
        if self.host_of.get(&id) != host.as_ref() {
            if let Some(old) = self.host_of.remove(&id)
                && let Some(rows) = self.hosts.get_mut(&old)
            {
                rows.remove(&id);
                if rows.is_empty() {
                    self.hosts.remove(&old);
                }
            }
            if let Some(host) = host {
                self.hosts.entry(host.clone()).or_default().insert(id);
                self.host_of.insert(id, host);
            }
        }
        self.fill(row);
    }

    /// Sets the storage fields of the row from its node.
    pub fn fill(&self, row: &mut Row) {
        let node = row.node.as_deref();
        row.storage = node.and_then(|node| self.by_node.get(&node.name)).cloned();
        row.local_volumes = node.and_then(|node| self.by_host.get(node.labels.get(HOSTNAME)?)).cloned();
    }
}
