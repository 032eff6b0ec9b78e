//! Values for operators: how they change what is rendered, and that their defaults change nothing.

use super::*;

fn pod(objects: &[Value]) -> &Value {
    &the("Deployment", objects)["spec"]["template"]["spec"]
}

fn kinds(objects: &[Value]) -> BTreeSet<&str> {
    objects.iter().map(|object| object["kind"].as_str().unwrap()).collect()
}

#[test]
fn by_default_there_is_nothing_for_operators() {
    let objects = rendered("");
    for kind in ["PodMonitor", "PrometheusRule", "NetworkPolicy", "ResourceQuota"] {
        assert!(!kinds(&objects).contains(kind), "{kind}");
    }
    for field in ["hostNetwork", "dnsPolicy", "dnsConfig"] {
        assert!(pod(&objects)[field].is_null(), "{field}");
    }
    assert!(pod(&objects)["containers"][0]["lifecycle"].is_null());
    let spec = &the("Deployment", &objects)["spec"];
    assert!(spec["revisionHistoryLimit"].is_null() && spec["strategy"].is_null());
    let aggregates = |object: &Value| object["metadata"]["labels"].to_string().contains("aggregate-to");
    assert!(!objects.iter().any(aggregates));
}

#[test]
fn the_pod_gets_its_network_its_hooks_and_its_history() {
    let objects = rendered(OPERATORS);
    let spec = pod(&objects);
    assert_eq!((&spec["dnsPolicy"], &spec["hostNetwork"]), (&json!("None"), &Value::Null));
    assert_eq!(spec["dnsConfig"], json!({"nameservers": ["10.0.0.10"]}));
    assert_eq!(spec["containers"][0]["lifecycle"], json!({"preStop": {"sleep": {"seconds": 5}}}));
    assert_eq!(the("Deployment", &objects)["spec"]["revisionHistoryLimit"], 3);
    assert_eq!(the("Deployment", &rendered("revisionHistoryLimit: 0"))["spec"]["revisionHistoryLimit"], 0);
}

#[test]
fn on_the_network_of_the_node_names_of_services_resolve_and_updates_free_the_ports_first() {
    let objects = rendered(HOST_NETWORK);
    let spec = pod(&objects);
    assert_eq!((&spec["hostNetwork"], &spec["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    let update = &the("Deployment", &objects)["spec"]["strategy"]["rollingUpdate"];
    assert_eq!(*update, json!({"maxSurge": 0, "maxUnavailable": 1}));
    let other = rendered("hostNetwork: true\ndnsPolicy: Default");
    assert_eq!(pod(&other)["dnsPolicy"], "Default");
    let single = rendered("hostNetwork: true\nreplicas: 1\nconfig: {leaderElection: {enabled: false}}");
    assert_eq!(the("Deployment", &single)["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[test]
fn both_monitors_read_the_same_port_with_the_same_trust() {
    let by_pod = rendered(OPERATORS);
    let endpoint = &the("PodMonitor", &by_pod)["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["authorization"]["credentials"]["name"], "prometheus-token");
    assert_eq!(the("PodMonitor", &by_pod)["metadata"]["labels"]["release"], "prometheus");
    let ports = pod(&by_pod)["containers"][0]["ports"].as_array().unwrap();
    assert!(ports.iter().any(|port| port["name"] == endpoint["port"]));

    let by_service = rendered(
        "guard: {enabled: true}\nserviceMonitor: {enabled: true, authorization: {credentials: {name: a, key: b}}}",
    );
    let other = &the("ServiceMonitor", &by_service)["spec"]["endpoints"][0];
    assert_eq!(other["authorization"], json!({"credentials": {"name": "a", "key": "b"}}));
    assert!(other["bearerTokenFile"].is_null());
    for key in ["tlsConfig", "port", "scheme", "path", "interval"] {
        assert_eq!(endpoint[key], other[key], "{key}");
    }
    let default = rendered("serviceMonitor: {enabled: true}");
    let endpoint = &the("ServiceMonitor", &default)["spec"]["endpoints"][0];
    assert!(endpoint["bearerTokenFile"].is_string() && endpoint["authorization"].is_null());
}

#[test]
fn only_replicas_and_named_clients_reach_https_and_everybody_the_probes() {
    let objects = rendered(OPERATORS);
    let spec = &the("NetworkPolicy", &objects)["spec"];
    let labels = &the("Deployment", &objects)["spec"]["selector"]["matchLabels"];
    assert_eq!(spec["podSelector"]["matchLabels"], *labels);
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    let rules = spec["ingress"].as_array().unwrap();
    assert_eq!(rules[0], json!({"ports": [{"port": "health", "protocol": "TCP"}]}));
    assert_eq!(rules[1]["ports"][0]["port"], "https");
    let from = rules[1]["from"].as_array().unwrap();
    assert_eq!((from.len(), &from[0]["podSelector"]["matchLabels"]), (3, labels));
    assert_eq!(from[1], json!({"ipBlock": {"cidr": "10.0.0.0/28"}}));
    let plain = rendered("networkPolicy: {enabled: true}\nconfig: {serving: {address: null}}");
    assert_eq!(the("NetworkPolicy", &plain)["spec"]["ingress"].as_array().unwrap().len(), 1);
}

#[test]
fn the_quota_allows_the_priority_class_of_the_pods() {
    let objects = rendered(OPERATORS);
    let spec = &the("ResourceQuota", &objects)["spec"];
    assert_eq!(spec["hard"]["pods"], "5");
    let [scope] = &spec["scopeSelector"]["matchExpressions"].as_array().unwrap()[..] else {
        panic!("{spec}")
    };
    assert_eq!((&scope["scopeName"], &scope["operator"]), (&json!("PriorityClass"), &json!("In")));
    assert_eq!(scope["values"], json!([pod(&objects)["priorityClassName"]]));
    assert!(pod(&rendered("priorityClassName: ''"))["priorityClassName"].is_null());
}

/// Returns the rules of the aggregated roles by label: `RESOURCE [VERBS]`.
fn aggregated(objects: &[Value]) -> BTreeMap<&str, BTreeSet<String>> {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for role in objects.iter().filter(|object| object["kind"] == "ClusterRole") {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let targets =
            labels.keys().filter_map(|key| key.strip_prefix("rbac.authorization.k8s.io/aggregate-to-"));
        for target in targets {
            let rules = role["rules"].as_array().unwrap().iter().map(|rule| {
                assert_eq!(rule["apiGroups"], json!(["berth.dev"]));
                let verbs: Vec<String> = serde_json::from_value(rule["verbs"].clone()).unwrap();
                format!("{} [{}]", rule["resources"][0].as_str().unwrap(), verbs.join(","))
            });
            found.entry(target).or_default().extend(rules);
        }
    }
    found
}

#[test]
fn tenants_read_all_kinds_and_write_only_those_of_their_namespace() {
    let crds = ::berth_crds::crds();
    let reads = crds.iter().map(|crd| format!("{} [get,list,watch]", crd.spec.names.plural));
    let reads: BTreeSet<String> = reads.collect();
    let writes = |plural: &str| format!("{plural} [create,delete,deletecollection,patch,update]");
    let with = |more: &[&str]| -> BTreeSet<String> {
        reads.iter().cloned().chain(more.iter().map(|plural| writes(plural))).collect()
    };
    let objects = rendered("rbac: {aggregatedRoles: {enabled: true}}");
    let edit = with(&["allocations"]);
    assert_eq!(
        aggregated(&objects),
        BTreeMap::from([("admin", edit.clone()), ("edit", edit), ("view", reads.clone())])
    );
    let objects = rendered(OPERATORS);
    let edit = with(&["allocations", "servicescalers"]);
    assert_eq!(
        aggregated(&objects),
        BTreeMap::from([("admin", edit.clone()), ("edit", edit), ("view", reads.clone())])
    );
    let namespaced =
        crds.iter().filter(|crd| crd.spec.scope == "Namespaced").map(|crd| &crd.spec.names.plural);
    assert_eq!(
        namespaced.collect::<BTreeSet<_>>(),
        BTreeSet::from([&"allocations".to_owned(), &"servicescalers".to_owned()])
    );
    let without = rendered("rbac: {create: false, aggregatedRoles: {enabled: true}}");
    assert!(aggregated(&without).is_empty());
}
