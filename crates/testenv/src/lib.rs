//! A real control plane on this machine, for the demo, the tests and the benchmarks.
//!
//! etcd and kube-apiserver (and kube-scheduler, kube-controller-manager and kwok, when asked for) run as child processes on free loopback
//! ports, with their data in a temporary folder. They end with the [`ControlPlane`] value, and with this process however it dies.
//! This room knows nothing of scheduling, and `berth run` nothing of this room.

pub mod binaries;
mod components;
mod credentials;
mod go;
mod process;

use std::path::PathBuf;

use anyhow::Result;
use kube::Client;
use tempfile::TempDir;

use binaries::{Environment, Program};
use components::{ApiServer, start_controller_manager, start_etcd, start_kwok, start_scheduler};
use credentials::Credentials;
pub use credentials::User;
pub use process::{Log, Process};

/// How to start a [`ControlPlane`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More flags for kube-apiserver, as `--name=value`.
    pub api_server_args: Vec<String>,
    /// Leaves on the admission plugin that taints every new node as not ready. Nothing here takes that taint away
    /// again, so it is normally off.
    pub taint_new_nodes: bool,
    /// Users besides the administrator; see [`ControlPlane::kubeconfig_for`].
    pub users: Vec<User>,
}

/// A running etcd and kube-apiserver; dropping it ends both and removes their data.
pub struct ControlPlane {
    // Dropped in this order: who uses a thing goes before it.
    api_server: ApiServer,
    etcd: Process,
    credentials: Credentials,
    environment: Environment,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts a control plane and returns when it answers and has the namespace `default`. Takes about four seconds;
    /// on the first use on a machine, minutes more to build the programs, which says so on standard error.
    ///
    /// # Errors
    /// When a program is not there and cannot be built, or does not get ready; the message has the end of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let environment = Environment::of_process()?;
        let etcd = find_or_build(&environment, Program::Etcd).await?;
        let api_server = find_or_build(&environment, Program::KubeApiserver).await?;

        let folder = tempfile::Builder::new().prefix("berth-control-plane-").tempdir()?;
        let credentials = Credentials::new(options.users.clone(), folder.path())?;
        let (etcd, etcd_url) = start_etcd(&etcd, folder.path()).await?;
        let api_server =
            ApiServer::start(&api_server, &etcd_url, &options, &credentials, folder.path()).await?;
        Ok(Self { api_server, etcd, credentials, environment, folder })
    }

    /// The administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.credentials.admin_kubeconfig()
    }

    /// The kubeconfig file of one of [`Options::users`].
    ///
    /// # Errors
    /// For a user that is not one of them.
    pub fn kubeconfig_for(&self, user: &str) -> Result<PathBuf> {
        self.credentials.kubeconfig_for(user)
    }

    /// The administrator's client configuration.
    pub fn config(&self) -> kube::Config {
        self.api_server.config.clone()
    }

    /// A new client for the administrator, with connections of its own.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn client(&self) -> Client {
        Client::try_from(self.config()).expect("start made a client from the same configuration")
    }

    /// The process id of etcd.
    pub fn etcd_pid(&self) -> u32 {
        self.etcd.pid()
    }

    /// The process id of kube-apiserver, of the last one if it was killed.
    pub fn api_server_pid(&self) -> u32 {
        self.api_server.process.pid()
    }

    /// Ends kube-apiserver with SIGKILL: open watches break, new connections are refused. etcd keeps the data.
    pub fn kill_api_server(&mut self) {
        self.api_server.process.kill();
    }

    /// Starts kube-apiserver again on the same address and data, after killing it if it still runs, and returns when
    /// it answers.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart_api_server(&mut self) -> Result<()> {
        self.api_server.restart().await
    }

    /// Starts a real kube-scheduler as the administrator, and returns when its caches are filled. It ends when the
    /// returned value is dropped.
    ///
    /// `config_yaml` is the rest of a `KubeSchedulerConfiguration` (`profiles:` and so on, or nothing): version, kind,
    /// a client fast enough for benchmarks and no leader election are added to it.
    ///
    /// # Errors
    /// When kube-scheduler is not there and cannot be built, or does not get ready.
    pub async fn start_scheduler(&self, config_yaml: &str) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::KubeScheduler).await?;
        start_scheduler(&program, config_yaml, &self.kubeconfig(), self.folder.path()).await
    }

    /// Starts a real kube-controller-manager as the administrator, with these controllers and no others. It ends when the
    /// returned value is dropped.
    ///
    /// # Errors
    /// When kube-controller-manager is not there and cannot be built, or does not get ready.
    pub async fn start_controller_manager(&self, controllers: &[&str]) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::KubeControllerManager).await?;
        start_controller_manager(&program, controllers, &self.kubeconfig(), self.folder.path()).await
    }

    /// Starts a real kwok as the administrator, which plays the kubelets of all nodes: what becomes of nodes and pods is said by
    /// these stages (`kwok.x-k8s.io/v1alpha1`, in YAML) and no others. It ends when the returned value is dropped. One at a time.
    ///
    /// # Errors
    /// When kwok is not there and cannot be built, or does not get ready.
    pub async fn start_kwok(&self, stages_yaml: &str) -> Result<Process> {
        let program = find_or_build(&self.environment, Program::Kwok).await?;
        start_kwok(&program, stages_yaml, &self.kubeconfig(), self.folder.path()).await
    }
}

/// Finding may mean minutes of building, so it happens on a thread that may block.
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
