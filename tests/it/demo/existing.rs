//! `berth demo --kubeconfig` on a cluster with other users: a real API server with its admission plugins, and the controllers of a real
//! kube-controller-manager. After it everything is as before.

use std::collections::BTreeSet;
use std::process::Output;

use berth_testenv::{Options, Process, User};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Resource;
use kube::api::{ListParams, PostParams};
use serde::Serialize;
use serde_json::json;

use super::*;

const CONTROLLERS: [&str; 5] = [
    "namespace-controller",
    "serviceaccount-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
];
const SMALL: [&str; 4] = ["--nodes", "20", "--pods", "100"];

/// A cluster that is in use.
struct UsedCluster {
    control_plane: TestControlPlane,
    _controllers: Process,
    folder: tempfile::TempDir,
}

impl UsedCluster {
    async fn start() -> Self {
        let user = User { name: "developer".to_owned(), groups: Vec::new() };
        let options = Options {
            taint_new_nodes: true,
            require_service_accounts: true,
            users: vec![user],
            ..Options::default()
        };
        let control_plane = start_control_plane_with(options).await;
        let controllers = control_plane.start_controller_manager(&CONTROLLERS).await.expect("it starts");
        let cluster = UsedCluster {
            control_plane,
            _controllers: controllers,
            folder: tempfile::tempdir().expect("a temporary folder"),
        };
        cluster.fill().await;
        cluster
    }

    /// Creates a node, a namespace with running and waiting pods named like the demo's, and a priority class.
    async fn fill(&self) {
        let client = self.control_plane.client();
        create_nodes(&client, &Nodes { prefix: "worker", ..Nodes::default() }).await;
        create::<Namespace>(Api::all(client.clone()), json!({"metadata": {"name": "shop"}})).await;
        let class = json!({"metadata": {"name": "urgent"}, "value": 1000});
        create::<PriorityClass>(Api::all(client.clone()), class).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "shop");
        await_until(LIMIT, "the namespace has its service account", async || {
            accounts.get_opt("default").await.expect("it is read").is_some()
        })
        .await;
        let container = json!({"name": "main", "image": "pause"});
        for (name, node) in [("web-0", Some("worker-0")), ("web-1", None)] {
            let spec = json!({"containers": [container], "nodeName": node});
            let pod = json!({"metadata": {"name": name, "labels": {"class": "web"}}, "spec": spec});
            create::<Pod>(Api::namespaced(client.clone(), "shop"), pod).await;
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let kubeconfig = self.control_plane.kubeconfig();
        let kubeconfig = kubeconfig.to_str().expect("UTF-8");
        demo(self.folder.path(), &[&["--kubeconfig", kubeconfig], args].concat())
    }

    async fn run(&self, args: &[&str]) -> (Output, String) {
        let mut command = self.command(args);
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, said)
    }

    /// Kind, namespace, name and uid of all objects that a demo may touch.
    async fn inventory(&self) -> BTreeSet<[String; 4]> {
        let client = self.control_plane.client();
        let mut all = BTreeSet::new();
        list::<Namespace>(&client, &mut all).await;
        list::<Node>(&client, &mut all).await;
        list::<Pod>(&client, &mut all).await;
        list::<Lease>(&client, &mut all).await;
        list::<PriorityClass>(&client, &mut all).await;
        list::<ServiceAccount>(&client, &mut all).await;
        list::<ClusterRole>(&client, &mut all).await;
        list::<ClusterRoleBinding>(&client, &mut all).await;
        list::<Role>(&client, &mut all).await;
        list::<RoleBinding>(&client, &mut all).await;
        all
    }

    /// Panics unless the demos have ended and left nothing, neither in the cluster nor on this machine.
    async fn assert_as_before(&self, before: &BTreeSet<[String; 4]>) {
        let after = self.inventory().await;
        let added: Vec<_> = after.difference(before).collect();
        let lost: Vec<_> = before.difference(&after).collect();
        assert!(added.is_empty() && lost.is_empty(), "added: {added:?}, lost: {lost:?}");
        assert_eq!(processes_of(self.folder.path()), [""; 0]);
    }

    async fn nodes_of(&self, demo: &str) -> Vec<Node> {
        let api: Api<Node> = Api::all(self.control_plane.client());
        let label = format!("berth.dev/demo={demo}");
        api.list(&ListParams::default().labels(&label)).await.expect("nodes are listed").items
    }
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + serde::de::DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("an object of its type");
    api.create(&PostParams::default(), &object).await.expect("created");
}

async fn list<K>(client: &Client, all: &mut BTreeSet<[String; 4]>)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let objects = Api::<K>::all(client.clone()).list_metadata(&ListParams::default()).await.expect("a list");
    for metadata in objects.items.into_iter().map(|object| object.metadata) {
        let [namespace, name, uid] =
            [metadata.namespace, metadata.name, metadata.uid].map(Option::unwrap_or_default);
        all.insert([K::kind(&()).into_owned(), namespace, name, uid]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_an_existing_cluster_it_announces_what_it_creates_and_leaves_everything_as_before() {
    let cluster = UsedCluster::start().await;
    let before = cluster.inventory().await;
    let (output, said) = cluster.run(&[&SMALL[..], &["-o", "json"]].concat()).await;
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(result["problems"], serde_json::json!([]));
    assert_eq!((&result["pods"], &result["bound"], &result["waiting"]), (&100.into(), &96.into(), &4.into()));

    let server = cluster.control_plane.config().cluster_url.to_string();
    let announced = said.find("creating the namespace berth-demo-").expect("an announcement");
    assert!(said[..announced].contains(&server), "{said}");
    assert!(announced < said.find("nodes created").expect("progress"), "{said}");
    assert!(said.contains("100 pods, 21 nodes"), "{said}");
    assert!(said.contains("all of them are deleted"), "{said}");
    cluster.assert_as_before(&before).await;
    assert!(is_empty(cluster.folder.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_in_the_middle_removes_everything_from_an_existing_cluster() {
    let cluster = UsedCluster::start().await;
    let before = cluster.inventory().await;
    for (signal, moment) in
        [("-TERM", "nodes created"), ("-INT", "creating the namespace"), ("-HUP", "pods bound")]
    {
        let mut running =
            Running(cluster.command(&["--nodes", "100", "--pods", "1000"]).spawn().expect("it starts"));
        running.await_line(moment).await.expect("it comes to this");
        assert!(!running.end_by(signal).await.success(), "{signal}");
        cluster.assert_as_before(&before).await;
    }
}

/// Also: the berth of a demo may not write outside of its namespace.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_running_demo_the_leftovers_of_a_killed_one_are_removed_and_nodes_stay_ready() {
    let cluster = UsedCluster::start().await;
    let before = cluster.inventory().await;
    let keep = [&SMALL[..], &["--keep"]].concat();
    let mut running = Running(cluster.command(&keep).spawn().expect("it starts"));
    let rest = running.await_line("The namespace ").await.expect("it is kept");
    let name = rest.split_once(',').expect("a name and the rest").0.to_owned();

    let mut as_berth = cluster.control_plane.config();
    as_berth.auth_info.impersonate = Some(name.clone());
    let as_berth = Client::try_from(as_berth).expect("a client");
    let others: Api<Pod> = Api::namespaced(as_berth, "shop");
    others.get("web-0").await.expect("it reads pods of others");
    let refused = others.delete("web-0", &Default::default()).await.expect_err("it may not delete them");
    assert!(refused.to_string().contains("forbidden"), "{refused}");

    // The second demo looks for twelve seconds whether the first one runs.
    let (output, said) = cluster.run(&SMALL).await;
    assert!(output.status.success() && !said.contains("left behind"), "{said}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let is_lost = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        taints.iter().any(|taint| taint.key.contains("not-ready") || taint.key.contains("unreachable"))
    };
    let worker = Api::<Node>::all(cluster.control_plane.client()).get("worker-0").await;
    assert!(is_lost(&worker.expect("it exists")), "a node without a kubelet is lost by now");
    let nodes = cluster.nodes_of(&name).await;
    assert_eq!(nodes.len(), 21);
    assert!(!nodes.iter().any(is_lost), "Leases of the demo's nodes are renewed");

    running.end_by("-KILL").await;
    let left = cluster.folder.path().read_dir().expect("a folder").flatten();
    assert!(!left.into_iter().any(|entry| entry.path().join("kubeconfig").exists()), "credentials");
    assert_eq!(cluster.nodes_of(&name).await.len(), 21);
    let (output, said) = cluster.run(&SMALL).await;
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("removing what {name} left behind")), "{said}");
    cluster.assert_as_before(&before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_create_nodes_is_refused_before_anything_is_created() {
    let cluster = UsedCluster::start().await;
    let before = cluster.inventory().await;
    let kubeconfig = cluster.control_plane.kubeconfig_for("developer").expect("a user");
    let mut command = demo(cluster.folder.path(), &["--kubeconfig", kubeconfig.to_str().expect("UTF-8")]);
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("may not create nodes, delete nodes"), "{said}");
    assert!(said.contains("--context") && said.contains("without --kubeconfig"), "{said}");
    cluster.assert_as_before(&before).await;
}
