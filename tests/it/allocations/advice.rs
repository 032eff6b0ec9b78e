//! Advice for waiting allocations in their status, in `berth explain --what-if` and over HTTP; and its effect when
//! followed.

use super::*;

/// A pod on a node, or for berth to place.
async fn create(client: &Client, name: &'static str, node: Option<&str>, cpu: &str, more: Value) {
    let pods = Pods { prefix: name, requests: json!({"cpu": cpu}), ..Pods::default() };
    create_pods(client, &pods, |_, pod| {
        pod["metadata"] =
            json!({"name": name, "labels": more.get("labels"), "ownerReferences": more.get("owners")});
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_waits_says_which_pod_could_move_and_runs_once_it_has_moved() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    for name in ["node-a", "node-b", "node-c"] {
        create_node(&client, name, json!({"cpu": "4", "memory": "8Gi", "pods": "10"}), json!({})).await;
    }
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": true}]);
    let owned = || json!({"owners": owner});
    create(&client, "web-1", Some("node-a"), "1", owned()).await;
    create(&client, "alone-a", Some("node-a"), "2", json!({})).await;
    create(&client, "alone-b", Some("node-b"), "3", json!({})).await;
    create(&client, "alone-c", Some("node-c"), "2", json!({})).await;
    let berth = Berth::start(&control_plane.kubeconfig(), "fragmentation: {period: 1s}");
    let spec = json!({"minimum": 2, "selector": {"matchLabels": {"gang": "ring"}}});
    apply(&allocations(&client), "berth.dev/v1alpha1", "Allocation", "ring", spec).await;
    for name in ["ring-0", "ring-1"] {
        create(&client, name, None, "2", json!({"labels": {"gang": "ring"}})).await;
    }

    let help = "moving 1 pod off node-a (default/web-1 to node-b) would make room";
    let wide = async || kubectl.must(&["get", "allocation", "ring", "-o", "wide"], "").await;
    await_until(SOON, "kubectl shows what would help", async || wide().await.contains(help)).await;
    let mut explain = Command::new(env!("CARGO_BIN_EXE_berth"));
    explain.args(["explain", "--what-if", "allocation/ring", "-n", "default", "--kubeconfig"]);
    explain.arg(control_plane.kubeconfig());
    let said = run(explain, "").await;
    assert!(said.success, "{}", said.errors);
    let expected = "Allocation default/ring (2 pods wait)\n  these moves, one after the other, would make room for it:\n    \
                    node    pod            could go to\n    node-a  default/web-1  node-b\n";
    assert_eq!(said.output, expected, "{}", said.errors);
    let (found, report) = berth.get("/fragmentation").await;
    assert!(found, "{report}");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["nodes"], json!(["node-a"]));
    assert_eq!(
        report["waiting"][0]["moves"],
        json!([{"pod": "default/web-1", "from": "node-a", "to": "node-b"}])
    );
    assert_eq!(berth.metric("berth_fragmentation_nodes").await, 1.0);
    assert_eq!(berth.metric("berth_fragmentation_helped").await, 1.0);

    delete_pods(&client, ["web-1".to_owned()]).await;
    await_bound(&client, SOON, 2, |pod| name_of(pod).starts_with("ring-")).await;
    create(&client, "web-2", None, "1", owned()).await;
    await_until(SOON, "its replacement is where it could go", async || {
        all_pods(&client).await.iter().any(|pod| name_of(pod) == "web-2" && node_of(pod) == Some("node-b"))
    })
    .await;
    await_until(SOON, "nothing needs help", async || {
        let shown = wide().await;
        shown.contains("Scheduled") && !shown.contains("would make room")
    })
    .await;
    await_until(SOON, "there is nothing to report", async || !berth.get("/fragmentation").await.0).await;
    assert_no_overcommit(&client).await;
}
