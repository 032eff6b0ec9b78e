//! Shared test support: a real control plane, nodes and pods, and waiting for conditions.

mod berth;
mod cluster;
mod flaky;

pub use self::berth::Berth;
pub use self::cluster::*;
pub use self::flaky::{Fate, Flaky};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use berth_testenv::{ControlPlane, Options, Process};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A control plane uses half a gigabyte and, while it starts, a core.
static CONTROL_PLANES: Semaphore = Semaphore::const_new(2);
const CREATIONS_IN_FLIGHT: usize = 32;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The control plane of one test, and its permit: at most two exist at once.
pub struct TestControlPlane {
    // In this order: the permit is released when the control plane has ended.
    control_plane: ControlPlane,
    _permit: SemaphorePermit<'static>,
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

/// Starts a control plane, after waiting for a permit.
pub async fn start_control_plane() -> TestControlPlane {
    start_control_plane_with(Options::default()).await
}

/// Returns the permit for one control plane, for a test whose child process starts it. Waits until one is free.
pub async fn reserve_control_plane() -> SemaphorePermit<'static> {
    CONTROL_PLANES.acquire().await.expect("the semaphore is never closed")
}

pub async fn start_control_plane_with(options: Options) -> TestControlPlane {
    let permit = reserve_control_plane().await;
    match ControlPlane::start(options).await {
        Ok(control_plane) => TestControlPlane { control_plane, _permit: permit },
        Err(error) => panic!("{error:#}"),
    }
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

/// Polls `condition` until it holds; panics with `what` when it does not within `limit`.
pub async fn await_until(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < limit, "after {limit:?} still not true: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
