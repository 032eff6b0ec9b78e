//! Advice from a Prometheus: reads all data and passes it to the collector.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;

use super::address::PrometheusAddress;
use super::values::shown;
use super::{Answer, Failure, OutputFormat, RecommendOptions, note, prices, settings, show};
use crate::advise::{
    AdviceReport, Collector, ContainerAdvice, ContainerSelection, Left, OwnerIndex, PriceList, Reason,
    Sizing, Strategy, WorkloadsFrom,
};
use crate::cli::progress::{ProgressBars, Stage};
use berth_model::PerResource;
use berth_prometheus::{
    Fact, FactRow, LabelledKind, Missing, PrometheusSource, QueriedNamespaces, ReadSummary, Series, Skip,
    WorkloadSelector,
};
use berth_rightsizing::recommend::Amount;
use berth_rightsizing::recommend::time::nanos;
use berth_rightsizing::usage::UsageKind;

/// A Prometheus and the queried range.
pub struct PrometheusQueries<'a> {
    options: &'a RecommendOptions,
    address: PrometheusAddress,
    source: PrometheusSource,
    now: Timestamp,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Whether everything could be read.
    pub complete: bool,
    prices: Option<PriceList>,
}

pub fn answer(options: &RecommendOptions) -> Result<Answer, Failure> {
    let (report, complete) = runtime()?.block_on(async {
        let mut asked = PrometheusQueries::connect(options).await?;
        let report = report(&mut asked).await?;
        Ok::<_, Failure>((report, asked.complete))
    })?;
    for each in &report.notes {
        note(each);
    }
    let text = match options.output {
        OutputFormat::Table => show::table(&report, width()),
        OutputFormat::Json => show::json(&report)?,
        OutputFormat::Yaml => show::yaml(&report)?,
        OutputFormat::Csv => show::csv(&report),
        OutputFormat::Html => show::page(&report),
        OutputFormat::Kubectl => show::kubectl(&report)?,
        OutputFormat::Helm => show::helm(&report)?,
        OutputFormat::Slack => show::slack(&report)?,
        OutputFormat::Kustomize => show::kustomize(&report)?,
    };
    Ok(Answer { text, complete })
}

pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the runtime")?)
}

/// Returns the width of the table: the width of the terminal if the shell sets it.
fn width() -> usize {
    const DEFAULT: usize = 120;
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(DEFAULT)
}

async fn report(asked: &mut PrometheusQueries<'_>) -> Result<AdviceReport, Failure> {
    let options = asked.options;
    let owners = asked.owners().await?;
    let workloads_from =
        if owners.is_empty() { WorkloadsFrom::PodNames } else { WorkloadsFrom::KubeStateMetrics };
    let now = i64::try_from(asked.now.as_nanosecond()).context("--at: the time is out of range")?;
    let sizing = sizing(options);
    let mut collector =
        Collector::new(settings(options), sizing, owners, now).map_err(anyhow::Error::from)?;
    if options.output == OutputFormat::Html {
        collector = collector.with_graphs(nanos(options.history.get()), GRAPH_PARTS);
    }
    asked.history(|kind, series| collector.usage(kind, &series)).await?;
    if collector.refused() > 0 {
        let refused = collector.refused();
        asked.notes.push(format!("skipped {refused} samples that are negative or in the future"));
    }
    let amounts = [Fact::Request, Fact::Limit].into_iter().flat_map(|fact| UsageKind::ALL.map(fact));
    let others = [Fact::OomKill, Fact::AutoscalerTarget, Fact::AutoscalerResource];
    let summaries = [Fact::CpuQuantile { per_mille: cpu_per_mille(options) }, Fact::MemoryPeak];
    let summaries = summaries.into_iter().filter(|_| sizing.strategy == Strategy::Krr);
    for fact in amounts.chain(others).chain(summaries) {
        asked.facts(fact, &mut collector, |collector, told| collector.add_fact(fact, told)).await;
    }
    if !collector.has_requests() {
        asked.notes.push(
            "there is no kube_pod_container_resource_requests (kube-state-metrics): what containers request now is unknown (?)"
                .to_owned(),
        );
    }
    let choice = ContainerSelection {
        // Two points, as one may be missing; and a quarter of an hour, in which Prometheus may have been restarted.
        ended_after_ns: nanos(options.resolution.get()).saturating_mul(2).max(QUARTER_NS),
        all: options.all,
        severity_min: options.min_severity,
    };
    let (mut advice, left) = collector.advice(choice);
    asked.report_left_out(left);
    if !options.kind.is_empty() {
        advice.retain(|each| options.kind.iter().any(|kind| kind.eq_ignore_ascii_case(&each.kind)));
    }
    if let Some(selector) = &options.selector {
        asked.select(selector, &mut advice).await?;
    }
    let kept = advice.iter().filter(|each| {
        let PerResource { cpu, memory } = each.size.as_ref().map(|size| size.reason);
        cpu == Reason::Autoscaler || memory == Reason::Autoscaler
    });
    let kept = kept.count();
    if kept > 0 {
        asked.notes.push(format!(
            "containers whose utilisation a HorizontalPodAutoscaler keeps: {kept}. With another request it would change their replicas, so \
             there is no advice on that resource; --allow-hpa gives it"
        ));
    }
    Ok(AdviceReport {
        source: asked.address.shown().to_owned(),
        strategy: in_words(options),
        prices: asked.prices.take(),
        at: Timestamp::from_second(asked.now.as_second()).unwrap_or(asked.now).to_string(),
        history: shown(options.history),
        workloads_from,
        advice,
        notes: asked.notes.clone(),
    })
}

const QUARTER_NS: i64 = 900_000_000_000;
/// Parts of the history that a graph shows: an hour each of eight days.
const GRAPH_PARTS: usize = 192;

fn sizing(options: &RecommendOptions) -> Sizing {
    // KRR's defaults.
    const CPU_MINIMUM: Amount = 10;
    const MEMORY_MINIMUM: Amount = 100 << 20;
    Sizing {
        strategy: options.strategy,
        memory_margin: margin(options) / 100.0,
        minimum: PerResource {
            cpu: options.pod_min_cpu.unwrap_or(CPU_MINIMUM),
            memory: options.pod_min_memory.unwrap_or(MEMORY_MINIMUM),
        },
        limits: options.limits,
        despite_autoscalers: options.allow_hpa,
    }
}

/// Returns the margin in percent.
fn margin(options: &RecommendOptions) -> f64 {
    options.margin.unwrap_or(15.0)
}

/// Returns the percentile of CPU usage.
fn cpu_percentile(options: &RecommendOptions) -> f64 {
    options.cpu_percentile.unwrap_or(match options.strategy {
        Strategy::Vpa => 90.0,
        Strategy::Krr => 95.0,
    })
}

fn cpu_per_mille(options: &RecommendOptions) -> u16 {
    (cpu_percentile(options) * 10.0).round() as u16
}

/// Returns how targets are computed, in words.
fn in_words(options: &RecommendOptions) -> String {
    let (cpu, margin) = (cpu_percentile(options), margin(options));
    match options.strategy {
        Strategy::Vpa => format!(
            "as the Vertical Pod Autoscaler: the {cpu}th percentile of CPU, and the {}th of the highest memory of each day; {margin} % more",
            options.memory_percentile.unwrap_or(90.0)
        ),
        Strategy::Krr => format!(
            "as KRR: the {cpu}th percentile of the busiest pod's CPU, and the highest memory and {margin} % more"
        ),
    }
}

fn price_list(options: &RecommendOptions) -> Result<Option<PriceList>, Failure> {
    let of_month = |usual| PriceList { currency: String::new(), usual, namespaces: BTreeMap::new() };
    match &options.price_file {
        Some(file) => prices::read(file).map(Some),
        None => Ok(options.prices.map(of_month)),
    }
}

impl<'a> PrometheusQueries<'a> {
    /// Finds Prometheus, without a query to it.
    pub async fn connect(options: &'a RecommendOptions) -> Result<Self, Failure> {
        let prices = price_list(options)?;
        let address = PrometheusAddress::find(options).await?;
        let source =
            PrometheusSource::new(address.config(options)).map_err(|error| address.failure(error))?;
        let now = options.at.unwrap_or_else(Timestamp::now);
        Ok(Self { options, address, source, now, notes: Vec::new(), complete: true, prices })
    }

    fn namespaces(&self) -> QueriedNamespaces<'a> {
        match &self.options.namespace[..] {
            [] => QueriedNamespaces::All,
            names => QueriedNamespaces::These(names),
        }
    }

    /// Returns the owners of pods. Without kube-state-metrics the result is empty, which is no failure; an
    /// unreachable Prometheus is.
    pub async fn owners(&mut self) -> Result<OwnerIndex, Failure> {
        self.source.check(self.now).await.map_err(|error| self.address.failure(error))?;
        let mut owners = OwnerIndex::default();
        for fact in [Fact::PodOwner, Fact::ReplicaSetOwner, Fact::JobOwner] {
            self.facts(fact, &mut owners, |owners, told| owners.add(fact, told)).await;
            if owners.is_empty() {
                break;
            }
        }
        Ok(owners)
    }

    /// Reads one fact. On failure the answer does without it, and a note says so.
    async fn facts<T: Send>(
        &mut self,
        fact: Fact,
        into: &mut T,
        add: impl Fn(&mut T, FactRow<'_>) + Send + Sync,
    ) {
        let read = self.source.facts(fact, self.namespaces(), self.now, |told| add(into, told)).await;
        match read {
            Ok(summary) => self.warnings(&summary),
            Err(error) => {
                self.complete = false;
                let error = self.address.explain(&error);
                self.notes.push(format!("{fact:?} could not be read and is missing in the answer: {error}"));
            }
        }
    }

    /// Reads all usage.
    pub async fn history(
        &mut self,
        mut sink: impl FnMut(UsageKind, Series<'_>) + Send,
    ) -> Result<(), Failure> {
        let mut stage = Hours::new(self.now, self.options.history.get());
        let sink = |kind, series: Series<'_>| {
            stage.reached(series.samples.last().map_or(0.0, |last| last.at));
            sink(kind, series);
        };
        let summary = self
            .source
            .history(self.namespaces(), self.now, sink)
            .await
            .map_err(|error| self.address.failure(error))?;
        stage.end();
        self.warnings(&summary);
        for reason in Skip::ALL {
            let count = summary.skipped.get(reason);
            if count > 0 {
                self.notes.push(format!("skipped: {count} {}", reason.name().replace('_', " ")));
            }
        }
        if summary.samples == 0 {
            return Err(Failure::Other(self.explain_no_samples().await?));
        }
        Ok(())
    }

    /// Keeps the advice on workloads that the selector selects.
    async fn select(
        &mut self,
        selector: &WorkloadSelector,
        advice: &mut Vec<ContainerAdvice>,
    ) -> Result<(), Failure> {
        let kinds: BTreeSet<String> = advice.iter().map(|each| each.kind.clone()).collect();
        let labelled: Vec<LabelledKind> = kinds.iter().filter_map(|kind| LabelledKind::of(kind)).collect();
        for key in selector.keys() {
            self.check_exported(key, &labelled).await?;
        }
        let mut selected: BTreeSet<(&str, String, String)> = BTreeSet::new();
        for kind in &labelled {
            let sink = |namespace: &str, name: &str| {
                selected.insert((kind.kind, namespace.to_owned(), name.to_owned()));
            };
            let namespaces = self.namespaces();
            let read = self.source.selected(*kind, selector, namespaces, self.now, sink).await;
            self.warnings(&read.map_err(|error| self.address.failure(error))?);
        }
        let unlabelled = advice.iter().filter(|each| LabelledKind::of(&each.kind).is_none()).count();
        if unlabelled > 0 {
            self.notes.push(format!(
                "{unlabelled} containers are hidden: kube-state-metrics has no labels of the kinds of their workloads"
            ));
        }
        advice.retain(|each| {
            let name = (&*each.kind, each.namespace.clone(), each.workload.clone());
            selected.contains(&name)
        });
        Ok(())
    }

    /// Checks that kube-state-metrics exports this label for at least one of these kinds, and notes those without it: `!=` selects all
    /// of them.
    async fn check_exported(&mut self, key: &str, kinds: &[LabelledKind]) -> Result<(), Failure> {
        let mut without = Vec::new();
        for kind in kinds {
            if !self
                .source
                .has_label(*kind, key, self.now)
                .await
                .map_err(|error| self.address.failure(error))?
            {
                without.push(*kind);
            }
        }
        let names = without.iter().map(|kind| format!("{}s", kind.kind)).collect::<Vec<_>>().join(", ");
        let allow: Vec<String> = without.iter().map(|kind| format!("{}=[{key}]", kind.resource)).collect();
        let remedy = format!("start kube-state-metrics with --metric-labels-allowlist={}", allow.join(","));
        if !without.is_empty() && without.len() == kinds.len() {
            return Err(Failure::Other(anyhow!(
                "--selector: Prometheus has no label {key} of {names}: {remedy}, or check the spelling"
            )));
        }
        if !without.is_empty() {
            self.notes.push(format!(
                "no label {key} of {names} is exported: --selector takes them as without it; if they have it, {remedy}"
            ));
        }
        Ok(())
    }

    fn warnings(&mut self, summary: &ReadSummary) {
        for warning in &summary.warnings {
            self.complete = false;
            let text = format!("Prometheus returned a warning, data may be missing: {warning}");
            if !self.notes.contains(&text) {
                self.notes.push(text);
            }
        }
    }

    fn report_left_out(&mut self, left: Left) {
        let Left { ended, less_severe } = left;
        if ended > 0 {
            self.notes.push(format!("{ended} containers that no longer run are hidden; --all shows them"));
        }
        if less_severe > 0 {
            self.notes.push(format!("{less_severe} containers of lower severity are hidden"));
        }
    }

    async fn explain_no_samples(&self) -> Result<anyhow::Error, Failure> {
        let metric = &self.source.config().memory_metric;
        let (url, history) = (self.address.shown(), shown(self.options.history));
        let matchers = self.options.prometheus_label.iter();
        let matching: String =
            matchers.map(|matcher| format!(" with --prometheus-label {matcher}")).collect();
        Ok(match self.source.missing(self.now).await.map_err(|error| self.address.failure(error))? {
            Missing::Metric => anyhow!(
                "Prometheus at {url} has no {metric}{matching} in the last {history}: let it scrape the kubelets' \
                 /metrics/cadvisor, or give the address of the one that does"
            ),
            Missing::Labels { legacy } => {
                let set = if legacy { "legacy" } else { "modern" };
                anyhow!("{metric} at {url} has other labels: use --label-set {set}, or remove --label-set")
            }
            Missing::AnyLabels => anyhow!(
                "{metric} at {url} has neither the labels namespace, pod and container nor namespace, pod_name and \
                 container_name: check whether metric_relabel_configs drops or renames them"
            ),
            Missing::Namespaces if !self.options.namespace.is_empty() => anyhow!(
                "Prometheus at {url} has no usage of containers in --namespace {} in the last {history}",
                self.options.namespace.join(",")
            ),
            Missing::Namespaces => {
                anyhow!(
                    "Prometheus at {url} has no usage at the points of the history: give a finer --resolution"
                )
            }
        })
    }
}

/// Hours of history that have been read; shown on a terminal.
struct Hours {
    stage: Option<Stage>,
    start_s: f64,
    total: usize,
}

impl Hours {
    fn new(now: Timestamp, history: Duration) -> Self {
        let total = (history.as_secs() / 3_600) as usize;
        let is_shown = total > 0 && std::io::stderr().is_terminal();
        let stage = is_shown.then(|| ProgressBars::new().stage("history, hours", total));
        Self { stage, start_s: now.as_second() as f64 - history.as_secs_f64(), total }
    }

    fn reached(&mut self, at_s: f64) {
        if let Some(stage) = &mut self.stage {
            let hours = ((at_s - self.start_s) / 3_600.0).max(0.0) as usize;
            // The last hour is counted after the last response.
            stage.set(hours.min(self.total.saturating_sub(1)));
        }
    }

    fn end(&mut self) {
        if let Some(stage) = &mut self.stage {
            stage.set(self.total);
        }
    }
}
