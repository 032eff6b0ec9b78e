//! Storage and devices of nodes, keyed by the names other objects use for nodes. An entry may arrive before its node.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{NodeId, Row};
use crate::sharded::ShardedMap;
use berth_devices::NodeDevices;
use berth_model::{NodeStorage, ProvidedResources, StaticVolume};

const HOSTNAME: &str = "kubernetes.io/hostname";

#[derive(Debug, Default)]
pub(super) struct Storage {
    /// By node name.
    by_node: ShardedMap<Arc<NodeStorage>>,
    /// By the label `kubernetes.io/hostname`.
    by_host: ShardedMap<Arc<Vec<Arc<StaticVolume>>>>,
    /// Devices by the name of the node, if the node has some of its own.
    devices: ShardedMap<Arc<NodeDevices>>,
    /// Devices of all other nodes.
    shared_devices: Option<Arc<NodeDevices>>,
    /// Extended resources that devices provide.
    provided: Option<Arc<ProvidedResources>>,
    /// Rows of each host; usually one.
    hosts: ShardedMap<BTreeSet<NodeId>>,
    /// The host of each row, by id.
    host_of: Vec<Option<Arc<str>>>,
}

impl Storage {
    pub fn set_node(&mut self, node: &Arc<str>, storage: Option<NodeStorage>) {
        match storage {
            Some(storage) => drop(self.by_node.insert(node.clone(), storage.into())),
            None => drop(self.by_node.remove(node)),
        }
    }

    /// Sets the devices of a node; `None`: it has none of its own.
    pub fn set_devices(&mut self, node: &Arc<str>, devices: Option<Arc<NodeDevices>>) {
        match devices {
            Some(devices) => drop(self.devices.insert(node.clone(), devices)),
            None => drop(self.devices.remove(node)),
        }
    }

    /// Sets the devices of the nodes that have none of their own.
    pub fn set_shared_devices(&mut self, devices: Option<Arc<NodeDevices>>) {
        self.shared_devices = devices;
    }

    /// Sets the extended resources that devices provide to nodes which do not have them.
    pub fn set_provided(&mut self, provided: Option<Arc<ProvidedResources>>) {
        self.provided = provided;
    }

    /// Sets the local volumes of a host. Returns the rows of that host.
    pub fn set_host(
        &mut self,
        host: &Arc<str>,
        volumes: Option<Arc<Vec<Arc<StaticVolume>>>>,
    ) -> BTreeSet<NodeId> {
        match volumes {
            Some(volumes) => drop(self.by_host.insert(host.clone(), volumes)),
            None => drop(self.by_host.remove(host)),
        }
        self.hosts.get(host).cloned().unwrap_or_default()
    }

    /// Updates the host of this row after its node changed.
    pub fn node_changed(&mut self, id: NodeId, row: &mut Row) {
        let host = row.node.as_ref().and_then(|node| node.labels.get(HOSTNAME)).map(Arc::<str>::from);
        if self.host_of.len() <= id.index() {
            self.host_of.resize(id.index() + 1, None);
        }
        if self.host_of[id.index()] != host {
            if let Some(old) = self.host_of[id.index()].take()
                && let Some(rows) = self.hosts.get_mut(&old)
            {
                rows.remove(&id);
                if rows.is_empty() {
                    self.hosts.remove(&old);
                }
            }
            if let Some(host) = &host {
                match self.hosts.get_mut(host) {
                    Some(rows) => drop(rows.insert(id)),
                    None => drop(self.hosts.insert(host.clone(), BTreeSet::from([id]))),
                }
            }
            self.host_of[id.index()] = host;
        }
        self.fill(row);
    }

    /// Sets the storage and the devices of the row from its node.
    pub fn fill(&self, row: &mut Row) {
        let node = row.node.as_deref();
        row.storage = node.and_then(|node| self.by_node.get(&node.name)).cloned();
        let own = node.and_then(|node| self.devices.get(&node.name));
        row.devices = own.or(self.shared_devices.as_ref().filter(|_| node.is_some())).cloned();
        row.provided = self.provided.as_ref().filter(|_| node.is_some()).cloned();
        row.local_volumes = node.and_then(|node| self.by_host.get(node.labels.get(HOSTNAME)?)).cloned();
    }
}
