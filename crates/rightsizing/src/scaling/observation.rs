//! Inputs of a decision.

use serde::{Deserialize, Serialize};

use berth_model::PerResource;

/// Seconds since the Unix epoch.
pub type Seconds = i64;

/// One value at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub time_s: Seconds,
    pub value: f64,
}

/// A [`Point`] measured for the workload as a whole.
pub type Measured = Point;

/// Requests of a container in each pod, current or desired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Size {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
}

/// One container of the workload's pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    pub name: String,
    /// Current size in the pods; 0 where unset.
    pub size: Size,
    /// CPU in millicores: the samples of *all* pods, not their mean or maximum, so that the deviation includes that
    /// between pods. In any order.
    pub cpu: Vec<Point>,
    /// Memory in bytes (working set), samples like those of CPU.
    pub memory: Vec<Point>,
    /// Sizes from another estimator; where unset, the size is the mean plus some deviations of the usage.
    pub estimate: PerResource<Option<i64>>,
    /// OOM kills since the last decision.
    pub oom_kills: u32,
    /// Number of ready pods without recent samples.
    pub unheard: PerResource<u32>,
}

/// Current state of one workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// `spec.replicas`. 0: a user switched the workload off, and it stays off, unless it may have no replicas while it is idle.
    pub replicas: u32,
    /// Number of ready replicas.
    pub ready: u32,
    /// All containers of its pods, including those without samples.
    pub containers: Vec<Container>,
    /// Whether a pod could not grow lately, because its node has no room.
    pub has_no_room: bool,
    /// Memory that the largest node its pods may run on has for one of them, in bytes. Needed after an OOM kill, and
    /// while [`ScalerMemory::memory_capped`](super::coordinate::ScalerMemory) is set; `None`: unknown.
    pub largest_memory: Option<i64>,
    /// Saturation signal, in the unit of its setpoint: larger is worse.
    pub signal: Option<Measured>,
    /// Why the signal may be too low, if it is that of some of several sources only: nothing shrinks then.
    pub partly_unknown: Option<String>,
    /// Whether there is work, which is known without any pod; `None`: unknown.
    pub busy: Option<bool>,
    /// Share of successful requests, 0 to 1.
    pub success: Option<Measured>,
    /// Other controller of the replica count (an HPA, KEDA), if any: the replicas are then left alone.
    pub frozen: Option<String>,
}
