//! Tasks of the agents: next task, and settlement of results.

use std::sync::Arc;
use std::time::Duration;

use super::foreign_binds::device_of_others;
use super::preemption::{self, Attempt, GangAttempt, GangHuntResult, HuntResult};
use super::{Action, AttemptResult, GangTask, LatencySample, Scheduler, State};
use crate::agent::{Agent, AgentChoice, CacheChange, Candidate, Part};
use crate::class::Class;
use crate::decisions::{CANDIDATES_MAX, ListUse};
use crate::dispatch::{Request, Search};
use crate::gang::GangPlan;
use crate::invariants::within_allocatable;
use crate::inventory::{Conflict, NodeId, Revision};
use crate::placement::Binding;
use crate::quota::Rights;
use crate::rules::{self, Diagnosis};
use berth_model::{ClaimName, Pod};

/// A task for an agent.
#[derive(Debug)]
pub enum Task {
    /// Choose a node for this pod. The number detects answers that are no longer wanted. `in_turn`: the pod was held
    /// back, and this is its turn.
    /// `compares`: the answer also tells which nodes were compared.
    Place { request: Request, work: u64, in_turn: bool, compares: bool },
    /// Choose nodes for all members of a gang without one.
    Gang { request: Request, work: u64, gang: Box<GangTask> },
    /// Check whether the list of this parked class is still empty.
    Check { class: Arc<Class> },
    /// Survey where a pod of this parked class could preempt.
    Survey { class: Arc<Class>, priority: i32, rights: Arc<Rights> },
    /// Dry-run preemption of a pod on some nodes.
    Preempt(Box<Attempt>),
    /// Find nodes and victims for a gang.
    PreemptTogether(Box<GangAttempt>),
}

impl Task {
    pub fn class(&self) -> &Arc<Class> {
        match self {
            Task::Place { request, .. } | Task::Gang { request, .. } => &request.class,
            Task::Check { class } | Task::Survey { class, .. } => class,
            Task::Preempt(attempt) => &attempt.class,
            Task::PreemptTogether(attempt) => attempt.class(),
        }
    }

    /// Carries out the agent's part on its current view.
    pub fn carry_out(&self, agent: &mut Agent, now: Duration, lap: impl FnMut(Part)) -> TaskResult {
        match self {
            Task::Place { request: Request { class, .. }, in_turn, compares, .. } => {
                let choice = match in_turn {
                    true => agent.choose_in_turn(class, now, lap),
                    false => agent.choose(class, now, lap),
                };
                let candidates = match choice {
                    AgentChoice::Node { node, .. } if *compares => agent.compare(class, node, CANDIDATES_MAX),
                    _ => Vec::new(),
                };
                TaskResult::Chosen(choice, candidates)
            }
            Task::Check { class } => TaskResult::Chosen(agent.choose(class, now, lap), Vec::new()),
            Task::Gang { gang, .. } => TaskResult::Plan(agent.plan(&gang.wanted, now, lap)),
            Task::Survey { class, priority, rights } => {
                TaskResult::Preemption(preemption::survey(agent, class, (*priority, rights), now, lap))
            }
            Task::Preempt(attempt) => TaskResult::Preemption(attempt.carry_out(agent, now, lap)),
            Task::PreemptTogether(attempt) => TaskResult::GangPreemption(attempt.carry_out(agent, now, lap)),
        }
    }

    /// Returns its work as a search; `None`: a request brought it.
    fn search(&self) -> Option<Search<'_>> {
        let (classes, parts) = match self {
            Task::Place { .. } | Task::Gang { .. } => return None,
            Task::Check { class } => (vec![class], None),
            Task::Survey { class, .. } => (vec![class], Some((Part::Survey, 1))),
            Task::Preempt(attempt) => {
                (vec![&attempt.class], Some((Part::DryRun, attempt.sites.len() as u32)))
            }
            Task::PreemptTogether(attempt) => (attempt.classes(), Some((Part::GangPreemption, 1))),
        };
        Some(Search { classes, parts })
    }
}

/// Result of a task.
#[derive(Debug)]
pub enum TaskResult {
    /// With the nodes that were compared, best first.
    Chosen(AgentChoice, Vec<Candidate>),
    /// Answer to a [`Task::Gang`].
    Plan(GangPlan),
    Preemption(HuntResult),
    /// Answer to a [`Task::PreemptTogether`].
    GangPreemption(GangHuntResult),
}

impl TaskResult {
    /// Returns how the attempt counts in the metrics.
    pub fn result(&self) -> AttemptResult {
        match self {
            TaskResult::Chosen(AgentChoice::Node { .. }, _) => AttemptResult::Scheduled,
            TaskResult::Plan(plan) if plan.complete => AttemptResult::Scheduled,
            _ => AttemptResult::Unschedulable,
        }
    }
}

/// Next step of an agent after its answer was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// The commit conflicted: catch up and choose again.
    Again,
}

/// Whose turn it is at an agent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    /// Its last task was a search for parked pods.
    searched: bool,
    /// The kind of search that comes first: checks of parked classes, preemption, preemption for gangs.
    first: usize,
    /// Of its last placement: where the list came from, and the time of the choice.
    pub(super) choice: Option<(ListUse, Duration)>,
}

/// Number of kinds of searches.
const SEARCHES: usize = 3;
/// Number of requests that an agent takes at once from its queue to find one that is still to be placed.
pub(super) const REQUESTS_MAX: usize = 64;

impl Scheduler {
    /// Returns the next task for this agent, if it may work. Placements and searches for parked pods alternate, and so do
    /// the kinds of searches: neither a stream of changes nor a stream of pods starves anything.
    pub fn next_task(&mut self, agent: usize, now: Duration) -> Option<Task> {
        if !self.synced() || !self.cluster.leading {
            return None;
        }
        self.classify_again(now);
        self.carry_on_reports();
        self.maintain_gangs(now);
        self.maintain_quotas(now);
        self.admit_held_back(now);
        self.look_at_nominated(now);
        let searched = std::mem::take(&mut self.turns[agent].searched);
        if searched && let Some(task) = self.next_placement(agent, now) {
            return Some(task);
        }
        let first = self.turns[agent].first;
        for kind in (0..SEARCHES).map(|step| (first + step) % SEARCHES) {
            let task = match kind {
                0 => self.next_check(agent, now),
                1 => self.next_preemption(agent, now),
                _ => {
                    let step = self.preemption.next_gang_step(agent, &self.cluster, &self.gangs);
                    step.map(Task::PreemptTogether)
                }
            };
            if let Some(task) = task {
                self.turns[agent] = Turn { searched: true, first: (kind + 1) % SEARCHES, choice: None };
                let search = task.search();
                let wake = search.and_then(|search| self.dispatcher.start_search(agent, &search, now));
                self.actions.extend(wake.map(Action::WakeAgent));
                return Some(task);
            }
        }
        // A search may have ended without another task.
        self.end_yielding(now);
        self.next_placement(agent, now)
    }

    fn next_check(&mut self, agent: usize, now: Duration) -> Option<Task> {
        let class = self.parked.due(agent, self.cluster.ledger.inventory().loosened(), now)?;
        self.stats.checks += 1;
        Some(Task::Check { class })
    }

    fn next_placement(&mut self, agent: usize, now: Duration) -> Option<Task> {
        let mut requests = 0;
        while self.binds < self.cluster.config.max_waiting_binds {
            if requests == REQUESTS_MAX {
                self.actions.push(Action::WakeAgent(agent));
                return None;
            }
            requests += 1;
            let request = self.dispatcher.start(agent, now)?;
            let class = request.class.id;
            if let Some((gang, work)) = self.start_gang(&request) {
                self.count_dispatch(agent);
                return Some(Task::Gang { request, work, gang: Box::new(gang) });
            }
            if self.is_outdated(&request, now) {
                self.dispatcher.finish(agent);
                continue;
            }
            let Some(waiting) = self.cluster.waiting.get(&request.uid) else {
                self.dispatcher.finish(agent);
                continue;
            };
            // Its class was parked while it waited: no need to evaluate it again.
            if self.parked.get(class).is_some() && matches!(waiting.state, State::Queued(_)) {
                self.dispatcher.finish(agent);
                self.park(&request.uid.clone(), now);
                continue;
            }
            // Another pod used the rest of its quota, or waits for it with a better place.
            if self.queue_for_quota(&request.uid, now) {
                self.dispatcher.finish(agent);
                continue;
            }
            let Some(waiting) = self.cluster.waiting.get_mut(&request.uid) else {
                self.dispatcher.finish(agent);
                continue;
            };
            self.next_work += 1;
            let work = self.next_work;
            waiting.state = State::Placing(work);
            waiting.attempts += 1;
            waiting.tries += 1;
            if waiting.taken_after == 0 {
                waiting.taken_after = self.next_seq;
            }
            self.count_dispatch(agent);
            let in_turn = self.crowds.has_turn(&request.uid);
            let compares = self.decisions.is_enabled();
            return Some(Task::Place { request, work, in_turn, compares });
        }
        self.dispatcher.turned_away(agent);
        None
    }

    /// Reclassifies the pod of a request that has left its queue, if it is marked. Returns whether that queued it again.
    fn is_outdated(&mut self, request: &Request, now: Duration) -> bool {
        let Some(waiting) = self.cluster.waiting.get_mut(&request.uid) else {
            return false;
        };
        // It is in no queue any more.
        let queued = std::mem::replace(&mut waiting.state, State::Placing(0));
        self.classify_if_marked(&request.uid, now);
        match self.cluster.waiting.get_mut(&request.uid) {
            Some(waiting) if waiting.state == State::Placing(0) => {
                waiting.state = queued;
                false
            }
            _ => true,
        }
    }

    /// Settles the answer of agent number `at`. Returns `Again` only for placements.
    pub fn settle(
        &mut self,
        at: usize,
        agent: &mut Agent,
        task: &Task,
        answer: TaskResult,
        seen: Revision,
        now: Duration,
    ) -> Settled {
        self.dispatcher.answered(at);
        let settled = match (task, answer) {
            (Task::Check { class }, TaskResult::Chosen(choice, _)) => {
                self.settle_check(at, class, choice, seen, now);
                Settled::Done
            }
            (Task::Gang { work, gang, .. }, TaskResult::Plan(plan)) => {
                self.settle_gang((at, agent), gang, *work, &plan, seen, now)
            }
            (Task::Place { request, work, .. }, TaskResult::Chosen(choice, candidates)) => {
                self.settle_place((at, agent), (request, *work), (choice, candidates), seen, now)
            }
            (Task::Survey { class, priority, rights }, TaskResult::Preemption(HuntResult::Survey(found))) => {
                self.settle_survey(at, class, (*priority, rights), found, seen, now);
                Settled::Done
            }
            (Task::Preempt(attempt), TaskResult::Preemption(HuntResult::DryRuns(found))) => {
                self.settle_attempt(attempt, found, seen, now);
                Settled::Done
            }
            (Task::PreemptTogether(attempt), TaskResult::GangPreemption(found)) => {
                self.settle_gang_step(at, attempt, found, now);
                Settled::Done
            }
            (_, _) => {
                debug_assert!(false, "the answer does not match the task");
                Settled::Done
            }
        };
        match settled {
            Settled::Done => self.dispatcher.finish(at),
            Settled::Again => self.dispatcher.start_over(at, now),
        }
        self.end_yielding(now);
        settled
    }

    pub(super) fn settle_check(
        &mut self,
        agent: usize,
        class: &Arc<Class>,
        choice: AgentChoice,
        seen: Revision,
        now: Duration,
    ) {
        match choice {
            AgentChoice::Nowhere(diagnosis) => {
                if self.parked.get(class.id).is_some() {
                    self.parked.found_nowhere(class, agent, seen, diagnosis);
                    self.preemption.hunt_on(class.id, &self.parked, &mut self.actions);
                    self.report_unreported(class.id);
                }
            }
            AgentChoice::Node { .. } => {
                self.stats.wakes += 1;
                self.wake_one(class, now);
            }
        }
    }

    /// Wakes the first pod of a parked class.
    fn wake_one(&mut self, class: &Arc<Class>, now: Duration) {
        let Some(uid) = self.parked.wake(class.id) else {
            return;
        };
        self.awake(&uid, class, now);
    }

    /// Queues a pod as the probe of its parked class, at the agent that is expected to be done with it first.
    pub(super) fn awake(&mut self, uid: &Arc<str>, class: &Arc<Class>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.start_over();
        let assigned = self.dispatcher.assign(uid, class, waiting.priority, waiting.seq, now);
        waiting.state = State::Woken(assigned.ticket);
        self.actions.push(Action::WakeAgent(assigned.wake));
    }

    fn settle_place(
        &mut self,
        by: (usize, &mut Agent),
        (request, work): (&Request, u64),
        (choice, candidates): (AgentChoice, Vec<Candidate>),
        seen: Revision,
        now: Duration,
    ) -> Settled {
        // Its dependencies may have changed and not been applied yet.
        self.classify_if_marked(&request.uid, now);
        // The pod was deleted, changed or bound by another client while the agent worked.
        if !self
            .cluster
            .waiting
            .get(&request.uid)
            .is_some_and(|waiting| waiting.state == State::Placing(work))
        {
            return Settled::Done;
        }
        if !self.cluster.leading {
            // Leadership was lost while the agent worked.
            self.withdraw(&request.uid);
            self.admit(&request.uid, now);
            return Settled::Done;
        }
        match choice {
            AgentChoice::Nowhere(diagnosis) => {
                self.found_nowhere(by.0, request, diagnosis, seen, now);
                Settled::Done
            }
            AgentChoice::Node { node, seen } => self.commit(by, request, (node, &candidates), seen, now),
        }
    }

    fn found_nowhere(
        &mut self,
        agent: usize,
        request: &Request,
        diagnosis: Diagnosis,
        seen: Revision,
        now: Duration,
    ) {
        self.stats.unschedulable += 1;
        if self.parked.get(request.class.id).is_none() && self.hold_back_again(&request.uid, seen, now) {
            return;
        }
        self.parked.found_nowhere(&request.class, agent, seen, diagnosis);
        self.park(&request.uid, now);
    }

    fn commit(
        &mut self,
        (at, agent): (usize, &mut Agent),
        request: &Request,
        (node, candidates): (NodeId, &[Candidate]),
        seen: Revision,
        now: Duration,
    ) -> Settled {
        let uid = &request.uid;
        let claims = self.cluster.unbound_claims(uid);
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return Settled::Done;
        };
        let Ok(claims) = claims else {
            // Its class has changed.
            let pod = Pod::clone(&waiting.source);
            self.wait(pod, now);
            return Settled::Done;
        };
        let class = waiting.class.clone();
        if self.cluster.over_quota(waiting.holding.quota.as_ref(), &waiting.holding.usage).is_some() {
            self.wait_for_quota(uid, now);
            return Settled::Done;
        }
        if self.yields(at, uid, node, now) {
            return Settled::Done;
        }
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return Settled::Done;
        };
        // Pod changes on other nodes may matter too; the agent, which counts them, checks the new ones.
        let inventory = self.cluster.ledger.inventory();
        let alone = !class.is_excluded_by_pods() || inventory.revision() == seen;
        let admitted = alone || agent.still_admits(class.id, node, inventory);
        let fits = |row: &crate::inventory::Row| admitted && rules::still_admits(&class, row, seen);
        match self.cluster.ledger.commit(uid, &waiting.holding, node, fits) {
            Ok(_) if !self.promise_devices(uid, &claims.devices, node) => {
                // A pod that preempted for them is being placed.
                self.discharge(uid);
                self.probe_ended(class.id, uid);
                self.back_off(uid, "its devices were given to another pod".to_owned(), now);
                Settled::Done
            }
            Ok(_) => {
                self.note_decision(uid, node, Some(at), candidates, now);
                self.has_node(uid, claims.volumes, node, now);
                // It found a node, so the next pod of its class may too.
                if self.parked.probe_ended(class.id, uid) {
                    self.preemption.probe_over(class.id);
                    self.wake_one(&class, now);
                }
                Settled::Done
            }
            Err(Conflict) => {
                self.stats.conflicts += 1;
                let most = self.cluster.config.max_tries;
                let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
                    return Settled::Done;
                };
                if waiting.tries < most {
                    waiting.tries += 1;
                    return Settled::Again;
                }
                if !waiting.put_back && self.dispatcher.agents() > 1 {
                    // Another agent sees other nodes first (Protean: back to the queue, for any agent).
                    (waiting.put_back, waiting.tries) = (true, 0);
                    self.try_again(uid, Some(at), now);
                    return Settled::Done;
                }
                let tries = if waiting.put_back { 2 * most } else { most };
                self.probe_ended(class.id, uid);
                let message = format!(
                    "{tries} placements in a row conflicted with node changes; retrying after a backoff"
                );
                self.back_off(uid, message, now);
                Settled::Done
            }
        }
    }

    /// Continues with a pod whose node is committed: requests its claims, or begins its bind.
    pub(super) fn has_node(&mut self, uid: &Arc<str>, claims: Vec<ClaimName>, node: NodeId, now: Duration) {
        self.end_nomination(uid, false);
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        let inventory = self.cluster.ledger.inventory();
        let host = inventory.name(node).clone();
        if let Err(violation) = within_allocatable(inventory.row(node), &waiting.holding.usage) {
            self.stats.violations += 1;
            self.overcommitted = Some(violation);
        }
        if let Err(violation) = self.cluster.within_quota(uid) {
            self.stats.violations += 1;
            self.overcommitted = Some(violation);
        }
        let class = waiting.class.clone();
        if let Some(why) = device_of_others(&self.cluster, &waiting.holding, uid) {
            self.release_devices(uid, false);
            self.discharge(uid);
            self.claims.note_left_behind(uid);
            return self.back_off(uid, why, now);
        }
        let devices = self.cluster.objects.devices.updates(&waiting.source);
        if claims.is_empty() && devices.is_empty() {
            return self.bind(uid, host);
        }
        self.claim(uid, claims, class.spec.volumes.as_deref(), devices, node, now);
    }

    /// Begins the bind of a pod whose resources are assumed.
    pub(super) fn bind(&mut self, uid: &Arc<str>, node: Arc<str>) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        // Undelivered reports are withdrawn: if the bind fails, the message must be reported again.
        waiting.reported = None;
        self.begin_bind(uid, node);
    }

    pub(super) fn begin_bind(&mut self, uid: &Arc<str>, node: Arc<str>) {
        let annotates = self.cluster.config.annotates_decisions;
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.state = State::Binding;
        let (namespace, name) = (waiting.pod.namespace.clone(), waiting.pod.name.clone());
        let decision = waiting.decision.as_ref().filter(|_| annotates);
        let decision = decision.map(|decision| decision.report(None).annotation());
        self.binds += 1;
        self.actions.push(Action::Bind(Binding { uid: uid.clone(), namespace, name, node, decision }));
    }

    fn count_dispatch(&mut self, agent: usize) {
        let dispatched = &mut self.stats.dispatched;
        dispatched.resize(self.dispatcher.agents().max(dispatched.len()), 0);
        dispatched[agent] += 1;
    }

    /// Applies the insertions and evictions of an idle agent's caches.
    pub fn cache_changed(&mut self, agent: usize, changes: &[CacheChange]) {
        self.dispatcher.cache_changed(agent, changes);
    }

    /// Records the times and cache changes of an agent's work.
    pub fn learn(&mut self, agent: usize, task: &Task, laps: &[(Part, Duration)], changes: &[CacheChange]) {
        self.dispatcher.cache_changed(agent, changes);
        let mut hit = None;
        for (part, took) in laps {
            self.dispatcher.learn(*part, *took);
            match part {
                Part::ListHit => (self.stats.list_hits, hit) = (self.stats.list_hits + 1, Some(true)),
                Part::ListMiss => (self.stats.list_misses, hit) = (self.stats.list_misses + 1, Some(false)),
                Part::RuleHit(_) => self.stats.rule_hits += 1,
                Part::RuleMiss(_) => self.stats.rule_misses += 1,
                Part::CommonHit => self.stats.common_hits += 1,
                Part::CommonMiss => self.stats.common_misses += 1,
                Part::Survey | Part::DryRun | Part::GangPreemption => {}
            }
        }
        let took = laps.iter().map(|(_, took)| *took).sum();
        let list = hit.map(|hit| if hit { ListUse::Hit } else { ListUse::Miss });
        self.turns[agent].choice = list.map(|list| (list, took));
        if let (Task::Place { request, .. }, Some(hit)) = (task, hit)
            && let Some(expected) = request.expected
        {
            match expected.list == hit {
                true => self.stats.predictions_right += 1,
                false => self.stats.predictions_wrong += 1,
            }
        }
    }

    /// Records duration and result of an attempt, and the duration of its last choice.
    pub fn observe_attempt(
        &mut self,
        result: AttemptResult,
        took: Duration,
        choice_took: Duration,
        rows: usize,
    ) {
        self.actions.push(Action::Observe(LatencySample::Attempt { result, took }));
        self.actions.push(Action::Observe(LatencySample::Algorithm { took: choice_took }));
        self.actions.push(Action::Observe(LatencySample::CatchUp { rows }));
    }
}
