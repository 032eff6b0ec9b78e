//! Namespaces in scope, and VPAs created by berth.

use berth_testenv::{Options, User};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;

use super::*;
use crate::chart::{NAMESPACE, rendered};
use crate::support::start_control_plane_with;

fn vpas_in(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
    Api::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::from_gvk_with_plural(&kind, "verticalpodautoscalers"),
    )
}

async fn names(client: &Client) -> Vec<String> {
    let all = vpas(client).list(&Default::default()).await.expect("VPAs");
    all.items.into_iter().filter_map(|it| it.metadata.name).collect()
}

/// Sets a label of an object, or removes it with `null`.
async fn label<K>(api: &Api<K>, name: &str, value: Value)
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = json!({"metadata": {"labels": {"berth.dev/recommend": value}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("labelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_vpas_of_the_namespaces_that_are_named_are_looked_after() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["shop", "bank"] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
        namespaces.create(&PostParams::default(), &namespace).await.expect("created");
        create(&vpas_in(&client, name), vpa("lost", "nowhere", "berth")).await;
    }
    let told = async |namespace: &str| {
        let vpa = vpas_in(&client, namespace).get("lost").await.expect("the VPA");
        vpa.data["status"]["conditions"].is_array()
    };
    let base = "recommender: {enabled: true, interval: 1s, checkpointsGcInterval: 1s, ";
    // Of a deleted VPA: the recommender responsible for its namespace deletes it.
    let gone = json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": "gone-app", "annotations": {"berth.dev/open-windows": "{}"}},
        "spec": {"vpaObjectName": "gone", "containerName": "app"}, "status": {},
    });
    create(&checkpoints(&client), gone).await;
    let berth = Berth::start(&control_plane.kubeconfig(), &format!("{base}namespaces: [shop]}}"));
    berth.await_ready().await;
    await_until(LIMIT, "the one of shop is in scope", async || told("shop").await).await;
    rounds(&berth, 3).await;
    assert!(!told("bank").await, "bank is out of scope");
    let kinds = berth.get("/metrics").await.1;
    let counted = kinds.lines().filter(|line| line.starts_with("vpa_recommender_vpa_objects_count{"));
    assert_eq!(counted.map(|line| line.rsplit(' ').next()).collect::<Vec<_>>(), [Some("1")], "{kinds}");
    drop(berth);
    let berth = Berth::start(&control_plane.kubeconfig(), &format!("{base}ignoredNamespaces: [default]}}"));
    berth.await_ready().await;
    await_until(LIMIT, "the one of bank is in scope, too", async || told("bank").await).await;
    rounds(&berth, 3).await;
    assert!(checkpoints(&client).get_opt("gone-app").await.expect("an answer").is_some(), "out of scope");
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_of_a_namespace_that_asks_get_vpas_which_give_way_to_those_of_people() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    for name in ["web", "api", "own", "taken"] {
        create_workload(&client, name, 1).await;
    }
    create_workload(&client, "idle", 0).await;
    let deployments = super::api(&client, "apps", "v1", "Deployment", "deployments");
    label(&deployments, "own", json!("false")).await;
    create(&vpas(&client), vpa("theirs", "taken", "default")).await;
    let config = "recommender: {enabled: true, interval: 1s, autoCreate: {enabled: true}}";
    let berth = Berth::start(&control_plane.kubeconfig(), config);
    berth.await_ready().await;
    rounds(&berth, 3).await;
    assert_eq!(names(&client).await, ["theirs"], "the namespace does not ask");

    let namespaces: Api<Namespace> = Api::all(client.clone());
    label(&namespaces, "default", json!("true")).await;
    let made = ["berth-deployment-api", "berth-deployment-web", "theirs"];
    await_until(LIMIT, "VPAs are made", async || names(&client).await == made).await;
    rounds(&berth, 3).await;
    assert_eq!(names(&client).await, made, "one for each workload with pods");
    let web = vpas(&client).get("berth-deployment-web").await.expect("the VPA");
    assert_eq!(web.data["spec"]["updatePolicy"]["updateMode"], "Off");
    assert_eq!(web.data["spec"]["recommenders"], json!([{"name": "berth"}]));
    assert_eq!(web.metadata.labels.unwrap_or_default()["app.kubernetes.io/managed-by"], "berth");
    let owner = deployments.get("web").await.expect("the Deployment").metadata.uid;
    let owners = web.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.iter().map(|it| &it.uid).collect::<Vec<_>>(), [&owner.expect("a uid")]);
    measure(&client, POD, Timestamp::now(), "250m", "300Mi").await;
    await_until(LIMIT, "it gets recommendations", async || {
        is_true(&status(&client, "berth-deployment-web").await, "RecommendationProvided")
    })
    .await;

    // A user creates a VPA; another takes one over.
    create(&vpas(&client), vpa("mine", "web", "default")).await;
    let auto = json!({"spec": {"updatePolicy": {"updateMode": "Initial"}}});
    let api = "berth-deployment-api";
    vpas(&client).patch(api, &PatchParams::default(), &Patch::Merge(&auto)).await.expect("patched");
    await_until(LIMIT, "berth deletes its own", async || {
        names(&client).await == ["berth-deployment-api", "mine", "theirs"]
    })
    .await;
    // The user's VPA is deleted: berth's returns, until the namespace opts out.
    vpas(&client).delete("mine", &DeleteParams::default()).await.expect("deleted");
    await_until(LIMIT, "berth creates its own again", async || names(&client).await == made).await;
    label(&namespaces, "default", Value::Null).await;
    let left = ["berth-deployment-api", "theirs"];
    await_until(LIMIT, "unmodified ones are deleted", async || names(&client).await == left).await;
    rounds(&berth, 3).await;
    assert_eq!(names(&client).await, left);
    let created = r#"berth_recommender_vpas_created_total{result="done"}"#;
    let deleted = r#"berth_recommender_vpas_deleted_total{result="done"}"#;
    assert_eq!((berth.metric(created).await, berth.metric(deleted).await), (3.0, 2.0));
    assert_eq!(berth.metric("berth_recommender_vpas_waiting").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_chart_allows_is_enough_to_recommend_and_to_make_vpas() {
    let name = format!("system:serviceaccount:{NAMESPACE}:berth");
    let options = Options {
        users: vec![User { name: name.clone(), groups: vec!["system:serviceaccounts".to_owned()] }],
        ..Options::default()
    };
    let control_plane = start_control_plane_with(options).await;
    let client = control_plane.client();
    create_crds(&client).await;
    let chart = rendered(
        "recommender: {enabled: true}\nconfig: {recommender: {autoCreate: {enabled: true}}}\nrbac: {create: true}",
    );
    for object in chart
        .iter()
        .filter(|it| ["ClusterRole", "ClusterRoleBinding"].contains(&it["kind"].as_str().unwrap_or_default()))
    {
        let kind = object["kind"].as_str().expect("a kind");
        let gvk = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
        create(&api, object.clone()).await;
    }
    create_workload(&client, "web", 1).await;
    create_workload(&client, "api", 1).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    label(&namespaces, "default", json!("true")).await;
    let kubeconfig = control_plane.kubeconfig_for(&name).expect("a user of the cluster");
    let config =
        "recommender: {enabled: true, interval: 1s, checkpointsInterval: 1s, autoCreate: {enabled: true}}";
    let berth = Berth::start(&kubeconfig, config);
    berth.await_ready().await;
    let made = ["berth-deployment-api", "berth-deployment-web"];
    await_until(LIMIT, "VPAs are made", async || names(&client).await == made).await;
    measure(&client, POD, Timestamp::now(), "250m", "300Mi").await;
    await_until(LIMIT, "a recommendation is written", async || {
        is_true(&status(&client, "berth-deployment-web").await, "RecommendationProvided")
    })
    .await;
    await_until(LIMIT, "a checkpoint is written", async || {
        checkpoints(&client).get_opt("berth-deployment-web-app").await.expect("an answer").is_some()
    })
    .await;
    label(&namespaces, "default", Value::Null).await;
    await_until(LIMIT, "they are deleted", async || names(&client).await.is_empty()).await;
    let log = berth.log();
    assert!(!log.contains("forbidden") && !log.contains("cannot read"), "{log}");
}
