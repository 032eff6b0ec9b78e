//! Allocations on a real API server: kubectl output, parsing, and status updates.

mod advice;
mod kubectl;
mod placed;
mod reading;
mod speed;
mod status;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_testenv::binaries::go_tool;
use berth_testenv::{ControlPlane, Options};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

/// kubectl, as the administrator of a control plane.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

/// Output of kubectl.
pub(crate) struct Said {
    success: bool,
    output: String,
    errors: String,
}

impl Kubectl {
    pub(crate) async fn new(control_plane: &ControlPlane) -> Kubectl {
        let program =
            tokio::task::spawn_blocking(|| go_tool("kubectl").expect("kubectl")).await.expect("no panic");
        Kubectl { program, kubeconfig: control_plane.kubeconfig() }
    }

    async fn run(&self, args: &[&str], input: &str) -> Said {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(self.cache()).args(args);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        run(command, input).await
    }

    /// Beside the kubeconfig, which goes with the control plane.
    fn cache(&self) -> PathBuf {
        self.kubeconfig.parent().unwrap_or(Path::new(".")).join("kubectl-cache")
    }

    /// Returns kubectl's output; panics if it fails.
    pub(crate) async fn must(&self, args: &[&str], input: &str) -> String {
        let said = self.run(args, input).await;
        assert!(said.success, "kubectl {args:?}: {}", said.errors);
        assert_eq!(said.errors, "", "kubectl {args:?} warns");
        said.output
    }

    /// Installs the kinds like a user: applies berth's output.
    pub(crate) async fn install_kinds(&self) {
        let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
        berth.arg("crds");
        let printed = run(berth, "").await;
        assert!(printed.success, "{}", printed.errors);
        self.must(&["apply", "--server-side", "-f", "-"], &printed.output).await;
        self.must(&["wait", "--for=condition=Established", "crd/allocations.berth.dev"], "").await;
    }
}

async fn run(mut command: Command, input: &str) -> Said {
    let input = input.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // Small enough for a pipe that is not being read yet.
        std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), input.as_bytes())
            .expect("it reads");
        child.wait_with_output().expect("it ends")
    });
    let output = output.await.expect("no panic");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said { success: output.status.success(), output: text(output.stdout), errors: text(output.stderr) }
}

/// Objects of a kind in the namespace `default`.
fn objects(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::default_namespaced_with(client.clone(), &kind)
}

fn allocations(client: &Client) -> Api<DynamicObject> {
    objects(client, "berth.dev", "v1alpha1", "Allocation")
}

/// Creates an object, or changes its spec.
async fn apply(
    api: &Api<DynamicObject>,
    api_version: &str,
    kind: &str,
    name: &str,
    spec: Value,
) -> DynamicObject {
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let params = PatchParams::apply("berth-test").force();
    api.patch(name, &params, &Patch::Apply(&object)).await.unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// Starts a control plane that serves PodGroups of Kubernetes; or prints that `test` is not run, because they are newer.
async fn start_with_pod_groups(test: &str) -> Option<TestControlPlane> {
    if !has_api_server(36.., test) {
        return None;
    }
    let args = ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"];
    let api_server_args = args.map(str::to_owned).to_vec();
    Some(start_control_plane_with(Options { api_server_args, ..Options::default() }).await)
}
