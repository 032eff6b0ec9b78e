//! The scheduling-relevant part of a pod.

use std::sync::Arc;

use super::{
    HeldVolumes, Labels, NodeAffinity, Peer, PodAffinity, PodVolumes, Spread, Toleration, Usage, VolumeNeeds,
};

/// A pod as the scheduler sees it. Identity is `uid`: a recreated pod of the same name is another pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub scheduler_name: Arc<str>,
    /// The node it is bound to.
    pub node_name: Option<Arc<str>>,
    /// The node that another scheduler keeps room on for it (`status.nominatedNodeName`).
    pub nominated_node: Option<Arc<str>>,
    pub priority: i32,
    pub preemption_policy: PreemptionPolicy,
    /// Creation time in seconds since the epoch.
    pub created_s: i64,
    /// When a kubelet took it (`status.startTime`), in seconds since the epoch.
    pub started_s: Option<i64>,
    pub generation: i64,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Phase Succeeded or Failed: it holds nothing on its node any more.
    pub finished: bool,
    /// Names of scheduling gates; a pod with any is not to be scheduled.
    pub gates: Box<[Arc<str>]>,
    /// The `PodScheduled` condition as it stands in the API server.
    pub scheduled: Option<ScheduledCondition>,
    /// What other pods' rules see of it; the labels of its namespace are not known here yet.
    pub peer: Arc<Peer>,
    /// Its controller, for the default spreading.
    pub owner: Option<Owner>,
    /// Its volumes that say where it can run; `None`: it has no such.
    pub volumes: Option<Arc<PodVolumes>>,
    /// Why it had better not be moved, as far as it says so itself.
    pub pinned: Option<Pinned>,
    /// What it takes. Known even when `spec` is not (then as far as it could be understood).
    pub usage: Arc<Usage>,
    /// What it asks of a node, or why that could not be understood.
    pub spec: Result<Arc<PodSpec>, SpecError>,
}

impl Default for Pod {
    /// A pod without a name that asks for nothing and waits.
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
            pinned: None,
            usage: Arc::default(),
            spec: Ok(Arc::default()),
        }
    }
}

/// Why a pod had better not be moved, as cluster-autoscaler has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`.
    NotSafeToEvict,
    /// It has an `emptyDir` on disk or a `hostPath`, and is not said to be safe to evict.
    LocalStorage,
}

/// What a pod holds of its node, and shows to other pods there. Cheap to copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    pub usage: Arc<Usage>,
    pub peer: Arc<Peer>,
    pub volumes: Option<Arc<HeldVolumes>>,
    pub priority: i32,
    /// The quota that it belongs to.
    pub quota: Option<Arc<str>>,
}

impl From<&Holding> for Holding {
    fn from(holding: &Holding) -> Self {
        holding.clone()
    }
}

impl From<&Arc<Usage>> for Holding {
    /// A pod without a name or labels.
    fn from(usage: &Arc<Usage>) -> Self {
        Holding { usage: usage.clone(), ..Holding::default() }
    }
}

/// What a pod asks of a node: the input of every rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    pub usage: Arc<Usage>,
    /// Sorted, each once.
    pub tolerations: Box<[Toleration]>,
    /// `spec.nodeSelector`: every pair must be a label of the node.
    pub node_selector: Labels,
    pub node_affinity: NodeAffinity,
    pub pod_affinity: Arc<PodAffinity>,
    pub spread: Spread,
    /// Images of all containers and image volumes, normalised as ImageLocality does (`:latest` added); sorted, each
    /// once.
    pub images: Box<[Arc<str>]>,
    /// Number of containers and init containers (ImageLocality's upper threshold grows with it).
    pub containers: u32,
    /// What its claims and disks ask of a node, filled in from the other objects of the cluster.
    pub volumes: Option<Arc<VolumeNeeds>>,
    /// What it needs of the kubelet (upstream: `nodedeclaredfeatures`); sorted.
    pub features: Box<[Arc<str>]>,
    /// Things this version cannot decide yet; such a pod waits with a condition that names them. Sorted.
    pub unsupported: Box<[Unsupported]>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PreemptionPolicy {
    #[default]
    PreemptLowerPriority,
    Never,
}

/// `status.conditions[type=PodScheduled]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledCondition {
    pub status: bool,
    pub reason: Arc<str>,
    pub message: Arc<str>,
}

/// Why the spec of one pod cannot be understood, for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// Path of the field, e.g. `spec.containers[0].resources.requests[cpu]`.
    pub field: String,
    pub problem: String,
}

/// The controller of a pod (`metadata.ownerReferences[controller=true]`), in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A feature of the pod that berth does not schedule yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unsupported {
    /// Of a type that is not known here.
    Volumes,
    ResourceClaims,
    SchedulingGroup,
}

impl Unsupported {
    /// The field of the pod that asks for it.
    pub fn field(self) -> &'static str {
        match self {
            Unsupported::Volumes => "spec.volumes",
            Unsupported::ResourceClaims => "spec.resourceClaims",
            Unsupported::SchedulingGroup => "spec.schedulingGroup",
        }
    }
}

/// A port of the node that a pod takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// `None`: all addresses (`0.0.0.0` or unset).
    pub ip: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: u16,
}

impl HostPort {
    /// Two pods cannot both have it: same protocol and port, and an address in common.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip.is_none() || other.ip.is_none() || self.ip == other.ip)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}
