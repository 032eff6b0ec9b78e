//! Checkpoints, as in upstream's `histogram_test.go`, `decaying_histogram_test.go` and
//! `aggregate_container_state_test.go`.

use std::collections::BTreeMap;

use serde_json::json;

use super::{DAY, Fed, HOUR, MI, MINUTE, SECOND, T0, at, hourly, shapes};
use crate::recommend::buckets::Buckets;
use crate::recommend::checkpoint::CheckpointStatus;
use crate::recommend::histogram_checkpoint::{CheckpointError, HistogramCheckpoint};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::time::NEVER;
use crate::recommend::weights::Weights;

const EPSILON: f64 = 0.001;

fn buckets() -> Buckets {
    Buckets::linear(10.0, 1.0, EPSILON).unwrap()
}

fn saved(weights: &[(i64, i64)], total_weight: f64) -> HistogramCheckpoint {
    let bucket_weights = weights.iter().copied().collect();
    HistogramCheckpoint { bucket_weights, total_weight, ..HistogramCheckpoint::default() }
}

#[test]
fn weights_are_saved_as_ten_thousandths_of_the_largest() {
    let cases: [(&[(f64, f64)], HistogramCheckpoint); 3] = [
        (&[(3.0, 1.0)], saved(&[(3, 10_000)], 1.0)),
        (&[(1.0, 1.0), (2.0, 100_000.0)], saved(&[(2, 10_000)], 100_001.0)),
        (&[(1.0, 1.0), (2.0, 10_000.0), (3.0, 50.0)], saved(&[(1, 1), (2, 10_000), (3, 50)], 10_051.0)),
    ];
    for (samples, expected) in cases {
        let mut weights = Weights::default();
        for &(value, weight) in samples {
            weights.add(&buckets(), value, weight);
        }
        assert_eq!(weights.save(&buckets()), expected);
    }
    assert_eq!(Weights::default().save(&buckets()), HistogramCheckpoint::default());
}

#[test]
fn loaded_weights_have_the_saved_proportions_and_sum() {
    let mut weights = Weights::default();
    weights.load(&buckets(), &saved(&[(0, 1), (1, 2)], 6.0)).unwrap();
    assert_eq!(weights.iter().collect::<Vec<_>>(), [(0, 2.0), (1, 4.0)]);
    assert_eq!(weights.total(), 6.0);
}

#[test]
fn a_bucket_that_falls_below_epsilon_by_rounding_does_not_make_the_histogram_empty() {
    let mut weights = Weights::default();
    weights.add(&buckets(), 1.0, EPSILON);
    weights.add(&buckets(), 2.0, 9999.0 * EPSILON);
    let mut loaded = Weights::default();
    loaded.load(&buckets(), &weights.save(&buckets())).unwrap();
    assert!(!loaded.is_empty(&buckets()));
    assert_eq!(loaded.percentile(&buckets(), 0.0), 3.0);
}

#[test]
fn nothing_is_loaded_from_a_histogram_that_cannot_be() {
    let cases = [
        (saved(&[(-1, 1)], 1.0), "bucket -1 does not exist, there are 11"),
        (saved(&[(2, 1), (99, 1)], 1.0), "bucket 99 does not exist, there are 11"),
        (saved(&[(2, 1), (3, -1)], 1.0), "bucket 3 has weight -1, not a number from 0 to 4294967295"),
        (saved(&[(2, 1 << 32)], 1.0), "bucket 2 has weight 4294967296, not a number from 0 to 4294967295"),
        (saved(&[(2, 1)], -1.0), "total weight -1 is negative, not a number or too large"),
        (saved(&[(2, 1)], f64::NAN), "total weight NaN is negative, not a number or too large"),
        (saved(&[(2, 1)], f64::INFINITY), "total weight inf is negative, not a number or too large"),
        (saved(&[(2, 1)], 1e200), "is negative, not a number or too large"),
    ];
    for (checkpoint, expected) in cases {
        let mut weights = Weights::default();
        let error = weights.load(&buckets(), &checkpoint).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(weights, Weights::default());
    }
    let mut weights = Weights::default();
    weights.load(&buckets(), &saved(&[(2, 0)], 1.0)).unwrap();
    assert_eq!(weights, Weights::default(), "without weights a total is nothing");
}

#[test]
fn the_saved_reference_replaces_that_of_the_histogram() {
    let mut histogram = hourly();
    histogram.add(2.0, T0);
    let checkpoint = histogram.save();
    assert_eq!(checkpoint.reference_timestamp, histogram.reference());
    let mut loaded = hourly();
    loaded.add(5.0, T0 + 30 * HOUR);
    loaded.load(&checkpoint).unwrap();
    assert_eq!(loaded.reference(), histogram.reference());
    loaded.load(&HistogramCheckpoint::default()).unwrap();
    assert_eq!(loaded.reference(), NEVER);
}

fn example() -> CheckpointStatus {
    let start = at("2026-01-01T13:00:00Z");
    let fed = Fed::new(RecommenderSettings::default()).feed(start, 10, |_| (100, 300 * MI));
    CheckpointStatus::save(&fed.aggregate, start + 10 * MINUTE)
}

#[test]
fn a_checkpoint_is_written_with_upstreams_names() {
    let written = serde_json::to_value(example()).unwrap();
    let expected = json!({
        "lastUpdateTime": "2026-01-01T13:10:00Z",
        "version": "v3",
        "cpuHistogram": {
            "referenceTimestamp": "2026-01-02T00:00:00Z",
            "bucketWeights": {"8": 10000},
            "totalWeight": 0.729_405_531_463_998_4,
        },
        "memoryHistogram": {
            "referenceTimestamp": "2026-01-03T00:00:00Z",
            "bucketWeights": {"19": 10000},
            "totalWeight": 0.727_826_591_421_093_7,
        },
        "firstSampleStart": "2026-01-01T13:00:00Z",
        "lastSampleStart": "2026-01-01T13:09:00Z",
        "totalSamplesCount": 10,
    });
    assert_eq!(written, expected);
    let empty = serde_json::to_value(CheckpointStatus::default()).unwrap();
    assert_eq!(empty["firstSampleStart"], json!(null));
    assert_eq!(empty["cpuHistogram"]["referenceTimestamp"], json!(null));
}

#[test]
fn what_is_written_is_read_and_what_is_missing_is_nothing() {
    let text = serde_json::to_string(&example()).unwrap();
    assert_eq!(serde_json::from_str::<CheckpointStatus>(&text).unwrap(), example());
    assert_eq!(serde_json::from_str::<CheckpointStatus>("{}").unwrap(), CheckpointStatus::default());
    for wrong in [
        r#"{"totalSamplesCount": 1e99}"#,
        r#"{"cpuHistogram": {"bucketWeights": {"eight": 1}}}"#,
        r#"{"cpuHistogram": {"bucketWeights": {"8": 0.5}}}"#,
        r#"{"lastSampleStart": "soon"}"#,
    ] {
        assert!(serde_json::from_str::<CheckpointStatus>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn checkpoints_that_would_poison_an_aggregate_are_refused() {
    type Change = fn(&mut CheckpointStatus);
    let now = at("2026-01-01T13:10:00Z");
    let cases: [(Change, &str); 8] = [
        (|c| c.version = "v2".into(), "unsupported checkpoint version `v2`, only `v3` can be read"),
        (|c| c.version = String::new(), "unsupported checkpoint version ``"),
        (|c| c.total_samples_count = -1, "total samples count -1 is negative"),
        (|c| c.first_sample_start += HOUR, "the first sample is later than the last"),
        (|c| c.last_sample_start += 3 * HOUR, "the last sample is in the future"),
        (|c| c.cpu_histogram.reference_timestamp += 2 * DAY, "bad cpu histogram"),
        (|c| c.memory_histogram.reference_timestamp += DAY, "bad memory histogram"),
        (|c| c.memory_histogram.bucket_weights = BTreeMap::from([(176, 1)]), "bad memory histogram"),
    ];
    let (shapes, good) = (shapes(&RecommenderSettings::default()), example());
    good.load(&shapes, DAY, now).unwrap();
    for (change, expected) in cases {
        let mut wrong = good.clone();
        change(&mut wrong);
        let error = wrong.load(&shapes, DAY, now).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut ahead = good.clone();
    ahead.cpu_histogram.reference_timestamp = i64::MAX;
    let error = ahead.load(&shapes, DAY, now).unwrap_err();
    let expected = CheckpointError::Future("the reference timestamp");
    assert_eq!(error, CheckpointError::Histogram { histogram: "cpu", source: Box::new(expected) });
}

#[test]
fn a_checkpoint_of_upstream_with_only_memory_is_loaded() {
    let mut status = example();
    status.cpu_histogram = HistogramCheckpoint::default();
    (status.first_sample_start, status.last_sample_start, status.total_samples_count) = (NEVER, NEVER, 0);
    let loaded =
        status.load(&shapes(&RecommenderSettings::default()), DAY, T0 * 2 / SECOND * SECOND).unwrap();
    assert!(loaded.cpu.is_empty());
    assert!(!loaded.memory.is_empty());
}
