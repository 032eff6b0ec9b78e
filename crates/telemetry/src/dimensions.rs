//! Metrics of the recommender's dimensions besides CPU and memory. None are exported without such dimensions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{MetricLabels, counters, gauges};
use berth_rightsizing::recommend::dimension::store::DimensionCounts;

/// Result of reading a dimension from Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DimensionRead {
    Done,
    /// The query returned no series.
    Empty,
    Failed,
}

/// Counters of dimensions.
#[derive(Default)]
pub struct DimensionMetrics(Mutex<State>);

#[derive(Default)]
struct State {
    by_name: BTreeMap<Arc<str>, Counts>,
    holds: DimensionCounts,
    written: u64,
    failed: u64,
    truncated: u64,
}

#[derive(Default)]
struct Counts {
    /// By [`DimensionRead`].
    reads: [u64; 3],
    taken: u64,
    refused: u64,
}

impl DimensionMetrics {
    /// Sets the names of the configured dimensions.
    pub fn follow(&self, names: impl Iterator<Item = Arc<str>>) {
        self.0.lock().by_name = names.map(|name| (name, Counts::default())).collect();
    }

    /// Counts a read of a dimension from Prometheus, with its numbers of samples taken and refused.
    pub fn read(&self, name: &str, read: DimensionRead, taken: u64, refused: u64) {
        if let Some(counts) = self.0.lock().by_name.get_mut(name) {
            counts.reads[read as usize] += 1;
            counts.taken += taken;
            counts.refused += refused;
        }
    }

    pub fn holds(&self, counts: DimensionCounts) {
        self.0.lock().holds = counts;
    }

    /// Counts a write of a VPA's usage annotation; `is_whole`: nothing was truncated.
    pub fn usage_written(&self, is_good: bool, is_whole: bool) {
        let mut state = self.0.lock();
        match is_good {
            true => state.written += 1,
            false => state.failed += 1,
        }
        state.truncated += u64::from(is_good && !is_whole);
    }

    pub fn encode(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let state = self.0.lock();
        if state.by_name.is_empty() {
            return Ok(());
        }
        let each = |pick: &dyn Fn(&Counts) -> Vec<(&'static str, u64)>| {
            let of = |(name, counts)| {
                let name: &Arc<str> = name;
                pick(counts).into_iter().map(|(result, count)| {
                    ([("dimension", name.to_string()), ("result", result.to_owned())], count)
                })
            };
            state.by_name.iter().flat_map(of).collect::<Vec<_>>()
        };
        let reads = each(&|it| ["done", "empty", "failed"].into_iter().zip(it.reads).collect());
        let samples = each(&|it| vec![("done", it.taken), ("failed", it.refused)]);
        for (name, help, values) in [
            ("berth_recommender_dimension_reads", "Reads of a dimension from Prometheus", reads),
            ("berth_recommender_dimension_samples", "Samples of a dimension taken", samples),
        ] {
            let labels: Vec<_> = values
                .iter()
                .map(|(labels, _)| labels.each_ref().map(|(key, value)| (*key, value.as_str())))
                .collect();
            let values: Vec<(MetricLabels, u64)> =
                labels.iter().zip(&values).map(|(labels, (_, count))| (labels.as_slice(), *count)).collect();
            counters(to, name, help, &values)?;
        }
        let DimensionCounts { usages, bytes } = state.holds;
        let (name, help) =
            ("berth_recommender_dimension_aggregates", "Aggregates of dimensions, of containers and pods");
        gauges(to, name, help, &[(&[], usages)])?;
        gauges(
            to,
            "berth_recommender_dimension_bytes",
            "Memory of these aggregates, without maps",
            &[(&[], bytes)],
        )?;
        let (name, help) = ("berth_recommender_usage_writes", "Writes of the usage annotation of VPAs");
        let results: [(MetricLabels, u64); 2] =
            [(&[("result", "done")], state.written), (&[("result", "failed")], state.failed)];
        counters(to, name, help, &results)?;
        let (name, help) =
            ("berth_recommender_usage_truncated", "Writes of the usage annotation that were truncated");
        counters(to, name, help, &[(&[], state.truncated)])
    }
}
