//! Aging: a pod that has been unschedulable for long gets a reservation on one node, against pods of any priority,
//! until it fits there. So no pod starves behind a stream of higher-priority pods that take all freed resources.
//!
//! It is a nomination without victims that is not written to the API server. Few pods have one at a time, those that
//! have waited longest. A pod that is still not placed after the same time again loses it, and gets one on another node
//! in its next turn.
//!
//! [`Aged`] reads the cluster, the parked pods and the nominations, and changes only itself: its caller keeps and ends
//! the nominations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::nominations::Nominations;
use crate::class::Class;
use crate::inventory::{NodeId, Row};
use crate::queue::Parked;
use crate::rules;
use crate::scheduler::{Cluster, State};

/// Number of nodes per additional reservation; there is always one.
const NODES_EACH: usize = 100;
/// Maximum number of pods checked per class.
const MOST_OF_CLASS: usize = 16;
/// Minimum interval between searches for aged pods.
const PACE: Duration = Duration::from_secs(1);

/// Reservations due to aging.
#[derive(Debug, Default)]
pub(super) struct Aged {
    /// By uid: time of the reservation.
    kept: BTreeMap<Arc<str>, Duration>,
    /// Parked pods whose reservation did not help, by uid: its end, and its node.
    in_vain: BTreeMap<Arc<str>, (Duration, Arc<str>)>,
    next_check: Duration,
}

impl Aged {
    /// Returns the number of pods with a reservation due to aging.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Begins a search for aged pods, if it is time. Returns the pods whose reservation did not help in time.
    pub(super) fn begin(
        &mut self,
        cluster: &Cluster,
        nominations: &Nominations,
        now: Duration,
    ) -> Option<Vec<Arc<str>>> {
        let after = cluster.config.reserve_after;
        if after.is_zero() || !cluster.leading || now < self.next_check {
            return None;
        }
        self.next_check = now + PACE;
        self.kept.retain(|uid, _| nominations.has(uid));
        let parked = |uid: &str| cluster.waiting.get(uid).is_some_and(|pod| pod.state == State::Parked);
        self.in_vain.retain(|uid, _| parked(uid));
        let over = self.kept.extract_if(.., |_, since| now.saturating_sub(*since) >= after);
        let over: Vec<_> = over.map(|(uid, _)| uid).collect();
        for uid in &over {
            if let Some(node) = nominations.node_of(uid) {
                self.in_vain.insert(uid.clone(), (now, node.clone()));
            }
        }
        Some(over)
    }

    /// Returns the next pod that is to get a reservation, and its node.
    pub(super) fn next(
        &mut self,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
        now: Duration,
    ) -> Option<(Arc<str>, Arc<str>)> {
        let most = 1 + cluster.inventory().node_count() / NODES_EACH;
        while self.kept.len() < most {
            let uid = self.longest_waiting(cluster, parked, nominations, now)?;
            if let Some(node) = self.node_for(&uid, cluster, nominations) {
                self.kept.insert(uid.clone(), now);
                return Some((uid, node));
            }
            // No node would fit even if it were empty: retried after a while.
            self.in_vain.insert(uid, (now, Arc::from("")));
        }
        None
    }

    /// Returns the pod, of the first ones of each class, that has waited longest since its arrival or its last
    /// reservation.
    fn longest_waiting(
        &self,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
        now: Duration,
    ) -> Option<Arc<str>> {
        let candidate = |uid: &Arc<str>| {
            let pod = cluster.waiting.get(uid).filter(|_| !nominations.has(uid))?;
            let since = self.in_vain.get(uid).map_or(pod.arrived, |(since, _)| *since);
            let aged = now.saturating_sub(since) >= cluster.config.reserve_after;
            aged.then(|| (since, pod.seq, uid.clone()))
        };
        let found =
            (parked.groups()).filter_map(|group| group.pods.values().take(MOST_OF_CLASS).find_map(candidate));
        found.min().map(|(_, _, uid)| uid)
    }

    /// Returns the node with the smallest shortage among those that would fit the pod if enough of their pods ended.
    /// Avoids the pod's last reserved node if there is another, and nodes reserved for other aged pods.
    fn node_for(&self, uid: &str, cluster: &Cluster, nominations: &Nominations) -> Option<Arc<str>> {
        let class = &cluster.waiting.get(uid)?.class;
        let taken: BTreeSet<&Arc<str>> =
            self.kept.keys().filter_map(|uid| nominations.node_of(uid)).collect();
        let last = self.in_vain.get(uid).map(|(_, node)| node);
        let inventory = cluster.inventory();
        let rows = (0..inventory.len()).map(|at| (at, inventory.row(NodeId(at as u32))));
        let fitting = rows.filter(|(_, row)| could_take(class, row)).filter_map(|(at, row)| {
            let name = inventory.name(NodeId(at as u32));
            let missing = rules::shortage(&class.spec.usage, row);
            (!taken.contains(name)).then_some((
                last == Some(name),
                missing,
                Reverse(row.allocatable.cpu_milli),
                at,
            ))
        });
        let (.., at) = fitting.min()?;
        Some(inventory.name(NodeId(at as u32)).clone())
    }

    /// Returns whether this pod has a reservation due to aging on a node that could still take it.
    pub(super) fn is_kept(&self, uid: &str, node: NodeId, cluster: &Cluster) -> bool {
        let class = cluster.waiting.get(uid).map(|pod| &pod.class);
        self.kept.contains_key(uid)
            && class.is_some_and(|class| could_take(class, cluster.inventory().row(node)))
    }
}

/// Returns whether a node would take a pod of the class if its pods ended.
fn could_take(class: &Class, row: &Row) -> bool {
    if row.node.is_none() {
        return false;
    }
    let out = rules::rank_uncached(class, row).reasons();
    let empty =
        Row { requested: Default::default(), extended: None, ports: None, reserved: None, ..row.clone() };
    out.is_none_or(|reasons| reasons.resolvable_by_eviction())
        && rules::lacking(&class.spec.usage, &empty).is_empty()
}
