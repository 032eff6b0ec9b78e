//! Measurements of usage, as any source of metrics hands them over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One sample: seconds since 1970, and cores or bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub at: f64,
    pub value: f64,
}

/// A resource of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsageKind {
    /// Cores, averaged over the window before the sample.
    Cpu,
    /// Bytes of the working set at the time of the sample.
    Memory,
}

impl UsageKind {
    pub const ALL: [UsageKind; 2] = [UsageKind::Cpu, UsageKind::Memory];
}

/// What a series is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SeriesScope {
    /// One container of a pod.
    Container,
    /// A pod as a whole. A label of a container, if there is one, means nothing.
    Pod,
}
