//! Pods with resource claims on a real API server, with the claim controller of kube-controller-manager: they get devices with
//! their node, never one device twice, and kube-scheduler's texts where there is none.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};

use super::preemption::create_priority;
use super::texts::{asks, assert_same_texts, with};
use super::volumes::{create, namespaced};
use super::*;

const DRIVER: &str = "gpu.example.com";

/// Provided by the devices of the class `gpu` in some tests.
const GPU: &str = "example.com/gpu";

/// Creates a class whose devices provide an extended resource.
async fn create_providing_class(client: &Client) {
    let spec = json!({
        "extendedResourceName": GPU,
        "selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}],
    });
    create::<DeviceClass>(Api::all(client.clone()), json!({"metadata": {"name": "gpu"}, "spec": spec})).await;
}

/// Returns the part of a pod's spec that requests so many devices by the name of the resource.
fn requests(resource: &str, count: u64) -> Value {
    let amounts = json!({"cpu": "10m", resource: count.to_string()});
    let resources = json!({"requests": amounts, "limits": {resource: count.to_string()}});
    json!({"containers": [{"name": "main", "image": "pause", "resources": resources}]})
}

async fn create_class(client: &Client, name: &str, expression: &str) {
    let config = json!([{"opaque": {"driver": DRIVER, "parameters": {"of": name}}}]);
    let spec = json!({"selectors": [{"cel": {"expression": expression}}], "config": config});
    create::<DeviceClass>(Api::all(client.clone()), json!({"metadata": {"name": name}, "spec": spec})).await;
}

fn gpu(name: String, model: &str, memory: &str) -> Value {
    json!({
        "name": name,
        "attributes": {"model": {"string": model}, "driverVersion": {"version": "1.2.3"}},
        "capacity": {"memory": {"value": memory}},
    })
}

async fn create_slice(client: &Client, node: &str, devices: Vec<Value>) {
    let slice = json!({
        "metadata": {"name": format!("{node}-gpus")},
        "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    });
    create::<ResourceSlice>(Api::all(client.clone()), slice).await;
}

fn exactly(class: &str, more: Value) -> Value {
    json!({"devices": {"requests": [{"name": "gpu", "exactly": with(json!({"deviceClassName": class}), more)}]}})
}

async fn create_claim(client: &Client, name: &str, spec: Value) {
    let claim = json!({"metadata": {"name": name}, "spec": spec});
    create::<ResourceClaim>(namespaced(client), claim).await;
}

/// Gives a claim the first device of node-0, as a scheduler does; `more` is the rest of its status.
async fn allocate_on_node_0(client: &Client, claim: &str, more: Value) {
    let device = json!({"request": "gpu", "driver": DRIVER, "pool": "node-0", "device": "gpu-0"});
    let name = json!({"key": "metadata.name", "operator": "In", "values": ["node-0"]});
    let nodes = json!({"nodeSelectorTerms": [{"matchFields": [name]}]});
    let allocation = json!({"devices": {"results": [device]}, "nodeSelector": nodes});
    let status = json!({"status": with(json!({"allocation": allocation}), more)});
    let claims = namespaced::<ResourceClaim>(client);
    claims.patch_status(claim, &PatchParams::default(), &Patch::Merge(&status)).await.expect("allocated");
}

/// Returns the part of a pod's spec that uses this claim, or a copy of this template.
fn uses(field: &str, name: &str) -> Value {
    let mut entry = json!({"name": "gpu"});
    entry[field] = json!(name);
    let container = json!({"name": "main", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}});
    json!({"resourceClaims": [entry], "containers": [container]})
}

async fn create_users(client: &Client, prefix: &'static str, count: usize, spec: Value) {
    create_pods(client, &Pods { prefix, count, ..Pods::default() }, |_, pod| {
        for (key, value) in spec.as_object().expect("an object") {
            pod["spec"][key] = value.clone();
        }
    })
    .await;
}

/// Returns the allocated claims of the cluster.
async fn allocated(client: &Client) -> Vec<ResourceClaim> {
    let claims = namespaced::<ResourceClaim>(client).list(&ListParams::default()).await.expect("claims");
    let is_allocated =
        |claim: &ResourceClaim| claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    claims.items.into_iter().filter(is_allocated).collect()
}

/// Asserts that every bound pod has a claim of its own with devices of its node, and returns the number of devices, none of
/// which two claims have.
async fn assert_devices(client: &Client) -> usize {
    let pods = all_pods(client).await;
    let mut devices = BTreeSet::new();
    let mut count = 0;
    for claim in allocated(client).await {
        let status = claim.status.expect("allocated");
        let user = status.reserved_for.expect("it is used").remove(0);
        let pod = pods.iter().find(|pod| pod.metadata.uid.as_ref() == Some(&user.uid)).expect("its pod");
        assert_eq!((user.resource.as_str(), user.name.as_str()), ("pods", name_of(pod)));
        let results = status.allocation.and_then(|allocation| allocation.devices?.results).expect("devices");
        for result in results {
            assert_eq!(Some(&*result.pool), node_of(pod), "a device of the node of {}", name_of(pod));
            devices.insert((result.pool, result.device));
            count += 1;
        }
    }
    assert_eq!(devices.len(), count, "no device twice");
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_devices_with_their_node_and_the_next_ones_when_these_are_free_again() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let _controllers =
        cluster.start_controller_manager(&["resourceclaim-controller"]).await.expect("it starts");
    create_nodes(&client, &Nodes { count: 3, ..Nodes::default() }).await;
    let selector = format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'large'");
    create_class(&client, "large", &selector).await;
    for node in 0..3 {
        let devices = vec![
            gpu("gpu-0".to_owned(), "large", "80Gi"),
            gpu("gpu-1".to_owned(), "large", "80Gi"),
            gpu("gpu-2".to_owned(), "small", "10Gi"),
        ];
        create_slice(&client, &format!("node-{node}"), devices).await;
    }
    let enough = format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0");
    let spec = exactly("large", json!({"selectors": [{"cel": {"expression": enough}}]}));
    let template = json!({"metadata": {"name": "one"}, "spec": {"spec": spec}});
    create::<ResourceClaimTemplate>(namespaced(&client), template).await;
    let mut berth = Berth::start(&cluster.kubeconfig(), "");
    create_users(&client, "user", 7, uses("resourceClaimTemplateName", "one")).await;
    await_bound(&client, SOON, 6, |_| true).await;
    assert_eq!(assert_devices(&client).await, 6);
    let claim = allocated(&client).await.remove(0);
    assert!(claim.metadata.finalizers.is_some_and(|all| all == ["resource.kubernetes.io/delete-protection"]));
    let allocation = claim.status.and_then(|status| status.allocation).expect("allocated");
    let config = &allocation.devices.expect("devices").config.expect("that of the class")[0];
    assert_eq!(
        (config.source.as_str(), config.requests.as_deref()),
        ("FromClass", Some(&["gpu".to_owned()][..]))
    );
    let left = all_pods(&client).await.into_iter().find(|pod| node_of(pod).is_none()).expect("one waits");
    let text = "0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: ";
    await_message(&client, "default", name_of(&left), |message| message.starts_with(text)).await;

    // The claim of a pod that is gone is deleted by its controller. A new berth knows what the others have.
    assert!(berth.terminate().await.success());
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let gone = all_pods(&client).await.into_iter().find(|pod| node_of(pod).is_some()).expect("one is bound");
    delete_pods(&client, [name_of(&gone).to_owned()]).await;
    await_bound(&client, SOON, 6, |_| true).await;
    assert_eq!(assert_devices(&client).await, 6);
    berth.await_settled(SOON, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_preempt_less_important_ones_for_their_devices_and_get_them_from_the_claim_controller() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let _controllers =
        cluster.start_controller_manager(&["resourceclaim-controller"]).await.expect("it starts");
    create_nodes(&client, &Nodes { count: 3, ..Nodes::default() }).await;
    create_class(&client, "gpu", &format!("device.driver == '{DRIVER}'")).await;
    for node in 0..2 {
        let gpus = (0..2).map(|at| gpu(format!("gpu-{at}"), "large", "80Gi")).collect();
        create_slice(&client, &format!("node-{node}"), gpus).await;
    }
    let template = |name: &str, count: u32| {
        let spec = exactly("gpu", json!({"count": count}));
        json!({"metadata": {"name": name}, "spec": {"spec": spec}})
    };
    create::<ResourceClaimTemplate>(namespaced(&client), template("one", 1)).await;
    create::<ResourceClaimTemplate>(namespaced(&client), template("two", 2)).await;
    for (name, value) in [("low", 10), ("middle", 20), ("high", 1000)] {
        create_priority(&client, name, value).await;
    }
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let of = |priority: &str, template: &str| {
        with(uses("resourceClaimTemplateName", template), json!({"priorityClassName": priority}))
    };
    // Two agents at once may choose different nodes for two pods.
    let there = |node: &str, pod: Value| with(pod, json!({"nodeSelector": {"kubernetes.io/hostname": node}}));
    create_users(&client, "low", 2, there("node-0", of("low", "one"))).await;
    await_bound(&client, SOON, 2, |_| true).await;
    create_users(&client, "middle", 2, there("node-1", of("middle", "one"))).await;
    await_bound(&client, SOON, 4, |_| true).await;
    // Less important, and without devices: nobody gains by its eviction.
    create_pods(&client, &Pods { prefix: "plain", count: 1, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 5, |_| true).await;

    create_users(&client, "high", 1, of("high", "two")).await;
    let leaving = || async {
        let pods = all_pods(&client).await;
        let leaving = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        leaving.map(|pod| name_of(pod).to_owned()).collect::<BTreeSet<_>>()
    };
    let low = BTreeSet::from(["low-0".to_owned(), "low-1".to_owned()]);
    await_until(SOON, "the two least important pods, of one node, are being deleted", async || {
        leaving().await == low
    })
    .await;
    // One that fits where the others were must not take what they leave.
    create_users(&client, "late", 2, of("low", "one")).await;
    delete_pods(&client, low.clone()).await;
    await_bound(&client, SOON, 4, |pod| !name_of(pod).starts_with("low")).await;
    assert_eq!(assert_devices(&client).await, 4);
    let bound: BTreeSet<_> = all_pods(&client)
        .await
        .iter()
        .filter(|pod| node_of(pod).is_some())
        .map(|pod| name_of(pod).to_owned())
        .collect();
    assert_eq!(bound, ["high-0", "middle-0", "middle-1", "plain-0"].map(str::to_owned).into());
    berth.await_counted(SOON, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_pods_share_keeps_them_on_one_node_and_a_broken_one_says_what_is_wrong() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    create_class(&client, "gpu", "true").await;
    for node in ["node-0", "node-1"] {
        create_slice(&client, node, vec![gpu("gpu-0".to_owned(), "large", "80Gi")]).await;
    }
    create_claim(&client, "shared", exactly("gpu", json!({}))).await;
    let missing = format!("device.attributes['{DRIVER}'].missing == 1");
    create_claim(&client, "broken", exactly("gpu", json!({"selectors": [{"cel": {"expression": missing}}]})))
        .await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    create_users(&client, "user", 3, uses("resourceClaimName", "shared")).await;
    await_bound(&client, SOON, 3, |_| true).await;
    let nodes: BTreeSet<_> =
        all_pods(&client).await.iter().filter_map(|pod| node_of(pod).map(str::to_owned)).collect();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    let shared = allocated(&client).await.remove(0);
    assert_eq!(shared.status.and_then(|status| status.reserved_for).map(|users| users.len()), Some(3));
    create_users(&client, "broken", 1, uses("resourceClaimName", "broken")).await;
    await_message(&client, "default", "broken-0", |message| message.contains("2 cannot allocate all claims"))
        .await;
    // A driver that takes the device of the other node away, and gives it back.
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let other = if nodes.contains("node-0") { "node-1-gpus" } else { "node-0-gpus" };
    slices.delete(other, &DeleteParams::default()).await.expect("deleted");
    create_claim(&client, "late", exactly("gpu", json!({}))).await;
    create_users(&client, "late", 1, uses("resourceClaimName", "late")).await;
    await_message(&client, "default", "late-0", |message| message.contains("2 cannot allocate all claims"))
        .await;
    create_slice(&client, other.trim_end_matches("-gpus"), vec![gpu("gpu-0".to_owned(), "large", "80Gi")])
        .await;
    await_bound(&client, SOON, 4, |_| true).await;
    delete_pods(&client, ["broken-0".to_owned()]).await;
    berth.await_settled(SOON, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_get_no_devices_are_told_so_in_kube_schedulers_words() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 3, ..Nodes::default() }).await;
    create_class(&client, "gpu", "true").await;
    create_slice(&client, "node-0", vec![gpu("gpu-0".to_owned(), "large", "80Gi")]).await;
    create_claim(&client, "two", exactly("gpu", json!({"count": 2}))).await;
    create_claim(&client, "no-class", exactly("none", json!({}))).await;
    let small = format!("device.attributes['{DRIVER}'].model == 'small'");
    create_claim(&client, "small", exactly("gpu", json!({"selectors": [{"cel": {"expression": small}}]})))
        .await;
    create_claim(&client, "all", exactly("gpu", json!({"allocationMode": "All"}))).await;
    let of = |claim: &str| uses("resourceClaimName", claim);
    let too_large = asks(json!({"cpu": "100"}), "")["containers"].clone();
    let zoo = [
        ("two", of("two")),
        ("no-class", of("no-class")),
        ("small", of("small")),
        ("too-large", with(of("all"), json!({"containers": too_large}))),
    ];
    assert_same_texts(&cluster, &zoo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_are_provided_by_devices_where_the_node_has_no_plugin() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let _controllers =
        cluster.start_controller_manager(&["resourceclaim-controller"]).await.expect("it starts");
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let plugin = json!({"status": {"allocatable": {GPU: "1"}, "capacity": {GPU: "1"}}});
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    nodes.patch_status("node-1", &PatchParams::default(), &Patch::Merge(&plugin)).await.expect("patched");
    create_providing_class(&client).await;
    let devices = (0..3).map(|at| gpu(format!("gpu-{at}"), "large", "80Gi")).collect();
    create_slice(&client, "node-0", devices).await;

    // A claim that a stopped scheduler has left behind keeps a device that another pod needs, until berth deletes it.
    let gated = with(requests(GPU, 1), json!({"schedulingGates": [{"name": "wait"}]}));
    create_users(&client, "gated", 1, gated).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let uid = pods.get("gated-0").await.expect("it is there").metadata.uid.expect("a uid");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "gated-0", "uid": uid, "controller": true});
    let left = format!("gated-0-extended-resources-{uid}");
    let claim = json!({
        "metadata": {
            "name": left, "ownerReferences": [owner], "finalizers": ["resource.kubernetes.io/delete-protection"],
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        },
        "spec": exactly("gpu", json!({})),
    });
    create::<ResourceClaim>(namespaced(&client), claim).await;
    let user = json!({"resource": "pods", "name": "gated-0", "uid": uid});
    allocate_on_node_0(&client, &left, json!({"reservedFor": [user]})).await;
    let claims = namespaced::<ResourceClaim>(&client);
    let before = claims.get(&left).await.expect("it is there").metadata.uid;

    let berth = Berth::start(&cluster.kubeconfig(), "");
    create_users(&client, "two", 1, requests(GPU, 2)).await;
    create_users(&client, "one", 1, requests("deviceclass.resource.kubernetes.io/gpu", 1)).await;
    await_bound(&client, SOON, 2, |_| true).await;
    let free = json!({"spec": {"schedulingGates": null}});
    pods.patch("gated-0", &PatchParams::default(), &Patch::Merge(&free)).await.expect("its gate is gone");
    // Two devices of node-0 for "two", one for "one", and that of the plugin for "gated".
    await_bound(&client, SOON, 3, |_| true).await;
    assert_eq!(assert_devices(&client).await, 3);
    let found = claims.list(&ListParams::default()).await.expect("claims");
    assert!(found.items.iter().all(|claim| claim.metadata.uid != before), "it was deleted");
    for pod in all_pods(&client).await {
        let name = name_of(&pod).to_owned();
        let told = pod.status.and_then(|status| status.extended_resource_claim_status);
        match name.as_str() {
            "gated-0" => assert!(told.is_none(), "the plugin serves it: {told:?}"),
            _ => {
                let told = told.expect("its claim");
                assert!(told.resource_claim_name.starts_with(&format!("{name}-extended-resources-")));
                assert_eq!(told.request_mappings[0].container_name, "main");
                assert_eq!(told.request_mappings[0].request_name, "container-0-request-1");
            }
        }
    }
    berth.await_settled(SOON, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_whose_extended_resources_nothing_provides_are_told_so_in_kube_schedulers_words() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 3, ..Nodes::default() }).await;
    create_providing_class(&client).await;
    create_slice(&client, "node-0", vec![gpu("gpu-0".to_owned(), "large", "80Gi")]).await;
    let zoo = [
        ("two", requests(GPU, 2)),
        ("unknown", requests("example.com/other", 1)),
        ("no-class", requests("deviceclass.resource.kubernetes.io/other", 1)),
    ];
    assert_same_texts(&cluster, &zoo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_other_devices_where_those_of_its_claim_are_out_of_reach_for_good() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    create_class(&client, "gpu", "true").await;
    for node in ["node-0", "node-1"] {
        create_slice(&client, node, vec![gpu("gpu-0".to_owned(), "large", "80Gi")]).await;
    }
    create_claim(&client, "mine", exactly("gpu", json!({}))).await;
    allocate_on_node_0(&client, "mine", json!({})).await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    nodes.cordon("node-0").await.expect("cordoned");

    let berth = Berth::start(&cluster.kubeconfig(), "");
    create_users(&client, "user", 1, uses("resourceClaimName", "mine")).await;
    await_bound(&client, SOON, 1, |pod| node_of(pod) == Some("node-1")).await;
    assert_eq!(assert_devices(&client).await, 1);
    berth.await_settled(SOON, 1).await;
}
