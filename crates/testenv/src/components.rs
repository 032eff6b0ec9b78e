//! Command lines and readiness checks of etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kwok.

use std::fs;
use std::future::ready;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::GetParams;
use kube::{Api, Client};
use serde_json::json;

use super::Options;
use super::credentials::{self, Credentials};
use super::process::Process;

const READY_LIMIT: Duration = Duration::from_secs(90);
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Attempts with another port, as a free port may be taken before the program binds it.
const PORT_TRIES: usize = 5;

/// Starts etcd with its data in `folder`, and returns it with its client URL.
pub(super) async fn start_etcd(program: &Path, folder: &Path) -> Result<(Process, String)> {
    retry_taken_ports(|| async move {
        let [client, peer] = free_ports()?.map(|port| format!("http://127.0.0.1:{port}"));
        let args = [
            format!("--data-dir={}", folder.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // The data need not survive a crash of the machine.
            "--unsafe-no-fsync".to_owned(),
            "--quota-backend-bytes=8589934592".to_owned(),
        ];
        let mut process = Process::start("etcd", program, args, folder.join("etcd.log"))?;
        // Readiness is read from its own log: if another etcd took the port, a probe of the port would succeed as well.
        let log = process.log().clone();
        process.await_ready(READY_LIMIT, || ready(log.contains("ready to serve client requests"))).await?;
        Ok((process, client))
    })
    .await
}

/// A kube-apiserver that keeps its address when it is killed and restarted.
pub(super) struct ApiServer {
    pub(super) process: Process,
    /// The administrator's client configuration.
    pub(super) config: kube::Config,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
}

impl ApiServer {
    /// Starts kube-apiserver with its files in `folder`, and writes the kubeconfigs for it.
    pub(super) async fn start(
        program: &Path,
        etcd_url: &str,
        options: &Options,
        credentials: &Credentials,
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join("kube-apiserver.log");
        let certificates = folder.join("certificates");
        let (certificate, key) = (&certificates.join("apiserver.crt"), &certificates.join("apiserver.key"));
        let tokens = credentials.write_tokens()?;
        let fixed_args = &api_server_args(etcd_url, options, &tokens, &certificates, key);
        let log = &log;
        retry_taken_ports(|| async move {
            let [port] = free_ports()?;
            let mut args = vec![format!("--secure-port={port}")];
            args.extend_from_slice(fixed_args);
            let mut process = Process::start("kube-apiserver", program, &args, log.clone())?;
            // It writes the certificate first and then the key.
            process.await_ready(READY_LIMIT, || ready(key.is_file())).await?;
            let kubeconfig =
                credentials.write_kubeconfigs(&format!("https://127.0.0.1:{port}"), certificate)?;
            let config = credentials::config_from(&kubeconfig).await?;
            process.await_ready(READY_LIMIT, || answers(config.clone())).await?;
            process.await_ready(READY_LIMIT, || has_default_namespace(config.clone())).await?;
            Ok(Self { process, config, program: program.to_owned(), args, log: log.clone() })
        })
        .await
    }

    /// Kills it if it runs, starts it with the same arguments, and returns when it is ready.
    pub(super) async fn restart(&mut self) -> Result<()> {
        self.process.kill();
        let this = &*self;
        // These attempts use the same port: an outgoing connection may have it as its local port for a moment.
        let process = retry_taken_ports(|| async move {
            let mut process = Process::start("kube-apiserver", &this.program, &this.args, this.log.clone())?;
            process.await_ready(READY_LIMIT, || answers(this.config.clone())).await?;
            Ok(process)
        });
        self.process = process.await?;
        Ok(())
    }
}

fn api_server_args(
    etcd_url: &str,
    options: &Options,
    tokens: &Path,
    certificates: &Path,
    key: &Path,
) -> Vec<String> {
    let (tokens, certificates, key) = (tokens.display(), certificates.display(), key.display());
    let plugins = [
        ("ServiceAccount", options.require_service_accounts),
        ("TaintNodesByCondition", options.taint_new_nodes),
    ];
    let disabled = plugins.iter().filter(|(_, is_kept)| !is_kept).map(|(name, _)| *name);
    let disabled_plugins = disabled.collect::<Vec<_>>().join(",");
    let mut args = vec![
        format!("--etcd-servers={etcd_url}"),
        "--bind-address=127.0.0.1".to_owned(),
        // Without these two it looks for a default route, which a machine need not have.
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--cert-dir={certificates}"),
        format!("--token-auth-file={tokens}"),
        "--authorization-mode=RBAC".to_owned(),
        // Service account tokens are signed with the serving key, which it generates before it reads these files.
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={key}"),
        format!("--service-account-signing-key-file={key}"),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--disable-admission-plugins={disabled_plugins}"),
        "--allow-privileged=true".to_owned(),
        "--max-requests-inflight=3000".to_owned(),
        "--max-mutating-requests-inflight=3000".to_owned(),
    ];
    args.extend(options.api_server_args.iter().cloned());
    args
}

/// Starts kube-scheduler with the configuration of [`super::ControlPlane::start_scheduler`].
pub(super) async fn start_scheduler(
    program: &Path,
    config_yaml: &str,
    flags: &[&str],
    kubeconfig: &Path,
    folder: &Path,
) -> Result<Process> {
    // A folder each: there may be several schedulers.
    let folder = tempfile::Builder::new().prefix("kube-scheduler-").tempdir_in(folder)?.keep();
    let file = folder.join("config.yaml");
    // JSON within the YAML, so that the path needs no quoting.
    let client = json!({"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000});
    let config = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         leaderElection: {{leaderElect: false}}\nclientConnection: {client}\n{config_yaml}\n",
    );
    fs::write(&file, config)?;
    let (folder, file) = (&folder, &file);
    retry_taken_ports(|| async move {
        let [port] = free_ports()?;
        let args = [
            format!("--config={}", file.display()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
        ];
        let args = args.into_iter().chain(flags.iter().map(|&flag| flag.to_owned()));
        let mut process = Process::start("kube-scheduler", program, args, folder.join("log"))?;
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        // Its serving certificate is self-signed.
        config.accept_invalid_certs = true;
        process.await_ready(READY_LIMIT, || answers(config.clone())).await?;
        Ok(process)
    })
    .await
}

/// Starts kube-controller-manager; see [`super::ControlPlane::start_controller_manager`].
pub(super) async fn start_controller_manager(
    program: &Path,
    controllers: &[&str],
    kubeconfig: &Path,
    folder: &Path,
) -> Result<Process> {
    let log = &folder.join("kube-controller-manager.log");
    retry_taken_ports(|| async move {
        let [port] = free_ports()?;
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={}", controllers.join(",")),
            "--leader-elect=false".to_owned(),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            // Half of the default: tests of lost heartbeats wait for it.
            "--node-monitor-grace-period=25s".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
        ];
        let mut process = Process::start("kube-controller-manager", program, args, log.clone())?;
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        // Its serving certificate is self-signed.
        config.accept_invalid_certs = true;
        process.await_ready(READY_LIMIT, || answers_at(config.clone(), "healthz")).await?;
        Ok(process)
    })
    .await
}

/// Starts kwok; see [`super::ControlPlane::start_kwok`].
pub(super) async fn start_kwok(
    program: &Path,
    stages_yaml: &str,
    kubeconfig: &Path,
    folder: &Path,
) -> Result<Process> {
    let stages = &folder.join("kwok-stages.yaml");
    fs::write(stages, stages_yaml)?;
    let log = &folder.join("kwok.log");
    retry_taken_ports(|| async move {
        let [port] = free_ports()?;
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=true".to_owned(),
            // Heartbeats, as kubelets send them.
            "--node-lease-duration-seconds=40".to_owned(),
            format!("--server-address=127.0.0.1:{port}"),
            // Stages can tell the API server where it is: `NodeIP` and `NodePort`.
            "--node-ip=127.0.0.1".to_owned(),
            format!("--node-port={port}"),
        ];
        let mut process = Process::start("kwok", program, args, log.clone())?;
        let config = kube::Config::new(format!("http://127.0.0.1:{port}").parse()?);
        process.await_ready(READY_LIMIT, || answers(config.clone())).await?;
        Ok(process)
    })
    .await
}

async fn answers(config: kube::Config) -> bool {
    answers_at(config, "readyz").await
}

async fn answers_at(config: kube::Config, path: &str) -> bool {
    let request = kube::core::Request::new("").get(path, &GetParams::default());
    let (Ok(client), Ok(request)) = (without_retries(config), request) else {
        return false;
    };
    matches!(tokio::time::timeout(REQUEST_LIMIT, client.request_text(request)).await, Ok(Ok(_)))
}

/// Whether the namespace `default` exists: the API server creates it a moment after it reports ready.
async fn has_default_namespace(config: kube::Config) -> bool {
    let Ok(client) = without_retries(config) else {
        return false;
    };
    let namespaces = Api::<Namespace>::all(client);
    matches!(tokio::time::timeout(REQUEST_LIMIT, namespaces.get("default")).await, Ok(Ok(_)))
}

fn without_retries(mut config: kube::Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

/// Retries `start` while it fails because another process has the port.
async fn retry_taken_ports<T, R>(mut start: impl FnMut() -> R) -> Result<T>
where
    R: Future<Output = Result<T>>,
{
    for _ in 1..PORT_TRIES {
        match start().await {
            Err(error) if format!("{error:#}").contains("address already in use") => {}
            result => return result,
        }
    }
    start().await
}

/// Returns loopback ports that are free now, all different.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All listeners stay open until all ports are chosen.
    let mut listeners = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_tried_again_a_few_times_and_other_errors_are_not() {
        for (error, tries_expected) in
            [("listen tcp 127.0.0.1:1: bind: address already in use", PORT_TRIES), ("unknown flag", 1)]
        {
            let mut tries = 0;
            let start = || {
                tries += 1;
                ready(Err::<(), _>(anyhow!(error)))
            };
            assert!(retry_taken_ports(start).await.is_err());
            assert_eq!(tries, tries_expected, "{error}");
        }
    }
}
