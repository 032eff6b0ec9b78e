//! The cluster that a command reads, from a kubeconfig.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Where berth is installed.
#[derive(Debug, Clone, Args)]
pub struct ClusterOptions {
    /// Kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file.
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub context: Option<String>,
    /// Namespace in which berth is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "berth-system", conflicts_with = "server")]
    pub berth_namespace: String,
    /// Name of its Lease (leaderElection.name).
    #[arg(long, value_name = "NAME", default_value = "berth", conflicts_with = "server")]
    pub lease: String,
}

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
    let (known, name) = match kubeconfig {
        Some(file) => (Kubeconfig::read_from(file), format!("the kubeconfig {}", file.display())),
        None => (Kubeconfig::read(), "the kubeconfig".to_owned()),
    };
    if let (Some(context), Ok(known)) = (context, &known) {
        let names: Vec<&str> = known.contexts.iter().map(|known| known.name.as_str()).collect();
        if !names.contains(&context) {
            anyhow::bail!("{name} has no context {context}, but {}", names.join(", "));
        }
    }
    let read = async || kube::Config::from_custom_kubeconfig(known?, &chosen).await;
    match (read().await, kubeconfig) {
        (Err(error), None) => kube::Config::incluster().map_err(|_| error).context(no_cluster),
        (config, _) => config.with_context(|| format!("cannot use {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_context_that_is_not_there_is_told_with_those_that_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        let text = "contexts: [{name: a, context: {cluster: c, user: u}}, {name: b, context: {cluster: c, user: u}}]\n\
                    clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n";
        std::fs::write(&file, text).expect("written");
        let read = async |context| cluster_config(Some(&file), Some(context), "none").await;
        assert!(read("b").await.is_ok());
        let why = format!("{:#}", read("c").await.expect_err("there is none"));
        assert_eq!(why, format!("the kubeconfig {} has no context c, but a, b", file.display()));
    }
}
