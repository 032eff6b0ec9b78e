//! Safeguards of the protocol, each of which can be switched off, and the bounds of exploration.

use super::state::{NODES, REQUEST, Troubles};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The leading replica places pods; the other one is a warm standby.
    OneLeads,
    /// Both place pods, and every bind passes the guard, which is the leader's ledger.
    Guarded,
}

/// Check by which a new leader ensures that it has seen the previous leader's binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    Unchecked,
    /// Its watch has delivered everything that is older than a consistent read made while it leads.
    CaughtUp,
    /// Only pods pending in its view are compared with a consistent list of the pods without a node.
    WaitingPods,
}

#[derive(Debug, Clone, Copy)]
pub struct Safeguards {
    pub fresh: Fresh,
    /// The deadline is checked right before each request is written (guard: before each answer).
    pub fence: bool,
    /// A decision of one term is not sent in another.
    pub same_term: bool,
    /// An unknown outcome keeps the assumption.
    pub keep_assumption: bool,
    pub send_uid: bool,
    /// Ticks after which the store drops a request: `?timeout=`.
    pub request_ticks: u8,
    /// The lease is released only when no bind is under way.
    pub settle_first: bool,
    /// The version of the pods is handed over with the lease only when the watch has shown all binds.
    pub see_first: bool,
    /// A restarted process has another identity, and waits for the lease like any candidate.
    pub new_identity: bool,
    pub bounded_requests: bool,
    /// The guard assumes the binds it allows.
    pub guard_assumes: bool,
    /// The guard reviews an assumption for its own bind like any other: it may be older than its term.
    pub review_own: bool,
    /// Every request that the guard allows renews its hold.
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
        see_first: true,
        new_identity: true,
        bounded_requests: true,
        guard_assumes: true,
        review_own: true,
        hold_again: true,
    };
}

/// Bounds of exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub mode: Mode,
    /// With one, another replica never acquires the lease.
    pub replicas: u8,
    /// Pods that fit each node.
    pub rooms: [i64; NODES],
    /// There is a second pod, created at any time.
    pub two_names: bool,
    /// The first pod is recreated, with another uid, once it is gone.
    pub recreates: bool,
    /// Pods may be marked as terminating before they are gone.
    pub marks: bool,
    /// Requests may arrive twice.
    pub repeats: bool,
    pub troubles: Troubles,
}
