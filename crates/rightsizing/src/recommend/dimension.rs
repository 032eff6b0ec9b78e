//! Usage dimensions besides CPU and memory: network and disk I/O, or any metric of containers or pods.
//!
//! Upstream has only two resources. A dimension is estimated like CPU: samples go into a decaying histogram,
//! percentiles give the target and its bounds, and low confidence widens the bounds. Dimensions are never requested
//! from the cluster, so there are no minimums, no capping and no rounding. Each dimension of each container counts
//! its own samples; upstream counts only CPU samples, and treats an aggregate without them as unknown.
//!
//! `store.rs` holds the state of all workloads, `kept.rs` saves it across restarts, `report.rs` writes the
//! published estimates.

pub mod kept;
pub mod report;
pub mod store;

use std::sync::Arc;

use super::aggregate::Span;
use super::buckets::{Buckets, BucketsError};
use super::estimate::{LOWER, UPPER};
use super::histogram::{HistogramOptions, UsageHistogram};
use super::settings::ResourceSettings;
use super::time::{self, UnixNanos};
use crate::usage::SeriesScope;

/// Maximum number of dimensions: each takes memory per container, and space in annotations.
pub const DIMENSIONS_MAX: usize = 16;

/// Maximum number of buckets of a dimension. The histograms of all dimensions fit into an annotation, see [`kept`].
pub const BUCKETS_MAX: u16 = 512;

/// A metric besides CPU and memory, and how it is estimated. Values are in the unit of the metric; for counters, in
/// that unit per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// Name in annotations, metrics and logs.
    pub name: Arc<str>,
    pub scope: SeriesScope,
    /// Free-text meaning of the values. Saved histograms with a different meaning are not used.
    pub meaning: String,
    /// Estimation settings. `pod_minimum` and `round_to` are ignored.
    pub estimation: ResourceSettings,
}

impl Dimension {
    /// # Errors
    /// The sizes give no valid buckets.
    pub fn buckets(&self) -> Result<Buckets, BucketsError> {
        Ok(self.estimation.options()?.buckets().clone())
    }

    /// Returns the meaning of the numbers of a saved histogram.
    fn shape(&self) -> String {
        let ResourceSettings { first_bucket, bucket_ratio, .. } = self.estimation;
        format!("{}; buckets from {first_bucket} by {bucket_ratio}", self.meaning)
    }

    /// Computes the estimate from the usage.
    pub fn estimate(&self, usage: &DimensionUsage) -> DimensionEstimate {
        let it = &self.estimation;
        let confidence = usage.span.confidence(time::nanos(it.confidence_interval).max(1));
        // No percentile is above the last bucket, so no bound may be either, apart from the margin.
        let buckets = usage.histogram.options().buckets();
        let most = buckets.end(buckets.last()) * (1.0 + it.margin);
        let with_margin = |percentile| usage.histogram.percentile(percentile) * (1.0 + it.margin);
        // Without any confidence the bound is infinite, or NaN (zero times infinity).
        let capped = |value: f64| if value < most { value } else { most };
        DimensionEstimate {
            target: with_margin(it.target_percentile),
            lower: with_margin(it.lower_percentile) * LOWER.factor(confidence),
            upper: capped(with_margin(it.upper_percentile) * UPPER.factor(confidence)),
            samples: usage.span.count,
            confidence: confidence.clamp(0.0, 1.0),
        }
    }

    /// Returns the largest difference at which two estimates count as equal: the width of a bucket at `value`.
    fn step(&self, value: f64) -> f64 {
        // Reported values have six digits, and a bucket is at least a thousandth of its values wide.
        const ROUNDING: f64 = 1.0 + 2e-3;
        let ResourceSettings { first_bucket, bucket_ratio, margin, .. } = self.estimation;
        // The ends of two neighbouring buckets differ by (ratio - 1) times the lower end, plus the first bucket.
        (value * (bucket_ratio - 1.0) + first_bucket * (1.0 + margin)) * ROUNDING
    }
}

/// Usage of one dimension of one container, or of the pods, of a workload.
#[derive(Debug, Clone)]
pub struct DimensionUsage {
    histogram: UsageHistogram,
    span: Span,
}

impl DimensionUsage {
    pub fn new(options: &Arc<HistogramOptions>) -> Self {
        Self { histogram: UsageHistogram::new(options), span: Span::EMPTY }
    }

    pub fn add(&mut self, value: f64, time: UnixNanos) {
        self.histogram.add(value, time);
        self.span.add(time);
    }

    pub fn histogram(&self) -> &UsageHistogram {
        &self.histogram
    }

    /// Returns the times of the first and last samples, and their count.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Returns its memory in bytes, without allocator overhead.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.histogram.heap_bytes()
    }
}

/// Estimate of one dimension, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DimensionEstimate {
    pub target: f64,
    pub lower: f64,
    pub upper: f64,
    pub samples: u64,
    /// 0 to 1.
    pub confidence: f64,
}
