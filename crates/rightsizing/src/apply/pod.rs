//! A pod as far as applying recommendations looks at it.

use std::sync::Arc;

use crate::recommend::{Amounts, Owner, UnixNanos};
use berth_model::PerResource;

/// What a container asks for: millicores and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    pub requests: Amounts,
    pub limits: Amounts,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    pub namespace: Arc<str>,
    /// Empty in a review of a pod whose name the API server has still to make.
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// Its controller.
    pub owner: Option<Owner>,
    /// The label `pod-template-hash`.
    pub template_hash: Option<String>,
    pub node: Option<Arc<str>>,
    /// When a kubelet took it.
    pub started: Option<UnixNanos>,
    pub is_pending: bool,
    pub is_ready: bool,
    pub is_deleting: bool,
    pub has_annotations: bool,
    /// The containers that a webhook has looked at, as its annotation says; `None`: there was none.
    pub observed: Option<Vec<String>>,
    /// It has CPU or memory in `spec.resources`.
    pub is_sized_as_a_whole: bool,
    pub containers: Vec<Container>,
    /// They count for the QoS class only.
    pub init_containers: Vec<Resources>,
    /// `None`: no resize is under way.
    pub resize: Option<Resize>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    pub name: String,
    pub wanted: Resources,
    /// What its status says that it has; `None`: nothing.
    pub actual: Option<Resources>,
    pub has: Has,
    /// If it was last killed for want of memory: how long it had run, in nanoseconds.
    pub oom_after: Option<i64>,
    /// And when.
    pub oom_killed: Option<UnixNanos>,
    /// A resize of this resource restarts it.
    pub restarts: PerResource<bool>,
}

/// Which objects a container has: `resources`, and in it `requests` and `limits`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Has {
    pub resources: bool,
    pub requests: bool,
    pub limits: bool,
}

/// Where a resize stands, as the kubelet says it in the pod's conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// `PodResizePending`: later.
    Deferred,
    /// `PodResizePending`: never on this node.
    Infeasible,
    /// `PodResizeInProgress`.
    InProgress,
    /// `PodResizeInProgress`, and it fails.
    Error,
    /// Something that is not known here.
    Unknown,
}

impl Container {
    /// What it has now.
    pub fn now(&self) -> Resources {
        self.actual.unwrap_or(self.wanted)
    }
}

impl Pod {
    /// Whether the container is looked at: a webhook that has seen the pod says which ones it knew.
    pub fn is_observed(&self, container: &str) -> bool {
        self.observed.as_ref().is_none_or(|names| names.iter().any(|name| name == container))
    }
}
