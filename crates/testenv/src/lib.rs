//! A real control plane on this machine, for the demo, the tests and the benchmarks.
//!
//! etcd and kube-apiserver (and on request kube-scheduler, kube-controller-manager and kwok) run as child processes on free loopback
//! ports, with their data in a temporary folder. They end with the [`ControlPlane`] value, and with this process however it ends.
//! This module knows nothing of scheduling, and `berth run` nothing of this module.

pub mod binaries;
mod components;
mod credentials;
mod go;
mod process;

use std::path::PathBuf;

use anyhow::Result;
use kube::Client;
use tempfile::TempDir;

use binaries::{Environment, KUBERNETES_VARIABLE, Program};
use components::{ApiServer, start_controller_manager, start_etcd, start_kwok, start_scheduler};
use credentials::Credentials;
pub use credentials::User;
pub use process::{Log, Process};

/// Options of a [`ControlPlane`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Additional flags for kube-apiserver, as `--name=value`.
    pub api_server_args: Vec<String>,
    /// Keeps the admission plugin that taints every new node as not ready. No controller here removes that taint, so the plugin is
    /// normally off.
    pub taint_new_nodes: bool,
    /// Keeps the admission plugin that rejects pods of namespaces without their service account, which a controller creates.
    pub require_service_accounts: bool,
    /// Uses etcd and kube-apiserver of `PATH`, if they are new enough, instead of building them.
    pub use_path: bool,
    /// Users besides the administrator; see [`ControlPlane::kubeconfig_for`].
    pub users: Vec<User>,
}

/// A running etcd and kube-apiserver; dropping it ends both and removes their data.
pub struct ControlPlane {
    // Dropped in this order: clients before their servers.
    api_server: ApiServer,
    etcd: Process,
    credentials: Credentials,
    environment: Environment,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts a control plane and returns when it is ready and has the namespace `default`. Takes about four seconds; on the first
    /// use on a machine, minutes more to build the programs, which is announced on standard error.
    ///
    /// # Errors
    /// A program is missing and cannot be built, or does not become ready; the message has the end of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let mut environment = Environment::of_process()?;
        // Who sets a version wants that one.
        environment.uses_path = options.use_path && std::env::var_os(KUBERNETES_VARIABLE).is_none();
        environment.announce_builds(&[Program::Etcd, Program::KubeApiserver]);
        let etcd = find_or_build(&environment, Program::Etcd).await?;
        let api_server = find_or_build(&environment, Program::KubeApiserver).await?;

        let folder = tempfile::Builder::new().prefix("berth-control-plane-").tempdir()?;
        let credentials = Credentials::new(options.users.clone(), folder.path())?;
        let (etcd, etcd_url) = start_etcd(&etcd, folder.path()).await?;
        let api_server =
            ApiServer::start(&api_server, &etcd_url, &options, &credentials, folder.path()).await?;
        Ok(Self { api_server, etcd, credentials, environment, folder })
    }

    /// Returns the administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.credentials.admin_kubeconfig()
    }

    /// Returns the kubeconfig file of one of [`Options::users`].
    ///
    /// # Errors
    /// The user is not one of them.
    pub fn kubeconfig_for(&self, user: &str) -> Result<PathBuf> {
        self.credentials.kubeconfig_for(user)
    }

    /// Returns the administrator's client configuration.
    pub fn config(&self) -> kube::Config {
        self.api_server.config.clone()
    }

    /// Returns a new client for the administrator, with its own connections.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn client(&self) -> Client {
        Client::try_from(self.config()).expect("start made a client from the same configuration")
    }

    /// Returns the process id of etcd.
    pub fn etcd_pid(&self) -> u32 {
        self.etcd.pid()
    }

    /// Returns the process id of kube-apiserver, of the last one if it was killed.
    pub fn api_server_pid(&self) -> u32 {
        self.api_server.process.pid()
    }

    /// Ends kube-apiserver with SIGKILL: open watches break, new connections are refused. etcd keeps the data.
    pub fn kill_api_server(&mut self) {
        self.api_server.process.kill();
    }

    /// Restarts kube-apiserver on the same address and data, after killing it if it still runs, and returns when it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn restart_api_server(&mut self) -> Result<()> {
        self.api_server.restart().await
    }

    /// Starts a real kube-scheduler as the administrator, and returns when its caches are synced. It ends when the returned value is
    /// dropped.
    ///
    /// `config_yaml` is the rest of a `KubeSchedulerConfiguration` (`profiles:` and so on, or nothing): version, kind,
    /// a client fast enough for benchmarks and no leader election are added to it. `flags` are further flags, as `--name=value`.
    ///
    /// # Errors
    /// kube-scheduler is missing and cannot be built, or does not become ready.
    pub async fn start_scheduler(&self, config_yaml: &str, flags: &[&str]) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::KubeScheduler).await?;
        start_scheduler(&program, config_yaml, flags, &self.kubeconfig(), self.folder.path()).await
    }

    /// Starts a real kube-controller-manager as the administrator, with only these controllers. It ends when the returned value is
    /// dropped.
    ///
    /// # Errors
    /// kube-controller-manager is missing and cannot be built, or does not become ready.
    pub async fn start_controller_manager(&self, controllers: &[&str]) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::KubeControllerManager).await?;
        start_controller_manager(&program, controllers, &self.kubeconfig(), self.folder.path()).await
    }

    /// Starts a real kwok as the administrator, which simulates the kubelets of all nodes with these stages
    /// (`kwok.x-k8s.io/v1alpha1`, in YAML) and no others. It ends when the returned value is dropped. Only one at a time.
    ///
    /// # Errors
    /// kwok is missing and cannot be built, or does not become ready.
    pub async fn start_kwok(&self, stages_yaml: &str) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::Kwok).await?;
        start_kwok(&program, stages_yaml, &self.kubeconfig(), self.folder.path()).await
    }
}

/// Finds or builds a program on a blocking thread, as a build takes minutes.
async fn find_or_build(environment: &Environment, program: Program) -> Result<PathBuf> {
    let environment = environment.clone();
    tokio::task::spawn_blocking(move || environment.find_or_build(program)).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_can_be_started_from_a_spawned_task() {
        fn require_send(_: impl Send) {}
        require_send(ControlPlane::start(Options::default()));
    }
}
