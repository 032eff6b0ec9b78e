//! Sizes and replicas without I/O: recommendations, scaling, applying sizes to pods, correlation of services.
//!
//! May not know: kube, tokio, HTTP, clocks, the scheduler.

pub mod apply;
pub mod correlate;
pub mod recommend;
pub mod scaling;
pub mod usage;
