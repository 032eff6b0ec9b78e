//! `berth explain`: the reasons why pods wait, from a cluster or a dump of one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use jiff::Timestamp;
use kube::Client;

use super::failure::Failure;
use super::output::{Output, answered, width, written};
use super::reading::{Also, ReadOptions, runtime, settings};
use crate::explain::show::{self, Style};
use crate::explain::{
    WhatIfSubject, Which, World, explain as explain_pods, servicescaler, show_moves, vpa, what_if,
};
use berth_config::Config;
use berth_kube_io::LeanPod;
use berth_kube_io::scaling::ScaledService;
use berth_kube_io::vpa::Recommending;
use berth_model::ConfigDuration;
use berth_prometheus::{PrometheusConfig, PrometheusSource, QueriedNamespaces, ServiceName};
use berth_rightsizing::recommend::UnixNanos;
use berth_rightsizing::scaling::replay::PastSeries;
use berth_rightsizing::scaling::{MeasuredKind, Point, Size};

const EXIT_CODES: &str = "Exit codes: 0 complete answer, also if nothing would help; 1 the API server or a file failed; 2 the options or \
                          the input are invalid, the pod or allocation does not exist or does not wait, or single objects cannot be \
                          read and are missing in the answer.";

/// Options of `berth explain`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ExplainOptions {
    /// Pod to explain, as NAMESPACE/POD, of any scheduler. Default: all pods that wait for berth. Or vpa/NAME: how
    /// the sizes that a VerticalPodAutoscaler recommends come about; servicescaler/NAME: what a ServiceScaler does, and
    /// would have done in the last day; and with --what-if allocation/NAME or podgroup/NAME; these in the namespace of
    /// --namespace.
    #[arg(value_name = "NAMESPACE/POD", value_parser = pod_name, conflicts_with = "all_pending")]
    pub pod: Option<PodName>,
    #[command(flatten)]
    pub read: ReadOptions,
    /// Find a few pods whose move to other nodes makes room: for a waiting pod, an allocation, or all waiting
    /// pods. Each move is checked against the current cluster, with every rule, and within disruption
    /// budgets; nothing is moved. Pods are not moved if they have no controller, belong to a DaemonSet, have
    /// local storage, or are annotated as not safe to evict.
    #[arg(long, conflicts_with = "all_pending")]
    pub what_if: bool,
    /// Namespace of the VPA, ServiceScaler or allocation. Default: `default`.
    #[arg(short, long, value_name = "NAMESPACE", requires = "pod")]
    pub namespace: Option<String>,
    /// Explain every pod that has no node, of any scheduler.
    #[arg(long)]
    pub all_pending: bool,
    /// Name of a scheduler whose pods are explained; may be given several times. Default: the names in
    /// --config, else berth.
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Vec<String>,
    /// List every node instead of examples.
    #[arg(long)]
    pub all_nodes: bool,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Address of Prometheus, for the last day of a ServiceScaler. Default: recommender.prometheus of --config.
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,
    /// Configuration file of berth, for its preferences and default constraints, and for Prometheus.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Name of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

pub fn pod_name(text: &str) -> Result<PodName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("use NAMESPACE/NAME, such as default/web-0".to_owned()),
    }
}

/// Exit codes: 0 complete answer, 1 the API server or a file failed, 2 the input or the options are invalid.
/// If single objects of the input cannot be read, the answer is given without them, and the code is 2.
pub fn explain(options: ExplainOptions) -> ExitCode {
    match answer(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(failure) => failure.exit(),
    }
}

/// Prints the answer; returns whether everything could be read.
fn answer(options: &ExplainOptions) -> Result<bool, Failure> {
    if let Some(PodName { namespace: kind, name }) = options.pod.as_ref().filter(|_| !options.what_if) {
        match kind.as_str() {
            "vpa" | "vpas" | "verticalpodautoscaler" | "verticalpodautoscalers" => {
                return explain_vpa(options, name);
            }
            "servicescaler" | "servicescalers" => return explain_service(options, name),
            _ => {}
        }
    }
    let settings = settings(&options.config, &options.scheduler_name).map_err(Failure::Input)?;
    let which = match &options.pod {
        Some(PodName { namespace, name }) => {
            Which::Named { namespace: namespace.clone(), name: name.clone() }
        }
        None if options.all_pending => Which::AllPending,
        None => Which::Waiting,
    };
    let also = if options.what_if { Also::DisruptionBudgets } else { Also::Nothing };
    let dump = options.read.dump(also)?;
    let complete = dump.bad().is_empty();
    let schedulers = settings.scheduler_names.join(", ");
    if options.what_if {
        print_moves(options, &mut dump.into_world(settings), &schedulers)?;
        return Ok(complete);
    }
    let groups = explain_pods(&mut dump.into_world(settings), &which);
    if groups.is_empty() {
        match which {
            Which::Named { namespace, name } => {
                return Err(Failure::Input(anyhow!(
                    "there is no pod {namespace}/{name}, or it has finished"
                )));
            }
            Which::AllPending => eprintln!("berth: every pod has a node"),
            Which::Waiting => eprintln!("berth: no pod waits for scheduler {schedulers}"),
        }
    }
    let style = Style { width: width(), all_nodes: options.all_nodes };
    written(|out| match options.output {
        Output::Table => show::table(&groups, style, out),
        Output::Json => show::json(&groups, out),
    })?;
    Ok(complete)
}

/// Refuses a dump for an object that is explained from the API server only.
fn needs_api_server(options: &ExplainOptions, what: &str) -> Result<(), Failure> {
    match options.read.filename {
        Some(_) => {
            Err(Failure::Input(anyhow!("{what} is explained from the API server: leave out --filename")))
        }
        None => Ok(()),
    }
}

/// Prints how the recommendations of a VPA come about; returns whether everything could be read.
fn explain_vpa(options: &ExplainOptions, name: &str) -> Result<bool, Failure> {
    needs_api_server(options, "a VPA")?;
    let config = Config::load(&options.config).map_err(|error| Failure::Input(error.into()))?;
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let runtime = runtime()?;
    let mut checkpoints = Vec::new();
    let vpa = runtime.block_on(async {
        let api = Recommending::new(options.read.client().await?);
        let vpa = api.vpa(namespace, name).await?;
        let read = api.checkpoints(Some(namespace), |found| match found.content {
            Ok((status, windows)) if found.label.vpa == name => {
                checkpoints.push((found.label.container, status, windows));
            }
            _ => {}
        });
        read.await.context("cannot list the checkpoints of VPAs")?;
        Ok::<_, anyhow::Error>(vpa)
    })?;
    let Some(vpa) = vpa else {
        return Err(Failure::Input(anyhow!(
            "there is no VerticalPodAutoscaler {name} in namespace {namespace}: name its namespace with --namespace"
        )));
    };
    let now = UnixNanos::try_from(Timestamp::now().as_nanosecond()).unwrap_or(UnixNanos::MAX);
    let reasons = vpa::reasons(&vpa, &checkpoints, &config.recommender.settings(), now);
    answered(options.output, &reasons, |out| vpa::show(&reasons, out))?;
    Ok(true)
}

/// Prints what a ServiceScaler does, and would have done in the last day.
fn explain_service(options: &ExplainOptions, name: &str) -> Result<bool, Failure> {
    needs_api_server(options, "a ServiceScaler")?;
    let mut config = Config::load(&options.config).map_err(|error| Failure::Input(error.into()))?.recommender;
    if let Some(url) = &options.prometheus_url {
        config.prometheus.get_or_insert_default().url.clone_from(url);
    }
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let runtime = runtime()?;
    let now = Timestamp::now();
    let reasons = runtime.block_on(async {
        let client = options.read.client().await?;
        let Some(service) = Recommending::new(client.clone()).service(namespace, name).await? else {
            return Ok::<_, anyhow::Error>(None);
        };
        let sizes = sizes_of(&client, &service).await?;
        let past = match config.prometheus {
            Some(prometheus) => {
                past_of(prometheus, &service, now).await.map_err(|error| format!("{error:#}"))
            }
            None => Err("name Prometheus with --prometheus-url or --config".to_owned()),
        };
        Ok(Some(servicescaler::reasons(&service, sizes, past, now.as_second())))
    })?;
    let Some(reasons) = reasons else {
        return Err(Failure::Input(anyhow!(
            "there is no ServiceScaler {name} in namespace {namespace}: name its namespace with --namespace"
        )));
    };
    answered(options.output, &reasons, |out| servicescaler::show(&reasons, width(), out))?;
    Ok(true)
}

/// Returns the highest requests of the pods of a service, by container.
async fn sizes_of(client: &Client, service: &ScaledService) -> Result<BTreeMap<String, Size>> {
    let pods = kube::Api::<LeanPod>::namespaced(client.clone(), &service.namespace);
    let pods =
        pods.list(&kube::api::ListParams::default()).await.context("cannot list the pods of the service")?;
    let mut sizes: BTreeMap<String, Size> = BTreeMap::new();
    for pod in pods.items.iter().map(LeanPod::sized).filter(|pod| service_name(service).has_pod(&pod.name)) {
        for container in pod.containers {
            let requests = container.requests();
            let size = sizes.entry(container.name).or_default();
            size.cpu_milli = size.cpu_milli.max(requests.cpu);
            size.memory_bytes = size.memory_bytes.max(requests.memory);
        }
    }
    Ok(sizes)
}

/// Reads the usage of the pods of a service, also of those that are gone.
async fn past_of(
    config: PrometheusConfig,
    service: &ScaledService,
    now: Timestamp,
) -> Result<Vec<PastSeries>> {
    let config = PrometheusConfig {
        history_length: ConfigDuration::from_secs(servicescaler::READ_S.unsigned_abs()),
        history_resolution: ConfigDuration::from_secs(servicescaler::EVERY_S.unsigned_abs()),
        ..config
    };
    let source = PrometheusSource::new(config)?;
    let namespaces = [service.namespace.to_string()];
    let mut past: BTreeMap<(String, String, MeasuredKind), Vec<Point>> = BTreeMap::new();
    let read = source.history(QueriedNamespaces::These(&namespaces), now, |kind, series| {
        if !service_name(service).has_pod(series.pod) {
            return;
        }
        let key = (series.pod.to_owned(), series.container.to_owned(), kind.into());
        past.entry(key).or_default().extend(series.samples.iter().map(|sample| Point::of(kind, sample)));
    });
    read.await?;
    let of = |((pod, container, kind), points)| PastSeries { pod, container, kind, points };
    Ok(past.into_iter().map(of).collect())
}

fn service_name(service: &ScaledService) -> ServiceName<'_> {
    ServiceName { namespace: &service.namespace, kind: &service.target.kind, name: &service.target.name }
}

/// Prints a few pods whose move makes room.
fn print_moves(options: &ExplainOptions, world: &mut World, schedulers: &str) -> Result<(), Failure> {
    let subject = subject(options);
    let report = what_if(world, &subject).map_err(|error| Failure::Input(error.into()))?;
    if report.waiting.is_empty() {
        eprintln!("berth: no pod waits for scheduler {schedulers}");
    }
    written(|out| match options.output {
        Output::Table => show_moves::table(&report, width(), out),
        Output::Json => show_moves::json(&report, out),
    })?;
    Ok(())
}

fn subject(options: &ExplainOptions) -> WhatIfSubject {
    let Some(PodName { namespace: first, name }) = options.pod.clone() else {
        return WhatIfSubject::Everything;
    };
    let namespace = || options.namespace.clone().unwrap_or_else(|| "default".to_owned());
    match &*first {
        "allocation" | "allocations" | "alloc" => WhatIfSubject::Allocation { namespace: namespace(), name },
        "podgroup" | "podgroups" => WhatIfSubject::PodGroup { namespace: namespace(), name },
        _ => WhatIfSubject::Pod { namespace: first, name },
    }
}
