//! Objects of the scaler: ServiceScalers, the `scale` of their targets, its pods, and other objects that scale it. Each request
//! is sent once: the next round is the retry.

mod api;
mod objects;
mod watched;

pub use api::{ScalerChange, WorkloadScale};
pub use objects::{Other, PlannedSignal, Query, ScaledService, ScalingPlan, ScheduledBounds, sizing};
pub use watched::LeanServiceScaler;
