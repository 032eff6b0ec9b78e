//! Placement store: the place where placements are committed.
//!
//! Must not depend on rules. `memory.rs` models the API server's `pods/binding` for tests and simulation. `protocol.rs`
//! interprets the answers of the store, without I/O (`BindAttempt`). The kube-io crate has the store on the API server, and
//! carries out the steps of the protocol.

mod memory;
mod protocol;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::objects::ClaimRequest;
use berth_devices::ClaimUpdate;

pub use memory::MemoryStore;
pub use protocol::{BindAttempt, BindOutcome, BindStep, LATE_EFFECT, MOST_UNKNOWN};

/// A binding of one pod to one node. The uid is part of the request: a recreated pod of the same name is never bound by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Binding {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub node: Arc<str>,
    /// Why, for the annotation of the pod; `None`: it gets none.
    pub decision: Option<Arc<str>>,
}

/// What to ask for the claims of one pod that has its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimOrder {
    /// Of the pod.
    pub uid: Arc<str>,
    /// Tells this order from an earlier one for the same pod.
    pub work: u64,
    pub node: Arc<str>,
    pub requests: Arc<[ClaimRequest]>,
    /// Its resource claims; written before the pod is bound.
    pub devices: Arc<[ClaimUpdate]>,
}

/// What the store answered to one bind request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 201.
    Bound,
    /// 404: there is no pod of this name.
    NotFound,
    /// 409: other uid, already assigned, being deleted, or gated. The pod must be read.
    Conflict(String),
    /// 429: not carried out; retry later.
    Busy { retry_after: Option<Duration> },
    /// Another 4xx: the request was refused, and a retry would be refused too.
    Rejected(String),
    /// Timeout, 5xx or a lost connection: it may have been carried out, or may still be.
    Unknown(String),
}

/// The state of the pod in the store (`GET`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Truth {
    /// No pod of this name, or one with another uid, or one that has finished: it uses no room.
    Gone,
    /// It is bound to this node.
    BoundTo(Arc<str>),
    /// It has no node. `bindable` is false while it is being deleted or gated.
    Unbound { bindable: bool },
    /// The store could not be read; the state is unknown.
    Unreadable(String),
}

/// The store in which placements are committed.
pub trait PlacementStore: Send + Sync + 'static {
    /// Sends one bind request, without retries.
    fn bind(&self, binding: &Binding) -> impl Future<Output = Reply> + Send;
    /// Reads the pod of `binding`.
    fn read(&self, binding: &Binding) -> impl Future<Output = Truth> + Send;
}
