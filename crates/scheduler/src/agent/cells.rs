//! Cells: the nodes with the same coarse domains, and the position of each node in the tree of its cell. Shared by all
//! lists with the same coarse topologies.
//!
//! A list may be behind: it follows the positions that nodes left since its last repair, and then the changed nodes.

use std::collections::{HashMap, VecDeque};

use super::domains::{Domain, TopologyId};
use crate::inventory::{NodeId, Revision};

/// Number of positions left by nodes that are remembered. A list that is further behind is rebuilt.
const VACATED_MAX: usize = 1024;

/// Marks a position without a node.
const NO_NODE: NodeId = NodeId(u32::MAX);

/// Position of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellPosition {
    pub cell: u32,
    pub slot: u32,
}

const NO_POSITION: CellPosition = CellPosition { cell: u32::MAX, slot: 0 };

#[derive(Debug)]
pub struct CellLayout {
    topologies: Box<[TopologyId]>,
    cells: Vec<CellNodes>,
    by_domains: HashMap<Box<[Domain]>, u32>,
    /// By node.
    positions: Vec<CellPosition>,
    /// Positions that nodes left, oldest first, each with the revision of the view.
    vacated: VecDeque<(Revision, CellPosition)>,
    /// Revision of the newest of these that was dropped.
    forgotten: Revision,
}

/// One cell.
#[derive(Debug)]
pub struct CellNodes {
    pub domains: Box<[Domain]>,
    nodes: Vec<NodeId>,
    vacant: Vec<u32>,
}

impl CellLayout {
    pub fn new(topologies: &[TopologyId]) -> Self {
        CellLayout {
            topologies: topologies.into(),
            cells: Vec::new(),
            by_domains: HashMap::new(),
            positions: Vec::new(),
            vacated: VecDeque::new(),
            forgotten: 0,
        }
    }

    pub fn topologies(&self) -> &[TopologyId] {
        &self.topologies
    }

    pub fn cells(&self) -> &[CellNodes] {
        &self.cells
    }

    /// Returns the number of nodes that ever existed: no node has this id or a larger one.
    pub fn nodes(&self) -> usize {
        self.positions.len()
    }

    /// Returns the position of a node; `None`: it does not exist.
    pub fn position(&self, node: NodeId) -> Option<CellPosition> {
        self.positions.get(node.index()).copied().filter(|position| *position != NO_POSITION)
    }

    /// Puts a node into the cell with these domains; `None`: it does not exist any more.
    pub fn put(&mut self, node: NodeId, domains: Option<Box<[Domain]>>, revision: Revision) {
        let before = self.position(node);
        let cell = domains.map(|domains| self.cell_with(domains));
        if before.map(|position| position.cell) == cell {
            return;
        }
        if let Some(position) = before {
            let left = &mut self.cells[position.cell as usize];
            left.nodes[position.slot as usize] = NO_NODE;
            left.vacant.push(position.slot);
            self.vacated.push_back((revision, position));
            if self.vacated.len() > VACATED_MAX
                && let Some((forgotten, _)) = self.vacated.pop_front()
            {
                self.forgotten = forgotten;
            }
        }
        if self.positions.len() <= node.index() {
            self.positions.resize(node.index() + 1, NO_POSITION);
        }
        self.positions[node.index()] = match cell {
            None => NO_POSITION,
            Some(cell) => CellPosition { cell, slot: self.cells[cell as usize].add(node) },
        };
    }

    /// Returns the number of the cell; creates it for its first node.
    fn cell_with(&mut self, domains: Box<[Domain]>) -> u32 {
        if let Some(cell) = self.by_domains.get(&domains) {
            return *cell;
        }
        let cell = self.cells.len() as u32;
        self.cells.push(CellNodes { domains: domains.clone(), nodes: Vec::new(), vacant: Vec::new() });
        self.by_domains.insert(domains, cell);
        cell
    }

    /// Returns the positions that nodes left since this revision of the view; `None`: some are not remembered any more.
    pub fn vacated_since(&self, revision: Revision) -> Option<impl Iterator<Item = CellPosition>> {
        let newer = self.vacated.iter().rev().take_while(move |(at, _)| *at > revision);
        (self.forgotten <= revision).then(|| newer.map(|(_, position)| *position))
    }

    pub fn bytes(&self) -> usize {
        let nodes: usize = self.cells.iter().map(|cell| cell.nodes.capacity() + cell.vacant.capacity()).sum();
        nodes * size_of::<NodeId>()
            + self.positions.capacity() * size_of::<CellPosition>()
            + self.vacated.capacity() * size_of::<(Revision, CellPosition)>()
    }
}

impl CellNodes {
    /// Returns the node at each position; `None` where it is vacant.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = Option<NodeId>> {
        self.nodes.iter().map(|node| (*node != NO_NODE).then_some(*node))
    }

    /// Returns the node at a position that is not vacant.
    pub fn node(&self, slot: u32) -> NodeId {
        self.nodes.get(slot as usize).copied().unwrap_or(NO_NODE)
    }

    /// Adds a node and returns its position.
    fn add(&mut self, node: NodeId) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(puts: &[(u32, Option<Domain>, Revision)]) -> CellLayout {
        let mut layout = CellLayout::new(&[]);
        for (node, domain, revision) in puts {
            layout.put(NodeId(*node), domain.map(|domain| [domain].into()), *revision);
        }
        layout
    }

    fn left(layout: &CellLayout, since: Revision) -> Option<usize> {
        layout.vacated_since(since).map(Iterator::count)
    }

    #[test]
    fn positions_left_after_a_revision_are_known_and_taken_by_other_nodes() {
        let layout = layout(&[(0, Some(1), 5), (0, Some(2), 7), (1, Some(1), 7), (2, Some(1), 7)]);
        assert_eq!([left(&layout, 6), left(&layout, 7)], [Some(1), Some(0)]);
        let at = |node| layout.position(NodeId(node)).map(|position| (position.cell, position.slot));
        assert_eq!([at(0), at(1), at(2), at(3)], [Some((1, 0)), Some((0, 0)), Some((0, 1)), None]);
        assert_eq!((layout.nodes(), layout.cells()[0].node(0)), (3, NodeId(1)));
    }

    #[test]
    fn a_node_whose_domains_stay_keeps_its_position() {
        let mut layout = layout(&[(0, Some(1), 5), (0, Some(1), 7)]);
        assert_eq!(left(&layout, 0), Some(0));
        layout.put(NodeId(0), None, 8);
        layout.put(NodeId(0), None, 9);
        assert_eq!((layout.position(NodeId(0)), left(&layout, 0)), (None, Some(1)));
    }

    #[test]
    fn a_list_that_is_behind_by_more_moves_than_are_remembered_learns_of_it() {
        let moves = VACATED_MAX as u32 + 1;
        let puts: Vec<_> = (0..=moves).map(|at| (0, Some(at % 2), Revision::from(at))).collect();
        let layout = layout(&puts);
        assert_eq!((left(&layout, 0), left(&layout, 1)), (None, Some(VACATED_MAX)));
    }
}
