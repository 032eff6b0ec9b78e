//! berth with exactly the chart's permissions.

use berth_testenv::{Options, User};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, PostParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::ApiResource;

use super::*;
use crate::chart::{NAMESPACE, rendered};

async fn create(client: &Client, object: &Value) {
    let types: TypeMeta = serde_json::from_value(object.clone()).expect("it has a kind");
    let gvk = GroupVersionKind::try_from(types).expect("it has a group and a version");
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let object = serde_json::from_value(object.clone()).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("created");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_chart_allows_is_enough_and_without_it_the_log_says_what_is_missing() {
    let chart = rendered("");
    let deployment = chart.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    let account = deployment["spec"]["template"]["spec"]["serviceAccountName"].as_str().expect("a name");
    // An API server token for this name is equivalent to the account's own.
    let name = format!("system:serviceaccount:{NAMESPACE}:{account}");
    let options = Options {
        users: vec![User { name: name.clone(), groups: vec!["system:serviceaccounts".to_owned()] }],
        ..Options::default()
    };
    let cluster = start_control_plane_with(options).await;
    let client = cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    namespaces.create(&PostParams::default(), &namespace).await.expect("created");
    create_nodes(&client, &Nodes::default()).await;
    create_pods(&client, &Pods { count: 10, ..Pods::default() }, |_, _| {}).await;
    let too_large = Pods { prefix: "too-large", requests: json!({"cpu": "100"}), ..Pods::default() };
    let too_large = create_pods(&client, &too_large, |_, _| {}).await.remove(0);

    let kubeconfig = cluster.kubeconfig_for(&name).expect("a user of the cluster");
    let config = format!("leaderElection: {{namespace: {NAMESPACE}}}");
    let berth = Berth::start(&kubeconfig, &config);
    let hints = [
        "may not list and watch pods: check the ClusterRole",
        "may not list and watch nodes: check the ClusterRole",
        "may not get, create or update leases",
    ];
    await_until(SOON, "the log says what berth may not do", async || {
        hints.iter().all(|hint| berth.log().contains(hint))
    })
    .await;
    let (ready, why) = berth.get("/readyz").await;
    assert!(!ready && why.contains("not been listed"), "{why}");
    assert!(berth.get("/healthz").await.0, "a restart would not help");

    // The permissions are granted, without any restart.
    for object in &chart {
        if ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
            .contains(&object["kind"].as_str().unwrap_or(""))
        {
            create(&client, object).await;
        }
    }
    berth.await_ready().await;
    drop(berth);

    let mut berth = Berth::start(&kubeconfig, &config);
    await_bound(&client, SOON, 10, |_| true).await;
    await_message(&client, "default", "too-large-0", |message| message.contains("Insufficient cpu")).await;
    let mut note = None;
    await_until(SOON, "the event is written", async || {
        note = events_of(&client, &too_large).await.into_iter().next().and_then(|event| event.note);
        note.is_some()
    })
    .await;
    assert!(note.is_some_and(|note| note.contains("Insufficient cpu")));
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let holder =
        async || leases.get("berth").await.expect("the lease").spec.and_then(|spec| spec.holder_identity);
    assert!(holder().await.is_some_and(|holder| !holder.is_empty()));
    assert!(berth.terminate().await.success());
    assert_eq!(holder().await.as_deref(), Some(""), "the lease is released");
    let log = berth.log();
    assert!(!log.to_lowercase().contains("forbidden") && !log.contains("may not"), "{log}");
}
