//! Counter of units of work: pods, rows, charges and classes that the scheduler visits.
//!
//! Each collection that grows with the cluster counts the elements that a walk over it visits, so that no walk escapes. The
//! sum tells what one operation under the engine's lock costs, without a clock: it is bounded by
//! [`Operation::visits_max`](crate::engine::Operation::visits_max), which tests assert.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of elements of one collection that were visited. Counted by one thread at a time.
#[derive(Debug, Default)]
pub struct Visits(AtomicU64);

impl Visits {
    /// Counts one element.
    pub fn add_one(&self) {
        // Not atomic as a whole: whoever walks holds the lock.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the number of elements visited since the collection was made.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Visits {
    fn clone(&self) -> Self {
        Visits(AtomicU64::new(self.count()))
    }
}
