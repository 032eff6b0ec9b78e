//! Pod affinity, anti-affinity and topology spread: validated, and converted as upstream's `framework.PodInfo` and
//! PodTopologySpread read them.
//!
//! `matchLabelKeys` and `mismatchLabelKeys` of affinity terms are not read: since 1.33 the API server itself adds their
//! requirements to the label selector when the pod is created. For topology spread it does so only since 1.34, so they are
//! added here (an existing requirement counts once).

use std::sync::Arc;

use super::affinity::operator;
use super::{Interner, Problems};
use crate::lean::{LeanAffinity, LeanLabelSelector, LeanPodTerm, LeanPodTerms, LeanSpreadConstraint};
use berth_model::{
    Identity, LabelSelector, Operator, PodAffinity, PodSelector, PodTerm, Requirement, Spread,
    SpreadConstraint, WeightedPodTerm, WrongRequirement,
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(
    lean: &LeanAffinity,
    namespace: &Arc<str>,
    interner: &mut Interner,
    problems: &mut Problems,
) -> PodAffinity {
    let mut terms = Terms { namespace, interner, problems };
    let mut preferred = terms.preferred("podAffinity", &lean.pod_affinity, 1);
    preferred.extend(terms.preferred("podAntiAffinity", &lean.pod_anti_affinity, -1));
    preferred.sort_unstable();
    PodAffinity {
        required: terms.required("podAffinity", &lean.pod_affinity),
        required_anti: terms.required("podAntiAffinity", &lean.pod_anti_affinity),
        preferred: preferred.into(),
    }
}

struct Terms<'a> {
    namespace: &'a Arc<str>,
    interner: &'a mut Interner,
    problems: &'a mut Problems,
}

impl Terms<'_> {
    fn required(&mut self, kind: &str, lean: &LeanPodTerms) -> Box<[PodTerm]> {
        let mut terms: Vec<_> = (lean.required.iter().enumerate())
            .map(|(i, lean)| self.term(lean, &|| format!("spec.affinity.{kind}.{REQUIRED}[{i}]")))
            .collect();
        terms.sort_unstable();
        terms.dedup();
        terms.into()
    }

    fn preferred(&mut self, kind: &str, lean: &LeanPodTerms, sign: i32) -> Vec<WeightedPodTerm> {
        let mut terms = Vec::with_capacity(lean.preferred.len());
        for (i, lean) in lean.preferred.iter().enumerate() {
            let path = || format!("spec.affinity.{kind}.{PREFERRED}[{i}]");
            if !(1..=100).contains(&lean.weight) {
                self.problems.note(
                    || format!("{}.weight", path()),
                    || format!("must be between 1 and 100, is {}", lean.weight),
                );
                continue;
            }
            let term = self.term(&lean.pod_affinity_term, &|| format!("{}.podAffinityTerm", path()));
            terms.push(WeightedPodTerm { weight: sign * lean.weight as i32, term });
        }
        terms
    }

    fn term(&mut self, lean: &LeanPodTerm, path: &dyn Fn() -> String) -> PodTerm {
        if lean.topology_key.is_empty() {
            self.problems.note(|| format!("{}.topologyKey", path()), || "must name a node label".to_owned());
        }
        let mut selector = |lean: &Option<LeanLabelSelector>, field: &str| {
            let path = || format!("{}.{field}", path());
            selector(lean.as_ref(), &path, self.interner, self.problems)
        };
        let labels = selector(&lean.label_selector, "labelSelector");
        let namespace_selector = selector(&lean.namespace_selector, "namespaceSelector");
        let mut namespaces: Vec<_> = lean.namespaces.iter().map(|name| self.interner.text(name)).collect();
        if namespaces.is_empty() && lean.namespace_selector.is_none() {
            namespaces.push(self.namespace.clone());
        }
        namespaces.sort_unstable();
        namespaces.dedup();
        PodTerm {
            selector: PodSelector { namespaces: namespaces.into(), namespace_selector, labels },
            topology_key: self.interner.text(&lean.topology_key),
        }
    }
}

/// Converts a selector. An absent selector selects nothing (upstream: `metav1.LabelSelectorAsSelector`).
pub(super) fn selector(
    lean: Option<&LeanLabelSelector>,
    path: &dyn Fn() -> String,
    interner: &mut Interner,
    problems: &mut Problems,
) -> LabelSelector {
    let Some(lean) = lean else {
        return LabelSelector::Nothing;
    };
    let mut requirements: Vec<_> =
        (lean.match_labels.iter()).map(|(key, value)| is(interner.text(key), interner.text(value))).collect();
    for (i, lean) in lean.match_expressions.iter().enumerate() {
        let wrong = match operator(lean, interner) {
            Ok(Operator::Gt(_) | Operator::Lt(_)) => {
                let problem = format!("{:?} is none of In, NotIn, Exists, DoesNotExist", lean.operator);
                WrongRequirement { field: "operator", problem }
            }
            Ok(operator) => {
                requirements.push(Requirement { key: interner.text(&lean.key), operator });
                continue;
            }
            Err(wrong) => wrong,
        };
        let field = || format!("{}.matchExpressions[{i}].{}", path(), wrong.field);
        problems.note(field, || wrong.problem.clone());
    }
    all_of(requirements)
}

/// One that cannot be understood matches nothing.
pub(crate) fn selector_or_nothing(
    lean: Option<&LeanLabelSelector>,
    interner: &mut Interner,
) -> LabelSelector {
    let mut problems = Problems::default();
    let selector = selector(lean, &String::new, interner, &mut problems);
    if problems.0.is_none() { selector } else { LabelSelector::Nothing }
}

fn is(key: Arc<str>, value: Arc<str>) -> Requirement {
    Requirement { key, operator: Operator::In([value].into()) }
}

fn all_of(mut requirements: Vec<Requirement>) -> LabelSelector {
    requirements.sort_unstable();
    requirements.dedup();
    LabelSelector::All(requirements.into())
}

pub(super) fn spread(
    lean: &[LeanSpreadConstraint],
    pod: &Identity,
    interner: &mut Interner,
    problems: &mut Problems,
) -> Spread {
    let mut constraints = Vec::with_capacity(lean.len());
    for (i, lean) in lean.iter().enumerate() {
        let path = |field: &str| format!("spec.topologySpreadConstraints[{i}].{field}");
        let mut honors = |policy: &Option<String>, field: &str, default: bool| match policy.as_deref() {
            None => default,
            Some("Honor") => true,
            Some("Ignore") => false,
            Some(other) => {
                problems.note(|| path(field), || format!("{other:?} is neither Honor nor Ignore"));
                default
            }
        };
        let honor_affinity = honors(&lean.node_affinity_policy, "nodeAffinityPolicy", true);
        let honor_taints = honors(&lean.node_taints_policy, "nodeTaintsPolicy", false);
        let hard = match &*lean.when_unsatisfiable {
            "ScheduleAnyway" => false,
            "DoNotSchedule" => true,
            other => {
                let problem = || format!("{other:?} is neither DoNotSchedule nor ScheduleAnyway");
                problems.note(|| path("whenUnsatisfiable"), problem);
                true
            }
        };
        let mut positive = |value: i64, field: &str| match i32::try_from(value) {
            Ok(value @ 1..) => value,
            _ => {
                problems.note(|| path(field), || format!("must be a positive number, is {value}"));
                1
            }
        };
        let max_skew = positive(lean.max_skew, "maxSkew");
        let min_domains = positive(lean.min_domains.unwrap_or(1), "minDomains");
        if lean.topology_key.is_empty() {
            problems.note(|| path("topologyKey"), || "must name a node label".to_owned());
        }
        let mut labels =
            selector(lean.label_selector.as_ref(), &|| path("labelSelector"), interner, problems);
        if let LabelSelector::All(requirements) = &labels {
            let mut requirements = requirements.to_vec();
            for key in &lean.match_label_keys {
                if let Some(value) = pod.labels.get(key) {
                    requirements.push(is(interner.text(key), interner.text(value)));
                }
            }
            labels = all_of(requirements);
        }
        let self_match = labels.matches(&pod.labels);
        if labels == LabelSelector::All([].into()) {
            labels = LabelSelector::Nothing;
        }
        let selector = PodSelector {
            namespaces: [pod.namespace.clone()].into(),
            namespace_selector: LabelSelector::Nothing,
            labels,
        };
        let topology_key = interner.text(&lean.topology_key);
        constraints.push(SpreadConstraint {
            topology_key,
            max_skew,
            min_domains,
            hard,
            selector,
            self_match,
            honor_affinity,
            honor_taints,
        });
    }
    Spread { constraints: constraints.into(), defaulted: false }
}
