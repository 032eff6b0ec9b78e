//! Hints of the scheduler as preferred affinity of new pods.

use berth_model::{Identity, LabelSelector, Operator, PodAffinity, Requirement};
use berth_rightsizing::apply::affinity::{OwnAffinity, preferred};
use berth_scheduler::hints::{Hint, Hints, SelectedPods};
use serde_json::json;

fn terms() -> berth_scheduler::hints::Terms {
    let workload = |app: &str| SelectedPods {
        namespace: "shop".into(),
        selector: LabelSelector::All(
            [Requirement { key: "app".into(), operator: Operator::In([app.into()].into()) }].into(),
        ),
    };
    let hint = |other: &str, weight| Hint { of: workload("web"), other: workload(other), weight };
    let (hints, _) = Hints::new([hint("db", -80), hint("batch", 40)]);
    let labels = [("app", "web")].into_iter().collect();
    hints
        .terms(&Identity { namespace: "shop".into(), labels, ..Identity::default() }, &PodAffinity::default())
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
