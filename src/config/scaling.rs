//! Scaling of services.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::validate::{InvalidField, SECOND, lasts, refuse};
use super::{Config, ConfigDuration};

/// Estimators need five samples in five minutes at least.
const INTERVAL_MAX: ConfigDuration = ConfigDuration::from_secs(60);

/// Scaling of services that ServiceScalers name, from what `recommender.prometheus` has of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scaling {
    /// Switch it on. Only the process that holds the Lease scales. It needs `recommender.prometheus`, and does not need
    /// `recommender.enabled`.
    pub enabled: bool,
    /// How often usage and signals are read, and decisions made.
    pub interval: ConfigDuration,
    /// Keep services apart that need much at the same time, and bring together those that do not: preferences of berth's own, when
    /// it places their pods.
    pub hints: bool,
}

impl Default for Scaling {
    fn default() -> Self {
        Self { enabled: false, interval: ConfigDuration::from_secs(15), hints: true }
    }
}

pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    lasts("scaling.interval", config.scaling.interval, SECOND..=INTERVAL_MAX)?;
    if config.scaling.enabled && config.recommender.prometheus.is_none() {
        return refuse("scaling.enabled", "needs recommender.prometheus.url: usage and signals are read there");
    }
    Ok(())
}
