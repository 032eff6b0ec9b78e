//! One simulation run: the production scheduler and its agents, driven by events in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::cost::Costs;
use super::figures::RunOutcome;
use super::measure::Measure;
use super::quality::CacheSizes;
use super::workload::{ArrivalTrace, PodArrival};
use berth_model::{Labels, Node, Pod};
use berth_scheduler::agent::{Agent, AgentChoice, AgentConfig, CacheChange, CacheLimits, Part};
use berth_scheduler::dispatch::{DispatcherKind, Estimator};
use berth_scheduler::inventory::Revision;
use berth_scheduler::placement::{BindOutcome, Binding, MemoryStore, Reply};
use berth_scheduler::rules::{PlacementSettings, mix, unit};
use berth_scheduler::scheduler::{Action, Scheduler, SchedulerConfig, Settled, Task, TaskResult};

/// All inputs of a simulation run.
#[derive(Debug, Clone)]
pub struct Setup {
    pub workload: Arc<ArrivalTrace>,
    pub nodes: Arc<Vec<Node>>,
    pub dispatcher: DispatcherKind,
    pub agents: usize,
    pub cache: CacheLimits,
    pub costs: Costs,
    /// Virtual seconds per second of the workload.
    pub scale: f64,
    /// External node changes per second; each makes lists stale.
    pub churn_per_s: f64,
    /// Whether agents run into each other's placements. If not, a stale placement is recomputed at no cost in virtual
    /// time.
    pub conflicts: bool,
    pub placement: Arc<PlacementSettings>,
    pub seed: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The pod terminates.
    Leaves(Arc<str>),
    AgentDone(usize),
    /// A node changes.
    Churn(u32),
    /// Periodic tick for time-based work.
    Tick,
}

struct Worker {
    agent: Agent,
    /// Current work.
    doing: Option<Doing>,
}

struct Doing {
    task: Task,
    choice: TaskResult,
    seen: Revision,
    laps: Vec<(Part, Duration)>,
    changes: Vec<CacheChange>,
    /// Start time of the first attempt.
    began: Duration,
}

struct World<'a> {
    setup: &'a Setup,
    now: Duration,
    scheduler: Scheduler,
    workers: Vec<Worker>,
    store: MemoryStore,
    namespace: Arc<str>,
    scheduler_name: Arc<str>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    next_event: u64,
    /// Index into the arrivals of waiting pods, by uid.
    waiting: HashMap<Arc<str>, u32>,
    measure: Measure,
}

/// Runs the simulation until no waiting request can be placed. `progress` is called now and then with the number of
/// requests that have arrived. The throughput is measured in `window`.
pub fn run(setup: &Setup, window: Range<Duration>, progress: &dyn Fn(u64)) -> RunOutcome {
    let mut world = World::new(setup, window);
    let arrivals = &setup.workload.arrivals;
    let mut next = 0;
    loop {
        let arrival = arrivals.get(next).map(|request| setup.at(request.arrives_s));
        let event = world.events.peek().map(|Reverse((at, _, _))| *at);
        match (arrival, event) {
            (Some(arrival), event) if event.is_none_or(|at| arrival < at) => {
                world.now = arrival;
                world.arrive(next as u32, &arrivals[next]);
                next += 1;
                if next % 1024 == 0 {
                    progress(next as u64);
                }
            }
            (_, Some(_)) => {
                let Some(Reverse((at, _, event))) = world.events.pop() else { break };
                world.now = at;
                world.happen(event, next < arrivals.len());
            }
            (_, None) => break,
        }
        if next == arrivals.len() && world.is_done() {
            break;
        }
    }
    progress(arrivals.len() as u64);
    let unplaced = world.waiting.len() as u64;
    let conflicts = if setup.conflicts { world.scheduler.stats().conflicts } else { 0 };
    world.measure.outcome(setup, world.now, conflicts, unplaced)
}

impl Setup {
    /// Converts a time of the workload to virtual time.
    pub fn at(&self, workload_s: f64) -> Duration {
        Duration::try_from_secs_f64(workload_s * self.scale).unwrap_or(Duration::MAX)
    }

    /// Returns the number of ranked lists that fit into an agent's cache.
    pub fn slots(&self) -> usize {
        match self.cache.bytes {
            usize::MAX => self.cache.slots,
            bytes => self.cache.slots.min(bytes / sizes_for(&self.nodes).alone()),
        }
    }

    fn tick(&self) -> Duration {
        const IDLE_LOOK: Duration = Duration::from_millis(100);
        // Long enough for a clock that runs for weeks.
        IDLE_LOOK.max(self.at(self.workload.span_s()) / 20_000)
    }
}

const NAMESPACE: &str = "simulation";
const CHURN_LABEL: &str = "berth.dev/churn";

impl<'a> World<'a> {
    fn new(setup: &'a Setup, window: Range<Duration>) -> Self {
        let config = SchedulerConfig {
            agents: setup.agents,
            dispatcher: setup.dispatcher,
            seed: setup.seed,
            profiles: Arc::new(setup.placement.clone().into()),
            // Traces have no namespaces.
            max_waiting_classes: usize::MAX,
            ..SchedulerConfig::default()
        };
        let estimator = Estimator::default();
        let mut scheduler = Scheduler::new(config, estimator);
        setup.nodes.iter().for_each(|node| {
            scheduler.apply_node(node.clone());
        });
        scheduler.retain_nodes(&setup.nodes.iter().map(|node| node.name.clone()).collect());
        let sizes = sizes(&mut scheduler);
        let agent = |at: u64| AgentConfig { cache: setup.cache, seed: mix(setup.seed.wrapping_add(at)) };
        let workers = (0..setup.agents as u64).map(|at| Worker { agent: Agent::new(agent(at)), doing: None });
        let mut world = World {
            setup,
            now: Duration::ZERO,
            scheduler,
            workers: workers.collect(),
            store: MemoryStore::default(),
            namespace: NAMESPACE.into(),
            scheduler_name: "berth".into(),
            events: BinaryHeap::new(),
            next_event: 0,
            waiting: HashMap::new(),
            measure: Measure::new(setup, sizes, window),
        };
        world.settle_in();
        world
    }

    /// Places the pods that run at the start, each on the node with the most free capacity, as one agent would.
    fn settle_in(&mut self) {
        let running = &self.setup.workload.running;
        let config = AgentConfig { cache: CacheLimits::unlimited(), seed: mix(self.setup.seed) };
        let mut agent = Agent::new(config);
        for (at, request) in running.iter().enumerate() {
            let mut pod = self.pod(&format!("running-{at}"), request.template);
            let class = self.scheduler.class_of(&pod);
            agent.catch_up(self.scheduler.inventory());
            let uid = pod.uid.clone();
            if let AgentChoice::Node { node, .. } = agent.choose(&class, Duration::ZERO, |_| ()) {
                pod.node_name = Some(self.scheduler.inventory().name(node).clone());
                self.scheduler.apply_pod(pod, Duration::ZERO);
                self.leave_later(&uid, request.leaves_s);
            }
        }
        let charged = self.scheduler.ledger().charged().cloned().collect();
        self.scheduler.retain_pods(&charged);
        self.scheduler.set_leading(true);
        self.schedule(self.setup.tick(), Event::Tick);
        if self.setup.churn_per_s > 0.0 {
            self.schedule(self.churn_pause(0), Event::Churn(0));
        }
        self.act();
    }

    fn pod(&self, name: &str, template: u32) -> Pod {
        let spec = self.setup.workload.templates[template as usize].clone();
        let name: Arc<str> = Arc::from(name);
        Pod {
            uid: name.clone(),
            namespace: self.namespace.clone(),
            name,
            scheduler_name: self.scheduler_name.clone(),
            generation: 1,
            usage: spec.usage.clone(),
            spec: Ok(spec),
            ..Pod::default()
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((at, self.next_event, event)));
    }

    fn arrive(&mut self, index: u32, request: &PodArrival) {
        let pod = self.pod(&format!("request-{index}"), request.template);
        let uid = pod.uid.clone();
        self.store.create(pod.clone());
        self.waiting.insert(uid.clone(), index);
        let class = self.scheduler.class_of(&pod);
        self.scheduler.apply_pod(pod, self.now);
        let agent = self.scheduler.agent_of(&uid);
        self.measure.record_arrival(index, &class, agent, self.now);
        self.act();
    }

    fn happen(&mut self, event: Event, more_arrive: bool) {
        match event {
            Event::Leaves(uid) => {
                self.store.delete(NAMESPACE, &uid);
                self.scheduler.delete_pod(&uid);
            }
            Event::AgentDone(at) => self.settle(at),
            Event::Churn(count) => {
                let nodes = &self.setup.nodes;
                let at = mix(self.setup.seed ^ u64::from(count)) % nodes.len().max(1) as u64;
                let mut node = nodes[at as usize].clone();
                let mut labels: Vec<_> = node.labels.pairs().cloned().collect();
                labels.push((Arc::from(CHURN_LABEL), Arc::from(count.to_string())));
                node.labels = labels.into_iter().collect::<Labels>();
                self.scheduler.apply_node(node);
                let pause = self.churn_pause(count + 1);
                self.schedule(self.now + pause, Event::Churn(count + 1));
            }
            Event::Tick => {
                self.scheduler.tick(self.now);
                self.maintain_caches();
                if more_arrive || !self.waiting.is_empty() {
                    self.schedule(self.now + self.setup.tick(), Event::Tick);
                }
            }
        }
        self.act();
    }

    /// Lets idle agents maintain their caches.
    fn maintain_caches(&mut self) {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            if worker.doing.is_none() {
                worker.agent.catch_up(self.scheduler.inventory());
                worker.agent.expire(self.now);
                self.scheduler.cache_changed(at, &worker.agent.cache_changes());
                self.measure.cached(at, worker.agent.cache_stats().bytes, self.now);
            }
        }
    }

    fn churn_pause(&self, count: u32) -> Duration {
        // Between 0.5 and 1.5 times the mean.
        let random = unit(mix(!self.setup.seed ^ u64::from(count)));
        Duration::from_secs_f64((0.5 + random) / self.setup.churn_per_s)
    }

    /// Executes the scheduler's actions immediately.
    fn act(&mut self) {
        loop {
            let actions = self.scheduler.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Bind(binding) => self.bind(&binding),
                    Action::WakeAgent(at) if self.workers[at].doing.is_none() => self.take(at),
                    Action::WakeAgent(_)
                    | Action::Report(_)
                    | Action::Observe(_)
                    | Action::Claim(_)
                    | Action::ReleaseClaim(_)
                    | Action::Evict(_)
                    | Action::Nominate { .. }
                    | Action::TellAllocation(_)
                    | Action::TellPolicy(_)
                    | Action::TellQuota(_) => {}
                }
            }
        }
    }

    fn bind(&mut self, binding: &Binding) {
        let reply = self.store.bind_now(binding);
        assert_eq!(reply, Reply::Bound, "nothing else binds or deletes waiting pods here");
        self.scheduler.bind_finished(binding, BindOutcome::Bound, self.now);
        let Some(index) = self.waiting.remove(&binding.uid) else {
            return;
        };
        self.measure.placed(index, self.now);
        let request = self.setup.workload.arrivals[index as usize];
        self.leave_later(&binding.uid, request.leaves_s - request.arrives_s);
    }

    /// Schedules the pod's termination: its lifetime in the workload, counted from its placement.
    fn leave_later(&mut self, uid: &Arc<str>, lives_s: f64) {
        if lives_s.is_finite() {
            self.schedule(self.now.saturating_add(self.setup.at(lives_s)), Event::Leaves(uid.clone()));
        }
    }

    /// Gives work to an idle agent.
    fn take(&mut self, at: usize) {
        if let Some(task) = self.scheduler.next_task(at, self.now) {
            self.work(at, task, self.now);
        }
    }

    /// The agent catches up and chooses; the choice takes effect after the simulated processing time.
    fn work(&mut self, at: usize, task: Task, began: Duration) {
        let worker = &mut self.workers[at];
        let rows = worker.agent.catch_up(self.scheduler.inventory());
        let factor = self.measure.factor(&task);
        let costs = &self.setup.costs;
        let mut laps = Vec::new();
        let choice = task.carry_out(&mut worker.agent, self.now, |part| {
            laps.push((part, costs.of(part).mul_f64(factor)));
        });
        let takes = laps.iter().map(|(_, took)| *took).sum::<Duration>() + costs.row * rows as u32;
        let (changes, seen) = (worker.agent.cache_changes(), worker.agent.revision());
        self.measure.cached(at, worker.agent.cache_stats().bytes, self.now);
        worker.doing = Some(Doing { task, choice, seen, laps, changes, began });
        self.schedule(self.now + takes, Event::AgentDone(at));
    }

    fn settle(&mut self, at: usize) {
        let Some(mut doing) = self.workers[at].doing.take() else {
            return;
        };
        let mut again = false;
        loop {
            let agent = &mut self.workers[at].agent;
            self.scheduler.learn(at, &doing.task, &doing.laps, &doing.changes);
            if !again {
                self.measure.tried(&doing.task, &doing.laps, doing.began, self.now);
            }
            let settled = self.scheduler.settle(at, agent, &doing.task, doing.choice, doing.seen, self.now);
            if settled == Settled::Done {
                break;
            }
            if self.setup.conflicts {
                return self.work(at, doing.task, doing.began);
            }
            // Without conflicts: as if it had known.
            again = true;
            agent.catch_up(self.scheduler.inventory());
            doing.choice = doing.task.carry_out(agent, self.now, |_| ());
            doing.laps.clear();
            (doing.changes, doing.seen) = (agent.cache_changes(), agent.revision());
        }
        self.measure.finished(at, &doing.task, doing.began, self.now);
        self.take(at);
    }

    /// Returns whether no waiting request can be placed any more.
    fn is_done(&self) -> bool {
        self.waiting.is_empty()
            || self.workers.iter().all(|worker| worker.doing.is_none())
                && !self.events.iter().any(|Reverse((_, _, event))| matches!(event, Event::Leaves(_)))
    }
}

/// Returns the sizes of lists and of a rule object for these nodes.
pub fn sizes_for(nodes: &[Node]) -> CacheSizes {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), Estimator::default());
    for node in nodes {
        scheduler.apply_node(node.clone());
    }
    sizes(&mut scheduler)
}

/// Measures the sizes of newly built ones.
fn sizes(scheduler: &mut Scheduler) -> CacheSizes {
    let mut agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 0 });
    let class = scheduler.class_of(&Pod::default());
    agent.catch_up(scheduler.inventory());
    agent.choose(&class, Duration::ZERO, |_| ());
    let stats = agent.cache_stats();
    let (list, common) = agent.list(class.id).map_or((0, 0), |list| list.bytes());
    CacheSizes { list, common, object: (stats.bytes - list - common) / stats.objects.max(1) }
}
