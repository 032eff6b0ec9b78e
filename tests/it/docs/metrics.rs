//! Metrics: the page has every metric that berth exports, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_prometheus::{PrometheusConfig, PrometheusSource};
use berth_scheduler::engine::Operation;
use berth_scheduler::scheduler::{AttemptResult, LatencySample};
use berth_scheduler::testing::with_engine;
use berth_server::Access;
use berth_server::metrics::{Histograms, MetricSources, Metrics, Verb};
use berth_telemetry::{RecommenderMetrics, SizedResource, UsageSample};
use kube::client::Body;

use super::read;

const PAGE: &str = "docs/metrics.md";

/// Returns the metrics of a process in which everything is enabled and has happened once.
fn recommender() -> Arc<RecommenderMetrics> {
    let recommender = Arc::new(RecommenderMetrics::default());
    recommender.took("total", Instant::now());
    recommender.follow(Some(PrometheusSource::new(PrometheusConfig::default()).expect("a source")));
    recommender.dimensions.follow(std::iter::once(Arc::from("networkReceive")));
    for resource in [SizedResource::Cpu, SizedResource::Memory] {
        for recommended in [None, Some(1e12), Some(0.5)] {
            let usage = UsageSample { update_mode: "Off", resource, amount: 1.0, is_oom: false };
            recommender.quality().observe(usage, recommended);
        }
        recommender.quality().changed("Off", resource, 1, 2, 1);
    }
    recommender
}

/// Returns a scrape of such a process.
fn scrape() -> String {
    berth::cli::install_tls_provider();
    let histograms = Histograms::default();
    histograms.observe_lock(Operation::Tick, Duration::from_millis(1));
    histograms.observe_request(Verb::Filter, "ok", Duration::from_millis(1));
    let took = Duration::from_millis(1);
    histograms.observe(LatencySample::Attempt { result: AttemptResult::Scheduled, took });
    histograms.observe(LatencySample::Scheduled { waited: took, attempts: 1 });
    let nobody = tower::service_fn(|_: http::Request<Body>| async {
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    });
    let access = Access::new(kube::Client::new(nobody, "default"));
    let mut text = String::new();
    with_engine(|engine, _| {
        let sources = MetricSources {
            engine: engine.clone(),
            reporter: berth_kube_io::Reporter::new(),
            allocations: Default::default(),
            binds: Arc::default(),
            pod_watch: Arc::default(),
            node_watch: Arc::default(),
            claim_watch: Arc::default(),
            object_watches: Arc::default(),
            self_checks: Arc::default(),
            recorded: Arc::default(),
            lease_renewed: Arc::default(),
            clock_ahead: Arc::default(),
            serving: Some((Arc::default(), access)),
            recommender: Some(recommender()),
            updater: Some(Arc::default()),
            scaler: Some(Arc::default()),
            fragmentation: Some(Arc::default()),
            ui: Arc::default(),
            fit: Arc::default(),
            spans: Some(Arc::default()),
        };
        text = Metrics::new(&histograms, sources).encode().expect("a scrape");
    });
    text
}

/// Returns the types of the exported metrics by the name that Prometheus stores; of a histogram, without `_bucket`, `_sum` and
/// `_count`.
fn exported(scrape: &str) -> BTreeMap<String, String> {
    let types = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| {
            let suffix = if kind == "counter" { "_total" } else { "" };
            (format!("{name}{suffix}"), kind.to_owned())
        })
        .collect()
}

/// Returns the names of all series that Prometheus stores of a process in which everything is enabled.
pub(crate) fn series() -> BTreeSet<String> {
    let suffixes = |kind: &str| match kind {
        "histogram" => ["_bucket", "_sum", "_count"].as_slice(),
        _ => &[""],
    };
    let exported = exported(&scrape());
    exported
        .iter()
        .flat_map(|(name, kind)| suffixes(kind).iter().map(move |end| format!("{name}{end}")))
        .collect()
}

/// Returns the types of the metrics on the page by name: the first two columns of its tables.
fn described(page: &str) -> BTreeMap<String, String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut described = BTreeMap::new();
    for (name, rest) in rows {
        let kind = rest.split(" |").next().unwrap_or_default().to_owned();
        assert_eq!(described.insert(name.to_owned(), kind), None, "{name} is described twice");
    }
    described
}

#[tokio::test]
async fn every_exported_metric_is_described_and_the_other_way_round() {
    let (exported, described) = (exported(&scrape()), described(&read(PAGE)));
    let absent: Vec<_> = exported.keys().filter(|name| !described.contains_key(*name)).collect();
    let unknown: Vec<_> = described.keys().filter(|name| !exported.contains_key(*name)).collect();
    assert!(
        absent.is_empty() && unknown.is_empty(),
        "not in {PAGE}: {absent:#?}; not exported: {unknown:#?}"
    );
    assert_eq!(described, exported, "a type in {PAGE} differs");
}
