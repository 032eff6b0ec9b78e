//! Allocations: pods that are placed together or not at all.
//!
//! May not know: kube, tokio, clocks. What an allocation is, and what is told of it, is in `spec.rs`.

mod spec;

pub use spec::{
    Allocation, AllocationKind, AllocationName, AllocationStatus, COSCHEDULING_LABEL, Members, OwnerName,
    Phase, Role, RoleStatus, Topology, TopologyMode,
};
