//! Node affinity, validated as upstream's `component-helpers/scheduling/corev1/nodeaffinity`.
//!
//! Upstream reports an error in a required term only for nodes that no other term matches. Here it is reported at once:
//! the intent is unclear, and the API server rejects such terms anyway.

use berth_model::{
    FieldRequirement, NodeAffinity, NodeSelectorTerm, Operator, PreferredTerm, Requirement, WrongRequirement,
};
use std::sync::Arc;

use super::{Interner, Problems};
use crate::lean::{LeanNodeAffinity, LeanRequirement, LeanTerm};

const REQUIRED: &str =
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
const PREFERRED: &str = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";

/// Converts node affinity. Terms, requirements and values are sorted: their order has no meaning, and pods that differ
/// only in it belong to one class.
pub(super) fn node_affinity(
    lean: &LeanNodeAffinity,
    interner: &mut Interner,
    problems: &mut Problems,
) -> NodeAffinity {
    let required = lean.required.as_ref().map(|selector| {
        let mut terms: Vec<NodeSelectorTerm> = (selector.node_selector_terms.iter().enumerate())
            // An empty term matches nothing but is kept: with it, not every term restricts the nodes by name.
            .map(|(i, lean)| term(lean, &|| format!("{REQUIRED}[{i}]"), interner, problems))
            .collect();
        terms.sort_unstable();
        terms.dedup();
        terms.into_boxed_slice()
    });

    let mut preferred = Vec::new();
    for (i, lean) in lean.preferred.iter().enumerate() {
        if lean.weight == 0 || is_empty(&lean.preference) {
            continue;
        }
        if !(1..=100).contains(&lean.weight) {
            problems.note(
                || format!("{PREFERRED}[{i}].weight"),
                || format!("must be between 1 and 100, is {}", lean.weight),
            );
            continue;
        }
        let path = || format!("{PREFERRED}[{i}].preference");
        preferred.push(PreferredTerm {
            weight: lean.weight as i32,
            term: term(&lean.preference, &path, interner, problems),
        });
    }
    preferred.sort_unstable();
    NodeAffinity { required, preferred: preferred.into_boxed_slice(), enforced: None }
}

/// The terms of a persistent volume's node affinity, sorted. One that cannot be understood matches nothing (upstream: an error
/// in a term counts only where no other term matches, and then as no match).
pub(crate) fn node_terms(lean: &[LeanTerm], interner: &mut Interner) -> Box<[NodeSelectorTerm]> {
    let mut terms: Vec<_> = (lean.iter().filter(|lean| !is_empty(lean)))
        .filter_map(|lean| {
            let mut problems = Problems::default();
            let term = term(lean, &String::new, interner, &mut problems);
            problems.0.is_none().then_some(term)
        })
        .collect();
    terms.sort_unstable();
    terms.dedup();
    terms.into()
}

/// A label that must have one of these values.
pub(crate) fn label_requirement(key: &str, allowed: &[String], interner: &mut Interner) -> Requirement {
    Requirement { key: interner.text(key), operator: Operator::any_of(values(allowed, interner)) }
}

fn is_empty(term: &LeanTerm) -> bool {
    term.match_expressions.is_empty() && term.match_fields.is_empty()
}

fn term(
    lean: &LeanTerm,
    path: &dyn Fn() -> String,
    interner: &mut Interner,
    problems: &mut Problems,
) -> NodeSelectorTerm {
    let mut expressions = Vec::with_capacity(lean.match_expressions.len());
    for (i, lean) in lean.match_expressions.iter().enumerate() {
        match operator(lean, interner) {
            Ok(operator) => expressions.push(Requirement { key: interner.text(&lean.key), operator }),
            Err(WrongRequirement { field, problem }) => {
                problems.note(|| format!("{}.matchExpressions[{i}].{field}", path()), || problem);
            }
        }
    }
    let mut fields = Vec::with_capacity(lean.match_fields.len());
    for (i, lean) in lean.match_fields.iter().enumerate() {
        match FieldRequirement::parse(&lean.key, &lean.operator, values(&lean.values, interner)) {
            Ok(requirement) => fields.push(requirement),
            Err(WrongRequirement { field, problem }) => {
                problems.note(|| format!("{}.matchFields[{i}].{field}", path()), || problem);
            }
        }
    }
    NodeSelectorTerm::new(expressions, fields)
}

pub(super) fn operator(
    lean: &LeanRequirement,
    interner: &mut Interner,
) -> Result<Operator, WrongRequirement> {
    Operator::parse(&lean.key, &lean.operator, values(&lean.values, interner))
}

fn values(values: &[String], interner: &mut Interner) -> Vec<Arc<str>> {
    values.iter().map(|value| interner.text(value)).collect()
}
