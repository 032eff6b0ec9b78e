//! Shared test support: a real control plane, nodes and pods, and waiting for conditions.

mod berth;
mod cluster;
mod flaky;
mod turns;

pub use self::berth::{Berth, HOST};
pub use self::cluster::*;
pub use self::flaky::{Fate, Flaky};
pub use self::turns::*;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use berth_testenv::binaries::Environment;
use berth_testenv::{ControlPlane, Options, Process};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Returns from the test, and says so, if a program is not installed; see [`are_installed`].
macro_rules! needs {
    ($($program:literal),+) => {
        if !$crate::support::are_installed(&[$($program),+]) {
            return;
        }
    };
}

const CREATIONS_IN_FLIGHT: usize = 32;
/// The first interval between two polls, and the longest.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Returns the HTTP client of all tests: a new one parses the certificates of all public authorities. It keeps no
/// connection, so that none outlives the runtime of its test.
pub fn http() -> &'static reqwest::Client {
    static HTTP: LazyLock<reqwest::Client> = LazyLock::new(|| {
        ::berth::cli::install_tls_provider();
        reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client with defaults")
    });
    &HTTP
}

/// The control plane of one test, and its turn.
pub struct TestControlPlane {
    // In this order: the turn ends when the control plane has ended.
    control_plane: ControlPlane,
    _turn: Turn,
}

impl Deref for TestControlPlane {
    type Target = ControlPlane;
    fn deref(&self) -> &ControlPlane {
        &self.control_plane
    }
}

impl DerefMut for TestControlPlane {
    fn deref_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }
}

/// Starts a control plane, after waiting for a turn.
pub async fn start_control_plane() -> TestControlPlane {
    start_control_plane_with(Options::default()).await
}

pub async fn start_control_plane_with(options: Options) -> TestControlPlane {
    let turn = control_plane_turn().await;
    let _busy = busy_turn().await;
    match ControlPlane::start(options).await {
        Ok(control_plane) => TestControlPlane { control_plane, _turn: turn },
        Err(error) => panic!("{error:#}"),
    }
}

/// Returns the minor version of the API server: `36` of `v1.36.3`.
pub fn api_server_minor() -> u32 {
    let minor = Environment::of_process().and_then(|environment| environment.api_server_minor());
    minor.unwrap_or_else(|error| panic!("{error:#}"))
}

/// Returns whether the minor version of the API server is one of `minors`. If not, prints that `test` is not run.
pub fn has_api_server(minors: impl RangeBounds<u32> + Debug, test: &str) -> bool {
    let minor = api_server_minor();
    let is_served = minors.contains(&minor);
    if !is_served {
        print_skipped(test, &format!("needs Kubernetes 1.({minors:?}), this is 1.{minor}"));
    }
    is_served
}

/// Returns whether these programs are on the `PATH`. If not, prints that the current test is not run.
///
/// # Panics
/// In CI, where all tests run.
pub fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let missing: Vec<_> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    if missing.is_empty() {
        return true;
    }
    let packages: BTreeSet<_> =
        missing.iter().map(|program| if *program == "promtool" { "prometheus" } else { program }).collect();
    let packages = packages.into_iter().collect::<Vec<_>>().join(" ");
    let why = format!("{} not installed: apt-get install {packages}", missing.join(", "));
    assert!(std::env::var_os("CI").is_none(), "in CI all tests run: {why}");
    print_skipped(std::thread::current().name().unwrap_or("a test"), &why);
    false
}

/// Prints that a test is not run, past the test harness, which hides the output of passing tests.
pub fn print_skipped(test: &str, why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("SKIPPED {test}: {why}\n").as_bytes());
}

/// Starts a kwok that acts as the kubelet of all nodes, configured by `kubelet.yaml`.
pub async fn start_kubelets(control_plane: &ControlPlane) -> Process {
    let started = control_plane.start_kwok(include_str!("kubelet.yaml")).await;
    started.unwrap_or_else(|error| panic!("{error:#}"))
}

/// Nodes that are equal except for their names, `{prefix}-0` and on.
pub struct Nodes {
    pub prefix: &'static str,
    pub count: usize,
    pub cpu: &'static str,
    pub memory: &'static str,
    pub pods: u32,
    pub labels: BTreeMap<String, String>,
    /// As in `spec.taints`.
    pub taints: Vec<Value>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            prefix: "node",
            count: 1,
            cpu: "4",
            memory: "32Gi",
            pods: 110,
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }
}

/// Creates the nodes; they are ready immediately, with the given resources.
pub async fn create_nodes(client: &Client, nodes: &Nodes) -> Vec<Node> {
    let api = Api::all(client.clone());
    let objects = (0..nodes.count).map(|index| {
        let name = format!("{}-{index}", nodes.prefix);
        let mut labels = nodes.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        let resources = json!({"cpu": nodes.cpu, "memory": nodes.memory, "pods": nodes.pods.to_string()});
        json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": nodes.taints},
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    });
    create_all(&api, objects).await
}

/// Pods that are equal except for their names, `{prefix}-0` and on, and the changes made by [`create_pods`].
pub struct Pods {
    pub namespace: &'static str,
    pub prefix: &'static str,
    pub count: usize,
    pub scheduler: &'static str,
    /// As in `resources.requests` of the only container.
    pub requests: Value,
}

impl Default for Pods {
    fn default() -> Self {
        Self {
            namespace: "default",
            prefix: "pod",
            count: 1,
            scheduler: "berth",
            requests: json!({"cpu": "100m", "memory": "500Mi"}),
        }
    }
}

/// Creates the pods; `customise` gets the index and the JSON of each before it is sent.
pub async fn create_pods(
    client: &Client,
    pods: &Pods,
    mut customise: impl FnMut(usize, &mut Value),
) -> Vec<Pod> {
    let api = Api::namespaced(client.clone(), pods.namespace);
    let objects = (0..pods.count).map(|index| {
        let mut pod = json!({
            "metadata": {"name": format!("{}-{index}", pods.prefix)},
            "spec": {
                "schedulerName": pods.scheduler,
                "containers": [{"name": "main", "image": "pause", "resources": {"requests": pods.requests}}],
            },
        });
        customise(index, &mut pod);
        pod
    });
    create_all(&api, objects).await
}

/// Creates the objects in no particular order and returns them in the given one.
async fn create_all<K>(api: &Api<K>, objects: impl Iterator<Item = Value>) -> Vec<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let creations = objects.map(|object| async move {
        let object = serde_json::from_value(object).expect("an object of its type");
        api.create(&PostParams::default(), &object).await
    });
    stream::iter(creations)
        .buffered(CREATIONS_IN_FLIGHT)
        .try_collect()
        .await
        .expect("the API server creates it")
}

/// Polls `condition` until it holds; panics with `what` when it does not within `limit`. Polls less often the longer it
/// waits: a poll of the API server costs CPU that the awaited processes need.
pub async fn await_until(limit: Duration, what: &str, condition: impl AsyncFnMut() -> bool) {
    poll(limit, what, POLL_INTERVAL_MAX, condition).await;
}

/// Same as [`await_until`], but always polls often: for a condition that costs nothing, and moments that matter.
pub async fn await_closely(limit: Duration, what: &str, condition: impl AsyncFnMut() -> bool) {
    poll(limit, what, POLL_INTERVAL, condition).await;
}

async fn poll(limit: Duration, what: &str, interval_max: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < limit, "after {limit:?} still not true: {what}");
        tokio::time::sleep((started.elapsed() / 10).clamp(POLL_INTERVAL, interval_max)).await;
    }
}
