use axum::http::StatusCode;
use berth_scheduler::decisions::PlacementDecision;
use berth_test_support::collector::SpanCollector;
use serde_json::Value;

use super::*;

pub(crate) fn decision(name: &str) -> PlacementDecision {
    PlacementDecision {
        namespace: "shop".into(),
        name: name.into(),
        node: "node-1".into(),
        class: 7,
        placed_ms: 1_000,
        placement: Arc::default(),
        circumstances: None,
        candidates: [].into(),
        waited_ms: 20,
        choice_us: 100,
        bind_ms: 5,
        attempts: 1,
        conflicts: 0,
        agent: Some(1),
        list: None,
    }
}

/// Returns a page of decisions that are numbered from `forgotten` to `all`.
fn page(forgotten: u64, all: u64, from: u64, most: usize) -> DecisionPage {
    let first = from.max(forgotten);
    let numbers = first..all.min(first + most as u64);
    let decisions = numbers.map(|number| (decision(&format!("pod-{number}")), Duration::from_secs(1)));
    DecisionPage { first, decisions: decisions.collect() }
}

async fn send(endpoint: &str, per_million: u32, forgotten: u64, all: u64) -> Arc<SpanCounters> {
    // An error: another test has done so.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let counters = Arc::new(SpanCounters::default());
    let settings = SpanSettings { endpoint, per_million, host: "host" };
    let read = move |from, most| page(forgotten, all, from, most);
    let sender = SpanSender::new(settings, counters.clone(), read).expect("a client");
    sender.run(std::future::ready(())).await;
    counters
}

fn counted(counters: &SpanCounters) -> [u64; 3] {
    [&counters.sent, &counters.failed, &counters.missed].map(|count| count.load(Relaxed))
}

#[tokio::test]
async fn each_decision_becomes_a_trace_with_the_names_that_a_collector_expects() {
    let (collector, endpoint) = SpanCollector::start(StatusCode::OK).await;
    let counters = send(&endpoint, 1_000_000, 3, 603).await;
    assert_eq!(counted(&counters), [600, 0, 3]);
    let spans = collector.spans();
    assert_eq!(spans.len(), 600 * 4);
    let roots = collector.named("placement");
    let attribute = |span: &Value, key: &str| {
        let all = span["attributes"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|known| known["key"] == key).map(|known| known["value"]["stringValue"].clone())
    };
    assert_eq!(roots.len(), 600);
    assert_eq!(attribute(&roots[0], "k8s.pod.name"), Some("pod-3".into()));
    assert_eq!(attribute(&roots[0], "k8s.node.name"), Some("node-1".into()));
    let children = spans.iter().filter(|span| span["parentSpanId"] == roots[0]["spanId"]);
    let names: Vec<_> = children.map(|span| span["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["wait", "choose", "bind"]);
    let requests = collector.requests();
    assert_eq!(requests.len(), 3, "in pages");
    let resource = requests[0]["resourceSpans"][0]["resource"]["attributes"].to_string();
    assert!(resource.contains("service.name") && resource.contains("berth"), "{resource}");
}

#[tokio::test]
async fn a_sample_is_sent_and_what_a_collector_does_not_take_is_counted() {
    let (collector, endpoint) = SpanCollector::start(StatusCode::OK).await;
    let sent = counted(&*send(&endpoint, 100_000, 0, 1_000).await)[0];
    assert!((50..200).contains(&sent), "{sent}");
    assert_eq!(collector.spans().len() as u64, sent * 4);
    let (_refusing, endpoint) = SpanCollector::start(StatusCode::FORBIDDEN).await;
    assert_eq!(counted(&*send(&endpoint, 1_000_000, 0, 300).await), [0, 300, 0]);
    // Nobody listens there.
    assert_eq!(counted(&*send("http://127.0.0.1:9", 1_000_000, 0, 1).await), [0, 1, 0]);
}
