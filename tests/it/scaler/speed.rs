//! A round of 2,000 services.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::Body;
use axum::http::Response;
use berth_test_support::prometheus::{Fake, RecordedRequest, vector};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;

use super::*;

const SERVICES: usize = 2_000;
const NAMESPACES: usize = 200;
const ROUNDS: usize = 4;
const REQUESTS_IN_FLIGHT: usize = 16;
/// Time until Prometheus answers.
const ANSWER: Duration = Duration::from_millis(100);
/// Targets.
const ROUND_LIMIT: f64 = 5.0;
const QUERIES_MAX: usize = 16;

const SIGNALS: [&str; 4] = ["CpuThrottling", "CpuPressure", "RunQueueLatency", "RequestLatency"];

fn namespace(service: usize) -> String {
    format!("team-{:03}", service % NAMESPACES)
}

/// Usage of all containers, and all signals at half of their targets.
fn answer(asked: &RecordedRequest) -> String {
    let (query, time) = (asked.query(), &asked.form["time"]);
    if asked.is_count() {
        return asked.answer();
    }
    let is_usage = query.starts_with("max by (namespace, pod, container)");
    let is_fraction = query.contains("berth_part");
    let value = match query {
        _ if query.contains("memory") => "209715200",
        _ if is_usage => "0.3",
        _ => "0.05",
    };
    let mut results = Vec::with_capacity(SERVICES);
    for at in 0..SERVICES {
        let (namespace, pod) = (namespace(at), format!("app-{at:04}-0"));
        let mut result = |labels: &str, value: &str| {
            results.push(format!(r#"{{"metric":{{{labels}}},"value":[{time},"{value}"]}}"#));
        };
        let pod = format!(r#""namespace":"{namespace}","pod":"{pod}""#);
        if is_usage {
            result(&format!(r#"{pod},"container":"app""#), value);
        } else if is_fraction {
            result(&format!(r#"{pod},"berth_part":"numerator""#), "0.05");
            result(&format!(r#"{pod},"berth_part":"denominator""#), "1");
        } else if query.contains("istio") {
            let labels = format!(
                r#""destination_workload_namespace":"{namespace}","destination_workload":"app-{at:04}""#
            );
            result(&labels, value);
        } else {
            result(&pod, value);
        }
    }
    vector(&results.join(","))
}

async fn create_all<K>(client: &Client, objects: Vec<(String, Value)>)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let create = |(namespace, object): (String, Value)| async move {
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let object = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("it is created");
    };
    stream::iter(objects).map(create).buffer_unordered(REQUESTS_IN_FLIGHT).collect::<Vec<_>>().await;
}

/// Creates a Deployment, a pod and a ServiceScaler for each service. Nothing runs the pods.
async fn create_services(client: &Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for at in 0..NAMESPACES {
        let namespace = json!({"metadata": {"name": namespace(at)}});
        let namespace = serde_json::from_value(namespace).expect("a namespace");
        namespaces.create(&PostParams::default(), &namespace).await.expect("it is created");
    }
    let container = json!({"name": "app", "image": "web", "resources": {
        "requests": {"cpu": "900m", "memory": "512Mi"},
    }});
    let each = |object: &dyn Fn(String) -> Value| {
        (0..SERVICES).map(|at| (namespace(at), object(format!("app-{at:04}")))).collect::<Vec<_>>()
    };
    let deployments = each(&|name| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
            },
        })
    });
    create_all::<Deployment>(client, deployments).await;
    let pods = each(&|name| {
        json!({
            "metadata": {"name": format!("{name}-0"), "labels": {"app": name}},
            "spec": {"containers": [container], "schedulerName": "nobody"},
        })
    });
    create_all::<Pod>(client, pods).await;
    let mut signals = SIGNALS.iter().cycle();
    let mut scalers = Vec::new();
    for (namespace, name) in (0..SERVICES).map(|at| (namespace(at), format!("app-{at:04}"))) {
        let signal = signals.next().expect("a cycle");
        let scaler = json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "ServiceScaler",
            "metadata": {"name": name},
            "spec": {
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "objectives": {
                    "signal": {"type": signal, "target": "0.1"},
                    "successRate": {"percent": "1"},
                },
                "bounds": {"minReplicas": 1, "maxReplicas": 3},
                "dryRun": false,
            },
        });
        scalers.push((namespace, scaler));
    }
    create_all::<ServiceScaler>(client, scalers).await;
}

/// `.ci/long scaler`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: creates 6,000 objects"]
async fn a_round_of_2_000_services() {
    let cluster = prepare().await;
    let Cluster { client, control_plane, .. } = &cluster;
    let began = Instant::now();
    create_services(client).await;
    println!("{SERVICES} services in {NAMESPACES} namespaces were created in {:.1?}", began.elapsed());
    let fake = Fake::start_async(|_, asked| async move {
        tokio::time::sleep(ANSWER).await;
        Response::new(Body::from(if asked.is_time() { asked.answer() } else { answer(&asked) }))
    })
    .await;
    let config = format!("scaling: {{enabled: true}}\nrecommender: {{prometheus: {{url: '{}'}}}}", fake.url);
    let berth = Berth::start(&control_plane.kubeconfig_for(BERTH).expect("a kubeconfig"), &config);
    let rounds = async || {
        let done = r#"berth_scaler_rounds_total{result="done"}"#;
        berth.find_metric(done).await.unwrap_or(0.0) as usize
    };
    for round in 1..=ROUNDS {
        await_closely(SOON, "the next round has ended", async || rounds().await >= round).await;
        let took = berth.metric("berth_scaler_round_seconds").await;
        let scaled = berth.metric(r#"berth_scaler_services{reason="Scaling"}"#).await;
        // The next round begins at the next interval only.
        let mut queries: BTreeMap<i64, usize> = BTreeMap::new();
        for asked in fake.asked().iter().filter(|asked| !asked.is_time()) {
            *queries.entry(asked.form["time"].parse().expect("a time")).or_default() += 1;
        }
        assert!(queries.len() <= round, "{queries:?}");
        let queries = queries.values().copied().last().unwrap_or(0);
        println!("round {round}: {took:.2} s, {queries} queries, {scaled} services scaled");
        assert_eq!(scaled as usize, SERVICES);
        // The first one writes the status of each service, which takes the API server as long.
        assert!(round == 1 || took <= ROUND_LIMIT, "round {round} took {took} s");
        assert!(queries <= QUERIES_MAX, "round {round} sent {queries} queries");
    }
}
