//! What an allocation asks for, whichever object says so, and what is told of it.

use std::sync::Arc;
use std::time::Duration;

use berth_model::{LabelSelector, Peer};

/// The object that makes pods one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllocationKind {
    /// `allocations.berth.dev`.
    Allocation,
    /// `podgroups.scheduling.k8s.io`, in any version that has `spec.schedulingPolicy`.
    PodGroup,
    /// `podgroups.scheduling.x-k8s.io`, of the coscheduling plugin.
    Coscheduling,
}

/// An allocation by all its names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocationName {
    pub kind: AllocationKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// What an allocation asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub name: AllocationName,
    pub uid: Arc<str>,
    pub generation: i64,
    /// Creation time in seconds since the epoch: of two that claim a pod, the older one has it.
    pub created_s: i64,
    /// At least one. A pod belongs to the first role that it matches.
    pub roles: Box<[Role]>,
    /// Once enough members are there and could not be placed for so long, no more is tried until something about the
    /// allocation changes. `None`: it waits for ever.
    pub timeout: Option<Duration>,
    pub topology: Option<Topology>,
    /// Its minimum was bound once, as its object says: members that come later are placed one by one.
    pub was_scheduled: bool,
    /// Its spec cannot be understood, for this reason; its members wait.
    pub problem: Option<Arc<str>>,
}

/// A part of an allocation with a minimum of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Empty when there is only one.
    pub name: Arc<str>,
    pub members: Members,
    /// So many of them are placed, or none at all. At least 1, but for a group whose pods need not come together: 0.
    pub minimum: u32,
}

/// Which pods of the namespace belong to a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// Those with these labels.
    Selected(LabelSelector),
    /// Those with this controller.
    Owned(OwnerName),
    /// Those that name the group themselves: by `spec.schedulingGroup` or by a label.
    Grouped,
}

/// A controller of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerName {
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// Where the members of an allocation are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// A label of nodes: those with the same value are one domain.
    pub key: Arc<str>,
    pub mode: TopologyMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyMode {
    /// All in one domain, or none at all.
    Required,
    /// All in one domain if there is one with room, else anywhere.
    Preferred,
    /// As evenly over the domains as there is room.
    Spread,
}

/// The label by which a pod names its coscheduling group.
pub const COSCHEDULING_LABEL: &str = "scheduling.x-k8s.io/pod-group";

impl Allocation {
    /// The role that the pod belongs to, by its place.
    pub fn role_of(&self, pod: &Peer) -> Option<usize> {
        if pod.identity.namespace != self.name.namespace {
            return None;
        }
        self.roles.iter().position(|role| match &role.members {
            Members::Selected(selector) => selector.matches(&pod.identity.labels),
            Members::Owned(owner) => {
                pod.owner.as_ref().is_some_and(|o| o.kind == owner.kind && o.name == owner.name)
            }
            Members::Grouped => {
                let named = match self.name.kind {
                    AllocationKind::Coscheduling => pod.identity.labels.get(COSCHEDULING_LABEL),
                    _ => pod.group.as_deref(),
                };
                named == Some(&*self.name.name)
            }
        })
    }

    /// So many members in all are placed, or none.
    pub fn minimum(&self) -> u32 {
        self.roles.iter().fold(0, |sum, role| sum.saturating_add(role.minimum))
    }
}

/// Where an allocation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Fewer members than the minimum exist.
    Pending,
    /// Enough members exist, and are about to be placed.
    Scheduling,
    /// They do not fit.
    Unschedulable,
    /// At least the minimum is bound.
    Scheduled,
    /// It has been waiting for longer than its timeout: no more is tried until something about it changes.
    TimedOut,
    /// Its spec cannot be understood, or contradicts itself.
    Invalid,
}

/// What is told of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationStatus {
    pub name: AllocationName,
    pub uid: Arc<str>,
    pub observed_generation: i64,
    pub phase: Phase,
    /// One sentence or more for people: why it waits, or nothing.
    pub message: Arc<str>,
    /// What would help it, if that is known.
    pub help: Option<Arc<str>>,
    pub roles: Box<[RoleStatus]>,
    /// Bound members by domain of its topology, or by node without one; the fullest first, cut to the first few.
    pub placement: Box<[(Arc<str>, u32)]>,
    /// Members that another, older allocation has.
    pub claimed_by_others: u32,
}

/// How many of a role there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleStatus {
    pub name: Arc<str>,
    pub minimum: u32,
    pub members: u32,
    pub bound: u32,
}

impl Phase {
    pub const ALL: [Phase; 6] = [
        Phase::Pending,
        Phase::Scheduling,
        Phase::Unschedulable,
        Phase::Scheduled,
        Phase::TimedOut,
        Phase::Invalid,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Scheduling => "Scheduling",
            Phase::Unschedulable => "Unschedulable",
            Phase::Scheduled => "Scheduled",
            Phase::TimedOut => "TimedOut",
            Phase::Invalid => "Invalid",
        }
    }
}
