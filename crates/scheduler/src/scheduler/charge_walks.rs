//! Walks over the placed pods of namespaces, in slices.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::inventory::Ledger;

/// Number of pods in one slice.
pub(super) const SLICE_MAX: usize = 256;

/// Namespaces whose placed pods are to be visited, in the order in which they were marked.
#[derive(Debug, Default)]
pub(super) struct NamespaceWalks {
    /// Each with the uid of the pod that was visited last.
    queue: VecDeque<(Arc<str>, Option<Arc<str>>)>,
}

impl NamespaceWalks {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Marks a namespace. A walk that has begun is not begun anew: another one follows, so that marks without end keep
    /// no other namespace waiting.
    pub(super) fn mark(&mut self, namespace: &Arc<str>) {
        if !self.queue.iter().any(|(known, visited)| known == namespace && visited.is_none()) {
            self.queue.push_back((namespace.clone(), None));
        }
    }

    /// Returns the next pods to visit.
    pub(super) fn next_slice(&mut self, ledger: &Ledger) -> Vec<Arc<str>> {
        let mut slice = Vec::new();
        while slice.len() < SLICE_MAX
            && let Some((namespace, visited)) = self.queue.front_mut()
        {
            let room = SLICE_MAX - slice.len();
            let pods = ledger.charged_in(namespace, visited.as_ref(), room);
            let is_done = pods.len() < room;
            slice.extend(pods);
            match is_done {
                true => drop(self.queue.pop_front()),
                false => *visited = slice.last().cloned(),
            }
        }
        slice
    }
}
