//! More CPU while a pod starts, and sidecars: from the creation of a pod to its resize in place.

use super::webhook::{create_until, install};
use super::*;

const CONFIG: &str = "recommender: {apply: {webhook: true, updater: true, interval: 1s}}";
const NAME: &str = "web-5d4f8-0";

fn cpu<'a>(pod: &'a Value, list: &str) -> &'a Value {
    &pod["spec"][list][0]["resources"]["requests"]["cpu"]
}

async fn get(client: &Client) -> Value {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    serde_json::to_value(pods.get(NAME).await.expect("the pod")).expect("JSON")
}

/// Sets the recommendations of the container and of the sidecar.
async fn recommend_both(client: &Client, app: &str, proxy: &str) {
    let of = |name: &str, cpu: &str| {
        let target = json!({"cpu": cpu, "memory": "100Mi"});
        json!({"containerName": name, "target": target, "lowerBound": target, "upperBound": target})
    };
    let all = [of("app", app), of("proxy", proxy)];
    let status = json!({"status": {"recommendation": {"containerRecommendations": all}}});
    let params = PatchParams::default();
    vpas(client).patch_status("web", &params, &Patch::Merge(&status)).await.expect("it is recommended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_with_more_cpu_gives_it_back_in_place_and_its_sidecar_is_sized_too() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes::default()).await;
    create_crds(&client).await;
    let owners = create_workload(&client, "web", 1).await;
    let vpa = json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "updatePolicy": {"updateMode": "InPlace"},
            "resourcePolicy": {"containerPolicies": [
                {"containerName": "app", "startupBoost": {"cpu": {"type": "Factor", "factor": 3, "durationSeconds": 2}}},
            ]},
        },
    });
    create(&vpas(&client), vpa).await;
    recommend_both(&client, "200m", "50m").await;
    let certificate = Certificate::new();
    let mut berth = Berth::start(&control_plane.kubeconfig(), &certificate.config(CONFIG));
    berth.await_ready().await;
    install(&client, berth.secure_address().await, &certificate.ca).await;

    let asked = json!({"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m"}});
    let mut pod = pod_of("web", 0, &owners, asked);
    pod["spec"]["nodeName"] = "node-0".into();
    pod["spec"]["initContainers"] = json!([{
        "name": "proxy", "image": "pause", "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "10m", "memory": "100Mi"}},
    }]);
    let is_patched = |pod: &Value| pod["metadata"]["annotations"]["vpaUpdates"].is_string();
    let made = create_until(&client, &pod, "pods are patched", is_patched).await;
    assert_eq!((cpu(&made, "containers"), cpu(&made, "initContainers")), (&json!("600m"), &json!("50m")));
    assert_eq!(resources(&made)["limits"]["cpu"], "1200m");
    let note = made["metadata"]["annotations"]["berth.dev/startup-boost"].as_str().expect("an annotation");
    assert_eq!(
        serde_json::from_str::<Value>(note).expect("JSON"),
        json!({"app": {"milliCpu": 600, "request": 100, "limit": 200, "seconds": 2}})
    );

    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let say = async |status: Value| {
        let patch = Patch::Strategic(json!({"status": status}));
        pods.patch_status(NAME, &PatchParams::default(), &patch).await.expect("the kubelet says it");
    };
    say(json!({"phase": "Running"})).await;
    let held = r#"berth_updater_held_pods{reason="startup_boost"}"#;
    await_until(SOON, "the boost lasts", async || berth.find_metric(held).await == Some(1.0)).await;
    assert_eq!(cpu(&get(&client).await, "containers"), "600m");

    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    say(json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]})).await;
    await_until(SOON, "the boost ends", async || cpu(&get(&client).await, "containers") == "200m").await;
    let after = get(&client).await;
    assert_eq!(resources(&after)["limits"]["cpu"], "400m");
    assert_eq!(after["metadata"]["uid"], made["metadata"]["uid"], "in place");
    let pod: Pod = serde_json::from_value(after).expect("a pod");
    await_until(SOON, "an event reports it", async || {
        events_of(&client, &pod)
            .await
            .iter()
            .any(|event| event.reason.as_deref() == Some("StartupBoostEnded"))
    })
    .await;
    await_until(SOON, "the boost is over", async || berth.find_metric(held).await != Some(1.0)).await;

    // The sidecar follows its recommendation in place; a pod rests for five minutes after a resize.
    berth.terminate().await;
    let berth = Berth::start(&control_plane.kubeconfig(), &certificate.config(CONFIG));
    berth.await_ready().await;
    recommend_both(&client, "200m", "150m").await;
    await_until(SOON, "it is resized", async || cpu(&get(&client).await, "initContainers") == "150m").await;
    assert_eq!(cpu(&get(&client).await, "containers"), "200m");
}
