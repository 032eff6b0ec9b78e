//! Hostile times, amounts and checkpoints: no panic, and never NaN.

use proptest::prelude::*;

use super::{DAY, Fed, MI, T0, bounds, shapes};
use crate::recommend::amount::{AMOUNT_MAX, Amount};
use crate::recommend::checkpoint::CheckpointStatus;
use crate::recommend::histogram_checkpoint::HistogramCheckpoint;
use crate::recommend::open::{OpenWindow, OpenWindows, load, save};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::time::{NEVER, UnixNanos};

fn any_time() -> impl Strategy<Value = UnixNanos> {
    prop_oneof![
        any::<i64>(),
        T0 - 10 * DAY..T0 + 10 * DAY,
        Just(NEVER),
        Just(NEVER + 1),
        Just(i64::MAX),
        Just(0)
    ]
}

fn any_amount() -> impl Strategy<Value = Amount> {
    prop_oneof![any::<i64>(), 0..10_000_i64, 0..2000 * MI, Just(i64::MIN), Just(i64::MAX), Just(0)]
}

fn any_histogram() -> impl Strategy<Value = HistogramCheckpoint> {
    let bucket = prop_oneof![0..176_i64, any::<i64>()];
    let weight = prop_oneof![0..10_001_i64, any::<i64>()];
    let total = prop_oneof![0.0..1e6, any::<f64>(), Just(1e100)];
    (any_time(), prop::collection::btree_map(bucket, weight, 0..4), total).prop_map(
        |(reference_timestamp, bucket_weights, total_weight)| HistogramCheckpoint {
            reference_timestamp,
            bucket_weights,
            total_weight,
        },
    )
}

fn any_status() -> impl Strategy<Value = CheckpointStatus> {
    (any_histogram(), any_histogram(), any_time(), any_time(), any::<i64>()).prop_map(
        |(cpu_histogram, memory_histogram, first_sample_start, last_sample_start, total_samples_count)| {
            CheckpointStatus {
                last_update_time: T0,
                version: "v3".into(),
                cpu_histogram,
                memory_histogram,
                first_sample_start,
                last_sample_start,
                total_samples_count,
            }
        },
    )
}

fn any_windows() -> impl Strategy<Value = OpenWindows> {
    let window = (any_time(), any::<Option<i64>>(), any::<Option<i64>>(), any_time(), any::<Option<i64>>())
        .prop_map(|(end, peak, oom_peak, last_memory, last_cpu)| OpenWindow {
            end,
            peak,
            oom_peak,
            last_memory,
            last_cpu,
        });
    (
        prop::collection::btree_map("[a-c]", window, 0..3),
        prop::option::of(any_histogram()),
        prop::option::of((any_time(), any_time(), any::<u64>())),
    )
        .prop_map(|(containers, others, memory_samples)| OpenWindows {
            saved_at: 0,
            containers,
            others,
            memory_samples,
        })
}

/// Estimates are ordered amounts, and saved checkpoints can be loaded.
fn assert_sound(fed: &Fed, now: UnixNanos) {
    let [target, lower, upper] = fed.bounds(1);
    for (amount, minimum) in [target, lower, upper].into_iter().flat_map(|(c, m)| [(c, 25), (m, 250 * MI)]) {
        assert!((minimum..=AMOUNT_MAX + AMOUNT_MAX / 5).contains(&amount), "{amount}");
    }
    for histogram in [&fed.aggregate.cpu, &fed.aggregate.memory] {
        assert!(histogram.total_weight().is_finite() && histogram.total_weight() >= 0.0);
        assert!(histogram.weights().all(|(_, weight)| weight.is_finite() && weight >= 0.0));
    }
    let (status, _) = save(&fed.aggregate, [("uid", &fed.state)], now);
    assert!(status.cpu_histogram.bucket_weights.values().all(|weight| (1..=10_000).contains(weight)));
    assert!(status.memory_histogram.bucket_weights.values().all(|weight| (1..=10_000).contains(weight)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_samples_are_counted_or_refused(
        samples in prop::collection::vec((0..3, any_amount(), any_time()), 0..20),
        strict_upstream in any::<bool>(),
        now in any_time(),
    ) {
        let mut fed = Fed::new(RecommenderSettings { strict_upstream, ..RecommenderSettings::default() });
        for (kind, amount, time) in samples {
            match kind {
                0 => fed.cpu(amount, time),
                1 => fed.memory(amount, time),
                _ => fed.oom(amount, time),
            };
        }
        assert_sound(&fed, now);
        let rules = fed.settings.memory_rules();
        fed.aggregate.is_expired(now, &rules, strict_upstream);
    }

    #[test]
    fn any_checkpoint_is_loaded_or_refused(
        status in any_status(),
        windows in any_windows(),
        now in any_time(),
        sample in any_time(),
    ) {
        let settings = RecommenderSettings::default();
        if let Ok((aggregate, states)) = load(&status, &OpenWindows { saved_at: status.last_update_time, ..windows }, &shapes(&settings), DAY, now) {
            let state = states.into_values().next().unwrap_or_default();
            let mut fed = Fed { settings, aggregate, state };
            assert_sound(&fed, now);
            let copy = fed.aggregate.clone();
            fed.aggregate.merge(&copy);
            fed.cpu(100, sample);
            fed.memory(100 * MI, sample);
            assert_sound(&fed, now);
        }
    }

    #[test]
    fn good_histograms_are_loaded_whatever_their_numbers(
        weights in prop::collection::btree_map(0..176_i64, 0..10_001_i64, 0..20),
        total_weight in 0.0..1e50,
        age in 0..100 * DAY,
    ) {
        let settings = RecommenderSettings::default();
        let histogram = HistogramCheckpoint {
            reference_timestamp: T0 - age,
            bucket_weights: weights,
            total_weight,
        };
        let status = CheckpointStatus {
            version: "v3".into(),
            cpu_histogram: histogram.clone(),
            memory_histogram: histogram,
            first_sample_start: T0 - age,
            last_sample_start: T0,
            total_samples_count: 1000,
            ..CheckpointStatus::default()
        };
        let aggregate = status.load(&shapes(&settings), DAY, T0).unwrap();
        let [target, lower, upper] = bounds(&aggregate, &settings, 1);
        prop_assert!(lower.0 <= target.0 && target.0 <= upper.0);
        prop_assert!(lower.1 <= target.1 && target.1 <= upper.1);
    }
}
