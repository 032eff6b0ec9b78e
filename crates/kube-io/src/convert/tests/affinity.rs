use super::*;
use berth_model::{FieldRequirement, NodeAffinity, NodeSelectorTerm, Operator, Requirement};

const TERMS: &str =
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

fn required(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

fn preferred(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}})
}

fn affinity(pod: Value) -> NodeAffinity {
    spec(pod).node_affinity.clone()
}

/// One term with one expression.
fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}])
}

fn only_operator(terms: Value) -> Operator {
    let affinity = affinity(required(terms));
    affinity.required.unwrap()[0].expressions[0].operator.clone()
}

#[test]
fn every_operator_is_understood() {
    let texts = |texts: &[&str]| -> Box<[Arc<str>]> { texts.iter().map(|text| Arc::from(*text)).collect() };
    assert_eq!(only_operator(expression("zone", "In", &["b", "a", "b"])), Operator::In(texts(&["a", "b"])));
    assert_eq!(only_operator(expression("zone", "NotIn", &["b", ""])), Operator::NotIn(texts(&["", "b"])));
    assert_eq!(only_operator(expression("zone", "Exists", &[])), Operator::Exists);
    assert_eq!(only_operator(expression("zone", "DoesNotExist", &[])), Operator::DoesNotExist);
    assert_eq!(only_operator(expression("cores", "Gt", &["8"])), Operator::Gt(8));
    assert_eq!(only_operator(expression("cores", "Lt", &["08"])), Operator::Lt(8));
}

/// Upstream: `labels.NewRequirement`.
#[test]
fn an_expression_that_upstream_refuses_is_refused_with_its_path() {
    for (key, operator, values, wrong) in [
        ("a", "in", &["x"][..], "operator"),
        ("a", "", &["x"], "operator"),
        ("a", "In", &[], "values"),
        ("a", "NotIn", &[], "values"),
        ("a", "Exists", &["x"], "values"),
        ("a", "DoesNotExist", &["x"], "values"),
        ("a", "Gt", &[], "values"),
        ("a", "Gt", &["1", "2"], "values"),
        ("a", "Lt", &["many"], "values"),
        ("a", "Lt", &["9223372036854775808"], "values"),
        ("a", "In", &["no good"], "values"),
        ("no good", "Exists", &[], "key"),
    ] {
        let (field, problem) = error(required(expression(key, operator, values)));
        assert_eq!(field, format!("{TERMS}[0].matchExpressions[0].{wrong}"), "{problem}");
    }
}

#[test]
fn nodes_are_selected_by_the_field_name_and_by_no_other() {
    let field = |key: &str, operator: &str, values: &[&str]| {
        required(json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]))
    };
    let fields = |pod| affinity(pod).required.unwrap()[0].fields.clone();
    assert_eq!(*fields(field("metadata.name", "In", &["n1"])), [FieldRequirement::NameIs("n1".into())]);
    assert_eq!(*fields(field("metadata.name", "NotIn", &["n1"])), [FieldRequirement::NameIsNot("n1".into())]);
    for (pod, wrong) in [
        (field("metadata.uid", "In", &["n1"]), "key"),
        (field("metadata.name", "Exists", &["n1"]), "operator"),
        (field("metadata.name", "In", &[]), "values"),
        (field("metadata.name", "In", &["n1", "n2"]), "values"),
    ] {
        assert_eq!(error(pod).0, format!("{TERMS}[0].matchFields[0].{wrong}"));
    }
}

/// Upstream: `isEmptyNodeSelectorTerm`.
#[test]
fn an_empty_required_term_matches_nothing_and_so_does_a_list_without_terms() {
    let labels = Labels::default();
    let matches =
        |affinity: NodeAffinity| affinity.required.unwrap().iter().any(|term| term.matches("n", &labels));
    assert!(!matches(affinity(required(json!([])))));
    assert!(!matches(affinity(required(json!(null)))));
    assert!(!matches(affinity(required(json!([{}])))));
    let one_of_two = json!([{}, {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}]);
    assert!(matches(affinity(required(one_of_two))));
}

#[test]
fn the_order_of_terms_expressions_and_values_means_nothing() {
    let a = json!({"key": "a", "operator": "In", "values": ["1", "2"]});
    let a_turned = json!({"key": "a", "operator": "In", "values": ["2", "1"]});
    let b = json!({"key": "b", "operator": "Exists"});
    let one = json!([{"matchExpressions": [a, b]}, {"matchExpressions": [b]}]);
    let other = json!([{"matchExpressions": [b]}, {"matchExpressions": [b, a_turned, b]}]);
    assert_eq!(affinity(required(one)), affinity(required(other)));

    let one = json!([{"weight": 1, "preference": {"matchExpressions": [a]}},
        {"weight": 2, "preference": {"matchExpressions": [b]}}]);
    let other = json!([{"weight": 2, "preference": {"matchExpressions": [b]}},
        {"weight": 1, "preference": {"matchExpressions": [a_turned]}}]);
    assert_eq!(affinity(preferred(one)), affinity(preferred(other)));
}

/// Upstream: `NewPreferredSchedulingTerms`.
#[test]
fn preferred_terms_without_weight_or_demand_are_ignored_and_equal_ones_count_twice() {
    let wanted = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    let broken = json!({"matchExpressions": [{"key": "a", "operator": "?"}]});
    let affinity = affinity(preferred(json!([
        {"weight": 0, "preference": broken},
        {"weight": 200, "preference": {}},
        {"weight": 7, "preference": wanted},
        {"weight": 7, "preference": wanted}
    ])));
    let term = NodeSelectorTerm {
        expressions: Box::new([Requirement { key: "a".into(), operator: Operator::Exists }]),
        fields: Box::default(),
    };
    assert_eq!(affinity.preferred.len(), 2);
    for preferred in &affinity.preferred {
        assert_eq!((preferred.weight, &preferred.term), (7, &term));
    }
    let path = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";
    let (field, _) = error(preferred(json!([{"weight": 1, "preference": broken}])));
    assert_eq!(field, format!("{path}[0].preference.matchExpressions[0].operator"));
    let (field, _) = error(preferred(json!([{"weight": 101, "preference": wanted}])));
    assert_eq!(field, format!("{path}[0].weight"));
}
