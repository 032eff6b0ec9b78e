//! Applying recommendations to new pods and to running pods.
//!
//! `change.rs`, `boost.rs`, `limit_range.rs` and `patch.rs` compute a pod's new requests and limits; `update.rs`, `budget.rs`
//! and `in_place.rs` decide which pods may be updated now; `index.rs` indexes VPAs, workloads and LimitRanges. Upstream: `pkg/admission-controller` and `pkg/updater` of the Vertical Pod Autoscaler.
//!
//! In case of doubt nothing is done, and [`Hold`] gives the reason.
//! May not know: kube, tokio, clocks, the scheduler.

pub mod affinity;
pub mod boost;
pub mod budget;
pub mod change;
pub mod hold;
pub mod in_place;
pub mod index;
pub mod limit_range;
pub mod memory;
pub mod mode;
pub mod patch;
pub mod pod;
pub mod qos;
pub mod update;

#[cfg(test)]
mod tests;

pub use budget::Budget;
pub use change::changes;
pub use hold::Hold;
pub use index::{Governed, SizingIndex};
pub use limit_range::{Range, Ranges};
pub use memory::UpdaterMemory;
pub use mode::Mode;
pub use pod::{Resize, Resources, SizeChange, SizedContainer, SizedPod};
pub use update::{DisruptionRules, Round, UpdateStep};
