//! Checks that the chart's dashboard uses only exported metrics.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;
use berth_prometheus::{PrometheusConfig, PrometheusSource};
use berth_scheduler::testing::with_engine;
use berth_telemetry::{SizedResource, UsageSample};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/berth/dashboards/berth.json");

/// Returns a scrape of a process in which every metric has a value.
fn scrape() -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let histograms = Histograms::default();
    histograms.observe_lock(Operation::Tick, Duration::from_millis(1));
    histograms.observe_request(Verb::Filter, "ok", Duration::from_millis(1));
    histograms
        .observe(LatencySample::Attempt { result: AttemptResult::Scheduled, took: Duration::from_millis(1) });
    histograms.observe(LatencySample::Scheduled { waited: Duration::from_millis(1), attempts: 1 });
    let recommender = Arc::new(RecommenderMetrics::default());
    recommender.took("total", Instant::now());
    recommender.follow(Some(PrometheusSource::new(PrometheusConfig::default()).unwrap()));
    for resource in [SizedResource::Cpu, SizedResource::Memory] {
        for recommended in [None, Some(1e12)] {
            let usage = UsageSample { update_mode: "Off", resource, amount: 1.0, is_oom: false };
            recommender.quality().observe(usage, recommended);
        }
        recommender.quality().changed("Off", resource, 1, 2, 1);
    }
    // The client spawns a task, which nothing needs.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let nobody =
        tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let access = Access::new(kube::Client::new(nobody, "default"));
    let mut text = String::new();
    with_engine(|engine, _| {
        let sources = MetricSources {
            engine: engine.clone(),
            reporter: Reporter::new(),
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
            recommender: Some(recommender),
            updater: Some(Arc::default()),
            scaler: Some(Arc::default()),
            fragmentation: Some(Arc::default()),
            ui: Arc::default(),
            fit: Arc::default(),
            spans: Some(Arc::default()),
        };
        text = Metrics::new(&histograms, sources).encode().unwrap();
    });
    text
}

/// Returns the names under which Prometheus stores the metrics of a scrape.
fn names(scrape: &str) -> BTreeSet<String> {
    let types = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let suffixes = |kind: &str| match kind {
        "counter" => vec!["_total"],
        "histogram" => vec!["_bucket", "_sum", "_count"],
        _ => vec![""],
    };
    types.flat_map(|(name, kind)| suffixes(kind).into_iter().map(move |end| format!("{name}{end}"))).collect()
}

#[test]
fn every_metric_of_the_dashboard_is_exported() {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let texts: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("an expression")).collect();
    let exported = names(&scrape());
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut shown = BTreeSet::new();
    for text in &texts {
        let mut metrics = text.split(|c| !is_name(c)).filter(|word| {
            ["berth_", "scheduler_", "vpa_", "process_"].iter().any(|prefix| word.starts_with(prefix))
        });
        let first = metrics.next().unwrap_or_else(|| panic!("no metric in {text}"));
        for metric in metrics.chain([first]) {
            assert!(exported.contains(metric), "{metric} of {text} is not exported: {exported:#?}");
            shown.insert(metric);
        }
    }
    assert!(shown.len() > 80, "{shown:?}");
}

#[test]
fn every_part_has_a_row_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let titles: Vec<&str> = rows.map(|row| row["title"].as_str().expect("a title")).collect();
    let expected = [
        "Scheduling",
        "Agents and lock",
        "API server",
        "Guard, webhook and extender",
        "Quotas and limits",
        "Recommendations",
        "Recommender",
        "Updater and scaler",
        "Fragmentation",
    ];
    assert_eq!(titles, expected);
}

#[test]
fn panels_of_the_dashboard_have_their_own_ids_and_places() {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<i64> = panels.iter().filter_map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let of = |key: &str| panel["gridPos"][key].as_i64().expect("a place");
        assert!(of("x") + of("w") <= 24, "{panel}");
        for x in of("x")..of("x") + of("w") {
            for y in of("y")..of("y") + of("h") {
                assert!(taken.insert((x, y)), "two panels at {x},{y}");
            }
        }
    }
}

#[test]
fn metrics_have_the_names_that_upstream_gives_them() {
    let exported = names(&scrape());
    for name in [
        "vpa_recommender_vpa_objects_count",
        "vpa_recommender_recommendation_latency_seconds_bucket",
        "vpa_recommender_execution_latency_seconds_bucket",
        "vpa_recommender_aggregate_container_states_count",
        "vpa_recommender_metric_server_responses",
        "vpa_recommender_prometheus_client_api_requests_count",
        "vpa_recommender_prometheus_client_api_requests_duration_seconds_bucket",
        "vpa_quality_usage_recommendation_relative_diffs_bucket",
        "vpa_quality_usage_sample_missing_recommendation_count",
        "vpa_quality_cpu_recommendation_over_usage_diffs_cores_bucket",
        "vpa_quality_mem_recommendation_over_usage_diffs_bytes_bucket",
        "vpa_quality_cpu_recommendation_lower_equal_usage_diffs_cores_bucket",
        "vpa_quality_mem_recommendation_lower_equal_usage_diffs_bytes_bucket",
        "vpa_quality_cpu_recommendations_cores_bucket",
        "vpa_quality_mem_recommendations_bytes_bucket",
        "vpa_quality_relative_recommendation_changes_bucket",
    ] {
        assert!(exported.contains(name), "no {name} in {exported:#?}");
    }
}
