//! Allocations in use: jobs, berth, and their progress in kubectl.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;

use super::*;

const CONTROLLERS: [&str; 2] = ["job-controller", "garbage-collector-controller"];

async fn create_zoned(client: &Client, name: &str, zone: &str, cpu: &str) {
    let resources = json!({"cpu": cpu, "memory": "64Gi", "pods": "110"});
    let node = json!({
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let node: Node = serde_json::from_value(node).expect("a node");
    Api::all(client.clone()).create(&PostParams::default(), &node).await.expect("the node is created");
}

fn job_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get("batch.kubernetes.io/job-name")).map_or("", String::as_str)
}

/// Returns the columns of an allocation except its age.
async fn columns(kubectl: &Kubectl, name: &str) -> Vec<String> {
    let table = kubectl.must(&["get", "allocation", name, "--no-headers"], "").await;
    let mut words: Vec<_> = table.split_whitespace().map(str::to_owned).collect();
    words.pop();
    words
}

async fn await_columns(kubectl: &Kubectl, name: &str, expected: &[&str]) {
    let mut seen = Vec::new();
    await_until(SOON, &format!("{name} shows {expected:?}"), async || {
        seen = columns(kubectl, name).await;
        seen == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_32_waits_for_a_zone_with_room_for_all_and_shares_it() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    let _controllers = control_plane.start_controller_manager(&CONTROLLERS).await.expect("it starts");
    // The job fits in all zones together, but in none alone.
    for (zone, nodes) in [("zone-a", 5), ("zone-b", 7), ("zone-c", 5)] {
        for at in 0..nodes {
            create_zoned(&client, &format!("{zone}-{at}"), zone, "8").await;
        }
    }
    let mut berth = Berth::start(&control_plane.kubeconfig(), "");
    kubectl.must(&["apply", "-f", "manifests/example-allocation.yaml"], "").await;
    let zone = "topology.kubernetes.io/zone";
    await_columns(&kubectl, "berth-training", &["berth-training", "Unschedulable", "32", "32", "0", zone])
        .await;
    let message =
        kubectl.must(&["get", "allocation", "berth-training", "-o", "jsonpath={.status.message}"], "").await;
    assert!(message.contains("zone-b") && message.contains("28 fit"), "{message}");
    assert!(all_pods(&client).await.iter().all(|pod| node_of(pod).is_none()), "nothing is half placed");
    // Conditions of pods and the status of the allocation are written independently.
    await_until(SOON, "members have the condition", async || {
        let pods = all_pods(&client).await;
        pods.first().is_some_and(|pod| {
            scheduled_condition(pod).is_some_and(|(status, reason, told)| {
                (&*status, &*reason) == ("False", "Unschedulable")
                    && told.starts_with("0/7 nodes are available: 7 Insufficient cpu.")
            })
        })
    })
    .await;

    // After a restart it has no state of this, and needs none.
    berth.kill();
    let berth = Berth::start(&control_plane.kubeconfig(), "");
    create_zoned(&client, "zone-b-7", "zone-b", "8").await;
    await_columns(&kubectl, "berth-training", &["berth-training", "Scheduled", "32", "32", "32", zone]).await;
    for pod in all_pods(&client).await {
        assert!(node_of(&pod).is_some_and(|node| node.starts_with("zone-b")), "{}", name_of(&pod));
    }
    assert_no_overcommit(&client).await;
    // A replaced member joins the remaining ones, individually.
    let lost = name_of(&all_pods(&client).await[0]).to_owned();
    delete_pods(&client, [lost.clone()]).await;
    await_until(SOON, "the pod is replaced", async || {
        let pods = all_pods(&client).await;
        pods.len() == 32 && pods.iter().all(|pod| node_of(pod).is_some() && name_of(pod) != lost)
    })
    .await;
    drop(berth);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_gangs_that_compete_one_runs_and_the_other_waits_whole_until_it_ends() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    let _controllers = control_plane.start_controller_manager(&CONTROLLERS).await.expect("it starts");
    for at in 0..5 {
        create_zoned(&client, &format!("node-{at}"), "zone-a", "2").await;
    }
    let _berth = Berth::start(&control_plane.kubeconfig(), "agents: 2");
    kubectl.must(&["apply", "-f", "manifests/example-gangs.yaml"], "").await;
    let bound = async |of: &str| {
        let pods = all_pods(&client).await;
        pods.iter().filter(|pod| job_of(pod).starts_with(of) && node_of(pod).is_some()).count()
    };
    await_until(SOON, "one gang is bound", async || bound("berth-").await == 8).await;
    let (winner, loser) = if bound("berth-red").await == 8 { ("red", "blue") } else { ("blue", "red") };
    assert_eq!(bound(&format!("berth-{loser}")).await, 0);
    let [winner, loser] = [winner, loser].map(|gang| format!("berth-{gang}"));
    await_columns(&kubectl, &winner, &[&winner, "Scheduled", "8", "8", "8"]).await;
    await_columns(&kubectl, &loser, &[&loser, "Unschedulable", "8", "8", "0"]).await;
    // The winner is done; its pods are deleted with its jobs.
    let jobs = kubectl.must(&["get", "jobs", "-o", "name"], "").await;
    let of_winner = jobs.lines().filter(|job| job.contains(&winner));
    let args: Vec<&str> = ["delete", "--grace-period=0", "--force"].into_iter().chain(of_winner).collect();
    kubectl.run(&args, "").await;
    let pods = all_pods(&client).await;
    let of_winner =
        pods.iter().filter(|pod| job_of(pod).starts_with(&winner)).map(|pod| name_of(pod).to_owned());
    force_delete(&client, of_winner).await;
    await_columns(&kubectl, &loser, &[&loser, "Scheduled", "8", "8", "8"]).await;
    assert_no_overcommit(&client).await;
}

/// The kind of the coscheduling plugin, as far as berth reads and writes it.
async fn install_coscheduling(kubectl: &Kubectl) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let kind = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "podgroups.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io", "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    });
    kubectl.must(&["apply", "-f", "-"], &kind.to_string()).await;
    let wait = ["wait", "--for=condition=Established", "crd/podgroups.scheduling.x-k8s.io"];
    kubectl.must(&wait, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_pod_group_of_either_kind_are_bound_together_or_not_at_all() {
    let Some(control_plane) = start_with_pod_groups("pods of PodGroups").await else { return };
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    install_coscheduling(&kubectl).await;
    create_zoned(&client, "node-0", "zone-a", "5500m").await;
    let _berth = Berth::start(&control_plane.kubeconfig(), "");
    let kinds = [
        (
            "kubernetes",
            "scheduling.k8s.io",
            "v1alpha2",
            json!({"schedulingPolicy": {"gang": {"minCount": 3}}}),
        ),
        ("coscheduling", "scheduling.x-k8s.io", "v1alpha1", json!({"minMember": 3})),
    ];
    for (name, group, version, spec) in &kinds {
        let api = objects(&client, group, version, "PodGroup");
        apply(&api, &format!("{group}/{version}"), "PodGroup", name, spec.clone()).await;
    }
    let create = async |gang: &'static str, member: &'static str, count: usize| {
        let pods = Pods { prefix: member, count, requests: json!({"cpu": "1"}), ..Pods::default() };
        create_pods(&client, &pods, |_, pod| match gang {
            "kubernetes" => pod["spec"]["schedulingGroup"] = json!({"podGroupName": gang}),
            _ => pod["metadata"]["labels"] = json!({"scheduling.x-k8s.io/pod-group": gang}),
        })
        .await;
    };
    let bound = async |prefix: &str| {
        let pods = all_pods(&client).await;
        pods.iter().filter(|pod| name_of(pod).starts_with(prefix) && node_of(pod).is_some()).count()
    };
    create("kubernetes", "k-first", 2).await;
    create("coscheduling", "c-first", 2).await;
    // A pod without a group, which comes last, is bound: the gangs were looked at.
    let alone = Pods { prefix: "alone", requests: json!({"cpu": "10m"}), ..Pods::default() };
    create_pods(&client, &alone, |_, _| {}).await;
    await_until(SOON, "the pod without a group is bound", async || bound("alone").await == 1).await;
    assert_eq!((bound("k-").await, bound("c-").await), (0, 0), "two of three");
    create("kubernetes", "k-last", 1).await;
    await_until(SOON, "the gang of Kubernetes is bound", async || bound("k-").await == 3).await;
    assert_eq!(bound("c-").await, 0);
    create("coscheduling", "c-last", 1).await;
    // Room is left for two of them.
    await_until(SOON, "the members wait with their reason", async || {
        let pods = all_pods(&client).await;
        let of = pods.iter().filter(|pod| name_of(pod).starts_with("c-"));
        let waits = |pod: &&Pod| {
            scheduled_condition(pod).is_some_and(|(_, reason, text)| {
                reason == "Unschedulable" && text.contains("Insufficient cpu")
            })
        };
        of.filter(waits).count() == 3
    })
    .await;
    assert_eq!(bound("c-").await, 0, "none of them alone");
    create_zoned(&client, "node-1", "zone-a", "1").await;
    await_until(SOON, "the gang of coscheduling is bound", async || bound("c-").await == 3).await;
    assert_no_overcommit(&client).await;
}

/// Deletes pods that may already be gone.
async fn force_delete(client: &Client, names: impl Iterator<Item = String>) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    for name in names {
        let _ = api.delete(&name, &kube::api::DeleteParams::default().grace_period(0)).await;
    }
}
