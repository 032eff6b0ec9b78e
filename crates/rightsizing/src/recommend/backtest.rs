//! Backtest of estimators on recorded usage, with the measures of Autopilot (EuroSys'20, section 4).
//!
//! Samples are replayed in time order. At every step an estimator sets the limit for the next step from the samples
//! seen so far. CPU usage above the limit counts as throttled but is still visible to the estimator, because a
//! request does not restrict usage. Memory usage above the limit is an OOM kill: the estimator does not see the
//! usage, it only receives the kill, and its new limit takes effect immediately, as for the restarted container.
//! Deterministic: the same samples give the same results.

mod estimators;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use estimators::{BacktestEstimator, EstimatorKind};

use super::amount::Amount;
use super::settings::RecommenderSettings;
use super::time::UnixNanos;

const DAY_NS: f64 = 86_400e9;

/// Recorded resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedResource {
    /// Millicores.
    Cpu,
    /// Bytes.
    Memory,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedSample {
    pub time: UnixNanos,
    pub amount: Amount,
}

/// Usage of one container of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub name: String,
    pub resource: RecordedResource,
    /// Samples of each pod, in strictly increasing time. All pods share one limit.
    pub pods: Vec<Vec<RecordedSample>>,
}

/// Replay parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Time between two decisions in nanoseconds, at least 1.
    pub step_ns: i64,
    /// Time after the first sample that is replayed but not measured, in nanoseconds.
    pub warm_up_ns: i64,
}

/// Measures of one estimator. Amounts are cores or bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measures {
    /// Days from the first to the last measured sample, without gaps.
    pub days: f64,
    /// Sum of the days over all pods.
    pub pod_days: f64,
    pub mean_limit: f64,
    pub mean_usage: f64,
    /// (limit - 95th percentile of usage) / limit per day; mean over days. Negative when the limit is too low.
    pub relative_slack: f64,
    /// Limit - usage, mean over time.
    pub absolute_slack: f64,
    /// Share of the time with usage above the limit.
    pub overrun_share: f64,
    /// Minutes per day in which a pod was throttled (CPU only).
    pub throttle_minutes_per_day: f64,
    /// Number of OOM kills (memory only).
    pub ooms: u64,
    /// OOM kills per pod and day.
    pub ooms_per_pod_day: f64,
    /// Changes of the limit per day.
    pub changes_per_day: f64,
}

/// Measures of one estimator on one recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub name: String,
    pub resource: RecordedResource,
    pub estimator: EstimatorKind,
    #[serde(flatten)]
    pub measures: Measures,
}

/// Replays a recording for an estimator; `None` when no samples are left after the warm-up.
pub fn backtest(
    recorded: &Recorded,
    kind: EstimatorKind,
    settings: &RecommenderSettings,
    pace: Pace,
) -> Option<Outcome> {
    let mut estimator = kind.build(recorded.resource, settings);
    let measures = replay(recorded, &mut *estimator, pace)?;
    Some(Outcome { name: recorded.name.clone(), resource: recorded.resource, estimator: kind, measures })
}

/// Summarises all recordings per estimator and resource, each weighted by its pod days.
pub fn overall(outcomes: &[Outcome]) -> Vec<Outcome> {
    let mut keys: Vec<_> = outcomes.iter().map(|outcome| (outcome.resource, outcome.estimator)).collect();
    keys.sort_unstable();
    keys.dedup();
    let of = |(resource, estimator): (RecordedResource, EstimatorKind)| {
        let mut sum = Measures::default();
        let same =
            outcomes.iter().filter(|outcome| (outcome.resource, outcome.estimator) == (resource, estimator));
        for Outcome { measures, .. } in same {
            sum.add(measures);
        }
        Outcome { name: "all".into(), resource, estimator, measures: sum.divided() }
    };
    keys.into_iter().map(of).collect()
}

impl Measures {
    /// Returns the fields that [`divided`](Self::divided) divides.
    fn weighed(&mut self) -> [&mut f64; 7] {
        [
            &mut self.mean_limit,
            &mut self.mean_usage,
            &mut self.relative_slack,
            &mut self.absolute_slack,
            &mut self.overrun_share,
            &mut self.throttle_minutes_per_day,
            &mut self.changes_per_day,
        ]
    }

    fn add(&mut self, other: &Self) {
        let (mut other, weight) = (*other, other.pod_days);
        for (sum, more) in self.weighed().into_iter().zip(other.weighed()) {
            *sum += *more * weight;
        }
        self.days += other.days;
        self.pod_days += weight;
        self.ooms += other.ooms;
    }

    fn divided(mut self) -> Self {
        let weight = self.pod_days;
        for sum in self.weighed() {
            *sum /= weight;
        }
        self.ooms_per_pod_day = self.ooms as f64 / weight;
        self
    }
}

/// A sample, and the time it stands for.
#[derive(Debug, Clone, Copy)]
struct Event {
    time: UnixNanos,
    pod: usize,
    amount: Amount,
    lasts_ns: i64,
}

/// Replays a recording for any estimator.
pub fn replay(recorded: &Recorded, estimator: &mut dyn BacktestEstimator, pace: Pace) -> Option<Measures> {
    let step_ns = pace.step_ns.max(1);
    let events = events(recorded, step_ns);
    let start = events.first()?.time;
    let measured_from = start.saturating_add(pace.warm_up_ns);
    let mut tally = Tally::new(recorded.resource, measured_from);
    let mut limit = None;
    let mut next_step = start.saturating_add(step_ns);
    for event in events {
        if event.time >= next_step {
            // Steps without samples would repeat the decision of the last one.
            let decided = next_step + (event.time - next_step) / step_ns * step_ns;
            tally.set(&mut limit, estimator.limit(decided), event.time);
            next_step = decided.saturating_add(step_ns);
        }
        if let Some(limit) = limit {
            tally.count(event, limit);
        }
        match (recorded.resource, limit) {
            (RecordedResource::Memory, Some(exceeded)) if event.amount > exceeded => {
                estimator.oom(event.pod, event.time, exceeded);
                tally.set(&mut limit, estimator.limit(event.time), event.time);
            }
            _ => estimator.observe(event.pod, event.time, event.amount),
        }
    }
    tally.finish()
}

/// Returns all samples in time order. Each stands for the time until the next one of its pod; gaps stand for no
/// time.
fn events(recorded: &Recorded, step_ns: i64) -> Vec<Event> {
    let mut events = Vec::new();
    for (pod, samples) in recorded.pods.iter().enumerate() {
        let mut intervals: Vec<i64> =
            samples.windows(2).map(|pair| pair[1].time.saturating_sub(pair[0].time)).collect();
        let between = intervals.clone();
        intervals.sort_unstable();
        let usual = intervals.get(intervals.len() / 2).copied().unwrap_or(step_ns);
        for (at, sample) in samples.iter().enumerate() {
            let until_next = between.get(at).copied().unwrap_or(usual);
            let lasts_ns = if until_next > usual.saturating_mul(2) { usual } else { until_next };
            events.push(Event { time: sample.time, pod, amount: sample.amount, lasts_ns });
        }
    }
    events.sort_unstable_by_key(|event| (event.time, event.pod));
    events
}

/// Measurements of one day.
#[derive(Default)]
struct Day {
    number: i64,
    usage: Vec<Amount>,
    limit_time: f64,
    time: f64,
}

/// Running sums during a replay.
struct Tally {
    resource: RecordedResource,
    measured_from: UnixNanos,
    time: f64,
    limit_time: f64,
    usage_time: f64,
    overrun_time: f64,
    ooms: u64,
    changes: u64,
    first: Option<UnixNanos>,
    end: UnixNanos,
    day: Day,
    /// Sum over days of the relative slack times the day's measured time.
    slack_time: f64,
}

impl Tally {
    fn new(resource: RecordedResource, measured_from: UnixNanos) -> Self {
        Self {
            resource,
            measured_from,
            time: 0.0,
            limit_time: 0.0,
            usage_time: 0.0,
            overrun_time: 0.0,
            ooms: 0,
            changes: 0,
            first: None,
            end: measured_from,
            day: Day::default(),
            slack_time: 0.0,
        }
    }

    /// Sets the limit to the estimator's value, if it has one.
    fn set(&mut self, limit: &mut Option<Amount>, said: Option<Amount>, time: UnixNanos) {
        if said.is_none() || said == *limit {
            return;
        }
        self.changes += u64::from(limit.is_some() && time >= self.measured_from);
        *limit = said;
    }

    fn count(&mut self, event: Event, limit: Amount) {
        if event.time < self.measured_from {
            return;
        }
        let number = ((event.time - self.measured_from) as f64 / DAY_NS) as i64;
        if number != self.day.number {
            self.end_day();
            self.day.number = number;
        }
        let (lasts, limited) = (event.lasts_ns as f64, limit as f64);
        self.first = self.first.or(Some(event.time));
        self.end = self.end.max(event.time.saturating_add(event.lasts_ns));
        self.time += lasts;
        self.limit_time += limited * lasts;
        self.usage_time += event.amount as f64 * lasts;
        self.day.time += lasts;
        self.day.limit_time += limited * lasts;
        self.day.usage.push(event.amount);
        if event.amount > limit {
            self.overrun_time += lasts;
            self.ooms += u64::from(self.resource == RecordedResource::Memory);
        }
    }

    fn end_day(&mut self) {
        let mut day = std::mem::take(&mut self.day);
        if day.time <= 0.0 || day.limit_time <= 0.0 {
            return;
        }
        let used = percentile(&mut day.usage, 0.95) as f64;
        let limit = day.limit_time / day.time;
        self.slack_time += (limit - used) / limit * day.time;
    }

    fn finish(mut self) -> Option<Measures> {
        self.end_day();
        let first = self.first?;
        if self.time <= 0.0 {
            return None;
        }
        let days = self.end.saturating_sub(first) as f64 / DAY_NS;
        let pod_days = self.time / DAY_NS;
        let unit = if self.resource == RecordedResource::Cpu { 1000.0 } else { 1.0 };
        let (mean_limit, mean_usage) =
            (self.limit_time / self.time / unit, self.usage_time / self.time / unit);
        let overrun_share = self.overrun_time / self.time;
        let is_cpu = self.resource == RecordedResource::Cpu;
        Some(Measures {
            days,
            pod_days,
            mean_limit,
            mean_usage,
            relative_slack: self.slack_time / self.time,
            absolute_slack: mean_limit - mean_usage,
            overrun_share,
            throttle_minutes_per_day: if is_cpu { overrun_share * 1440.0 } else { 0.0 },
            ooms: self.ooms,
            ooms_per_pod_day: self.ooms as f64 / pod_days,
            changes_per_day: self.changes as f64 / days,
        })
    }
}

/// Returns the smallest amount that is not below a share `percentile` of them (nearest rank); 0 for none.
fn percentile(amounts: &mut [Amount], percentile: f64) -> Amount {
    if amounts.is_empty() {
        return 0;
    }
    let rank = (amounts.len() as f64 * percentile).ceil() as usize;
    let at = rank.clamp(1, amounts.len()) - 1;
    *amounts.select_nth_unstable(at).1
}
