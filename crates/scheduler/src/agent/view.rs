//! An agent's private copy of the node rows, with its own journals, so that rules run without locks.

use crate::inventory::{Inventory, Journal, NodeId, Revision, Row};

/// All rows as of one revision of the inventory, and what is supposed of some of them.
#[derive(Debug, Default)]
pub struct View {
    rows: Vec<Row>,
    /// Rows by their latest change of any kind.
    changed: Journal,
    /// Rows by their latest change of the node itself: labels, taints, allocatable… Rule objects follow this one, so pods
    /// that come and go cost them nothing.
    renewed: Journal,
    /// The revision of the inventory that was copied last.
    seen: Revision,
    /// Of this copy: grows with every row that is copied or altered.
    revision: Revision,
    news: Vec<NodeId>,
    /// Altered rows as they are in the inventory, in the order in which they were altered.
    altered: Vec<(NodeId, Row)>,
}

impl View {
    /// Copies what changed since the last time; what was altered is as it was. Returns the number of rows copied.
    pub fn catch_up(&mut self, inventory: &Inventory) -> usize {
        self.restore();
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
        for at in (0..self.news.len()).rev() {
            let id = self.news[at];
            self.touch(id);
            if self.rows[id.index()].node_revision > before {
                self.renewed.record(id, self.revision);
            }
        }
        self.news.len()
    }

    /// Supposes a change of a row, until [`View::restore`] or the next [`View::catch_up`]: of what its pods take, not of the node.
    pub fn alter(&mut self, id: NodeId, change: impl FnOnce(&mut Row)) {
        let row = &mut self.rows[id.index()];
        self.altered.push((id, row.clone()));
        change(row);
        self.touch(id);
    }

    /// How many changes are supposed now: a point to go back to.
    pub fn alterations(&self) -> usize {
        self.altered.len()
    }

    /// Takes back the latest changes, until there are only so many.
    pub fn restore_to(&mut self, alterations: usize) {
        while self.altered.len() > alterations
            && let Some((id, row)) = self.altered.pop()
        {
            self.rows[id.index()] = row;
            self.touch(id);
        }
    }

    /// Takes back all that was supposed.
    pub fn restore(&mut self) {
        self.restore_to(0);
    }

    fn touch(&mut self, id: NodeId) {
        self.revision += 1;
        self.changed.record(id, self.revision);
    }

    /// The revision of the inventory that this was last brought up to.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// The revision of this copy, which tells nothing of the inventory's.
    pub fn revision(&self) -> Revision {
        self.revision
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

    /// Rows that changed since `revision` of this copy, newest first.
    pub fn changed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.changed.since(revision).map(|(id, _)| id)
    }

    /// Rows whose node changed since `revision` of this copy, newest first.
    pub fn renewed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.renewed.since(revision).map(|(id, _)| id)
    }
}
