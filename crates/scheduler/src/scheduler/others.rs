//! Binds requested by other schedulers, by other replicas (their bindings are reviewed by the guard), and by
//! kube-scheduler, whose extender berth is. Granted resources are *held* in the ledger, like an assumption, until the
//! pod is seen bound or deleted, or is read without a node after the request can no longer take effect.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Scheduler, State};
use crate::class::Class;
use crate::inventory::NodeId;
use crate::placement::{Binding, Outcome, Truth};
use crate::rules::{self, Reasons, Standing};
use berth_model::{Holding, Pod};

/// Pods of other schedulers, and holds for binds requested by other clients.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Pods of other schedulers without a node, by uid. Empty unless they are tracked.
    pods: HashMap<Arc<str>, Box<Pod>>,
    /// By uid.
    holds: BTreeMap<Arc<str>, Hold>,
    /// Holds on the previous node of a pod whose bind was then requested to another node. Keyed by a name made of uid
    /// and node, under which the ledger has the reservation.
    former: BTreeMap<Arc<str>, Hold>,
    /// Binds requested by kube-scheduler that are in flight, by uid.
    binds: BTreeMap<Arc<str>, Arc<str>>,
}

#[derive(Debug, Clone)]
struct Hold {
    binding: Binding,
    /// Time from which the request can no longer take effect.
    until: Duration,
}

/// Answer of the guard to a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Review {
    /// It fits, or was granted before, or the API server will reject it itself.
    Allowed,
    /// The pod is not cached: the caller must retry with the pod.
    Unknown,
    /// It does not fit now; the message is for the sender.
    Refused(String),
}

/// Answer to a bind request of kube-scheduler to its extender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Its resources are assumed: bind it, and report to [`Scheduler::asked_bind_finished`].
    Bind(Binding),
    /// The same bind is in flight: wait for it.
    UnderWay,
    /// The pod is on that node.
    Done,
    /// The pod is not cached: the caller must retry with the pod.
    Unknown,
    Refused(String),
}

/// Numbers of pods of other schedulers and of their binds, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OthersCounts {
    pub pods: usize,
    pub holds: usize,
    pub binds: usize,
}

impl Others {
    pub(super) fn counts(&self) -> OthersCounts {
        OthersCounts {
            pods: self.pods.len(),
            holds: self.holds.len() + self.former.len(),
            binds: self.binds.len(),
        }
    }

    /// Returns the number of assumptions in the ledger that belong to other schedulers.
    pub(super) fn assumed(&self) -> usize {
        self.holds.len() + self.binds.len()
    }

    pub(super) fn holds(&self, uid: &str) -> bool {
        self.holds.contains_key(uid)
    }

    /// Returns whether the reservation of this name is a hold on a former node, not one of a pod in the API server.
    pub(super) fn is_former(&self, name: &str) -> bool {
        self.former.contains_key(name)
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.holds.remove(uid);
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|pod| &**pod)
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pods.keys()
    }
}

impl Scheduler {
    pub fn others(&self) -> OthersCounts {
        self.others.counts()
    }

    /// Returns the number of binds, of this and other schedulers, that are charged and whose outcome is unknown.
    pub fn binds_under_way(&self) -> usize {
        let others = self.others();
        self.binds() + others.binds + others.holds
    }

    /// Records a pod of another scheduler without a node.
    pub(super) fn note_other(&mut self, pod: Pod) {
        if self.cluster.config.knows_others && !pod.deleting {
            self.others.pods.insert(pod.uid.clone(), Box::new(pod));
        }
    }

    /// Checks whether `binding`, requested from the API server by any client, fits; if so, holds its resources. `until`
    /// is the time from which the request can no longer take effect; `None`: it never takes effect (dry run), and
    /// nothing is held. `pod` is the pod if the caller has just read it.
    pub fn review(&mut self, binding: &Binding, pod: Option<&Pod>, until: Option<Duration>) -> Review {
        let (uid, node) = (&binding.uid, &binding.node);
        if let Some(charge) = self.cluster.ledger.charge_of(uid) {
            let host = self.inventory().name(charge.node).clone();
            let held = self.others.holds(uid);
            if !charge.assumed {
                // It is bound: the API server decides.
                return Review::Allowed;
            }
            if host == *node {
                return self.review_again(uid, until);
            }
            if !held {
                return Review::Refused(format!("berth is binding the pod to node {host}"));
            }
        }
        let Some(holding) = self.holding_of(uid, pod) else {
            return Review::Unknown;
        };
        let Some(id) = self.cluster.existing(node) else {
            return Review::Refused(format!("node {node} is not in berth's cache"));
        };
        if let Some(why) = self.cluster.lacks(id, &holding) {
            return Review::Refused(format!("the pod no longer fits node {node}: {why}"));
        }
        // Pods placed by other replicas count against quotas; pods of other schedulers do not.
        if self.cluster.waiting.contains_key(uid)
            && let Some(lack) = self.cluster.over_quota(holding.quota.as_ref(), &holding.usage)
        {
            return Review::Refused(lack.message(holding.quota.as_deref().unwrap_or_default()));
        }
        if let Some(until) = until {
            self.hold(binding, holding, id, until);
        }
        Review::Allowed
    }

    /// Reviews a binding whose node is charged already.
    fn review_again(&mut self, uid: &Arc<str>, until: Option<Duration>) -> Review {
        if let Some(hold) = self.others.holds.get_mut(uid) {
            // This request may take effect later than the one before.
            hold.until = until.map_or(hold.until, |until| until.max(hold.until));
            return Review::Allowed;
        }
        let Some(charge) = self.cluster.ledger.charge_of(uid) else {
            return Review::Unknown;
        };
        // We assumed it ourselves, maybe before this replica was the guard; the previous guard may have granted the
        // resources to another pod.
        let mut row = self.inventory().row(charge.node).clone();
        row.discharge(&charge.holding);
        let lacking = rules::lacking(&charge.holding.usage, &row);
        match lacking.is_empty() {
            true => Review::Allowed,
            false => {
                Review::Refused(format!("its resources were granted to other pods: {}", lacking.join(", ")))
            }
        }
    }

    /// Returns the standing of the node that another scheduler has nominated for this pod, ignoring the pod's own
    /// reservation.
    pub fn nominated(&self, class: &Class, pod: &Pod) -> Option<(NodeId, Result<Standing, Reasons>)> {
        let id = self.cluster.existing(pod.nominated_node.as_ref()?)?;
        let key = self.cluster.rank_there(class, id, &pod.uid, &[]);
        Some((id, key.standing(class.placement.layout()).ok_or(key.reasons().unwrap_or(Reasons::NONE))))
    }

    /// Returns whether the pod of this class may go to `node` once `victims` (by uid) have left it. Rules about pods of
    /// other nodes are left to the caller.
    pub fn admits_without(&self, class: &Class, pod: &Pod, node: &str, victims: &[&str]) -> bool {
        self.cluster
            .existing(node)
            .is_some_and(|id| self.cluster.rank_there(class, id, &pod.uid, victims).is_valid())
    }

    fn holding_of(&mut self, uid: &Arc<str>, pod: Option<&Pod>) -> Option<Holding> {
        if let Some(waiting) = self.cluster.waiting.get(uid) {
            return Some(waiting.holding.clone());
        }
        let known = self.others.pods.get(uid);
        let pod = pod.or(known.map(|pod| &**pod))?;
        Some(self.cluster.objects.holding(pod))
    }

    fn hold(&mut self, binding: &Binding, holding: Holding, node: NodeId, until: Duration) {
        let uid = &binding.uid;
        if let Some(former) = self.others.holds.remove(uid) {
            // The earlier request may still be carried out; the first one to take effect wins.
            let key: Arc<str> = format!("{uid} on {}", former.binding.node).into();
            self.discharge(uid);
            self.cluster.ledger.reserve(&key, Some((&former.binding.node, i32::MAX, &holding.usage)));
            self.others.former.insert(key, former);
            self.note_reservations();
        }
        if self.cluster.ledger.commit(uid, holding, node, |_| true).is_ok() {
            self.others.holds.insert(uid.clone(), Hold { binding: binding.clone(), until });
            self.wait_held(uid);
        }
    }

    /// Lets a pod of this scheduler wait for the outcome of another replica's bind.
    pub(super) fn wait_held(&mut self, uid: &Arc<str>) {
        self.withdraw(uid);
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Held;
        }
    }

    /// Returns the holds whose request can no longer take effect: read each pod, and report to
    /// [`Scheduler::held_pod_read`].
    pub fn holds_due(&self, now: Duration) -> Vec<Binding> {
        let all = self.others.holds.values().chain(self.others.former.values());
        all.filter(|hold| hold.until <= now).map(|hold| hold.binding.clone()).collect()
    }

    /// Applies the pod as read from the store for a hold that is due: its request can no longer take effect.
    pub fn held_pod_read(&mut self, binding: &Binding, truth: &Truth, now: Duration) {
        let (uid, node) = (&binding.uid, &binding.node);
        if matches!(truth, Truth::Unreadable(_)) {
            return;
        }
        let former: Arc<str> = format!("{uid} on {node}").into();
        if self.others.former.remove(&former).is_some() {
            self.cluster.ledger.reserve(&former, None);
            self.note_reservations();
        }
        if let Truth::BoundTo(host) = truth {
            if let Some(charge) = self.cluster.ledger.charge_of(uid) {
                let holding = charge.holding.clone();
                self.cluster.ledger.bound(uid, host, holding);
                self.others.forget(uid);
            }
        } else if self.others.holds.get(uid).is_some_and(|hold| hold.binding.node == *node) {
            self.others.holds.remove(uid);
            self.discharge(uid);
            match truth {
                Truth::Gone => self.delete_pod(uid),
                _ => self.wait_again(uid, now),
            }
        }
        self.wake_for_parked();
    }

    /// Queues a pod of this scheduler that another replica did not bind after all.
    fn wait_again(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid).filter(|waiting| waiting.state == State::Held)
        else {
            return;
        };
        waiting.state = State::Gated;
        let pod = waiting.news.take().unwrap_or_else(|| waiting.source.clone());
        self.remove(uid);
        self.apply_pod(*pod, now);
    }

    /// Handles a bind request of kube-scheduler to its extender.
    pub fn asked_to_bind(&mut self, wanted: &Binding, pod: Option<&Pod>) -> Asked {
        let (uid, node) = (&wanted.uid, &wanted.node);
        if !self.synced() || !self.cluster.leading {
            return Asked::Refused("this replica is not the leader; retry".to_owned());
        }
        if let Some(charge) = self.cluster.ledger.charge_of(uid) {
            let (host, assumed) = (self.inventory().name(charge.node).clone(), charge.assumed);
            return match (host == *node, assumed) {
                (true, false) => Asked::Done,
                (true, true) if self.others.binds.contains_key(uid) => Asked::UnderWay,
                (true, true) => {
                    Asked::Refused("another binding of the pod to this node is in flight".to_owned())
                }
                (false, true) => Asked::Refused(format!("the pod is being bound to node {host}")),
                (false, false) => Asked::Refused(format!("the pod is bound to node {host}")),
            };
        }
        if self.cluster.waiting.contains_key(uid) {
            return Asked::Refused("berth schedules this pod itself because of its schedulerName".to_owned());
        }
        let Some(pod) = self.others.pods.get(uid).map(|pod| &**pod).or(pod).cloned() else {
            return Asked::Unknown;
        };
        let class = self.class_of(&pod);
        let holding = self.cluster.objects.holding(&pod);
        let Some(id) = self.cluster.existing(node) else {
            return Asked::Refused(format!("node {node} is not in berth's cache"));
        };
        if let Some(reasons) = self.cluster.rank_there(&class, id, uid, &[]).reasons() {
            self.stats.conflicts += 1;
            let why = reasons.texts(&class).join(", ");
            return Asked::Refused(format!("the pod no longer fits node {node}: {why}"));
        }
        if let Some(lack) = self.cluster.over_quota(holding.quota.as_ref(), &holding.usage) {
            return Asked::Refused(lack.message(holding.quota.as_deref().unwrap_or_default()));
        }
        match self.cluster.ledger.commit(uid, holding, id, |_| true) {
            Ok(host) => {
                let binding = Binding { node: host, ..wanted.clone() };
                self.others.binds.insert(uid.clone(), binding.node.clone());
                self.arrived(&pod.peer.identity);
                Asked::Bind(binding)
            }
            Err(_) => Asked::Refused(format!("the pod no longer fits node {node}")),
        }
    }

    /// Settles the bind requested by [`Asked::Bind`]. Must be called exactly once per request.
    pub fn asked_bind_finished(&mut self, binding: &Binding, outcome: &Outcome) {
        let uid = &binding.uid;
        self.others.binds.remove(uid);
        match outcome {
            Outcome::Bound => {
                self.cluster.ledger.confirm(uid);
                self.others.pods.remove(uid);
            }
            Outcome::BoundElsewhere(node) => {
                if let Some(charge) = self.cluster.ledger.charge_of(uid) {
                    let holding = charge.holding.clone();
                    self.cluster.ledger.bound(uid, node, holding);
                }
            }
            // Unless a watch has seen it bound in the meantime.
            Outcome::Vanished | Outcome::Refused(_) => {
                if self.cluster.ledger.charge_of(uid).is_some_and(|charge| charge.assumed) {
                    self.discharge(uid);
                }
            }
        }
        self.wake_for_parked();
    }
}
