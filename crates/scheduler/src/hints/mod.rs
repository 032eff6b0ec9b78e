//! Placement hints: pods of a workload should be near pods of another one, or on other nodes. Hints come from
//! measurements (`correlate` of the rightsizing crate), not from pod specs, and count like preferred pod affinity terms
//! of the pods.
//!
//! A hint never makes a node invalid, and changes no object. It counts only when a pod is placed; placed pods stay.
//! The caller always passes the complete set, so that hints that are no longer confirmed end with the next set.
//! May not know: kube, tokio, clocks, nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use berth_model::{
    Identity, LabelSelector, Labels, Operator, PodAffinity, PodSelector, PodTerm, WeightedPodTerm,
};

/// Topology key over which pods count as near.
const TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// Maximum number of hints; the strongest are kept.
pub const HINTS_MAX: usize = 16_384;

/// Maximum number of terms for one pod, the strongest first: each is one more count to read on every node.
pub const TERMS_MAX: usize = 16;

/// Pods of one namespace, selected by labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SelectedPods {
    pub namespace: Arc<str>,
    /// The workload's `spec.selector`. A selector that matches nothing, or everything, is invalid.
    pub selector: LabelSelector,
}

/// Placement preference.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hint {
    /// Workload whose pods are placed by the hint.
    pub of: SelectedPods,
    /// Workload whose pods are to be near or apart.
    pub other: SelectedPods,
    /// 1 to 100: near; -1 to -100: apart.
    pub weight: i32,
}

/// Result of setting the hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    pub in_force: usize,
    /// Refused hints: without a weight, a namespace or a usable selector, or beyond [`HINTS_MAX`].
    pub refused: usize,
    /// Namespaces with changed hints, whose waiting pods are classified again.
    pub namespaces: usize,
}

/// Terms that pods get besides their own. Sorted.
pub type Terms = Arc<[WeightedPodTerm]>;

/// Hints in force.
#[derive(Debug, Default)]
pub struct Hints {
    namespaces: HashMap<Arc<str>, Advised>,
    len: usize,
}

/// Workloads of one namespace that have hints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Advised {
    workloads: Vec<(LabelSelector, Terms)>,
    /// Indexes into `workloads` by one required label, because a pod is usually selected by few of many workloads.
    by_label: HashMap<(Arc<str>, Arc<str>), Vec<usize>>,
    /// Indexes of workloads whose selector requires no single label.
    others: Vec<usize>,
}

impl Hint {
    fn is_valid(&self) -> bool {
        (1..=100).contains(&self.weight.unsigned_abs()) && self.of.is_valid() && self.other.is_valid()
    }

    fn term(&self) -> WeightedPodTerm {
        let SelectedPods { namespace, selector } = &self.other;
        let selector = PodSelector {
            namespaces: [namespace.clone()].into(),
            namespace_selector: LabelSelector::Nothing,
            labels: selector.clone(),
        };
        WeightedPodTerm { weight: self.weight, term: PodTerm { selector, topology_key: TOPOLOGY_KEY.into() } }
    }
}

impl SelectedPods {
    fn is_valid(&self) -> bool {
        let says_something = |selector: &LabelSelector| match selector {
            LabelSelector::Nothing => false,
            LabelSelector::All(requirements) => !requirements.is_empty(),
        };
        !self.namespace.is_empty() && says_something(&self.selector)
    }
}

impl Hints {
    /// Returns the accepted hints, and the number of refused ones.
    pub fn new(hints: impl IntoIterator<Item = Hint>) -> (Hints, usize) {
        let mut given = 0;
        let all = hints.into_iter().inspect(|_| given += 1);
        let mut valid: Vec<Hint> = all.filter(Hint::is_valid).collect();
        valid.sort_by(|a, b| b.weight.abs().cmp(&a.weight.abs()).then_with(|| a.cmp(b)));
        valid.truncate(HINTS_MAX);
        let len = valid.len();
        let mut terms: BTreeMap<SelectedPods, Vec<WeightedPodTerm>> = BTreeMap::new();
        for hint in valid {
            let term = hint.term();
            terms.entry(hint.of).or_default().push(term);
        }
        let mut hints = Hints { len, ..Hints::default() };
        for (SelectedPods { namespace, selector }, terms) in terms {
            hints.namespaces.entry(namespace).or_default().add(selector, strongest(terms));
        }
        (hints, given - len)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the namespaces whose pods get other terms by `after`.
    pub fn differing_namespaces<'a>(&'a self, after: &'a Hints) -> BTreeSet<&'a Arc<str>> {
        let names = self.namespaces.keys().chain(after.namespaces.keys());
        names.filter(|name| self.namespaces.get(*name) != after.namespaces.get(*name)).collect()
    }

    /// Returns the terms for such a pod besides `own`, at most [`TERMS_MAX`]. A term that the pod already has
    /// itself is left out.
    pub fn terms(&self, pod: &Identity, own: &PodAffinity) -> Terms {
        let Some(advised) = self.namespaces.get(&pod.namespace) else {
            return Terms::default();
        };
        let mut found = advised.of(&pod.labels);
        let terms = match (found.next(), found.next()) {
            (None, _) => return Terms::default(),
            (Some(only), None) => only.clone(),
            (Some(first), Some(second)) => strongest(
                [first, second].into_iter().chain(found).flat_map(|terms| terms.iter().cloned()).collect(),
            ),
        };
        let said = |weighted: &WeightedPodTerm| own.terms().any(|term| *term == weighted.term);
        if own.is_empty() || !terms.iter().any(said) {
            return terms;
        }
        terms.iter().filter(|weighted| !said(weighted)).cloned().collect()
    }
}

impl Advised {
    fn add(&mut self, selector: LabelSelector, terms: Terms) {
        let place = self.workloads.len();
        match single_label(&selector) {
            Some(label) => self.by_label.entry(label).or_default().push(place),
            None => self.others.push(place),
        }
        self.workloads.push((selector, terms));
    }

    /// Returns the terms in an order that depends only on the labels and the workloads.
    fn of<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Terms> + 'a {
        let labelled = labels.pairs().filter_map(|label| self.by_label.get(label)).flatten();
        let possible = labelled.chain(&self.others).map(|place| &self.workloads[*place]);
        possible.filter(|(selector, _)| selector.matches(labels)).map(|(_, terms)| terms)
    }
}

/// Returns the strongest terms, one per selector, sorted.
fn strongest(mut terms: Vec<WeightedPodTerm>) -> Terms {
    terms.sort_by(|a, b| b.weight.abs().cmp(&a.weight.abs()).then_with(|| a.cmp(b)));
    let mut kept: Vec<WeightedPodTerm> = Vec::new();
    for term in terms {
        if kept.len() < TERMS_MAX && !kept.iter().any(|known| known.term == term.term) {
            kept.push(term);
        }
    }
    kept.sort();
    kept.into()
}

/// Returns a label that all selected pods have, if the selector names one.
fn single_label(selector: &LabelSelector) -> Option<(Arc<str>, Arc<str>)> {
    let LabelSelector::All(requirements) = selector else { return None };
    requirements.iter().find_map(|requirement| match &requirement.operator {
        Operator::In(values) if values.len() == 1 => Some((requirement.key.clone(), values[0].clone())),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
