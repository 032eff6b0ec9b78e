//! The vertical recommenders of Autopilot (EuroSys'20, section 3.2): a moving window, and an ensemble of models of which the
//! cheapest is followed.
//!
//! Both read usage as histograms of 5 minutes, of all pods of a container together ([`Aggregator`]): of CPU each sample
//! counts, of memory each pod's peak. Values are cores or bytes, and fall into the buckets of [`Buckets`](super::Buckets);
//! what is said is the end of a bucket, or an average. The paper does not publish its weights; the defaults here are
//! documented at [`EnsembleSettings`], and were chosen, not learned.
//!
//! Memory for one container and resource: for each half-life 16 bytes a bucket with any weight (176 of them at most, 10 to 30
//! as a rule), 32 bytes a model, and 24 bytes a pod while an interval is open: 1 to 3 KB for the ensemble, below 1 KB for the
//! window. May not know: kube, tokio, clocks.

mod aggregator;
mod decayed;
mod ensemble;
mod settings;
mod window;

#[cfg(test)]
mod tests;

pub use aggregator::{Aggregator, INTERVAL_NS, Interval};
pub use ensemble::Ensemble;
pub use settings::{EnsembleSettings, Statistic, WindowSettings};
pub use window::MovingWindow;
