//! A Prometheus that does not answer, or not all queries.

use std::future::pending;
use std::time::Instant;

use axum::body::Body;
use axum::http::Response;
use berth_test_support::prometheus::{Fake, vector};
use jiff::Timestamp;

use super::*;

/// Maximum time from an OOM kill to the growth.
const KILL_LIMIT: Duration = Duration::from_secs(15);

async fn message(client: &Client, name: &str, type_: &str) -> String {
    let api: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    let status = api.get(name).await.expect("it exists").status.unwrap_or_default();
    let condition = status.conditions.into_iter().find(|condition| condition.type_ == type_);
    condition.map(|condition| condition.message).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_killed_gets_more_memory_while_prometheus_hangs() {
    let cluster = prepare().await;
    let Cluster { client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes::default()).await;
    let fake = Fake::start_async(|_, _| pending::<Response<Body>>()).await;
    // The interval is the default, 15 s.
    let config = format!("scaling: {{enabled: true}}\nrecommender: {{prometheus: {{url: '{}'}}}}", fake.url);
    let berth = Berth::start(&control_plane.kubeconfig_for(BERTH).expect("a kubeconfig"), &config);
    create_deployment(client, "web", 2, None).await;
    await_bound(client, SOON, 2, |_| true).await;
    create_scaler(client, "web", json!({})).await;
    await_until(SOON, "the slow queries are reported", async || {
        message(client, "web", "MetricsAvailable").await.contains("there has been no answer")
    })
    .await;
    assert!(!fake.asked().is_empty());
    let pod = web_pods(client).await.swap_remove(0);
    assert_eq!(memory_of(&pod), 512 << 20);

    let killed = Instant::now();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let end = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": now}});
    let status = json!({"status": {"containerStatuses": [{"name": "app", "lastState": end}]}});
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let patch = Patch::Strategic(&status);
    api.patch_status(name_of(&pod), &PatchParams::default(), &patch).await.expect("it was killed");
    await_closely(SOON, "its service gets more memory", async || {
        web_pods(client).await.iter().all(|pod| memory_of(pod) > 600 << 20)
    })
    .await;
    let took = killed.elapsed();
    println!("an OOM kill was acted on after {took:?}, with Prometheus hanging");
    assert!(took < KILL_LIMIT, "{took:?}\n{}", berth.log());
    assert!(berth.metric(r#"berth_scaler_reads_late_total{read="usage"}"#).await > 0.0);
    assert_eq!(berth.metric(r#"berth_scaler_reads_total{read="usage",result="done"}"#).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_a_tenant_that_hangs_delays_nobody() {
    let cluster = prepare().await;
    let Cluster { client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes::default()).await;
    let fake = Fake::start_async(|_, asked| async move {
        if asked.query().contains("slow_metric") {
            return pending().await;
        }
        if asked.is_time() {
            return Response::new(Body::from(asked.answer()));
        }
        let latency = r#"{"metric":{"destination_workload_namespace":"default","destination_workload":"web"},"value":[TIME,"500"]}"#;
        let answer = match asked.query() {
            query if query.contains("istio") => latency.replace("TIME", &asked.form["time"]),
            _ => String::new(),
        };
        Response::new(Body::from(vector(&answer)))
    })
    .await;
    let config = format!(
        "scaling: {{enabled: true, interval: 5s, hintsWindow: 75s, customQueries: ['*']}}\nrecommender: {{prometheus: {{url: '{}'}}}}",
        fake.url
    );
    let berth = Berth::start(&control_plane.kubeconfig_for(BERTH).expect("a kubeconfig"), &config);
    for name in ["slow-0", "slow-1", "slow-2", "web"] {
        create_deployment(client, name, 1, None).await;
        let signal = match name {
            "web" => json!({"type": "RequestLatency", "target": "100"}),
            _ => json!({"type": "Query", "query": "sum(slow_metric)", "target": "1"}),
        };
        create_scaler(client, name, json!({"objectives": {"signal": signal}, "dimensions": ["Replicas"]}))
            .await;
    }
    await_until(SOON, "the service beside them grows", async || replicas(client).await >= 4).await;
    await_until(SOON, "the slow query is the reason of the others", async || {
        message(client, "slow-0", "MetricsAvailable").await.contains("its query is slow")
    })
    .await;
    assert!(berth.metric("berth_scaler_round_seconds").await < 4.0, "a round waits");
    assert!(berth.metric(r#"berth_scaler_reads_late_total{read="custom"}"#).await > 0.0);
    // Two of its namespace at a time, and each for one interval at most: they hang on.
    assert!(berth.metric(r#"berth_scaler_reads_total{read="custom",result="failed"}"#).await > 0.0);
}
