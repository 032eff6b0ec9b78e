//! The cluster that a command reads, from a kubeconfig.

use std::path::Path;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Returns the configuration for this kubeconfig and context. Without a file, `$KUBECONFIG`, `~/.kube/config` or the service account of the
/// pod is used.
///
/// # Errors
/// The file is invalid; or there is none, and then the error begins with `no_cluster`.
pub async fn cluster_config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    no_cluster: &'static str,
) -> Result<kube::Config> {
    let chosen = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let Some(file) = kubeconfig else {
        return match kube::Config::from_kubeconfig(&chosen).await {
            Ok(config) => Ok(config),
            Err(error) => kube::Config::incluster().map_err(|_| error).context(no_cluster),
        };
    };
    let explain = || format!("cannot use the kubeconfig {}", file.display());
    let kubeconfig = Kubeconfig::read_from(file).with_context(explain)?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &chosen).await.with_context(explain)
}
