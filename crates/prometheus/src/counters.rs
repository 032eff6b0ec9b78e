//! What has been asked of Prometheus, and what came of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::decode::Answer;
use super::series::Skip;

/// Counts since the start, for metrics. They only grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// A request takes milliseconds: this lock is never waited for.
    requests: Mutex<BTreeMap<u16, RequestCount>>,
    series: AtomicU64,
    samples: AtomicU64,
    skipped: [AtomicU64; Skip::ALL.len()],
    retries: AtomicU64,
    /// Queries that were too much for Prometheus and asked again in two halves.
    halved: AtomicU64,
}

/// Upper bounds of the times that requests take, in seconds, as upstream counts them.
pub const REQUEST_SECONDS: [f64; 21] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0,
];

/// Requests with one status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCount {
    pub count: u64,
    /// Those that took not longer than each of [`REQUEST_SECONDS`] and longer than the one before, and the others.
    pub within: [u64; REQUEST_SECONDS.len() + 1],
    /// The time until the first bytes of their answers, in all.
    pub waited: Duration,
}

impl Counters {
    /// The method of all requests, for a metric's label.
    pub const METHOD: &'static str = "POST";

    /// Requests by HTTP status code; 0 for those that got no answer.
    pub fn requests(&self) -> BTreeMap<u16, RequestCount> {
        self.requests.lock().clone()
    }

    /// Series handed on.
    pub fn series(&self) -> u64 {
        self.series.load(Ordering::Relaxed)
    }

    /// Samples handed on.
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// Series or samples skipped for this reason.
    pub fn skipped(&self, reason: Skip) -> u64 {
        self.skipped[reason as usize].load(Ordering::Relaxed)
    }

    /// Requests that were sent again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Queries that were too much for Prometheus and were asked again in parts.
    pub fn halved(&self) -> u64 {
        self.halved.load(Ordering::Relaxed)
    }

    pub(super) fn request(&self, code: u16, waited: Duration) {
        let mut requests = self.requests.lock();
        let request = requests.entry(code).or_default();
        request.count += 1;
        request.waited += waited;
        let seconds = waited.as_secs_f64();
        request.within[REQUEST_SECONDS.iter().take_while(|bound| seconds > **bound).count()] += 1;
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn halve(&self) {
        self.halved.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answer(&self, answer: &Answer) {
        self.series.fetch_add(answer.series, Ordering::Relaxed);
        self.samples.fetch_add(answer.samples, Ordering::Relaxed);
        for reason in Skip::ALL {
            self.skipped[reason as usize].fetch_add(answer.skipped.get(reason), Ordering::Relaxed);
        }
    }
}
