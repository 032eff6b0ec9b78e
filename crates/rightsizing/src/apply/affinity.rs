//! Affinity hints as preferred pod affinity, for pods of other schedulers. Only new pods get them, so nothing rolls
//! out.

use serde_json::{Value, json};

use berth_model::{LabelSelector, Operator, Requirement, WeightedPodTerm};

/// Affinity that a new pod already has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnAffinity {
    /// Whether it has an `affinity` object.
    pub is_there: bool,
    /// Whether it has pod affinity or anti-affinity of its own.
    pub is_of_pods: bool,
}

/// Returns the JSON patch operations that add these terms to a new pod. A pod with terms of its own is left alone.
pub fn preferred(terms: &[WeightedPodTerm], own: OwnAffinity) -> Vec<Value> {
    let side = |is_near: bool| -> Vec<Value> {
        terms.iter().filter(|term| (term.weight > 0) == is_near).filter_map(written).collect()
    };
    let sides = [("podAffinity", side(true)), ("podAntiAffinity", side(false))];
    if own.is_of_pods || sides.iter().all(|(_, terms)| terms.is_empty()) {
        return Vec::new();
    }
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let folder = (!own.is_there).then(|| add("/spec/affinity", json!({})));
    let sides = sides.into_iter().filter(|(_, terms)| !terms.is_empty()).map(|(name, terms)| {
        let terms = json!({"preferredDuringSchedulingIgnoredDuringExecution": terms});
        add(&format!("/spec/affinity/{name}"), terms)
    });
    folder.into_iter().chain(sides).collect()
}

/// Returns the term as it is written in a pod, or `None` if it cannot be expressed.
fn written(weighted: &WeightedPodTerm) -> Option<Value> {
    let LabelSelector::All(requirements) = &weighted.term.selector.labels else { return None };
    let expressions: Option<Vec<Value>> = requirements.iter().map(expression).collect();
    let namespaces: Vec<&str> = weighted.term.selector.namespaces.iter().map(|name| &**name).collect();
    let term = json!({
        "labelSelector": {"matchExpressions": expressions?},
        "namespaces": namespaces,
        "topologyKey": &*weighted.term.topology_key,
    });
    Some(json!({"weight": weighted.weight.abs(), "podAffinityTerm": term}))
}

fn expression(requirement: &Requirement) -> Option<Value> {
    let (operator, values) = match &requirement.operator {
        Operator::In(values) => ("In", Some(values)),
        Operator::NotIn(values) => ("NotIn", Some(values)),
        Operator::Exists => ("Exists", None),
        Operator::DoesNotExist => ("DoesNotExist", None),
        // These operators exist only for nodes.
        Operator::Gt(_) | Operator::Lt(_) => return None,
    };
    let mut expression = json!({"key": &*requirement.key, "operator": operator});
    if let Some(values) = values {
        expression["values"] = values.iter().map(|value| Value::from(&**value)).collect();
    }
    Some(expression)
}
