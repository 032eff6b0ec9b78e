use serde_json::{Value, json};

use super::*;

/// A Service with these labels, the port 9090, and pods of its own.
fn service(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"pods": name}, "ports": [{"name": "http", "port": 9090}]},
    })
}

fn chosen(services: &[Value]) -> Result<String, String> {
    let object = |service: &Value| serde_json::from_value(service.clone()).expect("an object");
    choose(services.iter().map(object).collect()).map(|service| service.proxy_path())
}

#[test]
fn each_known_product_is_found_with_the_path_of_its_api() {
    let proxy = |rest: &str| Ok(format!("/api/v1/namespaces/m/services/s:9090/proxy{rest}"));
    for (labels, path) in [
        (json!({"app": "kube-prometheus-stack-prometheus"}), ""),
        (json!({"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}), ""),
        (json!({"operated-prometheus": "true"}), ""),
        (json!({"app.kubernetes.io/name": "thanos", "app.kubernetes.io/component": "query"}), ""),
        (json!({"app.kubernetes.io/name": "vmsingle"}), ""),
        (json!({"app.kubernetes.io/name": "vmselect"}), "/select/0/prometheus"),
        (
            json!({"app.kubernetes.io/name": "mimir", "app.kubernetes.io/component": "query-frontend"}),
            "/prometheus",
        ),
    ] {
        let others = [
            service("m", "s", labels.clone()),
            service(
                "m",
                "alertmanager",
                json!({"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "alertmanager"}),
            ),
            service("shop", "web", json!({"app": "web"})),
        ];
        assert_eq!(chosen(&others), proxy(path), "{labels}");
    }
}

#[test]
fn the_port_is_that_of_http_and_https_is_kept() {
    let mut thanos = service("m", "s", json!({"app": "thanos-query"}));
    thanos["spec"]["ports"] = json!([{"name": "grpc", "port": 10901}, {"name": "http", "port": 10902}]);
    assert_eq!(chosen(&[thanos.clone()]), Ok("/api/v1/namespaces/m/services/s:10902/proxy".into()));
    thanos["spec"]["ports"] = json!([{"name": "https", "port": 443}]);
    assert_eq!(chosen(&[thanos.clone()]), Ok("/api/v1/namespaces/m/services/https:s:443/proxy".into()));
    thanos["spec"]["ports"] = json!([]);
    assert_eq!(chosen(&[thanos]), Err("Service m/s has no ports".into()));
}

#[test]
fn a_second_service_of_the_same_prometheus_is_no_choice() {
    let labels = json!({"app": "kube-prometheus-stack-prometheus"});
    let chart = service("m", "stack", labels.clone());
    let operated = service("m", "prometheus-operated", json!({"operated-prometheus": "true"}));
    let mut headless = service("m", "a-headless", labels);
    headless["spec"]["clusterIP"] = "None".into();
    headless["spec"]["selector"] = chart["spec"]["selector"].clone();
    let expected = Ok("/api/v1/namespaces/m/services/stack:9090/proxy".to_owned());
    assert_eq!(chosen(&[chart, operated, headless]), expected);
}

#[test]
fn several_are_listed_and_with_none_the_labels_that_were_looked_for() {
    let one = service("m", "one", json!({"app": "prometheus-server"}));
    let two = service("n", "two", json!({"app": "thanos-query"}));
    let said = chosen(&[one, two]).expect_err("two");
    assert!(
        said.contains("m/one (Prometheus), n/two (Thanos)") && said.contains("--prometheus-service"),
        "{said}"
    );
    let said = chosen(&[service("shop", "web", json!({"app": "web"}))]).expect_err("none");
    for label in [
        "app=prometheus-server",
        "operated-prometheus=true",
        "app.kubernetes.io/name=mimir,app.kubernetes.io/component=query-frontend (Mimir)",
    ] {
        assert!(said.contains(label) && said.contains("--prometheus URL"), "{said}");
    }
}

#[test]
fn three_selectors_find_all_known_labels() {
    let selectors = selectors();
    assert_eq!(selectors.len(), 3, "{selectors:?}");
    assert!(selectors[0].starts_with("app in (kube-prometheus-stack-prometheus,"), "{selectors:?}");
    assert!(selectors[2].starts_with("operated-prometheus in (true)"), "{selectors:?}");
}

#[test]
fn a_service_is_named_by_its_namespace_and_perhaps_a_port() {
    let parsed = |text| ServiceReference::parse(text).map(|it| (it.namespace, it.name, it.port));
    assert_eq!(parsed("m/s"), Ok(("m".into(), "s".into(), None)));
    assert_eq!(parsed("m/s:web"), Ok(("m".into(), "s".into(), Some("web".into()))));
    for wrong in ["s", "m/", "/s", "m/s:", "m/s/x", "m/S", "m/s:90:90", "m/../s"] {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}
