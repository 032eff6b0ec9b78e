//! Updates of affinity hints.

use std::sync::Arc;

use super::Scheduler;
use crate::hints::{Hint, Hints, Taken, Terms};
use crate::rules::PlacementSettings;
use berth_model::{Identity, PodSpec, Preference};

impl Scheduler {
    /// Replaces all hints. Waiting pods of affected namespaces are reclassified before a decision about them; pods with a node stay
    /// there. All scheduling replicas need the hints, not only the leader.
    pub fn hints_changed(&mut self, hints: impl IntoIterator<Item = Hint>) -> Taken {
        let (hints, refused) = Hints::new(hints);
        let before = std::mem::replace(&mut self.hints, hints);
        let after = &self.hints;
        let mut taken = Taken { in_force: after.len(), refused, namespaces: 0 };
        for namespace in before.differing_namespaces(after) {
            taken.namespaces += 1;
            self.stale.mark_namespace(namespace.clone());
        }
        if taken.namespaces > 0 {
            self.wake_all();
        }
        taken
    }

    /// Returns the hinted terms for such a pod if its policy counts affinity preferences.
    pub(super) fn hinted(&self, pod: &Identity, spec: &Arc<PodSpec>, placement: &PlacementSettings) -> Terms {
        let preferences = placement.order.preferences().iter();
        if self.hints.is_empty()
            || preferences.into_iter().all(|(preference, _)| *preference != Preference::InterPodAffinity)
        {
            return Terms::default();
        }
        self.hints.terms(pod, &spec.pod_affinity)
    }
}
