//! In-place resize of one pod: reserves the capacity, then sends the request. Used by all rooms that change
//! sizes of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use berth_kube_io::apply::{PodId, PodWriter, ResizeError};
use berth_model::NodeSize;
use berth_rightsizing::apply::change::{growth, parts};
use berth_rightsizing::apply::pod::{Resize, SizeChange};
use berth_rightsizing::apply::{Resources, SizedPod, patch};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::{Growth, GrowthError};

/// Result of a resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resized {
    /// The spec of the pod has the new size. The kubelet may still defer it.
    Asked,
    /// The watch has not shown the last resize of this pod yet; no request was sent.
    NotSeen,
    /// The node lacks capacity; no request was sent.
    NoRoom(String),
    /// The pod is deleted, or replaced by one with the same name.
    Gone,
    /// The API server refused the resize.
    Refused(String),
    /// Unknown whether it was applied; the next read of the pod shows it.
    Unknown(String),
}

/// Maximum number of pods with an unknown or unseen resize; more are dropped, and a watch event of the pod then
/// releases the reservation.
const UNSETTLED_MAX: usize = 10_000;

/// Time within which the watch shows an accepted resize. After it the pod counts as seen: something else may have undone the
/// resize.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// A resize with an unknown result.
struct Unsettled {
    /// Reservation for it.
    growth: Growth,
    /// Requests of the pod before.
    before: Vec<Resources>,
}

/// An accepted resize.
struct Accepted {
    at: Instant,
    /// Requests of the pod before.
    before: Vec<Resources>,
}

/// Resizes pods.
pub struct Resizer {
    engine: Engine,
    pub writer: PodWriter,
    /// By uid of the pod.
    unsettled: Mutex<BTreeMap<Arc<str>, Unsettled>>,
    /// By uid of the pod.
    accepted: Mutex<BTreeMap<Arc<str>, Accepted>>,
}

impl Resizer {
    pub fn new(engine: Engine, writer: PodWriter) -> Resizer {
        Resizer { engine, writer, unsettled: Mutex::default(), accepted: Mutex::default() }
    }

    /// Sets requests and limits of the containers of a running pod, if its node has capacity for the growth.
    /// The growth is reserved before the request is sent, and released if the resize fails. The caller must
    /// lead, and must check disruption budgets and the QoS class ([`berth_rightsizing::apply::qos::is_kept`]).
    pub async fn resize(&self, pod: &SizedPod, changes: &[SizeChange]) -> Resized {
        if !self.has_seen_last_resize(pod) {
            return Resized::NotSeen;
        }
        let grown = match self.grow(pod, growth(pod, changes)) {
            Ok(grown) => grown,
            Err(error) => return Resized::NoRoom(error.to_string()),
        };
        let id = PodId { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        let resized = match self.writer.resize_pod(id, &patch::in_place(pod, changes)).await {
            Ok(()) => {
                let mut accepted = self.accepted.lock();
                if accepted.len() >= UNSETTLED_MAX {
                    accepted.clear();
                }
                accepted
                    .insert(pod.uid.clone(), Accepted { at: Instant::now(), before: wanted_resources(pod) });
                return Resized::Asked;
            }
            Err(ResizeError::Gone) => Resized::Gone,
            Err(ResizeError::Refused(why)) => Resized::Refused(why),
            // The reservation stays until a watch event shows the result, or the pod is resized again.
            Err(ResizeError::Unknown(why)) => {
                let mut unsettled = self.unsettled.lock();
                if unsettled.len() >= UNSETTLED_MAX {
                    unsettled.clear();
                }
                unsettled.insert(pod.uid.clone(), Unsettled { growth: grown, before: wanted_resources(pod) });
                return Resized::Unknown(why);
            }
        };
        self.engine.take_growth_back(&pod.uid, &grown);
        resized
    }

    /// Resizes as [`Resizer::resize`] does, and if the node lacks capacity for memory and CPU together, one of them. The second value is why
    /// the other one has to wait.
    pub async fn resize_in_part(&self, pod: &SizedPod, changes: &[SizeChange]) -> (Resized, Option<String>) {
        let whole = self.resize(pod, changes).await;
        let Resized::NoRoom(why) = whole else { return (whole, None) };
        // What remained of a resize that the node cannot ever do would keep the part from being done.
        if pod.resize == Some(Resize::Infeasible) {
            return (Resized::NoRoom(why), None);
        }
        for part in parts(pod, changes) {
            let resized = self.resize(pod, &part).await;
            if !matches!(resized, Resized::NoRoom(_)) {
                return (resized, Some(why));
            }
        }
        (Resized::NoRoom(why), None)
    }

    /// Returns whether the pod is as its last accepted resize left it, or later.
    fn has_seen_last_resize(&self, pod: &SizedPod) -> bool {
        let mut accepted = self.accepted.lock();
        let Some(last) = accepted.get(&pod.uid) else { return true };
        if last.before == wanted_resources(pod) && last.at.elapsed() < SEEN_WITHIN {
            return false;
        }
        accepted.remove(&pod.uid);
        true
    }

    fn grow(&self, pod: &SizedPod, more: NodeSize) -> Result<Growth, GrowthError> {
        let unsettled = self.unsettled.lock().remove(&pod.uid);
        // If its requests have changed meanwhile, the charge is correct.
        let undone = unsettled.filter(|unsettled| unsettled.before == wanted_resources(pod));
        self.engine.grow_in_place(&pod.uid, undone.as_ref().map(|undone| &undone.growth), more)
    }
}

fn wanted_resources(pod: &SizedPod) -> Vec<Resources> {
    pod.containers.iter().map(|container| container.wanted).collect()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::{Body, Client};

    use super::*;
    use berth_model::{self as model, Amounts, Node, PerResource, Usage};
    use berth_rightsizing::apply::SizedContainer;
    use berth_scheduler::testing::with_engine;

    /// Returns the pod, with this request.
    fn pod(cpu: i64) -> SizedPod {
        let requests = PerResource { cpu: Some(cpu), memory: None };
        let wanted = Resources { requests, ..Resources::default() };
        let container = SizedContainer { name: "app".into(), wanted, ..SizedContainer::default() };
        let (namespace, name) = ("shop".into(), "web-0".into());
        SizedPod { namespace, name, uid: "u".into(), containers: vec![container], ..SizedPod::default() }
    }

    fn to(cpu: i64) -> [SizeChange; 1] {
        [SizeChange { requests: PerResource { cpu: Some(cpu), memory: None }, ..SizeChange::default() }]
    }

    fn on_node(cpu_milli: i64) -> model::Pod {
        let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, ..Usage::default() });
        model::Pod { uid: "u".into(), node_name: Some("n".into()), usage, ..model::Pod::default() }
    }

    #[test]
    fn a_pod_is_resized_again_only_once_the_watch_has_shown_the_last_resize() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.unwrap();
        let _entered = runtime.enter();
        let answer = |_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(b"{}".to_vec())))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        with_engine(|engine, _| {
            let allocatable = Amounts { cpu_milli: 1_000, pods: 110, ..Amounts::default() };
            engine.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
            engine.apply_pod(on_node(300));
            let resizer = Resizer::new(engine.clone(), PodWriter::new(client, "test".into()));
            let resize = |from, wanted| runtime.block_on(resizer.resize(&pod(from), &to(wanted)));
            let taken = || engine.requested_on("n").expect("it is there").cpu_milli;
            assert_eq!(resize(300, 500), Resized::Asked);
            assert_eq!(resize(300, 700), Resized::NotSeen);
            assert_eq!(taken(), 500, "a stale pod is charged for once");
            engine.apply_pod(on_node(500));
            assert_eq!(resize(500, 700), Resized::Asked);
            assert_eq!(taken(), 700);
            // Someone undid it: what the watch shows for long is the truth.
            engine.apply_pod(on_node(500));
            runtime.block_on(tokio::time::advance(SEEN_WITHIN));
            assert_eq!(resize(500, 700), Resized::Asked);
        });
    }

    #[test]
    fn a_node_without_room_for_memory_gives_the_cpu_and_the_memory_once_it_has_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let sent = Arc::<Mutex<Vec<String>>>::default();
        let seen = sent.clone();
        let answer = move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let body = request.into_body().collect_bytes().await.expect("a patch");
                seen.lock().push(String::from_utf8_lossy(&body).into_owned());
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(b"{}".to_vec())))
            }
        };
        let client = Client::new(tower::service_fn(answer), "default");
        with_engine(|engine, _| {
            let node = |memory| {
                let allocatable = Amounts { cpu_milli: 1_000, memory, pods: 110, ..Amounts::default() };
                Node { name: "n".into(), allocatable, ..Node::default() }
            };
            engine.apply_node(node(500));
            engine.apply_pod(on_node(300));
            let resizer = Resizer::new(engine.clone(), PodWriter::new(client, "test".into()));
            let to = |cpu, memory| {
                let requests = PerResource { cpu: Some(cpu), memory: Some(memory) };
                [SizeChange { requests, ..SizeChange::default() }]
            };
            let resize =
                |from, to: [SizeChange; 1]| runtime.block_on(resizer.resize_in_part(&pod(from), &to));
            let taken = || {
                let taken = engine.requested_on("n").expect("it is there");
                (taken.cpu_milli, taken.memory)
            };
            let (resized, waits) = resize(300, to(500, 800));
            assert_eq!((resized, taken()), (Resized::Asked, (500, 0)));
            assert!(waits.is_some_and(|why| why.contains("memory")));
            assert!(!sent.lock()[0].contains("memory"), "{:?}", sent.lock());
            engine.apply_pod(on_node(500));
            let (resized, _) = resize(500, to(500, 800));
            assert!(matches!(resized, Resized::NoRoom(_)), "nothing is left that the node has room for");
            engine.apply_node(node(1_000));
            assert_eq!(resize(500, to(500, 800)), (Resized::Asked, None));
            assert_eq!((sent.lock().len(), taken()), (2, (500, 800)));
        });
    }

    #[test]
    fn an_api_server_that_fails_again_and_again_costs_no_more_room_each_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let answer = |_: Request<Body>| async {
            let body = Body::from(br#"{"kind":"Status","message":"no webhook"}"#.to_vec());
            Ok::<_, std::convert::Infallible>(Response::builder().status(500).body(body).expect("valid"))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        with_engine(|engine, _| {
            let allocatable = Amounts { cpu_milli: 1_000, pods: 110, ..Amounts::default() };
            engine.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
            engine.apply_pod(on_node(300));
            let resizer = Resizer::new(engine.clone(), PodWriter::new(client, "test".into()));
            let taken = || engine.requested_on("n").expect("it is there").cpu_milli;
            for wanted in [500, 500, 900, 500] {
                let resized = runtime.block_on(resizer.resize(&pod(300), &to(wanted)));
                assert!(matches!(resized, Resized::Unknown(_)), "{resized:?}");
                assert_eq!(taken(), wanted);
            }
            // The resize was applied, as the pod now shows.
            engine.apply_pod(on_node(500));
            runtime.block_on(resizer.resize(&pod(500), &to(600)));
            assert_eq!(taken(), 600);
        });
    }
}
