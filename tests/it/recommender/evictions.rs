//! Evictions under memory pressure, as reported by the kubelet.

use k8s_openapi::api::core::v1::Event;
use kube::api::DeleteParams;

use super::*;

/// Writes the kubelet's report about a pod's container `app`.
async fn evict(client: &Client, name: &str, pod: &str, uid: &str, container: &str, used: &str) {
    let event = json!({
        "metadata": {"name": name, "annotations": {
            "offending_containers": container, "offending_containers_usage": used,
            "starved_resource": "memory",
        }},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": pod, "uid": uid},
        "reason": "Evicted", "type": "Warning", "message": "The node was low on resource: memory.",
    });
    let api: Api<Event> = Api::default_namespaced(client.clone());
    let event = serde_json::from_value(event).expect("an event");
    api.create(&PostParams::default(), &event).await.expect("the event is created");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_an_evicted_pod_counts_once_also_after_a_restart() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    create_workload(&client, "web", 2).await;
    create(&vpas(&client), vpa("web", "web", "berth")).await;
    let mut berth = Berth::start(&control_plane.kubeconfig(), CONFIG);
    berth.await_ready().await;
    measure(&client, POD, Timestamp::now(), "250m", "300Mi").await;
    await_until(LIMIT, "web has a recommendation", async || {
        let memory = amounts(&status(&client, "web").await, "target").1;
        (300 * MI..500 * MI).contains(&memory)
    })
    .await;

    // One is gone when its event arrives, one is running.
    let gone = "web-7d4b9c6f5-pod01";
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let uid = pods.get(gone).await.expect("the pod").metadata.uid.expect("a uid");
    pods.delete(gone, &DeleteParams::default().grace_period(0)).await.expect("deleted");
    rounds(&berth, 2).await;
    let kills = r#"berth_recommender_oom_kills_total{result="done"}"#;
    evict(&client, "others", "other-1", "u", "app", "9Gi").await;
    evict(&client, "unknown-container", gone, &uid, "nothing", "9Gi").await;
    evict(&client, "web-gone", gone, &uid, "app", "2Gi").await;
    await_until(LIMIT, "more memory is recommended", async || {
        amounts(&status(&client, "web").await, "target").1 > 2_000 * MI
    })
    .await;
    let uid = pods.get(POD).await.expect("the pod").metadata.uid.expect("a uid");
    evict(&client, "web-runs", POD, &uid, "app", "1Gi").await;
    await_until(LIMIT, "it is heard of, too", async || berth.metric(kills).await == 2.0).await;
    rounds(&berth, 3).await;
    assert_eq!(berth.metric(kills).await, 2.0, "each once");
    let judged = "vpa_quality_mem_recommendations_bytes_count{update_mode=\"Off\",is_oom=\"true\"}";
    assert_eq!(berth.metric(judged).await, 2.0, "they are held against what was recommended");

    let memory = async || {
        let checkpoint = checkpoints(&client).get("web-app").await.expect("a checkpoint");
        checkpoint.data["status"]["memoryHistogram"].clone()
    };
    rounds(&berth, 3).await;
    let before = memory().await;
    assert!(berth.terminate().await.success());
    let berth = Berth::start(&control_plane.kubeconfig(), CONFIG);
    berth.await_ready().await;
    rounds(&berth, 3).await;
    assert_eq!(berth.metric(kills).await, 0.0, "what was heard of before is in the checkpoint");
    assert_eq!(memory().await, before);
}
