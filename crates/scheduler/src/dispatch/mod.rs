//! The dispatcher: which agent gets a request.
//!
//! The default, and LatCache (Kamino, OSDI'25, algorithms 1 and 2) in three strengths, send a request to the agent where
//! it is expected to be done first: the time of what waits ahead of it there, plus its own processing time given what
//! that agent's caches will hold by then, plus the rest of what the agent is doing now. It stays there. The others are
//! what they are compared with. May not know: kube, tokio, clocks.

mod estimator;
mod foresight;
mod kind;
mod presence;
mod pressure;
mod queue;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

pub use estimator::Estimator;
pub use kind::DispatcherKind;

use crate::agent::{CacheChange, Part, Rng};
use crate::class::{Class, ClassId, TraitId};
use crate::queue::AGED_TURN;
use crate::rules::{CachedRule, mix};
use foresight::Foresight;
use presence::Presence;
use pressure::Pressure;
use queue::{Key, Queue, Waiting};

/// Where a waiting request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    lane: Option<usize>,
    key: Key,
}

impl Ticket {
    /// The agent in whose queue it waits; `None`: in the one that all share.
    pub fn lane(self) -> Option<usize> {
        self.lane
    }
}

/// A request was put somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub ticket: Ticket,
    /// This agent should look for work.
    pub wake: usize,
}

/// A request on its way to an agent.
#[derive(Debug, Clone)]
pub struct Request {
    pub uid: Arc<str>,
    pub class: Arc<Class>,
    /// What was expected when the agent was chosen; `None`: nothing was.
    pub expected: Option<Expected>,
}

/// What an agent's caches are expected to hold for a request, and what it will therefore take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub list: bool,
    /// A bit for each [`CachedRule`] whose rule object is there.
    pub rules: u8,
    pub takes: Duration,
}

impl Expected {
    pub fn has(&self, rule: CachedRule) -> bool {
        self.rules & (1 << rule.index()) != 0
    }
}

/// One agent's queue, and what it is doing.
#[derive(Debug, Default)]
struct Lane {
    queue: Queue,
    service: Option<Service>,
    /// It was told to look for work, and has not come yet.
    called: bool,
    /// Ranked lists cached.
    lists: usize,
}

#[derive(Debug)]
struct Service {
    class: Arc<Class>,
    /// The lane that it waited in; `None`: the shared queue.
    lane: Option<usize>,
    started: Duration,
    takes: Duration,
}

/// One lane an agent.
#[derive(Debug)]
pub struct Dispatcher {
    kind: DispatcherKind,
    lanes: Vec<Lane>,
    shared: Queue,
    lists: Presence<ClassId>,
    objects: Presence<(CachedRule, TraitId)>,
    estimator: Estimator,
    rng: Rng,
    turn: usize,
    foresight: Foresight,
    pressure: Pressure,
    /// Of so many requests taken from a queue one is the one that waits longest; 0: none.
    aging: u64,
}

/// More agents than any machine needs; each has a bit in a word.
pub const MOST_AGENTS: usize = 64;

impl Dispatcher {
    /// `seed`: of the choices of [`DispatcherKind::Random`].
    pub fn new(kind: DispatcherKind, agents: usize, estimator: Estimator, seed: u64) -> Self {
        let agents = agents.clamp(1, MOST_AGENTS);
        Dispatcher {
            kind,
            lanes: (0..agents).map(|_| Lane::default()).collect(),
            shared: Queue::default(),
            lists: Presence::new(agents),
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

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.shared.len() + self.lanes.iter().map(|lane| lane.queue.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.lanes.iter().all(|lane| lane.queue.is_empty())
    }

    /// Whether this agent would find something to do.
    pub fn has_work(&self, agent: usize) -> bool {
        self.next(agent).is_some()
    }

    /// Assigns a request. `seq` orders requests of one priority and must be unique.
    pub fn assign(
        &mut self,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
        now: Duration,
    ) -> Assigned {
        use DispatcherKind::*;
        let allowed = self.allowed(class);
        let count = allowed.count_ones() as usize;
        let (lane, expected) = match self.kind {
            Protean if count == self.lanes.len() => (None, None),
            Protean => (self.shortest(allowed), None),
            Random => (nth(allowed, (self.rng.next() % count as u64) as usize), None),
            RoundRobin => {
                self.turn += 1;
                (nth(allowed, (self.turn - 1) % count), None)
            }
            HashStealing => (nth(allowed, consistent_hash(mix(class.id.0), count)), None),
            LatcachePriced => {
                let (at, expected) = self.cheapest(class, priority, now);
                (Some(at), Some(expected))
            }
            LatcacheNaive | LatcacheRequest | LatcacheRule => {
                let (at, expected) = self.first_done(class, priority, now);
                (Some(at), Some(expected))
            }
        };
        self.put(lane, expected, uid, class, priority, seq)
    }

    /// The agents that may place pods of this class, a bit each.
    fn allowed(&self, class: &Class) -> u64 {
        let count = self.lanes.len();
        class.placement.agents.map_or(u64::MAX >> (MOST_AGENTS - count), |limit| limit.among(count))
    }

    /// Of these agents, the one with the fewest waiting.
    fn shortest(&self, allowed: u64) -> Option<usize> {
        self.lanes_of(allowed).min_by_key(|(at, lane)| (lane.queue.len(), *at)).map(|(at, _)| at)
    }

    fn lanes_of(&self, allowed: u64) -> impl Iterator<Item = (usize, &Lane)> {
        self.lanes.iter().enumerate().filter(move |(at, _)| allowed & (1 << at) != 0)
    }

    /// Puts a request into the lane of a given agent.
    pub fn assign_to(
        &mut self,
        agent: usize,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
    ) -> Assigned {
        let expected = self.kind.estimates().then(|| self.outlook(class).at(agent));
        self.put(Some(agent), expected, uid, class, priority, seq)
    }

    /// LatCache: the agent where the request is expected to be done first; of equals, the one with the fewest waiting,
    /// then the first.
    fn first_done(&self, class: &Class, priority: i32, now: Duration) -> (usize, Expected) {
        let outlook = self.outlook(class);
        let done = |(at, lane): (usize, &Lane)| {
            let remaining = match self.kind {
                DispatcherKind::LatcacheNaive => Duration::ZERO,
                _ => lane.remaining(now),
            };
            (lane.queue.time_ahead(priority) + outlook.at(at).takes + remaining, lane.queue.len(), at)
        };
        let at = self.lanes_of(self.allowed(class)).map(done).min().map_or(0, |(_, _, at)| at);
        (at, outlook.at(at))
    }

    /// LatCache with a price on work: of the agents, the one where the time until the request is done, plus what the
    /// choice costs those who come later, is least.
    ///
    /// A miss where a hit was possible takes longer than it must. It delays who comes after, and it evicts a list that
    /// somebody will miss: LatCache does not see either. So the time above the least that any agent needs is charged
    /// again, [`Pressure::price`] times; but not at an agent that has room, where nothing is lost.
    fn cheapest(&mut self, class: &Class, priority: i32, now: Duration) -> (usize, Expected) {
        let outlook = self.outlook(class);
        let price = self.pressure.price();
        let full = self.foresight.full_agents();
        let mut takes = [Duration::ZERO; MOST_AGENTS];
        (0..self.lanes.len()).for_each(|at| takes[at] = outlook.at(at).takes);
        let allowed = self.allowed(class);
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

    fn put(
        &mut self,
        lane: Option<usize>,
        expected: Option<Expected>,
        uid: &Arc<str>,
        class: &Arc<Class>,
        priority: i32,
        seq: u64,
    ) -> Assigned {
        let key = (Reverse(priority), seq);
        let wake = self.caller(lane, self.allowed(class));
        let request = Request { uid: uid.clone(), class: class.clone(), expected };
        let estimate = expected.map_or(Duration::ZERO, |expected| expected.takes);
        self.queue_mut(lane).insert(key, Waiting { request, estimate });
        if let Some(at) = lane.filter(|_| self.kind.estimates()) {
            self.lists.expect(at, class.id);
            class.cached_rules().for_each(|key| self.objects.expect(at, key));
            if self.kind == DispatcherKind::LatcachePriced {
                self.foresight.assigned(at, class.id);
            }
        }
        Assigned { ticket: Ticket { lane, key }, wake }
    }

    /// Who is to be woken for a request that is about to come into this lane: its agent, or, if others may help, one that
    /// has nothing to do and was not called yet. So while an agent sleeps, one is on its way for each request that it
    /// could take.
    fn caller(&mut self, lane: Option<usize>, allowed: u64) -> usize {
        let comes_for_it = |at: &usize| match self.kind {
            DispatcherKind::HashStealing => self.lanes[*at].service.is_none() && !self.lanes[*at].called,
            // It was called for a shared request, and will take this one instead.
            DispatcherKind::Protean => !self.lanes[*at].called || self.shared.is_empty(),
            _ => true,
        };
        let idle =
            || self.lanes_of(allowed).find(|(_, lane)| lane.is_idle() && !lane.called).map(|(at, _)| at);
        let wake = lane.filter(comes_for_it).or_else(idle).or(lane).unwrap_or(0);
        self.lanes[wake].called = true;
        wake
    }

    /// The agent came and may not take work now. It comes again when it is told to.
    pub fn turned_away(&mut self, agent: usize) {
        self.lanes[agent].called = false;
    }

    /// Takes a waiting request back, before an agent has started it.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        match self.queue_mut(ticket.lane).remove(ticket.key) {
            Some(request) => {
                self.unexpect(ticket.lane, &request.class);
                true
            }
            None => false,
        }
    }

    /// Who waits there.
    pub fn waits(&self, ticket: Ticket) -> Option<&Arc<str>> {
        let queue = match ticket.lane {
            Some(at) => &self.lanes[at].queue,
            None => &self.shared,
        };
        Some(&queue.get(ticket.key)?.request.uid)
    }

    /// The next request of this agent: it starts now.
    pub fn start(&mut self, agent: usize, now: Duration) -> Option<Request> {
        debug_assert!(self.lanes[agent].service.is_none(), "an agent serves one request at a time");
        self.lanes[agent].called = false;
        let ticket = self.next(agent)?;
        let queue = self.queue_mut(ticket.lane);
        queue.count_turn();
        let request = queue.remove(ticket.key)?;
        let takes = match self.kind.estimates() {
            true => self.outlook_now(&request.class).at(agent).takes,
            false => Duration::ZERO,
        };
        let service = Service { class: request.class.clone(), lane: ticket.lane, started: now, takes };
        self.lanes[agent].service = Some(service);
        Some(request)
    }

    /// The agent is done with the request it had started.
    pub fn finish(&mut self, agent: usize) {
        if let Some(service) = self.lanes[agent].service.take() {
            self.unexpect(service.lane, &service.class);
        }
    }

    /// A part of a request took this long.
    pub fn learn(&mut self, part: Part, took: Duration) {
        self.estimator.learn(part, took);
    }

    /// What came into and went out of the agent's caches.
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
                    self.forget_unless_coming(agent, class);
                }
                CacheChange::ObjectAdded(rule, value) => self.objects.insert(agent, (rule, value)),
                CacheChange::ObjectEvicted(rule, value) => self.objects.remove(agent, &(rule, value)),
            }
        }
        if !changes.is_empty() {
            self.foresight.counted(agent, self.lanes[agent].lists, evicted);
        }
    }

    /// A list that no request brought (the class is parked, and was looked at again) was not foreseen yet.
    fn foresee_unassigned(&mut self, agent: usize, class: ClassId) {
        let brought = self.lanes[agent].service.as_ref().is_some_and(|service| service.class.id == class);
        if self.kind == DispatcherKind::LatcachePriced && !brought {
            self.foresight.assigned(agent, class);
        }
    }

    /// The request that this agent would start: its own first one, or one of a queue that it may take from.
    fn next(&self, agent: usize) -> Option<Ticket> {
        let ticket = |lane, (key, aged)| (Ticket { lane, key }, aged);
        let own = self.lanes[agent].queue.next(self.aging).map(|next| ticket(Some(agent), next));
        let shared = self.shared.next(self.aging).map(|next| ticket(None, next));
        let both = [own, shared].into_iter().flatten();
        let first = both.min_by_key(|(ticket, aged)| (!aged, ticket.key)).map(|(ticket, _)| ticket);
        first.or_else(|| self.steal(agent).filter(|_| self.kind == DispatcherKind::HashStealing))
    }

    /// The first of the longest queue whose first this agent may take.
    fn steal(&self, agent: usize) -> Option<Ticket> {
        let mine = |(at, lane): (usize, &Lane)| {
            let (key, _) = lane.queue.next(self.aging)?;
            let class = &lane.queue.get(key)?.request.class;
            let ticket = Ticket { lane: Some(at), key };
            (self.allowed(class) & (1 << agent) != 0).then_some((lane.queue.len(), Reverse(at), ticket))
        };
        let all = self.lanes.iter().enumerate().filter_map(mine);
        all.max_by_key(|(len, at, _)| (*len, *at)).map(|(_, _, ticket)| ticket)
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
        self.forget_unless_coming(at, class.id);
        class.cached_rules().for_each(|key| self.objects.unexpect(at, &key));
    }

    /// A list that is not cached, and that nothing which waits will bring, is not foreseen either.
    fn forget_unless_coming(&mut self, agent: usize, class: ClassId) {
        if self.lists.augmented(&class) & (1 << agent) == 0 {
            self.foresight.gone(agent, class);
        }
    }

    /// What a request of `class` will find once all that waits has been served: for LatCache if nothing is evicted, for
    /// the default as foreseen.
    fn outlook(&self, class: &Class) -> Outlook {
        let lists = match self.kind {
            DispatcherKind::LatcacheNaive => self.lists.cached(&class.id),
            // Where there is room, nothing goes.
            DispatcherKind::LatcachePriced => {
                self.foresight.holders(class.id)
                    | self.lists.augmented(&class.id) & !self.foresight.full_agents()
            }
            _ => self.lists.augmented(&class.id),
        };
        self.outlook_with(class, lists, |key| self.objects.augmented(key))
    }

    /// What it finds in the caches as they are.
    fn outlook_now(&self, class: &Class) -> Outlook {
        self.outlook_with(class, self.lists.cached(&class.id), |key| self.objects.cached(key))
    }

    fn outlook_with(
        &self,
        class: &Class,
        lists: u64,
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
            rules,
        }
    }
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.service.is_none() && self.queue.is_empty()
    }

    fn remaining(&self, now: Duration) -> Duration {
        match &self.service {
            Some(service) => (service.started + service.takes).saturating_sub(now),
            None => Duration::ZERO,
        }
    }
}

/// What a request would find at each agent.
struct Outlook {
    /// A bit an agent, here and below.
    lists: u64,
    hit: Duration,
    miss: Duration,
    /// By rule that applies: what a hit and a miss take, and where it is a hit.
    rules: [Option<(Duration, Duration, u64)>; CachedRule::COUNT],
}

impl Outlook {
    /// Kamino's algorithm 2 for one agent.
    fn at(&self, agent: usize) -> Expected {
        let bit = 1u64 << agent;
        if self.lists & bit != 0 {
            return Expected { list: true, rules: 0, takes: self.hit };
        }
        let mut expected = Expected { list: false, rules: 0, takes: self.miss };
        for (at, rule) in self.rules.iter().enumerate() {
            if let Some((hit, miss, agents)) = rule {
                let has = agents & bit != 0;
                expected.takes += if has { *hit } else { *miss };
                expected.rules |= u8::from(has) << at;
            }
        }
        expected
    }
}

/// The place of the `n`th of these bits.
fn nth(bits: u64, n: usize) -> Option<usize> {
    (0..MOST_AGENTS).filter(|at| bits & (1 << at) != 0).nth(n)
}

/// Jump consistent hash (Lamping and Veach, 2014): another agent takes over only its share of the keys.
fn consistent_hash(mut key: u64, buckets: usize) -> usize {
    let (mut bucket, mut next) = (0, 0);
    while next < buckets as i64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    bucket as usize
}
