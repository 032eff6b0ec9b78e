use std::path::PathBuf;

use crate::{BasicAuth, HttpHeader, LabelNames, PrometheusConfig, Secret};
use berth_model::ConfigDuration;

fn refusal(change: impl FnOnce(&mut PrometheusConfig)) -> String {
    let mut config = PrometheusConfig::default();
    change(&mut config);
    config.validate().unwrap_err().to_string()
}

#[test]
fn the_defaults_are_valid_and_read_from_nothing() {
    let config: PrometheusConfig = serde_saphyr::from_str("{}").unwrap();
    assert_eq!(config, PrometheusConfig::default());
    assert_eq!(config.validate(), Ok(()));
}

#[test]
fn everything_can_be_set_and_an_unknown_key_is_refused() {
    let config: PrometheusConfig = serde_saphyr::from_str(
        "url: https://thanos.example:10902/prefix/
jobName: kubelet
matchers: [cluster=prod, region!~eu-.*]
headers: [{name: X-Scope-OrgID, value: team-a}, {name: X-Api-Key, valueFile: /etc/key}]
labels: {pod: pod_name, container: name}
cpuMetric: a:b
memoryMetric: c
historyLength: 24h
historyResolution: 1m
slice: 6h
liveWindow: 2m
queryTimeout: 30s
parallelism: 4
maxResponseBytes: 1048576
basicAuth: {user: berth, passwordFile: /etc/password}
caFile: /etc/ca.pem
",
    )
    .unwrap();
    assert_eq!(config.validate(), Ok(()));
    let labels = config.labels.as_ref().unwrap();
    assert_eq!((&*labels.namespace, &*labels.pod, &*labels.container), ("namespace", "pod_name", "name"));
    assert!(serde_saphyr::from_str::<PrometheusConfig>("bearertoken: x").is_err());
}

#[test]
fn an_address_that_cannot_work_is_refused() {
    for (url, problem) in [
        ("", "is not an address"),
        ("prometheus:9090", "is not http://HOST or https://HOST"),
        ("ftp://prometheus", "is not http://HOST or https://HOST"),
        ("http://prometheus/?a=b", "more than an address and a path"),
        ("http://prometheus/#a", "more than an address and a path"),
    ] {
        let refusal = refusal(|config| config.url = url.to_owned());
        assert!(refusal.starts_with("prometheus.url: ") && refusal.contains(problem), "{url}: {refusal}");
    }
    let refusal = refusal(|config| config.url = "http://me:hunter2@prometheus".to_owned());
    assert!(refusal.contains("basicAuth") && !refusal.contains("hunter2"), "{refusal}");
}

#[test]
fn names_that_would_break_a_query_are_refused() {
    let wrong = refusal(|config| config.cpu_metric = "a{}".to_owned());
    assert_eq!(wrong, "prometheus.cpuMetric: `a{}` is not a metric's name");
    let wrong =
        refusal(|config| config.labels = Some(LabelNames { pod: "a:b".to_owned(), ..LabelNames::modern() }));
    assert_eq!(wrong, "prometheus.labels.pod: `a:b` is not a label's name");
    let wrong = refusal(|config| {
        config.labels = Some(LabelNames { pod: "container".to_owned(), ..LabelNames::modern() })
    });
    assert_eq!(wrong, "prometheus.labels: two of them are the same label");
}

#[test]
fn times_must_fit_each_other_and_prometheus_limit_of_points() {
    let minute = ConfigDuration::from_secs(60);
    let wrong = refusal(|config| config.slice = minute);
    assert_eq!(wrong, "prometheus.slice: 1m is not from 1h to 8760h");
    let wrong = refusal(|config| {
        config.history_resolution = ConfigDuration::from_secs(1);
    });
    assert!(wrong.starts_with("prometheus.slice: 12h has 43201 points of historyResolution (1s)"), "{wrong}");
    let wrong = refusal(|config| config.history_resolution = "1.5s".parse().unwrap());
    assert_eq!(wrong, "prometheus.historyResolution: 1s500ms is not a whole number of seconds");
    let wrong = refusal(|config| config.history_length = minute);
    assert_eq!(wrong, "prometheus.historyLength: 1m is not from 1h to 8760h");
}

#[test]
fn there_is_one_kind_of_credentials_and_it_is_complete() {
    let basic = |user: &str, password: Option<&str>| BasicAuth {
        user: user.to_owned(),
        password: password.map(Secret::new),
        password_file: None,
    };
    let wrong = refusal(|config| {
        config.bearer_token = Some(Secret::new("x"));
        config.basic_auth = Some(basic("me", Some("x")));
    });
    assert_eq!(wrong, "prometheus.bearerToken: set only one of bearerToken, bearerTokenFile and basicAuth");
    let wrong = refusal(|config| config.bearer_token_file = Some(PathBuf::new()));
    assert_eq!(wrong, "prometheus.bearerTokenFile: it is empty; set it or remove it");
    let wrong = refusal(|config| config.basic_auth = Some(basic("a:b", Some("x"))));
    assert!(wrong.starts_with("prometheus.basicAuth.user: "), "{wrong}");
    let wrong = refusal(|config| config.basic_auth = Some(basic("me", None)));
    assert!(wrong.starts_with("prometheus.basicAuth.password: "), "{wrong}");
    let wrong = refusal(|config| {
        config.insecure_skip_verify = true;
        config.ca_file = Some("ca.pem".into());
    });
    assert!(wrong.starts_with("prometheus.caFile: "), "{wrong}");
}

#[test]
fn credentials_in_a_configuration_are_refused() {
    for text in [r#"{"bearerToken": "hunter2"}"#, r#"{"basicAuth": {"user": "me", "password": "hunter2"}}"#] {
        let refused = serde_json::from_str::<PrometheusConfig>(text).expect_err("refused").to_string();
        assert!(
            refused.contains("name that in bearerTokenFile") && !refused.contains("hunter2"),
            "{refused}"
        );
    }
    let unset: PrometheusConfig = serde_json::from_str(r#"{"bearerToken": null}"#).expect("not set");
    assert_eq!(unset, PrometheusConfig::default());
}

#[test]
fn secrets_are_never_printed() {
    let config =
        PrometheusConfig { bearer_token: Some(Secret::new("hunter2")), ..PrometheusConfig::default() };
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
}

#[test]
fn matchers_that_would_break_a_query_are_refused() {
    for (matchers, problem) in [
        (vec!["cluster".to_owned()], "`cluster` is not a matcher"),
        (vec!["cluster=\"prod\"".to_owned()], "is not a matcher"),
        (vec![format!("cluster={}", "x".repeat(300))], "one has more than 253 bytes"),
        (vec!["cluster=prod".to_owned(); 17], "at most 16 are allowed"),
    ] {
        let refusal = refusal(|config| config.matchers = matchers);
        assert!(refusal.starts_with("prometheus.matchers: ") && refusal.contains(problem), "{refusal}");
    }
}

#[test]
fn headers_are_valid_and_carry_no_credentials_inline() {
    let inline = |name: &str, value: &str| HttpHeader {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_file: None,
    };
    let file =
        |name: &str| HttpHeader { name: name.to_owned(), value: None, value_file: Some("/etc/x".into()) };
    let both = HttpHeader { value: Some("x".to_owned()), ..file("X-Scope-OrgID") };
    for (header, problem) in [
        (inline("X Scope", "a"), "is not the name of a header"),
        (inline("", "a"), "is not the name of a header"),
        (inline("Host", "a"), "is set by the HTTP client"),
        (inline("Content-Type", "a"), "is set by the HTTP client"),
        (file("Authorization"), "prometheus.bearerTokenFile"),
        (inline("X-Api-Key", "hunter2"), "name that in valueFile"),
        (inline("Proxy-Authorization", "hunter2"), "name that in valueFile"),
        (inline("X-Scope-OrgID", "a\nb"), "no header can have"),
        (inline("X-Scope-OrgID", ""), "is empty"),
        (HttpHeader { value_file: Some(PathBuf::new()), ..file("X-Scope-OrgID") }, "valueFile is empty"),
        (HttpHeader { value_file: None, ..file("X-Scope-OrgID") }, "exactly one of value and valueFile"),
        (both, "exactly one of value and valueFile"),
    ] {
        let refusal = refusal(|config| config.headers = vec![header]);
        assert!(refusal.starts_with("prometheus.headers: ") && refusal.contains(problem), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
    }
    let twice = refusal(|config| config.headers = vec![inline("X-A", "1"), inline("x-a", "2")]);
    assert_eq!(twice, "prometheus.headers: x-a is set twice");
}
