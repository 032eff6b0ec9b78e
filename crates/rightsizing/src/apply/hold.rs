//! Reasons why a pod is not updated.

/// Reason why a pod is not updated now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// The VPA has no recommendation for any of the pod's containers.
    NoRecommendation,
    /// The pod has pod-level resources, which the sum of its containers may not exceed.
    PodLevelResources,
    /// The namespace's LimitRanges would refuse the pod.
    LimitRange,
    /// No controller would recreate the pod.
    NoController,
    /// The controller has fewer pods than the VPA or the configuration requires for evictions and restarts.
    TooFewReplicas,
    /// The desired number of pods is unknown.
    UnknownReplicas,
    /// The maximum number of pods of the group is already disturbed.
    Budget,
    /// The VPA's `evictionRequirements` are not met.
    Requirements,
    /// The pod has a startup boost.
    StartupBoost,
    /// The pod is not running yet.
    Pending,
    /// The kubelet has deferred the resize, or is working on it.
    Resizing,
    /// The kubelet reported the resize as infeasible on its node, and the recommendation has not decreased since.
    Infeasible,
    /// The QoS class would change, which is immutable for the lifetime of a pod.
    QosClass,
    /// The node has no room for it now.
    NodeRoom,
    /// The new size is in the pod's spec, and the kubelet has not reported on it yet.
    Asked,
    /// The pod was resized a short time ago.
    JustResized,
    /// The API server refused the update.
    Refused,
    /// Evicted pods came back without the recommended resources.
    WebhookNotCalled,
    /// No webhook would set the resources of the pod that replaces an evicted one.
    NoWebhook,
    /// A PodDisruptionBudget refused an eviction a short time ago.
    DisruptionBudget,
    /// The maximum number of evictions within a minute is reached.
    EvictionRate,
    /// Pods are evicted and containers restarted in configured windows only.
    OutsideWindows,
}

impl Hold {
    pub const ALL: [Hold; 22] = [
        Hold::NoRecommendation,
        Hold::PodLevelResources,
        Hold::LimitRange,
        Hold::NoController,
        Hold::TooFewReplicas,
        Hold::UnknownReplicas,
        Hold::Budget,
        Hold::Requirements,
        Hold::StartupBoost,
        Hold::Pending,
        Hold::Resizing,
        Hold::Infeasible,
        Hold::QosClass,
        Hold::NodeRoom,
        Hold::Asked,
        Hold::JustResized,
        Hold::Refused,
        Hold::WebhookNotCalled,
        Hold::NoWebhook,
        Hold::DisruptionBudget,
        Hold::EvictionRate,
        Hold::OutsideWindows,
    ];

    /// Returns whether the reason goes away soon by itself, and needs no event.
    pub fn passes(self) -> bool {
        use Hold::{
            Asked, Budget, EvictionRate, JustResized, OutsideWindows, Pending, Resizing, StartupBoost,
        };
        let is_about_the_pod = matches!(self, Pending | Resizing | Asked | JustResized | StartupBoost);
        is_about_the_pod || matches!(self, Budget | EvictionRate | OutsideWindows)
    }

    /// Returns the label value for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Hold::NoRecommendation => "no_recommendation",
            Hold::PodLevelResources => "pod_level_resources",
            Hold::LimitRange => "limit_range",
            Hold::NoController => "no_controller",
            Hold::TooFewReplicas => "too_few_replicas",
            Hold::UnknownReplicas => "unknown_replicas",
            Hold::Budget => "budget",
            Hold::Requirements => "eviction_requirements",
            Hold::StartupBoost => "startup_boost",
            Hold::Pending => "pending",
            Hold::Resizing => "resizing",
            Hold::Infeasible => "infeasible",
            Hold::QosClass => "qos_class",
            Hold::NodeRoom => "node_room",
            Hold::Asked => "asked",
            Hold::JustResized => "just_resized",
            Hold::Refused => "refused",
            Hold::WebhookNotCalled => "webhook_not_called",
            Hold::NoWebhook => "no_webhook",
            Hold::DisruptionBudget => "disruption_budget",
            Hold::EvictionRate => "eviction_rate",
            Hold::OutsideWindows => "outside_windows",
        }
    }

    /// Returns the message for users. The subject is the pod.
    pub fn why(self) -> &'static str {
        match self {
            Hold::NoRecommendation => "the VPA has no recommendation for its containers",
            Hold::PodLevelResources => "it has pod-level resources, which its containers may not exceed",
            Hold::LimitRange => "a LimitRange of its namespace would refuse it",
            Hold::NoController => "no controller would recreate it",
            Hold::TooFewReplicas => {
                "its controller has fewer pods than minReplicas, and the update would evict it or restart a container"
            }
            Hold::UnknownReplicas => "the desired number of pods of its controller is unknown",
            Hold::Budget => "its controller has the maximum number of disturbed pods",
            Hold::Requirements => "the VPA's evictionRequirements are not met",
            Hold::StartupBoost => "its startup boost has not ended",
            Hold::Pending => "it is not running yet",
            Hold::Resizing => "its kubelet has not finished the previous resize",
            Hold::Infeasible => {
                "the resize is infeasible on its node; it is retried when the recommendation decreases"
            }
            Hold::QosClass => "its QoS class would change, which is not possible in place",
            Hold::NodeRoom => "its node has no room for it now",
            Hold::Asked => "its spec has the new size, and its kubelet has not reported on it yet",
            Hold::JustResized => "it was resized a short time ago",
            Hold::Refused => "the API server refused the update",
            Hold::WebhookNotCalled => {
                "evicted pods came back unchanged: check the MutatingWebhookConfiguration and its caBundle"
            }
            Hold::NoWebhook => {
                "no webhook would set the resources of its replacement: set recommender.apply.webhook, with a certificate that has not \
                 expired, or run upstream's admission controller"
            }
            Hold::DisruptionBudget => "a PodDisruptionBudget refused an eviction a short time ago",
            Hold::EvictionRate => {
                "enough pods were evicted within the last minute (recommender.apply.evictionsPerMinute)"
            }
            Hold::OutsideWindows => "no window for evictions is open now (recommender.apply.evictionWindows)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Hold::ALL.iter().map(|hold| hold.name()).collect();
        assert_eq!(names.len(), Hold::ALL.len());
    }
}
