//! Symmetry reduction: states equal up to renumbering.

use super::books::{Charged, charge, charged};
use super::protocol::Protocol;
use super::state::{Event, Holder, Phase, Replica, Seen, State, Stored, UIDS};

fn other(number: u8) -> u8 {
    1 - number
}

impl State {
    pub fn with_replicas_swapped(mut self) -> State {
        self.replicas.swap(0, 1);
        if let Holder::Replica(at) = &mut self.holder {
            *at = other(*at);
        }
        self.requests.change(|request| {
            request.awaited_by = request.awaited_by.map(other);
            request.assumed_by = request.assumed_by.map(other);
        });
        self.requests.sort();
        self
    }

    pub fn with_nodes_swapped(mut self) -> State {
        for pod in &mut self.pods {
            if let Stored::On { node, .. } = pod {
                *node = other(*node);
            }
        }
        self.requests.change(|request| request.node = other(request.node));
        self.requests.sort();
        self.replicas.iter_mut().for_each(swap_nodes);
        self
    }
}

fn swap_nodes(replica: &mut Replica) {
    replica.unseen.change(|event| {
        if let Event::Bound(_, node) = event {
            *node = other(*node);
        }
    });
    replica.charges = (0..UIDS as u8).fold(replica.charges, |charges, uid| {
        let swapped = |it: Charged| Charged { node: other(it.node), ..it };
        charge(charges, uid, charged(charges, uid).map(swapped))
    });
    for attempt in replica.attempts.iter_mut().flatten() {
        attempt.node = other(attempt.node);
        if let Phase::Told { seen: Seen::BoundTo(node), .. } = &mut attempt.phase {
            *node = other(*node);
        }
    }
}

/// Replicas are interchangeable, and so are nodes with the same room: of the states that differ only in numbering,
/// one is explored.
impl Protocol {
    pub fn representative(&self, state: State) -> State {
        let mut least = state;
        if self.bound.replicas == 2 {
            least = least.min(state.with_replicas_swapped());
        }
        if self.bound.rooms[0] == self.bound.rooms[1] {
            least = least.min(least.with_nodes_swapped());
            if self.bound.replicas == 2 {
                least = least
                    .min(state.with_nodes_swapped())
                    .min(state.with_replicas_swapped().with_nodes_swapped());
            }
        }
        least
    }
}
