//! Vertical size of SHOWAR (SoCC'21): the mean of the last minutes plus three standard deviations.
//!
//! A size is kept while the new one is within 15 % of it. Memory never goes below the highest usage of the last
//! day, because memory in use cannot be taken away. Adding replicas for CPU beyond a core is the task of the
//! scaler, not of an estimator. Memory per container and resource: 16 bytes per sample of the window (at most
//! [`SAMPLES_MAX`]), plus 400 bytes.

use std::collections::VecDeque;
use std::time::Duration;

use super::amount::{self, Amount};
use super::time::{self, UnixNanos};

/// Maximum number of samples in the window; the newest are kept.
pub const SAMPLES_MAX: usize = 4096;

const HOUR_NS: i64 = 3_600_000_000_000;
const HOURS: i64 = 24;

/// Settings for one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct ShowarSettings {
    pub window: Duration,
    /// Number of standard deviations above the mean.
    pub deviations: f64,
    /// Relative difference up to which the current size is kept.
    pub dead_band: f64,
    /// Millicores or bytes.
    pub minimum: Amount,
    /// Whether the size stays at or above the highest usage of the last day.
    pub keeps_peak: bool,
}

impl ShowarSettings {
    pub fn cpu() -> ShowarSettings {
        let window = Duration::from_secs(300);
        ShowarSettings { window, deviations: 3.0, dead_band: 0.15, minimum: 128, keeps_peak: false }
    }

    pub fn memory() -> ShowarSettings {
        ShowarSettings { minimum: 128 << 20, keeps_peak: true, ..ShowarSettings::cpu() }
    }
}

/// Size of one container. Times never go back.
#[derive(Debug, Clone)]
pub struct ShowarEstimator {
    settings: ShowarSettings,
    samples: VecDeque<(UnixNanos, Amount)>,
    /// Highest usage of each hour, by hours since the Unix epoch.
    peaks: VecDeque<(i64, Amount)>,
    size: Option<Amount>,
}

impl ShowarEstimator {
    pub fn new(settings: ShowarSettings) -> Self {
        ShowarEstimator { settings, samples: VecDeque::new(), peaks: VecDeque::new(), size: None }
    }

    /// Adds a usage of a pod.
    pub fn add(&mut self, time: UnixNanos, amount: Amount) {
        if amount < 0 {
            return;
        }
        self.samples.push_back((time, amount));
        let window_ns = time::nanos(self.settings.window);
        let is_old = |(of, _): &(UnixNanos, Amount)| time.saturating_sub(*of) >= window_ns;
        while self.samples.len() > SAMPLES_MAX || self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.needs(time, amount);
    }

    /// Sets a minimum for a day, because a pod was OOM-killed below it.
    pub fn needs(&mut self, time: UnixNanos, amount: Amount) {
        let hour = time.div_euclid(HOUR_NS);
        match self.peaks.back_mut() {
            Some((last, peak)) if *last >= hour => *peak = (*peak).max(amount),
            _ => self.peaks.push_back((hour, amount)),
        }
        while self.peaks.front().is_some_and(|(of, _)| hour.saturating_sub(*of) > HOURS) {
            self.peaks.pop_front();
        }
    }

    /// Returns the current size.
    pub fn size(&self) -> Option<Amount> {
        self.size
    }

    /// Updates the size if it is due; `None` before the first sample. The window ends with the newest sample, so
    /// that gaps in the measurements change nothing.
    pub fn decide(&mut self) -> Option<Amount> {
        let count = self.samples.len() as f64;
        let floor =
            if self.settings.keeps_peak { self.peaks.iter().map(|(_, peak)| *peak).max() } else { None };
        if self.samples.is_empty() {
            self.size = floor.max(self.size);
            return self.size;
        }
        let mean = self.samples.iter().map(|(_, amount)| *amount as f64).sum::<f64>() / count;
        let square = self.samples.iter().map(|(_, amount)| (*amount as f64 - mean).powi(2)).sum::<f64>();
        let wanted = mean + self.settings.deviations * (square / count).sqrt();
        let wanted = amount::from_float(wanted.ceil()).max(self.settings.minimum).max(floor.unwrap_or(0));
        let band = self.settings.dead_band;
        let keeps = |size: Amount| {
            let share = wanted as f64 / size.max(1) as f64;
            (1.0 - band..=1.0 + band).contains(&share) && floor.is_none_or(|floor| size >= floor)
        };
        if !self.size.is_some_and(keeps) {
            self.size = Some(wanted);
        }
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn cpu() -> ShowarEstimator {
        ShowarEstimator::new(ShowarSettings::cpu())
    }

    #[test]
    fn a_size_is_the_mean_and_three_deviations_of_the_window() {
        let mut showar = cpu();
        assert_eq!(showar.decide(), None);
        // Long ago.
        showar.add(0, 90_000);
        for (at, amount) in [400, 600, 400, 600].into_iter().enumerate() {
            showar.add((400 + at as i64) * SECOND, amount);
        }
        assert_eq!(showar.decide(), Some(500 + 300));
    }

    #[test]
    fn a_size_is_kept_until_the_new_one_is_15_percent_off() {
        let mut showar = cpu();
        let mut sizes = Vec::new();
        for (at, amount) in [1000, 1150, 1151, 979, 978].into_iter().enumerate() {
            showar.add(at as i64 * 600 * SECOND, amount);
            sizes.push(showar.decide());
        }
        assert_eq!(sizes, [Some(1000), Some(1000), Some(1151), Some(1151), Some(978)]);
        showar.add(10_000 * SECOND, 1);
        assert_eq!(showar.decide(), Some(128), "the floor");
    }

    #[test]
    fn memory_does_not_go_below_the_peak_of_the_day() {
        let mut showar = ShowarEstimator::new(ShowarSettings::memory());
        showar.add(0, 800 << 20);
        for minute in (10..24 * 60).step_by(10) {
            showar.add(minute * 60 * SECOND, 200 << 20);
            assert_eq!(showar.decide(), Some(800 << 20), "minute {minute}");
        }
        showar.add(26 * HOUR_NS, 200 << 20);
        assert_eq!(showar.decide(), Some(200 << 20));
        showar.needs(26 * HOUR_NS, 210 << 20);
        assert_eq!(showar.decide(), Some(210 << 20), "a little more than there is, but needed");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut showar = cpu();
        for at in 0..3 * SAMPLES_MAX as i64 {
            showar.add(at, i64::MAX - at);
            showar.needs(at * HOUR_NS, at);
        }
        assert!(showar.samples.len() <= SAMPLES_MAX && showar.peaks.len() <= 26);
        assert!(showar.decide().is_some_and(|size| size > 0));
    }
}
