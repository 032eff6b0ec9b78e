//! Histograms of usage in which a sample weighs half as much after each half-life.
//!
//! Upstream: `pkg/recommender/util/decaying_histogram.go`. Nothing is ever scaled down as time goes by: a sample
//! weighs `2^((time - reference) / half-life)`, and only the proportions of weights mean anything. When the exponent
//! would pass 100, the reference moves on and all weights are scaled once.

use std::sync::Arc;

use super::buckets::{Buckets, power};
use super::checkpoint::{CheckpointError, HistogramCheckpoint};
use super::time::{NEVER, UnixNanos, round_to_multiple};
use super::weights::Weights;

/// The reference moves when a sample is so many half-lives later.
const HALF_LIVES_MAX: i64 = 100;

/// Longest half-life, a year: 100 of them, and the years since 1677, can be told in nanoseconds.
const HALF_LIFE_MAX_NS: i64 = 365 * 86_400_000_000_000;

const SAMPLE_WEIGHT_MAX: f64 = 1e6;

/// What all histograms of one resource share.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramOptions {
    buckets: Buckets,
    half_life_ns: i64,
    sample_weight: f64,
}

impl HistogramOptions {
    /// The half-life is brought between a nanosecond and a year, the weight of a sample between 0 and a million.
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

/// A decaying histogram. Values are in cores or bytes.
#[derive(Debug, Clone)]
pub struct UsageHistogram {
    options: Arc<HistogramOptions>,
    /// A sample of this time has the weight that it was added with. A multiple of the half-life since the year 1, or
    /// [`NEVER`] before the first sample.
    reference: UnixNanos,
    weights: Weights,
}

impl UsageHistogram {
    pub fn new(options: &Arc<HistogramOptions>) -> Self {
        Self { options: options.clone(), reference: NEVER, weights: Weights::default() }
    }

    /// Adds a sample of the usual weight.
    pub fn add(&mut self, value: f64, time: UnixNanos) {
        self.add_weighted(value, self.options.sample_weight, time);
    }

    /// Takes a sample away that was [added](Self::add).
    pub fn subtract(&mut self, value: f64, time: UnixNanos) {
        let factor = self.decay_factor(time);
        self.weights.subtract(&self.options.buckets, value, self.options.sample_weight * factor);
    }

    /// Adds a sample that weighs `weight` if it is of the reference time.
    pub fn add_weighted(&mut self, value: f64, weight: f64, time: UnixNanos) {
        let factor = self.decay_factor(time);
        self.weights.add(&self.options.buckets, value, weight * factor);
    }

    /// The end of the bucket up to which a share `percentile` (0 to 1) of the weight lies; 0 when empty.
    pub fn percentile(&self, percentile: f64) -> f64 {
        self.weights.percentile(&self.options.buckets, percentile)
    }

    pub fn is_empty(&self) -> bool {
        self.weights.is_empty(&self.options.buckets)
    }

    /// Adds all samples of another histogram, which stays as it is.
    ///
    /// # Panics
    /// If the two were made with different options: that is a mistake in the program, not in data.
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

    /// Adds what a checkpoint has and takes over its reference; with an error nothing changes. Meant for a new
    /// histogram: earlier samples would be counted from the new reference.
    pub fn load(&mut self, saved: &HistogramCheckpoint) -> Result<(), CheckpointError> {
        self.weights.load(&self.options.buckets, saved)?;
        self.reference = saved.reference_timestamp;
        Ok(())
    }

    pub fn options(&self) -> &Arc<HistogramOptions> {
        &self.options
    }

    /// [`NEVER`] before the first sample.
    pub fn reference(&self) -> UnixNanos {
        self.reference
    }

    /// The sum of all weights, counted from [`reference`](Self::reference).
    pub fn total_weight(&self) -> f64 {
        self.weights.total()
    }

    /// Buckets that have any weight, with it, in order.
    pub fn weights(&self) -> impl Iterator<Item = (u16, f64)> + '_ {
        self.weights.iter()
    }

    /// Heap memory of this histogram alone.
    pub fn heap_bytes(&self) -> usize {
        self.weights.heap_bytes()
    }

    /// What a sample of this time weighs; moves the reference when it is too long ago.
    fn decay_factor(&mut self, time: UnixNanos) -> f64 {
        let half_life = self.options.half_life_ns;
        let latest = self.reference.saturating_add(HALF_LIVES_MAX * half_life);
        if self.reference == NEVER || time > latest {
            self.shift(time);
        }
        (time.saturating_sub(self.reference) as f64 / half_life as f64).exp2()
    }

    /// Counts from a new reference, the multiple of the half-life next to `to`.
    fn shift(&mut self, to: UnixNanos) {
        let to = self.rounded(to);
        self.weights.scale(self.shift_factor(to));
        self.reference = to;
    }

    fn rounded(&self, time: UnixNanos) -> UnixNanos {
        if time == NEVER { NEVER } else { round_to_multiple(time, self.options.half_life_ns) }
    }

    /// What weights are multiplied with to count from `to`, which is not earlier than the reference but by rounding:
    /// a power of two, so that no bit is lost.
    fn shift_factor(&self, to: UnixNanos) -> f64 {
        let half_lives = self.reference.saturating_sub(to) as f64 / self.options.half_life_ns as f64;
        let halvings = -(half_lives + 0.5).floor();
        1.0 / power(2.0, halvings as u32)
    }
}
