//! Tests of the order of queries, and of their results.

use berth_rightsizing::usage::{SeriesScope, UsageKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse;
use jiff::Timestamp;

use super::fake::{Fake, RecordedRequest, Sources, error, matrix, vector};
use crate::{
    Fact, HttpHeader, LabelNames, Metric, MetricKind, PrometheusSource, QueriedNamespaces, ReadSummary,
    RequestSource, Series, ServiceName, SignalKind, Skip, SourceError, filled,
};

const NOW: i64 = 1_700_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// Kind and time of each sample, in order of arrival.
async fn history(
    source: &PrometheusSource,
    namespaces: QueriedNamespaces<'_>,
) -> (Vec<(UsageKind, i64)>, Result<ReadSummary, SourceError>) {
    let mut samples = Vec::new();
    let keep = |kind, series: Series<'_>| {
        for sample in series.samples {
            assert!((sample.at - sample.value).abs() < 1e-9, "{sample:?}");
            samples.push((kind, sample.at as i64));
        }
    };
    let outcome = source.history(namespaces, now(), keep).await;
    (samples, outcome)
}

/// The last day by the hour, for both kinds.
fn day() -> BTreeMap<UsageKind, Vec<i64>> {
    let times: Vec<i64> = (0..=24).map(|hour| NOW - (24 - hour) * 3_600).collect();
    UsageKind::ALL.map(|kind| (kind, times.clone())).into()
}

fn by_kind(samples: &[(UsageKind, i64)]) -> BTreeMap<UsageKind, Vec<i64>> {
    let mut by_kind: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (kind, at) in samples {
        by_kind.entry(*kind).or_default().push(*at);
    }
    by_kind
}

#[tokio::test]
async fn the_history_comes_slice_after_slice_with_each_point_once() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|_| {});
    let (samples, outcome) = history(&source, QueriedNamespaces::All).await;
    assert_eq!(by_kind(&samples), day());
    let summary = outcome.unwrap();
    assert_eq!(summary, ReadSummary { queries: 8, series: 8, samples: 50, ..ReadSummary::default() });
    let asked = fake.asked();
    assert!(asked.iter().all(|asked| asked.path == "/api/v1/query_range" && asked.authorization.is_none()));
    assert!(asked[0].is_cpu() && !asked[1].is_cpu());
    assert!(asked[0].query().contains("[1h]") && asked[0].form["timeout"] == "1000ms");
    let counters = source.counters();
    assert_eq!((counters.series(), counters.samples(), counters.retries()), (8, 50, 0));
    assert_eq!(counters.requests()[&200].count, 8);
}

#[tokio::test]
async fn a_path_before_the_api_is_kept() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|config| config.url.push_str("/thanos/"));
    source.check(now()).await.unwrap();
    assert_eq!(fake.asked()[0].path, "/thanos/api/v1/query");
}

#[tokio::test]
async fn slices_stay_in_order_when_several_are_asked_for_at_once_and_later_ones_are_faster() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (running.clone(), most.clone());
    let fake = Fake::start_async(move |number, asked: RecordedRequest| {
        let (running, most) = counted.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(if number % 3 == 0 { 40 } else { 5 })).await;
            running.fetch_sub(1, Ordering::SeqCst);
            asked.answer().into_response()
        }
    })
    .await;
    let source = fake.source(|config| config.parallelism = 3);
    let (samples, outcome) = history(&source, QueriedNamespaces::All).await;
    outcome.unwrap();
    assert_eq!(by_kind(&samples), day());
    let slice = |at: i64| (at - (NOW - 86_400) - 1).max(0) / (6 * 3_600);
    assert!(samples.is_sorted_by_key(|(_, at)| slice(*at)), "{samples:?}");
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn only_the_wanted_namespaces_are_asked_for_and_none_needs_no_question() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|_| {});
    let (samples, outcome) = history(&source, QueriedNamespaces::These(&[])).await;
    assert!(samples.is_empty() && fake.asked().is_empty());
    assert_eq!(outcome.unwrap(), ReadSummary::default());
    let wanted = ["b", "a"].map(str::to_owned);
    history(&source, QueriedNamespaces::These(&wanted)).await.1.unwrap();
    assert!(fake.asked().iter().all(|asked| asked.query().contains(r#"namespace=~"a|b""#)));
}

#[tokio::test]
async fn a_slice_that_is_too_much_is_halved_and_later_ones_are_asked_for_in_short_pieces_at_once() {
    for parallelism in [1, 3] {
        let fake = Fake::start(|_, asked| {
            if asked.times().len() > 3 {
                return error(422, "execution", "query processing would load too many samples into memory");
            }
            asked.answer().into_response()
        })
        .await;
        let source = fake.source(|config| config.parallelism = parallelism);
        let (samples, outcome) = history(&source, QueriedNamespaces::All).await;
        outcome.unwrap();
        assert_eq!(by_kind(&samples), day());
        let halved = source.counters().halved();
        // The first slice has 7 points: 7 and 4 were too many.
        assert!((2..=6).contains(&halved), "{halved}");
        assert_eq!(source.counters().requests()[&422].count, halved);
    }
}

#[tokio::test]
async fn a_query_that_takes_prometheus_too_long_is_halved_too() {
    let fake = Fake::start(|_, asked| match asked.times().len() {
        4.. => error(503, "timeout", "query timed out in expression evaluation"),
        _ => asked.answer().into_response(),
    })
    .await;
    let source = fake.source(|_| {});
    let (samples, outcome) = history(&source, QueriedNamespaces::All).await;
    outcome.unwrap();
    assert_eq!(by_kind(&samples), day());
    assert_eq!(source.counters().retries(), 0);
}

#[tokio::test]
async fn namespaces_are_divided_when_one_point_is_too_much_and_one_namespace_is_the_end() {
    let too_much = || error(422, "execution", "query processing would load too many samples into memory");
    let fake = Fake::start(move |_, asked| match asked.query().contains("=~\"a|b") {
        true => too_much(),
        false => asked.answer().into_response(),
    })
    .await;
    let wanted = ["a", "b", "c"].map(str::to_owned);
    let source = fake.source(|_| {});
    let mut series = 0;
    let summary = source.latest(QueriedNamespaces::These(&wanted), now(), |_, _| series += 1).await.unwrap();
    // `a`, and `b` with `c`, for both kinds.
    assert_eq!((series, summary.queries), (4, 4));

    let fake = Fake::start(move |_, _| too_much()).await;
    let error = history(&fake.source(|_| {}), QueriedNamespaces::These(&wanted)).await.1.unwrap_err();
    assert!(
        matches!(&error, SourceError::TooMuch { said, .. } if said.contains("too many samples")),
        "{error}"
    );
    // 7, 4, 2 and 1 points, then one namespace.
    assert!(fake.asked().len() <= 6, "{}", fake.asked().len());
}

#[tokio::test]
async fn the_newest_samples_are_asked_for_now_and_over_the_live_window() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|_| {});
    let mut samples = Vec::new();
    let keep =
        |kind, series: Series<'_>| samples.push((kind, series.pod.to_owned(), series.samples.to_vec()));
    source.latest(QueriedNamespaces::All, now(), keep).await.unwrap();
    assert_eq!(samples.iter().map(|sample| sample.0).collect::<Vec<_>>(), UsageKind::ALL);
    assert!(samples.iter().all(|(_, pod, samples)| pod == "p" && samples.len() == 1));
    let asked = fake.asked();
    assert!(asked.iter().all(|asked| asked.path == "/api/v1/query" && asked.form["time"] == NOW.to_string()));
    assert!(asked[0].query().contains("[5m]"));
}

#[tokio::test]
async fn labels_are_found_out_once_the_modern_ones_first() {
    for (there, found) in [
        ("pod=", LabelNames::modern()),
        ("pod_name=", LabelNames::legacy()),
        ("nothing", LabelNames::modern()),
    ] {
        let fake = Fake::start(move |_, asked| match asked.is_count() && !asked.query().contains(there) {
            true => vector(""),
            false => asked.answer(),
        })
        .await;
        let source = fake.source(|config| config.labels = None);
        assert_eq!(source.labels(now()).await.unwrap(), found, "{there}");
        let before = fake.asked().len();
        source.latest(QueriedNamespaces::All, now(), |_, _| ()).await.unwrap();
        // If there were no series, the labels are detected again.
        let expected = if there == "nothing" { 4 } else { 2 };
        assert_eq!(fake.asked().len() - before, expected, "{there}");
    }
}

#[tokio::test]
async fn warnings_are_told_once_and_skipped_series_are_counted() {
    let fake = Fake::start(|_, _| {
        matrix(r#"{"metric":{"pod":"p"},"values":[[1,"1"]]}"#)
            .replace(r#""data""#, r#""warnings":["a store is away","it is late"],"data""#)
    })
    .await;
    let source = fake.source(|_| {});
    let (samples, outcome) = history(&source, QueriedNamespaces::All).await;
    let summary = outcome.unwrap();
    assert!(samples.is_empty());
    assert_eq!(summary.warnings, ["a store is away", "it is late"]);
    assert_eq!(summary.skipped.get(Skip::MissingLabel), 8);
    assert_eq!(source.counters().skipped(Skip::MissingLabel), 8);
}

#[tokio::test]
async fn requests_end_with_the_future_that_waits_for_them() {
    struct Ends(Arc<AtomicUsize>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let fake = Fake::start_async(move |_, _| {
        let ends = Ends(count.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            drop(ends);
            Response::new(Body::empty())
        }
    })
    .await;
    let source = fake.source(|config| config.parallelism = 2);
    let _ = tokio::time::timeout(Duration::from_millis(100), history(&source, QueriedNamespaces::All)).await;
    let gone = async {
        while ended.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("both requests end");
}

/// On a Thanos or Mimir that several clusters share, equal names of two clusters would be merged.
#[tokio::test]
async fn every_query_has_the_matchers_and_every_request_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let tenant = folder.path().join("tenant");
    std::fs::write(&tenant, "team-b\n").unwrap();
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|config| {
        config.labels = None;
        config.matchers = vec!["cluster=prod".to_owned(), "region!~eu-.*".to_owned()];
        let header = |name: &str, value: Option<&str>, value_file| HttpHeader {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            value_file,
        };
        config.headers =
            vec![header("X-Scope-OrgID", Some("team-a"), None), header("X-Tenant", None, Some(tenant))];
    });
    let names = ["shop".to_owned()];
    let namespaces = QueriedNamespaces::These(&names);
    let received = Metric {
        name: "received_total".to_owned(),
        kind: MetricKind::Rate,
        scope: SeriesScope::Pod,
        matchers: Vec::new(),
        sum_over: Vec::new(),
    };
    source.latest(namespaces, now(), |_, _| ()).await.unwrap();
    source.history(QueriedNamespaces::All, now(), |_, _| ()).await.unwrap();
    source.latest_of(&received, namespaces, now(), |_| ()).await.unwrap();
    for kind in all_signals() {
        source.signal(kind, namespaces, now()).await.unwrap();
    }
    for fact in [Fact::PodOwner, Fact::ReplicaSetOwner, Fact::JobOwner, Fact::Request(UsageKind::Cpu)] {
        source.facts(fact, QueriedNamespaces::All, now(), |_| ()).await.unwrap();
    }
    source.missing(now()).await.unwrap();
    let service = ServiceName { namespace: "shop", kind: "Deployment", name: "web" };
    let own = filled(source.config(), r#"sum(x{name="$name", $matchers})"#, service);
    assert_eq!(own, r#"sum(x{name="web", cluster="prod", region!~"eu-.*"})"#);
    let asked = fake.asked();
    assert!(asked.len() > 15, "{}", asked.len());
    for request in asked {
        let query = request.query();
        let selectors = query.matches('{').count();
        assert!(selectors > 0, "{query}");
        assert_eq!(query.matches(r#"cluster="prod", region!~"eu-.*""#).count(), selectors, "{query}");
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        assert_eq!((header("x-scope-orgid"), header("x-tenant")), (Some("team-a"), Some("team-b")));
    }
}

#[tokio::test]
async fn a_signal_of_many_namespaces_is_read_in_slices() {
    let fake = Fake::start(|_, asked: &RecordedRequest| {
        let namespace = if asked.query().contains("n-000") { "n-000" } else { "n-599" };
        let half = |part: &str, value: f64| {
            format!(
                r#"{{"metric":{{"namespace":"{namespace}","pod":"p","berth_part":"{part}"}},"value":[{NOW},"{value}"]}}"#
            )
        };
        vector(&[half("numerator", 1.0), half("denominator", 4.0)].join(","))
    })
    .await;
    let source = fake.source(|_| {});
    let many: Vec<String> = (0..600).map(|index| format!("n-{index:03}")).collect();
    let (values, summary) =
        source.signal(SignalKind::CpuThrottling, QueriedNamespaces::These(&many), now()).await.unwrap();
    assert_eq!((summary.queries, fake.asked().len()), (3, 3));
    for namespace in ["n-000", "n-599"] {
        let sample = values.of(namespace, "web", ["p"]).expect(namespace);
        assert_eq!((sample.at as i64, sample.value), (NOW, 0.25));
    }
}

/// Each of them would ask on its own which labels there are.
#[tokio::test]
async fn concurrent_reads_detect_the_labels_once() {
    let fake = Fake::start(|_, asked| asked.answer()).await;
    let source = fake.source(|config| config.labels = None);
    let names = ["shop".to_owned()];
    let namespaces = QueriedNamespaces::These(&names);
    let reads = all_signals().map(|kind| source.signal(kind, namespaces, now()));
    for read in futures::future::join_all(reads).await {
        read.unwrap();
    }
    assert_eq!(fake.asked().iter().filter(|asked| asked.is_count()).count(), 1);
}

fn all_signals() -> impl Iterator<Item = SignalKind> {
    let of_requests = RequestSource::ALL
        .into_iter()
        .flat_map(|source| [SignalKind::RequestLatency(source), SignalKind::SuccessRate(source)]);
    [SignalKind::CpuThrottling, SignalKind::CpuPressure, SignalKind::RunQueueLatency]
        .into_iter()
        .chain(of_requests)
}
