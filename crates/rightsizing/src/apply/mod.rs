//! Applying what is recommended: to pods when they are created, and to those that run.
//!
//! What a recommendation makes of a pod's requests and limits is in `change.rs`, `limit_range.rs` and `patch.rs`; which pods may be
//! updated now is in `update.rs`, `budget.rs` and `in_place.rs`; what is known of VPAs, owners and LimitRanges while a pod is
//! created is in `index.rs`. Upstream: `pkg/admission-controller` and `pkg/updater` of the Vertical Pod Autoscaler.
//!
//! Whenever anything is in doubt nothing is done, and [`Hold`] says why.
//! May not know: kube, tokio, clocks, the scheduler.

pub mod affinity;
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
pub use change::{Change, changes};
pub use hold::Hold;
pub use index::{Governed, Index};
pub use limit_range::{Range, Ranges};
pub use memory::Memory;
pub use mode::Mode;
pub use pod::{Container, Pod, Resize, Resources};
pub use update::{Round, Rules, Step};
