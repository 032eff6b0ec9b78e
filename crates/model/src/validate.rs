//! Checks of configured values, and the error that names the field.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};

use super::ConfigDuration;

/// A field with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Path of the field, such as `leaderElection.leaseDuration`.
    pub field: Cow<'static, str>,
    /// The value, and the allowed values.
    pub problem: String,
}

impl InvalidField {
    /// Returns the same of a field of `parent`.
    pub fn of(self, parent: &str) -> InvalidField {
        InvalidField { field: format!("{parent}.{}", self.field).into(), problem: self.problem }
    }
}

pub const MILLISECOND: ConfigDuration = ConfigDuration::new(Duration::from_millis(1));
pub const SECOND: ConfigDuration = ConfigDuration::from_secs(1);
pub const HOUR: ConfigDuration = ConfigDuration::from_secs(3_600);
pub const DAY: ConfigDuration = ConfigDuration::from_secs(86_400);
pub const MONTH: ConfigDuration = ConfigDuration::from_secs(30 * 86_400);

pub fn refuse(field: &'static str, problem: impl Into<String>) -> Result<(), InvalidField> {
    Err(InvalidField { field: field.into(), problem: problem.into() })
}

pub fn within(field: &'static str, value: u32, allowed: RangeInclusive<u32>) -> Result<(), InvalidField> {
    if allowed.contains(&value) {
        return Ok(());
    }
    refuse(field, format!("{value} is not from {} to {}", allowed.start(), allowed.end()))
}

pub fn lasts(
    field: &'static str,
    value: ConfigDuration,
    allowed: RangeInclusive<ConfigDuration>,
) -> Result<(), InvalidField> {
    if allowed.contains(&value) {
        return Ok(());
    }
    refuse(field, format!("{value} is not from {} to {}", allowed.start(), allowed.end()))
}

/// Reads a `u32`; `Config::validate` checks narrower limits.
pub fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct WholeNumber;

    impl Visitor<'_> for WholeNumber {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 0 to {}", u32::MAX)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }
    }

    deserializer.deserialize_any(WholeNumber)
}
