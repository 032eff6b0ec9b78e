//! Behaviour taken from upstream's unit tests, and values measured with upstream 1.8.1.

mod buckets;
mod checkpoint;
mod container;
mod create;
mod dimension;
mod end_to_end;
mod estimate;
mod hostile;
mod method;
mod open;
mod post;
mod properties;
mod propose;
mod status;
mod store;
mod tables;
mod vpa;
mod weights;

use std::sync::Arc;

use super::aggregate::{Aggregate, Shapes};
use super::amount::Amount;
use super::container::ContainerState;
use super::estimate::estimate;
use super::settings::RecommenderSettings;
use super::time::{UnixNanos, from_text};
use super::{Buckets, HistogramOptions, UsageHistogram};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const MI: Amount = 1 << 20;

/// The time at which upstream's unit tests begin.
const T0: UnixNanos = 1_234_567_890 * SECOND;

fn at(text: &str) -> UnixNanos {
    from_text(text).expect("a time")
}

/// A histogram with buckets of 1 up to 10 and a half-life of an hour.
fn hourly() -> UsageHistogram {
    let buckets = Buckets::linear(10.0, 1.0, 0.001).expect("buckets");
    UsageHistogram::new(&Arc::new(HistogramOptions::new(buckets, HOUR, 1.0)))
}

/// One container with its aggregate.
struct Fed {
    settings: RecommenderSettings,
    aggregate: Aggregate,
    state: ContainerState,
}

impl Fed {
    fn new(settings: RecommenderSettings) -> Self {
        let aggregate = Aggregate::new(&shapes(&settings), T0);
        Self { settings, aggregate, state: ContainerState::default() }
    }

    fn cpu(&mut self, millicores: Amount, time: UnixNanos) -> bool {
        self.state.add_cpu(&mut self.aggregate, millicores, time).is_ok()
    }

    fn memory(&mut self, bytes: Amount, time: UnixNanos) -> bool {
        let (rules, strict) = (self.settings.memory_rules(), self.settings.strict_upstream);
        self.state.add_memory(&mut self.aggregate, bytes, time, &rules, strict).is_ok()
    }

    fn oom(&mut self, requested: Amount, time: UnixNanos) -> bool {
        let (rules, strict) = (self.settings.memory_rules(), self.settings.strict_upstream);
        self.state.record_oom(&mut self.aggregate, requested, time, &rules, strict).is_ok()
    }

    /// Adds one sample of both resources per minute from `start`; `usage` gives the n-th.
    fn feed(mut self, start: UnixNanos, count: i64, usage: impl Fn(i64) -> (Amount, Amount)) -> Self {
        for n in 0..count {
            let (millicores, bytes) = usage(n);
            assert!(self.cpu(millicores, start + n * MINUTE));
            assert!(self.memory(bytes, start + n * MINUTE));
        }
        self
    }

    /// Target, lower and upper bound of CPU and of memory.
    fn bounds(&self, containers: usize) -> [(Amount, Amount); 3] {
        bounds(&self.aggregate, &self.settings, containers)
    }
}

fn shapes(settings: &RecommenderSettings) -> Shapes {
    settings.shapes().expect("the buckets of the settings")
}

fn bounds(aggregate: &Aggregate, settings: &RecommenderSettings, containers: usize) -> [(Amount, Amount); 3] {
    let estimate = estimate(aggregate, settings, containers);
    let (cpu, memory) = (estimate.cpu, estimate.memory);
    [(cpu.target, memory.target), (cpu.lower, memory.lower), (cpu.upper, memory.upper)]
}
