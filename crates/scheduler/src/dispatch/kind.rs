//! Kinds of dispatchers, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Algorithm that assigns a waiting request to an agent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DispatcherKind {
    /// One shared queue; an idle agent takes the first request (Protean).
    Protean,
    /// A random agent, from a seeded generator.
    Random,
    /// The agents in turn.
    RoundRobin,
    /// Consistent hashing of the class to an agent; an idle agent steals the first request of the longest queue.
    HashStealing,
    /// Kamino reduced to currently cached lists: ignores waiting requests' lists and the agent's current work.
    LatcacheNaive,
    /// Kamino's production variant: a list miss counts as a miss of every rule object.
    LatcacheRequest,
    /// Kamino's algorithms 1 and 2.
    LatcacheRule,
    /// LatCache that predicts evictions and charges a choice for the time it costs later requests.
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

    /// Returns whether a request may be taken by another agent than the one that was woken for it.
    pub fn shares_requests(self) -> bool {
        matches!(self, DispatcherKind::Protean | DispatcherKind::HashStealing)
    }

    /// Returns whether it estimates the processing time of a request at each agent.
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
