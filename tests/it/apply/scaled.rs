//! New pods of a scaled service: they start with the values of its ServiceScaler's status, whichever process wrote
//! it.

use berth_crds::service_scaler::ServiceScaler;

use super::webhook::{create_until, install};
use super::*;
use crate::allocations::Kubectl;

/// Nothing can be measured.
const CONFIG: &str = "scaling: {enabled: true, interval: 1s, hintsInPods: true}\n\
    recommender: {prometheus: {url: 'http://127.0.0.1:1'}, apply: {webhook: true}}";

/// Creates the ServiceScaler of the Deployment of the same name, as another process left it.
async fn create_scaler(client: &Client, name: &str, status: Value) {
    let scalers: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    let scaler = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
        "metadata": {"name": name},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "dimensions": ["CPU"],
            "dryRun": false,
        },
    });
    let scaler = serde_json::from_value(scaler).expect("a ServiceScaler");
    scalers.create(&PostParams::default(), &scaler).await.expect("it is created");
    let patch = Patch::Merge(json!({"status": status}));
    scalers.patch_status(name, &PatchParams::default(), &patch).await.expect("it has a status");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_pods_have_the_size_and_the_place_that_their_service_scaler_knows_also_after_a_restart() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    create_crds(&client).await;
    create_nodes(&client, &Nodes { prefix: "large", cpu: "16", ..Nodes::default() }).await;
    create_nodes(&client, &Nodes { prefix: "small", cpu: "2", ..Nodes::default() }).await;
    let (web, cart) = (create_workload(&client, "web", 1).await, create_workload(&client, "cart", 1).await);
    let size = json!({"sizes": {"app": {"cpuMilli": 300, "memoryBytes": 0}}}).to_string();
    let hint = json!({
        "service": "default/db", "selector": "app=db", "placement": "Apart", "weight": 90, "resource": "CPU",
    });
    create_scaler(&client, "web", json!({"memory": size, "hints": [hint]})).await;
    create_scaler(&client, "cart", json!({"memory": size})).await;
    let asked = json!({"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "200m"}});
    let mut db = pod_of("db", 0, &Value::Null, asked.clone());
    db["spec"]["nodeName"] = "large-0".into();
    db["metadata"]["labels"] = json!({"app": "db"});
    create_pod(&client, &db).await;

    let certificate = Certificate::new();
    let mut berth = Berth::start(&control_plane.kubeconfig(), &certificate.config(CONFIG));
    berth.await_ready().await;
    install(&client, berth.secure_address().await, &certificate.ca).await;
    let is_in_force = async |berth: &Berth| berth.find_metric("berth_scaler_hints").await == Some(1.0);
    await_until(SOON, "the hint is in force", async || is_in_force(&berth).await).await;
    let has_size = |pod: &Value| {
        *resources(pod)
            == json!({
                "requests": {"cpu": "300m", "memory": "100Mi"}, "limits": {"cpu": "600m"},
            })
    };
    // The first ones stay unscheduled: they only show that the webhook has the data.
    create_until(&client, &pod_of("web", 0, &web, asked.clone()), "new pods have their size", has_size).await;
    create_until(&client, &pod_of("cart", 0, &cart, asked.clone()), "those of the other, too", has_size)
        .await;
    let scheduled = |name: &str, owners: &Value| {
        let mut pod = pod_of(name, 1, owners, asked.clone());
        pod["spec"]["schedulerName"] = "berth".into();
        pod
    };
    for pod in [scheduled("web", &web), scheduled("cart", &cart)] {
        assert!(has_size(&create_pod(&client, &pod).await));
    }
    let node = async |name: &str| {
        let pod = all_pods(&client).await.into_iter().find(|pod| name_of(pod) == name)?;
        node_of(&pod).map(str::to_owned)
    };
    await_until(SOON, "both have a node", async || {
        node("web-5d4f8-1").await.is_some() && node("cart-5d4f8-1").await.is_some()
    })
    .await;
    assert_eq!(node("cart-5d4f8-1").await.as_deref(), Some("large-0"), "there is more room");
    assert_eq!(node("web-5d4f8-1").await.as_deref(), Some("small-0"), "it peaks with what is on the other");
    let affinity = async |name: &str| {
        let pod = all_pods(&client).await.into_iter().find(|pod| name_of(pod) == name)?;
        serde_json::to_value(pod.spec?.affinity?).ok()
    };
    let told = affinity("web-5d4f8-0").await.expect("the hint is in the pod");
    let terms = &told["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms[0]["weight"], 90);
    assert_eq!(terms[0]["podAffinityTerm"]["labelSelector"]["matchExpressions"][0]["values"], json!(["db"]));
    assert_eq!(affinity("web-5d4f8-1").await, None, "berth knows it without");
    assert_eq!(affinity("cart-5d4f8-0").await, None, "there is no hint for it");
    let told = kubectl.must(&["describe", "servicescaler", "web"], "").await;
    for expected in ["Hints:", "default/db", "Apart", "Selector:", "app=web", "300m"] {
        assert!(told.contains(expected), "{expected} is not in\n{told}");
    }

    // The next process has the data, too, and a VPA takes precedence for sizes.
    berth.kill();
    let berth = Berth::start(&control_plane.kubeconfig(), &certificate.config(CONFIG));
    berth.await_ready().await;
    install(&client, berth.secure_address().await, &certificate.ca).await;
    await_until(SOON, "the hint is in force again", async || is_in_force(&berth).await).await;
    create_until(&client, &pod_of("web", 2, &web, asked.clone()), "the size is known again", has_size).await;
    create_vpa(&client, "web", "Initial", Some(json!({"cpu": "250m"}))).await;
    let of_vpa = |pod: &Value| resources(pod)["requests"]["cpu"] == "250m";
    create_until(&client, &pod_of("web", 3, &web, asked.clone()), "a VPA goes first", of_vpa).await;
}
