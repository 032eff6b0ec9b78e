//! Everything that talks to the API server: lean types, watches, events, conditions, leases.
//!
//! May not know: how decisions are made. Objects come in as JSON and leave as `model` values.

mod convert;
mod lean;
mod report;

pub use convert::Interner;
pub use lean::{LeanNode, LeanPod};
pub use report::{PodRef, Report};
