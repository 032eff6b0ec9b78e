//! Services that are scaled, as the API server has them: ServiceScalers, the `scale` of what they target, its pods, and who else
//! scales it. Each request is sent once: the next round is the retry.

mod api;
mod objects;
mod watched;

pub use api::{Change, Scale};
pub use objects::{Other, Plan, Query, Service, same_target};
pub use watched::LeanServiceScaler;
