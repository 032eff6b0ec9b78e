//! The test control plane itself.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_testenv::{Options, User};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::json;

use crate::support::{
    Nodes, Pods, await_until, create_nodes, create_pods, start_control_plane, start_control_plane_with,
    start_kubelets,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Set for the process that is started to be killed.
const OWNER: &str = "BERTH_TEST_CONTROL_PLANE_OWNER";

fn is_alive(pid: u32) -> bool {
    let kill = format!("kill -0 {pid} 2>/dev/null");
    Command::new("/bin/sh").args(["-c", &kill]).status().expect("/bin/sh runs").success()
}

#[tokio::test]
async fn nodes_and_pods_have_what_the_test_gave_them() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let nodes = create_nodes(
        &client,
        &Nodes {
            count: 3,
            cpu: "2",
            labels: [("topology.kubernetes.io/zone".to_owned(), "a".to_owned())].into(),
            taints: vec![json!({"key": "gpu", "effect": "NoSchedule"})],
            ..Nodes::default()
        },
    )
    .await;
    assert_eq!(nodes.len(), 3);
    let node = Api::<Node>::all(client.clone()).get("node-2").await.unwrap();
    let allocatable = node.status.unwrap().allocatable.unwrap();
    assert_eq!(
        (&*allocatable["cpu"].0, &*allocatable["memory"].0, &*allocatable["pods"].0),
        ("2", "32Gi", "110")
    );
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["topology.kubernetes.io/zone"], "a");
    assert_eq!(labels["kubernetes.io/hostname"], "node-2");
    let taints = node.spec.unwrap().taints.unwrap();
    assert_eq!(taints.len(), 1, "not tainted as not ready: {taints:?}");

    let pods = Pods { count: 2, prefix: "web", ..Pods::default() };
    create_pods(&client, &pods, |index, pod| pod["metadata"]["labels"] = json!({"i": index.to_string()}))
        .await;
    let pod = Api::<Pod>::default_namespaced(client).get("web-1").await.unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["i"], "1");
    let spec = pod.spec.unwrap();
    assert_eq!((spec.scheduler_name.as_deref(), spec.node_name), (Some("berth"), None));
    let requests = spec.containers[0].resources.clone().unwrap().requests.unwrap();
    assert_eq!((&*requests["cpu"].0, &*requests["memory"].0), ("100m", "500Mi"));
}

#[tokio::test]
async fn a_killed_api_server_comes_back_with_its_data_on_the_same_address() {
    let mut control_plane = start_control_plane().await;
    let client = control_plane.client();
    let namespaces = Api::<Namespace>::all(client);
    let namespace = serde_json::from_value(json!({"metadata": {"name": "kept"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();

    let pid = control_plane.api_server_pid();
    control_plane.kill_api_server();
    assert!(!is_alive(pid));
    assert!(is_alive(control_plane.etcd_pid()));
    assert!(namespaces.get("kept").await.is_err());

    control_plane.restart_api_server().await.unwrap();
    assert_ne!(control_plane.api_server_pid(), pid);
    // The same client: same address, token and certificate.
    namespaces.get("kept").await.unwrap();
}

#[tokio::test]
async fn another_user_may_do_nothing_until_rbac_lets_it() {
    let user = User { name: "eve".to_owned(), groups: vec!["guests".to_owned()] };
    let control_plane = start_control_plane_with(Options { users: vec![user], ..Options::default() }).await;
    let kubeconfig =
        kube::config::Kubeconfig::read_from(control_plane.kubeconfig_for("eve").unwrap()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    config.proxy_url = None;
    let pods = Api::<Pod>::default_namespaced(Client::try_from(config).unwrap());
    let error = pods.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error:?}");
    assert!(error.to_string().contains("eve"), "{error}");
}

#[tokio::test]
async fn a_flag_that_the_api_server_does_not_know_is_an_error_with_its_own_words() {
    let options = Options { api_server_args: vec!["--no-such-flag".to_owned()], ..Options::default() };
    let error = berth_testenv::ControlPlane::start(options).await.err().expect("it cannot start");
    assert!(format!("{error:#}").contains("unknown flag: --no-such-flag"), "{error:#}");
}

#[tokio::test]
async fn a_real_scheduler_binds_pods_until_it_is_dropped() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes { count: 2, ..Nodes::default() }).await;
    let scheduler =
        control_plane.start_scheduler("profiles: [{schedulerName: upstream}]", &[]).await.unwrap();
    let pods = Pods { count: 5, scheduler: "upstream", ..Pods::default() };
    create_pods(&client, &pods, |_, _| {}).await;
    let api = Api::<Pod>::default_namespaced(client.clone());
    await_until(LIMIT, "all pods are bound", async || {
        let pods = api.list(&ListParams::default()).await.unwrap().items;
        pods.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_some())
    })
    .await;
    let pid = scheduler.pid();
    assert!(is_alive(pid));
    drop(scheduler);
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn kwok_keeps_nodes_alive_runs_their_pods_and_resizes_them_until_it_is_dropped() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubelets = start_kubelets(&control_plane).await;
    create_nodes(&client, &Nodes::default()).await;
    create_pods(&client, &Pods::default(), |_, pod| pod["spec"]["nodeName"] = "node-0".into()).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    await_until(LIMIT, "the node has a heartbeat", async || leases.get("node-0").await.is_ok()).await;
    let api = Api::<Pod>::default_namespaced(client.clone());
    let status = async || api.get("pod-0").await.unwrap().status.unwrap_or_default();
    await_until(LIMIT, "the pod runs", async || status().await.phase.as_deref() == Some("Running")).await;

    let container = json!({"name": "main", "resources": {"requests": {"cpu": "250m"}}});
    let resize = Patch::Strategic(json!({"spec": {"containers": [container]}}));
    let resized = api.patch_subresource("resize", "pod-0", &PatchParams::default(), &resize).await.unwrap();
    await_until(LIMIT, "the kubelet has done the resize", async || {
        let status = status().await;
        let container = status.container_statuses.unwrap_or_default().swap_remove(0);
        let has = container.resources.and_then(|it| it.requests).unwrap_or_default();
        status.observed_generation == resized.metadata.generation
            && has["cpu"].0 == "250m"
            && container.allocated_resources == Some(has)
            && status.conditions.unwrap_or_default().iter().all(|it| it.type_ != "PodResizeInProgress")
    })
    .await;
    api.delete("pod-0", &Default::default()).await.unwrap();
    await_until(LIMIT, "the pod is gone", async || api.get_opt("pod-0").await.unwrap().is_none()).await;
    let pid = kubelets.pid();
    drop(kubelets);
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn the_programs_end_and_the_data_is_gone_when_the_value_is_dropped() {
    let control_plane = start_control_plane().await;
    let pids = [control_plane.etcd_pid(), control_plane.api_server_pid()];
    let kubeconfig = control_plane.kubeconfig();
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    assert!(kubeconfig.exists());
    drop(control_plane);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    assert!(!kubeconfig.parent().unwrap().exists());
}

#[tokio::test]
async fn the_programs_end_when_their_owner_is_killed() {
    // The test removes what a killed owner cannot.
    let folder = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "control_plane::an_owner_to_be_killed", "--ignored", "--nocapture"])
        .env(OWNER, "1")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pids = lines.filter_map(|line| Some(line.split_once("pids ")?.1.to_owned())).next();
    let pids: Vec<u32> = pids.expect("the owner starts").split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|&pid| is_alive(pid)));
    owner.kill().unwrap();
    owner.wait().unwrap();
    await_until(LIMIT, "both programs have ended", async || !pids.iter().any(|&pid| is_alive(pid))).await;
}

#[tokio::test]
#[ignore = "a process for the test above to kill"]
async fn an_owner_to_be_killed() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let control_plane = start_control_plane().await;
    println!("pids {} {}", control_plane.etcd_pid(), control_plane.api_server_pid());
    std::future::pending::<()>().await;
}
