//! `berth recommend`: requests of containers from their usage in Prometheus, and backtests on recorded usage.

mod address;
mod backtest;
mod discover;
mod prices;
mod prometheus;
mod service_proxy;
#[cfg(test)]
mod tests;
mod values;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::failure::Failure;
use super::output::printed;
use super::progress::write_line;
use crate::advise::show;
use crate::advise::{LimitStrategy, Prices, Severity, Strategy, recording};
use berth_model::ConfigDuration;
use berth_prometheus::{HttpHeader, WorkloadSelector};
use berth_rightsizing::recommend::backtest::EstimatorKind;
use berth_rightsizing::recommend::{Amount, RecommenderSettings};
use discover::ServiceReference;
use values::{cpu, duration, header, margin, memory, percentile, positive, prices, timestamp};

/// Options of `berth recommend`.
#[derive(Debug, Clone, Args)]
pub struct RecommendOptions {
    /// Address of the Prometheus (or Thanos, Mimir, VictoriaMetrics) with the usage of containers, without
    /// /api/v1, such as http://localhost:9090. Default: the only Service of the cluster with the labels of one, through the
    /// API server.
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<String>,
    /// Service of Prometheus in the cluster, as NAMESPACE/NAME or NAMESPACE/NAME:PORT, through the API server.
    #[arg(long, value_name = "SERVICE", conflicts_with = "prometheus", value_parser = ServiceReference::parse)]
    pub prometheus_service: Option<ServiceReference>,
    /// Kubeconfig file of the cluster of Prometheus. Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE", conflicts_with = "prometheus")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file.
    #[arg(long, value_name = "NAME", conflicts_with = "prometheus")]
    pub context: Option<String>,
    /// Only containers of these namespaces, separated by commas.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub namespace: Vec<String>,
    /// Only workloads of these kinds, separated by commas, such as Deployment,StatefulSet.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub kind: Vec<String>,
    /// Only workloads whose own labels this selects, as for kubectl get, such as team=a,tier!=web. kube-state-metrics must
    /// export the labels (--metric-labels-allowlist).
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<WorkloadSelector>,
    /// Length of the history of usage to read.
    #[arg(long, value_name = "DURATION", default_value = "8d", value_parser = duration)]
    pub history: ConfigDuration,
    /// Time between two samples of usage: CPU is the mean of this time, memory the highest. At least two scrape
    /// intervals.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub resolution: ConfigDuration,
    /// How sizes are computed.
    #[arg(long, value_name = "NAME", default_value = "vpa")]
    pub strategy: Strategy,
    /// Percentile of CPU usage. Default: 90 for vpa, 95 for krr.
    #[arg(long, value_name = "PERCENT", value_parser = percentile)]
    pub cpu_percentile: Option<f64>,
    /// Percentile of the highest memory of each day, for vpa. Default: 90.
    #[arg(long, value_name = "PERCENT", value_parser = percentile)]
    pub memory_percentile: Option<f64>,
    /// Percentage that is added: for vpa to CPU and memory, for krr to memory. Default: 15.
    #[arg(long, value_name = "PERCENT", value_parser = margin)]
    pub margin: Option<f64>,
    /// How limits are advised; the table does not show them.
    #[arg(long, value_name = "NAME", default_value = "proportional")]
    pub limits: LimitStrategy,
    /// Also advise on CPU or memory by whose utilisation a HorizontalPodAutoscaler scales: with another request it
    /// changes the replicas.
    #[arg(long)]
    pub allow_hpa: bool,
    /// Prices of a requested core and of a requested GiB, for a month, such as 20,2.5: the answer has the cost of each
    /// container, of each workload and of all requests.
    #[arg(long, value_name = "CORE,GIB", value_parser = prices)]
    pub prices: Option<Prices>,
    /// YAML file of prices for an hour: cpuCoreHour, memoryGibHour, currency, and namespaces with prices of their own.
    #[arg(long, value_name = "FILE", conflicts_with = "prices")]
    pub price_file: Option<PathBuf>,
    /// End of the history, such as 2026-01-31T12:00:00Z. Default: now.
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    pub at: Option<Timestamp>,
    /// Labels that identify a container. Default: detected.
    #[arg(long, value_name = "SET")]
    pub label_set: Option<LabelSet>,
    /// Label matcher of every query, such as cluster=prod where several clusters share a Thanos or Mimir. Also
    /// LABEL!=VALUE, LABEL=~EXPRESSION and LABEL!~EXPRESSION. May be repeated.
    #[arg(long, value_name = "LABEL=VALUE")]
    pub prometheus_label: Vec<String>,
    /// HTTP header of every request, such as X-Scope-OrgID=team-a; NAME=@FILE reads the value from a file. May be
    /// repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub prometheus_header: Vec<HttpHeader>,
    /// File of the bearer token for Prometheus.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    pub bearer_token_file: Option<PathBuf>,
    /// User name for Prometheus, with the password in --password-file.
    #[arg(long, value_name = "NAME", requires_all = ["prometheus", "password_file"], conflicts_with = "bearer_token_file")]
    pub user: Option<String>,
    /// File of the password of --user.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// PEM file of the CAs that may sign the certificate of Prometheus. Default: the CAs that this machine
    /// trusts.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    pub ca_file: Option<PathBuf>,
    /// Timeout of one query.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub query_timeout: ConfigDuration,
    /// Format of the answer; for a backtest, table or json.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
    /// Only containers of this severity or more.
    #[arg(long, value_name = "SEVERITY", default_value = "unknown")]
    pub min_severity: Severity,
    /// Also containers that no longer run.
    #[arg(long)]
    pub all: bool,
    /// Minimum CPU of all containers of a pod together. Default: 25m; for krr 10m of each container.
    #[arg(long, value_name = "QUANTITY", value_parser = cpu)]
    pub pod_min_cpu: Option<Amount>,
    /// Minimum memory of all containers of a pod together. Default: 250Mi; for krr 100Mi of each container.
    #[arg(long, value_name = "QUANTITY", value_parser = memory)]
    pub pod_min_memory: Option<Amount>,
    /// Replay recorded usage and compare the estimators: from these files (comma-separated values with a
    /// header, plain or gzip: a column ts, timestamp or time, and one with the usage), or from --prometheus.
    #[arg(long, value_name = "FILE", num_args = 0..)]
    pub backtest: Option<Vec<PathBuf>>,
    /// Column with CPU usage in cores. Default, if --memory-column is unset too: `value`.
    #[arg(long, value_name = "COLUMN", requires = "backtest")]
    pub cpu_column: Vec<String>,
    /// Column with memory usage in bytes.
    #[arg(long, value_name = "COLUMN", requires = "backtest")]
    pub memory_column: Vec<String>,
    /// Factor from CPU columns to cores: 0.01 for percent of a core.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    pub cpu_scale: f64,
    /// Factor from memory columns to bytes.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    pub memory_scale: f64,
    /// Estimators to compare, separated by commas. Default: all.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "backtest", value_parser = estimator())]
    pub estimators: Vec<EstimatorKind>,
    /// Backtest: time between two decisions.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub step: ConfigDuration,
    /// Backtest: time at the beginning that is not measured.
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration)]
    pub warm_up: ConfigDuration,
}

/// Names of the labels of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelSet {
    /// namespace, pod, container
    Modern,
    /// namespace, pod_name, container_name: Kubernetes before 1.16
    Legacy,
}

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    Table,
    /// All figures, in cores and bytes
    Json,
    /// As json, in YAML
    Yaml,
    /// As json, one line per container
    Csv,
    /// A self-contained page, with graphs of usage
    Html,
    /// Commands for kubectl that set the advised requests and limits
    Kubectl,
    /// A component of kustomize that sets the advised requests and limits
    Kustomize,
    /// Values of a Helm chart: requests and limits by namespace, kind, workload and container
    Helm,
    /// A message for Slack with the largest savings, in Block Kit; it is printed, not sent
    Slack,
}

/// Answer, and whether everything could be read for it.
struct Answer {
    text: String,
    complete: bool,
}

/// Returns an option that is set and needs a Prometheus: it has no effect on files.
fn of_prometheus(options: &RecommendOptions) -> Option<&'static str> {
    let set = [
        (!options.namespace.is_empty(), "--namespace"),
        (!options.kind.is_empty(), "--kind"),
        (options.selector.is_some(), "--selector"),
        (options.strategy != Strategy::default(), "--strategy"),
        (options.cpu_percentile.is_some(), "--cpu-percentile"),
        (options.memory_percentile.is_some(), "--memory-percentile"),
        (options.margin.is_some(), "--margin"),
        (options.limits != LimitStrategy::default(), "--limits"),
        (options.allow_hpa, "--allow-hpa"),
        (options.prices.is_some(), "--prices"),
        (options.price_file.is_some(), "--price-file"),
        (options.at.is_some(), "--at"),
        (options.label_set.is_some(), "--label-set"),
        (!options.prometheus_label.is_empty(), "--prometheus-label"),
        (!options.prometheus_header.is_empty(), "--prometheus-header"),
    ];
    set.into_iter().find_map(|(is_set, name)| is_set.then_some(name))
}

/// Exit codes: 0 complete answer; 1 no Prometheus or several were found, Prometheus or a file could not be read, or the answer lacks
/// some of it, as the notes on standard error say; 2 the options or a file are invalid.
pub fn recommend(options: &RecommendOptions) -> ExitCode {
    let answer = match &options.backtest {
        Some(files) => backtest::answer(options, files),
        None => prometheus::answer(options),
    };
    let (error, code) = match answer {
        Ok(Answer { text, complete }) => match printed(text.as_bytes()) {
            Ok(()) => return if complete { ExitCode::SUCCESS } else { ExitCode::from(1) },
            Err(error) => (error, 1),
        },
        Err(failure) => failure.with_code(),
    };
    write_line(&format!("berth: {error:#}"));
    ExitCode::from(code)
}

fn note(text: &str) {
    write_line(&format!("berth: {text}"));
}

/// Returns upstream's defaults with the values of the options.
fn settings(options: &RecommendOptions) -> RecommenderSettings {
    let mut settings = RecommenderSettings::default();
    let given = [options.pod_min_cpu, options.pod_min_memory];
    let percentiles = [options.cpu_percentile, options.memory_percentile];
    for (resource, (minimum, percentile)) in
        [&mut settings.cpu, &mut settings.memory].into_iter().zip(given.into_iter().zip(percentiles))
    {
        resource.pod_minimum = minimum.unwrap_or(resource.pod_minimum);
        resource.target_percentile = percentile.map_or(resource.target_percentile, |percent| percent / 100.0);
        resource.upper_percentile = resource.upper_percentile.max(resource.target_percentile);
        resource.margin = options.margin.map_or(resource.margin, |percent| percent / 100.0);
    }
    settings
}

/// Parses the name of an estimator; `--help` lists them with a line each.
fn estimator() -> impl TypedValueParser<Value = EstimatorKind> {
    let values = EstimatorKind::ALL.map(|kind| PossibleValue::new(kind.name()).help(kind.about()));
    PossibleValuesParser::new(values).map(|name| {
        EstimatorKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .expect("only listed names are accepted")
    })
}
