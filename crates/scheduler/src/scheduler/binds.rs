//! How binds end.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, AttemptResult, Sample, Scheduler, State};
use crate::placement::{Binding, Outcome};
use berth_model::Report;

impl Scheduler {
    /// The bind that an [`Action::Bind`] asked for is settled. To be called exactly once for each.
    pub fn bind_finished(&mut self, binding: &Binding, outcome: Outcome, now: Duration) {
        self.binds -= 1;
        // Agents that paused for want of room go on when there is some, not for every single bind: waking a thread costs
        // more than placing a pod.
        if self.binds == self.config.max_waiting_binds * 3 / 4 {
            self.wake_waiting_agents();
        }
        let uid = &binding.uid;
        let ours = self.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Binding);
        match outcome {
            Outcome::Bound => {
                self.ledger.confirm(uid);
                self.member_bound(uid);
                if ours {
                    self.scheduled(binding, now);
                }
            }
            Outcome::BoundElsewhere(node) => {
                if let Some(charge) = self.ledger.charge_of(uid) {
                    let holding = charge.holding.clone();
                    self.ledger.bound(uid, &node, holding);
                }
                self.remove(uid);
            }
            Outcome::Vanished => {
                self.remove(uid);
                self.discharge(uid);
            }
            Outcome::Refused(why) => match self.ledger.charge_of(uid) {
                Some(charge) if charge.assumed => {
                    self.preemption.node_changed(&binding.node);
                    self.discharge(uid);
                    if ours {
                        let news = self.waiting.get_mut(uid).and_then(|pod| pod.news.take());
                        self.back_off(uid, format!("binding rejected: {why}"), now);
                        if let Some(pod) = news {
                            self.apply_pod(*pod, now);
                        }
                    }
                }
                // The watch has seen it bound, by somebody else or by a request we thought lost.
                _ => {
                    self.remove(uid);
                }
            },
        }
        self.wake_for_parked();
    }

    fn scheduled(&mut self, binding: &Binding, now: Duration) {
        let Some(waiting) = self.remove(&binding.uid) else {
            return;
        };
        self.stats.scheduled += 1;
        let (waited, attempts) = (now.saturating_sub(waiting.arrived), waiting.attempts);
        self.actions.push(Action::Observe(Sample::Scheduled { waited, attempts }));
        let node = binding.node.clone();
        self.actions.push(Action::Report(Report::Scheduled { pod: waiting.pod, node }));
    }

    /// An error: the pod tries again after a pause.
    pub(super) fn back_off(&mut self, uid: &Arc<str>, message: String, now: Duration) {
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return;
        };
        waiting.failures += 1;
        // While it had a node, what it depends on may have changed without a word.
        self.stale.pods.insert(uid.clone());
        let until = now + self.config.backoff.after(waiting.failures);
        waiting.state = State::BackingOff(until);
        self.backoff.insert(until, uid);
        self.stats.errors += 1;
        let took = Duration::ZERO;
        self.actions.push(Action::Observe(Sample::Attempt { result: AttemptResult::Error, took }));
        self.tell(uid, "SchedulerError", message.into(), true);
    }

    fn wake_waiting_agents(&mut self) {
        for agent in 0..self.dispatcher.agents() {
            if self.dispatcher.has_work(agent) {
                self.actions.push(Action::WakeAgent(agent));
            }
        }
    }
}
