//! What the protocol rests on, each to be switched off by itself, and how much the model explores.

use super::state::{NODES, REQUEST, Troubles};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The replica that leads places; the other one is a warm standby.
    OneLeads,
    /// Both place, and every bind passes the guard, which is the ledger of the one that leads.
    Guarded,
}

/// How a new leader makes sure that it has seen what the one before it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    Unchecked,
    /// Its watch has brought everything that is older than a consistent read, made while it leads.
    CaughtUp,
    /// Only the pods that wait in its view are compared with a consistent list of the pods without a node.
    WaitingPods,
}

#[derive(Debug, Clone, Copy)]
pub struct Safeguards {
    pub fresh: Fresh,
    /// The deadline is asked right before each request is written (guard: before each answer).
    pub fence: bool,
    /// What was decided in one term is not sent in another.
    pub same_term: bool,
    /// An unknown outcome keeps the assumption.
    pub keep_assumption: bool,
    pub send_uid: bool,
    /// Ticks after which the store drops a request: `?timeout=`.
    pub request_ticks: u8,
    /// The lease is released only when no bind is under way.
    pub settle_first: bool,
    /// A process that starts again has another identity, and waits for the lease like anybody else.
    pub new_identity: bool,
    pub bounded_requests: bool,
    /// The guard assumes what it allows.
    pub guard_assumes: bool,
    /// What the guard has assumed for a bind of its own is reviewed like any other: it may be older than its term.
    pub review_own: bool,
    /// Every request that the guard allows holds its room anew.
    pub hold_again: bool,
}

impl Safeguards {
    pub const ALL: Safeguards = Safeguards {
        fresh: Fresh::CaughtUp,
        fence: true,
        same_term: true,
        keep_assumption: true,
        send_uid: true,
        request_ticks: REQUEST,
        settle_first: true,
        new_identity: true,
        bounded_requests: true,
        guard_assumes: true,
        review_own: true,
        hold_again: true,
    };
}

/// How much is explored.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub mode: Mode,
    /// With one, the other never gets the lease.
    pub replicas: u8,
    /// Pods that fit each node.
    pub rooms: [i64; NODES],
    /// There is a second pod, made at any time.
    pub two_names: bool,
    /// The first pod is made again, with another uid, once it is gone.
    pub recreates: bool,
    /// Pods may be marked as being deleted before they are gone.
    pub marks: bool,
    /// Requests may arrive twice.
    pub repeats: bool,
    pub troubles: Troubles,
}
