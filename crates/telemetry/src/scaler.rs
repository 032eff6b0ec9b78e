//! Metrics of the scaler.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
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
