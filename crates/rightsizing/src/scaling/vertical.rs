//! Container sizes: the mean plus some standard deviations of the recent usage (SHOWAR, section 3.2).

use serde::{Deserialize, Serialize};

use super::observation::{Point, Seconds};
use super::settings::Vertical;
use crate::recommend::AMOUNT_MAX;
use crate::recommend::amount::{from_float, scale};

const HOUR_S: i64 = 3_600;
const PEAK_HOURS_MAX: i64 = 48;
/// The current hour is one more.
const PEAKS_MAX: usize = PEAK_HOURS_MAX as usize + 1;
/// Maximum time by which samples may be ahead of the caller's clock.
const SKEW_S: i64 = 30;
/// Maximum number of samples that are read.
pub(super) const POINTS_MAX: usize = 100_000;

/// Highest memory needed in one hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peak {
    /// Hours since the Unix epoch.
    pub hour: i64,
    pub bytes: i64,
}

/// Memory peaks of one container: one per hour of about the last day, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Peaks(Vec<Peak>);

impl Peaks {
    /// Truncates to the maximum length: the peaks may come from an object that any client can write.
    pub fn limit(&mut self) {
        if self.0.len() > PEAKS_MAX {
            self.0.sort_by_key(|peak| (peak.hour, peak.bytes));
            self.0.drain(..self.0.len() - PEAKS_MAX);
        }
    }

    /// Removes peaks that are too old or invalid. The next hour is kept: it is from a clock that is slightly ahead.
    pub fn trim(&mut self, now: Seconds, hours: i64) {
        let (hours, hour) = (hours.clamp(1, PEAK_HOURS_MAX), now.div_euclid(HOUR_S));
        self.0.retain(|peak| peak.hour <= hour.saturating_add(1) && peak.hour > hour.saturating_sub(hours));
        self.0.iter_mut().for_each(|peak| peak.hour = peak.hour.min(hour));
        self.0.sort_by_key(|peak| (peak.hour, peak.bytes));
        self.0.dedup_by(|later, earlier| {
            let same = later.hour == earlier.hour;
            if same {
                earlier.bytes = earlier.bytes.max(later.bytes);
            }
            same
        });
    }

    pub fn add(&mut self, now: Seconds, bytes: i64) {
        let hour = now.div_euclid(HOUR_S);
        match self.0.iter_mut().find(|peak| peak.hour == hour) {
            Some(peak) => peak.bytes = peak.bytes.max(bytes),
            None => self.0.push(Peak { hour, bytes }),
        }
        self.limit();
    }

    pub fn highest(&self) -> Option<i64> {
        self.0.iter().map(|peak| peak.bytes.clamp(0, AMOUNT_MAX)).max()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Statistics of the samples of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowUsage {
    pub mean: f64,
    /// Standard deviation of the population.
    pub deviation: f64,
    pub max: f64,
    pub points: usize,
    /// Time since the oldest sample, in seconds.
    pub covers_s: i64,
    /// Share of the samples that are at or above the throttling threshold.
    pub throttled: f64,
}

/// Reason why samples are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UsageUnknown {
    #[error("{0} of {1} required samples")]
    TooFew(usize, usize),
    #[error("newest sample is {0} s old")]
    Stale(i64),
    #[error("{0} of {1} samples are invalid")]
    Absurd(usize, usize),
}

/// Computes the usage in the window that ends now; samples at or above `throttle` count as throttled.
///
/// # Errors
/// There are too few samples, they are too old, or too many are invalid.
pub fn usage(
    points: &[Point],
    now: Seconds,
    throttle: f64,
    settings: &Vertical,
) -> Result<WindowUsage, UsageUnknown> {
    let window = settings.window_s.max(1);
    let inside = |point: &&Point| {
        point.time_s > now.saturating_sub(window) && point.time_s <= now.saturating_add(SKEW_S)
    };
    let (mut mean, mut squares, mut max, mut newest) = (0.0, 0.0, 0.0_f64, i64::MIN);
    let mut oldest = i64::MAX;
    let (mut count, mut absurd, mut throttled) = (0_usize, 0_usize, 0_usize);
    for point in points.iter().take(POINTS_MAX).filter(inside) {
        if !(0.0..=AMOUNT_MAX as f64).contains(&point.value) {
            absurd += 1;
            continue;
        }
        count += 1;
        let apart = point.value - mean;
        mean += apart / count as f64;
        squares += apart * (point.value - mean);
        max = max.max(point.value);
        newest = newest.max(point.time_s);
        oldest = oldest.min(point.time_s);
        throttled += usize::from(throttle > 0.0 && point.value >= throttle);
    }
    if absurd > count {
        return Err(UsageUnknown::Absurd(absurd, absurd + count));
    }
    let needed = settings.points_min.max(1);
    if count < needed {
        return Err(UsageUnknown::TooFew(count, needed));
    }
    let age = now.saturating_sub(newest);
    if age > settings.stale_s {
        return Err(UsageUnknown::Stale(age));
    }
    let points = count as f64;
    let deviation = (squares / points).max(0.0).sqrt();
    let covers_s = now.saturating_sub(oldest).max(0);
    Ok(WindowUsage { mean, deviation, max, points: count, covers_s, throttled: throttled as f64 / points })
}

impl WindowUsage {
    /// Returns the mean plus `sigmas` deviations, but at most twice the largest sample: a few samples can have a
    /// very large deviation.
    pub fn size(&self, sigmas: f64) -> i64 {
        let sigmas = if sigmas.is_finite() { sigmas.clamp(0.0, 100.0) } else { 3.0 };
        from_float((self.mean + sigmas * self.deviation).min(2.0 * self.max))
    }

    /// Returns the smallest size at which none of the samples counts as throttled.
    pub fn unthrottled(&self, settings: &Vertical) -> i64 {
        let at = if settings.throttled_at.is_finite() { settings.throttled_at.clamp(0.1, 1.0) } else { 1.0 };
        from_float(self.max / at).saturating_add(1).min(AMOUNT_MAX)
    }
}

/// Returns the memory that a container needs after an OOM kill with this much memory.
pub fn after_kill(bytes: i64, settings: &Vertical) -> i64 {
    let ratio = if settings.oom_bump_ratio.is_finite() { settings.oom_bump_ratio.max(1.0) } else { 1.2 };
    let bytes = bytes.clamp(0, AMOUNT_MAX);
    bytes.saturating_add(settings.oom_min_bump.clamp(0, AMOUNT_MAX)).max(scale(bytes, ratio)).min(AMOUNT_MAX)
}

/// Returns whether enough of a size is spare that some of it is taken away.
pub fn is_spare(current: i64, enough: i64, settings: &Vertical) -> bool {
    let share = if settings.spare_min.is_finite() { settings.spare_min.clamp(0.0, 1.0) } else { 0.25 };
    current.saturating_sub(enough) as f64 > share * current as f64
}

/// Returns whether another size differs enough to act. An unset size always does.
pub fn differs(current: i64, wanted: i64, settings: &Vertical) -> bool {
    let share = if settings.change.is_finite() { settings.change.clamp(0.0, 10.0) } else { 0.15 };
    current <= 0 || (wanted - current).abs() as f64 > share * current as f64
}
