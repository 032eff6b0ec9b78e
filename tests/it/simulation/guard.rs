//! The guard of each replica: the API server calls any of them, a follower forwards to the leader, and the leader reviews.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::Pod;
use berth_scheduler::placement::{Binding, LATE_EFFECT, Truth};
use berth_scheduler::scheduler::{BindReview, Requester};

use super::admission::{Client, Request};
use super::cluster::Cluster;
use super::dice::Dice;
use super::process::{Watch, Who};
use super::sim::{Event, MS, S, Sim, Step};
use super::watches::{OBJECTS, PODS};

/// A request that does not fit is reviewed again until it is refused.
const PATIENCE: Duration = Duration::from_millis(200);
/// Longer than in the product, to save steps.
const LOOK_AGAIN: Duration = Duration::from_millis(40);
/// Interval between two looks for expired holds.
const LOOK_FOR_DUE: Duration = S;

pub struct GuardSettings {
    /// The webhook's `failurePolicy` is `Fail`: what is not reviewed is denied.
    pub fail: bool,
    /// How long an allowed request may still take effect.
    pub hold: Duration,
}

impl GuardSettings {
    pub fn draw(dice: &mut Dice) -> Option<Self> {
        let settings = GuardSettings {
            fail: dice.percent(70),
            hold: match dice.percent(70) {
                true => Duration::from_secs(4 + dice.below(6)),
                false => Duration::from_secs(11 + dice.below(54)),
            },
        };
        dice.percent(40).then_some(settings)
    }
}

/// Requests under review, and the terms of the guards.
#[derive(Default)]
pub struct Guards {
    pub requests: BTreeMap<u64, Request>,
    pub next_request: u64,
    /// Number of terms that have begun.
    term: u64,
    /// A new leader, and what it must know before it decides.
    catching_up: Option<(Who, Known)>,
    /// Pods whose room no guard holds in its present term: nobody reviewed them, or another guard did, or too long ago.
    pub unguarded: BTreeSet<Arc<str>>,
}

/// What a process must know before it decides: the binds of others, and the devices that they gave to claims.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    pods: usize,
    /// `None`: there are no devices.
    objects: Option<usize>,
}

impl Known {
    pub fn now(cluster: &Cluster, devices: bool) -> Self {
        let objects = devices.then(|| cluster.logged(OBJECTS));
        Known { pods: cluster.logged(PODS), objects }
    }

    pub fn is_seen(self, watches: &[Watch; 3]) -> bool {
        let has = |kind: usize, known| watches[kind].live && watches[kind].cursor >= known;
        has(PODS, self.pods) && self.objects.is_none_or(|known| has(OBJECTS, known))
    }
}

/// A review that allows its request.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    term: u64,
    /// End of the hold; `None`: it is of a berth process, and the guard's process binds the pod there itself.
    until: Option<Duration>,
}

/// The answer to a review; `Err`: there is none.
pub type Verdict = Result<GuardAnswer, String>;

#[derive(Debug, Clone)]
pub enum GuardAnswer {
    Allowed(Grant),
    Refused(String),
}

/// A step of the review of a request.
pub enum ReviewStep {
    /// The request reaches the API server.
    Arrive,
    /// The webhook is called at this replica, maybe by another one.
    Call(Who, bool),
    /// The guard looks at the request, in the term in which it began; maybe with the pod that it has read.
    Look(Who, u64, Option<Box<Pod>>),
    /// The guard reads the pod.
    Read(Who, u64),
    Answer(Verdict),
    Timeout,
    /// The API server carries out the request.
    Effect,
}

impl Guards {
    /// Returns whether a bind of another process, or of an earlier start of this one, may still take effect.
    pub fn reviews_others(&self, who: Who) -> bool {
        let is_of_others = |client| matches!(client, Client::Berth { who: from, .. } if from != who);
        self.requests.values().any(|request| is_of_others(request.client))
    }
}

impl Sim {
    pub fn review_step(&mut self, id: u64, step: ReviewStep) -> Step {
        match step {
            ReviewStep::Arrive => self.arrive(id),
            ReviewStep::Call(who, forwarded) => self.call(id, who, forwarded),
            ReviewStep::Look(who, term, pod) => return self.look(id, who, term, pod),
            ReviewStep::Read(who, term) => self.read_for_review(id, who, term),
            ReviewStep::Answer(verdict) => return self.answered(id, verdict),
            ReviewStep::Timeout => return self.answered(id, Err("it took too long".into())),
            ReviewStep::Effect => return self.carry_out_request(id),
        }
        Ok(())
    }

    pub fn review_after(&mut self, pause: Duration, id: u64, step: ReviewStep) {
        self.after(pause, Event::Review(id, step));
    }

    /// Returns the delay of a message to or from a guard.
    fn hop(&mut self) -> Duration {
        match self.others.below(12) {
            0 => self.others.up_to(300 * MS),
            _ => self.others.up_to(2 * MS),
        }
    }

    fn answer(&mut self, id: u64, verdict: Verdict) {
        if self.faults && self.others.percent(4) {
            return self.note(|| format!("the answer to review {id} is lost"));
        }
        let pause = self.hop();
        self.review_after(pause, id, ReviewStep::Answer(verdict));
    }

    /// Returns whether the process decides about the binds of all clients.
    fn decides(&self, who: Who) -> bool {
        let is_ready = self.guards.catching_up.is_none();
        self.leader == Some(who.0) && self.processes[who.0].life == who.1 && is_ready
    }

    fn call(&mut self, id: u64, who: Who, forwarded: bool) {
        if self.process(who).is_none() {
            return self.answer(id, Err("connection refused".into()));
        }
        if self.decides(who) {
            self.tally.count(if forwarded { "review forwarded" } else { "review" });
            let (now, term) = (self.now, self.guards.term);
            if let Some(request) = self.guards.requests.get_mut(&id) {
                request.looked_at = now;
            }
            return self.review_after(Duration::ZERO, id, ReviewStep::Look(who, term, None));
        }
        // The holder of the Lease, as this replica sees it.
        let is_outdated = self.faults && self.others.percent(10);
        let others = self.processes.len() as u64;
        let holder = if is_outdated { Some(self.others.below(others) as usize) } else { self.leader };
        match holder.filter(|holder| !forwarded && *holder != who.0) {
            Some(slot) => {
                let pause = self.hop();
                let holder = (slot, self.processes[slot].life);
                self.review_after(pause, id, ReviewStep::Call(holder, true));
            }
            None => self.answer(id, Err("this replica does not lead".into())),
        }
    }

    fn look(&mut self, id: u64, who: Who, term: u64, read: Option<Box<Pod>>) -> Step {
        let now = self.now;
        let Some(request) = self.guards.requests.get(&id) else {
            return Ok(());
        };
        let (binding, looked_at) = (request.binding.clone(), request.looked_at);
        let hold = self.settings.guard.as_ref().map_or(S, |guard| guard.hold);
        let until = match request.client {
            Client::DryRun => None,
            // The API server gives up berth's own requests sooner.
            Client::Berth { .. } => Some(now + LATE_EFFECT.min(hold)),
            Client::Other { .. } => Some(now + hold),
        };
        let requester = request.client.requester(who);
        let is_of_replica = matches!(request.client, Client::Berth { who: from, .. } if from != who);
        let pod = request.placed.clone().or(read);
        let Some(process) = self.process(who) else {
            self.answer(id, Err("connection reset".into()));
            return Ok(());
        };
        let held = process.held();
        let is_assumed = process.shadow.is_assumed(&binding.uid, &binding.node);
        let review = process.review(&binding, pod.as_deref(), until, requester)?;
        if process.held() > held {
            self.tally.count("held");
        }
        self.carry_out(who)?;
        if review == BindReview::Unknown {
            self.tally.count("review of an unknown pod");
            let pause = self.hop();
            self.review_after(pause, id, ReviewStep::Read(who, term));
            return Ok(());
        }
        let is_refused = matches!(review, BindReview::Refused(_));
        if is_refused && now < looked_at + PATIENCE {
            self.review_after(LOOK_AGAIN, id, ReviewStep::Look(who, term, pod));
            return Ok(());
        }
        if is_of_replica {
            let what = if is_refused { "review of a replica refused" } else { "review of a replica" };
            self.tally.count(what);
        }
        let (uid, node) = (&binding.uid, &binding.node);
        self.note(|| format!("p{} reviews {id}, {uid} to {node}: {review:?} until {until:?}", who.0));
        let is_same_term = self.guards.term == term && self.decides(who);
        let verdict = match review {
            _ if !is_same_term => Err("leadership was lost during the review".into()),
            BindReview::Refused(why) => Ok(GuardAnswer::Refused(why.to_string())),
            _ => Ok(GuardAnswer::Allowed(Grant {
                term,
                until: until.filter(|_| requester == Requester::Other || !is_assumed),
            })),
        };
        self.answer(id, verdict);
        Ok(())
    }

    /// The guard reads a pod that its replica does not know.
    fn read_for_review(&mut self, id: u64, who: Who, term: u64) {
        let Some(request) = self.guards.requests.get(&id) else {
            return;
        };
        let binding = request.binding.clone();
        if !self.cluster.up || self.faults && self.others.percent(10) {
            return self.answer(id, Err("the pod cannot be read".into()));
        }
        let pod = self.cluster.store.get(&binding.namespace, &binding.name);
        match pod.filter(|pod| pod.uid == binding.uid) {
            Some(pod) => {
                let pause = self.hop();
                self.review_after(pause, id, ReviewStep::Look(who, term, Some(pod.into())));
            }
            // The API server reports the missing pod itself.
            None => {
                let grant = Grant { term, until: Some(self.now) };
                self.answer(id, Ok(GuardAnswer::Allowed(grant)));
            }
        }
    }

    /// Returns whether a guard holds the room of a request that takes effect now.
    pub fn is_guarded(&self, binding: &Binding, grant: Option<Grant>) -> bool {
        let Some(grant) = grant.filter(|grant| grant.term == self.guards.term) else {
            return false;
        };
        let leader = self.leader.map(|slot| &self.processes[slot].shadow);
        match grant.until {
            Some(until) => self.now < until,
            None => leader.is_some_and(|shadow| shadow.is_assumed(&binding.uid, &binding.node)),
        }
    }

    /// A request takes effect: the guard that allowed it holds its room.
    pub fn judge_hold(&self, binding: &Binding, grant: Option<Grant>) -> Step {
        let guard = self.leader.filter(|_| self.guards.catching_up.is_none());
        let Some(guard) = guard.filter(|_| self.is_guarded(binding, grant)) else {
            return Ok(());
        };
        let (uid, node) = (&binding.uid, &binding.node);
        let shadow = &self.processes[guard].shadow;
        match shadow.is_assumed(uid, node) || shadow.holds.contains_key(&(uid.clone(), node.clone())) {
            true => Ok(()),
            false => Err(format!("I2 violated: {uid} is bound to {node}, and p{guard} holds no room there")),
        }
    }

    /// Returns whether the request comes when its room is held no more.
    pub fn is_overdue(&self, grant: Grant) -> bool {
        grant.until.is_some_and(|until| until <= self.now)
    }

    // Terms.

    /// A process becomes the leader, and decides once it knows all binds until now.
    pub fn begin_term(&mut self, slot: usize) {
        let known = Known::now(&self.cluster, self.devices.exists);
        self.guards.term += 1;
        self.guards.catching_up = Some(((slot, self.processes[slot].life), known));
    }

    pub fn end_term(&mut self) {
        self.guards.catching_up = None;
    }

    /// Lets the new leader decide if it knows all binds of its predecessors.
    pub fn end_catching_up(&mut self) -> Step {
        let Some((who, known)) = self.guards.catching_up else {
            return Ok(());
        };
        let process = &mut self.processes[who.0];
        if !known.is_seen(&process.watches) || !process.scheduler.synced() {
            return Ok(());
        }
        match self.settings.replicas {
            None => process.scheduler.set_leading(true),
            Some(_) => process.scheduler.give_devices(true),
        }
        self.guards.catching_up = None;
        self.note(|| format!("p{} decides", who.0));
        self.carry_out(who)
    }

    // Ends of holds.

    /// Begins to read the pods whose allowed binds were not observed in time.
    pub fn look_after_holds(&mut self, who: Who) -> Step {
        let now = self.now;
        let Some(process) = self.process(who) else {
            return Ok(());
        };
        let due = process.holds_due(now)?;
        let mut longest = Duration::ZERO;
        for binding in due {
            let slow = self.faults && self.others.percent(20);
            let (there, back) = (self.hop(), self.others.up_to(if slow { 8 * S } else { 20 * MS }));
            longest = longest.max(there + back);
            self.after(there, Event::ReadHeld(who, binding, now, back));
        }
        self.after(longest + LOOK_FOR_DUE, Event::LookAfterHolds(who));
        Ok(())
    }

    /// The read of a held pod, sent at `asked`, reaches the API server.
    pub fn read_held(&mut self, who: Who, binding: Binding, asked: Duration, back: Duration) {
        let truth = match self.cluster.up && !(self.faults && self.others.percent(10)) {
            true => self.cluster.store.read_now(&binding),
            false => Truth::Unreadable("timed out".into()),
        };
        self.after(back, Event::HeldRead(who, binding, truth, asked));
    }

    pub fn held_read(&mut self, who: Who, binding: &Binding, truth: &Truth, asked: Duration) -> Step {
        let now = self.now;
        let Some(process) = self.process(who) else {
            return Ok(());
        };
        let held = process.held();
        process.held_pod_read(binding, truth, asked, now);
        let is_awake = process.held() < held && matches!(truth, Truth::Unbound { .. });
        let (uid, node) = (&binding.uid, &binding.node);
        self.note(|| format!("p{} reads {uid}, held on {node}: {truth:?}", who.0));
        self.tally.count(match truth {
            Truth::Unreadable(_) => "held pod not read",
            Truth::BoundTo(_) => "held pod read bound",
            Truth::Gone => "held pod read gone",
            Truth::Unbound { .. } if is_awake => "held pod queued again",
            Truth::Unbound { .. } => "held pod read unbound",
        });
        self.carry_out(who)
    }
}
