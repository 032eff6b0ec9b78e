//! How large the pods of a workload should be, and how many there should be: SHOWAR (SoCC'21) made into one decision.
//!
//! The vertical half ([`vertical`]) sizes containers by the mean and the deviation of what they use; the horizontal
//! half ([`horizontal`]) is a PID controller that keeps a measure of saturation at its setpoint; [`coordinate`] lets the
//! vertical half go first, and turns what one CPU is too small for into replicas. Everything is one call of [`decide`],
//! as often as the caller likes (every 15 s is good): settings, what is remembered, what was observed and the time in,
//! a [`Decision`] out. What is remembered ([`Memory`]) is small and survives a restart in the status of an object.
//!
//! CPU is in millicores, memory in bytes, times are seconds since the Unix epoch. All that comes from a cluster may be
//! wrong in any way: what cannot be believed changes nothing, and the decision says so. May not know: kube, tokio, clocks.

pub mod behavior;
pub mod coordinate;
pub mod horizontal;
pub mod observation;
pub mod settings;
pub mod shares;
pub mod vertical;
pub mod window;

#[cfg(test)]
mod tests;

pub use coordinate::{Decision, Memory, decide};
pub use observation::{Container, Measured, Observation, Point, Size};
pub use settings::{Bounds, Gains, Horizontal, Settings, Vertical};
pub use window::{Kind, Windows};
