//! Updates of running pods: in place, by eviction, or not at all.

use berth_testenv::{Options, User};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::DeleteParams;
use kube::core::{ApiResource, GroupVersionKind};

use super::*;
use crate::chart::rendered;

const BERTH: &str = "system:serviceaccount:berth-system:berth";
const CONFIG: &str = "recommender: {apply: {webhook: true, updater: true, interval: 1s}}";

/// Creates two running pods of a workload, for which a VPA of this mode recommends more.
async fn create_running(client: &Client, name: &str, mode: &str, target: Value) {
    let owners = create_workload(client, name, 2).await;
    for index in 0..2 {
        let asked = json!({"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m"}});
        let mut pod = pod_of(name, index, &owners, asked);
        pod["spec"]["nodeName"] = "node-0".into();
        create_pod(client, &pod).await;
        say(client, name, index, json!({"phase": "Running"})).await;
    }
    create_vpa(client, name, mode, Some(target)).await;
}

fn name_of_pod(name: &str, index: usize) -> String {
    format!("{name}-5d4f8-{index}")
}

/// Sets a pod's status like the kubelet.
async fn say(client: &Client, name: &str, index: usize, status: Value) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let (params, patch) = (PatchParams::default(), json!({"status": status}));
    let patched = pods.patch_status(&name_of_pod(name, index), &params, &Patch::Strategic(patch)).await;
    patched.expect("the kubelet says it");
}

async fn get(client: &Client, name: &str, index: usize) -> Option<Value> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = pods.get_opt(&name_of_pod(name, index)).await.expect("pods can be read")?;
    (pod.metadata.deletion_timestamp.is_none()).then(|| serde_json::to_value(pod).expect("JSON"))
}

/// Returns the CPU requests of the remaining pods.
async fn requests(client: &Client, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for index in 0..2 {
        let pod = get(client, name, index).await;
        found.extend(pod.map(|pod| resources(&pod)["requests"]["cpu"].as_str().unwrap_or("").to_owned()));
    }
    found
}

async fn updates(berth: &Berth, result: &str) -> f64 {
    let name = format!(r#"berth_updater_updates_total{{result="{result}"}}"#);
    berth.find_metric(&name).await.unwrap_or(0.0)
}

async fn held(berth: &Berth, reason: &str) -> f64 {
    let name = format!(r#"berth_updater_held_pods{{reason="{reason}"}}"#);
    berth.find_metric(&name).await.unwrap_or(0.0)
}

async fn rounds(berth: &Berth, count: f64) {
    let done =
        async || berth.find_metric(r#"berth_updater_rounds_total{result="done"}"#).await.unwrap_or(0.0);
    let before = done().await;
    await_until(SOON, "rounds go by", async || done().await >= before + count).await;
}

/// Returns the reasons of the events about a pod.
async fn reasons(client: &Client, name: &str, index: usize) -> Vec<String> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = pods.get(&name_of_pod(name, index)).await.expect("the pod");
    events_of(client, &pod).await.into_iter().filter_map(|event| event.reason).collect()
}

/// Starts a control plane whose user [`BERTH`] has exactly the permissions that the chart grants for this.
async fn prepare() -> (TestControlPlane, Client, Certificate) {
    prepare_with(Vec::new()).await
}

/// The same, with these flags of kube-apiserver.
async fn prepare_with(api_server_args: Vec<String>) -> (TestControlPlane, Client, Certificate) {
    let user = User { name: BERTH.to_owned(), groups: vec!["system:serviceaccounts".to_owned()] };
    let options = Options { users: vec![user], api_server_args, ..Options::default() };
    let control_plane = start_control_plane_with(options).await;
    let client = control_plane.client();
    for object in rendered("apply: {webhook: {enabled: true}, updater: {enabled: true}}") {
        let kind = object["kind"].as_str().unwrap_or_default();
        if ["ClusterRole", "ClusterRoleBinding"].contains(&kind) {
            let gvk = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
            create(&api, object).await;
        }
    }
    create_nodes(&client, &Nodes::default()).await;
    create_crds(&client).await;
    (control_plane, client, Certificate::new())
}

fn start(control_plane: &TestControlPlane, certificate: &Certificate) -> Berth {
    let kubeconfig = control_plane.kubeconfig_for(BERTH).expect("a kubeconfig");
    Berth::start(&kubeconfig, &certificate.config(CONFIG))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_resized_in_place_and_never_beyond_their_node() {
    let (control_plane, client, certificate) = prepare().await;
    let target = json!({"cpu": "500m", "memory": "100Mi"});
    create_running(&client, "web", "InPlaceOrRecreate", target.clone()).await;
    create_running(&client, "big", "InPlace", json!({"cpu": "3500m", "memory": "100Mi"})).await;
    for (name, mode) in [("off", "Off"), ("first", "Initial")] {
        create_running(&client, name, mode, target.clone()).await;
    }
    let berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    await_until(SOON, "both pods are resized", async || requests(&client, "web").await == ["500m"; 2]).await;
    let pod = get(&client, "web", 0).await.expect("it is there");
    assert_eq!(resources(&pod)["limits"]["cpu"], "1", "the limit follows");
    await_until(SOON, "an event reports it", async || {
        reasons(&client, "web", 0).await.contains(&"InPlaceResizedByVPA".to_owned())
    })
    .await;

    // 4 CPUs: 1 for web, and 100m for each other pod.
    await_until(SOON, "there is no room", async || held(&berth, "node_room").await == 2.0).await;
    await_until(SOON, "an event reports it", async || {
        reasons(&client, "big", 0).await.contains(&"NotUpdatedByVPA".to_owned())
    })
    .await;
    rounds(&berth, 2.0).await;
    for name in ["big", "off", "first"] {
        assert_eq!(requests(&client, name).await, ["100m"; 2], "{name}");
    }
    assert_eq!((updates(&berth, "resized").await, updates(&berth, "evicted").await), (2.0, 0.0));

    // Room for one of them.
    recommend(&client, "big", json!({"cpu": "2400m", "memory": "100Mi"})).await;
    await_until(SOON, "one of them grows", async || {
        let mut requests = requests(&client, "big").await;
        requests.sort();
        requests == ["100m", "2400m"]
    })
    .await;
    rounds(&berth, 3.0).await;
    assert_eq!(updates(&berth, "resized").await, 3.0);
    assert_no_overcommit(&client).await;
    assert!(!berth.log().contains("forbidden"), "{}", berth.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_in_place_is_evicted_only_where_the_mode_allows_it() {
    let (control_plane, client, certificate) = prepare().await;
    let target = json!({"cpu": "300m", "memory": "100Mi"});
    for (name, mode) in [("either", "InPlaceOrRecreate"), ("place", "InPlace")] {
        create_running(&client, name, mode, target.clone()).await;
    }
    let berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    for name in ["either", "place"] {
        await_until(SOON, "both are asked", async || requests(&client, name).await == ["300m"; 2]).await;
        for index in 0..2 {
            let of_pod = json!({"phase": "Running", "conditions": [{
                "type": "PodResizePending", "status": "True", "reason": "Infeasible",
                "message": "Node didn't have enough capacity",
            }], "containerStatuses": [{
                "name": "app", "image": "pause", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m"}},
            }]});
            say(&client, name, index, of_pod).await;
        }
    }
    await_until(SOON, "one is evicted", async || requests(&client, "either").await.len() == 1).await;
    await_until(SOON, "an event reports it", async || {
        let all = [reasons(&client, "either", 0).await, reasons(&client, "either", 1).await].concat();
        all.contains(&"EvictedByVPA".to_owned())
    })
    .await;
    await_until(SOON, "the remaining pods are waited for", async || held(&berth, "infeasible").await == 2.0)
        .await;
    rounds(&berth, 3.0).await;
    assert_eq!((requests(&client, "either").await.len(), requests(&client, "place").await.len()), (1, 2));
    assert_eq!(updates(&berth, "evicted").await, 1.0, "the other one is the last of its ReplicaSet");

    // A smaller size than the infeasible one is tried.
    recommend(&client, "place", json!({"cpu": "250m", "memory": "100Mi"})).await;
    await_until(SOON, "less is tried", async || {
        requests(&client, "place").await.contains(&"250m".to_owned())
    })
    .await;
    assert!(!berth.log().contains("forbidden"), "{}", berth.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_api_server_serves_no_resizes_pods_are_evicted_if_the_mode_allows_it() {
    // Since 1.35 it always serves them.
    if !has_api_server(..=34, "an API server without pods/resize") {
        return;
    }
    let args = vec!["--feature-gates=InPlacePodVerticalScaling=false".to_owned()];
    let (control_plane, client, certificate) = prepare_with(args).await;
    let target = json!({"cpu": "300m", "memory": "100Mi"});
    for (name, mode) in [("either", "InPlaceOrRecreate"), ("place", "InPlace")] {
        create_running(&client, name, mode, target.clone()).await;
    }
    let berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    await_until(SOON, "one is evicted", async || requests(&client, "either").await.len() == 1).await;
    await_until(SOON, "the others are held", async || held(&berth, "refused").await >= 2.0).await;
    rounds(&berth, 3.0).await;
    assert_eq!(requests(&client, "place").await, ["100m"; 2]);
    assert_eq!(updates(&berth, "resized").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disruption_budget_is_asked_once_and_upstreams_updater_is_left_alone() {
    let (control_plane, client, certificate) = prepare().await;
    let target = json!({"cpu": "300m", "memory": "100Mi"});
    create_running(&client, "web", "Recreate", target).await;
    // Its status was never computed, so it allows no disruption.
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    });
    let budget = serde_json::from_value(budget).expect("a budget");
    budgets.create(&PostParams::default(), &budget).await.expect("created");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = json!({
        "metadata": {"name": "vpa-updater"},
        "spec": {
            "holderIdentity": "vpa-updater-0", "leaseDurationSeconds": 15,
            "renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        },
    });
    let lease = serde_json::from_value(lease).expect("a lease");
    leases.create(&PostParams::default(), &lease).await.expect("created");

    let berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    let failed = r#"berth_updater_rounds_total{result="failed"}"#;
    await_until(SOON, "it leaves pods alone", async || {
        berth.log().contains("the upstream updater runs: vpa-updater-0") && berth.metric(failed).await >= 2.0
    })
    .await;
    assert_eq!(berth.log().matches("the upstream updater runs").count(), 1, "{}", berth.log());
    assert_eq!(updates(&berth, "eviction_refused").await, 0.0);
    leases.delete("vpa-updater", &DeleteParams::default()).await.expect("deleted");

    await_until(SOON, "an eviction is refused", async || updates(&berth, "eviction_refused").await == 1.0)
        .await;
    rounds(&berth, 4.0).await;
    assert_eq!(updates(&berth, "eviction_refused").await, 1.0, "it is not asked again soon");
    assert_eq!(held(&berth, "disruption_budget").await, 2.0);
    assert_eq!(requests(&client, "web").await, ["100m"; 2]);
    assert_eq!(updates(&berth, "evicted").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_evicted_while_the_certificate_of_the_webhook_has_ended() {
    let (control_plane, client, _) = prepare().await;
    create_running(&client, "web", "Recreate", json!({"cpu": "300m", "memory": "100Mi"})).await;
    let certificate = Certificate::ending_in(-60);
    let berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    await_until(SOON, "both are held", async || held(&berth, "no_webhook").await == 2.0).await;
    rounds(&berth, 3.0).await;
    assert_eq!((updates(&berth, "evicted").await, requests(&client, "web").await.len()), (0.0, 2));
    certificate.replace(7_200);
    await_until(SOON, "one is evicted", async || requests(&client, "web").await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_evicts_no_pods_that_came_back_unchanged_from_an_eviction_of_the_former_one() {
    let (control_plane, client, certificate) = prepare().await;
    create_running(&client, "web", "Recreate", json!({"cpu": "300m", "memory": "100Mi"})).await;
    let mut berth = start(&control_plane, &certificate);
    berth.await_ready().await;
    await_until(SOON, "one is evicted and noted", async || {
        let vpa = vpas(&client).get("web").await.expect("the VPA");
        requests(&client, "web").await.len() == 1
            && vpa.metadata.annotations.is_some_and(|all| all.contains_key("berth.dev/last-eviction"))
    })
    .await;
    berth.terminate().await;
    // Its replacement, which no webhook has seen, in a later second than the pods before.
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let left = pods.list(&Default::default()).await.expect("pods").items;
    let left = left.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).expect("the other one");
    let owners = serde_json::to_value(&left.metadata.owner_references).expect("JSON");
    let asked = json!({"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m"}});
    let mut pod = pod_of("web", 2, &owners, asked);
    pod["spec"]["nodeName"] = "node-0".into();
    await_until(SOON, "it is younger", async || {
        let made = try_create_pod(&client, &pod).await.expect("created");
        let made: Pod = serde_json::from_value(made).expect("a pod");
        let is_younger = made.metadata.creation_timestamp > left.metadata.creation_timestamp;
        if !is_younger {
            let now = DeleteParams::default().grace_period(0);
            pods.delete(&name_of_pod("web", 2), &now).await.expect("deleted");
        }
        is_younger
    })
    .await;
    say(&client, "web", 2, json!({"phase": "Running"})).await;

    let next = start(&control_plane, &certificate);
    next.await_ready().await;
    await_until(SOON, "both are held", async || held(&next, "webhook_not_called").await == 2.0).await;
    rounds(&next, 3.0).await;
    assert_eq!(updates(&next, "evicted").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_evicted_where_the_webhook_does_not_see_new_pods() {
    let (control_plane, client, certificate) = prepare().await;
    create_running(&client, "web", "Recreate", json!({"cpu": "300m", "memory": "100Mi"})).await;
    let config = certificate.config(CONFIG).replace(
        "serving: {",
        "serving: {webhookSecret: berth-webhooks, mutatingWebhookConfiguration: berth, ",
    );
    let berth = Berth::start(&control_plane.kubeconfig(), &config);
    berth.await_ready().await;
    await_until(SOON, "both are held", async || held(&berth, "no_webhook").await == 2.0).await;
    super::webhook::install(&client, berth.secure_address().await, &certificate.ca).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let select = async |expression: Value| {
        let selector = json!({"matchExpressions": [expression]});
        let webhooks = json!([{"name": "vpa.berth.dev", "namespaceSelector": selector}]);
        let patch = Patch::Strategic(json!({"webhooks": webhooks}));
        configurations.patch("berth", &PatchParams::default(), &patch).await.expect("patched");
    };
    let key = "kubernetes.io/metadata.name";
    select(json!({"key": key, "operator": "NotIn", "values": ["default"]})).await;
    rounds(&berth, 3.0).await;
    assert_eq!((updates(&berth, "evicted").await, requests(&client, "web").await.len()), (0.0, 2));
    assert_eq!(held(&berth, "no_webhook").await, 2.0);
    select(json!({"key": key, "operator": "NotIn", "values": ["kube-system"]})).await;
    await_until(SOON, "one is evicted", async || requests(&client, "web").await.len() == 1).await;
}
