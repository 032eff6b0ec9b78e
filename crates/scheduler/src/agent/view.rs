//! Private copy of the node rows of an agent, with its own journals, so that rules run without locks.

use crate::inventory::{Change, Inventory, Journal, NodeId, Revision, Row};

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
    /// Original rows of the altered ones, in the order of alteration.
    altered: Vec<(NodeId, Row)>,
    /// Number of rows to make room for.
    room: usize,
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
        let copied = self.copy(inventory, inventory.changes_after(self.seen));
        self.seen = inventory.revision();
        copied
    }

    /// Does a part of what [`View::catch_up`] does: visits at most `most` changes, the oldest ones. Returns whether nothing is left.
    /// Until then, only this and `catch_up` may be called.
    pub fn approach(&mut self, inventory: &Inventory, most: usize) -> bool {
        self.restore();
        let changes = inventory.changes_after(self.seen);
        if changes.len() > most {
            self.room = inventory.len();
            if self.rows.capacity() >= self.room {
                self.copy(inventory, &changes[..most]);
            }
            return false;
        }
        self.copy(inventory, changes);
        self.seen = inventory.revision();
        true
    }

    /// Copies the rows whose latest change is among these. Returns their number.
    fn copy(&mut self, inventory: &Inventory, changes: &[Change]) -> usize {
        let mut copied = 0;
        for change in changes {
            let row = inventory.row(change.id);
            if row.revision == change.revision {
                if self.rows.len() <= change.id.index() {
                    self.rows.resize_with(change.id.index() + 1, Row::default);
                }
                let copy = &mut self.rows[change.id.index()];
                let is_renewed = copy.node_revision != row.node_revision;
                copy.clone_from(row);
                self.touch(change.id);
                if is_renewed {
                    self.renewed.record(change.id, self.revision);
                }
                copied += 1;
            }
            self.seen = change.revision;
        }
        copied
    }

    /// Makes room for the rows that [`View::approach`] is to copy. Needs no lock.
    pub fn make_room(&mut self) {
        self.rows.reserve(self.room.saturating_sub(self.rows.len()));
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
        self.changed.since(revision)
    }

    /// Returns the rows whose node changed since `revision` of this copy, newest first.
    pub fn renewed_since(&self, revision: Revision) -> impl Iterator<Item = NodeId> + '_ {
        self.renewed.since(revision)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::inventory::Ledger;
    use berth_model::{Amounts, Node, Usage};

    fn change(ledger: &mut Ledger, at: u32) {
        let name: Arc<str> = format!("n{}", at / 5 % 40).into();
        match at % 5 {
            0 => {
                ledger.delete_node(&name);
            }
            1 | 2 => {
                let node = Node { name, unschedulable: at.is_multiple_of(2), ..Node::default() };
                ledger.apply_node(node);
            }
            _ => {
                let uid: Arc<str> = format!("u{at}").into();
                if !ledger.discharge(&uid) {
                    let requests = Amounts { pods: 1, ..Amounts::default() };
                    ledger.bound(&uid, &name, &Arc::new(Usage { requests, ..Usage::default() }));
                }
            }
        }
    }

    fn states(view: &View) -> Vec<(Revision, Revision, Option<Arc<Node>>)> {
        view.rows().iter().map(|row| (row.revision, row.node_revision, row.node.clone())).collect()
    }

    proptest! {
        #[test]
        fn rows_copied_in_slices_while_they_change_are_those_copied_at_once(
            changes in prop::collection::vec(prop::collection::vec(0u32..200, 0..60), 1..12),
            most in 1usize..20,
        ) {
            let (mut ledger, mut sliced) = (Ledger::default(), View::default());
            let (mut before, mut seen_by_reader) = (Vec::new(), 0);
            for changes in &changes {
                for at in changes {
                    change(&mut ledger, *at);
                }
                // Changes go on between the first slices.
                for at in changes.iter().take(5) {
                    let _ = sliced.approach(ledger.inventory(), most);
                    sliced.make_room();
                    change(&mut ledger, at + 1);
                }
                let mut slices = 0;
                while !sliced.approach(ledger.inventory(), most) {
                    sliced.make_room();
                    slices += 1;
                    prop_assert!(slices <= 2 + (2 * 40 + 64usize).div_ceil(most));
                }
                let mut whole = View::default();
                whole.catch_up(ledger.inventory());
                prop_assert_eq!(sliced.seen(), whole.seen());
                let rows = states(&sliced);
                prop_assert_eq!(&rows, &states(&whole));
                // Readers of the journal learn of each row that differs from what they have.
                let news: BTreeSet<_> = sliced.changed_since(seen_by_reader).map(|id| id.index()).collect();
                let renewed: BTreeSet<_> = sliced.renewed_since(seen_by_reader).map(|id| id.index()).collect();
                for (at, row) in rows.iter().enumerate() {
                    prop_assert!(before.get(at) == Some(row) || news.contains(&at));
                    let node_before = before.get(at).map_or(0, |(_, node_revision, _)| *node_revision);
                    prop_assert!(node_before == row.1 || renewed.contains(&at));
                }
                (before, seen_by_reader) = (rows, sliced.revision());
            }
        }
    }
}
