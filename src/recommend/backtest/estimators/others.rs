//! Estimators that are not of the Vertical Pod Autoscaler's kind: Autopilot's and SHOWAR's.

use std::sync::Arc;

use super::{Estimator, needed};
use crate::recommend::amount::{self, Amount};
use crate::recommend::autopilot::{
    Aggregator, Ensemble, EnsembleSettings, Interval, MovingWindow, WindowSettings,
};
use crate::recommend::backtest::Resource;
use crate::recommend::buckets::Buckets;
use crate::recommend::container::MemoryRules;
use crate::recommend::settings::Settings;
use crate::recommend::showar::{self, Showar};
use crate::recommend::time::UnixNanos;

/// What was needed after a kill is not gone below for so long.
const NEED_NS: i64 = 24 * 3_600_000_000_000;

/// Either of Autopilot's recommenders, with what both read. Before the first interval has ended it says what it would if it had.
pub(super) struct Autopilot {
    is_cpu: bool,
    rules: MemoryRules,
    minimum: Amount,
    /// `None`: the settings make no buckets, and nothing is ever said.
    state: Option<(Aggregator, Recommender)>,
    /// What the latest kill showed to be needed.
    need: Option<(UnixNanos, Amount)>,
}

#[derive(Clone)]
enum Recommender {
    Window(MovingWindow),
    Ensemble(Ensemble),
}

impl Recommender {
    fn take(&mut self, interval: &Interval) {
        match self {
            Recommender::Window(window) => window.take(interval),
            Recommender::Ensemble(ensemble) => ensemble.take(interval),
        }
    }

    fn limit(&self) -> Option<f64> {
        match self {
            Recommender::Window(window) => window.limit(),
            Recommender::Ensemble(ensemble) => ensemble.limit(),
        }
    }
}

impl Autopilot {
    pub fn window(resource: Resource, settings: &Settings) -> Self {
        let defaults = WindowSettings::defaults();
        let of = if resource == Resource::Cpu { defaults.cpu } else { defaults.memory };
        Self::new(resource, settings, |buckets| Recommender::Window(MovingWindow::new(of, buckets)))
    }

    pub fn ensemble(resource: Resource, settings: &Settings) -> Self {
        let defaults = EnsembleSettings::defaults();
        let of = if resource == Resource::Cpu { defaults.cpu } else { defaults.memory };
        Self::new(resource, settings, |buckets| Recommender::Ensemble(Ensemble::new(of, buckets)))
    }

    fn new(
        resource: Resource,
        settings: &Settings,
        recommender: impl FnOnce(&Arc<Buckets>) -> Recommender,
    ) -> Self {
        let is_cpu = resource == Resource::Cpu;
        let of = if is_cpu { &settings.cpu } else { &settings.memory };
        let buckets = of.options().ok().map(|options| Arc::new(options.buckets().clone()));
        let state = buckets.map(|buckets| (Aggregator::new(&buckets, !is_cpu), recommender(&buckets)));
        Self { is_cpu, rules: settings.memory_rules(), minimum: of.pod_minimum, state, need: None }
    }

    fn feed(&mut self, pod: usize, time: UnixNanos, amount: Amount) {
        let value = if self.is_cpu { amount::cores(amount) } else { amount as f64 };
        let Some((aggregator, recommender)) = &mut self.state else { return };
        if let Some(interval) = aggregator.add(pod as u64, time, value) {
            recommender.take(&interval);
        }
    }
}

impl Estimator for Autopilot {
    fn observe(&mut self, pod: usize, time: UnixNanos, amount: Amount) {
        self.feed(pod, time, amount);
    }

    fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount) {
        let needed = needed(limit, &self.rules);
        self.feed(pod, time, needed);
        self.need = Some((time, needed));
    }

    fn limit(&mut self, now: UnixNanos) -> Option<Amount> {
        let (aggregator, recommender) = self.state.as_mut()?;
        if let Some(interval) = aggregator.close(now) {
            recommender.take(&interval);
        }
        let said = recommender.limit().or_else(|| {
            let mut early = recommender.clone();
            early.take(&aggregator.peek()?);
            early.limit()
        })?;
        let unit = if self.is_cpu { 1000.0 } else { 1.0 };
        // Means of equal amounts may be off by the last bit.
        let said = amount::from_float((said * unit - 1e-3).ceil());
        let need =
            self.need.filter(|(time, _)| now.saturating_sub(*time) < NEED_NS).map_or(0, |(_, need)| need);
        Some(said.max(need).max(self.minimum))
    }
}

/// SHOWAR's size.
pub(super) struct Sigmas {
    showar: Showar,
    rules: MemoryRules,
}

impl Sigmas {
    pub fn new(resource: Resource, minimum: Amount, rules: MemoryRules) -> Self {
        let settings = match resource {
            Resource::Cpu => showar::Settings::cpu(),
            Resource::Memory => showar::Settings::memory(),
        };
        let minimum = settings.minimum.max(minimum);
        Self { showar: Showar::new(showar::Settings { minimum, ..settings }), rules }
    }
}

impl Estimator for Sigmas {
    fn observe(&mut self, _pod: usize, time: UnixNanos, amount: Amount) {
        self.showar.add(time, amount);
    }

    fn oom(&mut self, _pod: usize, time: UnixNanos, limit: Amount) {
        self.showar.needs(time, needed(limit, &self.rules));
    }

    fn limit(&mut self, _now: UnixNanos) -> Option<Amount> {
        self.showar.size()
    }
}
