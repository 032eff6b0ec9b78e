//! Alternatives to the estimator of the Vertical Pod Autoscaler: berth's, Autopilot's and SHOWAR's. Used in backtests, and
//! for VPAs that select one by the annotation `berth.dev/estimator`.
//!
//! The state of such an estimator is not kept across a restart or a change of leader: it starts without samples.
//! Therefore a target is not lowered before the estimator has seen a day of samples ([`ContainerSizes::is_settled`]); until
//! then the last recommendation holds, unless more is needed.

use std::sync::Arc;

use super::aggregate::Shapes;
use super::amount::{self, Amount};
use super::autopilot::{Aggregator, Ensemble, EnsembleSettings, Interval, MovingWindow, WindowSettings};
use super::buckets::Buckets;
use super::hours::{Hours, HoursSettings};
use super::showar::{self, ShowarEstimator};
use super::time::UnixNanos;
use berth_model::PerResource;

const DAY_NS: i64 = 24 * 3_600_000_000_000;

/// Estimators that a VPA can select besides `vpa`, which stands for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Hours,
    AutopilotWindow,
    AutopilotEnsemble,
    Showar,
}

/// A VPA selects an unknown estimator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown estimator `{0}`: use vpa, hours, autopilot-window, autopilot-ensemble or showar")]
pub struct UnknownMethod(String);

impl Method {
    /// Parses the annotation; `None`: the Vertical Pod Autoscaler's own estimator.
    pub fn parse(text: &str) -> Result<Option<Method>, UnknownMethod> {
        Ok(match text {
            "vpa" => None,
            "hours" => Some(Method::Hours),
            "autopilot-window" => Some(Method::AutopilotWindow),
            "autopilot-ensemble" => Some(Method::AutopilotEnsemble),
            "showar" => Some(Method::Showar),
            other => return Err(UnknownMethod(other.chars().take(64).collect())),
        })
    }
}

/// Size of one resource by one estimator, from the usage of all pods of a container. Amounts are millicores or
/// bytes.
#[derive(Debug, Clone)]
pub struct Sizer {
    is_cpu: bool,
    recommender: Recommender,
    /// Memory needed after the latest OOM kill; the size does not go below it for a day.
    need: Option<(UnixNanos, Amount)>,
    first: Option<UnixNanos>,
    latest: UnixNanos,
}

#[derive(Debug, Clone)]
enum Recommender {
    Hours(Hours),
    Window(Aggregator, MovingWindow),
    Ensemble(Aggregator, Ensemble),
    Showar(ShowarEstimator),
}

impl Recommender {
    fn aggregator(&mut self) -> Option<&mut Aggregator> {
        match self {
            Recommender::Window(aggregator, _) | Recommender::Ensemble(aggregator, _) => Some(aggregator),
            Recommender::Hours(_) | Recommender::Showar(_) => None,
        }
    }

    fn take(&mut self, interval: &Interval) {
        match self {
            Recommender::Window(_, window) => window.take(interval),
            Recommender::Ensemble(_, ensemble) => ensemble.take(interval),
            Recommender::Hours(_) | Recommender::Showar(_) => {}
        }
    }

    /// Returns the size by all estimators but SHOWAR's, in cores or bytes.
    fn limit(&self) -> Option<f64> {
        match self {
            Recommender::Hours(hours) => hours.size(),
            Recommender::Window(_, window) => window.limit(),
            Recommender::Ensemble(_, ensemble) => ensemble.limit(),
            Recommender::Showar(_) => None,
        }
    }
}

impl Sizer {
    /// Creates an estimator without samples. `buckets` are in cores or bytes.
    pub fn new(method: Method, is_cpu: bool, buckets: &Buckets) -> Sizer {
        fn pick<T>(of: PerResource<T>, is_cpu: bool) -> T {
            if is_cpu { of.cpu } else { of.memory }
        }
        let buckets = Arc::new(buckets.clone());
        let aggregator = Aggregator::new(&buckets, !is_cpu);
        let recommender = match method {
            Method::Hours => Recommender::Hours(Hours::new(HoursSettings::defaults(), is_cpu)),
            Method::AutopilotWindow => {
                let settings = pick(WindowSettings::defaults(), is_cpu);
                Recommender::Window(aggregator, MovingWindow::new(settings, &buckets))
            }
            Method::AutopilotEnsemble => {
                let settings = pick(EnsembleSettings::defaults(), is_cpu);
                Recommender::Ensemble(aggregator, Ensemble::new(settings, &buckets))
            }
            Method::Showar => {
                let settings =
                    if is_cpu { showar::ShowarSettings::cpu() } else { showar::ShowarSettings::memory() };
                Recommender::Showar(ShowarEstimator::new(settings))
            }
        };
        Sizer { is_cpu, recommender, need: None, first: None, latest: UnixNanos::MIN }
    }

    /// Adds a usage of a pod.
    pub fn add(&mut self, pod: u64, time: UnixNanos, amount: Amount) {
        self.first = self.first.or(Some(time));
        self.latest = self.latest.max(time);
        let value = if self.is_cpu { amount::cores(amount) } else { amount as f64 };
        let closed = match &mut self.recommender {
            Recommender::Showar(showar) => {
                showar.add(time, amount);
                None
            }
            Recommender::Hours(hours) => {
                hours.add(time, value);
                None
            }
            other => other.aggregator().and_then(|aggregator| aggregator.add(pod, time, value)),
        };
        if let Some(interval) = closed {
            self.recommender.take(&interval);
        }
    }

    /// Records that a pod was OOM-killed and needs this amount.
    pub fn needs(&mut self, pod: u64, time: UnixNanos, amount: Amount) {
        match &mut self.recommender {
            Recommender::Showar(showar) => showar.needs(time, amount),
            _ => {
                self.add(pod, time, amount);
                self.need = Some((time, amount));
            }
        }
    }

    /// Counts all samples up to `now` without waiting for later ones. Must be called before each use of the size.
    pub fn advance(&mut self, now: UnixNanos) {
        match &mut self.recommender {
            Recommender::Showar(showar) => {
                showar.decide();
            }
            Recommender::Hours(hours) => hours.decide(now),
            Recommender::Window(..) | Recommender::Ensemble(..) => {}
        }
        let closed = self.recommender.aggregator().and_then(|aggregator| aggregator.close(now));
        if let Some(interval) = closed {
            self.recommender.take(&interval);
        }
    }

    /// Returns the size, or `None` without samples.
    pub fn size(&self) -> Option<Amount> {
        if let Recommender::Showar(showar) = &self.recommender {
            return showar.size();
        }
        let said = self.recommender.limit().or_else(|| {
            // The size if the first interval ended now.
            let mut early = self.recommender.clone();
            let interval = early.aggregator()?.peek()?;
            early.take(&interval);
            early.limit()
        })?;
        let unit = if self.is_cpu { 1000.0 } else { 1.0 };
        // The mean of equal amounts may be off by the last bit.
        let said = amount::from_float((said * unit - 1e-3).ceil());
        let is_recent = |(time, _): &(UnixNanos, Amount)| self.latest.saturating_sub(*time) < DAY_NS;
        Some(said.max(self.need.filter(is_recent).map_or(0, |(_, need)| need)))
    }

    /// Returns whether it has seen a day of samples.
    fn is_settled(&self) -> bool {
        self.first.is_some_and(|first| self.latest.saturating_sub(first) >= DAY_NS)
    }
}

/// Sizes of both resources of one container.
#[derive(Debug, Clone)]
pub struct ContainerSizes {
    method: Method,
    sizers: PerResource<Sizer>,
}

impl ContainerSizes {
    pub fn new(method: Method, shapes: &Shapes) -> ContainerSizes {
        let cpu = Sizer::new(method, true, shapes.cpu.buckets());
        let memory = Sizer::new(method, false, shapes.memory.buckets());
        ContainerSizes { method, sizers: PerResource { cpu, memory } }
    }

    pub fn method(&self) -> Method {
        self.method
    }

    pub fn add_cpu(&mut self, pod: u64, time: UnixNanos, millicores: Amount) {
        self.sizers.cpu.add(pod, time, millicores);
    }

    pub fn add_memory(&mut self, pod: u64, time: UnixNanos, bytes: Amount) {
        self.sizers.memory.add(pod, time, bytes);
    }

    /// Records that a pod was OOM-killed and needs this many bytes.
    pub fn needs(&mut self, pod: u64, time: UnixNanos, bytes: Amount) {
        self.sizers.memory.needs(pod, time, bytes);
    }

    /// Advances both resources as [`Sizer::advance`] does.
    pub fn advance(&mut self, now: UnixNanos) {
        self.sizers.cpu.advance(now);
        self.sizers.memory.advance(now);
    }

    pub fn targets(&self) -> PerResource<Option<Amount>> {
        self.sizers.as_ref().map(Sizer::size)
    }

    /// Returns for each resource whether it has seen a day of samples, after which its target may be lowered.
    pub fn is_settled(&self) -> PerResource<bool> {
        self.sizers.as_ref().map(Sizer::is_settled)
    }
}
