//! What people and autoscalers are told about a pod.

use std::sync::Arc;

/// A pod by all its names, as events and status patches need it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// The reporting controller of events: the pod's `spec.schedulerName`.
    pub scheduler_name: Arc<str>,
}

/// One thing to tell. Texts are kube-scheduler's, byte for byte: autoscalers and people parse them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Event `Scheduled`; the API server itself sets the condition when it binds.
    Scheduled { pod: PodRef, node: Arc<str> },
    /// Event `Preempted`: the pod is evicted from the node for a more important one.
    Preempted { pod: PodRef, preemptor: PodRef, node: Arc<str> },
    /// Event `FailedScheduling` and condition `PodScheduled=False`.
    Failed {
        pod: PodRef,
        /// `Unschedulable` or `SchedulerError`.
        reason: &'static str,
        /// The whole text; the event carries it cut to 1,024 bytes, as upstream does.
        message: Arc<str>,
        /// `metadata.generation` of the pod that was looked at.
        generation: i64,
        /// Whether an event is wanted too, or only a fresher condition.
        event: bool,
    },
}
