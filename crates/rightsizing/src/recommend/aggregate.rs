//! Aggregated usage of one container of one workload, over all its past and present pods.
//!
//! Upstream: `pkg/recommender/model/aggregate_container_state.go`. Upstream keeps one aggregate per set of pod
//! labels and merges them to recommend. Here there is one per workload, so rollouts do not add any.

use std::sync::Arc;

use super::MemoryRules;
use super::amount::{self, Amount};
use super::histogram::{HistogramOptions, UsageHistogram};
use super::time::{NEVER, UnixNanos};
use berth_model::PerResource;

/// Histogram parameters shared by all aggregates.
pub type Shapes = PerResource<Arc<HistogramOptions>>;

/// Times of the first and last samples, and their count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// [`NEVER`] without samples, as is `last`.
    pub first: UnixNanos,
    pub last: UnixNanos,
    pub count: u64,
}

impl Span {
    pub const EMPTY: Self = Self { first: NEVER, last: NEVER, count: 0 };

    pub(super) fn add(&mut self, time: UnixNanos) {
        self.merge(Self { first: time, last: time, count: 1 });
    }

    pub(super) fn merge(&mut self, other: Self) {
        if self.first == NEVER || (other.first != NEVER && other.first < self.first) {
            self.first = other.first;
        }
        self.last = self.last.max(other.last);
        self.count = self.count.saturating_add(other.count);
    }

    /// Returns the fraction of `interval_ns` covered by samples, where one sample per minute is full coverage.
    pub(super) fn confidence(&self, interval_ns: i64) -> f64 {
        const MINUTE_NS: f64 = 60e9;
        let interval = interval_ns as f64;
        let lifespan = self.last.saturating_sub(self.first) as f64 / interval;
        let samples = self.count as f64 / (interval / MINUTE_NS);
        lifespan.min(samples)
    }
}

/// Aggregate of one container of one workload.
#[derive(Debug, Clone)]
pub struct Aggregate {
    /// Cores, one sample each.
    pub cpu: UsageHistogram,
    /// Bytes, one sample per container and window: the peak.
    pub memory: UsageHistogram,
    /// CPU samples: the only ones that upstream counts.
    pub cpu_span: Span,
    /// Memory samples (not peaks). Upstream does not count them, and treats an aggregate without CPU samples as
    /// empty.
    pub memory_span: Span,
    pub created: UnixNanos,
}

impl Aggregate {
    pub fn new(shapes: &Shapes, created: UnixNanos) -> Self {
        Self {
            cpu: UsageHistogram::new(&shapes.cpu),
            memory: UsageHistogram::new(&shapes.memory),
            cpu_span: Span::EMPTY,
            memory_span: Span::EMPTY,
            created,
        }
    }

    /// Adds a CPU usage in millicores.
    pub fn add_cpu(&mut self, millicores: Amount, time: UnixNanos) {
        self.cpu.add(amount::cores(millicores), time);
        self.cpu_span.add(time);
    }

    /// Adds the peak of a window in bytes, at the end of the window.
    pub fn add_peak(&mut self, bytes: Amount, window_end: UnixNanos) {
        self.memory.add(bytes as f64, window_end);
    }

    /// Removes a peak, because a higher one was seen in its window.
    pub fn subtract_peak(&mut self, bytes: Amount, window_end: UnixNanos) {
        self.memory.subtract(bytes as f64, window_end);
    }

    /// Counts a memory sample, peak or not.
    pub fn count_memory_sample(&mut self, time: UnixNanos) {
        self.memory_span.add(time);
    }

    /// Adds all samples of another aggregate.
    ///
    /// # Panics
    /// If the aggregates have different shapes.
    pub fn merge(&mut self, other: &Self) {
        self.cpu.merge(&other.cpu);
        self.memory.merge(&other.memory);
        self.cpu_span.merge(other.cpu_span);
        self.memory_span.merge(other.memory_span);
        self.created = self.created.min(other.created);
    }

    /// Returns the confidence: 1 after `interval_ns` of full coverage, and growing further after that.
    ///
    /// Without CPU samples it is computed from memory samples, except with `strict_upstream`.
    pub fn confidence(&self, interval_ns: i64, strict_upstream: bool) -> f64 {
        let memory_only = self.cpu_span.count == 0 && !strict_upstream;
        let span = if memory_only { self.memory_span } else { self.cpu_span };
        span.confidence(interval_ns.max(1))
    }

    /// Returns whether there were no samples for the whole retention time (all memory windows).
    ///
    /// With `strict_upstream`, memory samples do not count.
    pub fn is_expired(&self, now: UnixNanos, rules: &MemoryRules, strict_upstream: bool) -> bool {
        let memory = if strict_upstream { Span::EMPTY } else { self.memory_span };
        let last = match (self.cpu_span.count, memory.count) {
            (0, 0) => self.created,
            _ => self.cpu_span.last.max(memory.last),
        };
        now.saturating_sub(last) >= rules.interval_ns.saturating_mul(i64::from(rules.interval_count))
    }

    /// Returns the memory of one aggregate in bytes, without allocator overhead.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.cpu.heap_bytes() + self.memory.heap_bytes()
    }
}
