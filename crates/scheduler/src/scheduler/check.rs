//! Checks of the internal invariants: every waiting pod is in exactly one queue, and every queue holds only waiting
//! pods. O(waiting pods); changes nothing.

use std::sync::Arc;

use super::charge_walks::SLICE_MAX;
use super::{Scheduler, State, Waiting};
use crate::invariants::{Checked, Violation, bounded, ensure};

impl Scheduler {
    /// Returns the violated invariants, sorted. Empty if there are none.
    pub fn check(&self) -> Vec<Violation> {
        let (mut found, mut next) = (self.check_queues(), Some(0));
        while let Some(from) = next {
            let (of_pods, more) = self.check_pods_from(from);
            found.extend(of_pods);
            next = more;
        }
        sorted(found)
    }

    /// Returns the invariants that the next waiting pods violate: those that arrived as number `from` or later; and the number of
    /// the next pod, `None` after the last one.
    pub fn check_pods_from(&self, from: u64) -> (Vec<Violation>, Option<u64>) {
        let mut found = Vec::new();
        for (at, pod) in self.cluster.waiting.arrived_since(None, from).enumerate() {
            if at == SLICE_MAX {
                return (found, Some(pod.seq));
            }
            found.extend(self.check_pod(&pod.pod.uid, pod).err());
        }
        (found, None)
    }

    /// Returns the violated invariants of the queues as a whole. O(waiting pods), with little work for each.
    pub fn check_queues(&self) -> Vec<Violation> {
        let counts = [self.check_counts(), self.check_groups(), self.check_gangs(), self.check_lines()];
        let more = [self.check_bounds(), self.check_nominations(), self.check_crowds()];
        let all = counts.into_iter().chain(more);
        let mut found: Vec<_> = all.filter_map(Result::err).collect();
        found.extend(self.overcommitted.clone());
        sorted(found)
    }

    /// Checks that the pod is in the queue of its state and that its condition is reported (I1, I6, I9).
    fn check_pod(&self, uid: &Arc<str>, pod: &Waiting) -> Checked {
        let at = match &pod.state {
            State::Gated | State::Refused(_) | State::Placing(_) => true,
            State::Queued(ticket) | State::Woken(ticket) => self.dispatcher.waits(*ticket) == Some(uid),
            State::Binding => self.cluster.ledger.charge_of(uid).is_some(),
            State::Held => self.foreign.holds(uid),
            State::Elsewhere => !self.cluster.owns_pod(pod) || self.stale.is_marked(uid, pod),
            State::Grouped => {
                pod.gang.as_ref().is_some_and(|gang| self.gangs.has_waiting(&gang.name, pod.place(), uid))
            }
            State::OverQuota => self.quotas.lines().contains(uid),
            State::HeldBack => self.is_held_back(uid, pod),
            State::Yielding(to, _) => self.yielding.contains(to, uid),
            State::Claiming => self.claims.waits(uid),
            State::BackingOff(until) => self.backoff.contains(*until, uid),
            State::Parked => {
                (self.parked.get(pod.class.id)).is_some_and(|group| group.pods.get(&pod.place()) == Some(uid))
            }
        };
        ensure(1, at, || format!("pod {uid} is {}, but not in that queue", pod.state.name()))?;
        let counts = pod.gang.is_none()
            && !matches!(
                pod.state,
                State::Gated | State::Refused(_) | State::Held | State::Elsewhere | State::HeldBack
            );
        ensure(11, counts == pod.in_crowd, || {
            format!("pod {uid} is {}, and counting it in its crowd is {}", pod.state.name(), pod.in_crowd)
        })?;
        let charged = self.cluster.ledger.charge_of(uid).is_some();
        let has_node = matches!(pod.state, State::Claiming | State::Binding | State::Held);
        ensure(1, charged == has_node, || {
            format!("pod {uid} is {}, and its charge in the ledger is {charged}", pod.state.name())
        })?;
        let must_know = match &pod.state {
            // The replica that owns it writes its condition; that is a new one until it is classified again.
            State::Refused(_) => self.cluster.owns_pod(pod) && !self.stale.is_marked(uid, pod),
            State::OverQuota => !self.quotas.is_fresh(uid),
            // Nothing is reported until it is certain that no node fits.
            State::Parked => (self.parked.get(pod.class.id)).is_some_and(|group| {
                group.unreported_since.is_none()
                    && !group.is_reporting()
                    && group.is_certain(self.inventory().loosened())
            }),
            _ => false,
        };
        let is_told = pod.reported.is_some() || self.unreviewed.is_some();
        ensure(6, !self.cluster.leading || !must_know || is_told, || {
            format!("pod {uid} is {} and has no condition message", pod.state.name())
        })?;
        bounded(pod.tries, self.cluster.config.max_tries, || format!("pod {uid} was tried"))
    }

    /// Checks that the queues hold only waiting pods.
    fn check_counts(&self) -> Checked {
        let census = self.census();
        let (_, assumed) = self.cluster.ledger.counts();
        let in_groups: usize = self.parked.groups().map(|group| group.pods.len()).sum();
        for (state, held) in [
            ("queued", self.dispatcher.len() - self.gangs.queued()),
            ("backing off", self.backoff.len()),
            ("parked", self.parked.len()),
            ("parked", in_groups),
            ("yielding", self.yielding.len()),
        ] {
            let pods = census.get(state).copied().unwrap_or(0);
            ensure(1, pods == held, || format!("{pods} pods are {state}, but that queue has {held}"))?;
        }
        // A deleted pod leaves its bind behind until that is settled.
        let binding = census.get("binding").copied().unwrap_or(0);
        let claiming = census.get("claiming").copied().unwrap_or(0);
        ensure(1, claiming == self.claims.waiting(), || {
            format!("{claiming} pods are claiming, but that queue has {}", self.claims.waiting())
        })?;
        let foreign = self.foreign.assumed();
        ensure(1, binding <= self.binds && assumed <= self.binds + claiming + foreign, || {
            format!(
                "{binding} pods binding, {claiming} claiming, {assumed} assumed, {} binds, {foreign} for other clients",
                self.binds
            )
        })
    }

    /// Checks that a group has pods or a probe, and that the probe is queued or being placed.
    fn check_groups(&self) -> Checked {
        for group in self.parked.groups() {
            let class = group.class.id;
            let Some(probe) = &group.probe else {
                ensure(11, !group.pods.is_empty(), || format!("group {class:?} is empty"))?;
                continue;
            };
            let awake = self.cluster.waiting.get(probe).is_some_and(|pod| {
                let awake = matches!(pod.state, State::Woken(_) | State::Placing(_) | State::Yielding(..));
                pod.class.id == class && awake
            });
            ensure(1, awake, || format!("group {class:?} waits for probe {probe}, which is not queued"))?;
        }
        Ok(())
    }

    /// Checks that a queued gang is where its ticket says.
    fn check_gangs(&self) -> Checked {
        for (key, ticket) in self.gangs.tickets() {
            ensure(1, self.dispatcher.waits(ticket) == Some(key), || {
                format!("gang {key} is not in its queue")
            })?;
        }
        Ok(())
    }

    /// Checks that a waiting pod has a reservation exactly while it is nominated.
    fn check_nominations(&self) -> Checked {
        let mut kept: Vec<_> =
            self.cluster.ledger.reserved().filter(|uid| self.cluster.waiting.contains_key(uid)).collect();
        let mut nominated: Vec<_> = self.nominated_pods().map(|(uid, _)| uid).collect();
        kept.sort();
        nominated.sort();
        ensure(1, kept == nominated, || {
            format!("pods with reservations are {kept:?}, but nominated pods are {nominated:?}")
        })
    }

    /// Checks I11. Agents check the limit before they start, so each may exceed it by one bind, or by one gang; meanwhile pods whose
    /// claims are bound may reach it.
    fn check_bounds(&self) -> Checked {
        let more = self.dispatcher.agents() * self.gangs.largest().max(1);
        let most = self.cluster.config.max_waiting_binds + more;
        ensure(11, self.binds <= most, || format!("{} binds, the limit is {most}", self.binds))
    }
}

fn sorted(mut found: Vec<Violation>) -> Vec<Violation> {
    found.sort_by(|a, b| (a.invariant, &a.what).cmp(&(b.invariant, &b.what)));
    found
}
