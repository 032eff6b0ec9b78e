//! The Horizontal Pod Autoscaler on CPU utilisation, with the defaults of `autoscaling/v2`.
//!
//! Upstream: `pkg/controller/podautoscaler/{replica_calculator,horizontal}.go`.

use std::collections::VecDeque;

use super::{Scrape, Tuning, mean};

const TOLERANCE: f64 = 0.1;
const DOWN_WINDOW_S: i64 = 300;
/// Per period of 15 s, replicas at most double, or grow by this number if that is more.
const UP_PODS: u32 = 4;

pub struct Hpa {
    target: f64,
    bounds: (u32, u32),
    /// Recommendations in the scale-down stabilization window.
    before: VecDeque<(i64, u32)>,
}

impl Hpa {
    pub fn new(tuning: &Tuning) -> Self {
        let bounds = (tuning.min_replicas, tuning.max_replicas);
        Self { target: tuning.hpa_target, bounds, before: VecDeque::new() }
    }

    pub fn replicas(&mut self, scrape: &Scrape) -> u32 {
        let wanted = self.desired(scrape).clamp(self.bounds.0, self.bounds.1);
        while self.before.front().is_some_and(|(time, _)| scrape.time_s - time >= DOWN_WINDOW_S) {
            self.before.pop_front();
        }
        self.before.push_back((scrape.time_s, wanted));
        let highest = self.before.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted);
        let current = scrape.replicas;
        // A scale-down waits until the window contains no higher recommendation.
        let stable = if wanted < current { highest.min(current) } else { wanted };
        stable.min((current * 2).max(current + UP_PODS)).clamp(self.bounds.0, self.bounds.1)
    }

    /// Unready pods count as idle when scaling up, and are ignored when scaling down.
    fn desired(&self, scrape: &Scrape) -> u32 {
        let current = scrape.replicas;
        let wanted_milli = self.target * scrape.size.cpu_milli as f64;
        if scrape.cpu_milli.is_empty() || wanted_milli <= 0.0 {
            return current;
        }
        let ratio = mean(&scrape.cpu_milli) / wanted_milli;
        let near = |ratio: f64| (ratio - 1.0).abs() <= TOLERANCE;
        let starting = current.saturating_sub(scrape.ready);
        if starting == 0 || ratio <= 1.0 {
            return if near(ratio) { current } else { (ratio * f64::from(scrape.ready)).ceil() as u32 };
        }
        let spread = ratio * f64::from(scrape.ready) / f64::from(current);
        if near(spread) || spread < 1.0 {
            return current;
        }
        ((spread * f64::from(current)).ceil() as u32).max(current)
    }
}
