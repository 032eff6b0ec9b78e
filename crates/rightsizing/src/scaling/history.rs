//! What is known of the usage of a service: the span of time in which it was observed, and its past.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::coordinate::ScalerMemory;
use super::observation::Seconds;
use super::settings::Vertical;
use super::vertical::after_kill;

/// Maximum time without samples within a span.
const GAP_MAX_S: Seconds = 3_600;

/// Time from the first sample to the newest one, without long gaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedSpan {
    since_s: Seconds,
    until_s: Seconds,
}

/// Observed spans of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedSpans {
    pub cpu: ObservedSpan,
    pub memory: ObservedSpan,
}

impl ObservedSpan {
    /// Records that there are current samples. Times in the future come from a clock that was set back, or from a leader whose clock
    /// was ahead: as long as that is no more than a gap, the span goes on.
    pub fn extend(&mut self, now: Seconds) {
        if now.saturating_sub(self.until_s).abs() > GAP_MAX_S {
            self.since_s = now;
        }
        self.since_s = self.since_s.min(now);
        self.until_s = now;
    }

    /// Extends it into the past by these times of samples, as far as they reach back from it, or from now, without long gaps.
    pub fn extend_back(&mut self, times: &BTreeSet<Seconds>, now: Seconds) {
        let is_current =
            self.length() > 0 && self.until_s <= now && now.saturating_sub(self.until_s) <= GAP_MAX_S;
        let span = if is_current { *self } else { ObservedSpan { since_s: now, until_s: now } };
        let mut since_s = span.since_s;
        for at in times.range(..=span.since_s).rev() {
            if since_s.saturating_sub(*at) > GAP_MAX_S {
                break;
            }
            since_s = *at;
        }
        if since_s < span.since_s {
            *self = ObservedSpan { since_s, ..span };
        }
    }

    /// Returns its length.
    pub fn length(self) -> Seconds {
        self.until_s.saturating_sub(self.since_s).max(0)
    }

    fn has_restarted_since(self, before: ObservedSpan) -> bool {
        before.length() > 0 && self.since_s > before.since_s
    }
}

impl ObservedSpans {
    /// Returns whether one of them has restarted since then, after a gap.
    pub fn have_restarted_since(&self, before: &ObservedSpans) -> bool {
        self.cpu.has_restarted_since(before.cpu) || self.memory.has_restarted_since(before.memory)
    }
}

/// Usage of one container, in all pods of a service, before it was observed: points at most an hour apart.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PastUsage {
    /// Times with CPU usage.
    pub cpu: BTreeSet<Seconds>,
    /// Highest memory since the point before, in bytes.
    pub memory: BTreeMap<Seconds, i64>,
    /// Whether it was killed for want of memory.
    pub killed: bool,
}

impl ScalerMemory {
    /// Adds the past of a container.
    pub fn learn(&mut self, container: &str, past: &PastUsage, vertical: &Vertical, now: Seconds) {
        let spans = self.observed.entry(container.to_owned()).or_default();
        spans.cpu.extend_back(&past.cpu, now);
        spans.memory.extend_back(&past.memory.keys().copied().collect(), now);
        let peaks = self.peaks.entry(container.to_owned()).or_default();
        for (at, bytes) in &past.memory {
            peaks.add((*at).min(now), *bytes);
        }
        peaks.trim(now, vertical.peak_hours);
        // Not of the peaks: they may have it already, if the past is read again.
        if let Some(highest) = past.memory.values().max().filter(|_| past.killed) {
            peaks.add(now, after_kill(*highest, vertical));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_lasts_over_short_gaps_and_begins_again_after_long_ones() {
        let mut span = ObservedSpan::default();
        let mut at = |now| {
            span.extend(now);
            span.length()
        };
        let start = 1_700_000_000;
        assert_eq!(at(start), 0);
        assert_eq!(at(start + 15), 15);
        assert_eq!(at(start + 15 + GAP_MAX_S), 15 + GAP_MAX_S);
        assert_eq!(at(start + 16 + 2 * GAP_MAX_S), 0, "a second longer than allowed");
        assert_eq!(at(start), 0, "the clock was set back by more than a gap");
        assert_eq!(at(start + 900), 900);
        assert_eq!(at(start + 600), 600, "the next leader's clock is a little behind");
        assert_eq!(at(start + 60), 60);
        let forged = ObservedSpan { since_s: i64::MIN, until_s: i64::MAX };
        assert!(forged.length() >= 0);
    }

    #[test]
    fn a_span_is_extended_into_the_past_as_far_as_there_are_no_long_gaps() {
        let now = 1_700_000_000;
        let hours = |ago: &[i64]| ago.iter().map(|ago| now - ago * GAP_MAX_S).collect();
        let length = |mut span: ObservedSpan, ago: &[i64]| {
            span.extend_back(&hours(ago), now);
            span.length() / GAP_MAX_S
        };
        assert_eq!(length(ObservedSpan::default(), &[0, 1, 2, 3]), 3);
        assert_eq!(length(ObservedSpan::default(), &[0, 1, 3, 4]), 1, "there is a gap");
        assert_eq!(length(ObservedSpan::default(), &[2, 3, 4]), 0, "nothing is known of the last two hours");
        assert_eq!(length(ObservedSpan::default(), &[]), 0);
        let observed = ObservedSpan { since_s: now - 2 * GAP_MAX_S, until_s: now };
        assert_eq!(length(observed, &[3, 4]), 4, "what was observed since joins on");
        assert_eq!(length(observed, &[5]), 2);
        assert_eq!(length(observed, &[-9]), 2, "the future is not the past");
    }
}
