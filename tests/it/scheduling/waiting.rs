//! Waiting pods: for a change of the cluster, for their gates, for a feature of a later version.

use super::*;

/// Limit from a change that lets a pod fit to its bind. No periodic retry is involved: a wake-up that takes longer on
/// a busy test machine was lost, and would come with the next change at best.
const AT_ONCE: Duration = Duration::from_secs(3);

fn in_pool(pool: &str) -> impl FnMut(usize, &mut Value) {
    move |_, pod| pod["spec"]["nodeSelector"] = json!({"pool": pool})
}

async fn create_waiting(client: &Client, prefix: &'static str, pool: &str, cpu: &str) {
    let pods = Pods { prefix, requests: json!({"cpu": cpu}), ..Pods::default() };
    create_pods(client, &pods, in_pool(pool)).await;
    await_message(client, "default", &format!("{prefix}-0"), |message| {
        message.contains("nodes are available")
    })
    .await;
}

async fn await_node(client: &Client, limit: Duration, pod: &str, node: &str) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    await_until(limit, &format!("{pod} is bound"), async || {
        let found = api.get(pod).await.expect("the pod is there");
        node_of(&found).is_some_and(|found| {
            assert_eq!(found, node);
            true
        })
    })
    .await;
}

fn room(cpu: &str) -> Value {
    json!({"cpu": cpu, "memory": "8Gi", "pods": "110"})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_fits_nowhere_is_bound_as_soon_as_a_change_lets_it() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_node(&client, "other", room("4"), json!({})).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");

    let quiet = quiet_turn().await;
    create_waiting(&client, "for-a-node", "added", "1").await;
    create_node(&client, "added", room("1"), json!({})).await;
    await_node(&client, AT_ONCE, "for-a-node-0", "added").await;

    create_waiting(&client, "for-room", "added", "1").await;
    delete_pods(&client, ["for-a-node-0".to_owned()]).await;
    await_node(&client, AT_ONCE, "for-room-0", "added").await;

    create_waiting(&client, "for-more-cpu", "added", "1").await;
    patch_node(&client, "added", json!({"status": {"allocatable": {"cpu": "2"}}})).await;
    await_node(&client, AT_ONCE, "for-more-cpu-0", "added").await;

    let taint = json!({"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]});
    create_node(&client, "tainted", room("1"), taint).await;
    create_waiting(&client, "for-no-taint", "tainted", "1").await;
    patch_node(&client, "tainted", json!({"spec": {"taints": null}})).await;
    await_node(&client, AT_ONCE, "for-no-taint-0", "tainted").await;

    create_node(&client, "cordoned", room("1"), json!({"unschedulable": true})).await;
    create_waiting(&client, "for-uncordon", "cordoned", "1").await;
    patch_node(&client, "cordoned", json!({"spec": {"unschedulable": null}})).await;
    await_node(&client, AT_ONCE, "for-uncordon-0", "cordoned").await;

    create_waiting(&client, "for-a-label", "labelled", "1").await;
    patch_node(&client, "other", json!({"metadata": {"labels": {"pool": "labelled"}}})).await;
    await_node(&client, AT_ONCE, "for-a-label-0", "other").await;

    // Pods also change: a toleration may be added to a waiting pod.
    let taint = json!({"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]});
    create_node(&client, "kept", room("1"), taint).await;
    create_waiting(&client, "for-toleration", "kept", "1").await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = pods.get("for-toleration-0").await.expect("there");
    let spec = serde_json::to_value(pod.spec).expect("plain data");
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"key": "team", "operator": "Exists"}));
    let patch = Patch::Merge(json!({"spec": {"tolerations": tolerations}}));
    let params = PatchParams::default();
    pods.patch("for-toleration-0", &params, &patch).await.expect("patched");
    await_node(&client, AT_ONCE, "for-toleration-0", "kept").await;
    drop(quiet);

    // The API server may know the last bind before berth has its answer.
    await_until(SOON, "no pod waits", async || berth.unsettled().await == 0.0).await;
    assert_no_overcommit(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_pods_report_why_and_block_no_other_pods() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_node(&client, "node", room("4"), json!({})).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let no_claim = Pods { prefix: "later", ..Pods::default() };
    create_pods(&client, &no_claim, |_, pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    })
    .await;
    let gated = Pods { prefix: "gated", ..Pods::default() };
    create_pods(&client, &gated, |_, pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}])
    })
    .await;
    let plain = Pods { prefix: "plain", count: 5, ..Pods::default() };
    create_pods(&client, &plain, |_, _| {}).await;

    await_bound(&client, SOON, 5, |_| true).await;
    await_message(&client, "default", "later-0", |message| {
        message.contains("resourceclaim \"gpu\" not found")
    })
    .await;
    let gauge = |queue: &str| format!(r#"scheduler_pending_pods{{queue="{queue}"}}"#);
    assert_eq!(berth.metric(&gauge("gated")).await, 1.0);
    assert_eq!(berth.metric(&gauge("unschedulable")).await, 1.0);

    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    let quiet = quiet_turn().await;
    api.patch("gated-0", &PatchParams::default(), &open).await.expect("the gate is opened");
    await_node(&client, AT_ONCE, "gated-0", "node").await;
    drop(quiet);
    await_bound(&client, SOON, 6, |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_others_bind_are_counted_whenever_they_come() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_node(&client, "node", room("4"), json!({})).await;
    let log = BindLog::start(&client);
    let berth = Berth::start(&cluster.kubeconfig(), "");
    berth.await_ready().await;
    let one_cpu = |prefix, count, scheduler| Pods {
        prefix,
        count,
        scheduler,
        requests: json!({"cpu": "1"}),
        ..Pods::default()
    };
    // Bound at creation, like static pods or old DaemonSet pods.
    create_pods(&client, &one_cpu("placed", 1, "nobody"), |_, pod| pod["spec"]["nodeName"] = json!("node"))
        .await;
    // Bound manually, one of them a pod that names berth and may be about to be bound there anyway.
    create_pods(&client, &one_cpu("by-hand", 1, "nobody"), |_, _| {}).await;
    create_pods(&client, &one_cpu("gated", 1, "berth"), |_, pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}])
    })
    .await;
    bind_by_hand(&client, "by-hand-0", "node").await;
    berth.await_counted(SOON, 2).await;
    create_pods(&client, &one_cpu("ours", 3, "berth"), |_, _| {}).await;
    log.await_len(SOON, 4).await;
    await_until(SOON, "one pod is left over", async || {
        berth.metric(r#"scheduler_pending_pods{queue="unschedulable"}"#).await == 1.0
    })
    .await;
    assert_no_overcommit(&client).await;

    // A waiting pod of berth is bound by another client: berth drops it, and counts it there.
    create_node(&client, "far", room("1"), json!({"unschedulable": true})).await;
    let waiting = all_pods(&client).await;
    let waiting = waiting.iter().find(|pod| name_of(pod).starts_with("ours") && node_of(pod).is_none());
    bind_by_hand(&client, name_of(waiting.expect("one is left over")), "far").await;
    berth.await_counted(SOON, 5).await;
    assert_eq!(berth.metric(r#"scheduler_pending_pods{queue="unschedulable"}"#).await, 0.0);
    patch_node(&client, "far", json!({"spec": {"unschedulable": null}})).await;
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    api.patch("gated-0", &PatchParams::default(), &open).await.expect("the gate is opened");
    let message = await_message(&client, "default", "gated-0", |told| told.contains("available")).await;
    assert!(message.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{message}");
    assert_no_overcommit(&client).await;
    log.assert_none_moved();
}

/// Binds a pod like another scheduler or a user.
async fn bind_by_hand(client: &Client, pod: &str, node: &str) {
    let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}});
    let body = serde_json::to_vec(&binding).expect("plain data");
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    let request =
        http::Request::post(path).header("content-type", "application/json").body(body).expect("a request");
    client.request_text(request).await.expect("the pod is bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_vanishes_or_shrinks_under_its_pods_gets_no_more_and_others_go_on() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    for name in ["doomed", "shrinking", "steady"] {
        create_node(&client, name, room("2"), json!({})).await;
    }
    // Two agents that choose at the same moment may put three pods on one node.
    let mut berth = Berth::start(&cluster.kubeconfig(), "agents: 1");
    let half = |prefix, count| Pods { prefix, count, requests: json!({"cpu": "500m"}), ..Pods::default() };
    create_pods(&client, &half("first", 6), |_, _| {}).await;
    await_bound(&client, SOON, 6, |_| true).await;

    // Two pods of 500m are on each node. One node is deleted, one shrinks below its pods' requests.
    patch_node(&client, "shrinking", json!({"status": {"allocatable": {"cpu": "500m"}}})).await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    nodes.delete("doomed", &Default::default()).await.expect("deleted");
    await_until(SOON, "berth knows two nodes", async || {
        berth.metric(r#"scheduler_cache_size{type="nodes"}"#).await == 2.0
    })
    .await;
    // The shrinking was earlier in the same watch, so berth has also received it.
    create_pods(&client, &half("second", 4), |_, _| {}).await;
    await_bound(&client, SOON, 2, |pod| name_of(pod).starts_with("second")).await;
    let message = "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: \
                   2 No preemption victims found for incoming pod.";
    let parked = async |count: usize| {
        let pods = all_pods(&client).await;
        let told = |pod: &&Pod| scheduled_condition(pod).is_some_and(|(_, _, told)| told == message);
        pods.iter().filter(told).count() == count
    };
    await_until(SOON, "two pods are parked without room", async || parked(2).await).await;
    for pod in all_pods(&client).await {
        if name_of(&pod).starts_with("second") {
            assert!(node_of(&pod).is_none_or(|node| node == "steady"), "{:?}", node_of(&pod));
        }
    }

    // One pod less on the shrunk node: it is exactly full now, and accepts nothing.
    let on = |pods: Vec<Pod>, node: &str| -> Vec<String> {
        let there = pods.into_iter().filter(|pod| node_of(pod) == Some(node));
        there.map(|pod| name_of(&pod).to_owned()).collect()
    };
    let on_shrinking = on(all_pods(&client).await, "shrinking");
    assert_eq!(on_shrinking.len(), 2);
    delete_pods(&client, on_shrinking.into_iter().take(1)).await;
    // The pods of the deleted node are counted until they are gone, and their deletion is handled.
    let on_doomed = on(all_pods(&client).await, "doomed");
    assert_eq!(on_doomed.len(), 2);
    delete_pods(&client, on_doomed).await;
    berth.await_counted(SOON, 5).await;
    // The node returns under its name, empty.
    create_node(&client, "doomed", room("500m"), json!({})).await;
    await_bound(&client, SOON, 3, |pod| name_of(pod).starts_with("second")).await;
    assert_eq!(on(all_pods(&client).await, "doomed").len(), 1);
    assert_eq!(on(all_pods(&client).await, "shrinking").len(), 1);
    assert_no_overcommit(&client).await;
    assert!(berth.terminate().await.success());
}
