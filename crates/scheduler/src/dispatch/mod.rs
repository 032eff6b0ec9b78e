//! The dispatcher: assigns requests to agents.
//!
//! The default, and LatCache (Kamino, OSDI'25, algorithms 1 and 2) in three variants, assign a request to the agent
//! with the earliest expected completion: the time of the requests ahead of it in that agent's queue, plus its own
//! processing time given the predicted state of that agent's caches, plus the rest of the agent's current work. It
//! stays there. The remaining kinds are baselines. May not know: kube, tokio, clocks.

mod estimator;
mod foresight;
mod kind;
mod outlook;
mod presence;
mod pressure;
mod queue;
mod request;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

pub use estimator::Estimator;
pub use kind::DispatcherKind;
pub use outlook::Expected;
pub use queue::TRIED_BEFORE;
pub use request::{Request, Search};

use crate::agent::{CacheChange, Part, Rng};
use crate::class::{Class, ClassId, TraitId};
use crate::queue::{AGED_TURN, Place};
use crate::rules::{CachedRule, mix};
use foresight::Foresight;
use outlook::Outlook;
use presence::Presence;
use pressure::Pressure;
use queue::{Queue, Waiting};

/// Position of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    lane: Option<usize>,
    key: Place,
}

impl Ticket {
    /// Returns the agent in whose queue it waits; `None`: the shared queue.
    pub fn lane(self) -> Option<usize> {
        self.lane
    }
}

/// Result of queueing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub ticket: Ticket,
    /// Agent to wake.
    pub wake: usize,
}

/// One agent's queue and current work.
#[derive(Debug, Default)]
struct Lane {
    queue: Queue,
    service: Option<Service>,
    /// The agent was woken and has not taken work yet.
    called: bool,
    /// Number of cached ranked lists.
    lists: usize,
}

/// Current work of an agent.
#[derive(Debug)]
struct Service {
    /// The request, and where it waited. `None`: a search.
    request: Option<(Request, Ticket)>,
    since: Duration,
    takes: Duration,
}

/// Dispatcher with one lane per agent.
#[derive(Debug)]
pub struct Dispatcher {
    kind: DispatcherKind,
    lanes: Vec<Lane>,
    shared: Queue,
    lists: Presence<ClassId>,
    /// Common lists.
    commons: Presence<ClassId>,
    objects: Presence<(CachedRule, TraitId)>,
    estimator: Estimator,
    rng: Rng,
    turn: usize,
    foresight: Foresight,
    pressure: Pressure,
    /// Every `aging`th request taken from a queue is the one that has waited longest; 0: never.
    aging: u64,
}

/// More agents than any machine needs; each has one bit of a word.
pub const MOST_AGENTS: usize = 64;

impl Dispatcher {
    /// Returns an empty dispatcher. `seed` is for [`DispatcherKind::Random`].
    pub fn new(kind: DispatcherKind, agents: usize, estimator: Estimator, seed: u64) -> Self {
        let agents = agents.clamp(1, MOST_AGENTS);
        Dispatcher {
            kind,
            lanes: (0..agents).map(|_| Lane::default()).collect(),
            shared: Queue::default(),
            lists: Presence::new(agents),
            commons: Presence::new(agents),
            objects: Presence::new(agents),
            estimator,
            rng: Rng(seed),
            turn: 0,
            foresight: Foresight::new(agents),
            pressure: Pressure::default(),
            aging: AGED_TURN,
        }
    }

    pub fn agents(&self) -> usize {
        self.lanes.len()
    }

    pub fn estimator(&self) -> &Estimator {
        &self.estimator
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.shared.len() + self.lanes.iter().map(|lane| lane.queue.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.lanes.iter().all(|lane| lane.queue.is_empty())
    }

    /// Returns whether there is work for this agent.
    pub fn has_work(&self, agent: usize) -> bool {
        self.next(agent).is_some()
    }

    /// Assigns a pod. `seq` orders requests of one priority and must be unique, also without [`TRIED_BEFORE`].
    pub fn assign(
        &mut self,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
        now: Duration,
    ) -> Assigned {
        self.assign_request(Request::of_pod(uid, class), (Reverse(priority), seq), None, now)
    }

    /// Assigns a request with this place in the order. `but`: not to this agent, if others may take it.
    pub fn assign_request(
        &mut self,
        request: Request,
        place: Place,
        but: Option<usize>,
        now: Duration,
    ) -> Assigned {
        use DispatcherKind::*;
        let all = self.allowed(&request);
        let others = but.map_or(all, |but| all & !(1 << but));
        let allowed = if others == 0 { all } else { others };
        let count = allowed.count_ones() as usize;
        let (lane, expected) = match self.kind {
            Protean if count == self.lanes.len() => (None, None),
            Protean => (self.shortest(allowed), None),
            Random => (nth(allowed, (self.rng.next() % count as u64) as usize), None),
            RoundRobin => {
                self.turn += 1;
                (nth(allowed, (self.turn - 1) % count), None)
            }
            HashStealing => (nth(allowed, consistent_hash(mix(request.class.id.0), count)), None),
            LatcachePriced => {
                let (at, expected) = self.cheapest(&request, place.0.0, allowed, now);
                (Some(at), Some(expected))
            }
            LatcacheNaive | LatcacheRequest | LatcacheRule => {
                let (at, expected) = self.first_done(&request, place.0.0, allowed, now);
                (Some(at), Some(expected))
            }
        };
        self.put(lane, Request { expected, ..request }, place)
    }

    /// Returns a bit mask of the agents that may place all pods of this request; if there are none, of those that may
    /// place the first one.
    fn allowed(&self, request: &Request) -> u64 {
        let count = self.lanes.len();
        let of = |class: &Class| {
            class.placement.agents.map_or(u64::MAX >> (MOST_AGENTS - count), |limit| limit.among(count))
        };
        let (first, all) =
            (of(&request.class), request.classes().fold(u64::MAX, |all, class| all & of(class)));
        if all == 0 { first } else { all }
    }

    /// Returns the one of these agents with the fewest waiting requests.
    fn shortest(&self, allowed: u64) -> Option<usize> {
        self.lanes_of(allowed).min_by_key(|(at, lane)| (lane.queue.len(), *at)).map(|(at, _)| at)
    }

    fn lanes_of(&self, allowed: u64) -> impl Iterator<Item = (usize, &Lane)> {
        self.lanes.iter().enumerate().filter(move |(at, _)| allowed & (1 << at) != 0)
    }

    /// LatCache: returns the agent with the earliest expected completion; ties go to the fewest waiting requests, then
    /// to the first agent.
    fn first_done(&self, request: &Request, priority: i32, allowed: u64, now: Duration) -> (usize, Expected) {
        let outlook = self.outlook(request);
        let done = |(at, lane): (usize, &Lane)| {
            let remaining = match self.kind {
                DispatcherKind::LatcacheNaive => Duration::ZERO,
                _ => lane.remaining(now),
            };
            (lane.queue.time_ahead(priority) + outlook.at(at).takes + remaining, lane.queue.len(), at)
        };
        let at = self.lanes_of(allowed).map(done).min().map_or(0, |(_, _, at)| at);
        (at, outlook.at(at))
    }

    /// LatCache with a price on work: returns the agent with the smallest sum of time to completion and cost to later
    /// requests.
    ///
    /// A miss where a hit was possible takes longer than necessary. It delays later requests and evicts a list that
    /// another class will miss: LatCache accounts for neither. So the time above the minimum over all agents is charged
    /// again, [`Pressure::price`] times, except at an agent with free capacity, where no list is evicted.
    fn cheapest(
        &mut self,
        request: &Request,
        priority: i32,
        allowed: u64,
        now: Duration,
    ) -> (usize, Expected) {
        let outlook = self.outlook(request);
        let price = self.pressure.price();
        let full = self.foresight.full_agents();
        let mut takes = [Duration::ZERO; MOST_AGENTS];
        (0..self.lanes.len()).for_each(|at| takes[at] = outlook.at(at).takes);
        let least = self.lanes_of(allowed).map(|(at, _)| takes[at]).min().unwrap_or_default();
        let cost = |(at, lane): (usize, &Lane)| {
            let extra = takes[at] - least;
            let charge = match extra > Duration::ZERO && full & (1 << at) != 0 {
                true => extra.mul_f64(price),
                false => Duration::ZERO,
            };
            let done = lane.queue.time_ahead(priority) + takes[at] + lane.remaining(now);
            (done + charge, lane.queue.len(), at)
        };
        let at = self.lanes_of(allowed).map(cost).min().map_or(0, |(_, _, at)| at);
        self.pressure.add(takes[at] / self.lanes.len() as u32, now);
        (at, outlook.at(at))
    }

    fn put(&mut self, lane: Option<usize>, request: Request, key: Place) -> Assigned {
        let wake = self.caller(lane, self.allowed(&request));
        if let Some(at) = lane.filter(|_| self.kind.estimates()) {
            for class in request.classes() {
                self.lists.expect(at, class.id);
                self.commons.expect(at, class.common_id());
                class.cached_rules().for_each(|key| self.objects.expect(at, key));
                if self.kind == DispatcherKind::LatcachePriced {
                    self.foresight.assigned(at, class.id);
                }
            }
        }
        let estimate = request.expected.map_or(Duration::ZERO, |expected| expected.takes);
        self.queue_mut(lane).insert(key, Waiting { request, estimate });
        Assigned { ticket: Ticket { lane, key }, wake }
    }

    /// Returns the agent to wake for a request that is about to be queued in this lane: its agent, or, if other agents
    /// may take it, one that is idle and was not woken yet. So while agents sleep, one wake-up is under way for each
    /// request that they could take.
    fn caller(&mut self, lane: Option<usize>, allowed: u64) -> usize {
        let comes_for_it = |at: &usize| match self.kind {
            DispatcherKind::HashStealing => self.lanes[*at].service.is_none() && !self.lanes[*at].called,
            // It was woken for a shared request, and will take this one instead.
            DispatcherKind::Protean => !self.lanes[*at].called || self.shared.is_empty(),
            _ => true,
        };
        let wake = lane.filter(comes_for_it).or_else(|| self.idle(allowed)).or(lane).unwrap_or(0);
        self.lanes[wake].called = true;
        wake
    }

    /// Returns the first of these agents that has nothing to do and was not woken yet.
    fn idle(&self, allowed: u64) -> Option<usize> {
        self.lanes_of(allowed).find(|(_, lane)| lane.is_idle() && !lane.called).map(|(at, _)| at)
    }

    /// Records that the agent woke but may not take work now. It comes back at the next wake-up.
    pub fn turned_away(&mut self, agent: usize) {
        self.lanes[agent].called = false;
    }

    /// Removes a waiting request before an agent has started it.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        match self.queue_mut(ticket.lane).remove(ticket.key) {
            Some(request) => {
                request.classes().for_each(|class| self.unexpect(ticket.lane, class));
                true
            }
            None => false,
        }
    }

    /// Returns the uid of the request waiting there.
    pub fn waits(&self, ticket: Ticket) -> Option<&Arc<str>> {
        Some(&self.queue(ticket.lane).get(ticket.key)?.request.uid)
    }

    /// Returns the uid of the request that the agent serves, or takes next if it has nothing to do; only of a higher
    /// priority than this.
    pub fn current(&self, agent: usize, priority: i32) -> Option<&Arc<str>> {
        let (uid, place) = match &self.lanes[agent].service {
            Some(service) => service.request.as_ref().map(|(request, ticket)| (&request.uid, ticket.key))?,
            None => {
                let ticket = self.next(agent)?;
                (self.waits(ticket)?, ticket.key)
            }
        };
        (place.0.0 > priority).then_some(uid)
    }

    /// Starts the next request of this agent.
    pub fn start(&mut self, agent: usize, now: Duration) -> Option<Request> {
        debug_assert!(self.lanes[agent].service.is_none(), "an agent serves one request at a time");
        self.lanes[agent].called = false;
        let ticket = self.next(agent)?;
        let request = self.queue_mut(ticket.lane).take(ticket.key)?;
        let takes = match self.kind.estimates() {
            true => self.outlook_now(&request).at(agent).takes,
            false => Duration::ZERO,
        };
        let started = Some((request.clone(), ticket));
        self.lanes[agent].service = Some(Service { request: started, since: now, takes });
        Some(request)
    }

    /// Starts a search of this agent. Returns the agent to wake instead, if it was woken for a request that others may
    /// take.
    pub fn start_search(&mut self, agent: usize, search: &Search, now: Duration) -> Option<usize> {
        debug_assert!(self.lanes[agent].service.is_none(), "an agent does one thing at a time");
        let mut takes = Duration::ZERO;
        if self.kind.estimates() {
            for class in &search.classes {
                takes += self.outlook_with_cached(class).at(agent).takes;
            }
            takes +=
                search.parts.map_or(Duration::ZERO, |(part, times)| self.estimator.estimate(part) * times);
        }
        if self.kind == DispatcherKind::LatcachePriced {
            self.pressure.add(takes / self.lanes.len() as u32, now);
        }
        self.lanes[agent].service = Some(Service { request: None, since: now, takes });
        self.lanes[agent].called = false;
        let ticket = self.next(agent).filter(|_| self.kind.shares_requests())?;
        let allowed = self.allowed(&self.queue(ticket.lane).get(ticket.key)?.request);
        let wake = self.idle(allowed)?;
        self.lanes[wake].called = true;
        Some(wake)
    }

    /// Records that the agent has its answer: what is left is to settle it.
    pub fn answered(&mut self, agent: usize) {
        if let Some(service) = &mut self.lanes[agent].service {
            service.takes = Duration::ZERO;
        }
    }

    /// Records that the agent starts over with its request.
    pub fn start_over(&mut self, agent: usize, now: Duration) {
        let Some(Service { request: Some((request, _)), .. }) = &self.lanes[agent].service else {
            return;
        };
        let takes = match self.kind.estimates() {
            true => self.outlook_now(request).at(agent).takes,
            false => Duration::ZERO,
        };
        if let Some(service) = &mut self.lanes[agent].service {
            (service.since, service.takes) = (now, takes);
        }
    }

    /// Marks the current work of the agent as done.
    pub fn finish(&mut self, agent: usize) {
        if let Some(Service { request: Some((request, ticket)), .. }) = self.lanes[agent].service.take() {
            request.classes().for_each(|class| self.unexpect(ticket.lane, class));
        }
    }

    /// Records the duration of a part of a request.
    pub fn learn(&mut self, part: Part, took: Duration) {
        self.estimator.learn(part, took);
    }

    /// Applies the insertions and evictions of an agent's caches.
    pub fn cache_changed(&mut self, agent: usize, changes: &[CacheChange]) {
        let mut evicted = false;
        for change in changes {
            match *change {
                CacheChange::ListAdded(class) => {
                    self.lists.insert(agent, class);
                    self.lanes[agent].lists += 1;
                    self.foresee_unassigned(agent, class);
                }
                CacheChange::ListEvicted(class) | CacheChange::ListExpired(class) => {
                    evicted |= matches!(change, CacheChange::ListEvicted(_));
                    self.lists.remove(agent, &class);
                    self.lanes[agent].lists -= 1;
                    self.drop_unless_expected(agent, class);
                }
                CacheChange::CommonAdded(class) => self.commons.insert(agent, class),
                CacheChange::CommonEvicted(class) => self.commons.remove(agent, &class),
                CacheChange::ObjectAdded(rule, value) => self.objects.insert(agent, (rule, value)),
                CacheChange::ObjectEvicted(rule, value) => self.objects.remove(agent, &(rule, value)),
            }
        }
        if !changes.is_empty() {
            self.foresight.counted(agent, self.lanes[agent].lists, evicted);
        }
    }

    /// Adds a list to the prediction that no request brought (the class is parked and was checked again).
    fn foresee_unassigned(&mut self, agent: usize, class: ClassId) {
        let started = self.lanes[agent].service.as_ref().and_then(|service| service.request.as_ref());
        let brought = started.is_some_and(|(request, _)| request.classes().any(|of| of.id == class));
        if self.kind == DispatcherKind::LatcachePriced && !brought {
            self.foresight.assigned(agent, class);
        }
    }

    /// Returns the request this agent would start: its own first one, the shared queue's, or one it may steal.
    fn next(&self, agent: usize) -> Option<Ticket> {
        let ticket = |lane, (key, aged)| (Ticket { lane, key }, aged);
        let own = self.lanes[agent].queue.next(self.aging).map(|next| ticket(Some(agent), next));
        let shared = self.shared.next(self.aging).map(|next| ticket(None, next));
        let both = [own, shared].into_iter().flatten();
        let first = both.min_by_key(|(ticket, aged)| (!aged, ticket.key)).map(|(ticket, _)| ticket);
        first.or_else(|| self.steal(agent).filter(|_| self.kind == DispatcherKind::HashStealing))
    }

    /// Returns the first request of the longest queue whose first request this agent may take.
    fn steal(&self, agent: usize) -> Option<Ticket> {
        let mine = |(at, lane): (usize, &Lane)| {
            let (key, _) = lane.queue.next(self.aging)?;
            let request = &lane.queue.get(key)?.request;
            let ticket = Ticket { lane: Some(at), key };
            (self.allowed(request) & (1 << agent) != 0).then_some((lane.queue.len(), Reverse(at), ticket))
        };
        let all = self.lanes.iter().enumerate().filter_map(mine);
        all.max_by_key(|(len, at, _)| (*len, *at)).map(|(_, _, ticket)| ticket)
    }

    fn queue(&self, lane: Option<usize>) -> &Queue {
        match lane {
            Some(at) => &self.lanes[at].queue,
            None => &self.shared,
        }
    }

    fn queue_mut(&mut self, lane: Option<usize>) -> &mut Queue {
        match lane {
            Some(at) => &mut self.lanes[at].queue,
            None => &mut self.shared,
        }
    }

    fn unexpect(&mut self, lane: Option<usize>, class: &Class) {
        let Some(at) = lane.filter(|_| self.kind.estimates()) else {
            return;
        };
        self.lists.unexpect(at, &class.id);
        self.drop_unless_expected(at, class.id);
        self.commons.unexpect(at, &class.common_id());
        class.cached_rules().for_each(|key| self.objects.unexpect(at, &key));
    }

    /// Removes a list from the prediction if it is neither cached nor brought by a waiting request.
    fn drop_unless_expected(&mut self, agent: usize, class: ClassId) {
        if self.lists.augmented(&class) & (1 << agent) == 0 {
            self.foresight.expect_removal(agent, class);
        }
    }

    /// Returns the cache state a request will find once all waiting requests are served: for LatCache without
    /// evictions, for the default as predicted.
    fn outlook(&self, request: &Request) -> Outlook {
        self.outlook_of(request, |class| self.outlook_with_queued(class))
    }

    /// Returns the cache state now.
    fn outlook_now(&self, request: &Request) -> Outlook {
        self.outlook_of(request, |class| self.outlook_with_cached(class))
    }

    /// Combines the outlooks of the request's classes. Each member of a gang beyond the first of its class finds its
    /// list.
    fn outlook_of(&self, request: &Request, of: impl Fn(&Class) -> Outlook) -> Outlook {
        let mut outlook = of(&request.class);
        if request.pods > 1 {
            let again = request.pods.saturating_sub(1 + request.others.len() as u32);
            let others: Vec<Outlook> = request.others.iter().map(|class| of(class)).collect();
            let time = |at| others.iter().map(|other| other.at(at).takes).sum::<Duration>();
            outlook.others = (0..self.lanes.len()).map(|at| time(at) + outlook.hit * again).collect();
        }
        outlook
    }

    fn outlook_with_queued(&self, class: &Class) -> Outlook {
        let lists = match self.kind {
            DispatcherKind::LatcacheNaive => self.lists.cached(&class.id),
            // An agent with free capacity evicts nothing.
            DispatcherKind::LatcachePriced => {
                self.foresight.holders(class.id)
                    | self.lists.augmented(&class.id) & !self.foresight.full_agents()
            }
            _ => self.lists.augmented(&class.id),
        };
        let common = self.commons.augmented(&class.common_id());
        self.outlook_with(class, (lists, common), |key| self.objects.augmented(key))
    }

    fn outlook_with_cached(&self, class: &Class) -> Outlook {
        let common = self.commons.cached(&class.common_id());
        self.outlook_with(class, (self.lists.cached(&class.id), common), |key| self.objects.cached(key))
    }

    fn outlook_with(
        &self,
        class: &Class,
        (lists, common): (u64, u64),
        objects: impl Fn(&(CachedRule, TraitId)) -> u64,
    ) -> Outlook {
        use DispatcherKind::{LatcacheNaive, LatcacheRequest};
        let blind = matches!(self.kind, LatcacheNaive | LatcacheRequest);
        let mut rules = [None; CachedRule::COUNT];
        for key in class.cached_rules() {
            let hit = self.estimator.estimate(Part::RuleHit(key.0));
            let miss = self.estimator.estimate(Part::RuleMiss(key.0));
            rules[key.0.index()] = Some((hit, miss, if blind { 0 } else { objects(&key) }));
        }
        Outlook {
            lists,
            hit: self.estimator.estimate(Part::ListHit),
            miss: self.estimator.estimate(Part::ListMiss),
            common: (
                self.estimator.estimate(Part::CommonHit),
                self.estimator.estimate(Part::CommonMiss),
                if blind { 0 } else { common },
            ),
            rules,
            others: Box::default(),
        }
    }
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.service.is_none() && self.queue.is_empty()
    }

    fn remaining(&self, now: Duration) -> Duration {
        match &self.service {
            Some(service) => (service.since + service.takes).saturating_sub(now),
            None => Duration::ZERO,
        }
    }
}

/// Returns the position of the `n`th of these bits.
fn nth(bits: u64, n: usize) -> Option<usize> {
    (0..MOST_AGENTS).filter(|at| bits & (1 << at) != 0).nth(n)
}

/// Jump consistent hash (Lamping and Veach, 2014): a new agent takes over only its share of the keys.
fn consistent_hash(mut key: u64, buckets: usize) -> usize {
    let (mut bucket, mut next) = (0, 0);
    while next < buckets as i64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    bucket as usize
}
