//! Consistency of the documents: generated parts are up to date, and every command of the README is covered.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with its expected content; `UPDATE=1` in the environment rewrites it instead.
fn assert_up_to_date(file: PathBuf, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, expected).expect("the file is written");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{} is out of date: run UPDATE=1 cargo test --test it docs", file.display());
}

#[test]
fn the_configuration_is_documented_as_it_is_read() {
    let mut text = String::from(
        "# The configuration file\n\n\
         YAML, read by `berth run --config FILE`; the Helm chart writes it from its value `config`. An unset key has its default; an\n\
         unknown key is rejected. This page is generated from the types that read the file.\n\n\
         | key | default | meaning |\n|---|---|---|\n",
    );
    let schema = berth_config::schema();
    let defaults = serde_json::to_value(berth_config::Config::default()).expect("JSON");
    rows(&schema, &defaults, "", &mut text);
    assert_up_to_date(root().join("docs/configuration.md"), &text);
}

fn rows(schema: &Value, defaults: &Value, prefix: &str, text: &mut String) {
    let properties = schema["properties"].as_object().expect("an object's schema");
    for (key, property) in properties {
        let (path, default) = (format!("{prefix}{key}"), &defaults[key]);
        if property["properties"].is_object() {
            rows(property, default, &format!("{path}."), text);
            continue;
        }
        // An object that is omitted entirely has defaults in its schema.
        let default = match default {
            Value::Null => &property["default"],
            default => default,
        };
        let default = match default {
            Value::Null => "none".to_owned(),
            Value::String(value) if value.is_empty() => "`\"\"`".to_owned(),
            Value::String(value) => format!("`{value}`"),
            value => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().expect("every key is documented").replace('\n', " ");
        let _ = writeln!(text, "| `{path}` | {default} | {} |", meaning.trim());
        if property["items"]["properties"].is_object() {
            rows(&property["items"], &Value::Null, &format!("{path}[]."), text);
        }
    }
}

/// Every command of the README, and the test that runs it.
const COVERED: &[(&str, &str)] = &[
    ("cargo run --release -- demo", ".ci/run and tests/it/demo.rs, with the test build"),
    ("cargo test", ".ci/run"),
    ("docker build -t REGISTRY/berth:0.1.0 .", "nothing here: it needs a container engine"),
    ("docker push REGISTRY/berth:0.1.0", "nothing here: it needs a registry"),
    (
        "helm install berth charts/berth --namespace berth-system --create-namespace --set image.repository=REGISTRY/berth",
        "tests/it/chart.rs, against a real API server",
    ),
    ("kubectl apply -f manifests/install.yaml", "tests/it/chart.rs applies every object of it"),
    ("kubectl apply -f manifests/example-deployment.yaml", "tests/it/chart.rs applies it"),
    ("kubectl get pods -o wide", "kubectl's own"),
    ("berth explain NAMESPACE/POD", "tests/it/explain.rs, on a real API server"),
    (
        "kubectl get nodes,pods,namespaces,pv,pvc,storageclasses,csinodes,services,replicasets -A -o json > cluster.json",
        "kubectl's own; tests/it/explain.rs makes such files",
    ),
    ("berth explain -f cluster.json", "tests/it/explain.rs"),
    (
        "berth explain --what-if",
        "tests/it/explain/what_if.rs, and tests/it/allocations/advice.rs on a real API server",
    ),
    (
        "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set extender.enabled=true --set extender.clientCaSecret=kube-scheduler-ca",
        "tests/it/chart.rs renders it; tests/it/extender.rs runs a real kube-scheduler with what it sets",
    ),
    (
        "helm upgrade berth charts/berth --namespace berth-system --reuse-values --set guard.enabled=true",
        "tests/it/chart/features.rs, against a real API server",
    ),
    ("berth simulate", "tests/it/simulate.rs"),
    (
        "berth simulate --trace batched-1pct-0.csv.gz --dispatcher all --report report.html",
        "tests/it/simulate, on published traces if they are there, and tests/it/report.rs",
    ),
    ("berth recommend --prometheus http://localhost:9090", "tests/it/recommend.rs, on a real Prometheus"),
    (
        "berth recommend --prometheus http://localhost:9090 --namespace shop,bank -o html > sizes.html",
        "tests/it/recommend.rs, on a real Prometheus",
    ),
    ("berth recommend --backtest usage.csv", "tests/it/recommend.rs, on a file it makes"),
    (
        "kubectl apply -f manifests/example-allocation.yaml",
        "tests/it/allocations/placed.rs, with a real kubectl and berth on a real API server",
    ),
    ("kubectl get allocations -o wide", "tests/it/allocations/status.rs"),
    ("kubectl apply -f manifests/example-policy.yaml", "tests/it/policies.rs, on a real API server"),
    ("kubectl get allocationpolicies", "kubectl's own; tests/it/policies.rs reads what it shows"),
    (
        "berth run --kubeconfig FILE --config FILE --leader-elect=false --health-address 127.0.0.1:10261",
        "tests/it/scheduling: every test runs it with these options",
    ),
];

#[test]
fn every_command_of_the_readme_is_covered() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let commands: Vec<&str> = blocks.flat_map(str::lines).filter(|line| !line.is_empty()).collect();
    let covered: Vec<&str> = COVERED.iter().map(|(command, _)| *command).collect();
    assert_eq!(commands, covered, "a command of the README that nothing runs, or the other way round");
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect(document);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !target.contains("://") && !target.starts_with('#') {
                assert!(root().join(target).exists(), "{document} links to {target}, which does not exist");
            }
        }
    }
}
