//! Walks over placed pods, in slices.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::inventory::Ledger;
use berth_model::ClaimName;

/// Number of pods in one slice.
pub(super) const SLICE_MAX: usize = 256;

/// Placed pods that a change concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Charged {
    All,
    In(Arc<str>),
    Using(ClaimName),
}

/// Placed pods to be visited, in the order in which they were marked.
#[derive(Debug, Default)]
pub(super) struct ChargeWalks {
    queue: VecDeque<Walk>,
    /// Marks whose walk has not begun: these pods need no second mark.
    queued: BTreeSet<Charged>,
}

#[derive(Debug)]
struct Walk {
    which: Charged,
    /// Namespace that is being visited, in a walk over all.
    namespace: Option<Arc<str>>,
    /// Uid of the pod that was visited last.
    visited: Option<Arc<str>>,
}

impl ChargeWalks {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Marks some pods. A walk that has begun is not begun anew: another one follows, so that marks without end keep no
    /// other pods waiting.
    pub(super) fn mark(&mut self, which: Charged) {
        if self.queued.insert(which.clone()) {
            self.queue.push_back(Walk { which, namespace: None, visited: None });
        }
    }

    /// Returns the next pods to visit, at most [`SLICE_MAX`]. A namespace or claim without any counts as one.
    pub(super) fn next_slice(&mut self, ledger: &Ledger) -> Vec<Arc<str>> {
        let (mut slice, mut budget) = (Vec::new(), SLICE_MAX);
        while budget > 0
            && let Some(walk) = self.queue.front_mut()
        {
            self.queued.remove(&walk.which);
            let pods = walk.next(ledger, budget);
            let is_last = pods.len() < budget;
            budget = budget.saturating_sub(pods.len().max(1));
            if let Some(last) = pods.last() {
                walk.visited = Some(last.clone());
            }
            slice.extend(pods);
            if is_last && !walk.next_namespace(ledger) {
                self.queue.pop_front();
            }
        }
        slice
    }
}

impl Walk {
    fn next(&self, ledger: &Ledger, most: usize) -> Vec<Arc<str>> {
        let after = self.visited.as_ref();
        match (&self.which, &self.namespace) {
            (Charged::Using(claim), _) => ledger.charged_using(claim, after, most),
            (Charged::In(namespace), _) | (Charged::All, Some(namespace)) => {
                ledger.charged_in(namespace, after, most)
            }
            (Charged::All, None) => Vec::new(),
        }
    }

    /// Goes on to the next namespace of a walk over all. Returns whether there is one.
    fn next_namespace(&mut self, ledger: &Ledger) -> bool {
        if self.which != Charged::All {
            return false;
        }
        self.namespace = ledger.namespace_after(self.namespace.as_deref()).cloned();
        self.visited = None;
        self.namespace.is_some()
    }
}
