//! Where pods wait that no agent can work on now: backing off after an error, or parked because they fit nowhere.
//!
//! May not know: kube. (Pods that are ready wait in the dispatcher's lanes; gated ones are only remembered.)

mod backoff;
mod parked;

pub use backoff::{Backoff, BackoffLimits};
pub use parked::{Group, Parked, Place};
