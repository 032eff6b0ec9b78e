//! Queues of pods that cannot be scheduled now: in backoff after an error, or parked because they fit on no node.
//!
//! Must not depend on kube. (Ready pods wait in the dispatcher's lanes; gated ones are only remembered.)

mod backoff;
mod parked;

/// Every `AGED_TURN`-th pod taken from a queue is the one that waits longest, whatever its priority. This prevents
/// starvation behind a stream of pods with higher priority, which lose at most a sixteenth of the turns.
pub const AGED_TURN: u64 = 16;

pub use backoff::{Backoff, BackoffLimits};
pub use parked::{Parked, ParkedGroup, Place};
