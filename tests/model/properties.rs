//! Properties that must hold in every state, evaluated with production's predicates, and events that must be
//! reachable, so that the model is not vacuous.

use berth_scheduler::invariants::{bound_once, bounded};
use berth_scheduler::placement::MOST_UNKNOWN;
use stateright::Property;

use super::books::{Charged, charge};
use super::protocol::Protocol;
use super::state::{Holder, NODES, Phase, Request, Said, Seen, State, Stored, UIDS};

pub const I1_BOUND_ONCE: &str = "I1: what was decided for a uid is carried out at most once";
pub const I1_ASSUMED: &str = "I1: while a request may have an effect, its room is charged";
pub const I2: &str = "I2: no node holds more than it has";
pub const I9: &str = "I9: a bind sends a bounded number of requests";
pub const ALL_BOUND: &str = "every pod is bound";
pub const TAKEOVER: &str = "a second leader binds after the first";
pub const RESOLVED: &str = "a lost answer is settled by reading the pod";
pub const CONFLICT: &str = "a bind is refused";
pub const GRANTED: &str = "room that the guard holds for another is taken";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(I1_BOUND_ONCE, |_, state: &State| {
            let decided = (0..UIDS as u8).zip(state.carried_out);
            let all = decided.flat_map(|(uid, times)| std::iter::repeat_n((uid, "a node"), times.into()));
            bound_once(all).is_ok()
        }),
        Property::always(I1_ASSUMED, |_, state: &State| state.open_requests_are_assumed()),
        Property::always(I2, |model: &Protocol, state: &State| {
            // Without the guard nothing prevents another scheduler from overcommitting a node.
            let placed = state
                .placed(model.is_guarded())
                .fold(0, |charges, (uid, node)| charge(charges, uid, Some(Charged { node, assumed: false })));
            (0..NODES as u8).all(|node| model.books.is_within_allocatable(placed, node))
        }),
        Property::always(I9, |_, state: &State| {
            let attempts = state.replicas.iter().flat_map(|replica| replica.attempts.iter().flatten());
            attempts
                .into_iter()
                .all(|bind| bounded(bind.sent().into(), MOST_UNKNOWN, || "a bind was sent".into()).is_ok())
        }),
        Property::sometimes(ALL_BOUND, |_, state: &State| {
            state.pods.iter().all(|pod| matches!(pod, Stored::On { ours: true, .. } | Stored::Gone))
        }),
        Property::sometimes(TAKEOVER, |_, state: &State| {
            let learns = |at: usize| {
                let mut binds = state.replicas[at].attempts.iter().flatten();
                binds.any(|bind| bind.phase == Phase::Answered(Said::Bound))
            };
            let binds = |at: u8| {
                let sent = |it: &Request| it.assumed_by == Some(at);
                state.holder == Holder::Replica(at) && state.requests.as_slice().iter().any(sent)
            };
            (learns(0) && binds(1)) || (learns(1) && binds(0))
        }),
        Property::sometimes(RESOLVED, |_, state: &State| {
            let told = |phase| matches!(phase, Phase::Told { seen: Seen::BoundTo(_), .. });
            let mut binds = state.replicas.iter().flat_map(|replica| replica.attempts.iter().flatten());
            binds.any(|bind| bind.unknowns > 0 && told(bind.phase))
        }),
        Property::sometimes(GRANTED, |_, state: &State| {
            let held = |uid: u8| state.replicas.iter().any(|it| it.holds[usize::from(uid)].is_some());
            state.placed(false).any(|(uid, _)| held(uid))
        }),
        Property::sometimes(CONFLICT, |_, state: &State| {
            let refused = |phase| matches!(phase, Phase::Answered(Said::Conflict | Said::Rejected));
            let mut binds = state.replicas.iter().flat_map(|replica| replica.attempts.iter().flatten());
            binds.any(|bind| refused(bind.phase))
        }),
    ]
}

impl State {
    /// Returns whether every request that the store may still carry out is backed by an assumption of its sender,
    /// while that process lives.
    fn open_requests_are_assumed(&self) -> bool {
        self.requests.as_slice().iter().all(|request| {
            let Some(by) = request.assumed_by else { return true };
            let can_succeed = self.pod(request.uid) == Stored::Pending { deleting: false };
            let charged = self.replicas[usize::from(by)].charged(request.uid);
            !can_succeed || charged.is_some_and(|it| it.node == request.node)
        })
    }
}
