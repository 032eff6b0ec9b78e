//! Classification of pods under policies, and policy status.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Action, Scheduler};
use crate::class::{Class, ClassContext};
use crate::objects::ObjectName;
use crate::policy::ObservedPolicy;
use berth_model::{Holding, Pod, PodSpec};

impl Scheduler {
    /// Returns the class of a pod with `spec`.
    pub(super) fn classify(&mut self, pod: &Pod, spec: &Arc<PodSpec>, holding: &Holding) -> Arc<Class> {
        let identity = &holding.peer.identity;
        let placement = self.policies.placement(identity, &pod.scheduler_name);
        let hints = self.hinted(identity, spec, &placement);
        let selected_by = self.cluster.ledger.selectors().selecting(identity);
        let context = ClassContext { placement, hints, selected_by };
        self.classifier.classify_in(context, spec, identity, pod.priority)
    }

    pub(super) fn apply_policy(&mut self, policy: ObservedPolicy) {
        let changed = self.policies.apply(policy);
        self.apply_policies(changed);
    }

    pub(super) fn delete_policy(&mut self, name: &str) {
        let changed = self.policies.delete(name);
        self.apply_policies(changed);
    }

    pub(super) fn retain_policies(&mut self, listed: &HashSet<ObjectName>) {
        let changed = self.policies.retain(listed);
        self.apply_policies(changed);
    }

    /// Marks waiting pods to be reclassified before the next decision; pods with a node stay there.
    fn apply_policies(&mut self, changed: bool) {
        if changed {
            self.stale.mark_all();
            self.wake_all();
        }
    }

    pub(super) fn report_policies(&mut self) {
        if !self.synced() {
            return;
        }
        let (policies, objects) = (&mut self.policies, &self.cluster.objects);
        let news = policies.take_news(|| objects.namespaces());
        self.actions.extend(news.into_iter().map(|status| Action::TellPolicy(Box::new(status))));
    }

    /// Returns the policy that governs the pod, if any.
    pub fn policy_of(&mut self, pod: &Pod) -> Option<Arc<str>> {
        let holding = self.cluster.objects.holding(pod);
        self.policies.governing(&holding.peer.identity, &pod.scheduler_name).cloned()
    }
}
