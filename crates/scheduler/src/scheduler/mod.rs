//! The scheduler: handles every pod from its arrival to its bind, as one synchronous, deterministic state machine.
//! Events and results go in, [`Action`]s come out; time is an argument.
//!
//! Cluster events enter in `cluster_events.rs`; agents take and settle work in `work.rs`; binds end in `binds.rs`. May
//! not know: kube, tokio, clocks.

mod action;
mod advice;
mod audit;
mod binds;
mod charge_walks;
mod check;
mod claims;
mod cluster;
mod cluster_events;
mod config;
mod crowds;
mod decisions;
mod foreign_binds;
mod gangs;
mod growth;
mod hints;
mod kept_devices;
mod overview;
mod policies;
mod precedence;
mod preemption;
mod quotas;
mod read_back;
mod share;
mod stale;
mod suppose;
mod verdict;
mod waiting;
mod waiting_pods;
mod work;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use action::{Action, AttemptResult, LatencySample, Stats};
pub use audit::{PodWalk, StateDifference};
pub use config::SchedulerConfig;
pub use foreign_binds::{BindRefusal, BindReview, BindsUnderWay, ExtenderBind, ForeignCounts, Requester};
pub use gangs::{GangCase, GangTask, lacking_message};
pub use growth::{Growth, GrowthError};
pub use overview::{NodeOverview, OVERVIEW_SLICE, Totals, WaitingOverview};
pub use preemption::{Attempt, Eviction, GangAttempt, GangHuntResult, HuntResult};
pub use quotas::QuotaStanding;
pub use share::Share;
pub use suppose::{QuotaRoom, SupposedPod};
pub use verdict::{NodeCandidate, Standings, Verdict};
pub use waiting::PodRefusal;
use work::Turn;
pub use work::{Settled, Task, TaskResult};

use crate::class::{ClassId, Classifier};
use crate::decisions::DecisionMemory;
use crate::dispatch::{Dispatcher, Estimator};
use crate::hints::Hints;
use crate::invariants::Violation;
use crate::inventory::{Inventory, Ledger, Revision};
use crate::objects::{Budgets, ObjectStores};
use crate::policy::Policies;
use crate::queue::{Backoff, Parked};
use crate::rules::Reasons;
use advice::Advised;
use berth_model::{Labels, PodReport};
use charge_walks::ChargeWalks;
use claims::Claims;
use cluster::Cluster;
use crowds::Crowds;
use foreign_binds::ForeignBinds;
use gangs::Gangs;
use kept_devices::KeptDevices;
use precedence::Yielding;
use preemption::Preemption;
use quotas::Quotas;
use read_back::{Missing, ReadBack};
use stale::Stale;
use waiting::{State, Waiting};
use waiting_pods::WaitingPods;

/// Reason of the condition of a pod that fits on no node.
const UNSCHEDULABLE: &str = "Unschedulable";
/// Number of parked classes that one tick looks at for due reports.
const GROUPS_MAX: usize = 1024;
/// Number of waiting pods that a new leader reviews at once.
const REVIEWS_MAX: usize = 256;
/// A parked pod gets a message after this time even if it is not certain any more that no node fits.
const REPORT_LATEST: Duration = Duration::from_secs(5);

/// State machine of the scheduler: hands events to its components in order, and carries out what they answer.
#[derive(Debug)]
pub struct Scheduler {
    cluster: Cluster,
    classifier: Classifier,
    policies: Policies,
    hints: Hints,
    foreign: ForeignBinds,
    gangs: Gangs,
    preemption: Preemption,
    quotas: Quotas,
    advised: Advised,
    decisions: DecisionMemory,
    dispatcher: Dispatcher,
    parked: Parked,
    backoff: Backoff,
    yielding: Yielding,
    crowds: Crowds,
    actions: Vec<Action>,
    stats: Stats,
    next_seq: u64,
    next_work: u64,
    binds: usize,
    /// Number of the last growth.
    growths: u64,
    term: u64,
    /// Waiting pods whose class may have changed.
    stale: Stale,
    /// Placed pods to be charged anew, because something that their charge contains has changed.
    recharges: ChargeWalks,
    /// Arrival numbers of the next and the last waiting pod that a new leader has to review.
    unreviewed: Option<(u64, u64)>,
    /// The parked class after which the search for due reports goes on.
    looked_at: Option<ClassId>,
    /// The parked class to whose pods was reported last.
    reported_last: Option<ClassId>,
    read_back: ReadBack,
    claims: Claims,
    /// `loosened` revision for which agents were last woken.
    woken_for: Revision,
    /// By agent.
    turns: Vec<Turn>,
    /// Latest commit that violated an invariant.
    overcommitted: Option<Violation>,
}

impl Scheduler {
    pub fn new(config: SchedulerConfig, estimator: Estimator) -> Self {
        let agents = config.agents.max(1);
        Scheduler {
            classifier: Classifier::new(config.profiles.default.placement.clone()),
            policies: Policies::new(config.profiles.clone()),
            hints: Hints::default(),
            foreign: ForeignBinds::default(),
            gangs: Gangs::default(),
            preemption: Preemption::default(),
            quotas: Quotas::default(),
            advised: Advised::default(),
            decisions: DecisionMemory::new(config.remembered_decisions),
            dispatcher: Dispatcher::new(config.dispatcher, agents, estimator, config.seed),
            parked: Parked::new(agents),
            backoff: Backoff::default(),
            yielding: Yielding::default(),
            crowds: Crowds::default(),
            actions: Vec::new(),
            stats: Stats::default(),
            next_seq: 0,
            next_work: 0,
            binds: 0,
            growths: 0,
            term: 0,
            stale: Stale::default(),
            recharges: ChargeWalks::default(),
            unreviewed: None,
            looked_at: None,
            reported_last: None,
            read_back: ReadBack::default(),
            claims: Claims::default(),
            woken_for: 0,
            turns: vec![Turn::default(); agents],
            overcommitted: None,
            cluster: Cluster {
                objects: ObjectStores::new(config.profiles.clone()),
                ledger: Ledger::default(),
                waiting: WaitingPods::default(),
                leading: false,
                share: None,
                gives_devices: false,
                pods_listed: false,
                nodes_listed: false,
                unlisted: config.objects.clone(),
                recounting_quotas: false,
                kept_devices: KeptDevices::default(),
                config,
            },
        }
    }

    pub fn inventory(&self) -> &Inventory {
        self.cluster.inventory()
    }

    pub fn ledger(&self) -> &Ledger {
        &self.cluster.ledger
    }

    /// Returns the labels of a namespace; `None`: it is not known.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.cluster.objects.namespace_labels(namespace)
    }

    pub fn budgets(&self) -> &Budgets {
        &self.cluster.objects.budgets
    }

    pub fn estimator(&self) -> &Estimator {
        self.dispatcher.estimator()
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the number of units of work since the start: visited pods, rows, charges and classes.
    pub fn visits(&self) -> u64 {
        let Cluster { ledger, waiting, .. } = &self.cluster;
        ledger.visits() + waiting.visits() + self.parked.visits() + self.preemption.visits()
    }

    /// Returns the pending actions, in the order of the decisions.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.notice_arrivals();
        std::mem::take(&mut self.actions)
    }

    /// Returns whether all nodes, pods and other objects have been listed once. Nothing is scheduled before.
    pub fn synced(&self) -> bool {
        self.cluster.synced()
    }

    /// Starts or stops leading. Only a leader places pods and writes conditions. Binds in flight when leadership is
    /// lost settle on their own.
    pub fn set_leading(&mut self, leading: bool) {
        let began = leading && !self.cluster.leading;
        self.cluster.leading = leading;
        if !leading {
            self.unreviewed = None;
            self.end_preemption();
        }
        if began {
            self.unreviewed = Some((0, self.cluster.waiting.last_arrival()));
            self.begin_preemption();
            self.policies.report_all_again();
            self.quotas.rewrite_all();
            self.wake_all();
        }
    }

    pub fn leading(&self) -> bool {
        self.cluster.leading
    }

    /// Starts leading in this term.
    pub fn lead(&mut self, term: u64) {
        self.term = term;
        self.set_leading(true);
    }

    /// Returns the current term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns the agent in whose queue this pod waits.
    pub fn agent_of(&self, uid: &str) -> Option<usize> {
        match self.cluster.waiting.get(uid)?.state {
            State::Queued(ticket) | State::Woken(ticket) => ticket.lane(),
            _ => None,
        }
    }

    /// Returns the number of binds in flight.
    pub fn binds(&self) -> usize {
        self.binds
    }

    /// Returns the number of pods by queue.
    pub fn queue_lengths(&self) -> QueueLengths {
        let (mut gated, mut refused, mut elsewhere) = (0, 0, 0);
        for waiting in self.cluster.waiting.values() {
            match waiting.state {
                State::Gated => gated += 1,
                State::Refused(_) => refused += 1,
                State::Elsewhere | State::Held => elsewhere += 1,
                _ => {}
            }
        }
        let (incomplete, unplaceable) = self.gangs.waiting_members();
        QueueLengths {
            active: self.dispatcher.len() + self.yielding.len(),
            backoff: self.backoff.len(),
            unschedulable: self.parked.len() + refused + unplaceable,
            gated,
            incomplete,
            elsewhere,
            over_quota: self.quotas.lines().len(),
            held_back: self.crowds.held(),
        }
    }

    /// Returns the number of allocations that can have no pods, because too many older ones select pods alike.
    pub fn ignored_allocations(&self) -> usize {
        self.gangs.ignored_allocations()
    }

    pub fn parked_classes(&self) -> usize {
        self.parked.groups().count()
    }

    pub fn classes(&self) -> usize {
        self.classifier.len()
    }

    /// Handles everything that depends on time only: pods whose backoff is over, and diagnoses to refresh.
    pub fn tick(&mut self, now: Duration) {
        self.maintain_claims(now);
        self.classify_again(now);
        while let Some(uid) = self.backoff.pop_due(now) {
            self.admit(&uid, now);
        }
        self.end_yielding(now);
        self.maintain_gangs(now);
        self.maintain_quotas(now);
        self.admit_held_back(now);
        self.report_held_back(now);
        if !self.cluster.leading {
            return;
        }
        self.actions.extend(self.parked.resumable(now).map(Action::WakeAgent));
        let agents = self.dispatcher.agents();
        let (cluster, actions) = (&self.cluster, &mut self.actions);
        self.preemption.hunt_again(cluster, &self.parked, &self.gangs, agents, now, actions);
        self.reserve_for_aged(now);
        self.look_for_late_devices(now);
        self.report_policies();
        self.report_quotas(now);
        self.begin_due_reports(now);
        self.carry_on_reports();
        self.read_back(now);
    }

    /// Begins reports to the pods of parked classes whose message has changed for long enough, or that have waited long
    /// for one. Looks at some classes only.
    fn begin_due_reports(&mut self, now: Duration) {
        let refresh = self.cluster.config.refresh;
        let mut due = Vec::new();
        let groups = self.parked.groups_after(self.looked_at).take(GROUPS_MAX);
        let mut last = None;
        for (at, group) in groups.enumerate() {
            last = (at + 1 == GROUPS_MAX).then_some(group.class.id);
            let is_stale = !group.is_reported && now.saturating_sub(group.reported_at) >= refresh;
            let overdue = |since: Duration| now.saturating_sub(since) >= REPORT_LATEST;
            // While constraints loosen all the time, no diagnosis is ever certain. The last one was true once.
            let waits = group.unreported_since.is_some_and(overdue) && group.probe.is_none();
            if is_stale || waits {
                due.push((group.class.id, is_stale));
            }
        }
        self.looked_at = last;
        for (class, is_stale) in due {
            let Some(group) = self.parked.get_mut(class) else {
                continue;
            };
            group.unreported_since = None;
            if is_stale {
                group.is_reported = true;
                group.reported_at = now;
            }
            self.parked.begin_reports(class, !is_stale);
        }
    }

    /// Reports to some pods of a parked class for which reports are in progress, and reviews some pods after this replica
    /// became the leader.
    fn carry_on_reports(&mut self) {
        self.review_waiting();
        if let Some(class) = self.parked.next_reporting(self.reported_last) {
            self.reported_last = Some(class);
            self.report_slice(class);
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Reports to some pods that waited when this replica became the leader, and tries preemption for them: the previous
    /// leader may have ended before it did.
    fn review_waiting(&mut self) {
        let Some((next, last)) = self.unreviewed else {
            return;
        };
        let arrived = self.cluster.waiting.arrived_since(None, next);
        let slice: Vec<_> = (arrived.take_while(|pod| pod.seq <= last).take(REVIEWS_MAX))
            .map(|pod| (pod.seq, pod.pod.uid.clone(), pod.state.has_reason()))
            .collect();
        self.unreviewed =
            slice.last().filter(|_| slice.len() == REVIEWS_MAX).map(|(seq, _, _)| (seq + 1, last));
        for (_, uid, has_reason) in slice {
            if has_reason {
                self.report_reason(&uid, true);
            }
            self.preemption.hunt(&uid, &self.cluster, &self.parked, &mut self.actions);
        }
        if self.unreviewed.is_some() {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    fn report_slice(&mut self, class: ClassId) {
        let Some(group) = self.parked.get_mut(class) else {
            return;
        };
        let (pods, only_new) = group.next_reports();
        for uid in pods {
            if !only_new || self.cluster.waiting.get(&uid).is_some_and(|waiting| waiting.reported.is_none()) {
                self.report_reason(&uid, only_new);
            }
        }
    }

    /// Queues a pod that may be scheduled: in its gang, its crowd, its quota, at an agent, or in its parked class.
    fn admit(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.start_over();
        let class = waiting.class.clone();
        if self.join_gang(uid, now)
            || self.cluster.owns(&class) && (self.hold_back(uid, now) || self.queue_for_quota(uid, now))
        {
            return;
        }
        self.enter(uid, now);
    }

    /// Does the same for a pod without a gang that its crowd and its quota admit.
    fn enter(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        let is_new_here = !self.cluster.leading || !self.synced();
        let (class, priority, order) = (waiting.class.clone(), waiting.priority, waiting.order(is_new_here));
        if !self.cluster.owns(&class) {
            self.leave_crowd(uid);
            return self.leave_to_replica(uid);
        }
        self.adopt_nomination(uid);
        if self.parked.get(class.id).is_some() {
            self.park(uid, now);
            return;
        }
        let assigned = self.dispatcher.assign(uid, &class, priority, order, now);
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Queued(assigned.ticket);
        }
        self.actions.push(Action::WakeAgent(assigned.wake));
    }

    /// Leaves a pod that is in no queue to the replica that owns it.
    fn leave_to_replica(&mut self, uid: &Arc<str>) {
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Elsewhere;
        }
        self.follow_nomination(uid);
    }

    /// Adds a pod to the group of its class, which exists, and reports why.
    fn park(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.state = State::Parked;
        if waiting.reason != UNSCHEDULABLE {
            // It was held back, or waited for its quota: what it waits for now is not reported yet.
            waiting.reported = None;
        }
        let class = waiting.class.id;
        self.parked.join(class, waiting.place(), uid);
        let quota = waiting.holding.quota.clone().filter(|_| waiting.admitted);
        self.offer_quota_again(quota.as_ref());
        let loosened = self.inventory().loosened();
        let Some(group) = self.parked.get_mut(class) else {
            return;
        };
        if group.pods.len() == 1 {
            group.reported_at = now;
        }
        let certain = group.is_certain(loosened);
        // The message depends on whether it can preempt.
        let (cluster, actions) = (&self.cluster, &mut self.actions);
        if self.preemption.pod_parked(uid, cluster, &self.parked, actions) || !certain {
            if let Some(group) = self.parked.get_mut(class) {
                group.unreported_since.get_or_insert(now);
            }
        } else {
            self.report_reason(uid, true);
            self.report_unreported(class);
        }
    }

    /// Reports to the pods of a parked class that have no condition yet, once it is certain that none of them fits: a
    /// wrong report makes an autoscaler add a node.
    fn report_unreported(&mut self, class: ClassId) {
        if self.preemption.hunts(class) {
            return;
        }
        let loosened = self.inventory().loosened();
        let Some(group) = self.parked.get_mut(class) else {
            return;
        };
        if group.unreported_since.is_none() || !group.is_certain(loosened) {
            return;
        }
        group.unreported_since = None;
        self.parked.begin_reports(class, true);
        self.report_slice(class);
        if self.parked.get(class).is_some_and(|group| group.is_reporting()) {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Writes the condition of a parked or refused pod if its message has changed.
    fn report_reason(&mut self, uid: &Arc<str>, event: bool) {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        if let State::Refused(why) = &waiting.state {
            let why = why.to_string().into();
            return self.report(uid, "SchedulerError", why, event);
        }
        match waiting.state {
            State::OverQuota => return self.report_quota(uid, event),
            State::HeldBack => return self.report_crowd(uid, event),
            _ => {}
        }
        let Some(group) = self.parked.get_mut(waiting.class.id) else {
            return;
        };
        let message = match self.preemption.has_nominated(uid) {
            true => group.diagnosis.message_of(&group.class, waiting.policy, None).into(),
            false => group.message(waiting.policy),
        };
        if group.diagnosis.has(Reasons::DEVICES_NOT_REACHED) {
            self.claims.note_left_behind(uid);
        }
        self.report(uid, UNSCHEDULABLE, message, event);
    }

    fn report(&mut self, uid: &Arc<str>, reason: &'static str, message: Arc<str>, event: bool) {
        if !self.cluster.waiting.get(uid).is_some_and(|waiting| self.cluster.reports_to(waiting)) {
            return;
        }
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        if !self.cluster.leading || waiting.reported.as_ref() == Some(&message) {
            return;
        }
        (waiting.reported, waiting.reason) = (Some(message.clone()), reason);
        waiting.missing.condition = false;
        let (pod, generation) = (waiting.pod.clone(), waiting.generation);
        self.actions.push(Action::Report(PodReport::Failed { pod, reason, message, generation, event }));
    }

    /// Removes a waiting pod from its queue; it stays in `waiting`.
    fn withdraw(&mut self, uid: &Arc<str>) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        let (class, place) = (waiting.class.id, waiting.place());
        let quota = waiting.holding.quota.clone().filter(|_| waiting.admitted);
        match std::mem::replace(&mut waiting.state, State::Gated) {
            State::Queued(ticket) => {
                self.dispatcher.withdraw(ticket);
            }
            State::Woken(ticket) => {
                self.dispatcher.withdraw(ticket);
                self.probe_ended(class, uid);
            }
            State::Placing(_) => self.probe_ended(class, uid),
            State::Yielding(to, until) => {
                self.yielding.remove(&to, until, uid);
                self.probe_ended(class, uid);
            }
            State::BackingOff(until) => self.backoff.remove(until, uid),
            State::Parked => self.parked.leave(class, place),
            State::Claiming => {
                self.release_claims(uid);
            }
            State::Grouped => self.leave_gang(uid),
            State::OverQuota => self.leave_line(uid),
            State::HeldBack => self.leave_held_back(uid),
            State::Gated | State::Refused(_) | State::Binding | State::Elsewhere | State::Held => {}
        }
        self.offer_quota_again(quota.as_ref());
    }

    /// Ends the probe of a parked class. If `uid` was its probe, the class is checked again.
    fn probe_ended(&mut self, class: ClassId, uid: &str) {
        if self.parked.probe_ended(class, uid) {
            self.preemption.probe_over(class);
            self.actions.extend(self.parked.get(class).map(|group| Action::WakeAgent(group.agent)));
        }
    }

    fn forget(&mut self, uid: &Arc<str>) {
        self.withdraw(uid);
        self.remove(uid);
    }

    /// Removes a pod that is in no queue from `waiting`.
    fn remove(&mut self, uid: &Arc<str>) -> Option<Waiting> {
        self.end_nomination(uid, false);
        self.leave_crowd(uid);
        let waiting = self.cluster.waiting.remove(uid)?;
        self.mark_turned_gangs();
        self.claims.remove_user(uid, &waiting.holding);
        self.cluster.ledger.stop_expecting(waiting.namespace(), &waiting.expected);
        Some(waiting)
    }

    /// Removes the pod's charge, and the pod from its gang's placed members.
    fn discharge(&mut self, uid: &str) -> bool {
        self.gangs.lost(uid);
        self.cluster.ledger.discharge(uid)
    }

    /// Counts the waiting pods by state, from the pods themselves; for the invariants.
    pub fn census(&self) -> BTreeMap<&'static str, usize> {
        let mut census = BTreeMap::new();
        for waiting in self.cluster.waiting.values() {
            *census.entry(waiting.state.name()).or_default() += 1;
        }
        census
    }
}

/// Number of pods by queue (kube-scheduler's metric `pending_pods`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueLengths {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
    /// Members of gangs that wait for more members.
    pub incomplete: usize,
    /// Pods and gangs that wait for their quota.
    pub over_quota: usize,
    /// Pods whose namespace has too many classes waiting.
    pub held_back: usize,
    /// Pods that another replica schedules.
    pub elsewhere: usize,
}
