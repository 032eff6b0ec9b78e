//! The binding guard as a webhook of a real API server: no client can overcommit a node.

mod hostile;
mod replicas;
mod rolling;
mod strangers;
mod tenants;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::serving::client::{Ca, in_seconds};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);
/// Pods of 100 milli CPU on a node of 4 CPUs.
const SLOTS: usize = 40;

/// The certificates of the guard, as files.
struct Certificates {
    folder: TempDir,
    ca: String,
}

impl Certificates {
    fn new() -> Certificates {
        let ca = Ca::new("guards");
        let server = ca.server(in_seconds(7_200));
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in
            [("tls.crt", &server.certificate), ("tls.key", &server.key), ("ca.crt", &ca.certificate)]
        {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        Certificates { folder, ca: ca.certificate }
    }

    /// Returns the configuration of a berth that is a guard.
    fn config(&self, more: &str) -> String {
        self.config_with(&json!({}), more)
    }

    /// Returns the same with more settings of `serving`.
    fn config_with(&self, settings: &Value, more: &str) -> String {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let mut serving = json!({
            "address": "127.0.0.1:0",
            "certFile": file("tls.crt"),
            "keyFile": file("tls.key"),
            "caFile": file("ca.crt"),
        });
        let settings = settings.as_object().expect("settings").clone();
        serving.as_object_mut().expect("settings").extend(settings);
        format!("serving: {serving}\nguard: {{enabled: true}}\n{more}")
    }
}

/// Registers the guard at `address` with the API server, and waits until it is called.
async fn install(client: &Client, address: SocketAddr, ca: &str, failure_policy: &str) {
    let webhook = |name: &str, resource: &str, conditions: Value| {
        json!({
            "name": name,
            "clientConfig": {"url": format!("https://{address}/guard"), "caBundle": base64(ca)},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
            "failurePolicy": failure_policy,
            "matchConditions": conditions,
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        })
    };
    let placed =
        json!([{"name": "placed", "expression": "has(object.spec.nodeName) && object.spec.nodeName != ''"}]);
    let configuration = json!({
        "metadata": {"name": "berth"},
        "webhooks": [
            webhook("bindings.berth.dev", "pods/binding", json!([])),
            webhook("pods.berth.dev", "pods", placed),
        ],
    });
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    api.create(&PostParams::default(), &configuration).await.expect("created");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let probe = pod_on("probe", "no-such-node", "1m", json!({}));
    await_until(SOON, "the API server asks the guard", async || {
        match pods.create(&PostParams::default(), &probe).await {
            Ok(pod) => {
                let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
                pods.delete(name_of(&pod), &now).await.expect("deleted");
                false
            }
            Err(error) => error.to_string().contains("node no-such-node is not in berth"),
        }
    })
    .await;
}

fn base64(text: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).expect("a text")
}

/// A pod that is created on a node.
fn pod_on(name: &str, node: &str, cpu: &str, annotations: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Returns the number of nodes with more pods than fit, and the number of bound pods.
async fn filled(client: &Client) -> (usize, usize) {
    let mut on: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for pod in all_pods(client).await {
        if let Some(node) = node_of(&pod) {
            *on.entry(node.to_owned()).or_default() += 1;
        }
    }
    (on.values().filter(|pods| **pods > SLOTS).count(), on.values().sum())
}

/// Returns the upper limit of the bucket with the median of a duration, in microseconds; `labels` are its labels.
fn median_us(scrape: &str, labels: &str) -> f64 {
    let bucket = |line: &str| {
        let (limit, rest) =
            line.strip_prefix("berth_request_duration_seconds_bucket{le=\"")?.split_once("\",")?;
        let count = rest.strip_prefix(labels)?.strip_prefix("} ")?;
        Some((limit.parse::<f64>().unwrap_or(f64::INFINITY), count.parse::<f64>().ok()?))
    };
    let buckets: Vec<_> = scrape.lines().filter_map(bucket).collect();
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    buckets.iter().find(|(_, count)| *count >= all / 2.0).map_or(f64::NAN, |(limit, _)| limit * 1e6)
}

/// Two schedulers fill all nodes at once, with more pods than fit. Returns the number of overcommitted nodes at the
/// end.
async fn fill(guarded: bool, nodes: usize, pods_each: usize, limit: Duration) -> usize {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: nodes, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let berth = Berth::start(&cluster.kubeconfig(), &certificates.config(""));
    berth.await_ready().await;
    if guarded {
        install(&client, berth.secure_address().await, &certificates.ca, "Ignore").await;
    }
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let log = BindLog::start(&client);
    let of = |prefix, scheduler| Pods { prefix, scheduler, count: pods_each, ..Pods::default() };
    let (theirs, ours) = (of("theirs", "default-scheduler"), of("ours", "berth"));
    let began = Instant::now();
    tokio::join!(create_pods(&client, &theirs, |_, _| {}), create_pods(&client, &ours, |_, _| {}));
    log.await_len(limit, nodes * SLOTS).await;
    let took = began.elapsed();
    berth.await_counted(SOON, log.len()).await;
    let (overcommitted, bound) = filled(&client).await;
    log.assert_none_moved();
    let count = async |result: &str| {
        let name = format!(r#"berth_request_duration_seconds_count{{verb="guard",result="{result}"}}"#);
        let (_, text) = berth.get("/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    let (_, scrape) = berth.get("/metrics").await;
    let median = median_us(&scrape, r#"verb="guard",result="allowed""#);
    if guarded {
        println!("half of the bindings that were allowed were answered within {median:.0} us in berth");
    }
    println!(
        "guarded: {guarded}: {bound} pods on {nodes} nodes in {took:.1?}, {overcommitted} nodes overcommitted, {} bindings allowed, \
         {} refused, {} not reviewed",
        count("allowed").await,
        count("refused").await,
        count("unavailable").await,
    );
    if guarded {
        assert_eq!(bound, nodes * SLOTS, "every slot is used and no more");
        assert_eq!(count("unavailable").await, 0.0);
        assert!(count("allowed").await >= pods_each as f64 / 2.0);
    }
    overcommitted
}

/// `BERTH_GUARD_NODES=500` (and 30,000 pods, for 20,000 slots) runs the full size, and also without the guard.
#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_that_fill_all_nodes_at_once_overcommit_none() {
    let asked = std::env::var("BERTH_GUARD_NODES").ok().and_then(|nodes| nodes.parse().ok());
    let nodes: usize = asked.unwrap_or(20);
    let limit = SOON + Duration::from_millis(100) * nodes as u32 * 10;
    assert_eq!(fill(true, nodes, nodes * 30, limit).await, 0);
    if asked.is_some() {
        fill(false, nodes, nodes * 30, limit).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_binding_names_what_the_node_lacks() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let berth = Berth::start(&cluster.kubeconfig(), &certificates.config(""));
    berth.await_ready().await;
    install(&client, berth.secure_address().await, &certificates.ca, "Ignore").await;
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let create = async |pod: Pod| api.create(&PostParams::default(), &pod).await;

    create(pod_on("first", "node-0", "3", json!({}))).await.expect("it fits");
    let refused = create(pod_on("second", "node-0", "2", json!({}))).await.expect_err("it does not fit");
    let text = refused.to_string();
    assert!(text.contains("the pod no longer fits node node-0: Insufficient cpu"), "{text}");
    // What runs already on a kubelet is only shown.
    create(pod_on("mirror", "node-0", "2", json!({"kubernetes.io/config.mirror": "hash"})))
        .await
        .expect("a mirror pod");

    // A manual binding, first as a dry run, which holds nothing.
    let waiting = Pods {
        prefix: "web",
        count: 2,
        scheduler: "nobody",
        requests: json!({"cpu": "3"}),
        ..Pods::default()
    };
    create_pods(&client, &waiting, |_, _| {}).await;
    let bind = async |name: &str, node: &str, dry_run: bool| {
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let query = if dry_run { "?dryRun=All" } else { "" };
        let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding{query}"))
            .header("content-type", "application/json")
            .body(binding.to_string().into_bytes())
            .expect("a request");
        client.request::<Value>(request).await.map_err(|error| error.to_string())
    };
    bind("web-0", "node-1", true).await.expect("it would fit");
    bind("web-1", "node-1", true).await.expect("the other one would, too");
    bind("web-0", "node-1", false).await.expect("it fits");
    let refused = bind("web-1", "node-1", false).await.expect_err("it does not fit");
    assert!(refused.contains("Insufficient cpu"), "{refused}");
    // Its room is free once the first is gone, even before our watch has reported that.
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    api.delete("web-0", &now).await.expect("deleted");
    bind("web-1", "node-1", false).await.expect("it fits now");
}

#[tokio::test(flavor = "multi_thread")]
async fn room_of_a_binding_that_never_comes_is_free_again_once_that_is_certain() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 1, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let config = certificates.config("").replace("{enabled: true}", "{enabled: true, hold: 2s}");
    let berth = Berth::start(&cluster.kubeconfig(), &config);
    berth.await_ready().await;
    let waiting = Pods {
        prefix: "web",
        count: 2,
        scheduler: "nobody",
        requests: json!({"cpu": "3"}),
        ..Pods::default()
    };
    let pods = create_pods(&client, &waiting, |_, _| {}).await;
    let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a CA");
    let http = reqwest::Client::builder().add_root_certificate(ca).build().expect("a client");
    let url = format!("https://{}/guard", berth.secure_address().await);
    // Sends the API server's request, without the bind that follows.
    let ask = async |pod: &Pod| {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "r", "operation": "CREATE", "namespace": "default", "name": name_of(pod),
                "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "binding",
                "object": {"metadata": {"uid": pod.metadata.uid}, "target": {"name": "node-0"}},
            },
        });
        let answer = http.post(&url).body(review.to_string()).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
        let answer: Value = serde_json::from_str(&answer.text().await.expect("a text")).expect("JSON");
        answer["response"]["allowed"] == json!(true)
    };
    assert!(ask(&pods[0]).await, "it fits");
    assert!(!ask(&pods[1]).await, "the room is held");
    assert!(ask(&pods[0]).await, "asked again, the same");
    assert_eq!(berth.metric(r#"berth_others{kind="held"}"#).await, 1.0);
    await_until(SOON, "the room is free again", async || ask(&pods[1]).await).await;
    for (body, status) in [("", 400), ("{}", 400), (r#"{"apiVersion":"v1","kind":"Pod"}"#, 400)] {
        let answer = http.post(&url).body(body).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{body}");
    }
    let huge = http.post(&url).body(vec![b'x'; 5 << 20]).send().await;
    assert!(huge.is_err() || huge.is_ok_and(|answer| answer.status().as_u16() == 413));
}
