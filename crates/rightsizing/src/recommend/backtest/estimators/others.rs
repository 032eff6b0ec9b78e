//! The estimators of `method.rs`, adapted for backtests.

use super::BacktestEstimator;
use crate::recommend::amount::Amount;
use crate::recommend::backtest::RecordedResource;
use crate::recommend::container::MemoryRules;
use crate::recommend::method::{Method, Sizer};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::time::UnixNanos;

pub(super) struct Other {
    /// `None`: the settings give no valid buckets, and there is never a limit.
    sizer: Option<Sizer>,
    rules: MemoryRules,
    minimum: Amount,
}

impl Other {
    pub fn new(method: Method, resource: RecordedResource, settings: &RecommenderSettings) -> Self {
        let is_cpu = resource == RecordedResource::Cpu;
        let of = if is_cpu { &settings.cpu } else { &settings.memory };
        let sizer = of.options().ok().map(|options| Sizer::new(method, is_cpu, options.buckets()));
        Self { sizer, rules: settings.memory_rules(), minimum: of.pod_minimum }
    }
}

impl BacktestEstimator for Other {
    fn observe(&mut self, pod: usize, time: UnixNanos, amount: Amount) {
        if let Some(sizer) = &mut self.sizer {
            sizer.add(pod as u64, time, amount);
        }
    }

    fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount) {
        if let Some(sizer) = &mut self.sizer {
            sizer.needs(pod as u64, time, self.rules.after_kill(limit));
        }
    }

    fn limit(&mut self, now: UnixNanos) -> Option<Amount> {
        let sizer = self.sizer.as_mut()?;
        sizer.advance(now);
        sizer.size().map(|size| size.max(self.minimum))
    }
}
