//! Durations in the format of Kubernetes: `15s`, `500ms`, `1h30m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A duration in the format of Go's `time.Duration`: numbers with a unit, concatenated. Not negative, at most
/// a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigDuration(Duration);

/// Longest unit first, which is also the order of the output.
const UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
const NANOS_MAX: u64 = 365 * 24 * UNITS[0].1;
const PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+$";

/// Error of parsing a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: {problem}, write for example 15s, 500ms or 1h30m")]
pub struct DurationError {
    text: String,
    problem: &'static str,
}

impl ConfigDuration {
    /// At most a year: longer durations are invalid in the file.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<ConfigDuration> for Duration {
    fn from(duration: ConfigDuration) -> Self {
        duration.0
    }
}

impl FromStr for ConfigDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse_nanos(text)
            .map(|nanos| Self(Duration::from_nanos(nanos)))
            .map_err(|problem| DurationError { text: text.to_owned(), problem })
    }
}

fn parse_nanos(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    let mut rest = text;
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).ok_or("the unit is missing")?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        if number.is_empty() {
            return Err("it must start with a digit");
        }
        let (_, unit_nanos) =
            UNITS.iter().find(|(name, _)| *name == unit).ok_or("units are h, m, s, ms, us and ns")?;
        nanos = times(number, *unit_nanos)?
            .checked_add(nanos)
            .filter(|nanos| *nanos <= NANOS_MAX)
            .ok_or("it is longer than a year")?;
        rest = tail;
    }
    Ok(nanos)
}

/// Returns `number` (digits with at most one point) times `unit_nanos`, truncated to whole nanoseconds.
fn times(number: &str, unit_nanos: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err("a decimal point stands between two digits");
    }
    let whole: u64 = whole.parse().map_err(|_| "it is longer than a year")?;
    let mut digit_nanos = unit_nanos;
    let mut fraction_nanos = 0;
    for digit in fraction.bytes() {
        // Hours have 36 * 10^11 ns: dividing digit by digit is exact while the remainder is not 0.
        fraction_nanos += digit_nanos * u64::from(digit - b'0') / 10;
        digit_nanos /= 10;
    }
    whole
        .checked_mul(unit_nanos)
        .and_then(|nanos| nanos.checked_add(fraction_nanos))
        .ok_or("it is longer than a year")
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        // At most a year, which is far below 2^64 ns.
        let mut rest = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        for (unit, unit_nanos) in UNITS {
            if rest >= unit_nanos {
                write!(f, "{}{unit}", rest / unit_nanos)?;
                rest %= unit_nanos;
            }
        }
        Ok(())
    }
}

impl Serialize for ConfigDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = ConfigDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 15s, 500ms or 1h30m")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ConfigDuration, E> {
                text.parse().map_err(E::custom)
            }

            // A bare number is the usual mistake: the message is about the missing unit.
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ConfigDuration, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(DurationVisitor)
    }
}

impl JsonSchema for ConfigDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_those_of_kubernetes_and_written_as_they_are_read() {
        for (text, nanos) in [
            ("0s", 0),
            ("15s", 15_000_000_000),
            ("500ms", 500_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("0.25us", 250),
            ("8760h", 31_536_000_000_000_000),
        ] {
            let duration: ConfigDuration = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(duration.get(), Duration::from_nanos(nanos), "{text}");
            assert_eq!(duration.to_string().parse(), Ok(duration), "{text}");
        }
        assert_eq!(ConfigDuration::from_secs(5_415).to_string(), "1h30m15s");
        for text in ["", "15", "s", "1.s", ".5s", "1..5s", "-1s", "1 s", "1d", "8760h1ns", "99999999999999h"]
        {
            assert!(text.parse::<ConfigDuration>().is_err(), "{text}");
        }
    }
}
