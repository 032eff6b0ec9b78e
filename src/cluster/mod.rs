//! Everything that talks to the API server: lean types, watches, events, conditions, leases.
//!
//! May not know: how decisions are made. Objects come in as JSON and leave as `model` values.

mod backlog;
pub mod client;
mod elector;
mod guarded;
mod lease;
mod report;
mod report_json;
mod reporter;
mod watch;

pub use elector::Elector;
pub use guarded::{BadObject, Guarded, ObjectId};
pub use lease::{LeaseConfig, LeaseConfigError};
pub use report::{PodRef, Report};
pub use reporter::{ReportCounters, Reporter};
pub use watch::{Change, LIVE_PODS, WatchCounters, watch};
