//! LatCache: which agent gets a request (Kamino, OSDI'25, algorithms 1 and 2, the rule-level variant).
//!
//! A request goes to the agent where it is expected to be done first: the time of what waits ahead of it there, plus
//! its own processing time given what that agent's caches will hold by then, plus the rest of what the agent is doing
//! now. It stays there. May not know: kube, tokio, clocks.

mod estimator;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

pub use estimator::Estimator;

use crate::agent::{CacheChange, Part};
use crate::class::{Class, ClassId, TraitId};
use crate::rules::CachedRule;

/// Where a waiting request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub agent: usize,
    priority: i32,
    seq: u64,
}

/// A request on its way to an agent.
#[derive(Debug, Clone)]
pub struct Request {
    pub uid: Arc<str>,
    pub class: Arc<Class>,
    /// What the dispatcher expected when it chose the agent.
    pub expected_hit: bool,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    estimate: Duration,
}

/// What the dispatcher knows of one agent.
#[derive(Debug, Default)]
struct Lane {
    /// By priority, then arrival.
    queue: BTreeMap<(Reverse<i32>, u64), Waiting>,
    /// Sum of estimates by priority, and how many: what a request waits behind is the sum over its own and higher ones.
    ahead: BTreeMap<Reverse<i32>, (Duration, usize)>,
    lists: HashSet<ClassId>,
    objects: HashSet<(CachedRule, TraitId)>,
    /// What the waiting requests, and the one in service, will have brought into the caches.
    coming_lists: Counts<ClassId>,
    coming_objects: Counts<(CachedRule, TraitId)>,
    /// The request in service, when it started, and what it was then expected to take.
    service: Option<(Arc<Class>, Duration, Duration)>,
}

/// The dispatcher: one lane an agent.
#[derive(Debug)]
pub struct Dispatcher {
    lanes: Vec<Lane>,
    estimator: Estimator,
}

impl Dispatcher {
    pub fn new(agents: usize, estimator: Estimator) -> Self {
        Dispatcher { lanes: (0..agents.max(1)).map(|_| Lane::default()).collect(), estimator }
    }

    pub fn agents(&self) -> usize {
        self.lanes.len()
    }

    pub fn estimator(&self) -> &Estimator {
        &self.estimator
    }

    /// Requests that wait in all lanes.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.queue.is_empty())
    }

    pub fn waiting(&self, agent: usize) -> usize {
        self.lanes[agent].queue.len()
    }

    /// Assigns a request to the agent where it is expected to be done first; of equals, to the one with the fewest
    /// waiting, then to the first. `seq` orders requests of one priority and must be unique.
    pub fn assign(
        &mut self,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
        now: Duration,
    ) -> Ticket {
        let expected = |lane: &Lane| {
            let (processing, _) = lane.processing(class, &self.estimator, true);
            lane.queue_time(priority) + processing + lane.remaining(now)
        };
        let agent = (0..self.lanes.len())
            .min_by_key(|at| (expected(&self.lanes[*at]), self.lanes[*at].queue.len()))
            .unwrap_or(0);
        self.assign_to(agent, uid, class, priority, seq)
    }

    /// Puts a request into the lane of a given agent.
    pub fn assign_to(
        &mut self,
        agent: usize,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
    ) -> Ticket {
        let lane = &mut self.lanes[agent];
        let (estimate, expected_hit) = lane.processing(class, &self.estimator, true);
        let request = Request { uid: uid.clone(), class: class.clone(), expected_hit };
        lane.queue.insert((Reverse(priority), seq), Waiting { request, estimate });
        let (sum, count) = lane.ahead.entry(Reverse(priority)).or_default();
        (*sum, *count) = (*sum + estimate, *count + 1);
        lane.expect(class);
        Ticket { agent, priority, seq }
    }

    /// Takes a waiting request back, before an agent has started it.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        let lane = &mut self.lanes[ticket.agent];
        match lane.take((Reverse(ticket.priority), ticket.seq)) {
            Some(request) => {
                lane.unexpect(&request.class);
                true
            }
            None => false,
        }
    }

    /// Who waits there.
    pub fn waits(&self, ticket: Ticket) -> Option<&Arc<str>> {
        let queue = &self.lanes[ticket.agent].queue;
        let waiting = queue.get(&(Reverse(ticket.priority), ticket.seq))?;
        Some(&waiting.request.uid)
    }

    /// The next request of this agent: it starts now.
    pub fn start(&mut self, agent: usize, now: Duration) -> Option<Request> {
        let lane = &mut self.lanes[agent];
        debug_assert!(lane.service.is_none(), "an agent serves one request at a time");
        let key = *lane.queue.first_key_value()?.0;
        let request = lane.take(key)?;
        let (processing, _) = lane.processing(&request.class, &self.estimator, false);
        lane.service = Some((request.class.clone(), now, processing));
        Some(request)
    }

    /// The agent is done with the request it had started.
    pub fn finish(&mut self, agent: usize) {
        let lane = &mut self.lanes[agent];
        if let Some((class, _, _)) = lane.service.take() {
            lane.unexpect(&class);
        }
    }

    /// A part of a request took this long.
    pub fn learn(&mut self, part: Part, took: Duration) {
        self.estimator.learn(part, took);
    }

    /// What came into and went out of the agent's caches.
    pub fn cache_changed(&mut self, agent: usize, changes: &[CacheChange]) {
        let lane = &mut self.lanes[agent];
        for change in changes {
            match *change {
                CacheChange::ListAdded(class) => lane.lists.insert(class),
                CacheChange::ListEvicted(class) => lane.lists.remove(&class),
                CacheChange::ObjectAdded(rule, value) => lane.objects.insert((rule, value)),
                CacheChange::ObjectEvicted(rule, value) => lane.objects.remove(&(rule, value)),
            };
        }
    }
}

impl Lane {
    fn take(&mut self, key: (Reverse<i32>, u64)) -> Option<Request> {
        let waiting = self.queue.remove(&key)?;
        if let Some((sum, count)) = self.ahead.get_mut(&key.0) {
            // The estimate that was added, not the real time: errors do not add up.
            (*sum, *count) = (*sum - waiting.estimate, *count - 1);
            if *count == 0 {
                self.ahead.remove(&key.0);
            }
        }
        Some(waiting.request)
    }

    fn expect(&mut self, class: &Class) {
        self.coming_lists.add(class.id);
        class.cached_rules().for_each(|key| self.coming_objects.add(key));
    }

    fn unexpect(&mut self, class: &Class) {
        self.coming_lists.remove(&class.id);
        class.cached_rules().for_each(|key| self.coming_objects.remove(&key));
    }

    fn queue_time(&self, priority: i32) -> Duration {
        self.ahead.range(..=Reverse(priority)).map(|(_, (sum, _))| *sum).sum()
    }

    fn remaining(&self, now: Duration) -> Duration {
        match &self.service {
            Some((_, started, takes)) => (*started + *takes).saturating_sub(now),
            None => Duration::ZERO,
        }
    }

    /// Algorithm 2, and whether it is a top-level hit. With `augmented`, the caches as they will be once everything that
    /// waits here has been served, none evicted (Kamino found simulating evictions no better).
    fn processing(&self, class: &Class, estimator: &Estimator, augmented: bool) -> (Duration, bool) {
        if self.lists.contains(&class.id) || (augmented && self.coming_lists.has(&class.id)) {
            return (estimator.estimate(Part::ListHit), true);
        }
        let rules = class.cached_rules().map(|(rule, value)| {
            let key = (rule, value);
            let hit = self.objects.contains(&key) || (augmented && self.coming_objects.has(&key));
            estimator.estimate(if hit { Part::RuleHit(rule) } else { Part::RuleMiss(rule) })
        });
        (rules.sum::<Duration>() + estimator.estimate(Part::ListMiss), false)
    }
}

/// How often each key is expected.
#[derive(Debug)]
struct Counts<K>(HashMap<K, u32>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Counts(HashMap::new())
    }
}

impl<K: Hash + Eq> Counts<K> {
    fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    fn remove(&mut self, key: &K) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }

    fn has(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Classifier;
    use crate::model::{Identity, PodSpec};
    use proptest::prelude::*;

    fn classes(count: usize) -> Vec<Arc<Class>> {
        let mut classifier = Classifier::default();
        (0..count)
            .map(|at| {
                // Every second class shares its node selector with a neighbour, so that low-level hits occur.
                let node_selector = [("pool", format!("{}", at / 2))].into_iter().collect();
                let images = [Arc::from(format!("image-{at}"))].into();
                classifier.classify(
                    &Arc::new(PodSpec { node_selector, images, ..PodSpec::default() }),
                    &Identity::default(),
                    0,
                )
            })
            .collect()
    }

    fn uid(n: u64) -> Arc<str> {
        Arc::from(format!("u{n}"))
    }

    fn added(class: &Class) -> Vec<CacheChange> {
        let objects = class.cached_rules().map(|(rule, value)| CacheChange::ObjectAdded(rule, value));
        objects.chain([CacheChange::ListAdded(class.id)]).collect()
    }

    #[test]
    fn a_request_goes_where_its_list_is_and_waits_there_only_as_long_as_that_pays() {
        let classes = classes(4);
        let mut dispatcher = Dispatcher::new(2, Estimator::default());
        dispatcher.cache_changed(0, &added(&classes[3]));
        dispatcher.cache_changed(1, &added(&classes[0]));
        let mut seq = 0;
        let mut assign = |class: &Arc<Class>| {
            seq += 1;
            dispatcher.assign(&uid(seq), class, 0, seq, Duration::ZERO).agent
        };
        assert_eq!(assign(&classes[0]), 1);
        // A miss goes where more of its rule objects are: class 2 shares its node selector with class 3.
        assert_eq!(assign(&classes[2]), 0);
        // Its next request is expected to hit there, behind the miss; but a cheaper miss elsewhere is not worth the wait.
        assert_eq!(assign(&classes[2]), 0);
        assert_eq!(assign(&classes[1]), 1);
    }

    #[test]
    fn higher_priorities_are_served_first_and_do_not_wait_behind_lower_ones() {
        let classes = classes(1);
        let mut dispatcher = Dispatcher::new(1, Estimator::default());
        for (seq, priority) in [(0, 0), (1, 5), (2, 0), (3, 5)] {
            dispatcher.assign(&uid(seq), &classes[0], priority, seq, Duration::ZERO);
        }
        assert!(dispatcher.lanes[0].queue_time(5) < dispatcher.lanes[0].queue_time(0));
        assert_eq!(dispatcher.lanes[0].queue_time(6), Duration::ZERO);
        let mut order = Vec::new();
        while let Some(request) = dispatcher.start(0, Duration::ZERO) {
            order.push(request.uid.to_string());
            dispatcher.finish(0);
        }
        assert_eq!(order, ["u1", "u3", "u0", "u2"]);
        assert_eq!(dispatcher.lanes[0].queue_time(0), Duration::ZERO);
    }

    #[test]
    fn a_withdrawn_request_leaves_nothing_behind() {
        let classes = classes(1);
        let mut dispatcher = Dispatcher::new(1, Estimator::default());
        let ticket = dispatcher.assign(&uid(0), &classes[0], 0, 0, Duration::ZERO);
        assert!(dispatcher.withdraw(ticket));
        assert!(!dispatcher.withdraw(ticket));
        let lane = &dispatcher.lanes[0];
        assert!(lane.queue.is_empty() && lane.ahead.is_empty());
        assert!(lane.coming_lists.0.is_empty() && lane.coming_objects.0.is_empty());
    }

    proptest! {
        /// Kamino's theorem 1. The oracle: nothing is evicted, and every part takes exactly what is estimated.
        #[test]
        fn with_an_oracle_estimator_waiting_times_never_differ_by_more_than_the_longest_processing_time(
            agents in 2usize..6,
            arrivals in prop::collection::vec((0u64..400, 0usize..10), 1..300),
        ) {
            let classes = classes(10);
            let mut dispatcher = Dispatcher::new(agents, Estimator::default());
            let mut free_at = vec![None::<(Duration, Arc<Class>)>; agents];
            let (mut now, mut longest) = (Duration::ZERO, Duration::ZERO);
            for (seq, (pause_us, class)) in arrivals.iter().enumerate() {
                let arrival = now + Duration::from_micros(*pause_us);
                // Serve what ends before the arrival, in order of time.
                while let Some((agent, at)) = free_at
                    .iter()
                    .enumerate()
                    .filter_map(|(agent, busy)| Some((agent, busy.as_ref()?.0)))
                    .min_by_key(|(agent, at)| (*at, *agent))
                    .filter(|(_, at)| *at <= arrival)
                {
                    let (_, class) = free_at[agent].take().unwrap();
                    dispatcher.cache_changed(agent, &added(&class));
                    dispatcher.finish(agent);
                    serve(&mut dispatcher, &mut free_at, agent, at);
                }
                now = arrival;
                let ticket = dispatcher.assign(&uid(seq as u64), &classes[*class], 0, seq as u64, now);
                let estimate = dispatcher.lanes[ticket.agent].queue[&(Reverse(0), seq as u64)].estimate;
                longest = longest.max(estimate);
                if free_at[ticket.agent].is_none() {
                    serve(&mut dispatcher, &mut free_at, ticket.agent, now);
                }
                let waits = dispatcher.lanes.iter().map(|lane| lane.queue_time(0) + lane.remaining(now));
                let gap = waits.clone().max().unwrap() - waits.min().unwrap();
                prop_assert!(gap <= longest, "gap {gap:?} > {longest:?}");
            }
        }
    }

    fn serve(
        dispatcher: &mut Dispatcher,
        free_at: &mut [Option<(Duration, Arc<Class>)>],
        agent: usize,
        now: Duration,
    ) {
        if let Some(request) = dispatcher.start(agent, now) {
            let takes = dispatcher.lanes[agent].remaining(now);
            free_at[agent] = Some((now + takes, request.class));
        }
    }
}
