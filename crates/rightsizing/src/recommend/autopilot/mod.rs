//! Vertical recommenders of Autopilot (EuroSys'20, section 3.2): a moving window, and an ensemble of models that
//! follows the cheapest one.
//!
//! Both read usage as histograms of 5 minutes over all pods of a container ([`Aggregator`]). For CPU each sample
//! counts, for memory each pod's peak. Values are cores or bytes, and fall into the buckets of
//! [`Buckets`](super::Buckets); a limit is the end of a bucket, or an average. The paper does not publish its
//! weights; the defaults here are documented at [`EnsembleSettings`]. They were chosen, not learned.
//!
//! Memory per container and resource: for each half-life 16 bytes per non-empty bucket (176 of them at most,
//! usually 10 to 30), 32 bytes per model, and 24 bytes per pod while an interval is open: 1 to 3 KB for the
//! ensemble, below 1 KB for the window. May not know: kube, tokio, clocks.

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
