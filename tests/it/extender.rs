//! berth as extender of a real kube-scheduler.

mod input;
mod speed;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::serving::client::{Ca, in_seconds};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);
const PLAIN: &str = "extender: {enabled: true, plaintext: true}";

/// Returns the configuration of a kube-scheduler whose extender is at `url`; `more` as in an entry of `extenders`.
pub fn extended(url: &str, more: &Value) -> String {
    let mut extender = json!({
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 5,
        "nodeCacheCapable": true,
    });
    for (key, value) in more.as_object().expect("an object") {
        extender[key] = value.clone();
    }
    format!("extenders: {}", json!([extender]))
}

pub async fn url_of(berth: &Berth) -> String {
    format!("http://{}/extender", berth.address().await)
}

/// Posts a body to a verb; returns the status and the answer.
pub async fn post(berth: &Berth, verb: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
    let url = format!("{}/{verb}", url_of(berth).await);
    let answer = http().post(url).body(body).send().await.expect("berth answers");
    (answer.status().as_u16(), answer.text().await.expect("a text"))
}

async fn ask(berth: &Berth, verb: &str, body: Value) -> Value {
    let (status, text) = post(berth, verb, body.to_string()).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

async fn requests(berth: &Berth, verb: &str, result: &str) -> f64 {
    let name = format!(r#"berth_request_duration_seconds_count{{verb="{verb}",result="{result}"}}"#);
    let (_, text) = berth.get("/metrics").await;
    text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).unwrap_or(0.0)
}

/// Waits until at least `count` requests succeeded: the API server knows a bind before its request is counted.
async fn await_requests(berth: &Berth, verb: &str, count: f64) {
    let what = format!("{count} requests of {verb} succeeded");
    await_until(SOON, &what, async || requests(berth, verb, "success").await >= count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_scheduler_places_and_binds_through_berth_beside_pods_of_berth() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 20, ..Nodes::default() }).await;
    let log = BindLog::start(&client);
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let config = extended(&url_of(&berth).await, &json!({}));
    let _kube_scheduler = cluster.start_scheduler(&config, &[]).await.expect("kube-scheduler starts");

    // 20 nodes with room for 40 small pods each. berth binds all pods, so nothing can be overcommitted.
    let small = |prefix, scheduler| Pods { prefix, count: 400, scheduler, ..Pods::default() };
    let (theirs, ours) = (small("theirs", "default-scheduler"), small("ours", "berth"));
    tokio::join!(create_pods(&client, &theirs, |_, _| {}), create_pods(&client, &ours, |_, _| {}));
    log.await_len(SOON, 800).await;
    assert_no_overcommit(&client).await;
    log.assert_none_moved();
    await_requests(&berth, "bind", 400.0).await;
    assert!(requests(&berth, "filter", "success").await >= 400.0);
    // If a single node is left, prioritize is not called.
    assert!(requests(&berth, "prioritize", "success").await > 0.0);
    berth.await_settled(SOON, 800).await;

    // Everything is full: the next pod waits, and its message includes berth's reasons, or berth was not called.
    let one = Pods { prefix: "late", scheduler: "default-scheduler", ..Pods::default() };
    create_pods(&client, &one, |_, _| {}).await;
    let message = await_message(&client, "default", "late-0", |message| !message.is_empty()).await;
    assert!(message.starts_with("0/20 nodes are available: 20 Insufficient cpu"), "{message}");
    // A pod of berth is deleted, and the extender's pod gets its room.
    delete_pods(&client, ["ours-7".to_owned()].into_iter()).await;
    log.await_len(SOON, 801).await;
    assert_no_overcommit(&client).await;
    assert_eq!(berth.metric(r#"berth_others{kind="binds"}"#).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_scheduler_that_sends_whole_nodes_gets_them_back() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let config = extended(&url_of(&berth).await, &json!({"nodeCacheCapable": false}));
    let _kube_scheduler = cluster.start_scheduler(&config, &[]).await.expect("kube-scheduler starts");
    let pods = Pods { count: 50, scheduler: "default-scheduler", ..Pods::default() };
    create_pods(&client, &pods, |_, _| {}).await;
    await_bound(&client, SOON, 50, |_| true).await;
    assert_no_overcommit(&client).await;
    await_requests(&berth, "bind", 50.0).await;
    assert_eq!(requests(&berth, "bind", "success").await, 50.0);
    assert_eq!(requests(&berth, "filter", "bad_request").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_scheduler_is_known_by_its_client_certificate() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, ..Nodes::default() }).await;
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    };
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let server = servers.server(in_seconds(3_600));
    let scheduler = clients.client("system:kube-scheduler", "system", in_seconds(3_600));
    // With the cluster's CA, every kubelet has a certificate.
    let stranger = clients.client("system:node:a", "system:nodes", in_seconds(3_600));
    let server_ca = write("server-ca.crt", &servers.certificate);
    let config = json!({
        "serving": {
            "address": "127.0.0.1:0",
            "certFile": write("server.crt", &server.certificate),
            "keyFile": write("server.key", &server.key),
            "clientCaFile": write("client-ca.crt", &clients.certificate),
        },
        "extender": {"enabled": true},
    });
    let lines: Vec<_> =
        config.as_object().expect("an object").iter().map(|(k, v)| format!("{k}: {v}")).collect();
    let berth = Berth::start(&cluster.kubeconfig(), &lines.join("\n"));
    berth.await_ready().await;
    let address = berth.secure_address().await;
    // The published manifest, except for the machine-specific parts.
    let manifest = include_str!("../../manifests/kube-scheduler-extender.yaml");
    let manifest =
        &manifest[manifest.find("percentageOfNodesToScore").expect("the part after the kubeconfig")..];
    let as_client = |name: &str, pair: &crate::serving::client::Pair| {
        let mut manifest = manifest.to_owned();
        for (theirs, ours) in [
            ("https://berth.berth-system.svc:10260/extender", format!("https://{address}/extender")),
            ("berth.berth-system.svc", "localhost".to_owned()),
            ("/etc/kubernetes/berth/ca.crt", server_ca.clone()),
            ("/etc/kubernetes/berth/client.crt", write(&format!("{name}.crt"), &pair.certificate)),
            ("/etc/kubernetes/berth/client.key", write(&format!("{name}.key"), &pair.key)),
        ] {
            assert!(manifest.contains(theirs), "{theirs}");
            manifest = manifest.replace(theirs, &ours);
        }
        manifest
    };

    let pods = Pods { count: 20, scheduler: "default-scheduler", ..Pods::default() };
    let wrong =
        cluster.start_scheduler(&as_client("stranger", &stranger), &[]).await.expect("kube-scheduler starts");
    create_pods(&client, &pods, |_, _| {}).await;
    let message = await_message(&client, "default", "pod-0", |message| message.contains("extender")).await;
    assert!(message.contains("code 403"), "{message}");
    drop(wrong);
    let right = as_client("scheduler", &scheduler);
    let _kube_scheduler = cluster.start_scheduler(&right, &[]).await.expect("kube-scheduler starts");
    await_bound(&client, SOON, 20, |_| true).await;
    await_requests(&berth, "bind", 20.0).await;
    assert_eq!(requests(&berth, "bind", "success").await, 20.0);
    // Plain HTTP does not serve the extender.
    let (found, _) = berth.get("/extender/filter").await;
    assert!(!found);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preemptor_gets_a_node_that_berth_finds_right_once_its_victims_are_gone() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(client.clone());
    let high = json!({"metadata": {"name": "high"}, "value": 1000});
    let high = serde_json::from_value(high).expect("a class");
    classes.create(&PostParams::default(), &high).await.expect("created");
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let config = extended(&url_of(&berth).await, &json!({}));
    let _kube_scheduler = cluster.start_scheduler(&config, &[]).await.expect("kube-scheduler starts");
    let low = Pods {
        prefix: "low",
        count: 2,
        scheduler: "default-scheduler",
        requests: json!({"cpu": "3"}),
        ..Pods::default()
    };
    create_pods(&client, &low, |_, _| {}).await;
    await_bound(&client, SOON, 2, |_| true).await;
    let high = Pods { prefix: "high", count: 1, ..low };
    create_pods(&client, &high, |_, pod| pod["spec"]["priorityClassName"] = json!("high")).await;
    // There is no kubelet: the victim disappears when it is force-deleted.
    await_until(SOON, "the victim is evicted and the pod of high priority is bound", async || {
        let pods = all_pods(&client).await;
        for victim in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let api: Api<Pod> = Api::namespaced(client.clone(), "default");
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            let _ = api.delete(name_of(victim), &now).await;
        }
        pods.iter().any(|pod| name_of(pod) == "high-0" && node_of(pod).is_some())
    })
    .await;
    assert!(requests(&berth, "preempt", "success").await >= 1.0);
    assert_no_overcommit(&client).await;
    assert_eq!(all_pods(&client).await.len(), 2);
}

/// Returns the binding of a pod as kube-scheduler requests it.
fn binding(pod: &Pod, node: &str) -> Value {
    json!({"PodName": pod.metadata.name, "PodNamespace": "default", "PodUID": pod.metadata.uid, "Node": node})
}

async fn create_waiting(client: &Client, prefix: &'static str, cpu: &str) -> Pod {
    let pods =
        Pods { prefix, scheduler: "default-scheduler", requests: json!({"cpu": cpu}), ..Pods::default() };
    create_pods(client, &pods, |_, _| {}).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bind_is_carried_out_once_however_often_it_is_asked_for() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let pod = create_waiting(&client, "web", "3").await;
    let wanted = binding(&pod, "node-0");
    let asked = (0..10).map(|_| ask(&berth, "bind", wanted.clone()));
    for answer in futures::future::join_all(asked).await {
        assert_eq!(answer, json!({"Error": ""}));
    }
    assert_eq!(ask(&berth, "bind", wanted).await, json!({"Error": ""}), "long after it was bound");
    assert_eq!(berth.metric(r#"berth_bind_requests_total{request="bind"}"#).await, 1.0);

    let error = |answer: Value| answer["Error"].as_str().unwrap_or_default().to_owned();
    let elsewhere = error(ask(&berth, "bind", binding(&pod, "node-1")).await);
    assert!(elsewhere.contains("bound to node node-0"), "{elsewhere}");
    let late = create_waiting(&client, "late", "3").await;
    let full = error(ask(&berth, "bind", binding(&late, "node-0")).await);
    assert!(full.contains("no longer fits node node-0: Insufficient cpu"), "{full}");
    let nowhere = error(ask(&berth, "bind", binding(&late, "nowhere")).await);
    assert!(nowhere.contains("node nowhere is not in berth"), "{nowhere}");
    // A pod of the same name that was made anew is another pod.
    delete_pods(&client, ["late-0".to_owned()].into_iter()).await;
    create_waiting(&client, "late", "1").await;
    let gone = error(ask(&berth, "bind", binding(&late, "node-1")).await);
    assert!(gone.contains("pod with uid") || gone.contains("is gone"), "{gone}");
    let ours = Pods { prefix: "ours", requests: json!({"cpu": "30"}), ..Pods::default() };
    let ours = create_pods(&client, &ours, |_, _| {}).await.remove(0);
    await_message(&client, "default", "ours-0", |message| !message.is_empty()).await;
    let own = error(ask(&berth, "bind", binding(&ours, "node-1")).await);
    assert!(own.contains("berth schedules this pod itself"), "{own}");
    assert_no_overcommit(&client).await;
}
