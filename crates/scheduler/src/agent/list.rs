//! WholeList lists: all nodes in order of preference for one class (the top cache level).
//!
//! A list is a common list, which ranks all nodes by what concerns each alone, and the exceptions of the class: the few nodes that its
//! images, or pods which it looks at, make better, worse or invalid. All other nodes are alike in these respects ([`Plain`]).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::cells::{CellLayout, CellNodes, CellPosition};
use super::common::{Cell, CommonList, ListSources, Tally, cell_at};
use super::domains::{Domain, Domains};
use super::object::RuleObject;
use super::scoped::{Globals, Plain, RuleScope, Scoped, Weights};
use super::view::View;
use crate::class::Class;
use crate::inventory::{NodeId, Revision};
use crate::rules::{self, CachedRule, Diagnosis, Key, Reasons, Standing, mix};

/// What a class adds to its common list, as of one revision.
#[derive(Debug)]
pub struct RankedList {
    pub class: Arc<Class>,
    scoped: Option<Scoped>,
    globals: Globals,
    /// What holds for the nodes that are no exceptions.
    plain: Plain,
    exceptions: Exceptions,
    revision: Revision,
}

/// Nodes with a key of their own.
#[derive(Debug, Default)]
struct Exceptions {
    /// By cell of the common list, and the place there.
    places: HashMap<NodeId, CellPosition, BuildHasherDefault<IdHasher>>,
    cells: Vec<Exceptional>,
}

/// Spreads dense numbers; each changed node is looked up in each list.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = mix(self.0 ^ u64::from(number));
    }
}

/// The exceptions in one cell.
#[derive(Debug, Default)]
struct Exceptional {
    cell: Cell,
    /// Of places in use.
    nodes: Vec<NodeId>,
    /// Keys in the common list, which the own ones replace.
    hidden: Vec<Key>,
    hides: Tally,
    vacant: Vec<u32>,
}

impl Exceptions {
    /// Builds them from the nodes of each cell, each with its key in the common list and its own.
    fn build(by_cell: Vec<Vec<(NodeId, Key, Key)>>) -> Self {
        let mut exceptions = Exceptions::default();
        for (cell, nodes) in (0..).zip(by_cell) {
            let places = (0..).zip(&nodes).map(|(slot, (id, ..))| (*id, CellPosition { cell, slot }));
            exceptions.places.extend(places);
            let mut of_cell = Exceptional {
                cell: Cell::build(nodes.iter().map(|(_, _, key)| *key)),
                nodes: nodes.iter().map(|(id, ..)| *id).collect(),
                hidden: nodes.iter().map(|(_, hidden, _)| *hidden).collect(),
                ..Exceptional::default()
            };
            of_cell.hidden.iter().for_each(|hidden| of_cell.hides.change(Key::VACANT, *hidden));
            exceptions.cells.push(of_cell);
        }
        exceptions
    }

    fn is_one(&self, id: NodeId) -> bool {
        !self.places.is_empty() && self.places.contains_key(&id)
    }

    fn key(&self, id: NodeId) -> Option<Key> {
        let place = self.places.get(&id)?;
        Some(self.cells[place.cell as usize].cell.tree.key(place.slot))
    }

    /// Gives a node in this cell, whose key in the common list is `hidden`, a key of its own.
    fn set(&mut self, id: NodeId, cell: u32, hidden: Key, key: Key) {
        if self.places.get(&id).is_some_and(|place| place.cell != cell) {
            self.remove(id);
        }
        let of_cell = cell_at(&mut self.cells, cell);
        let slot = match self.places.get(&id) {
            Some(place) => place.slot,
            None => of_cell.vacant.pop().unwrap_or(of_cell.nodes.len() as u32),
        };
        if slot as usize == of_cell.nodes.len() {
            of_cell.nodes.push(id);
            of_cell.hidden.push(Key::VACANT);
        }
        of_cell.replace(slot, hidden, key);
        of_cell.nodes[slot as usize] = id;
        self.places.insert(id, CellPosition { cell, slot });
    }

    fn remove(&mut self, id: NodeId) {
        if self.is_one(id)
            && let Some(place) = self.places.remove(&id)
        {
            let of_cell = &mut self.cells[place.cell as usize];
            of_cell.replace(place.slot, Key::VACANT, Key::VACANT);
            of_cell.vacant.push(place.slot);
        }
    }

    fn bytes(&self) -> usize {
        let cells = self.cells.iter().map(|of_cell| {
            of_cell.cell.bytes()
                + of_cell.hidden.capacity() * size_of::<Key>()
                + of_cell.nodes.capacity() * size_of::<NodeId>()
        });
        // A table is at most seven eighths full, with a byte an entry.
        self.places.capacity() * (size_of::<(NodeId, CellPosition)>() + 1) * 8 / 7 + cells.sum::<usize>()
    }
}

impl Exceptional {
    fn replace(&mut self, slot: u32, hidden: Key, key: Key) {
        let before = std::mem::replace(&mut self.hidden[slot as usize], hidden);
        self.hides.change(before, hidden);
        self.cell.set(slot, key);
    }

    fn best(&self) -> Option<(NodeId, Key)> {
        let (slot, key) = self.cell.tree.best().filter(|(_, key)| key.is_valid())?;
        Some((self.nodes[slot as usize], key))
    }

    /// Returns the valid nodes, the best first.
    fn in_order(&self) -> impl Iterator<Item = (NodeId, Key)> {
        let valid = self.cell.tree.in_order().take_while(|(_, key)| key.is_valid());
        valid.map(|(slot, key)| (self.nodes[slot as usize], key))
    }
}

impl RankedList {
    /// Finds the exceptions of a class. `scoped` is the result of `Scoped::acquire` for it; `common` is up to date.
    pub fn build(class: &Arc<Class>, scoped: Option<Scoped>, from: ListSources, common: &CommonList) -> Self {
        let mut list = RankedList {
            class: class.clone(),
            scoped,
            globals: Globals::new(),
            plain: Plain::default(),
            exceptions: Exceptions::default(),
            revision: from.view.revision(),
        };
        list.rebuild(from, common);
        list
    }

    fn rebuild(&mut self, from: ListSources, common: &CommonList) {
        (self.globals, self.plain) = match &self.scoped {
            None => (Globals::new(), Plain::default()),
            Some(scoped) => {
                (scoped.globals(&self.class, from.domains), scoped.plain(&self.class, from.domains))
            }
        };
        let nodes = from.view.rows().len();
        let mut found =
            self.scoped.as_ref().map_or(Vec::new(), |scoped| scoped.exceptions(from.domains, nodes));
        if let Some(images) = from.objects[CachedRule::ImageLocality.index()] {
            let present =
                images.answers().iter().enumerate().filter(|(_, answer)| **answer != rules::NO_IMAGE);
            found.extend(present.map(|(at, _)| NodeId(at as u32)));
        }
        found.sort_unstable();
        found.dedup();
        let mut by_cell: Vec<Vec<(NodeId, Key, Key)>> = Vec::new();
        for id in found {
            if let Some((cell, hidden, key)) = self.exception(from, common, id) {
                cell_at(&mut by_cell, cell).push((id, hidden, key));
            }
        }
        self.exceptions = Exceptions::build(by_cell);
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

    /// Looks at the nodes that changed since the last use. Rule objects, domains and the common list must be up to date.
    pub fn repair(&mut self, from: ListSources, common: &CommonList) {
        let view = from.view;
        let before = std::mem::replace(&mut self.revision, view.revision());
        let fine = self.scoped.as_ref().map_or(&[][..], Scoped::fine);
        let anew = self.scoped.as_ref().is_some_and(|scoped| {
            scoped.globals(&self.class, from.domains) != self.globals
                || fine.iter().any(|topology| from.domains.reshaped(*topology) > before)
        });
        // Finding all exceptions again costs about as much.
        let most = 256 + 2 * self.exceptions.places.len();
        let mut outdated: Vec<NodeId> = view.changed_since(before).take(most).collect();
        if anew || outdated.len() == most {
            return self.rebuild(from, common);
        }
        from.domains.add_neighbours(fine, &mut outdated);
        for id in outdated {
            self.update(from, common, id);
        }
    }

    fn update(&mut self, from: ListSources, common: &CommonList, id: NodeId) {
        match self.exception(from, common, id) {
            Some((cell, hidden, key)) => self.exceptions.set(id, cell, hidden, key),
            None => self.exceptions.remove(id),
        }
    }

    /// Returns the cell of a node, its key in the common list and its own; `None`: it is no exception.
    fn exception(&self, from: ListSources, common: &CommonList, id: NodeId) -> Option<(u32, Key, Key)> {
        if !self.excepts(from, id) {
            return None;
        }
        let position = common.position(from.domains, id)?;
        let mut key = from.rank(&self.class, id);
        if let Some(scoped) = &self.scoped {
            key = scoped.apply_fine(&self.class, from.domains, id, key);
        }
        Some((position.cell, common.key(position), key))
    }

    /// Returns whether the class sees more in this node than the common list does.
    fn excepts(&self, from: ListSources, id: NodeId) -> bool {
        let has_image = |images: &RuleObject| images.answers()[id.index()] != rules::NO_IMAGE;
        let seen = from.objects[CachedRule::ImageLocality.index()].is_some_and(has_image)
            || self.scoped.as_ref().is_some_and(|scoped| scoped.is_exception(from.domains, id));
        seen && from.view.row(id).node.is_some()
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

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns its bytes without those of the common list.
    pub fn bytes(&self) -> usize {
        self.exceptions.bytes()
    }
}

/// A list with its common part, both as of one revision.
#[derive(Debug, Clone, Copy)]
pub struct WholeList<'a> {
    list: &'a RankedList,
    common: &'a CommonList,
}

impl<'a> WholeList<'a> {
    pub fn new(list: &'a RankedList, common: &'a CommonList) -> Self {
        WholeList { list, common }
    }

    fn class(&self) -> &'a Class {
        &self.list.class
    }

    pub fn revision(&self) -> Revision {
        self.list.revision
    }

    /// Returns its bytes, and those of the part that other lists may share.
    pub fn bytes(&self) -> (usize, usize) {
        (self.list.bytes(), self.common.bytes())
    }

    /// Returns the best valid node.
    pub fn best(&self, domains: &Domains) -> Option<NodeId> {
        let Some(scoped) = &self.list.scoped else {
            return self.placed_cells(domains).filter_map(|cell| cell.best()).next().map(|(id, _)| id);
        };
        let weights = self.weigh(scoped, domains);
        let open = self.open_cells(scoped, domains);
        let best = open.filter_map(|cell| {
            let (id, key) = cell.best()?;
            Some((self.standing_in(scoped, domains, &weights, cell, key)?, id))
        });
        best.min().map(|(_, id)| id)
    }

    /// Returns the best `k` valid nodes, best first.
    pub fn best_k(&self, domains: &Domains, k: usize) -> Vec<(NodeId, Standing)> {
        let Some(scoped) = &self.list.scoped else {
            let layout = self.class().placement.layout();
            let best = self.placed_cells(domains).flat_map(|cell| cell.best_k(k));
            return best.filter_map(|(id, key)| Some((id, key.standing(layout)?))).collect();
        };
        let weights = self.weigh(scoped, domains);
        let mut found = Vec::new();
        for cell in self.open_cells(scoped, domains) {
            found.extend(
                cell.best_k(k).into_iter().filter_map(|(id, key)| {
                    Some((self.standing_in(scoped, domains, &weights, cell, key)?, id))
                }),
            );
        }
        found.sort_unstable();
        found.into_iter().take(k).map(|(standing, id)| (id, standing)).collect()
    }

    /// Returns the cells with a valid node that no rule over coarse domains excludes.
    fn open_cells(
        self,
        scoped: &'a Scoped,
        domains: &'a Domains,
    ) -> impl Iterator<Item = PlacedCell<'a>> + Clone {
        self.placed_cells(domains).filter(move |cell| {
            let domain = |topology| scoped.domain_in(cell.domains(), topology);
            cell.valid() > 0 && scoped.refusal(self.class(), domains, RuleScope::Coarse, domain).is_none()
        })
    }

    fn placed_cells(self, domains: &'a Domains) -> impl Iterator<Item = PlacedCell<'a>> + Clone {
        let layout = self.common.layout(domains).map_or(&[][..], CellLayout::cells);
        let nodes = layout.iter().map(Some).chain(std::iter::repeat(None));
        let cells = (0..).zip(self.common.cells()).zip(nodes);
        cells.map(move |((at, _), nodes)| self.placed_cell(at, nodes))
    }

    fn placed_cell(self, at: u32, nodes: Option<&'a CellNodes>) -> PlacedCell<'a> {
        PlacedCell {
            list: self.list,
            common: &self.common.cells()[at as usize],
            own: self.list.exceptions.cells.get(at as usize).filter(|own| own.nodes.len() > own.vacant.len()),
            nodes,
        }
    }

    fn weigh(&self, scoped: &Scoped, domains: &Domains) -> Weights {
        scoped.weigh(self.open_cells(scoped, domains).map(|cell| (cell.domains(), cell.valid())))
    }

    fn standing_in(
        &self,
        scoped: &Scoped,
        domains: &Domains,
        weights: &Weights,
        cell: PlacedCell,
        key: Key,
    ) -> Option<Standing> {
        let layout = self.class().placement.layout();
        let standing = key.standing(layout)?;
        let (pods, spread) = scoped.cell(self.class(), domains, weights, cell.domains());
        let fine = scoped.fine_spread(self.class(), weights, standing.spread());
        Some(standing.with_pods(layout, standing.pods() + pods, spread.saturating_add(fine)))
    }

    /// Returns the standing of each existing node, or the reasons why it is not valid, by id.
    pub fn standings(&self, domains: &Domains) -> Vec<(NodeId, Result<Standing, Reasons>)> {
        let weights = self.list.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
        let layout = self.common.layout(domains);
        let nodes = layout.map_or_else(|| self.common.cells()[0].tree.capacity(), CellLayout::nodes);
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
        let weights = self.list.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
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
        let (Some(scoped), Some(weights)) = (&self.list.scoped, weights) else {
            return key.standing(self.class().placement.layout()).map(Ok).or_else(|| key.reasons().map(Err));
        };
        Some(match self.refusal_at(scoped, domains, id, key) {
            Some(reasons) => Err(reasons),
            None => self.standing_in(scoped, domains, weights, cell, key).ok_or(Reasons::NONE),
        })
    }

    /// Returns the reasons of the first rule that refuses this node, whose key is `key`.
    fn refusal_at(&self, scoped: &Scoped, domains: &Domains, id: NodeId, key: Key) -> Option<Reasons> {
        let first = |reasons: &Reasons| !reasons.are_of_domains() && !reasons.come_last();
        let by_domains = || {
            scoped.refusal(self.class(), domains, RuleScope::All, |topology| domains.domain_of(topology, id))
        };
        key.reasons().filter(first).or_else(by_domains).or(key.reasons())
    }

    /// Returns the best valid node of these.
    pub fn best_among(&self, domains: &Domains, nodes: &[NodeId]) -> Option<NodeId> {
        let weights = self.list.scoped.as_ref().map(|scoped| self.weigh(scoped, domains));
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
    fn find(&self, domains: &'a Domains, id: NodeId) -> Option<(PlacedCell<'a>, Key)> {
        let position = self.common.position(domains, id)?;
        let nodes = self.common.layout(domains).and_then(|layout| layout.cells().get(position.cell as usize));
        let common = self.common.key(position);
        (common != Key::VACANT).then(|| {
            let cell = self.placed_cell(position.cell, nodes);
            let own = self.list.exceptions.key(id);
            (cell, own.unwrap_or_else(|| cell.plain(common)))
        })
    }

    /// Returns whether the class may go to this node.
    pub fn admits(&self, domains: &Domains, id: NodeId) -> bool {
        let domain = |topology| domains.domain_of(topology, id);
        let refused =
            |scoped: &Scoped| scoped.refusal(self.class(), domains, RuleScope::Coarse, domain).is_some();
        self.find(domains, id).is_some_and(|(_, key)| key.is_valid())
            && !self.list.scoped.as_ref().is_some_and(refused)
    }

    /// Returns the reasons of all nodes that are not valid. Reads the counts of each cell, and only those nodes for
    /// which they do not tell which rule refuses first.
    pub fn diagnose(&self, domains: &Domains) -> Diagnosis {
        let mut diagnosis = Diagnosis::default();
        for cell in self.placed_cells(domains) {
            let refused = cell.refused();
            let Some(scoped) = &self.list.scoped else {
                refused.iter().for_each(|(reasons, nodes)| diagnosis.add(reasons, nodes));
                continue;
            };
            let domain = |topology| scoped.domain_in(cell.domains(), topology);
            let of_cell = scoped.refusal(self.class(), domains, RuleScope::Coarse, domain);
            if let Some(of_cell) = of_cell {
                diagnosis.add(of_cell, cell.valid());
            }
            for (reasons, nodes) in refused.iter() {
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
        if reasons.come_last() {
            // Rules over fine domains come first, and have not been evaluated.
            return scoped.fine().is_empty().then_some(of_cell.unwrap_or(reasons));
        }
        match of_cell {
            Some(of_cell) if reasons.are_of_domains() => reasons.first_of_domains(of_cell),
            _ => Some(reasons),
        }
    }
}

/// A cell of a list: its part of the common list, the exceptions there, and the nodes; without them, a position is the id of a node.
#[derive(Debug, Clone, Copy)]
struct PlacedCell<'a> {
    list: &'a RankedList,
    common: &'a Cell,
    own: Option<&'a Exceptional>,
    nodes: Option<&'a CellNodes>,
}

impl<'a> PlacedCell<'a> {
    fn domains(&self) -> &'a [Domain] {
        self.nodes.map_or(&[], |nodes| &nodes.domains)
    }

    fn node(&self, slot: u32) -> NodeId {
        self.nodes.map_or(NodeId(slot), |nodes| nodes.node(slot))
    }

    /// Returns the key of a node that is no exception, from its key in the common list.
    fn plain(&self, common: Key) -> Key {
        self.list.plain.apply(&self.list.class, common)
    }

    fn hides(&self, id: NodeId) -> bool {
        self.own.is_some() && self.list.exceptions.is_one(id)
    }

    /// Returns the number of valid nodes that are no exceptions.
    fn plainly_valid(&self) -> usize {
        self.common.tally.valid - self.own.map_or(0, |own| own.hides.valid)
    }

    /// Returns the number of valid nodes, apart from the rules over coarse domains.
    fn valid(&self) -> usize {
        let plain = if self.list.plain.refuses().is_none() { self.plainly_valid() } else { 0 };
        plain + self.own.map_or(0, |own| own.cell.tally.valid)
    }

    /// Returns the numbers of nodes that are not valid, by the reasons in their key.
    fn refused(&self) -> Diagnosis {
        let mut refused = self.common.tally.refused.clone();
        if let Some(own) = self.own {
            own.hides.refused.iter().for_each(|(reasons, nodes)| refused.remove(reasons, nodes));
            own.cell.tally.refused.iter().for_each(|(reasons, nodes)| refused.add(reasons, nodes));
        }
        if let Some(reasons) = self.list.plain.refuses() {
            refused.add(reasons, self.plainly_valid());
        }
        refused
    }

    /// Returns the best valid node, apart from the rules over coarse domains.
    fn best(&self) -> Option<(NodeId, Key)> {
        let first = self.common.tree.best().map(|(slot, key)| (self.node(slot), self.plain(key)));
        let plain = match first {
            Some((id, key)) if !key.is_valid() || self.hides(id) => self.plain_in_order().next(),
            first => first,
        };
        let own = self.own.and_then(Exceptional::best);
        plain.into_iter().chain(own).min_by_key(|(_, key)| *key)
    }

    fn best_k(&self, k: usize) -> Vec<(NodeId, Key)> {
        let mut best: Vec<_> = self.plain_in_order().take(k).collect();
        best.extend(self.own.into_iter().flat_map(|own| own.in_order().take(k)));
        best.sort_unstable_by_key(|(_, key)| *key);
        best.truncate(k);
        best
    }

    /// Returns the valid nodes that are no exceptions, the best first.
    fn plain_in_order(&self) -> impl Iterator<Item = (NodeId, Key)> {
        let keys = self.common.tree.in_order().map(|(slot, key)| (self.node(slot), self.plain(key)));
        keys.take_while(|(_, key)| key.is_valid()).filter(|(id, _)| !self.hides(*id))
    }

    /// Returns the nodes with these reasons in their key.
    fn with_reasons(&self, reasons: Reasons) -> impl Iterator<Item = (NodeId, Key)> {
        let keys = self.common.tree.keys().iter().enumerate();
        let plain = keys.map(|(slot, key)| (self.node(slot as u32), self.plain(*key)));
        let own = self.own.into_iter().flat_map(|own| own.nodes.iter().copied().zip(own.cell.tree.keys()));
        let own = own.map(|(id, key)| (id, *key));
        plain
            .filter(|(id, _)| !self.hides(*id))
            .chain(own)
            .inspect(|_| count_key())
            .filter(move |(_, key)| key.reasons() == Some(reasons))
    }
}

#[cfg(test)]
thread_local! {
    /// Number of keys that this thread has read one by one.
    pub static KEYS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn count_key() {
    #[cfg(test)]
    KEYS_READ.set(KEYS_READ.get() + 1);
}
