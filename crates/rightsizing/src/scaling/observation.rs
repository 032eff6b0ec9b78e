//! What a decision is made from.

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

/// As [`Point`], for what is measured of the workload as a whole.
pub type Measured = Point;

/// What the containers of one name have, or should have, in each pod.
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
    /// What the pods have now; 0 where nothing is said.
    pub size: Size,
    /// CPU in millicores: the samples of *all* pods, not their mean or maximum, so that the deviation is also that between
    /// pods. In any order.
    pub cpu: Vec<Point>,
    /// Memory in bytes (working set), as CPU.
    pub memory: Vec<Point>,
    /// What another estimator would set; without it the size is the mean and some deviations of what was used.
    pub estimate: PerResource<Option<i64>>,
    /// Kills for want of memory since the last decision.
    pub oom_kills: u32,
    /// Pods that are ready, and of which no sample came lately.
    pub unheard: PerResource<u32>,
}

/// One workload as it is now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// What its `spec.replicas` says. 0: somebody switched it off, and it stays off.
    pub replicas: u32,
    /// How many of them are ready.
    pub ready: u32,
    /// All that its pods have, also those without samples.
    pub containers: Vec<Container>,
    /// The measure of saturation, in the unit of its setpoint: larger is worse.
    pub signal: Option<Measured>,
    /// Share of requests that succeed, 0 to 1.
    pub success: Option<Measured>,
    /// Who else decides about the number of replicas (an HPA, KEDA), if anybody does: it is left alone then.
    pub frozen: Option<String>,
}
