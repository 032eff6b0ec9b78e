//! Configuration of the application of recommendations to pods.

use berth_model::names::is_dns_label;
use berth_model::validate::{DAY, SECOND, lasts, refuse, whole_number, within};
use berth_model::{ConfigDuration, InvalidField, WeeklyWindow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recommender;
use crate::Config;
use berth_rightsizing::apply::DisruptionRules;
use berth_rightsizing::recommend::time::nanos;

/// Applies the recommendations of VPAs, from any recommender, to pods. It replaces upstream's updater and
/// admission controller, or runs beside one of them. It does not need `recommender.enabled`. The defaults are
/// those of upstream, except that it limits no evictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Apply {
    /// Serve `/mutate-pods`, which sets the recommended requests when pods are created. A
    /// MutatingWebhookConfiguration must call it.
    pub webhook: bool,
    /// Update running pods: in place if the mode of the VPA allows it, else by eviction. Only the process
    /// that holds the Lease does so, and not while upstream's updater holds its Lease. Evictions need
    /// `webhook` or upstream's admission controller.
    pub updater: bool,
    /// Interval between two checks of the pods.
    pub interval: ConfigDuration,
    /// Minimum number of replicas of a controller whose pods are evicted or restarted, unless the VPA sets its own. Pods of
    /// smaller controllers are only resized in place.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: u32,
    /// Fraction of a controller's pods that may be unavailable at the same time.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub eviction_tolerance: f64,
    /// Maximum number of evictions within a minute, in the whole cluster. 0: none.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(max = 10000))]
    pub evictions_per_minute: u32,
    /// Windows of the week, in UTC, in which pods may be evicted and containers restarted, such as
    /// `Mon-Fri 22:00-05:00` and `Sat,Sun 00:00-24:00`. Empty: always. Pods that are not running yet may be
    /// evicted, and resizes that restart nothing are done, at any time.
    #[schemars(length(max = 32))]
    pub eviction_windows: Vec<WeeklyWindow>,
    /// Minimum relative difference from the recommendation before a pod within its bounds is updated.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub pod_update_threshold: f64,
    /// Minimum age before a pod within its bounds is updated.
    pub lifetime_threshold: ConfigDuration,
    /// A pod with a container that was OOM killed within this time after its start is updated immediately.
    pub evict_after_oom_threshold: ConfigDuration,
    /// In-place resizes that restart no container may exceed `evictionTolerance`.
    pub in_place_skip_disruption_budget: bool,
    /// Namespace of the Leases of upstream's updater and admission controller.
    #[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub upstream_namespace: String,
}

impl Default for Apply {
    fn default() -> Self {
        Self {
            webhook: false,
            updater: false,
            interval: ConfigDuration::from_secs(60),
            min_replicas: 2,
            eviction_tolerance: 0.5,
            evictions_per_minute: 30,
            eviction_windows: Vec::new(),
            pod_update_threshold: 0.1,
            lifetime_threshold: ConfigDuration::from_secs(12 * 3_600),
            evict_after_oom_threshold: ConfigDuration::from_secs(600),
            in_place_skip_disruption_budget: false,
            upstream_namespace: "kube-system".to_owned(),
        }
    }
}

impl Apply {
    /// Returns whether the webhook or the updater is enabled.
    pub fn is_on(&self) -> bool {
        self.webhook || self.updater
    }

    /// Returns the rules of updates at a time in seconds since 1970. `has_webhook`: a webhook sets the recommended requests of new
    /// pods.
    pub fn rules(&self, has_webhook: bool, now_s: i64) -> DisruptionRules {
        let windows = &self.eviction_windows;
        DisruptionRules {
            may_disrupt: windows.is_empty() || windows.iter().any(|window| window.contains(now_s)),
            min_replicas: i64::from(self.min_replicas),
            tolerance: self.eviction_tolerance,
            evictions_per_minute: self.evictions_per_minute,
            min_age: nanos(self.lifetime_threshold.get()),
            min_difference: self.pod_update_threshold,
            quick_oom: nanos(self.evict_after_oom_threshold.get()),
            free_in_place: self.in_place_skip_disruption_budget,
            has_webhook,
        }
    }
}

pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    let Recommender { apply, .. } = &config.recommender;
    if apply.webhook && config.serving.address.is_none() {
        return refuse(
            "recommender.apply.webhook",
            "the API server calls it over HTTPS: set serving.address",
        );
    }
    lasts("recommender.apply.interval", apply.interval, SECOND..=ConfigDuration::from_secs(3_600))?;
    within("recommender.apply.minReplicas", apply.min_replicas, 1..=1_000)?;
    if !(0.0..=1.0).contains(&apply.eviction_tolerance) {
        return refuse("recommender.apply.evictionTolerance", "must be a fraction from 0 to 1");
    }
    within("recommender.apply.evictionsPerMinute", apply.evictions_per_minute, 0..=10_000)?;
    if !(0.0..=10.0).contains(&apply.pod_update_threshold) {
        return refuse("recommender.apply.podUpdateThreshold", "must be a fraction from 0 to 10");
    }
    let month = ConfigDuration::from_secs(30 * 86_400);
    lasts("recommender.apply.lifetimeThreshold", apply.lifetime_threshold, SECOND..=month)?;
    lasts("recommender.apply.evictAfterOomThreshold", apply.evict_after_oom_threshold, SECOND..=DAY)?;
    if !is_dns_label(&apply.upstream_namespace) {
        let name = &apply.upstream_namespace;
        return refuse(
            "recommender.apply.upstreamNamespace",
            format!("`{name}` is not a valid namespace name"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_needs_https_and_shares_are_shares() {
        let refused = |change: fn(&mut Apply)| {
            let mut config = Config::default();
            change(&mut config.recommender.apply);
            validate(&config).unwrap_err().field
        };
        assert_eq!(refused(|it| it.webhook = true), "recommender.apply.webhook");
        assert_eq!(refused(|it| it.eviction_tolerance = f64::NAN), "recommender.apply.evictionTolerance");
        assert_eq!(refused(|it| it.pod_update_threshold = -0.1), "recommender.apply.podUpdateThreshold");
        assert_eq!(refused(|it| it.min_replicas = 0), "recommender.apply.minReplicas");
        assert_eq!(refused(|it| it.evictions_per_minute = 10_001), "recommender.apply.evictionsPerMinute");
        assert_eq!(refused(|it| it.upstream_namespace = "A".into()), "recommender.apply.upstreamNamespace");
        assert_eq!(validate(&Config::default()), Ok(()));
    }

    #[test]
    fn pods_are_disturbed_in_the_windows_only() {
        const FRIDAY: i64 = 1_795_392_000 + 4 * 86_400;
        let mut apply = Apply::default();
        assert!(apply.rules(true, FRIDAY).may_disrupt, "without windows at any time");
        let windows = ["Sat,Sun 00:00-24:00", "Fri 22:00-24:00"];
        apply.eviction_windows = windows.map(|text| text.parse().unwrap()).into();
        let may_disrupt = |hours: i64| apply.rules(true, FRIDAY + hours * 3_600).may_disrupt;
        assert_eq!([0, 21, 22, 30, 71, 72].map(may_disrupt), [false, false, true, true, true, false]);
    }
}
