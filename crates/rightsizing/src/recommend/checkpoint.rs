//! Aggregates saved across restarts, as the status of upstream's `VerticalPodAutoscalerCheckpoint`.
//!
//! The fields are those of `pkg/apis/autoscaling.k8s.io/v1/types.go`, so that each recommender reads the
//! checkpoints of the other. Missing fields are tolerated; values that would corrupt an aggregate are refused with
//! a reason.

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Shapes, Span};
use super::histogram::UsageHistogram;
use super::histogram_checkpoint::{CheckpointError, HistogramCheckpoint, VERSION};
use super::time::{self, NEVER, UnixNanos};

/// Maximum time by which a checkpoint may be ahead of the local clock (clock skew between machines).
pub(super) const CLOCK_SKEW_NS: i64 = 3_600_000_000_000;

/// `.status` of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    #[serde(with = "time::text", default = "time::text::never")]
    pub last_update_time: UnixNanos,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub cpu_histogram: HistogramCheckpoint,
    #[serde(default)]
    pub memory_histogram: HistogramCheckpoint,
    #[serde(with = "time::text", default = "time::text::never")]
    pub first_sample_start: UnixNanos,
    #[serde(with = "time::text", default = "time::text::never")]
    pub last_sample_start: UnixNanos,
    /// Number of CPU samples, as in upstream.
    #[serde(default)]
    pub total_samples_count: i64,
}

impl Default for CheckpointStatus {
    /// Returns the content of a checkpoint without a status, which has not even a version.
    fn default() -> Self {
        Self {
            last_update_time: NEVER,
            version: String::new(),
            cpu_histogram: HistogramCheckpoint::default(),
            memory_histogram: HistogramCheckpoint::default(),
            first_sample_start: NEVER,
            last_sample_start: NEVER,
            total_samples_count: 0,
        }
    }
}

impl CheckpointStatus {
    /// Saves the whole aggregate, including the peaks of open windows.
    pub fn save(aggregate: &Aggregate, now: UnixNanos) -> Self {
        let Span { first, last, count } = aggregate.cpu_span;
        Self {
            last_update_time: now,
            version: VERSION.into(),
            cpu_histogram: aggregate.cpu.save(),
            memory_histogram: aggregate.memory.save(),
            first_sample_start: first,
            last_sample_start: last,
            total_samples_count: i64::try_from(count).unwrap_or(i64::MAX),
        }
    }

    /// Restores the saved aggregate. `window_ns` is the length of a memory window, whose end stands in for the time
    /// of its samples.
    pub fn load(
        &self,
        shapes: &Shapes,
        window_ns: i64,
        now: UnixNanos,
    ) -> Result<Aggregate, CheckpointError> {
        if self.version != VERSION {
            return Err(CheckpointError::Version(self.version.clone()));
        }
        let mut aggregate = Aggregate::new(shapes, now);
        aggregate.cpu_span = self.span(now)?;
        load_histogram("cpu", &mut aggregate.cpu, &self.cpu_histogram, now)?;
        load_histogram(
            "memory",
            &mut aggregate.memory,
            &self.memory_histogram,
            now.saturating_add(window_ns),
        )?;
        Ok(aggregate)
    }

    /// Returns an empty status of the same version.
    pub(super) fn without_samples(&self) -> Self {
        Self { version: self.version.clone(), ..Self::default() }
    }

    fn span(&self, now: UnixNanos) -> Result<Span, CheckpointError> {
        let (first, last) = (self.first_sample_start, self.last_sample_start);
        let count = u64::try_from(self.total_samples_count)
            .map_err(|_| CheckpointError::SamplesCount(self.total_samples_count))?;
        if first > last {
            return Err(CheckpointError::FirstAfterLast);
        }
        if last > now.saturating_add(CLOCK_SKEW_NS) {
            return Err(CheckpointError::Future("the last sample"));
        }
        Ok(Span { first, last, count })
    }
}

/// Loads a histogram. A reference in the future would make all later samples weightless, so that the recommendation
/// never changes again. The reference is rounded to a half-life, so it may be up to half of one later than the
/// `latest` sample.
pub(super) fn load_histogram(
    name: &'static str,
    histogram: &mut UsageHistogram,
    saved: &HistogramCheckpoint,
    latest: UnixNanos,
) -> Result<(), CheckpointError> {
    let rounding = histogram.options().half_life_ns() / 2;
    let loaded = if saved.reference_timestamp > latest.saturating_add(rounding).saturating_add(CLOCK_SKEW_NS)
    {
        Err(CheckpointError::Future("the reference timestamp"))
    } else {
        histogram.load(saved)
    };
    loaded.map_err(|error| CheckpointError::Histogram { histogram: name, source: Box::new(error) })
}
