//! Quotas: maximum and guaranteed requests of the pods of some namespaces or queues.
//!
//! A pod belongs to at most one quota (`index.rs`). The holdings of its bound pods are summed where pods are charged
//! (`accounts.rs`), so that the maximum is never exceeded, whichever agent commits. Pods that do not fit into their
//! quota wait in its own line (`lines.rs`). Beyond its guarantee a quota *borrows*; what it borrows can be reclaimed
//! (`rights.rs`). Must not depend on kube, tokio, clocks or nodes.

mod accounts;
mod index;
mod lines;
mod resources;
mod rights;
mod status;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use accounts::{Account, Accounts, Lack};
pub use index::{Index, QuotaChange};
pub use lines::QuotaLines;
pub use resources::{Limit, QuotaResource, Sums};
pub use rights::{Rights, Toll, VictimClaim};
pub use status::{QuotaReport, QuotaUsage, Shortfall, statuses};

use crate::policy::SelectedNamespaces;
use berth_model::Identity;

/// Label of pods that names their queue.
pub const QUEUE_LABEL: &str = "berth.dev/queue";

/// One quota as observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub generation: i64,
    /// Creation time in seconds since 1970.
    pub created: i64,
    pub scope: Scope,
    pub reclaim: Reclaim,
    /// Limits, or a human-readable validation error.
    pub limits: Result<Limits, Arc<str>>,
}

/// Selects the pods of a quota.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Pods whose [`QUEUE_LABEL`] has this value.
    pub queue: Option<Arc<str>>,
    pub namespaces: SelectedNamespaces,
}

/// Resources that are not listed are not limited, or not guaranteed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub guaranteed: Limit,
    pub maximum: Limit,
}

/// Pods of other quotas that the pods of this quota may preempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reclaim {
    /// Within its guarantee pods of borrowing quotas, whatever their priority; beyond it, those with lower priority.
    #[default]
    Any,
    /// Only pods with lower priority.
    LowerPriority,
    /// None.
    Never,
}

impl Quota {
    /// Returns the limits; `None`: the quota is invalid, and not in force.
    pub fn valid(&self) -> Option<&Limits> {
        self.limits.as_ref().ok()
    }

    /// Returns which pods of other quotas its pods may preempt: whoever may label a pod can use an open queue, so it takes nothing
    /// from pods of the same or higher priority.
    pub fn reclaims(&self) -> Reclaim {
        match self.reclaim {
            Reclaim::Any if self.scope.is_open() => Reclaim::LowerPriority,
            reclaim => reclaim,
        }
    }
}

impl Scope {
    /// Specificity: a queue of namespaces, then namespaces, then an open queue. A label takes no pod out of a quota of its namespace.
    fn rank(&self) -> (bool, bool) {
        (self.namespaces != SelectedNamespaces::All, self.queue.is_some())
    }

    /// Returns whether it takes the pods of its queue from all namespaces.
    pub fn is_open(&self) -> bool {
        self.queue.is_some() && self.namespaces == SelectedNamespaces::All
    }

    fn includes(&self, pod: &Identity) -> bool {
        let queued = self.queue.as_deref().is_none_or(|queue| pod.labels.get(QUEUE_LABEL) == Some(queue));
        queued
            && match &self.namespaces {
                SelectedNamespaces::All => true,
                SelectedNamespaces::Named(names) => names.contains(&pod.namespace),
                SelectedNamespaces::Selected(selector) => selector.matches(&pod.namespace_labels),
            }
    }
}
