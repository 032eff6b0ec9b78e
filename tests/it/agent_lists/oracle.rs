//! What a node takes, straight from the words of the API: no rule, index or cache of the library is asked.

use std::collections::BTreeMap;

use berth::model::{
    Amounts, Effect, FieldRequirement, Node, NodeSelectorTerm, Operator, PodSpec, Requirement, Taint,
    TolerationOperator, Usage,
};

pub const CORDON: &str = "node.kubernetes.io/unschedulable";

fn tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().any(|toleration| {
        (toleration.effect.is_none() || toleration.effect == Some(taint.effect))
            && (toleration.key.is_empty() || toleration.key == taint.key)
            && (toleration.operator == TolerationOperator::Exists || toleration.value == taint.value)
    })
}

fn meets(requirement: &Requirement, labels: &BTreeMap<&str, &str>) -> bool {
    let value = labels.get(&*requirement.key);
    let number = value.and_then(|value| value.parse::<i64>().ok());
    match &requirement.operator {
        Operator::In(values) => value.is_some_and(|value| values.iter().any(|v| **v == **value)),
        Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| **v != **value)),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt(bound) => number.is_some_and(|number| number > *bound),
        Operator::Lt(bound) => number.is_some_and(|number| number < *bound),
    }
}

fn selected(spec: &PodSpec, node: &Node) -> bool {
    let labels: BTreeMap<&str, &str> = node.labels.iter().collect();
    let matches = |term: &NodeSelectorTerm| {
        let named = |field: &FieldRequirement| match field {
            FieldRequirement::NameIs(name) => *name == node.name,
            FieldRequirement::NameIsNot(name) => *name != node.name,
        };
        let (expressions, fields) = (&term.expressions, &term.fields);
        expressions.len() + fields.len() > 0
            && expressions.iter().all(|requirement| meets(requirement, &labels))
            && fields.iter().all(named)
    };
    let required = &spec.node_affinity.required;
    spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(&value))
        && required.as_ref().is_none_or(|terms| terms.iter().any(matches))
}

fn has_room(wanted: &Usage, node: &Node, pods: &[&Usage]) -> bool {
    let taken = |amount: fn(&Amounts) -> i64| pods.iter().map(|pod| amount(&pod.requests)).sum::<i64>();
    let fits = |amount: fn(&Amounts) -> i64| {
        let wanted = amount(&wanted.requests);
        wanted == 0 || wanted + taken(amount) <= amount(&node.allocatable)
    };
    let extended_fits = wanted.extended.iter().all(|(name, wanted)| {
        let taken: i64 = pods.iter().map(|pod| pod.extended.get(name)).sum();
        wanted + taken <= node.extended.get(name)
    });
    let ports_free = wanted.ports.iter().all(|wanted| {
        pods.iter().flat_map(|pod| pod.ports.iter()).all(|taken| {
            let one_address = wanted.ip.is_none() || taken.ip.is_none() || wanted.ip == taken.ip;
            wanted.port != taken.port || wanted.protocol != taken.protocol || !one_address
        })
    });
    pods.len() < node.allocatable.pods as usize
        && fits(|amounts| amounts.cpu_milli)
        && fits(|amounts| amounts.memory)
        && fits(|amounts| amounts.ephemeral_storage)
        && extended_fits
        && ports_free
}

/// Whether `node`, which has these pods, takes a pod of this spec.
pub fn admits(spec: &PodSpec, node: &Node, pods: &[&Usage]) -> bool {
    let cordon = Taint { key: CORDON.into(), value: "".into(), effect: Effect::NoSchedule };
    let mut hard = node.taints.iter().filter(|taint| taint.effect != Effect::PreferNoSchedule);
    (!node.unschedulable || tolerated(spec, &cordon))
        && hard.all(|taint| tolerated(spec, taint))
        && selected(spec, node)
        && has_room(&spec.usage, node, pods)
}
