//! The clock, the agenda, and the events: agents, and the actions of schedulers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Pod, PodRef, ScheduledCondition};
use berth_scheduler::agent::Agent;
use berth_scheduler::dispatch::DispatcherKind;
use berth_scheduler::invariants::{self, Violation};
use berth_scheduler::placement::{BindAttempt, Binding, ClaimOrder, Reply, Truth};
use berth_scheduler::scheduler::{Action, Eviction, Settled, Task};

use super::budgets::DisruptionController;
use super::churn::Churn;
use super::claim_writers::ClaimStep;
use super::cluster::{Cluster, PodEvent};
use super::devices::Devices;
use super::dice::Dice;
use super::gangs::gang_of;
use super::guard::{GuardSettings, Guards, ReviewStep};
use super::process::{Answer, Doing, Process, Settings, Who, Worker};
use super::replicas::{Members, ReplicaSettings, ReplicaStep};
use super::storage::Storage;
use super::watches::{Listing, PODS, WATCHES};

pub const MS: Duration = Duration::from_millis(1);
pub const S: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);

pub type Step<T = ()> = Result<T, String>;

pub enum Event {
    /// An external change.
    Chaos,
    /// Room comes and goes.
    Churn,
    Tick(Who),
    Agent(Who, usize),
    /// The next event of a watch, of this epoch.
    Deliver(Who, usize, u32),
    /// A list request reaches the API server; its answer, with its position in the log, reaches the process.
    List(Who, usize, u32),
    Listed(Who, u32, Listing, usize),
    /// A bind request leaves the process, takes effect, and is answered.
    Send(Who, u64),
    Effect(Binding, Who, u64, Option<Duration>),
    Replied(Who, u64, Reply),
    Read(Who, u64),
    /// The answer to a read, and the time at which the read was sent.
    Told(Who, u64, Truth, Duration),
    Lead(usize),
    Replica(Who, ReplicaStep),
    Up,
    /// The pod's grace period is over, or its node is gone.
    Remove(Box<Pod>),
    Evict(Who, Box<Eviction>),
    /// The disruption controller counts the pods of all budgets.
    CountBudgets,
    /// The API server receives a pod's nominated node.
    Nominate(PodRef, Option<Arc<str>>),
    /// The API server receives a pod's condition.
    Condition(PodRef, ScheduledCondition),
    /// The review of a request goes on.
    Review(u64, ReviewStep),
    LookAfterHolds(Who),
    /// The read of a held pod reaches the API server, and its answer the guard.
    ReadHeld(Who, Binding, Duration, Duration),
    HeldRead(Who, Binding, Truth, Duration),
    /// What is written for the claims of a pod reaches the API server, and its answer the process.
    WriteClaims(Who, ClaimOrder),
    ClaimsWritten(Who, ClaimOrder, Result<Vec<u64>, String>),
    /// The volume controller and the provisioner look at all claims.
    ControlVolumes,
    /// The claim controller looks at all resource claims.
    ControlClaims,
    /// A request of the writers of resource claims.
    ClaimRequest(u64, ClaimStep),
    /// These writers go on.
    ClaimWriters,
    /// Another scheduler binds a pod, which it has tried so many times.
    OtherBinds(Arc<str>, u32),
}

/// Counts of events, to check that the simulation covers its purpose.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub fn count(&mut self, what: &'static str) {
        self.add_to(what, 1);
    }

    pub fn add_to(&mut self, what: &'static str, n: u64) {
        *self.0.entry(what).or_default() += n;
    }

    pub fn add(&mut self, other: &Tally) {
        other.0.iter().for_each(|(what, n)| self.add_to(what, *n));
    }

    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn missing(&self) -> Vec<&'static str> {
        const EXPECTED: [&str; 89] = [
            "evicted",
            "eviction refused",
            "evicted for a gang",
            "gang evicted",
            "nominated",
            "gang begun",
            "gang waits",
            "bound",
            "bound elsewhere",
            "vanished",
            "refused",
            "late effect",
            "effect after restart",
            "conflict",
            "conflicts to backoff",
            "yielded",
            "parked",
            "woken",
            "reported parked",
            "reported refused",
            "condition lost",
            "condition removed",
            "nomination lost",
            "repeated",
            "relist",
            "restart",
            "handover",
            "membership lost",
            "member lost",
            "member found",
            "members disagree",
            "replica started",
            "review of a replica",
            "placed by another replica",
            "placed by two replicas",
            "review of a replica refused",
            "list compared",
            "left a deleted node",
            "relabelled",
            "policy",
            "hints",
            "quota",
            "over quota",
            "reported over quota",
            "held back",
            "budget",
            "budget heeded",
            "budget violated",
            "drained",
            "claims",
            "claims ordered",
            "claims given up",
            "claim bound",
            "devices wanted",
            "device claims ordered",
            "device claim shared",
            "device claim from template",
            "device claim released",
            "device claim deallocated",
            "device claim deleted",
            "device claim of an ended pod",
            "device claim allocated by others",
            "slice withdrawn",
            "device write conflict",
            "evicted with its devices",
            "device write without answer",
            "device write after a crash",
            "former writes awaited",
            "former write is late",
            "not provisioned",
            "disruption without effect",
            "eviction forbidden",
            "review",
            "review forwarded",
            "review of an unknown pod",
            "review allowed",
            "review refused",
            "review unavailable",
            "another webhook refuses",
            "never carried out",
            "bound by others",
            "bound after its hold",
            "bound unguarded",
            "created with a node",
            "held",
            "held pod queued again",
            "held pod read bound",
            "held pod read gone",
            "held pod read unbound",
        ];
        let never = |what: &&str| self.0.get(what).is_none_or(|n| *n == 0);
        let kinds = DispatcherKind::ALL.map(DispatcherKind::name);
        EXPECTED.into_iter().chain(kinds).filter(never).collect()
    }
}

pub struct Sim {
    pub now: Duration,
    agenda: BTreeMap<(Duration, u8, u64), Event>,
    next_event: u64,
    pub next_bind: u64,
    pub cluster: Cluster,
    pub processes: Vec<Process>,
    pub leader: Option<usize>,
    /// Watches deliver instantly and processes never end: then only shrinking nodes may be overcommitted.
    pub strict: bool,
    pub settings: Settings,
    /// Faults are enabled.
    pub faults: bool,
    pub chaos_left: u32,
    pub churn: Option<Churn>,
    pub disruptions: DisruptionController,
    pub storage: Storage,
    pub devices: Devices,
    pub guards: Guards,
    pub members: Members,
    /// Binds that were given up: they must not take effect any more.
    pub given_up: BTreeSet<u64>,
    /// Binds that took effect.
    pub effected: BTreeSet<u64>,
    /// By gang: members that ever had a node.
    pub ever_bound: BTreeMap<u64, BTreeSet<Arc<str>>>,
    pub load: Dice,
    pub fates: Dice,
    pub delays: Dice,
    interleaving: Dice,
    /// Other schedulers, and reviews of their binds.
    pub others: Dice,
    trace: Option<Vec<String>>,
    pub tally: Tally,
}

impl Sim {
    pub fn new(seed: u64, tracing: bool) -> Self {
        let mut load = Dice::new(seed, 0);
        let mut guard = GuardSettings::draw(&mut Dice::new(seed, 5));
        let replicas = ReplicaSettings::draw(&mut Dice::new(seed, 7)).filter(|_| guard.is_some());
        let drawn = Settings::draw(&mut load);
        let strict = load.percent(35) && replicas.is_none();
        if let Some(guard) = guard.as_mut().filter(|_| replicas.is_some()) {
            guard.fail = true;
        }
        let processes = match &replicas {
            Some(replicas) => replicas.count,
            None if !strict && load.percent(40) => 2,
            None => 1,
        };
        let settings = Settings { guard, replicas, ..drawn };
        let mut sim = Sim::of(seed, load, settings, (strict, processes), tracing);
        sim.chaos_left = 40 + sim.load.below(80) as u32;
        sim.at(Duration::ZERO, Event::Chaos);
        sim
    }

    /// Returns a simulation without external changes.
    pub fn of(
        seed: u64,
        load: Dice,
        settings: Settings,
        (strict, processes): (bool, usize),
        tracing: bool,
    ) -> Self {
        let mut sim = Sim {
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            next_event: 0,
            next_bind: 0,
            cluster: Cluster::default(),
            processes: Vec::new(),
            leader: None,
            strict,
            settings,
            faults: true,
            chaos_left: 0,
            churn: None,
            disruptions: DisruptionController::default(),
            storage: Storage::new(seed),
            devices: Devices::new(seed),
            guards: Guards::default(),
            members: Members::new(seed),
            given_up: BTreeSet::new(),
            effected: BTreeSet::new(),
            ever_bound: BTreeMap::new(),
            load,
            fates: Dice::new(seed, 1),
            delays: Dice::new(seed, 2),
            interleaving: Dice::new(seed, 3),
            others: Dice::new(seed, 4),
            trace: tracing.then(Vec::new),
            tally: Tally::default(),
        };
        sim.tally.count(sim.settings.dispatcher.name());
        sim.cluster.up = true;
        sim.build_cluster();
        for slot in 0..processes {
            let seed = sim.interleaving.any();
            sim.processes.push(sim.settings.process(0, seed));
            sim.start_process(slot);
        }
        sim.at(Duration::ZERO, Event::Lead(0));
        sim
    }

    pub fn run(mut self) -> (Step<Tally>, Vec<String>) {
        let result = self.run_to_end();
        (result.map(|()| self.tally), self.trace.unwrap_or_default())
    }

    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    pub fn run_to_end(&mut self) -> Step {
        while self.chaos_left > 0 {
            self.step()?;
        }
        self.calm_down();
        self.run_for(90 * S)?;
        self.await_turns_of_aged()?;
        self.judge(false)?;
        // A pod's message may be older than the latest placements: they freed nothing, so no retry was triggered.
        self.touch();
        self.run_for(75 * S)?;
        self.let_agents_finish()?;
        self.judge(true)
    }

    /// Goes on until no room is kept for an aged pod any more. What is preempted meanwhile gives all of them another turn.
    fn await_turns_of_aged(&mut self) -> Step {
        // A pod that lost a room to an aged one preempts again only after a while.
        let (step, mut without) = (self.settings.reserve_after / 2 + S, Duration::ZERO);
        for _ in 0..1_000 {
            self.run_for(step)?;
            let none = self.processes.iter().all(|process| process.scheduler.aged() == 0);
            without = if none { without + step } else { Duration::ZERO };
            if without >= 60 * S {
                return self.let_agents_finish();
            }
        }
        Err("rooms are kept for aged pods for ever".into())
    }

    /// Goes on until no agent has worked and no condition was on its way for two ticks: what an agent has found is reported at a
    /// tick. At most some seconds.
    fn let_agents_finish(&mut self) -> Step {
        let until = self.now + 20 * S;
        let mut busy_at = self.now;
        while self.now < until && self.now - busy_at < 2 * S {
            self.step()?;
            if !self.is_quiet() {
                busy_at = self.now;
            }
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let idle = |worker: &Worker| matches!(worker.doing, Doing::Sleeping);
        self.processes.iter().all(|process| process.workers.iter().all(idle))
            && !self.agenda.values().any(|event| matches!(event, Event::Condition(..)))
    }

    pub fn run_for(&mut self, time: Duration) -> Step {
        let until = self.now + time;
        while self.agenda.keys().next().is_some_and(|(at, ..)| *at <= until) {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:10.6}s {}", self.now.as_secs_f64(), line()));
        }
    }

    pub fn at(&mut self, at: Duration, event: Event) {
        self.next_event += 1;
        // Instant watches deliver before any other event.
        let order = u8::from(!(self.strict && matches!(event, Event::Deliver(..))));
        self.agenda.insert((at, order, self.next_event), event);
    }

    pub fn after(&mut self, pause: Duration, event: Event) {
        self.at(self.now + pause, event);
    }

    /// Returns the process, if it was not restarted.
    pub fn process(&mut self, who: Who) -> Option<&mut Process> {
        let is_there = |process: &&mut Process| process.life == who.1 && !process.member.is_down;
        self.processes.get_mut(who.0).filter(is_there)
    }

    fn step(&mut self) -> Step {
        let Some(((at, _, _), event)) = self.agenda.pop_first() else {
            return Err("nothing will ever happen again".into());
        };
        self.now = at;
        let logged = |cluster: &Cluster| WATCHES.map(|kind| cluster.logged(kind));
        let seen = logged(&self.cluster);
        match event {
            Event::Chaos => self.chaos(),
            Event::Churn => self.churn(),
            Event::Tick(who) => {
                let now = self.now;
                if let Some(process) = self.process(who) {
                    process.scheduler.tick(now);
                    // At the end only time passes, and steps of a second are enough.
                    let pause = if self.faults { TICK } else { S };
                    self.after(pause, Event::Tick(who));
                    self.carry_out(who)?;
                }
            }
            Event::Agent(who, at) => self.agent(who, at)?,
            Event::Deliver(who, kind, epoch) => self.deliver(who, kind, epoch)?,
            Event::List(who, kind, epoch) => self.list(who, kind, epoch),
            Event::Listed(who, epoch, listing, place) => self.listed(who, epoch, listing, place)?,
            Event::Send(who, id) => self.send(who, id),
            Event::Effect(binding, who, id, reply_after) => {
                self.effect(binding, who, id, reply_after, false)?;
            }
            Event::Replied(who, id, reply) => self.replied(who, id, reply)?,
            Event::Read(who, id) => self.read(who, id),
            Event::Told(who, id, truth, asked) => self.told(who, id, truth, asked)?,
            Event::Lead(slot) => self.lead(slot)?,
            Event::Replica(who, step) => self.replica_step(who, step)?,
            Event::Evict(who, eviction) => self.evict(who, *eviction)?,
            Event::CountBudgets => self.count_budgets(),
            Event::Nominate(pod, node) => self.nominate(pod, node),
            Event::Condition(pod, condition) => self.write_condition(&pod, condition),
            Event::Review(id, step) => self.review_step(id, step)?,
            Event::LookAfterHolds(who) => self.look_after_holds(who)?,
            Event::ReadHeld(who, binding, asked, back) => self.read_held(who, binding, asked, back),
            Event::HeldRead(who, binding, truth, asked) => self.held_read(who, &binding, &truth, asked)?,
            Event::WriteClaims(who, order) => self.write_claims(who, order),
            Event::ClaimsWritten(who, order, written) => self.claims_written(who, &order, written)?,
            Event::ControlVolumes => self.control_volumes(),
            Event::ControlClaims => self.control_claims(),
            Event::ClaimRequest(id, step) => self.claim_request(id, step)?,
            Event::ClaimWriters => self.look_at_writers()?,
            Event::OtherBinds(uid, tries) => self.other_binds(&uid, tries),
            Event::Up => {
                self.note(|| "API server up".into());
                self.cluster.up = true;
            }
            Event::Remove(pod) => {
                self.note(|| format!("{} is removed", pod.uid));
                self.cluster.delete_pod(&pod);
            }
        }
        self.end_catching_up()?;
        self.end_catching_up_of_members()?;
        for event in &self.cluster.pod_log[seen[PODS]..] {
            if let PodEvent::Applied(pod) = event
                && let Some(gang) = gang_of(pod).filter(|_| pod.node_name.is_some())
            {
                self.ever_bound.entry(gang).or_default().insert(pod.uid.clone());
            }
        }
        if self.cluster.logged(PODS) != seen[PODS] {
            self.count_budgets_soon();
            self.control_claims_soon();
        }
        if logged(&self.cluster) != seen {
            self.judge_devices()?;
            for slot in 0..self.processes.len() {
                WATCHES.into_iter().for_each(|kind| self.poke(slot, kind));
            }
        }
        Ok(())
    }

    pub fn start_process(&mut self, slot: usize) {
        let who = (slot, self.processes[slot].life);
        self.note(|| format!("p{slot} starts, life {}", who.1));
        for kind in WATCHES {
            self.cut(slot, kind);
        }
        self.after(TICK, Event::Tick(who));
        if self.settings.guard.is_some() {
            self.after(S, Event::LookAfterHolds(who));
        }
        self.join_replicas(slot);
    }

    pub fn restart(&mut self, slot: usize) {
        if self.is_active_active() {
            return self.end_replica(slot);
        }
        self.tally.count("restart");
        self.replace_process(slot);
        self.start_process(slot);
        if self.leader == Some(slot) {
            self.leader = None;
            self.elect();
        }
    }

    /// Replaces a process by a new one, which has not started yet.
    pub fn replace_process(&mut self, slot: usize) {
        let (life, seed) = (self.processes[slot].life + 1, self.interleaving.any());
        self.processes[slot] = self.settings.process(life, seed);
    }

    /// Schedules an election.
    pub fn elect(&mut self) {
        self.end_term();
        let slot = self.load.below(self.processes.len() as u64) as usize;
        let pause = match self.load.below(3) {
            0 => Duration::ZERO,
            1 => self.load.up_to(S),
            _ => self.load.up_to(16 * S),
        };
        self.after(pause, Event::Lead(slot));
    }

    fn lead(&mut self, slot: usize) -> Step {
        if self.leader.is_some() {
            return Ok(());
        }
        if self.processes[slot].member.is_down {
            self.elect();
            return Ok(());
        }
        let who = (slot, self.processes[slot].life);
        if self.await_former_writes(who) {
            return Ok(());
        }
        self.note(|| format!("p{slot} leads"));
        self.leader = Some(slot);
        if self.settings.guard.is_some() || self.devices.exists {
            self.begin_term(slot);
            return Ok(());
        }
        self.processes[slot].scheduler.set_leading(true);
        self.carry_out(who)
    }

    /// A process leads only when no request of a former leader can take effect any more, as production's `Fence` has it.
    /// Elsewhere the simulation is harsher, as only devices depend on that.
    fn await_former_writes(&mut self, who: Who) -> bool {
        let is_bind = |event: &Event| matches!(event, Event::Effect(_, from, ..) if *from != who);
        let (writers, are_late) = (self.devices.writers.as_ref(), self.devices.writes_are_late);
        let others_write = || writers.is_some_and(|writers| writers.others_write(who, are_late));
        let others_bind = || self.agenda.values().any(is_bind) || self.guards.reviews_others(who);
        // Replicas that place pods at once go on with binds, which the guard of the new leader reviews.
        let others_bind = || !self.is_active_active() && others_bind();
        let waits = self.devices.exists && (others_write() || others_bind());
        if waits {
            self.tally.count("former writes awaited");
            self.after(200 * MS, Event::Lead(who.0));
        }
        waits
    }

    pub fn stop_leading(&mut self) {
        if let Some(slot) = self.leader.take() {
            self.tally.count("handover");
            self.note(|| format!("p{slot} leads no more"));
            let is_active_active = self.is_active_active();
            let scheduler = &mut self.processes[slot].scheduler;
            if is_active_active {
                scheduler.give_devices(false)
            } else {
                scheduler.set_leading(false)
            }
            self.elect();
        }
    }

    // Agents.

    fn agent(&mut self, who: Who, at: usize) -> Step {
        let now = self.now;
        let compare = self.interleaving.percent(6);
        let Some(process) = self.processes.get_mut(who.0).filter(|process| process.life == who.1) else {
            return Ok(());
        };
        let (scheduler, worker) = (&mut process.scheduler, &mut process.workers[at]);
        let slot = who.0;
        let mut line = String::new();
        process.dry_run_budgets = None;
        worker.doing = match std::mem::replace(&mut worker.doing, Doing::Sleeping) {
            Doing::Sleeping => return Ok(()),
            Doing::Awake => match scheduler.next_task(at, now) {
                None => Doing::Sleeping,
                Some(task) => {
                    worker.agent.catch_up(scheduler.inventory());
                    if compare && worker.agent.refresh(task.class().id) {
                        self.tally.count("list compared");
                        let mut fresh = Agent::new(worker.config);
                        fresh.catch_up(scheduler.inventory());
                        fresh.choose(task.class(), now, |_| {});
                        let id = task.class().id;
                        invariants::same_list(&worker.agent, &fresh, id).map_err(|v| v.to_string())?;
                    }
                    line = format!("p{slot} a{at} takes {}", brief(&task));
                    Doing::Choosing(task, 0)
                }
            },
            Doing::Choosing(task, conflicts) => {
                let mut laps = Vec::new();
                worker.agent.expire(now);
                let choice = task.carry_out(&mut worker.agent, now, |part| laps.push((part, 10 * MS / 1000)));
                let answer = Answer {
                    choice,
                    seen: worker.agent.revision(),
                    laps,
                    changes: worker.agent.cache_changes(),
                };
                line = format!("p{slot} a{at} chose {:?} for {}", answer.choice, brief(&task));
                Doing::Settling(task, conflicts, answer)
            }
            Doing::Settling(task, conflicts, answer) => {
                scheduler.learn(at, &task, &answer.laps, &answer.changes);
                if let Task::Preempt(attempt) = &task {
                    process.dry_run_budgets = Some(attempt.budgets.clone());
                }
                match scheduler.settle(at, &mut worker.agent, &task, answer.choice, answer.seen, now) {
                    Settled::Done => Doing::Awake,
                    Settled::Again => {
                        if conflicts + 1 >= self.settings.max_tries {
                            return Err(Violation::new(9, format!("{task:?} is tried for ever")).to_string());
                        }
                        worker.agent.catch_up(scheduler.inventory());
                        Doing::Choosing(task, conflicts + 1)
                    }
                }
            }
        };
        let sleeps = matches!(worker.doing, Doing::Sleeping);
        if !line.is_empty() {
            self.note(|| line);
        }
        if !sleeps {
            let pause = self.agent_pause();
            self.after(pause, Event::Agent(who, at));
        }
        self.carry_out(who)
    }

    fn agent_pause(&mut self) -> Duration {
        match self.interleaving.below(20) {
            0 => self.interleaving.up_to(500 * MS),
            1..5 => self.interleaving.up_to(10 * MS),
            _ => self.interleaving.up_to(MS),
        }
    }

    // Actions of schedulers.

    /// Carries out the pending actions of a process, and checks it.
    pub fn carry_out(&mut self, who: Who) -> Step {
        if self.process(who).is_none() {
            return Ok(());
        }
        self.end_claiming(who);
        let process = &mut self.processes[who.0];
        let (mut begun, mut evictions) = (BTreeSet::new(), Vec::new());
        for action in process.scheduler.take_actions() {
            match action {
                Action::Bind(binding) => {
                    begun.extend(self.processes[who.0].shadow.pods.get(&binding.uid).and_then(gang_of));
                    self.start_bind(who, binding)?;
                }
                Action::Claim(order) => self.order_claims(who, order)?,
                Action::Report(report) => self.report(who, report)?,
                Action::WakeAgent(at) => {
                    let worker = &mut self.processes[who.0].workers[at];
                    if matches!(worker.doing, Doing::Sleeping) {
                        worker.doing = Doing::Awake;
                        let pause = self.agent_pause();
                        self.after(pause, Event::Agent(who, at));
                    }
                }
                Action::Evict(eviction) => {
                    self.judge_eviction(who, &eviction)?;
                    evictions.push((*eviction).clone());
                    let pause = self.delays.up_to(20 * MS);
                    self.after(pause, Event::Evict(who, eviction));
                }
                Action::Nominate { pod, node } => self.send_nomination(pod, node),
                Action::ReleaseClaim(release) => self.release_device_claim(who, release),
                Action::Observe(_)
                | Action::TellAllocation(_)
                | Action::TellPolicy(_)
                | Action::TellQuota(_) => {}
            }
        }
        self.judge_victims(who, &evictions)?;
        self.judge_budgets(who, &evictions)?;
        self.processes[who.0].dry_run_budgets = None;
        if !begun.is_empty() {
            self.tally.count("gang begun");
            self.judge_gangs(who, &begun)?;
        }
        let recount = self.interleaving.percent(3);
        let process = &self.processes[who.0];
        process.judge_holds()?;
        if let Some(violation) = process.scheduler.check().first() {
            return Err(format!("p{}: {violation}", who.0));
        }
        if recount && let Some(wrong) = process.scheduler.ledger().consistency_check().first() {
            return Err(format!("p{}: {wrong:?}", who.0));
        }
        Ok(())
    }

    fn start_bind(&mut self, who: Who, binding: Binding) -> Step {
        self.note(|| format!("p{} binds {} to {}", who.0, binding.uid, binding.node));
        // The node of a pod that has waited for its claims was judged before.
        if self.processes[who.0].shadow.claiming.remove(&binding.uid).is_none() {
            self.judge_commit(who, &binding)?;
            self.judge_claims_wanted(who, &binding, None)?;
        }
        self.judge_claims(who, &binding)?;
        self.judge_devices_of(&binding)?;
        let is_bound = |process: &Process| process.binds.values().any(|(other, _)| other.uid == binding.uid);
        if self.is_active_active() && self.processes.iter().any(is_bound) {
            self.tally.count("placed by two replicas");
        }
        self.next_bind += 1;
        let id = self.next_bind;
        let process = &mut self.processes[who.0];
        let usage = process.shadow.pods[&binding.uid].usage.clone();
        process.shadow.assumed.insert(binding.uid.clone(), (binding.node.clone(), usage));
        let attempt = BindAttempt::new(binding.node.clone());
        process.binds.insert(id, (binding, attempt));
        let pause = self.delays.up_to(20 * MS);
        self.after(pause, Event::Send(who, id));
        Ok(())
    }
}

fn brief(task: &Task) -> String {
    match task {
        Task::Place { request, work, .. } => format!("{} (work {work}, {:?})", request.uid, request.class.id),
        Task::Gang { gang, .. } => format!("gang of {}", gang.wanted.members.len()),
        Task::Check { class } => format!("check of {:?}", class.id),
        Task::Survey { class, .. } => format!("survey for {:?}", class.id),
        Task::Preempt(attempt) => format!("preemption by {}", attempt.uid),
        Task::PreemptTogether(_) => format!("preemption by a gang of {:?}", task.class().id),
    }
}
