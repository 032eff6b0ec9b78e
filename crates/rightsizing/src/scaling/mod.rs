//! Sizes and replica count of a workload: SHOWAR (SoCC'21) as a single decision function.
//!
//! The vertical half ([`vertical`]) sizes containers by the mean and the deviation of their usage; the horizontal
//! half ([`horizontal`]) is a PID controller that keeps a saturation signal at its setpoint, or makes the replicas follow
//! it in proportion; [`coordinate`] runs the vertical half first, and adds replicas for containers that need more than
//! one CPU. All of it is one call of [`decide`] at an interval chosen by the caller (15 s works well): settings, state,
//! observation and time in, a [`Decision`] out. The state ([`ScalerMemory`]) is small and survives a restart in the
//! status of an object.
//!
//! CPU is in millicores, memory in bytes, times are seconds since the Unix epoch. All input from the cluster is
//! untrusted: invalid values change nothing, and the decision reports them. May not know: kube, tokio, clocks.

pub mod behavior;
pub mod coordinate;
pub mod history;
pub mod horizontal;
pub mod observation;
pub mod replay;
pub mod settings;
pub mod shares;
pub mod vertical;
pub mod window;

#[cfg(test)]
mod tests;

pub use coordinate::{Decision, ScalerMemory, decide};
pub use history::{ObservedSpans, PastUsage};
pub use observation::{Container, Measured, Observation, Point, Size};
pub use settings::{Bounds, Fallback, Gains, Horizontal, ReplicaRule, ScalingSettings, Vertical};
pub use window::{MeasuredKind, Windows};
