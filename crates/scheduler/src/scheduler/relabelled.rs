//! Namespaces whose labels changed: what other pods read of their pods with a node is updated in slices.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::inventory::Ledger;
use crate::objects::ObjectStores;

/// Number of pods that one slice updates at most.
pub(super) const SLICE_MAX: usize = 256;

/// Namespaces that are being updated, in the order of their changes.
#[derive(Debug, Default)]
pub(super) struct Relabelled {
    /// Each with the uid up to which its pods are updated.
    namespaces: VecDeque<(Arc<str>, Option<Arc<str>>)>,
}

impl Relabelled {
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    pub(super) fn mark(&mut self, namespace: &Arc<str>) {
        match self.namespaces.iter_mut().find(|(known, _)| known == namespace) {
            Some((_, updated)) => *updated = None,
            None => self.namespaces.push_back((namespace.clone(), None)),
        }
    }

    /// Updates the next pods.
    pub(super) fn carry_on(&mut self, ledger: &mut Ledger, objects: &mut ObjectStores) {
        let mut budget = SLICE_MAX;
        while budget > 0
            && let Some((namespace, updated)) = self.namespaces.front_mut()
        {
            let pods = ledger.charged_in(namespace, updated.as_ref(), budget);
            for uid in &pods {
                ledger.rehold_pod(uid, |holding| objects.renewed(holding));
            }
            match pods.len() == budget {
                true => *updated = pods.last().cloned(),
                false => drop(self.namespaces.pop_front()),
            }
            budget -= pods.len();
        }
    }
}
