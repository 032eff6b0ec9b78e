//! Model of agents that come when woken and serve until they find no work: all that a dispatcher may rely on. Their
//! caches are real, without nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{classes, uid};
use crate::agent::{Agent, AgentConfig, CacheLimits, Part};
use crate::class::Class;
use crate::dispatch::{Assigned, Dispatcher, DispatcherKind, Estimator, Request, Search, Ticket};

pub const AGENTS: usize = 4;
pub const CLASSES: usize = 12;
/// Time between two events.
const PAUSE: Duration = Duration::from_micros(50);
const AGE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub enum Event {
    Arrives {
        class: usize,
        priority: i32,
    },
    /// One of the waiting requests is withdrawn.
    Withdrawn(usize),
    /// An awake agent looks for work, or finishes its work.
    Acts(usize),
    /// An agent that places nothing begins to check the list of a parked class.
    Checks {
        agent: usize,
        class: usize,
    },
    /// No agent may take work from now on, or all may again.
    Pauses(bool),
    /// Enough time that every idle agent expires its lists.
    TimePasses,
}

/// Arrivals of one priority and agents that serve them.
pub fn plain_events() -> impl Strategy<Value = Vec<Event>> {
    let arrives = (0..CLASSES).prop_map(|class| Event::Arrives { class, priority: 0 });
    prop::collection::vec(prop_oneof![2 => arrives, 3 => (0..AGENTS).prop_map(Event::Acts)], 1..400)
}

pub fn all_events() -> impl Strategy<Value = Vec<Event>> {
    let arrives = (0..CLASSES, 0..3).prop_map(|(class, priority)| Event::Arrives { class, priority });
    let checks = (0..AGENTS, 0..CLASSES).prop_map(|(agent, class)| Event::Checks { agent, class });
    let event = prop_oneof![
        10 => arrives,
        2 => (0..100usize).prop_map(Event::Withdrawn),
        14 => (0..AGENTS).prop_map(Event::Acts),
        2 => checks,
        1 => any::<bool>().prop_map(Event::Pauses),
        1 => Just(Event::TimePasses),
    ];
    prop::collection::vec(event, 1..300)
}

enum Doing {
    Asleep,
    /// Woken, or has just finished a request.
    OnTheWay,
    Serving(Request),
    /// It checks the list of this class.
    Searching(usize),
}

struct Worker {
    agent: Agent,
    doing: Doing,
}

/// Outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    pub expected_hit: Option<bool>,
    pub hit: bool,
}

pub struct Model {
    pub dispatcher: Dispatcher,
    classes: Vec<Arc<Class>>,
    workers: Vec<Worker>,
    now: Duration,
    seq: u64,
    waiting: BTreeMap<Arc<str>, Ticket>,
    paused: bool,
    /// Lane of each request.
    pub lanes: Vec<Option<usize>>,
    pub served: Vec<Served>,
}

impl Model {
    /// `slots`: maximum number of lists per cache.
    pub fn new(kind: DispatcherKind, slots: usize) -> Self {
        let cache = CacheLimits { slots, age: AGE, ..CacheLimits::unlimited() };
        let config = AgentConfig { cache, seed: 0 };
        let worker = |_| Worker { agent: Agent::new(config), doing: Doing::Asleep };
        Model {
            dispatcher: Dispatcher::new(kind, AGENTS, Estimator::default(), 0),
            classes: classes(CLASSES),
            workers: (0..AGENTS).map(worker).collect(),
            now: Duration::ZERO,
            seq: 0,
            waiting: BTreeMap::new(),
            paused: false,
            lanes: Vec::new(),
            served: Vec::new(),
        }
    }

    pub fn happens(&mut self, event: &Event) {
        self.now += PAUSE;
        match *event {
            Event::Arrives { class, priority } => {
                let (uid, seq) = self.next();
                let class = self.classes[class].clone();
                let assigned = self.dispatcher.assign(&uid, &class, priority, seq, self.now);
                self.lanes.push(assigned.ticket.lane());
                self.put(uid, assigned);
            }
            Event::Withdrawn(nth) => {
                if let Some(uid) = self.waiting.keys().nth(nth).cloned() {
                    let ticket = self.waiting.remove(&uid).unwrap();
                    assert!(self.dispatcher.withdraw(ticket));
                }
            }
            Event::Acts(at) => self.act(at),
            Event::Checks { agent, class } => self.search(agent, class),
            Event::Pauses(paused) => self.pause(paused),
            Event::TimePasses => {
                self.now += 2 * AGE;
                self.expire();
            }
        }
    }

    fn next(&mut self) -> (Arc<str>, u64) {
        self.seq += 1;
        (uid(self.seq), self.seq)
    }

    fn put(&mut self, uid: Arc<str>, assigned: Assigned) {
        self.waiting.insert(uid, assigned.ticket);
        self.wake(assigned.wake);
    }

    fn wake(&mut self, at: usize) {
        let doing = &mut self.workers[at].doing;
        if matches!(doing, Doing::Asleep) {
            *doing = Doing::OnTheWay;
        }
    }

    fn act(&mut self, at: usize) {
        let doing = std::mem::replace(&mut self.workers[at].doing, Doing::Asleep);
        self.workers[at].doing = match doing {
            Doing::Asleep => Doing::Asleep,
            Doing::OnTheWay if self.paused => {
                self.dispatcher.turned_away(at);
                Doing::Asleep
            }
            Doing::OnTheWay => match self.dispatcher.start(at, self.now) {
                Some(request) => {
                    assert!(self.waiting.remove(&request.uid).is_some(), "{} is served once", request.uid);
                    Doing::Serving(request)
                }
                None => Doing::Asleep,
            },
            Doing::Serving(request) => {
                let class = self.classes.iter().position(|class| class.id == request.class.id).unwrap();
                let hit = self.choose(at, class);
                let expected_hit = request.expected.map(|expected| expected.list);
                self.served.push(Served { expected_hit, hit });
                self.dispatcher.finish(at);
                Doing::OnTheWay
            }
            Doing::Searching(class) => {
                self.choose(at, class);
                self.dispatcher.finish(at);
                Doing::OnTheWay
            }
        };
    }

    fn search(&mut self, at: usize, class: usize) {
        if matches!(self.workers[at].doing, Doing::Asleep | Doing::OnTheWay) {
            self.workers[at].doing = Doing::Searching(class);
            let search = Search { classes: vec![&self.classes[class]], parts: None };
            if let Some(wake) = self.dispatcher.start_search(at, &search, self.now) {
                assert_ne!(wake, at);
                self.wake(wake);
            }
        }
    }

    /// Returns whether the list was cached.
    fn choose(&mut self, at: usize, class: usize) -> bool {
        let agent = &mut self.workers[at].agent;
        let mut hit = false;
        agent.choose(&self.classes[class], self.now, |part| hit |= part == Part::ListHit);
        self.dispatcher.cache_changed(at, &agent.cache_changes());
        hit
    }

    fn pause(&mut self, paused: bool) {
        self.paused = paused;
        for at in (0..AGENTS).filter(|_| !paused) {
            if self.dispatcher.has_work(at) {
                self.wake(at);
            }
        }
    }

    /// Idle agents expire old lists.
    fn expire(&mut self) {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            if matches!(worker.doing, Doing::Asleep | Doing::OnTheWay) {
                worker.agent.expire(self.now);
                self.dispatcher.cache_changed(at, &worker.agent.cache_changes());
            }
        }
    }

    /// Checks that while an agent sleeps, a woken agent exists for each request that it could take.
    pub fn check_wake_ups(&self) -> Result<(), TestCaseError> {
        let count = |is: fn(&Doing) -> bool| self.workers.iter().filter(|worker| is(&worker.doing)).count();
        let on_the_way = count(|doing| matches!(doing, Doing::OnTheWay));
        let asleep = count(|doing| matches!(doing, Doing::Asleep));
        let Dispatcher { kind, shared, lanes, .. } = &self.dispatcher;
        let for_all = match kind {
            DispatcherKind::HashStealing => self.dispatcher.len(),
            _ => shared.len(),
        };
        if !self.paused {
            prop_assert!(asleep == 0 || for_all <= on_the_way, "{asleep} sleep, {for_all} wait for anyone");
            for (at, (worker, lane)) in self.workers.iter().zip(lanes).enumerate() {
                let sleeps = matches!(worker.doing, Doing::Asleep);
                let helped = *kind == DispatcherKind::HashStealing;
                prop_assert!(helped || !sleeps || lane.queue.is_empty(), "{at} sleeps and has work");
            }
        }
        Ok(())
    }

    /// Runs without further events until no agent is awake.
    pub fn drain(&mut self) -> Result<(), TestCaseError> {
        self.pause(false);
        while self.workers.iter().any(|worker| !matches!(worker.doing, Doing::Asleep)) {
            (0..AGENTS).for_each(|at| self.happens(&Event::Acts(at)));
        }
        prop_assert!(self.dispatcher.is_empty(), "{} wait while all agents sleep", self.dispatcher.len());
        Ok(())
    }

    /// Checks that the dispatcher is empty when all caches are empty and no request waits.
    pub fn check_forgotten(&mut self) -> Result<(), TestCaseError> {
        self.happens(&Event::TimePasses);
        let Dispatcher { lists, objects, foresight, lanes, .. } = &self.dispatcher;
        prop_assert!(lists.is_empty() && objects.is_empty() && foresight.is_empty());
        prop_assert!(lanes.iter().all(|lane| lane.lists == 0 && lane.queue.is_empty() && !lane.called));
        Ok(())
    }
}
