//! The placement store: where a placement becomes true.
//!
//! May not know: rules. `kube.rs` is the API server's `pods/binding`, `memory.rs` its model for tests and simulation.
//! `protocol.rs` decides, without I/O, what an answer of the store means (`BindAttempt`);
//! `drive.rs` carries that out.

mod memory;
mod protocol;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::objects::ClaimRequest;

pub use memory::MemoryStore;
pub use protocol::{BindAttempt, LATE_EFFECT, MOST_UNKNOWN, Outcome, Step};

/// One pod to one node. The uid goes into the request: a recreated pod of the same name is never bound by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Binding {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub node: Arc<str>,
}

/// What to ask for the claims of one pod that has its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimOrder {
    /// Of the pod.
    pub uid: Arc<str>,
    /// Tells this order from an earlier one for the same pod.
    pub work: u64,
    pub node: Arc<str>,
    pub requests: Arc<[ClaimRequest]>,
}

/// What the store answered to one bind request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 201.
    Bound,
    /// 404: there is no pod of this name.
    NotFound,
    /// 409: other uid, already assigned, being deleted, or gated. The truth must be read.
    Conflict(String),
    /// 429: not carried out; the store asks for patience.
    Busy { retry_after: Option<Duration> },
    /// Another 4xx: this request was refused and will be again.
    Rejected(String),
    /// Time-out, 5xx or a lost connection: it may have been carried out, now or a little later.
    Unknown(String),
}

/// What the store says about the pod itself (`GET`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// No pod of this name, or one with another uid.
    Gone,
    /// It has a node.
    BoundTo(Arc<str>),
    /// It has no node. `bindable` is false while it is being deleted or gated.
    Unbound { bindable: bool },
    /// The store could not be read; nothing is known.
    Unreadable(String),
}

/// Where placements are committed for everyone to see.
pub trait PlacementStore: Send + Sync + 'static {
    /// Sends one bind request, without retries of its own.
    fn bind(&self, binding: &Binding) -> impl Future<Output = Reply> + Send;
    /// Reads the pod of `binding`.
    fn read(&self, binding: &Binding) -> impl Future<Output = Truth> + Send;
}
