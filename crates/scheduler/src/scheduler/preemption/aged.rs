//! Aging: a pod that has been unschedulable for long gets a reservation on one node, against pods of any priority,
//! until it fits there. So no pod starves behind a stream of higher-priority pods that take all freed resources.
//!
//! It is a nomination without victims that is not written to the API server. Few pods have one at a time, those that
//! have waited longest. A pod that is still not placed after the same time again loses it, and gets one on another node
//! in its next turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::class::Class;
use crate::inventory::{NodeId, Row};
use crate::rules;
use crate::scheduler::{Scheduler, State};

/// Number of nodes per additional reservation; there is always one.
const NODES_EACH: usize = 100;
/// Maximum number of pods checked per class.
const MOST_OF_CLASS: usize = 16;
/// Minimum interval between searches for aged pods.
const PACE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(in crate::scheduler) struct Aged {
    /// By uid: time of the reservation.
    kept: BTreeMap<Arc<str>, Duration>,
    /// Parked pods whose reservation did not help, by uid: its end, and its node.
    in_vain: BTreeMap<Arc<str>, (Duration, Arc<str>)>,
    next_look: Duration,
}

impl Scheduler {
    /// Returns the number of pods with a reservation due to aging.
    pub fn aged(&self) -> usize {
        self.preemption.aged.kept.len()
    }

    /// Gives reservations to pods that have waited long, and drops those that did not help in time.
    pub(in crate::scheduler) fn look_after_aged(&mut self, now: Duration) {
        let after = self.cluster.config.reserve_after;
        let aged = &mut self.preemption.aged;
        if after.is_zero() || !self.cluster.leading || now < aged.next_look {
            return;
        }
        aged.next_look = now + PACE;
        let nominations = &self.preemption.nominations;
        aged.kept.retain(|uid, _| nominations.contains_key(uid));
        let waiting = &self.cluster.waiting;
        aged.in_vain.retain(|uid, _| waiting.get(uid).is_some_and(|pod| pod.state == State::Parked));
        let over = aged.kept.iter().filter(|(_, since)| now.saturating_sub(**since) >= after);
        for uid in over.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.end_aged(&uid, now);
        }
        let most = 1 + self.inventory().node_count() / NODES_EACH;
        while self.preemption.aged.kept.len() < most
            && let Some(uid) = self.next_aged(after, now)
        {
            self.keep_for_aged(&uid, now);
        }
    }

    fn end_aged(&mut self, uid: &Arc<str>, now: Duration) {
        if let Some(node) = self.preemption.node_of(uid).cloned() {
            self.preemption.aged.in_vain.insert(uid.clone(), (now, node));
        }
        self.preemption.aged.kept.remove(uid);
        self.end_nomination(uid, false);
        self.hunt(uid);
    }

    /// Returns the pod, of the first ones of each class, that has waited longest since its arrival or its last
    /// reservation.
    fn next_aged(&self, after: Duration, now: Duration) -> Option<Arc<str>> {
        let aged = &self.preemption.aged;
        let candidate = |uid: &Arc<str>| {
            let pod = self.cluster.waiting.get(uid).filter(|_| !self.preemption.has_nominated(uid))?;
            let since = aged.in_vain.get(uid).map_or(pod.arrived, |(since, _)| *since);
            (now.saturating_sub(since) >= after).then(|| (since, pod.seq, uid.clone()))
        };
        let found = (self.parked.groups())
            .filter_map(|group| group.pods.values().take(MOST_OF_CLASS).find_map(candidate));
        found.min().map(|(_, _, uid)| uid)
    }

    fn keep_for_aged(&mut self, uid: &Arc<str>, now: Duration) {
        let node = self.node_for_aged(uid);
        match node {
            Some(node) => {
                self.keep_nominated(uid, &node, (false, true));
                self.preemption.aged.kept.insert(uid.clone(), now);
                self.preemption.due.insert(uid.clone());
                self.actions.push(crate::scheduler::Action::WakeAgent(0));
            }
            // No node would fit even if it were empty: retried after a while.
            None => {
                self.preemption.aged.in_vain.insert(uid.clone(), (now, Arc::from("")));
            }
        }
    }

    /// Returns the node with the smallest shortage among those that would fit the pod if enough of their pods ended.
    /// Avoids the pod's last reserved node if there is another, and nodes reserved for other aged pods.
    fn node_for_aged(&self, uid: &str) -> Option<Arc<str>> {
        let class = &self.cluster.waiting.get(uid)?.class;
        let aged = &self.preemption.aged;
        let taken: BTreeSet<&Arc<str>> =
            aged.kept.keys().filter_map(|uid| self.preemption.node_of(uid)).collect();
        let last = aged.in_vain.get(uid).map(|(_, node)| node);
        let inventory = self.inventory();
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
    pub(super) fn is_kept_for_aged(&self, uid: &str, node: NodeId) -> bool {
        let class = self.cluster.waiting.get(uid).map(|pod| &pod.class);
        self.preemption.aged.kept.contains_key(uid)
            && class.is_some_and(|class| could_take(class, self.inventory().row(node)))
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
