//! The engine: one scheduler behind one lock, agents as plain threads, and the outlet that carries out decisions.
//!
//! The lock is held only for short, bounded bookkeeping. Choosing a node, the long part, runs without the lock on the
//! agent's own view and caches. An agent settles its last choice, takes its next request and catches up under one lock
//! acquisition.
//!
//! Callers never hold the lock: each of their needs is one named call, which says what it reads and changes, and what
//! bounds its work under the lock. Calls are grouped by purpose, one file each. After a call, and without the lock, the
//! resulting decisions are handed to the [`Outlet`].

mod advice;
mod binds;
mod cluster_events;
mod evaluation;
mod foreign_binds;
mod leadership;
mod operation;
mod resizing;
mod self_check;
mod snapshots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub use advice::AdviceInput;
pub use evaluation::{Evaluation, EvaluationError, NodeNames};
pub use operation::Operation;
pub use snapshots::{LimitsReached, Statistics};

use crate::agent::{Agent, AgentConfig, CacheChange, CacheStats, Part};
use crate::dispatch::Estimator;
use crate::gang::GangStatus;
use crate::inventory::Revision;
use crate::placement::{Binding, ClaimOrder};
use crate::policy::PolicyStatus;
use crate::quota::QuotaReport;
use crate::scheduler::{
    Action, Eviction, LatencySample, Scheduler, SchedulerConfig, Settled, Task, TaskResult,
};
use berth_devices::ClaimRelease;
use berth_model::{PodRef, PodReport};

/// Sink for decisions. Called from agent threads and from every caller of an [`Engine`]; must not block.
pub trait Outlet: Send + Sync + 'static {
    /// Carries out this placement, which was decided in this leadership term, and reports the result to
    /// [`Engine::bind_finished`].
    fn bind(&self, binding: Binding, term: u64);
    /// Writes these claims and reports the result to [`Engine::claims_written`].
    fn claim(&self, order: ClaimOrder);
    /// Frees the devices of this claim, if it is still the same.
    fn release_claim(&self, release: ClaimRelease);
    /// Evicts this pod, as decided in this leadership term, and reports the result to [`Engine::eviction_finished`].
    fn evict(&self, eviction: Eviction, term: u64);
    /// Writes the pod's nominated node to its status, as decided in this leadership term.
    fn nominate(&self, pod: PodRef, node: Option<Arc<str>>, term: u64);
    fn report(&self, report: PodReport);
    /// Writes the status of an allocation.
    fn report_allocation(&self, status: GangStatus);
    /// Writes the status of a policy: whether it is in force.
    fn report_policy(&self, status: PolicyStatus);
    /// Writes the status of a quota: its usage.
    fn report_quota(&self, status: QuotaReport);
    fn observe(&self, sample: LatencySample);
    /// Observes for how long this operation held the lock.
    fn lock_held(&self, operation: Operation, held: Duration);
}

/// Handle to the engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// Threads of the agents. They end after [`Engine::stop`]; joining them reports panics.
pub struct AgentThreads(Vec<JoinHandle<()>>);

struct Shared {
    scheduler: Mutex<Scheduler>,
    agents: Vec<Signal>,
    stats: Vec<Mutex<CacheStats>>,
    outlet: Box<dyn Outlet>,
    started: Instant,
    stopping: AtomicBool,
    pending_binds: AtomicUsize,
}

/// Wakes one agent; a signal raised while the agent works is not lost.
#[derive(Default)]
struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn raise(&self) {
        let mut raised = self.raised.lock();
        if !*raised {
            *raised = true;
            self.changed.notify_one();
        }
    }

    /// Waits at most `limit` until the signal is raised. Lowers the signal and returns whether it was raised.
    fn wait(&self, limit: Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            self.changed.wait_for(&mut raised, limit);
        }
        std::mem::take(&mut *raised)
    }

    fn is_raised(&self) -> bool {
        *self.raised.lock()
    }
}

/// Interval at which an idle agent checks whether its lists are behind.
const IDLE_LOOK: Duration = Duration::from_millis(100);
/// Rows that an agent copies at once, unless they change while it works.
const ROWS_MAX: usize = 256;

impl Engine {
    /// Starts one thread per agent.
    pub fn start(
        config: SchedulerConfig,
        agents: Vec<AgentConfig>,
        estimator: Estimator,
        outlet: Box<dyn Outlet>,
    ) -> std::io::Result<(Engine, AgentThreads)> {
        let config = SchedulerConfig { agents: agents.len(), ..config };
        let shared = Arc::new(Shared {
            scheduler: Mutex::new(Scheduler::new(config, estimator)),
            agents: agents.iter().map(|_| Signal::default()).collect(),
            stats: agents.iter().map(|_| Mutex::default()).collect(),
            outlet,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            pending_binds: AtomicUsize::new(0),
        });
        let mut threads = Vec::new();
        for (index, config) in agents.into_iter().enumerate() {
            let shared = shared.clone();
            let name = format!("agent-{index}");
            let body =
                move || AgentThread { index, agent: Agent::new(config), shared, laps: Vec::new() }.run();
            threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        Ok((Engine { shared }, AgentThreads(threads)))
    }

    /// Returns the time since the engine started: the clock for all scheduler inputs.
    pub fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Advances everything that depends on time only: backoffs, timeouts, diagnoses to refresh. Called at a fixed interval.
    /// Bounded by the number of known pods: those that are due, or marked by events since the last tick.
    pub fn tick(&self) {
        self.with(Operation::Tick, |scheduler, now| scheduler.tick(now));
    }

    /// Runs `body` on the scheduler, then dispatches the resulting actions.
    fn with<R>(&self, operation: Operation, body: impl FnOnce(&mut Scheduler, Duration) -> R) -> R {
        self.shared.with(operation, body)
    }

    /// Returns the number of binds that are queued or in flight.
    pub fn pending_binds(&self) -> &AtomicUsize {
        &self.shared.pending_binds
    }

    /// Returns the cache statistics of each agent.
    pub fn cache_stats(&self) -> Vec<CacheStats> {
        self.shared.stats.iter().map(|stats| *stats.lock()).collect()
    }

    /// Ends the agents' threads after they have settled their current task.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.agents.iter().for_each(Signal::raise);
    }
}

impl AgentThreads {
    /// Returns whether a thread has ended. Before [`Engine::stop`] this happens only after a panic.
    pub fn any_ended(&self) -> bool {
        self.0.iter().any(JoinHandle::is_finished)
    }

    /// Waits for the threads to end. Returns the names of those that panicked as `Err`.
    pub fn join(self) -> Result<(), Vec<String>> {
        let name = |thread: &JoinHandle<()>| thread.thread().name().unwrap_or("agent").to_owned();
        let ended = self.0.into_iter().map(|thread| (name(&thread), thread.join()));
        let panicked: Vec<_> = ended.filter_map(|(name, result)| result.is_err().then_some(name)).collect();
        if panicked.is_empty() { Ok(()) } else { Err(panicked) }
    }
}

impl Shared {
    /// Lets the agent copy the changed rows, in slices.
    fn approach(&self, operation: Operation, agent: &mut Agent) {
        while !self.with(operation, |scheduler, _| agent.approach(scheduler.inventory(), ROWS_MAX)) {
            agent.make_room();
        }
    }

    fn with<R>(&self, operation: Operation, body: impl FnOnce(&mut Scheduler, Duration) -> R) -> R {
        let mut scheduler = self.scheduler.lock();
        let began = Instant::now();
        let result = body(&mut scheduler, began.saturating_duration_since(self.started));
        self.pending_binds.store(scheduler.binds(), Ordering::Relaxed);
        let (actions, term) = (scheduler.take_actions(), scheduler.term());
        // Before the lock is released, since a waiting thread may take the core at once.
        let held = began.elapsed();
        drop(scheduler);
        self.outlet.lock_held(operation, held);
        for action in actions {
            match action {
                Action::Bind(binding) => self.outlet.bind(binding, term),
                Action::Claim(order) => self.outlet.claim(order),
                Action::ReleaseClaim(release) => self.outlet.release_claim(release),
                Action::Evict(eviction) => self.outlet.evict(*eviction, term),
                Action::Nominate { pod, node } => self.outlet.nominate(pod, node, term),
                Action::Report(report) => self.outlet.report(report),
                Action::TellAllocation(status) => self.outlet.report_allocation(*status),
                Action::TellPolicy(status) => self.outlet.report_policy(*status),
                Action::TellQuota(status) => self.outlet.report_quota(*status),
                Action::Observe(sample) => self.outlet.observe(sample),
                Action::WakeAgent(agent) => self.agents[agent].raise(),
            }
        }
        result
    }
}

struct AgentThread {
    index: usize,
    agent: Agent,
    shared: Arc<Shared>,
    laps: Vec<(Part, Duration)>,
}

/// What an agent does next.
enum Turn {
    /// A task, and the number of rows that the agent copied for it.
    Task(Task, usize),
    /// More rows have changed than may be copied at once.
    Behind,
    Nothing,
}

/// What an agent found for a task.
struct Answer {
    result: TaskResult,
    /// Revision of the rows that it chose from.
    seen: Revision,
    choice_took: Duration,
    changes: Vec<CacheChange>,
}

/// What follows an answer.
enum Next {
    Turn(Turn),
    /// The task is carried out again, with so many more rows.
    Again(usize),
    /// The commit may count what changed while the agent chose, and that is more than may be copied at once.
    CatchUp(Answer),
}

impl AgentThread {
    fn run(mut self) {
        let shared = self.shared.clone();
        let mut turn = Turn::Nothing;
        while !shared.stopping.load(Ordering::Acquire) {
            turn = match turn {
                Turn::Task(task, rows) => self.work(task, rows),
                Turn::Behind => {
                    shared.approach(Operation::IdleAgent, &mut self.agent);
                    shared.with(Operation::Task, |scheduler, now| self.take(scheduler, now))
                }
                Turn::Nothing => shared.with(Operation::Task, |scheduler, now| self.take(scheduler, now)),
            };
            if matches!(turn, Turn::Nothing) && !shared.agents[self.index].wait(IDLE_LOOK) {
                self.maintain_caches();
            }
        }
    }

    fn take(&mut self, scheduler: &mut Scheduler, now: Duration) -> Turn {
        if self.agent.is_behind(scheduler.inventory(), ROWS_MAX) {
            return Turn::Behind;
        }
        let Some(task) = scheduler.next_task(self.index, now) else { return Turn::Nothing };
        let rows = self.agent.catch_up(scheduler.inventory());
        Turn::Task(task, rows)
    }

    /// Carries out a task until it is settled, and takes the next one.
    fn work(&mut self, task: Task, mut rows: usize) -> Turn {
        let shared = self.shared.clone();
        let began = Instant::now();
        let mut answer = self.answer(&task);
        loop {
            let next = shared.with(Operation::Task, |scheduler, now| {
                self.settle(scheduler, &task, answer, (began, rows), now)
            });
            answer = match next {
                Next::Turn(turn) => return turn,
                Next::Again(more) => {
                    rows += more;
                    self.answer(&task)
                }
                Next::CatchUp(answer) => {
                    shared.approach(Operation::IdleAgent, &mut self.agent);
                    answer
                }
            };
        }
    }

    fn answer(&mut self, task: &Task) -> Answer {
        let chooses = Instant::now();
        let result = self.carry_out(task);
        let choice_took = chooses.elapsed();
        let changes = self.agent.cache_changes();
        *self.shared.stats[self.index].lock() = self.agent.cache_stats();
        Answer { result, seen: self.agent.revision(), choice_took, changes }
    }

    /// Settles an answer, and takes the next task. The attempt began at `began` and has copied so many rows.
    fn settle(
        &mut self,
        scheduler: &mut Scheduler,
        task: &Task,
        answer: Answer,
        (began, rows): (Instant, usize),
        now: Duration,
    ) -> Next {
        if self.agent.is_behind(scheduler.inventory(), ROWS_MAX) {
            return Next::CatchUp(answer);
        }
        let Answer { result, seen, choice_took, changes } = answer;
        let name = result.result();
        scheduler.learn(self.index, task, &self.laps, &changes);
        if scheduler.settle(self.index, &mut self.agent, task, result, seen, now) == Settled::Again {
            return Next::Again(self.agent.catch_up(scheduler.inventory()));
        }
        if !matches!(task, Task::Check { .. }) {
            scheduler.observe_attempt(name, began.elapsed(), choice_took, rows);
        }
        Next::Turn(self.take(scheduler, now))
    }

    fn carry_out(&mut self, task: &Task) -> TaskResult {
        let now = self.shared.started.elapsed();
        let laps = &mut self.laps;
        laps.clear();
        let mut last = Instant::now();
        task.carry_out(&mut self.agent, now, |part| {
            let lap = Instant::now();
            laps.push((part, lap - last));
            last = lap;
        })
    }

    /// Idle work: expires old cache entries and repairs outdated lists until the agent is signalled.
    fn maintain_caches(&mut self) {
        let shared = self.shared.clone();
        let signal = &shared.agents[self.index];
        self.agent.expire(shared.started.elapsed());
        shared.approach(Operation::IdleAgent, &mut self.agent);
        while !signal.is_raised() && self.agent.repair_one() {}
        let changes = self.agent.cache_changes();
        if !changes.is_empty() {
            shared.with(Operation::IdleAgent, |scheduler, _| scheduler.cache_changed(self.index, &changes));
            *shared.stats[self.index].lock() = self.agent.cache_stats();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AgentChoice, CacheLimits};
    use crate::testing::Nowhere;
    use berth_model::{Amounts, Node, Peer, Pod, PodAffinity, PodSelector, PodSpec, PodTerm, Usage};

    /// An agent thread, not started, and as many nodes as may be copied at once.
    fn thread() -> AgentThread {
        let config = SchedulerConfig { agents: 1, ..SchedulerConfig::default() };
        let shared = Arc::new(Shared {
            scheduler: Mutex::new(Scheduler::new(config, Estimator::default())),
            agents: vec![Signal::default()],
            stats: vec![Mutex::default()],
            outlet: Box::new(Nowhere),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            pending_binds: AtomicUsize::new(0),
        });
        change_nodes(&mut shared.scheduler.lock(), false);
        let agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 1 });
        AgentThread { index: 0, agent, shared, laps: Vec::new() }
    }

    fn change_nodes(scheduler: &mut Scheduler, unschedulable: bool) {
        for at in 0..ROWS_MAX {
            let allocatable = Amounts { pods: 10, ..Amounts::default() };
            let node = Node { name: format!("n{at}").into(), allocatable, unschedulable, ..Node::default() };
            scheduler.apply_node(node);
        }
    }

    /// A pod that is to be alone on its node.
    fn hermit() -> Pod {
        let selector = PodSelector { namespaces: ["ns".into()].into(), ..PodSelector::default() };
        let term = PodTerm { selector, topology_key: "kubernetes.io/hostname".into() };
        let affinity = Arc::new(PodAffinity { required_anti: [term].into(), ..PodAffinity::default() });
        let requests = Amounts { pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, ..Usage::default() });
        let spec = PodSpec { usage: usage.clone(), pod_affinity: affinity.clone(), ..PodSpec::default() };
        Pod {
            uid: "a".into(),
            namespace: "ns".into(),
            name: "a".into(),
            scheduler_name: "berth".into(),
            peer: Arc::new(Peer { affinity, ..Peer::default() }),
            usage,
            spec: Ok(Arc::new(spec)),
            ..Pod::default()
        }
    }

    #[test]
    fn a_thread_that_ends_is_noticed_and_named_if_it_panicked() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let panicking = move || {
            let _ = wait.recv();
            panic!("on purpose");
        };
        let thread = std::thread::Builder::new().name("agent-7".into()).spawn(panicking).expect("it starts");
        let threads = AgentThreads(vec![thread]);
        assert!(!threads.any_ended());
        drop(go);
        let began = Instant::now();
        while !threads.any_ended() {
            assert!(began.elapsed() < Duration::from_secs(60), "its end is not noticed");
            std::thread::yield_now();
        }
        assert_eq!(threads.join(), Err(vec!["agent-7".to_owned()]));
    }

    #[test]
    fn an_agent_that_is_far_behind_copies_rows_in_slices_before_it_takes_a_task() {
        let mut thread = thread();
        let shared = thread.shared.clone();
        let mut scheduler = shared.scheduler.lock();
        scheduler.apply_node(Node { name: "one too many".into(), ..Node::default() });
        assert!(matches!(thread.take(&mut scheduler, Duration::ZERO), Turn::Behind));
        drop(scheduler);
        shared.approach(Operation::IdleAgent, &mut thread.agent);
        let turn = thread.take(&mut shared.scheduler.lock(), Duration::ZERO);
        assert!(matches!(turn, Turn::Nothing), "there is no pod");
        assert!(!thread.agent.is_behind(shared.scheduler.lock().inventory(), 0));
    }

    /// Of the pods that look at others, which a commit counts anew.
    #[test]
    fn what_changed_while_an_agent_chose_is_copied_in_slices_before_the_commit() {
        let mut thread = thread();
        let shared = thread.shared.clone();
        let mut scheduler = shared.scheduler.lock();
        scheduler.apply_pod(hermit(), Duration::ZERO);
        scheduler.retain_nodes(&(0..ROWS_MAX).map(|at| format!("n{at}").into()).collect());
        scheduler.retain_pods(&["a".into()].into());
        scheduler.set_leading(true);
        let Turn::Task(task, ROWS_MAX) = thread.take(&mut scheduler, Duration::ZERO) else {
            panic!("there is a task");
        };
        let answer = thread.answer(&task);
        assert!(
            matches!(answer.result, TaskResult::Chosen(AgentChoice::Node { .. }, _)),
            "{:?}",
            answer.result
        );
        change_nodes(&mut scheduler, true);
        change_nodes(&mut scheduler, false);
        let next = thread.settle(&mut scheduler, &task, answer, (shared.started, 0), Duration::ZERO);
        let Next::CatchUp(answer) = next else { panic!("it copies all of them at once") };
        drop(scheduler);
        shared.approach(Operation::IdleAgent, &mut thread.agent);
        let mut scheduler = shared.scheduler.lock();
        let next = thread.settle(&mut scheduler, &task, answer, (shared.started, 0), Duration::ZERO);
        assert!(matches!(next, Next::Turn(Turn::Nothing)) && scheduler.binds() == 1);
    }
}
