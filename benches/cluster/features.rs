//! berth with every feature on: its configuration, and the objects that keep the features busy.
//!
//! Prometheus does not answer: rounds of the recommender and of the scaler read everything but usage.

use std::net::TcpListener;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::{Cluster, install};
use crate::lived_in;

const WEBHOOKS: &str = "berth-bench";
const SECRET: &str = "berth-bench-tls";

/// Prepares the cluster, and returns the path of the configuration.
pub async fn prepare(cluster: &Cluster) -> Result<PathBuf> {
    let client = &cluster.client;
    install(client, berth_crds::crds()).await?;
    let text = include_str!("../../tests/data/vpa-crds.yaml");
    let of_vpa: Result<Vec<CustomResourceDefinition>, _> =
        text.split("\n---\n").map(serde_saphyr::from_str).collect();
    install(client, of_vpa.context("the CRDs of VPAs are invalid")?).await?;
    for (kind, group, version, object) in objects() {
        create(client, &GroupVersionKind::gvk(group, version, kind), object).await?;
    }
    // Freed for berth, which starts next.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(webhooks(port))?;
    Api::all(client.clone()).create(&PostParams::default(), &configuration).await?;
    // Nobody calls the extender over HTTPS.
    let callers = cluster.folder.path().join("callers.pem");
    std::fs::write(&callers, rcgen::generate_simple_self_signed(["callers".to_owned()])?.cert.pem())?;
    let config = json!({
        "leaderElection": {"enabled": false},
        "healthAddress": "127.0.0.1:0",
        "serving": {
            "address": format!("127.0.0.1:{port}"), "secret": SECRET, "webhookConfiguration": WEBHOOKS,
            "clientCaFile": callers,
        },
        "guard": {"enabled": true},
        "extender": {"enabled": true, "plaintext": true},
        "reserveAfter": "2s",
        "recommender": {
            "enabled": true, "interval": "5s", "prometheus": {"url": "http://127.0.0.1:9"},
            "apply": {"updater": true, "interval": "5s"},
        },
        "scaling": {"enabled": true, "interval": "5s"},
    });
    let path = cluster.folder.path().join("berth.yaml");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Returns kind, group, version and text of a quota for each namespace, policies for some, and a VPA or a ServiceScaler
/// for each StatefulSet.
fn objects() -> impl Iterator<Item = (&'static str, &'static str, &'static str, Value)> {
    let namespaces = (0..lived_in::NAMESPACES).map(|at| (at, lived_in::namespace_name(at)));
    let quotas = namespaces.clone().map(|(_, name)| {
        let spec = json!({"namespaces": [name], "guaranteed": {"cpu": 10}, "maximum": {"cpu": 1000}});
        ("Quota", "berth.dev", "v1alpha1", json!({"metadata": {"name": name}, "spec": spec}))
    });
    let policies = namespaces.filter(|(at, _)| at % 10 == 0).map(|(at, name)| {
        let governs = json!({"schedulerNames": ["berth"], "namespaceSelector": {"matchLabels": {"team": format!("{at}")}}});
        let spec = json!({"governs": governs, "packing": "LeastAllocated"});
        ("AllocationPolicy", "berth.dev", "v1alpha1", json!({"metadata": {"name": name}, "spec": spec}))
    });
    let sized = lived_in::stateful_names().enumerate().map(|(at, (namespace, name))| {
        let metadata = json!({"namespace": namespace, "name": name});
        let target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name});
        if at.is_multiple_of(2) {
            let spec = json!({
                "targetRef": target, "updatePolicy": {"updateMode": "Off"}, "recommenders": [{"name": "berth"}],
            });
            let vpa = json!({"metadata": metadata, "spec": spec});
            return ("VerticalPodAutoscaler", "autoscaling.k8s.io", "v1", vpa);
        }
        let spec = json!({
            "target": target, "objectives": {"signal": {"type": "CpuThrottling", "target": "0.05"}},
            "bounds": {"minReplicas": 1, "maxReplicas": 40}, "dryRun": false,
        });
        ("ServiceScaler", "berth.dev", "v1alpha1", json!({"metadata": metadata, "spec": spec}))
    });
    quotas.chain(policies).chain(sized)
}

/// Returns the webhooks of the chart: all bindings but berth's own, and pods that are created with a node. berth is
/// an administrator here, as are the benchmark's own clients, none of which binds.
fn webhooks(port: u16) -> Value {
    let webhook = |name: &str, resource: &str, condition: &str| {
        json!({
            "name": name,
            "clientConfig": {"url": format!("https://localhost:{port}/guard")},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
            "failurePolicy": "Ignore",
            "matchConditions": [{"name": "reviewed", "expression": condition}],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        })
    };
    let not_by_berth = "!('system:masters' in request.userInfo.groups)";
    let placed = "has(object.spec.nodeName) && object.spec.nodeName != ''";
    json!({
        "metadata": {"name": WEBHOOKS},
        "webhooks": [
            webhook("bindings.berth.dev", "pods/binding", not_by_berth),
            webhook("pods.berth.dev", "pods", placed),
        ],
    })
}

async fn create(client: &Client, kind: &GroupVersionKind, object: Value) -> Result<()> {
    let kind = ApiResource::from_gvk(kind);
    let mut object: DynamicObject = serde_json::from_value(object)?;
    object.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
    let api: Api<DynamicObject> = match object.metadata.namespace.clone() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    api.create(&PostParams::default(), &object).await.with_context(|| format!("{} {name}", kind.kind))?;
    Ok(())
}
