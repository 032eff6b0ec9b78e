//! Checkpoints of VerticalPodAutoscalers, berth's or upstream's: one that is loaded gives sound recommendations, and can be saved
//! and loaded again.

use std::sync::LazyLock;

use berth_kube_io::vpa::FoundCheckpoint;
use berth_rightsizing::recommend::estimate::BOTH;
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::{
    AMOUNT_MAX, Aggregate, CheckpointStatus, Dimension, DimensionStore, OpenWindows, RecommenderSettings,
    Shapes, UnixNanos, UsageHistogram, open, recommend,
};
use berth_rightsizing::usage::SeriesScope;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// 2027-01-15.
const NOW: UnixNanos = 1_800_000_000_000_000_000;
const DAY_NS: i64 = 86_400_000_000_000;
const CONTAINERS: usize = 1;

static SETTINGS: LazyLock<RecommenderSettings> = LazyLock::new(RecommenderSettings::default);
static SHAPES: LazyLock<Shapes> = LazyLock::new(|| SETTINGS.shapes().expect("valid buckets"));

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let found = match FoundCheckpoint::read(text) {
        Ok(found) => found,
        Err(why) => return assert!(!why.is_empty()),
    };
    match &found.content {
        Ok((status, windows)) => restored(status, windows),
        Err(why) => assert!(!why.is_empty()),
    }
    if let Some(text) = &found.dimensions {
        dimensions(text);
    }
}

fn restored(status: &CheckpointStatus, windows: &OpenWindows) {
    let load = |status, windows| open::load(status, windows, &SHAPES, DAY_NS, NOW);
    let (mut aggregate, mut running) = match load(status, windows) {
        Ok(loaded) => loaded,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    is_sound(&aggregate);
    let (status, windows) =
        open::save(&aggregate, running.iter().map(|(uid, state)| (uid.as_str(), state)), NOW);
    load(&again(&status), &again(&windows)).expect("what was saved can be loaded");
    for state in running.values_mut() {
        // Samples are counted or refused.
        _ = state.add_cpu(&mut aggregate, 100, NOW);
        _ = state.add_memory(&mut aggregate, 100 << 20, NOW, &SETTINGS.memory_rules(), false);
    }
    aggregate.add_cpu(100, NOW);
    is_sound(&aggregate);
}

/// Writes the value as JSON and reads it.
fn again<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).expect("serialises")).expect("read again")
}

fn is_sound(aggregate: &Aggregate) {
    is_finite(&aggregate.cpu);
    is_finite(&aggregate.memory);
    let estimate = recommend("app", aggregate, &SETTINGS, CONTAINERS, BOTH);
    let bounds = estimate.lower.zip(estimate.target).zip(estimate.upper);
    for ((lower, target), upper) in [bounds.cpu, bounds.memory] {
        let [lower, target, upper] = [lower, target, upper].map(|amount| amount.expect("it is controlled"));
        // With the margin.
        let allowed = 1..=AMOUNT_MAX + AMOUNT_MAX / 5;
        assert!(
            allowed.contains(&lower) && lower <= target && target <= upper && allowed.contains(&upper),
            "{estimate:?}"
        );
    }
}

fn is_finite(histogram: &UsageHistogram) {
    let total = histogram.total_weight();
    let weights = histogram.weights().map(|(_, weight)| weight);
    assert!(weights.chain([total]).all(|weight| weight.is_finite() && weight >= 0.0), "{histogram:?}");
    assert!(histogram.percentile(0.9).is_finite(), "{histogram:?}");
}

fn dimensions(text: &str) {
    let dimension = |name: &str, scope| Dimension {
        name: name.into(),
        scope,
        meaning: "bytes per second".into(),
        estimation: SETTINGS.cpu.clone(),
    };
    let dimensions =
        vec![dimension("received", SeriesScope::Pod), dimension("written", SeriesScope::Container)];
    let workload = Workload { namespace: "shop".into(), kind: "Deployment".into(), name: "web".into() };
    let load = |text: &str| {
        let mut store = DimensionStore::new(dimensions.clone(), 8 * DAY_NS).expect("valid buckets");
        let loaded = store.load(&workload, "app", text, NOW);
        (store, loaded)
    };
    let (store, loaded) = load(text);
    assert!(loaded.err().into_iter().flatten().all(|why| !why.to_string().is_empty()));
    for container in [None, Some("app")] {
        for (dimension, usage) in store.usages(&workload, container) {
            is_finite(usage.histogram());
            let estimate = dimension.estimate(usage);
            let bounds = [estimate.lower, estimate.target, estimate.upper];
            assert!(bounds.iter().all(|bound| bound.is_finite()) && bounds.is_sorted(), "{estimate:?}");
        }
    }
    if let Some(saved) = store.save(&workload, "app", true) {
        let (again, loaded) = load(&saved);
        assert!(loaded.is_ok(), "{saved}: {loaded:?}");
        assert_eq!(again.counts().usages, store.counts().usages);
    }
}
