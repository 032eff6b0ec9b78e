//! `berth why`: why a placed pod has its node, from its annotation or from the memory of a running `berth run`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use reqwest::{StatusCode, Url};

use super::cluster::{ClusterOptions, cluster_config};
use super::explain::{PodName, pod_name};
use super::failure::Failure;
use super::output::{Output, answered, width};
use super::reading::runtime;
use super::server::ServerAccess;
use crate::why;
use berth_scheduler::decisions::{ANNOTATION, DecisionReport, WHY_API_VERSION};

const EXIT_CODES: &str = "Exit codes: 0 complete answer; 1 the API server or the process could not be asked, or a file not read; 2 the options are \
                          invalid, or nothing is known of the pod's placement.";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Options of `berth why`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct WhyOptions {
    /// The pod, as NAMESPACE/POD. It may be gone.
    #[arg(value_name = "NAMESPACE/POD", value_parser = pod_name)]
    pub pod: PodName,
    /// Ask the process that placed it, the holder of the Lease, at this address: its healthAddress on this machine, such as
    /// http://127.0.0.1:10261, or its serving.address, such as https://127.0.0.1:10260 with `kubectl port-forward`. Default: read the
    /// annotation of the pod (annotateDecisions), or ask the holder of the Lease in the cluster of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub server: Option<Url>,
    #[command(flatten)]
    pub access: ServerAccess,
    #[command(flatten)]
    pub cluster: ClusterOptions,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Exit codes: 0 complete answer, 1 the API server or the process could not be asked or a file not read, 2 invalid options or nothing known.
pub fn why(options: &WhyOptions) -> ExitCode {
    match answer(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn answer(options: &WhyOptions) -> Result<(), Failure> {
    let report = runtime()?.block_on(async {
        match &options.server {
            Some(_) => asked(options).await,
            None => match annotated(options).await? {
                Ok(report) => Ok(report),
                Err(missing) => asked(options).await.map_err(|failure| failure.context(missing)),
            },
        }
    })?;
    answered(options.output, &report, |out| why::table(&report, width(), out))?;
    Ok(())
}

/// Reads the annotation of the pod, or says what is missing.
async fn annotated(options: &WhyOptions) -> Result<Result<DecisionReport, String>> {
    const NO_CLUSTER: &str =
        "no cluster configured: give --kubeconfig FILE, or ask a process with --server URL";
    let PodName { namespace, name } = &options.pod;
    let (kubeconfig, context) = (options.cluster.kubeconfig.as_deref(), options.cluster.context.as_deref());
    let config = cluster_config(kubeconfig, context, NO_CLUSTER).await?;
    let client = kube::Client::try_from(config).context("cannot create a client")?;
    let pods: kube::Api<Pod> = kube::Api::namespaced(client, namespace);
    let pod = pods.get_metadata_opt(name).await;
    if let Err(kube::Error::Api(status)) = &pod
        && status.code == 403
    {
        return Ok(Err(format!("pod {namespace}/{name} may not be read")));
    }
    let pod = pod.with_context(|| format!("cannot read pod {namespace}/{name}"))?;
    let Some(pod) = pod else { return Ok(Err(format!("there is no pod {namespace}/{name}"))) };
    let annotations = pod.metadata.annotations.unwrap_or_default();
    let Some(decision) = annotations.get(ANNOTATION) else {
        return Ok(Err(format!("pod {namespace}/{name} has no annotation {ANNOTATION} (annotateDecisions)")));
    };
    let report =
        understood(decision).with_context(|| format!("annotation {ANNOTATION} of pod {namespace}/{name}"));
    report.map(Ok)
}

/// Asks the process that placed the pod.
async fn asked(options: &WhyOptions) -> Result<DecisionReport, Failure> {
    let PodName { namespace, name } = &options.pod;
    let client = options.access.reach(options.server.as_ref(), &options.cluster, Some(TIMEOUT)).await?;
    let server = client.name.clone();
    let answer = client.get("/why", &[("namespace", namespace), ("pod", name)]).await?;
    let status = answer.status();
    let body = client.text(answer).await?;
    match status {
        StatusCode::OK => Ok(understood(&body).with_context(|| format!("the answer of {server}"))?),
        StatusCode::NOT_FOUND => Err(Failure::Input(anyhow!("{body}"))),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::Other(anyhow!(
            "{server} refuses: give --token-file of a user whose ClusterRole allows `get` of /why: {body}"
        ))),
        _ => Err(Failure::Other(anyhow!("{server} answers {status}: {body}"))),
    }
}

fn understood(text: &str) -> Result<DecisionReport> {
    let report: DecisionReport =
        serde_json::from_str(text).with_context(|| format!("is not of format {WHY_API_VERSION}"))?;
    match report.api_version == WHY_API_VERSION {
        true => Ok(report),
        false => Err(anyhow!("is of format {}, not {WHY_API_VERSION}", report.api_version)),
    }
}
