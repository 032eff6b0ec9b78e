//! `allocations.berth.dev`: pods that are placed together or not at all.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pods of the namespace are placed together, how many of them at least, and where. Give either `minimum` with
/// `selector` or `owner`, or `roles`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Allocation",
    plural = "allocations",
    shortname = "alloc",
    category = "berth",
    namespaced,
    status = "AllocationStatus",
    doc = "Pods that are placed together or not at all. The pods themselves must name berth as their scheduler: `spec.schedulerName`.",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Minimum", "type": "integer", "jsonPath": ".status.minimum"}"#,
    printcolumn = r#"{"name": "Members", "type": "integer", "jsonPath": ".status.members"}"#,
    printcolumn = r#"{"name": "Bound", "type": "integer", "jsonPath": ".status.bound"}"#,
    printcolumn = r#"{"name": "Topology", "type": "string", "jsonPath": ".spec.topology.key"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Mode", "type": "string", "priority": 1, "jsonPath": ".spec.topology.mode"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.message"}"#,
    printcolumn = r#"{"name": "Help", "type": "string", "priority": 1, "jsonPath": ".status.help"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.roles) ? !has(self.minimum) && !has(self.selector) && !has(self.owner) : has(self.minimum)",
        "message": "give either minimum with selector or owner, or roles",
    },
    {
        "rule": "has(self.roles) || has(self.selector) != has(self.owner)",
        "message": "give exactly one of selector and owner: they say which pods belong to the allocation",
    },
]))]
pub struct AllocationSpec {
    /// At least so many of the pods are placed, or none at all. Pods beyond it are placed one by one, as there is room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 1_000_000))]
    pub minimum: Option<i32>,
    /// The pods with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Selector")]
    pub selector: Option<Selector>,
    /// The pods of this controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Owner")]
    pub owner: Option<Owner>,
    /// Parts of the allocation with a minimum each, such as one leader and eight workers. All minima are placed, or
    /// nothing at all. A pod belongs to the first role that it matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), extend(
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]
    ))]
    pub roles: Vec<Role>,
    /// When its minimum of pods is there and could not be placed for so long, no more is tried until something about the
    /// allocation changes. Numbers with a unit, such as 10m or 1h30m. Without it, it waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64), regex(pattern = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+$"), extend(
        "x-kubernetes-validations" = [{
            "rule": "duration(self) > duration('0s') && duration(self) <= duration('8760h')",
            "message": "timeout must be longer than 0s, and a year (8760h) at most",
        }]
    ))]
    pub timeout: Option<String>,
    /// Where the pods are to be, seen from each other. Without it, anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Topology")]
    pub topology: Option<Topology>,
}

/// A part of an allocation with a minimum of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.selector) != has(self.owner)",
    "message": "give exactly one of selector and owner: they say which pods belong to the role",
}]))]
pub struct Role {
    /// What the role is called in the status.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// At least so many of its pods are placed, or none of the allocation.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i32,
    /// The pods with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Selector")]
    pub selector: Option<Selector>,
    /// The pods of this controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Owner")]
    pub owner: Option<Owner>,
}

/// Selects pods of the namespace by their labels; all conditions must hold. An empty one selects every pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that the pods have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// The values of In and NotIn; none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// A controller of pods: what the pods' `metadata.ownerReferences` name as such.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Its kind: Job, StatefulSet, ReplicaSet or any other that makes pods itself.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [{
        "rule": "!(self in ['Deployment', 'CronJob'])",
        "message": "the pods of a Deployment belong to its ReplicaSets, those of a CronJob to its Jobs: use selector",
    }]))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Where pods are to be, seen from each other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// A label of nodes, such as topology.kubernetes.io/zone: nodes with the same value are one domain.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub key: String,
    /// Required: all in one domain, or none at all. Preferred: all in one domain if one has room for the minimum, else anywhere.
    /// Spread: as evenly over the domains as there is room.
    #[serde(default)]
    pub mode: TopologyMode,
}

// Comments on variants would end up in the schema, in a form that structural schemas do not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum TopologyMode {
    #[default]
    Required,
    Preferred,
    Spread,
}

/// Where an allocation stands, as berth tells it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationStatus {
    /// Pending: fewer pods than the minimum exist. Scheduling: enough exist, and are about to be placed. Unschedulable: they do
    /// not fit. Scheduled: at least the minimum is bound. TimedOut: it waited for longer than its timeout. Invalid: its spec
    /// contradicts itself.
    pub phase: String,
    /// The generation of the spec that this status is about.
    pub observed_generation: i64,
    /// The sum of the minima.
    pub minimum: i64,
    /// Pods that belong to it.
    pub members: i64,
    /// Those of them that have a node.
    pub bound: i64,
    /// Pods that match, but belong to an older allocation.
    #[serde(skip_serializing_if = "is_zero")]
    pub claimed_by_others: i64,
    /// The same by role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub roles: Vec<RoleStatus>,
    /// Where bound pods are, by domain of the topology, or by node without one: the first few, the fullest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub placement: Vec<Placement>,
    /// Why it waits.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What would help it, if that is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// Accepted: the spec is understood. Scheduled: at least the minimum is bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// How many pods of a role there are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoleStatus {
    /// The name of the role; empty when the allocation has none.
    pub name: String,
    /// Its minimum.
    pub minimum: i64,
    /// Pods that belong to it.
    pub members: i64,
    /// Those of them that have a node.
    pub bound: i64,
}

/// Bound pods in one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Placement {
    /// The value of the topology's label, or the name of a node.
    pub domain: String,
    /// Pods that are bound there.
    pub bound: i64,
}

/// As `metav1.Condition`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is said.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// The generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When the status last was another one.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The phase.
    #[serde(default)]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub message: String,
}
