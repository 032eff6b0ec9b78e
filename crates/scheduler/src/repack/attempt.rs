//! Order of the sets of pods to move off a node: single pods first, then pairs, then the smallest sufficient set.

use std::sync::Arc;

use super::site::{Freedom, Resident, held};
use crate::inventory::{NodeId, Row};
use crate::rules::insufficient_without;
use berth_model::Usage;

/// A node that would have enough room if all movable pods left.
pub(super) struct Spot {
    pub(super) node: NodeId,
    /// As the class sees it: excluding room reserved against it.
    pub(super) row: Row,
    pub(super) residents: Arc<[Resident]>,
    /// Indexes of the movable pods, smallest first.
    pub(super) movable: Vec<usize>,
}

/// Pods that are moved together; the smallest attempt of a round is tried first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt {
    /// The highest priority among the moved pods.
    priority: i32,
    /// In thousandths of the node.
    size: i64,
    pub(super) node: NodeId,
    /// The index of the node's spot.
    pub(super) spot: usize,
    /// Indexes of residents, largest first. Empty: computed later, starting from all of them.
    pub(super) set: Vec<usize>,
}

/// Number of pods that the attempts of a round move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    One,
    Two,
    More,
}

impl Round {
    pub(super) const ALL: [Round; 3] = [Round::One, Round::Two, Round::More];
}

/// Maximum number of pods of a node that are combined into pairs: the smallest.
const MOST_PAIRED: usize = 40;

impl Spot {
    /// Returns whether `usage` fits the row without these pods, judged by totals only.
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

    /// Returns the attempts on this node in this round.
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
        // If no resource is missing, the size of the pods is not the obstacle.
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

/// Returns the share of the node's CPU and memory, in thousandths; devices count as whole nodes.
pub(super) fn share(usage: &Usage, row: &Row) -> i64 {
    let of = |part: i64, all: i64| part.max(0).saturating_mul(1000) / all.max(1);
    let devices = usage.extended.iter().map(|(_, amount)| amount).fold(0, i64::saturating_add);
    let plain = of(usage.requests.cpu_milli, row.allocatable.cpu_milli)
        .saturating_add(of(usage.requests.memory, row.allocatable.memory));
    plain.saturating_add(devices.saturating_mul(1000))
}
