//! Metrics of the spans of placements.

use std::sync::atomic::AtomicU64;

/// What became of the placements of this process that are in the sample.
#[derive(Debug, Default)]
pub struct SpanCounters {
    pub sent: AtomicU64,
    /// The collector did not take them.
    pub failed: AtomicU64,
    /// Of all placements: forgotten before they were read.
    pub missed: AtomicU64,
}
