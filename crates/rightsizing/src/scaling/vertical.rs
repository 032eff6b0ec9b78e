//! How much each container should have: the mean and some deviations of what it used lately (SHOWAR, section 3.2).

use serde::{Deserialize, Serialize};

use super::observation::{Point, Seconds};
use super::settings::Vertical;
use crate::recommend::AMOUNT_MAX;
use crate::recommend::amount::{from_float, scale};

const HOUR_S: i64 = 3_600;
const PEAK_HOURS_MAX: i64 = 48;
/// The present hour is one more.
const PEAKS_MAX: usize = PEAK_HOURS_MAX as usize + 1;
/// Samples may be so much ahead of the caller's clock.
const SKEW_S: i64 = 30;
/// More samples than this are not looked at.
pub(super) const POINTS_MAX: usize = 100_000;

/// The highest need for memory in one hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peak {
    /// Hours since the Unix epoch.
    pub hour: i64,
    pub bytes: i64,
}

/// What is remembered of the memory of one container: a peak for each hour of the last day or so, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Peaks(Vec<Peak>);

impl Peaks {
    /// No more than there can be: they may have come from an object that anybody can write.
    pub fn limit(&mut self) {
        if self.0.len() > PEAKS_MAX {
            self.0.sort_by_key(|peak| (peak.hour, peak.bytes));
            self.0.drain(..self.0.len() - PEAKS_MAX);
        }
    }

    /// Forgets what is too old, or cannot be. The next hour is one of a clock that is a little ahead of ours.
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

/// What the samples of a window say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    pub mean: f64,
    /// Of the population.
    pub deviation: f64,
    pub max: f64,
    pub points: usize,
    /// Share of the samples that are at least as much as was asked about.
    pub throttled: f64,
}

/// Why samples say nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("{0} of {1} samples that are needed")]
    TooFew(usize, usize),
    #[error("no sample for {0} s")]
    Stale(i64),
    #[error("{0} of {1} samples are no usage")]
    Absurd(usize, usize),
}

/// The usage in the window that ends now; `throttle` is what counts as throttled.
///
/// # Errors
/// There are too few samples, they are too old, or too many of them cannot be.
pub fn usage(points: &[Point], now: Seconds, throttle: f64, settings: &Vertical) -> Result<Usage, Unknown> {
    let window = settings.window_s.max(1);
    let inside = |point: &&Point| {
        point.time_s > now.saturating_sub(window) && point.time_s <= now.saturating_add(SKEW_S)
    };
    let (mut mean, mut squares, mut max, mut newest) = (0.0, 0.0, 0.0_f64, i64::MIN);
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
        throttled += usize::from(throttle > 0.0 && point.value >= throttle);
    }
    if absurd > count {
        return Err(Unknown::Absurd(absurd, absurd + count));
    }
    let needed = settings.points_min.max(1);
    if count < needed {
        return Err(Unknown::TooFew(count, needed));
    }
    let age = now.saturating_sub(newest);
    if age > settings.stale_s {
        return Err(Unknown::Stale(age));
    }
    let points = count as f64;
    let deviation = (squares / points).max(0.0).sqrt();
    Ok(Usage { mean, deviation, max, points: count, throttled: throttled as f64 / points })
}

impl Usage {
    /// The mean and so many deviations. Not the whole multiple of a deviation that a few samples can have: no more than
    /// twice the largest of them.
    pub fn size(&self, sigmas: f64) -> i64 {
        let sigmas = if sigmas.is_finite() { sigmas.clamp(0.0, 100.0) } else { 3.0 };
        from_float((self.mean + sigmas * self.deviation).min(2.0 * self.max))
    }
}

/// What a container needs that was killed with this much memory.
pub fn after_kill(bytes: i64, settings: &Vertical) -> i64 {
    let ratio = if settings.oom_bump_ratio.is_finite() { settings.oom_bump_ratio.max(1.0) } else { 1.2 };
    let bytes = bytes.clamp(0, AMOUNT_MAX);
    bytes.saturating_add(settings.oom_min_bump.clamp(0, AMOUNT_MAX)).max(scale(bytes, ratio)).min(AMOUNT_MAX)
}

/// Whether a size is so much larger than what would do that some of it is taken away.
pub fn is_spare(current: i64, enough: i64, settings: &Vertical) -> bool {
    let share = if settings.spare_min.is_finite() { settings.spare_min.clamp(0.0, 1.0) } else { 0.25 };
    current.saturating_sub(enough) as f64 > share * current as f64
}

/// Whether another size is different enough to act. What is not set yet always is.
pub fn differs(current: i64, wanted: i64, settings: &Vertical) -> bool {
    let share = if settings.change.is_finite() { settings.change.clamp(0.0, 10.0) } else { 0.15 };
    current <= 0 || (wanted - current).abs() as f64 > share * current as f64
}
