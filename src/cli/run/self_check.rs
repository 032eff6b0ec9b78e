//! Periodic self-check: compares the cached state with the API server, namespace by namespace and page by page.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kube::Client;

use berth_config::Config;
use berth_controllers::tasks::Tasks;
use berth_kube_io::{list_live_pods, list_namespaces, list_nodes, list_pods_without_node};
use berth_model::{Node, Pod};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::StateDifference;
use berth_server::metrics::SelfCheckCounters;

/// Time for which a difference must persist: watches lag.
const PAUSE: Duration = Duration::from_secs(10);
/// The check takes at most one part in so many of the time, with pauses between namespaces.
const SHARE: u32 = 5;

/// Compares with the API server periodically. Persistent differences are repaired and logged.
pub(super) fn self_check(
    tasks: &mut Tasks,
    engine: &Engine,
    client: &Client,
    config: &Config,
    counters: Arc<SelfCheckCounters>,
) {
    let (engine, client, interval) = (engine.clone(), client.clone(), config.self_check_interval.get());
    tasks.spawn("self-check", async move {
        loop {
            tokio::time::sleep(interval).await;
            if !engine.synced() {
                continue;
            }
            match check_once(&engine, &client).await {
                Ok(mended) => {
                    counters.done.fetch_add(1, Relaxed);
                    if mended > 0 {
                        tracing::error!(
                            mended,
                            "the cached cluster state was wrong and has been repaired; please report this"
                        );
                    }
                }
                Err(error) => {
                    counters.failed.fetch_add(1, Relaxed);
                    tracing::warn!(%error, "self-check: cannot list the cluster");
                }
            }
        }
    });
}

/// Compares once. Returns the number of repaired differences.
async fn check_once(engine: &Engine, client: &Client) -> kube::Result<usize> {
    for violation in engine.check_invariants() {
        tracing::error!(%violation, "invariant violated; please report this");
    }
    let recounted = engine.heal();
    for wrong in &recounted {
        tracing::error!(node = %wrong.node, counted = wrong.counted, recounted = wrong.recounted, "the resource sums of a node were wrong");
    }
    let mut namespaces = engine.pod_namespaces();
    namespaces.extend(list_namespaces(client).await?.into_iter().map(Arc::from));
    let mut suspicions = Suspicions::default();
    compare(engine, client, &namespaces, |difference, namespace| {
        suspicions.namespaces.extend(namespace.cloned());
        suspicions.differences.insert(StateDifference::from(&difference));
    })
    .await?;
    if suspicions.differences.is_empty() {
        return Ok(recounted.len());
    }
    tokio::time::sleep(PAUSE).await;
    let mut found = Vec::new();
    compare(engine, client, &suspicions.namespaces, |difference, _| {
        if suspicions.differences.contains(&StateDifference::from(&difference)) {
            found.push(difference);
        }
    })
    .await?;
    let mended = recounted.len() + found.len();
    for difference in found {
        tracing::error!(difference = ?StateDifference::from(&difference), "cached object differs from the API server");
        difference.mend(engine);
    }
    Ok(mended)
}

/// Differences found by the first comparison.
#[derive(Default)]
struct Suspicions {
    differences: BTreeSet<StateDifference>,
    namespaces: BTreeSet<Arc<str>>,
}

/// A difference, with what repairs it.
enum Difference {
    Pod(Box<Pod>),
    PodGone(Arc<str>),
    Node(Box<Node>),
    NodeGone(Arc<str>),
}

impl Difference {
    fn mend(self, engine: &Engine) {
        match self {
            Difference::Pod(pod) => engine.mend_pod(*pod),
            Difference::PodGone(uid) => engine.mend_pod_gone(&uid),
            Difference::Node(node) => engine.mend_node(*node),
            Difference::NodeGone(name) => engine.mend_node_gone(&name),
        }
    }
}

impl From<&Difference> for StateDifference {
    fn from(difference: &Difference) -> Self {
        match difference {
            Difference::Pod(pod) => {
                StateDifference::Pod { uid: pod.uid.clone(), node: pod.node_name.clone() }
            }
            Difference::PodGone(uid) => StateDifference::PodGone { uid: uid.clone() },
            Difference::Node(node) => StateDifference::Node { name: node.name.clone() },
            Difference::NodeGone(name) => StateDifference::NodeGone { name: name.clone() },
        }
    }
}

/// Compares the pods of these namespaces, and all nodes. `take` receives each difference, with the namespace of a pod.
///
/// At any time it holds one page of objects, and eight bytes for each pod of one namespace: two uids with one hash would hide a
/// pod that is gone from this check, and from no other.
async fn compare(
    engine: &Engine,
    client: &Client,
    namespaces: &BTreeSet<Arc<str>>,
    mut take: impl FnMut(Difference, Option<&Arc<str>>),
) -> kube::Result<()> {
    let hasher = RandomState::new();
    for namespace in namespaces {
        let began = Instant::now();
        let mut listed = HashSet::new();
        list_live_pods(client, namespace, |pods, bad| {
            listed.extend(pods.iter().map(|pod| hasher.hash_one(&*pod.uid)));
            listed.extend(bad.iter().map(|uid| hasher.hash_one(&**uid)));
            for pod in engine.differing_pods(pods) {
                take(Difference::Pod(pod.into()), Some(namespace));
            }
        })
        .await?;
        for uid in engine.unlisted_pods(namespace, |uid| listed.contains(&hasher.hash_one(uid))) {
            take(Difference::PodGone(uid), Some(namespace));
        }
        tokio::time::sleep(began.elapsed() * (SHARE - 1)).await;
    }
    let mut reserved = engine.reserved_for_others();
    if !reserved.is_empty() {
        list_pods_without_node(client, |pods, bad| {
            let live = pods.iter().map(|pod| &*pod.uid).chain(bad.iter().map(|uid| &**uid));
            for uid in live {
                reserved.remove(uid);
            }
        })
        .await?;
        reserved.into_iter().for_each(|uid| take(Difference::PodGone(uid), None));
    }
    let mut listed: HashSet<Arc<str>> = HashSet::new();
    list_nodes(client, |nodes, bad| {
        listed.extend(nodes.iter().map(|node| node.name.clone()));
        listed.extend(bad.into_iter().map(Arc::from));
        for node in engine.differing_nodes(nodes) {
            take(Difference::Node(node.into()), None);
        }
    })
    .await?;
    for name in engine.unlisted_nodes(&listed) {
        take(Difference::NodeGone(name), None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use berth_kube_io::{Interner, LeanNode, LeanPod};
    use berth_scheduler::testing::with_engine;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, name: &str, node: &str) -> Value {
        json!({
            "metadata": {"namespace": namespace, "name": name, "uid": format!("u-{name}"), "resourceVersion": "1"},
            "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        })
    }

    fn node(name: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}})
    }

    /// Answers lists with these objects, one to a page.
    fn answer(request: &Request<Body>, pods: &[Value], nodes: &[Value]) -> String {
        let namespaces = [json!({"metadata": {"name": "x"}}), json!({"metadata": {"name": "y"}})];
        let path: Vec<&str> = request.uri().path().split('/').filter(|part| !part.is_empty()).collect();
        let items: Vec<&Value> = match path[..] {
            [_, _, "namespaces"] => namespaces.iter().collect(),
            [_, _, "namespaces", namespace, "pods"] => {
                pods.iter().filter(|pod| pod["metadata"]["namespace"] == namespace).collect()
            }
            [_, _, "nodes"] => nodes.iter().collect(),
            _ => panic!("an unexpected request: {}", request.uri()),
        };
        let token = request.uri().query().and_then(|query| query.split("continue=").nth(1));
        let at: usize = token
            .map_or(0, |token| token.split('&').next().and_then(|at| at.parse().ok()).expect("a number"));
        let token = if at + 1 < items.len() { (at + 1).to_string() } else { String::new() };
        let page: Vec<&&Value> = items.iter().skip(at).take(1).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": token}, "items": page})
            .to_string()
    }

    #[test]
    fn differences_that_persist_are_repaired_and_others_are_left_to_the_watch() {
        let pods =
            [pod("x", "a", "n1"), pod("x", "missing", "n1"), pod("y", "moved", "n2"), pod("y", "late", "n1")];
        let nodes = [node("n1"), node("n2")];
        with_engine(|engine, _| {
            let mut interner = Interner::default();
            let mut known = |pod: &Value| {
                let pod: LeanPod = serde_json::from_value(pod.clone()).expect("a pod");
                pod.into_pod(&mut interner)
            };
            for known_pod in
                [pod("x", "a", "n1"), pod("x", "gone", "n1"), pod("y", "moved", "n1"), pod("z", "left", "n1")]
            {
                engine.apply_pod(known(&known_pod));
            }
            let late = known(&pods[3]);
            for name in ["n1", "n3"] {
                let node: LeanNode = serde_json::from_value(node(name)).expect("a node");
                engine.apply_node(node.into_node(&mut Interner::default()));
            }
            let server = engine.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let text = answer(&request, &pods, &nodes);
                // The watch delivers it between the two comparisons.
                if request.uri().path().ends_with("/nodes") {
                    server.apply_pod(late.clone());
                }
                async move { Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes()))) }
            });
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            let runtime = runtime.expect("a runtime");
            let client = runtime.block_on(async { Client::new(service, "default") });
            let check = || runtime.block_on(check_once(engine, &client)).expect("the server answers");
            // Pods: missing, moved, gone, left; nodes: n2 is missing, n3 is gone.
            assert_eq!(check(), 6);
            assert_eq!(check(), 0);
            assert_eq!(engine.statistics().pods, 4);
            assert_eq!(engine.requested_on("n2").map(|requested| requested.pods), Some(1));
            assert_eq!(engine.nodes().iter().map(|node| &*node.name).collect::<Vec<_>>(), ["n1", "n2"]);
            assert_eq!(engine.statistics().counters.healed, 6);
        });
    }
}
