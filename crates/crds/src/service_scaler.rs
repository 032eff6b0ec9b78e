//! `ServiceScaler`: how many replicas a service has, and how large they are, from what it uses and how well it serves.

// Each printer column has a type.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::Condition;
use super::quota::Amount;

/// Scales one service: sizes of its containers first, then its replicas (SHOWAR, SoCC'21). Sizes follow what the containers used;
/// replicas follow a signal of saturation, such as the share of time in which they were throttled.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "ServiceScaler",
    plural = "servicescalers",
    shortname = "svcscaler",
    category = "berth",
    namespaced,
    status = "ServiceScalerStatus",
    derive = "PartialEq",
    doc = "Scales one service: the sizes of its containers and the number of its replicas.",
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.containers[0].target.cpu"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.containers[0].target.memory"),
    printcolumn(
        name = "Active",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Active")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Decision", type_ = "string", json_path = ".status.decision", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.dimensions) || !('Replicas' in self.dimensions) || has(self.objectives)").message("to scale replicas, objectives are needed"),
    validation = Rule::new("!has(self.bounds) || !has(self.bounds.minReplicas) || !has(self.bounds.maxReplicas) || self.bounds.minReplicas <= self.bounds.maxReplicas").message("bounds.minReplicas must not be more than bounds.maxReplicas")
)]
pub struct ServiceScalerSpec {
    /// What is scaled: something with a `scale` subresource, in the namespace of the scaler. It cannot be changed.
    #[x_kube(validation = Rule::new("self == oldSelf").message("the target cannot be changed: make another ServiceScaler"))]
    pub target: Target,

    /// What may be changed. Without it: CPU and Memory, and Replicas if there are objectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub dimensions: Option<Vec<Dimension>>,

    /// How sizes are estimated. `showar`: the mean of the last five minutes and three standard deviations. `autopilot-window` and
    /// `autopilot-ensemble`: as Google's Autopilot; they begin anew with each leader, and shrink nothing before they have seen a day.
    #[serde(default)]
    pub estimator: SizeEstimator,

    /// What says that replicas have too much to do, and how well the service must serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<Objectives>,

    /// Between what replicas and sizes may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,

    /// How fast replicas may change, as in a HorizontalPodAutoscaler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,

    /// Tell in the status what would be done, and do nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Something with a `scale` subresource.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Such as `apps/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Such as `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Something that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Dimension {
    Replicas,
    #[serde(rename = "CPU")]
    Cpu,
    Memory,
}

/// How sizes are estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SizeEstimator {
    #[default]
    Showar,
    AutopilotWindow,
    AutopilotEnsemble,
}

/// What says that replicas have too much to do, and how well the service must serve.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.signal.type != 'Query' || has(self.signal.query)").message("a signal of type Query needs a query"))]
pub struct Objectives {
    /// What the number of replicas follows.
    pub signal: Signal,
    /// Of the requests so many percent must succeed; when fewer do, replicas are added. Such as 99 or 99.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<SuccessRate>,
}

/// A number that grows when replicas have too much to do.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signal {
    /// `CpuThrottling`: the share of CFS periods in which containers were throttled. `CpuPressure`: the share of time in which some
    /// task waited for a CPU (PSI). `RunQueueLatency`: seconds for which tasks waited for a CPU, for each second of use.
    /// `RequestLatency`: milliseconds, the 95th percentile of Istio's histograms. `Query`: what the query says.
    #[serde(rename = "type")]
    pub type_: SignalType,
    /// What it should be, as a number such as `0.05` or `200`: more means more replicas, much less means fewer.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub target: String,
    /// PromQL that gives one number, instead of the one that the type stands for. `$namespace`, `$name` and `$pods` (a regular
    /// expression of the names of its pods) are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
}

/// Where the signal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SignalType {
    CpuThrottling,
    CpuPressure,
    RunQueueLatency,
    RequestLatency,
    Query,
}

/// How many requests must succeed.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuccessRate {
    /// In percent, such as `99` or `99.9`.
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^([0-9]{1,2}([.][0-9]+)?|100)$"))]
    pub percent: String,
    /// PromQL that gives the share of requests that succeeded, from 0 to 1, instead of Istio's metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
}

/// Between what replicas and sizes may be.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    /// Never fewer; 1 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub min_replicas: Option<i32>,
    /// Never more; 10 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_replicas: Option<i32>,
    /// Sizes of containers; the one named `*` is for all that are not named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub containers: Vec<ContainerBounds>,
}

/// Between what the size of a container may be.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerBounds {
    /// The container's name, or `*`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// `Off` leaves the container alone.
    #[serde(default)]
    pub mode: ContainerMode,
    /// Never less, by resource: cpu, memory. Without it 128m and 128Mi.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2))]
    pub min_allowed: BTreeMap<String, Amount>,
    /// Never more. A container that would need more CPU than this, or than one core without it, gets more replicas instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2))]
    pub max_allowed: BTreeMap<String, Amount>,
}

/// Whether a container is sized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerMode {
    #[default]
    Auto,
    Off,
}

/// How fast replicas may change.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    /// Sizes and replicas are decided about so often, but for what cannot wait: kills for want of memory, and a signal far beyond
    /// its target. 60 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: Option<i32>,
    /// Sizes are estimated from the samples of so many seconds; 300 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 600))]
    pub window_seconds: Option<i32>,
    /// For more replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,
    /// For fewer replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// How fast replicas may change in one direction.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// No change in this direction for so long after one in the other. Without it 0 for more replicas and 300 for fewer; the latter
    /// holds for CPU sizes, too, which wait for 3600 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<i32>,
    /// Which of the policies holds: the one that allows the largest change (`Max`), or the smallest (`Min`); `Disabled`: no change.
    #[serde(default)]
    pub select_policy: SelectPolicy,
    /// How much change there may be in how much time. Without any: no limit beside the controller's own step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub policies: Vec<ScalingPolicy>,
}

/// Which policy holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    #[default]
    Max,
    Min,
    Disabled,
}

/// A change that is allowed in some time.
#[derive(KubeSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Whether `value` is a number of pods or a share of those that there were.
    #[serde(rename = "type")]
    pub type_: PolicyType,
    /// How many, or how many percent.
    #[schemars(range(min = 1, max = 100000))]
    pub value: i32,
    /// In so many seconds.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

/// What the value of a policy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    Pods,
    Percent,
}

/// What berth says of the service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceScalerStatus {
    /// The generation of the spec that this is said of.
    pub observed_generation: i64,
    /// `Active`: whether the service is scaled now. `MetricsAvailable`: whether what decisions need can be read. `Limited`: whether a
    /// bound keeps it from what would be right.
    pub conditions: Vec<Condition>,
    /// Replicas of the target now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Replicas that it should have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i64>,
    /// Selects the pods of the target, as its `scale` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Sizes that containers should have; of what somebody else decides about, nothing.
    pub containers: Vec<ContainerStatus>,
    /// Services whose pods the next pods had better be near to, or far from: a preference of the scheduler.
    #[schemars(length(max = 64))]
    pub hints: Vec<HintStatus>,
    /// The last decision, with what it was made from, in one line.
    pub decision: String,
    /// When replicas or sizes last were changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_change_time: Option<String>,
    /// What is remembered from decision to decision; not for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

/// Where the next pods had better be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HintStatus {
    /// The other service: namespace and name of its ServiceScaler. Its own pods peak together, too.
    pub service: String,
    /// Selects the pods of the other service, in that namespace.
    pub selector: String,
    /// `Apart`: not on a node with them. `Together`: with them.
    pub placement: HintPlacement,
    /// From 1 to 100.
    pub weight: i32,
    /// Of what the usage peaks at the same time, or in turn.
    pub resource: HintResource,
}

/// Where pods of two services had better be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HintPlacement {
    Apart,
    Together,
}

/// What was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HintResource {
    #[serde(rename = "CPU")]
    Cpu,
    Memory,
    Network,
}

/// What one container should have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// The container.
    pub name: String,
    /// What it should request, by resource.
    pub target: BTreeMap<String, String>,
}
