//! Ownership and garbage collection of checkpoints.
//!
//! Upstream: `pkg/recommender/checkpoint/checkpoint_writer.go`, `pkg/recommender/input/cluster_feeder.go`. Two VPAs
//! can map to the same name (`a-b` with container `c`, and `a` with `b-c`), so the content of a checkpoint
//! identifies its VPA.

use std::collections::BTreeMap;

use super::time::UnixNanos;

/// VPA and container named in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub name: String,
    pub vpa: String,
    pub container: String,
    /// Whether it was written by berth: it has berth's annotation.
    pub is_ours: bool,
}

/// State of a VPA when the checkpoints of its namespace are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeper {
    /// It belongs to another recommender.
    Other,
    /// It belongs to this recommender, and its containers are unknown at the moment.
    Unknown,
    /// It belongs to this recommender: its pods have these containers, or there are aggregates for them.
    Containers(Vec<String>),
}

/// Returns the name of the checkpoint of one container, same as upstream.
pub fn name(vpa: &str, container: &str) -> String {
    format!("{vpa}-{container}")
}

/// Returns whether a checkpoint is no longer needed: its VPA is gone, or has no such container.
///
/// `takes_over` is set when berth replaces upstream's recommender and so owns its checkpoints.
pub fn is_garbage(label: &Label, vpas: &BTreeMap<String, Keeper>, takes_over: bool) -> bool {
    match vpas.get(&label.vpa) {
        None => label.is_ours || takes_over,
        Some(Keeper::Other | Keeper::Unknown) => false,
        Some(Keeper::Containers(containers)) => !containers.contains(&label.container),
    }
}

/// Orders the checkpoints to write, as there may not be time for all: never written ones first, then the oldest.
/// Ties are sorted by name.
pub fn oldest_first<T: Ord>(mut due: Vec<(UnixNanos, T)>) -> Vec<T> {
    due.sort();
    due.into_iter().map(|(_, checkpoint)| checkpoint).collect()
}
