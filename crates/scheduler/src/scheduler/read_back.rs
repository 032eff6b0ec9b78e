//! Read-back of what is written to the status of waiting pods: their condition and their nominated node.
//!
//! A write is done only when the watch shows it. It can fail, be dropped by a full queue, come after a later one of the
//! previous leader, or be undone by another client. So all waiting pods are compared with what was last written to them,
//! in turn and in slices, and what was missing in the round before and still is, is written again.

use std::sync::Arc;
use std::time::Duration;

use super::waiting::unscheduled_message;
use super::{Action, Scheduler, State};

/// Minimum interval between the beginnings of two rounds: longer than a write takes and a watch lags.
const INTERVAL: Duration = Duration::from_secs(30);
/// Number of pods that one slice examines at most.
pub(super) const SLICE_MAX: usize = 256;

/// Progress of the rounds.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    /// Arrival number of the next pod to examine; `None`: the round has ended.
    next: Option<u64>,
    /// Time from which the next round may begin.
    due: Duration,
}

/// What the API server lacked of a waiting pod in the last round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) condition: bool,
    pub(super) nomination: bool,
}

impl ReadBack {
    /// Returns the arrival number from which the next slice goes on.
    fn begin_slice(&mut self, now: Duration) -> Option<u64> {
        if self.next.is_none() && now >= self.due {
            (self.next, self.due) = (Some(0), now + INTERVAL);
        }
        self.next
    }
}

impl Scheduler {
    /// Compares some waiting pods with what was written to them.
    pub(super) fn read_back(&mut self, now: Duration) {
        let Some(from) = self.read_back.begin_slice(now) else {
            return;
        };
        let pods = self.cluster.waiting.arrived_since(None, from).take(SLICE_MAX);
        let slice: Vec<(u64, Arc<str>)> = pods.map(|pod| (pod.seq, pod.pod.uid.clone())).collect();
        self.read_back.next = slice.last().filter(|_| slice.len() == SLICE_MAX).map(|(seq, _)| seq + 1);
        slice.iter().for_each(|(_, uid)| self.read_back_pod(uid));
    }

    fn read_back_pod(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.cluster.waiting.get(uid).filter(|pod| self.cluster.owns_pod(pod)) else {
            return;
        };
        let condition = pod.reported.is_some() && unscheduled_message(&pod.source) != pod.reported;
        let node = self.preemption.written_node(uid);
        let nomination = self.cluster.config.preemption
            && matches!(
                pod.state,
                State::Parked
                    | State::Grouped
                    | State::OverQuota
                    | State::HeldBack
                    | State::Refused(_)
                    | State::BackingOff(_)
            )
            && node != pod.source.nominated_node.as_ref();
        let (node, before) = (node.cloned(), pod.missing);
        if let Some(pod) = self.cluster.waiting.get_mut(uid) {
            pod.missing = Missing {
                condition: condition && !before.condition,
                nomination: nomination && !before.nomination,
            };
        }
        if condition && before.condition {
            self.repeat_report(uid);
        }
        if nomination
            && before.nomination
            && let Some(pod) = self.cluster.waiting.get(uid)
        {
            self.stats.repeated += 1;
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node });
        }
    }

    /// Writes the condition of the pod again.
    fn repeat_report(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        let (reason, message) = (pod.reason, pod.reported.take());
        if let Some(message) = message {
            self.stats.repeated += 1;
            self.report(uid, reason, message, false);
        }
    }

    /// Returns the messages that were last reported for waiting pods without a node, by uid, in no particular order.
    pub fn reported_messages(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let pods = self.cluster.waiting.iter().filter(|(_, pod)| self.cluster.owns_pod(pod));
        pods.filter_map(|(uid, pod)| Some((uid, pod.reported.as_ref()?)))
    }
}
