//! Estimators under test. Those besides the Vertical Pod Autoscaler's are in `others.rs`.

mod others;

use std::collections::VecDeque;

use serde::Serialize;

use super::{RecordedResource, percentile};
use crate::recommend::aggregate::Aggregate;
use crate::recommend::amount::Amount;
use crate::recommend::container::{ContainerState, MemoryRules};
use crate::recommend::estimate::{estimate, with_margin};
use crate::recommend::method::Method;
use crate::recommend::settings::{RecommenderSettings, ResourceSettings};
use crate::recommend::time::UnixNanos;
use others::Other;

/// Estimates the size of a container from its usage. Times never go back. Amounts are millicores or bytes.
pub trait BacktestEstimator {
    /// Adds a usage of a pod.
    fn observe(&mut self, pod: usize, time: UnixNanos, amount: Amount);

    /// Records that a pod was OOM-killed at `limit`. The usage above the limit is unknown.
    fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount);

    /// Returns the limit to set now; `None` without samples.
    fn limit(&mut self, now: UnixNanos) -> Option<Amount>;
}

/// Available estimators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EstimatorKind {
    Vpa,
    /// The highest usage ever seen, plus the margin
    Max,
    /// The 99th percentile of the last 7 days, plus the margin
    P99,
    /// berth's: the peaks of the same hours of the days before, plus 15 %
    Hours,
    /// Autopilot's moving window: a percentile of the load plus 10 to 15 %, and the maximum of the last hour
    AutopilotWindow,
    /// Autopilot's ensemble: of several simple models, the one with the lowest recent cost
    AutopilotEnsemble,
    /// SHOWAR: the mean of the last 5 minutes plus three standard deviations
    Showar,
}

impl EstimatorKind {
    pub const ALL: [EstimatorKind; 7] = [
        EstimatorKind::Vpa,
        EstimatorKind::Max,
        EstimatorKind::P99,
        EstimatorKind::Hours,
        EstimatorKind::AutopilotWindow,
        EstimatorKind::AutopilotEnsemble,
        EstimatorKind::Showar,
    ];

    pub fn name(self) -> &'static str {
        match self {
            EstimatorKind::Vpa => "vpa",
            EstimatorKind::Max => "max",
            EstimatorKind::P99 => "p99",
            EstimatorKind::Hours => "hours",
            EstimatorKind::AutopilotWindow => "autopilot-window",
            EstimatorKind::AutopilotEnsemble => "autopilot-ensemble",
            EstimatorKind::Showar => "showar",
        }
    }

    /// Returns one line of help.
    pub fn about(self) -> &'static str {
        match self {
            EstimatorKind::Vpa => "The target of the Vertical Pod Autoscaler",
            EstimatorKind::Max => "The highest usage ever seen, plus the margin",
            EstimatorKind::P99 => "The 99th percentile of the last 7 days, plus the margin",
            EstimatorKind::Hours => "berth's: the peaks of the same hours of the days before, plus 15 %",
            EstimatorKind::AutopilotWindow => {
                "Autopilot's moving window: a percentile of the load plus 10 to 15 %, and the maximum of the last hour"
            }
            EstimatorKind::AutopilotEnsemble => {
                "Autopilot's ensemble: of several simple models, the one with the lowest recent cost"
            }
            EstimatorKind::Showar => "SHOWAR: the mean of the last 5 minutes plus three standard deviations",
        }
    }

    /// Creates an estimator. The first three add the margin of the settings, the remaining ones have their own. All
    /// use the minimum of the settings; SHOWAR's is higher.
    pub fn build(
        self,
        resource: RecordedResource,
        settings: &RecommenderSettings,
    ) -> Box<dyn BacktestEstimator> {
        let floor = match resource {
            RecordedResource::Cpu => Floor::of(&settings.cpu),
            RecordedResource::Memory => Floor::of(&settings.memory),
        };
        let rules = settings.memory_rules();
        match self {
            EstimatorKind::Vpa => Box::new(Vpa::new(resource, settings)),
            EstimatorKind::Max => Box::new(Max { floor, rules, max: None }),
            EstimatorKind::P99 => {
                Box::new(P99 { floor, rules, usage: VecDeque::new(), needs: VecDeque::new() })
            }
            EstimatorKind::Hours => Box::new(Other::new(Method::Hours, resource, settings)),
            EstimatorKind::AutopilotWindow => {
                Box::new(Other::new(Method::AutopilotWindow, resource, settings))
            }
            EstimatorKind::AutopilotEnsemble => {
                Box::new(Other::new(Method::AutopilotEnsemble, resource, settings))
            }
            EstimatorKind::Showar => Box::new(Other::new(Method::Showar, resource, settings)),
        }
    }
}

/// Margin and minimum of every estimator.
#[derive(Debug, Clone, Copy)]
struct Floor {
    margin: f64,
    minimum: Amount,
}

impl Floor {
    fn of(settings: &ResourceSettings) -> Self {
        Self { margin: settings.margin, minimum: settings.pod_minimum }
    }

    fn apply(self, base: Amount) -> Amount {
        with_margin(base, self.margin).max(self.minimum)
    }
}

struct Vpa {
    resource: RecordedResource,
    settings: RecommenderSettings,
    rules: MemoryRules,
    /// `None`: the settings give no valid histograms, and there is never a limit.
    aggregate: Option<Aggregate>,
    pods: Vec<ContainerState>,
}

impl Vpa {
    fn new(resource: RecordedResource, settings: &RecommenderSettings) -> Self {
        let aggregate = settings.shapes().ok().map(|shapes| Aggregate::new(&shapes, 0));
        let (settings, rules) = (settings.clone(), settings.memory_rules());
        Self { resource, settings, rules, aggregate, pods: Vec::new() }
    }

    fn feed(
        &mut self,
        pod: usize,
    ) -> Option<(&mut ContainerState, &mut Aggregate, &RecommenderSettings, &MemoryRules)> {
        if self.pods.len() <= pod {
            self.pods.resize(pod + 1, ContainerState::default());
        }
        Some((&mut self.pods[pod], self.aggregate.as_mut()?, &self.settings, &self.rules))
    }
}

impl BacktestEstimator for Vpa {
    fn observe(&mut self, pod: usize, time: UnixNanos, amount: Amount) {
        let resource = self.resource;
        let Some((state, aggregate, settings, rules)) = self.feed(pod) else { return };
        // Only negative or old samples are refused, and a replay has none.
        let _ = match resource {
            RecordedResource::Cpu => state.add_cpu(aggregate, amount, time),
            RecordedResource::Memory => {
                state.add_memory(aggregate, amount, time, rules, settings.strict_upstream)
            }
        };
    }

    fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount) {
        let Some((state, aggregate, settings, rules)) = self.feed(pod) else { return };
        let _ = state.record_oom(aggregate, limit, time, rules, settings.strict_upstream);
    }

    fn limit(&mut self, _now: UnixNanos) -> Option<Amount> {
        let aggregate = self.aggregate.as_ref()?;
        let estimates = estimate(aggregate, &self.settings, 1);
        match self.resource {
            RecordedResource::Cpu => (aggregate.cpu_span.count > 0).then_some(estimates.cpu.target),
            RecordedResource::Memory => (aggregate.memory_span.count > 0).then_some(estimates.memory.target),
        }
    }
}

struct Max {
    floor: Floor,
    rules: MemoryRules,
    max: Option<Amount>,
}

impl BacktestEstimator for Max {
    fn observe(&mut self, _pod: usize, _time: UnixNanos, amount: Amount) {
        self.max = self.max.max(Some(amount));
    }

    fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount) {
        self.observe(pod, time, self.rules.after_kill(limit));
    }

    fn limit(&mut self, _now: UnixNanos) -> Option<Amount> {
        self.max.map(|max| self.floor.apply(max))
    }
}

const WINDOW_NS: i64 = 7 * 86_400_000_000_000;

struct P99 {
    floor: Floor,
    rules: MemoryRules,
    usage: VecDeque<(UnixNanos, Amount)>,
    /// Memory needed after OOM kills; the limit is not below any of these.
    needs: VecDeque<(UnixNanos, Amount)>,
}

impl BacktestEstimator for P99 {
    fn observe(&mut self, _pod: usize, time: UnixNanos, amount: Amount) {
        self.usage.push_back((time, amount));
    }

    fn oom(&mut self, _pod: usize, time: UnixNanos, limit: Amount) {
        self.needs.push_back((time, self.rules.after_kill(limit)));
    }

    fn limit(&mut self, now: UnixNanos) -> Option<Amount> {
        for kept in [&mut self.usage, &mut self.needs] {
            while kept.front().is_some_and(|(time, _)| now.saturating_sub(*time) > WINDOW_NS) {
                kept.pop_front();
            }
        }
        let need = self.needs.iter().map(|(_, need)| *need).max();
        let mut amounts: Vec<Amount> = self.usage.iter().map(|(_, amount)| *amount).collect();
        let usual = (!amounts.is_empty()).then(|| percentile(&mut amounts, 0.99));
        usual.max(need).map(|base| self.floor.apply(base))
    }
}
