//! `berth fit`: whether the pods of manifests would fit.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use reqwest::{StatusCode, Url};

use super::failure::Failure;
use super::output::{Output, answered, width};
use super::reading::{Also, ReadOptions, read, runtime, settings};
use super::server::ServerAccess;
use crate::fit::{API_VERSION, FitReport, Manifests, show, try_out};

const EXIT_CODES: &str = "Exit codes: 0 all pods fit as the cluster is; 1 the API server, the process or a file failed; 2 the options or the \
                          input are invalid; 3 not all pods fit.";
const TIMEOUT: Duration = Duration::from_secs(60);
const DOES_NOT_FIT: u8 = 3;
/// Maximum of `--max`.
const MORE_MAX: u16 = 10_000;

/// Options of `berth fit`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = EXIT_CODES)]
pub struct FitOptions {
    /// Manifests, in YAML or JSON, of pods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and JobSets, with the
    /// Allocations, PodGroups and claims that they need; `-`: standard input. All replicas count as new pods. Nothing is created.
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadOptions,
    /// Ask the running berth at this address, which knows the cluster already: its healthAddress on this machine, such as
    /// http://127.0.0.1:10261, or its serving.address, such as https://127.0.0.1:10260 with `kubectl port-forward`.
    #[arg(long, value_name = "URL", conflicts_with_all = ["filename", "kubeconfig", "context", "config", "scheduler_name"])]
    pub server: Option<Url>,
    #[command(flatten)]
    pub access: ServerAccess,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Say how many more pods of each workload would fit then, up to this number.
    #[arg(long, value_name = "PODS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=i64::from(MORE_MAX)))]
    pub max: u16,
    /// Name of the scheduler whose waiting pods come first, and whose profile places the pods. Default: the first name in --config,
    /// else berth.
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Option<String>,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Configuration file of berth, for its profiles.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Exit codes: 0 all pods fit, 1 the API server or a file failed, 2 the input or the options are invalid, 3 not all pods fit.
pub fn fit(options: &FitOptions) -> ExitCode {
    match answer(options) {
        Ok(report) if report.fits => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DOES_NOT_FIT),
        Err(failure) => failure.exit(),
    }
}

fn answer(options: &FitOptions) -> Result<FitReport, Failure> {
    let report = match &options.server {
        Some(server) => runtime()?.block_on(asked(options, server))?,
        None if options.access.token_file.is_some() => {
            return Err(Failure::Input(anyhow!("--token-file is for --server URL")));
        }
        None => tried(options)?,
    };
    report.notes.iter().for_each(|note| eprintln!("berth: {note}"));
    answered(options.output, &report, |out| show::table(&report, width(), out))?;
    Ok(report)
}

/// Asks a running process.
async fn asked(options: &FitOptions, server: &Url) -> Result<FitReport, Failure> {
    let mut manifests = String::new();
    for file in &options.manifests {
        let documents = Manifests::documents(&file.display().to_string(), &read(file)?);
        for document in documents.map_err(|error| Failure::Input(error.into()))? {
            manifests += &format!("{document}\n");
        }
    }
    let client = options.access.client(server, Some(TIMEOUT))?;
    let query = [("namespace", options.namespace.as_str()), ("max", &options.max.to_string())];
    let answer = client.post("/fit", &query, manifests).await?;
    let status = answer.status();
    let body = client.text(answer).await?;
    match status {
        StatusCode::OK => {
            let report: FitReport = serde_json::from_str(&body)
                .with_context(|| format!("the answer of {server} is not of format {API_VERSION}"))?;
            match report.api_version == API_VERSION {
                true => Ok(report),
                false => {
                    Err(anyhow!("{server} answers in format {}, not {API_VERSION}", report.api_version)
                        .into())
                }
            }
        }
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Failure::Input(anyhow!("{body}")))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::Other(anyhow!(
            "{server} refuses: give --token-file of a user whose ClusterRole allows `post` on /fit: {body}"
        ))),
        _ => Err(Failure::Other(anyhow!("{server} answers {status}: {body}"))),
    }
}

/// Tries the manifests on a copy of the cluster.
fn tried(options: &FitOptions) -> Result<FitReport, Failure> {
    let input = |error: anyhow::Error| Failure::Input(error);
    let settings = settings(&options.config, options.scheduler_name.as_slice()).map_err(input)?;
    let mut manifests = Manifests::default();
    for file in &options.manifests {
        let bytes = read(file)?;
        let name = file.display().to_string();
        manifests.read(&name, &bytes, &options.namespace).map_err(|error| input(error.into()))?;
    }
    let files: Vec<_> = options.manifests.iter().map(|file| file.display().to_string()).collect();
    manifests.require_pods(&files.join(", ")).map_err(|error| input(error.into()))?;
    let mut dump = options.read.dump(Also::PriorityClasses)?;
    dump.priority_classes().iter().for_each(|class| manifests.priority_class(class));
    for class in manifests.resolve_priorities() {
        eprintln!("berth: there is no priority class {class}: its pods are tried with priority 0");
    }
    let known = dump.bad().len();
    manifests.move_objects_to(&mut dump);
    if let Some(bad) = dump.bad().get(known) {
        return Err(input(anyhow!("{bad}")));
    }
    let mut world = dump.into_world(settings);
    try_out(&mut world, &manifests, options.max.into()).map_err(|why| input(anyhow!(why)))
}
