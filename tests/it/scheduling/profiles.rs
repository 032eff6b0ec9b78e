//! Profiles: `KubeSchedulerConfiguration` as kube-scheduler reads it, for the pods of each of its scheduler names.

use berth_testenv::Options;

use super::texts::{asks, compare};
use super::*;

/// Version and kind of kube-scheduler's file; no Lease.
const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
";

/// A profile whose pods may only run on nodes with label `pool: large`, and are packed there.
fn large(name: &str) -> String {
    format!(
        "- schedulerName: {name}
  pluginConfig:
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - {{key: pool, operator: In, values: [large]}}
  - name: NodeResourcesFit
    args: {{scoringStrategy: {{type: MostAllocated, resources: [{{name: cpu, weight: 1}}]}}}}
"
    )
}

async fn create_pool(client: &Client, names: &[&str], pool: &str) {
    for name in names {
        let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        create_node(client, name, allocatable, json!({})).await;
        patch_node(client, name, json!({"metadata": {"labels": {"pool": pool}}})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_profiles_in_kube_schedulers_file_are_placed_by_their_own() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_pool(&client, &["small-1", "small-2"], "small").await;
    create_pool(&client, &["large-1", "large-2", "large-3"], "large").await;
    let text = format!("{HEAD}profiles:\n- schedulerName: plain\n{}", large("packing"));
    // Two agents that choose at the same moment, each not seeing the other's pod, would begin a node each.
    let settings = "healthAddress: 127.0.0.1:0\nagents: 1\n";
    let berth = Berth::start_with_files(&cluster.kubeconfig(), &[settings, &text]);
    berth.await_ready().await;

    let pods = |prefix, scheduler, count| Pods {
        prefix,
        scheduler,
        count,
        requests: json!({"cpu": "1"}),
        ..Pods::default()
    };
    create_pods(&client, &pods("packed", "packing", 6), |_, _| {}).await;
    await_bound(&client, SOON, 6, |pod| name_of(pod).starts_with("packed-")).await;
    let nodes_of = async |prefix: &str| {
        let pods = all_pods(&client).await;
        let mut nodes: Vec<_> = pods
            .iter()
            .filter(|pod| name_of(pod).starts_with(prefix))
            .map(|pod| node_of(pod).expect("bound").to_owned())
            .collect();
        nodes.sort();
        nodes
    };
    let mut packed = nodes_of("packed-").await;
    packed.dedup();
    assert_eq!(packed.len(), 2, "six pods fill one node of four and half of another: {packed:?}");
    assert!(packed.iter().all(|node| node.starts_with("large-")), "{packed:?}");

    create_pods(&client, &pods("spread", "plain", 3), |_, _| {}).await;
    await_bound(&client, SOON, 3, |pod| name_of(pod).starts_with("spread-")).await;
    let spread = nodes_of("spread-").await;
    assert_eq!(
        spread.iter().collect::<std::collections::BTreeSet<_>>().len(),
        3,
        "each on an empty node: {spread:?}"
    );
    assert!(spread.iter().any(|node| node.starts_with("small-")), "{spread:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_profile_leaves_no_node_is_told_so_in_kube_schedulers_words() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_pool(&client, &["small-1", "small-2"], "small").await;
    create_pool(&client, &["large-1"], "large").await;
    let theirs = format!("profiles:\n{}", large("default-scheduler"));
    let _kube_scheduler = cluster.start_scheduler(&theirs, &[]).await.expect("kube-scheduler starts");
    let ours = format!("{HEAD}profiles:\n{}", large("berth"));
    let berth = Berth::start_with_files(&cluster.kubeconfig(), &["healthAddress: 127.0.0.1:0\n", &ours]);
    berth.await_ready().await;
    let differences = compare(
        &client,
        &[("large", asks(json!({"cpu": "5"}), "")), ("elsewhere", asks(json!({}), "small"))],
    )
    .await;
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// `resource.k8s.io/v1` can be turned off.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_scheduled_in_a_cluster_without_the_api_of_devices() {
    let cluster = start_control_plane_with(Options {
        api_server_args: vec!["--runtime-config=resource.k8s.io/v1=false".to_owned()],
        ..Options::default()
    })
    .await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    create_pods(&client, &Pods { count: 3, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 3, |_| true).await;
    berth.await_ready().await;
}
