//! Queue of requests by priority, then arrival, with the expected total time of the requests ahead.
//!
//! A list must follow all nodes that changed since its last use, so pods of many classes in turn cost much more than
//! bursts of one class. Where many requests wait, those of the class that was taken last go first: few of them, and
//! only before requests that came shortly before them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Request;
use crate::class::ClassId;
use crate::queue::Place;

/// Fewer waiting requests than this are taken strictly in their order.
pub(super) const BURST_FROM: usize = 512;
/// Largest number of requests of one class that are taken in a row while an earlier one of the same priority waits.
pub(super) const BURST_MAX: u32 = 16;
/// A request overtakes none that came so many arrivals before it.
pub(super) const BURST_WINDOW: u64 = 4096;

/// Added to the arrival of a request in its place: it comes after all others of its priority, except when it is the one that has
/// waited longest.
pub const TRIED_BEFORE: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Waiting {
    pub request: Request,
    pub estimate: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<Place, Waiting>,
    /// Sum of estimates and number of requests per priority. A request waits behind the sum over its own and higher
    /// priorities.
    ahead: BTreeMap<Reverse<i32>, (Duration, usize)>,
    /// The waiting requests in order of arrival.
    arrivals: BTreeMap<u64, Place>,
    /// The waiting requests of single pods by priority, class and arrival.
    by_class: BTreeSet<(Reverse<i32>, ClassId, u64)>,
    burst: Option<Burst>,
    /// Number of requests taken in their turn.
    turns: u64,
}

/// Requests of one class that are taken in a row.
#[derive(Debug)]
struct Burst {
    class: ClassId,
    priority: Reverse<i32>,
    taken: u32,
}

impl Queue {
    pub fn insert(&mut self, key: Place, waiting: Waiting) {
        let (sum, count) = self.ahead.entry(key.0).or_default();
        (*sum, *count) = (*sum + waiting.estimate, *count + 1);
        self.arrivals.insert(key.1 & !TRIED_BEFORE, key);
        if waiting.request.pods == 1 {
            self.by_class.insert((key.0, waiting.request.class.id, key.1));
        }
        self.waiting.insert(key, waiting);
    }

    pub fn remove(&mut self, key: Place) -> Option<Request> {
        let waiting = self.waiting.remove(&key)?;
        self.arrivals.remove(&(key.1 & !TRIED_BEFORE));
        self.by_class.remove(&(key.0, waiting.request.class.id, key.1));
        if let Some((sum, count)) = self.ahead.get_mut(&key.0) {
            // Subtracts the estimate that was added, not the real time: errors do not accumulate.
            (*sum, *count) = (*sum - waiting.estimate, *count - 1);
            if *count == 0 {
                self.ahead.remove(&key.0);
            }
        }
        Some(waiting.request)
    }

    /// Returns the next request: every `aging`th time the one that has waited longest, else the next of a burst or the
    /// first. The flag marks the one that has waited longest.
    pub fn next(&self, aging: u64) -> Option<(Place, bool)> {
        if aging > 0 && self.turns % aging == aging - 1 {
            return self.arrivals.first_key_value().map(|(_, key)| (*key, true));
        }
        let first = self.waiting.first_key_value().map(|(key, _)| *key)?;
        Some((self.next_of_burst(first).unwrap_or(first), false))
    }

    /// Returns the next request of the current burst, if it may overtake the first one.
    fn next_of_burst(&self, first: Place) -> Option<Place> {
        let goes_on = |burst: &&Burst| burst.taken < BURST_MAX && burst.priority == first.0;
        let burst = self.burst.as_ref().filter(goes_on).filter(|_| self.len() >= BURST_FROM)?;
        let (priority, class, seq) = *self.by_class.range((burst.priority, burst.class, 0)..).next()?;
        let may = (priority, class) == (burst.priority, burst.class) && seq - first.1 < BURST_WINDOW;
        may.then_some((priority, seq))
    }

    /// Removes a request in its turn.
    pub fn take(&mut self, key: Place) -> Option<Request> {
        let request = self.remove(key)?;
        self.turns += 1;
        let same = |burst: &&mut Burst| (burst.class, burst.priority) == (request.class.id, key.0);
        match self.burst.as_mut().filter(same) {
            Some(burst) if burst.taken < BURST_MAX => burst.taken += 1,
            _ => self.burst = Some(Burst { class: request.class.id, priority: key.0, taken: 1 }),
        }
        Some(request)
    }

    pub fn get(&self, key: Place) -> Option<&Waiting> {
        self.waiting.get(&key)
    }

    /// Returns the expected time that a new request of this priority would wait.
    pub fn time_ahead(&self, priority: i32) -> Duration {
        self.ahead.range(..=Reverse(priority)).map(|(_, (sum, _))| *sum).sum()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.ahead.is_empty()
    }
}
