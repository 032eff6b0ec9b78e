//! `AllocationPolicy`: how the pods of some schedulers or namespaces are placed, changed without a restart.

// Each printer column has a type.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use berth_model::{Packing, Preference};

/// Says how berth places the pods of some schedulers or namespaces. What it leaves out is as the configuration file says. Changes
/// hold from the next placement on, without a restart; pods that have a node stay there.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "AllocationPolicy",
    plural = "allocationpolicies",
    shortname = "allocpolicy",
    status = "AllocationPolicyStatus",
    derive = "PartialEq",
    doc = "Says how berth places the pods of some schedulers or namespaces, without a restart.",
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
    /// Whose pods. Several policies may govern a pod: the most specific one holds, which names its namespace and its scheduler,
    /// before one of its namespace, before one of its scheduler. Of two alike the older one holds, then the first by name.
    #[serde(default)]
    pub governs: Governs,

    /// Which nodes to prefer by their requested share: `LeastAllocated` spreads pods, `MostAllocated` packs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,

    /// What makes a node better, most important first. The next one only counts among nodes that are alike in those before. One
    /// that is left out does not count at all. Without the list the order is TaintToleration, NodeAffinity, InterPodAffinity,
    /// PodTopologySpread, NodeResourcesFit, NodeResourcesBalancedAllocation, ImageLocality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7))]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q.name == p.name))").message("a preference can be there only once"))]
    pub preferences: Option<Vec<PolicyPreference>>,

    /// Choose among so many of the best nodes, at random; 1 always takes the best one. A larger number makes two agents run for
    /// the same node less often, and the choice a little worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub candidate_width: Option<i32>,

    /// How full nodes, or cells of nodes, may become by these pods: others find room there. Pods that are there stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_limit: Option<UtilisationLimit>,

    /// What the ranked lists for these pods may take of the memory for lists of each agent, in MiB. They never get more than
    /// `cacheMemoryMiB` of the configuration file has; the list in use may exceed it alone.
    #[serde(rename = "cacheMemoryMiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub cache_memory_mib: Option<i32>,

    /// At most so many of the allocation agents place these pods, always the same ones; the others keep what they have cached
    /// for everybody else. Without it all agents do. More than there are means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub agents: Option<i32>,
}

/// Pods by their scheduler and by their namespace; without any of it all pods that berth places.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.namespaces) && has(self.namespaceSelector))").message("give namespaces or namespaceSelector, not both"))]
pub struct Governs {
    /// Pods whose `spec.schedulerName` is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 63)))]
    pub scheduler_names: Option<Vec<String>>,

    /// Pods of these namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63)))]
    pub namespaces: Option<Vec<String>>,

    /// Pods of namespaces with such labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
}

/// Labels that a namespace must have; an empty selector means all namespaces.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that the namespaces have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels of the namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<Requirement>,
}

/// A demand on one label.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)").message("In and NotIn need values, Exists and DoesNotExist take none"))]
pub struct Requirement {
    /// The label's key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: Operator,
    /// The values of In and NotIn; none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// One preference and how finely it counts.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.steps) || !(self.name in ['InterPodAffinity', 'PodTopologySpread'])").message("InterPodAffinity and PodTopologySpread count pods and take no steps"),
    validation = Rule::new("!has(self.steps) || self.name != 'TaintToleration' || self.steps <= 16").message("TaintToleration takes 16 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'NodeResourcesFit' || self.steps <= 64").message("NodeResourcesFit takes 64 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'NodeResourcesBalancedAllocation' || self.steps <= 16").message("NodeResourcesBalancedAllocation takes 16 steps at most"),
    validation = Rule::new("!has(self.steps) || self.name != 'ImageLocality' || self.steps <= 8").message("ImageLocality takes 8 steps at most")
)]
pub struct PolicyPreference {
    /// The plugin of kube-scheduler that scores the same.
    pub name: Preference,
    /// How many steps it tells nodes apart by: the fewer, the more the next preferences count. 1 switches it off. Without it, as
    /// many as there are: 16 for TaintToleration and NodeResourcesBalancedAllocation, 4096 for NodeAffinity, 64 for
    /// NodeResourcesFit, 8 for ImageLocality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub steps: Option<i32>,
}

/// In percent of what the nodes of a cell can give, counting the requests of all pods there.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cpuPercent) || has(self.memoryPercent)").message("give cpuPercent, memoryPercent or both"))]
pub struct UtilisationLimit {
    /// Of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub cpu_percent: Option<i32>,
    /// Of the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub memory_percent: Option<i32>,
    /// The label whose values make cells of nodes, such as `topology.kubernetes.io/zone`: the limit is for all nodes of a cell
    /// together. Without it, and for nodes without the label, each node is a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
}

/// What berth says of the policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationPolicyStatus {
    /// The generation of the spec that this is said of.
    pub observed_generation: i64,
    /// `InForce`: whether it holds; `Contradicted`: whether another policy, as specific, goes before it for some of its pods.
    pub conditions: Vec<Condition>,
    /// Whose pods it is about, in words.
    pub governs: String,
    /// What holds for these pods, with everything that the policy leaves out. Not there while it is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

/// As everywhere in Kubernetes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is said.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When the status last was another one.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

/// What holds for the pods of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// Which nodes are better by their requested share.
    pub packing: Packing,
    /// Those that count, most important first.
    pub preferences: Vec<EffectivePreference>,
    /// Choose among so many of the best nodes.
    pub candidate_width: i64,
    /// How full nodes, or cells of nodes, may become.
    pub utilisation_limit: Option<EffectiveLimit>,
    /// What ranked lists may take in each agent, in MiB.
    #[serde(rename = "cacheMemoryMiB")]
    pub cache_memory_mib: Option<i64>,
    /// At most so many agents place these pods; nothing: all do.
    pub agents: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectivePreference {
    /// What it looks at.
    pub name: Preference,
    /// How finely it counts; nothing: it is never rounded.
    pub steps: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveLimit {
    /// Of the CPU.
    pub cpu_percent: Option<i64>,
    /// Of the memory.
    pub memory_percent: Option<i64>,
    /// Nodes with the same value of this label are one cell; nothing: each node is one.
    pub topology_key: Option<String>,
}
