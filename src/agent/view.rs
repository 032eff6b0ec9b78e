//! An agent's private copy of the node rows, with its own journals, so that rules run without locks.

use crate::inventory::{Inventory, Journal, NodeId, Revision, Row};

/// All rows as of one revision.
#[derive(Debug, Default)]
pub struct View {
    rows: Vec<Row>,
    /// Rows by their latest change of any kind.
    changed: Journal,
    /// Rows by their latest change of the node itself: labels, taints, allocatable… Rule objects follow this one, so pods
    /// that come and go cost them nothing.
    renewed: Journal,
    seen: Revision,
    news: Vec<NodeId>,
}

impl View {
    /// Copies what changed since the last time. Returns the number of rows copied.
    pub fn catch_up(&mut self, inventory: &Inventory) -> usize {
        if inventory.revision() == self.seen {
            return 0;
        }
        if self.rows.len() < inventory.len() {
            self.rows.resize_with(inventory.len(), Row::default);
        }
        let before = self.seen;
        self.news.clear();
        self.seen = inventory.catch_up(before, |id, row| {
            self.rows[id.index()].clone_from(row);
            self.news.push(id);
        });
        // Oldest first: journals only grow.
        for id in self.news.iter().rev() {
            let row = &self.rows[id.index()];
            self.changed.record(*id, row.revision);
            if row.node_revision > before {
                self.renewed.record(*id, row.revision);
            }
        }
        self.news.len()
    }

    /// The revision this view is at.
    pub fn revision(&self) -> Revision {
        self.seen
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn row(&self, id: NodeId) -> &Row {
        &self.rows[id.index()]
    }

    /// Memory of the rows themselves and of the journals; what the rows point to is shared with the inventory.
    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>() + self.changed.bytes() + self.renewed.bytes()
    }

    /// Rows that changed since `revision`, newest first.
    pub fn changed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.changed.since(revision).map(|(id, _)| id)
    }

    /// Rows whose node changed since `revision`, newest first.
    pub fn renewed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.renewed.since(revision).map(|(id, _)| id)
    }
}
