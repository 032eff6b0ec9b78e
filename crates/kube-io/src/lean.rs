//! Lean pods and nodes: only the fields of the API types that scheduling needs.
//!
//! The parser skips all other fields (managed fields, annotations, probes, environment…) without an allocation. A
//! malformed value in one object (quantity, enumeration, time) never fails a list or a watch; `convert` turns it into
//! an error of that object.

mod read;

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, de::IgnoredAny};

pub(super) use self::read::{LeanQuantity, SAFE_TO_EVICT, lean_meta, nullable};
use berth_model::{Quantity, QuantityError};

/// A pod to watch with `Api<LeanPod>`; see `into_pod`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct LeanPod {
    /// Only name, namespace, uid, resource version, generation, labels, the controller, the two timestamps, and the annotations
    /// `safe-to-evict`, [`OBSERVED`](berth_rightsizing::apply::patch::OBSERVED) and
    /// [`ANNOTATION`](berth_rightsizing::apply::boost::ANNOTATION).
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) spec: LeanPodSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) status: LeanPodStatus,
}

/// A node to watch with `Api<LeanNode>`; see `into_node`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Node")]
pub struct LeanNode {
    /// Only name, uid, resource version, generation, labels and the two timestamps.
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) spec: LeanNodeSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) status: LeanNodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodSpec {
    pub scheduler_name: Option<String>,
    pub node_name: Option<String>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub scheduling_gates: Vec<Named>,
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<LeanContainer>,
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<LeanContainer>,
    pub resources: Option<LeanRequirements>,
    pub host_network: Option<bool>,
    pub host_users: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub overhead: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub affinity: LeanAffinity,
    #[serde(deserialize_with = "nullable")]
    pub tolerations: Vec<LeanToleration>,
    #[serde(deserialize_with = "nullable")]
    pub topology_spread_constraints: Vec<LeanSpreadConstraint>,
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<LeanVolume>,
    #[serde(deserialize_with = "nullable")]
    pub resource_claims: Vec<LeanPodClaim>,
    pub scheduling_group: Option<LeanSchedulingGroup>,
    /// The name of `schedulingGroup` in 1.35.
    pub workload_ref: Option<IgnoredAny>,
}

/// An entry of `spec.resourceClaims`, or of `status.resourceClaimStatuses`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanSchedulingGroup {
    pub pod_group_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanContainer {
    pub name: String,
    pub image: Option<String>,
    pub restart_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub restart_policy_rules: Vec<LeanRestartRule>,
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub resize_policy: Vec<LeanResizePolicy>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<LeanPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanResizePolicy {
    pub resource_name: String,
    pub restart_policy: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanRestartRule {
    pub action: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPort {
    pub host_port: Option<i64>,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    pub protocol: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanRequirements {
    pub requests: Option<ResourceList>,
    pub limits: Option<ResourceList>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanAffinity {
    #[serde(deserialize_with = "nullable")]
    pub node_affinity: LeanNodeAffinity,
    #[serde(deserialize_with = "nullable")]
    pub pod_affinity: LeanPodTerms,
    #[serde(deserialize_with = "nullable")]
    pub pod_anti_affinity: LeanPodTerms,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanPodTerms {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "nullable")]
    pub required: Vec<LeanPodTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "nullable")]
    pub preferred: Vec<LeanWeightedPodTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodTerm {
    pub label_selector: Option<LeanLabelSelector>,
    #[serde(deserialize_with = "nullable")]
    pub namespaces: Vec<String>,
    pub namespace_selector: Option<LeanLabelSelector>,
    pub topology_key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanWeightedPodTerm {
    pub weight: i64,
    #[serde(deserialize_with = "nullable")]
    pub pod_affinity_term: LeanPodTerm,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanLabelSelector {
    #[serde(deserialize_with = "nullable")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<LeanRequirement>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanSpreadConstraint {
    pub max_skew: i64,
    pub topology_key: String,
    pub when_unsatisfiable: String,
    pub label_selector: Option<LeanLabelSelector>,
    pub min_domains: Option<i64>,
    pub node_affinity_policy: Option<String>,
    pub node_taints_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub match_label_keys: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<LeanNodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "nullable")]
    pub preferred: Vec<LeanPreferredTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanNodeSelector {
    #[serde(deserialize_with = "nullable")]
    pub node_selector_terms: Vec<LeanTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanPreferredTerm {
    pub weight: i64,
    #[serde(deserialize_with = "nullable")]
    pub preference: LeanTerm,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanTerm {
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<LeanRequirement>,
    #[serde(deserialize_with = "nullable")]
    pub match_fields: Vec<LeanRequirement>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanRequirement {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanToleration {
    pub key: Option<String>,
    pub operator: Option<String>,
    pub value: Option<String>,
    pub effect: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodStatus {
    pub phase: Option<String>,
    pub nominated_node_name: Option<String>,
    pub start_time: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: LeanConditions,
    #[serde(deserialize_with = "nullable")]
    pub resource_claim_statuses: Vec<LeanPodClaim>,
    #[serde(deserialize_with = "nullable")]
    pub extended_resource_claim_status: LeanExtendedClaim,
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<LeanContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<LeanContainerStatus>,
    /// Actuated pod-level resources.
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanExtendedClaim {
    pub resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanContainerStatus {
    pub name: String,
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub state: LeanContainerState,
    #[serde(deserialize_with = "nullable")]
    pub last_state: LeanContainerState,
}

/// The current or last state of a container; only its termination is read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanContainerState {
    pub terminated: Option<LeanTerminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanTerminated {
    pub reason: Option<String>,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeSpec {
    pub unschedulable: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<LeanTaint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanTaint {
    pub key: String,
    pub value: Option<String>,
    pub effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub allocatable: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub images: Vec<LeanImage>,
    #[serde(rename = "declaredFeatures", deserialize_with = "nullable")]
    pub declared_features: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanImage {
    #[serde(deserialize_with = "nullable")]
    pub names: Vec<String>,
    pub size_bytes: Option<i64>,
}

/// The conditions in `status.conditions` that are read.
#[derive(Debug, Clone, Default)]
pub(super) struct LeanConditions {
    pub scheduled: Option<LeanScheduled>,
    /// `Ready` is true.
    pub ready: bool,
    /// Time of the last transition of `Ready`.
    pub ready_changed: Option<String>,
    /// `PodResizePending` with reason `Infeasible`.
    pub resize_infeasible: bool,
    /// The reason of `PodResizePending`, if it is true.
    pub resize_pending: Option<String>,
    /// The reason and message of `PodResizeInProgress`, if it is true.
    pub resize_in_progress: Option<(String, String)>,
}

#[derive(Debug, Clone)]
pub(super) struct LeanScheduled {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// The fields of a pod's volume that restrict the choice of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct LeanVolume {
    pub name: String,
    pub source: Option<LeanVolumeSource>,
    /// Its data stays on the node.
    pub local: bool,
}

#[derive(Debug, Clone)]
pub(super) enum LeanVolumeSource {
    /// `image.reference`.
    Image(Option<String>),
    Claim(LeanClaimSource),
    Ephemeral,
    Disk(LeanDisk),
    /// An unknown type.
    Unknown,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanClaimSource {
    pub claim_name: String,
}

/// An in-tree disk type, in a pod or in a persistent volume.
#[derive(Debug, Clone)]
pub(super) enum LeanDisk {
    Gce(LeanGceDisk),
    Aws(LeanVolumeId),
    Azure(LeanAzureDisk),
    Cinder(LeanVolumeId),
    Portworx(LeanVolumeId),
    Iscsi(LeanIscsi),
    Rbd(LeanRbd),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanGceDisk {
    pub pd_name: String,
    pub read_only: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanVolumeId {
    #[serde(rename = "volumeID")]
    pub volume_id: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanAzureDisk {
    #[serde(rename = "diskURI")]
    pub disk_uri: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanIscsi {
    pub iqn: String,
    pub read_only: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanRbd {
    #[serde(deserialize_with = "nullable")]
    pub monitors: Vec<String>,
    pub pool: String,
    pub image: String,
    pub read_only: bool,
}

/// A `ResourceList`, parsed; a malformed quantity is kept as its error.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceList(pub Vec<(Cow<'static, str>, Result<Quantity, QuantityError>)>);
