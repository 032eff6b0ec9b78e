//! History and samples from a fake Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use tokio::net::TcpListener;

use super::*;
use crate::support::{Pods, create_pods};

/// Answers every query for usage with half a core and 400 MiB of two pods: one that runs, and one of an old rollout.
async fn answer(State(is_up): State<Arc<AtomicBool>>, request: Request) -> impl IntoResponse {
    if !is_up.load(Ordering::Acquire) {
        return (
            StatusCode::BAD_REQUEST,
            r#"{"status":"error","errorType":"bad_data","error":"not now"}"#.into(),
        );
    }
    let is_range = request.uri().path().ends_with("query_range");
    let body = to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
    let form: Vec<(String, String)> = form(&String::from_utf8_lossy(&body));
    let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let number = |name: &str| field(name).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    let query = field("query").unwrap_or_default();
    let value = match (query.starts_with("count("), query.contains("rate(")) {
        (true, _) => "1",
        (_, true) => "0.5",
        _ => "419430400",
    };
    let series = |pod: &str| {
        let samples: Vec<String> = match is_range {
            true => (0..=(number("end") - number("start")) / number("step").max(1))
                .map(|index| format!(r#"[{},"{value}"]"#, number("start") + index * number("step")))
                .collect(),
            false => vec![format!(r#"{},"{value}""#, number("time"))],
        };
        let key = if is_range { "values" } else { "value" };
        let metric = format!(r#"{{"namespace":"default","pod":"{pod}","container":"app"}}"#);
        format!(r#"{{"metric":{metric},"{key}":[{}]}}"#, samples.join(","))
    };
    let result = [series(POD), series("web-5c5d5f7b9-old00")].join(",");
    let kind = if is_range { "matrix" } else { "vector" };
    let body = format!(r#"{{"status":"success","data":{{"resultType":"{kind}","result":[{result}]}}}}"#);
    (StatusCode::OK, body)
}

/// The fields of a form.
fn form(body: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(&format!("http://form/?{body}")).expect("a form");
    url.query_pairs().into_owned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn history_and_samples_come_from_prometheus_and_no_more_is_recommended_than_a_node_can_hold() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    create_nodes(&client, &Nodes { cpu: "400m", ..Nodes::default() }).await;
    // What every node has is not for web.
    let agent = Pods { prefix: "agent", requests: json!({"cpu": "150m"}), ..Pods::default() };
    create_pods(&client, &agent, |_, pod| {
        pod["spec"]["nodeName"] = "node-0".into();
        pod["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": true}]);
    })
    .await;
    create_workload(&client, "web", 1).await;
    create(&vpas(&client), vpa("web", "web", "berth")).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let is_up = Arc::new(AtomicBool::new(false));
    let app = Router::new().fallback(answer).with_state(is_up.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let config = format!(
        "recommender: {{enabled: true, interval: 1s, checkpointsInterval: 1s, storage: prometheus, prometheus: {{url: '{url}'}}}}\n\
         leaderElection: {{enabled: true, namespace: default}}"
    );
    let berth = Berth::start(&control_plane.kubeconfig(), &config);
    berth.await_ready().await;
    await_until(LIMIT, "the history is awaited", async || {
        is_true(&status(&client, "web").await, "FetchingHistory")
    })
    .await;
    assert!(checkpoints(&client).list(&Default::default()).await.expect("checkpoints").items.is_empty());

    is_up.store(true, Ordering::Release);
    await_until(LIMIT, "web has a recommendation", async || {
        is_true(&status(&client, "web").await, "RecommendationProvided")
    })
    .await;
    let web = status(&client, "web").await;
    assert!(!is_true(&web, "FetchingHistory"), "{web}");
    let (cpu, memory) = amounts(&web, "target");
    assert_eq!(cpu, 250, "{web}");
    assert!((400 * MI..600 * MI).contains(&memory), "{web}");
    assert!(amounts(&web, "uncappedTarget").0 > 500, "{web}");
    let (_, provided) = condition(&web, "RecommendationProvided").expect("the condition is set");
    assert!(provided.contains("CPU is capped"), "{provided}");
    await_until(LIMIT, "what Prometheus had is kept", async || {
        let checkpoint = checkpoints(&client).get_opt("web-app").await.expect("checkpoints");
        // Eight days of two pods.
        checkpoint.is_some_and(|it| it.data["status"]["totalSamplesCount"].as_i64() > Some(2 * 8 * 24 - 10))
    })
    .await;
    server.abort();
}
