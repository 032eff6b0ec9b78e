//! Dimension histograms saved across restarts, as a text stored beside a container's checkpoint in an annotation,
//! which upstream ignores. The histogram encoding is that of checkpoints.
//!
//! `{"pod":{"networkReceive":{"of":…,"histogram":{…},"firstSampleStart":…,"lastSampleStart":…,"totalSamplesCount":…}},
//! "container":{"diskRead":{…}}}`. At most [`DIMENSIONS_MAX`](super::DIMENSIONS_MAX) of
//! [`BUCKETS_MAX`](super::BUCKETS_MAX) buckets each, less than 128 KiB together: all annotations of an object may
//! take 256 KiB.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Dimension, DimensionUsage};
use crate::recommend::aggregate::Span;
use crate::recommend::checkpoint::{CLOCK_SKEW_NS, load_histogram};
use crate::recommend::time::{self, NEVER, UnixNanos};
use crate::recommend::{CheckpointError, HistogramCheckpoint, HistogramOptions};
use crate::usage::SeriesScope;

/// By dimension name.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pod: BTreeMap<String, T>,
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    container: BTreeMap<String, T>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptUsage {
    /// Meaning of the values and buckets.
    of: String,
    histogram: HistogramCheckpoint,
    #[serde(with = "time::text")]
    first_sample_start: UnixNanos,
    #[serde(with = "time::text")]
    last_sample_start: UnixNanos,
    total_samples_count: u64,
}

/// Reason why a saved histogram is not used; the dimension starts without samples.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("not a saved set of dimensions")]
    Text(#[source] serde_json::Error),
    #[error("{dimension}: invalid saved usage")]
    Usage {
        dimension: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{dimension}: saved values are `{was}`, not `{is}`")]
    Meaning { dimension: String, was: String, is: String },
    #[error("{dimension}: saved histogram has no samples")]
    Empty { dimension: String },
    #[error("{dimension}: invalid saved histogram")]
    Checkpoint {
        dimension: String,
        #[source]
        source: CheckpointError,
    },
}

/// Returns the text to save, or `None` without samples.
pub(super) fn save<'a>(
    pod: impl Iterator<Item = (&'a Dimension, &'a DimensionUsage)>,
    container: impl Iterator<Item = (&'a Dimension, &'a DimensionUsage)>,
) -> Option<String> {
    let kept = |(dimension, usage): (&Dimension, &DimensionUsage)| {
        let Span { first, last, count } = usage.span;
        let kept = KeptUsage {
            of: dimension.shape(),
            histogram: usage.histogram.save(),
            first_sample_start: first,
            last_sample_start: last,
            total_samples_count: count,
        };
        (dimension.name.to_string(), kept)
    };
    let kept = Kept { pod: pod.map(kept).collect(), container: container.map(kept).collect() };
    if kept.pod.is_empty() && kept.container.is_empty() {
        return None;
    }
    serde_json::to_string(&kept).ok()
}

/// Returns the saved usages of these dimensions by index, and an error for each one that cannot be used.
pub(super) fn load(
    text: &str,
    dimensions: &[Dimension],
    options: &[Arc<HistogramOptions>],
    now: UnixNanos,
) -> (Vec<(u8, DimensionUsage)>, Vec<KeptError>) {
    let mut kept: Kept<serde_json::Value> = match serde_json::from_str(text) {
        Ok(kept) => kept,
        Err(error) => return (Vec::new(), vec![KeptError::Text(error)]),
    };
    let (mut loaded, mut errors) = (Vec::new(), Vec::new());
    for ((place, dimension), options) in (0_u8..).zip(dimensions).zip(options) {
        let of = match dimension.scope {
            SeriesScope::Pod => &mut kept.pod,
            SeriesScope::Container => &mut kept.container,
        };
        match of.remove(&*dimension.name).map(|value| usage(value, dimension, options, now)) {
            None => {}
            Some(Ok(usage)) => loaded.push((place, usage)),
            Some(Err(error)) => errors.push(error),
        }
    }
    (loaded, errors)
}

fn usage(
    value: serde_json::Value,
    dimension: &Dimension,
    options: &Arc<HistogramOptions>,
    now: UnixNanos,
) -> Result<DimensionUsage, KeptError> {
    let name = || dimension.name.to_string();
    let kept: KeptUsage =
        serde_json::from_value(value).map_err(|source| KeptError::Usage { dimension: name(), source })?;
    let is = dimension.shape();
    if kept.of != is {
        return Err(KeptError::Meaning { dimension: name(), was: kept.of, is });
    }
    let (first, last) = (kept.first_sample_start, kept.last_sample_start);
    let times = if first == NEVER || first > last {
        Err(CheckpointError::FirstAfterLast)
    } else if last > now.saturating_add(CLOCK_SKEW_NS) {
        Err(CheckpointError::Future("the last sample"))
    } else {
        Ok(())
    };
    let mut usage = DimensionUsage::new(options);
    times
        .and_then(|()| load_histogram("usage", &mut usage.histogram, &kept.histogram, now))
        .map_err(|source| KeptError::Checkpoint { dimension: name(), source })?;
    if kept.total_samples_count == 0 || usage.histogram.is_empty() {
        return Err(KeptError::Empty { dimension: name() });
    }
    usage.span = Span { first, last, count: kept.total_samples_count };
    Ok(usage)
}
