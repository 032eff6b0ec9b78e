//! API server: pods, the effect of `pods/binding` on them, and the events that all watches receive.

use super::state::{Event, NodeAt, Request, Said, Seen, State, Stored, UIDS, Uid, name_of};

impl State {
    pub fn pod(&self, uid: Uid) -> Stored {
        self.pods[usize::from(uid)]
    }

    /// Returns the existing pod of this name.
    fn live(&self, name: u8) -> Option<Uid> {
        (0..UIDS as u8).find(|uid| name_of(*uid) == name && self.pod(*uid).is_live())
    }

    pub fn set_pod(&mut self, uid: Uid, pod: Stored) {
        self.pods[usize::from(uid)] = pod;
        let event = self.event_of(uid);
        for replica in &mut self.replicas {
            replica.unseen.push(event);
        }
    }

    /// Returns the pod's current state as a watch event.
    pub fn event_of(&self, uid: Uid) -> Event {
        match self.pod(uid) {
            Stored::NotYet => Event::Nothing,
            Stored::Pending { deleting: false } => Event::Created(uid),
            Stored::Pending { deleting: true } => Event::Marked(uid),
            Stored::On { node, .. } => Event::Bound(uid, node),
            Stored::Gone => Event::Gone(uid),
        }
    }

    /// Upstream's `BindingREST`: the uid must match the pod, which must have no node and not be terminating. Capacity
    /// is not checked.
    pub fn carry_out(&mut self, request: &Request, sends_uid: bool) -> Said {
        let Some(uid) = self.live(name_of(request.uid)) else {
            return Said::NotFound;
        };
        if sends_uid && uid != request.uid || self.pod(uid) != (Stored::Pending { deleting: false }) {
            return Said::Conflict;
        }
        let carried_out = &mut self.carried_out[usize::from(request.uid)];
        *carried_out = (*carried_out + 1).min(2);
        self.set_pod(uid, Stored::On { node: request.node, ours: true });
        Said::Bound
    }

    /// `GET` of the pod with this uid.
    pub fn read(&self, uid: Uid) -> Seen {
        match self.pod(uid) {
            Stored::NotYet | Stored::Gone => Seen::Gone,
            Stored::On { node, .. } => Seen::BoundTo(node),
            Stored::Pending { deleting } => Seen::Unbound { bindable: !deleting },
        }
    }

    /// Returns the existing pods placed by berth's own binds. `all`: also those of other schedulers.
    pub fn placed(&self, all: bool) -> impl Iterator<Item = (Uid, NodeAt)> {
        (0..UIDS as u8).filter_map(move |uid| match self.pod(uid) {
            Stored::On { node, ours } if ours || all => Some((uid, node)),
            _ => None,
        })
    }
}
