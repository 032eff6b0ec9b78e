//! What a cluster lived through, as inputs that a scheduler can [live through](crate::recording::Rerun) again: from dumps in sequence, or
//! from a trace of SimKube. Unlike a recording, it has no decisions of berth.
//!
//! May not know: files, clocks.

mod dumps;
mod happened;
mod report;
mod simkube;
mod timeline;
mod times;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use dumps::DumpHistory;
pub use report::{HistoryReport, HistoryRun, live, show_history};
pub use simkube::from_simkube;

use crate::explain::dump::DumpError;
use crate::recording::RunTimes;
use berth_scheduler::objects::ObjectKind;
use berth_scheduler::recording::RecordingEntry;

/// See the module documentation.
#[derive(Debug)]
pub struct ClusterHistory {
    /// Where it is from.
    pub source: String,
    /// In the order of their times.
    pub entries: Vec<RecordingEntry>,
    /// For how long pods run that end by themselves, as far as the entries do not say it.
    pub run_times: RunTimes,
    /// The schedulers of its pods.
    pub scheduler_names: BTreeSet<Arc<str>>,
    /// The kinds whose objects are known.
    pub objects: BTreeSet<ObjectKind>,
    /// Whether pods have the nodes that another scheduler gave them.
    pub has_placements: bool,
    /// What could not be used.
    pub notes: Vec<String>,
}

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error(transparent)]
    Dump(#[from] DumpError),
    #[error("nothing in it has a time: get it with `kubectl get nodes,pods,… -A -o json`")]
    NoTimes,
    #[error("it is older than the dump before it: name dumps in the order of their times")]
    Older,
    #[error("it is the only dump: name at least two, in the order of their times")]
    OneDump,
    #[error("it is no trace of SimKube: {0}")]
    NoTrace(String),
    #[error("it is a trace of version {0}, not 2 or 3")]
    Version(u64),
    #[error("it has no events")]
    NoEvents,
    #[error("there are no nodes in it")]
    NoNodes,
    #[error("it has more than {0} pods")]
    Pods(usize),
}
