//! `Quota`: guaranteed and maximum requests of the pods of some namespaces or of a queue.

// Each printer column repeats `type_`.
#![allow(clippy::duplicated_attributes)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::policy::{NamespaceSelector, PolicyCondition};

/// Guaranteed and maximum requests of the pods of some namespaces or of a queue. Guaranteed capacity can be borrowed by
/// other quotas and is reclaimed when needed. All bound pods count, whichever scheduler bound them; the limits are
/// enforced for pods that berth schedules.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Quota",
    plural = "quotas",
    shortname = "bq",
    category = "berth",
    status = "QuotaStatus",
    derive = "PartialEq",
    doc = "Guaranteed and maximum requests of the pods of some namespaces or of a queue.",
    printcolumn(name = "Used", type_ = "string", json_path = ".status.summary.used"),
    printcolumn(name = "Guaranteed", type_ = "string", json_path = ".status.summary.guaranteed"),
    printcolumn(name = "Maximum", type_ = "string", json_path = ".status.summary.maximum"),
    printcolumn(name = "Borrowed", type_ = "string", json_path = ".status.summary.borrowed"),
    printcolumn(name = "Pods", type_ = "integer", json_path = ".status.pods"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(
        name = "In Force",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="InForce")].status"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reclaimed", type_ = "integer", json_path = ".status.reclaimed", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="InForce")].message"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.namespaces) && has(self.namespaceSelector))").message("give namespaces or namespaceSelector, not both"),
    validation = Rule::new("(has(self.guaranteed) && self.guaranteed.size() > 0) || (has(self.maximum) && self.maximum.size() > 0)").message("give guaranteed, maximum or both: the quota has no effect"),
    validation = Rule::new("!has(self.guaranteed) || !has(self.maximum) || self.guaranteed.all(r, !(r in self.maximum) || quantity(string(self.guaranteed[r])).compareTo(quantity(string(self.maximum[r]))) <= 0)").message("guaranteed must not be more than maximum")
)]
pub struct QuotaSpec {
    /// Pods of these namespaces. If namespaces, namespaceSelector and queue are all unset: all pods that belong to no
    /// other quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63)))]
    pub namespaces: Option<Vec<String>>,

    /// Pods of namespaces that match these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<NamespaceSelector>,

    /// Pods whose label `berth.dev/queue` has this value, in the namespaces selected above or, without those, in all
    /// namespaces that no other quota selects. A pod belongs to one quota: one that names its queue and selects its
    /// namespace takes precedence over one that only selects its namespace. Of two equally specific quotas the older one
    /// applies, then the first by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub queue: Option<String>,

    /// Guaranteed requests: pods that fit within them may preempt pods of quotas that borrow. By resource: cpu, memory,
    /// ephemeral-storage, pods, or any other resource that pods request. Resources that are not listed are not
    /// guaranteed; only the listed ones decide whether a pod is within the guarantee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16))]
    pub guaranteed: Option<BTreeMap<String, QuotaAmount>>,

    /// Maximum requests of all these pods together, including borrowed capacity. A pod that would exceed it waits.
    /// Resources that are not listed are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16))]
    pub maximum: Option<BTreeMap<String, QuotaAmount>>,

    /// Pods of other quotas that the pods of this quota may preempt.
    /// `Any`: within the guarantee, pods of borrowing quotas at any priority; beyond it, only those with lower
    /// priority. A quota with a queue and no namespaces, which any pod can join, has only the latter.
    /// `LowerPriority`: only pods with lower priority.
    /// `Never`: none.
    #[serde(default)]
    pub reclaim: ReclaimPolicy,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    #[default]
    Any,
    LowerPriority,
    Never,
}

/// A resource quantity, as in the requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QuotaAmount {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for QuotaAmount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QuotaAmount::Number(number) => number.fmt(f),
            QuotaAmount::Text(text) => text.fmt(f),
        }
    }
}

impl JsonSchema for QuotaAmount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A quantity such as 4, 500m or 16Gi.",
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "maxLength": 64,
            "pattern": r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$",
        })
    }
}

/// Observed state of the quota, written by berth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaStatus {
    /// The `metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// `InForce`: whether the quota is enforced.
    /// `Contested`: whether another, equally specific quota takes precedence for some of its pods.
    /// `AtMaximum`: whether pods wait because the maximum is reached.
    /// `Overcommitted`: whether all quotas together guarantee more than the cluster's capacity.
    pub conditions: Vec<PolicyCondition>,
    /// Number of its pods that are bound to a node.
    pub pods: i64,
    /// Number of its pods that wait because the maximum is reached; a gang counts as one.
    pub waiting: i64,
    /// Number of its pods that other quotas preempted to reclaim their guarantee, since berth started.
    pub reclaimed: i64,
    /// Requests of its pods together, for the resources that the quota lists.
    pub used: BTreeMap<String, String>,
    /// The part of `used` beyond the guarantee.
    pub borrowed: BTreeMap<String, String>,
    /// The same amounts as text, for printer columns.
    pub summary: QuotaSummary,
}

/// Amounts of a quota as text, for printer columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaSummary {
    /// Requests of its pods together.
    pub used: String,
    /// Guaranteed requests.
    pub guaranteed: String,
    /// Maximum requests.
    pub maximum: String,
    /// Requests beyond the guarantee.
    pub borrowed: String,
}
