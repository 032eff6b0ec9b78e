//! Scheduler of a replica: `scheduler/cluster_events.rs`, `binds.rs` and `foreign_binds.rs` as far as they change the
//! ledger. Decisions about one bind are made by the production `BindAttempt`.

use std::time::Duration;

use berth_scheduler::placement::{BindAttempt, BindOutcome, BindStep, LATE_EFFECT, Reply, Truth};

use super::books::{Books, Charged, Entry, charged, node_name};
use super::state::{
    Attempt, Barrier, Event, Known, LATE, NODES, NodeAt, Phase, Replica, Said, Seen, UIDS, Uid,
};

impl Replica {
    fn enter(&mut self, books: &Books, entry: Entry) {
        self.charges = books.enter(self.charges, entry);
    }

    pub fn charged(&self, uid: Uid) -> Option<Charged> {
        charged(self.charges, uid)
    }

    /// Delivers the oldest event that this replica has not seen.
    pub fn see_next(&mut self, books: &Books) {
        let event = self.unseen.remove(0);
        self.see(books, event);
        if let Barrier::Behind(events) = &mut self.barrier {
            *events = events.saturating_sub(1);
        }
        self.handed = self.handed.map(|events| events.saturating_sub(1));
        self.look_at_barrier();
    }

    /// Restarts the watch with a list, after which no event is unseen. `now`: an event with the current state of each
    /// pod.
    pub fn relist(&mut self, books: &Books, now: impl Iterator<Item = Event>) {
        self.unseen = super::state::Few::empty();
        now.for_each(|event| self.see(books, event));
        if matches!(self.barrier, Barrier::Behind(_)) {
            self.barrier = Barrier::Behind(0);
        }
        self.handed = self.handed.map(|_| 0);
        self.look_at_barrier();
    }

    /// Drops a barrier that no longer blocks anything.
    pub fn look_at_barrier(&mut self) {
        if let Barrier::Pods(awaited) = &mut self.barrier {
            for uid in 0..UIDS {
                if self.known[uid] != Known::Waiting {
                    *awaited &= !(1 << uid);
                }
            }
        }
        if matches!(self.barrier, Barrier::Behind(0) | Barrier::Pods(0)) {
            self.barrier = Barrier::Open;
        }
    }

    fn see(&mut self, books: &Books, event: Event) {
        match event {
            Event::Nothing => {}
            Event::Created(uid) | Event::Marked(uid) => {
                let deleting = matches!(event, Event::Marked(_));
                self.see_without_node(uid, deleting);
            }
            Event::Bound(uid, node) => {
                self.enter(books, Entry::Bound(uid, node));
                let known = &mut self.known[usize::from(uid)];
                if !matches!(known, Known::Binding { .. }) {
                    *known = Known::Absent;
                }
                self.holds[usize::from(uid)] = None;
            }
            Event::Gone(uid) => {
                self.known[usize::from(uid)] = Known::Absent;
                self.holds[usize::from(uid)] = None;
                self.enter(books, Entry::Discharge(uid));
            }
        }
    }

    fn see_without_node(&mut self, uid: Uid, is_deleting: bool) {
        let is_charged = self.charged(uid).is_some();
        let known = &mut self.known[usize::from(uid)];
        match known {
            Known::Binding { deleting } => *deleting |= is_deleting,
            // It is bound, and this event is older; or another scheduler binds it.
            _ if is_charged => {}
            Known::Absent | Known::Waiting | Known::Held if is_deleting => *known = Known::Absent,
            _ => *known = Known::Waiting,
        }
    }

    /// An agent has chosen a node; the ledger decides. Returns whether the bind starts.
    pub fn place(&mut self, books: &Books, uid: Uid, node: NodeAt) -> bool {
        let Some(charges) = books.commit(self.charges, uid, node) else {
            return false;
        };
        self.charges = charges;
        self.known[usize::from(uid)] = Known::Binding { deleting: false };
        self.attempts[usize::from(uid)] =
            Some(Attempt { node, phase: Phase::Send, unknowns: 0, since: 0, outdated: false });
        true
    }

    /// A bind has ended: `Scheduler::bind_finished`.
    pub fn finish(&mut self, books: &Books, uid: Uid, outcome: &BindOutcome) {
        let at = usize::from(uid);
        self.attempts[at] = None;
        match outcome {
            BindOutcome::Bound => {
                self.enter(books, Entry::Confirm(uid));
                if matches!(self.known[at], Known::Binding { .. }) {
                    self.known[at] = Known::Absent;
                }
                self.holds[at] = None;
            }
            BindOutcome::BoundElsewhere(host) => {
                if self.charged(uid).is_some() {
                    let node = (0..NODES as u8).find(|node| node_name(*node) == *host);
                    self.enter(books, Entry::Bound(uid, node.expect("a node of the model")));
                }
                self.known[at] = Known::Absent;
                self.holds[at] = None;
            }
            BindOutcome::Vanished => {
                self.known[at] = Known::Absent;
                self.holds[at] = None;
                self.enter(books, Entry::Discharge(uid));
            }
            // The room stays held for another client's request.
            BindOutcome::Refused(_) if self.holds[at].is_some() => {
                if matches!(self.known[at], Known::Binding { .. }) {
                    self.known[at] = Known::Held;
                }
            }
            BindOutcome::Refused(_) => self.place_again(books, uid),
        }
        self.look_at_barrier();
    }

    /// The pod certainly has no node: releases the assumption and requeues the pod.
    fn place_again(&mut self, books: &Books, uid: Uid) {
        let at = usize::from(uid);
        let waits = match self.known[at] {
            Known::Binding { deleting } => !deleting,
            Known::Held => true,
            _ => false,
        };
        if self.charged(uid).is_some_and(|it| it.assumed) {
            self.enter(books, Entry::Discharge(uid));
            if matches!(self.known[at], Known::Binding { .. } | Known::Held) {
                self.known[at] = if waits { Known::Waiting } else { Known::Absent };
            }
        } else {
            self.known[at] = Known::Absent;
        }
    }

    /// Another client's request may go to the store: charges its room until the result is known.
    pub fn hold(&mut self, books: &Books, uid: Uid, node: NodeAt) -> bool {
        let Some(charges) = books.commit(self.charges, uid, node) else {
            return false;
        };
        self.charges = charges;
        self.known[usize::from(uid)] = Known::Held;
        self.holds[usize::from(uid)] = Some(0);
        true
    }

    /// Handles the read of a pod whose hold is due.
    pub fn held_pod_read(&mut self, books: &Books, uid: Uid, seen: Seen) {
        let at = usize::from(uid);
        self.holds[at] = None;
        match seen {
            Seen::BoundTo(node) => {
                self.enter(books, Entry::Bound(uid, node));
                if self.known[at] == Known::Held {
                    self.known[at] = Known::Absent;
                }
            }
            Seen::Gone => {
                self.known[at] = Known::Absent;
                self.enter(books, Entry::Discharge(uid));
            }
            // Our own bind ends separately.
            Seen::Unbound { .. } if self.attempts[at].is_some() => {}
            Seen::Unbound { bindable } => {
                self.place_again(books, uid);
                if !bindable {
                    self.known[at] = Known::Absent;
                }
            }
        }
        self.look_at_barrier();
    }

    /// Carries out the protocol's next step for the bind of `uid`.
    pub fn follow(&mut self, books: &Books, uid: Uid, step: &BindStep) {
        let phase = match step {
            BindStep::Done(outcome) => return self.finish(books, uid, outcome),
            BindStep::Bind { .. } => Phase::Send,
            BindStep::Read { .. } => Phase::Read,
        };
        if let Some(attempt) = &mut self.attempts[usize::from(uid)] {
            attempt.phase = phase;
        }
    }
}

impl Attempt {
    /// Returns the production state machine with the history of this bind. A lost answer is at zero on its clock.
    fn replayed(&self) -> BindAttempt {
        let mut attempt = BindAttempt::new(node_name(self.node));
        for _ in 0..self.unknowns {
            attempt.replied(Reply::Unknown(String::new()), Duration::ZERO);
        }
        attempt
    }

    pub fn answered(&self, said: Said) -> BindStep {
        let reply = match said {
            Said::Bound => Reply::Bound,
            Said::NotFound => Reply::NotFound,
            Said::Conflict => Reply::Conflict(String::new()),
            Said::Rejected => Reply::Rejected(String::new()),
        };
        self.replayed().replied(reply, Duration::ZERO)
    }

    /// Gives up waiting for the answer.
    pub fn unanswered(&mut self) -> BindStep {
        let step = self.replayed().replied(Reply::Unknown(String::new()), Duration::ZERO);
        self.unknowns += 1;
        self.since = 0;
        step
    }

    pub fn read(&self, seen: Seen, late: bool) -> BindStep {
        let truth = match seen {
            Seen::Gone => Truth::Gone,
            Seen::BoundTo(node) => Truth::BoundTo(node_name(node)),
            Seen::Unbound { bindable } => Truth::Unbound { bindable },
        };
        self.replayed().read(truth, if late { LATE_EFFECT } else { Duration::ZERO })
    }

    pub fn is_late(&self) -> bool {
        self.since >= LATE
    }
}
