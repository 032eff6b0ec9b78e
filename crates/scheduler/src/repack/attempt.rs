//! Which pods of a node to try to move: first one, then two, then as few of all as are needed.

use std::sync::Arc;

use super::site::{Freedom, Resident, held};
use crate::inventory::{NodeId, Row};
use crate::rules::insufficient_without;
use berth_model::Usage;

/// A node where enough would be free without all pods that can be moved.
pub(super) struct Spot {
    pub(super) node: NodeId,
    /// As the class sees it: with the room that is kept from it.
    pub(super) row: Row,
    pub(super) residents: Arc<[Resident]>,
    /// Those that can be moved, by their place, smallest first.
    pub(super) movable: Vec<usize>,
}

/// Pods that are moved together; of all attempts of a round the least is tried first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt {
    /// The highest priority that is moved.
    priority: i32,
    /// Thousandths of the node.
    size: i64,
    pub(super) node: NodeId,
    /// The place of the node's spot.
    pub(super) spot: usize,
    /// Places of residents, the largest first. Empty: to be found, starting from all.
    pub(super) set: Vec<usize>,
}

/// How many pods the attempts of a round move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    One,
    Two,
    More,
}

impl Round {
    pub(super) const ALL: [Round; 3] = [Round::One, Round::Two, Round::More];
}

/// Pods of a node that are combined to pairs, at most: the smallest.
const MOST_PAIRED: usize = 40;

impl Spot {
    /// `usage` fits the row without these, as far as sums tell.
    fn covers(&self, usage: &Usage, set: &[usize]) -> bool {
        let gone = held(set.iter().map(|at| &self.residents[*at]));
        insufficient_without(usage, &self.row, &gone).is_none()
    }

    pub(super) fn size(&self, at: usize) -> i64 {
        share(&self.residents[at].holding.usage, &self.row)
    }

    fn attempt(&self, spot: usize, mut set: Vec<usize>) -> Attempt {
        let of = |all: &[usize]| all.iter().fold(0, |sum: i64, at| sum.saturating_add(self.size(*at)));
        let pods = if set.is_empty() { &self.movable } else { &set };
        let size = of(pods);
        let priority = pods.iter().map(|at| self.residents[*at].holding.priority).max().unwrap_or(i32::MIN);
        set.sort_by_key(|at| (std::cmp::Reverse(self.size(*at)), *at));
        Attempt { priority, size, node: self.node, spot, set }
    }

    /// What to try here in this round.
    pub(super) fn attempts(
        &self,
        spot: usize,
        round: Round,
        usage: &Usage,
        freedom: &Freedom,
    ) -> Vec<Attempt> {
        match round {
            Round::One => {
                let enough = self.movable.iter().filter(|at| self.covers(usage, &[**at]));
                enough.map(|at| self.attempt(spot, vec![*at])).collect()
            }
            Round::Two => self.pairs(usage, freedom).map(|pair| self.attempt(spot, pair)).collect(),
            Round::More if self.movable.len() > 2 => vec![self.attempt(spot, Vec::new())],
            Round::More => Vec::new(),
        }
    }

    fn pairs(&self, usage: &Usage, freedom: &Freedom) -> impl Iterator<Item = Vec<usize>> {
        // Where nothing is missing, it is not their size that is in the way.
        let missing = !self.covers(usage, &[]);
        let alone: Vec<_> = self
            .movable
            .iter()
            .filter(|at| !missing || !self.covers(usage, &[**at]))
            .take(MOST_PAIRED)
            .collect();
        alone
            .iter()
            .enumerate()
            .flat_map(|(at, one)| {
                alone[at + 1..].iter().filter_map(|other| {
                    let pair = vec![**one, **other];
                    let pods = [&self.residents[**one], &self.residents[**other]];
                    (self.covers(usage, &pair) && freedom.allows(&pods)).then_some(pair)
                })
            })
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// Of CPU and memory of the node, in thousandths; devices count as whole nodes.
pub(super) fn share(usage: &Usage, row: &Row) -> i64 {
    let of = |part: i64, all: i64| part.max(0).saturating_mul(1000) / all.max(1);
    let devices = usage.extended.iter().map(|(_, amount)| amount).fold(0, i64::saturating_add);
    let plain = of(usage.requests.cpu_milli, row.allocatable.cpu_milli)
        .saturating_add(of(usage.requests.memory, row.allocatable.memory));
    plain.saturating_add(devices.saturating_mul(1000))
}
