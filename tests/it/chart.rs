//! The chart and the manifests as rendered by helm, and their content. `apply.rs` applies them to a real API server.

mod alerts;
mod apply;
mod features;
mod openapi;
mod operators;
mod releases;
mod roles;
mod upgrades;

pub(crate) use apply::create;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use berth_config::{self as config, Config, Serving};
use berth_testenv::binaries::{Kubernetes, go_tool};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NAMESPACE: &str = "berth-system";

/// Typical values of users, by name.
const VALUES: [(&str, &str); 15] = [
    ("defaults", ""),
    ("single", "replicas: 1\nconfig: {leaderElection: {enabled: false}}\n"),
    ("service-monitor", "serviceMonitor: {enabled: true, interval: 15s, labels: {release: prometheus}}\n"),
    ("everything", EVERYTHING),
    ("without-https", "config: {serving: {address: null}}\n"),
    ("extender", EXTENDER),
    ("guard", GUARD),
    (
        "guard-cert-manager",
        "guard: {enabled: true, certManager: {enabled: true}}\nserviceMonitor: {enabled: true}\n",
    ),
    ("active-active", ACTIVE_ACTIVE),
    ("recommender", RECOMMENDER),
    ("apply", APPLY),
    ("scaling", SCALING),
    ("dashboard", "dashboard: {enabled: true, labels: {team: platform}}\n"),
    ("operators", OPERATORS),
    ("host-network", HOST_NETWORK),
];

const EXTENDER: &str = "extender: {enabled: true, clientCaSecret: kube-scheduler-client-ca}\n";
const RECOMMENDER: &str = "recommender: {enabled: true}\n";
const APPLY: &str = "apply: {webhook: {enabled: true}, updater: {enabled: true}}\n";
pub(crate) const SCALING: &str =
    "config: {scaling: {enabled: true}, recommender: {prometheus: {url: 'http://prometheus'}}}\n";
const GUARD: &str = "guard: {enabled: true}\n";
const ACTIVE_ACTIVE: &str =
    "config: {leaderElection: {activeActive: true}}\nguard: {enabled: true, failurePolicy: Fail}\n";

const OPERATORS: &str = r#"
podMonitor: {enabled: true, labels: {release: prometheus}, authorization: {credentials: {name: prometheus-token, key: token}}}
prometheusRule: {enabled: true, labels: {release: prometheus}, interval: 1m}
networkPolicy:
  enabled: true
  from: [{ipBlock: {cidr: 10.0.0.0/28}}, {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
priorityClassQuota: {enabled: true, pods: 5}
rbac: {aggregatedRoles: {enabled: true, serviceScalers: true}}
lifecycle: {preStop: {sleep: {seconds: 5}}}
revisionHistoryLimit: 3
dnsPolicy: None
dnsConfig: {nameservers: [10.0.0.10]}
guard: {enabled: true}
"#;
const HOST_NETWORK: &str = "hostNetwork: true\n";

const EVERYTHING: &str = r#"
image: {repository: registry.example.com/berth, tag: v1, digest: "", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
nameOverride: scheduler
fullnameOverride: batch-scheduler
replicas: 3
config:
  schedulerNames: [berth, berth-batch]
  agents: 4
  cacheMemoryMiB: 512
  cacheMaxAge: 1h30m
  candidateWidth: 3
  podTopologySpread:
    defaultingType: List
    defaultConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}
  packing: MostAllocated
  dispatcher: latcache-rule
  bindsInFlight: 128
  maxWaitingBinds: 512
  maxPlacementTries: 5
  backoff: {initial: 500ms, max: 30s}
  selfCheckInterval: 10m
  leaderElection:
    enabled: true
    namespace: leases
    name: berth-batch
    leaseDuration: 30s
    renewDeadline: 20s
    retryPeriod: 3s
  healthAddress: "[::]:8080"
  serving:
    address: "[::]:8443"
    names: [scheduler.example.com]
    secret: scheduler-certificate
    maxConnections: 256
    shutdownDelay: 10s
  extender: {clients: [kube-scheduler], maxBodyBytes: 134217728}
  guard: {patience: 100ms, hold: 90s}
  estimatorFile: /var/lib/berth/latencies.json
  logFormat: json
extender: {enabled: true, clientCaSecret: kube-scheduler-client-ca}
guard:
  enabled: true
  failurePolicy: Fail
  timeoutSeconds: 2
  namespaceSelector: {matchLabels: {guarded: "yes"}}
  exemptNamespaces: [cni]
  certManager: {enabled: false}
extraArgs: [--leader-elect=true]
env: [{name: RUST_LOG, value: debug}]
serviceAccount: {create: true, name: placer, annotations: {example.com/team: platform}}
rbac: {create: true}
service: {enabled: true, port: 9090, annotations: {example.com/scrape: "true"}}
serviceMonitor: {enabled: true, tlsConfig: {insecureSkipVerify: true}}
podDisruptionBudget: {enabled: true, maxUnavailable: "50%"}
resources: {requests: {cpu: 2, memory: 1Gi}, limits: {memory: 4Gi}}
priorityClassName: system-node-critical
schedulerName: other-scheduler
terminationGracePeriodSeconds: 60
nodeSelector: {node-role.kubernetes.io/control-plane: ""}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]}]
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: DoNotSchedule
    labelSelector: {matchLabels: {app.kubernetes.io/instance: berth}}
podLabels: {team: platform}
podAnnotations: {example.com/note: "yes"}
extraVolumes: [{name: certificates, secret: {secretName: certificates}}]
extraVolumeMounts: [{name: certificates, mountPath: /etc/certificates, readOnly: true}]
"#;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart() -> PathBuf {
    repository().join("charts/berth")
}

/// Returns whether generated files are rewritten instead of checked.
fn updates() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

/// Runs helm without the user's own settings.
pub fn helm(args: &[&str]) -> Output {
    let home = TempDir::new().unwrap();
    let helm = go_tool("helm").expect("helm");
    Command::new(helm)
        .args(args)
        .current_dir(repository())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .env_remove("HELM_NAMESPACE")
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

/// Renders the chart with `values`; the error is helm's message.
fn template(values: &str) -> Result<String, String> {
    template_for(Kubernetes::default().version(), values)
}

/// Renders the chart with `values` for a version of Kubernetes; the error is helm's message.
fn template_for(kubernetes: &str, values: &str) -> Result<String, String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).unwrap();
    let output = helm(&[
        "template",
        "berth",
        "charts/berth",
        "--namespace",
        NAMESPACE,
        "--kube-version",
        kubernetes,
        "--values",
        file.to_str().unwrap(),
    ]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn documents(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

pub(crate) fn rendered(values: &str) -> Vec<Value> {
    documents(&template(values).unwrap_or_else(|error| panic!("{error}")))
}

/// The only object of this kind.
fn the<'a>(kind: &str, objects: &'a [Value]) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    object
}

/// Returns the configuration that berth loads from the rendered file.
fn loaded_config(objects: &[Value]) -> Config {
    let maps: Vec<&Value> = objects.iter().filter(|it| it["data"]["berth.yaml"].is_string()).collect();
    let [map] = maps[..] else { panic!("{maps:?}") };
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("berth.yaml");
    fs::write(&file, map["data"]["berth.yaml"].as_str().unwrap()).unwrap();
    Config::load(std::slice::from_ref(&file)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn helm_lint_is_content_with_every_kind_of_values() {
    for (name, values) in VALUES {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("values.yaml");
        fs::write(&file, values).unwrap();
        let output = helm(&[
            "lint",
            "--strict",
            "--kube-version=1.36.3",
            "--values",
            file.to_str().unwrap(),
            "charts/berth",
        ]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {text}");
        assert!(text.contains("1 chart(s) linted, 0 chart(s) failed"), "{name}: {text}");
    }
}

#[test]
fn the_configuration_in_the_chart_has_the_defaults_of_berth_but_for_the_pods_own_places() {
    let config = loaded_config(&rendered(""));
    let expected = Config {
        health_address: "0.0.0.0:10261".parse().unwrap(),
        serving: Serving {
            address: Some("0.0.0.0:10260".parse().unwrap()),
            names: ["berth.berth-system.svc", "berth.berth-system", "berth"].map(str::to_owned).to_vec(),
            secret: "berth-tls".to_owned(),
            ..Serving::default()
        },
        estimator_file: Some("/var/lib/berth/estimator.json".into()),
        ..Config::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn values_yaml_names_every_key_of_the_configuration() {
    let keys = |schema: &Value| -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for (key, property) in schema["properties"].as_object().unwrap() {
            keys.insert(key.clone());
            if let Some(inner) = property["properties"].as_object() {
                keys.extend(inner.keys().map(|inner| format!("{key}.{inner}")));
            }
        }
        keys
    };
    let values = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    for key in keys(&config::schema()) {
        let pointer = format!("/config/{}", key.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "values.yaml has no config.{key}");
    }
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    for key in keys(&schema).into_iter().filter(|key| key != "global") {
        assert!(values.pointer(&format!("/{}", key.replace('.', "/"))).is_some(), "values.yaml has no {key}");
    }
}

#[test]
fn the_dashboard_is_the_file_and_grafana_finds_it_by_its_label() {
    let objects = rendered("dashboard: {enabled: true}");
    let map = objects.iter().find(|it| it["metadata"]["name"] == "berth-dashboard").expect("a ConfigMap");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let file = fs::read_to_string(chart().join("dashboards/berth.json")).unwrap();
    let (shown, expected): (Value, Value) = (
        serde_json::from_str(map["data"]["berth.json"].as_str().expect("a text")).expect("JSON"),
        serde_json::from_str(&file).expect("JSON"),
    );
    assert_eq!(shown, expected);
    assert!(rendered("").iter().all(|it| it["data"]["berth.json"].is_null()), "not by default");
}

#[test]
fn every_value_is_documented_where_it_stands() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let mut before = "";
    let mut in_resources = false;
    for line in text.lines() {
        let key = line.trim_start();
        if !line.starts_with([' ', '#']) && !line.is_empty() {
            in_resources = line.starts_with("resources:");
        }
        let is_key = !key.starts_with(['#', '-']) && !key.is_empty();
        // Fields documented by Kubernetes; groups of values whose members are documented.
        let is_clear = (in_resources && line.starts_with(' ')) || key.ends_with(':');
        if is_key && !is_clear {
            assert!(before.trim_start().starts_with('#'), "{key} has no comment");
        }
        before = line;
    }
}

#[test]
fn the_file_that_the_chart_writes_is_read_by_berth() {
    let configs: BTreeMap<&str, Config> =
        VALUES.iter().map(|(name, values)| (*name, loaded_config(&rendered(values)))).collect();
    assert!(!configs["single"].leader_election.enabled);
    let everything = &configs["everything"];
    assert_eq!(everything.scheduler_names, ["berth", "berth-batch"]);
    assert_eq!(everything.leader_election.lease_duration, "30s".parse().unwrap());
    assert_eq!(everything.health_address, "[::]:8080".parse().unwrap());
    assert_eq!(everything.serving.client_ca_file.as_deref(), Some(Path::new("/etc/berth-clients/ca.crt")));
    assert_eq!(everything.serving.webhook_configuration, "berth-system-batch-scheduler");
    assert!(everything.extender.enabled && everything.guard.enabled);
    assert_eq!(configs["without-https"].serving.address, None);
    assert!(configs["recommender"].recommender.enabled && !everything.recommender.enabled);
    let applies = &configs["apply"];
    assert!(applies.recommender.apply.webhook && applies.recommender.apply.updater);
    assert_eq!(applies.serving.mutating_webhook_configuration, "berth-system-berth");
    assert_eq!(applies.serving.webhook_configuration, "");
    let managed = &configs["guard-cert-manager"].serving;
    assert_eq!(managed.ca_file.as_deref(), Some(Path::new("/etc/berth-tls/ca.crt")));
    // cert-manager writes the CA, berth the path.
    assert_eq!((managed.secret.as_str(), managed.webhook_secret.as_str()), ("", "berth-webhooks"));
    assert_eq!(managed.webhook_configuration, "berth-system-berth");
}

/// `UPDATE=1` rewrites it.
#[test]
fn the_schema_of_the_values_has_the_schema_of_the_configuration() {
    let file = chart().join("values.schema.json");
    let found = fs::read_to_string(&file).unwrap();
    let mut schema: Value = serde_json::from_str(&found).unwrap();
    schema["properties"]["config"] = config::schema();
    let expected = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if updates() {
        fs::write(&file, expected).unwrap();
    } else {
        assert!(
            found == expected,
            "charts/berth/values.schema.json is old: UPDATE=1 cargo test --test it chart"
        );
    }
}

#[test]
fn values_that_are_unknown_or_wrong_are_refused_with_their_name() {
    let cases = [
        ("replica: 2", "replica"),
        ("config: {agentz: 2}", "agentz"),
        ("config: {leaderElection: {enable: true}}", "enable"),
        ("image: {registry: x}", "registry"),
        ("replicas: many", "/replicas"),
        ("config: {agents: many}", "/config/agents"),
        ("config: {bindsInFlight: 5000}", "/config/bindsInFlight"),
        ("config: {packing: Random}", "/config/packing"),
        ("config: {cacheMaxAge: 10}", "/config/cacheMaxAge"),
        ("config: {cacheMaxAge: ten}", "/config/cacheMaxAge"),
        ("config: {schedulerNames: []}", "/config/schedulerNames"),
        ("config: {schedulerNames: [a, a]}", "/config/schedulerNames"),
        ("config: {healthAddress: 10261}", "/config/healthAddress"),
        ("config: {healthAddress: null}", "healthAddress"),
        ("config: {recommender: {prometheus: {url: 'http://p', bearerToken: t}}}", "bearerToken"),
        ("recommender: {enabled: true, credentialsSecret: p}", "needs config.recommender.prometheus"),
        ("service: {port: 0}", "/service/port"),
        ("image: {digest: sha256:12}", "/image/digest"),
        (
            "replicas: 2\nconfig: {leaderElection: {enabled: false}}",
            "replicas > 1 needs config.leaderElection.enabled",
        ),
        (
            "service: {enabled: false}\nserviceMonitor: {enabled: true}",
            "serviceMonitor.enabled needs service.enabled",
        ),
        ("serviceAccount: {create: false}", "serviceAccount.name is needed"),
        ("guard: {failurePolicy: Maybe}", "/guard/failurePolicy"),
        ("guard: {certManager: {enabled: perhaps}}", "/guard/certManager/enabled"),
        ("extender: {enabled: true}", "extender.enabled needs extender.clientCaSecret"),
        (
            "extender: {enabled: true, clientCaSecret: ca}\nconfig: {serving: {address: null}}",
            "extender.enabled needs config.serving.address",
        ),
        (
            "guard: {enabled: true}\nservice: {enabled: false}",
            "guard.enabled needs service.enabled and config.serving.address",
        ),
        (
            "apply: {webhook: {enabled: true}}\nservice: {enabled: false}",
            "apply.webhook.enabled needs service.enabled and config.serving.address",
        ),
        ("apply: {webhook: {timeoutSeconds: 30}}", "/apply/webhook/timeoutSeconds"),
        ("config: {leaderElection: {activeActive: true}}", "activeActive needs guard.enabled"),
        (
            "config: {leaderElection: {activeActive: true}}\nguard: {enabled: true}",
            "activeActive needs guard.failurePolicy: Fail",
        ),
        (
            "serviceMonitor: {enabled: true}\nconfig: {serving: {address: null}}",
            "serviceMonitor.enabled needs config.serving.address",
        ),
        (
            "serviceMonitor: {enabled: true}\nconfig: {leaderElection: {namespace: leases}}",
            "serviceMonitor.tlsConfig is needed",
        ),
        ("podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}", "exclude each other"),
        ("podMonitor: {enabled: true}", "podMonitor.enabled needs podMonitor.authorization"),
        (
            "podMonitor: {enabled: true, authorization: {credentials: {name: a, key: b}}}\n\
             config: {serving: {address: null}}",
            "podMonitor.enabled needs config.serving.address",
        ),
        (
            "podMonitor: {enabled: true, authorization: {credentials: {name: a, key: b}}}\n\
             config: {leaderElection: {namespace: leases}}",
            "podMonitor.tlsConfig is needed",
        ),
        ("networkPolicy: {enabled: true}\nguard: {enabled: true}", "needs networkPolicy.from"),
        ("networkPolicy: {enabled: true}\nhostNetwork: true", "has no effect with hostNetwork"),
        (
            "priorityClassQuota: {enabled: true}\npriorityClassName: ''",
            "priorityClassQuota.enabled needs priorityClassName",
        ),
        ("dnsPolicy: Some", "/dnsPolicy"),
        ("revisionHistoryLimit: few", "/revisionHistoryLimit"),
        ("rbac: {aggregatedRoles: {enabeld: true}}", "enabeld"),
    ];
    for (values, expected) in cases {
        let error = template(values).expect_err(values);
        // Older versions of helm write paths with dots.
        let dotted = expected.trim_start_matches('/').replace('/', ".");
        assert!(error.contains(expected) || error.contains(&dotted), "{values:?} says: {error}");
    }
}

#[test]
fn the_chart_is_of_this_version() {
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(chart().join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_chart_installs_on_the_supported_versions_of_kubernetes_and_on_none_that_is_older() {
    let newest = template("").unwrap();
    for kubernetes in Kubernetes::ALL {
        assert!(template_for(kubernetes.version(), "").unwrap() == newest, "{kubernetes:?}");
    }
    let oldest: u32 = Kubernetes::ALL[0].minor().trim_start_matches("1.").parse().unwrap();
    let error = template_for(&format!("v1.{}.9", oldest - 1), "").expect_err("it is too old");
    assert!(error.contains(&format!("chart requires kubeVersion: >=1.{oldest}.0-0")), "{error}");

    let page = fs::read_to_string(repository().join("docs/support.md")).unwrap();
    for kubernetes in Kubernetes::ALL {
        let row = format!("| {} | {} |", kubernetes.minor(), kubernetes.version());
        assert!(page.contains(&row), "docs/support.md has no {row}");
    }
    let runs = fs::read_to_string(repository().join(".ci/long")).unwrap();
    assert!(runs.contains(&format!("MINORS=({})", Kubernetes::ALL.map(Kubernetes::minor).join(" "))));
}

#[test]
fn another_configuration_makes_other_pods_and_the_port_follows_it() {
    let checksum = |objects: &[Value]| {
        the("Deployment", objects)["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    let (before, same, after) = (rendered(""), rendered("replicas: 3"), rendered("config: {agents: 3}"));
    assert!(checksum(&before).is_string());
    assert_eq!(checksum(&before), checksum(&same));
    assert_ne!(checksum(&before), checksum(&after));
    let everything = rendered(EVERYTHING);
    let container = &the("Deployment", &everything)["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"][0]["containerPort"], 8080);
}

/// The agents keep lists, and one more cache serves the extender and explanations.
#[test]
fn the_memory_limit_has_room_for_all_caches() {
    let objects = rendered("");
    let container = &the("Deployment", &objects)["spec"]["template"]["spec"]["containers"][0];
    let limit = container["resources"]["limits"]["memory"].as_str().expect("a limit");
    let limit = berth_model::Quantity::parse(limit).expect("a quantity").value();
    let config = loaded_config(&objects);
    let caches = config.agent_count(usize::MAX) as i64 + 1;
    // That of the agent which answers what would fit is small.
    let bytes = caches * (i64::from(config.cache_memory_mib) << 20) + (32 << 20);
    assert!(bytes <= limit * 2 / 3, "{caches} caches may take {bytes} of {limit} bytes");
}

#[test]
fn webhooks_have_a_secret_path() {
    let secret = |values| loaded_config(&rendered(values)).serving.webhook_secret;
    assert_eq!(secret("guard: {enabled: true}"), "berth-webhooks");
    assert_eq!(secret(""), "", "there are none");
}

#[test]
fn a_digest_goes_before_the_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let objects = rendered(&format!("image: {{tag: v2, digest: '{digest}'}}"));
    let container = &the("Deployment", &objects)["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], format!("berth@{digest}"));
}

const INSTALL_HEAD: &str = "\
# berth with the default values of charts/berth, in the namespace berth-system:
#   kubectl apply -f manifests/install.yaml
# Made by `UPDATE=1 cargo test --test it chart`. Set the image to one that your nodes can pull.
apiVersion: v1
kind: Namespace
metadata:
  name: berth-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
";

/// `UPDATE=1` rewrites it.
#[test]
fn the_install_manifest_is_the_chart_with_its_defaults() {
    let file = repository().join("manifests/install.yaml");
    let expected = format!("{INSTALL_HEAD}{}", template("").unwrap());
    if updates() {
        fs::write(&file, expected).unwrap();
    } else {
        let found = fs::read_to_string(&file).unwrap_or_default();
        assert!(found == expected, "manifests/install.yaml is old: UPDATE=1 cargo test --test it chart");
    }
}
