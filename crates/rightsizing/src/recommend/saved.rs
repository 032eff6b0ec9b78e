//! Which checkpoint belongs to what, and which ones nobody needs any more.
//!
//! Upstream: `pkg/recommender/checkpoint/checkpoint_writer.go`, `pkg/recommender/input/cluster_feeder.go`. Two VPAs can
//! mean the same name (`a-b` with container `c`, and `a` with `b-c`): what is in a checkpoint says whose it is.

use std::collections::BTreeMap;

use super::time::UnixNanos;

/// What a checkpoint says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub name: String,
    pub vpa: String,
    pub container: String,
    /// It was written by us: it has our annotation.
    pub is_ours: bool,
}

/// What is known of the VPAs of one namespace when its checkpoints are looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeper {
    /// Another recommender looks after it.
    Other,
    /// We do, and what it has is not known now.
    Unknown,
    /// We do: its pods have these containers, or something is remembered of them.
    Containers(Vec<String>),
}

/// The name of the checkpoint of one container, as upstream.
pub fn name(vpa: &str, container: &str) -> String {
    format!("{vpa}-{container}")
}

/// Whether nobody needs a checkpoint any more: its VPA is gone, or has no such container.
///
/// `takes_over` is set when we stand in for upstream's recommender, whose checkpoints are ours then.
pub fn is_garbage(label: &Label, vpas: &BTreeMap<String, Keeper>, takes_over: bool) -> bool {
    match vpas.get(&label.vpa) {
        None => label.is_ours || takes_over,
        Some(Keeper::Other | Keeper::Unknown) => false,
        Some(Keeper::Containers(containers)) => !containers.contains(&label.container),
    }
}

/// The order in which checkpoints are written when there may not be time for all: those first that were not written for the
/// longest time, and never written ones before them. Sorted by name beyond that.
pub fn oldest_first<T: Ord>(mut due: Vec<(UnixNanos, T)>) -> Vec<T> {
    due.sort();
    due.into_iter().map(|(_, checkpoint)| checkpoint).collect()
}
