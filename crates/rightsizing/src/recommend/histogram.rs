//! Decaying usage histograms: the weight of a sample halves with every half-life.
//!
//! Upstream: `pkg/recommender/util/decaying_histogram.go`. Weights are not scaled down over time: a sample weighs
//! `2^((time - reference) / half-life)`, and only the ratios of weights matter. Before the exponent exceeds 100,
//! the reference moves forward and all weights are scaled once.

use std::sync::Arc;

use super::buckets::{Buckets, power};
use super::histogram_checkpoint::{CheckpointError, HistogramCheckpoint};
use super::time::{NEVER, UnixNanos, round_to_multiple};
use super::weights::Weights;

/// The reference moves when a sample is this many half-lives later.
const HALF_LIVES_MAX: i64 = 100;

/// Longest half-life, a year: 100 of them, and the years since 1677, fit into 64 bits of nanoseconds.
const HALF_LIFE_MAX_NS: i64 = 365 * 86_400_000_000_000;

const SAMPLE_WEIGHT_MAX: f64 = 1e6;

/// Parameters shared by all histograms of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramOptions {
    buckets: Buckets,
    half_life_ns: i64,
    sample_weight: f64,
}

impl HistogramOptions {
    /// Clamps the half-life to between a nanosecond and a year, and the sample weight to between 0 and a million.
    pub fn new(buckets: Buckets, half_life_ns: i64, sample_weight: f64) -> Self {
        let sample_weight =
            if sample_weight.is_nan() { 0.0 } else { sample_weight.clamp(0.0, SAMPLE_WEIGHT_MAX) };
        Self { buckets, half_life_ns: half_life_ns.clamp(1, HALF_LIFE_MAX_NS), sample_weight }
    }

    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    pub fn half_life_ns(&self) -> i64 {
        self.half_life_ns
    }
}

/// Decaying histogram. Values are in cores or bytes.
#[derive(Debug, Clone)]
pub struct UsageHistogram {
    options: Arc<HistogramOptions>,
    /// Time whose samples keep the weight they were added with. A multiple of the half-life since the year 1, or
    /// [`NEVER`] before the first sample.
    reference: UnixNanos,
    weights: Weights,
}

impl UsageHistogram {
    pub fn new(options: &Arc<HistogramOptions>) -> Self {
        Self { options: options.clone(), reference: NEVER, weights: Weights::default() }
    }

    /// Adds a sample of the default weight.
    pub fn add(&mut self, value: f64, time: UnixNanos) {
        self.add_weighted(value, self.options.sample_weight, time);
    }

    /// Removes a sample that was [added](Self::add).
    pub fn subtract(&mut self, value: f64, time: UnixNanos) {
        let factor = self.decay_factor(time);
        self.weights.subtract(&self.options.buckets, value, self.options.sample_weight * factor);
    }

    /// Adds a sample whose weight at the reference time would be `weight`.
    pub fn add_weighted(&mut self, value: f64, weight: f64, time: UnixNanos) {
        let factor = self.decay_factor(time);
        self.weights.add(&self.options.buckets, value, weight * factor);
    }

    /// Returns the end of the bucket at which the cumulative weight reaches the share `percentile` (0 to 1); 0 when
    /// empty.
    pub fn percentile(&self, percentile: f64) -> f64 {
        self.weights.percentile(&self.options.buckets, percentile)
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty(&self.options.buckets)
    }

    /// Adds all samples of another histogram.
    ///
    /// # Panics
    /// If the histograms have different options, which is a bug and not bad data.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            Arc::ptr_eq(&self.options, &other.options) || self.options == other.options,
            "histograms with different options cannot be merged"
        );
        let mut factor = 1.0;
        if self.reference < other.reference {
            self.shift(other.reference);
        } else if other.reference < self.reference {
            factor = other.shift_factor(self.rounded(self.reference));
        }
        self.weights.merge(&self.options.buckets, &other.weights, factor);
    }

    pub fn save(&self) -> HistogramCheckpoint {
        HistogramCheckpoint {
            reference_timestamp: self.reference,
            ..self.weights.save(&self.options.buckets)
        }
    }

    /// Adds the weights of a checkpoint and takes over its reference. On error nothing changes. Only for a new
    /// histogram: earlier samples would be counted from the new reference.
    pub fn load(&mut self, saved: &HistogramCheckpoint) -> Result<(), CheckpointError> {
        self.weights.load(&self.options.buckets, saved)?;
        self.reference = saved.reference_timestamp;
        Ok(())
    }

    pub fn options(&self) -> &Arc<HistogramOptions> {
        &self.options
    }

    /// Returns the reference time, [`NEVER`] before the first sample.
    pub fn reference(&self) -> UnixNanos {
        self.reference
    }

    /// Returns the sum of all weights relative to [`reference`](Self::reference).
    pub fn total_weight(&self) -> f64 {
        self.weights.total()
    }

    /// Returns the non-empty buckets and their weights, in order.
    pub fn weights(&self) -> impl Iterator<Item = (u16, f64)> + '_ {
        self.weights.iter()
    }

    /// Returns the heap memory of this histogram alone.
    pub fn heap_bytes(&self) -> usize {
        self.weights.heap_bytes()
    }

    /// Returns the weight factor for a sample of this time. Moves the reference when it is too old.
    fn decay_factor(&mut self, time: UnixNanos) -> f64 {
        let half_life = self.options.half_life_ns;
        let latest = self.reference.saturating_add(HALF_LIVES_MAX * half_life);
        if self.reference == NEVER || time > latest {
            self.shift(time);
        }
        (time.saturating_sub(self.reference) as f64 / half_life as f64).exp2()
    }

    /// Moves the reference to the multiple of the half-life nearest to `to`.
    fn shift(&mut self, to: UnixNanos) {
        let to = self.rounded(to);
        self.weights.scale(self.shift_factor(to));
        self.reference = to;
    }

    fn rounded(&self, time: UnixNanos) -> UnixNanos {
        if time == NEVER { NEVER } else { round_to_multiple(time, self.options.half_life_ns) }
    }

    /// Returns the factor for weights when the reference moves to `to`, which is earlier than the reference only by
    /// rounding. It is a power of two, so no bit is lost.
    fn shift_factor(&self, to: UnixNanos) -> f64 {
        let half_lives = self.reference.saturating_sub(to) as f64 / self.options.half_life_ns as f64;
        let halvings = -(half_lives + 0.5).floor();
        1.0 / power(2.0, halvings as u32)
    }
}
