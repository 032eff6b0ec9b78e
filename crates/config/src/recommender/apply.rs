//! Whether and how recommendations are applied to pods.

use berth_model::InvalidField;
use berth_model::validate::DAY;
use berth_model::validate::SECOND;
use berth_model::validate::lasts;
use berth_model::validate::refuse;
use berth_model::validate::whole_number;
use berth_model::validate::within;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recommender;
use crate::Config;
use crate::validate::is_dns_label;
use berth_model::ConfigDuration;
use berth_rightsizing::apply::Rules;
use berth_rightsizing::recommend::time::nanos;

/// Applies what VPAs of any recommender recommend to pods, in place of upstream's updater and admission controller or beside one of
/// them. It works without `recommender.enabled`. Defaults are those of upstream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Apply {
    /// Serve `/mutate-pods`, which gives pods what is recommended when they are created. A MutatingWebhookConfiguration must send
    /// them there.
    pub webhook: bool,
    /// Update pods that run: in place where the VPA's mode says so, else by evicting them. Only the process that holds the Lease
    /// does, and not while upstream's updater holds its Lease. Nothing is evicted without `webhook`, or upstream's admission controller.
    pub updater: bool,
    /// How often pods are looked at.
    pub interval: ConfigDuration,
    /// Pods of controllers that have fewer are left alone, when their VPA does not say otherwise.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: u32,
    /// The share of a controller's pods that may be missing at a time.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub eviction_tolerance: f64,
    /// Pods within the recommended bounds are updated when they are off by this share,
    #[schemars(range(min = 0.0, max = 10.0))]
    pub pod_update_threshold: f64,
    /// and this old.
    pub lifetime_threshold: ConfigDuration,
    /// A pod with a container that was killed for want of memory within so long is updated at once.
    pub evict_after_oom_threshold: ConfigDuration,
    /// Resizes in place that restart no container need not leave `evictionTolerance`.
    pub in_place_skip_disruption_budget: bool,
    /// The namespace in which upstream's updater and admission controller have their Leases.
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
            pod_update_threshold: 0.1,
            lifetime_threshold: ConfigDuration::from_secs(12 * 3_600),
            evict_after_oom_threshold: ConfigDuration::from_secs(600),
            in_place_skip_disruption_budget: false,
            upstream_namespace: "kube-system".to_owned(),
        }
    }
}

impl Apply {
    /// Whether anything is applied.
    pub fn is_on(&self) -> bool {
        self.webhook || self.updater
    }

    /// `has_webhook`: some webhook gives new pods what is recommended.
    pub fn rules(&self, has_webhook: bool) -> Rules {
        Rules {
            min_replicas: i64::from(self.min_replicas),
            tolerance: self.eviction_tolerance,
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
        return refuse("recommender.apply.evictionTolerance", "it is a share from 0 to 1");
    }
    if !(0.0..=10.0).contains(&apply.pod_update_threshold) {
        return refuse("recommender.apply.podUpdateThreshold", "it is a share from 0 to 10");
    }
    let month = ConfigDuration::from_secs(30 * 86_400);
    lasts("recommender.apply.lifetimeThreshold", apply.lifetime_threshold, SECOND..=month)?;
    lasts("recommender.apply.evictAfterOomThreshold", apply.evict_after_oom_threshold, SECOND..=DAY)?;
    if !is_dns_label(&apply.upstream_namespace) {
        let name = &apply.upstream_namespace;
        return refuse("recommender.apply.upstreamNamespace", format!("`{name}` is not a namespace's name"));
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
        assert_eq!(refused(|it| it.upstream_namespace = "A".into()), "recommender.apply.upstreamNamespace");
        assert_eq!(validate(&Config::default()), Ok(()));
    }
}
