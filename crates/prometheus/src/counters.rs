//! Counters of Prometheus requests and their results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::decode::ResponseSummary;
use super::series::Skip;

/// Monotonic counters since the start, for metrics.
#[derive(Debug, Default)]
pub struct QueryCounters {
    /// A request takes milliseconds: this lock is never contended.
    requests: Mutex<BTreeMap<u16, RequestCount>>,
    series: AtomicU64,
    samples: AtomicU64,
    skipped: [AtomicU64; Skip::ALL.len()],
    retries: AtomicU64,
    /// Queries that exceeded a limit of Prometheus and were sent again in two halves.
    halved: AtomicU64,
}

/// Upper bounds of request durations, in seconds, as upstream's buckets.
pub const REQUEST_SECONDS: [f64; 21] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0,
];

/// Requests with one status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCount {
    pub count: u64,
    /// Requests by duration: one count per bucket of [`REQUEST_SECONDS`], the last one for all longer requests.
    pub within: [u64; REQUEST_SECONDS.len() + 1],
    /// Sum of the times until the first bytes of the responses.
    pub waited: Duration,
}

impl QueryCounters {
    /// HTTP method of all requests, as a metric label.
    pub const METHOD: &'static str = "POST";

    /// Requests by HTTP status code; 0 for requests without a response.
    pub fn requests(&self) -> BTreeMap<u16, RequestCount> {
        self.requests.lock().clone()
    }

    /// Series passed on.
    pub fn series(&self) -> u64 {
        self.series.load(Ordering::Relaxed)
    }

    /// Samples passed on.
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

    /// Queries that exceeded a limit of Prometheus and were sent again in parts.
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

    pub(super) fn answer(&self, answer: &ResponseSummary) {
        self.series.fetch_add(answer.series, Ordering::Relaxed);
        self.samples.fetch_add(answer.samples, Ordering::Relaxed);
        for reason in Skip::ALL {
            self.skipped[reason as usize].fetch_add(answer.skipped.get(reason), Ordering::Relaxed);
        }
    }
}
