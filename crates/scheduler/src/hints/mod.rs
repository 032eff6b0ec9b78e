//! Hints of where pods of a workload had better be: near pods of another one, or on other nodes. They come from whoever measures
//! (`correlate` of the rightsizing crate), not from the pods, and count like preferred terms of pod affinity that the pods have.
//!
//! A hint never makes a node invalid, and changes no object. It counts when a pod is placed; pods that have a node stay there.
//! Whoever hands hints over hands over all of them, so that what is not confirmed any more ends with the next set.
//! May not know: kube, tokio, clocks, nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_model::{
    Identity, LabelSelector, Labels, Operator, PodAffinity, PodSelector, PodTerm, WeightedPodTerm,
};

/// The topology over which pods are near each other.
const TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// Of more hints, the strongest count.
pub const HINTS_MAX: usize = 16_384;

/// Terms for one pod, the strongest first: each is one more count to look at on every node.
pub const TERMS_MAX: usize = 16;

/// Pods of one namespace, by their labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Workload {
    pub namespace: Arc<str>,
    /// What the workload selects its pods by (`spec.selector`). One that matches nothing, or everything, makes no workload.
    pub selector: LabelSelector,
}

/// One preference.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hint {
    /// Whose pods are to be placed by it.
    pub of: Workload,
    /// Whose pods are to be near or far.
    pub other: Workload,
    /// 1 to 100: near; -1 to -100: apart.
    pub weight: i32,
}

/// What came of a set of hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    pub in_force: usize,
    /// Hints without a weight, a namespace, or a selector that says anything; and those beyond [`HINTS_MAX`].
    pub refused: usize,
    /// Waiting pods that will be looked at again.
    pub concerned: usize,
}

/// Terms that pods get besides their own. Sorted.
pub type Terms = Arc<[WeightedPodTerm]>;

/// Those that hold now.
#[derive(Debug, Default)]
pub struct Hints {
    namespaces: HashMap<Arc<str>, Advised>,
    len: usize,
}

/// The workloads of one namespace that have hints.
#[derive(Debug, Default)]
struct Advised {
    workloads: Vec<(LabelSelector, Terms)>,
    /// Places in `workloads` by one label that they select, as a pod is mostly selected by few of many.
    by_label: HashMap<(Arc<str>, Arc<str>), Vec<usize>>,
    /// Those that name no single label.
    others: Vec<usize>,
}

impl Hint {
    fn is_valid(&self) -> bool {
        (1..=100).contains(&self.weight.unsigned_abs()) && self.of.is_valid() && self.other.is_valid()
    }

    fn term(&self) -> WeightedPodTerm {
        let Workload { namespace, selector } = &self.other;
        let selector = PodSelector {
            namespaces: [namespace.clone()].into(),
            namespace_selector: LabelSelector::Nothing,
            labels: selector.clone(),
        };
        WeightedPodTerm { weight: self.weight, term: PodTerm { selector, topology_key: TOPOLOGY_KEY.into() } }
    }
}

impl Workload {
    fn is_valid(&self) -> bool {
        let says_something = |selector: &LabelSelector| match selector {
            LabelSelector::Nothing => false,
            LabelSelector::All(requirements) => !requirements.is_empty(),
        };
        !self.namespace.is_empty() && says_something(&self.selector)
    }
}

impl Hints {
    /// These, and how many of those given are not among them.
    pub fn new(hints: impl IntoIterator<Item = Hint>) -> (Hints, usize) {
        let mut given = 0;
        let all = hints.into_iter().inspect(|_| given += 1);
        let mut valid: Vec<Hint> = all.filter(Hint::is_valid).collect();
        valid.sort_by(|a, b| b.weight.abs().cmp(&a.weight.abs()).then_with(|| a.cmp(b)));
        valid.truncate(HINTS_MAX);
        let len = valid.len();
        let mut terms: BTreeMap<Workload, Vec<WeightedPodTerm>> = BTreeMap::new();
        for hint in valid {
            let term = hint.term();
            terms.entry(hint.of).or_default().push(term);
        }
        let mut hints = Hints { len, ..Hints::default() };
        for (Workload { namespace, selector }, terms) in terms {
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

    /// The terms that such a pod gets besides `own`, at most [`TERMS_MAX`]. What its own terms say something of is left to them.
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

    /// In an order that follows from the labels and the workloads alone.
    fn of<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Terms> + 'a {
        let labelled = labels.pairs().filter_map(|label| self.by_label.get(label)).flatten();
        let possible = labelled.chain(&self.others).map(|place| &self.workloads[*place]);
        possible.filter(|(selector, _)| selector.matches(labels)).map(|(_, terms)| terms)
    }
}

/// The strongest of them, each selector once, sorted.
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

/// A label that every pod meant has, if the selector names one.
fn single_label(selector: &LabelSelector) -> Option<(Arc<str>, Arc<str>)> {
    let LabelSelector::All(requirements) = selector else { return None };
    requirements.iter().find_map(|requirement| match &requirement.operator {
        Operator::In(values) if values.len() == 1 => Some((requirement.key.clone(), values[0].clone())),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
