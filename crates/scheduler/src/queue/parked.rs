//! Parking queue of unschedulable pods, by class. One evaluation serves a whole class, however many pods wait in it.
//!
//! A parked class is re-evaluated when constraints have loosened since its list was last found empty: a pod left a
//! node, a node was added or changed, or a pod arrived that matches the class's affinity or spread. The ranked list is
//! repaired, not rebuilt, so this only costs the changed rows; there is no periodic flush. When the list is no longer
//! empty, pods wake one by one: each one that is placed wakes the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::AGED_TURN;
use crate::class::{Class, ClassId};
use crate::inventory::Revision;
use crate::rules::{Diagnosis, Unhelped};
use crate::visits::Visits;
use berth_model::{Identity, PreemptionPolicy};

/// A pod's position in its class: by priority, then arrival.
pub type Place = (Reverse<i32>, u64);

/// The waiting pods of one class.
#[derive(Debug)]
pub struct ParkedGroup {
    pub class: Arc<Class>,
    /// The agent that found the list empty last: it checks the class.
    pub agent: usize,
    /// The revision at which the list was last found empty.
    pub checked: Revision,
    /// The revision at which a pod arrived that may make nodes valid for this class.
    pub arrived: Revision,
    /// Time of the last check, unless it woke a pod.
    looked_at: Option<Duration>,
    pub pods: BTreeMap<Place, Arc<str>>,
    /// The pod that was woken and has not returned yet.
    pub probe: Option<Arc<str>>,
    /// The diagnosis of the last evaluation.
    pub diagnosis: Diagnosis,
    /// Result of preemption, if it was tried.
    unhelped: Option<Unhelped>,
    /// Time of the last report for the pods.
    pub reported_at: Duration,
    /// This diagnosis has been reported for the pods.
    pub is_reported: bool,
    /// Since when there may be pods without any report.
    pub unreported_since: Option<Duration>,
    /// Progress of the reports to its pods.
    pass: Option<ReportPass>,
    messages: [Option<Arc<str>>; 2],
    /// Number of pods woken since the group was created.
    woken: u64,
    /// Places of the pods in the order of their arrival.
    by_arrival: BTreeMap<u64, Place>,
}

/// Reports to the pods of a group, carried out in slices.
#[derive(Debug, Clone, Copy)]
struct ReportPass {
    /// The pod that was visited last.
    visited: Option<Place>,
    /// Only pods without any report need one.
    only_new: bool,
    /// Another pass of this kind (`only_new`) follows.
    next: Option<bool>,
}

/// Up to this number of parked classes, each is checked at once whenever constraints loosen.
const CHECKED_AT_ONCE: usize = 16;
/// With more of them, the interval between two checks of a class that fits nowhere, for each parked class: where
/// something loosens all the time, checks would take all the time of the agents.
const PACE: Duration = Duration::from_micros(250);
/// Longest such interval.
const PACE_MAX: Duration = Duration::from_millis(500);

/// Number of pods that one slice of a pass visits at most.
pub const REPORTS_MAX: usize = 256;

impl ParkedGroup {
    /// Returns whether no pod of the class can fit now, given the latest change that could matter.
    pub fn is_certain(&self, loosened: Revision) -> bool {
        self.probe.is_none() && self.checked >= loosened.max(self.arrived)
    }

    /// Returns whether pods are still to be visited by a pass that has begun.
    pub fn is_reporting(&self) -> bool {
        self.pass.is_some()
    }

    /// Drops the pass that has begun.
    pub fn stop_reporting(&mut self) {
        self.pass = None;
    }

    /// Returns the next pods of the pass to report to, and whether only those without any report need one.
    pub fn next_reports(&mut self) -> (Vec<Arc<str>>, bool) {
        let Some(pass) = &mut self.pass else {
            return (Vec::new(), false);
        };
        let only_new = pass.only_new;
        let after = pass.visited.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slice: Vec<_> = self.pods.range((after, Bound::Unbounded)).take(REPORTS_MAX).collect();
        if slice.len() == REPORTS_MAX {
            pass.visited = slice.last().map(|(place, _)| **place);
        } else {
            self.pass = pass.next.map(|only_new| ReportPass { visited: None, only_new, next: None });
        }
        (slice.drain(..).map(|(_, uid)| uid.clone()).collect(), only_new)
    }

    fn begin_reports(&mut self, only_new: bool) {
        match &mut self.pass {
            // It goes on: pods at the end of the group must not wait for ever for those that join at its beginning.
            Some(pass) => pass.next = Some(only_new && pass.next.unwrap_or(true)),
            None => self.pass = Some(ReportPass { visited: None, only_new, next: None }),
        }
    }

    /// Returns the report text for a pod of this group; formatted once for all of them.
    pub fn message(&mut self, policy: PreemptionPolicy) -> Arc<str> {
        let slot = usize::from(policy == PreemptionPolicy::Never);
        let slot = &mut self.messages[slot];
        slot.get_or_insert_with(|| match &self.unhelped {
            Some(unhelped) => self.diagnosis.message_of(&self.class, policy, Some(unhelped)).into(),
            None => self.diagnosis.message(&self.class, policy).into(),
        })
        .clone()
    }
}

/// All parked classes.
#[derive(Debug, Default)]
pub struct Parked {
    groups: BTreeMap<ClassId, ParkedGroup>,
    pods: usize,
    /// By agent: every group of this agent was found empty at this revision or later, or has a probe in progress.
    settled: Vec<Revision>,
    /// By agent: position where the search for a due group continues.
    cursor: Vec<ClassId>,
    /// By agent: time before which no group that must be checked may be.
    paced: Vec<Option<Duration>>,
    /// Groups whose class may wait for another pod.
    listeners: BTreeSet<ClassId>,
    /// The revision at which a pod last came to a node.
    arrived: Revision,
    /// Groups with reports in progress.
    reporting: BTreeSet<ClassId>,
    visits: Visits,
}

impl Parked {
    pub fn new(agents: usize) -> Self {
        Parked {
            settled: vec![0; agents],
            cursor: vec![ClassId(0); agents],
            paced: vec![None; agents],
            ..Parked::default()
        }
    }

    pub fn get(&self, class: ClassId) -> Option<&ParkedGroup> {
        self.groups.get(&class)
    }

    pub fn get_mut(&mut self, class: ClassId) -> Option<&mut ParkedGroup> {
        self.groups.get_mut(&class)
    }

    pub fn groups(&self) -> impl Iterator<Item = &ParkedGroup> {
        self.groups.values().inspect(|_| self.visits.add_one())
    }

    /// Returns the number of classes that walks have visited.
    pub fn visits(&self) -> u64 {
        self.visits.count()
    }

    /// Returns the groups of the classes after this one, in the order of their ids.
    pub fn groups_after(&self, after: Option<ClassId>) -> impl Iterator<Item = &ParkedGroup> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let groups = self.groups.range((after, Bound::Unbounded));
        groups.inspect(|_| self.visits.add_one()).map(|(_, group)| group)
    }

    /// Begins reports to all pods of the group, or to those without any report.
    pub fn begin_reports(&mut self, class: ClassId, only_new: bool) {
        if let Some(group) = self.groups.get_mut(&class) {
            group.begin_reports(only_new);
            self.reporting.insert(class);
        }
    }

    /// Returns a group with reports in progress. The one that was returned last comes last.
    pub fn next_reporting(&mut self, after: Option<ClassId>) -> Option<ClassId> {
        let later = after.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let next = self.reporting.range((later, Bound::Unbounded)).next();
            let next = next.or_else(|| self.reporting.first()).copied()?;
            if self.groups.get(&next).is_some_and(ParkedGroup::is_reporting) {
                return Some(next);
            }
            self.reporting.remove(&next);
        }
    }

    /// Returns the number of parked pods.
    pub fn len(&self) -> usize {
        self.pods
    }

    pub fn is_empty(&self) -> bool {
        self.pods == 0
    }

    /// Records that no node is valid for `class` as of revision `checked`. Upserts its group; returns whether the
    /// diagnosis is new for its pods.
    pub fn found_nowhere(
        &mut self,
        class: &Arc<Class>,
        agent: usize,
        checked: Revision,
        diagnosis: Diagnosis,
    ) -> bool {
        self.settled[agent] = self.settled[agent].min(checked);
        match self.groups.get_mut(&class.id) {
            Some(group) => {
                if checked < group.checked {
                    // Another agent has evaluated a newer revision.
                    return false;
                }
                group.agent = agent;
                group.checked = checked;
                let new = group.diagnosis != diagnosis;
                if new {
                    group.diagnosis = diagnosis;
                    group.unhelped = None;
                    group.messages = [None, None];
                    group.is_reported = false;
                }
                new
            }
            None => {
                let group = ParkedGroup {
                    class: class.clone(),
                    agent,
                    checked,
                    // A pod that it waits for may have come while the class was evaluated.
                    arrived: if class.listens() { self.arrived } else { 0 },
                    looked_at: None,
                    pods: BTreeMap::new(),
                    probe: None,
                    diagnosis,
                    unhelped: None,
                    reported_at: Duration::ZERO,
                    is_reported: true,
                    unreported_since: None,
                    pass: None,
                    messages: [None, None],
                    woken: 0,
                    by_arrival: BTreeMap::new(),
                };
                self.groups.insert(class.id, group);
                self.paced[agent] = None;
                if class.listens() {
                    self.listeners.insert(class.id);
                    if self.arrived > checked {
                        self.settled[agent] = 0;
                    }
                }
                true
            }
        }
    }

    /// Records that preemption failed for the pods of the class, for these reasons.
    pub fn preemption_failed(&mut self, class: ClassId, unhelped: Unhelped) {
        if let Some(group) = self.groups.get_mut(&class)
            && group.unhelped.as_ref() != Some(&unhelped)
        {
            group.unhelped = Some(unhelped);
            group.messages = [None, None];
            group.is_reported = false;
        }
    }

    /// Adds a pod to the group of its class, which must exist. If it was the probe, the group has no probe afterwards.
    pub fn join(&mut self, class: ClassId, place: Place, uid: &Arc<str>) {
        let Some(group) = self.groups.get_mut(&class) else {
            return;
        };
        if group.probe.as_ref() == Some(uid) {
            group.probe = None;
        }
        if group.pods.insert(place, uid.clone()).is_none() {
            self.pods += 1;
        }
        group.by_arrival.insert(place.1, place);
    }

    /// Removes a pod from its group; an empty group is dropped.
    pub fn leave(&mut self, class: ClassId, place: Place) {
        let Some(group) = self.groups.get_mut(&class) else {
            return;
        };
        if group.pods.remove(&place).is_some() {
            self.pods -= 1;
            group.by_arrival.remove(&place.1);
        }
        self.forget_if_empty(class);
    }

    /// Wakes the first pod of the class, or on an aged turn the one that waits longest, unless a pod of the class is
    /// awake already.
    pub fn wake(&mut self, class: ClassId) -> Option<Arc<str>> {
        let group = self.groups.get_mut(&class)?;
        if group.probe.is_some() {
            return None;
        }
        group.woken += 1;
        let longest = || group.by_arrival.first_key_value().map(|(_, place)| *place);
        let aged = group.woken.is_multiple_of(AGED_TURN).then(longest).flatten();
        let place = aged.or_else(|| group.pods.first_key_value().map(|(place, _)| *place))?;
        let uid = group.pods.remove(&place)?;
        group.by_arrival.remove(&place.1);
        self.pods -= 1;
        group.probe = Some(uid.clone());
        Some(uid)
    }

    /// Wakes the pod at this position, unless a pod of the class is awake already. Returns whether it did.
    pub fn wake_this(&mut self, class: ClassId, place: Place) -> bool {
        let Some(group) = self.groups.get_mut(&class).filter(|group| group.probe.is_none()) else {
            return false;
        };
        group.probe = group.pods.remove(&place);
        if group.probe.is_some() {
            group.by_arrival.remove(&place.1);
            self.pods -= 1;
        }
        group.probe.is_some()
    }

    /// Records that the woken pod `uid` will not return to the group. Returns whether it was this class's probe.
    pub fn probe_ended(&mut self, class: ClassId, uid: &str) -> bool {
        let Some(group) = self.groups.get_mut(&class) else {
            return false;
        };
        if group.probe.as_deref() != Some(uid) {
            return false;
        }
        group.probe = None;
        group.looked_at = None;
        // The state of the list is unknown: re-evaluate it.
        group.checked = 0;
        self.settled[group.agent] = 0;
        self.paced[group.agent] = None;
        self.forget_if_empty(class);
        true
    }

    /// Marks the classes as due that were waiting for a pod like this, which arrived at `revision`. Returns their
    /// agents.
    pub fn mark_due_for(&mut self, pod: &Identity, revision: Revision) -> BTreeSet<usize> {
        self.arrived = revision;
        let mut agents = BTreeSet::new();
        for class in &self.listeners {
            self.visits.add_one();
            let Some(group) = self.groups.get_mut(class).filter(|group| group.class.waits_for(pod)) else {
                continue;
            };
            group.arrived = revision;
            self.settled[group.agent] = 0;
            agents.insert(group.agent);
        }
        agents
    }

    fn forget_if_empty(&mut self, class: ClassId) {
        if self.groups.get(&class).is_some_and(|group| group.pods.is_empty() && group.probe.is_none()) {
            self.groups.remove(&class);
            self.listeners.remove(&class);
        }
    }

    /// Returns a class of this agent whose list may no longer be empty: constraints loosened since it was found empty.
    /// Where many classes are parked, one that was found empty a moment ago comes later: [`Parked::resumable`] tells.
    pub fn due(&mut self, agent: usize, loosened: Revision, now: Duration) -> Option<Arc<Class>> {
        if self.settled[agent] >= loosened || self.paced[agent].is_some_and(|until| now < until) {
            return None;
        }
        let pace = match self.groups.len() {
            ..=CHECKED_AT_ONCE => Duration::ZERO,
            groups => PACE_MAX.min(PACE * groups as u32),
        };
        let mut first = None;
        let is_due = |group: &&ParkedGroup| {
            self.visits.add_one();
            let must = group.agent == agent
                && group.checked < loosened.max(group.arrived)
                && group.probe.is_none()
                && !group.pods.is_empty();
            let from = group.looked_at.map_or(Duration::ZERO, |at| at + pace);
            if must && now < from {
                first = first.into_iter().chain([from]).min();
            }
            must && now >= from
        };
        let from = self.cursor[agent];
        let after = (Bound::Included(from), Bound::Unbounded);
        let before = (Bound::Unbounded, Bound::Excluded(from));
        let groups = self.groups.range(after).chain(self.groups.range(before));
        let next = groups.map(|(_, group)| group).find(is_due).map(|group| group.class.clone());
        self.paced[agent] = first.filter(|_| next.is_none());
        let Some(class) = next else {
            if first.is_none() {
                self.settled[agent] = loosened;
            }
            return None;
        };
        self.cursor[agent] = ClassId(class.id.0 + 1);
        if let Some(group) = self.groups.get_mut(&class.id) {
            group.looked_at = Some(now);
        }
        Some(class)
    }

    /// Returns the agents with classes that [`Parked::due`] has put off until now.
    pub fn resumable(&self, now: Duration) -> impl Iterator<Item = usize> {
        let until = self.paced.iter().enumerate();
        until.filter_map(move |(agent, until)| until.filter(|until| *until <= now).map(|_| agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::PodSpec;

    fn class() -> Arc<Class> {
        Arc::new(Class::for_test(PodSpec::default()))
    }

    fn group_of(pods: &[(&str, i32)]) -> (Parked, Arc<Class>) {
        let (mut parked, class) = (Parked::new(1), class());
        parked.found_nowhere(&class, 0, 10, Diagnosis::default());
        for (seq, (uid, priority)) in pods.iter().enumerate() {
            parked.join(class.id, (Reverse(*priority), seq as u64), &Arc::from(*uid));
        }
        (parked, class)
    }

    #[test]
    fn a_class_is_due_only_when_something_loosened_since_it_was_seen_empty() {
        let (mut parked, class) = group_of(&[("a", 0)]);
        assert!(parked.due(0, 10, Duration::ZERO).is_none());
        assert_eq!(parked.due(0, 11, Duration::ZERO).map(|c| c.id), Some(class.id));
        parked.found_nowhere(&class, 0, 12, Diagnosis::default());
        assert!(parked.due(0, 11, Duration::ZERO).is_none());
        assert!(parked.due(0, 13, Duration::ZERO).is_some());
    }

    #[test]
    fn where_many_classes_are_parked_each_is_checked_at_intervals_and_a_waking_one_at_once() {
        let mut parked = Parked::new(1);
        let with_id = |id| Arc::new(Class { id: ClassId(id), ..Class::for_test(PodSpec::default()) });
        let classes: Vec<_> = (0..100).map(with_id).collect();
        let join = |parked: &mut Parked, at: usize, revision| {
            parked.found_nowhere(&classes[at], 0, revision, Diagnosis::default());
            parked.join(classes[at].id, (Reverse(0), at as u64), &Arc::from(format!("u{at}")));
        };
        (0..classes.len()).for_each(|at| join(&mut parked, at, 0));
        // For a second, something loosens every millisecond.
        let (mut checks, mut revision) = (BTreeMap::<ClassId, usize>::new(), 0);
        for at in 0..1_000 {
            let now = Duration::from_millis(at);
            revision += 1;
            while let Some(class) = parked.due(0, revision, now) {
                *checks.entry(class.id).or_default() += 1;
                parked.found_nowhere(&class, 0, revision, Diagnosis::default());
            }
        }
        assert!(checks.len() == 100 && checks.values().all(|checks| *checks == 40), "{checks:?}");
        let now = Duration::from_secs(1);
        assert_eq!(parked.resumable(now).collect::<Vec<_>>(), [0]);
        // One that fits has no pace.
        let class = std::iter::from_fn(|| parked.due(0, revision + 1, now)).last().expect("one is due");
        for uid in 0..9 {
            parked.join(class.id, (Reverse(0), 1_000 + uid), &Arc::from(format!("more{uid}")));
        }
        for _ in 0..5 {
            let woken = parked.wake(class.id).expect("a pod");
            parked.probe_ended(class.id, &woken);
            assert_eq!(parked.due(0, revision + 1, now).map(|due| due.id), Some(class.id));
        }
    }

    #[test]
    fn an_older_view_of_another_agent_does_not_replace_a_newer_diagnosis() {
        let (mut parked, class) = (Parked::new(2), class());
        let nodes = |n: usize| -> Diagnosis { std::iter::repeat_n(crate::rules::Reasons::CPU, n).collect() };
        parked.found_nowhere(&class, 1, 10, nodes(2));
        parked.join(class.id, (Reverse(0), 0), &Arc::from("a"));
        parked.found_nowhere(&class, 0, 5, nodes(1));
        let group = parked.get(class.id).unwrap();
        assert_eq!((group.agent, group.diagnosis.nodes()), (1, 2));
    }

    #[test]
    fn pods_wake_one_by_one_in_order_of_priority_and_the_last_takes_the_group_with_it() {
        let (mut parked, class) = group_of(&[("low", 0), ("high", 5)]);
        assert_eq!(parked.wake(class.id).as_deref(), Some("high"));
        assert_eq!(parked.wake(class.id), None, "one is awake already");
        assert!(parked.due(0, 99, Duration::ZERO).is_none(), "the probe is still running");
        assert!(parked.probe_ended(class.id, "high"));
        assert_eq!(parked.wake(class.id).as_deref(), Some("low"));
        assert!(parked.is_empty());
        assert!(parked.probe_ended(class.id, "low"));
        assert!(parked.get(class.id).is_none());
    }

    #[test]
    fn a_low_priority_group_wakes_within_sixteen_turns() {
        let (mut parked, class) = group_of(&[("low", 0)]);
        let mut turns = 0;
        loop {
            turns += 1;
            parked.join(class.id, (Reverse(9), turns), &Arc::from(format!("high-{turns}")));
            parked.join(class.id, (Reverse(9), turns + 1000), &Arc::from(format!("more-{turns}")));
            let woken = parked.wake(class.id).unwrap();
            if &*woken == "low" {
                break;
            }
            parked.probe_ended(class.id, &woken);
        }
        assert_eq!(turns, AGED_TURN);
    }

    /// A wake that looks at each pod of its class makes the whole quadratic: 64 times as long for each pod here.
    #[test]
    fn pods_of_a_large_class_wake_as_fast_as_those_of_a_small_one() {
        let wake_all = |pods: u64| {
            let (mut parked, class) = group_of(&[]);
            for seq in 0..pods {
                parked.join(class.id, (Reverse(seq as i32 % 7), seq), &Arc::from(format!("u{seq}")));
            }
            let began = std::time::Instant::now();
            while let Some(woken) = parked.wake(class.id) {
                parked.probe_ended(class.id, &woken);
            }
            assert!(parked.is_empty());
            began.elapsed() / pods as u32
        };
        let fastest = |pods| (0..3).map(|_| wake_all(pods)).min().expect("three");
        let (small, large) = (fastest(1_000), fastest(64_000));
        assert!(
            large < 10 * small,
            "a pod of a class of 1,000 woke in {small:?}, of one of 64,000 in {large:?}"
        );
    }

    #[test]
    fn reports_visit_every_pod_in_slices_however_many_join_meanwhile() {
        let (mut parked, class) = group_of(&[]);
        let join = |parked: &mut Parked, at: usize, priority: i32| {
            parked.join(class.id, (Reverse(priority), at as u64), &Arc::from(format!("u{at}")));
        };
        (0..3 * REPORTS_MAX).for_each(|at| join(&mut parked, at, 0));
        parked.begin_reports(class.id, true);
        let (mut visited, mut slices) = (BTreeSet::new(), 0);
        while parked.next_reporting(None).is_some() && slices < 20 {
            let (slice, only_new) = parked.get_mut(class.id).unwrap().next_reports();
            assert!(slice.len() <= REPORTS_MAX && only_new);
            visited.extend(slice);
            slices += 1;
            // A more important pod joins, and the reports are begun again because of it.
            join(&mut parked, 10_000 + slices, 1);
            if slices < 5 {
                parked.begin_reports(class.id, true);
            }
        }
        assert!(
            (0..3 * REPORTS_MAX).all(|at| visited.contains(&*format!("u{at}"))),
            "{} visited",
            visited.len()
        );
        assert!(parked.next_reporting(None).is_none(), "the reports never end");
    }

    #[test]
    fn a_probe_that_finds_no_place_goes_back_and_the_class_waits_for_the_next_change() {
        let (mut parked, class) = group_of(&[("a", 0), ("b", 0)]);
        let woken = parked.wake(class.id).unwrap();
        parked.found_nowhere(&class, 0, 20, Diagnosis::default());
        parked.join(class.id, (Reverse(0), 0), &woken);
        assert_eq!(parked.len(), 2);
        assert!(parked.due(0, 20, Duration::ZERO).is_none());
        assert!(parked.due(0, 21, Duration::ZERO).is_some());
    }

    #[test]
    fn a_probe_that_vanishes_makes_its_class_due_at_once() {
        let (mut parked, class) = group_of(&[("a", 0), ("b", 0)]);
        assert!(parked.due(0, 10, Duration::ZERO).is_none());
        let woken = parked.wake(class.id).unwrap();
        assert!(parked.probe_ended(class.id, &woken));
        assert!(parked.due(0, 10, Duration::ZERO).is_some());
    }
}
