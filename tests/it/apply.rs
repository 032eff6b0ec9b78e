//! Recommendations applied to pods, by berth on a real API server with the VPA CRDs. There is no kubelet: the tests
//! write a kubelet's reports about resizes.

mod boost;
mod scaled;
mod updater;
mod validation;
mod webhook;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::recommender::{api, create, create_crds, vpas};
use crate::serving::client::{Ca, in_seconds};
use crate::support::*;

const SOON: Duration = Duration::from_secs(30);

/// An HTTPS certificate, as files, and the CA that clients trust.
struct Certificate {
    folder: TempDir,
    authority: Ca,
    ca: Value,
}

impl Certificate {
    fn new() -> Certificate {
        Certificate::ending_in(7_200)
    }

    fn ending_in(seconds: i64) -> Certificate {
        let (folder, authority) = (tempfile::tempdir().expect("a folder"), Ca::new("berths"));
        let ca = bundle(&authority.certificate);
        let certificate = Certificate { folder, authority, ca };
        certificate.replace(seconds);
        certificate
    }

    /// Replaces the files by another certificate, which expires in `seconds`.
    fn replace(&self, seconds: i64) {
        let server = self.authority.server(in_seconds(seconds));
        for (name, text) in [("tls.crt", &server.certificate), ("tls.key", &server.key)] {
            std::fs::write(self.folder.path().join(name), text).expect("written");
        }
    }

    /// A configuration that serves HTTPS with it.
    fn config(&self, more: &str) -> String {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let (certificate, key) = (file("tls.crt"), file("tls.key"));
        format!("serving: {{address: '127.0.0.1:0', certFile: {certificate}, keyFile: {key}}}\n{more}")
    }
}

/// A `caBundle`.
fn bundle(ca: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(ca.as_bytes().to_vec())).expect("a text")
}

/// Creates a Deployment and its ReplicaSet of `replicas` pods; returns the owner references of its pods.
async fn create_workload(client: &Client, name: &str, replicas: usize) -> Value {
    let (deployments, replica_sets) = (
        api(client, "apps", "v1", "Deployment", "deployments"),
        api(client, "apps", "v1", "ReplicaSet", "replicasets"),
    );
    let template = json!({
        "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app", "image": "pause"}]},
    });
    let spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template});
    let owner = |kind: &str, object: &DynamicObject| {
        let (name, uid) = (&object.metadata.name, &object.metadata.uid);
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}])
    };
    let metadata = json!({"name": name});
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec});
    let deployment = create(&deployments, deployment).await;
    let metadata =
        json!({"name": format!("{name}-5d4f8"), "ownerReferences": owner("Deployment", &deployment)});
    let replica_set =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec});
    owner("ReplicaSet", &create(&replica_sets, replica_set).await)
}

/// Returns a pod of this workload, as its ReplicaSet creates it.
fn pod_of(name: &str, index: usize, owners: &Value, resources: Value) -> Value {
    json!({
        "metadata": {
            "name": format!("{name}-5d4f8-{index}"),
            "labels": {"app": name, "pod-template-hash": "5d4f8"},
            "ownerReferences": owners,
        },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "app", "image": "pause", "resources": resources}],
        },
    })
}

async fn create_pod(client: &Client, pod: &Value) -> Value {
    try_create_pod(client, pod).await.expect("the pod is created")
}

async fn try_create_pod(client: &Client, pod: &Value) -> kube::Result<Value> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = serde_json::from_value(pod.clone()).expect("a pod");
    let made = pods.create(&PostParams::default(), &pod).await?;
    Ok(serde_json::to_value(made).expect("JSON"))
}

/// A VPA of the Deployment of the same name, with this target for the container `app`, if any.
async fn create_vpa(client: &Client, name: &str, mode: &str, target: Option<Value>) {
    let vpa = json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "updatePolicy": {"updateMode": mode},
        },
    });
    create(&vpas(client), vpa).await;
    if let Some(target) = target {
        recommend(client, name, target).await;
    }
}

/// Sets the recommendation to exactly this.
async fn recommend(client: &Client, name: &str, target: Value) {
    let recommendation =
        json!({"containerName": "app", "target": target, "lowerBound": target, "upperBound": target});
    let status = json!({"status": {"recommendation": {"containerRecommendations": [recommendation]}}});
    let params = PatchParams::default();
    vpas(client).patch_status(name, &params, &Patch::Merge(&status)).await.expect("it is recommended");
}

/// Returns requests and limits of the first container.
fn resources(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["resources"]
}
