//! Everything that talks to the API server: lean types, watches, events, conditions, leases.
//!
//! May not know: how decisions are made. Objects come in as JSON and leave as `model` values.

mod report;

pub use report::{PodRef, Report};
