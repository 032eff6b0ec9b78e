//! `ServiceScaler`: scales the replicas and the container sizes of a service by its usage and service quality.

// Each printer column repeats `type_`.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::PolicyCondition;
use super::quota::QuotaAmount;
use berth_model::WeeklyWindow;

/// Scales one service: first the requests of its containers, then its replicas (SHOWAR, SoCC'21). Container sizes
/// follow usage; replicas follow a saturation signal, such as the share of throttled CFS periods.
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
    doc = "Scales one service: the requests of its containers and the number of its replicas.",
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
    validation = Rule::new("(has(self.dimensions) ? !('Replicas' in self.dimensions) : !has(self.objectives)) || (has(self.bounds) && has(self.bounds.maxReplicas))").message("scaling Replicas requires bounds.maxReplicas"),
    validation = Rule::new("!has(self.bounds) || !has(self.bounds.minReplicas) || self.bounds.minReplicas > 0 || (has(self.objectives) && ((has(self.objectives.signal) && has(self.objectives.signal.query)) || (has(self.objectives.signals) && self.objectives.signals.exists(signal, has(signal.query)))))").message("bounds.minReplicas can be 0 only with a signal that has a query: without pods there is no other signal"),
    validation = Rule::new("!has(self.bounds) || !has(self.bounds.minReplicas) || !has(self.bounds.maxReplicas) || self.bounds.minReplicas <= self.bounds.maxReplicas").message("bounds.minReplicas must not be more than bounds.maxReplicas")
)]
pub struct ServiceScalerSpec {
    /// Workload to scale: a resource with a `scale` subresource, in the namespace of the ServiceScaler. Immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("target is immutable: create another ServiceScaler"))]
    pub target: Target,

    /// Dimensions to scale. Default: CPU and Memory, and Replicas if objectives are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub dimensions: Option<Vec<ScalingDimension>>,

    /// Estimator of container sizes.
    /// `showar`: mean of the samples of `behavior.windowSeconds` plus three standard deviations.
    /// `hours`: the peaks of the same hours of the days before, or of the last hours if they are higher, plus 15 %.
    /// `autopilot-window` and `autopilot-ensemble`: as in Google's Autopilot. All but `showar` start without history after each
    /// change of the leader, and do not shrink a container before they have samples of one day.
    #[serde(default)]
    pub estimator: SizeEstimator,

    /// Saturation signal for the number of replicas, and service level objectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<Objectives>,

    /// Bounds of replicas and container sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<ServiceBounds>,

    /// Interval of decisions and limits on the rate of change, as in a HorizontalPodAutoscaler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<ServiceBehavior>,

    /// Parameters of the estimator `showar` and of the number of replicas. The defaults are those of the paper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<ScalerTuning>,

    /// Only reports decisions in the status; changes nothing. Set it to false once the decisions are as you want them.
    #[serde(default = "dry_run_by_default")]
    pub dry_run: bool,
}

/// The default of `spec.dryRun`.
pub fn dry_run_by_default() -> bool {
    true
}

/// A resource with a `scale` subresource.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// API version, such as `apps/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Kind, such as `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the resource.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A dimension of scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ScalingDimension {
    Replicas,
    #[serde(rename = "CPU")]
    Cpu,
    Memory,
}

/// Estimator of container sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SizeEstimator {
    #[default]
    Showar,
    Hours,
    AutopilotWindow,
    AutopilotEnsemble,
}

/// Saturation signal for the number of replicas, and service level objectives.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objectives {
    /// Saturation signal that the number of replicas follows. Default, if `signals` has none: `CpuPressure` with the target 0.3,
    /// or `CpuUtilization` with the target 0.7 where CPU is no dimension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// Further signals. The number of replicas follows the one that is the highest relative to its target, and no replica is
    /// removed while one of them is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub signals: Vec<Signal>,
    /// Whose metrics the signal `RequestLatency` and the success rate are taken from.
    /// `Istio`, `Linkerd` (of linkerd-viz), or `OpenTelemetry`: `http.server.request.duration`, whose resource attributes
    /// `k8s.namespace.name`, `k8s.deployment.name` and `k8s.statefulset.name` Prometheus must promote to labels.
    #[serde(default)]
    pub request_metrics: RequestMetricsOf,
    /// Percentage of requests that must succeed, such as 99 or 99.9; replicas are added while fewer succeed. Default: 99
    /// with the signal `RequestLatency`, whose metrics count successes, too; otherwise none. A percentage of 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<SuccessRate>,
}

/// Who measures requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestMetricsOf {
    #[default]
    Istio,
    Linkerd,
    OpenTelemetry,
}

/// A metric that grows as the replicas saturate.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'Query' || has(self.query)").message("a signal of type Query requires a query"))]
pub struct Signal {
    /// `CpuUtilization`: CPU usage as a share of the requests, over all pods, such as `0.7`; only where CPU is no dimension. It
    /// needs no Prometheus.
    /// `CpuThrottling`: share of CFS periods in which containers were throttled.
    /// `CpuPressure`: share of time in which some task waited for a CPU (PSI).
    /// `RunQueueLatency`: seconds that tasks waited for a CPU per second of CPU use.
    /// `RequestLatency`: 95th percentile on the server side, in milliseconds, from `requestMetrics`.
    /// `Query`: result of the query.
    #[serde(rename = "type")]
    pub type_: SignalType,
    /// Target value, a number such as `0.05` or `200`: replicas are added above it, and removed well below it.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub target: String,
    /// PromQL that returns one number; replaces the built-in query of the type. `$namespace`, `$name`, `$pods` (a
    /// regular expression that matches the pods' names) and `$matchers` (berth's `recommender.prometheus.matchers`) are
    /// substituted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
    /// With `bounds.minReplicas: 0`: result of the query above which there is work for at least one replica. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub activation: Option<String>,
}

/// Source of the saturation signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SignalType {
    CpuUtilization,
    CpuThrottling,
    CpuPressure,
    RunQueueLatency,
    RequestLatency,
    Query,
}

/// Service level objective for the success rate of requests.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuccessRate {
    /// Percentage of requests, such as `99` or `99.9`.
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^([0-9]{1,2}([.][0-9]+)?|100)$"))]
    pub percent: String,
    /// PromQL that returns the share of requests that succeeded, from 0 to 1; replaces the built-in query of `requestMetrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
}

/// Parameters of the estimator `showar` and of the number of replicas. Numbers such as `3` or `0.15`.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalerTuning {
    /// Number of standard deviations that are added to the mean usage. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub sigmas: Option<String>,
    /// Minimum relative difference of a size to its target for a change. Default: 0.15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub size_change: Option<String>,
    /// How the number of replicas follows the signal.
    /// `Pid`: a PID controller, in steps. `Proportional`: the replicas times the signal divided by its target, for
    /// signals that fall with each replica, such as latencies.
    #[serde(default)]
    pub replicas: ReplicaScaling,
    /// Gains of the PID controller. Default: a third each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gains: Option<PidGains>,
    /// Width of the band around the target in which the number of replicas stays, as a share of the target. Default:
    /// 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub dead_band: Option<String>,
    /// Share of the replicas that is added or removed at once; at least one replica. Default: 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub step: Option<String>,
    /// Number of replicas up to which replicas are added before CPU grows. Default: 1, no such number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub replicas_first: Option<i32>,
}

/// How the number of replicas follows the signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplicaScaling {
    #[default]
    Pid,
    Proportional,
}

/// Gains of the PID controller.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PidGains {
    /// Gain of the relative error.
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub proportional: String,
    /// Gain of the sum of errors.
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub integral: String,
    /// Gain of the change of the error.
    #[schemars(length(min = 1, max = 16), regex(pattern = r"^[0-9]+([.][0-9]+)?$"))]
    pub derivative: String,
}

/// Bounds of replicas and container sizes.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceBounds {
    /// Minimum number of replicas. Default: 1. With 0, the last replica goes once there has been no work (`activation`) for
    /// `behavior.scaleDown.stabilizationWindowSeconds`, and a target with 0 replicas is not taken as switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100000))]
    pub min_replicas: Option<i32>,
    /// Maximum number of replicas; required if they are scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_replicas: Option<i32>,
    /// Bounds of replicas at certain times of the week. Where several apply, the largest numbers do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub schedule: Vec<ScheduledReplicas>,
    /// Bounds per container; the entry `*` applies to all containers that are not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub containers: Vec<ContainerBounds>,
}

/// Bounds of replicas at a time of the week.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas").message("minReplicas must not be more than maxReplicas"))]
pub struct ScheduledReplicas {
    /// Days and hours in UTC, such as `Mon-Fri 07:30-18:00`.
    #[schemars(with = "WeeklyWindow")]
    pub window: String,
    /// Minimum number of replicas.
    #[schemars(range(min = 1, max = 100000))]
    pub min_replicas: i32,
    /// Maximum number of replicas. Default: the larger one of `minReplicas` and `bounds.maxReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_replicas: Option<i32>,
}

/// Bounds of the size of one container.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerBounds {
    /// Name of the container, or `*`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// `Auto`: the container is sized. `Off`: it is left unchanged.
    #[serde(default)]
    pub mode: ContainerMode,
    /// Lower bound by resource: cpu, memory. Default: 128m and 128Mi.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2))]
    pub min_allowed: BTreeMap<String, QuotaAmount>,
    /// Upper bound by resource: cpu, memory. If a container needs more CPU than this (default: one core), replicas are
    /// added instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 2))]
    pub max_allowed: BTreeMap<String, QuotaAmount>,
}

/// Whether a container is sized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerMode {
    #[default]
    Auto,
    Off,
}

/// Interval of decisions and limits on the rate of change.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceBehavior {
    /// Interval between decisions, in seconds; OOM kills and a signal far above its target are handled immediately.
    /// Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub period_seconds: Option<i32>,
    /// Window of usage samples that sizes are estimated from, in seconds. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 600))]
    pub window_seconds: Option<i32>,
    /// Span of usage, in seconds, that must have been observed before a container size shrinks or a replica is removed: it should
    /// contain all peaks. What Prometheus knows from before counts. Samples may be missing for an hour at most, else it begins
    /// again. Default: 86400, one day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1209600))]
    pub history_seconds: Option<i32>,
    /// Time in seconds during which the number of replicas that another client has set stays, unless a signal is three times its
    /// target. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub manual_hold_seconds: Option<i32>,
    /// Number of replicas while no signal is known. Default: they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackReplicas>,
    /// Limits for adding replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,
    /// Limits for removing replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// Number of replicas while no signal is known.
#[derive(KubeSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FallbackReplicas {
    /// Minimum number of replicas, within the bounds.
    #[schemars(range(min = 1, max = 100000))]
    pub replicas: i32,
    /// Time in seconds without a signal after which it applies. Default: 180.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub after_seconds: Option<i32>,
}

/// Limits on the rate of change in one direction.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Delay in seconds after a change in the opposite direction. Default: 0 for adding and 300 for removing replicas.
    /// The value for removing also applies to CPU sizes, whose default is 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<i32>,
    /// Policy that applies if there are several: the one that allows the largest change (`Max`) or the smallest
    /// (`Min`). `Disabled`: no change in this direction.
    #[serde(default)]
    pub select_policy: SelectPolicy,
    /// Maximum changes per period. Empty: no limit apart from the controller's own step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub policies: Vec<ScalingPolicy>,
}

/// Policy that applies if there are several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    #[default]
    Max,
    Min,
    Disabled,
}

/// Maximum change per period.
#[derive(KubeSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Unit of `value`: `Pods`, or `Percent` of the replicas at the start of the period.
    #[serde(rename = "type")]
    pub type_: PolicyType,
    /// Maximum change, in pods or percent.
    #[schemars(range(min = 1, max = 100000))]
    pub value: i32,
    /// Length of the period in seconds.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

/// Unit of the value of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    Pods,
    Percent,
}

/// Observed state of the ServiceScaler, written by berth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceScalerStatus {
    /// The `metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// `Active`: whether the service is being scaled.
    /// `MetricsAvailable`: whether the required metrics can be read.
    /// `Limited`: whether a bound keeps it from the desired size or number of replicas.
    pub conditions: Vec<PolicyCondition>,
    /// Current number of replicas of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Desired number of replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i64>,
    /// Label selector of the target's pods, from its `scale` subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Desired sizes per container. Resources that are managed by another autoscaler are left out.
    pub containers: Vec<ContainerStatus>,
    /// Services near which new pods should be placed, or which they should avoid: a preference in scheduling.
    #[schemars(length(max = 64))]
    pub hints: Vec<HintStatus>,
    /// Last decision with its inputs, in one line.
    pub decision: String,
    /// Time when replicas or sizes last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_change_time: Option<String>,
    /// Internal state of the controller, kept between decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

/// A placement preference for new pods, relative to another service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HintStatus {
    /// Namespace and name of the other service's ServiceScaler. It may be the service itself: its own pods peak
    /// together, too.
    pub service: String,
    /// Label selector of the other service's pods, in its namespace.
    pub selector: String,
    /// `Apart`: not on the same node. `Together`: on the same node.
    pub placement: HintPlacement,
    /// Weight of the preference, from 1 to 100.
    pub weight: i32,
    /// Resource whose usage peaks at the same time, or alternates.
    pub resource: HintResource,
}

/// Relative placement of two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HintPlacement {
    Apart,
    Together,
}

/// Resource whose usage was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HintResource {
    #[serde(rename = "CPU")]
    Cpu,
    Memory,
    Network,
}

/// Desired size of one container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// Desired requests by resource.
    pub target: BTreeMap<String, String>,
}
