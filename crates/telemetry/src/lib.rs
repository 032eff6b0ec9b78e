//! Metrics of the controllers, health of the process, and what both the controllers and the server need of them.
//!
//! May not know: who serves them, and how decisions are made.

mod dimensions;
pub mod encode;
mod health;
pub mod process;
mod quality;
mod recommender;
mod scaler;
mod updater;

pub use dimensions::{DimensionMetrics, DimensionRead};
pub use health::Health;
pub use quality::{Quality, Resource, Usage};
pub use recommender::{RecommenderMetrics, VpaKind};
pub use scaler::ScalerMetrics;
pub use updater::UpdaterMetrics;
