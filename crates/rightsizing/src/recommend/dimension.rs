//! Usage of something else than CPU and memory: network and disk I/O, or whatever a metric tells of containers or pods.
//!
//! Upstream knows two resources; this is beyond it. A dimension is estimated as CPU is: each sample goes into a decaying
//! histogram, percentiles are the target and its bounds, little confidence widens the bounds. Nothing is requested of the
//! cluster by it, so that there are no minimums, no capping and no whole units. Each dimension of each container counts its
//! own samples: upstream counts those of CPU only, and takes what has none for unknown.
//!
//! `store.rs` is what is known of all workloads, `kept.rs` what survives a restart, `report.rs` what is told.

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
use crate::usage::Scope;

/// So many there may be: each takes memory for each container, and room in annotations.
pub const DIMENSIONS_MAX: usize = 16;

/// Buckets of one dimension: those of all of them fit into an annotation, see [`kept`].
pub const BUCKETS_MAX: u16 = 512;

/// What is measured besides CPU and memory, and how it is estimated. Values are in the unit of the metric; of a counter, in
/// that unit a second.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// Names it in annotations, metrics and logs.
    pub name: Arc<str>,
    pub scope: Scope,
    /// What its values are, in any words: what was kept of other values is not used.
    pub meaning: String,
    /// `pod_minimum` and `round_to` mean nothing here.
    pub estimation: ResourceSettings,
}

impl Dimension {
    /// # Errors
    /// The sizes make no buckets.
    pub fn buckets(&self) -> Result<Buckets, BucketsError> {
        Ok(self.estimation.options()?.buckets().clone())
    }

    /// What the numbers of a saved histogram mean.
    fn shape(&self) -> String {
        let ResourceSettings { first_bucket, bucket_ratio, .. } = self.estimation;
        format!("{}; buckets from {first_bucket} by {bucket_ratio}", self.meaning)
    }

    /// The estimates from what is known.
    pub fn estimate(&self, usage: &Usage) -> Estimate {
        let it = &self.estimation;
        let confidence = usage.span.confidence(time::nanos(it.confidence_interval).max(1));
        // No percentile is above the last bucket; no bound is, either, but for the margin.
        let buckets = usage.histogram.options().buckets();
        let most = buckets.end(buckets.last()) * (1.0 + it.margin);
        let with_margin = |percentile| usage.histogram.percentile(percentile) * (1.0 + it.margin);
        // Without any confidence it is infinite, or zero times that.
        let capped = |value: f64| if value < most { value } else { most };
        Estimate {
            target: with_margin(it.target_percentile),
            lower: with_margin(it.lower_percentile) * LOWER.factor(confidence),
            upper: capped(with_margin(it.upper_percentile) * UPPER.factor(confidence)),
            samples: usage.span.count,
            confidence: confidence.clamp(0.0, 1.0),
        }
    }

    /// By how much two estimates may differ and be about the same: the width of a bucket there.
    fn step(&self, value: f64) -> f64 {
        // What is told has six digits, and a bucket is at least a thousandth of its values wide.
        const ROUNDING: f64 = 1.0 + 2e-3;
        let ResourceSettings { first_bucket, bucket_ratio, margin, .. } = self.estimation;
        // Between the ends of two buckets there is (ratio - 1) times the lower end, and the first bucket.
        (value * (bucket_ratio - 1.0) + first_bucket * (1.0 + margin)) * ROUNDING
    }
}

/// What is known of one dimension of one container, or of the pods, of a workload.
#[derive(Debug, Clone)]
pub struct Usage {
    histogram: UsageHistogram,
    span: Span,
}

impl Usage {
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

    /// From when to when there were how many samples.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Memory of it, without what the allocator adds.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.histogram.heap_bytes()
    }
}

/// What is said of one dimension, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub target: f64,
    pub lower: f64,
    pub upper: f64,
    pub samples: u64,
    /// 0 to 1.
    pub confidence: f64,
}
