//! Independent oracle of node feasibility, written from the API documentation: uses no rule, index or cache of the
//! library.

use std::collections::BTreeMap;

use berth_model::{
    Amounts, Effect, FieldRequirement, Identity, LabelSelector, Node, NodeSelectorTerm, Operator, Peer,
    PodSelector, PodSpec, Requirement, SpreadConstraint, Taint, TolerationOperator, Usage,
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

/// Returns whether `node`, which has these pods, accepts a pod of this spec.
pub fn admits(spec: &PodSpec, node: &Node, pods: &[&Usage]) -> bool {
    let cordon = Taint { key: CORDON.into(), value: "".into(), effect: Effect::NoSchedule };
    let mut hard = node.taints.iter().filter(|taint| taint.effect != Effect::PreferNoSchedule);
    (!node.unschedulable || tolerated(spec, &cordon))
        && hard.all(|taint| tolerated(spec, taint))
        && selected(spec, node)
        && has_room(&spec.usage, node, pods)
}

/// A pod and the node it is on.
pub type Placed<'a> = (&'a Node, &'a Peer);

fn labelled(selector: &LabelSelector, labels: &berth_model::Labels) -> bool {
    let labels: BTreeMap<&str, &str> = labels.iter().collect();
    match selector {
        LabelSelector::Nothing => false,
        LabelSelector::All(requirements) => requirements.iter().all(|r| meets(r, &labels)),
    }
}

fn means(selector: &PodSelector, pod: &Identity) -> bool {
    let by_name = selector.namespaces.contains(&pod.namespace);
    (by_name || labelled(&selector.namespace_selector, &pod.namespace_labels))
        && labelled(&selector.labels, &pod.labels)
}

fn together(key: &str, a: &Node, b: &Node) -> bool {
    a.labels.get(key).is_some() && a.labels.get(key) == b.labels.get(key)
}

/// Returns whether the existing pods on all nodes allow this pod on `node`.
pub fn welcome(spec: &PodSpec, me: &Identity, node: &Node, nodes: &[&Node], pods: &[Placed]) -> bool {
    let hard: Vec<_> = spec.spread.constraints.iter().filter(|constraint| constraint.hard).collect();
    let spread = hard.iter().all(|constraint| evenly(constraint, &hard, spec, node, nodes, pods));
    let terms = &spec.pod_affinity;
    let wanted = |pod: &Identity| terms.required.iter().all(|term| means(&term.selector, pod));
    let exists = |(at, pod): &Placed| {
        wanted(&pod.identity) && terms.required.iter().any(|t| at.labels.get(&t.topology_key).is_some())
    };
    let first = wanted(me) && !pods.iter().any(exists);
    let liked = terms.required.iter().all(|term| {
        let near = |(at, pod): &Placed| wanted(&pod.identity) && together(&term.topology_key, at, node);
        node.labels.get(&term.topology_key).is_some() && (first || pods.iter().any(near))
    });
    let disliked = pods.iter().any(|(at, pod)| {
        let ours = terms.required_anti.iter().filter(|term| means(&term.selector, &pod.identity));
        let theirs = pod.affinity.required_anti.iter().filter(|term| means(&term.selector, me));
        ours.chain(theirs).any(|term| together(&term.topology_key, at, node))
    });
    spread && liked && !disliked
}

fn evenly(
    constraint: &SpreadConstraint,
    all: &[&SpreadConstraint],
    spec: &PodSpec,
    node: &Node,
    nodes: &[&Node],
    pods: &[Placed],
) -> bool {
    let key = &*constraint.topology_key;
    let hard = |taint: &&Taint| taint.effect != Effect::PreferNoSchedule;
    let counts = |node: &Node| {
        all.iter().all(|constraint| node.labels.get(&constraint.topology_key).is_some())
            && (!constraint.honor_affinity || selected(spec, node))
            && (!constraint.honor_taints
                || node.taints.iter().filter(hard).all(|taint| tolerated(spec, taint)))
    };
    let counted = |pod: &Peer| !pod.terminating && means(&constraint.selector, &pod.identity);
    let mut domains: BTreeMap<&str, i32> = BTreeMap::new();
    for node in nodes.iter().filter(|node| counts(node)) {
        domains.entry(node.labels.get(key).expect("it has all keys")).or_default();
    }
    for (at, _) in pods.iter().filter(|(at, pod)| counts(at) && counted(pod)) {
        *domains.entry(at.labels.get(key).expect("it has all keys")).or_default() += 1;
    }
    let Some(here) = node.labels.get(key) else {
        return false;
    };
    let enough = domains.len() >= constraint.min_domains as usize;
    let emptiest = if enough { domains.values().min().copied().unwrap_or(0) } else { 0 };
    let here = domains.get(here).copied().unwrap_or(0);
    here + i32::from(constraint.self_match) - emptiest <= constraint.max_skew
}
