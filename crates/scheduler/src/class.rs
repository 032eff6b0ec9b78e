//! Pod classes: groups of pods that every rule treats alike.
//!
//! The key of a class is the whole [`PodSpec`] in canonical form, which holds exactly the fields of the pod that rules
//! read, plus the selectors in affinity terms of known pods that select it. The pod's own labels are no part of it, so
//! that the pods of a StatefulSet, each labelled with its own name, are one class.
//! Classes that ask the same of each node alone have a common part, a class of its own: it has no images, and looks at no pods.
//! Each cached rule has a trait, the part of the spec that it reads; classes with an equal trait share that rule's
//! answers. The placement settings of a pod's policy and its hints are part of its class, too: when these change, the
//! pods get another class, so that no ranked list becomes wrong.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::hints::Terms;
use crate::live_selectors::SelectedBy;
use crate::rules::{CachedRule, PlacementSettings};
use berth_model::{
    Identity, Labels, NodeAffinity, NodeSelectorTerm, PodSpec, Spread, Toleration, VolumeZone,
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
    /// Selectors in the affinity terms of known pods that select these pods.
    pub selected_by: SelectedBy,
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
    /// `None`: this class is the common part of others.
    pub(crate) common: Option<Arc<Class>>,
    pub(crate) fingerprint: OnceLock<u64>,
}

impl Class {
    /// Returns what this class has in common with others: what it asks of each node alone, apart from its images.
    pub fn common(this: &Arc<Class>) -> &Arc<Class> {
        this.common.as_ref().unwrap_or(this)
    }

    pub fn common_id(&self) -> ClassId {
        self.common.as_ref().map_or(self.id, |common| common.id)
    }

    /// Returns the cached rules that apply, each with its trait.
    pub fn cached_rules(&self) -> impl Iterator<Item = (CachedRule, TraitId)> + '_ {
        CachedRule::ALL.into_iter().filter_map(|rule| Some((rule, self.traits[rule.index()]?)))
    }

    /// Returns whether the valid nodes of its pods depend on pods on other nodes.
    pub fn looks_at_pods(&self) -> bool {
        let spec = &self.spec;
        let cells = self.placement.limit.as_ref().is_some_and(|limit| limit.topology_key.is_some());
        let hinted = !self.hints.is_empty();
        !self.selected_by.is_empty()
            || cells
            || hinted
            || !spec.pod_affinity.is_empty()
            || !spec.spread.constraints.is_empty()
    }

    /// Returns whether pods on other nodes can make a node invalid for its pods. Otherwise they only affect the order of
    /// the nodes.
    pub fn is_excluded_by_pods(&self) -> bool {
        let (spec, affinity) = (&self.spec, &self.spec.pod_affinity);
        let cells = self.placement.limit.as_ref().is_some_and(|limit| limit.topology_key.is_some());
        cells
            || !self.selected_by.refusing.is_empty()
            || !affinity.required.is_empty()
            || !affinity.required_anti.is_empty()
            || spec.spread.constraints.iter().any(|constraint| constraint.hard)
    }

    /// Returns whether [`Class::waits_for`] any pod.
    pub fn listens(&self) -> bool {
        let spec = &self.spec;
        !spec.pod_affinity.required.is_empty() || spec.spread.constraints.iter().any(|c| c.hard)
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
    /// only a process with reservations distinguishes classes by them, and policies, hints and the terms of other pods,
    /// which do not reach all processes at once.
    pub fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            (&self.spec, self.self_affine).hash(&mut hasher);
            hasher.finish()
        })
    }

    fn key(&self) -> ClassKey {
        ClassKey {
            spec: self.spec.clone(),
            selected_by: self.selected_by.clone(),
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
    selected_by: SelectedBy,
    self_affine: bool,
    priority: i32,
    placement: Arc<PlacementSettings>,
    hints: Terms,
}

/// What determines the class of a pod besides its spec and priority.
#[derive(Debug, Clone, Default)]
pub struct ClassContext {
    /// Settings of the policy that governs it.
    pub placement: Arc<PlacementSettings>,
    /// Additional terms from hints.
    pub hints: Terms,
    pub selected_by: SelectedBy,
}

/// Assigns classes to pods. Remembers the classes in use and a bounded number of recently used ones.
#[derive(Debug, Default)]
pub struct Classifier {
    classes: HashMap<ClassKey, Arc<Class>>,
    /// Common parts of classes.
    commons: HashMap<ClassKey, Arc<Class>>,
    /// Settings for pods without a policy.
    placement: Arc<PlacementSettings>,
    /// Some node had a reservation.
    reservations: bool,
    traits: HashMap<Trait, TraitId>,
    /// Classes in order of creation, to evict unused ones first.
    order: VecDeque<Arc<Class>>,
    next_class: u64,
    next_common: u64,
    next_trait: u64,
}

/// Bit of the ids of common parts, so that they do not change those of classes.
const COMMON: u64 = 1 << 63;

/// Maximum number of unused classes: a Deployment that scales up later finds its ranked lists.
const MOST_UNUSED: usize = 4096;

impl Classifier {
    /// Creates a classifier with the placement settings for pods without a policy.
    pub fn new(placement: Arc<PlacementSettings>) -> Self {
        Classifier { placement, ..Classifier::default() }
    }

    /// Records that a node has a reservation. Returns whether this is new: then pods classified before may
    /// belong to other classes now. It is never reset: under load, reservations recur.
    pub fn note_reservations(&mut self) -> bool {
        !std::mem::replace(&mut self.reservations, true)
    }

    /// Returns the class of a pod with this spec and identity that no policy, hint or term of other pods concerns.
    pub fn classify(&mut self, spec: &Arc<PodSpec>, pod: &Identity, priority: i32) -> Arc<Class> {
        let context = ClassContext { placement: self.placement.clone(), ..ClassContext::default() };
        self.classify_in(context, spec, pod, priority)
    }

    /// Returns the class of a pod in this context.
    pub fn classify_in(
        &mut self,
        context: ClassContext,
        spec: &Arc<PodSpec>,
        pod: &Identity,
        priority: i32,
    ) -> Arc<Class> {
        let ClassContext { placement, hints, selected_by } = context;
        let priority = if self.reservations { priority } else { 0 };
        let required = &spec.pod_affinity.required;
        let self_affine = !required.is_empty() && required.iter().all(|term| term.selector.matches(pod));
        let key = ClassKey { spec: spec.clone(), selected_by, self_affine, priority, placement, hints };
        if let Some(class) = self.classes.get(&key) {
            return class.clone();
        }
        let common = Some(self.common_of(&key));
        let class = self.create(&key, common);
        self.classes.insert(key, class.clone());
        self.order.push_back(class.clone());
        self.forget_unused();
        class
    }

    fn common_of(&mut self, key: &ClassKey) -> Arc<Class> {
        let key = ClassKey {
            spec: Arc::new(common_spec(&key.spec)),
            selected_by: SelectedBy::default(),
            self_affine: false,
            hints: Terms::default(),
            ..key.clone()
        };
        match self.commons.get(&key) {
            Some(common) => common.clone(),
            None => {
                let common = self.create(&key, None);
                self.commons.insert(key, common.clone());
                common
            }
        }
    }

    fn create(&mut self, key: &ClassKey, common: Option<Arc<Class>>) -> Arc<Class> {
        let mut traits = [None; CachedRule::COUNT];
        for rule in CachedRule::ALL {
            // The common part has an image that no node has.
            let applies = common.is_some() || rule != CachedRule::ImageLocality;
            if let Some(value) = trait_of(rule, &key.spec).filter(|_| applies) {
                traits[rule.index()] = Some(self.trait_id(value));
            }
        }
        let id = match common {
            Some(_) => {
                self.next_class += 1;
                ClassId(self.next_class)
            }
            None => {
                self.next_common += 1;
                ClassId(COMMON | self.next_common)
            }
        };
        let ClassKey { spec, selected_by, self_affine, priority, placement, hints } = key.clone();
        let tolerates_unschedulable = crate::rules::tolerates_unschedulable(&spec.tolerations);
        Arc::new(Class {
            id,
            spec,
            selected_by,
            self_affine,
            priority,
            placement,
            hints,
            traits,
            tolerates_unschedulable,
            common,
            fingerprint: OnceLock::new(),
        })
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
        if self.commons.len() > 2 * self.classes.len() {
            self.commons.retain(|_, common| Arc::strong_count(common) > 1);
        }
        if self.traits.len() > 2 * CachedRule::COUNT * self.classes.len() {
            let classes = self.classes.values().chain(self.commons.values());
            let used: std::collections::HashSet<TraitId> =
                classes.flat_map(|class| class.cached_rules().map(|(_, id)| id)).collect();
            self.traits.retain(|_, id| used.contains(id));
        }
    }
}

/// Returns the part of a spec that is about each node alone, without the names of images.
fn common_spec(spec: &PodSpec) -> PodSpec {
    let images = if spec.images.is_empty() { Box::default() } else { Box::from([Arc::from("")]) };
    PodSpec {
        pod_affinity: Arc::default(),
        spread: Spread::default(),
        images,
        containers: 0,
        unsupported: Box::default(),
        ..spec.clone()
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
    use crate::live_selectors::LiveSelectors;
    use berth_model::{
        LabelSelector, Operator, PodAffinity, PodSelector, PodTerm, Requirement, WeightedPodTerm,
    };

    fn with_images(images: &[&str]) -> Arc<PodSpec> {
        Arc::new(PodSpec { images: images.iter().map(|i| Arc::from(*i)).collect(), ..PodSpec::default() })
    }

    fn classify(classifier: &mut Classifier, spec: &Arc<PodSpec>) -> Arc<Class> {
        classifier.classify(spec, &Identity::default(), 0)
    }

    #[test]
    fn equal_specs_are_one_class_and_equal_parts_one_trait() {
        let mut classifier = Classifier::default();
        assert!(classifier.is_empty());
        let a = classify(&mut classifier, &with_images(&["a"]));
        assert!(!classifier.is_empty());
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
    fn only_selectors_that_select_a_pod_separate_classes_and_its_own_labels_never() {
        let (mut classifier, mut live) = (Classifier::default(), LiveSelectors::default());
        let spec = Arc::new(PodSpec::default());
        let one = pod("x", &[("app", "db"), ("pod-name", "db-0")]);
        let two = pod("y", &[("app", "web"), ("pod-name", "web-0")]);
        let three = pod("x", &[("app", "db"), ("pod-name", "db-1")]);
        let class = |classifier: &mut Classifier, live: &LiveSelectors, pod| {
            let context = ClassContext { selected_by: live.selecting(pod), ..ClassContext::default() };
            classifier.classify_in(context, &spec, pod, 0)
        };
        let plain = class(&mut classifier, &live, &one);
        assert_eq!(plain.id, class(&mut classifier, &live, &two).id);
        let affinity = PodAffinity { required_anti: [term("app")].into(), ..PodAffinity::default() };
        live.add(&"x".into(), &affinity);
        assert_eq!(
            plain.id,
            class(&mut classifier, &live, &two).id,
            "a term about others' pods changes nothing"
        );
        let selected = class(&mut classifier, &live, &one);
        assert!(selected.looks_at_pods() && !plain.looks_at_pods());
        assert_eq!(selected.id, class(&mut classifier, &live, &three).id);
        // A term that reads a label unlike for each pod selects all of them: still one class.
        let preferred = [WeightedPodTerm { weight: 1, term: term("pod-name") }].into();
        live.add(&"x".into(), &PodAffinity { preferred, ..PodAffinity::default() });
        assert_eq!(class(&mut classifier, &live, &one).id, class(&mut classifier, &live, &three).id);
        live.remove(&"x".into(), &affinity);
        assert_ne!(class(&mut classifier, &live, &one).id, selected.id);
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
