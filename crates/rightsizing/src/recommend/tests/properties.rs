//! Histograms compared with a dense model written directly from upstream's formulas.

use std::sync::Arc;

use proptest::prelude::*;

use super::{HOUR, T0};
use crate::recommend::buckets::Buckets;
use crate::recommend::histogram::{HistogramOptions, UsageHistogram};
use crate::recommend::time::{NEVER, UnixNanos, round_to_multiple};

const PERCENTILES: [f64; 7] = [0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0];

fn options() -> Arc<HistogramOptions> {
    let buckets = Buckets::exponential(1000.0, 0.01, 1.05, 1e-4).expect("buckets");
    Arc::new(HistogramOptions::new(buckets, HOUR, 0.1))
}

/// Upstream's layout: all buckets, and the first and last ones with at least epsilon.
#[derive(Clone)]
struct Dense {
    options: Arc<HistogramOptions>,
    weights: Vec<f64>,
    total: f64,
    min: usize,
    max: usize,
    reference: UnixNanos,
}

impl Dense {
    fn new(options: &Arc<HistogramOptions>) -> Self {
        let count = usize::from(options.buckets().count());
        let (weights, options) = (vec![0.0; count], options.clone());
        Self { options, weights, total: 0.0, min: count - 1, max: 0, reference: NEVER }
    }

    fn epsilon(&self) -> f64 {
        self.options.buckets().epsilon()
    }

    fn weight_of(&mut self, time: UnixNanos) -> f64 {
        if self.reference == NEVER || time > self.reference + 100 * HOUR {
            self.shift(time);
        }
        0.1 * ((time - self.reference) as f64 / HOUR as f64).exp2()
    }

    fn shift(&mut self, to: UnixNanos) {
        let to = round_to_multiple(to, HOUR);
        let half_lives = (self.reference.saturating_sub(to) as f64 / HOUR as f64 + 0.5).floor();
        let factor = half_lives.exp2();
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        self.total *= factor;
        self.shrink();
        self.reference = to;
    }

    fn shrink(&mut self) {
        while self.weights[self.min] < self.epsilon() && self.min < self.weights.len() - 1 {
            self.min += 1;
        }
        while self.weights[self.max] < self.epsilon() && self.max > 0 {
            self.max -= 1;
        }
    }

    fn add(&mut self, value: f64, time: UnixNanos) {
        let weight = self.weight_of(time);
        let bucket = usize::from(self.options.buckets().find(value));
        self.weights[bucket] += weight;
        self.total += weight;
        if self.weights[bucket] >= self.epsilon() {
            self.min = self.min.min(bucket);
            self.max = self.max.max(bucket);
        }
    }

    fn subtract(&mut self, value: f64, time: UnixNanos) {
        let weight = self.weight_of(time);
        let bucket = usize::from(self.options.buckets().find(value));
        let epsilon = self.epsilon();
        for from in [&mut self.weights[bucket], &mut self.total] {
            *from -= weight;
            if *from < epsilon {
                *from = 0.0;
            }
        }
        self.shrink();
    }

    /// As upstream merges: the older of the two is shifted, even if it is `other`.
    fn merge(&mut self, mut other: Self) {
        if self.reference < other.reference {
            self.shift(other.reference);
        } else if other.reference < self.reference {
            other.shift(self.reference);
        }
        if other.min <= other.max {
            for bucket in other.min..=other.max {
                self.weights[bucket] += other.weights[bucket];
            }
        }
        self.total += other.total;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn percentile(&self, percentile: f64) -> f64 {
        if self.weights[self.min] < self.epsilon() {
            return 0.0;
        }
        let mut sum = 0.0;
        let mut bucket = self.min;
        while bucket < self.max {
            sum += self.weights[bucket];
            if sum >= percentile * self.total {
                break;
            }
            bucket += 1;
        }
        let last = self.weights.len() - 1;
        self.options.buckets().start(if bucket < last { bucket + 1 } else { last } as u16)
    }
}

#[derive(Debug, Clone)]
struct Sample {
    value: f64,
    time: UnixNanos,
}

/// Times in any order, over a few or very many half-lives.
fn samples(hours: i64) -> impl Strategy<Value = Vec<Sample>> {
    let value = prop_oneof![0.0..2.0, 0.0..1500.0, Just(0.0)];
    let sample = (value, 0..hours * 60)
        .prop_map(|(value, minute)| Sample { value, time: T0 + minute * 60_000_000_000 });
    prop::collection::vec(sample, 0..60)
}

fn histogram(samples: &[Sample]) -> UsageHistogram {
    let mut histogram = UsageHistogram::new(&options());
    samples.iter().for_each(|sample| histogram.add(sample.value, sample.time));
    histogram
}

fn dense(samples: &[Sample]) -> Dense {
    let mut dense = Dense::new(&options());
    samples.iter().for_each(|sample| dense.add(sample.value, sample.time));
    dense
}

/// Equal to the last bit, except for weights that are dropped because they change no sum.
fn assert_same(sparse: &UsageHistogram, dense: &Dense) {
    assert_eq!(sparse.reference(), dense.reference);
    assert_eq!(sparse.total_weight(), dense.total);
    let mut weights = vec![0.0; dense.weights.len()];
    sparse.weights().for_each(|(bucket, weight)| weights[usize::from(bucket)] = weight);
    for (sparse, dense) in weights.iter().zip(&dense.weights) {
        assert!(sparse == dense || (dense - sparse).abs() < 1e-29, "{sparse} {dense}");
    }
    for percentile in PERCENTILES {
        assert_eq!(sparse.percentile(percentile), dense.percentile(percentile), "{percentile}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_sparse_histogram_is_a_dense_one(
        samples in prop_oneof![samples(24), samples(500)],
        taken in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (mut sparse, mut dense) = (histogram(&samples), dense(&samples));
        assert_same(&sparse, &dense);
        for index in taken {
            if samples.is_empty() {
                break;
            }
            let Sample { value, time } = *index.get(&samples);
            sparse.subtract(value, time);
            dense.subtract(value, time);
            assert_same(&sparse, &dense);
        }
    }

    #[test]
    fn sparse_histograms_merge_as_dense_ones_and_leave_the_other_alone(
        left in prop_oneof![samples(24), samples(500)],
        right in prop_oneof![samples(24), samples(500)],
    ) {
        let (mut sparse, mut model) = (histogram(&left), dense(&left));
        let other = histogram(&right);
        sparse.merge(&other);
        model.merge(dense(&right));
        assert_same(&sparse, &model);
        assert_same(&other, &dense(&right));
    }

    #[test]
    fn merged_histograms_have_the_weights_of_all_samples(
        samples in samples(90),
        belongs_left in prop::collection::vec(any::<bool>(), 60),
    ) {
        let (left, right): (Vec<_>, Vec<_>) =
            samples.iter().cloned().zip(belongs_left).partition(|(_, left)| *left);
        let part = |part: Vec<(Sample, bool)>| histogram(&part.into_iter().map(|(s, _)| s).collect::<Vec<_>>());
        let mut merged = part(left);
        merged.merge(&part(right));
        let all = histogram(&samples);
        prop_assume!(!samples.is_empty());
        let factor = ((merged.reference() - all.reference()) as f64 / HOUR as f64).exp2();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-4 * factor.max(1.0) + 1e-9 * b;
        prop_assert!(close(merged.total_weight() * factor, all.total_weight()));
        let mut weights = vec![0.0; 256];
        merged.weights().for_each(|(bucket, weight)| weights[usize::from(bucket)] += weight * factor);
        all.weights().for_each(|(bucket, weight)| weights[usize::from(bucket)] -= weight);
        // Upstream does not merge weights below epsilon outside of the other weights.
        prop_assert!(weights.iter().all(|difference| close(*difference, 0.0) || *difference < 1e-9 * all.total_weight()));
    }

    #[test]
    fn what_is_saved_recommends_the_same_within_its_rounding(samples in samples(90)) {
        let before = histogram(&samples);
        let mut after = UsageHistogram::new(&options());
        after.load(&before.save()).unwrap();
        prop_assert_eq!(before.reference(), after.reference());
        prop_assert_eq!(before.is_empty(), after.is_empty());
        // Each of the buckets is off by half a ten-thousandth of the largest at most.
        let slack = 1e-4 * samples.len() as f64;
        for percentile in [0.1, 0.5, 0.9] {
            let loaded = after.percentile(percentile);
            prop_assert!(before.percentile(percentile - slack) <= loaded);
            prop_assert!(loaded <= before.percentile(percentile + slack));
        }
    }
}
