//! Binds requested by other clients: other schedulers and other replicas, whose bindings the guard reviews, and
//! kube-scheduler, whose extender berth is. Granted resources are *held* in the ledger, like an assumption, until the
//! pod is seen bound or deleted, or is read without a node after the request can no longer take effect.
//!
//! [`ForeignBinds`] reads the cluster and changes only itself; the scheduler charges the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::{Scheduler, State};
use crate::class::Class;
use crate::inventory::{GRANTED, NodeId};
use crate::placement::{BindOutcome, Binding, Truth};
use crate::quota::Lack;
use crate::rules::{Reasons, Standing};
use crate::sharded::ShardedMap;
use berth_model::{Holding, Pod};

/// Pods of other schedulers, and binds requested by other clients.
#[derive(Debug, Default)]
pub(super) struct ForeignBinds {
    /// Pods of other schedulers without a node, by uid. Empty unless they are tracked.
    pods: ShardedMap<Box<Pod>>,
    /// By uid.
    holds: BTreeMap<Arc<str>, Hold>,
    /// Holds on the previous node of a pod whose bind was then requested to another node. Keyed by a name made of uid
    /// and node, under which the ledger has the reservation.
    former: BTreeMap<Arc<str>, Hold>,
    /// By uid of a pod that this process binds itself: the time until which an allowed request of another client may still bind
    /// it to the same node.
    rivals: HashMap<Arc<str>, Duration>,
    /// Uids of the pods that kube-scheduler binds through the extender now.
    binds: BTreeSet<Arc<str>>,
}

#[derive(Debug, Clone)]
struct Hold {
    binding: Binding,
    /// Time from which the request can no longer take effect.
    until: Duration,
}

/// Who requests a bind from the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requester {
    /// This process.
    ThisProcess,
    /// Another client, which may be another replica.
    Other,
}

/// Answer of the guard to a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindReview {
    /// It fits, or was granted before, or the API server will reject it itself.
    Allowed,
    /// The pod is not cached: the caller must retry with the pod.
    Unknown,
    Refused(BindRefusal),
}

/// Answer to a bind request of kube-scheduler to its extender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtenderBind {
    /// Its resources are assumed: bind it, and report to [`Scheduler::extender_bind_finished`].
    Begin(Binding),
    /// The same bind is in flight: wait for it.
    InFlight,
    /// The pod is on that node.
    Done,
    /// The pod is not cached: the caller must retry with the pod.
    Unknown,
    Refused(BindRefusal),
}

/// Reason why a bind requested by another client is refused now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindRefusal {
    #[error("berth is binding the pod to node {0}")]
    OwnBind(Arc<str>),
    #[error("its resources were granted to other pods: {0}")]
    GrantedToOthers(String),
    #[error("node {0} is not in berth's cache")]
    UnknownNode(Arc<str>),
    #[error("the pod no longer fits node {node}: {why}")]
    NoLongerFits { node: Arc<str>, why: String },
    #[error("the pod no longer fits node {0}")]
    Conflict(Arc<str>),
    #[error("{}", .lack.message(.quota))]
    OverQuota { quota: Arc<str>, lack: Lack },
    #[error("this replica is not the leader; retry")]
    NotLeader,
    #[error("another binding of the pod to this node is in flight")]
    OtherBindInFlight,
    #[error("the pod is being bound to node {0}")]
    Binding(Arc<str>),
    #[error("the pod is bound to node {0}")]
    Bound(Arc<str>),
    #[error("berth schedules this pod itself because of its schedulerName")]
    OwnPod,
}

/// Numbers of pods of other schedulers and of their binds, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForeignCounts {
    pub pods: usize,
    pub holds: usize,
    pub binds: usize,
}

/// Numbers of binds whose outcome is not known, or not yet seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindsUnderWay {
    /// Requested by this process, of its own pods and of the extender, and writes of devices to claims before binds.
    pub requested: usize,
    /// Requested by other clients and allowed.
    pub held: usize,
    /// Charged pods that no watch has shown on their nodes yet.
    pub unseen: usize,
}

impl BindsUnderWay {
    /// Returns whether the outcome of all is known.
    pub fn are_settled(self) -> bool {
        self.requested == 0 && self.held == 0
    }
}

impl ForeignBinds {
    pub(super) fn counts(&self) -> ForeignCounts {
        ForeignCounts {
            pods: self.pods.len(),
            holds: self.holds.len() + self.former.len(),
            binds: self.binds.len(),
        }
    }

    /// Returns the number of assumptions in the ledger that belong to other clients.
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

    /// Records a pod of another scheduler without a node.
    pub(super) fn insert(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), Box::new(pod));
    }

    /// Removes a pod and its holds. Returns the names of its reservations on former nodes.
    fn remove(&mut self, uid: &str) -> Vec<Arc<str>> {
        self.pods.remove(uid);
        self.holds.remove(uid);
        self.rivals.remove(uid);
        let former = self.former_of(uid);
        former.iter().for_each(|name| {
            self.former.remove(name);
        });
        former
    }

    /// Returns the names of the pod's reservations on former nodes.
    fn former_of(&self, uid: &str) -> Vec<Arc<str>> {
        if self.former.is_empty() {
            return Vec::new();
        }
        let first = former_name(uid, "");
        let names = self.former.range(first.clone()..).map(|(name, _)| name);
        names.take_while(|name| name.starts_with(&*first)).cloned().collect()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|pod| &**pod)
    }

    /// Returns what the ledger is to be charged with if the binding fits, or the final answer. `until`, `requester`: as
    /// for [`Scheduler::review`]; extends a hold for the same binding.
    fn assess(
        &mut self,
        cluster: &mut Cluster,
        binding: &Binding,
        pod: Option<&Pod>,
        until: Option<Duration>,
        requester: Requester,
    ) -> Result<(Holding, NodeId), BindReview> {
        let (uid, node) = (&binding.uid, &binding.node);
        let refused = |refusal| Err(BindReview::Refused(refusal));
        if let Some(charge) = cluster.ledger.charge_of(uid) {
            let host = cluster.inventory().name(charge.node);
            if !charge.assumed {
                // It is bound: the API server decides.
                return Err(BindReview::Allowed);
            }
            if host == node {
                return Err(self.assess_again(cluster, uid, until, requester));
            }
            if !self.holds(uid) {
                return refused(BindRefusal::OwnBind(host.clone()));
            }
        }
        let holding = match cluster.waiting.get(uid) {
            // It may not have been classified since its quota changed.
            Some(waiting) => cluster.objects.holding(&waiting.source),
            None => match pod.or(self.pods.get(uid).map(|pod| &**pod)) {
                Some(pod) => cluster.objects.holding(pod),
                None => return Err(BindReview::Unknown),
            },
        };
        let Some(id) = cluster.existing(node) else {
            return refused(BindRefusal::UnknownNode(node.clone()));
        };
        if let Some(why) = cluster.lacks(id, &holding, uid) {
            return refused(BindRefusal::NoLongerFits { node: node.clone(), why });
        }
        if let Some(why) = device_of_others(cluster, &holding, uid) {
            return refused(BindRefusal::NoLongerFits { node: node.clone(), why });
        }
        // Pods placed by other replicas count against quotas; pods of other schedulers do not. One that is held counts already.
        let counted =
            cluster.ledger.charge_of(uid).is_some_and(|charge| charge.holding.quota == holding.quota);
        let limited = cluster.waiting.contains_key(uid) && !counted;
        match limited.then(|| over_quota(cluster, &holding)).flatten() {
            Some(refusal) => refused(refusal),
            None => Ok((holding, id)),
        }
    }

    /// Returns whether a request of another client to bind this pod was granted, and its outcome is unknown.
    pub(super) fn is_granted(&self, uid: &str) -> bool {
        self.holds.contains_key(uid) || self.binds.contains(uid) || !self.former_of(uid).is_empty()
    }

    /// Reviews a binding whose node is charged already.
    fn assess_again(
        &mut self,
        cluster: &Cluster,
        uid: &Arc<str>,
        until: Option<Duration>,
        requester: Requester,
    ) -> BindReview {
        if let Some(hold) = self.holds.get_mut(uid) {
            // This request may take effect later than the one before.
            hold.until = until.map_or(hold.until, |until| until.max(hold.until));
            return BindReview::Allowed;
        }
        let Some(charge) = cluster.ledger.charge_of(uid) else {
            return BindReview::Unknown;
        };
        // We assumed it ourselves, maybe before this replica was the guard; the previous guard may have granted the
        // resources to another pod.
        if let Some(lacking) = cluster.lacks(charge.node, &charge.holding, uid) {
            return BindReview::Refused(BindRefusal::GrantedToOthers(lacking));
        }
        if let Some(until) = until.filter(|_| requester == Requester::Other) {
            let known = self.rivals.entry(uid.clone()).or_default();
            *known = until.max(*known);
        }
        BindReview::Allowed
    }

    /// Our own bind has ended: returns the time until which a request of another client for the same node may still take
    /// effect, if there is one.
    pub(super) fn take_rival(&mut self, uid: &str, now: Duration) -> Option<Duration> {
        self.rivals.remove(uid).filter(|until| *until > now)
    }

    /// Makes the pod's hold that of a former node. Returns the name and the node of its new reservation.
    fn retire_hold(&mut self, uid: &str) -> Option<(Arc<str>, Arc<str>)> {
        let hold = self.holds.remove(uid)?;
        let node = hold.binding.node.clone();
        let name: Arc<str> = former_name(uid, &node);
        self.former.insert(name.clone(), hold);
        Some((name, node))
    }

    /// Ends the pod's hold if it is on this node and its request could no longer take effect at this time.
    fn end_hold(&mut self, uid: &str, node: &str, at: Duration) -> bool {
        let ends = |hold: &Hold| *hold.binding.node == *node && hold.until <= at;
        let has_ended = self.holds.get(uid).is_some_and(ends);
        if has_ended {
            self.holds.remove(uid);
        }
        has_ended
    }

    /// Ends the hold of this name on a former node if its request could no longer take effect at this time.
    fn end_former(&mut self, name: &str, at: Duration) -> bool {
        let has_ended = self.former.get(name).is_some_and(|hold| hold.until <= at);
        if has_ended {
            self.former.remove(name);
        }
        has_ended
    }
}

/// Returns the name of the pod's reservation on a former node.
pub(super) fn former_name(uid: &str, node: &str) -> Arc<str> {
    format!("{uid} on {node}").into()
}

/// Returns which device of the pod's claims another pod uses: two schedulers have allocated it to two claims, and the first whose
/// pod gets a node keeps it.
pub(super) fn device_of_others(cluster: &Cluster, holding: &Holding, uid: &str) -> Option<String> {
    let is_placed = |user: &str| user != uid && cluster.ledger.charge_of(user).is_some();
    holding.devices.iter().flat_map(|claims| claims.iter()).find_map(|claim| {
        let (device, other) = cluster.objects.devices.rival(claim, &is_placed)?;
        let (pool, other) = (&device.pool, format!("{}/{}", other.namespace, other.name));
        Some(format!(
            "device {}/{}/{} is used by resource claim {other}",
            pool.driver, pool.name, device.device
        ))
    })
}

fn over_quota(cluster: &Cluster, holding: &Holding) -> Option<BindRefusal> {
    let quota = holding.quota.as_ref();
    let lack = cluster.over_quota(quota, &holding.usage)?;
    Some(BindRefusal::OverQuota { quota: quota.cloned().unwrap_or_default(), lack })
}

impl Scheduler {
    pub fn foreign_counts(&self) -> ForeignCounts {
        self.foreign.counts()
    }

    pub fn binds_under_way(&self) -> BindsUnderWay {
        let foreign = self.foreign.counts();
        BindsUnderWay {
            requested: self.binds() + foreign.binds + self.cluster.objects.devices.unsettled(),
            held: foreign.holds,
            unseen: self.cluster.ledger.unseen(),
        }
    }

    /// Checks whether `binding`, requested from the API server by any client, fits; if so, holds its resources. `until`
    /// is the time from which the request can no longer take effect; `None`: it never takes effect (dry run), and
    /// nothing is held. `pod` is the pod if the caller has just read it.
    pub fn review(
        &mut self,
        binding: &Binding,
        pod: Option<&Pod>,
        until: Option<Duration>,
        requester: Requester,
    ) -> BindReview {
        match self.foreign.assess(&mut self.cluster, binding, pod, until, requester) {
            Err(review) => review,
            Ok((holding, node)) => {
                if let Some(until) = until {
                    self.hold(binding, holding, node, until);
                }
                BindReview::Allowed
            }
        }
    }

    fn hold(&mut self, binding: &Binding, holding: Holding, node: NodeId, until: Duration) {
        let uid = &binding.uid;
        // Of two requests to one node, the later one counts.
        let again = former_name(uid, &binding.node);
        let before = self.foreign.former.remove(&again);
        let until = before.as_ref().map_or(until, |before| until.max(before.until));
        if before.is_some() {
            self.cluster.ledger.reserve(&again, None);
        }
        if let Some((name, former)) = self.foreign.retire_hold(uid) {
            // The earlier request may still be carried out; the first one to take effect wins.
            self.discharge(uid);
            self.cluster.ledger.reserve(&name, Some((&former, GRANTED, &holding.usage)));
            self.note_reservations();
        }
        if self.cluster.ledger.commit(uid, holding, node, |_| true).is_ok() {
            self.foreign.holds.insert(uid.clone(), Hold { binding: binding.clone(), until });
            self.wait_held(uid);
        }
    }

    /// Leaves the room of our own bind, which has failed, to the request of another client that may take effect until then.
    pub(super) fn leave_to_rival(&mut self, binding: &Binding, until: Duration) {
        self.foreign.holds.insert(binding.uid.clone(), Hold { binding: binding.clone(), until });
        self.wait_held(&binding.uid);
    }

    /// Lets a pod of this scheduler wait for the outcome of another replica's bind.
    pub(super) fn wait_held(&mut self, uid: &Arc<str>) {
        self.withdraw(uid);
        self.leave_crowd(uid);
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Held;
        }
    }

    /// Returns the holds whose request can no longer take effect: read each pod, and report to
    /// [`Scheduler::held_pod_read`].
    pub fn holds_due(&self, now: Duration) -> Vec<Binding> {
        let all = self.foreign.holds.values().chain(self.foreign.former.values());
        all.filter(|hold| hold.until <= now).map(|hold| hold.binding.clone()).collect()
    }

    /// Applies the pod as read from the store at some time after `asked`, for a hold that was due then. A hold that a later
    /// request has extended or made anew stays: that request may still take effect.
    pub fn held_pod_read(&mut self, binding: &Binding, truth: &Truth, asked: Duration, now: Duration) {
        let (uid, node) = (&binding.uid, &binding.node);
        if matches!(truth, Truth::Unreadable(_)) {
            return;
        }
        if let Truth::BoundTo(host) = truth {
            // Without a charge, a hold on a former node keeps the room until the watch reports the pod.
            if self.move_charge(uid, host) {
                self.forget_foreign(uid);
                if self.cluster.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Held) {
                    self.remove(uid);
                }
            }
            return self.wake_for_parked();
        }
        let former = former_name(uid, node);
        let has_left = self.foreign.end_former(&former, asked);
        if has_left {
            self.cluster.ledger.reserve(&former, None);
            self.note_reservations();
        }
        let is_free = self.foreign.end_hold(uid, node, asked);
        if is_free {
            self.discharge(uid);
        }
        match truth {
            Truth::Gone if is_free || has_left => self.delete_pod(uid),
            Truth::Unbound { .. } if is_free => self.requeue_held(uid, now),
            _ => {}
        }
        self.wake_for_parked();
    }

    /// Removes a pod that is bound or gone, with its holds: no request for it can take effect any more.
    pub(super) fn forget_foreign(&mut self, uid: &str) {
        let former = self.foreign.remove(uid);
        for name in &former {
            self.cluster.ledger.reserve(name, None);
        }
        if !former.is_empty() {
            self.note_reservations();
        }
    }

    /// Charges the pod's current charge, if any, to the node it is bound to.
    pub(super) fn move_charge(&mut self, uid: &Arc<str>, node: &Arc<str>) -> bool {
        let Some(charge) = self.cluster.ledger.charge_of(uid) else {
            return false;
        };
        let holding = charge.holding.clone();
        self.cluster.ledger.bound(uid, node, holding);
        true
    }

    /// Queues a pod of this scheduler that another replica did not bind after all.
    fn requeue_held(&mut self, uid: &Arc<str>, now: Duration) {
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
    pub fn begin_extender_bind(&mut self, wanted: &Binding, pod: Option<&Pod>) -> ExtenderBind {
        let (uid, node) = (&wanted.uid, &wanted.node);
        let refused = ExtenderBind::Refused;
        if !self.synced() || !self.cluster.leading {
            return refused(BindRefusal::NotLeader);
        }
        if let Some(charge) = self.cluster.ledger.charge_of(uid) {
            let (host, assumed) = (self.inventory().name(charge.node).clone(), charge.assumed);
            return match (host == *node, assumed) {
                (true, false) => ExtenderBind::Done,
                (true, true) if self.foreign.binds.contains(uid) => ExtenderBind::InFlight,
                (true, true) => refused(BindRefusal::OtherBindInFlight),
                (false, true) => refused(BindRefusal::Binding(host)),
                (false, false) => refused(BindRefusal::Bound(host)),
            };
        }
        if self.cluster.waiting.contains_key(uid) {
            return refused(BindRefusal::OwnPod);
        }
        let Some(pod) = self.foreign.pods.get(uid).map(|pod| &**pod).or(pod).cloned() else {
            return ExtenderBind::Unknown;
        };
        let class = self.class_of(&pod);
        let holding = self.cluster.objects.holding(&pod);
        let Some(id) = self.cluster.existing(node) else {
            return refused(BindRefusal::UnknownNode(node.clone()));
        };
        if let Some(reasons) = self.cluster.rank_on(&class, id, uid, &[], false).reasons() {
            self.stats.conflicts += 1;
            let why = reasons.texts(&class).join(", ");
            return refused(BindRefusal::NoLongerFits { node: node.clone(), why });
        }
        if let Some(refusal) = over_quota(&self.cluster, &holding) {
            return refused(refusal);
        }
        match self.cluster.ledger.commit(uid, holding, id, |_| true) {
            Ok(host) => {
                self.foreign.binds.insert(uid.clone());
                ExtenderBind::Begin(Binding { node: host, ..wanted.clone() })
            }
            Err(_) => refused(BindRefusal::Conflict(node.clone())),
        }
    }

    /// Settles the bind requested by [`ExtenderBind::Begin`]. Must be called exactly once per request.
    pub fn extender_bind_finished(&mut self, binding: &Binding, outcome: &BindOutcome) {
        let uid = &binding.uid;
        self.foreign.binds.remove(uid);
        match outcome {
            BindOutcome::Bound => {
                self.cluster.ledger.confirm(uid);
                self.foreign.pods.remove(uid);
            }
            BindOutcome::BoundElsewhere(node) => {
                self.move_charge(uid, node);
            }
            BindOutcome::Vanished | BindOutcome::Refused(_) => {
                // Unless a watch has seen it bound in the meantime.
                if self.cluster.ledger.charge_of(uid).is_some_and(|charge| charge.assumed) {
                    self.discharge(uid);
                }
                if *outcome == BindOutcome::Vanished {
                    self.forget_foreign(uid);
                }
            }
        }
        self.wake_for_parked();
    }

    /// Returns the standing of the node that another scheduler has nominated for this pod, ignoring the pod's own
    /// reservation.
    pub fn nominated(&self, class: &Class, pod: &Pod) -> Option<(NodeId, Result<Standing, Reasons>)> {
        let id = self.cluster.existing(pod.nominated_node.as_ref()?)?;
        let key = self.cluster.rank_on(class, id, &pod.uid, &[], false);
        Some((id, key.standing(class.placement.layout()).ok_or(key.reasons().unwrap_or(Reasons::NONE))))
    }

    /// Returns whether the pod of this class may go to `node` once `victims` (by uid) have left it. Rules about pods of
    /// other nodes are left to the caller.
    pub fn admits_without(&self, class: &Class, pod: &Pod, node: &str, victims: &[&str]) -> bool {
        let id = self.cluster.existing(node);
        id.is_some_and(|id| self.cluster.rank_on(class, id, &pod.uid, victims, false).is_valid())
    }
}
