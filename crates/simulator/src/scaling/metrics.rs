//! What scalers can observe: metrics-server's usage, and Prometheus' rates, as production queries them.
//!
//! Counters are read every [`SYNC_S`] seconds by metrics-server, and every `scrape_s` seconds by Prometheus. A rate over a window is that
//! between the oldest and the newest scrape in it (`berth_prometheus::rate_window`: two and a half scrapes for CPU; a minute at least for
//! signals), and is as old as its newest scrape. Readings do not fall together with decisions: each service has its own phase.

use std::collections::VecDeque;

use super::load::{SimulatedService, normal, seeded};
use super::scalers::{Scrape, Tuning};
use super::service::{Second, State};
use super::signal::Shown;

/// Interval of decisions, and of metrics-server, in seconds.
pub const SYNC_S: u32 = 15;
/// Maximum number of pods with reported usage, which is enough for a window.
pub const PODS_MAX: usize = 8;
/// Minimum window of rates of signals.
const SIGNAL_WINDOW_MIN_S: u32 = 60;

/// Usage between two readings of metrics-server.
#[derive(Default)]
struct Reading {
    /// Of some pods.
    cpu_milli: Vec<f64>,
    memory_bytes: Vec<f64>,
    shown: Shown,
    requests: f64,
    failed: f64,
}

/// Usage since the last reading.
#[derive(Default)]
struct Open {
    /// CPU seconds of a pod of each group.
    each_s: [f64; 2],
    /// Requests of a pod.
    requests: f64,
    reading: Reading,
}

pub struct SimulatedMetrics {
    /// Seconds from a decision to the next reading, from 0.
    phase_s: u32,
    open: Open,
    /// Newest last.
    readings: VecDeque<Reading>,
    count: u32,
    kills: u32,
    seed: u64,
}

/// Returns the windows of CPU rates and of signals, in seconds.
fn windows_s(tuning: &Tuning) -> (u32, u32) {
    let cpu = tuning.rate_window_s.unwrap_or((tuning.scrape_s * 5).div_ceil(2));
    (cpu, cpu.max(SIGNAL_WINDOW_MIN_S))
}

/// Returns the number of intervals between scrapes that a rate over the window covers.
pub(super) fn intervals(window_s: u32, newest_age_s: u32, scrape_s: u32) -> u32 {
    (window_s.saturating_sub(newest_age_s + 1) / scrape_s).max(1)
}

impl SimulatedMetrics {
    pub fn new(seed: u64) -> Self {
        let phase_s = (seeded(seed, 6, 0).next() % u64::from(SYNC_S)) as u32;
        Self { phase_s, open: Open::default(), readings: VecDeque::new(), count: 0, kills: 0, seed }
    }

    /// Adds the second that ends at `now`.
    pub fn add(
        &mut self,
        service: &SimulatedService,
        second: Second,
        requests: f64,
        now: u32,
        tuning: &Tuning,
    ) {
        let pods: u32 = second.groups.iter().map(|group| group.pods).sum();
        for (sum, group) in self.open.each_s.iter_mut().zip(&second.groups) {
            *sum += group.used_cores / f64::from(group.pods.max(1));
        }
        self.open.requests += requests / f64::from(pods.max(1));
        self.open.reading.requests += requests;
        self.open.reading.failed += second.failed;
        self.kills += second.killed;
        self.open.reading.shown.merge(&second.shown);
        if now % SYNC_S == self.phase_s {
            self.read(service, &second, tuning);
        }
    }

    /// Pods differ randomly in the number of requests that they receive.
    fn read(&mut self, service: &SimulatedService, second: &Second, tuning: &Tuning) {
        let Open { each_s, requests, mut reading } = std::mem::take(&mut self.open);
        let deviation = ((1.0 + service.demand.variation) / requests.max(1.0)).sqrt();
        let mut draws = seeded(self.seed, 3, u64::from(self.count));
        let pods: u32 = second.groups.iter().map(|group| group.pods).sum();
        let reported = PODS_MAX.min(pods as usize);
        for at in 0..reported {
            // Of both groups, in proportion.
            let of = usize::from(at as u32 * pods >= second.groups[0].pods * reported as u32);
            let group = &second.groups[of];
            let milli = each_s[of] / reading.shown.seconds * 1000.0;
            reading
                .cpu_milli
                .push((milli * (1.0 + deviation * normal(&mut draws))).clamp(0.0, group.cores * 1000.0));
            reading.memory_bytes.push(group.memory_bytes * (1.0 - 0.02 * normal(&mut draws).abs()));
        }
        self.readings.push_back(reading);
        self.count += 1;
        let (cpu, signals) = windows_s(tuning);
        let kept = (cpu.max(signals) + 2 * tuning.scrape_s) / SYNC_S + 1;
        if self.readings.len() > kept as usize {
            self.readings.pop_front();
        }
    }

    /// Returns the readings between the scrapes that a rate over this window covers, newest first.
    fn covered(&self, window_s: u32, tuning: &Tuning) -> impl Iterator<Item = &Reading> {
        let each = (tuning.scrape_s / SYNC_S).max(1);
        let since = self.count % each;
        let age_s = (SYNC_S - self.phase_s) % SYNC_S + since * SYNC_S;
        let take = intervals(window_s, age_s, each * SYNC_S) * each;
        self.readings.iter().rev().skip(since as usize).take(take as usize)
    }

    /// Returns the metrics at the time of a decision.
    pub fn observe(&mut self, state: &State, time_s: i64, tuning: &Tuning) -> Scrape {
        let (cpu_window, signal_window) = windows_s(tuning);
        let (mut sums, mut counts) = (Vec::new(), Vec::new());
        let mut memory_bytes = Vec::new();
        for (at, reading) in self.covered(cpu_window, tuning).enumerate() {
            if at == 0 {
                sums.resize(reading.cpu_milli.len(), 0.0);
                counts.resize(sums.len(), 0.0);
                memory_bytes.clone_from(&reading.memory_bytes);
            }
            for ((sum, count), cpu) in sums.iter_mut().zip(&mut counts).zip(&reading.cpu_milli) {
                *sum += cpu;
                *count += 1.0;
            }
        }
        let (mut shown, mut came, mut failed) = (Shown::default(), 0.0, 0.0);
        for reading in self.covered(signal_window, tuning) {
            shown.merge(&reading.shown);
            came += reading.requests;
            failed += reading.failed;
        }
        let newest = self.readings.back();
        Scrape {
            time_s,
            replicas: state.replicas(),
            ready: state.ready,
            size: state.size,
            cpu_milli: sums.iter().zip(&counts).map(|(sum, count)| sum / count).collect(),
            memory_bytes,
            usage_milli: newest.map(|reading| reading.cpu_milli.clone()).unwrap_or_default(),
            working_set_bytes: newest.map(|reading| reading.memory_bytes.clone()).unwrap_or_default(),
            signal: shown.value(tuning.signal),
            success: if came > 0.0 { (1.0 - failed / came).max(0.0) } else { 1.0 },
            kills: std::mem::take(&mut self.kills),
        }
    }
}
