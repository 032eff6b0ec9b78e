//! Span of time in which the usage of a container was observed.

use serde::{Deserialize, Serialize};

use super::observation::Seconds;

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
    /// Records that there are current samples. Times in the future come from a clock that was set back.
    pub fn extend(&mut self, now: Seconds) {
        if self.until_s > now || now.saturating_sub(self.until_s) > GAP_MAX_S {
            self.since_s = now;
        }
        self.since_s = self.since_s.min(now);
        self.until_s = now;
    }

    /// Returns its length.
    pub fn length(&self) -> Seconds {
        self.until_s.saturating_sub(self.since_s).max(0)
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
        assert_eq!(at(start), 0, "the clock was set back");
        assert_eq!(at(start + 60), 60);
        let forged = ObservedSpan { since_s: i64::MIN, until_s: i64::MAX };
        assert!(forged.length() >= 0);
    }
}
