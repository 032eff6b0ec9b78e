//! The part of ranked lists that classes share: all nodes in the order of what concerns each node alone.
//!
//! Classes of one cluster differ mostly in their images and in the pods that they look at. Few nodes have these images or pods; all
//! others are ranked once, for all classes that ask the same of them (`Class::common`).

use std::sync::Arc;

use super::cells::{CellLayout, CellPosition};
use super::domains::Domains;
use super::object::RuleObject;
use super::scoped::CommonGround;
use super::tree::WinnerTree;
use super::view::View;
use crate::class::Class;
use crate::inventory::{NodeId, Revision};
use crate::rules::{self, Answers, CachedRule, Diagnosis, Key, NEUTRAL, Salt};

/// Rule objects that a list is built from, by rule; `None` where a rule does not apply.
pub type ListObjects<'a> = [Option<&'a RuleObject>; CachedRule::COUNT];

/// Inputs of a list.
#[derive(Clone, Copy)]
pub struct ListSources<'a> {
    pub salt: Salt,
    pub objects: ListObjects<'a>,
    pub view: &'a View,
    pub domains: &'a Domains,
}

impl ListSources<'_> {
    /// Returns the key of a node: the part that does not depend on other nodes.
    pub(super) fn rank(&self, class: &Class, id: NodeId) -> Key {
        let mut answers: Answers = [NEUTRAL; CachedRule::COUNT];
        if !class.spec.images.is_empty() {
            answers[CachedRule::ImageLocality.index()] = rules::NO_IMAGE;
        }
        for (answer, object) in answers.iter_mut().zip(&self.objects) {
            if let Some(object) = object {
                *answer = object.answers()[id.index()];
            }
        }
        rules::rank(class, self.view.row(id), &answers, self.salt.tie(id.0))
    }
}

/// WholeList nodes of the classes with one common part, as of one revision.
///
/// Without coarse topologies there is one cell, and a node's position in it is its id. Otherwise nodes with the same
/// coarse domains form a cell with a tree of its own (`cells.rs` has the positions). The rules over coarse domains are
/// evaluated once per cell when a node is chosen, so a changed count of a zone moves no node of it.
#[derive(Debug)]
pub struct CommonList {
    class: Arc<Class>,
    ground: CommonGround,
    cells: Vec<Cell>,
    revision: Revision,
}

/// Some nodes of a list in one tree.
#[derive(Debug, Default)]
pub struct Cell {
    pub tree: WinnerTree,
    pub tally: Tally,
}

/// Numbers of valid nodes, and of nodes that are not valid by reasons: a class that fits nowhere is diagnosed without a look at nodes.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub valid: usize,
    pub refused: Diagnosis,
}

impl Tally {
    pub fn change(&mut self, before: Key, after: Key) {
        self.valid = self.valid + usize::from(after.is_valid()) - usize::from(before.is_valid());
        let (left, came) = (before.reasons(), after.reasons());
        if left != came {
            left.into_iter().for_each(|reasons| self.refused.remove(reasons, 1));
            came.into_iter().for_each(|reasons| self.refused.add(reasons, 1));
        }
    }
}

/// Returns a capacity with spare positions, so that a growing cluster does not need a new tree per added node.
fn with_room(nodes: usize) -> usize {
    nodes + nodes / 16 + 8
}

impl CommonList {
    /// Ranks every node for a class that is the common part of others. `ground` is the result of `CommonGround::acquire` for it.
    pub fn build(class: &Arc<Class>, ground: CommonGround, from: ListSources) -> Self {
        let revision = from.view.revision();
        let mut list = CommonList { class: class.clone(), ground, cells: Vec::new(), revision };
        list.rebuild(from);
        list
    }

    fn rebuild(&mut self, from: ListSources) {
        self.cells = match self.layout(from.domains) {
            None => {
                let nodes = 0..from.view.rows().len() as u32;
                vec![Cell::build(nodes.map(|id| self.rank(from, NodeId(id))))]
            }
            Some(layout) => {
                let ranked = |node: Option<NodeId>| node.map_or(Key::VACANT, |id| self.rank(from, id));
                layout.cells().iter().map(|cell| Cell::build(cell.nodes().map(ranked))).collect()
            }
        };
    }

    pub fn class(&self) -> &Arc<Class> {
        &self.class
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub fn layout<'a>(&self, domains: &'a Domains) -> Option<&'a CellLayout> {
        self.ground.cells(domains)
    }

    /// Returns what it keeps of the domains, to be released.
    pub fn into_ground(self) -> CommonGround {
        self.ground
    }

    /// Returns the position of a node; `None`: it does not exist.
    pub fn position(&self, domains: &Domains, id: NodeId) -> Option<CellPosition> {
        match self.layout(domains) {
            None => Some(CellPosition { cell: 0, slot: id.0 }),
            Some(layout) => layout.position(id),
        }
    }

    /// Returns the key at a position; vacant if the node there is newer than the list.
    pub fn key(&self, position: CellPosition) -> Key {
        let cell = self.cells.get(position.cell as usize);
        cell.and_then(|cell| cell.tree.keys().get(position.slot as usize)).copied().unwrap_or(Key::VACANT)
    }

    /// Ranks the nodes that changed since the last use. Rule objects and domains must be up to date.
    pub fn repair(&mut self, from: ListSources) {
        let view = from.view;
        if self.revision == view.revision() {
            return;
        }
        let nodes = view.rows().len();
        let before = std::mem::replace(&mut self.revision, view.revision());
        let changed = view.changed_since(before).count();
        let layout = self.layout(from.domains);
        let outgrown = match layout {
            None => nodes > self.cells[0].tree.capacity(),
            Some(layout) => changed > nodes / 8 || layout.vacated_since(before).is_none(),
        };
        let limit = self.ground.limit();
        if outgrown || limit.is_some_and(|topology| from.domains.reshaped(topology) > before) {
            return self.rebuild(from);
        }
        // Beyond this number, deciding every match once is cheaper than one path to the root per node.
        if layout.is_none() && limit.is_none() && changed > nodes / 8 {
            let mut cell = self.cells.remove(0);
            cell.tree.set_all(view.changed_since(before).map(|id| (id.0, self.rank(from, id))));
            cell.recount();
            self.cells.push(cell);
            return;
        }
        for position in layout.and_then(|layout| layout.vacated_since(before)).into_iter().flatten() {
            // A node that came there since is one of the changed ones.
            if let Some(cell) = self.cells.get_mut(position.cell as usize) {
                cell.set(position.slot, Key::VACANT);
            }
        }
        let mut outdated: Vec<NodeId> = view.changed_since(before).collect();
        from.domains.add_neighbours(limit.as_slice(), &mut outdated);
        let positions: Vec<_> =
            outdated.into_iter().filter_map(|id| Some((id, self.position(from.domains, id)?))).collect();
        self.fetch(&positions);
        for (id, position) in positions {
            self.update(from, id, position);
        }
    }

    /// Reads what an update of these positions reads of the trees. A list that was not used for a while is in no cache
    /// of the processor: read one after the other, each position would wait for memory.
    fn fetch(&self, positions: &[(NodeId, CellPosition)]) {
        let read = positions.iter().map(|(_, position)| {
            let cell = self.cells.get(position.cell as usize);
            cell.map_or(0, |cell| cell.tree.fetch(position.slot))
        });
        std::hint::black_box(read.fold(0, |all, one| all ^ one));
    }

    fn update(&mut self, from: ListSources, id: NodeId, position: CellPosition) {
        let key = self.rank(from, id);
        cell_at(&mut self.cells, position.cell).set(position.slot, key);
    }

    fn rank(&self, from: ListSources, id: NodeId) -> Key {
        let key = from.rank(&self.class, id);
        match self.ground.beyond_limit(&self.class, from.domains, id) {
            Some(reasons) if key.is_valid() => Key::invalid(reasons),
            _ => key,
        }
    }

    pub fn bytes(&self) -> usize {
        self.cells.iter().map(Cell::bytes).sum()
    }
}

/// Returns a cell, which is created if there is none.
pub fn cell_at<T: Default>(cells: &mut Vec<T>, at: u32) -> &mut T {
    if cells.len() <= at as usize {
        cells.resize_with(at as usize + 1, T::default);
    }
    &mut cells[at as usize]
}

impl Cell {
    /// Builds a cell of these keys, with room for more.
    pub fn build(keys: impl ExactSizeIterator<Item = Key>) -> Self {
        let room = with_room(keys.len());
        let mut all = Vec::with_capacity(room);
        all.extend(keys);
        all.resize(room, Key::VACANT);
        let mut cell = Cell { tree: WinnerTree::build(all), ..Cell::default() };
        cell.recount();
        cell
    }

    pub fn set(&mut self, slot: u32, key: Key) {
        if self.tree.capacity() <= slot as usize {
            let mut keys = self.tree.keys().to_vec();
            keys.resize(with_room(slot as usize + 1), Key::VACANT);
            self.tree = WinnerTree::build(keys);
        }
        self.tally.change(self.tree.key(slot), key);
        self.tree.set(slot, key);
    }

    /// Counts the nodes after all of them were ranked.
    fn recount(&mut self) {
        let keys = self.tree.keys();
        self.tally = Tally {
            valid: keys.iter().filter(|key| key.is_valid()).count(),
            refused: keys.iter().filter_map(|key| key.reasons()).collect(),
        };
    }

    pub fn bytes(&self) -> usize {
        self.tree.bytes()
    }
}
