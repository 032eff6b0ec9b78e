//! Ranked lists: all nodes in order of preference for one class (the top cache level).

use std::ops::Deref;
use std::sync::Arc;

use super::cells::{CellLayout, CellNodes, CellPosition};
use super::domains::{Domain, Domains};
use super::object::RuleObject;
use super::scoped::{Globals, RuleScope, Scoped, Weights};
use super::tree::WinnerTree;
use super::view::View;
use crate::class::Class;
use crate::inventory::{NodeId, Revision};
use crate::rules::{self, Answers, CachedRule, Diagnosis, Key, NEUTRAL, Reasons, Salt, Standing};

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

/// Ranked nodes of one class, as of one revision.
///
/// Without coarse topologies there is one cell, and a node's position in it is its id. Otherwise nodes with the same
/// coarse domains form a cell with a tree of its own (`cells.rs` has the positions). The rules over coarse domains are
/// evaluated once per cell when a node is chosen, so a changed count of a zone moves no node of it.
#[derive(Debug)]
pub struct RankedList {
    pub class: Arc<Class>,
    scoped: Option<Scoped>,
    cells: Vec<Cell>,
    globals: Globals,
    revision: Revision,
}

#[derive(Debug, Default)]
struct Cell {
    tree: WinnerTree,
    valid: usize,
    /// Numbers of nodes that are not valid, by reasons: a class that fits nowhere is diagnosed without a look at nodes.
    refused: Diagnosis,
}

/// Returns a capacity with spare positions, so that a growing cluster does not need a new tree per added node.
fn with_room(nodes: usize) -> usize {
    nodes + nodes / 16 + 8
}

impl RankedList {
    /// Ranks every node. `scoped` is the result of `Scoped::acquire` for the class.
    pub fn build(class: &Arc<Class>, scoped: Option<Scoped>, from: ListSources) -> Self {
        let mut list = RankedList {
            class: class.clone(),
            scoped,
            cells: Vec::new(),
            globals: Globals::new(),
            revision: from.view.revision(),
        };
        list.rebuild(from);
        list
    }

    fn rebuild(&mut self, from: ListSources) {
        self.globals = self.scoped.as_ref().map_or(Globals::new(), |s| s.globals(&self.class, from.domains));
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

    fn layout<'a>(&self, domains: &'a Domains) -> Option<&'a CellLayout> {
        self.scoped.as_ref()?.cells(domains)
    }

    /// Returns whether [`RankedList::repair`] cannot bring the list up to date, so that it must be rebuilt with a new
    /// `Scoped`.
    pub fn is_outdated(&self, view: &View, domains: &Domains) -> bool {
        self.scoped.as_ref().is_some_and(|scoped| scoped.is_outdated(&self.class, domains, view))
    }

    /// Takes the kept domains out of the list, to be released.
    pub fn take_scoped(&mut self) -> Option<Scoped> {
        self.scoped.take()
    }

    /// Ranks the nodes that changed since the last use. Returns their number. Rule objects and domains must be up to
    /// date.
    pub fn repair(&mut self, from: ListSources) -> usize {
        let view = from.view;
        if self.revision == view.revision() {
            return 0;
        }
        let nodes = view.rows().len();
        let before = std::mem::replace(&mut self.revision, view.revision());
        let changed = view.changed_since(before).count();
        let layout = self.layout(from.domains);
        let mut anew = match layout {
            None => nodes > self.cells[0].tree.capacity(),
            Some(layout) => changed > nodes / 8 || layout.vacated_since(before).is_none(),
        };
        if let Some(scoped) = &self.scoped {
            let reshaped = |topology: &_| from.domains.reshaped(*topology) > before;
            anew |= scoped.globals(&self.class, from.domains) != self.globals
                || scoped.fine().iter().any(reshaped);
        }
        if anew {
            self.rebuild(from);
            return nodes;
        }
        // Beyond this number, deciding every match once is cheaper than one path to the root per node.
        if self.scoped.is_none() && changed > nodes / 8 {
            let mut cell = self.cells.remove(0);
            cell.tree.set_all(view.changed_since(before).map(|id| (id.0, self.rank(from, id))));
            cell.recount();
            self.cells.push(cell);
            return changed;
        }
        for position in layout.and_then(|layout| layout.vacated_since(before)).into_iter().flatten() {
            // A node that came there since is one of the changed ones.
            if let Some(cell) = self.cells.get_mut(position.cell as usize) {
                cell.set(position.slot, Key::VACANT);
            }
        }
        let outdated = self.with_neighbours(from.domains, view.changed_since(before), changed);
        let positions: Vec<_> = (outdated.iter())
            .map(|id| {
                layout.map_or(Some(CellPosition { cell: 0, slot: id.0 }), |layout| layout.position(*id))
            })
            .collect();
        self.fetch(&positions);
        for (id, position) in outdated.into_iter().zip(positions) {
            if let Some(position) = position {
                self.update(from, id, position);
            }
        }
        changed
    }

    /// Returns these nodes, and those that share a fine domain with one of them.
    fn with_neighbours(
        &self,
        domains: &Domains,
        changed: impl Iterator<Item = NodeId>,
        count: usize,
    ) -> Vec<NodeId> {
        let mut outdated = Vec::with_capacity(count);
        let fine = self.scoped.as_ref().map_or(&[][..], Scoped::fine);
        for id in changed {
            outdated.push(id);
            for topology in fine {
                let members = domains.members(*topology, domains.domain_of(*topology, id));
                outdated.extend(members.iter().filter(|member| **member != id));
            }
        }
        outdated
    }

    /// Reads what an update of these positions reads of the trees. A list that was not used for a while is in no cache
    /// of the processor: read one after the other, each position would wait for memory.
    fn fetch(&self, positions: &[Option<CellPosition>]) {
        let read = positions.iter().flatten().map(|position| {
            let cell = self.cells.get(position.cell as usize);
            cell.map_or(0, |cell| cell.tree.fetch(position.slot))
        });
        std::hint::black_box(read.fold(0, |all, one| all ^ one));
    }

    fn update(&mut self, from: ListSources, id: NodeId, position: CellPosition) {
        let key = self.rank(from, id);
        if self.cells.len() <= position.cell as usize {
            self.cells.resize_with(position.cell as usize + 1, Cell::default);
        }
        self.cells[position.cell as usize].set(position.slot, key);
    }

    /// Returns the node's key: the part that is not constant within its cell.
    fn rank(&self, from: ListSources, id: NodeId) -> Key {
        let mut answers: Answers = [NEUTRAL; CachedRule::COUNT];
        for (answer, object) in answers.iter_mut().zip(&from.objects) {
            if let Some(object) = object {
                *answer = object.answers()[id.index()];
            }
        }
        let key = rules::rank(&self.class, from.view.row(id), &answers, from.salt.tie(id.0));
        match &self.scoped {
            None => key,
            Some(scoped) => scoped.apply_fine(&self.class, from.domains, id, key),
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the best valid node.
    pub fn best(&self, domains: &Domains) -> Option<NodeId> {
        let Some(scoped) = &self.scoped else {
            let (id, key) = self.cells[0].tree.best()?;
            return key.is_valid().then_some(NodeId(id));
        };
        let weights = self.weigh(scoped, domains);
        let open = self.open_cells(scoped, domains);
        let best = open.filter_map(|cell| {
            let (slot, key) = cell.tree.best()?;
            Some((self.standing_in(scoped, domains, &weights, cell, key)?, cell.node(slot)))
        });
        best.min().map(|(_, id)| id)
    }

    /// Collects the best `k` valid nodes, best first, in `into`.
    pub fn best_k(&self, domains: &Domains, k: usize, into: &mut Vec<NodeId>) {
        into.clear();
        let mut of_cell = Vec::new();
        let Some(scoped) = &self.scoped else {
            self.cells[0].tree.best_k(k, &mut of_cell);
            into.extend(of_cell.iter().filter(|(_, key)| key.is_valid()).map(|(id, _)| NodeId(*id)));
            return;
        };
        let weights = self.weigh(scoped, domains);
        let mut found = Vec::new();
        for cell in self.open_cells(scoped, domains) {
            cell.tree.best_k(k, &mut of_cell);
            found.extend(of_cell.iter().filter_map(|(slot, key)| {
                Some((self.standing_in(scoped, domains, &weights, cell, *key)?, cell.node(*slot)))
            }));
        }
        found.sort_unstable();
        into.extend(found.into_iter().take(k).map(|(_, id)| id));
    }

    /// Returns the cells with a valid node that no rule over coarse domains excludes.
    fn open_cells<'a>(
        &'a self,
        scoped: &'a Scoped,
        domains: &'a Domains,
    ) -> impl Iterator<Item = PlacedCell<'a>> + Clone {
        self.placed_cells(domains).filter(move |cell| {
            let domain = |topology| scoped.domain_in(cell.domains(), topology);
            cell.valid > 0 && scoped.refusal(&self.class, domains, RuleScope::Coarse, domain).is_none()
        })
    }

    fn placed_cells<'a>(&'a self, domains: &'a Domains) -> impl Iterator<Item = PlacedCell<'a>> + Clone {
        let layout = self.layout(domains).map_or(&[][..], CellLayout::cells);
        let nodes = layout.iter().map(Some).chain(std::iter::repeat(None));
        self.cells.iter().zip(nodes).map(|(cell, nodes)| PlacedCell { cell, nodes })
    }

    fn weigh(&self, scoped: &Scoped, domains: &Domains) -> Weights {
        scoped.weigh(self.open_cells(scoped, domains).map(|cell| (cell.domains(), cell.valid)))
    }

    fn standing_in(
        &self,
        scoped: &Scoped,
        domains: &Domains,
        weights: &Weights,
        cell: PlacedCell,
        key: Key,
    ) -> Option<Standing> {
        let layout = self.class.placement.layout();
        let standing = key.standing(layout)?;
        let (pods, spread) = scoped.cell(&self.class, domains, weights, cell.domains());
        let fine = scoped.fine_spread(&self.class, weights, standing.spread());
        Some(standing.with_pods(layout, standing.pods() + pods, spread.saturating_add(fine)))
    }

    /// Returns the standing of each existing node, or the reasons why it is not valid, by id.
    pub fn standings(&self, domains: &Domains) -> Vec<(NodeId, Result<Standing, Reasons>)> {
        let weights = self.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
        let nodes = self.layout(domains).map_or_else(|| self.cells[0].tree.capacity(), CellLayout::nodes);
        (0..nodes as u32)
            .filter_map(|id| Some((NodeId(id), self.standing(domains, weights.as_ref(), NodeId(id))?)))
            .collect()
    }

    /// Returns the standing of these nodes, or the reasons why they are not valid; `None` if the node does not exist.
    /// In the given order; reads no other nodes, only the cells.
    pub fn standings_of(
        &self,
        domains: &Domains,
        ids: impl Iterator<Item = Option<NodeId>>,
    ) -> Vec<Option<Result<Standing, Reasons>>> {
        let weights = self.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
        ids.map(|id| self.standing(domains, weights.as_ref(), id?)).collect()
    }

    /// `None`: the node does not exist.
    fn standing(
        &self,
        domains: &Domains,
        weights: Option<&Weights>,
        id: NodeId,
    ) -> Option<Result<Standing, Reasons>> {
        let (cell, key) = self.find(domains, id)?;
        if key == Key::VACANT {
            return None;
        }
        let (Some(scoped), Some(weights)) = (&self.scoped, weights) else {
            return key.standing(self.class.placement.layout()).map(Ok).or_else(|| key.reasons().map(Err));
        };
        Some(match self.refusal_at(scoped, domains, id, key) {
            Some(reasons) => Err(reasons),
            None => self.standing_in(scoped, domains, weights, cell, key).ok_or(Reasons::NONE),
        })
    }

    /// Returns the reasons of the first rule that refuses this node, whose key is `key`.
    fn refusal_at(&self, scoped: &Scoped, domains: &Domains, id: NodeId, key: Key) -> Option<Reasons> {
        let first = |reasons: &Reasons| !reasons.are_of_domains() && *reasons != Reasons::FEATURES;
        let by_domains = || {
            scoped.refusal(&self.class, domains, RuleScope::All, |topology| domains.domain_of(topology, id))
        };
        key.reasons().filter(first).or_else(by_domains).or(key.reasons())
    }

    /// Returns the best valid node of these.
    pub fn best_among(&self, domains: &Domains, nodes: &[NodeId]) -> Option<NodeId> {
        let weights = self.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
        let standing = |id: &NodeId| Some((self.standing(domains, weights.as_ref(), *id)?.ok()?, *id));
        nodes.iter().filter_map(standing).min().map(|(_, id)| id)
    }

    /// Returns the reasons of those of these nodes that are not valid.
    pub fn diagnose_among(&self, domains: &Domains, nodes: &[NodeId]) -> Diagnosis {
        let standings = self.standings_of(domains, nodes.iter().map(|id| Some(*id)));
        standings.into_iter().filter_map(|standing| standing?.err()).collect()
    }

    /// Returns whether the class may go to this node, ignoring the rules over coarse domains.
    pub fn is_valid(&self, domains: &Domains, id: NodeId) -> bool {
        self.find(domains, id).is_some_and(|(_, key)| key.is_valid())
    }

    /// Returns the key of a node, and its cell; `None`: it does not exist, or is newer than the list.
    fn find<'a>(&'a self, domains: &'a Domains, id: NodeId) -> Option<(PlacedCell<'a>, Key)> {
        let (position, nodes) = match self.layout(domains) {
            None => (CellPosition { cell: 0, slot: id.0 }, None),
            Some(layout) => {
                let position = layout.position(id)?;
                (position, layout.cells().get(position.cell as usize))
            }
        };
        let cell = self.cells.get(position.cell as usize)?;
        let key = cell.tree.keys().get(position.slot as usize).copied()?;
        Some((PlacedCell { cell, nodes }, key))
    }

    /// Returns whether the class may go to this node.
    pub fn admits(&self, domains: &Domains, id: NodeId) -> bool {
        let domain = |topology| domains.domain_of(topology, id);
        let refused =
            |scoped: &Scoped| scoped.refusal(&self.class, domains, RuleScope::Coarse, domain).is_some();
        self.find(domains, id).is_some_and(|(_, key)| key.is_valid())
            && !self.scoped.as_ref().is_some_and(refused)
    }

    /// Returns whether the rules over domains accept this node with the current counts, which may be newer than the
    /// list; `None`: the list must be rebuilt before, as it does not read all counts.
    pub fn admits_by_domains(&self, domains: &Domains, id: NodeId) -> Option<bool> {
        let Some(scoped) = &self.scoped else {
            return Some(true);
        };
        if scoped.lacks_counts(&self.class, domains) {
            return None;
        }
        let domain = |topology| domains.domain_of(topology, id);
        Some(scoped.refusal(&self.class, domains, RuleScope::All, domain).is_none())
    }

    /// Returns the reasons of all nodes that are not valid. Reads the counts of each cell, and only those nodes for
    /// which they do not tell which rule refuses first.
    pub fn diagnose(&self, domains: &Domains) -> Diagnosis {
        let Some(scoped) = &self.scoped else {
            return self.cells[0].refused.clone();
        };
        let mut diagnosis = Diagnosis::default();
        for cell in self.placed_cells(domains) {
            let domain = |topology| scoped.domain_in(cell.domains(), topology);
            let of_cell = scoped.refusal(&self.class, domains, RuleScope::Coarse, domain);
            if let Some(of_cell) = of_cell {
                diagnosis.add(of_cell, cell.valid);
            }
            for (reasons, nodes) in cell.refused.iter() {
                match self.refuses_first(scoped, reasons, of_cell) {
                    Some(first) => diagnosis.add(first, nodes),
                    None => diagnosis.extend(
                        cell.with_reasons(reasons)
                            .filter_map(|(id, key)| self.refusal_at(scoped, domains, id, key)),
                    ),
                }
            }
        }
        debug_assert_eq!(
            diagnosis,
            self.standings(domains).into_iter().filter_map(|(_, standing)| standing.err()).collect()
        );
        diagnosis
    }

    /// Returns the reasons of the rule that refuses first, if a node is refused for `reasons` and its cell for
    /// `of_cell`; `None`: this depends on the node.
    fn refuses_first(&self, scoped: &Scoped, reasons: Reasons, of_cell: Option<Reasons>) -> Option<Reasons> {
        if reasons == Reasons::FEATURES {
            // Rules over fine domains come first, and have not been evaluated.
            return scoped.fine().is_empty().then_some(of_cell.unwrap_or(reasons));
        }
        match of_cell {
            Some(of_cell) if reasons.are_of_domains() => reasons.first_of_domains(of_cell),
            _ => Some(reasons),
        }
    }

    pub fn bytes(&self) -> usize {
        self.cells.iter().map(|cell| cell.tree.bytes()).sum()
    }
}

impl Cell {
    /// Builds a cell of these keys, with room for more.
    fn build(keys: impl ExactSizeIterator<Item = Key>) -> Self {
        let room = with_room(keys.len());
        let mut all = Vec::with_capacity(room);
        all.extend(keys);
        all.resize(room, Key::VACANT);
        let mut cell = Cell { tree: WinnerTree::build(all), ..Cell::default() };
        cell.recount();
        cell
    }

    fn set(&mut self, slot: u32, key: Key) {
        if self.tree.capacity() <= slot as usize {
            let mut keys = self.tree.keys().to_vec();
            keys.resize(with_room(slot as usize + 1), Key::VACANT);
            self.tree = WinnerTree::build(keys);
        }
        let before = self.tree.key(slot);
        self.valid = self.valid + usize::from(key.is_valid()) - usize::from(before.is_valid());
        let (left, came) = (before.reasons(), key.reasons());
        if left != came {
            left.into_iter().for_each(|reasons| self.refused.remove(reasons));
            came.into_iter().for_each(|reasons| self.refused.add(reasons, 1));
        }
        self.tree.set(slot, key);
    }

    /// Counts the nodes after all of them were ranked.
    fn recount(&mut self) {
        let keys = self.tree.keys();
        self.valid = keys.iter().filter(|key| key.is_valid()).count();
        self.refused = keys.iter().filter_map(|key| key.reasons()).collect();
    }
}

/// A cell of a list, and the nodes in it; without them, a position is the id of a node.
#[derive(Debug, Clone, Copy)]
struct PlacedCell<'a> {
    cell: &'a Cell,
    nodes: Option<&'a CellNodes>,
}

impl<'a> PlacedCell<'a> {
    fn domains(&self) -> &'a [Domain] {
        self.nodes.map_or(&[], |nodes| &nodes.domains)
    }

    fn node(&self, slot: u32) -> NodeId {
        self.nodes.map_or(NodeId(slot), |nodes| nodes.node(slot))
    }

    /// Returns the nodes with these reasons in their key.
    fn with_reasons(&self, reasons: Reasons) -> impl Iterator<Item = (NodeId, Key)> {
        let keys = self.cell.tree.keys().iter().enumerate();
        let with = keys.filter(move |(_, key)| key.reasons() == Some(reasons));
        with.map(|(slot, key)| (self.node(slot as u32), *key))
    }
}

impl Deref for PlacedCell<'_> {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        self.cell
    }
}
