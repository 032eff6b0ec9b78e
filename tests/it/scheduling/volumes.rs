//! Pods with volumes, with the volume controller of kube-controller-manager: claims are bound with their pods, and
//! pods whose volumes are unavailable get kube-scheduler's texts.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::Resource;
use kube::api::{DeleteParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::texts::{asks, assert_same_texts, with};
use super::*;

const CONTROLLERS: [&str; 3] =
    ["persistentvolume-binder-controller", "statefulset-controller", "ephemeral-volume-controller"];

pub(super) async fn create<K>(api: Api<K>, object: Value) -> K
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("an object of its type");
    api.create(&PostParams::default(), &object).await.expect("created")
}

pub(super) fn namespaced<K>(client: &Client) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
{
    Api::default_namespaced(client.clone())
}

async fn create_class(client: &Client, name: &str, provisioner: &str, mode: &str) {
    let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    create::<StorageClass>(Api::all(client.clone()), class).await;
}

/// A volume of 1 GiB; `more` of its spec.
fn volume(name: &str, class: &str, more: Value) -> Value {
    let mut spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": class, "hostPath": {"path": "/nowhere"},
    });
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    if spec.get("csi").is_some() || spec.get("local").is_some() {
        spec.as_object_mut().expect("an object").remove("hostPath");
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Returns a volume's node affinity to this label.
fn reached_by(key: &str, value: &str) -> Value {
    let expression = json!({"key": key, "operator": "In", "values": [value]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
}

async fn create_local_volume(client: &Client, name: &str, node: &str) {
    let more = json!({"local": {"path": "/x"}, "nodeAffinity": reached_by("kubernetes.io/hostname", node)});
    create::<PersistentVolume>(Api::all(client.clone()), volume(name, "local", more)).await;
}

fn claim_spec(class: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

async fn create_claim(client: &Client, name: &str, spec: Value) {
    let claim = json!({"metadata": {"name": name}, "spec": spec});
    create::<PersistentVolumeClaim>(namespaced(client), claim).await;
}

/// Creates a claim and its volume, bound to each other as the volume controller leaves them.
async fn create_bound(client: &Client, name: &str, labels: Value, volume_more: Value, modes: &[&str]) {
    let volume_name = format!("pv-{name}");
    let mut spec = claim_spec("by-hand");
    (spec["volumeName"], spec["accessModes"]) = (json!(volume_name), json!(modes));
    let meta = json!({"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
    let claim: PersistentVolumeClaim =
        create(namespaced(client), json!({"metadata": meta, "spec": spec})).await;
    let mut volume = volume(&volume_name, "by-hand", volume_more);
    volume["metadata"]["labels"] = labels;
    volume["spec"]["accessModes"] = json!(modes);
    volume["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
        "uid": claim.metadata.uid,
    });
    create::<PersistentVolume>(Api::all(client.clone()), volume).await;
}

fn claims(names: &[&str]) -> Value {
    let volume = |(at, name): (usize, &&str)| json!({"name": format!("v{at}"), "persistentVolumeClaim": {"claimName": name}});
    json!({"volumes": names.iter().enumerate().map(volume).collect::<Vec<_>>()})
}

async fn create_pod(client: &Client, name: &'static str, spec: Value) -> Pod {
    let pods = Pods { prefix: name, ..Pods::default() };
    let created = create_pods(client, &pods, |_, pod| {
        pod["metadata"]["name"] = json!(name);
        for (key, value) in spec.as_object().expect("an object") {
            pod["spec"][key] = value.clone();
        }
    });
    created.await.remove(0)
}

async fn get_claim(client: &Client, name: &str) -> PersistentVolumeClaim {
    namespaced::<PersistentVolumeClaim>(client).get(name).await.expect("the claim is there")
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<String> {
    claim.metadata.annotations.as_ref()?.get("volume.kubernetes.io/selected-node").cloned()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// Asserts that the node of each pod is that of the volume of its claim `{prefix}{pod}`; volumes are named after
/// nodes.
async fn assert_with_their_volumes(client: &Client, prefix: &str, pods: &[Pod]) {
    for pod in pods {
        let claim = get_claim(client, &format!("{prefix}{}", name_of(pod))).await;
        assert!(is_bound(&claim));
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        assert_eq!(volume, node_of(pod).map(|node| format!("on-{node}")), "pod {}", name_of(pod));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_gets_one_local_volume_a_pod_each_on_the_node_that_has_it() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let _controllers = cluster.start_controller_manager(&CONTROLLERS).await.expect("it starts");
    create_class(&client, "local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer").await;
    create_nodes(&client, &Nodes { count: 8, ..Nodes::default() }).await;
    for at in [1, 3, 4, 6, 7] {
        create_local_volume(&client, &format!("on-node-{at}"), &format!("node-{at}")).await;
    }
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let template = json!({
        "metadata": {"labels": {"app": "db"}},
        "spec": {
            "schedulerName": "berth",
            "containers": [{"name": "main", "image": "pause", "volumeMounts": [{"name": "data", "mountPath": "/x"}]}],
        },
    });
    let stateful_set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 4, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}}, "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim_spec("local")}],
        },
    });
    create::<StatefulSet>(namespaced(&client), stateful_set).await;
    await_bound(&client, SOON, 4, |_| true).await;
    assert_with_their_volumes(&client, "data-", &all_pods(&client).await).await;

    // The last volume goes to a pod with an ephemeral claim; the next pod has to wait.
    let ephemeral = json!({"volumes": [{"name": "v", "ephemeral": {
        "volumeClaimTemplate": {"spec": claim_spec("local")},
    }}]});
    create_pod(&client, "own", ephemeral.clone()).await;
    await_bound(&client, SOON, 1, |pod| name_of(pod) == "own").await;
    let own = namespaced::<Pod>(&client).get("own").await.expect("the pod");
    let claim = get_claim(&client, "own-v").await;
    let volume = claim.spec.and_then(|spec| spec.volume_name);
    assert_eq!(volume, node_of(&own).map(|node| format!("on-{node}")));
    create_pod(&client, "late", ephemeral).await;
    let text = "8 node(s) didn't find available persistent volumes to bind";
    await_message(&client, "default", "late", |message| message.contains(text)).await;
    create_local_volume(&client, "on-node-0", "node-0").await;
    await_bound(&client, SOON, 6, |_| true).await;
    berth.await_settled(SOON, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_for_the_chosen_node_and_a_provisioner_that_cannot_makes_the_pod_choose_again() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let _controllers = cluster.start_controller_manager(&CONTROLLERS).await.expect("it starts");
    create_class(&client, "made", "maker.example.com", "WaitForFirstConsumer").await;
    create_nodes(&client, &Nodes { count: 3, ..Nodes::default() }).await;
    create_claim(&client, "data", claim_spec("made")).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    create_pod(&client, "user", claims(&["data"])).await;
    let api: Api<PersistentVolumeClaim> = namespaced(&client);

    // The test is the provisioner: first it fails, which a provisioner reports by removing the node annotation.
    let asked = async || {
        let mut node = None;
        await_until(SOON, "a node is selected for the claim", async || {
            node = selected_node(&get_claim(&client, "data").await);
            node.is_some()
        })
        .await;
        node.expect("just seen")
    };
    asked().await;
    let cannot = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    api.patch("data", &PatchParams::default(), &Patch::Merge(&cannot)).await.expect("patched");
    let failed =
        "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"data\"";
    await_message(&client, "default", "user", |message| message == failed).await;

    let node = asked().await;
    assert_eq!(all_pods(&client).await.iter().filter_map(node_of).count(), 0, "not before it has its volume");
    let more = json!({
        "csi": {"driver": "maker.example.com", "volumeHandle": "h"},
        "nodeAffinity": reached_by("kubernetes.io/hostname", &node),
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
            "uid": get_claim(&client, "data").await.metadata.uid,
        },
    });
    create::<PersistentVolume>(Api::all(client.clone()), volume("made-1", "made", more)).await;
    await_bound(&client, SOON, 1, |pod| node_of(pod) == Some(&node)).await;
    assert!(is_bound(&get_claim(&client, "data").await));
    berth.await_settled(SOON, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unprovisioned_or_deleted_claim_releases_the_node_of_its_pod() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_class(&client, "made", "maker.example.com", "WaitForFirstConsumer").await;
    create_nodes(&client, &Nodes { cpu: "1", ..Nodes::default() }).await;
    for name in ["slow", "gone"] {
        create_claim(&client, name, claim_spec("made")).await;
    }
    let _berth = Berth::start(&cluster.kubeconfig(), "volumeBindTimeout: 3s");
    let half = |name| with(asks(json!({"cpu": "500m"}), ""), claims(&[name]));
    for name in ["slow", "gone"] {
        create_pod(&client, name, half(name)).await;
    }
    await_until(SOON, "nodes are selected", async || {
        selected_node(&get_claim(&client, "slow").await).is_some()
            && selected_node(&get_claim(&client, "gone").await).is_some()
    })
    .await;
    let api: Api<PersistentVolumeClaim> = namespaced(&client);
    let unprotected = json!({"metadata": {"finalizers": null}});
    api.patch("gone", &PatchParams::default(), &Patch::Merge(&unprotected)).await.expect("patched");
    api.delete("gone", &DeleteParams::default()).await.expect("deleted");
    let missing = "persistentvolumeclaim \"gone\" not found";
    await_message(&client, "default", "gone", |message| message.contains(missing)).await;
    let late = "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
    await_message(&client, "default", "slow", |message| message == late).await;
    // Their volumes are free again, and still exist.
    delete_pods(&client, ["slow".to_owned()]).await;
    let whole = asks(json!({"cpu": "1"}), "");
    create_pod(&client, "other", whole).await;
    await_bound(&client, SOON, 1, |pod| name_of(pod) == "other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_volumes_are_reported_in_kube_schedulers_words() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    for (zone, name) in [("a", "zone-a"), ("b", "zone-b")] {
        let labels = [("topology.kubernetes.io/zone".to_owned(), zone.to_owned())].into();
        create_nodes(&client, &Nodes { prefix: name, count: 2, labels, ..Nodes::default() }).await;
    }
    create_class(&client, "local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer").await;
    create_class(&client, "now", "maker.example.com", "Immediate").await;
    create_class(&client, "by-hand", "maker.example.com", "WaitForFirstConsumer").await;
    let mut zonal = json!({"metadata": {"name": "zonal"}, "provisioner": "maker.example.com"});
    zonal["volumeBindingMode"] = json!("WaitForFirstConsumer");
    let expression = json!({"key": "topology.kubernetes.io/zone", "values": ["c"]});
    zonal["allowedTopologies"] = json!([{"matchLabelExpressions": [expression]}]);
    create::<StorageClass>(Api::all(client.clone()), zonal).await;

    create_claim(&client, "immediate", claim_spec("now")).await;
    create_claim(&client, "no-class", claim_spec("")).await;
    create_claim(&client, "unknown-class", claim_spec("unknown")).await;
    create_claim(&client, "no-volume", claim_spec("local")).await;
    create_claim(&client, "zonal", claim_spec("zonal")).await;
    create_claim(&client, "deleting", claim_spec("local")).await;
    namespaced::<PersistentVolumeClaim>(&client)
        .delete("deleting", &DeleteParams::default())
        .await
        .expect("its finalizer keeps it");
    let once = ["ReadWriteOnce"];
    let nowhere = json!({"nodeAffinity": reached_by("kubernetes.io/hostname", "elsewhere")});
    create_bound(&client, "far", json!({}), nowhere, &once).await;
    create_bound(&client, "zone-c", json!({"topology.kubernetes.io/zone": "c"}), json!({}), &once).await;
    create_bound(&client, "lost-volume", json!({}), json!({}), &once).await;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let unprotected = json!({"metadata": {"finalizers": null}});
    volumes
        .patch("pv-lost-volume", &PatchParams::default(), &Patch::Merge(&unprotected))
        .await
        .expect("patched");
    volumes.delete("pv-lost-volume", &DeleteParams::default()).await.expect("deleted");
    create_bound(&client, "single", json!({}), json!({}), &["ReadWriteOncePod"]).await;
    for name in ["csi-1", "csi-2"] {
        let csi = json!({"csi": {"driver": "csi.example.com", "volumeHandle": name}});
        create_bound(&client, name, json!({}), csi, &once).await;
    }
    for node in ["zone-a-0", "zone-a-1", "zone-b-0", "zone-b-1"] {
        let driver = json!({"name": "csi.example.com", "nodeID": node, "allocatable": {"count": 1}});
        let csi_node = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
        create::<CSINode>(Api::all(client.clone()), csi_node).await;
    }
    let disk = |read_only: bool| {
        let disk = json!({"pdName": "disk", "readOnly": read_only});
        json!({"volumes": [{"name": "v", "gcePersistentDisk": disk}]})
    };
    // Pods bound at creation use the single-pod claim, a CSI volume, and a disk of every node.
    for node in ["zone-a-0", "zone-a-1", "zone-b-0", "zone-b-1"] {
        let filler = Pods { prefix: node, scheduler: "nobody", ..Pods::default() };
        create_pods(&client, &filler, |_, pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["spec"]["volumes"] = disk(true)["volumes"].clone();
            if node == "zone-a-0" {
                let volumes = pod["spec"]["volumes"].as_array_mut().expect("just set");
                volumes.push(claims(&["single"])["volumes"][0].clone());
            }
        })
        .await;
    }

    let small = || asks(json!({"cpu": "10m"}), "");
    let of = |names: &[&str]| with(small(), claims(names));
    let zoo = [
        ("missing", of(&["missing"])),
        ("missing-too", of(&["no-volume", "missing"])),
        ("immediate", of(&["immediate"])),
        ("no-class", of(&["no-class"])),
        ("unknown-class", of(&["unknown-class"])),
        ("no-volume", of(&["no-volume"])),
        ("zonal", of(&["zonal"])),
        ("deleting", of(&["deleting"])),
        ("far", of(&["far"])),
        ("far-and-no-volume", of(&["far", "no-volume"])),
        ("zone-c", of(&["zone-c"])),
        ("lost-volume", of(&["lost-volume"])),
        ("single", of(&["single"])),
        ("too-many", of(&["csi-1", "csi-2"])),
        ("disk", with(small(), disk(false))),
        ("too-large-and-far", with(asks(json!({"cpu": "100"}), ""), claims(&["far"]))),
    ];
    assert_same_texts(&cluster, &zoo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bound_volumes_zones_and_limits_decide_where_pods_go() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    for (zone, name) in [("a", "zone-a"), ("b", "zone-b")] {
        let labels = [("topology.kubernetes.io/zone".to_owned(), zone.to_owned())].into();
        create_nodes(&client, &Nodes { prefix: name, count: 2, labels, ..Nodes::default() }).await;
    }
    for node in ["zone-b-0", "zone-b-1"] {
        let driver = json!({"name": "csi.example.com", "nodeID": node, "allocatable": {"count": 2}});
        let csi_node = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
        create::<CSINode>(Api::all(client.clone()), csi_node).await;
    }
    let (mut names, zone) = (Vec::new(), json!({"topology.kubernetes.io/zone": "b"}));
    for at in 0..5 {
        let name = format!("data-{at}");
        let csi = json!({"csi": {"driver": "csi.example.com", "volumeHandle": name}});
        create_bound(&client, &name, zone.clone(), csi, &["ReadWriteOnce"]).await;
        names.push(name);
    }
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let pods = Pods { prefix: "user", count: 5, ..Pods::default() };
    create_pods(&client, &pods, |at, pod| {
        pod["spec"]["volumes"] = claims(&[&names[at]])["volumes"].clone();
    })
    .await;
    await_bound(&client, SOON, 4, |pod| node_of(pod).is_some_and(|node| node.starts_with("zone-b"))).await;
    let left = all_pods(&client).await.into_iter().find(|pod| node_of(pod).is_none()).expect("one waits");
    let told = await_message(&client, "default", name_of(&left), |message| !message.is_empty()).await;
    let expected =
        "0/4 nodes are available: 2 node(s) exceed max volume count, 2 node(s) had no available volume zone.";
    assert!(told.starts_with(expected), "{told}");
    // A pod with a volume already attached to a node uses no further attachment there.
    let taken = all_pods(&client).await.into_iter().find(|pod| node_of(pod).is_some()).expect("bound");
    let claim = taken.spec.and_then(|spec| spec.volumes).expect("it has one")[0].clone();
    let claim = claim.persistent_volume_claim.expect("it is one").claim_name;
    create_pod(&client, "sharer", claims(&[&claim])).await;
    await_bound(&client, SOON, 5, |_| true).await;
    let raised = json!({"spec": {"drivers": [
        {"name": "csi.example.com", "nodeID": "zone-b-0", "allocatable": {"count": 9}},
    ]}});
    let csi_nodes: Api<CSINode> = Api::all(client.clone());
    csi_nodes.delete("zone-b-0", &DeleteParams::default()).await.expect("deleted");
    let mut csi_node = raised;
    csi_node["metadata"] = json!({"name": "zone-b-0"});
    create::<CSINode>(csi_nodes, csi_node).await;
    await_bound(&client, SOON, 6, |_| true).await;
    berth.await_settled(SOON, 6).await;
}
