//! Fragmentation advice.

use berth_model::validate::{DAY, SECOND, lasts};
use berth_model::{ConfigDuration, InvalidField};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Advice on pods that could move so that waiting pods and allocations have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fragmentation {
    /// Interval at which the leader searches, while pods or allocations are pending, for a few pods whose
    /// move makes room for them. berth moves no pod; it reports the result in the status of allocations, at
    /// `/fragmentation` and in metrics. `0s` disables it.
    pub period: ConfigDuration,
}

impl Default for Fragmentation {
    fn default() -> Self {
        Self { period: ConfigDuration::from_secs(300) }
    }
}

impl Fragmentation {
    /// Returns the interval; `None` if disabled.
    pub fn every(self) -> Option<Duration> {
        Some(self.period.get()).filter(|period| !period.is_zero())
    }

    pub(super) fn validate(self) -> Result<(), InvalidField> {
        match self.every() {
            Some(_) => lasts("fragmentation.period", self.period, SECOND..=DAY),
            None => Ok(()),
        }
    }
}
