//! The built-in signals of a ServiceScaler (`SignalKind` of `berth-prometheus`), as the model of a service shows them.
//!
//! Kernel metrics come from formulas within the second: [`Shown`] holds their counters, which are summed over seconds like those of a
//! kubelet. Latencies go through the buckets of Istio's histogram, and lose as much precision there as in a mesh.

use serde::Serialize;

use super::latency::{Demand, QUOTA_PERIOD_S, Wait};

/// Saturation signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuiltInSignal {
    /// Share of CFS periods in which containers were throttled.
    CpuThrottling,
    /// Share of time in which some task waited for a CPU, in the worst pods.
    CpuPressure,
    /// Time that requests waited for a CPU, divided by the time that they ran.
    RunQueueLatency,
    /// The 95th percentile, in milliseconds.
    RequestLatency,
}

impl BuiltInSignal {
    pub const ALL: [BuiltInSignal; 4] = [
        BuiltInSignal::CpuThrottling,
        BuiltInSignal::CpuPressure,
        BuiltInSignal::RunQueueLatency,
        BuiltInSignal::RequestLatency,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BuiltInSignal::CpuThrottling => "cpu-throttling",
            BuiltInSignal::CpuPressure => "cpu-pressure",
            BuiltInSignal::RunQueueLatency => "run-queue-latency",
            BuiltInSignal::RequestLatency => "request-latency",
        }
    }

    /// Returns the default target. Throttling: that of `manifests/example-service-scaler.yaml`. Latency: a multiple of the mean CPU
    /// time of the service's requests, because an operator sets a target for each service.
    pub fn target(self) -> f64 {
        match self {
            BuiltInSignal::CpuThrottling => 0.05,
            BuiltInSignal::CpuPressure => 0.3,
            BuiltInSignal::RunQueueLatency => 0.5,
            BuiltInSignal::RequestLatency => 5.0,
        }
    }

    /// Returns the factor from a target to the unit of the signal.
    pub fn unit(self, demand: &Demand) -> f64 {
        if self == BuiltInSignal::RequestLatency { demand.mean_s * 1000.0 } else { 1.0 }
    }
}

/// Counters of all pods, over some seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shown {
    pub seconds: f64,
    pub periods: f64,
    pub throttled: f64,
    /// Seconds in which some task waited, in the worst pods.
    pub pressure: f64,
    pub waited_s: f64,
    pub ran_s: f64,
    pub latencies: RequestBuckets,
}

impl Shown {
    pub fn merge(&mut self, other: &Shown) {
        self.seconds += other.seconds;
        self.periods += other.periods;
        self.throttled += other.throttled;
        self.pressure += other.pressure;
        self.waited_s += other.waited_s;
        self.ran_s += other.ran_s;
        self.latencies.0.iter_mut().zip(&other.latencies.0).for_each(|(sum, more)| *sum += more);
    }

    /// Adds a second of `pods` pods with `cores` cores each.
    pub fn add(
        &mut self,
        demand: &Demand,
        wait: &Wait,
        (pods, cores): (f64, f64),
        (rate, ran_s): (f64, f64),
    ) {
        let (active, throttled) = throttling(demand, cores, rate / pods.max(1.0), wait.backlog_s);
        self.periods += pods * active / QUOTA_PERIOD_S;
        self.throttled += pods * active * throttled / QUOTA_PERIOD_S;
        self.waited_s += wait.average() * ran_s / demand.mean_s;
        self.ran_s += ran_s;
    }

    /// Returns the value of the signal; `None` if nothing happened.
    pub fn value(&self, signal: BuiltInSignal) -> Option<f64> {
        let fraction = |part: f64, of: f64| (of > 0.0).then(|| part / of);
        match signal {
            BuiltInSignal::CpuThrottling => fraction(self.throttled, self.periods),
            BuiltInSignal::CpuPressure => fraction(self.pressure, self.seconds),
            BuiltInSignal::RunQueueLatency => fraction(self.waited_s, self.ran_s),
            BuiltInSignal::RequestLatency => self.latencies.percentile(0.95),
        }
    }
}

/// Returns the share of CFS periods with work, and the share of these in which a container uses up its quota: the work that arrives in
/// a period is a compound Poisson sum, here with a normal tail. A backlog uses every quota up.
pub fn throttling(demand: &Demand, cores: f64, rate: f64, backlog_s: f64) -> (f64, f64) {
    if backlog_s > 0.0 {
        return (1.0, 1.0);
    }
    let requests = rate * QUOTA_PERIOD_S;
    let active = 1.0 - (-requests).exp();
    let deviation = demand.mean_s * (requests * (1.0 + demand.variation)).sqrt();
    let spare = cores * QUOTA_PERIOD_S - requests * demand.mean_s;
    (active, if deviation > 0.0 { normal_tail(spare / deviation) } else { 0.0 })
}

/// Returns the share of a normal distribution above this many deviations (Abramowitz and Stegun, 26.2.17).
fn normal_tail(deviations: f64) -> f64 {
    const POWERS: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let x = deviations.abs();
    let t = 1.0 / (1.0 + 0.231_641_9 * x);
    let sum = POWERS.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if deviations >= 0.0 { tail } else { 1.0 - tail }
}

/// Upper bounds of the buckets of `istio_request_duration_milliseconds`, without the last, which is infinite.
const BOUNDS_MS: [f64; 19] = [
    0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6,
    3.6e6,
];

/// Requests by duration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestBuckets([f64; BOUNDS_MS.len()]);

impl RequestBuckets {
    pub fn add(&mut self, seconds: f64, requests: f64) {
        let at = BOUNDS_MS.partition_point(|bound| *bound < seconds * 1000.0);
        self.0[at.min(BOUNDS_MS.len() - 1)] += requests;
    }

    /// Returns a percentile in milliseconds as `histogram_quantile` does: linear within a bucket. `None` without requests.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let total: f64 = self.0.iter().sum();
        let (mut below, mut low) = (0.0, 0.0);
        for (count, high) in self.0.iter().zip(BOUNDS_MS) {
            if *count > 0.0 && below + count >= share * total {
                return Some(low + (high - low) * ((share * total - below) / count));
            }
            (below, low) = (below + count, high);
        }
        None
    }
}
