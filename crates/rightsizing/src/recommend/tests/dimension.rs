//! Dimensions besides CPU and memory.

use std::time::Duration;

use proptest::prelude::*;

use super::{DAY, HOUR, MINUTE, T0};
use crate::recommend::container::Refused;
use crate::recommend::dimension::report::BYTES_MAX;
use crate::recommend::dimension::store::{CONTAINERS_MAX, DimensionCounts};
use crate::recommend::dimension::{BUCKETS_MAX, DIMENSIONS_MAX, DimensionEstimate};
use crate::recommend::store::Workload;
use crate::recommend::{Dimension, DimensionStore, RecommenderSettings, ResourceSettings};
use crate::usage::SeriesScope;

/// Indexes in the list of [`both`].
const RECEIVED: usize = 0;
const WRITTEN: usize = 1;

fn dimension(name: &str, scope: SeriesScope) -> Dimension {
    let estimation = ResourceSettings {
        first_bucket: 1e3,
        largest_value: 1e12,
        sample_weight: 1.0,
        pod_minimum: 0,
        ..RecommenderSettings::default().cpu
    };
    Dimension { name: name.into(), scope, meaning: format!("rate of {name}"), estimation }
}

/// One of pods, one of containers.
fn both() -> Vec<Dimension> {
    vec![dimension("received", SeriesScope::Pod), dimension("written", SeriesScope::Container)]
}

fn store(dimensions: Vec<Dimension>) -> DimensionStore {
    DimensionStore::new(dimensions, 8 * DAY).unwrap()
}

fn workload(name: &str) -> Workload {
    Workload { namespace: "shop".into(), kind: "Deployment".into(), name: name.into() }
}

/// Adds one sample per minute.
fn feed(
    store: &mut DimensionStore,
    dimension: usize,
    container: &str,
    minutes: std::ops::Range<i64>,
    value: f64,
) {
    for minute in minutes {
        let time = T0 + minute * MINUTE;
        store.add(dimension, &workload("web"), container, value, (time, time)).unwrap();
    }
}

fn estimates(store: &DimensionStore, container: Option<&str>) -> Vec<DimensionEstimate> {
    store.usages(&workload("web"), container).map(|(dimension, usage)| dimension.estimate(usage)).collect()
}

/// The maximum estimate.
fn most() -> f64 {
    let buckets = both()[0].buckets().unwrap();
    buckets.start(buckets.last()) * 1.15
}

fn all(_: &str) -> bool {
    true
}

/// The text to write, given the current one.
fn next(store: &DimensionStore, written: Option<&str>) -> Option<String> {
    store.report(&workload("web"), all).next(written, store.dimensions())
}

#[test]
fn a_dimension_is_estimated_as_cpu_is_and_counts_its_own_samples() {
    let mut store = store(both());
    feed(&mut store, WRITTEN, "app", 0..721, 1e6);
    let [estimate] = estimates(&store, Some("app"))[..] else { panic!("one dimension is known") };
    let buckets = store.dimensions()[WRITTEN].buckets().unwrap();
    let target = buckets.end(buckets.find(1e6)) * 1.15;
    assert!((1.15e6..1.15e6 * 1.05).contains(&target), "{target}");
    // Half a day, with one sample per minute.
    let lower = target / (1.0 + 0.001 / 0.5) / (1.0 + 0.001 / 0.5);
    let is_close = |found: f64, expected: f64| (found - expected).abs() < 1e-6 * expected;
    assert!(is_close(estimate.target, target), "{estimate:?}");
    assert!(is_close(estimate.lower, lower), "{estimate:?}");
    assert!(is_close(estimate.upper, target * 3.0), "{estimate:?}");
    assert_eq!((estimate.samples, estimate.confidence), (721, 0.5));
    // Neither for the pods nor for another container.
    assert!(estimates(&store, None).is_empty() && estimates(&store, Some("sidecar")).is_empty());
}

#[test]
fn pods_and_containers_are_measured_apart() {
    let mut store = store(both());
    feed(&mut store, RECEIVED, "", 0..10, 5e6);
    feed(&mut store, RECEIVED, "POD", 10..20, 5e6);
    feed(&mut store, WRITTEN, "app", 0..5, 1e6);
    assert_eq!(estimates(&store, None)[0].samples, 20);
    assert_eq!(estimates(&store, Some("app"))[0].samples, 5);
    assert!(estimates(&store, Some("POD")).is_empty());
}

#[test]
fn a_single_sample_has_bounds_that_are_finite() {
    let mut store = store(both());
    feed(&mut store, RECEIVED, "", 0..1, 0.0);
    let estimate = estimates(&store, None)[0];
    assert_eq!((estimate.lower, estimate.confidence), (0.0, 0.0));
    assert_eq!(estimate.upper, most());
    assert!(estimate.target <= 1.15 * 1e3 + 1e-9, "{estimate:?}");
}

#[test]
fn samples_that_cannot_be_are_refused_and_leave_nothing_behind() {
    let mut store = store(both());
    let web = workload("web");
    let mut add = |dimension, value, time| store.add(dimension, &web, "app", value, (time, T0));
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        assert_eq!(add(WRITTEN, value, T0), Err(Refused::Negative), "{value}");
    }
    assert_eq!(add(WRITTEN, 1.0, T0 + HOUR), Err(Refused::Future));
    for place in [2, 255, 256, usize::MAX] {
        assert_eq!(add(place, 1.0, T0), Err(Refused::Unknown), "{place}");
    }
    assert_eq!(store.counts(), DimensionCounts::default());
    for time in [i64::MIN, i64::MIN + 1, -1, 0, T0] {
        store.add(WRITTEN, &web, "app", 1e300, (time, i64::MAX)).unwrap();
    }
    assert_eq!(estimates(&store, Some("app"))[0].upper, most());
}

#[test]
fn names_of_containers_are_bounded() {
    let mut store = store(both());
    let web = workload("web");
    for n in 0..2 * CONTAINERS_MAX {
        let added = store.add(WRITTEN, &web, &format!("c{n}"), 1.0, (T0, T0));
        assert_eq!(added.is_ok(), n < CONTAINERS_MAX, "{n}");
    }
    assert_eq!(store.counts().usages, CONTAINERS_MAX);
}

#[test]
fn without_dimensions_there_is_nothing() {
    let mut store = store(Vec::new());
    assert_eq!(store.add(0, &workload("web"), "app", 1.0, (T0, T0)), Err(Refused::Unknown));
    store.load(&workload("web"), "app", r#"{"pod":{"received":7}}"#, T0).unwrap();
    assert_eq!(store.counts(), DimensionCounts::default());
    assert_eq!(store.save(&workload("web"), "app", true), None);
    assert_eq!(next(&store, None), None);
}

#[test]
fn a_dimension_takes_a_hundred_bytes_and_ten_for_each_bucket() {
    let mut store = store(both());
    feed(&mut store, WRITTEN, "app", 0..10_000, 1e6);
    let DimensionCounts { usages, bytes } = store.counts();
    assert_eq!(usages, 1);
    assert!(bytes <= 120, "{bytes}");
}

#[test]
fn what_is_not_measured_any_more_is_forgotten() {
    let filled = || {
        let mut store = store(both());
        feed(&mut store, RECEIVED, "", 0..10, 1e6);
        feed(&mut store, WRITTEN, "app", 0..100, 1e6);
        feed(&mut store, WRITTEN, "old", 0..10, 1e6);
        store
    };
    let usages = |store: &DimensionStore| store.counts().usages;
    let mut store = filled();
    store.expire(T0 + 8 * DAY);
    assert_eq!(usages(&store), 3);
    store.expire(T0 + 8 * DAY + 50 * MINUTE);
    assert_eq!(usages(&store), 1, "only the one with late samples");
    store.expire(T0 + 9 * DAY);
    assert_eq!(usages(&store), 0);
    let mut store = filled();
    store.forget_container(&workload("web"), "old");
    assert_eq!(usages(&store), 2);
    store.forget(WRITTEN, &workload("web"));
    assert_eq!(usages(&store), 1);
    store.retain(|workload| *workload.name != *"web");
    assert_eq!(usages(&store), 0);
}

#[test]
fn what_was_kept_goes_on_after_a_restart() {
    let mut before = store(both());
    feed(&mut before, RECEIVED, "", 0..100, 3e6);
    feed(&mut before, WRITTEN, "app", 0..200, 1e5);
    let web = workload("web");
    let now = T0 + 200 * MINUTE;
    let text = before.save(&web, "app", true).unwrap();
    assert_eq!((before.samples(&web, "app", true), before.samples(&web, "app", false)), (300, 200));
    let mut after = store(both());
    after.load(&web, "app", &text, now).unwrap();
    assert_eq!(estimates(&after, None), estimates(&before, None));
    assert_eq!(estimates(&after, Some("app")), estimates(&before, Some("app")));
    assert_eq!(after.save(&web, "app", true), Some(text.clone()));
    let told = next(&before, None).unwrap();
    assert_eq!(next(&after, Some(&told)), None, "nothing new");
    // Stored with another container earlier: the later one counts, in any order, and no sample counts twice.
    let mut early = store(both());
    feed(&mut early, RECEIVED, "", 0..50, 9e9);
    let early = early.save(&web, "zzz", true).unwrap();
    let again = [early.as_str(), &text, &early, &text];
    for text in again {
        after.load(&web, "zzz", text, now).unwrap();
    }
    assert_eq!(estimates(&after, None), estimates(&before, None));
}

#[test]
fn what_was_kept_of_pods_is_only_with_the_container_that_has_it() {
    let mut store = store(both());
    feed(&mut store, RECEIVED, "", 0..10, 3e6);
    assert_eq!(store.save(&workload("web"), "sidecar", false), None);
    assert!(store.save(&workload("web"), "app", true).unwrap().starts_with(r#"{"pod":{"received":{"of":"#));
}

#[test]
fn what_was_kept_of_other_buckets_or_another_metric_is_not_used() {
    let mut before = store(both());
    feed(&mut before, RECEIVED, "", 0..10, 3e6);
    feed(&mut before, WRITTEN, "app", 0..10, 3e6);
    let text = before.save(&workload("web"), "app", true).unwrap();
    type Change = fn(&mut Dimension);
    let changes: [Change; 3] = [
        |it| it.meaning = "something else".into(),
        |it| it.estimation.first_bucket = 1.0,
        |it| it.estimation.bucket_ratio = 1.1,
    ];
    for change in changes {
        let mut dimensions = both();
        change(&mut dimensions[RECEIVED]);
        let mut after = store(dimensions);
        let errors = after.load(&workload("web"), "app", &text, T0 + HOUR).unwrap_err();
        assert!(
            errors[0].to_string().starts_with("received: saved values are `rate of received; buckets"),
            "{errors:?}"
        );
        assert_eq!((errors.len(), after.counts().usages), (1, 1), "the other one is used");
    }
}

#[test]
fn what_was_kept_and_cannot_be_is_told_and_costs_only_itself() {
    let mut before = store(both());
    feed(&mut before, RECEIVED, "", 0..10, 3e6);
    feed(&mut before, WRITTEN, "app", 0..10, 3e6);
    let good: serde_json::Value =
        serde_json::from_str(&before.save(&workload("web"), "app", true).unwrap()).unwrap();
    let load = |text: &str| {
        let mut store = store(both());
        let errors =
            store.load(&workload("web"), "app", text, T0 + HOUR).err().map_or(0, |errors| errors.len());
        (errors, store.counts().usages)
    };
    assert_eq!(load(&good.to_string()), (0, 2));
    for text in ["", "null", "7", "{", "\"x\"", r#"{"pod":7}"#, r#"{"container":null}"#, &"[".repeat(10_000)]
    {
        assert_eq!(load(text), (1, 0), "{text:.20}");
    }
    assert_eq!(load("{}"), (0, 0));
    assert_eq!(load(r#"{"pod":{"unknown":7},"x":1}"#), (0, 0));
    for (path, value) in [
        ("", serde_json::json!(7)),
        ("", serde_json::json!({})),
        ("/histogram", serde_json::json!(null)),
        ("/histogram/bucketWeights", serde_json::json!({"-1": 1})),
        ("/histogram/bucketWeights", serde_json::json!({"65536": 1})),
        ("/histogram/bucketWeights", serde_json::json!({"5": -1})),
        ("/histogram/bucketWeights", serde_json::json!({})),
        ("/histogram/totalWeight", serde_json::json!(-1)),
        ("/histogram/totalWeight", serde_json::json!(1e200)),
        ("/histogram/totalWeight", serde_json::json!(0)),
        ("/histogram/referenceTimestamp", serde_json::json!("2200-01-01T00:00:00Z")),
        ("/histogram/referenceTimestamp", serde_json::json!("soon")),
        ("/firstSampleStart", serde_json::json!("2200-01-01T00:00:00Z")),
        ("/firstSampleStart", serde_json::json!(null)),
        ("/lastSampleStart", serde_json::json!("2200-01-01T00:00:00Z")),
        ("/lastSampleStart", serde_json::json!(null)),
        ("/totalSamplesCount", serde_json::json!(0)),
        ("/totalSamplesCount", serde_json::json!(-5)),
        ("/totalSamplesCount", serde_json::json!(1.5)),
        ("/of", serde_json::json!("nothing")),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(&format!("/pod/received{path}")).unwrap() = value.clone();
        assert_eq!(load(&bad.to_string()), (1, 1), "{path}: {value}");
    }
}

#[test]
fn all_that_may_be_kept_with_one_container_fits_into_an_annotation() {
    let dimensions: Vec<Dimension> = (0..DIMENSIONS_MAX)
        .map(|n| {
            let mut dimension = dimension(&format!("{n}{}", "x".repeat(60)), SeriesScope::Pod);
            dimension.meaning = "x".repeat(300);
            dimension.estimation.bucket_ratio = 1.035;
            dimension
        })
        .collect();
    let count = dimensions[0].buckets().unwrap().count();
    assert!((500..=BUCKETS_MAX).contains(&count), "{count}");
    let mut store = store(dimensions);
    for place in 0..DIMENSIONS_MAX {
        for bucket in 0..count {
            let value = store.dimensions()[place].buckets().unwrap().start(bucket) * 1.001;
            store.add(place, &workload("web"), "", value, (T0, T0)).unwrap();
        }
    }
    let text = store.save(&workload("web"), "app", true).unwrap();
    assert!((90 << 10..128 << 10).contains(&text.len()), "{}", text.len());
}

#[test]
fn what_is_told_is_written_when_it_differs_by_more_than_a_bucket() {
    // More samples do not narrow the bounds.
    let mut dimensions = both();
    dimensions.iter_mut().for_each(|it| it.estimation.confidence_interval = Duration::from_secs(60));
    let mut store = store(dimensions);
    assert_eq!(next(&store, None), None, "nothing is known");
    feed(&mut store, RECEIVED, "", 0..3000, 3e6);
    feed(&mut store, WRITTEN, "app", 0..3000, 3e6);
    let told = next(&store, None).unwrap();
    let read: serde_json::Value = serde_json::from_str(&told).unwrap();
    let received = &read["pod"]["received"];
    assert!((3_450_000..3_630_000).contains(&received["target"].as_i64().unwrap()), "{told}");
    assert_eq!(received["samples"], 3000);
    assert_eq!(received["confidence"].as_f64(), Some(1.0));
    assert_eq!(&read["containers"]["app"]["written"], received);
    assert_eq!(next(&store, Some(&told)), None, "it is already reported");
    feed(&mut store, RECEIVED, "", 3000..3010, 3e6);
    assert_eq!(next(&store, Some(&told)), None, "more samples of the same");
    assert!(next(&store, None).unwrap().contains("3010"));
    // Percentiles go from one bucket to the next one, and to the one after that.
    let mut values = 3e6;
    for is_new in [false, true] {
        values *= 1.05;
        let at = if is_new { 40_000 } else { 20_000 };
        feed(&mut store, RECEIVED, "", at..at + 20_000, values);
        assert_eq!(next(&store, Some(&told)).is_some(), is_new, "{values}");
    }
    store.forget(RECEIVED, &workload("web"));
    assert!(
        next(&store, Some(&told)).is_some_and(|text| !text.contains("received")),
        "one is no longer reported"
    );
    store.forget(WRITTEN, &workload("web"));
    assert_eq!(next(&store, Some(&told)), None, "no samples: the report stays");
}

#[test]
fn full_confidence_is_told() {
    let mut store = store(both());
    feed(&mut store, RECEIVED, "", 0..1430, 3e6);
    let told = next(&store, None).unwrap();
    assert!(told.contains(r#""confidence":0.99"#), "{told}");
    feed(&mut store, RECEIVED, "", 1430..1450, 3e6);
    assert!(next(&store, Some(&told)).unwrap().contains(r#""confidence":1.0"#));
}

#[test]
fn whatever_stands_in_the_annotation_is_written_over() {
    let mut store = store(both());
    feed(&mut store, RECEIVED, "", 0..10, 3e6);
    let told = next(&store, None);
    assert!(told.is_some());
    for written in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"pod":{"received":{}}}"#,
        r#"{"pod":{"received":{"target":-1e308,"lowerBound":1e308,"upperBound":0,"samples":0,"confidence":0}}}"#,
        r#"{"pod":{"received":{"target":null,"lowerBound":0,"upperBound":0,"samples":0,"confidence":0}}}"#,
        &"{\"pod\":".repeat(5_000),
    ] {
        assert_eq!(next(&store, Some(written)), told, "{written:.40}");
    }
}

#[test]
fn what_is_told_is_bounded_and_the_same_is_left_out_whatever_the_values() {
    let dimensions = || {
        (0..DIMENSIONS_MAX)
            .map(|n| dimension(&format!("d{n}{}", "x".repeat(55)), SeriesScope::Container))
            .collect()
    };
    let fill = |value: f64, name: fn(usize) -> String| {
        let mut store = store(dimensions());
        for container in 0..40 {
            for place in 0..DIMENSIONS_MAX {
                let name = name(container);
                store.add(place, &workload("web"), &name, value, (T0, T0)).unwrap();
            }
        }
        store
    };
    for name in
        [|n| format!("app-{n}"), |n| format!("\u{1}\"\\{n}").repeat(40), |n| format!("{n}").repeat(20_000)]
    {
        let (small, large) = (fill(0.0, name), fill(1e300, name));
        let report = small.report(&workload("web"), all);
        assert!(report.left_out > 0);
        assert_eq!(report.left_out, large.report(&workload("web"), all).left_out);
        for store in [&small, &large] {
            let told = next(store, None).map_or(0, |text| text.len());
            assert!(told <= BYTES_MAX, "{told}");
        }
    }
    let told = next(&fill(1e300, |n| format!("app-{n}")), None).unwrap();
    assert!(told.ends_with("}") && told.contains(r#""leftOut":"#), "{told}");
    assert!(told.len() > BYTES_MAX / 2, "{}", told.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// One of the pods and one of a container, with any samples: no panic, bounds are in order, and the written
    /// text is read back unchanged.
    #[test]
    fn estimates_are_in_order_and_survive_being_kept_and_told(
        samples in prop::collection::vec((0.0..1e13_f64, 0..60 * 24 * 30_i64), 1..200),
    ) {
        let mut before = store(both());
        let now = T0 + 31 * DAY;
        for (n, (value, minute)) in samples.iter().enumerate() {
            let time = T0 + minute * MINUTE;
            before.add(n % 2, &workload("web"), "app", *value, (time, now)).unwrap();
        }
        let known = [estimates(&before, None), estimates(&before, Some("app"))].concat();
        for it in &known {
            prop_assert!(0.0 <= it.lower && it.lower <= it.target && it.target <= it.upper, "{it:?}");
            prop_assert!(it.upper <= most() && (0.0..=1.0).contains(&it.confidence), "{it:?}");
        }
        prop_assert_eq!(known.iter().map(|it| it.samples).sum::<u64>(), samples.len() as u64);
        let told = next(&before, None).unwrap();
        prop_assert!(told.len() < BYTES_MAX);
        prop_assert_eq!(next(&before, Some(&told)), None);
        let text = before.save(&workload("web"), "app", true).unwrap();
        let mut after = store(both());
        after.load(&workload("web"), "app", &text, now).unwrap();
        prop_assert_eq!(after.counts().usages, before.counts().usages);
        prop_assert_eq!(after.samples(&workload("web"), "app", true), samples.len() as u64);
    }
}
