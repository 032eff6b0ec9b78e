//! State of the cluster, read from the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use berth_model::Quantity;

use super::{await_closely, await_until};

pub async fn all_pods(client: &Client) -> Vec<Pod> {
    let api: Api<Pod> = Api::all(client.clone());
    api.list(&ListParams::default()).await.expect("pods are listed").items
}

pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

pub fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The condition `PodScheduled`: status, reason and message.
pub fn scheduled_condition(pod: &Pod) -> Option<(String, String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    Some((condition.status.clone(), reason.unwrap_or_default(), message.unwrap_or_default()))
}

/// Waits until this many of the pods that `of` selects have a node.
pub async fn await_bound(client: &Client, limit: Duration, count: usize, of: impl Fn(&Pod) -> bool) {
    let what = format!("{count} pods are bound");
    await_until(limit, &what, async || {
        all_pods(client).await.iter().filter(|pod| of(pod) && node_of(pod).is_some()).count() == count
    })
    .await;
}

/// Waits for the condition of one pod to satisfy `holds`, and returns its message.
pub async fn await_message(
    client: &Client,
    namespace: &str,
    name: &str,
    holds: impl Fn(&str) -> bool,
) -> String {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut message = String::new();
    await_until(Duration::from_secs(30), &format!("pod {name} has its condition"), async || {
        let pod = api.get(name).await.expect("the pod exists");
        message = scheduled_condition(&pod).map(|(_, _, message)| message).unwrap_or_default();
        holds(&message)
    })
    .await;
    message
}

pub async fn events_of(client: &Client, pod: &Pod) -> Vec<Event> {
    let api: Api<Event> =
        Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let events = api.list(&ListParams::default()).await.expect("events are listed");
    let about = |event: &Event| event.regarding.as_ref().and_then(|about| about.uid.clone());
    events.items.into_iter().filter(|event| about(event) == pod.metadata.uid).collect()
}

/// Panics if the requests of a node's pods exceed its allocatable CPU, memory or pods. Counts the requests of containers
/// itself, independent of the scheduler under test.
pub async fn assert_no_overcommit(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut used: BTreeMap<String, [i64; 3]> = BTreeMap::new();
    for pod in all_pods(client).await {
        let (Some(node), Some(spec)) = (node_of(&pod), &pod.spec) else {
            continue;
        };
        let sums = used.entry(node.to_owned()).or_default();
        sums[2] += 1;
        for container in &spec.containers {
            let requests = container.resources.as_ref().and_then(|resources| resources.requests.clone());
            let amount = |name: &str| {
                let quantity = requests.as_ref()?.get(name)?;
                Some(Quantity::parse(&quantity.0).expect("the API server checked it"))
            };
            sums[0] += amount("cpu").map_or(0, Quantity::milli_value);
            sums[1] += amount("memory").map_or(0, Quantity::value);
        }
    }
    for node in nodes.list(&ListParams::default()).await.expect("nodes are listed").items {
        let name = node.metadata.name.unwrap_or_default();
        let Some(sums) = used.get(&name) else { continue };
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        let of = |name: &str| Quantity::parse(&allocatable[name].0).expect("the API server checked it");
        let all = [of("cpu").milli_value(), of("memory").value(), of("pods").value()];
        assert!(
            sums.iter().zip(&all).all(|(used, all)| used <= all),
            "node {name} is overcommitted: {sums:?} of {all:?} (milli CPU, bytes, pods)"
        );
    }
}

/// Creates one node from its name, its allocatable resources, and `spec`; its label `pool` is its name.
pub async fn create_node(client: &Client, name: &str, allocatable: Value, spec: Value) {
    let node = json!({
        "metadata": {"name": name, "labels": {"pool": name, "kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    let node = serde_json::from_value(node).expect("a node");
    let api: Api<Node> = Api::all(client.clone());
    api.create(&PostParams::default(), &node).await.expect("the node is created");
}

/// Merges `patch` into a node; its part `status` goes to the subresource.
pub async fn patch_node(client: &Client, name: &str, patch: Value) {
    let api: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    let change = Patch::Merge(&patch);
    let patched = if patch.get("status").is_some() {
        api.patch_status(name, &params, &change).await
    } else {
        api.patch(name, &params, &change).await
    };
    patched.expect("the node is patched");
}

/// Deletes pods without a grace period: they disappear immediately.
pub async fn delete_pods(client: &Client, names: impl IntoIterator<Item = String>) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let now = DeleteParams::default().grace_period(0);
    let deletions = names.into_iter().map(|name| {
        let (api, now) = (api.clone(), now.clone());
        async move { api.delete(&name, &now).await.expect("the pod is deleted") }
    });
    stream::iter(deletions).buffer_unordered(16).for_each(|_| async {}).await;
}

/// The first observation of a pod on a node.
#[derive(Debug, Clone)]
pub struct Bound {
    pub uid: String,
    pub scheduler: String,
    pub node: String,
    pub at: Instant,
}

/// All binds in order, observed by the test's own watch.
pub struct BindLog {
    binds: Arc<Mutex<Vec<Bound>>>,
    task: JoinHandle<()>,
}

impl BindLog {
    pub fn start(client: &Client) -> BindLog {
        let binds: Arc<Mutex<Vec<Bound>>> = Arc::default();
        let (log, api) = (binds.clone(), Api::<Pod>::all(client.clone()));
        let task = tokio::spawn(async move {
            let mut nodes: BTreeMap<String, String> = BTreeMap::new();
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let (Ok(watcher::Event::Apply(pod)) | Ok(watcher::Event::InitApply(pod))) = event else {
                    // kube's watcher continues after an error; without a pause it would retry at the server's full
                    // speed.
                    if event.is_err() {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    continue;
                };
                let (Some(node), Some(uid)) = (node_of(&pod), pod.metadata.uid.clone()) else {
                    continue;
                };
                if nodes.insert(uid.clone(), node.to_owned()).as_deref() == Some(node) {
                    continue;
                }
                let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.clone());
                log.lock().push(Bound {
                    uid,
                    scheduler: scheduler.unwrap_or_default(),
                    node: node.to_owned(),
                    at: Instant::now(),
                });
            }
        });
        BindLog { binds, task }
    }

    pub fn binds(&self) -> Vec<Bound> {
        self.binds.lock().clone()
    }

    pub fn len(&self) -> usize {
        self.binds.lock().len()
    }

    /// Waits until at least `count` binds were observed.
    pub async fn await_len(&self, limit: Duration, count: usize) {
        await_closely(limit, &format!("{count} binds are seen"), async || self.len() >= count).await;
    }

    /// Panics if a pod was ever observed on a second node.
    pub fn assert_none_moved(&self) {
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for Bound { uid, node, .. } in self.binds() {
            let before = first.insert(uid.clone(), node.clone());
            assert_eq!(before, None, "pod {uid} is on {node} now");
        }
    }
}

impl Drop for BindLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}
