//! Queue of requests by priority, then arrival, with the expected total time of the requests ahead.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Request;
use crate::queue::Place;

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
    /// Priorities of the waiting requests, in order of arrival.
    arrivals: BTreeMap<u64, Reverse<i32>>,
    /// Number of requests taken in their turn.
    turns: u64,
}

impl Queue {
    pub fn insert(&mut self, key: Place, waiting: Waiting) {
        let (sum, count) = self.ahead.entry(key.0).or_default();
        (*sum, *count) = (*sum + waiting.estimate, *count + 1);
        self.arrivals.insert(key.1, key.0);
        self.waiting.insert(key, waiting);
    }

    pub fn remove(&mut self, key: Place) -> Option<Request> {
        let waiting = self.waiting.remove(&key)?;
        self.arrivals.remove(&key.1);
        if let Some((sum, count)) = self.ahead.get_mut(&key.0) {
            // Subtracts the estimate that was added, not the real time: errors do not accumulate.
            (*sum, *count) = (*sum - waiting.estimate, *count - 1);
            if *count == 0 {
                self.ahead.remove(&key.0);
            }
        }
        Some(waiting.request)
    }

    /// Returns the next request: every `aging`th time the one that has waited longest, else the first. The flag marks
    /// the former.
    pub fn next(&self, aging: u64) -> Option<(Place, bool)> {
        if aging > 0 && self.turns % aging == aging - 1 {
            return self.arrivals.first_key_value().map(|(seq, priority)| ((*priority, *seq), true));
        }
        Some((self.first()?, false))
    }

    /// Counts a request that was taken in its turn.
    pub fn count_turn(&mut self) {
        self.turns += 1;
    }

    pub fn first(&self) -> Option<Place> {
        self.waiting.first_key_value().map(|(key, _)| *key)
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
