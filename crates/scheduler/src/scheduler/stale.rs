//! Marks of waiting pods whose class may have changed.
//!
//! Marking costs nothing, however many pods it concerns. They are found and reclassified in slices; a pod that is
//! decided on meanwhile is reclassified before. Reads the waiting pods; changes nothing but its own marks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Waiting;
use super::waiting_pods::WaitingPods;
use berth_model::{LabelSelector, Pod, PodOwner, PodSelector};

/// Number of pods that one slice examines at most.
pub(super) const SLICE_MAX: usize = 512;
/// A pod that is reclassified counts as this many that are only examined.
const RECLASSIFIED_COST: usize = 8;

/// Beyond this number of marks, one of all pods replaces those whose walk has not begun: each is looked at when a pod is
/// decided on.
const MARKS_MAX: usize = 64;

/// Waiting pods to be reclassified.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// By uid.
    pods: BTreeSet<Arc<str>>,
    /// Marks of more pods, first the one that is being carried out.
    walks: VecDeque<Walk>,
    /// Marks whose walk has not begun: these pods need no second mark.
    queued: BTreeSet<Mark>,
}

/// Pods that a change concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    /// `None`: of all namespaces.
    namespace: Option<Arc<str>>,
    which: Which,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    All,
    /// Pods with claims.
    Claimants,
    /// Pods with resource claims.
    DeviceUsers,
    /// Pods of the controller of this name.
    Owned(Arc<str>),
    /// Pods that this selects.
    Selected(Arc<PodSelector>),
}

#[derive(Debug)]
struct Walk {
    mark: Mark,
    /// Arrival number of the next pod to examine, and of the last one; `None`: not begun.
    range: Option<(u64, u64)>,
}

impl Mark {
    fn concerns(&self, waiting: &Waiting) -> bool {
        let pod = &waiting.source;
        let is_there = |namespace: &Arc<str>| namespace == waiting.namespace();
        self.namespace.as_ref().is_none_or(is_there)
            && match &self.which {
                Which::All => true,
                Which::Claimants => pod.volumes.is_some(),
                Which::DeviceUsers => !pod.devices.is_empty() || pod.extended.is_some(),
                Which::Owned(name) => pod.owner.as_ref().is_some_and(|owner: &PodOwner| owner.name == *name),
                Which::Selected(selector) => selector.matches(&waiting.holding.peer.identity),
            }
    }
}

impl Stale {
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.walks.is_empty()
    }

    /// Returns the number of marks whose pods are not all found yet.
    #[cfg(test)]
    pub(super) fn marks(&self) -> usize {
        self.walks.len()
    }

    pub(super) fn mark_all(&mut self) {
        self.mark(None, Which::All);
    }

    pub(super) fn mark_namespace(&mut self, namespace: Arc<str>) {
        self.mark(Some(namespace), Which::All);
    }

    pub(super) fn mark_owned(&mut self, namespace: Arc<str>, owner: Arc<str>) {
        self.mark(Some(namespace), Which::Owned(owner));
    }

    /// Marks the pods that this selects.
    pub(super) fn mark_selected(&mut self, selector: &Arc<PodSelector>) {
        if selector.namespace_selector != LabelSelector::Nothing {
            return self.mark(None, Which::Selected(selector.clone()));
        }
        for namespace in &selector.namespaces {
            self.mark(Some(namespace.clone()), Which::Selected(selector.clone()));
        }
    }

    /// Marks all pods with claims.
    pub(super) fn mark_claimants(&mut self) {
        self.mark(None, Which::Claimants);
    }

    /// Marks all pods with resource claims.
    pub(super) fn mark_device_users(&mut self) {
        self.mark(None, Which::DeviceUsers);
    }

    pub(super) fn mark_pod(&mut self, uid: &Arc<str>) {
        self.pods.insert(uid.clone());
    }

    fn mark(&mut self, namespace: Option<Arc<str>>, which: Which) {
        let all = Mark { namespace: None, which: Which::All };
        if self.queued.contains(&all) {
            return;
        }
        let mut mark = Mark { namespace, which };
        if self.queued.len() >= MARKS_MAX && !self.queued.contains(&mark) {
            self.walks.retain(|walk| walk.range.is_some());
            self.queued.clear();
            mark = all;
        }
        if self.queued.insert(mark.clone()) {
            self.walks.push_back(Walk { mark, range: None });
        }
    }

    /// Returns whether the pod is marked.
    pub(super) fn is_marked(&self, uid: &str, waiting: &Waiting) -> bool {
        let is_ahead = |walk: &Walk| walk.range.is_none_or(|(next, _)| waiting.seq >= next);
        self.pods.contains(uid) || self.walks.iter().any(|walk| is_ahead(walk) && walk.mark.concerns(waiting))
    }

    /// Takes some marked pods that have no node yet, as last observed, in the order of their arrival for each mark. A
    /// pod with a node is reclassified if it loses it. Examines at most [`SLICE_MAX`] pods.
    pub(super) fn take_slice(&mut self, waiting: &WaitingPods) -> Vec<Pod> {
        let mut budget = SLICE_MAX;
        let mut slice = Vec::new();
        let source = |pod: &Waiting| (!pod.state.has_node()).then(|| Pod::clone(&pod.source));
        let mut marked = Vec::new();
        while budget > 0
            && let Some(uid) = self.pods.pop_first()
        {
            budget = budget.saturating_sub(RECLASSIFIED_COST);
            marked.extend(waiting.get(&uid).and_then(|pod| Some((pod.seq, source(pod)?))));
        }
        marked.sort_by_key(|(seq, _)| *seq);
        slice.extend(marked.into_iter().map(|(_, pod)| pod));
        while budget > 0
            && let Some(walk) = self.walks.front_mut()
        {
            if walk.range.is_none() {
                self.queued.remove(&walk.mark);
            }
            let (next, last) = walk.range.get_or_insert_with(|| (0, waiting.last_arrival()));
            let mut is_done = true;
            budget -= 1;
            for pod in waiting.arrived_since(walk.mark.namespace.as_deref(), *next) {
                if pod.seq > *last {
                    break;
                }
                if budget == 0 {
                    is_done = false;
                    break;
                }
                budget -= 1;
                *next = pod.seq + 1;
                if walk.mark.concerns(pod) {
                    slice.extend(source(pod));
                    budget = budget.saturating_sub(RECLASSIFIED_COST);
                }
            }
            if is_done {
                self.walks.pop_front();
            }
        }
        slice
    }
}
