//! Gang scheduling: allocations, whose pods are scheduled all or nothing.
//!
//! Must not depend on kube, tokio or clocks. `spec.rs` defines allocations and their status, `index.rs` finds the
//! allocation of a pod, `plan.rs` defines an agent's placement of the members. The scheduler keeps the state
//! (`scheduler/gangs.rs`).

mod index;
mod plan;
mod spec;

pub use index::{ALLOCATIONS_MAX, Allocations, CONSIDERED_MAX, LOSERS_MAX, Membership, Shift};
pub use plan::{GangPlan, Lacking, UnboundMember, WantedMembers};
pub use spec::{
    Allocation, AllocationKind, AllocationName, COSCHEDULING_LABEL, GangRole, GangRoleStatus, GangStatus,
    GangTopology, GangTopologyMode, OwnerName, Phase, RoleMembers,
};
