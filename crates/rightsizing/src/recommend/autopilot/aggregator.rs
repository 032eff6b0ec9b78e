//! Aggregation of samples into histograms of 5 minutes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::recommend::buckets::Buckets;
use crate::recommend::time::UnixNanos;

/// Length of one histogram's interval, in nanoseconds.
pub const INTERVAL_NS: i64 = 300_000_000_000;

/// Usage in one interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// Intervals since 1970.
    pub number: i64,
    /// Buckets and the share of samples in each, in order; the sum is 1. Never empty.
    pub shares: Vec<(u16, f64)>,
    /// Mean of the counted samples, in cores or bytes.
    pub mean: f64,
}

impl Interval {
    /// Returns the highest non-empty bucket.
    pub fn peak(&self) -> u16 {
        self.shares.last().map_or(0, |(bucket, _)| *bucket)
    }
}

/// Collects the samples of one container's pods. Their times never go back by more than the open interval.
#[derive(Debug, Clone)]
pub struct Aggregator {
    buckets: Arc<Buckets>,
    /// Whether only the highest sample of each pod in an interval counts.
    peaks_only: bool,
    open: Option<Open>,
}

#[derive(Debug, Clone, Default)]
struct Open {
    number: i64,
    counts: BTreeMap<u16, u32>,
    sum: f64,
    count: u32,
    /// Peak by pod, used when only peaks count.
    peaks: BTreeMap<u64, f64>,
}

impl Aggregator {
    pub fn new(buckets: &Arc<Buckets>, peaks_only: bool) -> Self {
        Aggregator { buckets: buckets.clone(), peaks_only, open: None }
    }

    /// Adds a usage of a pod (cores or bytes; invalid values are ignored), and returns the interval that ended
    /// before it, if any. A sample of an interval that has ended is ignored.
    pub fn add(&mut self, pod: u64, time: UnixNanos, value: f64) -> Option<Interval> {
        if !crate::recommend::amount::is_usage(value) {
            return None;
        }
        let closed = self.close(time);
        let number = time.div_euclid(INTERVAL_NS);
        let open = self.open.get_or_insert_with(|| Open { number, ..Open::default() });
        if open.number > number {
            return closed;
        }
        if self.peaks_only {
            let peak = open.peaks.entry(pod).or_insert(value);
            *peak = peak.max(value);
        } else {
            open.count(&self.buckets, value);
        }
        closed
    }

    /// Returns the open interval, if it has ended at `now`.
    pub fn close(&mut self, now: UnixNanos) -> Option<Interval> {
        let ended = self.open.as_ref().is_some_and(|open| open.number < now.div_euclid(INTERVAL_NS));
        let open = self.open.take_if(|_| ended)?;
        Some(open.closed(&self.buckets))
    }

    /// Returns the open interval as if it ended now.
    pub fn peek(&self) -> Option<Interval> {
        self.open.clone().map(|open| open.closed(&self.buckets))
    }
}

impl Open {
    fn count(&mut self, buckets: &Buckets, value: f64) {
        let count = self.counts.entry(buckets.find(value)).or_default();
        *count = count.saturating_add(1);
        self.count = self.count.saturating_add(1);
        self.sum += value;
    }

    fn closed(mut self, buckets: &Buckets) -> Interval {
        for peak in std::mem::take(&mut self.peaks).into_values() {
            self.count(buckets, peak);
        }
        let count = f64::from(self.count.max(1));
        let shares = self.counts.iter().map(|(bucket, of)| (*bucket, f64::from(*of) / count)).collect();
        Interval { number: self.number, shares, mean: self.sum / count }
    }
}
