//! API access of the service scaler: ServiceScalers, the `scale` and pods of their targets, and other autoscalers of the same
//! target. Each request is sent once: the next round is the retry.

mod api;
mod objects;
mod watched;

pub use api::{Change, Scale};
pub use objects::{Other, Plan, Query, Service, same_target};
pub use watched::LeanServiceScaler;
