//! Affinity hints as preferred pod affinity, for pods of other schedulers. Only new pods get them, so nothing rolls
//! out.

use serde_json::{Value, json};

use crate::model::{LabelSelector, Operator, Requirement, WeightedPodTerm};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::{Hint, Hints, Workload};
    use crate::model::{Identity, PodAffinity};

    fn terms() -> crate::hints::Terms {
        let workload = |app: &str| Workload {
            namespace: "shop".into(),
            selector: LabelSelector::All(
                [Requirement { key: "app".into(), operator: Operator::In([app.into()].into()) }].into(),
            ),
        };
        let hint = |other: &str, weight| Hint { of: workload("web"), other: workload(other), weight };
        let (hints, _) = Hints::new([hint("db", -80), hint("batch", 40)]);
        let labels = [("app", "web")].into_iter().collect();
        hints.terms(
            &Identity { namespace: "shop".into(), labels, ..Identity::default() },
            &PodAffinity::default(),
        )
    }

    #[test]
    fn hints_become_preferred_terms_of_both_kinds() {
        let operations = preferred(&terms(), OwnAffinity::default());
        assert_eq!(operations[0], json!({"op": "add", "path": "/spec/affinity", "value": {}}));
        let of = |app: &str, weight: i32| {
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": weight,
                "podAffinityTerm": {
                    "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": [app]}]},
                    "namespaces": ["shop"],
                    "topologyKey": "kubernetes.io/hostname",
                },
            }]})
        };
        let (near, far) = ("/spec/affinity/podAffinity", "/spec/affinity/podAntiAffinity");
        assert_eq!(operations[1], json!({"op": "add", "path": near, "value": of("batch", 40)}));
        assert_eq!(operations[2], json!({"op": "add", "path": far, "value": of("db", 80)}));
    }

    #[test]
    fn what_a_pod_has_of_affinity_stays() {
        let of_nodes = OwnAffinity { is_there: true, is_of_pods: false };
        assert_eq!(preferred(&terms(), of_nodes).len(), 2, "beside affinity to nodes");
        let of_pods = OwnAffinity { is_there: true, is_of_pods: true };
        assert!(preferred(&terms(), of_pods).is_empty());
        assert!(preferred(&[], OwnAffinity::default()).is_empty());
    }
}
