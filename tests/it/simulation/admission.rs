//! Requests to the API server that take room on a node, when a guard reviews them: their clients, and their fates.

use std::time::Duration;

use berth_model::Pod;
use berth_scheduler::placement::{Binding, Reply};
use berth_scheduler::scheduler::Requester;

use super::guard::{Grant, GuardAnswer, ReviewStep, Verdict};
use super::process::Who;
use super::sim::{Event, MS, S, Sim, Step};

/// The API server calls the webhook for this long.
const WEBHOOK_TIMEOUT: Duration = S;
/// The API server aborts requests of berth after this time, as berth asks.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Request {
    pub binding: Binding,
    /// The pod, if the request creates it with its node.
    pub placed: Option<Box<Pod>>,
    pub client: Client,
    /// When a guard first looked at it.
    pub looked_at: Duration,
    /// It takes effect between these times.
    effect: (Duration, Duration),
    /// The result of its review, once that has ended; `Some(None)`: no guard has answered.
    grant: Option<Option<Grant>>,
}

#[derive(Debug, Clone, Copy)]
pub enum Client {
    /// Of the bind of a process; the answer takes this long, `None`: it is lost.
    Berth { who: Who, id: u64, back: Option<Duration> },
    /// Another scheduler, which tries it for the nth time.
    Other { tries: u32 },
    /// Another client, whose request is to have no effect.
    DryRun,
}

impl Client {
    /// Returns who requests it, as the guard of process `guard` sees it.
    pub fn requester(self, guard: Who) -> Requester {
        match self {
            Client::Berth { who, .. } if who == guard => Requester::ThisProcess,
            Client::Berth { .. } | Client::Other { .. } | Client::DryRun => Requester::Other,
        }
    }
}

impl Sim {
    /// Sends a request, which takes effect at `effect` or as soon as it is reviewed.
    fn request(
        &mut self,
        binding: Binding,
        placed: Option<Box<Pod>>,
        client: Client,
        arrive: Duration,
        effect: (Duration, Duration),
    ) {
        self.guards.next_request += 1;
        let id = self.guards.next_request;
        let request = Request { binding, placed, client, looked_at: self.now, effect, grant: None };
        self.guards.requests.insert(id, request);
        self.at(arrive, Event::Review(id, ReviewStep::Arrive));
    }

    /// A bind request of berth is to take effect after this time.
    pub fn request_bind(
        &mut self,
        (who, id): (Who, u64),
        binding: Binding,
        effect: Duration,
        back: Option<Duration>,
    ) {
        if self.settings.guard.is_none() {
            return self.after(effect, Event::Effect(binding, who, id, back));
        }
        let within = self.others.up_to(effect.min(SERVER_TIMEOUT / 2));
        let arrive = self.now + effect - within;
        let latest = arrive + SERVER_TIMEOUT;
        self.request(binding, None, Client::Berth { who, id, back }, arrive, (self.now + effect, latest));
    }

    /// Another scheduler sends a bind request, or creates a pod with its node.
    pub fn request_of_other(&mut self, binding: Binding, placed: Option<Box<Pod>>, tries: u32) {
        let hold = self.settings.guard.as_ref().map_or(S, |guard| guard.hold);
        let arrive = self.now + self.others.up_to(5 * MS);
        let pause = match self.others.below(20) {
            // Longer than the room is held.
            0 => hold + self.others.up_to(5 * S),
            1..3 => self.others.up_to(hold),
            3..7 => self.others.up_to(2 * S),
            _ => self.others.up_to(10 * MS),
        };
        let client = if self.others.percent(5) { Client::DryRun } else { Client::Other { tries } };
        self.request(binding, placed, client, arrive, (arrive + pause, arrive + 2 * hold + 10 * S));
    }

    /// The API server calls the webhook at any replica.
    pub fn arrive(&mut self, id: u64) {
        if !self.cluster.up {
            return self.end_request(id, Reply::Unknown("connection refused".into()));
        }
        self.review_after(WEBHOOK_TIMEOUT, id, ReviewStep::Timeout);
        if self.faults && self.others.percent(4) {
            return self.note(|| format!("review {id} never arrives"));
        }
        let mut slot = self.others.below(self.processes.len() as u64) as usize;
        if !self.faults && self.processes[slot].member.is_down {
            slot = self.running().map(|(slot, _)| slot).next().unwrap_or(slot);
        }
        let pause = self.others.up_to(2 * MS);
        let who = (slot, self.processes[slot].life);
        self.review_after(pause, id, ReviewStep::Call(who, false));
    }

    /// The review of a request has ended. Other webhooks and faults follow.
    pub fn answered(&mut self, id: u64, verdict: Verdict) -> Step {
        let Some(request) = self.guards.requests.get_mut(&id).filter(|request| request.grant.is_none())
        else {
            return Ok(());
        };
        let (uid, client, earliest) = (request.binding.uid.clone(), request.client, request.effect.0);
        let grant = match verdict {
            Ok(GuardAnswer::Allowed(grant)) => {
                self.tally.count("review allowed");
                Some(grant)
            }
            Ok(GuardAnswer::Refused(why)) => {
                self.tally.count("review refused");
                self.end_request(id, Reply::Rejected(format!("denied the request: {why}")));
                return Ok(());
            }
            Err(why) => {
                self.tally.count("review unavailable");
                self.note(|| format!("there is no review {id} of {uid}: {why}"));
                if self.settings.guard.as_ref().is_some_and(|guard| guard.fail) {
                    self.end_request(id, Reply::Busy { retry_after: None });
                    return Ok(());
                }
                None
            }
        };
        if let Some(request) = self.guards.requests.get_mut(&id) {
            request.grant = Some(grant);
        }
        let fate = if self.faults { self.others.below(100) } else { 99 };
        match (client, fate) {
            (Client::DryRun, _) => self.end_request(id, Reply::Rejected("dry run".into())),
            (_, 0..5) => {
                self.tally.count("another webhook refuses");
                self.end_request(id, Reply::Rejected("denied by another webhook".into()));
            }
            (_, 5..9) => {
                self.tally.count("never carried out");
                self.end_request(id, Reply::Unknown("the API server has stopped".into()));
            }
            _ => {
                let soon = self.now + self.others.up_to(2 * MS);
                self.at(earliest.max(soon), Event::Review(id, ReviewStep::Effect));
            }
        }
        Ok(())
    }

    pub fn carry_out_request(&mut self, id: u64) -> Step {
        let Some(request) = self.guards.requests.get(&id) else {
            return Ok(());
        };
        let (binding, client, latest) = (request.binding.clone(), request.client, request.effect.1);
        let grant = request.grant.flatten();
        let is_guarded = self.is_guarded(&request.binding, grant);
        if self.now > latest || !self.cluster.up {
            self.end_request(id, Reply::Unknown("the request has timed out".into()));
            return Ok(());
        }
        let is_there = |pod: Pod| pod.uid == binding.uid && pod.node_name.is_none() && !pod.deleting;
        if self.cluster.store.get(&binding.namespace, &binding.name).is_some_and(is_there) {
            self.judge_hold(&binding, grant)?;
        }
        match client {
            Client::Berth { who, id: bind, back } => {
                self.guards.requests.remove(&id);
                self.effect(binding, who, bind, back, is_guarded)
            }
            Client::Other { .. } | Client::DryRun => {
                let placed = request.placed.clone();
                let reply = match placed {
                    Some(pod) => self.place(*pod, is_guarded)?,
                    None => self.bind_at_store(&binding, is_guarded)?,
                };
                self.note(|| {
                    let (uid, node) = (&binding.uid, &binding.node);
                    format!("request {id}, {uid} to {node}, guarded: {is_guarded}, at the store: {reply:?}")
                });
                if reply == Reply::Bound && !is_guarded {
                    let is_late = grant.is_some_and(|grant| self.is_overdue(grant));
                    self.tally.count(if is_late { "bound after its hold" } else { "bound unguarded" });
                }
                self.end_request(id, reply);
                Ok(())
            }
        }
    }

    /// Creates a pod with its node.
    fn place(&mut self, pod: Pod, is_guarded: bool) -> Step<Reply> {
        let Some(node) = pod.node_name.clone() else {
            return Err(format!("{} has no node", pod.uid));
        };
        if !is_guarded {
            self.guards.unguarded.insert(pod.uid.clone());
        }
        self.tally.count("created with a node");
        self.cluster.create_pod(pod.clone());
        self.collect_if_orphaned(&Binding {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            node: node.clone(),
            decision: None,
        });
        self.judge_overcommit(&node)?;
        Ok(Reply::Bound)
    }

    /// The API server answers a request.
    fn end_request(&mut self, id: u64, reply: Reply) {
        let Some(request) = self.guards.requests.remove(&id) else {
            return;
        };
        match request.client {
            Client::Berth { who, id, back: Some(back) } => self.after(back, Event::Replied(who, id, reply)),
            Client::Berth { back: None, .. } | Client::DryRun => {}
            Client::Other { tries } => {
                self.other_replied(request.binding, request.placed.is_some(), tries, &reply)
            }
        }
    }
}
