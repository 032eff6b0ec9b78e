//! The life of a release, as `docs/upgrading.md` describes it: upgrades, a rollback, and what an uninstallation leaves behind.
//! `upgrades.rs` has what runs meanwhile.

use std::path::PathBuf;

use berth_testenv::ControlPlane;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client};

use super::*;
use crate::support::start_control_plane;

/// helm on a cluster.
pub(super) struct Helm {
    kubeconfig: PathBuf,
}

impl Helm {
    pub(super) fn on(control_plane: &ControlPlane) -> Helm {
        Helm { kubeconfig: control_plane.kubeconfig() }
    }

    /// Runs helm in the namespace of the release; the error is its message.
    pub(super) async fn run(&self, args: &[&str]) -> Result<String, String> {
        let mut all: Vec<String> = args.iter().map(ToString::to_string).collect();
        all.push(format!("--namespace={NAMESPACE}"));
        all.push(format!("--kubeconfig={}", self.kubeconfig.display()));
        let output =
            tokio::task::spawn_blocking(move || helm(&all.iter().map(String::as_str).collect::<Vec<_>>()));
        let output = output.await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

/// Copies the chart as it was before its value `prometheusRule`.
fn older_chart(folder: &Path) -> PathBuf {
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(folder).status().unwrap();
    assert!(copied.success());
    let older = folder.join("berth");
    fs::remove_file(older.join("templates/prometheusrule.yaml")).unwrap();
    let values = fs::read_to_string(older.join("values.yaml")).unwrap();
    let (before, rest) = values.split_once("\nprometheusRule:\n").expect("the value");
    let (_, after) = rest.split_once("\n\n").expect("its end");
    fs::write(older.join("values.yaml"), format!("{before}\n{after}")).unwrap();
    older
}

async fn has_guard(client: &Client) -> bool {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    webhooks.get_opt(&format!("{NAMESPACE}-berth")).await.unwrap().is_some()
}

#[tokio::test]
async fn upgrades_keep_what_users_set_and_an_uninstallation_leaves_the_kinds() {
    let control_plane = start_control_plane().await;
    let (client, folder) = (control_plane.client(), TempDir::new().unwrap());
    let helm = Helm::on(&control_plane);
    let older = older_chart(folder.path());
    let older = older.to_str().unwrap();
    helm.run(&["install", "berth", older, "--create-namespace", "--set=replicas=3"]).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let replicas = async || deployments.get("berth").await.unwrap().spec.unwrap().replicas;

    let upgrade = ["upgrade", "berth", "charts/berth", "--set=guard.enabled=true"];
    let with = |flag: &'static str| [&upgrade[..], &[flag]].concat();
    let error = helm.run(&with("--reuse-values")).await.expect_err("a new default is missing");
    assert!(error.contains("nil pointer"), "{error}");
    helm.run(&with("--reset-then-reuse-values")).await.unwrap();
    assert!(has_guard(&client).await);
    assert_eq!(replicas().await, Some(3));
    let values = helm.run(&["get", "values", "berth"]).await.unwrap();
    assert!(values.contains("replicas: 3") && values.contains("enabled: true"), "{values}");

    let history = helm.run(&["history", "berth"]).await.unwrap();
    assert!(history.contains("superseded") && history.contains("deployed"), "{history}");
    helm.run(&["rollback", "berth"]).await.unwrap();
    assert!(!has_guard(&client).await);
    assert_eq!(replicas().await, Some(3));

    helm.run(&with("--reset-then-reuse-values")).await.unwrap();
    helm.run(&["uninstall", "berth"]).await.unwrap();
    assert!(!has_guard(&client).await);
    assert!(deployments.get_opt("berth").await.unwrap().is_none());
    let of_berth = ListParams::default().labels("app.kubernetes.io/name=berth");
    let roles: Api<ClusterRole> = Api::all(client.clone());
    assert!(roles.list(&of_berth).await.unwrap().items.is_empty());
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let left = kinds.list(&of_berth).await.unwrap().items;
    let left: BTreeSet<String> = left.into_iter().filter_map(|kind| kind.metadata.name).collect();
    let page = fs::read_to_string(repository().join("docs/upgrading.md")).unwrap();
    let command =
        page.lines().find_map(|line| line.strip_prefix("kubectl delete crds ")).expect("the command");
    assert_eq!(left, command.split(' ').map(str::to_owned).collect());

    let error = helm.run(&["install", "other", "charts/berth"]).await.expect_err("the kinds are of berth");
    assert!(error.contains("invalid ownership metadata"), "{error}");
    helm.run(&["install", "other", "charts/berth", "--set=crds.install=false"]).await.unwrap();
    helm.run(&["uninstall", "other"]).await.unwrap();
    helm.run(&["install", "berth", "charts/berth"]).await.unwrap();
}
