//! `Quota`: how much the pods of some namespaces or of a queue may request together, and how much is theirs.

// Each printer column has a type.
#![allow(clippy::duplicated_attributes)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::policy::{Condition, Selector};

/// Says how much the pods of some namespaces, or of a queue, may request together, and how much of it they get back when others
/// have borrowed it. All pods with a node count, whoever scheduled them; the limits hold for those that berth schedules.
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
    doc = "Says how much the pods of some namespaces or of a queue may request together, and how much of it is guaranteed to them.",
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
    validation = Rule::new("(has(self.guaranteed) && self.guaranteed.size() > 0) || (has(self.maximum) && self.maximum.size() > 0)").message("give guaranteed, maximum or both: the quota says nothing"),
    validation = Rule::new("!has(self.guaranteed) || !has(self.maximum) || self.guaranteed.all(r, !(r in self.maximum) || quantity(string(self.guaranteed[r])).compareTo(quantity(string(self.maximum[r]))) <= 0)").message("guaranteed must not be more than maximum")
)]
pub struct QuotaSpec {
    /// Pods of these namespaces. Without it, without namespaceSelector and without queue: all pods that no other quota has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63)))]
    pub namespaces: Option<Vec<String>>,

    /// Pods of namespaces with such labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,

    /// Pods that carry the label `berth.dev/queue` with this value; in the namespaces above, or in all. A pod belongs to one quota:
    /// one of its queue goes before one of its namespace, of two alike the older one, then the first by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub queue: Option<String>,

    /// What these pods get back when others have borrowed it: pods that fit in here may preempt those that borrow. By resource:
    /// cpu, memory, ephemeral-storage, pods, and any other that pods request. Of a resource that is not named nothing is
    /// guaranteed; a pod is judged by those that are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16))]
    pub guaranteed: Option<BTreeMap<String, Amount>>,

    /// The most that these pods get together, borrowed or not. A pod beyond it waits. A resource that is not named is not
    /// limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16))]
    pub maximum: Option<BTreeMap<String, Amount>>,

    /// Which pods of other quotas the pods of this one may preempt. `Any`: within its guarantee all that borrow, however important
    /// they are, and otherwise less important ones that borrow. `LowerPriority`: less important ones only. `Never`: none.
    #[serde(default)]
    pub reclaim: Reclaim,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reclaim {
    #[default]
    Any,
    LowerPriority,
    Never,
}

/// A quantity as in the requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Amount::Number(number) => number.fmt(f),
            Amount::Text(text) => text.fmt(f),
        }
    }
}

impl JsonSchema for Amount {
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

/// What berth says of the quota.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaStatus {
    /// The generation of the spec that this is said of.
    pub observed_generation: i64,
    /// `InForce`: whether it holds. `Contested`: whether another quota, as specific, goes before it for some of its pods.
    /// `AtMaximum`: whether pods wait for room in it. `Overcommitted`: whether all quotas together guarantee more than the cluster
    /// has.
    pub conditions: Vec<Condition>,
    /// Its pods that have a node.
    pub pods: i64,
    /// Its pods that wait for room in it; a gang counts as one.
    pub waiting: i64,
    /// Its pods that others preempted to get back what was theirs, since berth was started.
    pub reclaimed: i64,
    /// What its pods request together, of the resources that it names.
    pub used: BTreeMap<String, String>,
    /// What of it is beyond the guarantee.
    pub borrowed: BTreeMap<String, String>,
    /// The same in words, for tables.
    pub summary: Summary,
}

/// A quota in words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// What its pods request together.
    pub used: String,
    /// What is theirs.
    pub guaranteed: String,
    /// The most they get.
    pub maximum: String,
    /// What is beyond the guarantee.
    pub borrowed: String,
}
