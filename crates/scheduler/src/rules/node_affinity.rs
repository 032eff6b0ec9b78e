//! NodeAffinity: `nodeSelector`, required node affinity and that of the scheduler's profile exclude nodes; matching
//! preferred terms make nodes better.

use super::RuleAnswer;
use berth_model::{FieldRequirement, Labels, Node, NodeAffinity, NodeSelectorTerm, PodSpec};

/// The node does not match the terms of the scheduler's profile. Answers below this are preferences: lower is better.
pub const NOT_ENFORCED: RuleAnswer = RuleAnswer::MAX - 2;
/// The node does not match what the pod requires.
pub const NO_MATCH: RuleAnswer = RuleAnswer::MAX - 1;
/// The pod's affinity lists node names (`metadata.name`), and not this one: kube-scheduler never evaluates such a node,
/// and reports it differently.
pub const NOT_NAMED: RuleAnswer = RuleAnswer::MAX;

/// Worst answer of the preference; larger sums of weights are scaled down.
pub const WORST: RuleAnswer = (1 << 12) - 1;

/// Returns whether the node matches this selector and these terms (upstream: `RequiredNodeAffinity`).
pub fn required_match(selector: &Labels, terms: Option<&[NodeSelectorTerm]>, node: &Node) -> bool {
    selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) && any_matches(terms, node)
}

fn any_matches(terms: Option<&[NodeSelectorTerm]>, node: &Node) -> bool {
    terms.is_none_or(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels)))
}

/// Returns whether the node matches what the scheduler's profile demands of the pod's nodes.
pub fn enforced_match(affinity: &NodeAffinity, node: &Node) -> bool {
    any_matches(affinity.enforced.as_deref(), node)
}

pub fn answer(spec: &PodSpec, node: &Node) -> RuleAnswer {
    let required = spec.node_affinity.required.as_deref();
    if required.is_some_and(|required| excluded_by_name(required, &node.name)) {
        return NOT_NAMED;
    }
    if !enforced_match(&spec.node_affinity, node) {
        return NOT_ENFORCED;
    }
    if !required_match(&spec.node_selector, required, node) {
        return NO_MATCH;
    }
    let (mut total, mut missed) = (0u64, 0u64);
    for preferred in spec.node_affinity.preferred.iter() {
        let weight = preferred.weight.max(0) as u64;
        total += weight;
        if !preferred.term.matches(&node.name, &node.labels) {
            missed += weight;
        }
    }
    let worst = u64::from(WORST);
    if total > worst { (missed * worst / total) as RuleAnswer } else { missed as RuleAnswer }
}

/// Returns the worst answer of the preference for this spec.
pub fn worst(spec: &PodSpec) -> RuleAnswer {
    let weights = spec.node_affinity.preferred.iter().map(|preferred| preferred.weight.max(0) as u64);
    weights.sum::<u64>().min(u64::from(WORST)) as RuleAnswer
}

/// Returns whether the rule applies to the class.
pub fn applies(spec: &PodSpec) -> bool {
    !spec.node_selector.is_empty()
        || spec.node_affinity.required.is_some()
        || spec.node_affinity.enforced.is_some()
        || !spec.node_affinity.preferred.is_empty()
}

/// Returns whether every term lists node names and none of them can be `node` (upstream: NodeAffinity's PreFilter).
fn excluded_by_name(terms: &[NodeSelectorTerm], node: &str) -> bool {
    !terms.is_empty()
        && terms.iter().all(|term| names(term).next().is_some() && names(term).any(|n| n != node))
}

fn names(term: &NodeSelectorTerm) -> impl Iterator<Item = &str> {
    term.fields.iter().filter_map(|field| match field {
        FieldRequirement::NameIs(name) => Some(&**name),
        FieldRequirement::NameIsNot(_) => None,
    })
}

/// Returns whether every term lists node names, but none leaves any (two names at once): no node can ever match.
pub fn names_conflict(spec: &PodSpec) -> bool {
    let Some(terms) = &spec.node_affinity.required else {
        return false;
    };
    !terms.is_empty()
        && terms.iter().all(|term| names(term).next().is_some_and(|first| names(term).any(|n| n != first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Operator, PreferredTerm, Requirement};

    fn node(name: &str, zone: &str) -> Node {
        Node { name: name.into(), labels: [("zone", zone)].into_iter().collect(), ..Node::default() }
    }

    fn zone_in(zones: &[&str]) -> NodeSelectorTerm {
        let mut values: Vec<_> = zones.iter().map(|z| (*z).into()).collect();
        values.sort();
        let expression = Requirement { key: "zone".into(), operator: Operator::In(values.into()) };
        NodeSelectorTerm { expressions: [expression].into(), fields: [].into() }
    }

    fn named(names: &[&str]) -> NodeSelectorTerm {
        let fields = names.iter().map(|n| FieldRequirement::NameIs((*n).into())).collect();
        NodeSelectorTerm { expressions: [].into(), fields }
    }

    fn required(terms: Vec<NodeSelectorTerm>) -> PodSpec {
        let node_affinity = NodeAffinity { required: Some(terms.into()), ..NodeAffinity::default() };
        PodSpec { node_affinity, ..PodSpec::default() }
    }

    #[test]
    fn required_terms_are_ored_and_an_empty_list_or_term_matches_nothing() {
        let either = required(vec![zone_in(&["a"]), zone_in(&["b"])]);
        assert_eq!(answer(&either, &node("n", "b")), 0);
        assert_eq!(answer(&either, &node("n", "c")), NO_MATCH);
        assert_eq!(answer(&required(vec![]), &node("n", "a")), NO_MATCH);
        assert_eq!(answer(&required(vec![NodeSelectorTerm::default()]), &node("n", "a")), NO_MATCH);
    }

    #[test]
    fn a_pod_that_names_its_nodes_excludes_all_others_by_name() {
        let spec = required(vec![named(&["x"]), named(&["y"])]);
        assert_eq!(answer(&spec, &node("x", "a")), 0);
        assert_eq!(answer(&spec, &node("z", "a")), NOT_NAMED);
        let open = required(vec![named(&["x"]), zone_in(&["a"])]);
        assert_eq!(answer(&open, &node("z", "b")), NO_MATCH);
        assert!(names_conflict(&required(vec![named(&["x", "y"])])));
        assert!(!names_conflict(&spec));
    }

    #[test]
    fn what_the_profile_demands_holds_in_addition_to_what_the_pod_requires() {
        let mut spec = required(vec![zone_in(&["a", "b"])]);
        spec.node_affinity.enforced = Some([zone_in(&["b"]), zone_in(&["c"])].into());
        assert_eq!(answer(&spec, &node("n", "a")), NOT_ENFORCED);
        assert_eq!(answer(&spec, &node("n", "b")), 0);
        assert_eq!(answer(&spec, &node("n", "c")), NO_MATCH);
        spec.node_affinity.required = Some([named(&["x"])].into());
        assert_eq!(answer(&spec, &node("n", "a")), NOT_NAMED, "upstream's PreFilter comes before");
        spec.node_affinity.required = None;
        assert!(applies(&spec));
        assert_eq!(answer(&spec, &node("n", "a")), NOT_ENFORCED);
    }

    #[test]
    fn node_selector_demands_every_pair() {
        let node_selector: Labels = [("zone", "a"), ("disk", "ssd")].into_iter().collect();
        let spec = PodSpec { node_selector, ..PodSpec::default() };
        assert_eq!(answer(&spec, &node("n", "a")), NO_MATCH);
        let labels = [("zone", "a"), ("disk", "ssd"), ("x", "y")].into_iter().collect();
        assert_eq!(answer(&spec, &Node { labels, ..node("n", "a") }), 0);
    }

    #[test]
    fn more_matched_weight_is_better_and_large_sums_are_scaled() {
        let preferred = |weights: &[(i32, &str)]| PodSpec {
            node_affinity: NodeAffinity {
                preferred: weights
                    .iter()
                    .map(|(weight, z)| PreferredTerm { weight: *weight, term: zone_in(&[z]) })
                    .collect(),
                ..NodeAffinity::default()
            },
            ..PodSpec::default()
        };
        let spec = preferred(&[(80, "a"), (20, "b")]);
        assert_eq!(answer(&spec, &node("n", "a")), 20);
        assert_eq!(answer(&spec, &node("n", "b")), 80);
        assert_eq!(answer(&spec, &node("n", "c")), 100);
        let many = preferred(&vec![(100, "b"); 100]);
        assert_eq!(answer(&many, &node("n", "a")), WORST);
        assert_eq!(answer(&many, &node("n", "b")), 0);
    }

    #[test]
    fn the_worst_answer_is_that_of_a_node_that_matches_no_preferred_term() {
        let preferred = |terms: &[(i32, &str)]| PodSpec {
            node_affinity: NodeAffinity {
                preferred: terms
                    .iter()
                    .map(|(weight, z)| PreferredTerm { weight: *weight, term: zone_in(&[z]) })
                    .collect(),
                ..NodeAffinity::default()
            },
            ..PodSpec::default()
        };
        for terms in [&[][..], &[(80, "a"), (20, "b")], &[(100, "a"); 100]] {
            let spec = preferred(terms);
            assert_eq!(worst(&spec), answer(&spec, &node("n", "c")));
        }
        assert_eq!(worst(&preferred(&[(80, "a"), (20, "b")])), 100);
    }
}
