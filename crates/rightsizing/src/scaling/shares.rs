//! Correction of past samples for the number of pods that shared the load at that time.
//!
//! One more replica lowers the usage of each. Without the correction, samples from before and after would look like
//! strongly varying usage, and their deviation would call for yet another replica.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::observation::{Point, Seconds};
use super::vertical::POINTS_MAX;

/// Maximum number of changes per window; further ones are merged.
const CHANGES_MAX: usize = 32;

/// Number of ready pods from a point in time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    pub since_s: Seconds,
    pub pods: u32,
}

/// Number of pods that shared the load, for the time of the samples in use; oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoadShares(Vec<Ready>);

impl LoadShares {
    /// Records the current number of ready pods. Removes entries that are older than the window, or invalid.
    pub fn note(&mut self, now: Seconds, pods: u32, window_s: Seconds) {
        self.0.retain(|ready| ready.since_s <= now && ready.pods > 0);
        self.0.sort_by_key(|ready| ready.since_s);
        if pods > 0 && self.0.last().is_none_or(|last| last.pods != pods) {
            self.0.push(Ready { since_s: now, pods });
        }
        let start = now.saturating_sub(window_s.max(1));
        let over = self.0.iter().skip(1).take_while(|next| next.since_s <= start).count();
        self.0.drain(..over.max(self.0.len().saturating_sub(CHANGES_MAX)));
    }

    /// Returns the usage that each pod would have had if the current number of pods had shared the load.
    pub fn as_of_now<'a>(&self, points: &'a [Point]) -> Cow<'a, [Point]> {
        let (Some(first), Some(now)) = (self.0.first(), self.0.last()) else { return Cow::Borrowed(points) };
        if self.0.len() == 1 {
            return Cow::Borrowed(points);
        }
        // A sample covers the time before it.
        let pods_at = |time_s| self.0.iter().rfind(|ready| ready.since_s < time_s).unwrap_or(first).pods;
        let spread = |point: &Point| {
            let share = f64::from(pods_at(point.time_s)) / f64::from(now.pods);
            Point { value: point.value * share, ..*point }
        };
        points.iter().take(POINTS_MAX).map(spread).collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(shares: &LoadShares, times: &[Seconds]) -> Vec<f64> {
        let points: Vec<_> = times.iter().map(|time_s| Point { time_s: *time_s, value: 600.0 }).collect();
        shares.as_of_now(&points).iter().map(|point| point.value).collect()
    }

    #[test]
    fn samples_count_as_if_as_many_pods_as_now_had_shared_the_load() {
        let mut shares = LoadShares::default();
        assert_eq!(values(&shares, &[10]), [600.0], "no entries");
        for (now, pods) in [(0, 2), (100, 2), (200, 4), (300, 3), (310, 0)] {
            shares.note(now, pods, 300);
        }
        assert_eq!(values(&shares, &[-50, 200, 201, 300, 301]), [400.0, 400.0, 800.0, 800.0, 600.0]);
    }

    #[test]
    fn what_no_sample_is_of_is_forgotten() {
        let mut shares = LoadShares::default();
        for now in 0..1_000 {
            shares.note(now, 2 + now as u32 % 7, 300);
            assert!(shares.len() <= CHANGES_MAX);
        }
        shares.note(2_000, 5, 300);
        assert_eq!(shares.len(), 2, "the entry at the window's start, and the current one");
        shares.note(2_300, 5, 300);
        assert_eq!(shares.len(), 1);
        // Only another clock can have written that.
        shares.note(100, 4, 300);
        assert_eq!(shares, LoadShares(vec![Ready { since_s: 100, pods: 4 }]));
    }
}
