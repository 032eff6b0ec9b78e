//! Moving-window recommender (section 3.2.1): a statistic of past usage, a margin, and the maximum over the last
//! hour.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::aggregator::{INTERVAL_NS, Interval};
use super::decayed::{Decayed, percentile};
use super::settings::{Statistic, WindowSettings, left};
use crate::recommend::buckets::Buckets;
use crate::recommend::time;

/// Moving-window recommender; see the module. All values are cores or bytes.
#[derive(Debug, Clone)]
pub struct MovingWindow {
    settings: WindowSettings,
    buckets: Arc<Buckets>,
    latest: Option<i64>,
    histogram: Decayed,
    /// Decayed sums of the means, and of ones.
    average: (f64, f64),
    maxima: Maxima<u16>,
    said: Maxima<f64>,
}

impl MovingWindow {
    pub fn new(settings: WindowSettings, buckets: &Arc<Buckets>) -> Self {
        MovingWindow {
            settings,
            buckets: buckets.clone(),
            latest: None,
            histogram: Decayed::default(),
            average: (0.0, 0.0),
            maxima: Maxima::default(),
            said: Maxima::default(),
        }
    }

    /// Adds the next interval. An interval that is not later than the last is ignored.
    pub fn take(&mut self, interval: &Interval) {
        let elapsed = self.latest.map_or(0, |latest| interval.number.saturating_sub(latest));
        if self.latest.is_some() && elapsed <= 0 {
            return;
        }
        self.latest = Some(interval.number);
        let factor = left(self.settings.half_life, elapsed.saturating_mul(INTERVAL_NS));
        self.histogram.scale(factor);
        self.histogram.add(&interval.shares, 1.0);
        self.average = (self.average.0 * factor + interval.mean, self.average.1 * factor + 1.0);
        self.maxima.push(interval.number, interval.peak(), intervals(self.settings.reach));
        let base = self.statistic();
        self.said.push(interval.number, self.with_margin(base), intervals(self.settings.hold));
    }

    /// Returns the limit; `None` before the first interval.
    pub fn limit(&self) -> Option<f64> {
        self.said.highest()
    }

    pub fn heap_bytes(&self) -> usize {
        self.histogram.heap_bytes() + self.maxima.heap_bytes() + self.said.heap_bytes()
    }

    fn statistic(&self) -> f64 {
        let load = |j| {
            let weight = |(bucket, weight): &(u16, f64)| self.buckets.end(*bucket) * weight;
            percentile(self.histogram.weights(), j, weight).map_or(0.0, |bucket| self.buckets.end(bucket))
        };
        let max = || self.maxima.highest().map_or(0.0, |bucket| self.buckets.end(bucket));
        match self.settings.statistic {
            Statistic::Average => self.average.0 / self.average.1,
            Statistic::Percentile(j) => load(j),
            Statistic::Max => max(),
            Statistic::PercentileOrHalfMax(j) => load(j).max(0.5 * max()),
        }
    }

    fn with_margin(&self, base: f64) -> f64 {
        let WindowSettings { margin, margin_large, large, .. } = self.settings;
        base + base.min(large) * margin + (base - large).max(0.0) * margin_large
    }
}

fn intervals(duration: Duration) -> i64 {
    (time::nanos(duration) / INTERVAL_NS).max(1)
}

/// Maximum of the last N intervals. Values followed by a higher one are dropped, so a list of 16-bit buckets is
/// never longer than the number of buckets.
#[derive(Debug, Clone)]
struct Maxima<T>(VecDeque<(i64, T)>);

impl<T> Default for Maxima<T> {
    fn default() -> Self {
        Maxima(VecDeque::new())
    }
}

impl<T: PartialOrd + Copy> Maxima<T> {
    fn push(&mut self, number: i64, value: T, reach: i64) {
        while self.0.back().is_some_and(|(_, known)| *known <= value) {
            self.0.pop_back();
        }
        self.0.push_back((number, value));
        while self.0.front().is_some_and(|(known, _)| number.saturating_sub(*known) >= reach) {
            self.0.pop_front();
        }
    }

    fn highest(&self) -> Option<T> {
        self.0.front().map(|(_, value)| *value)
    }

    fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(i64, T)>()
    }
}
