//! Limit of the classes that one namespace has waiting at once, by priority. Each class costs a ranked list to be built
//! and, if it fits nowhere, checks for as long as it waits: a tenant whose pods are all different must not take the agents'
//! time and memory from others.
//!
//! The pods of one namespace with one priority are a *crowd*. Up to the limit its classes take part: their pods are
//! queued as all others, by priority and arrival. The pods of further classes are held back, and take turns: at any time
//! one of them is being placed, of all crowds in rotation. One that fits nowhere is held back again, behind those of its
//! crowd that had no turn since, unless its class can take part by now. So none waits for ever because of the limit. A
//! class that was tried before is tried again only after something has changed, and such tries take a part of one agent's
//! time.
//!
//! [`Crowds`] changes only itself; the scheduler queues the pods that it returns.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::{Action, REPORT_LATEST, Scheduler, State, Waiting};
use crate::class::ClassId;
use crate::invariants::{Checked, ensure};
use crate::inventory::Revision;

/// Pods that enter, and crowds that are looked at, in one step.
const SLICE_MAX: usize = 64;
/// After a class was tried again, the next such turn comes after this many times as long.
const REST: u32 = 3;
/// Least time that a try counts as.
const TRY_MIN: Duration = Duration::from_micros(250);
/// Rest that is saved up at most while nothing is tried again.
const SAVED_MAX: Duration = Duration::from_millis(100);
/// Reason of the condition of a pod that is held back. Autoscalers add nodes for pods that are `Unschedulable`; of this one
/// nothing is known yet.
pub(super) const REASON: &str = "SchedulerError";

/// Namespace and priority.
type CrowdKey = (Arc<str>, i32);

/// All crowds.
#[derive(Debug, Default)]
pub(super) struct Crowds {
    all: HashMap<CrowdKey, Crowd>,
    /// Crowds with pods held back.
    holding: BTreeSet<CrowdKey>,
    /// Classes that take part, and have pods that were held back before they did.
    open: BTreeSet<(CrowdKey, ClassId)>,
    /// Number of pods held back.
    held: usize,
    turn: Option<Turn>,
    /// The crowd that was looked at last for a turn.
    last: Option<CrowdKey>,
    /// No class is tried again before.
    rests_until: Duration,
    /// Number of changes of quotas.
    quota_changes: u64,
    /// Pods held back that have no condition yet, and when they get it.
    unreported: VecDeque<(Duration, Arc<str>)>,
}

/// The waiting pods of one namespace with one priority.
#[derive(Debug, Default)]
struct Crowd {
    /// Classes with pods that are queued, being placed or parked.
    inside: BTreeMap<ClassId, Inside>,
    /// Number of classes that take part.
    taking_part: usize,
    /// Pods held back, by class.
    lanes: BTreeMap<ClassId, Lane>,
    /// The lanes in the order of their turns: by their last try, then by the arrival of their first pod.
    order: BTreeSet<(Option<u64>, u64, ClassId)>,
}

#[derive(Debug)]
struct Inside {
    pods: usize,
    /// It is there for a turn only.
    is_guest: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// In the order of their arrival.
    pods: BTreeMap<u64, Arc<str>>,
    /// [`Scheduler::changes`] when the class was last tried in vain.
    tried: Option<u64>,
}

/// The pod whose turn it is.
#[derive(Debug)]
struct Turn {
    uid: Arc<str>,
    since: Duration,
    /// Its class was tried before.
    again: bool,
}

impl Crowd {
    fn has_room(&self, most: usize) -> bool {
        self.taking_part < most
    }

    fn order_of(class: ClassId, lane: &Lane) -> Option<(Option<u64>, u64, ClassId)> {
        Some((lane.tried, *lane.pods.first_key_value()?.0, class))
    }

    /// Changes the lane of a class, and drops it if it is empty afterwards.
    fn change_lane<R>(&mut self, class: ClassId, change: impl FnOnce(&mut Lane) -> R) -> R {
        let lane = self.lanes.entry(class).or_default();
        if let Some(before) = Crowd::order_of(class, lane) {
            self.order.remove(&before);
        }
        let result = change(lane);
        match Crowd::order_of(class, lane) {
            Some(after) => drop(self.order.insert(after)),
            None => drop(self.lanes.remove(&class)),
        }
        result
    }
}

impl Crowds {
    /// Notes that quotas may have room for pods that they had none for.
    pub(super) fn quotas_changed(&mut self) {
        self.quota_changes += 1;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.holding.is_empty() && self.open.is_empty() && self.held == 0
    }

    /// Returns the number of pods held back.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns the namespaces with pods held back, by name.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        let mut last = None;
        self.holding.iter().map(|(namespace, _)| namespace).filter(move |at| last.replace(*at) != Some(*at))
    }

    /// Returns whether a pod of this class that comes now is held back.
    fn holds_back(&self, key: &CrowdKey, class: ClassId, most: usize) -> bool {
        let Some(crowd) = self.all.get(key) else {
            return false;
        };
        match crowd.inside.get(&class) {
            Some(inside) => inside.is_guest || crowd.lanes.contains_key(&class),
            None => !crowd.has_room(most) || !crowd.lanes.is_empty(),
        }
    }

    /// Counts a pod that is queued. Its class takes part if there is room, or is a guest.
    fn enter(&mut self, key: &CrowdKey, class: ClassId, most: usize) {
        let crowd = self.all.entry(key.clone()).or_default();
        let has_room = crowd.has_room(most);
        let inside = crowd.inside.entry(class).or_insert(Inside { pods: 0, is_guest: true });
        inside.pods += 1;
        if inside.is_guest && has_room {
            inside.is_guest = false;
            crowd.taking_part += 1;
            if crowd.lanes.contains_key(&class) {
                self.open.insert((key.clone(), class));
            }
        }
    }

    /// Ends the count of a pod that was queued.
    fn leave(&mut self, key: &CrowdKey, class: ClassId) {
        let Some(crowd) = self.all.get_mut(key) else {
            return;
        };
        let Some(inside) = crowd.inside.get_mut(&class) else {
            return;
        };
        inside.pods -= 1;
        if inside.pods == 0 {
            crowd.taking_part -= usize::from(!inside.is_guest);
            crowd.inside.remove(&class);
            self.open.remove(&(key.clone(), class));
        }
        self.forget_if_empty(key);
    }

    /// Holds a pod back. `tried`: its class was tried in vain at this number of changes.
    fn hold(&mut self, key: &CrowdKey, class: ClassId, pod: (u64, &Arc<str>), tried: Option<u64>) {
        let crowd = self.all.entry(key.clone()).or_default();
        let is_new = crowd.change_lane(class, |lane| {
            lane.tried = tried.or(lane.tried);
            lane.pods.insert(pod.0, pod.1.clone()).is_none()
        });
        self.held += usize::from(is_new);
        self.holding.insert(key.clone());
        if crowd.inside.get(&class).is_some_and(|inside| !inside.is_guest) {
            self.open.insert((key.clone(), class));
        }
    }

    /// Removes a pod that is held back.
    fn release(&mut self, key: &CrowdKey, class: ClassId, seq: u64) {
        let Some(crowd) = self.all.get_mut(key) else {
            return;
        };
        self.held -= usize::from(crowd.change_lane(class, |lane| lane.pods.remove(&seq).is_some()));
        if !crowd.lanes.contains_key(&class) {
            self.open.remove(&(key.clone(), class));
        }
        if crowd.lanes.is_empty() {
            self.holding.remove(key);
        }
        self.forget_if_empty(key);
    }

    fn forget_if_empty(&mut self, key: &CrowdKey) {
        if self.all.get(key).is_some_and(|crowd| crowd.inside.is_empty() && crowd.lanes.is_empty()) {
            self.all.remove(key);
        }
    }

    fn is_guest(&self, key: &CrowdKey, class: ClassId) -> bool {
        let inside = self.all.get(key).and_then(|crowd| crowd.inside.get(&class));
        inside.is_some_and(|inside| inside.is_guest)
    }

    /// Returns whether it is the turn of this pod.
    pub(super) fn has_turn(&self, uid: &str) -> bool {
        self.turn.as_ref().is_some_and(|turn| *turn.uid == *uid)
    }

    fn holds(&self, key: &CrowdKey, class: ClassId, seq: u64) -> Option<&Arc<str>> {
        self.all.get(key)?.lanes.get(&class)?.pods.get(&seq)
    }

    /// Returns the next pod to queue: of a class that takes part by now, or the next one in turn. `goes_on`: whether the
    /// turn of a pod is not over.
    fn next(
        &mut self,
        most: usize,
        changes: u64,
        now: Duration,
        goes_on: impl Fn(&str) -> bool,
    ) -> Option<Arc<str>> {
        if let Some((key, class)) = self.open.first() {
            return self.all.get(key)?.lanes.get(class)?.pods.first_key_value().map(|(_, uid)| uid.clone());
        }
        if let Some(turn) = self.turn.take_if(|turn| !goes_on(&turn.uid))
            && turn.again
        {
            let rest = now.saturating_sub(turn.since).max(TRY_MIN) * (REST + 1);
            self.rests_until = self.rests_until.max(now.saturating_sub(SAVED_MAX)) + rest;
        }
        if self.turn.is_some() {
            return None;
        }
        let later = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let after = self.holding.range((later, Bound::Unbounded));
        let before = self.holding.iter().take_while(|key| Some(*key) <= self.last.as_ref());
        let in_rotation = after.chain(before).take(SLICE_MAX);
        let mut looked_at = None;
        let found = in_rotation.inspect(|key| looked_at = Some((*key).clone())).find_map(|key| {
            let crowd = self.all.get(key)?;
            let (tried, seq, class) = *crowd.order.first()?;
            let may = crowd.has_room(most) || tried.is_none_or(|tried| tried < changes);
            let again = tried.is_some();
            let uid = crowd.lanes.get(&class)?.pods.get(&seq)?;
            (may && (!again || now >= self.rests_until)).then(|| (uid.clone(), again))
        });
        self.last = looked_at;
        let (uid, again) = found?;
        self.turn = Some(Turn { uid: uid.clone(), since: now, again });
        Some(uid)
    }

    /// Returns the pods that have been held back for long enough to be told, at most a slice.
    fn take_due(&mut self, now: Duration) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while due.len() < SLICE_MAX
            && let Some((_, uid)) = self.unreported.pop_front_if(|(at, _)| *at <= now)
        {
            due.push(uid);
        }
        due
    }
}

impl Scheduler {
    /// Holds a pod back if its crowd has as many classes as may take part, or counts it. Returns whether it is held back.
    pub(super) fn hold_back(&mut self, uid: &Arc<str>, now: Duration) -> bool {
        let most = self.cluster.config.max_waiting_classes;
        let Some(waiting) = self.cluster.waiting.get_mut(uid).filter(|waiting| !waiting.in_crowd) else {
            return false;
        };
        let (key, class) = (waiting.crowd(), waiting.class.id);
        if self.crowds.holds_back(&key, class, most) {
            self.wait_in_crowd(uid, None, now);
            return true;
        }
        waiting.in_crowd = true;
        self.crowds.enter(&key, class, most);
        false
    }

    /// Ends the count of a pod, if it is counted.
    pub(super) fn leave_crowd(&mut self, uid: &str) {
        if let Some(waiting) = self.cluster.waiting.get_mut(uid)
            && std::mem::take(&mut waiting.in_crowd)
        {
            self.crowds.leave(&waiting.crowd(), waiting.class.id);
            self.wake_for_held_back();
        }
    }

    /// Holds a pod back again that cannot be placed as of this revision, if its class was there for a turn only. Returns
    /// whether it was; otherwise the pod may wait as all others do.
    pub(super) fn hold_back_again(&mut self, uid: &Arc<str>, seen: Revision, now: Duration) -> bool {
        let waiting = self.cluster.waiting.get(uid).filter(|waiting| waiting.in_crowd);
        let is_guest =
            waiting.is_some_and(|waiting| self.crowds.is_guest(&waiting.crowd(), waiting.class.id));
        if is_guest {
            self.withdraw(uid);
            self.leave_crowd(uid);
            self.wait_in_crowd(uid, Some(self.changes(seen)), now);
        }
        is_guest
    }

    /// Returns the number of changes that may let a pod be placed, up to this revision.
    fn changes(&self, revision: Revision) -> u64 {
        revision + self.cluster.ledger.accounts().version() + self.crowds.quota_changes
    }

    fn wait_in_crowd(&mut self, uid: &Arc<str>, tried: Option<u64>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.state = State::HeldBack;
        waiting.start_over();
        let message = held_back_message(waiting, self.cluster.config.max_waiting_classes);
        if waiting.reported.as_deref() != Some(&*message) {
            self.crowds.unreported.push_back((now + REPORT_LATEST, uid.clone()));
        }
        self.crowds.hold(&waiting.crowd(), waiting.class.id, (waiting.seq, uid), tried);
        // A pod that may not be placed keeps no reservation.
        self.end_nomination(uid, true);
        self.wake_for_held_back();
    }

    /// Removes a pod from those held back.
    pub(super) fn leave_held_back(&mut self, uid: &str) {
        if let Some(waiting) = self.cluster.waiting.get(uid) {
            self.crowds.release(&waiting.crowd(), waiting.class.id, waiting.seq);
        }
    }

    fn wake_for_held_back(&mut self) {
        if self.crowds.held > 0 {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Queues the pods held back that may be, in slices.
    pub(super) fn admit_held_back(&mut self, now: Duration) {
        if self.crowds.held == 0 || !self.synced() || !self.cluster.leading {
            return;
        }
        let most = self.cluster.config.max_waiting_classes;
        for _ in 0..SLICE_MAX {
            let changes = self.changes(self.inventory().revision());
            let waiting = &self.cluster.waiting;
            let goes_on = |uid: &str| {
                let state = waiting.get(uid).map(|waiting| &waiting.state);
                state.is_some_and(|state| state.is_tried() || *state == State::Binding)
            };
            let Some(uid) = self.crowds.next(most, changes, now, goes_on) else {
                return;
            };
            self.withdraw(&uid);
            if let Some(waiting) = self.cluster.waiting.get_mut(&uid) {
                waiting.in_crowd = true;
                self.crowds.enter(&waiting.crowd(), waiting.class.id, most);
            }
            if !self.queue_for_quota(&uid, now) {
                self.enter(&uid, now);
            }
        }
        self.actions.push(Action::WakeAgent(0));
    }

    /// Reports to pods that have been held back for some time.
    pub(super) fn report_held_back(&mut self, now: Duration) {
        for uid in self.crowds.take_due(now) {
            self.report_reason(&uid, true);
        }
    }

    /// Reports to a pod why it is held back.
    pub(super) fn report_crowd(&mut self, uid: &Arc<str>, event: bool) {
        if let Some(message) = self.held_back_reason(uid) {
            self.report(uid, REASON, message, event);
        }
    }

    /// Returns why the pod is held back, if it is.
    pub(super) fn held_back_reason(&self, uid: &str) -> Option<Arc<str>> {
        let waiting = self.cluster.waiting.get(uid).filter(|waiting| waiting.state == State::HeldBack)?;
        Some(held_back_message(waiting, self.cluster.config.max_waiting_classes).into())
    }

    /// Returns the number of pods held back.
    pub fn held_back(&self) -> usize {
        self.crowds.held()
    }

    /// Returns the namespaces with pods held back, by name.
    pub fn namespaces_held_back(&self) -> impl Iterator<Item = &Arc<str>> {
        self.crowds.namespaces()
    }

    /// Checks that the crowds count exactly the waiting pods that are not held back, and that no more classes take part
    /// than may (I11).
    pub(super) fn check_crowds(&self) -> Checked {
        let mut inside: HashMap<(CrowdKey, ClassId), usize> = HashMap::new();
        for pod in self.cluster.waiting.values().filter(|pod| pod.in_crowd) {
            *inside.entry((pod.crowd(), pod.class.id)).or_default() += 1;
        }
        let most = self.cluster.config.max_waiting_classes;
        let mut counted = 0;
        for (key, crowd) in &self.crowds.all {
            ensure(11, crowd.taking_part <= most, || {
                format!("{} classes of {key:?} take part, the limit is {most}", crowd.taking_part)
            })?;
            let full = crowd.inside.values().filter(|inside| !inside.is_guest).count();
            ensure(11, full == crowd.taking_part, || format!("{full} classes of {key:?} take part"))?;
            for (class, is) in &crowd.inside {
                counted += 1;
                let pods = inside.get(&(key.clone(), *class)).copied().unwrap_or(0);
                ensure(11, pods == is.pods, || {
                    format!("{key:?} has {pods} pods of {class:?}, but counts {}", is.pods)
                })?;
            }
        }
        let held = self.census().get("held back").copied().unwrap_or(0);
        ensure(11, counted == inside.len(), || {
            format!("{counted} classes are counted, {} are there", inside.len())
        })?;
        ensure(1, held == self.crowds.held, || {
            format!("{held} pods are held back, but that queue has {}", self.crowds.held)
        })
    }

    /// Returns whether the pod is in the queue of those held back.
    pub(super) fn is_held_back(&self, uid: &Arc<str>, pod: &Waiting) -> bool {
        self.crowds.holds(&pod.crowd(), pod.class.id, pod.seq) == Some(uid)
    }
}

fn held_back_message(waiting: &Waiting, most: usize) -> String {
    let (namespace, priority) = (&waiting.pod.namespace, waiting.priority);
    format!(
        "namespace {namespace} has waiting pods of {most} different specs with priority {priority}, which is as many as berth \
         schedules at once: this pod and others of its namespace are tried in turn; let more pods have the same requests, \
         images and constraints, or delete pods that fit nowhere"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn key(namespace: &str) -> CrowdKey {
        (namespace.into(), 0)
    }

    /// Crowds that hold one class each back, which was tried before.
    fn tried(namespaces: &[&str]) -> Crowds {
        let mut crowds = Crowds::default();
        for (at, namespace) in namespaces.iter().enumerate() {
            crowds.enter(&key(namespace), ClassId(0), 1);
            crowds.hold(&key(namespace), ClassId(1), (at as u64, &Arc::from(*namespace)), Some(1));
        }
        crowds
    }

    #[test]
    fn what_was_tried_in_vain_takes_a_quarter_of_the_time() {
        let mut crowds = tried(&["a"]);
        let next = |crowds: &mut Crowds, now, goes_on| crowds.next(1, 2, now, |_| goes_on).is_some();
        let mut now = SAVED_MAX;
        // What was saved up.
        let mut turns = 0;
        while next(&mut crowds, now, false) {
            assert!(!next(&mut crowds, now + MS, true), "its turn is not over");
            now += MS;
            turns += 1;
        }
        assert_eq!(turns, 34, "a saved rest of 100 ms");
        let start = now;
        turns = 0;
        while now < start + 400 * MS {
            turns += u32::from(next(&mut crowds, now, false));
            now += MS;
        }
        assert_eq!(turns, 100);
    }

    #[test]
    fn nothing_is_tried_again_before_something_changes_and_new_pods_come_first() {
        let mut crowds = tried(&["a", "b"]);
        assert_eq!(crowds.next(1, 1, MS, |_| false), None);
        crowds.hold(&key("b"), ClassId(2), (9, &Arc::from("new")), None);
        assert_eq!(crowds.next(1, 1, MS, |_| false).as_deref(), Some("new"));
        let in_turn = |crowds: &mut Crowds| crowds.next(1, 2, 900 * MS, |_| false);
        crowds.release(&key("b"), ClassId(2), 9);
        assert_eq!(
            [in_turn(&mut crowds).as_deref(), in_turn(&mut crowds).as_deref()],
            [Some("a"), Some("b")]
        );
    }
}
