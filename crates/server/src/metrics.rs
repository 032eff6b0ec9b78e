//! Prometheus metrics. Names are kube-scheduler's where the meaning is the same; all other names begin with `berth_`.
//!
//! Counters live where they are counted (scheduler, reporter, watches) and are read at each scrape; only histograms are kept here.
//! No label value is the name of a pod or a node.

#[cfg(test)]
mod dashboard;
mod lock_holds;
mod quotas;

use berth_telemetry::encode::{MetricLabels, counters, gauges};
use berth_telemetry::{RecommenderMetrics, ScalerMetrics, SpanCounters, UpdaterMetrics};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::access::{self, Access};
use super::fit::FitCounters;
use super::fragmentation::Latest;
use super::secure;
use super::ui::UiCounters;
use berth_kube_io::placement::BindCounters;
use berth_kube_io::{AllocationWriter, Reporter, WatchCounters};
use berth_scheduler::engine::{Engine, Operation};
use berth_scheduler::scheduler::{AttemptResult, LatencySample};
use lock_holds::LockHolds;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The histograms. Clones share them.
#[derive(Clone)]
pub struct Histograms {
    attempt: Family<ResultLabel, Histogram, fn() -> Histogram>,
    algorithm: Histogram,
    sli: Family<AttemptsLabel, Histogram, fn() -> Histogram>,
    attempts: Histogram,
    catch_up: Histogram,
    victims: Histogram,
    requests: Family<RequestLabel, Histogram, fn() -> Histogram>,
    lock_holds: LockHolds,
}

/// Requests that berth serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Filter,
    Prioritize,
    Preempt,
    Bind,
    Guard,
    Mutate,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::Filter => "filter",
            Verb::Prioritize => "prioritize",
            Verb::Preempt => "preempt",
            Verb::Bind => "bind",
            Verb::Guard => "guard",
            Verb::Mutate => "mutate",
        }
    }
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabel {
    verb: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
    profile: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptsLabel {
    attempts: String,
}

/// Label values of attempts are capped at this, as upstream does.
const MOST_ATTEMPTS: u32 = 15;

const PROFILE: &str = "berth";

impl Default for Histograms {
    fn default() -> Self {
        // Upstream's buckets begin at 1 ms; berth's attempts mostly take microseconds.
        let attempt = || Histogram::new(exponential_buckets(1e-6, 2.0, 24));
        let sli = || Histogram::new(exponential_buckets(0.01, 2.0, 20));
        Histograms {
            attempt: Family::new_with_constructor(attempt),
            algorithm: attempt(),
            sli: Family::new_with_constructor(sli),
            attempts: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            catch_up: Histogram::new(exponential_buckets(1.0, 4.0, 10)),
            victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            requests: Family::new_with_constructor(attempt),
            lock_holds: LockHolds::default(),
        }
    }
}

impl Histograms {
    /// Observes for how long an operation held the engine's lock.
    pub fn observe_lock(&self, operation: Operation, held: Duration) {
        self.lock_holds.observe(operation, held);
    }

    /// Observes a request of kube-scheduler or the API server that was answered.
    pub fn observe_request(&self, verb: Verb, result: &'static str, took: Duration) {
        let label = RequestLabel { verb: verb.name(), result };
        self.requests.get_or_create(&label).observe(took.as_secs_f64());
    }

    pub fn observe(&self, sample: LatencySample) {
        match sample {
            LatencySample::Attempt { result, took } => {
                let result = match result {
                    AttemptResult::Scheduled => "scheduled",
                    AttemptResult::Unschedulable => "unschedulable",
                    AttemptResult::Error => "error",
                };
                let label = ResultLabel { result, profile: PROFILE };
                self.attempt.get_or_create(&label).observe(took.as_secs_f64());
            }
            LatencySample::Scheduled { waited, attempts } => {
                let label = match attempts {
                    MOST_ATTEMPTS.. => format!("{MOST_ATTEMPTS}+"),
                    attempts => attempts.to_string(),
                };
                self.sli.get_or_create(&AttemptsLabel { attempts: label }).observe(waited.as_secs_f64());
                self.attempts.observe(f64::from(attempts));
            }
            LatencySample::Algorithm { took } => self.algorithm.observe(took.as_secs_f64()),
            LatencySample::CatchUp { rows } => self.catch_up.observe(rows as f64),
            LatencySample::Victims { pods } => self.victims.observe(pods as f64),
        }
    }
}

/// Sources that are read at each scrape.
#[derive(Clone)]
pub struct MetricSources {
    pub engine: Engine,
    pub reporter: Reporter,
    pub allocations: AllocationWriter,
    pub binds: Arc<BindCounters>,
    pub pod_watch: Arc<WatchCounters>,
    pub node_watch: Arc<WatchCounters>,
    /// Of ResourceClaims.
    pub claim_watch: Arc<WatchCounters>,
    /// Watches of all other kinds together.
    pub object_watches: Arc<WatchCounters>,
    pub self_checks: Arc<SelfCheckCounters>,
    /// Bytes of the recording.
    pub recorded: Arc<AtomicU64>,
    /// Time of the last renewal of the Lease, in seconds since 1970; 0: this process has not held it.
    pub lease_renewed: Arc<AtomicI64>,
    /// Milliseconds by which the clock of the controllers is ahead of that of this machine.
    pub clock_ahead: Arc<AtomicI64>,
    /// `None` without `serving.address`.
    pub serving: Option<(Arc<secure::TlsCounters>, Access)>,
    /// `None` while the recommender is disabled.
    pub recommender: Option<Arc<RecommenderMetrics>>,
    /// `None` while the updater is disabled.
    pub updater: Option<Arc<UpdaterMetrics>>,
    /// `None` while the scaler is disabled.
    pub scaler: Option<Arc<ScalerMetrics>>,
    /// `None` while the fragmentation report is disabled.
    pub fragmentation: Option<Arc<Latest>>,
    pub ui: Arc<UiCounters>,
    pub fit: Arc<FitCounters>,
    /// `None`: no spans are sent.
    pub spans: Option<Arc<SpanCounters>>,
}

#[derive(Debug, Default)]
pub struct SelfCheckCounters {
    pub done: AtomicU64,
    pub failed: AtomicU64,
}

/// All metrics of the process; empty by default. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Arc<Registry>,
}

impl Metrics {
    pub fn new(histograms: &Histograms, sources: MetricSources) -> Self {
        let mut registry = Registry::default();
        let mut register = |name: &str, help: &str, histogram: Histogram| {
            registry.register(name, help, histogram);
        };
        register(
            "scheduler_pod_scheduling_attempts",
            "Attempts to successfully schedule a pod",
            histograms.attempts.clone(),
        );
        register(
            "scheduler_preemption_victims",
            "Number of selected preemption victims",
            histograms.victims.clone(),
        );
        register(
            "berth_catch_up_rows",
            "Node rows an agent copied before a task",
            histograms.catch_up.clone(),
        );
        registry.register(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency: choosing and committing a node, without the bind",
            histograms.attempt.clone(),
        );
        registry.register(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency: choosing a node, without the commit",
            histograms.algorithm.clone(),
        );
        registry.register(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from a pod's arrival to its bind",
            histograms.sli.clone(),
        );
        registry.register(
            "berth_request_duration_seconds",
            "Requests of kube-scheduler (extender) and of the API server (guard, mutate) until the response, by result",
            histograms.requests.clone(),
        );
        if let Some(recommender) = &sources.recommender {
            recommender.register(&mut registry);
        }
        histograms.lock_holds.register(&mut registry);
        registry.register_collector(Box::new(Scrape { sources, lock_holds: histograms.lock_holds.clone() }));
        Metrics { registry: Arc::new(registry) }
    }

    /// Returns the text of a scrape, in the OpenMetrics format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

struct Scrape {
    sources: MetricSources,
    lock_holds: LockHolds,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        self.scheduler(&mut to)?;
        let quotas = self.sources.engine.quota_standings(quotas::MOST_QUOTAS);
        quotas::encode(&mut to, &quotas)?;
        self.lock_holds.encode(&mut to)?;
        self.agents(&mut to)?;
        self.outside(&mut to)?;
        if let Some((server, access)) = &self.sources.serving {
            serving(&mut to, server, access.counters())?;
        }
        if let Some(latest) = &self.sources.fragmentation {
            fragmentation(&mut to, latest)?;
        }
        if let Some(recommender) = &self.sources.recommender {
            recommender.encode(&mut to)?;
        }
        if let Some(updater) = &self.sources.updater {
            updater.encode(&mut to)?;
        }
        if let Some(scaler) = &self.sources.scaler {
            scaler.encode(&mut to)?;
        }
        process(&mut to)
    }
}

impl Scrape {
    fn scheduler(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let now = self.sources.engine.statistics();
        let (stats, queues, others) = (now.counters, now.queues, now.others);
        counters(
            to,
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by result",
            &[
                (&[("result", "scheduled"), ("profile", PROFILE)], stats.scheduled),
                (&[("result", "unschedulable"), ("profile", PROFILE)], stats.unschedulable),
                (&[("result", "error"), ("profile", PROFILE)], stats.errors),
            ],
        )?;
        counters(
            to,
            "scheduler_preemption_attempts",
            "Total preemption attempts in the cluster till now",
            &[(&[], stats.preemption_attempts)],
        )?;
        gauges(
            to,
            "scheduler_pending_pods",
            "Waiting pods, by queue",
            &[
                (&[("queue", "active")], queues.active),
                (&[("queue", "backoff")], queues.backoff),
                (&[("queue", "unschedulable")], queues.unschedulable),
                (&[("queue", "gated")], queues.gated),
                (&[("queue", "elsewhere")], queues.elsewhere),
                (&[("queue", "quota")], queues.over_quota),
                (&[("queue", "held_back")], queues.held_back),
            ],
        )?;
        gauges(
            to,
            "berth_others",
            "Pods of other schedulers without a node, reservations for binds that other clients requested, and binds in flight that \
             kube-scheduler requested from the extender",
            &[
                (&[("kind", "pods")], others.pods),
                (&[("kind", "held")], others.holds),
                (&[("kind", "binds")], others.binds),
            ],
        )?;
        gauges(
            to,
            "scheduler_cache_size",
            "Nodes, pods and assumed pods in the cache",
            &[
                (&[("type", "nodes")], now.nodes),
                (&[("type", "pods")], now.pods),
                (&[("type", "assumed_pods")], now.assumed),
            ],
        )?;
        counters(
            to,
            "berth_cache_lookups",
            "Lookups in the agents' caches, by level",
            &[
                (&[("level", "list"), ("result", "hit")], stats.list_hits),
                (&[("level", "list"), ("result", "miss")], stats.list_misses),
                (&[("level", "rule"), ("result", "hit")], stats.rule_hits),
                (&[("level", "rule"), ("result", "miss")], stats.rule_misses),
                (&[("level", "common"), ("result", "hit")], stats.common_hits),
                (&[("level", "common"), ("result", "miss")], stats.common_misses),
            ],
        )?;
        counters(
            to,
            "berth_predictions",
            "Dispatcher predictions of a hit or miss of the ranked list, by whether they were right",
            &[
                (&[("result", "right")], stats.predictions_right),
                (&[("result", "wrong")], stats.predictions_wrong),
            ],
        )?;
        let agents: Vec<String> = (0..stats.dispatched.len()).map(|agent| agent.to_string()).collect();
        let labels: Vec<_> = agents.iter().map(|agent| [("agent", agent.as_str())]).collect();
        let values: Vec<(MetricLabels, u64)> =
            labels.iter().zip(&stats.dispatched).map(|(label, count)| (label.as_slice(), *count)).collect();
        counters(to, "berth_dispatched", "Requests dispatched to each agent", &values)?;
        for (name, help, value) in [
            ("berth_placement_conflicts", "Chosen nodes that no longer fitted at commit", stats.conflicts),
            (
                "berth_placement_yields",
                "Placements put off because a more important pod was looking at their node",
                stats.yields,
            ),
            ("berth_parked_checks", "Checks of a parked class after a change", stats.checks),
            ("berth_parked_wakes", "Checks after which a pod of the parked class was requeued", stats.wakes),
            ("berth_bad_pods", "Pods of this scheduler with an invalid spec", stats.bad_pods),
            ("berth_bad_nodes", "Node updates with invalid fields", stats.bad_nodes),
            (
                "berth_pods_over_limit",
                "Pods refused because they, or the pods of their namespace, have too many affinity terms",
                stats.over_limit,
            ),
            (
                "berth_invariant_violations",
                "Commits that exceeded a node's capacity: a bug in berth",
                stats.violations,
            ),
            (
                "berth_reports_repeated",
                "Conditions and nominations written again, because the API server did not have them",
                stats.repeated,
            ),
            ("berth_self_check_healed", "Differences from the API server that were repaired", stats.healed),
        ] {
            counters(to, name, help, &[(&[], value)])?;
        }
        for (name, help, value) in [
            ("berth_parked_classes", "Classes of pods that fit on no node now", now.parked_classes),
            (
                "berth_aged_pods",
                "Pods with room reserved for them because they have waited for long",
                now.aged,
            ),
            ("berth_classes", "Classes of pods in memory", now.classes),
            ("berth_remembered_decisions", "Placed pods whose reasons are remembered", now.decisions),
            (
                "berth_affinity_selectors",
                "Different selectors in the affinity terms of known pods",
                now.selectors,
            ),
            (
                "berth_affinity_selectors_namespace_most",
                "Different selectors in the affinity terms of the pods of that namespace which has most",
                now.namespace_selectors.all,
            ),
            (
                "berth_affinity_selectors_namespace_most_foreign",
                "Different selectors that may select pods of other namespaces, in the affinity terms of the pods of that \
                 namespace which has most",
                now.namespace_selectors.foreign,
            ),
            (
                "berth_allocations_ignored",
                "Allocations that can have no pods because too many older ones select pods by the same label",
                now.ignored_allocations,
            ),
            (
                "berth_namespaces_held_back",
                "Namespaces with pods held back, because their waiting pods have too many classes",
                now.namespaces_held_back,
            ),
            ("berth_leader", "1 while this process is the leader", usize::from(now.leading)),
        ] {
            gauges(to, name, help, &[(&[], value)])?;
        }
        Ok(())
    }

    fn agents(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let stats = self.sources.engine.cache_stats();
        let agents: Vec<String> = (0..stats.len()).map(|agent| agent.to_string()).collect();
        let labels: Vec<_> = agents.iter().map(|agent| [("agent", agent.as_str())]).collect();
        let of = |value: fn(&berth_scheduler::agent::CacheStats) -> usize| -> Vec<(MetricLabels, usize)> {
            labels.iter().zip(&stats).map(|(label, stats)| (label.as_slice(), value(stats))).collect()
        };
        gauges(to, "berth_cache_lists", "Ranked lists cached", &of(|stats| stats.lists))?;
        gauges(
            to,
            "berth_cache_common_lists",
            "Lists cached that ranked lists share",
            &of(|stats| stats.commons),
        )?;
        gauges(to, "berth_cache_rule_objects", "Rule objects cached", &of(|stats| stats.objects))?;
        gauges(to, "berth_cache_bytes", "Bytes of all lists and rule objects", &of(|stats| stats.bytes))?;
        let evictions: Vec<(MetricLabels, u64)> =
            labels.iter().zip(&stats).map(|(label, stats)| (label.as_slice(), stats.evictions)).collect();
        counters(to, "berth_cache_evictions", "Ranked lists evicted", &evictions)
    }

    fn outside(&self, to: &mut DescriptorEncoder) -> fmt::Result {
        let MetricSources {
            engine,
            reporter,
            allocations,
            binds,
            pod_watch,
            node_watch,
            claim_watch,
            object_watches,
            self_checks,
            recorded,
            lease_renewed,
            clock_ahead,
            serving: _,
            recommender: _,
            fragmentation: _,
            updater: _,
            scaler: _,
            ui,
            fit,
            spans,
        } = &self.sources;
        let pending = engine.pending_binds().load(Relaxed);
        gauges(to, "berth_binds_pending", "Binds decided whose outcome is pending", &[(&[], pending)])?;
        gauges(
            to,
            "berth_lease_renewed_timestamp_seconds",
            "Last renewal of the Lease by this process, in seconds since 1970; 0: none",
            &[(&[], usize::try_from(lease_renewed.load(Relaxed)).unwrap_or(0))],
        )?;
        let ahead = ConstGauge::new(clock_ahead.load(Relaxed) as f64 / 1_000.0);
        let (name, help) = (
            "berth_clock_correction_seconds",
            "Time by which Prometheus' clock is ahead of that of this machine; the controllers follow it",
        );
        ahead.encode(to.encode_descriptor(name, help, None, ahead.metric_type())?)?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        gauges(to, "berth_build_info", "1, with the version of this process", &[(&version, 1)])?;
        counters(
            to,
            "berth_bind_requests",
            "Requests sent for binds, by kind",
            &[(&[("request", "bind")], binds.requests()), (&[("request", "read")], binds.reads())],
        )?;
        counters(
            to,
            "berth_bind_busy",
            "Bind requests that the API server was too busy to take (429)",
            &[(&[], binds.busy())],
        )?;
        counters(
            to,
            "berth_bind_unknown",
            "Bind requests with an unknown outcome",
            &[(&[], binds.unknown())],
        )?;
        gauges(
            to,
            "berth_reports_waiting",
            "Events and conditions waiting to be sent",
            &[(&[], reporter.waiting())],
        )?;
        gauges(
            to,
            "berth_reports_in_flight_max",
            "Events and conditions that may be in flight while no bind is",
            &[(&[], reporter.window())],
        )?;
        let reports = reporter.counters();
        counters(
            to,
            "berth_reports",
            "Events and conditions, by result",
            &[
                (&[("result", "sent")], reports.sent.load(Relaxed)),
                (&[("result", "retried")], reports.retried.load(Relaxed)),
                (&[("result", "dropped")], reporter.dropped()),
            ],
        )?;
        statuses(to, allocations)?;
        let watches = [
            ("pods", pod_watch),
            ("nodes", node_watch),
            ("resourceclaims", claim_watch),
            ("others", object_watches),
        ];
        type Read = fn(&WatchCounters) -> &AtomicU64;
        let kinds: [(&str, &str, Read); 5] = [
            ("berth_watch_events", "Objects received by a watch, its lists included", |watch| &watch.events),
            ("berth_watch_lists", "Completed lists of a watch", |watch| &watch.lists),
            ("berth_watch_errors", "Watch errors", |watch| &watch.errors),
            (
                "berth_watch_expired",
                "Watches whose resource version was too old: each is followed by a list",
                |watch| &watch.expired,
            ),
            ("berth_watch_bad_objects", "Objects that cannot be decoded", |watch| &watch.bad_objects),
        ];
        for (name, help, read) in kinds {
            let labels = watches.map(|(resource, _)| [("resource", resource)]);
            let values: Vec<(MetricLabels, u64)> = labels
                .iter()
                .zip(&watches)
                .map(|(label, (_, watch))| (label.as_slice(), read(watch).load(Relaxed)))
                .collect();
            counters(to, name, help, &values)?;
        }
        let (bytes, recording) = (recorded.load(Relaxed), usize::from(engine.records()));
        counters(to, "berth_recorded_bytes", "Bytes written to the recording", &[(&[], bytes)])?;
        gauges(to, "berth_recording", "1 while a recording is made", &[(&[], recording)])?;
        gauges(
            to,
            "berth_ui_viewers",
            "Viewers of the page that this process serves",
            &[(&[], ui.viewers.load(Relaxed))],
        )?;
        for (name, help, value) in [
            ("berth_ui_bytes", "Bytes of events sent to all viewers of the page", &ui.bytes),
            (
                "berth_ui_lagging_viewers",
                "Streams of the page that ended because the viewer read too slowly",
                &ui.lagging,
            ),
        ] {
            counters(to, name, help, &[(&[], value.load(Relaxed))])?;
        }
        counters(
            to,
            "berth_fit_questions",
            "Questions whether pods would fit, by result",
            &[
                (&[("result", "answered")], fit.answered.load(Relaxed)),
                (&[("result", "refused")], fit.refused.load(Relaxed)),
                (&[("result", "busy")], fit.busy.load(Relaxed)),
            ],
        )?;
        if let Some(spans) = spans {
            counters(
                to,
                "berth_traced_placements",
                "Placements as spans of OpenTelemetry, by result",
                &[
                    (&[("result", "sent")], spans.sent.load(Relaxed)),
                    (&[("result", "failed")], spans.failed.load(Relaxed)),
                    (&[("result", "missed")], spans.missed.load(Relaxed)),
                ],
            )?;
        }
        counters(
            to,
            "berth_self_checks",
            "Comparisons with the API server, by result",
            &[
                (&[("result", "done")], self_checks.done.load(Relaxed)),
                (&[("result", "failed")], self_checks.failed.load(Relaxed)),
            ],
        )
    }
}

fn statuses(to: &mut DescriptorEncoder, allocations: &AllocationWriter) -> fmt::Result {
    let waiting = allocations.waiting();
    let help = "Statuses of allocations waiting to be written";
    gauges(to, "berth_allocation_statuses_waiting", help, &[(&[], waiting)])?;
    let statuses = allocations.counters();
    counters(
        to,
        "berth_allocation_status_writes",
        "Status writes of allocations, by result",
        &[
            (&[("result", "written")], statuses.written.load(Relaxed)),
            (&[("result", "unchanged")], statuses.unchanged.load(Relaxed)),
            (&[("result", "gone")], statuses.gone.load(Relaxed)),
            (&[("result", "retried")], statuses.retried.load(Relaxed)),
            (&[("result", "dropped")], allocations.dropped()),
        ],
    )
}

fn fragmentation(to: &mut DescriptorEncoder, latest: &Latest) -> fmt::Result {
    let pass = latest.get().unwrap_or_default();
    let report = &pass.report;
    for (name, help, value) in [
        (
            "berth_fragmentation_nodes",
            "Nodes from which a few pods could be moved to make room for waiting pods",
            report.nodes().len(),
        ),
        (
            "berth_fragmentation_helped",
            "Waiting classes of pods and allocations that would fit after moving a few pods",
            report.helped(),
        ),
        ("berth_fragmentation_proofs", "Sets of moves evaluated in the latest pass", report.proofs),
        (
            "berth_fragmentation_cut",
            "Searches of the latest pass that were cut off by a limit or the time",
            report.cut + report.left_out,
        ),
    ] {
        gauges(to, name, help, &[(&[], value)])?;
    }
    let name = "berth_fragmentation_seconds";
    let gauge = ConstGauge::new(pass.took.as_secs_f64());
    gauge.encode(to.encode_descriptor(name, "Duration of the latest pass", None, gauge.metric_type())?)
}

fn serving(
    to: &mut DescriptorEncoder,
    serving: &secure::TlsCounters,
    access: &access::AccessCounters,
) -> fmt::Result {
    let expiry = usize::try_from(serving.certificate_expiry.load(Relaxed)).unwrap_or(0);
    for (name, help, value) in [
        ("berth_serving_connections", "Open HTTPS connections", serving.open.load(Relaxed)),
        (
            "berth_serving_certificate_expiry_timestamp_seconds",
            "Expiry of the serving certificate, in seconds since 1970",
            expiry,
        ),
    ] {
        gauges(to, name, help, &[(&[], value)])?;
    }
    for (name, help, value) in [
        (
            "berth_serving_closed_connections",
            "Connections without an admitted request closed for newer ones",
            &serving.closed_for_newer,
        ),
        ("berth_serving_handshake_failures", "Failed TLS handshakes", &serving.handshake_failures),
        ("berth_access_evictions", "Cached access verdicts evicted before they expired", &access.evicted),
    ] {
        counters(to, name, help, &[(&[], value.load(Relaxed))])?;
    }
    counters(
        to,
        "berth_access_checks",
        "Requests that need authentication, by result",
        &[
            (&[("result", "allowed")], access.allowed.load(Relaxed)),
            (&[("result", "unauthenticated")], access.unauthenticated.load(Relaxed)),
            (&[("result", "forbidden")], access.forbidden.load(Relaxed)),
            (&[("result", "failed")], access.failed.load(Relaxed)),
        ],
    )
}

/// Encodes the usual process metrics, where /proc has them.
fn process(to: &mut DescriptorEncoder) -> fmt::Result {
    let Some(usage) = berth_telemetry::process::usage_of("self") else {
        return Ok(());
    };
    let name = "process_cpu_seconds";
    let counter = ConstCounter::new(usage.cpu.as_secs_f64());
    counter.encode(to.encode_descriptor(name, "CPU time used", None, counter.metric_type())?)?;
    gauges(to, "process_resident_memory_bytes", "Resident memory", &[(&[], usage.resident_bytes as usize)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Plain;

    impl Collector for Plain {
        fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
            counters(&mut to, "conflicts", "Help", &[(&[], 3)])?;
            gauges(&mut to, "leader", "Help", &[(&[], 1)])?;
            counters(&mut to, "lookups", "Help", &[(&[("level", "list")], 5)])
        }
    }

    #[test]
    fn a_metric_without_labels_has_no_braces() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Plain));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in ["conflicts_total 3", "leader 1", "lookups_total{level=\"list\"} 5"] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
