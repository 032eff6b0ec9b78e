//! Recommender: usage samples in, recommendations out, computed as the Vertical Pod Autoscaler does.
//!
//! Bit-compatible with the upstream recommender 1.8.1: same buckets, same decay, same order of truncation, and each
//! reads the checkpoints of the other. Known upstream bugs are fixed unless [`RecommenderSettings::strict_upstream`] is set.
//!
//! Times are [`UnixNanos`], CPU is in millicores and memory in bytes ([`Amount`]). All input from the cluster is
//! untrusted: a bad sample or checkpoint is refused with a reason and never causes a panic.
//! May not know: kube, tokio, clocks, agents.

pub mod aggregate;
pub mod amount;
pub mod assign;
pub mod autopilot;
pub mod backtest;
pub mod buckets;
pub mod change;
pub mod checkpoint;
pub mod container;
pub mod create;
pub mod dimension;
pub mod estimate;
pub mod feed;
pub mod histogram;
pub mod histogram_checkpoint;
pub mod hours;
pub mod method;
pub mod open;
pub mod post;
pub mod propose;
pub mod room;
pub mod saved;
pub mod settings;
pub mod showar;
pub mod status;
pub mod store;
pub mod surplus;
pub mod time;
pub mod vpa;
mod weights;

#[cfg(test)]
mod tests;

pub use aggregate::{Aggregate, Shapes, Span};
pub use amount::{AMOUNT_MAX, Amount};
pub use buckets::Buckets;
pub use checkpoint::CheckpointStatus;
pub use container::{ContainerState, MemoryRules, Refused};
pub use dimension::Dimension;
pub use dimension::store::DimensionStore;
pub use estimate::{Controlled, Estimate, recommend};
pub use histogram::{HistogramOptions, UsageHistogram};
pub use histogram_checkpoint::{CheckpointError, HistogramCheckpoint};
pub use open::{OpenWindow, OpenWindows};
pub use post::{AllowedRange, Capped, OptionalAmounts, PostPolicy, Recommendation};
pub use settings::{RecommenderSettings, ResourceSettings};
pub use status::{Findings, Status, Thresholds, VpaCondition};
pub use store::{Store, Workload};
pub use surplus::{Surplus, WorkloadSurplus};
pub use time::UnixNanos;
pub use vpa::{
    ContainerPolicy, CpuBoost, EvictionRequirement, LastEviction, OwnerRef, StartupBoost, UpdatePolicy, Vpa,
};
