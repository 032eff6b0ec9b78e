//! The scheduling-relevant part of a pod.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    DeviceClaims, DeviceNeeds, ExtendedResources, HeldVolumes, Labels, NodeAffinity, Peer, PodAffinity,
    PodDeviceClaim, PodVolumes, Spread, Toleration, Usage, VolumeNeeds,
};

/// A pod as the scheduler reads it. Its identity is `uid`: a recreated pod with the same name is a different pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub scheduler_name: Arc<str>,
    /// The node it is bound to.
    pub node_name: Option<Arc<str>>,
    /// The node on which another scheduler reserves capacity for the pod (`status.nominatedNodeName`).
    pub nominated_node: Option<Arc<str>>,
    pub priority: i32,
    pub preemption_policy: PreemptionPolicy,
    /// Creation time in seconds since the epoch.
    pub created_s: i64,
    /// Time when a kubelet accepted the pod (`status.startTime`), in seconds since the epoch.
    pub started_s: Option<i64>,
    pub generation: i64,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Phase is Succeeded or Failed: the pod uses no resources of its node.
    pub finished: bool,
    /// Names of scheduling gates; a pod with any of them is not scheduled.
    pub gates: Box<[Arc<str>]>,
    /// The `PodScheduled` condition as stored in the API server.
    pub scheduled: Option<ScheduledCondition>,
    /// The part that the rules of other pods read; without the labels of its namespace.
    pub peer: Arc<Peer>,
    /// The pod's controller, for default topology spread.
    pub owner: Option<PodOwner>,
    /// Volumes that restrict where the pod can run; `None`: no such volumes.
    pub volumes: Option<Arc<PodVolumes>>,
    /// Its resource claims, in the order of the spec.
    pub devices: Box<[PodDeviceClaim]>,
    /// Its extended resources that devices could provide; `None`: it requests none.
    pub extended: Option<Box<ExtendedResources>>,
    /// Why the pod should not be moved, by its own annotations and volumes.
    pub pinned: Option<Pinned>,
    /// The pod's resource usage. Set even if `spec` is invalid (from its valid parts).
    pub usage: Arc<Usage>,
    /// The pod's requirements on nodes, or why the spec is invalid.
    pub spec: Result<Arc<PodSpec>, SpecError>,
}

impl Default for Pod {
    /// Returns an unnamed pending pod without requests.
    fn default() -> Self {
        let nothing: Arc<str> = Arc::from("");
        Pod {
            uid: nothing.clone(),
            namespace: nothing.clone(),
            name: nothing.clone(),
            scheduler_name: nothing,
            node_name: None,
            nominated_node: None,
            priority: 0,
            preemption_policy: PreemptionPolicy::default(),
            created_s: 0,
            started_s: None,
            generation: 0,
            deleting: false,
            finished: false,
            gates: [].into(),
            scheduled: None,
            peer: Arc::default(),
            owner: None,
            volumes: None,
            devices: [].into(),
            extended: None,
            pinned: None,
            usage: Arc::default(),
            spec: Ok(Arc::default()),
        }
    }
}

/// Why a pod should not be moved, by the rules of cluster-autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pinned {
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`.
    NotSafeToEvict,
    /// The pod has an `emptyDir` on disk or a `hostPath`, and no annotation that it is safe to evict.
    LocalStorage,
}

/// Resources that a pod uses on its node, and what other pods there can read of it. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    pub usage: Arc<Usage>,
    pub peer: Arc<Peer>,
    pub volumes: Option<Arc<HeldVolumes>>,
    /// Resource claims; `None`: it uses none.
    pub devices: Option<Arc<DeviceClaims>>,
    pub priority: i32,
    /// The quota that the pod belongs to.
    pub quota: Option<Arc<str>>,
}

impl From<&Holding> for Holding {
    fn from(holding: &Holding) -> Self {
        holding.clone()
    }
}

impl From<&Arc<Usage>> for Holding {
    /// Returns the holding of a pod without name and labels.
    fn from(usage: &Arc<Usage>) -> Self {
        Holding { usage: usage.clone(), ..Holding::default() }
    }
}

/// A pod's requirements on nodes: the input of every rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodSpec {
    pub usage: Arc<Usage>,
    /// Sorted, without duplicates.
    pub tolerations: Box<[Toleration]>,
    /// `spec.nodeSelector`: every pair must be a label of the node.
    pub node_selector: Labels,
    pub node_affinity: NodeAffinity,
    pub pod_affinity: Arc<PodAffinity>,
    pub spread: Spread,
    /// Images of all containers and image volumes, normalised as in ImageLocality (`:latest` added); sorted, without
    /// duplicates.
    pub images: Box<[Arc<str>]>,
    /// Number of containers and init containers (ImageLocality's upper threshold grows with it).
    pub containers: u32,
    /// Requirements of the pod's claims and disks, resolved from other objects of the cluster; not a part of the pod.
    #[serde(skip)]
    pub volumes: Option<Arc<VolumeNeeds>>,
    /// Requirements of the pod's resource claims, resolved from other objects of the cluster; not a part of the pod.
    #[serde(skip)]
    pub devices: Option<Arc<DeviceNeeds>>,
    /// Features that the kubelet must declare (upstream: `nodedeclaredfeatures`); sorted.
    pub features: Box<[Arc<str>]>,
    /// Features that this version does not support; such a pod waits with a condition that names them. Sorted.
    pub unsupported: Box<[Unsupported]>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PreemptionPolicy {
    #[default]
    PreemptLowerPriority,
    Never,
}

/// `status.conditions[type=PodScheduled]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledCondition {
    pub status: bool,
    pub reason: Arc<str>,
    pub message: Arc<str>,
}

/// Validation error of a pod's spec, for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// Path of the field, e.g. `spec.containers[0].resources.requests[cpu]`.
    pub field: String,
    pub problem: String,
}

/// The controller of a pod (`metadata.ownerReferences[controller=true]`), in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodOwner {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A feature of the pod that berth does not schedule yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unsupported {
    /// Volumes of an unknown type.
    Volumes,
    SchedulingGroup,
    /// The predecessor of `schedulingGroup` in Kubernetes 1.35.
    WorkloadRef,
}

impl Unsupported {
    /// Returns the field of the pod that requires the feature.
    pub fn field(self) -> &'static str {
        match self {
            Unsupported::Volumes => "spec.volumes",
            Unsupported::SchedulingGroup => "spec.schedulingGroup",
            Unsupported::WorkloadRef => "spec.workloadRef",
        }
    }
}

/// A host port that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    /// `None`: all addresses (`0.0.0.0` or unset).
    pub ip: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: u16,
}

impl HostPort {
    /// Returns whether the ports conflict: same protocol and port, and an address in common.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip.is_none() || other.ip.is_none() || self.ip == other.ip)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}
