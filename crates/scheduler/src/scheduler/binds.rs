//! Outcomes of binds.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, AttemptResult, LatencySample, Scheduler, State};
use crate::placement::{BindOutcome, Binding};
use berth_model::PodReport;

impl Scheduler {
    /// Settles the bind requested by an [`Action::Bind`]. Must be called exactly once per action.
    pub fn bind_finished(&mut self, binding: &Binding, outcome: BindOutcome, now: Duration) {
        self.binds -= 1;
        // Agents paused at the bind limit resume at 3/4 of it, not after every single bind: waking a thread costs more
        // than placing a pod.
        if self.binds == self.cluster.config.max_waiting_binds * 3 / 4 {
            self.wake_waiting_agents();
        }
        let uid = &binding.uid;
        let ours = self.cluster.waiting.get(uid).is_some_and(|waiting| waiting.state == State::Binding);
        let rival = self.foreign.take_rival(uid, now);
        match outcome {
            BindOutcome::Bound => {
                self.cluster.ledger.confirm(uid);
                self.gangs.member_bound(uid);
                if ours {
                    self.scheduled(binding, now);
                }
            }
            BindOutcome::BoundElsewhere(node) => {
                self.move_charge(uid, &node);
                self.remove(uid);
            }
            BindOutcome::Vanished => {
                self.remove(uid);
                self.discharge(uid);
                self.forget_foreign(uid);
            }
            BindOutcome::Refused(why) => match (self.cluster.ledger.charge_of(uid), rival) {
                (Some(charge), Some(until)) if charge.assumed => self.leave_to_rival(binding, until),
                (Some(charge), None) if charge.assumed => {
                    self.preemption.node_changed(&binding.node);
                    self.discharge(uid);
                    if ours {
                        let news = self.cluster.waiting.get_mut(uid).and_then(|pod| pod.news.take());
                        self.back_off(uid, format!("binding rejected: {why}"), now);
                        if let Some(pod) = news {
                            self.apply_pod(*pod, now);
                        }
                    }
                }
                // A watch has seen it bound: by another client, or by a request believed lost.
                _ => {
                    self.remove(uid);
                }
            },
        }
        self.wake_for_parked();
    }

    fn scheduled(&mut self, binding: &Binding, now: Duration) {
        let Some(mut waiting) = self.remove(&binding.uid) else {
            return;
        };
        self.stats.scheduled += 1;
        self.remember(&mut waiting, now);
        let (waited, attempts) = (now.saturating_sub(waiting.arrived), waiting.attempts);
        self.actions.push(Action::Observe(LatencySample::Scheduled { waited, attempts }));
        let node = binding.node.clone();
        self.actions.push(Action::Report(PodReport::Scheduled { pod: waiting.pod, node }));
    }

    /// Reports an error and retries the pod after a backoff.
    pub(super) fn back_off(&mut self, uid: &Arc<str>, message: String, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.failures += 1;
        // While the pod had a node it was not reclassified, so its dependencies may have changed.
        self.stale.mark_pod(uid);
        let until = now + self.cluster.config.backoff.after(waiting.failures);
        waiting.state = State::BackingOff(until);
        self.backoff.insert(until, uid);
        self.stats.errors += 1;
        let took = Duration::ZERO;
        self.actions.push(Action::Observe(LatencySample::Attempt { result: AttemptResult::Error, took }));
        self.report(uid, "SchedulerError", message.into(), true);
    }

    fn wake_waiting_agents(&mut self) {
        for agent in 0..self.dispatcher.agents() {
            if self.dispatcher.has_work(agent) {
                self.actions.push(Action::WakeAgent(agent));
            }
        }
    }
}
