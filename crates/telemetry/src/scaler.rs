//! Metrics of the scaler.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::encode::{MetricLabels, counters, gauges};

/// Metrics of the scaler.
#[derive(Default)]
pub struct ScalerMetrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rounds: [u64; 2],
    took: Duration,
    /// By the reason of the event.
    changes: BTreeMap<&'static str, u64>,
    /// ServiceScalers by the reason of their condition Active, in the last round.
    services: BTreeMap<&'static str, usize>,
    /// In force in this process, on every replica.
    hints: usize,
    /// Reads of Prometheus, by what is read.
    reads: BTreeMap<&'static str, Reads>,
}

/// Upper bounds of the durations of reads, in seconds.
const READ_SECONDS: [f64; 10] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 15.0, 30.0, 60.0];

/// Reads of one kind.
#[derive(Default)]
struct Reads {
    /// Failed and done.
    results: [u64; 2],
    /// Rounds that did not wait for one.
    late: u64,
    took: Duration,
    /// One count per bucket of [`READ_SECONDS`], the last one for all longer reads.
    within: [u64; READ_SECONDS.len() + 1],
}

impl ScalerMetrics {
    /// Counts a change of a service or a failed attempt, by the reason of the event.
    pub fn change(&self, what: &'static str) {
        *self.state.lock().changes.entry(what).or_default() += 1;
    }

    /// Records the end of a round, its duration, and the services by reason.
    pub fn round(&self, is_good: bool, took: Duration, services: BTreeMap<&'static str, usize>) {
        let mut state = self.state.lock();
        state.rounds[usize::from(is_good)] += 1;
        (state.took, state.services) = (took, services);
    }

    /// Sets the number of hints in force.
    pub fn hints(&self, in_force: usize) {
        self.state.lock().hints = in_force;
    }

    /// Counts a read of Prometheus that has ended. `what`: what was read.
    pub fn read(&self, what: &'static str, is_good: bool, took: Duration) {
        let mut state = self.state.lock();
        let reads = state.reads.entry(what).or_default();
        reads.results[usize::from(is_good)] += 1;
        reads.took += took;
        let seconds = took.as_secs_f64();
        reads.within[READ_SECONDS.iter().take_while(|bound| seconds > **bound).count()] += 1;
    }

    /// Counts a read in flight for which a round does not wait.
    pub fn late(&self, what: &'static str) {
        self.state.lock().reads.entry(what).or_default().late += 1;
    }

    /// Clears the gauges: another process is the leader now.
    pub fn rests(&self) {
        let mut state = self.state.lock();
        state.services.clear();
        state.took = Duration::ZERO;
    }

    pub fn encode(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let state = self.state.lock();
        let [failed, done] = state.rounds;
        let rounds: [(MetricLabels, u64); 2] =
            [(&[("result", "done")], done), (&[("result", "failed")], failed)];
        counters(to, "berth_scaler_rounds", "Rounds of the scaler", &rounds)?;
        let took = ConstGauge::new(state.took.as_secs_f64());
        let help = "Duration of the last round";
        took.encode(to.encode_descriptor("berth_scaler_round_seconds", help, None, took.metric_type())?)?;
        let labels: Vec<_> = state.changes.keys().map(|what| [("change", *what)]).collect();
        let values: Vec<(MetricLabels, u64)> = labels
            .iter()
            .zip(state.changes.values())
            .map(|(label, count)| (label.as_slice(), *count))
            .collect();
        counters(to, "berth_scaler_changes", "Changes of services, by kind", &values)?;
        encode_reads(&state.reads, to)?;
        let labels: Vec<_> = state.services.keys().map(|reason| [("reason", *reason)]).collect();
        let values: Vec<(MetricLabels, usize)> = labels
            .iter()
            .zip(state.services.values())
            .map(|(label, count)| (label.as_slice(), *count))
            .collect();
        gauges(
            to,
            "berth_scaler_services",
            "ServiceScalers by the reason of their condition Active",
            &values,
        )?;
        let hints: [(MetricLabels, usize); 1] = [(&[], state.hints)];
        gauges(to, "berth_scaler_hints", "Placement hints in force, from services that peak together", &hints)
    }
}

fn encode_reads(reads: &BTreeMap<&'static str, Reads>, to: &mut DescriptorEncoder) -> fmt::Result {
    let labels: Vec<_> = reads
        .keys()
        .flat_map(|what| [[("read", *what), ("result", "failed")], [("read", *what), ("result", "done")]])
        .collect();
    let results = reads.values().flat_map(|reads| reads.results);
    let values: Vec<(MetricLabels, u64)> = labels.iter().map(|label| label.as_slice()).zip(results).collect();
    counters(to, "berth_scaler_reads", "Reads of Prometheus, by what is read", &values)?;
    let labels: Vec<_> = reads.keys().map(|what| [("read", *what)]).collect();
    let late: Vec<(MetricLabels, u64)> =
        labels.iter().map(|label| label.as_slice()).zip(reads.values().map(|reads| reads.late)).collect();
    let help = "Reads of Prometheus in flight for which a round did not wait";
    counters(to, "berth_scaler_reads_late", help, &late)?;
    let help = "Duration of reads of Prometheus";
    let mut family = to.encode_descriptor("berth_scaler_read_seconds", help, None, MetricType::Histogram)?;
    for (label, reads) in labels.iter().zip(reads.values()) {
        let bounds = READ_SECONDS.into_iter().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(reads.within).collect();
        let metric = &mut family.encode_family(label)?;
        let count = reads.results.iter().sum();
        metric.encode_histogram::<NoLabelSet>(reads.took.as_secs_f64(), count, &buckets, None)?;
    }
    Ok(())
}
