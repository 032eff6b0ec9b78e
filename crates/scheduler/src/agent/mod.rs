//! An allocation agent: a private view of the nodes, private caches without locks, and the choice of a node.
//!
//! May not know: kube, tokio, clocks. An agent is driven by its owner: catch up with the inventory, choose for a class,
//! repair something while idle.

mod cache;
mod domains;
mod list;
mod object;
mod plan;
mod scoped;
mod suppose;
mod tree;
mod view;

use std::sync::Arc;
use std::time::Duration;

pub use cache::{CacheChange, CacheLimits, CacheStats};
pub use list::RankedList;
pub use tree::WinnerTree;
pub use view::View;

use crate::class::{Class, ClassId};
use crate::inventory::{Inventory, NodeId, Revision};
use crate::rules::{Diagnosis, GOLDEN, Reasons, Salt, Standing, mix};
use cache::Cache;
use domains::Domains;
use plan::Topologies;

/// How an agent works; the same for its whole life.
#[derive(Debug, Clone, Copy)]
pub struct AgentConfig {
    pub cache: CacheLimits,
    /// Seeds the agent's salt and its choices.
    pub seed: u64,
}

/// What an agent says to one request.
#[derive(Debug)]
pub enum Choice {
    /// This node, which was valid at revision `seen`.
    Node { node: NodeId, seen: Revision },
    /// No node is valid.
    Nowhere(Diagnosis),
}

/// How a request was answered, for the estimator and the metrics. Times are measured by the caller, who has a clock: the
/// agent calls `lap` at the end of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The ranked list was there: repaired and asked.
    ListHit,
    /// The ranked list was made (its rule objects were there, or were made before, as parts of their own).
    ListMiss,
    RuleHit(crate::rules::CachedRule),
    RuleMiss(crate::rules::CachedRule),
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    salt: Salt,
    rng: Rng,
    view: View,
    domains: Domains,
    cache: Cache,
    candidates: Vec<NodeId>,
    topologies: Topologies,
}

impl Agent {
    pub fn new(config: AgentConfig) -> Self {
        let mut rng = Rng(config.seed);
        Agent {
            salt: Salt(rng.next()),
            rng,
            view: View::default(),
            domains: Domains::default(),
            cache: Cache::new(config.cache),
            candidates: Vec::new(),
            topologies: Topologies::default(),
        }
    }

    /// Copies the rows that changed. Returns how many. The only step that needs the shared inventory.
    pub fn catch_up(&mut self, inventory: &Inventory) -> usize {
        self.view.catch_up(inventory)
    }

    /// The best node for `class` in the view, from the class's ranked list: repaired if it is cached, else made.
    pub fn choose(&mut self, class: &Arc<Class>, now: Duration, lap: impl FnMut(Part)) -> Choice {
        let seen = self.view.seen();
        let list = self.cache.list(class, self.salt, &self.view, &mut self.domains, now, lap);
        let width = class.placement.candidate_width;
        let best = if width <= 1 {
            list.best(&self.domains)
        } else {
            list.best_k(&self.domains, width, &mut self.candidates);
            let count = self.candidates.len() as u64;
            (count > 0).then(|| self.candidates[(self.rng.next() % count) as usize])
        };
        match best {
            Some(node) => Choice::Node { node, seen },
            None => Choice::Nowhere(list.diagnose(&self.domains)),
        }
    }

    /// Brings the list of `class` up to date if it is cached. Returns whether it was.
    pub fn refresh(&mut self, class: ClassId) -> bool {
        self.cache.refresh(class, self.salt, &self.view, &mut self.domains)
    }

    /// Whether `class`, whose list is cached, may still go to `node` after everything that happened since it was chosen: for
    /// rules that look at other nodes than this one. Catches up first.
    pub fn still_admits(&mut self, class: ClassId, node: NodeId, inventory: &Inventory) -> bool {
        self.catch_up(inventory);
        self.refresh(class) && self.list(class).is_some_and(|list| list.admits(&self.domains, node))
    }

    /// The best node of the cached list of a class.
    pub fn best(&self, class: ClassId) -> Option<NodeId> {
        self.list(class)?.best(&self.domains)
    }

    /// Where each node stands in the cached list of a class, or why it is out, by id. Empty if the list is not cached.
    pub fn standings(&self, class: ClassId) -> Vec<(NodeId, Result<Standing, Reasons>)> {
        self.list(class).map_or(Vec::new(), |list| list.standings(&self.domains))
    }

    /// Where these nodes stand in the cached list of a class, or why they are out; `None` for those that do not exist. Empty if
    /// the list is not cached.
    pub fn standings_of(
        &self,
        class: ClassId,
        ids: impl Iterator<Item = Option<NodeId>>,
    ) -> Vec<Option<Result<Standing, Reasons>>> {
        self.list(class).map_or(Vec::new(), |list| list.standings_of(&self.domains, ids))
    }

    /// Repairs the cached list that is most behind, if any is. For idle time: keeps the next catch-up of each list small.
    pub fn repair_one(&mut self) -> bool {
        self.cache.repair_one(self.salt, &self.view, &mut self.domains)
    }

    /// Forgets what was not used for longer than the limit.
    pub fn expire(&mut self, now: Duration) {
        self.cache.expire(now, &mut self.domains);
    }

    /// What came into and went out of the caches since the last call, in order.
    pub fn cache_changes(&mut self) -> Vec<CacheChange> {
        self.cache.take_changes()
    }

    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats(&self.domains)
    }

    /// The revision of the inventory that its view is at.
    pub fn revision(&self) -> Revision {
        self.view.seen()
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// The cached list of a class, as it is.
    pub fn list(&self, class: ClassId) -> Option<&RankedList> {
        self.cache.peek(class)
    }
}

/// A small seeded generator (splitmix64): decisions need no more, and its sequence never changes between versions.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}
