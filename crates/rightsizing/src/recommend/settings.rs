//! Settings of the recommender, with upstream's defaults.
//!
//! Plain values: reading them from a file or from upstream's flags, and validating them, is done elsewhere. Values
//! out of range only lead to useless recommendations.

use std::sync::Arc;
use std::time::Duration;

use super::aggregate::Shapes;
use super::amount::Amount;
use super::buckets::{Buckets, BucketsError};
use super::container::MemoryRules;
use super::histogram::HistogramOptions;
use super::time;
use berth_model::PerResource;

const DAY: Duration = Duration::from_secs(86_400);

/// A histogram bucket counts as empty below a thousandth of the smallest sample's weight; upstream's `epsilon`.
const EPSILON: f64 = 0.001 * 0.1;

/// Settings of the recommender. The comment names the flag of upstream's recommender where there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct RecommenderSettings {
    pub cpu: ResourceSettings,
    pub memory: ResourceSettings,
    /// Window length: each container contributes one memory peak per window; `--memory-aggregation-interval`.
    pub memory_interval: Duration,
    /// Number of windows without samples after which an aggregate is removed;
    /// `--memory-aggregation-interval-count`.
    pub memory_interval_count: u32,
    /// Memory multiplier after an OOM kill; `--oom-bump-up-ratio`.
    pub oom_bump_ratio: f64,
    /// Minimum memory added after an OOM kill, in bytes; `--oom-min-bump-up-bytes`.
    pub oom_min_bump: Amount,
    /// Whether to reproduce the known bugs of upstream 1.8.1.
    pub strict_upstream: bool,
}

/// Settings for one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSettings {
    /// Share of usage samples that the target covers, 0 to 1; `--target-{cpu,memory}-percentile`.
    pub target_percentile: f64,
    /// `--recommendation-lower-bound-{cpu,memory}-percentile`.
    pub lower_percentile: f64,
    /// `--recommendation-upper-bound-{cpu,memory}-percentile`.
    pub upper_percentile: f64,
    /// Safety margin as a share of the usage; `--recommendation-margin-fraction`.
    pub margin: f64,
    /// Time after which confidence is 1, at one sample per minute; `--confidence-interval-{cpu,memory}`.
    pub confidence_interval: Duration,
    /// `--{cpu,memory}-histogram-decay-half-life`.
    pub half_life: Duration,
    /// Width of the first bucket, in cores or bytes.
    pub first_bucket: f64,
    /// Largest value that the buckets distinguish, in cores or bytes.
    pub largest_value: f64,
    /// Ratio of a bucket's width to the width of the previous one.
    pub bucket_ratio: f64,
    /// Weight of a sample.
    pub sample_weight: f64,
    /// Minimum sum over all containers of a pod, in millicores or bytes;
    /// `--pod-recommendation-min-{cpu-millicores,memory-mb}`.
    pub pod_minimum: Amount,
    /// Recommendations are rounded to multiples of this, in millicores or bytes;
    /// `--round-{cpu-millicores,memory-bytes}`.
    pub round_to: Amount,
}

impl Default for RecommenderSettings {
    fn default() -> Self {
        let cpu = ResourceSettings {
            target_percentile: 0.9,
            lower_percentile: 0.5,
            upper_percentile: 0.95,
            margin: 0.15,
            confidence_interval: DAY,
            half_life: DAY,
            first_bucket: 0.01,
            largest_value: 1000.0,
            bucket_ratio: 1.0 + 0.05,
            sample_weight: 0.1,
            pod_minimum: 25,
            round_to: 1,
        };
        let memory = ResourceSettings {
            first_bucket: 1e7,
            largest_value: 1e12,
            sample_weight: 1.0,
            pod_minimum: 250 * 1024 * 1024,
            ..cpu.clone()
        };
        Self {
            cpu,
            memory,
            memory_interval: DAY,
            memory_interval_count: 8,
            oom_bump_ratio: 1.2,
            oom_min_bump: 100 * 1024 * 1024,
            strict_upstream: false,
        }
    }
}

impl RecommenderSettings {
    /// Returns the histogram parameters, which all histograms share.
    pub fn shapes(&self) -> Result<Shapes, BucketsError> {
        Ok(PerResource { cpu: Arc::new(self.cpu.options()?), memory: Arc::new(self.memory.options()?) })
    }

    /// Returns the default rules by which memory samples become peaks; a VPA may override them.
    pub fn memory_rules(&self) -> MemoryRules {
        MemoryRules {
            interval_ns: time::nanos(self.memory_interval).max(1),
            interval_count: self.memory_interval_count,
            oom_bump_ratio: self.oom_bump_ratio,
            oom_min_bump: self.oom_min_bump,
        }
    }

    pub fn resources(&self) -> PerResource<&ResourceSettings> {
        PerResource { cpu: &self.cpu, memory: &self.memory }
    }
}

impl ResourceSettings {
    pub(super) fn options(&self) -> Result<HistogramOptions, BucketsError> {
        let buckets =
            Buckets::exponential(self.largest_value, self.first_bucket, self.bucket_ratio, EPSILON)?;
        Ok(HistogramOptions::new(buckets, time::nanos(self.half_life), self.sample_weight))
    }
}
