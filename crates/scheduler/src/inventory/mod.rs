//! Node rows, their journal, and the ledger of bound and assumed pods.
//!
//! May not know: kube, tokio, clocks. Every change to a row gives it the next global revision and moves it to the head
//! of the journal; agents copy the rows newer than the revision they have seen ([`Inventory::changes_after`]).

mod journal;
mod ledger;
mod row;
mod shares;
mod storage;
mod tiers;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use journal::{Change, Journal};
pub use ledger::{Charge, Conflict, Discrepancy, Ledger, Occupant};
pub use row::{GRANTED, KEPT_FROM_ALL, Peers, Reservation, Row, VolumesInUse};
pub use shares::QuotaShares;
use storage::Storage;
pub use tiers::{Held, Tier, Tiers};

use crate::quota::Sums;
use crate::sharded::ShardedMap;
use crate::visits::Visits;
use berth_devices::NodeDevices;
use berth_model::{Holding, Node, NodeStorage, ProvidedResources, StaticVolume};

/// Number that grows with every change of any row; 0 is before every change.
pub type Revision = u64;

/// Dense id of a node: an index into the rows. It is reused once the node is deleted and its last pod is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Up to this number of nodes, no row is moved to make room for another one, which takes long with many. It costs address space only:
/// memory that was never written is not there.
const ROWS_RESERVED: usize = 1 << 17;

/// All nodes, each with the sums of its pods.
#[derive(Debug, Default)]
pub struct Inventory {
    rows: Vec<Row>,
    names: Vec<Arc<str>>,
    ids: ShardedMap<NodeId>,
    vacant: Vec<NodeId>,
    journal: Journal,
    revision: Revision,
    loosened: Revision,
    /// Number of times an id was assigned or released.
    named: u64,
    nodes: usize,
    storage: Storage,
    /// Of all nodes together.
    allocatable: Sums,
    visits: Visits,
}

impl Inventory {
    /// Upserts a node. Returns whether that changes the input of any rule.
    pub fn apply_node(&mut self, node: Node) -> bool {
        let id = self.id_of(&node.name);
        let row = &mut self.rows[id.index()];
        if row.node.as_deref() == Some(&node) {
            return false;
        }
        match &row.node {
            Some(before) => self.allocatable.sub(&Sums::of_node(before)),
            None => self.nodes += 1,
        }
        self.allocatable.add(&Sums::of_node(&node));
        row.set_node(Some(Arc::new(node)));
        self.storage.node_changed(id, row);
        self.touch(id);
        self.rows[id.index()].node_revision = self.revision;
        self.loosened = self.revision;
        true
    }

    /// Deletes a node. Pods bound to it stay counted until they are gone too.
    pub fn delete_node(&mut self, name: &str) -> bool {
        let Some(&id) = self.ids.get(name) else {
            return false;
        };
        let row = &mut self.rows[id.index()];
        let Some(before) = &row.node else { return false };
        self.allocatable.sub(&Sums::of_node(before));
        row.set_node(None);
        self.storage.node_changed(id, row);
        self.nodes -= 1;
        self.touch(id);
        self.rows[id.index()].node_revision = self.revision;
        // No pod fits better now, but the FailedScheduling message of parked classes counts the nodes.
        self.loosened = self.revision;
        self.vacate(id);
        true
    }

    /// Returns the allocatable resources of all nodes together.
    pub fn allocatable(&self) -> &Sums {
        &self.allocatable
    }

    /// Returns the names of all existing nodes, by id.
    pub fn node_names(&self) -> impl Iterator<Item = &Arc<str>> {
        let rows = self.rows.iter().inspect(|_| self.visits.add_one());
        rows.zip(&self.names).filter(|(row, _)| row.node.is_some()).map(|(_, name)| name)
    }

    /// Returns the names of the existing nodes among the next `most` ids, from this one on; and the id after these, `None` after
    /// the last one.
    pub fn node_names_from(
        &self,
        first: NodeId,
        most: usize,
    ) -> (impl Iterator<Item = &Arc<str>>, Option<NodeId>) {
        let last = self.rows.len().min(first.index() + most);
        let slice =
            self.rows[first.index().min(last)..last].iter().zip(&self.names[first.index().min(last)..last]);
        let names = slice.filter(|(row, _)| row.node.is_some()).map(|(_, name)| name);
        (names, (last < self.rows.len()).then_some(NodeId(last as u32)))
    }

    /// Returns all rows, including those of deleted nodes.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().inspect(|_| self.visits.add_one())
    }

    /// Returns the number of rows that walks have visited.
    pub fn visits(&self) -> u64 {
        self.visits.count()
    }

    /// Returns all existing nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.rows().filter_map(|row| row.node.as_ref())
    }

    /// Returns the number of existing nodes.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// Returns the number of ids; every id is below it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn row(&self, id: NodeId) -> &Row {
        &self.rows[id.index()]
    }

    pub fn name(&self, id: NodeId) -> &Arc<str> {
        &self.names[id.index()]
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    /// Returns a number that changes whenever an id is assigned or released. While it is the same, so is
    /// [`names`](Self::names).
    pub fn named(&self) -> u64 {
        self.named
    }

    /// Returns all names that have an id, by id.
    pub fn names(&self) -> impl Iterator<Item = (NodeId, &Arc<str>)> {
        let ids = (0..).map(NodeId);
        ids.zip(&self.names).zip(self.rows()).filter(|(_, row)| !row.is_vacant()).map(|(named, _)| named)
    }

    /// Returns the revision of the latest change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the revision of the latest change that can help an unschedulable class: resources were freed, or a node
    /// was added, changed or deleted.
    pub fn loosened(&self) -> Revision {
        self.loosened
    }

    /// Returns the changes after `seen`, oldest first. A row whose revision is another one has changed again.
    pub fn changes_after(&self, seen: Revision) -> &[Change] {
        self.journal.after(seen)
    }

    fn charge(&mut self, id: NodeId, holding: &Holding) {
        self.rows[id.index()].charge(holding);
        self.touch(id);
    }

    fn discharge(&mut self, id: NodeId, holding: &Holding) {
        self.rows[id.index()].discharge(holding);
        self.touch(id);
        self.loosened = self.revision;
        self.vacate(id);
    }

    fn reserve(&mut self, id: NodeId, reservation: Reservation) {
        Arc::make_mut(self.rows[id.index()].reserved.get_or_insert_default()).push(reservation);
        self.touch(id);
    }

    fn unreserve(&mut self, id: NodeId, uid: &str) {
        self.rows[id.index()].unreserve(uid);
        self.touch(id);
        self.loosened = self.revision;
        self.vacate(id);
    }

    /// Replaces the sums of the row by those of `fresh`.
    fn replace_sums(&mut self, id: NodeId, fresh: Row) {
        let row = &mut self.rows[id.index()];
        let node = row.node.take();
        let reserved = row.reserved.take();
        *row = Row { node_revision: row.node_revision, reserved, ..fresh };
        row.set_node(node);
        self.storage.fill(row);
        self.touch(id);
        self.loosened = self.revision;
    }

    /// Sets the CSI storage of the named node.
    fn set_storage(&mut self, node: &Arc<str>, storage: Option<NodeStorage>) {
        self.storage.set_node(node, storage);
        if let Some(id) = self.find(node) {
            self.storage_changed(id);
        }
    }

    /// Sets the free volumes that only few hosts besides this one can reach.
    fn set_local_volumes(&mut self, host: &Arc<str>, volumes: Option<Arc<Vec<Arc<StaticVolume>>>>) {
        for id in self.storage.set_host(host, volumes) {
            self.storage_changed(id);
        }
    }

    /// Sets the devices of a node; `None`: it has none of its own. `freed`: some of them may serve where they did not.
    fn set_devices(&mut self, node: &Arc<str>, devices: Option<Arc<NodeDevices>>, freed: bool) {
        self.storage.set_devices(node, devices);
        if let Some(id) = self.find(node) {
            self.devices_changed(id, freed);
        }
    }

    /// Sets the devices of the nodes that have none of their own.
    fn set_shared_devices(&mut self, devices: Option<Arc<NodeDevices>>, freed: bool) {
        self.storage.set_shared_devices(devices);
        self.all_devices_changed(freed);
    }

    /// Sets the extended resources that devices provide to nodes which do not have them.
    fn set_provided(&mut self, provided: Option<Arc<ProvidedResources>>) {
        self.storage.set_provided(provided);
        self.all_devices_changed(true);
    }

    fn all_devices_changed(&mut self, freed: bool) {
        for id in (0..self.rows.len()).map(|at| NodeId(at as u32)) {
            if self.rows[id.index()].node.is_some() {
                self.devices_changed(id, freed);
            }
        }
    }

    fn storage_changed(&mut self, id: NodeId) {
        self.devices_changed(id, true);
    }

    fn devices_changed(&mut self, id: NodeId, freed: bool) {
        self.storage.fill(&mut self.rows[id.index()]);
        self.touch(id);
        if freed {
            self.loosened = self.revision;
        }
    }

    fn touch(&mut self, id: NodeId) {
        self.revision += 1;
        self.rows[id.index()].revision = self.revision;
        self.journal.record(id, self.revision);
    }

    fn id_of(&mut self, name: &Arc<str>) -> NodeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            if self.rows.is_empty() {
                self.rows.reserve_exact(ROWS_RESERVED);
            }
            self.rows.push(Row::default());
            self.names.push(Arc::from(""));
            NodeId((self.rows.len() - 1) as u32)
        });
        self.names[id.index()] = name.clone();
        self.ids.insert(name.clone(), id);
        self.named += 1;
        id
    }

    fn vacate(&mut self, id: NodeId) {
        if self.rows[id.index()].is_vacant() {
            self.ids.remove(&self.names[id.index()]);
            self.named += 1;
            self.vacant.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node { name: name.into(), ..Node::default() }
    }

    #[test]
    fn a_heartbeat_that_changes_nothing_publishes_nothing() {
        let mut inventory = Inventory::default();
        assert!(inventory.apply_node(node("a")));
        let before = inventory.revision();
        assert!(!inventory.apply_node(node("a")));
        assert_eq!(inventory.revision(), before);
    }

    #[test]
    fn the_id_of_a_node_that_is_gone_and_empty_is_used_again() {
        let mut inventory = Inventory::default();
        inventory.apply_node(node("a"));
        assert!(inventory.delete_node("a"));
        assert!(!inventory.delete_node("a"));
        inventory.apply_node(node("b"));
        assert_eq!((inventory.len(), inventory.node_count()), (1, 1));
        assert_eq!(inventory.find("a"), None);
    }

    #[test]
    fn the_latest_change_of_a_row_has_the_revision_of_the_row() {
        let mut inventory = Inventory::default();
        inventory.apply_node(node("a"));
        inventory.apply_node(node("b"));
        let seen = inventory.revision();
        inventory.apply_node(Node { unschedulable: true, ..node("a") });
        inventory.delete_node("a");
        let is_latest = |change: &&Change| inventory.row(change.id).revision == change.revision;
        let news: Vec<_> = inventory.changes_after(seen).iter().filter(is_latest).collect();
        assert_eq!(news, [&Change { id: NodeId(0), revision: inventory.revision() }]);
        assert!(inventory.row(NodeId(0)).node.is_none());
    }
}
