//! Fields of a pod that are needed to apply recommendations.

use std::sync::Arc;

use super::boost::Boosts;
use crate::recommend::{OptionalAmounts, OwnerRef, UnixNanos};
use berth_model::{NodeSize, PerResource};

/// Requests and limits of a container: millicores and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    pub requests: OptionalAmounts,
    pub limits: OptionalAmounts,
}

/// A pod with the sizes of its containers: one that runs, or one in an admission review.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SizedPod {
    pub namespace: Arc<str>,
    /// Empty in a review of a pod whose name the API server has not generated yet.
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// Its controller.
    pub owner: Option<OwnerRef>,
    /// The label `pod-template-hash`.
    pub template_hash: Option<String>,
    pub node: Option<Arc<str>>,
    pub created: Option<UnixNanos>,
    /// Time at which a kubelet started it.
    pub started: Option<UnixNanos>,
    pub is_pending: bool,
    pub is_ready: bool,
    /// Time since which it has been ready.
    pub ready_since: Option<UnixNanos>,
    pub is_deleting: bool,
    pub has_annotations: bool,
    /// Containers seen by a webhook, from its annotation; `None`: no annotation.
    pub observed: Option<Vec<String>>,
    /// More CPU that it got for its start.
    pub boosts: Boosts,
    /// Whether it has CPU or memory in `spec.resources`.
    pub is_sized_as_a_whole: bool,
    /// The containers in their order, then the sidecars.
    pub containers: Vec<SizedContainer>,
    /// Those that are not sidecars. Only used for the QoS class.
    pub init_containers: Vec<Resources>,
    /// `None`: no resize is in progress.
    pub resize: Option<Resize>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SizedContainer {
    pub name: String,
    /// Index among the init containers, if it is a sidecar: an init container that always restarts.
    pub sidecar: Option<usize>,
    pub wanted: Resources,
    /// Actual resources from its status; `None`: not reported.
    pub actual: Option<Resources>,
    pub has: Has,
    /// If it was last OOM-killed: how long it had run, in nanoseconds.
    pub oom_after: Option<i64>,
    /// Time of that OOM kill.
    pub oom_killed: Option<UnixNanos>,
    /// Whether a resize of the resource restarts the container.
    pub restarts: PerResource<bool>,
}

/// Which objects the container has: `resources`, and in it `requests` and `limits`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Has {
    pub resources: bool,
    pub requests: bool,
    pub limits: bool,
}

/// State of a resize, as reported by the kubelet in the pod's conditions.
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
    /// An unknown reason.
    Unknown,
}

impl SizedContainer {
    /// Returns its current resources.
    pub fn now(&self) -> Resources {
        self.actual.unwrap_or(self.wanted)
    }

    /// Returns its current requests; of a resource that the status does not report, those in the spec; 0: none.
    pub fn requests(&self) -> NodeSize {
        let actual = self.actual.unwrap_or_default().requests;
        actual.zip(self.wanted.requests).map(|(actual, wanted)| actual.or(wanted).unwrap_or_default())
    }
}

impl SizedPod {
    /// Returns the path of a container's object in the pod, by its index in `containers`, as in a JSON patch.
    pub fn path(&self, container: usize) -> String {
        match self.containers.get(container).and_then(|it| it.sidecar) {
            Some(index) => format!("/spec/initContainers/{index}"),
            None => format!("/spec/containers/{container}"),
        }
    }

    /// Returns whether the container was seen by the webhook, or the pod was seen by none.
    pub fn is_observed(&self, container: &str) -> bool {
        self.observed.as_ref().is_none_or(|names| names.iter().any(|name| name == container))
    }
}

/// New requests and limits of one container; `None` fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeChange {
    /// Index among the pod's containers.
    pub container: usize,
    pub requests: OptionalAmounts,
    pub limits: OptionalAmounts,
    /// Adjustments of the recommendation, for the pod's annotation.
    pub notes: Vec<String>,
}

impl SizeChange {
    pub fn applied_to(&self, resources: Resources) -> Resources {
        let over = |new: OptionalAmounts, old: OptionalAmounts| new.zip(old).map(|(new, old)| new.or(old));
        Resources {
            requests: over(self.requests, resources.requests),
            limits: over(self.limits, resources.limits),
        }
    }

    /// Returns whether the resources already have all these values.
    pub fn is_in(&self, resources: Resources) -> bool {
        self.applied_to(resources) == resources
    }
}
