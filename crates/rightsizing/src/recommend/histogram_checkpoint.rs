//! Histograms saved across restarts, and the errors of checkpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::{self, NEVER, UnixNanos};

/// The only supported version.
pub const VERSION: &str = "v3";

/// Histogram with weights scaled to 10,000 for the largest, and rounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistogramCheckpoint {
    /// Time whose samples have weight 1; null without samples.
    #[serde(with = "time::text", default = "time::text::never")]
    pub reference_timestamp: UnixNanos,
    /// Bucket to weight, 1 to 10,000. Other numbers are also parsed, so that the error can name them.
    #[serde(default)]
    pub bucket_weights: BTreeMap<i64, i64>,
    /// Exact sum of weights.
    #[serde(default)]
    pub total_weight: f64,
}

impl Default for HistogramCheckpoint {
    fn default() -> Self {
        Self { reference_timestamp: NEVER, bucket_weights: BTreeMap::new(), total_weight: 0.0 }
    }
}

/// Reason why a checkpoint is not loaded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckpointError {
    #[error("unsupported checkpoint version `{0}`, only `{VERSION}` can be read")]
    Version(String),
    #[error("bucket {bucket} does not exist, there are {count}")]
    Bucket { bucket: i64, count: u16 },
    #[error("bucket {bucket} has weight {weight}, not a number from 0 to 4294967295")]
    BucketWeight { bucket: i64, weight: i64 },
    #[error("total weight {0} is negative, not a number or too large")]
    TotalWeight(f64),
    #[error("total samples count {0} is negative")]
    SamplesCount(i64),
    #[error("the first sample is later than the last")]
    FirstAfterLast,
    #[error("{0} is in the future")]
    Future(&'static str),
    #[error("bad {histogram} histogram")]
    Histogram { histogram: &'static str, source: Box<CheckpointError> },
}
