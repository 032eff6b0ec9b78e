//! What is known of the usage of one container of one workload, over all its pods that ever were.
//!
//! Upstream: `pkg/recommender/model/aggregate_container_state.go`. Upstream has one aggregate for each set of pod
//! labels, and adds them up to recommend; here there is one from the start, so that rollouts do not add any.

use std::sync::Arc;

use super::MemoryRules;
use super::amount::{self, Amount};
use super::histogram::{HistogramOptions, UsageHistogram};
use super::time::{NEVER, UnixNanos};
use berth_model::PerResource;

/// What the histograms of all aggregates share.
pub type Shapes = PerResource<Arc<HistogramOptions>>;

/// From when to when there were how many samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// [`NEVER`] without samples, and so is `last`.
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

    /// How much of `interval_ns` is covered by samples, one a minute being full coverage.
    pub(super) fn confidence(&self, interval_ns: i64) -> f64 {
        const MINUTE_NS: f64 = 60e9;
        let interval = interval_ns as f64;
        let lifespan = self.last.saturating_sub(self.first) as f64 / interval;
        let samples = self.count as f64 / (interval / MINUTE_NS);
        lifespan.min(samples)
    }
}

/// The aggregate of one container of one workload.
#[derive(Debug, Clone)]
pub struct Aggregate {
    /// Cores, one sample each.
    pub cpu: UsageHistogram,
    /// Bytes, one sample for each container and window: its peak.
    pub memory: UsageHistogram,
    /// CPU samples: those that upstream knows.
    pub cpu_span: Span,
    /// Memory samples (not peaks). Upstream does not count them, and takes what has no CPU samples for empty.
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

    /// A CPU usage in millicores.
    pub fn add_cpu(&mut self, millicores: Amount, time: UnixNanos) {
        self.cpu.add(amount::cores(millicores), time);
        self.cpu_span.add(time);
    }

    /// The peak of a window in bytes, at the end of the window.
    pub fn add_peak(&mut self, bytes: Amount, window_end: UnixNanos) {
        self.memory.add(bytes as f64, window_end);
    }

    /// Takes a peak away, because a higher one was seen in its window.
    pub fn subtract_peak(&mut self, bytes: Amount, window_end: UnixNanos) {
        self.memory.subtract(bytes as f64, window_end);
    }

    /// A memory sample was seen, whether it was a peak or not.
    pub fn count_memory_sample(&mut self, time: UnixNanos) {
        self.memory_span.add(time);
    }

    /// Adds all that another one knows.
    ///
    /// # Panics
    /// If the two were made with different shapes.
    pub fn merge(&mut self, other: &Self) {
        self.cpu.merge(&other.cpu);
        self.memory.merge(&other.memory);
        self.cpu_span.merge(other.cpu_span);
        self.memory_span.merge(other.memory_span);
        self.created = self.created.min(other.created);
    }

    /// How well the usage is known: 1 is full confidence; it goes on growing after. `interval_ns` is how long that takes.
    ///
    /// Without CPU samples those of memory say it, but not for `strict_upstream`.
    pub fn confidence(&self, interval_ns: i64, strict_upstream: bool) -> f64 {
        let memory_only = self.cpu_span.count == 0 && !strict_upstream;
        let span = if memory_only { self.memory_span } else { self.cpu_span };
        span.confidence(interval_ns.max(1))
    }

    /// Nothing came for all the windows that memory is remembered: what is known of it is worth nothing by now.
    ///
    /// For `strict_upstream`, memory samples are nothing.
    pub fn is_expired(&self, now: UnixNanos, rules: &MemoryRules, strict_upstream: bool) -> bool {
        let memory = if strict_upstream { Span::EMPTY } else { self.memory_span };
        let last = match (self.cpu_span.count, memory.count) {
            (0, 0) => self.created,
            _ => self.cpu_span.last.max(memory.last),
        };
        now.saturating_sub(last) >= rules.interval_ns.saturating_mul(i64::from(rules.interval_count))
    }

    /// Memory of one aggregate, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.cpu.heap_bytes() + self.memory.heap_bytes()
    }
}
