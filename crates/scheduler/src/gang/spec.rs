//! Spec and status of an allocation, independent of the kind of its object.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use berth_model::{LabelSelector, Peer};

/// Kind of the object that defines an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AllocationKind {
    /// `allocations.berth.dev`.
    Allocation,
    /// `podgroups.scheduling.k8s.io`, in any version that has `spec.schedulingPolicy`.
    PodGroup,
    /// `podgroups.scheduling.x-k8s.io`, of the coscheduling plugin.
    Coscheduling,
}

impl AllocationKind {
    /// Returns the `kind` of the object.
    pub fn object_kind(self) -> &'static str {
        match self {
            AllocationKind::Allocation => "Allocation",
            AllocationKind::PodGroup | AllocationKind::Coscheduling => "PodGroup",
        }
    }
}

/// Name of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AllocationName {
    pub kind: AllocationKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for AllocationName {
    /// `KIND NAMESPACE/NAME`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.object_kind(), self.namespace, self.name)
    }
}

/// Spec of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    pub name: AllocationName,
    pub uid: Arc<str>,
    pub generation: i64,
    /// Creation time in seconds since the epoch: if two allocations match a pod, it belongs to the older one.
    pub created_s: i64,
    /// Not empty. A pod belongs to the first role that it matches.
    pub roles: Box<[GangRole]>,
    /// Scheduling timeout; starts once enough members exist. After it, the allocation is not retried until it changes.
    /// `None`: no timeout.
    pub timeout: Option<Duration>,
    pub topology: Option<GangTopology>,
    /// Members with a node are evicted all together or not at all (a PodGroup's `disruptionMode: PodGroup`, later
    /// `{all: {}}`); otherwise the minimum of each role stays.
    pub evicted_whole: bool,
    /// The minimum was bound before, according to the object: later members are scheduled one by one.
    pub was_scheduled: bool,
    /// Why the spec is invalid; the members wait.
    pub problem: Option<Arc<str>>,
}

/// A group of pods in an allocation, with its own minimum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangRole {
    /// Empty if there is only one role.
    pub name: Arc<str>,
    pub members: RoleMembers,
    /// Minimum number of pods scheduled together, all or nothing. At least 1, except 0 for a group without gang
    /// scheduling.
    pub minimum: u32,
}

/// Selects the pods of a role, in the allocation's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RoleMembers {
    /// Pods with these labels.
    Selected(LabelSelector),
    /// Pods with this controller.
    Owned(OwnerName),
    /// Pods that name the group themselves: by `spec.schedulingGroup` or by a label.
    Grouped,
}

/// A controller of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerName {
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// Placement of the members relative to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangTopology {
    /// Node label: nodes with the same value are one domain.
    pub key: Arc<str>,
    pub mode: GangTopologyMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangTopologyMode {
    /// All pods in one domain, or none is placed.
    Required,
    /// All pods in one domain if one has capacity, else on any nodes.
    Preferred,
    /// As evenly over the domains as capacity allows.
    Spread,
}

/// The label by which a pod names its coscheduling group.
pub const COSCHEDULING_LABEL: &str = "scheduling.x-k8s.io/pod-group";

impl Allocation {
    /// Returns the index of the role that the pod belongs to.
    pub fn role_of(&self, pod: &Peer) -> Option<usize> {
        if pod.identity.namespace != self.name.namespace {
            return None;
        }
        self.roles.iter().position(|role| match &role.members {
            RoleMembers::Selected(selector) => selector.matches(&pod.identity.labels),
            RoleMembers::Owned(owner) => {
                pod.owner.as_ref().is_some_and(|o| o.kind == owner.kind && o.name == owner.name)
            }
            RoleMembers::Grouped => {
                let named = match self.name.kind {
                    AllocationKind::Coscheduling => pod.identity.labels.get(COSCHEDULING_LABEL),
                    _ => pod.group.as_deref(),
                };
                named == Some(&*self.name.name)
            }
        })
    }

    /// Returns the minimum number of members of all roles together.
    pub fn minimum(&self) -> u32 {
        self.roles.iter().fold(0, |sum, role| sum.saturating_add(role.minimum))
    }
}

/// Phase of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Fewer members than the minimum exist.
    Pending,
    /// Enough members exist, and are being scheduled.
    Scheduling,
    /// They do not fit.
    Unschedulable,
    /// At least the minimum is bound.
    Scheduled,
    /// The timeout has passed: not retried until the allocation changes.
    TimedOut,
    /// The spec is invalid or contradicts itself.
    Invalid,
    /// Too many older ones exist: it has no pods.
    LimitReached,
}

/// Status of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangStatus {
    pub name: AllocationName,
    pub uid: Arc<str>,
    pub observed_generation: i64,
    pub phase: Phase,
    /// Human-readable reason for waiting; empty if it does not wait.
    pub message: Arc<str>,
    /// A change that would let it be scheduled, if one is known.
    pub help: Option<Arc<str>>,
    pub roles: Box<[GangRoleStatus]>,
    /// Number of bound members by topology domain, or by node without a topology; the fullest first, truncated.
    pub placement: Box<[(Arc<str>, u32)]>,
    /// Number of matching pods that belong to an older allocation.
    pub claimed_by_others: u32,
}

/// Pod counts of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangRoleStatus {
    pub name: Arc<str>,
    pub minimum: u32,
    pub members: u32,
    pub bound: u32,
}

impl Phase {
    pub const ALL: [Phase; 7] = [
        Phase::Pending,
        Phase::Scheduling,
        Phase::Unschedulable,
        Phase::Scheduled,
        Phase::TimedOut,
        Phase::Invalid,
        Phase::LimitReached,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Scheduling => "Scheduling",
            Phase::Unschedulable => "Unschedulable",
            Phase::Scheduled => "Scheduled",
            Phase::TimedOut => "TimedOut",
            Phase::Invalid => "Invalid",
            Phase::LimitReached => "LimitReached",
        }
    }
}
