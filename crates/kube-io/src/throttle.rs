//! Rate limit of a repeated warning.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum interval between two warnings.
const EVERY: Duration = Duration::from_secs(30);

/// Lets one warning pass per interval.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Returns whether a warning may be logged now, and counts it as logged.
    pub fn is_due(&self) -> bool {
        let (now, mut last) = (Instant::now(), self.last.lock());
        let is_due = last.is_none_or(|last| now - last >= EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}
