//! Scaling of services.

use berth_model::ConfigDuration;
use berth_model::InvalidField;
use berth_model::validate::SECOND;
use berth_model::validate::lasts;
use berth_model::validate::refuse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

const INTERVAL_MAX: ConfigDuration = ConfigDuration::from_secs(40);
const HINTS_WINDOW_MAX: ConfigDuration = ConfigDuration::from_secs(600);
/// Fewer samples in a window say nothing of a correlation.
const SAMPLES_MIN: u32 = 15;

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
    /// New pods that other schedulers place get the same as preferred pod affinity. It needs `recommender.apply.webhook`; templates stay
    /// as they are, and so do pods that exist or say something of other pods themselves.
    pub hints_in_pods: bool,
    /// Services are compared in windows of so long a time; what holds in three in a row becomes a preference. At least fifteen intervals,
    /// and at most 10m.
    pub hints_window: ConfigDuration,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: ConfigDuration::from_secs(15),
            hints: true,
            hints_in_pods: false,
            hints_window: ConfigDuration::from_secs(300),
        }
    }
}

pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    lasts("scaling.interval", config.scaling.interval, SECOND..=INTERVAL_MAX)?;
    if config.scaling.hints {
        let shortest = ConfigDuration::new(config.scaling.interval.get() * SAMPLES_MIN);
        lasts("scaling.hintsWindow", config.scaling.hints_window, shortest..=HINTS_WINDOW_MAX)?;
    }
    if config.scaling.hints_in_pods && !config.recommender.apply.webhook {
        return refuse(
            "scaling.hintsInPods",
            "needs recommender.apply.webhook: it writes them into new pods",
        );
    }
    if config.scaling.hints_in_pods && !config.scaling.hints {
        return refuse("scaling.hintsInPods", "needs scaling.hints");
    }
    if config.scaling.enabled && config.recommender.prometheus.is_none() {
        return refuse(
            "scaling.enabled",
            "needs recommender.prometheus.url: usage and signals are read there",
        );
    }
    Ok(())
}
