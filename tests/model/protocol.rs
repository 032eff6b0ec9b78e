//! The model: enabled actions and their effects.

use std::time::Duration;

use berth_scheduler::placement::{BindOutcome, BindStep, MOST_UNKNOWN};
use stateright::{Model, Property};

use super::books::{Books, Charged, WhoseLease};
use super::properties;
use super::safeguards::{Bound, Fresh, Mode, Safeguards};
use super::state::{
    Barrier, Event, Few, Holder, Known, LATE, LEAD, LEASE, NODES, NodeAt, Phase, REPLICAS, Replica, Request,
    Said, State, Stored, UIDS, Uid,
};

/// Index of a replica.
type At = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Tick,
    /// Owners of pods, and another scheduler.
    Create(Uid),
    MarkDeleting(Uid),
    Delete(Uid),
    BindByAnother(Uid, NodeAt),
    /// Lifecycle of a replica, its lease and its view.
    WriteLease(At),
    Crash(At),
    /// A graceful shutdown: the lease is released.
    Stop(At),
    /// The same, and the lease carries the version up to which this process has seen the pods.
    HandOver(At),
    See(At),
    Relist(At),
    ReadBarrier(At),
    /// The new leader relies on the version in the lease instead.
    TrustHandover(At),
    /// A bind.
    Place(At, Uid, NodeAt),
    Send(At, Uid),
    Receive(At, Uid),
    LoseAnswer(At, Uid),
    AskForPod(At, Uid),
    LearnOfPod(At, Uid),
    /// Requests in transit, by their index in the list.
    Repeat(u8),
    CarryOut(u8),
    Review(u8, At),
    RefuseUnreviewed(u8),
    ReadHeld(At, Uid),
}

/// The protocol within a bound, with the given safeguards.
pub struct Protocol {
    pub bound: Bound,
    pub safe: Safeguards,
    pub books: Books,
}

impl Protocol {
    pub fn new(bound: Bound, safe: Safeguards) -> Self {
        Protocol { books: Books::new(bound.rooms), bound, safe }
    }

    pub fn is_guarded(&self) -> bool {
        self.bound.mode == Mode::Guarded
    }

    /// Returns whether this leader is before its deadline. Losing the answer of a renewal would only shorten its
    /// term.
    fn leads(&self, state: &State, at: At) -> bool {
        state.holder == Holder::Replica(at) && state.lease_age < LEAD
    }

    fn is_fresh(&self, replica: &Replica) -> bool {
        self.safe.fresh == Fresh::Unchecked || replica.barrier == Barrier::Open
    }

    /// A flag that is still set after the deadline makes no difference: the resulting requests are not sent.
    fn may_place(&self, state: &State, at: At) -> bool {
        self.is_guarded() || (self.leads(state, at) && self.is_fresh(&state.replicas[usize::from(at)]))
    }

    fn may_write_lease(&self, state: &State, at: At) -> bool {
        let whose = match state.holder {
            Holder::Nobody => WhoseLease::Nobodys,
            Holder::Replica(holder) if holder == at => WhoseLease::Mine,
            _ => WhoseLease::Anothers,
        };
        self.books.may_write_lease(whose, state.lease_age)
    }

    /// The replica acquires or renews the lease. After a renewal without another holder in between, early or late,
    /// there is nothing new to read.
    fn write_lease(&self, state: &mut State, at: At) {
        if state.holder != Holder::Replica(at) {
            let released = state.holder == Holder::Nobody;
            for (of, replica) in state.replicas.iter_mut().enumerate() {
                replica.barrier = Barrier::Unread;
                replica.handed = replica.handed.filter(|_| released && of == usize::from(at));
            }
            if self.safe.same_term && !self.is_guarded() {
                let attempts = &mut state.replicas[usize::from(at)].attempts;
                attempts.iter_mut().flatten().for_each(|attempt| attempt.outdated = true);
            }
        }
        (state.holder, state.lease_age) = (Holder::Replica(at), 0);
    }

    /// Reads the pods consistently, to find how far the new leader's view is behind.
    fn read_barrier(&self, state: &mut State, at: At) {
        let pending = |uid: &usize| matches!(state.pods[*uid], Stored::Pending { .. });
        let unbound = (0..UIDS).filter(pending).fold(0u8, |set, uid| set | 1 << uid);
        let replica = &mut state.replicas[usize::from(at)];
        replica.handed = None;
        replica.barrier = match self.safe.fresh {
            Fresh::Unchecked => Barrier::Open,
            Fresh::CaughtUp => Barrier::Behind(replica.unseen.as_slice().len() as u8),
            Fresh::WaitingPods => {
                let waiting = |uid: &usize| replica.known[*uid] == Known::Waiting;
                Barrier::Pods((0..UIDS).filter(waiting).fold(0, |set, uid| set | 1 << uid) & !unbound)
            }
        };
        replica.look_at_barrier();
    }

    /// Releases the lease with the version up to which the replica, which ends, has seen the pods.
    fn hand_over(&self, state: &mut State, at: At) {
        let seen_less = state.replicas[usize::from(at)].unseen.as_slice().len();
        self.end(state, at);
        for replica in &mut state.replicas {
            replica.handed = Some(replica.unseen.as_slice().len().saturating_sub(seen_less) as u8);
        }
        (state.holder, state.lease_age) = (Holder::Nobody, 0);
    }

    fn relist(&self, state: &mut State, at: At) {
        let events: [Event; UIDS] = std::array::from_fn(|uid| state.event_of(uid as u8));
        state.replicas[usize::from(at)].relist(&self.books, events.into_iter());
    }

    /// Ends the process and starts another, which lists first.
    fn end(&self, state: &mut State, at: At) {
        state.left.ends -= 1;
        state.replicas[usize::from(at)] = Replica::new();
        state.requests.change(|request| {
            request.awaited_by = request.awaited_by.filter(|by| *by != at);
            request.assumed_by = request.assumed_by.filter(|by| *by != at);
        });
        state.requests.sort();
        self.relist(state, at);
    }

    fn send(&self, state: &mut State, at: At, uid: Uid) {
        let leads = self.is_guarded() || !self.safe.fence || self.leads(state, at);
        let replica = &mut state.replicas[usize::from(at)];
        let Some(attempt) = &mut replica.attempts[usize::from(uid)] else {
            return;
        };
        let may_send = leads && !attempt.outdated;
        // `placement::drive`: a bind with an unknown outcome is still resolved by a read.
        if !may_send && attempt.unknowns > 0 {
            attempt.phase = Phase::Read;
        } else if !may_send {
            let refused = BindOutcome::Refused(String::new());
            replica.finish(&self.books, uid, &refused);
        } else {
            attempt.phase = Phase::Awaits;
            let (node, by) = (attempt.node, Some(at));
            let left = self.safe.request_ticks;
            state.requests.push(Request {
                uid,
                node,
                left,
                awaited_by: by,
                assumed_by: by,
                allowed: !self.is_guarded(),
            });
            state.requests.sort();
        }
    }

    /// The replica stops waiting for the answer to its request.
    fn give_up(&self, state: &mut State, at: At, uid: Uid) {
        state.requests.change(|request| {
            if request.uid == uid && request.awaited_by == Some(at) {
                request.awaited_by = None;
            }
        });
        state.requests.sort();
        let replica = &mut state.replicas[usize::from(at)];
        if let Some(attempt) = &mut replica.attempts[usize::from(uid)] {
            let mut step = attempt.unanswered();
            if !self.safe.keep_assumption {
                step = BindStep::Done(BindOutcome::Refused(String::new()));
            }
            replica.follow(&self.books, uid, &step);
        }
    }

    fn answer(&self, state: &mut State, request: &Request, said: Said) {
        if let Some(at) = request.awaited_by
            && let Some(attempt) = &mut state.replicas[usize::from(at)].attempts[usize::from(request.uid)]
        {
            attempt.phase = Phase::Answered(said);
        }
    }

    /// The guard, which is the replica `by`, reviews the request.
    fn review(&self, state: &mut State, place: u8, by: At) {
        let mut request = state.requests.remove(usize::from(place));
        let guard = &mut state.replicas[usize::from(by)];
        let at = usize::from(request.uid);
        let allowed = match guard.charged(request.uid) {
            Some(Charged { assumed: false, .. }) => true,
            Some(Charged { node, assumed: true }) if node == request.node => {
                // It may have been assumed before this replica became the guard, from a stale view.
                let fits = !self.safe.review_own || self.books.is_within_allocatable(guard.charges, node);
                if fits && self.safe.hold_again {
                    guard.holds[at] = Some(0);
                }
                fits
            }
            Some(_) => false,
            None if self.safe.guard_assumes => guard.hold(&self.books, request.uid, request.node),
            None => self.books.commit(guard.charges, request.uid, request.node).is_some(),
        };
        if allowed {
            request.allowed = true;
            state.requests.push(request);
            state.requests.sort();
        } else {
            self.answer(state, &request, Said::Rejected);
        }
    }

    /// Returns `None` if this needs more faults than the bound allows.
    fn tick(&self, state: &mut State) -> Option<()> {
        let expired = state.requests.as_slice().iter().filter(|request| request.left == 0);
        let unanswered: Vec<_> = expired.filter_map(|it| Some((it.awaited_by?, it.uid))).collect();
        // The store or the network was too slow for these, which counts as a network fault.
        state.left.network = state.left.network.checked_sub(unanswered.len() as u8)?;
        for (at, uid) in unanswered {
            self.give_up(state, at, uid);
        }
        state.requests.retain(|request| request.left > 0);
        state.requests.change(|request| request.left -= 1);
        state.lease_age = (state.lease_age + 1).min(LEASE);
        for replica in &mut state.replicas {
            for attempt in replica.attempts.iter_mut().flatten().filter(|attempt| attempt.unknowns > 0) {
                attempt.since = (attempt.since + 1).min(LATE);
            }
            for age in replica.holds.iter_mut().flatten() {
                *age = (*age + 1).min(LATE);
            }
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    /// The first pod exists and is known to both; the lease was never acquired.
    fn init_states(&self) -> Vec<State> {
        let mut pods = [Stored::Gone; UIDS];
        pods[0] = Stored::Pending { deleting: false };
        if self.bound.two_names {
            pods[1] = Stored::NotYet;
        }
        if self.bound.recreates {
            pods[2] = Stored::NotYet;
        }
        let mut replica = Replica::new();
        replica.known[0] = Known::Waiting;
        vec![State {
            pods,
            carried_out: [0; UIDS],
            requests: Few::empty(),
            holder: Holder::Nobody,
            lease_age: 0,
            replicas: [replica; REPLICAS],
            left: self.bound.troubles,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        self.others_actions(state, actions);
        for at in 0..self.bound.replicas {
            self.replica_actions(state, at, actions);
        }
        for (place, request) in state.requests.as_slice().iter().enumerate() {
            let place = place as u8;
            if request.allowed {
                actions.push(Action::CarryOut(place));
            } else {
                actions.push(Action::RefuseUnreviewed(place));
                actions.extend((0..self.bound.replicas).filter_map(|at| {
                    let leads = self.leads(state, at)
                        || !self.safe.fence && state.replicas[usize::from(at)].barrier == Barrier::Open;
                    let answers = leads && self.is_fresh(&state.replicas[usize::from(at)]);
                    answers.then_some(Action::Review(place, at))
                }));
            }
            if self.bound.repeats && state.left.network > 0 && !state.requests.is_full() {
                actions.push(Action::Repeat(place));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Tick => self.tick(&mut next)?,
            Action::Create(uid) => next.set_pod(uid, Stored::Pending { deleting: false }),
            Action::MarkDeleting(uid) => next.set_pod(uid, Stored::Pending { deleting: true }),
            Action::Delete(uid) => {
                next.left.deletions -= 1;
                next.set_pod(uid, Stored::Gone);
            }
            Action::BindByAnother(uid, node) => {
                next.left.others -= 1;
                if self.is_guarded() {
                    let left = self.safe.request_ticks;
                    next.requests.push(Request { uid, node, left, ..Request::default() });
                    next.requests.sort();
                } else {
                    next.set_pod(uid, Stored::On { node, ours: false });
                }
            }
            Action::WriteLease(at) => self.write_lease(&mut next, at),
            Action::Crash(at) | Action::Stop(at) => {
                let was_its = next.holder == Holder::Replica(at);
                self.end(&mut next, at);
                if was_its && matches!(action, Action::Stop(_)) {
                    (next.holder, next.lease_age) = (Holder::Nobody, 0);
                } else if was_its && self.safe.new_identity {
                    next.holder = Holder::Dead;
                }
            }
            Action::HandOver(at) => self.hand_over(&mut next, at),
            Action::See(at) => next.replicas[usize::from(at)].see_next(&self.books),
            Action::Relist(at) => self.relist(&mut next, at),
            Action::ReadBarrier(at) => self.read_barrier(&mut next, at),
            Action::TrustHandover(at) => {
                let replica = &mut next.replicas[usize::from(at)];
                replica.barrier = Barrier::Behind(replica.handed.take()?);
                replica.look_at_barrier();
            }
            Action::Place(at, uid, node) => {
                let replica = &mut next.replicas[usize::from(at)];
                if !replica.place(&self.books, uid, node) {
                    return None;
                }
            }
            Action::Send(at, uid) => self.send(&mut next, at, uid),
            Action::LoseAnswer(at, uid) => {
                next.left.network -= 1;
                self.give_up(&mut next, at, uid);
            }
            Action::Receive(at, uid) => {
                let replica = &mut next.replicas[usize::from(at)];
                let attempt = replica.attempts[usize::from(uid)]?;
                let Phase::Answered(said) = attempt.phase else { return None };
                replica.follow(&self.books, uid, &attempt.answered(said));
            }
            Action::AskForPod(at, uid) => {
                let seen = state.read(uid);
                let attempt = next.replicas[usize::from(at)].attempts[usize::from(uid)].as_mut()?;
                attempt.phase = Phase::Told { seen, late: attempt.is_late() };
            }
            Action::LearnOfPod(at, uid) => {
                let replica = &mut next.replicas[usize::from(at)];
                let attempt = replica.attempts[usize::from(uid)]?;
                let Phase::Told { seen, late } = attempt.phase else { return None };
                let mut step = attempt.read(seen, late);
                if !self.safe.bounded_requests && u32::from(attempt.unknowns) >= MOST_UNKNOWN && !late {
                    step = BindStep::Bind { after: Duration::ZERO };
                }
                replica.follow(&self.books, uid, &step);
            }
            Action::Repeat(place) => {
                next.left.network -= 1;
                let request = next.requests.as_slice()[usize::from(place)];
                next.requests.push(Request { awaited_by: None, ..request });
                next.requests.sort();
            }
            Action::CarryOut(place) => {
                let request = next.requests.remove(usize::from(place));
                let said = next.carry_out(&request, self.safe.send_uid);
                self.answer(&mut next, &request, said);
            }
            Action::Review(place, by) => self.review(&mut next, place, by),
            Action::RefuseUnreviewed(place) => {
                let request = next.requests.remove(usize::from(place));
                self.answer(&mut next, &request, Said::Rejected);
            }
            Action::ReadHeld(at, uid) => {
                let seen = state.read(uid);
                next.replicas[usize::from(at)].held_pod_read(&self.books, uid, seen);
            }
        }
        (next != *state).then(|| self.representative(next))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Protocol {
    fn others_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for uid in 0..UIDS as u8 {
            match state.pod(uid) {
                Stored::NotYet if uid < 2 || state.pod(0) == Stored::Gone => {
                    actions.push(Action::Create(uid))
                }
                Stored::NotYet | Stored::Gone => {}
                pod => {
                    if state.left.deletions > 0 {
                        actions.push(Action::Delete(uid));
                    }
                    if pod == (Stored::Pending { deleting: false }) {
                        if state.left.deletions > 0 && self.bound.marks {
                            actions.push(Action::MarkDeleting(uid));
                        }
                        if state.left.others > 0 && !state.requests.is_full() {
                            actions.extend((0..NODES as u8).map(|node| Action::BindByAnother(uid, node)));
                        }
                    }
                }
            }
        }
    }

    fn replica_actions(&self, state: &State, at: At, actions: &mut Vec<Action>) {
        let replica = &state.replicas[usize::from(at)];
        let holds_lease = state.holder == Holder::Replica(at);
        if (!holds_lease || state.lease_age > 0) && self.may_write_lease(state, at) {
            actions.push(Action::WriteLease(at));
        }
        let acts = self.is_guarded() || holds_lease || !replica.is_settled();
        if state.left.ends > 0 && acts {
            actions.push(Action::Crash(at));
            if holds_lease && (replica.is_settled() || !self.safe.settle_first) {
                actions.push(Action::Stop(at));
                if replica.has_seen_all() || !self.safe.see_first {
                    actions.push(Action::HandOver(at));
                }
            }
        }
        // A standby with nothing in progress may as well receive all events later: its view is not used before it
        // leads.
        if !replica.unseen.as_slice().is_empty() && acts {
            actions.extend([Action::See(at), Action::Relist(at)]);
        }
        if self.leads(state, at) && replica.barrier == Barrier::Unread {
            actions.push(Action::ReadBarrier(at));
            if replica.handed.is_some() {
                actions.push(Action::TrustHandover(at));
            }
        }
        for uid in 0..UIDS as u8 {
            self.pod_actions(state, at, uid, actions);
        }
    }

    fn pod_actions(&self, state: &State, at: At, uid: Uid, actions: &mut Vec<Action>) {
        let replica = &state.replicas[usize::from(at)];
        if replica.known[usize::from(uid)] == Known::Waiting && self.may_place(state, at) {
            actions.extend((0..NODES as u8).map(|node| Action::Place(at, uid, node)));
        }
        if replica.holds[usize::from(uid)] == Some(LATE) {
            actions.push(Action::ReadHeld(at, uid));
        }
        let Some(attempt) = replica.attempts[usize::from(uid)] else {
            return;
        };
        match attempt.phase {
            Phase::Send if state.requests.is_full() => {}
            Phase::Send => actions.push(Action::Send(at, uid)),
            Phase::Awaits => {}
            Phase::Answered(_) => actions.push(Action::Receive(at, uid)),
            Phase::Read => actions.push(Action::AskForPod(at, uid)),
            Phase::Told { .. } => actions.push(Action::LearnOfPod(at, uid)),
        }
        if matches!(attempt.phase, Phase::Awaits | Phase::Answered(_)) && state.left.network > 0 {
            actions.push(Action::LoseAnswer(at, uid));
        }
    }
}
