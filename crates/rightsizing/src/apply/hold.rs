//! Why a pod stays as it is.

/// Why nothing is done with a pod now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// The VPA recommends nothing for any of the pod's containers.
    NoRecommendation,
    /// The pod has requests or limits as a whole, which those of its containers may not exceed.
    PodLevelResources,
    /// The namespace's LimitRanges would refuse the pod.
    LimitRange,
    /// Nobody makes a new pod when this one goes.
    NoController,
    /// There are fewer pods than the VPA or the configuration wants before any is disturbed.
    TooFewReplicas,
    /// How many pods the controller wants is not known.
    UnknownReplicas,
    /// As many pods of the group are disturbed as may be.
    Budget,
    /// The VPA's `evictionRequirements`.
    Requirements,
    /// The pod does not run yet.
    Pending,
    /// The kubelet has put the resize off, or is at it.
    Resizing,
    /// The kubelet said that its node can never hold it, and no less is recommended since.
    Infeasible,
    /// A pod keeps its QoS class for as long as it lives.
    QosClass,
    /// The node has no room for it now.
    NodeRoom,
    /// The pod has it in its spec, and the kubelet has not said anything.
    Asked,
    /// It was resized a moment ago.
    JustResized,
    /// The API server refused it.
    Refused,
    /// Pods that were evicted came back without what is recommended.
    WebhookNotCalled,
    /// Nothing would change the pods that come after an eviction.
    NoWebhook,
    /// A PodDisruptionBudget refused an eviction a moment ago.
    DisruptionBudget,
}

impl Hold {
    pub const ALL: [Hold; 19] = [
        Hold::NoRecommendation,
        Hold::PodLevelResources,
        Hold::LimitRange,
        Hold::NoController,
        Hold::TooFewReplicas,
        Hold::UnknownReplicas,
        Hold::Budget,
        Hold::Requirements,
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
    ];

    /// It is over by itself soon, and worth no event.
    pub fn passes(self) -> bool {
        matches!(self, Hold::Budget | Hold::Pending | Hold::Resizing | Hold::Asked | Hold::JustResized)
    }

    /// One word, for metrics.
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
        }
    }

    /// For a person.
    pub fn why(self) -> &'static str {
        match self {
            Hold::NoRecommendation => "nothing is recommended for its containers",
            Hold::PodLevelResources => {
                "it has resources for the pod as a whole, which its containers may not exceed"
            }
            Hold::LimitRange => "a LimitRange of its namespace would refuse it",
            Hold::NoController => "no controller would make a new pod for it",
            Hold::TooFewReplicas => "its controller has fewer pods than minReplicas",
            Hold::UnknownReplicas => "it is not known how many pods its controller wants",
            Hold::Budget => "as many pods of its controller are disturbed as may be at a time",
            Hold::Requirements => "the VPA's evictionRequirements are not fulfilled",
            Hold::Pending => "it does not run yet",
            Hold::Resizing => "its kubelet has not finished the resize before",
            Hold::Infeasible => "its node can never hold what is recommended; less than that is waited for",
            Hold::QosClass => "its QoS class would change, which is not possible in place",
            Hold::NodeRoom => "its node has no room for it now",
            Hold::Asked => "its spec says it already, and its kubelet has not answered yet",
            Hold::JustResized => "it was resized a moment ago",
            Hold::Refused => "the API server refused it",
            Hold::WebhookNotCalled => {
                "pods that were evicted came back unchanged: check the MutatingWebhookConfiguration and its caBundle"
            }
            Hold::NoWebhook => {
                "no webhook would change the pod that comes after it: set recommender.apply.webhook, with a certificate that has not \
                 ended, or run upstream's admission controller"
            }
            Hold::DisruptionBudget => "a PodDisruptionBudget refused an eviction a moment ago",
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
