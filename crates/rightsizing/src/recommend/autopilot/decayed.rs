//! Histograms with exponential decay.

/// Weights of the non-empty buckets, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Decayed(Vec<(u16, f64)>);

/// Weights below this are dropped. The total weight of a histogram is at most about the number of intervals in its
/// half-life.
const NEGLIGIBLE: f64 = 1e-9;

impl Decayed {
    pub fn scale(&mut self, factor: f64) {
        self.0.retain_mut(|(_, weight)| {
            *weight *= factor;
            *weight > NEGLIGIBLE
        });
    }

    pub fn add(&mut self, shares: &[(u16, f64)], factor: f64) {
        for (bucket, share) in shares {
            match self.0.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(at) => self.0[at].1 += share * factor,
                Err(at) => self.0.insert(at, (*bucket, share * factor)),
            }
        }
    }

    pub fn weights(&self) -> &[(u16, f64)] {
        &self.0
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u16, f64)>()
    }
}

/// Returns the first bucket at which the cumulative share of `weight` reaches `percentile`; `None` without buckets.
pub(super) fn percentile(
    weights: &[(u16, f64)],
    percentile: f64,
    weight: impl Fn(&(u16, f64)) -> f64,
) -> Option<u16> {
    let threshold = percentile * weights.iter().map(&weight).sum::<f64>();
    let mut sum = 0.0;
    let reached = weights.iter().find(|each| {
        sum += weight(each);
        sum >= threshold
    });
    reached.or(weights.last()).map(|(bucket, _)| *bucket)
}

/// Returns the shares of all weight above a bucket, and below it.
pub(super) fn beside(weights: &[(u16, f64)], bucket: u16) -> (f64, f64) {
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        return (0.0, 0.0);
    }
    let sum = |of: &[(u16, f64)]| of.iter().map(|(_, weight)| weight).sum::<f64>();
    let from = weights.partition_point(|(known, _)| *known < bucket);
    let to = weights.partition_point(|(known, _)| *known <= bucket);
    (sum(&weights[to..]) / total, sum(&weights[..from]) / total)
}
