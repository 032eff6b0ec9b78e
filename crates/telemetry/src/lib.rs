//! Metrics of the controllers and health of the process. The controllers write them, the server serves them.
//!
//! May not know: the server, kube, tokio, and how decisions are made.

mod dimensions;
pub mod encode;
mod health;
pub mod process;
mod quality;
mod recommender;
mod scaler;
mod spans;
mod updater;

pub use dimensions::{DimensionMetrics, DimensionRead};
pub use health::Health;
pub use quality::{QualityMetrics, SizedResource, UsageSample};
pub use recommender::{RecommenderMetrics, VpaKind};
pub use scaler::ScalerMetrics;
pub use spans::SpanCounters;
pub use updater::UpdaterMetrics;
