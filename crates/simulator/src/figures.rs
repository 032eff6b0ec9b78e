//! What a simulation says: the figures of each dispatcher, and the data of the plots.

use std::collections::BTreeMap;

use serde::Serialize;

/// One line of the table; the fields are those of `-o json`. Latency is from a request's arrival to the commit of its
/// placement, over all requests that got a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    pub dispatcher: String,
    pub avg_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    /// Share of placements that found their ranked list cached.
    pub top_hit: f64,
    /// Share of looks for rule objects, at top-level misses, that found them.
    pub rule_hit: f64,
    /// Memory of all agents' caches, on average over time.
    pub memory_mib: f64,
    /// Average time in a queue, and in an agent's hands.
    pub queue_ms: f64,
    pub processing_ms: f64,
    /// Share of requests whose hits and misses, on both levels, were what the dispatcher expected at assignment.
    /// `None` for dispatchers that expect nothing.
    pub prediction_accuracy: Option<f64>,
    /// Mean of |expected - real| / real of the processing times.
    pub time_error: Option<f64>,
    /// Share of requests that went to the agent where they were really done first.
    pub best_agent: Option<f64>,
    /// How much longer the others took than they would have there: mean of the ratio of latencies, less 1.
    pub best_agent_gap: Option<f64>,
    pub conflicts: u64,
    /// Placements per second while a burst is offered that is three times what the agents can do at 80 % hits: the hundredth
    /// of the requests, in a row, that brings most work.
    pub throughput_burst: f64,
    /// Requests that were placed, and that were not when the simulation ended.
    pub placed: u64,
    pub unplaced: u64,
    /// Of repeated runs, by the name of the figure: the 95 % confidence interval of its mean. The figures are the means.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<&'static str, [f64; 2]>,
}

/// All of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub figures: Figures,
    /// Latency in ms, and the share of requests that were not slower: from (fastest, 0) to (slowest, 1).
    pub cdf: Vec<(f64, f64)>,
    /// Equal slices of the run.
    pub timeline: Vec<Slice>,
    /// When the requests of the burst arrive in this run, in seconds since the start: the same for all dispatchers.
    pub burst: (f64, f64),
}

/// What happened in one slice of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Slice {
    /// Start, in seconds of the virtual clock.
    pub from_s: f64,
    /// Requests per second.
    pub arrived: f64,
    pub placed: f64,
    /// Requests that wait at the end.
    pub waiting: f64,
    /// Memory of all agents' caches at the end.
    pub memory_mib: f64,
}

/// The same workload with one thing varied.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    pub what: Varied,
    /// By increasing x. Every point has the same dispatchers in the same order.
    pub points: Vec<(f64, Vec<Figures>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    /// Agents, with the total memory fixed.
    Agents,
    /// Share of the agents' time that the requests take at 80 % hits.
    Load,
    /// Ranked lists an agent may keep.
    CacheSlots,
}

/// A published figure beside ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub what: &'static str,
    /// As printed, e.g. "-42 %".
    pub paper: &'static str,
    pub ours: String,
}

/// Everything that the report shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// One line: what was simulated.
    pub title: String,
    /// Label and value: nodes, agents, requests, seed…
    pub setup: Vec<(&'static str, String)>,
    /// The first is the one that others are compared with.
    pub outcomes: Vec<Outcome>,
    pub sweeps: Vec<Sweep>,
    pub compared: Vec<Compared>,
    /// Whole sentences: what differs from the paper, what was made up.
    pub notes: Vec<String>,
    /// The command line that makes it again.
    pub command: String,
}
