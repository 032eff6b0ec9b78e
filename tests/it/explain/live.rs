//! On a real API server.

use std::collections::BTreeMap;
use std::path::Path;

use berth_testenv::{Options, User};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::core::Request;
use kube::{Api, Client};

use super::*;
use crate::support::*;

fn explain_live(kubeconfig: &Path, options: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    run(command.args(["explain", "-o", "json", "--kubeconfig"]).arg(kubeconfig).args(options), b"")
}

fn answers(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

/// `1 this, 2 that`, counted over nodes and sorted as text, as in a condition.
fn histogram(reasons: &Value) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for texts in reasons.as_object().expect("nodes").values() {
        names(texts).into_iter().for_each(|text| *counts.entry(text).or_default() += 1);
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(text, count)| format!("{count} {text}")).collect();
    counts.sort();
    counts.join(", ")
}

/// Returns the output of `kubectl get nodes,pods,… -A -o json`.
pub(crate) async fn dump(client: &Client) -> String {
    let mut items = Vec::new();
    for (path, version, kind) in [
        ("/api/v1/nodes", "v1", "Node"),
        ("/api/v1/pods", "v1", "Pod"),
        ("/api/v1/namespaces", "v1", "Namespace"),
        ("/api/v1/services", "v1", "Service"),
        ("/apis/apps/v1/replicasets", "apps/v1", "ReplicaSet"),
    ] {
        let request = Request::new(path).list(&Default::default()).expect("a request");
        let list: Value =
            serde_json::from_str(&client.request_text(request).await.expect("a list")).expect("JSON");
        for item in list["items"].as_array().expect("items") {
            items.push(merged(json!({"apiVersion": version, "kind": kind}), item.clone()));
        }
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn explained_reasons_equal_the_condition_of_the_pod_also_from_a_dump() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let taints = vec![json!({"key": "team", "value": "a", "effect": "NoSchedule"})];
    create_nodes(&client, &Nodes { prefix: "small", count: 3, cpu: "1", ..Nodes::default() }).await;
    create_nodes(&client, &Nodes { prefix: "full", count: 2, pods: 0, ..Nodes::default() }).await;
    create_nodes(&client, &Nodes { prefix: "tainted", count: 4, taints, ..Nodes::default() }).await;
    create_node(&client, "cordoned", json!({"cpu": "4", "pods": "10"}), json!({"unschedulable": true})).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let large = Pods { prefix: "large", count: 2, requests: json!({"cpu": "2"}), ..Pods::default() };
    create_pods(&client, &large, |_, _| {}).await;
    let apart = Pods { prefix: "apart", requests: json!({"cpu": "100m"}), ..Pods::default() };
    create_pods(&client, &apart, |_, pod| {
        let term = json!([{"labelSelector": {"matchLabels": {"app": "none"}}, "topologyKey": "zone"}]);
        pod["spec"]["affinity"] =
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
    })
    .await;
    let told = [
        ("default/apart-0", await_message(&client, "default", "apart-0", |told| told.contains("0/10")).await),
        ("default/large-0", await_message(&client, "default", "large-0", |told| told.contains("0/10")).await),
        ("default/large-1", await_message(&client, "default", "large-1", |told| told.contains("0/10")).await),
    ];
    drop(berth);

    let live = explain_live(&cluster.kubeconfig(), &[]);
    let found = answers(&live);
    assert_eq!(found.len(), told.len());
    for ((pod, message), answer) in told.iter().zip(&found) {
        assert_eq!(answer["pod"], *pod);
        let nodes = format!("0/10 nodes are available: {}. ", histogram(&answer["reasons"]));
        assert!(
            message.starts_with(&nodes),
            "{pod} has condition {message:?}, and is explained as {nodes:?}"
        );
    }
    assert!(found[1]["remedies"][0]["changes"][0].as_str().is_some_and(|text| text.starts_with("uncordon")));

    let offline = explain(&["-o", "json"], dump(&client).await.as_bytes());
    assert_eq!(answers(&offline), found);
    assert_eq!(answers(&explain_live(&cluster.kubeconfig(), &["default/large-1"])), found[2..]);
    let missing = explain_live(&cluster.kubeconfig(), &["default/nobody"]);
    assert!(missing.code == 2 && missing.err.contains("no pod default/nobody"), "{}", missing.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_listed_is_named_and_only_nodes_and_pods_are_needed() {
    let name = "reader";
    let options =
        Options { users: vec![User { name: name.to_owned(), groups: Vec::new() }], ..Options::default() };
    let cluster = start_control_plane_with(options).await;
    let client = cluster.client();
    create_nodes(&client, &Nodes::default()).await;
    create_pods(&client, &Pods::default(), |_, _| {}).await;
    let kubeconfig = cluster.kubeconfig_for(name).expect("a user of the cluster");
    let refused = explain_live(&kubeconfig, &[]);
    assert_eq!((refused.code, &*refused.out), (1, ""));
    assert!(
        refused.err.contains("cannot list nodes") && refused.err.contains("forbidden"),
        "{}",
        refused.err
    );

    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = json!({"metadata": {"name": name}, "rules": [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},
    ]});
    let role = serde_json::from_value(role).expect("a role");
    roles.create(&PostParams::default(), &role).await.expect("created");
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    });
    let binding = serde_json::from_value(binding).expect("a binding");
    bindings.create(&PostParams::default(), &binding).await.expect("created");
    let mut ran = explain_live(&kubeconfig, &[]);
    // The API server receives the role by a watch of its own.
    await_until(std::time::Duration::from_secs(30), "the role is known", async || {
        ran = explain_live(&kubeconfig, &[]);
        ran.code == 0
    })
    .await;
    assert_eq!(names(&answers(&ran)[0]["feasible"]), ["node-0"]);
    for kind in ["namespaces", "services", "replicationcontrollers", "replicasets", "statefulsets"] {
        assert!(ran.err.contains(&format!("cannot list {kind}, ")), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_not_there_and_a_kind_that_is_not_there_are_told_apart() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let kubeconfig = cluster.kubeconfig();
    for (subject, kinds) in [("vpa/web", "VerticalPodAutoscalers"), ("servicescaler/web", "ServiceScalers")] {
        let ran = explain_live(&kubeconfig, &[subject]);
        assert!(ran.code == 1 && ran.err.contains(&format!("the cluster has no {kinds}")), "{}", ran.err);
    }
    crate::recommender::create_crds(&client).await;
    let ran = explain_live(&kubeconfig, &["vpa/web"]);
    assert!(ran.code == 2 && ran.err.contains("there is no VerticalPodAutoscaler web"), "{}", ran.err);
}

#[test]
fn without_a_cluster_it_says_how_to_name_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let ran = run(command.args(["explain", "--kubeconfig", "no/such/config"]), b"");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("cannot use the kubeconfig no/such/config"), "{}", ran.err);
    let home = tempfile::tempdir().expect("a folder");
    let ran = run(Command::new(env!("CARGO_BIN_EXE_berth")).arg("explain").env("HOME", home.path()), b"");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("give --kubeconfig FILE, or -f FILE"), "{}", ran.err);
}
