//! Backoff queue for pods after errors: 1 s at first, doubled on each failure, 10 s at most.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffLimits {
    pub initial: Duration,
    pub max: Duration,
}

impl BackoffLimits {
    /// Returns the backoff after this many consecutive failures; 1 is the first.
    pub fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }
}

/// Pods ordered by the end of their backoff.
#[derive(Debug, Default)]
pub struct Backoff {
    by_time: BTreeSet<(Duration, Arc<str>)>,
}

impl Backoff {
    pub fn insert(&mut self, until: Duration, uid: &Arc<str>) {
        self.by_time.insert((until, uid.clone()));
    }

    pub fn remove(&mut self, until: Duration, uid: &Arc<str>) {
        self.by_time.remove(&(until, uid.clone()));
    }

    pub fn contains(&self, until: Duration, uid: &Arc<str>) -> bool {
        self.by_time.contains(&(until, uid.clone()))
    }

    /// Removes and returns the next pod whose backoff has ended.
    pub fn pop_due(&mut self, now: Duration) -> Option<Arc<str>> {
        let (until, _) = self.by_time.first()?;
        if *until > now {
            return None;
        }
        self.by_time.pop_first().map(|(_, uid)| uid)
    }

    pub fn len(&self) -> usize {
        self.by_time.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_pause_doubles_from_one_to_ten_seconds() {
        let limits = BackoffLimits { initial: S, max: 10 * S };
        let pauses: Vec<_> = (1..=6).map(|failures| limits.after(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(limits.after(u32::MAX), 10 * S);
    }

    #[test]
    fn pods_come_back_in_order_of_time_and_not_before() {
        let mut backoff = Backoff::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        backoff.insert(2 * S, &a);
        backoff.insert(S, &b);
        assert_eq!(backoff.pop_due(Duration::ZERO), None);
        assert_eq!(backoff.pop_due(3 * S), Some(b));
        backoff.remove(2 * S, &a);
        assert!(backoff.is_empty());
    }
}
