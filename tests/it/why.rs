//! `berth why` as users run it, about pods that a real API server has bound.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use axum::http::StatusCode;
use berth_test_support::collector::SpanCollector;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::explain::{Ran, run};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn placements_are_sent_to_a_collector_of_open_telemetry() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let (collected, url) = SpanCollector::start(StatusCode::OK).await;
    let mut berth = Berth::start(&cluster.kubeconfig(), &format!("tracing: {{endpoint: '{url}'}}"));
    create_pods(&client, &Pods { prefix: "traced", count: 20, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 20, |_| true).await;
    await_until(SOON, "all placements are collected", async || collected.named("placement").len() == 20)
        .await;
    let sent = berth.metric(r#"berth_traced_placements_total{result="sent"}"#).await;
    assert_eq!(sent, 20.0);
    let of = |span: &Value, key: &str| {
        let attributes = span["attributes"].as_array().expect("attributes");
        let known = attributes.iter().find(|known| known["key"] == key).expect("the attribute");
        known["value"]["stringValue"].as_str().expect("a text").to_owned()
    };
    let told: BTreeSet<_> = collected
        .named("placement")
        .iter()
        .map(|span| (of(span, "k8s.pod.name"), of(span, "k8s.node.name")))
        .collect();
    let pods = all_pods(&client).await;
    let placed = pods.iter().filter_map(|pod| Some((name_of(pod).to_owned(), node_of(pod)?.to_owned())));
    assert_eq!(told, placed.collect());
    // What was decided last is sent before it ends.
    create_pods(&client, &Pods { prefix: "last", count: 1, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 21, |_| true).await;
    assert!(berth.terminate().await.success());
    assert_eq!((collected.named("placement").len(), collected.named("bind").len()), (21, 21));
}

async fn why(berth: &Berth, pod: &str, options: &[&str]) -> Ran {
    let server = format!("http://{}", berth.address().await);
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    run(command.args(["why", pod, "--server", &server]).args(options), b"")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placed_pod_is_told_by_the_process_that_placed_it_also_when_it_is_gone() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    for (name, cpu) in [("small", "4"), ("large", "16"), ("medium", "8")] {
        let allocatable = json!({"cpu": cpu, "memory": "32Gi", "pods": "110"});
        create_node(&client, name, allocatable, json!({})).await;
    }
    let berth = Berth::start(&cluster.kubeconfig(), "annotateDecisions: true");
    berth.await_ready().await;
    let pods = Pods { prefix: "web", requests: json!({"cpu": "2", "memory": "1Gi"}), ..Pods::default() };
    create_pods(&client, &Pods { count: 1, ..pods }, |_, _| {}).await;
    await_bound(&client, SOON, 1, |_| true).await;
    berth.await_settled(SOON, 1).await;
    let pods = all_pods(&client).await;
    let name = name_of(&pods[0]);
    let pod = format!("default/{name}");

    let ran = why(&berth, &pod, &["-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!(report["apiVersion"], "why.berth.dev/v1");
    assert_eq!(report["node"], "large");
    assert_eq!(report["decidedBy"], "NodeResourcesFit");
    let candidates = report["candidates"].as_array().expect("a list");
    let nodes: Vec<_> = candidates.iter().map(|it| (&it["node"], &it["freeCpuMilli"])).collect();
    let expected = [("large", 16_000), ("medium", 8_000), ("small", 4_000)];
    assert_eq!(
        nodes.iter().map(|(node, free)| json!([node, free])).collect::<Vec<_>>(),
        expected.map(|it| json!(it))
    );
    assert_eq!((&report["stages"]["attempts"], &report["stages"]["list"]), (&json!(1), &json!("miss")));
    assert!(report["stages"]["choiceUs"].as_u64().is_some_and(|took| took > 0), "{report}");
    let placed: jiff::Timestamp = report["placedAt"].as_str().expect("a time").parse().expect("RFC 3339");
    let age = jiff::Timestamp::now().duration_since(placed).as_secs();
    assert!((0..60).contains(&age), "{placed}");

    let page = std::fs::read_to_string("docs/why.md").expect("the page");
    let table = why(&berth, &pod, &[]).await.out;
    assert_eq!(
        shape(&table),
        shape(block(&page, " was placed on ")),
        "docs/why.md shows other output than\n{table}"
    );

    // The API server has it in the pod.
    let from_annotation = |pod: &str, options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        run(command.args(["why", pod, "--kubeconfig"]).arg(cluster.kubeconfig()).args(options), b"")
    };
    let ran = from_annotation(&pod, &["-o", "json"]);
    let annotated: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!(annotated["candidates"], report["candidates"]);
    assert_eq!((&annotated["placedAt"], &annotated["stages"]["bindMs"]), (&Value::Null, &Value::Null));
    annotate(&client, name, json!("{}")).await;
    let edited = from_annotation(&pod, &[]);
    assert!(edited.code == 1 && edited.err.contains("is not of format why.berth.dev/v1"), "{}", edited.err);
    annotate(&client, name, Value::Null).await;
    let without = from_annotation(&pod, &[]);
    let missing = "annotateDecisions): there is no Lease berth-system/berth: give --berth-namespace";
    assert!(without.code == 1 && without.err.contains(missing), "{}", without.err);

    delete_pods(&client, [name.to_owned()]).await;
    assert_eq!(why(&berth, &pod, &[]).await.out, table, "it is gone, and still remembered");

    let gone = from_annotation(&pod, &[]);
    assert!(gone.code == 1 && gone.err.contains("there is no pod default/"), "{}", gone.err);

    let ran = why(&berth, "default/nobody", &[]).await;
    assert!(
        ran.code == 2 && ran.err.contains("remembers no decision about a pod default/nobody"),
        "{}",
        ran.err
    );
}

async fn annotate(client: &Client, pod: &str, decision: Value) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"berth.dev/decision": decision}}}));
    pods.patch(pod, &PatchParams::default(), &patch).await.expect("patched");
}

/// Returns the text of the code block that contains this text.
fn block<'a>(page: &'a str, text: &str) -> &'a str {
    page.split("```").find(|block| block.contains(text)).expect("the block")
}

/// Returns the words without what differs from run to run: digits, dots and letters of numbers, and the space between columns.
fn shape(text: &str) -> String {
    let is_number = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let words = text.split_whitespace().map(|word| if is_number(word) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_cannot_be_asked_ends_with_what_to_do() {
    let ask = |options: &[&str]| {
        run(Command::new(env!("CARGO_BIN_EXE_berth")).args(["why", "default/web-0"]).args(options), b"")
    };
    let nobody = ask(&["--server", "http://127.0.0.1:1"]);
    assert!(nobody.code == 1 && nobody.err.contains("cannot ask http://127.0.0.1:1/"), "{}", nobody.err);
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").expect("written");
    let plain = ask(&["--server", "http://127.0.0.1:1", "--token-file", token.to_str().expect("a path")]);
    assert!(plain.code == 2 && plain.err.contains("only sent over HTTPS"), "{}", plain.err);
    let unnamed = run(Command::new(env!("CARGO_BIN_EXE_berth")).args(["why", "web-0"]), b"");
    assert!(unnamed.code == 2 && unnamed.err.contains("NAMESPACE/NAME"), "{}", unnamed.err);
}
