//! Metrics of the recommender. Names are those of the upstream recommender where the meaning is the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::dimensions::DimensionMetrics;
use super::encode::{MetricLabels, counters, gauges};
use super::quality::{QualityMetrics, same_name_counts};
use berth_prometheus::{PrometheusSource, QueryCounters, REQUEST_SECONDS, Skip};
use berth_rightsizing::recommend::store::StoreCounts;
use berth_rightsizing::recommend::{Refused, Surplus};

/// Labels of the gauge that counts VPAs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VpaKind {
    pub update_mode: String,
    pub has_recommendation: bool,
    pub matches_pods: bool,
    pub unsupported_config: bool,
}

/// Upstream's name of its metrics server client.
const CLIENT: &str = "default-metrics-client";

/// Buckets as upstream.
const STEP_SECONDS: [f64; 23] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0,
    100.0, 120.0, 150.0, 240.0, 300.0,
];
const FIRST_SECONDS: [f64; 19] = [
    1.0, 2.0, 5.0, 7.5, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 150.0, 180.0, 240.0, 300.0, 600.0,
    900.0, 1800.0,
];

/// Successes and failures.
#[derive(Default)]
struct Results {
    good: AtomicU64,
    bad: AtomicU64,
}

impl Results {
    fn count(&self, is_good: bool) {
        let counter = if is_good { &self.good } else { &self.bad };
        counter.fetch_add(1, Relaxed);
    }
}

/// Metrics of the recommender.
pub struct RecommenderMetrics {
    steps: Family<StepLabel, Histogram, fn() -> Histogram>,
    first: Histogram,
    rounds: Results,
    statuses: Results,
    saved: Results,
    loaded: Results,
    samples: Results,
    ooms: Results,
    evictions_left: AtomicU64,
    created: Results,
    deleted: Results,
    quality: QualityMetrics,
    /// Responses of `metrics.k8s.io`.
    metric_server: Results,
    /// Dimensions besides CPU and memory.
    pub dimensions: DimensionMetrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    vpas: BTreeMap<VpaKind, usize>,
    aggregates: usize,
    bytes: usize,
    uncreated: usize,
    /// VPAs beyond the limit of their namespace.
    beyond_limit: usize,
    source: Option<PrometheusSource>,
    surplus: Option<Arc<Surplus>>,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

impl Default for RecommenderMetrics {
    fn default() -> Self {
        let step = || Histogram::new(STEP_SECONDS);
        Self {
            steps: Family::new_with_constructor(step),
            first: Histogram::new(FIRST_SECONDS),
            rounds: Results::default(),
            statuses: Results::default(),
            saved: Results::default(),
            loaded: Results::default(),
            samples: Results::default(),
            ooms: Results::default(),
            evictions_left: AtomicU64::new(0),
            created: Results::default(),
            deleted: Results::default(),
            quality: QualityMetrics::default(),
            metric_server: Results::default(),
            dimensions: DimensionMetrics::default(),
            state: Mutex::default(),
        }
    }
}

impl RecommenderMetrics {
    /// Observes a step of a round that began at `began` and ends now.
    pub fn took(&self, step: &'static str, began: Instant) {
        self.steps.get_or_create(&StepLabel { step }).observe(began.elapsed().as_secs_f64());
    }

    pub fn round(&self, is_good: bool) {
        self.rounds.count(is_good);
    }

    pub fn status_written(&self, is_good: bool) {
        self.statuses.count(is_good);
    }

    pub fn checkpoint_saved(&self, is_good: bool) {
        self.saved.count(is_good);
    }

    pub fn checkpoint_loaded(&self, is_good: bool) {
        self.loaded.count(is_good);
    }

    pub fn sample(&self, taken: Result<(), Refused>) {
        // A stale sample is one read before: the source has no newer one.
        if taken != Err(Refused::Stale) {
            self.samples.count(taken.is_ok());
        }
    }

    pub fn oom(&self, is_counted: bool) {
        self.ooms.count(is_counted);
    }

    /// Returns the quality metrics of recommendations.
    pub fn quality(&self) -> &QualityMetrics {
        &self.quality
    }

    /// Counts a request to `metrics.k8s.io` for the usage of a namespace.
    pub fn metric_server(&self, is_good: bool) {
        self.metric_server.count(is_good);
    }

    /// Counts evictions beyond the limit per namespace and round.
    pub fn evictions_left(&self, count: usize) {
        self.evictions_left.fetch_add(count as u64, Relaxed);
    }

    /// Counts the creation of a VPA for a workload without one.
    pub fn vpa_created(&self, is_good: bool) {
        self.created.count(is_good);
    }

    /// Counts the deletion of such a VPA that is no longer needed.
    pub fn vpa_deleted(&self, is_good: bool) {
        self.deleted.count(is_good);
    }

    /// Sets the number of workloads whose VPA is created in later rounds.
    pub fn vpas_wait(&self, count: usize) {
        self.state.lock().uncreated = count;
    }

    /// Observes the time from a VPA's creation to its first recommendation.
    pub fn first_recommendation(&self, after_ns: i64) {
        self.first.observe(after_ns.max(0) as f64 / 1e9);
    }

    /// Sets the number of VPAs beyond the limit of their namespace.
    pub fn vpas_beyond_limit(&self, count: usize) {
        self.state.lock().beyond_limit = count;
    }

    pub fn vpas(&self, kinds: BTreeMap<VpaKind, usize>) {
        self.state.lock().vpas = kinds;
    }

    pub fn holds(&self, counts: StoreCounts, bytes: usize) {
        let mut state = self.state.lock();
        (state.aggregates, state.bytes) = (counts.aggregates, bytes);
    }

    /// Sets the source of usage, whose counters are exported.
    pub fn follow(&self, source: Option<PrometheusSource>) {
        self.state.lock().source = source;
    }

    /// Sets what the workloads request beyond their recommendations. It is shown, not exported.
    pub fn workloads_request(&self, surplus: Surplus) {
        self.state.lock().surplus = Some(Arc::new(surplus));
    }

    /// Returns the same as of the last round; `None` before it, and in processes that do not lead.
    pub fn surplus(&self) -> Option<Arc<Surplus>> {
        self.state.lock().surplus.clone()
    }

    /// Clears the gauges: another process is the leader now.
    pub fn rests(&self) {
        let mut state = self.state.lock();
        let source = state.source.take();
        *state = State { source, ..State::default() };
        self.dimensions.holds(Default::default());
    }

    pub fn register(&self, registry: &mut Registry) {
        self.quality.register(registry);
        registry.register(
            "vpa_recommender_execution_latency_seconds",
            "Time spent in various parts of VPA Recommender main loop",
            self.steps.clone(),
        );
        registry.register(
            "vpa_recommender_recommendation_latency_seconds",
            "Time elapsed from creating a valid VPA configuration to the first recommendation",
            self.first.clone(),
        );
    }

    pub fn encode(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let state = self.state.lock();
        let flag = |is: bool| if is { "true" } else { "false" };
        let labels: Vec<_> = state
            .vpas
            .keys()
            .map(|kind| {
                [
                    ("update_mode", kind.update_mode.as_str()),
                    ("has_recommendation", flag(kind.has_recommendation)),
                    ("api", "v1"),
                    ("matches_pods", flag(kind.matches_pods)),
                    ("unsupported_config", flag(kind.unsupported_config)),
                ]
            })
            .collect();
        let vpas: Vec<(MetricLabels, usize)> =
            labels.iter().zip(state.vpas.values()).map(|(label, count)| (label.as_slice(), *count)).collect();
        gauges(
            to,
            "vpa_recommender_vpa_objects_count",
            "Number of VPA objects present in the cluster",
            &vpas,
        )?;
        for (name, help, value) in [
            (
                "vpa_recommender_aggregate_container_states_count",
                "Number of aggregate container states being tracked by the recommender",
                state.aggregates,
            ),
            (
                "berth_recommender_aggregate_bytes",
                "Memory of the aggregate container states, without maps",
                state.bytes,
            ),
            (
                "berth_recommender_vpas_waiting",
                "Workloads whose VPA will be created in the next rounds",
                state.uncreated,
            ),
            (
                "berth_recommender_vpas_beyond_limit",
                "VPAs without effect, because too many older ones exist in their namespace",
                state.beyond_limit,
            ),
        ] {
            gauges(to, name, help, &[(&[], value)])?;
        }
        for (name, help, results) in [
            ("berth_recommender_rounds", "Rounds of the recommender", &self.rounds),
            ("berth_recommender_status_writes", "Statuses of VPAs written", &self.statuses),
            ("berth_recommender_checkpoint_writes", "Checkpoints written", &self.saved),
            ("berth_recommender_checkpoint_loads", "Checkpoints loaded", &self.loaded),
            ("berth_recommender_samples", "Samples of usage taken", &self.samples),
            ("berth_recommender_oom_kills", "OOM kills taken as samples", &self.ooms),
            ("berth_recommender_vpas_created", "VPAs created for workloads without one", &self.created),
            (
                "berth_recommender_vpas_deleted",
                "VPAs created by berth that were deleted because they are no longer needed",
                &self.deleted,
            ),
        ] {
            let (good, bad) = (results.good.load(Relaxed), results.bad.load(Relaxed));
            counters(to, name, help, &[(&[("result", "done")], good), (&[("result", "failed")], bad)])?;
        }
        let (good, bad) = (self.metric_server.good.load(Relaxed), self.metric_server.bad.load(Relaxed));
        same_name_counts(
            to,
            "vpa_recommender_metric_server_responses",
            "Count of responses to queries to metrics server",
            &[
                (&[("is_error", "false"), ("client_name", CLIENT)], good),
                (&[("is_error", "true"), ("client_name", CLIENT)], bad),
            ],
        )?;
        counters(
            to,
            "berth_recommender_evictions_left",
            "Evictions skipped because of the limit per namespace and round",
            &[(&[], self.evictions_left.load(Relaxed))],
        )?;
        self.dimensions.encode(to)?;
        state.source.as_ref().map_or(Ok(()), |source| prometheus(to, source))
    }
}

fn prometheus(to: &mut DescriptorEncoder, source: &PrometheusSource) -> fmt::Result {
    let counts = source.counters();
    let requests = counts.requests();
    upstream_requests(to, counts)?;
    let codes: Vec<String> = requests.keys().map(u16::to_string).collect();
    let labels: Vec<_> = codes.iter().map(|code| [("code", code.as_str()), ("method", "POST")]).collect();
    let values: Vec<(MetricLabels, u64)> =
        labels.iter().zip(requests.values()).map(|(label, it)| (label.as_slice(), it.count)).collect();
    counters(
        to,
        "berth_recommender_prometheus_requests",
        "Requests sent to Prometheus, by status code",
        &values,
    )?;
    let labels = Skip::ALL.map(|reason| [("reason", reason.name())]);
    let values: Vec<(MetricLabels, u64)> = labels
        .iter()
        .zip(Skip::ALL)
        .map(|(label, reason)| (label.as_slice(), counts.skipped(reason)))
        .collect();
    counters(to, "berth_recommender_skipped", "Series or samples from Prometheus skipped, by reason", &values)
}

/// Encodes the request metrics under upstream's names. Upstream counts only requests that got a response.
fn upstream_requests(to: &mut DescriptorEncoder, counts: &QueryCounters) -> fmt::Result {
    let mut requests = counts.requests();
    requests.retain(|code, _| *code != 0);
    let codes: Vec<String> = requests.keys().map(u16::to_string).collect();
    let labels: Vec<_> = codes.iter().map(|code| [("code", code.as_str()), ("method", "post")]).collect();
    let values: Vec<(MetricLabels, u64)> =
        labels.iter().zip(requests.values()).map(|(label, it)| (label.as_slice(), it.count)).collect();
    same_name_counts(
        to,
        "vpa_recommender_prometheus_client_api_requests_count",
        "Number of requests to a Prometheus API",
        &values,
    )?;
    let name = "vpa_recommender_prometheus_client_api_requests_duration_seconds";
    let help = "Duration of requests to a Prometheus API";
    let mut family = to.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (label, request) in labels.iter().zip(requests.values()) {
        let bounds = REQUEST_SECONDS.into_iter().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(request.within).collect();
        let metric = &mut family.encode_family(label)?;
        metric.encode_histogram::<NoLabelSet>(request.waited.as_secs_f64(), request.count, &buckets, None)?;
    }
    Ok(())
}
