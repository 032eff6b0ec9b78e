//! Times as plain integers, and in the text form of Kubernetes objects.

use jiff::Timestamp;

/// Nanoseconds since the Unix epoch, which reaches from 1677 to 2262.
pub type UnixNanos = i64;

/// No time: corresponds to Go's zero time (the first moment of the year 1) in upstream. Earlier than every other
/// time.
pub const NEVER: UnixNanos = UnixNanos::MIN;

/// Time from the first moment of the year 1 to the Unix epoch.
const YEAR_1_TO_EPOCH_NS: i128 = 62_135_596_800 * 1_000_000_000;

/// Rounds to the nearest multiple of `step_ns` since the year 1, ties to the later one: Go's `Time.Round`.
pub fn round_to_multiple(time: UnixNanos, step_ns: i64) -> UnixNanos {
    if step_ns <= 0 {
        return time;
    }
    let (since_year_1, step) = (i128::from(time) + YEAR_1_TO_EPOCH_NS, i128::from(step_ns));
    let rest = since_year_1.rem_euclid(step);
    let rounded = if 2 * rest < step { since_year_1 - rest } else { since_year_1 - rest + step };
    saturate(rounded - YEAR_1_TO_EPOCH_NS)
}

/// Clamps to the range of times, without [`NEVER`].
fn saturate(nanos: i128) -> UnixNanos {
    nanos.clamp(i128::from(NEVER) + 1, i128::from(UnixNanos::MAX)) as UnixNanos
}

/// Converts a `Duration` to nanoseconds, at most 292 years.
pub fn nanos(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Formats a time as RFC 3339 in whole seconds, like `metav1.Time`; `None` for [`NEVER`].
pub fn to_text(time: UnixNanos) -> Option<String> {
    if time == NEVER {
        return None;
    }
    let second = Timestamp::from_second(time.div_euclid(1_000_000_000)).ok()?;
    Some(second.to_string())
}

/// The text is not a valid time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 time between 1678 and 2261")]
pub struct TimeError(String);

/// Parses an RFC 3339 time; Go's zero time is [`NEVER`].
pub fn from_text(text: &str) -> Result<UnixNanos, TimeError> {
    let timestamp: Timestamp = text.parse().map_err(|_| TimeError(text.into()))?;
    if timestamp.as_nanosecond() == -YEAR_1_TO_EPOCH_NS {
        return Ok(NEVER);
    }
    i64::try_from(timestamp.as_nanosecond()).map_err(|_| TimeError(text.into()))
}

/// For `#[serde(with)]`: a time as text, [`NEVER`] as null.
pub mod text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::{Serialize, Serializer};

    use super::{NEVER, UnixNanos};

    pub fn never() -> UnixNanos {
        NEVER
    }

    pub fn serialize<S: Serializer>(time: &UnixNanos, serializer: S) -> Result<S::Ok, S::Error> {
        super::to_text(*time).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixNanos, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map_or(Ok(NEVER), |text| super::from_text(&text).map_err(D::Error::custom))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000_000;

    #[test]
    fn half_a_day_rounds_to_the_next_midnight() {
        let midnight = from_text("2026-01-01T00:00:00Z").unwrap();
        let cases = [(0, 0), (DAY / 2 - 1, 0), (DAY / 2, DAY), (DAY, DAY)];
        for (after, expected) in cases {
            assert_eq!(round_to_multiple(midnight + after, DAY), midnight + expected, "{after}");
        }
    }

    #[test]
    fn multiples_count_from_the_year_1_and_not_from_1970() {
        // 1970-01-01 is 719,162 days after 0001-01-01: 3 more than a multiple of 7, and 2 more than one of 5.
        assert_eq!(round_to_multiple(0, 7 * DAY), -3 * DAY);
        assert_eq!(round_to_multiple(0, 5 * DAY), -2 * DAY);
    }

    #[test]
    fn no_time_makes_rounding_overflow() {
        for time in [NEVER, NEVER + 1, -1, 0, i64::MAX] {
            for step in [i64::MIN, -1, 0, 1, DAY, i64::MAX] {
                round_to_multiple(time, step);
            }
        }
    }

    #[test]
    fn times_are_written_in_whole_seconds_and_read_with_fractions_and_offsets() {
        assert_eq!(to_text(1_999_999_999), Some("1970-01-01T00:00:01Z".into()));
        assert_eq!(to_text(NEVER), None);
        assert_eq!(from_text("1970-01-01T02:00:01.5+02:00"), Ok(1_500_000_000));
        assert_eq!(from_text("0001-01-01T00:00:00Z"), Ok(NEVER));
        for wrong in ["", "yesterday", "2026-01-01", "9999-12-31T23:59:59Z", "1500-01-01T00:00:00Z"] {
            assert!(from_text(wrong).is_err(), "{wrong}");
        }
    }
}
