//! Peaks of the hours of the day.
//!
//! The usage of many services repeats each day. So the size follows the hour: of each hour the highest usage of any pod is kept, and the
//! size is for what the same hours of the days before needed, or for the peak of the last hours if that is higher. It grows at once, and
//! shrinks only if that is worth a change. Memory does not follow the hour, since it is not given back: its size is for the peak of all
//! days. berth's own; `tests/it/recommend/hours.rs` chooses [`HoursSettings`] by cross-validation on published series.

use std::collections::VecDeque;

use super::time::UnixNanos;

const HOUR_NS: i64 = 3_600_000_000_000;
const DAY: i64 = 24;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HoursSettings {
    /// Number of days that are looked at.
    pub days: u16,
    /// Hours before and after the same hour of a day that count, too.
    pub around: u16,
    /// Hours before the current one whose peak counts.
    pub recent: u16,
    /// Added to the peak: 0.15 is 15 %.
    pub margin: f64,
    /// Part of the size by which it must be too large to shrink.
    pub shrink_from: f64,
}

impl HoursSettings {
    pub const fn defaults() -> HoursSettings {
        HoursSettings { days: 7, around: 1, recent: 3, margin: 0.15, shrink_from: 0.1 }
    }
}

/// Estimator of one resource; see the module. All values are cores or bytes.
#[derive(Debug, Clone)]
pub struct Hours {
    settings: HoursSettings,
    follows_day: bool,
    /// Hours since 1970, ascending, each with its peak.
    peaks: VecDeque<(i64, f64)>,
    size: Option<f64>,
}

impl Hours {
    /// `follows_day`: the size follows the hour of the day.
    pub fn new(settings: HoursSettings, follows_day: bool) -> Hours {
        Hours { settings, follows_day, peaks: VecDeque::new(), size: None }
    }

    /// Adds a usage of a pod.
    pub fn add(&mut self, time: UnixNanos, value: f64) {
        let hour = time.div_euclid(HOUR_NS);
        match self.peaks.binary_search_by_key(&hour, |(hour, _)| *hour) {
            Ok(at) => self.peaks[at].1 = self.peaks[at].1.max(value),
            Err(at) => self.peaks.insert(at, (hour, value)),
        }
        let latest = self.peaks.back().map_or(hour, |(hour, _)| *hour);
        let oldest = latest - i64::from(self.settings.days) * DAY - i64::from(self.settings.around);
        while self.peaks.front().is_some_and(|(hour, _)| *hour < oldest) {
            self.peaks.pop_front();
        }
    }

    /// Decides on the size from now on.
    pub fn decide(&mut self, now: UnixNanos) {
        let Some(peak) = self.peak(now.div_euclid(HOUR_NS)) else {
            return;
        };
        let needed = peak * (1.0 + self.settings.margin);
        let is_near = |size: &f64| (needed..=needed / (1.0 - self.settings.shrink_from)).contains(size);
        self.size = self.size.filter(is_near).or(Some(needed));
    }

    /// Returns the size as decided; `None` before that.
    pub fn size(&self) -> Option<f64> {
        self.size
    }

    /// Returns the usage that is expected in this hour at most; `None` without samples.
    fn peak(&self, hour: i64) -> Option<f64> {
        let HoursSettings { days, around, recent, .. } = self.settings;
        let highest = |from: i64, to: i64| {
            let first = self.peaks.partition_point(|(hour, _)| *hour < from);
            let within = self.peaks.range(first..).take_while(|(hour, _)| *hour <= to);
            within.map(|(_, peak)| *peak).reduce(f64::max)
        };
        let all = highest(i64::MIN, i64::MAX)?;
        if !self.follows_day {
            return Some(all);
        }
        let around = i64::from(around);
        let same_hours = |day: u16| {
            let hour = hour - i64::from(day) * DAY;
            highest(hour - around, hour + around)
        };
        // Of the first day nothing is known but what was seen.
        let Some(of_days) = (1..=days).filter_map(same_hours).reduce(f64::max) else {
            return Some(all);
        };
        Some(highest(hour - i64::from(recent), hour).map_or(of_days, |recent| recent.max(of_days)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: HoursSettings =
        HoursSettings { days: 3, around: 1, recent: 2, margin: 0.0, shrink_from: 0.1 };

    /// Feeds the estimator with one value an hour, from hour 0 on.
    fn fed(settings: HoursSettings, follows_day: bool, values: impl IntoIterator<Item = f64>) -> Hours {
        let mut hours = Hours::new(settings, follows_day);
        for (hour, value) in (0..).zip(values) {
            hours.add(hour * HOUR_NS + 5, value);
        }
        hours
    }

    fn size_at(hours: &Hours, hour: i64) -> Option<f64> {
        let mut hours = hours.clone();
        hours.decide(hour * HOUR_NS);
        hours.size()
    }

    /// Days with 8 cores in the hours from 9 to 11, and 1 otherwise.
    fn days(days: usize) -> impl Iterator<Item = f64> {
        (0..days * 24).map(|hour| if (9..12).contains(&(hour % 24)) { 8.0 } else { 1.0 })
    }

    #[test]
    fn the_size_follows_the_hours_of_the_days_before_and_grows_an_hour_early() {
        let hours = fed(SETTINGS, true, days(3));
        let sizes: Vec<_> = (72..96).filter(|hour| size_at(&hours, *hour) == Some(8.0)).collect();
        assert_eq!(sizes, [80, 81, 82, 83, 84], "an hour before and after");
        assert_eq!(size_at(&hours, 78), Some(1.0));
        assert_eq!(size_at(&Hours::new(SETTINGS, true), 5), None);
    }

    #[test]
    fn on_the_first_day_it_is_the_peak_of_all_that_was_seen() {
        let hours = fed(SETTINGS, true, days(1).take(14));
        assert_eq!(size_at(&hours, 20), Some(8.0));
    }

    #[test]
    fn a_peak_of_this_hour_or_the_last_ones_counts_at_once() {
        let mut hours = fed(SETTINGS, true, days(3));
        hours.add(75 * HOUR_NS, 5.0);
        let sizes = [75, 76, 77, 78].map(|hour| size_at(&hours, hour));
        assert_eq!(sizes, [Some(5.0), Some(5.0), Some(5.0), Some(1.0)]);
    }

    #[test]
    fn it_shrinks_only_if_that_is_worth_a_change_and_grows_at_once() {
        let mut hours = Hours::new(SETTINGS, false);
        let mut at = |value: f64, hour: i64| {
            hours.peaks.clear();
            hours.add(hour * HOUR_NS, value);
            hours.decide(hour * HOUR_NS);
            hours.size()
        };
        assert_eq!(
            [at(1.0, 1), at(0.95, 2), at(0.89, 3), at(0.9, 4)],
            [Some(1.0), Some(1.0), Some(0.89), Some(0.9)]
        );
    }

    #[test]
    fn memory_keeps_the_peak_of_all_days_and_no_more_hours_are_kept_than_that() {
        let hours = fed(SETTINGS, false, days(30));
        assert_eq!(size_at(&hours, 720), Some(8.0));
        assert_eq!(hours.peaks.len(), 3 * 24 + 2);
        let mut late = hours.clone();
        late.add(0, 100.0);
        assert_eq!(late.peaks, hours.peaks, "it is too old");
    }
}
