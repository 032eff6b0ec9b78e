//! Selectors in the affinity terms of known pods: which of them select a pod.
//!
//! A pod with a node constrains the pods that its terms select, so these selectors are part of their class. A selector
//! concerns no other pods: an index by namespace, label key and value finds those that may select a pod. It is
//! forgotten with the last pod that has it.
//!
//! Each selector costs the pods that it may select. So the pods of one namespace may have a limited number of different
//! ones: [`LiveSelectors::has_room`]. Terms of pods with a node are facts and count beyond the limit, too.

use std::collections::{BTreeSet, HashMap};
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

/// Maximum number of different selectors in the terms of the pods of one namespace.
pub const SELECTORS_MAX: usize = 4096;
/// Maximum number of those that may select pods of other namespaces.
pub const FOREIGN_SELECTORS_MAX: usize = 256;

/// Number of different selectors in the terms of the pods of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceSelectors {
    pub all: usize,
    /// Those that may select pods of other namespaces.
    pub foreign: usize,
}

impl NamespaceSelectors {
    fn add(&mut self, namespace: &str, selector: &PodSelector) {
        self.all += 1;
        self.foreign += usize::from(is_foreign(namespace, selector));
    }

    fn remove(&mut self, namespace: &str, selector: &PodSelector) {
        self.all = self.all.saturating_sub(1);
        self.foreign = self.foreign.saturating_sub(usize::from(is_foreign(namespace, selector)));
    }

    fn is_within_limits(self) -> bool {
        self.all <= SELECTORS_MAX && self.foreign <= FOREIGN_SELECTORS_MAX
    }

    fn is_below_limits(self) -> bool {
        self.all < SELECTORS_MAX && self.foreign < FOREIGN_SELECTORS_MAX
    }
}

/// Returns whether a selector in a term of a pod of `namespace` may select pods of another one.
fn is_foreign(namespace: &str, selector: &PodSelector) -> bool {
    selector.namespace_selector != LabelSelector::Nothing
        || selector.namespaces.iter().any(|known| **known != *namespace)
}

/// Selectors of all affinity terms of known pods.
#[derive(Debug, Default)]
pub struct LiveSelectors {
    terms: HashMap<Arc<PodSelector>, Terms>,
    /// Numbers of selectors by namespace of the pods that have them in a term.
    of_namespace: HashMap<Arc<str>, NamespaceSelectors>,
    /// Namespaces that [`LiveSelectors::has_room`] refused since they last had room.
    full: BTreeSet<Arc<str>>,
    /// Namespaces that have room again, since the last read.
    relieved: BTreeSet<Arc<str>>,
    by_namespace: HashMap<Arc<str>, Slots>,
    /// Selectors that may select pods of any namespace.
    anywhere: Slots,
    /// Selectors that got their first term since the last read.
    new: Vec<Arc<PodSelector>>,
}

/// Terms with one selector.
#[derive(Debug, Default)]
struct Terms {
    refusing: usize,
    preferring: usize,
    /// Namespaces of the pods, each with its number of terms. Sorted.
    owners: Vec<(Arc<str>, usize)>,
}

/// Selectors that require one value of a label, by that value.
type ByValue = HashMap<Arc<str>, BTreeSet<Arc<PodSelector>>>;

/// Selectors for pods of one namespace, or of any.
#[derive(Debug, Default)]
struct Slots {
    /// By key and value of a label that the selected pods must have.
    by_label: HashMap<Arc<str>, ByValue>,
    /// Selectors that require no label with one of a few values.
    others: BTreeSet<Arc<PodSelector>>,
}

/// A selector with more values than this for its best label is not indexed by label.
const MOST_VALUES: usize = 16;

impl LiveSelectors {
    /// Adds the terms of a pod of this namespace.
    pub fn add(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) {
        for (refuses, selector) in selectors(affinity) {
            let selector = match self.terms.get_key_value(selector) {
                Some((known, _)) => known.clone(),
                None => {
                    let selector = Arc::new(selector.clone());
                    self.each_list(&selector, |list| _ = list.insert(selector.clone()));
                    selector
                }
            };
            let terms = self.terms.entry(selector.clone()).or_default();
            let count = terms.of(refuses);
            *count += 1;
            let is_new = *count == 1;
            if terms.gains_owner(namespace) {
                let numbers = self.of_namespace.entry(namespace.clone()).or_default();
                numbers.add(namespace, &selector);
            }
            if is_new {
                self.new.push(selector);
            }
        }
    }

    /// Reverts one [`LiveSelectors::add`].
    pub fn remove(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) {
        for (refuses, selector) in selectors(affinity) {
            let Some(terms) = self.terms.get_mut(selector) else {
                continue;
            };
            let count = terms.of(refuses);
            *count = count.saturating_sub(1);
            let is_gone = terms.refusing + terms.preferring == 0;
            if terms.loses_owner(namespace) {
                self.leave(namespace, selector);
            }
            if is_gone {
                self.terms.remove(selector);
                self.each_list(selector, |list| _ = list.remove(selector));
            }
        }
    }

    fn leave(&mut self, namespace: &Arc<str>, selector: &PodSelector) {
        let Some(numbers) = self.of_namespace.get_mut(namespace) else {
            return;
        };
        numbers.remove(namespace, selector);
        if numbers.is_below_limits()
            && let Some(namespace) = self.full.take(namespace)
        {
            self.relieved.insert(namespace);
        }
        if numbers.all == 0 {
            self.of_namespace.remove(namespace);
        }
    }

    /// Returns whether a pod of this namespace with these terms may be added within the limits. If not,
    /// [`LiveSelectors::take_relieved`] will return the namespace when others have left it.
    pub fn has_room(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) -> bool {
        let mut numbers = self.of_namespace(namespace);
        let new = selectors(affinity)
            .map(|(_, selector)| selector)
            .filter(|selector| self.terms.get(*selector).is_none_or(|terms| terms.owner(namespace).is_err()));
        let new: BTreeSet<_> = new.collect();
        if new.is_empty() {
            return true;
        }
        new.into_iter().for_each(|selector| numbers.add(namespace, selector));
        let has_room = numbers.is_within_limits();
        if !has_room {
            self.full.insert(namespace.clone());
        }
        has_room
    }

    /// Returns the namespaces that were full and lost a selector since.
    pub fn take_relieved(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.relieved)
    }

    /// Returns the numbers of different selectors in the terms of the pods of this namespace.
    pub fn of_namespace(&self, namespace: &str) -> NamespaceSelectors {
        self.of_namespace.get(namespace).copied().unwrap_or_default()
    }

    /// Returns the greatest numbers of one namespace, each of any.
    pub fn most_of_a_namespace(&self) -> NamespaceSelectors {
        let most = |read: fn(&NamespaceSelectors) -> usize| self.of_namespace.values().map(read).max();
        let (all, foreign) = (most(|numbers| numbers.all), most(|numbers| numbers.foreign));
        NamespaceSelectors { all: all.unwrap_or(0), foreign: foreign.unwrap_or(0) }
    }

    /// Returns the namespaces that are full. Sorted.
    pub fn full(&self) -> impl Iterator<Item = &Arc<str>> {
        self.full.iter()
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
                let Some(terms) = self.terms.get(selector) else {
                    continue;
                };
                refusing.extend((terms.refusing > 0).then(|| selector.clone()));
                preferring.extend((terms.preferring > 0).then(|| selector.clone()));
            }
        }
        SelectedBy { refusing: refusing.into(), preferring: preferring.into() }
    }

    /// Calls `change` with each list that the selector belongs to.
    fn each_list(&mut self, selector: &PodSelector, mut change: impl FnMut(&mut BTreeSet<Arc<PodSelector>>)) {
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

    fn owner(&self, namespace: &str) -> Result<usize, usize> {
        self.owners.binary_search_by(|(owner, _)| (**owner).cmp(namespace))
    }

    /// Counts a term of this namespace. Returns whether it is its first one.
    fn gains_owner(&mut self, namespace: &Arc<str>) -> bool {
        match self.owner(namespace) {
            Ok(at) => {
                self.owners[at].1 += 1;
                false
            }
            Err(at) => {
                self.owners.insert(at, (namespace.clone(), 1));
                true
            }
        }
    }

    /// Reverts one [`Terms::gains_owner`]. Returns whether it was the last term of this namespace.
    fn loses_owner(&mut self, namespace: &str) -> bool {
        let Ok(at) = self.owner(namespace) else {
            return false;
        };
        self.owners[at].1 -= 1;
        let is_last = self.owners[at].1 == 0;
        if is_last {
            self.owners.remove(at);
        }
        is_last
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
    fn each_list(
        &mut self,
        labels: &LabelSelector,
        change: &mut impl FnMut(&mut BTreeSet<Arc<PodSelector>>),
    ) {
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

    fn ns() -> Arc<str> {
        "x".into()
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
        live.add(&ns(), &coredns);
        live.add(&ns(), &coredns);
        assert_eq!(live.take_new().len(), 1);
        let dns = pod("kube-system", &[("k8s-app", "kube-dns"), ("pod-template-hash", "1")]);
        assert!(live.selecting(&dns).refusing.contains(&coredns.required_anti[0].selector));
        assert!(live.selecting(&dns).preferring.is_empty());
        assert!(live.selecting(&pod("kube-system", &[("k8s-app", "proxy")])).is_empty());
        assert!(live.selecting(&pod("default", &[("k8s-app", "kube-dns")])).is_empty());
        live.remove(&ns(), &coredns);
        assert!(!live.selecting(&dns).is_empty());
        live.remove(&ns(), &coredns);
        assert!(live.selecting(&dns).is_empty());
        assert!(live.is_empty() && live.by_namespace.is_empty() && live.of_namespace.is_empty());
    }

    #[test]
    fn a_selector_that_becomes_one_of_another_kind_of_term_is_new_again() {
        let mut live = LiveSelectors::default();
        let anti = affinity(&[in_namespace("x", labelled("app", one_of(&["db"])))]);
        let required = PodAffinity { required: anti.required_anti.clone(), ..PodAffinity::default() };
        live.add(&ns(), &required);
        assert_eq!(live.take_new().len(), 1);
        let db = pod("x", &[("app", "db")]);
        assert!(live.selecting(&db).refusing.is_empty());
        live.add(&ns(), &anti);
        assert_eq!(live.take_new().len(), 1);
        assert!(!live.selecting(&db).refusing.is_empty() && !live.selecting(&db).preferring.is_empty());
        live.remove(&ns(), &required);
        assert!(!live.selecting(&db).refusing.is_empty() && live.selecting(&db).preferring.is_empty());
    }

    fn anywhere(labels: LabelSelector) -> PodSelector {
        PodSelector { namespace_selector: LabelSelector::All([].into()), labels, ..PodSelector::default() }
    }

    fn numbered(range: std::ops::Range<usize>, reach: fn(LabelSelector) -> PodSelector) -> PodAffinity {
        let selector = |at: usize| reach(labelled(&format!("key-{at}"), Operator::Exists));
        affinity(&range.map(selector).collect::<Vec<_>>())
    }

    fn near(labels: LabelSelector) -> PodSelector {
        in_namespace("x", labels)
    }

    #[test]
    fn the_pods_of_a_namespace_have_a_limited_number_of_selectors_and_those_that_reach_others_few() {
        let mut live = LiveSelectors::default();
        let (x, y) = (ns(), Arc::<str>::from("y"));
        live.add(&x, &numbered(0..SELECTORS_MAX, near));
        assert!(live.has_room(&x, &numbered(7..9, near)), "they are counted already");
        assert_eq!(live.of_namespace(&x), NamespaceSelectors { all: SELECTORS_MAX, foreign: 0 });
        assert!(!live.has_room(&x, &numbered(SELECTORS_MAX..SELECTORS_MAX + 1, near)));
        assert!(
            live.has_room(&y, &numbered(0..FOREIGN_SELECTORS_MAX, anywhere)),
            "another namespace is not full"
        );
        assert!(!live.has_room(&y, &numbered(0..FOREIGN_SELECTORS_MAX + 1, anywhere)));
        assert!(
            !live.has_room(&y, &numbered(0..FOREIGN_SELECTORS_MAX + 1, near)),
            "for y, x is another namespace"
        );
        assert_eq!(live.full().collect::<Vec<_>>(), [&x, &y]);
    }

    #[test]
    fn pods_with_a_node_count_beyond_the_limit_and_a_full_namespace_is_relieved_once_it_has_room() {
        let mut live = LiveSelectors::default();
        let (x, one) = (ns(), |at: usize| numbered(at..at + 1, anywhere));
        live.add(&x, &numbered(0..FOREIGN_SELECTORS_MAX + 1, anywhere));
        assert_eq!(live.of_namespace(&x).foreign, FOREIGN_SELECTORS_MAX + 1);
        assert_eq!(
            live.selecting(&pod("z", &[("key-256", "")])).refusing.0.len(),
            1,
            "it constrains all the same"
        );
        assert!(!live.has_room(&x, &one(1000)));
        live.add(&x, &one(3));
        live.remove(&x, &one(3));
        live.remove(&x, &one(3));
        assert!(live.take_relieved().is_empty(), "it is just full now");
        live.remove(&x, &one(4));
        assert_eq!(live.take_relieved().into_iter().collect::<Vec<_>>(), std::slice::from_ref(&x));
        assert!(live.has_room(&x, &one(1000)) && live.full().next().is_none());
        live.remove(&x, &one(5));
        assert!(live.take_relieved().is_empty(), "nobody was refused meanwhile");
    }

    /// Ten thousand selectors that no label distinguishes.
    #[test]
    fn many_selectors_come_and_go_in_time_that_grows_with_their_number() {
        let cost = |count: usize| {
            let (mut live, terms) = (LiveSelectors::default(), numbered(0..count, anywhere));
            let started = std::time::Instant::now();
            for _ in 0..20_000 / count {
                live.add(&ns(), &terms);
                live.remove(&ns(), &terms);
            }
            assert!(live.is_empty());
            started.elapsed()
        };
        let least = |count| (0..3).map(|_| cost(count)).min().expect("three");
        let (few, many) = (least(1_000), least(20_000));
        assert!(many < 8 * few, "the same number of selectors: {few:?} in twenty parts, {many:?} at once");
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
            selectors.iter().for_each(|selector| live.add(&ns(), &affinity(std::slice::from_ref(selector))));
            let mut left = Vec::new();
            for (selector, gone) in selectors.iter().zip(gone) {
                match gone {
                    true => live.remove(&ns(), &affinity(std::slice::from_ref(selector))),
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
