//! Bind requests and reads in transit between a process and the API server, and their results.

use std::time::Duration;

use berth_scheduler::placement::{BindAttempt, BindOutcome, BindStep, Binding, LATE_EFFECT, Reply, Truth};

use super::process::Who;
use super::sim::{Event, MS, S, Sim, Step};

impl Sim {
    fn bind_of(&mut self, who: Who, id: u64) -> Option<&mut (Binding, BindAttempt)> {
        self.process(who)?.binds.get_mut(&id)
    }

    /// A bind request leaves the process: its faults are decided here.
    pub fn send(&mut self, who: Who, id: u64) {
        let Some((binding, _)) = self.bind_of(who, id) else {
            return;
        };
        let binding = binding.clone();
        if !self.cluster.up {
            let reply = Reply::Unknown("connection refused".into());
            return self.after(MS, Event::Replied(who, id, reply));
        }
        let fate = if self.faults { self.fates.below(100) } else { 99 };
        let soon = self.delays.up_to(30 * MS);
        let reply = |sim: &mut Self, after, reply| sim.after(after, Event::Replied(who, id, reply));
        match fate {
            // The answer is lost; the request takes effect, immediately or as late as possible.
            0..8 => {
                let given_up = self.delays.up_to(2 * S);
                let late = self.fates.percent(40);
                let effect = match late {
                    true => given_up + self.delays.up_to(LATE_EFFECT),
                    false => self.delays.up_to(given_up),
                };
                self.note(|| format!("{} answer lost, effect in {effect:?}", binding.uid));
                self.request_bind((who, id), binding, effect, None);
                reply(self, given_up, Reply::Unknown("timed out".into()));
            }
            8..12 => reply(self, soon, Reply::Conflict("the object has been modified".into())),
            12..16 => {
                let retry_after = self.fates.percent(50).then_some(S);
                reply(self, soon, Reply::Busy { retry_after });
            }
            16..20 => reply(self, soon, Reply::Unknown("etcdserver: leader changed".into())),
            20..23 => reply(self, soon, Reply::Rejected("forbidden".into())),
            // Slow in both directions.
            23..33 => {
                let (there, back) = (self.delays.up_to(2 * S), self.delays.up_to(2 * S));
                self.request_bind((who, id), binding, there, Some(back));
            }
            _ => {
                let back = self.delays.up_to(10 * MS);
                self.request_bind((who, id), binding, soon, Some(back));
            }
        }
    }

    /// A bind request is carried out by the API server. `guarded`: a guard holds its room.
    pub fn effect(
        &mut self,
        binding: Binding,
        who: Who,
        id: u64,
        reply_after: Option<Duration>,
        guarded: bool,
    ) -> Step {
        let (given_up, is_restarted) = (self.given_up.contains(&id), self.process(who).is_none());
        let reply = match self.cluster.up {
            true => self.bind_at_store(&binding, guarded)?,
            false => Reply::Unknown("connection lost".into()),
        };
        self.note(|| format!("{} to {} at the store: {reply:?}", binding.uid, binding.node));
        if reply == Reply::Bound {
            if given_up {
                return Err(format!(
                    "I1 violated: the bind of {} took effect after it was given up",
                    binding.uid
                ));
            }
            self.effected.insert(id);
            self.devices.bound.insert(binding.uid.clone());
            self.judge_devices_of(&binding)?;
            if self.is_active_active() && self.leader != Some(who.0) {
                self.tally.count("placed by another replica");
            }
            if is_restarted {
                self.tally.count("effect after restart");
            }
            if reply_after.is_none() {
                self.tally.count("late effect");
            }
        }
        if let Some(after) = reply_after {
            self.after(after, Event::Replied(who, id, reply));
        }
        Ok(())
    }

    /// A bind of any client takes effect, unless the API server refuses it.
    pub fn bind_at_store(&mut self, binding: &Binding, guarded: bool) -> Step<Reply> {
        let reply = self.cluster.store.bind_now(binding);
        if reply == Reply::Bound {
            if !guarded {
                self.guards.unguarded.insert(binding.uid.clone());
            }
            self.cluster.pod_was_bound(&binding.namespace, &binding.name);
            self.collect_if_orphaned(binding);
            self.judge_overcommit(&binding.node)?;
        }
        Ok(reply)
    }

    /// The pod garbage collector removes pods of missing nodes.
    pub fn collect_if_orphaned(&mut self, binding: &Binding) {
        if !self.cluster.nodes.contains_key(&binding.node)
            && let Some(pod) = self.cluster.store.get(&binding.namespace, &binding.name)
        {
            self.tally.count("left a deleted node");
            let pause = self.delays.up_to(40 * S);
            self.after(pause, Event::Remove(pod.into()));
        }
    }

    pub fn replied(&mut self, who: Who, id: u64, reply: Reply) -> Step {
        let now = self.now;
        let Some((_, attempt)) = self.bind_of(who, id) else {
            return Ok(());
        };
        let step = attempt.replied(reply, now);
        self.next_step(who, id, step)
    }

    pub fn read(&mut self, who: Who, id: u64) {
        let Some((binding, _)) = self.bind_of(who, id) else {
            return;
        };
        let binding = binding.clone();
        let truth = match self.cluster.up && !(self.faults && self.fates.percent(10)) {
            true => self.cluster.store.read_now(&binding),
            false => Truth::Unreadable("timed out".into()),
        };
        let slow = self.faults && self.fates.percent(20);
        let back = self.delays.up_to(if slow { 8 * S } else { 20 * MS });
        let asked = self.now;
        self.after(back, Event::Told(who, id, truth, asked));
    }

    pub fn told(&mut self, who: Who, id: u64, truth: Truth, asked: Duration) -> Step {
        let Some((_, attempt)) = self.bind_of(who, id) else {
            return Ok(());
        };
        let step = attempt.read(truth, asked);
        self.next_step(who, id, step)
    }

    fn next_step(&mut self, who: Who, id: u64, step: BindStep) -> Step {
        let outcome = match step {
            BindStep::Bind { after } => {
                self.after(after, Event::Send(who, id));
                return Ok(());
            }
            BindStep::Read { after } => {
                self.after(after, Event::Read(who, id));
                return Ok(());
            }
            BindStep::Done(outcome) => outcome,
        };
        let now = self.now;
        let Some(process) = self.process(who) else {
            return Ok(());
        };
        let Some((binding, _)) = process.binds.remove(&id) else {
            return Ok(());
        };
        match &outcome {
            BindOutcome::Bound => process.shadow.bound(&binding.uid, &binding.node),
            BindOutcome::BoundElsewhere(node) => process.shadow.bound(&binding.uid, node),
            BindOutcome::Vanished => process.shadow.vanished(&binding.uid),
            BindOutcome::Refused(_) => process.shadow.refused(&binding, now),
        }
        process.scheduler.bind_finished(&binding, outcome.clone(), now);
        self.note(|| format!("p{} {} to {}: {outcome:?}", who.0, binding.uid, binding.node));
        self.judge_outcome(id, &binding, &outcome)?;
        self.carry_out(who)
    }
}
