//! An allocation agent: a private view of the nodes, private caches without locks, and the choice of a node.
//!
//! May not know: kube, tokio, clocks. Its owner drives it: catch up with the inventory, choose for a class, repair
//! lists while idle.

mod cache;
mod cells;
mod common;
mod domains;
mod kinds;
mod list;
mod object;
mod plan;
mod scoped;
mod suppose;
mod tree;
mod view;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cache::{CacheChange, CacheLimits, CacheStats};
#[cfg(test)]
pub use list::KEYS_READ;
pub use list::WholeList;
pub use tree::WinnerTree;
pub use view::View;

use crate::class::{Class, ClassId};
use crate::inventory::{Inventory, NodeId, Revision};
use crate::rules::{Diagnosis, GOLDEN, Reasons, Salt, Scores, Standing, mix};
use cache::Cache;
use domains::Domains;
use plan::Topologies;

/// Configuration of an agent; constant for its lifetime.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct AgentConfig {
    pub cache: CacheLimits,
    /// Seed of the agent's salt and its choices.
    pub seed: u64,
}

/// Answer of an agent to one request.
#[derive(Debug)]
pub enum AgentChoice {
    /// This node, which was valid at revision `seen`.
    Node { node: NodeId, seen: Revision },
    /// No node is valid.
    Nowhere(Diagnosis),
}

/// A node that an agent compared with others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub node: NodeId,
    pub scores: Scores,
    /// Not requested by other pods.
    pub free_cpu_milli: i64,
    /// In bytes.
    pub free_memory: i64,
}

/// Part of the work for a request, for the estimator and the metrics. The caller, who has a clock, measures the times:
/// the agent calls `lap` at the end of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// The ranked list was cached: repaired and read.
    ListHit,
    /// The ranked list was built (its common list and rule objects were cached, or were built before and are measured as
    /// parts of their own).
    ListMiss,
    /// For a list that was built, the common list was repaired.
    CommonHit,
    /// It was built.
    CommonMiss,
    RuleHit(crate::rules::CachedRule),
    RuleMiss(crate::rules::CachedRule),
    /// All nodes were surveyed for preemption, by their rows.
    Survey,
    /// Victims were sought on one node.
    DryRun,
    /// One step of preemption for a gang.
    GangPreemption,
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    salt: Salt,
    rng: Rng,
    view: View,
    domains: Domains,
    cache: Cache,
    topologies: Topologies,
}

impl Agent {
    pub fn new(config: AgentConfig) -> Self {
        let mut rng = Rng(config.seed);
        let salt = Salt(rng.next());
        Agent {
            salt,
            rng,
            view: View::default(),
            domains: Domains::default(),
            cache: Cache::new(config.cache, salt),
            topologies: Topologies::default(),
        }
    }

    /// Copies the changed rows. Returns their number. The only step that needs the shared inventory.
    pub fn catch_up(&mut self, inventory: &Inventory) -> usize {
        self.view.catch_up(inventory)
    }

    /// Whether more than `most` changes are not copied yet.
    pub fn is_behind(&self, inventory: &Inventory, most: usize) -> bool {
        inventory.changes_after(self.view.seen()).len() > most
    }

    /// Copies at most `most` of the changed rows. Returns whether no more are left; until then nothing else may be asked.
    pub fn approach(&mut self, inventory: &Inventory, most: usize) -> bool {
        self.view.approach(inventory, most)
    }

    /// Makes room for the rows that [`Agent::approach`] is to copy. Does not need the shared inventory.
    pub fn make_room(&mut self) {
        self.view.make_room();
    }

    /// Returns the best node for `class` in the view, from the class's ranked list, which is repaired if cached and
    /// built if not.
    pub fn choose(&mut self, class: &Arc<Class>, now: Duration, lap: impl FnMut(Part)) -> AgentChoice {
        self.cache.expect(class.id, false, &mut self.domains);
        self.choose_best(class, now, lap)
    }

    /// Does the same in the turn of a pod that was held back: the list, if it is built for it, evicts no others but that of the turn
    /// before.
    pub fn choose_in_turn(
        &mut self,
        class: &Arc<Class>,
        now: Duration,
        lap: impl FnMut(Part),
    ) -> AgentChoice {
        self.cache.expect(class.id, true, &mut self.domains);
        self.choose_best(class, now, lap)
    }

    fn choose_best(&mut self, class: &Arc<Class>, now: Duration, lap: impl FnMut(Part)) -> AgentChoice {
        let seen = self.view.seen();
        let list = self.cache.list(class, &self.view, &mut self.domains, now, lap);
        let width = class.placement.candidate_width;
        let best = if width <= 1 {
            list.best(&self.domains)
        } else {
            let candidates = list.best_k(&self.domains, width);
            let count = candidates.len() as u64;
            (count > 0).then(|| candidates[(self.rng.next() % count) as usize].0)
        };
        match best {
            Some(node) => AgentChoice::Node { node, seen },
            None => AgentChoice::Nowhere(list.diagnose(&self.domains)),
        }
    }

    /// Returns the best nodes of the list of `class`, which has just been used, best first; the chosen one among them.
    pub fn compare(&self, class: &Class, chosen: NodeId, most: usize) -> Vec<Candidate> {
        let Some(list) = self.list(class.id) else {
            return Vec::new();
        };
        let mut best = list.best_k(&self.domains, most);
        if best.iter().all(|(id, _)| *id != chosen)
            && let Some(Some(Ok(standing))) =
                list.standings_of(&self.domains, [Some(chosen)].into_iter()).first()
        {
            best.truncate(most.saturating_sub(1));
            best.push((chosen, *standing));
        }
        let candidate = |(node, standing): (NodeId, Standing)| {
            let row = self.view.row(node);
            Candidate {
                node,
                scores: standing.scores(class.placement.layout()),
                free_cpu_milli: row.allocatable.cpu_milli.saturating_sub(row.requested.cpu_milli),
                free_memory: row.allocatable.memory.saturating_sub(row.requested.memory),
            }
        };
        best.into_iter().map(candidate).collect()
    }

    /// Brings the list of `class` up to date if it is cached. Returns whether it was.
    pub fn refresh(&mut self, class: ClassId) -> bool {
        self.cache.refresh(class, &self.view, &mut self.domains)
    }

    /// Returns whether `class`, whose list is cached, may still go to `node` after all changes since it was chosen: for
    /// rules that depend on nodes other than this one. Catches up first; counts the changed rows, and repairs the list
    /// only if it lacks counts.
    pub fn still_admits(&mut self, class: ClassId, node: NodeId, inventory: &Inventory) -> bool {
        self.catch_up(inventory);
        self.domains.advance(&self.view);
        let admits = |agent: &Agent| agent.cache.own_part(class)?.admits_by_domains(&agent.domains, node);
        admits(self).or_else(|| self.refresh(class).then(|| admits(self)).flatten()).unwrap_or(false)
    }

    /// Returns the best node of the cached list of a class.
    pub fn best(&self, class: ClassId) -> Option<NodeId> {
        self.list(class)?.best(&self.domains)
    }

    /// Returns the standing of each node in the cached list of a class, or the reasons why it is not valid, by id.
    /// Empty if the list is not cached.
    pub fn standings(&self, class: ClassId) -> Vec<(NodeId, Result<Standing, Reasons>)> {
        self.list(class).map_or(Vec::new(), |list| list.standings(&self.domains))
    }

    /// Returns the standing of these nodes in the cached list of a class, or the reasons why they are not valid; `None`
    /// for nodes that do not exist. Empty if the list is not cached.
    pub fn standings_of(
        &self,
        class: ClassId,
        ids: impl Iterator<Item = Option<NodeId>>,
    ) -> Vec<Option<Result<Standing, Reasons>>> {
        self.list(class).map_or(Vec::new(), |list| list.standings_of(&self.domains, ids))
    }

    /// Repairs the least recently used cached list that is behind. Returns whether there was one. For idle time: keeps
    /// the next catch-up of each list small.
    pub fn repair_one(&mut self) -> bool {
        self.cache.repair_one(&self.view, &mut self.domains)
    }

    /// Evicts entries unused for longer than the age limit.
    pub fn expire(&mut self, now: Duration) {
        self.cache.expire(now, &mut self.domains);
    }

    /// Returns the insertions and evictions since the last call, in order.
    pub fn cache_changes(&mut self) -> Vec<CacheChange> {
        self.cache.take_changes()
    }

    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats(&self.domains)
    }

    /// Returns the inventory revision of its view.
    pub fn revision(&self) -> Revision {
        self.view.seen()
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the cached list of a class without repairing it.
    pub fn list(&self, class: ClassId) -> Option<WholeList<'_>> {
        self.cache.peek(class)
    }
}

/// A small seeded generator (splitmix64). Its sequence never changes between versions; decisions need no better one.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}
