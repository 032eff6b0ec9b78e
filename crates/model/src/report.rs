//! Reports about pods for users and autoscalers: events and conditions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Reference to a pod, as events and status patches need it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRef {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// The reporting controller of events: the pod's `spec.schedulerName`.
    pub scheduler_name: Arc<str>,
}

/// One report. Texts equal kube-scheduler's byte for byte: autoscalers and users parse them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodReport {
    /// Event `Scheduled`; the API server sets the condition itself on binding.
    Scheduled { pod: PodRef, node: Arc<str> },
    /// Event `Preempted`: the pod is evicted from the node for a pod with higher priority.
    /// `group`: uid of the PodGroup of the preemptor.
    Preempted { pod: PodRef, preemptor: PodRef, group: Option<Arc<str>>, node: Arc<str> },
    /// Event `FailedScheduling` and condition `PodScheduled=False`.
    Failed {
        pod: PodRef,
        /// `Unschedulable` or `SchedulerError`.
        reason: &'static str,
        /// The full text; the event truncates it to 1,024 bytes, as upstream does.
        message: Arc<str>,
        /// `metadata.generation` of the evaluated pod.
        generation: i64,
        /// Whether to send an event as well, or only to update the condition.
        event: bool,
    },
}
