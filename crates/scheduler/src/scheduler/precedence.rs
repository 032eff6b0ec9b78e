//! Precedence of more important pods: while one of them looks for a node or for victims, nothing less important takes
//! room that it would have to get back (kubernetes#72124).
//!
//! Agents work at the same time, so a less important pod could be committed to a node while another agent looks for
//! victims there: then both it and the victims would be evicted. Such a pod *yields*: it waits until the more important
//! one has a node, has nominated one, or has found no victims, and is tried again. It yields only to pods that arrived
//! before it was taken from its queue, and for a limited time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, GangTask, Scheduler, State, Waiting};
use crate::class::ClassId;
use crate::dispatch::Request;
use crate::gang::{GangPlan, UnboundMember};
use crate::inventory::NodeId;
use crate::preempt;
use berth_model::PreemptionPolicy;

/// A pod yields for at most this time since it was last queued.
const YIELD_MAX: Duration = Duration::from_secs(1);
/// Number of pods that are queued again at once.
const SLICE_MAX: usize = 64;

/// What a pod yields to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedent {
    /// The pod with this uid, which an agent places or is about to take.
    Pod(Arc<str>),
    /// A search for victims for pods of this class.
    Hunt(ClassId),
}

/// Pods that yield.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    /// Uids.
    by_precedent: BTreeMap<Precedent, BTreeSet<Arc<str>>>,
    /// Uids by the time at which they yield no longer.
    until: BTreeSet<(Duration, Arc<str>)>,
}

impl Yielding {
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    pub(super) fn contains(&self, to: &Precedent, uid: &str) -> bool {
        self.by_precedent.get(to).is_some_and(|pods| pods.contains(uid))
    }

    fn add(&mut self, to: Precedent, until: Duration, uid: &Arc<str>) {
        self.by_precedent.entry(to).or_default().insert(uid.clone());
        self.until.insert((until, uid.clone()));
    }

    pub(super) fn remove(&mut self, to: &Precedent, until: Duration, uid: &Arc<str>) {
        if let Some(pods) = self.by_precedent.get_mut(to) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_precedent.remove(to);
            }
        }
        self.until.remove(&(until, uid.clone()));
    }
}

impl Scheduler {
    /// Lets a pod for which agent number `at` chose this node wait if a more important pod is looking there. Returns
    /// whether it does.
    pub(super) fn yields(&mut self, at: usize, uid: &Arc<str>, node: NodeId, now: Duration) -> bool {
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return false;
        };
        let until = pod.yields_until.unwrap_or(now + YIELD_MAX);
        if !self.cluster.config.preemption || now >= until {
            return false;
        }
        let Some(to) = self.precedent_of(at, pod, node) else {
            return false;
        };
        self.yielding.add(to.clone(), until, uid);
        if let Some(pod) = self.cluster.waiting.get_mut(uid) {
            pod.yields_until = Some(until);
            // It did not conflict, and will be taken again.
            pod.tries = pod.tries.saturating_sub(1);
            pod.state = State::Yielding(to, until);
        }
        self.stats.yields += 1;
        true
    }

    /// Puts a gang off for a moment if a more important pod is looking where the plan of agent number `at` places a
    /// member. Returns whether it does.
    pub(super) fn gang_yields(&mut self, at: usize, task: &GangTask, plan: &GangPlan, now: Duration) -> bool {
        let members = || task.wanted.members.iter();
        let pod = |member: &UnboundMember| self.cluster.waiting.get(&member.uid);
        let late = members().filter_map(pod).any(|pod| pod.yields_until.is_some_and(|until| now >= until));
        if !self.cluster.config.preemption || late {
            return false;
        }
        let places = plan.places.iter().map(|(member, node)| (&task.wanted.members[*member], *node));
        let mut found = places.filter_map(|(member, node)| self.precedent_of(at, pod(member)?, node));
        if found.next().is_none() {
            return false;
        }
        for member in members() {
            if let Some(pod) = self.cluster.waiting.get_mut(&member.uid) {
                pod.yields_until.get_or_insert(now + YIELD_MAX);
            }
        }
        self.stats.yields += 1;
        true
    }

    /// Returns what a pod must yield to that would take room on this node. Bounded by the agents and some hunts.
    fn precedent_of(&self, at: usize, pod: &Waiting, node: NodeId) -> Option<Precedent> {
        let row = self.inventory().row(node);
        let first = |other: &Waiting| {
            other.priority > pod.priority
                && other.seq <= pod.taken_after
                && other.policy == PreemptionPolicy::PreemptLowerPriority
                && preempt::stands_in_the_way(&pod.holding, &other.holding.usage, other.priority, row)
        };
        let others = (0..self.dispatcher.agents()).filter(|agent| *agent != at);
        let mut current = others.filter_map(|agent| self.dispatcher.current(agent, pod.priority));
        let placing = |uid: &&Arc<str>| {
            let waiting = self.cluster.waiting.get(uid);
            waiting.is_some_and(|other| other.state.is_tried() && first(other))
        };
        if let Some(uid) = current.find(placing) {
            return Some(Precedent::Pod(uid.clone()));
        }
        let mut hunting = self.preemption.looking_at(node, pod.priority, &self.parked);
        let found = hunting.find(|uid| self.cluster.waiting.get(uid).is_some_and(first))?;
        Some(Precedent::Hunt(self.cluster.waiting.get(found)?.class.id))
    }

    /// Queues some pods again for which what they yielded to is decided. If more are left, an agent is woken to carry
    /// on.
    pub(super) fn end_yielding(&mut self, now: Duration) {
        let late = self.yielding.until.iter().take_while(|(until, _)| *until <= now);
        let mut ended: Vec<Arc<str>> = late.take(SLICE_MAX).map(|(_, uid)| uid.clone()).collect();
        let mut moved: Vec<(Arc<str>, Precedent)> = Vec::new();
        for (to, pods) in &self.yielding.by_precedent {
            let room = SLICE_MAX.saturating_sub(ended.len() + moved.len());
            match self.still(to) {
                None => ended.extend(pods.iter().take(room).cloned()),
                Some(now) if now != *to => {
                    moved.extend(pods.iter().take(room).map(|uid| (uid.clone(), now.clone())));
                }
                Some(_) => {}
            }
        }
        if ended.len() + moved.len() == SLICE_MAX {
            self.actions.push(Action::WakeAgent(0));
        }
        for (uid, to) in moved {
            self.yield_to(&uid, to);
        }
        ended.sort_by_cached_key(|uid| self.cluster.waiting.get(uid).map(Waiting::place));
        ended.dedup();
        for uid in ended {
            self.try_again(&uid, None, now);
        }
    }

    /// Returns what is looking for this precedent now; `None`: it is decided.
    fn still(&self, to: &Precedent) -> Option<Precedent> {
        match to {
            Precedent::Hunt(class) => {
                let parked = self.parked.get(*class).is_some();
                (parked && self.preemption.hunts(*class)).then(|| to.clone())
            }
            Precedent::Pod(uid) => {
                let pod = self.cluster.waiting.get(uid)?;
                let class = pod.class.id;
                let hunts = || !self.preemption.has_nominated(uid) && self.preemption.hunts(class);
                match pod.state {
                    State::Parked => hunts().then_some(Precedent::Hunt(class)),
                    _ => pod.state.is_tried().then(|| to.clone()),
                }
            }
        }
    }

    /// Lets a pod that yields yield to this.
    fn yield_to(&mut self, uid: &Arc<str>, to: Precedent) {
        let Some(pod) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        if let State::Yielding(before, until) = &mut pod.state {
            self.yielding.remove(before, *until, uid);
            self.yielding.add(to.clone(), *until, uid);
            *before = to;
        }
    }

    /// Queues a pod again that an agent tried, with its place. `but`: at another agent than this one, if possible.
    pub(super) fn try_again(&mut self, uid: &Arc<str>, but: Option<usize>, now: Duration) {
        let Some(pod) = self.cluster.waiting.get(uid) else {
            return;
        };
        let (class, place) = (pod.class.clone(), pod.place());
        if let State::Yielding(to, until) = &pod.state {
            self.yielding.remove(to, *until, uid);
        }
        let probe = self.parked.get(class.id).map(|group| group.probe.as_ref() == Some(uid));
        if probe == Some(false) {
            return self.park(uid, now);
        }
        let request = Request::of_pod(uid, &class);
        let assigned = self.dispatcher.assign_request(request, place, but, now);
        if let Some(pod) = self.cluster.waiting.get_mut(uid) {
            pod.state = match probe {
                Some(_) => State::Woken(assigned.ticket),
                None => State::Queued(assigned.ticket),
            };
        }
        self.actions.push(Action::WakeAgent(assigned.wake));
    }
}
