//! State of the model: the store, the network, the lease, and two replicas. Small and `Copy`, since millions of them
//! are created and hashed.

use std::fmt::Debug;

pub const REPLICAS: usize = 2;
pub const NODES: usize = 2;
/// Three pods of two names: uid 2 is created under the name of uid 0 after that is gone.
pub const UIDS: usize = 3;

/// A moment is one tick long. Only the order of the model's times matters, and it is that of the defaults: renew
/// deadline 10 s, `?timeout=` of a bind 5 s, lease duration 15 s, `LATE_EFFECT` 15 s. A leader may write a request at
/// a moment before `sent + LEAD`; a request has an effect until `REQUEST` after it was written; another replica takes
/// over from `LEASE` after the last change of the record on. Fencing relies on LEAD + REQUEST <= LEASE.
pub const LEAD: u8 = 1;
pub const REQUEST: u8 = 1;
pub const LEASE: u8 = 2;
/// Longer than [`REQUEST`], counted from the moment at which waiting for an answer ends.
pub const LATE: u8 = 2;

pub type Uid = u8;
pub type NodeAt = u8;

/// Returns the name under which a pod is created.
pub fn name_of(uid: Uid) -> u8 {
    uid % 2
}

/// A short list on the stack. Unused entries hold the default, so that equal lists compare equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Few<T, const N: usize> {
    len: u8,
    items: [T; N],
}

impl<T: Copy + Default + Ord + Debug, const N: usize> Few<T, N> {
    pub fn empty() -> Self {
        Few { len: 0, items: [T::default(); N] }
    }

    pub fn as_slice(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }

    pub fn is_full(&self) -> bool {
        usize::from(self.len) == N
    }

    pub fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub fn remove(&mut self, at: usize) -> T {
        let item = self.items[at];
        self.items.copy_within(at + 1.., at);
        self.items[N - 1] = T::default();
        self.len -= 1;
        item
    }

    /// Sorts a list whose order is irrelevant: two orders of the same elements are one state.
    pub fn sort(&mut self) {
        let len = usize::from(self.len);
        self.items[..len].sort();
    }

    pub fn change(&mut self, mut change: impl FnMut(&mut T)) {
        let len = usize::from(self.len);
        self.items[..len].iter_mut().for_each(&mut change);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let old = *self;
        *self = Self::empty();
        old.as_slice().iter().filter(|item| keep(item)).for_each(|item| self.push(*item));
    }
}

impl<T: Copy + Default + Ord + Debug, const N: usize> Debug for Few<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// A pod in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stored {
    NotYet,
    Pending {
        deleting: bool,
    },
    /// `ours`: berth bound it, not another scheduler.
    On {
        node: NodeAt,
        ours: bool,
    },
    Gone,
}

impl Stored {
    pub fn is_live(self) -> bool {
        matches!(self, Stored::Pending { .. } | Stored::On { .. })
    }
}

/// A pod event of the store, in the order in which every watch receives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Event {
    #[default]
    Nothing,
    Created(Uid),
    /// It is terminating, and has no node.
    Marked(Uid),
    Bound(Uid, NodeAt),
    Gone(Uid),
}

/// A bind request between a replica and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Request {
    pub uid: Uid,
    pub node: NodeAt,
    /// Ticks left in which the store may carry it out.
    pub left: u8,
    /// The replica that waits for the answer; none after it has given up the request.
    pub awaited_by: Option<u8>,
    /// The replica whose assumption this request relies on, while that process lives.
    pub assumed_by: Option<u8>,
    /// The guard allowed it; the store has not carried it out yet.
    pub allowed: bool,
}

/// The store's answer, as far as the model distinguishes answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Said {
    Bound,
    NotFound,
    Conflict,
    /// The guard refused it.
    Rejected,
}

/// Result of reading the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seen {
    Gone,
    BoundTo(NodeAt),
    Unbound { bindable: bool },
}

/// One bind of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    pub node: NodeAt,
    pub phase: Phase,
    /// Requests with lost answers.
    pub unknowns: u8,
    /// Ticks since the last of them was given up, at most [`LATE`].
    pub since: u8,
    /// A new term has begun since the decision: it must not be sent any more.
    pub outdated: bool,
}

impl Attempt {
    pub fn sent(&self) -> u8 {
        self.unknowns + u8::from(matches!(self.phase, Phase::Awaits | Phase::Answered(_)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// About to send the request, if it is before the deadline.
    Send,
    Awaits,
    /// The answer is in transit.
    Answered(Said),
    /// About to read the pod.
    Read,
    /// The result of the read is in transit, with whether all requests were certainly over when the read was *sent*.
    Told {
        seen: Seen,
        late: bool,
    },
}

/// A pod in the view of a replica's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Known {
    /// Unknown, or finished.
    Absent,
    Waiting,
    /// Its bind is in progress here. `deleting`: the watch has reported its deletion since.
    Binding {
        deleting: bool,
    },
    /// Room is held for it, as another client asked the guard to bind it.
    Held,
}

/// What a new leader must still observe of the previous leader's binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Barrier {
    /// It has read nothing yet.
    Unread,
    /// Number of events of its watch that are older than its consistent read.
    Behind(u8),
    /// Pods that were pending in its view and had a node in the store (a set of uids).
    Pods(u8),
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// Unread while it does not hold the lease.
    pub barrier: Barrier,
    /// Events that it has not seen of those up to the version in the released lease; `None`: the lease has none.
    pub handed: Option<u8>,
    /// Events that its watch has not delivered yet.
    pub unseen: Few<Event, 10>,
    /// Its ledger: see `books.rs`.
    pub charges: u8,
    pub known: [Known; UIDS],
    pub attempts: [Option<Attempt>; UIDS],
    /// Guard: ticks since room was last granted for a bind of this pod, at most [`LATE`].
    pub holds: [Option<u8>; UIDS],
}

impl Replica {
    /// Creates a process that has just started.
    pub fn new() -> Self {
        Replica {
            barrier: Barrier::Unread,
            handed: None,
            unseen: Few::empty(),
            charges: 0,
            known: [Known::Absent; UIDS],
            attempts: [None; UIDS],
            holds: [None; UIDS],
        }
    }

    /// Returns whether its watch has shown all binds that it charges.
    pub fn has_seen_all(&self) -> bool {
        let charged = |event: &Event| matches!(event, Event::Bound(uid, _) if self.charged(*uid).is_some());
        !self.unseen.as_slice().iter().any(charged)
    }

    /// Returns whether no bind that it decided on is in progress, its own or one that it approved.
    pub fn is_settled(&self) -> bool {
        self.attempts.iter().all(Option::is_none) && self.holds.iter().all(Option::is_none)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// Released, or never taken.
    Nobody,
    Replica(u8),
    /// A process that has ended; its successor has another identity.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub pods: [Stored; UIDS],
    /// Number of times that a decided bind of this uid was carried out.
    pub carried_out: [u8; UIDS],
    pub requests: Few<Request, 4>,
    pub holder: Holder,
    /// Ticks since the lease's record changed, at most [`LEASE`].
    pub lease_age: u8,
    pub replicas: [Replica; REPLICAS],
    /// Remaining budget of faults.
    pub left: Troubles,
}

/// Number of faults of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Troubles {
    /// Lost requests and answers, duplicated requests.
    pub network: u8,
    /// Replicas that crash or are stopped; each restarts immediately.
    pub ends: u8,
    /// Pods deleted by their owner.
    pub deletions: u8,
    /// Pods of this scheduler bound by another scheduler.
    pub others: u8,
}
