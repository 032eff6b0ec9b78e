//! Bucket weights of a histogram, stored sparsely.
//!
//! A container's usage touches 10 to 30 of 176 buckets, so the weights are a short sorted list of 10 bytes per
//! entry.
//! Upstream: `pkg/recommender/util/histogram.go`, whose array has the same weights.

use super::buckets::Buckets;
use super::histogram_checkpoint::{CheckpointError, HistogramCheckpoint};

/// Weight of the largest bucket in a checkpoint; the other weights are scaled in proportion.
const CHECKPOINT_WEIGHT_MAX: f64 = 10_000.0;

/// Far above any sum of samples; larger totals could make sums infinite.
const LOADED_TOTAL_MAX: f64 = 1e100;

/// Weights below this are dropped when weights are scaled down. Percentile sums start with a weight of at least
/// epsilon, and adding a value this small to it changes no bit.
const NEGLIGIBLE: f64 = 1e-30;

/// Number of entries by which a full list grows.
const GROWTH: usize = 2;

/// Weights by bucket, and their running sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Weights {
    /// Sorted by bucket.
    entries: Vec<Entry>,
    total: f64,
}

/// 10 bytes: the weight is stored unaligned.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    bucket: u16,
    weight: [u8; 8],
}

impl Entry {
    fn weight(&self) -> f64 {
        f64::from_ne_bytes(self.weight)
    }

    fn set(&mut self, weight: f64) {
        self.weight = weight.to_ne_bytes();
    }
}

impl Weights {
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    pub(super) fn add(&mut self, buckets: &Buckets, value: f64, weight: f64) {
        self.add_to_bucket(buckets.find(value), weight);
        self.total += weight;
    }

    /// Removes a sample that was added before. A remainder below epsilon counts as zero.
    pub(super) fn subtract(&mut self, buckets: &Buckets, value: f64, weight: f64) {
        let less = |from: f64| if from - weight < buckets.epsilon() { 0.0 } else { from - weight };
        if let Ok(at) = self.position(buckets.find(value)) {
            let rest = less(self.entries[at].weight());
            if rest == 0.0 {
                self.entries.remove(at);
            } else {
                self.entries[at].set(rest);
            }
        }
        self.total = less(self.total);
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.total *= factor;
        self.entries.retain_mut(|entry| {
            entry.set(entry.weight() * factor);
            entry.weight() >= NEGLIGIBLE
        });
    }

    /// Adds the weights of `other` times `factor`. As in upstream, only buckets between the first and the last with
    /// at least epsilon are added.
    pub(super) fn merge(&mut self, buckets: &Buckets, other: &Self, factor: f64) {
        let has_weight = |entry: &Entry| entry.weight() * factor >= buckets.epsilon();
        for entry in between(&other.entries, has_weight) {
            self.add_to_bucket(entry.bucket, entry.weight() * factor);
        }
        self.total += other.total * factor;
    }

    pub(super) fn is_empty(&self, buckets: &Buckets) -> bool {
        self.range(buckets).is_empty()
    }

    /// Returns the end of the first bucket at which the cumulative share of the total weight reaches `percentile`;
    /// 0 without weights.
    pub(super) fn percentile(&self, buckets: &Buckets, percentile: f64) -> f64 {
        let range = self.range(buckets);
        let Some(last) = range.last() else { return 0.0 };
        let threshold = percentile * self.total;
        let mut sum = 0.0;
        let reached = range.iter().find(|entry| {
            sum += entry.weight();
            sum >= threshold
        });
        buckets.end(reached.unwrap_or(last).bucket)
    }

    pub(super) fn save(&self, buckets: &Buckets) -> HistogramCheckpoint {
        let range = self.range(buckets);
        let max = range.iter().map(Entry::weight).fold(0.0, f64::max);
        let ratio = CHECKPOINT_WEIGHT_MAX / max;
        let rounded =
            |entry: &Entry| (i64::from(entry.bucket), (entry.weight() * ratio + 0.5).floor() as i64);
        HistogramCheckpoint {
            bucket_weights: range.iter().map(rounded).filter(|(_, weight)| *weight > 0).collect(),
            total_weight: self.total,
            ..HistogramCheckpoint::default()
        }
    }

    /// Adds the weights of a checkpoint. On error nothing changes.
    pub(super) fn load(
        &mut self,
        buckets: &Buckets,
        saved: &HistogramCheckpoint,
    ) -> Result<(), CheckpointError> {
        let mut sum = 0.0;
        for (&bucket, &weight) in &saved.bucket_weights {
            if !(0..i64::from(buckets.count())).contains(&bucket) {
                return Err(CheckpointError::Bucket { bucket, count: buckets.count() });
            }
            if !(0..=i64::from(u32::MAX)).contains(&weight) {
                return Err(CheckpointError::BucketWeight { bucket, weight });
            }
            sum += weight as f64;
        }
        if !(0.0..=LOADED_TOTAL_MAX).contains(&saved.total_weight) {
            return Err(CheckpointError::TotalWeight(saved.total_weight));
        }
        if sum == 0.0 {
            return Ok(());
        }
        let ratio = saved.total_weight / sum;
        for (&bucket, &weight) in &saved.bucket_weights {
            self.add_to_bucket(bucket as u16, weight as f64 * ratio);
        }
        self.total += saved.total_weight;
        Ok(())
    }

    /// Returns the buckets that have an entry, with their weights.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, f64)> + '_ {
        self.entries.iter().map(|entry| (entry.bucket, entry.weight()))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the entries from the first to the last with a weight of at least epsilon.
    fn range(&self, buckets: &Buckets) -> &[Entry] {
        between(&self.entries, |entry| entry.weight() >= buckets.epsilon())
    }

    fn position(&self, bucket: u16) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&bucket, |entry| entry.bucket)
    }

    fn add_to_bucket(&mut self, bucket: u16, weight: f64) {
        match self.position(bucket) {
            Ok(at) => {
                let entry = &mut self.entries[at];
                entry.set(entry.weight() + weight);
            }
            Err(_) if weight == 0.0 => {}
            Err(at) => {
                if self.entries.len() == self.entries.capacity() {
                    self.entries.reserve_exact(GROWTH);
                }
                self.entries.insert(at, Entry { bucket, weight: weight.to_ne_bytes() });
            }
        }
    }
}

/// Returns the entries from the first to the last for which `is_end` holds.
fn between(entries: &[Entry], is_end: impl Fn(&Entry) -> bool) -> &[Entry] {
    let first = entries.iter().position(&is_end);
    let last = entries.iter().rposition(is_end);
    first.zip(last).map_or(&[], |(first, last)| &entries[first..=last])
}
