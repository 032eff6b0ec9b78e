//! `allocations.berth.dev`: gangs of pods, scheduled all or nothing.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Selects pods of the namespace that are scheduled together, their minimum number, and their topology. Set either
/// `minimum` with `selector` or `owner`, or `roles`.
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
    doc = "A gang of pods: they are scheduled all or nothing. The pods themselves must set `spec.schedulerName` to berth.",
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
    /// Minimum number of pods that are scheduled together, all or nothing. Further pods are scheduled one by one as
    /// capacity allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 1_000_000))]
    pub minimum: Option<i32>,
    /// Selects the pods by label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AllocationSelector")]
    pub selector: Option<AllocationSelector>,
    /// Controller of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OwnerSelector")]
    pub owner: Option<OwnerSelector>,
    /// Groups of pods with a minimum each, such as one leader and eight workers. The minima of all roles are scheduled
    /// together, all or nothing. A pod belongs to the first role that it matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), extend(
        "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]
    ))]
    pub roles: Vec<Role>,
    /// Scheduling timeout, such as 10m or 1h30m. It starts when the minimum number of pods exists. After it, the
    /// allocation is not retried until it changes. Unset: no timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 64), regex(pattern = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+$"), extend(
        "x-kubernetes-validations" = [{
            "rule": "duration(self) > duration('0s') && duration(self) <= duration('8760h')",
            "message": "timeout must be longer than 0s, and a year (8760h) at most",
        }]
    ))]
    pub timeout: Option<String>,
    /// Placement of the pods relative to each other. Unset: any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Topology")]
    pub topology: Option<Topology>,
}

/// A group of pods in an allocation, with its own minimum.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.selector) != has(self.owner)",
    "message": "give exactly one of selector and owner: they say which pods belong to the role",
}]))]
pub struct Role {
    /// Name of the role, used in the status.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Minimum number of pods of this role. If it cannot be met, no pod of the allocation is scheduled.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i32,
    /// Selects the pods by label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AllocationSelector")]
    pub selector: Option<AllocationSelector>,
    /// Controller of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OwnerSelector")]
    pub owner: Option<OwnerSelector>,
}

/// Selects pods of the namespace by label; all conditions must hold. An empty selector selects every pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllocationSelector {
    /// Labels that the pods must have, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on the pods' labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<AllocationRequirement>,
}

/// A condition on one label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocationRequirement {
    /// The label's key.
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// Values for In and NotIn; empty for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// The controller of the pods, as in their `metadata.ownerReferences` with `controller: true`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OwnerSelector {
    /// Kind of the controller: Job, StatefulSet, ReplicaSet or any other kind that creates pods itself.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [{
        "rule": "!(self in ['Deployment', 'CronJob'])",
        "message": "the pods of a Deployment belong to its ReplicaSets, those of a CronJob to its Jobs: use selector",
    }]))]
    pub kind: String,
    /// Name of the controller.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Placement of pods relative to each other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// Node label, such as topology.kubernetes.io/zone: nodes with the same value are one domain.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub key: String,
    /// Required: all pods in one domain, or none is scheduled.
    /// Preferred: all pods in one domain if one has capacity for the minimum, else on any nodes.
    /// Spread: as evenly over the domains as capacity allows.
    #[serde(default)]
    pub mode: TopologyMode,
}

// Comments on variants would be part of the schema, in a form that structural schemas do not allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum TopologyMode {
    #[default]
    Required,
    Preferred,
    Spread,
}

/// Observed state of the allocation, written by berth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationStatus {
    /// Pending: fewer pods than the minimum exist.
    /// Scheduling: enough pods exist and are being scheduled.
    /// Unschedulable: they do not fit.
    /// Scheduled: at least the minimum is bound.
    /// TimedOut: the timeout has passed.
    /// Invalid: the spec contradicts itself.
    pub phase: String,
    /// The `metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// Sum of the minima of all roles, or `spec.minimum`.
    pub minimum: i64,
    /// Number of pods that belong to the allocation.
    pub members: i64,
    /// Number of these pods that are bound to a node.
    pub bound: i64,
    /// Number of pods that match but belong to an older allocation.
    #[serde(skip_serializing_if = "is_zero")]
    pub claimed_by_others: i64,
    /// The same numbers per role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub roles: Vec<RoleStatus>,
    /// Number of bound pods per topology domain, or per node without a topology: the fullest first, truncated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub placement: Vec<DomainPods>,
    /// Why the allocation is not scheduled.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// A change that would let it be scheduled, if one is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// Accepted: the spec is valid. Scheduled: at least the minimum is bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Pod counts of one role.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoleStatus {
    /// Name of the role; empty if the allocation has no roles.
    pub name: String,
    /// Minimum number of pods of the role.
    pub minimum: i64,
    /// Number of pods that belong to the role.
    pub members: i64,
    /// Number of these pods that are bound to a node.
    pub bound: i64,
}

/// Bound pods in one topology domain or on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DomainPods {
    /// Value of the topology label, or a node name.
    pub domain: String,
    /// Number of pods bound there.
    pub bound: i64,
}

/// A condition, as `metav1.Condition`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// The `metadata.generation` that the condition was computed from.
    #[serde(default)]
    pub observed_generation: i64,
    /// Time when the status last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The phase of the allocation.
    #[serde(default)]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(default)]
    pub message: String,
}
