//! Services that are scaled, as the API server has them: ServiceScalers, the `scale` of what they target, its pods, and who else
//! scales it. Each request is sent once: the next round is the retry.

mod api;
mod objects;

pub use api::{Change, Scale};
pub use objects::{Other, Plan, Query, Service, same_target};
