//! Metrics of the updater.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{MetricLabels, counters, gauges};

/// Metrics of the updater.
#[derive(Default)]
pub struct UpdaterMetrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rounds: [u64; 2],
    /// By result.
    updates: BTreeMap<&'static str, u64>,
    /// Pods outside their recommendation that are not updated, by reason, in the last round.
    held: BTreeMap<&'static str, usize>,
}

impl UpdaterMetrics {
    /// Counts an update: `resized`, `resize_failed`, `evicted`, `eviction_refused`, `eviction_failed` or `gone`.
    pub fn update(&self, what: &'static str) {
        *self.state.lock().updates.entry(what).or_default() += 1;
    }

    /// Records the end of a round, and the pods it did not update, by reason.
    pub fn round(&self, is_good: bool, held: BTreeMap<&'static str, usize>) {
        let mut state = self.state.lock();
        state.rounds[usize::from(is_good)] += 1;
        state.held = held;
    }

    /// Clears the gauges: another process is the leader now.
    pub fn rests(&self) {
        self.state.lock().held.clear();
    }

    pub fn encode(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let state = self.state.lock();
        let [failed, done] = state.rounds;
        let rounds: [(MetricLabels, u64); 2] =
            [(&[("result", "done")], done), (&[("result", "failed")], failed)];
        counters(to, "berth_updater_rounds", "Rounds of the updater", &rounds)?;
        let labels: Vec<_> = state.updates.keys().map(|what| [("result", *what)]).collect();
        let values: Vec<(MetricLabels, u64)> = labels
            .iter()
            .zip(state.updates.values())
            .map(|(label, count)| (label.as_slice(), *count))
            .collect();
        counters(to, "berth_updater_updates", "Pods resized in place or evicted, by result", &values)?;
        let labels: Vec<_> = state.held.keys().map(|why| [("reason", *why)]).collect();
        let values: Vec<(MetricLabels, usize)> =
            labels.iter().zip(state.held.values()).map(|(label, count)| (label.as_slice(), *count)).collect();
        gauges(
            to,
            "berth_updater_held_pods",
            "Pods outside their recommendation that are not updated for now, by reason",
            &values,
        )
    }
}
