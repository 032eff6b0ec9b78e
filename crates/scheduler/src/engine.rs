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
mod agent_work;
mod binds;
mod cluster_events;
mod evaluation;
mod foreign_binds;
mod leadership;
mod operation;
mod overview;
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
pub(crate) use evaluation::{classified, supposed};
pub use operation::Operation;
pub use snapshots::{LimitsReached, Statistics};

pub(crate) use agent_work::{AgentWork, Answer, Next, Turn};

use crate::agent::{Agent, AgentConfig, CacheStats};
use crate::dispatch::Estimator;
use crate::gang::GangStatus;
use crate::placement::{Binding, ClaimOrder};
use crate::policy::PolicyStatus;
use crate::quota::QuotaReport;
use crate::recording::{AgentStep, Did, EngineRecorder, Input, InputBytes, Opening, Tape, nanos};
use crate::scheduler::{Action, Eviction, LatencySample, Scheduler, SchedulerConfig, Task};
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
    locked: Mutex<Locked>,
    /// Whether `locked` has a recorder.
    records: AtomicBool,
    agents: Vec<Signal>,
    stats: Vec<Mutex<CacheStats>>,
    outlet: Box<dyn Outlet>,
    started: Instant,
    stopping: AtomicBool,
    pending_binds: AtomicUsize,
}

/// What the lock protects.
struct Locked {
    scheduler: Scheduler,
    recorder: Option<EngineRecorder>,
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
        Engine::start_recorded(config, agents, estimator, outlet, None)
    }

    /// Does the same, and writes all that the scheduler hears and decides to `tape`.
    pub fn start_recorded(
        config: SchedulerConfig,
        agents: Vec<AgentConfig>,
        estimator: Estimator,
        outlet: Box<dyn Outlet>,
        tape: Option<Box<dyn Tape>>,
    ) -> std::io::Result<(Engine, AgentThreads)> {
        let opening = Opening::new(SchedulerConfig { agents: agents.len(), ..config }, agents, estimator);
        let recorder = tape.map(|tape| EngineRecorder::begin(&opening, tape)).transpose();
        let recorder = recorder.map_err(std::io::Error::other)?;
        let Opening { config, agents, estimator, .. } = opening;
        let shared = Arc::new(Shared {
            records: AtomicBool::new(recorder.is_some()),
            locked: Mutex::new(Locked { scheduler: Scheduler::new(config, estimator), recorder }),
            agents: agents.iter().map(|_| Signal::default()).collect(),
            stats: agents.iter().map(|_| Mutex::default()).collect(),
            outlet,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            pending_binds: AtomicUsize::new(0),
        });
        let engine = Engine { shared };
        let mut threads = Vec::new();
        for (index, config) in agents.into_iter().enumerate() {
            let engine = engine.clone();
            let name = format!("agent-{index}");
            let body = move || AgentThread::new(index, Agent::new(config), engine).run();
            threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        Ok((engine, AgentThreads(threads)))
    }

    /// Returns the time since the engine started: the clock for all scheduler inputs.
    pub fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Advances everything that depends on time only: backoffs, timeouts, diagnoses to refresh. Called at a fixed interval.
    /// Bounded by the number of known pods: those that are due, or marked by events since the last tick.
    pub fn tick(&self) {
        let heard = self.heard(|| Input::Tick);
        self.hear(Operation::Tick, heard, |scheduler, now| scheduler.tick(now));
    }

    /// Returns whether a recording is made: not after its tape refused a block.
    pub fn records(&self) -> bool {
        self.shared.records.load(Ordering::Relaxed)
    }

    /// Ends the recording; its tape gets the last block.
    pub fn end_recording(&self) {
        self.shared.records.store(false, Ordering::Relaxed);
        let recorder = self.shared.locked.lock().recorder.take();
        drop(recorder);
    }

    /// Lets an agent that is not one of the engine's copy the changed rows, in slices.
    fn approach(&self, operation: Operation, agent: &mut Agent) {
        while !self.read(operation, |scheduler, _| agent.approach(scheduler.inventory(), ROWS_MAX)) {
            agent.make_room();
        }
    }

    /// Returns an input as the recording has it, if one is made.
    fn heard<'a>(&self, input: impl FnOnce() -> Input<'a>) -> Option<InputBytes> {
        self.records().then(|| InputBytes::of(&input()))
    }

    /// Reads the scheduler.
    fn read<R>(&self, operation: Operation, body: impl FnOnce(&Scheduler, Duration) -> R) -> R {
        let locked = self.shared.locked.lock();
        let began = Instant::now();
        let result = body(&locked.scheduler, began.saturating_duration_since(self.shared.started));
        let held = began.elapsed();
        drop(locked);
        self.shared.outlet.lock_held(operation, held);
        result
    }

    /// Runs `body` on the scheduler, records the input that it is, and dispatches the resulting actions.
    fn hear<R>(
        &self,
        operation: Operation,
        heard: Option<InputBytes>,
        body: impl FnOnce(&mut Scheduler, Duration) -> R,
    ) -> R {
        let mut locked = self.shared.locked.lock();
        let began = Instant::now();
        let now = began.saturating_duration_since(self.shared.started);
        let Locked { scheduler, recorder } = &mut *locked;
        let result = body(scheduler, now);
        self.shared.pending_binds.store(scheduler.binds(), Ordering::Relaxed);
        let (actions, term) = (scheduler.take_actions(), scheduler.term());
        if let (Some(recording), Some(heard)) = (recorder.as_mut(), heard)
            && !recording.add(now, heard, &actions)
        {
            *recorder = None;
            self.shared.records.store(false, Ordering::Relaxed);
        }
        // Before the lock is released, since a waiting thread may take the core at once.
        let held = began.elapsed();
        drop(locked);
        self.shared.outlet.lock_held(operation, held);
        for action in actions {
            match action {
                Action::Bind(binding) => self.shared.outlet.bind(binding, term),
                Action::Claim(order) => self.shared.outlet.claim(order),
                Action::ReleaseClaim(release) => self.shared.outlet.release_claim(release),
                Action::Evict(eviction) => self.shared.outlet.evict(*eviction, term),
                Action::Nominate { pod, node } => self.shared.outlet.nominate(pod, node, term),
                Action::Report(report) => self.shared.outlet.report(report),
                Action::TellAllocation(status) => self.shared.outlet.report_allocation(*status),
                Action::TellPolicy(status) => self.shared.outlet.report_policy(*status),
                Action::TellQuota(status) => self.shared.outlet.report_quota(*status),
                Action::Observe(sample) => self.shared.outlet.observe(sample),
                Action::WakeAgent(agent) => self.shared.agents[agent].raise(),
            }
        }
        result
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

struct AgentThread {
    work: AgentWork,
    engine: Engine,
    /// For the recording: what the agent did on its own since it last held the lock.
    did: Vec<Did>,
}

impl AgentThread {
    fn new(index: usize, agent: Agent, engine: Engine) -> Self {
        AgentThread { work: AgentWork::new(index, agent), engine, did: Vec::new() }
    }

    fn run(mut self) {
        let shared = self.engine.shared.clone();
        let mut turn = Turn::Nothing;
        while !shared.stopping.load(Ordering::Acquire) {
            turn = match turn {
                Turn::Task(task, rows) => self.carry_out(task, rows),
                Turn::Behind => {
                    self.approach();
                    self.take()
                }
                Turn::Nothing => self.take(),
            };
            if matches!(turn, Turn::Nothing) && !shared.agents[self.work.index].wait(IDLE_LOOK) {
                self.maintain_caches();
            }
        }
    }

    /// Runs `body` with the scheduler.
    fn with<R>(
        &mut self,
        operation: Operation,
        step: AgentStep,
        body: impl FnOnce(&mut AgentWork, &mut Scheduler, Duration) -> R,
    ) -> R {
        let did = std::mem::take(&mut self.did);
        let heard = self.engine.heard(|| Input::Agent { agent: self.work.index, did, step });
        let work = &mut self.work;
        self.engine.hear(operation, heard, |scheduler, now| body(work, scheduler, now))
    }

    /// Notes what the agent did on its own.
    fn note(&mut self, did: impl FnOnce(&AgentWork) -> Did) {
        if self.engine.records() {
            self.did.push(did(&self.work));
        }
    }

    fn take(&mut self) -> Turn {
        self.with(Operation::Task, AgentStep::Take, |work, scheduler, now| work.take(scheduler, now))
    }

    /// Copies the changed rows, in slices.
    fn approach(&mut self) {
        while !self
            .with(Operation::IdleAgent, AgentStep::Approach, |work, scheduler, _| work.approach(scheduler))
        {
            self.work.agent.make_room();
        }
    }

    /// Carries out a task until it is settled, and takes the next one.
    fn carry_out(&mut self, task: Task, mut rows: usize) -> Turn {
        let began = Instant::now();
        let mut answer = self.answer(&task);
        loop {
            let next = self.with(Operation::Task, AgentStep::Settle, |work, scheduler, now| {
                work.settle(scheduler, &task, answer, (|| began.elapsed(), rows), now)
            });
            answer = match next {
                Next::Turn(turn) => return turn,
                Next::Again(more) => {
                    rows += more;
                    self.answer(&task)
                }
                Next::CatchUp(answer) => {
                    self.approach();
                    answer
                }
            };
        }
    }

    fn answer(&mut self, task: &Task) -> Answer {
        let now = self.engine.now();
        let chooses = Instant::now();
        let mut last = chooses;
        let mut answer = self.work.answer(task, now, |_| {
            let lap = Instant::now();
            lap - std::mem::replace(&mut last, lap)
        });
        answer.choice_took = chooses.elapsed();
        self.note(|work| {
            let laps = work.laps.iter().map(|(part, took)| (*part, nanos(*took)));
            Did::Answered { at: nanos(now), laps: laps.collect() }
        });
        *self.engine.shared.stats[self.work.index].lock() = self.work.agent.cache_stats();
        answer
    }

    /// Idle work: expires old cache entries and repairs outdated lists until the agent is signalled.
    fn maintain_caches(&mut self) {
        let shared = self.engine.shared.clone();
        let signal = &shared.agents[self.work.index];
        let now = self.engine.now();
        self.work.agent.expire(now);
        self.note(|_| Did::Expired { at: nanos(now) });
        self.approach();
        let mut tries = 0;
        let mut repairs = true;
        while repairs && !signal.is_raised() {
            repairs = self.work.agent.repair_one();
            tries += 1;
        }
        let changes = self.work.agent.cache_changes();
        self.note(|_| Did::Repaired { tries });
        if !changes.is_empty() {
            let index = self.work.index;
            self.with(Operation::IdleAgent, AgentStep::TellCaches, |_, scheduler, _| {
                scheduler.cache_changed(index, &changes);
            });
            *shared.stats[index].lock() = self.work.agent.cache_stats();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AgentChoice, CacheLimits};
    use crate::scheduler::TaskResult;
    use crate::testing::FakeOutlet;
    use berth_model::{Amounts, Node, Peer, Pod, PodAffinity, PodSelector, PodSpec, PodTerm, Usage};

    /// An agent thread, not started, and as many nodes as may be copied at once.
    fn thread() -> AgentThread {
        let config = SchedulerConfig { agents: 1, ..SchedulerConfig::default() };
        let shared = Arc::new(Shared {
            locked: Mutex::new(Locked {
                scheduler: Scheduler::new(config, Estimator::default()),
                recorder: None,
            }),
            records: AtomicBool::new(false),
            agents: vec![Signal::default()],
            stats: vec![Mutex::default()],
            outlet: Box::<FakeOutlet>::default(),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            pending_binds: AtomicUsize::new(0),
        });
        change_nodes(&mut shared.locked.lock().scheduler, false);
        let agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 1 });
        AgentThread::new(0, agent, Engine { shared })
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
        let shared = thread.engine.shared.clone();
        let mut locked = shared.locked.lock();
        let scheduler = &mut locked.scheduler;
        scheduler.apply_node(Node { name: "one too many".into(), ..Node::default() });
        assert!(matches!(thread.work.take(scheduler, Duration::ZERO), Turn::Behind));
        drop(locked);
        thread.approach();
        let turn = thread.take();
        assert!(matches!(turn, Turn::Nothing), "there is no pod");
        assert!(!thread.work.agent.is_behind(shared.locked.lock().scheduler.inventory(), 0));
    }

    /// Of the pods that look at others, which a commit counts anew.
    #[test]
    fn what_changed_while_an_agent_chose_is_copied_in_slices_before_the_commit() {
        let mut thread = thread();
        let shared = thread.engine.shared.clone();
        let mut locked = shared.locked.lock();
        let scheduler = &mut locked.scheduler;
        scheduler.apply_pod(hermit(), Duration::ZERO);
        scheduler.retain_nodes(&(0..ROWS_MAX).map(|at| format!("n{at}").into()).collect());
        scheduler.retain_pods(&["a".into()].into());
        scheduler.set_leading(true);
        let Turn::Task(task, ROWS_MAX) = thread.work.take(scheduler, Duration::ZERO) else {
            panic!("there is a task");
        };
        let answer = thread.answer(&task);
        assert!(
            matches!(answer.result, TaskResult::Chosen(AgentChoice::Node { .. }, _)),
            "{:?}",
            answer.result
        );
        change_nodes(scheduler, true);
        change_nodes(scheduler, false);
        let next = thread.work.settle(scheduler, &task, answer, (|| Duration::ZERO, 0), Duration::ZERO);
        let Next::CatchUp(answer) = next else { panic!("it copies all of them at once") };
        drop(locked);
        thread.approach();
        let mut locked = shared.locked.lock();
        let scheduler = &mut locked.scheduler;
        let next = thread.work.settle(scheduler, &task, answer, (|| Duration::ZERO, 0), Duration::ZERO);
        assert!(matches!(next, Next::Turn(Turn::Nothing)) && scheduler.binds() == 1);
    }
}
