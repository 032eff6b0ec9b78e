//! Allocations: pods that are placed together or not at all.
//!
//! May not know: kube, tokio, clocks. What an allocation is, and what is told of it, is in `spec.rs`; which one a pod belongs to
//! in `index.rs`; where an agent would place its members in `plan.rs`. The scheduler has the state (`scheduler/gangs.rs`).

mod index;
mod plan;
mod spec;

pub use index::{Allocations, Membership};
pub use plan::{Candidate, Lacking, Plan, Wanted};
pub use spec::{
    Allocation, AllocationKind, AllocationName, AllocationStatus, COSCHEDULING_LABEL, Members, OwnerName,
    Phase, Role, RoleStatus, Topology, TopologyMode,
};
