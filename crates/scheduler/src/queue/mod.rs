//! Where pods wait that no agent can work on now: backing off after an error, or parked because they fit nowhere.
//!
//! May not know: kube. (Pods that are ready wait in the dispatcher's lanes; gated ones are only remembered.)

mod backoff;
mod parked;

/// Of so many that are taken from a queue one is the one that waits longest, whatever its priority: nobody waits for ever behind
/// a stream of more important ones, who lose a sixteenth of the turns by it at most.
pub const AGED_TURN: u64 = 16;

pub use backoff::{Backoff, BackoffLimits};
pub use parked::{Group, Parked, Place};
