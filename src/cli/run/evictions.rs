//! Execution of preemption decisions: evictions, and nominated node names of pods.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::outbox::Inbox;
use berth_kube_io::{Evictor, Reporter};
use berth_model::{PodRef, PodReport};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::Eviction;

/// Maximum number of evictions in flight, and of nominations.
const IN_FLIGHT_MAX: usize = 16;

/// A request to send, as decided in this term.
#[derive(Debug)]
pub(super) enum Order {
    Evict(Eviction, u64),
    Nominate(PodRef, Option<Arc<str>>, u64),
}

/// A pod, its nominated node, and the term of the decision.
type Nomination = (PodRef, Option<Arc<str>>, u64);

/// Queued orders. A pod has at most one queued nomination, the latest, and none is taken while another one of
/// the pod is in flight.
#[derive(Debug, Default)]
struct Orders {
    evictions: VecDeque<(Eviction, u64)>,
    /// By uid.
    nominations: BTreeMap<Arc<str>, Nomination>,
    /// By uid.
    nominating: BTreeSet<Arc<str>>,
    evicting: usize,
}

enum Done {
    Eviction,
    Nomination(Arc<str>),
}

impl Orders {
    fn put(&mut self, order: Order) {
        match order {
            Order::Evict(eviction, term) => self.evictions.push_back((eviction, term)),
            Order::Nominate(pod, node, term) => {
                self.nominations.insert(pod.uid.clone(), (pod, node, term));
            }
        }
    }

    /// Returns the next order that may be executed now.
    fn take(&mut self) -> Option<Order> {
        if self.nominating.len() < IN_FLIGHT_MAX {
            let free = self.nominations.keys().find(|uid| !self.nominating.contains(*uid)).cloned();
            if let Some((pod, node, term)) = free.and_then(|uid| self.nominations.remove(&uid)) {
                self.nominating.insert(pod.uid.clone());
                return Some(Order::Nominate(pod, node, term));
            }
        }
        if self.evicting == IN_FLIGHT_MAX {
            return None;
        }
        let (eviction, term) = self.evictions.pop_front()?;
        self.evicting += 1;
        Some(Order::Evict(eviction, term))
    }

    fn done(&mut self, done: &Done) {
        match done {
            Done::Eviction => self.evicting -= 1,
            Done::Nomination(uid) => {
                self.nominating.remove(uid);
            }
        }
    }
}

/// Executes orders while the process decides. `leads` is called before each request.
pub(super) async fn carry_out_evictions(
    engine: Engine,
    evictor: Evictor,
    reporter: Reporter,
    mut queue: Inbox<Order>,
    leads: impl Fn(u64) -> bool + Clone + Send + 'static,
) {
    let (mut orders, mut in_flight) = (Orders::default(), FuturesUnordered::new());
    loop {
        while let Some(order) = orders.take() {
            in_flight.push(carry_out(&engine, &evictor, &reporter, order, leads.clone()));
        }
        tokio::select! {
            order = queue.recv() => match order {
                Some(order) => orders.put(order),
                None => return,
            },
            Some(done) = in_flight.next() => orders.done(&done),
        }
    }
}

async fn carry_out(
    engine: &Engine,
    evictor: &Evictor,
    reporter: &Reporter,
    order: Order,
    leads: impl Fn(u64) -> bool,
) -> Done {
    match order {
        Order::Evict(eviction, term) => {
            let ended = evictor.evict(&eviction, || leads(term)).await;
            let Eviction { victim, preemptor, group, node, .. } = eviction.clone();
            match &ended {
                Ok(true) => reporter.report(PodReport::Preempted { pod: victim, preemptor, group, node }),
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    namespace = %victim.namespace, pod = %victim.name, %node, error,
                    "cannot preempt a pod; if the request was forbidden, the ClusterRole of berth must allow: patch \
                     pods/status, delete pods"
                ),
            }
            engine.eviction_finished(&eviction, ended.map(|_| ()));
            Done::Eviction
        }
        Order::Nominate(pod, node, term) => {
            if let Err(error) = evictor.nominate(&pod, node.as_ref(), || leads(term)).await {
                tracing::warn!(
                    namespace = %pod.namespace, pod = %pod.name, error,
                    "cannot write the nominated node of a pod; if the request was forbidden, the ClusterRole of berth must \
                     allow: patch pods/status"
                );
            }
            Done::Nomination(pod.uid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> PodRef {
        PodRef { namespace: "x".into(), name: uid.into(), uid: uid.into(), scheduler_name: "berth".into() }
    }

    #[test]
    fn the_latest_nomination_of_a_pod_is_written_once_the_one_in_flight_is_done() {
        let mut orders = Orders::default();
        for node in [Some("a"), None, Some("b")] {
            orders.put(Order::Nominate(pod("p"), node.map(Arc::from), 1));
            if node == Some("a") {
                assert!(orders.take().is_some());
            }
            assert!(orders.take().is_none(), "one is in flight");
        }
        orders.done(&Done::Nomination("p".into()));
        let Some(Order::Nominate(_, node, _)) = orders.take() else { panic!("a nomination") };
        assert_eq!(node.as_deref(), Some("b"));
        orders.done(&Done::Nomination("p".into()));
        assert!(orders.take().is_none());
    }

    #[test]
    fn at_most_sixteen_evictions_are_in_flight() {
        let mut orders = Orders::default();
        for at in 0..20 {
            let eviction = Eviction {
                victim: pod(&at.to_string()),
                preemptor: pod("p"),
                group: None,
                node: "n".into(),
                generation: 1,
            };
            orders.put(Order::Evict(eviction, 1));
        }
        assert_eq!(std::iter::from_fn(|| orders.take()).count(), IN_FLIGHT_MAX);
        orders.done(&Done::Eviction);
        assert_eq!(std::iter::from_fn(|| orders.take()).count(), 1);
    }
}
