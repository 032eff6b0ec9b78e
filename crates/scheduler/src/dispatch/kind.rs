//! The ways to find an agent, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a waiting request finds its agent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DispatcherKind {
    /// One queue for all; an idle agent takes the first (Protean).
    Protean,
    /// Any agent, by a seeded generator.
    Random,
    /// The agents in turn.
    RoundRobin,
    /// The agent that a class hashes to, consistently; an idle agent takes the first of the longest queue.
    HashStealing,
    /// Kamino without what makes it good: only lists that are cached now, and nothing of what an agent is doing.
    LatcacheNaive,
    /// Kamino, but a miss is a miss of every rule object, too (its production variant).
    LatcacheRequest,
    /// Kamino's algorithms 1 and 2.
    LatcacheRule,
    /// LatCache that foresees evictions, and pays for the time that a choice costs later requests.
    #[default]
    LatcachePriced,
}

impl DispatcherKind {
    pub const ALL: [DispatcherKind; 8] = [
        DispatcherKind::Protean,
        DispatcherKind::Random,
        DispatcherKind::RoundRobin,
        DispatcherKind::HashStealing,
        DispatcherKind::LatcacheNaive,
        DispatcherKind::LatcacheRequest,
        DispatcherKind::LatcacheRule,
        DispatcherKind::LatcachePriced,
    ];

    pub fn name(self) -> &'static str {
        match self {
            DispatcherKind::Protean => "protean",
            DispatcherKind::Random => "random",
            DispatcherKind::RoundRobin => "round-robin",
            DispatcherKind::HashStealing => "hash-stealing",
            DispatcherKind::LatcacheNaive => "latcache-naive",
            DispatcherKind::LatcacheRequest => "latcache-request",
            DispatcherKind::LatcacheRule => "latcache-rule",
            DispatcherKind::LatcachePriced => "latcache-priced",
        }
    }

    /// Whether it estimates what a request will take at each agent.
    pub fn estimates(self) -> bool {
        use DispatcherKind::*;
        matches!(self, LatcacheNaive | LatcacheRequest | LatcacheRule | LatcachePriced)
    }
}

impl std::fmt::Display for DispatcherKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
