//! Everything that users apply, validated by a real API server and by kubeconform with that server's schemas.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use berth_testenv::binaries::go_tool;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, GetParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{await_until, start_control_plane};

use super::openapi::write_schemas;
use super::{NAMESPACE, VALUES, documents, helm, rendered, repository, template, the};

/// Returns everything that a user could apply: a name, and the YAML.
fn everything_to_apply() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        VALUES.iter().map(|(name, values)| ((*name).to_owned(), template(values).unwrap())).collect();
    let mut manifests: Vec<PathBuf> =
        fs::read_dir(repository().join("manifests")).unwrap().map(|entry| entry.unwrap().path()).collect();
    manifests.sort();
    for file in manifests {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        all.push((name, fs::read_to_string(file).unwrap()));
    }
    all
}

#[tokio::test]
async fn the_api_server_and_kubeconform_accept_every_object() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    for namespace in [NAMESPACE, "leases"] {
        create_restricted_namespace(&client, namespace).await;
    }
    install_crds(&client).await;
    let folder = TempDir::new().unwrap();
    write_schemas(&client, folder.path()).await;

    for (name, yaml) in everything_to_apply() {
        kubeconform(&yaml, folder.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for object in documents(&yaml) {
            if is_foreign(&object) {
                continue;
            }
            dry_run(&client, &object).await.unwrap_or_else(|error| panic!("{name}: {error}: {object}"));
            if object["kind"] == "Deployment" && object["metadata"]["namespace"] == NAMESPACE {
                // Pod security never rejects a Deployment, only its pods.
                let pod = pod_of(&object);
                let created = dry_run(&client, &pod).await;
                if pod["spec"]["hostNetwork"] == true {
                    let error = created.expect_err("a restricted namespace refuses it").to_string();
                    assert!(error.contains("violates PodSecurity") && error.contains("host"), "{error}");
                    continue;
                }
                created.unwrap_or_else(|error| panic!("{name}: {error}: {pod}"));
            }
        }
    }
}

#[tokio::test]
async fn the_checks_of_objects_refuse_a_misspelt_field() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let folder = TempDir::new().unwrap();
    write_schemas(&client, folder.path()).await;

    let good = fs::read_to_string(repository().join("manifests/example-deployment.yaml")).unwrap();
    let bad = good.replace("schedulerName:", "schedulerNam:");
    assert_ne!(good, bad);
    let error = kubeconform(&bad, folder.path()).expect_err("kubeconform knows the fields of a pod");
    assert!(error.contains("schedulerNam"), "{error}");
    let error = dry_run(&client, &documents(&bad)[0]).await.expect_err("strict validation is on");
    assert!(error.to_string().contains("schedulerNam"), "{error}");

    create_restricted_namespace(&client, NAMESPACE).await;
    let chart = rendered("");
    let mut pod = pod_of(the("Deployment", &chart));
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
    let error = dry_run(&client, &pod).await.expect_err("pod security is on");
    assert!(error.to_string().contains("violates PodSecurity"), "{error}");
}

#[tokio::test]
async fn helm_installs_the_chart_and_its_notes_say_how_to_use_it() {
    let control_plane = start_control_plane().await;
    let kubeconfig = control_plane.kubeconfig();
    let output = tokio::task::spawn_blocking(move || {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        helm(&[
            "install",
            "berth",
            "charts/berth",
            "--create-namespace",
            "--namespace",
            NAMESPACE,
            &kubeconfig,
        ])
    })
    .await
    .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("schedulerName: berth"), "{text}");
    assert!(text.contains("kubectl -n berth-system get lease berth"), "{text}");
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(control_plane.client(), NAMESPACE);
    deployments.get("berth").await.expect("the Deployment is there");
    let kinds: Api<CustomResourceDefinition> = Api::all(control_plane.client());
    let kind = kinds.get("allocations.berth.dev").await.expect("the kind is there");
    assert_eq!(kind.metadata.annotations.unwrap_or_default()["helm.sh/resource-policy"], "keep");
}

/// Kinds that the test's API server does not serve: of operators, and of files.
const FOREIGN: [&str; 8] = [
    "kubescheduler.config.k8s.io/v1/KubeSchedulerConfiguration",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "monitoring.coreos.com/v1/ServiceMonitor",
    "cert-manager.io/v1/Certificate",
    "cert-manager.io/v1/Issuer",
    // `policies.rs` applies it.
    "berth.dev/v1alpha1/AllocationPolicy",
    // `quotas.rs` applies it.
    "berth.dev/v1alpha1/Quota",
];

fn is_foreign(object: &Value) -> bool {
    let kind = ["apiVersion", "kind"].map(|key| object[key].as_str().unwrap()).join("/");
    FOREIGN.contains(&kind.as_str())
}

fn pod_of(deployment: &Value) -> Value {
    let template = &deployment["spec"]["template"];
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!("berth");
    pod["metadata"]["namespace"] = deployment["metadata"]["namespace"].clone();
    pod
}

/// Installs the CRDs, and waits until the API server serves and describes their kinds.
pub async fn install_crds(client: &Client) {
    for crd in berth_crds::crds() {
        let (group, kind) = (crd.spec.group.clone(), crd.spec.names.kind.clone());
        create(client, &serde_json::to_value(&crd).unwrap()).await;
        await_until(Duration::from_secs(60), &format!("{kind} is described"), async || {
            let request = kube::core::Request::new("").get("openapi/v2", &GetParams::default()).unwrap();
            let openapi: Value = serde_json::from_str(&client.request_text(request).await.unwrap()).unwrap();
            let reversed: Vec<&str> = group.rsplit('.').collect();
            let name = format!("{}.{}.{kind}", reversed.join("."), crd.spec.versions[0].name);
            openapi["definitions"][name].is_object()
        })
        .await;
    }
}

async fn create_restricted_namespace(client: &Client, name: &str) {
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
}

/// Dry run of a server-side apply with strict field validation.
async fn dry_run(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    apply(client, object, true).await
}

/// Server-side apply with strict field validation.
pub async fn create(client: &Client, object: &Value) {
    apply(client, object, false).await.unwrap_or_else(|error| panic!("{error}: {object}"));
}

async fn apply(client: &Client, object: &Value, dry_run: bool) -> kube::Result<DynamicObject> {
    let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types).unwrap());
    let api: Api<DynamicObject> = match object["kind"].as_str().unwrap() {
        "Namespace"
        | "ClusterRole"
        | "ClusterRoleBinding"
        | "CustomResourceDefinition"
        | "MutatingWebhookConfiguration"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding"
        | "ValidatingWebhookConfiguration" => Api::all_with(client.clone(), &resource),
        _ => {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    let params = PatchParams { dry_run, ..PatchParams::apply("berth-test").validation_strict().force() };
    api.patch(object["metadata"]["name"].as_str().unwrap(), &params, &Patch::Apply(object)).await
}

/// Checks objects with the schemas in `schemas`; the error is kubeconform's message.
fn kubeconform(yaml: &str, schemas: &Path) -> Result<(), String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("objects.yaml");
    fs::write(&file, yaml).unwrap();
    let location = format!(
        "{}/{{{{.ResourceKind}}}}-{{{{.Group}}}}-{{{{.ResourceAPIVersion}}}}.json",
        schemas.display()
    );
    let output = Command::new(go_tool("kubeconform").expect("kubeconform"))
        .args(["-strict", "-summary", "-verbose", "-skip", &FOREIGN.join(",")])
        .arg("-schema-location")
        .arg(location)
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (foreign, ours): (Vec<Value>, Vec<Value>) = documents(yaml).into_iter().partition(is_foreign);
    let summary = format!("Valid: {}, Invalid: 0, Errors: 0, Skipped: {}", ours.len(), foreign.len());
    if output.status.success() && text.contains(&summary) { Ok(()) } else { Err(text) }
}
