//! Results of a simulation: the figures of each dispatcher, and the data of the plots.

use std::collections::BTreeMap;

use serde::Serialize;

/// One line of the table; the fields are those of `-o json`. Latency is measured from a request's arrival to the
/// commit of its placement, over all placed requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DispatchFigures {
    pub dispatcher: String,
    pub avg_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    /// Share of placements that hit their ranked list in the cache.
    pub top_hit: f64,
    /// Share of hits among rule object lookups, at top-level misses.
    pub rule_hit: f64,
    /// Memory of all agents' caches, averaged over time, in MiB.
    pub memory_mib: f64,
    /// Average time in a queue, and in an agent.
    pub queue_ms: f64,
    pub processing_ms: f64,
    /// Share of requests whose hits and misses, on both levels, were predicted at assignment. `None` for dispatchers
    /// without predictions.
    pub prediction_accuracy: Option<f64>,
    /// Mean of |predicted - actual| / actual of the processing times.
    pub time_error: Option<f64>,
    /// Share of requests that went to the agent with the earliest completion.
    pub best_agent: Option<f64>,
    /// For the remaining requests: mean ratio of their latency to the best agent's, minus 1.
    pub best_agent_gap: Option<f64>,
    pub conflicts: u64,
    /// Placements per second during a burst that offers three times the agents' capacity at 80 % hits: the most
    /// expensive consecutive hundredth of the requests.
    pub throughput_burst: f64,
    /// Number of requests placed, and not placed at the end of the simulation.
    pub placed: u64,
    pub unplaced: u64,
    /// For repeated runs, by the name of the figure: the 95 % confidence interval of its mean. The figures are the
    /// means.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<&'static str, [f64; 2]>,
}

/// Complete result of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    pub figures: DispatchFigures,
    /// Latency in ms, and the share of requests that were not slower: from (fastest, 0) to (slowest, 1).
    pub cdf: Vec<(f64, f64)>,
    /// Equal slices of the run.
    pub timeline: Vec<DispatchSlice>,
    /// Start and end of the burst's arrivals in this run, in seconds since the start: the same for all dispatchers.
    pub burst: (f64, f64),
}

/// Measurements of one time slice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DispatchSlice {
    /// Start, in seconds of the virtual clock.
    pub from_s: f64,
    /// Requests per second.
    pub arrived: f64,
    pub placed: f64,
    /// Number of requests waiting at the end.
    pub waiting: f64,
    /// Memory of all agents' caches at the end, in MiB.
    pub memory_mib: f64,
}

/// The same workload with one parameter varied.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchSweep {
    pub what: Varied,
    /// By increasing x. Every point has the same dispatchers in the same order.
    pub points: Vec<(f64, Vec<DispatchFigures>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    /// Agents, with the total memory fixed.
    Agents,
    /// Share of the agents' time that the requests use at 80 % hits.
    Load,
    /// Maximum number of ranked lists per agent.
    CacheSlots,
}

/// A published figure next to this run's.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub what: &'static str,
    /// As printed, e.g. "-42 %".
    pub paper: &'static str,
    pub ours: String,
}

/// Everything that the report shows.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchReport {
    /// One line: the simulated workload.
    pub title: String,
    /// Label and value: nodes, agents, requests, seed…
    pub setup: Vec<(&'static str, String)>,
    /// The first is the baseline.
    pub outcomes: Vec<RunOutcome>,
    pub sweeps: Vec<DispatchSweep>,
    pub compared: Vec<Compared>,
    /// Notes in whole sentences: differences from the paper, made-up parts.
    pub notes: Vec<String>,
    /// The command line that reproduces the report.
    pub command: String,
}
