//! Classes: pods that every rule treats alike.
//!
//! The key of a class is the whole [`PodSpec`] in canonical form, which holds exactly what rules read. Each cached rule
//! has a trait, the part of the spec it reads; classes with an equal trait share that rule's answers.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use crate::model::{Labels, NodeAffinity, PodSpec, Toleration};
use crate::rules::CachedRule;

/// Identifies a class for as long as the process runs; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u64);

/// Identifies a value of one rule's trait; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraitId(pub u64);

/// One class of pods.
#[derive(Debug)]
pub struct Class {
    pub id: ClassId,
    pub spec: Arc<PodSpec>,
    /// By rule: the trait's value, or `None` where the rule does not apply to this class.
    pub traits: [Option<TraitId>; CachedRule::COUNT],
    pub tolerates_unschedulable: bool,
}

impl Class {
    /// The cached rules that apply, each with its trait.
    pub fn cached_rules(&self) -> impl Iterator<Item = (CachedRule, TraitId)> + '_ {
        CachedRule::ALL.into_iter().filter_map(|rule| Some((rule, self.traits[rule.index()]?)))
    }

    #[cfg(test)]
    pub(crate) fn for_test(spec: PodSpec) -> Class {
        let class = Classifier::default().classify(&Arc::new(spec));
        Arc::into_inner(class).expect("the classifier is gone")
    }
}

/// What one rule reads of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Trait {
    Tolerations(Box<[Toleration]>),
    NodeAffinity(Labels, NodeAffinity),
    Images(Box<[Arc<str>]>, u32),
}

/// Gives every pod its class. Remembers the classes in use and, bounded, those used last.
#[derive(Debug, Default)]
pub struct Classifier {
    classes: HashMap<Arc<PodSpec>, Arc<Class>>,
    traits: HashMap<Trait, TraitId>,
    /// Classes in the order they were made, to forget the unused ones first.
    order: VecDeque<Arc<Class>>,
    next_class: u64,
    next_trait: u64,
}

/// Classes that no pod uses are remembered up to this many: a Deployment that scales up again finds its ranked lists.
const MOST_UNUSED: usize = 4096;

impl Classifier {
    pub fn classify(&mut self, spec: &Arc<PodSpec>) -> Arc<Class> {
        if let Some(class) = self.classes.get(spec) {
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
            traits,
            tolerates_unschedulable: crate::rules::tolerates_unschedulable(&spec.tolerations),
        });
        self.classes.insert(spec.clone(), class.clone());
        self.order.push_back(class.clone());
        self.forget_unused();
        class
    }

    /// Number of classes remembered.
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

    /// Looks at the two oldest classes for each new one, so that the work is spread evenly: an unused one is forgotten, a
    /// used one goes to the back.
    fn forget_unused(&mut self) {
        for _ in 0..2 {
            if self.order.len() <= MOST_UNUSED {
                return;
            }
            let Some(class) = self.order.pop_front() else {
                return;
            };
            // Here and in `classes`: nobody else has it.
            if Arc::strong_count(&class) > 2 {
                self.order.push_back(class);
                continue;
            }
            self.classes.remove(&class.spec);
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
        // Every class has it: a node's taints exclude pods that say nothing, too.
        CachedRule::TaintToleration => Some(Trait::Tolerations(spec.tolerations.clone())),
        CachedRule::NodeAffinity => crate::rules::node_affinity_applies(spec)
            .then(|| Trait::NodeAffinity(spec.node_selector.clone(), spec.node_affinity.clone())),
        CachedRule::ImageLocality => {
            (!spec.images.is_empty()).then(|| Trait::Images(spec.images.clone(), spec.containers))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_images(images: &[&str]) -> Arc<PodSpec> {
        Arc::new(PodSpec { images: images.iter().map(|i| Arc::from(*i)).collect(), ..PodSpec::default() })
    }

    #[test]
    fn equal_specs_are_one_class_and_equal_parts_one_trait() {
        let mut classifier = Classifier::default();
        let a = classifier.classify(&with_images(&["a"]));
        let again = classifier.classify(&with_images(&["a"]));
        let b = classifier.classify(&with_images(&["b"]));
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
        let kept = classifier.classify(&with_images(&["kept"]));
        for at in 0..3 * MOST_UNUSED {
            classifier.classify(&with_images(&[&format!("image-{at}")]));
        }
        assert!(classifier.len() <= MOST_UNUSED + 2, "{} classes", classifier.len());
        assert!(classifier.traits.len() <= 8 * MOST_UNUSED, "{} traits", classifier.traits.len());
        assert_eq!(classifier.classify(&with_images(&["kept"])).id, kept.id);
    }
}
