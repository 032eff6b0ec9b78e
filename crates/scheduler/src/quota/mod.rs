//! Quotas: how much the pods of some namespaces or queues may hold together, and how much of it nobody may keep from them.
//!
//! A pod belongs to one quota at most (`index.rs`). What its pods with a node hold is counted where they are charged
//! (`accounts.rs`), so that it never goes beyond the maximum, whoever commits. Pods for which there is no room in their quota
//! wait in a line of its own (`lines.rs`). Beyond its guarantee a quota *borrows*; what is lent can be taken back
//! (`rights.rs`). May not know: kube, tokio, clocks, nodes.

mod accounts;
mod index;
mod lines;
mod resources;
mod rights;
mod status;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use accounts::{Account, Accounts, Lack};
pub use index::{Change, Index};
pub use lines::Lines;
pub use resources::{Limit, Resource, Sums};
pub use rights::{Claim, Rights, Toll};
pub use status::{QuotaStatus, Reason, Shortfall, Standing, statuses};

use crate::policy::Namespaces;
use berth_model::Identity;

/// The label of pods that name a queue.
pub const QUEUE_LABEL: &str = "berth.dev/queue";

/// One quota as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub generation: i64,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    pub scope: Scope,
    pub reclaim: Reclaim,
    /// Or what is wrong with it, for a person.
    pub limits: Result<Limits, Arc<str>>,
}

/// Whose pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those that carry this value of [`QUEUE_LABEL`].
    pub queue: Option<Arc<str>>,
    pub namespaces: Namespaces,
}

/// What a resource is not named in is not limited, or not guaranteed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    pub guaranteed: Limit,
    pub maximum: Limit,
}

/// Which pods of other quotas the pods of this one may preempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// Within its guarantee those that borrow, however important they are; else less important ones that borrow.
    #[default]
    Any,
    /// Less important ones.
    LowerPriority,
    /// None.
    Never,
}

impl Quota {
    /// `None`: it is invalid, and not in force.
    pub fn valid(&self) -> Option<&Limits> {
        self.limits.as_ref().ok()
    }
}

impl Scope {
    /// How specific it is: a queue before namespaces, both before either.
    fn rank(&self) -> (bool, bool) {
        (self.queue.is_some(), self.namespaces != Namespaces::All)
    }

    fn includes(&self, pod: &Identity) -> bool {
        let queued = self.queue.as_deref().is_none_or(|queue| pod.labels.get(QUEUE_LABEL) == Some(queue));
        queued
            && match &self.namespaces {
                Namespaces::All => true,
                Namespaces::Named(names) => names.contains(&pod.namespace),
                Namespaces::Selected(selector) => selector.matches(&pod.namespace_labels),
            }
    }
}
