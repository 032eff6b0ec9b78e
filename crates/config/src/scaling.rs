//! Configuration of the scaling of services.

use berth_model::validate::{SECOND, lasts, refuse};
use berth_model::{ConfigDuration, InvalidField};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::values::names;

const INTERVAL_MAX: ConfigDuration = ConfigDuration::from_secs(40);
const HINTS_WINDOW_MAX: ConfigDuration = ConfigDuration::from_secs(600);
/// Minimum number of samples in a window; with fewer, a correlation means nothing.
const SAMPLES_MIN: u32 = 15;

/// Scales the services that ServiceScalers name, with metrics from `recommender.prometheus`, or CPU and memory from the metrics server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scaling {
    /// Enable scaling. Only the process that holds the Lease scales. It does not need `recommender.enabled`. Without
    /// `recommender.prometheus`, sizes and the signal `CpuUtilization` use the metrics server, and there are no other signals.
    pub enabled: bool,
    /// Interval at which usage and signals are read and decisions are made.
    pub interval: ConfigDuration,
    /// Keep services apart that peak at the same time, and place services together that do not. berth applies
    /// this as a preference to the pods that it places. Needs `recommender.prometheus`: without it there are no hints.
    pub hints: bool,
    /// Add the same preferences, as preferred pod affinity, to new pods that other schedulers place. Needs
    /// `recommender.apply.webhook`. Templates, existing pods, and pods with their own pod affinity are not
    /// changed.
    pub hints_in_pods: bool,
    /// Window in which services are compared; a result that holds in three consecutive windows becomes a
    /// preference. At least 15 times `interval`, and at most 10m.
    pub hints_window: ConfigDuration,
    /// Namespaces whose services are compared with those of other namespaces; `*`: all. The status of a
    /// ServiceScaler then names services of other namespaces. Elsewhere, services of one namespace are
    /// compared.
    #[serde(deserialize_with = "names")]
    pub hints_across: Vec<String>,
    /// Namespaces whose ServiceScalers may have PromQL of their own; `*`: all. It is sent with berth's
    /// credentials, and its result is shown: who may write it can read every series.
    #[serde(deserialize_with = "names")]
    pub custom_queries: Vec<String>,
}

impl Scaling {
    /// Returns whether ServiceScalers of this namespace may have queries of their own.
    pub fn may_query(&self, namespace: &str) -> bool {
        contains(&self.custom_queries, namespace)
    }

    /// Returns whether services of these two namespaces are compared.
    pub fn compares(&self, namespace: &str, other: &str) -> bool {
        namespace == other || (contains(&self.hints_across, namespace) && contains(&self.hints_across, other))
    }
}

/// Returns whether a list of namespaces has this one.
fn contains(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|listed| listed == "*" || listed == namespace)
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: ConfigDuration::from_secs(15),
            hints: true,
            hints_in_pods: false,
            hints_window: ConfigDuration::from_secs(300),
            hints_across: Vec::new(),
            custom_queries: Vec::new(),
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
            "set recommender.apply.webhook, which writes the hints into new pods",
        );
    }
    if config.scaling.hints_in_pods && !config.scaling.hints {
        return refuse("scaling.hintsInPods", "set scaling.hints, which makes the hints");
    }
    if config.scaling.hints_in_pods && config.recommender.prometheus.is_none() {
        return refuse(
            "scaling.hintsInPods",
            "set recommender.prometheus.url: services are compared by its series",
        );
    }
    Ok(())
}
