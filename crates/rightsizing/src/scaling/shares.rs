//! Correction of past samples for the number of pods that shared the load at that time.
//!
//! One more replica lowers the usage of each. Without the correction, samples from before and after would look like
//! strongly varying usage, and their deviation would call for yet another replica. When exactly the number changed is not known: a sample
//! of about that time counts as what is nearest to the others, so that it does not look like a peak either.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::observation::{Point, Seconds};
use super::vertical::POINTS_MAX;

/// Maximum number of changes per window; further ones are merged.
const CHANGES_MAX: usize = 32;

/// Time before a sample that it covers, in seconds: rates are of two and a half scrapes.
const COVERED_S: Seconds = 75;
/// Maximum time in which a change was not noticed, in seconds: between two leaders.
const UNNOTICED_MAX_S: Seconds = 300;

/// Number of ready pods from a point in time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// When it was noticed.
    pub since_s: Seconds,
    /// Until how long before that the former number was seen, in seconds.
    #[serde(default)]
    pub unsure_s: Seconds,
    pub pods: u32,
}

/// Number of pods that shared the load, for the time of the samples in use; oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LoadShares {
    changes: Vec<Ready>,
    /// When the number was seen last.
    #[serde(skip)]
    seen_s: Option<Seconds>,
}

impl LoadShares {
    /// Records the current number of ready pods. Removes entries that are older than the window, or invalid.
    pub fn note(&mut self, now: Seconds, pods: u32, window_s: Seconds) {
        let changes = &mut self.changes;
        changes.retain(|ready| ready.since_s <= now && ready.pods > 0);
        changes.sort_by_key(|ready| ready.since_s);
        if pods > 0 && changes.last().is_none_or(|last| last.pods != pods) {
            let seen_s = self.seen_s.or(changes.last().map(|last| last.since_s)).unwrap_or(now);
            let unsure_s = now.saturating_sub(seen_s).clamp(0, UNNOTICED_MAX_S);
            changes.push(Ready { since_s: now, unsure_s, pods });
        }
        if pods > 0 {
            self.seen_s = Some(now);
        }
        let start = now.saturating_sub(window_s.max(1));
        let over = changes.iter().skip(1).take_while(|next| next.since_s <= start).count();
        changes.drain(..over.max(changes.len().saturating_sub(CHANGES_MAX)));
    }

    /// Returns the usage that each pod would have had if the current number of pods had shared the load.
    pub fn as_of_now<'a>(&self, points: &'a [Point]) -> Cow<'a, [Point]> {
        let [first, .., now] = &*self.changes else { return Cow::Borrowed(points) };
        let points = &points[..points.len().min(POINTS_MAX)];
        let as_of = |point: &Point, pods: u32| point.value * f64::from(pods) / f64::from(now.pods);
        let (mut sum, mut count) = (0.0, 0_u32);
        for point in points {
            let (fewest, most) = self.pods_around(point.time_s);
            if fewest == most {
                (sum, count) = (sum + as_of(point, most), count + 1);
            }
        }
        let usual = (count > 0).then(|| sum / f64::from(count)).filter(|usual| usual.is_finite());
        let spread = |point: &Point| {
            let (fewest, most) = self.pods_around(point.time_s);
            let value = match usual {
                Some(usual) if fewest != most => {
                    let (least, highest) = (as_of(point, fewest), as_of(point, most));
                    if usual < least { least } else { usual.min(highest) }
                }
                _ => as_of(
                    point,
                    self.changes.iter().rfind(|it| it.since_s < point.time_s).unwrap_or(first).pods,
                ),
            };
            Point { value, ..*point }
        };
        points.iter().map(spread).collect()
    }

    /// Returns the fewest and the most pods that may have shared the load in the time that a sample covers.
    fn pods_around(&self, time_s: Seconds) -> (u32, u32) {
        let (mut fewest, mut most) = (u32::MAX, 0);
        for (at, ready) in self.changes.iter().enumerate() {
            let begins_s = if at == 0 { i64::MIN } else { ready.since_s.saturating_sub(ready.unsure_s) };
            let ends_s = self.changes.get(at + 1).map_or(i64::MAX, |next| next.since_s);
            if begins_s < time_s && ends_s > time_s.saturating_sub(COVERED_S) {
                (fewest, most) = (fewest.min(ready.pods), most.max(ready.pods));
            }
        }
        (fewest, most)
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
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
        for (now, pods) in [(0, 2), (485, 2), (500, 4), (985, 4), (1_000, 3), (1_010, 0)] {
            shares.note(now, pods, 2_000);
        }
        assert_eq!(values(&shares, &[-50, 485, 580, 985, 1_080]), [400.0, 400.0, 800.0, 800.0, 600.0]);
    }

    #[test]
    fn samples_of_the_time_of_a_change_count_as_what_is_nearest_to_the_others() {
        let mut shares = LoadShares::default();
        for (now, pods) in [(0, 3), (470, 3), (500, 2)] {
            shares.note(now, pods, 1_000);
        }
        let at = |time_s, value| Point { time_s, value };
        let points = [
            at(400, 400.0),
            // Two pods had the load of three already.
            at(480, 600.0),
            // For a half of the time that it covers.
            at(510, 500.0),
            // More load than before, and less.
            at(520, 900.0),
            at(530, 300.0),
            at(600, 600.0),
        ];
        let values: Vec<_> = shares.as_of_now(&points).iter().map(|point| point.value).collect();
        assert_eq!(values, [600.0, 600.0, 600.0, 900.0, 450.0, 600.0]);
    }

    #[test]
    fn a_change_between_two_leaders_was_at_any_time_since_the_number_was_written() {
        let mut before = LoadShares::default();
        before.note(0, 3, 1_000);
        let mut after: LoadShares = serde_json::from_value(serde_json::to_value(&before).unwrap()).unwrap();
        after.note(200, 2, 1_000);
        let at = |time_s, value| Point { time_s, value };
        let values = |shares: &LoadShares| -> Vec<f64> {
            shares.as_of_now(&[at(100, 600.0), at(300, 600.0)]).iter().map(|point| point.value).collect()
        };
        assert_eq!(values(&after), [600.0, 600.0]);
        before.note(185, 3, 1_000);
        before.note(200, 2, 1_000);
        assert_eq!(values(&before), [900.0, 600.0], "it was three at 185 s");
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
        assert_eq!(shares.changes, [Ready { since_s: 100, unsure_s: 0, pods: 4 }]);
    }
}
