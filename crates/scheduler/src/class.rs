//! Pod classes: groups of pods that every rule treats alike.
//!
//! The key of a class is the whole [`PodSpec`] in canonical form, which holds exactly the fields of the pod that rules
//! read, plus the parts of the pod's namespace and labels that affinity terms of other pods may read. Labels that no
//! such term names are left out, so that the pods of a StatefulSet, each labelled with its own name, are one class.
//! Each cached rule has a trait, the part of the spec that it reads; classes with an equal trait share that rule's
//! answers. The placement settings of a pod's policy and its hints are part of its class, too: when these change, the
//! pods get another class, so that no ranked list becomes wrong.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::hints::Terms;
use crate::rules::{CachedRule, PlacementSettings};
use berth_model::{
    Identity, Labels, NodeAffinity, NodeSelectorTerm, PodAffinity, PodSpec, Toleration, VolumeZone,
};

/// Identifies a class within the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u64);

/// Identifies a value of one rule's trait; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraitId(pub u64);

/// One class of pods.
#[derive(Debug)]
pub struct Class {
    pub id: ClassId,
    pub spec: Arc<PodSpec>,
    /// The part of the pods' identity that affinity terms of other pods read.
    pub identity: Identity,
    /// Each of these pods matches its own required affinity: the first of them needs no other pod.
    pub self_affine: bool,
    /// Capacity reserved for pods with lower priority is available to these pods. The same for all pods while nothing
    /// is reserved.
    pub priority: i32,
    /// Placement settings of these pods' policy.
    pub placement: Arc<PlacementSettings>,
    /// Preferred pod affinity terms from hints, in addition to the pods' own.
    pub hints: Terms,
    /// Trait values by rule; `None` where the rule does not apply to this class.
    pub traits: [Option<TraitId>; CachedRule::COUNT],
    pub tolerates_unschedulable: bool,
}

impl Class {
    /// Returns the cached rules that apply, each with its trait.
    pub fn cached_rules(&self) -> impl Iterator<Item = (CachedRule, TraitId)> + '_ {
        CachedRule::ALL.into_iter().filter_map(|rule| Some((rule, self.traits[rule.index()]?)))
    }

    /// Returns whether the valid nodes of its pods depend on pods on other nodes.
    pub fn looks_at_pods(&self) -> bool {
        let spec = &self.spec;
        // Terms of other pods can only select pods whose namespace is part of their class.
        let named = self.identity != Identity::default();
        let cells = self.placement.limit.as_ref().is_some_and(|limit| limit.topology_key.is_some());
        let hinted = !self.hints.is_empty();
        named || cells || hinted || !spec.pod_affinity.is_empty() || !spec.spread.constraints.is_empty()
    }

    /// Returns whether the arrival of a pod like this may make nodes valid for the class: it matches the class's
    /// required affinity, or makes the emptiest domain of its spread less empty.
    pub fn waits_for(&self, pod: &Identity) -> bool {
        let required = &self.spec.pod_affinity.required;
        let hard = self.spec.spread.constraints.iter().filter(|constraint| constraint.hard);
        required.iter().any(|term| term.selector.matches(pod))
            || hard.into_iter().any(|c| c.selector.matches(pod))
    }

    /// Returns a number that is the same for the same class in every process of this program. It ignores priorities, as
    /// only a process with reservations distinguishes classes by them, and policies and hints, which do not reach all
    /// processes at once.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.spec, &self.identity, self.self_affine).hash(&mut hasher);
        hasher.finish()
    }

    fn key(&self) -> ClassKey {
        ClassKey {
            spec: self.spec.clone(),
            identity: self.identity.clone(),
            self_affine: self.self_affine,
            priority: self.priority,
            placement: self.placement.clone(),
            hints: self.hints.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(spec: PodSpec) -> Class {
        let class = Classifier::default().classify(&Arc::new(spec), &Identity::default(), 0);
        Arc::into_inner(class).expect("the classifier is gone")
    }
}

/// The part of a spec that one rule reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Trait {
    Tolerations(Box<[Toleration]>),
    NodeAffinity(Labels, NodeAffinity),
    Images(Box<[Arc<str>]>, u32),
    BoundVolumes(Box<[Box<[NodeSelectorTerm]>]>),
    VolumeZones(Box<[VolumeZone]>),
}

/// Identity of a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClassKey {
    spec: Arc<PodSpec>,
    identity: Identity,
    self_affine: bool,
    priority: i32,
    placement: Arc<PlacementSettings>,
    hints: Terms,
}

/// Labels that are named in the terms of any pod. Only grows.
#[derive(Debug, Default)]
struct Named {
    terms: bool,
    label_keys: BTreeSet<Arc<str>>,
    namespace_label_keys: BTreeSet<Arc<str>>,
}

impl Named {
    fn of(&self, pod: &Identity) -> Identity {
        if !self.terms {
            return Identity::default();
        }
        let only = |labels: &Labels, keys: &BTreeSet<Arc<str>>| {
            labels.pairs().filter(|(key, _)| keys.contains(key)).cloned().collect()
        };
        Identity {
            namespace: pod.namespace.clone(),
            namespace_labels: only(&pod.namespace_labels, &self.namespace_label_keys),
            labels: only(&pod.labels, &self.label_keys),
        }
    }
}

/// Assigns classes to pods. Remembers the classes in use and a bounded number of recently used ones.
#[derive(Debug, Default)]
pub struct Classifier {
    classes: HashMap<ClassKey, Arc<Class>>,
    named: Named,
    /// Settings for pods without a policy.
    placement: Arc<PlacementSettings>,
    /// Some node had a reservation.
    reservations: bool,
    traits: HashMap<Trait, TraitId>,
    /// Classes in order of creation, to evict unused ones first.
    order: VecDeque<Arc<Class>>,
    next_class: u64,
    next_trait: u64,
}

/// Maximum number of unused classes: a Deployment that scales up later finds its ranked lists.
const MOST_UNUSED: usize = 4096;

impl Classifier {
    /// Creates a classifier with the placement settings for pods without a policy.
    pub fn new(placement: Arc<PlacementSettings>) -> Self {
        Classifier { placement, ..Classifier::default() }
    }

    /// Records the labels that the terms of a pod read. Returns whether any is new: then pods classified before may
    /// belong to other classes now.
    pub fn note_terms(&mut self, affinity: &PodAffinity) -> bool {
        if affinity.is_empty() {
            return false;
        }
        let named = &mut self.named;
        let mut news = !std::mem::replace(&mut named.terms, true);
        for term in affinity.terms() {
            let selector = &term.selector;
            for (keys, into) in [
                (&selector.labels, &mut named.label_keys),
                (&selector.namespace_selector, &mut named.namespace_label_keys),
            ] {
                for key in keys.keys() {
                    if !into.contains(key) {
                        news |= into.insert(key.clone());
                    }
                }
            }
        }
        news
    }

    /// Records that a node has a reservation. Returns whether this is new, as for [`Classifier::note_terms`]. It is
    /// never reset: under load, reservations recur.
    pub fn note_reservations(&mut self) -> bool {
        !std::mem::replace(&mut self.reservations, true)
    }

    /// Returns the class of a pod with this spec and identity.
    pub fn classify(&mut self, spec: &Arc<PodSpec>, pod: &Identity, priority: i32) -> Arc<Class> {
        let placement = self.placement.clone();
        self.classify_under(placement, spec, pod, priority)
    }

    /// Returns the class of a pod under a policy.
    pub fn classify_under(
        &mut self,
        placement: Arc<PlacementSettings>,
        spec: &Arc<PodSpec>,
        pod: &Identity,
        priority: i32,
    ) -> Arc<Class> {
        self.classify_hinted(placement, Terms::default(), spec, pod, priority)
    }

    /// Returns the class of a pod with additional terms from hints.
    pub fn classify_hinted(
        &mut self,
        placement: Arc<PlacementSettings>,
        hints: Terms,
        spec: &Arc<PodSpec>,
        pod: &Identity,
        priority: i32,
    ) -> Arc<Class> {
        let priority = if self.reservations { priority } else { 0 };
        let required = &spec.pod_affinity.required;
        let self_affine = !required.is_empty() && required.iter().all(|term| term.selector.matches(pod));
        let identity = self.named.of(pod);
        let key = ClassKey { spec: spec.clone(), identity, self_affine, priority, placement, hints };
        if let Some(class) = self.classes.get(&key) {
            return class.clone();
        }
        let mut traits = [None; CachedRule::COUNT];
        for rule in CachedRule::ALL {
            if let Some(value) = trait_of(rule, spec) {
                traits[rule.index()] = Some(self.trait_id(value));
            }
        }
        self.next_class += 1;
        let class = Arc::new(Class {
            id: ClassId(self.next_class),
            spec: spec.clone(),
            identity: key.identity.clone(),
            self_affine,
            priority,
            placement: key.placement.clone(),
            hints: key.hints.clone(),
            traits,
            tolerates_unschedulable: crate::rules::tolerates_unschedulable(&spec.tolerations),
        });
        self.classes.insert(key, class.clone());
        self.order.push_back(class.clone());
        self.forget_unused();
        class
    }

    /// Returns the number of known classes.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    fn trait_id(&mut self, value: Trait) -> TraitId {
        let next = &mut self.next_trait;
        *self.traits.entry(value).or_insert_with(|| {
            *next += 1;
            TraitId(*next)
        })
    }

    /// Checks the two oldest classes for each new one, so that the work is spread evenly: an unused one is evicted, a
    /// used one moves to the back.
    fn forget_unused(&mut self) {
        for _ in 0..2 {
            if self.order.len() <= MOST_UNUSED {
                return;
            }
            let Some(class) = self.order.pop_front() else {
                return;
            };
            // Here and in `classes`: no other references.
            if Arc::strong_count(&class) > 2 {
                self.order.push_back(class);
                continue;
            }
            self.classes.remove(&class.key());
        }
        if self.traits.len() > 2 * CachedRule::COUNT * self.classes.len() {
            let classes = &self.classes;
            let used: std::collections::HashSet<TraitId> =
                classes.values().flat_map(|class| class.cached_rules().map(|(_, id)| id)).collect();
            self.traits.retain(|_, id| used.contains(id));
        }
    }
}

fn trait_of(rule: CachedRule, spec: &PodSpec) -> Option<Trait> {
    match rule {
        // Every class has this trait: taints also exclude pods without tolerations.
        CachedRule::TaintToleration => Some(Trait::Tolerations(spec.tolerations.clone())),
        CachedRule::NodeAffinity => crate::rules::node_affinity_applies(spec)
            .then(|| Trait::NodeAffinity(spec.node_selector.clone(), spec.node_affinity.clone())),
        CachedRule::ImageLocality => {
            (!spec.images.is_empty()).then(|| Trait::Images(spec.images.clone(), spec.containers))
        }
        CachedRule::VolumeBinding => {
            let bound = &spec.volumes.as_ref()?.bound;
            (!bound.is_empty()).then(|| Trait::BoundVolumes(bound.clone()))
        }
        CachedRule::VolumeZone => {
            let zones = &spec.volumes.as_ref()?.zones;
            (!zones.is_empty()).then(|| Trait::VolumeZones(zones.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{LabelSelector, Operator, PodSelector, PodTerm, Requirement, WeightedPodTerm};

    fn with_images(images: &[&str]) -> Arc<PodSpec> {
        Arc::new(PodSpec { images: images.iter().map(|i| Arc::from(*i)).collect(), ..PodSpec::default() })
    }

    fn classify(classifier: &mut Classifier, spec: &Arc<PodSpec>) -> Arc<Class> {
        classifier.classify(spec, &Identity::default(), 0)
    }

    #[test]
    fn equal_specs_are_one_class_and_equal_parts_one_trait() {
        let mut classifier = Classifier::default();
        let a = classify(&mut classifier, &with_images(&["a"]));
        let again = classify(&mut classifier, &with_images(&["a"]));
        let b = classify(&mut classifier, &with_images(&["b"]));
        assert_eq!(a.id, again.id);
        assert_ne!(a.id, b.id);
        let (taints, images) = (CachedRule::TaintToleration.index(), CachedRule::ImageLocality.index());
        assert_eq!(a.traits[taints], b.traits[taints]);
        assert_ne!(a.traits[images], b.traits[images]);
        assert_eq!(a.traits[CachedRule::NodeAffinity.index()], None);
    }

    #[test]
    fn unused_classes_are_forgotten_beyond_the_bound_but_used_ones_never() {
        let mut classifier = Classifier::default();
        let kept = classify(&mut classifier, &with_images(&["kept"]));
        for at in 0..3 * MOST_UNUSED {
            classify(&mut classifier, &with_images(&[&format!("image-{at}")]));
        }
        assert!(classifier.len() <= MOST_UNUSED + 2, "{} classes", classifier.len());
        assert!(classifier.traits.len() <= 8 * MOST_UNUSED, "{} traits", classifier.traits.len());
        assert_eq!(classify(&mut classifier, &with_images(&["kept"])).id, kept.id);
    }

    fn pod(namespace: &str, labels: &[(&str, &str)]) -> Identity {
        let labels = labels.iter().copied().collect();
        Identity { namespace: namespace.into(), labels, ..Identity::default() }
    }

    fn term(key: &str) -> PodTerm {
        let requirement = Requirement { key: key.into(), operator: Operator::Exists };
        let labels = LabelSelector::All([requirement].into());
        let selector = PodSelector { namespaces: ["x".into()].into(), labels, ..PodSelector::default() };
        PodTerm { selector, topology_key: "zone".into() }
    }

    #[test]
    fn only_labels_named_by_a_pods_term_separate_classes() {
        let mut classifier = Classifier::default();
        let spec = Arc::new(PodSpec::default());
        let one = pod("x", &[("app", "db"), ("pod-name", "db-0")]);
        let two = pod("y", &[("app", "web"), ("pod-name", "web-0")]);
        let three = pod("x", &[("app", "db"), ("pod-name", "db-1")]);
        let class = |classifier: &mut Classifier, pod| classifier.classify(&spec, pod, 0).id;
        assert_eq!(class(&mut classifier, &one), class(&mut classifier, &two));
        let affinity = PodAffinity { required_anti: [term("app")].into(), ..PodAffinity::default() };
        assert!(classifier.note_terms(&affinity));
        assert!(!classifier.note_terms(&affinity));
        assert_ne!(class(&mut classifier, &one), class(&mut classifier, &two));
        assert_eq!(class(&mut classifier, &one), class(&mut classifier, &three));
        let preferred = [WeightedPodTerm { weight: 1, term: term("pod-name") }].into();
        assert!(classifier.note_terms(&PodAffinity { preferred, ..PodAffinity::default() }));
        assert_ne!(class(&mut classifier, &one), class(&mut classifier, &three));
    }

    #[test]
    fn classes_differ_by_whether_a_pod_matches_its_own_affinity() {
        let mut classifier = Classifier::default();
        let affinity = PodAffinity { required: [term("app")].into(), ..PodAffinity::default() };
        let spec = Arc::new(PodSpec { pod_affinity: Arc::new(affinity), ..PodSpec::default() });
        assert!(classifier.classify(&spec, &pod("x", &[("app", "db")]), 0).self_affine);
        assert!(!classifier.classify(&spec, &pod("x", &[]), 0).self_affine);
        assert!(!classifier.classify(&spec, &pod("y", &[("app", "db")]), 0).self_affine);
    }
}
