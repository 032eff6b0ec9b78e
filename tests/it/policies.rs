//! Allocation policies on a real API server: validation, status, and changes in force without a restart.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, discovery::ApiResource};
use serde_json::{Value, json};

use berth_crds::policy::{AllocationPolicy, AllocationPolicyStatus};

use crate::support::*;

const SOON: Duration = Duration::from_secs(30);

async fn install_crds(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in berth_crds::crds() {
        crds.create(&PostParams::default(), &crd).await.expect("the API server takes the CRD");
        let name = crd.metadata.name.unwrap_or_default();
        await_until(SOON, "the CRD is established", async || {
            let status = crds.get(&name).await.expect("it exists").status;
            let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
            let problem = conditions.iter().find(|c| c.type_ == "NonStructuralSchema");
            assert!(problem.is_none(), "{problem:?}");
            conditions.iter().any(|c| c.type_ == "Established" && c.status == "True")
        })
        .await;
    }
}

async fn create_namespace(client: &Client, name: &str, labels: Value) {
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
    let api = Api::all(client.clone());
    api.create(&PostParams::default(), &namespace).await.expect("the namespace is created");
}

/// Sends raw JSON: the types of the crate must not correct it.
async fn create(client: &Client, name: &str, spec: Value) -> Result<DynamicObject, String> {
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("berth.dev", "v1alpha1", "AllocationPolicy"),
        "allocationpolicies",
    );
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "AllocationPolicy", "metadata": {"name": name}, "spec": spec,
    });
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
}

async fn patch(client: &Client, name: &str, spec: Value) {
    let api: Api<AllocationPolicy> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch(name, &PatchParams::default(), &patch).await.expect("the policy is patched");
}

/// Waits until the status is about the newest spec.
async fn await_told(client: &Client, name: &str) -> AllocationPolicyStatus {
    let api: Api<AllocationPolicy> = Api::all(client.clone());
    let mut told = AllocationPolicyStatus::default();
    await_until(SOON, &format!("policy {name} has its status"), async || {
        let policy = api.get(name).await.expect("it exists");
        told = policy.status.unwrap_or_default();
        Some(told.observed_generation) == policy.metadata.generation
    })
    .await;
    told
}

fn condition<'a>(status: &'a AllocationPolicyStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).expect("it is there");
    (&found.status, &found.reason, &found.message)
}

/// Creates pods of one CPU each in the namespace `work`, one after the other, and returns their nodes.
async fn place(client: &Client, prefix: &'static str, count: usize) -> BTreeSet<String> {
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    let pods = Pods { namespace: "work", prefix, count, requests, ..Pods::default() };
    create_pods(client, &pods, |_, _| {}).await;
    let ours = |pod: &k8s_openapi::api::core::v1::Pod| name_of(pod).starts_with(prefix);
    await_bound(client, SOON, count, ours).await;
    let pods = all_pods(client).await;
    pods.iter().filter(|pod| ours(pod)).filter_map(|pod| node_of(pod).map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_policy_packs_the_next_pods_of_its_namespace_and_reports_it() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    install_crds(&client).await;
    create_nodes(&client, &Nodes { prefix: "node", count: 4, cpu: "16", ..Nodes::default() }).await;
    create_namespace(&client, "work", json!({"workload": "batch"})).await;
    let governs = json!({"namespaceSelector": {"matchLabels": {"workload": "batch"}}});
    create(&client, "work", json!({"governs": governs})).await.expect("a good policy");
    let berth = Berth::start(&cluster.kubeconfig(), "agents: 1\n");

    let told = await_told(&client, "work").await;
    assert_eq!(condition(&told, "InForce"), ("True", "Applied", "the policy is in force"));
    assert_eq!(condition(&told, "Contradicted").0, "False");
    assert_eq!(told.governs, "pods of namespace work");
    let effective = serde_json::to_value(told.effective.expect("it is in force")).expect("JSON");
    assert_eq!(effective["packing"], "LeastAllocated");
    assert_eq!(effective["preferences"].as_array().map(Vec::len), Some(7));
    assert_eq!(place(&client, "spread", 8).await.len(), 4);

    patch(&client, "work", json!({"packing": "MostAllocated"})).await;
    let told = await_told(&client, "work").await;
    assert_eq!(serde_json::to_value(&told.effective).expect("JSON")["packing"], "MostAllocated");
    let packed = place(&client, "packed", 6).await;
    assert_eq!(packed.len(), 1, "{packed:?}");

    // Eight of that node's CPUs are requested now, half of its capacity.
    patch(&client, "work", json!({"utilisationLimit": {"cpuPercent": 50}})).await;
    await_told(&client, "work").await;
    let limited = place(&client, "limited", 6).await;
    assert!(limited.len() == 1 && limited.is_disjoint(&packed), "{limited:?} after {packed:?}");
    place(&client, "full", 12).await;
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    let pods = Pods { namespace: "work", prefix: "late", requests, ..Pods::default() };
    create_pods(&client, &pods, |_, _| {}).await;
    let expected = "0/4 nodes are available: 4 node(s) exceeded the utilisation limit of their cell.";
    await_message(&client, "work", "late-0", |message| message.starts_with(expected)).await;
    patch(&client, "work", json!({"utilisationLimit": null})).await;
    await_bound(&client, SOON, 1, |pod| name_of(pod) == "late-0").await;
    assert_no_overcommit(&client).await;

    // Written once for each change, and not without one.
    let api: Api<AllocationPolicy> = Api::all(client.clone());
    let version = api.get("work").await.expect("it exists").metadata.resource_version;
    let labels = Patch::Merge(json!({"metadata": {"labels": {"workload": null}}}));
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch("work", &PatchParams::default(), &labels).await.expect("it is patched");
    await_until(SOON, "the policy governs nothing any more", async || {
        let policy = api.get("work").await.expect("it exists");
        policy.status.is_some_and(|status| status.governs.starts_with("no pods"))
    })
    .await;
    assert_ne!(api.get("work").await.expect("it exists").metadata.resource_version, version);
    assert!(!berth.log().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_refuses_policies_that_contradict_themselves_and_says_why() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    install_crds(&client).await;
    let with = |name: &str, steps: i64| json!({"preferences": [{"name": name, "steps": steps}]});
    let selects = |operator: &str, values: Value| {
        let expressions = json!([{"key": "a", "operator": operator, "values": values}]);
        json!({"governs": {"namespaceSelector": {"matchExpressions": expressions}}})
    };
    let refused = [
        (
            json!({"governs": {"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"a": "b"}}}}),
            "give namespaces or namespaceSelector, not both",
        ),
        (json!({"governs": {"namespaces": []}}), "spec.governs.namespaces"),
        (selects("In", json!([])), "In and NotIn need values"),
        (selects("Exists", json!(["b"])), "Exists and DoesNotExist take none"),
        (selects("Near", json!(["b"])), "Unsupported value"),
        (
            json!({"preferences": [{"name": "ImageLocality"}, {"name": "ImageLocality", "steps": 2}]}),
            "each preference can be listed only once",
        ),
        (with("PodTopologySpread", 2), "count pods and take no steps"),
        (with("InterPodAffinity", 2), "count pods and take no steps"),
        (with("TaintToleration", 17), "TaintToleration takes 16 steps at most"),
        (with("NodeResourcesFit", 65), "NodeResourcesFit takes 64 steps at most"),
        (
            with("NodeResourcesBalancedAllocation", 17),
            "NodeResourcesBalancedAllocation takes 16 steps at most",
        ),
        (with("ImageLocality", 9), "ImageLocality takes 8 steps at most"),
        (with("NodeAffinity", 4097), "less than or equal to 4096"),
        (with("NodeAffinity", 0), "greater than or equal to 1"),
        (with("Luck", 1), "Unsupported value"),
        (json!({"packing": "Random"}), "Unsupported value"),
        (json!({"candidateWidth": 1001}), "less than or equal to 1000"),
        (json!({"utilisationLimit": {}}), "give cpuPercent, memoryPercent or both"),
        (json!({"utilisationLimit": {"cpuPercent": 101}}), "less than or equal to 100"),
        (json!({"cacheMemoryMiB": 0}), "greater than or equal to 1"),
    ];
    for (at, (spec, why)) in refused.into_iter().enumerate() {
        match create(&client, &format!("refused-{at}"), spec.clone()).await {
            Ok(_) => panic!("accepted: {spec}"),
            Err(error) => assert!(error.contains(why), "{spec}: {error}"),
        }
    }
    let good = [
        json!({}),
        with("NodeAffinity", 4096),
        with("NodeResourcesFit", 1),
        selects("In", json!(["b"])),
        selects("DoesNotExist", json!([])),
        json!({"preferences": [], "cacheMemoryMiB": 16, "candidateWidth": 1}),
        json!({"governs": {"schedulerNames": ["berth"], "namespaces": ["a", "b"]}}),
    ];
    for (at, spec) in good.into_iter().enumerate() {
        create(&client, &format!("good-{at}"), spec).await.expect("a good policy");
    }
    let example = std::fs::read_to_string("manifests/example-policy.yaml").expect("the example is there");
    let example: Value = serde_saphyr::from_str(&example).expect("the example is YAML");
    create(&client, "batch", example["spec"].clone()).await.expect("the example is accepted");
}
