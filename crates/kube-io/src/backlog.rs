//! Bounded queue of pod conditions and events that are not sent yet. Pure.
//!
//! A pod has at most one waiting condition and one waiting event: newer ones replace older ones. Conditions go first,
//! since autoscalers act on them; events are for people.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use berth_model::{PodRef, PodReport};

/// The condition `PodScheduled=False`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnscheduledCondition {
    pub pod: PodRef,
    pub reason: &'static str,
    pub message: Arc<str>,
    pub generation: i64,
    /// Transition time to write. `None`: the API server already has the condition, and its transition time stays.
    pub transition: Option<Timestamp>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub pod: PodRef,
    pub what: PodEventKind,
    /// When it happened, which may be long before it is sent.
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodEventKind {
    Scheduled {
        node: Arc<str>,
    },
    FailedScheduling {
        message: Arc<str>,
    },
    /// `group`: uid of the PodGroup of the preemptor.
    Preempted {
        by: PodRef,
        group: Option<Arc<str>>,
        node: Arc<str>,
    },
}

/// One request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Condition(UnscheduledCondition),
    Event(Event),
}

impl Item {
    pub fn pod(&self) -> &PodRef {
        match self {
            Item::Condition(condition) => &condition.pod,
            Item::Event(event) => &event.pod,
        }
    }
}

/// FIFO queue with one entry per pod uid.
#[derive(Debug)]
pub(crate) struct Line<T> {
    by_turn: BTreeMap<u64, (Arc<str>, T)>,
    turns: HashMap<Arc<str>, u64>,
    next_turn: u64,
}

impl<T> Line<T> {
    pub fn new() -> Self {
        Line { by_turn: BTreeMap::new(), turns: HashMap::new(), next_turn: 0 }
    }

    /// Adds a value, in the turn of an older one with the same uid.
    pub fn put(&mut self, uid: Arc<str>, value: T) {
        let turn = *self.turns.entry(uid.clone()).or_insert(self.next_turn);
        self.next_turn += 1;
        self.by_turn.insert(turn, (uid, value));
    }

    pub fn get(&self, uid: &str) -> Option<&T> {
        let turn = self.turns.get(uid)?;
        self.by_turn.get(turn).map(|(_, value)| value)
    }

    fn get_mut(&mut self, uid: &str) -> Option<&mut T> {
        let turn = self.turns.get(uid)?;
        self.by_turn.get_mut(turn).map(|(_, value)| value)
    }

    fn remove(&mut self, uid: &str) -> Option<T> {
        let turn = self.turns.remove(uid)?;
        self.by_turn.remove(&turn).map(|(_, value)| value)
    }

    /// Takes the first entry whose uid is not in `skip`.
    pub fn take<V>(&mut self, skip: &HashMap<Arc<str>, V>) -> Option<T> {
        let mut uids = self.by_turn.values().map(|(uid, _)| uid);
        let uid = uids.find(|uid| !skip.contains_key(*uid))?.clone();
        self.remove(&uid)
    }

    pub fn drop_oldest(&mut self) -> bool {
        let oldest = self.by_turn.pop_first();
        if let Some((_, (uid, _))) = &oldest {
            self.turns.remove(uid);
        }
        oldest.is_some()
    }

    pub fn len(&self) -> usize {
        self.by_turn.len()
    }
}

/// Whether an item in flight may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    Withdrawn,
}

/// The queue of the reporter.
///
/// While an item is in flight (taken and not `done`), no other item of the same pod is handed out: two writes to one
/// object never overtake each other.
#[derive(Debug)]
pub struct Backlog {
    capacity: usize,
    conditions: Line<UnscheduledCondition>,
    events: Line<Event>,
    /// Uids of the items in flight, whose number the caller bounds.
    out: HashMap<Arc<str>, Wanted>,
    /// Pods whose `PodScheduled=False` was written: writing it again is no transition. Bounded; a pod that is dropped gets a
    /// newer transition time once.
    written: Line<()>,
    dropped: u64,
}

impl Backlog {
    /// Creates a queue of at most `capacity` waiting items.
    pub fn new(capacity: usize) -> Self {
        Backlog {
            capacity,
            conditions: Line::new(),
            events: Line::new(),
            out: HashMap::new(),
            written: Line::new(),
            dropped: 0,
        }
    }

    /// Queues the condition and the event of a report. `now` is the time of the report.
    pub fn push(&mut self, report: PodReport, now: Timestamp) {
        match report {
            PodReport::Scheduled { pod, node } => {
                self.withdraw(&pod.uid);
                self.put_event(pod, PodEventKind::Scheduled { node }, now);
            }
            PodReport::Preempted { pod, preemptor: by, group, node } => {
                self.put_event(pod, PodEventKind::Preempted { by, group, node }, now);
            }
            PodReport::Failed { pod, reason, message, generation, event } => {
                if event {
                    let message = message.clone();
                    self.put_event(pod.clone(), PodEventKind::FailedScheduling { message }, now);
                }
                let transition = match self.conditions.get(&pod.uid) {
                    Some(older) => older.transition,
                    None if self.written.get(&pod.uid).is_some() => None,
                    None => Some(now),
                };
                let uid = pod.uid.clone();
                let condition = UnscheduledCondition { pod, reason, message, generation, transition };
                self.conditions.put(uid, condition);
            }
        }
        // Drop events first: they are for people, and no controller acts on them.
        while self.len() > self.capacity {
            let shed = self.events.drop_oldest() || self.conditions.drop_oldest();
            debug_assert!(shed, "a full backlog has something to drop");
            self.dropped += 1;
        }
    }

    fn put_event(&mut self, pod: PodRef, what: PodEventKind, at: Timestamp) {
        self.events.put(pod.uid.clone(), Event { pod, what, at });
    }

    /// Drops the waiting condition and event of a pod. Call it when the pod is being placed: a late `PodScheduled=False`
    /// would hide that it was bound.
    pub fn withdraw(&mut self, uid: &str) {
        self.conditions.remove(uid);
        self.events.remove(uid);
        self.written.remove(uid);
        if let Some(wanted) = self.out.get_mut(uid) {
            *wanted = Wanted::Withdrawn;
        }
    }

    /// Returns the next item to send. It is in flight until [`done`](Self::done) is called.
    pub fn take(&mut self) -> Option<Item> {
        let item = match self.conditions.take(&self.out) {
            Some(condition) => Item::Condition(condition),
            None => Item::Event(self.events.take(&self.out)?),
        };
        let uid = item.pod().uid.clone();
        if matches!(item, Item::Condition(_)) {
            self.written.put(uid.clone(), ());
            if self.written.len() > self.capacity {
                self.written.drop_oldest();
            }
        }
        self.out.insert(uid, Wanted::Yes);
        Some(item)
    }

    /// Whether a failed item in flight should be retried: no newer one waits, and it was not withdrawn.
    pub fn is_still_wanted(&self, item: &Item) -> bool {
        let uid = &item.pod().uid;
        let newer = match item {
            Item::Condition(_) => self.conditions.get(uid).is_some(),
            Item::Event(_) => false,
        };
        !newer && self.out.get(uid) == Some(&Wanted::Yes)
    }

    /// Settles an item in flight.
    pub fn done(&mut self, item: &Item, delivered: bool) {
        let uid = &item.pod().uid;
        self.out.remove(uid);
        if !delivered && let Item::Condition(condition) = item {
            self.written.remove(uid);
            // One that was pushed since relied on this one.
            if let Some(newer) = self.conditions.get_mut(uid) {
                newer.transition = newer.transition.or(condition.transition);
            }
        }
    }

    /// Waiting items.
    pub fn len(&self) -> usize {
        self.conditions.len() + self.events.len()
    }

    /// Items dropped since the start because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn pod(uid: &str) -> PodRef {
        PodRef {
            namespace: "default".into(),
            name: format!("pod-{uid}").into(),
            uid: uid.into(),
            scheduler_name: "berth".into(),
        }
    }

    fn failed(uid: &str, message: &str, event: bool) -> PodReport {
        PodReport::Failed {
            pod: pod(uid),
            reason: "Unschedulable",
            message: message.into(),
            generation: 1,
            event,
        }
    }

    fn scheduled(uid: &str) -> PodReport {
        PodReport::Scheduled { pod: pod(uid), node: "n1".into() }
    }

    /// Takes everything, as `condition uid message` and `event uid text`.
    fn drain(backlog: &mut Backlog) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(item) = backlog.take() {
            backlog.done(&item, true);
            texts.push(match &item {
                Item::Condition(it) => format!("condition {} {}", it.pod.uid, it.message),
                Item::Event(it) => match &it.what {
                    PodEventKind::Scheduled { node } => format!("event {} on {node}", it.pod.uid),
                    PodEventKind::FailedScheduling { message } => format!("event {} {message}", it.pod.uid),
                    PodEventKind::Preempted { by, .. } => {
                        format!("event {} preempted by {}", it.pod.uid, by.uid)
                    }
                },
            });
        }
        texts
    }

    fn take_condition(backlog: &mut Backlog) -> UnscheduledCondition {
        match backlog.take() {
            Some(Item::Condition(condition)) => condition,
            other => panic!("expected a condition, got {other:?}"),
        }
    }

    #[test]
    fn conditions_go_before_events_and_each_in_order() {
        let mut backlog = Backlog::new(10);
        backlog.push(scheduled("c"), at(1));
        backlog.push(failed("a", "1", true), at(2));
        backlog.push(failed("b", "2", false), at(3));
        assert_eq!(drain(&mut backlog), ["condition a 1", "condition b 2", "event c on n1", "event a 1"]);
    }

    #[test]
    fn a_newer_failure_takes_the_turn_of_the_older_one() {
        let mut backlog = Backlog::new(10);
        backlog.push(failed("a", "old", true), at(1));
        backlog.push(failed("b", "b", false), at(2));
        backlog.push(failed("a", "new", true), at(3));
        let first = take_condition(&mut backlog);
        assert_eq!((&*first.message, first.transition), ("new", Some(at(1))));
        backlog.done(&Item::Condition(first), true);
        assert_eq!(drain(&mut backlog), ["condition b b", "event a new"]);
    }

    #[test]
    fn a_scheduled_pod_has_no_failures_left_to_tell() {
        let mut backlog = Backlog::new(10);
        backlog.push(failed("a", "no room", true), at(1));
        backlog.push(scheduled("a"), at(2));
        assert_eq!(drain(&mut backlog), ["event a on n1"]);
    }

    #[test]
    fn a_failure_withdrawn_while_it_is_out_is_not_tried_again() {
        let mut backlog = Backlog::new(10);
        backlog.push(failed("a", "no room", false), at(1));
        let out = backlog.take().expect("an item");
        assert!(backlog.is_still_wanted(&out));
        backlog.withdraw("a");
        assert!(!backlog.is_still_wanted(&out));
    }

    #[test]
    fn nothing_overtakes_an_item_of_the_same_pod_that_is_out() {
        let mut backlog = Backlog::new(10);
        backlog.push(failed("a", "old", false), at(1));
        let out = backlog.take().expect("an item");
        backlog.push(failed("a", "new", false), at(2));
        assert_eq!(backlog.take(), None);
        assert!(!backlog.is_still_wanted(&out), "the newer one makes it pointless");
        backlog.done(&out, true);
        assert_eq!(drain(&mut backlog), ["condition a new"]);
    }

    #[test]
    fn a_condition_that_replaces_an_undelivered_one_is_the_transition() {
        let mut backlog = Backlog::new(10);
        backlog.push(failed("a", "old", false), at(1));
        let out = backlog.take().expect("an item");
        backlog.push(failed("a", "new", false), at(2));
        backlog.done(&out, false);
        assert_eq!(take_condition(&mut backlog).transition, Some(at(1)));
    }

    #[test]
    fn only_the_first_condition_of_a_pod_is_a_transition() {
        let mut backlog = Backlog::new(10);
        let mut transition_at = |second: i64, delivered: bool| {
            backlog.push(failed("a", "no room", false), at(second));
            let condition = take_condition(&mut backlog);
            let transition = condition.transition;
            backlog.done(&Item::Condition(condition), delivered);
            transition
        };
        assert_eq!(transition_at(1, false), Some(at(1)));
        assert_eq!(transition_at(2, true), Some(at(2)), "the first one never arrived");
        assert_eq!(transition_at(3, true), None);
    }

    #[test]
    fn a_full_backlog_drops_the_oldest_events_then_the_oldest_conditions_and_counts_them() {
        let mut backlog = Backlog::new(2);
        backlog.push(scheduled("a"), at(1));
        backlog.push(scheduled("b"), at(2));
        backlog.push(failed("c", "c", false), at(3));
        backlog.push(failed("d", "d", false), at(4));
        backlog.push(failed("e", "e", false), at(5));
        assert_eq!((backlog.len(), backlog.dropped()), (2, 3));
        assert_eq!(drain(&mut backlog), ["condition d d", "condition e e"]);
    }
}
