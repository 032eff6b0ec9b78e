//! Private copy of the node rows of an agent, with its own journals, so that rules run without locks.

use crate::inventory::{Inventory, Journal, NodeId, Revision, Row};

/// All rows as of one revision of the inventory, and temporary alterations of some of them.
#[derive(Debug, Default)]
pub struct View {
    rows: Vec<Row>,
    /// Rows by their latest change of any kind.
    changed: Journal,
    /// Rows by their latest change of the node itself: labels, taints, allocatable… Rule objects follow this journal,
    /// so pod changes cost them nothing.
    renewed: Journal,
    /// Revision of the inventory that was copied last.
    seen: Revision,
    /// Revision of this copy: grows with every copied or altered row.
    revision: Revision,
    news: Vec<NodeId>,
    /// Original rows of the altered ones, in the order of alteration.
    altered: Vec<(NodeId, Row)>,
}

impl View {
    /// Reverts all alterations and copies the rows that changed since the last call. Returns their number.
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

    /// Alters a row until [`View::restore`] or the next [`View::catch_up`]: only the sums of its pods, not the node.
    pub fn alter(&mut self, id: NodeId, change: impl FnOnce(&mut Row)) {
        let row = &mut self.rows[id.index()];
        self.altered.push((id, row.clone()));
        change(row);
        self.touch(id);
    }

    /// Returns the number of alterations: a point to restore to.
    pub fn alterations(&self) -> usize {
        self.altered.len()
    }

    /// Reverts the latest alterations until `alterations` are left.
    pub fn restore_to(&mut self, alterations: usize) {
        while self.altered.len() > alterations
            && let Some((id, row)) = self.altered.pop()
        {
            self.rows[id.index()] = row;
            self.touch(id);
        }
    }

    /// Reverts all alterations.
    pub fn restore(&mut self) {
        self.restore_to(0);
    }

    fn touch(&mut self, id: NodeId) {
        self.revision += 1;
        self.changed.record(id, self.revision);
    }

    /// Returns the inventory revision this view was last brought up to.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Returns the revision of this copy, which is unrelated to the inventory's.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn row(&self, id: NodeId) -> &Row {
        &self.rows[id.index()]
    }

    /// Returns the bytes of the rows and journals; data the rows point to is shared with the inventory.
    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>() + self.changed.bytes() + self.renewed.bytes()
    }

    /// Returns the rows changed since `revision` of this copy, newest first.
    pub fn changed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.changed.since(revision).map(|(id, _)| id)
    }

    /// Returns the rows whose node changed since `revision` of this copy, newest first.
    pub fn renewed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.renewed.since(revision).map(|(id, _)| id)
    }
}
