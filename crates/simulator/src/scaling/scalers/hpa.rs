//! The Horizontal Pod Autoscaler with the defaults of `autoscaling/v2`, on CPU utilisation, on an external metric as KEDA sets it up, or
//! on both.
//!
//! Upstream: `pkg/controller/podautoscaler/{replica_calculator,horizontal}.go`. KEDA's `prometheus` trigger with `metricType: Value`
//! becomes an external metric; above zero replicas, KEDA does nothing else.

use std::collections::VecDeque;

use super::{Scrape, Tuning, mean};

const TOLERANCE: f64 = 0.1;
const DOWN_WINDOW_S: i64 = 300;
/// Per period of 15 s, replicas at most double, or grow by this number if that is more.
const UP_PODS: u32 = 4;

/// Targets of the metrics; the largest answer wins.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Targets {
    /// Utilisation of the request.
    pub cpu: Option<f64>,
    /// In the unit of the signal.
    pub signal: Option<f64>,
}

pub struct Hpa {
    targets: Targets,
    bounds: (u32, u32),
    /// Recommendations in the scale-down stabilization window.
    before: VecDeque<(i64, u32)>,
}

impl Hpa {
    pub fn new(targets: Targets, tuning: &Tuning) -> Self {
        let bounds = (tuning.min_replicas, tuning.max_replicas);
        Self { targets, bounds, before: VecDeque::new() }
    }

    pub fn replicas(&mut self, scrape: &Scrape) -> u32 {
        let cpu = self.targets.cpu.and_then(|target| by_cpu(target, scrape));
        let signal = self.targets.signal.and_then(|target| by_signal(target, scrape));
        let current = scrape.replicas;
        if self.before.is_empty() {
            self.before.push_back((scrape.time_s, current));
        }
        let wanted = cpu.max(signal).unwrap_or(current).clamp(self.bounds.0, self.bounds.1);
        while self.before.front().is_some_and(|(time, _)| scrape.time_s - time >= DOWN_WINDOW_S) {
            self.before.pop_front();
        }
        self.before.push_back((scrape.time_s, wanted));
        let highest = self.before.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted);
        // A scale-down waits until the window contains no higher recommendation.
        let stable = if wanted < current { highest.min(current) } else { wanted };
        stable.min((current * 2).max(current + UP_PODS)).clamp(self.bounds.0, self.bounds.1)
    }
}

fn near(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= TOLERANCE
}

/// `GetResourceReplicas`: unready pods count as idle when scaling up, and are ignored when scaling down.
fn by_cpu(target: f64, scrape: &Scrape) -> Option<u32> {
    let current = scrape.replicas;
    let wanted_milli = target * scrape.size.cpu_milli as f64;
    if scrape.usage_milli.is_empty() || wanted_milli <= 0.0 {
        return None;
    }
    let ratio = mean(&scrape.usage_milli) / wanted_milli;
    let starting = current.saturating_sub(scrape.ready);
    if starting == 0 || ratio <= 1.0 {
        return Some(if near(ratio) { current } else { (ratio * f64::from(scrape.ready)).ceil() as u32 });
    }
    let spread = ratio * f64::from(scrape.ready) / f64::from(current);
    if near(spread) || spread < 1.0 {
        return Some(current);
    }
    Some(((spread * f64::from(current)).ceil() as u32).max(current))
}

/// `GetExternalMetricReplicas`: in proportion to the ready pods. Without the metric nothing changes.
fn by_signal(target: f64, scrape: &Scrape) -> Option<u32> {
    let ratio = scrape.signal? / target.max(f64::MIN_POSITIVE);
    Some(if near(ratio) { scrape.replicas } else { (ratio * f64::from(scrape.ready)).ceil() as u32 })
}
