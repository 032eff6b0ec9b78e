//! `berth run` with the recommender, on a real API server with the VPA CRDs.

mod dimensions;
mod evictions;
mod faults;
mod prometheus;
mod scope;
mod speed;
mod watches;

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{Berth, Nodes, await_until, create_nodes, start_control_plane};
use crate::ui::{find, first_events};

const LIMIT: Duration = Duration::from_secs(30);
const MI: i64 = 1 << 20;

pub fn api(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(client.clone(), "default", &resource)
}

pub fn vpas(client: &Client) -> Api<DynamicObject> {
    api(client, "autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers")
}

pub fn checkpoints(client: &Client) -> Api<DynamicObject> {
    let plural = "verticalpodautoscalercheckpoints";
    api(client, "autoscaling.k8s.io", "v1", "VerticalPodAutoscalerCheckpoint", plural)
}

pub fn metrics(client: &Client) -> Api<DynamicObject> {
    api(client, "metrics.k8s.io", "v1beta1", "PodMetrics", "pods")
}

pub async fn create_crds(client: &Client) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vpa-crds.yaml"));
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for document in text.expect("the CRDs").split("\n---\n") {
        let definition = serde_saphyr::from_str(document).expect("a CRD");
        definitions.create(&PostParams::default(), &definition).await.expect("the CRD is created");
    }
    await_until(LIMIT, "the CRDs are served", async || {
        let (vpas, checkpoints, metrics) = (vpas(client), checkpoints(client), metrics(client));
        let params = Default::default();
        vpas.list(&params).await.is_ok()
            && checkpoints.list(&params).await.is_ok()
            && metrics.list(&params).await.is_ok()
    })
    .await;
}

pub async fn create(api: &Api<DynamicObject>, object: Value) -> DynamicObject {
    let object = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("the object is created")
}

pub fn vpa(name: &str, target: &str, recommender: &str) -> Value {
    json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "updatePolicy": {"updateMode": "Off"},
            "recommenders": [{"name": recommender}],
        },
    })
}

/// Creates a Deployment, its ReplicaSet, and a pod with a container `app`, as controllers would.
async fn create_workload(client: &Client, name: &str, pods: usize) {
    let (deployments, replica_sets) = (
        api(client, "apps", "v1", "Deployment", "deployments"),
        api(client, "apps", "v1", "ReplicaSet", "replicasets"),
    );
    let template = json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "pause"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template});
    let owner = |api_version: &str, kind: &str, owner: &DynamicObject| {
        let (name, uid) = (&owner.metadata.name, &owner.metadata.uid);
        json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}])
    };
    let deployment = create(
        &deployments,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}),
    )
    .await;
    let replica_set = create(
        &replica_sets,
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": spec,
            "metadata": {
                "name": format!("{name}-7d4b9c6f5"),
                "ownerReferences": owner("apps/v1", "Deployment", &deployment),
            },
        }),
    )
    .await;
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    for index in 0..pods {
        let pod = json!({
            "metadata": {
                "name": format!("{name}-7d4b9c6f5-pod0{index}"), "labels": {"app": name},
                "ownerReferences": owner("apps/v1", "ReplicaSet", &replica_set),
            },
            "spec": {
                "schedulerName": "nobody",
                "containers": [{
                    "name": "app", "image": "pause",
                    "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}},
                }],
            },
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        api.create(&PostParams::default(), &pod).await.expect("the pod is created");
    }
}

/// Publishes usage of a pod's container `app`, measured at `time`.
pub async fn measure(client: &Client, pod: &str, time: Timestamp, cpu: &str, memory: &str) {
    let object = json!({
        "apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": pod},
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "window": "15s",
        "containers": [{"name": "app", "usage": {"cpu": cpu, "memory": memory}}],
    });
    let params = PatchParams::apply("test").force();
    metrics(client).patch(pod, &params, &Patch::Apply(&object)).await.expect("metrics are published");
}

async fn status(client: &Client, name: &str) -> Value {
    vpas(client).get(name).await.expect("the VPA is there").data["status"].clone()
}

/// Returns a condition's status, and its reason with its message.
fn condition(status: &Value, kind: &str) -> Option<(String, String)> {
    let all = status["conditions"].as_array()?;
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), format!("{}: {}", text("reason"), text("message"))))
}

fn is_true(status: &Value, kind: &str) -> bool {
    condition(status, kind).is_some_and(|(status, _)| status == "True")
}

/// Returns millicores and bytes of a recommendation for the first container.
fn amounts(status: &Value, bound: &str) -> (i64, i64) {
    let amounts = &status["recommendation"]["containerRecommendations"][0][bound];
    let of = |name: &str| {
        let text = amounts[name].as_str().unwrap_or("0");
        berth_model::Quantity::parse(text).expect("a quantity")
    };
    (of("cpu").milli_value(), of("memory").value())
}

pub async fn rounds(berth: &Berth, count: u32) {
    let name = r#"berth_recommender_rounds_total{result="done"}"#;
    let before = berth.metric(name).await;
    await_until(LIMIT, "rounds go by", async || berth.metric(name).await >= before + f64::from(count)).await;
}

const CONFIG: &str =
    "recommender: {enabled: true, interval: 1s, checkpointsInterval: 1s, checkpointsGcInterval: 1s}";
const POD: &str = "web-7d4b9c6f5-pod00";

#[tokio::test(flavor = "multi_thread")]
async fn berth_fills_the_status_of_vpas_and_remembers_usage_over_a_restart() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes::default()).await;

    // A cluster without VPAs: logged once, and not fatal.
    let mut berth = Berth::start(&control_plane.kubeconfig(), CONFIG);
    berth.await_ready().await;
    let failed = r#"berth_recommender_rounds_total{result="failed"}"#;
    await_until(LIMIT, "it tries again", async || berth.metric(failed).await >= 3.0).await;
    assert_eq!(
        berth.log().matches("no VerticalPodAutoscalers in this cluster").count(),
        1,
        "{}",
        berth.log()
    );

    create_crds(&client).await;
    create_workload(&client, "web", 1).await;
    create_workload(&client, "idle", 0).await;
    for (name, target, recommender) in [
        ("web", "web", "berth"),
        ("web-young", "web", "berth"),
        ("idle", "idle", "berth"),
        ("lost", "nowhere", "berth"),
        ("foreign", "web", "another"),
    ] {
        create(&vpas(&client), vpa(name, target, recommender)).await;
    }
    let start = Timestamp::now();
    for second in 0..3 {
        measure(&client, POD, start + second.seconds(), "250m", "300Mi").await;
        rounds(&berth, 2).await;
    }
    await_until(LIMIT, "web has a recommendation", async || {
        is_true(&status(&client, "web").await, "RecommendationProvided")
    })
    .await;
    let web = status(&client, "web").await;
    let (cpu, memory) = amounts(&web, "target");
    assert!((250..400).contains(&cpu), "{web}");
    assert!((300 * MI..450 * MI).contains(&memory), "{web}");
    assert!(is_true(&web, "LowConfidence"), "{web}");
    let others =
        condition(&status(&client, "web-young").await, "ConfigUnsupported").expect("the condition is set");
    assert!(others.1.contains("older VPA web"), "{others:?}");
    let lost = condition(&status(&client, "lost").await, "ConfigUnsupported").expect("the condition is set");
    assert!(lost.1.contains("there is no Deployment nowhere"), "{lost:?}");
    assert!(is_true(&status(&client, "idle").await, "NoPodsMatched"));
    assert_eq!(status(&client, "foreign").await, Value::Null, "it is another's");

    // An OOM kill is observed.
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let killed = json!({"status": {"containerStatuses": [{
        "name": "app", "image": "pause", "imageID": "", "ready": true, "restartCount": 1,
        "state": {}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": now}},
    }]}});
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.patch_status(POD, &PatchParams::default(), &Patch::Merge(&killed)).await.expect("it was killed");
    await_until(LIMIT, "more memory is recommended", async || {
        amounts(&status(&client, "web").await, "target").1 > 600 * MI
    })
    .await;

    // No new samples: nothing is written.
    rounds(&berth, 2).await;
    let events = first_events(berth.address().await).await;
    let shown = find(&events, "recommendations");
    let (cpu, memory) = amounts(&status(&client, "web").await, "target");
    assert_eq!(shown["workloads"], 1, "{shown}");
    let of = |resource: &str| shown["sizes"][resource][1].as_i64();
    assert_eq!((of("cpuMilli"), of("memory")), (Some(cpu), Some(memory)), "{shown}");
    let versions = async || {
        let all = vpas(&client).list(&Default::default()).await.expect("VPAs");
        let of = |vpa: DynamicObject| (vpa.metadata.name, vpa.metadata.resource_version);
        all.items.into_iter().map(of).collect::<Vec<_>>()
    };
    let checkpoint = checkpoints(&client).get("web-app").await.expect("a checkpoint");
    let before = versions().await;
    rounds(&berth, 4).await;
    assert_eq!(versions().await, before);
    let again = checkpoints(&client).get("web-app").await.expect("a checkpoint");
    assert_eq!(again.metadata.resource_version, checkpoint.metadata.resource_version);
    assert_eq!(again.data["status"]["version"], "v3");
    assert_eq!(again.data["status"]["totalSamplesCount"], 3);
    assert!(again.metadata.annotations.unwrap_or_default().contains_key("berth.dev/open-windows"));

    // Its figures are explained from the checkpoint.
    let explain = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["explain", "vpa/web", "-o", "json", "--kubeconfig"])
        .arg(control_plane.kubeconfig())
        .output()
        .expect("it runs");
    assert!(explain.status.success(), "{}", String::from_utf8_lossy(&explain.stderr));
    let reasons: Value = serde_json::from_slice(&explain.stdout).expect("JSON");
    assert_eq!(
        (&reasons["target"], &reasons["containers"][0]["samples"]),
        (&json!("Deployment/web"), &json!(3))
    );
    let memory = &reasons["containers"][0]["resources"][1];
    let (_, recommended) = amounts(&status(&client, "web").await, "target");
    assert_eq!(
        (&memory["target"], &memory["computed"]),
        (&json!(recommended), &json!(recommended)),
        "{reasons}"
    );

    // A restart, with checkpoints that are corrupt, of another recommender, and of a deleted VPA.
    assert!(berth.terminate().await.success());
    let corrupt = json!({"version": "v3", "cpuHistogram": {"bucketWeights": {"-5": 1}, "totalWeight": 1}});
    for (vpa, container, status) in
        [("web", "broken", corrupt), ("foreign", "app", json!({})), ("gone", "app", json!({}))]
    {
        let object = json!({
            "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscalerCheckpoint",
            "metadata": {
                "name": format!("{vpa}-{container}"), "annotations": {"berth.dev/open-windows": "{}"},
            },
            "spec": {"vpaObjectName": vpa, "containerName": container}, "status": status,
        });
        create(&checkpoints(&client), object).await;
    }
    let berth = Berth::start(&control_plane.kubeconfig(), CONFIG);
    berth.await_ready().await;
    rounds(&berth, 3).await;
    assert!(berth.log().contains("invalid checkpoint"), "{}", berth.log());
    assert_eq!(versions().await, before, "it knows what it knew");
    measure(&client, POD, Timestamp::now(), "250m", "300Mi").await;
    await_until(LIMIT, "samples are added to those of before", async || {
        let checkpoint = checkpoints(&client).get("web-app").await.expect("a checkpoint");
        checkpoint.data["status"]["totalSamplesCount"] == 4
    })
    .await;
    await_until(LIMIT, "unused checkpoints are deleted", async || {
        let left = checkpoints(&client).list(&Default::default()).await.expect("checkpoints");
        let left: Vec<_> = left.items.into_iter().filter_map(|it| it.metadata.name).collect();
        left == ["foreign-app", "web-app"]
    })
    .await;
}
