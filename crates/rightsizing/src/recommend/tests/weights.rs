//! Upstream's `histogram_test.go` and `decaying_histogram_test.go`.

use super::{HOUR, T0, hourly};
use crate::recommend::buckets::Buckets;
use crate::recommend::weights::Weights;

const EPSILON: f64 = 0.001;

fn filled(buckets: &Buckets, samples: &[(f64, f64)]) -> Weights {
    let mut weights = Weights::default();
    for &(value, weight) in samples {
        weights.add(buckets, value, weight);
    }
    weights
}

#[test]
fn a_percentile_is_the_end_of_the_bucket_where_the_share_is_reached() {
    let buckets = Buckets::linear(10.0, 1.0, EPSILON).unwrap();
    let weights = filled(&buckets, &[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]);
    let expected = [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0, 5.0, 5.0, 5.0, 5.0];
    for (tenths, expected) in (0..=10).zip(expected) {
        let percentile = f64::from(tenths) / 10.0;
        assert_eq!(weights.percentile(&buckets, percentile), expected, "{percentile}");
    }
}

#[test]
fn a_percentile_out_of_range_is_that_of_the_first_or_last_bucket() {
    let buckets = Buckets::linear(1.0, 0.1, EPSILON).unwrap();
    let close = |value: f64, expected: f64| (value - expected).abs() < 1e-12;
    let mut weights = filled(&buckets, &[(0.1, 0.1), (0.2, 0.2)]);
    assert!(close(weights.percentile(&buckets, -0.1), 0.2));
    assert!(close(weights.percentile(&buckets, 1.1), 0.3));
    assert!(close(weights.percentile(&buckets, f64::NAN), 0.3));
    weights.add(&buckets, 0.0, 0.1);
    weights.add(&buckets, 1.0, 0.2);
    assert!(close(weights.percentile(&buckets, -0.1), 0.1));
    assert!(close(weights.percentile(&buckets, 1.1), 1.0), "the last bucket says its start");
}

#[test]
fn an_empty_histogram_says_zero_whether_never_filled_or_emptied_again() {
    let buckets = Buckets::linear(1.0, 0.1, EPSILON).unwrap();
    let mut weights = Weights::default();
    for percentile in [-0.5, 0.0, 0.5, 1.0, 1.5] {
        assert_eq!(weights.percentile(&buckets, percentile), 0.0);
    }
    assert!(weights.is_empty(&buckets));
    weights.add(&buckets, 0.1, 0.3);
    assert!(!weights.is_empty(&buckets));
    weights.subtract(&buckets, 0.1, 0.3);
    assert!(weights.is_empty(&buckets));
    assert_eq!((weights.total(), weights.iter().count()), (0.0, 0));
}

#[test]
fn merged_weights_are_those_of_all_samples() {
    let buckets = Buckets::linear(10.0, 1.0, EPSILON).unwrap();
    let (left, right) = ([(1.0, 1.0), (2.0, 1.5)], [(2.0, 1.0), (9.5, 0.25)]);
    let mut merged = filled(&buckets, &left);
    merged.merge(&buckets, &filled(&buckets, &right), 1.0);
    assert_eq!(merged, filled(&buckets, &[left, right].concat()));
}

#[test]
fn weights_below_epsilon_count_only_between_others() {
    let buckets = Buckets::linear(10.0, 1.0, EPSILON).unwrap();
    let weights = filled(&buckets, &[(0.0, EPSILON / 2.0), (3.0, 1.0), (9.0, EPSILON / 2.0)]);
    assert_eq!(weights.percentile(&buckets, 0.0), 4.0);
    assert_eq!(weights.percentile(&buckets, 1.0), 4.0);
    let mut others = filled(&buckets, &[(0.0, EPSILON / 2.0)]);
    others.merge(&buckets, &weights, 1.0);
    assert_eq!(others.percentile(&buckets, 0.0), 4.0, "what does not count is not merged");
}

#[test]
fn many_old_samples_weigh_less_than_one_recent() {
    let mut histogram = hourly();
    histogram.add_weighted(2.0, 1000.0, T0);
    histogram.add_weighted(1.0, 1.0, T0 + 20 * HOUR);
    assert_eq!(histogram.percentile(0.999), 2.0);
    assert_eq!(histogram.percentile(1.0), 3.0);
}

#[test]
fn a_sample_of_a_hundred_half_lives_ago_is_forgotten() {
    let mut histogram = hourly();
    histogram.add(2.0, T0);
    histogram.add(1.0, T0 + 101 * HOUR);
    assert_eq!(histogram.percentile(1.0), 2.0);
}

#[test]
fn each_half_life_halves_the_weight() {
    let mut histogram = hourly();
    for n in 1..=4_i32 {
        histogram.add_weighted(f64::from(n), f64::from(n), T0 + i64::from(n) * HOUR);
    }
    let cases = [
        (0.0, 2.0),
        (0.02, 2.0),
        (0.03, 3.0),
        (0.10, 3.0),
        (0.11, 4.0),
        (0.34, 4.0),
        (0.35, 5.0),
        (1.0, 5.0),
    ];
    for (percentile, expected) in cases {
        assert_eq!(histogram.percentile(percentile), expected, "{percentile}");
    }
}

#[test]
fn histograms_with_different_references_merge_to_that_of_all_samples() {
    let (mut all, mut early, mut late) = (hourly(), hourly(), hourly());
    for n in 0..4_i32 {
        let time = T0 + i64::from(n) * 30 * HOUR;
        all.add(f64::from(n), time);
        let half = if n < 2 { &mut early } else { &mut late };
        half.add(f64::from(n), time);
    }
    let untouched = early.clone();
    let mut merged = late.clone();
    merged.merge(&early);
    let mut other_way = early.clone();
    other_way.merge(&late);
    assert_eq!(early.reference(), untouched.reference());
    assert_eq!(early.weights().collect::<Vec<_>>(), untouched.weights().collect::<Vec<_>>());
    // One histogram counts from its first sample, the merged ones from their last reference.
    for merged in [merged, other_way] {
        let factor = ((merged.reference() - all.reference()) as f64 / HOUR as f64).exp2();
        assert!((merged.total_weight() * factor / all.total_weight() - 1.0).abs() < 1e-12);
        for percentile in [0.1, 0.5, 0.9, 1.0] {
            assert_eq!(merged.percentile(percentile), all.percentile(percentile), "{percentile}");
        }
    }
}
