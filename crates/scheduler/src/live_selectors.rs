//! Selectors in the affinity terms of known pods: which of them select a pod.
//!
//! A pod with a node constrains the pods that its terms select, so these selectors are part of their class. A selector
//! concerns no other pods: an index by namespace, label key and value finds those that may select a pod. It is
//! forgotten with the last pod that has it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use berth_model::{Identity, LabelSelector, Operator, PodAffinity, PodSelector, Requirement};

/// The live selectors that select the pods of one class.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SelectedBy {
    /// Selectors of required anti-affinity: they exclude nodes.
    pub refusing: SelectorSet,
    /// Selectors of required affinity and of preferences: they only affect the order of nodes.
    pub preferring: SelectorSet,
}

impl SelectedBy {
    pub fn is_empty(&self) -> bool {
        self.refusing.is_empty() && self.preferring.is_empty()
    }
}

/// A set of selectors. Sorted, each once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SelectorSet(Arc<[Arc<PodSelector>]>);

impl Default for SelectorSet {
    fn default() -> Self {
        static NONE: LazyLock<SelectorSet> = LazyLock::new(|| SelectorSet(Arc::new([])));
        NONE.clone()
    }
}

impl From<Vec<Arc<PodSelector>>> for SelectorSet {
    fn from(mut selectors: Vec<Arc<PodSelector>>) -> Self {
        if selectors.is_empty() {
            return SelectorSet::default();
        }
        selectors.sort_unstable();
        selectors.dedup();
        SelectorSet(selectors.into())
    }
}

impl SelectorSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, selector: &PodSelector) -> bool {
        self.0.binary_search_by(|known| (**known).cmp(selector)).is_ok()
    }
}

/// Selectors of all affinity terms of known pods.
#[derive(Debug, Default)]
pub struct LiveSelectors {
    terms: HashMap<Arc<PodSelector>, Terms>,
    by_namespace: HashMap<Arc<str>, Slots>,
    /// Selectors that may select pods of any namespace.
    anywhere: Slots,
    /// Selectors that got their first term since the last read.
    new: Vec<Arc<PodSelector>>,
}

/// Number of terms with one selector.
#[derive(Debug, Default, Clone, Copy)]
struct Terms {
    refusing: usize,
    preferring: usize,
}

/// Selectors that require one value of a label, by that value.
type ByValue = HashMap<Arc<str>, Vec<Arc<PodSelector>>>;

/// Selectors for pods of one namespace, or of any.
#[derive(Debug, Default)]
struct Slots {
    /// By key and value of a label that the selected pods must have.
    by_label: HashMap<Arc<str>, ByValue>,
    /// Selectors that require no label with one of a few values.
    others: Vec<Arc<PodSelector>>,
}

/// A selector with more values than this for its best label is not indexed by label.
const MOST_VALUES: usize = 16;

impl LiveSelectors {
    /// Adds the terms of a pod.
    pub fn add(&mut self, affinity: &PodAffinity) {
        for (refuses, selector) in selectors(affinity) {
            let mut terms = self.terms.get(selector).copied().unwrap_or_default();
            let is_known = terms.refusing + terms.preferring > 0;
            let count = terms.of(refuses);
            *count += 1;
            if *count > 1 {
                self.set(selector, terms);
                continue;
            }
            let selector = Arc::new(selector.clone());
            if !is_known {
                self.each_list(&selector, |list| list.push(selector.clone()));
            }
            self.terms.insert(selector.clone(), terms);
            self.new.push(selector);
        }
    }

    fn set(&mut self, selector: &PodSelector, terms: Terms) {
        if let Some(known) = self.terms.get_mut(selector) {
            *known = terms;
        }
    }

    /// Reverts one [`LiveSelectors::add`].
    pub fn remove(&mut self, affinity: &PodAffinity) {
        for (refuses, selector) in selectors(affinity) {
            let Some(terms) = self.terms.get_mut(selector) else {
                continue;
            };
            let count = terms.of(refuses);
            *count = count.saturating_sub(1);
            if terms.refusing + terms.preferring == 0 {
                self.terms.remove(selector);
                self.unlink(selector);
            }
        }
    }

    /// Returns the selectors that got their first term of one kind since the last call. Some may have gone again.
    pub fn take_new(&mut self) -> Vec<Arc<PodSelector>> {
        std::mem::take(&mut self.new)
    }

    /// Returns the number of different selectors.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the selectors that select this pod.
    pub fn selecting(&self, pod: &Identity) -> SelectedBy {
        if self.terms.is_empty() {
            return SelectedBy::default();
        }
        let (mut refusing, mut preferring) = (Vec::new(), Vec::new());
        for slots in self.by_namespace.get(&pod.namespace).into_iter().chain([&self.anywhere]) {
            let by_label = pod.labels.iter().filter_map(|(key, value)| slots.by_label.get(key)?.get(value));
            for selector in by_label.flatten().chain(&slots.others).filter(|selector| selector.matches(pod)) {
                let terms = self.terms.get(selector).copied().unwrap_or_default();
                refusing.extend((terms.refusing > 0).then(|| selector.clone()));
                preferring.extend((terms.preferring > 0).then(|| selector.clone()));
            }
        }
        SelectedBy { refusing: refusing.into(), preferring: preferring.into() }
    }

    fn unlink(&mut self, selector: &PodSelector) {
        self.each_list(selector, |list| {
            if let Some(at) = list.iter().position(|known| **known == *selector) {
                list.swap_remove(at);
            }
        });
    }

    /// Calls `change` with each list that the selector belongs to.
    fn each_list(&mut self, selector: &PodSelector, mut change: impl FnMut(&mut Vec<Arc<PodSelector>>)) {
        if selector.namespace_selector != LabelSelector::Nothing {
            return self.anywhere.each_list(&selector.labels, &mut change);
        }
        for namespace in &selector.namespaces {
            let slots = self.by_namespace.entry(namespace.clone()).or_default();
            slots.each_list(&selector.labels, &mut change);
            if slots.by_label.is_empty() && slots.others.is_empty() {
                self.by_namespace.remove(namespace);
            }
        }
    }
}

impl Terms {
    fn of(&mut self, refuses: bool) -> &mut usize {
        if refuses { &mut self.refusing } else { &mut self.preferring }
    }
}

/// Returns the selector of each term, and whether it is one of required anti-affinity.
fn selectors(affinity: &PodAffinity) -> impl Iterator<Item = (bool, &PodSelector)> {
    let refusing = affinity.required_anti.iter().map(|term| (true, &term.selector));
    let preferred = affinity.preferred.iter().map(|weighted| &weighted.term);
    let preferring = affinity.required.iter().chain(preferred).map(|term| (false, &term.selector));
    refusing.chain(preferring)
}

impl Slots {
    fn each_list(&mut self, labels: &LabelSelector, change: &mut impl FnMut(&mut Vec<Arc<PodSelector>>)) {
        let LabelSelector::All(requirements) = labels else {
            return;
        };
        let Some((key, values)) = best_label(requirements) else {
            return change(&mut self.others);
        };
        let by_value = self.by_label.entry(key.clone()).or_default();
        for value in values {
            let list = by_value.entry(value.clone()).or_default();
            change(list);
            if list.is_empty() {
                by_value.remove(value);
            }
        }
        if by_value.is_empty() {
            self.by_label.remove(key);
        }
    }
}

/// Returns the label of which the selected pods must have one of the fewest values.
fn best_label(requirements: &[Requirement]) -> Option<(&Arc<str>, &[Arc<str>])> {
    let values = requirements.iter().filter_map(|requirement| match &requirement.operator {
        Operator::In(values) => Some((&requirement.key, &values[..])),
        _ => None,
    });
    values.filter(|(_, values)| values.len() <= MOST_VALUES).min_by_key(|(_, values)| values.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::PodTerm;
    use proptest::prelude::*;

    fn pod(namespace: &str, labels: &[(&str, &str)]) -> Identity {
        Identity {
            namespace: namespace.into(),
            namespace_labels: [("name", namespace)].into_iter().collect(),
            labels: labels.iter().copied().collect(),
        }
    }

    fn labelled(key: &str, operator: Operator) -> LabelSelector {
        LabelSelector::All([Requirement { key: key.into(), operator }].into())
    }

    fn one_of(values: &[&str]) -> Operator {
        Operator::In(values.iter().map(|value| Arc::from(*value)).collect())
    }

    fn in_namespace(namespace: &str, labels: LabelSelector) -> PodSelector {
        PodSelector { namespaces: [namespace.into()].into(), labels, ..PodSelector::default() }
    }

    fn affinity(selectors: &[PodSelector]) -> PodAffinity {
        let term =
            |selector: &PodSelector| PodTerm { selector: selector.clone(), topology_key: "zone".into() };
        PodAffinity { required_anti: selectors.iter().map(term).collect(), ..PodAffinity::default() }
    }

    #[test]
    fn a_selector_concerns_only_the_pods_that_it_selects_and_only_while_a_pod_has_it() {
        let mut live = LiveSelectors::default();
        let coredns = affinity(&[in_namespace("kube-system", labelled("k8s-app", one_of(&["kube-dns"])))]);
        live.add(&coredns);
        live.add(&coredns);
        assert_eq!(live.take_new().len(), 1);
        let dns = pod("kube-system", &[("k8s-app", "kube-dns"), ("pod-template-hash", "1")]);
        assert!(live.selecting(&dns).refusing.contains(&coredns.required_anti[0].selector));
        assert!(live.selecting(&dns).preferring.is_empty());
        assert!(live.selecting(&pod("kube-system", &[("k8s-app", "proxy")])).is_empty());
        assert!(live.selecting(&pod("default", &[("k8s-app", "kube-dns")])).is_empty());
        live.remove(&coredns);
        assert!(!live.selecting(&dns).is_empty());
        live.remove(&coredns);
        assert!(live.selecting(&dns).is_empty());
        assert!(live.is_empty() && live.by_namespace.is_empty() && live.take_new().is_empty());
    }

    #[test]
    fn a_selector_that_becomes_one_of_another_kind_of_term_is_new_again() {
        let mut live = LiveSelectors::default();
        let anti = affinity(&[in_namespace("x", labelled("app", one_of(&["db"])))]);
        let required = PodAffinity { required: anti.required_anti.clone(), ..PodAffinity::default() };
        live.add(&required);
        assert_eq!(live.take_new().len(), 1);
        let db = pod("x", &[("app", "db")]);
        assert!(live.selecting(&db).refusing.is_empty());
        live.add(&anti);
        assert_eq!(live.take_new().len(), 1);
        assert!(!live.selecting(&db).refusing.is_empty() && !live.selecting(&db).preferring.is_empty());
        live.remove(&required);
        assert!(!live.selecting(&db).refusing.is_empty() && live.selecting(&db).preferring.is_empty());
    }

    fn operator() -> impl Strategy<Value = Operator> {
        let values = prop::collection::btree_set(0u32..30, 0..20);
        let values = values.prop_map(|set| {
            let mut values: Vec<Arc<str>> = set.iter().map(|value| value.to_string().into()).collect();
            values.sort();
            Box::<[Arc<str>]>::from(values)
        });
        prop_oneof![
            4 => values.clone().prop_map(Operator::In),
            1 => values.prop_map(Operator::NotIn),
            1 => Just(Operator::Exists),
            1 => Just(Operator::DoesNotExist),
        ]
    }

    fn label_selector() -> impl Strategy<Value = LabelSelector> {
        let requirement = (0u8..3, operator())
            .prop_map(|(key, operator)| Requirement { key: format!("k{key}").into(), operator });
        prop_oneof![
            1 => Just(LabelSelector::Nothing),
            6 => prop::collection::vec(requirement, 0..3).prop_map(|all| LabelSelector::All(all.into())),
        ]
    }

    fn selector() -> impl Strategy<Value = PodSelector> {
        let namespaces = prop::collection::btree_set("[xyz]", 0..3);
        let anywhere = prop_oneof![
            3 => Just(LabelSelector::Nothing),
            1 => Just(labelled("name", one_of(&["x"]))),
            1 => Just(LabelSelector::All([].into())),
        ];
        (namespaces, anywhere, label_selector()).prop_map(|(namespaces, namespace_selector, labels)| {
            PodSelector {
                namespaces: namespaces.into_iter().map(Arc::from).collect(),
                namespace_selector,
                labels,
            }
        })
    }

    proptest! {
        #[test]
        fn the_index_finds_exactly_the_live_selectors_that_match(
            selectors in prop::collection::vec(selector(), 1..30),
            gone in prop::collection::vec(any::<bool>(), 30),
            namespace in "[xyz]",
            values in prop::collection::vec(0u32..30, 3),
        ) {
            let mut live = LiveSelectors::default();
            selectors.iter().for_each(|selector| live.add(&affinity(std::slice::from_ref(selector))));
            let mut left = Vec::new();
            for (selector, gone) in selectors.iter().zip(gone) {
                match gone {
                    true => live.remove(&affinity(std::slice::from_ref(selector))),
                    false => left.push(selector.clone()),
                }
            }
            let labels: Vec<_> = values.iter().enumerate().map(|(at, value)| (format!("k{at}"), value.to_string())).collect();
            let labels: Vec<_> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
            let pod = pod(&namespace, &labels);
            left.retain(|selector| selector.matches(&pod));
            left.sort();
            left.dedup();
            let found: Vec<_> = live.selecting(&pod).refusing.0.iter().map(|selector| PodSelector::clone(selector)).collect();
            prop_assert_eq!(found, left);
        }
    }
}
