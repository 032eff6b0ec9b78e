//! Resizing one pod in place: the room first, then the request. For whoever decides that a pod shall have another size.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use berth_kube_io::apply::{PodId, PodWriter, ResizeError};
use berth_model::NodeSize;
use berth_rightsizing::apply::change::{Change, growth};
use berth_rightsizing::apply::{Pod, Resources, patch};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::Growth;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resized {
    /// The pod's spec says it. Its kubelet may still put it off.
    Asked,
    /// Its node has no room; nothing was sent.
    NoRoom(String),
    /// It is gone, or another one has its name.
    Gone,
    /// The API server does not allow it.
    Refused(String),
    /// Whether it was carried out is seen when the pod is read again.
    Unknown(String),
}

/// Pods of which it is not known whether they were resized, at most; more are forgotten, and their room is given back when a watch
/// tells of them.
const UNSETTLED_MAX: usize = 10_000;

/// A resize of which nobody knows whether it was carried out.
struct Unsettled {
    /// What is charged for it.
    growth: Growth,
    /// What the pod asked for before.
    before: Vec<Resources>,
}

/// Resizes pods.
pub struct Resizer {
    engine: Engine,
    pub writer: PodWriter,
    /// By uid of the pod.
    unsettled: Mutex<BTreeMap<Arc<str>, Unsettled>>,
}

impl Resizer {
    pub fn new(engine: Engine, writer: PodWriter) -> Resizer {
        Resizer { engine, writer, unsettled: Mutex::default() }
    }

    /// Gives the containers of a running pod these requests and limits, if its node has room for what they request more. The room is
    /// charged before the request is sent, and given back when nothing comes of it. The caller must lead, have read the pod since it
    /// was resized last, and see to budgets and to the pod's QoS class ([`berth_rightsizing::apply::qos::is_kept`]).
    pub async fn resize(&self, pod: &Pod, changes: &[Change]) -> Resized {
        let grown = match self.grow(pod, growth(pod, changes)) {
            Ok(grown) => grown,
            Err(why) => return Resized::NoRoom(why),
        };
        let id = PodId { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        let resized = match self.writer.resize_pod(id, &patch::in_place(pod, changes)).await {
            Ok(()) => return Resized::Asked,
            Err(ResizeError::Gone) => Resized::Gone,
            Err(ResizeError::Refused(why)) => Resized::Refused(why),
            // The room stays taken until a watch tells the truth, or the pod is resized again.
            Err(ResizeError::Unknown(why)) => {
                let mut unsettled = self.unsettled.lock();
                if unsettled.len() >= UNSETTLED_MAX {
                    unsettled.clear();
                }
                unsettled.insert(pod.uid.clone(), Unsettled { growth: grown, before: asked(pod) });
                return Resized::Unknown(why);
            }
        };
        self.engine.with(|scheduler, _| scheduler.take_growth_back(&pod.uid, &grown));
        resized
    }

    fn grow(&self, pod: &Pod, more: NodeSize) -> Result<Growth, String> {
        let unsettled = self.unsettled.lock().remove(&pod.uid);
        // When it asks for something else by now, the charge is the truth.
        let undone = unsettled.filter(|unsettled| unsettled.before == asked(pod));
        self.engine.with(|scheduler, _| match &undone {
            Some(undone) => scheduler.grow_instead(&pod.uid, &undone.growth, more),
            None => scheduler.grow_in_place(&pod.uid, more),
        })
    }
}

fn asked(pod: &Pod) -> Vec<Resources> {
    pod.containers.iter().map(|container| container.wanted).collect()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::{Body, Client};

    use super::*;
    use berth_model::PerResource;
    use berth_model::{self as model, Amounts, Node, Usage};
    use berth_rightsizing::apply::Container;
    use berth_scheduler::testing::with_engine;

    /// The pod, when it requests so much.
    fn pod(cpu: i64) -> Pod {
        let requests = PerResource { cpu: Some(cpu), memory: None };
        let wanted = Resources { requests, ..Resources::default() };
        let container = Container { name: "app".into(), wanted, ..Container::default() };
        let (namespace, name) = ("shop".into(), "web-0".into());
        Pod { namespace, name, uid: "u".into(), containers: vec![container], ..Pod::default() }
    }

    fn to(cpu: i64) -> [Change; 1] {
        [Change { requests: PerResource { cpu: Some(cpu), memory: None }, ..Change::default() }]
    }

    fn on_node(cpu_milli: i64) -> model::Pod {
        let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, ..Usage::default() });
        model::Pod { uid: "u".into(), node_name: Some("n".into()), usage, ..model::Pod::default() }
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
            engine.with(|scheduler, now| {
                let allocatable = Amounts { cpu_milli: 1_000, pods: 110, ..Amounts::default() };
                scheduler.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
                scheduler.apply_pod(on_node(300), now);
            });
            let resizer = Resizer::new(engine.clone(), PodWriter::new(client, "test".into()));
            let taken = || {
                engine.with(|scheduler, _| {
                    let inventory = scheduler.inventory();
                    inventory.row(inventory.find("n").expect("it is there")).requested.cpu_milli
                })
            };
            for wanted in [500, 500, 900, 500] {
                let resized = runtime.block_on(resizer.resize(&pod(300), &to(wanted)));
                assert!(matches!(resized, Resized::Unknown(_)), "{resized:?}");
                assert_eq!(taken(), wanted);
            }
            // It was carried out, as the pod says now.
            engine.with(|scheduler, now| scheduler.apply_pod(on_node(500), now));
            runtime.block_on(resizer.resize(&pod(500), &to(600)));
            assert_eq!(taken(), 600);
        });
    }
}
