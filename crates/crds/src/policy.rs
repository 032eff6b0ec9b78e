//! `AllocationPolicy`: placement settings for the pods of some schedulers or namespaces, changed without a restart.

// Each printer column repeats `type_`.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use berth_model::{Packing, Preference};

/// Placement settings for the pods of some schedulers or namespaces. Unset fields default to the configuration file.
/// Changes take effect from the next scheduling attempt, without a restart; pods that are already bound stay on their
/// nodes.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "AllocationPolicy",
    plural = "allocationpolicies",
    shortname = "allocpolicy",
    status = "AllocationPolicyStatus",
    derive = "PartialEq",
    doc = "Placement settings for the pods of some schedulers or namespaces, changed without a restart.",
    printcolumn(
        name = "In Force",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="InForce")].status"#
    ),
    printcolumn(name = "Governs", type_ = "string", json_path = ".status.governs"),
    printcolumn(name = "Packing", type_ = "string", json_path = ".status.effective.packing"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="InForce")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AllocationPolicySpec {
    /// Pods that the policy applies to. If several policies match a pod, the most specific one applies: first one that
    /// names both its namespace and its scheduler, then its namespace, then its scheduler. Of two equally specific
    /// policies the older one applies, then the first by name.
    #[serde(default)]
    pub governs: PolicyScope,

    /// Preferred nodes by their share of requested resources: `LeastAllocated` spreads pods, `MostAllocated` packs
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,

    /// Preferences that rank nodes, most important first. Each one only decides between nodes that are equal in all
    /// preferences before it. A preference that is not listed does not count. Default order: TaintToleration,
    /// NodeAffinity, InterPodAffinity, PodTopologySpread, NodeResourcesFit, NodeResourcesBalancedAllocation,
    /// ImageLocality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7))]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q.name == p.name))").message("each preference can be listed only once"))]
    pub preferences: Option<Vec<PolicyPreference>>,

    /// Number of best-ranked nodes from which one is chosen at random; 1 always takes the best node. A larger number
    /// reduces conflicts between agents, but the chosen node is slightly worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub candidate_width: Option<i32>,

    /// Limit up to which these pods may fill a node or a cell of nodes, so that other pods find capacity there. Running
    /// pods stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_limit: Option<UtilisationLimit>,

    /// Limit of each agent's cache for the ranked lists of these pods, in MiB. It cannot exceed `cacheMemoryMiB` of the
    /// configuration file; a single list in use may exceed it.
    #[serde(rename = "cacheMemoryMiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub cache_memory_mib: Option<i32>,

    /// Maximum number of allocation agents that schedule these pods, always the same ones; the caches of the other
    /// agents stay available for all other pods. Unset, or more than the number of agents: all agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub agents: Option<i32>,
}

/// Selects pods by scheduler and by namespace. An empty value selects all pods that berth schedules.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.namespaces) && has(self.namespaceSelector))").message("give namespaces or namespaceSelector, not both"))]
pub struct PolicyScope {
    /// Pods whose `spec.schedulerName` is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 63)))]
    pub scheduler_names: Option<Vec<String>>,

    /// Pods of these namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63)))]
    pub namespaces: Option<Vec<String>>,

    /// Pods of namespaces that match these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<NamespaceSelector>,
}

/// Label selector for namespaces; an empty selector selects all namespaces.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Labels that the namespaces must have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on the namespaces' labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<NamespaceRequirement>,
}

/// A condition on one label.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)").message("In and NotIn need values, Exists and DoesNotExist take none"))]
pub struct NamespaceRequirement {
    /// The label's key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: SelectorOperator,
    /// Values for In and NotIn; empty for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// A preference and its granularity.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.steps) || !(self.name in ['InterPodAffinity', 'PodTopologySpread'])").message("InterPodAffinity and PodTopologySpread count pods and take no steps"),
    validation = Rule::new("!has(self.steps) || self.name != 'TaintToleration' || self.steps <= 16").message("TaintToleration takes 16 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'NodeResourcesFit' || self.steps <= 64").message("NodeResourcesFit takes 64 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'NodeResourcesBalancedAllocation' || self.steps <= 16").message("NodeResourcesBalancedAllocation takes 16 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'ImageLocality' || self.steps <= 8").message("ImageLocality takes 8 steps at most")
)]
pub struct PolicyPreference {
    /// Name of the corresponding score plugin of kube-scheduler.
    pub name: Preference,
    /// Number of steps that the score is rounded to: with fewer steps, more nodes are equal and the next preferences
    /// decide. 1 turns the preference off. Default and maximum: 16 for TaintToleration and
    /// NodeResourcesBalancedAllocation, 4096 for NodeAffinity, 64 for NodeResourcesFit, 8 for ImageLocality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub steps: Option<i32>,
}

/// Limits in percent of the allocatable resources of a cell of nodes. The requests of all pods on these nodes count.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cpuPercent) || has(self.memoryPercent)").message("give cpuPercent, memoryPercent or both"))]
pub struct UtilisationLimit {
    /// CPU limit in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub cpu_percent: Option<i32>,
    /// Memory limit in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub memory_percent: Option<i32>,
    /// Node label whose values define the cells, such as `topology.kubernetes.io/zone`: the limit applies to all nodes
    /// of a cell together. Each node is its own cell if the field is unset or the node lacks the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
}

/// Observed state of the policy, written by berth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationPolicyStatus {
    /// The `metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// `InForce`: whether the policy is applied.
    /// `Contradicted`: whether another, equally specific policy takes precedence for some of its pods.
    pub conditions: Vec<PolicyCondition>,
    /// Pods that the policy applies to, as text.
    pub governs: String,
    /// Settings in effect for these pods, with defaults filled in. Unset while the policy is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

/// A condition, as `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The `metadata.generation` that the condition was computed from.
    #[serde(default)]
    pub observed_generation: i64,
    /// Time when the status last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Machine-readable reason, in CamelCase.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
}

/// Settings in effect for the pods of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// Preferred nodes by their share of requested resources.
    pub packing: Packing,
    /// Preferences that rank nodes, most important first.
    pub preferences: Vec<EffectivePreference>,
    /// Number of best-ranked nodes from which one is chosen at random.
    pub candidate_width: i64,
    /// Limit up to which these pods may fill a node or a cell of nodes.
    pub utilisation_limit: Option<EffectiveLimit>,
    /// Limit of each agent's cache for the ranked lists of these pods, in MiB.
    #[serde(rename = "cacheMemoryMiB")]
    pub cache_memory_mib: Option<i64>,
    /// Maximum number of agents that schedule these pods; null: all agents.
    pub agents: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectivePreference {
    /// Name of the preference.
    pub name: Preference,
    /// Number of steps that the score is rounded to; null: not rounded.
    pub steps: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveLimit {
    /// CPU limit in percent.
    pub cpu_percent: Option<i64>,
    /// Memory limit in percent.
    pub memory_percent: Option<i64>,
    /// Node label whose values define the cells; null: each node is its own cell.
    pub topology_key: Option<String>,
}
