//! Updates of affinity hints.

use std::sync::Arc;

use super::Scheduler;
use crate::hints::{Hint, Hints, Taken, Terms};
use crate::rules::PlacementSettings;
use berth_model::{Identity, PodSpec, Preference};

impl Scheduler {
    /// Replaces all hints. Affected waiting pods are reclassified before the next decision; pods with a node stay
    /// there. All scheduling replicas need the hints, not only the leader.
    pub fn hints_changed(&mut self, hints: impl IntoIterator<Item = Hint>) -> Taken {
        let (hints, refused) = Hints::new(hints);
        let before = std::mem::replace(&mut self.hints, hints);
        let after = &self.hints;
        let mut taken = Taken { in_force: after.len(), refused, concerned: 0 };
        if before.is_empty() && after.is_empty() {
            return taken;
        }
        for (uid, waiting) in self.cluster.waiting.iter().filter(|(_, waiting)| !waiting.state.has_node()) {
            let Ok(spec) = &waiting.source.spec else { continue };
            let (pod, own) = (&waiting.holding.peer.identity, &spec.pod_affinity);
            if before.terms(pod, own) != after.terms(pod, own) {
                taken.concerned += 1;
                self.stale.mark_pod(uid);
            }
        }
        if taken.concerned > 0 {
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
