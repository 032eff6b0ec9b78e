//! The scaler: in each round it reads ServiceScalers, the usage and the signals of their services, and scales
//! them.
//!
//! Steps of a round: read the existing objects and metrics (`look.rs`), decide (`settle.rs`, which calls
//! `scaling`), act (`act.rs`), and report (`report.rs`). Only the process that holds the Lease has this state;
//! state that must survive it is in the statuses. If a read fails, the affected state stays unchanged.

mod act;
mod hints;
mod look;
mod refusals;
mod report;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::leadership::Leadership;
use super::resizing::Resizer;
use super::rounds::{self, Rounds};
use super::tasks::{Tasks, host_name};
use berth_config::{Config, Scaling};
use berth_kube_io::WatchStore;
use berth_kube_io::apply::PodWriter;
use berth_kube_io::client::without_retries;
use berth_kube_io::scaling::{Other, ScaledService, ScalingPlan, same_target};
use berth_kube_io::vpa::{ApiError, OwnerResolver, Recommending};
use berth_prometheus::PrometheusSource;
use berth_rightsizing::scaling::Windows;
use berth_scheduler::engine::Engine;
use berth_telemetry::ScalerMetrics;
use hints::Affinity;
use settle::Remembered;

/// Maximum number of services processed concurrently.
const LOOKS_IN_FLIGHT: usize = 8;
/// Maximum number of scaled services: the first ones by namespace and name.
const SERVICES_MAX: usize = 2_000;

/// Dependencies of the scaler.
#[derive(Clone)]
struct ScalerContext {
    interval: Duration,
    /// Windows in which services are compared; `None`: disabled.
    hints_window: Option<Duration>,
    /// What services of different namespaces may learn of each other.
    tenancy: Arc<Scaling>,
    api: Recommending,
    watches: WatchStore,
    resizer: Arc<Resizer>,
    source: PrometheusSource,
    leadership: Leadership,
    /// This process, for events.
    instance: Arc<str>,
    metrics: Arc<ScalerMetrics>,
}

/// Starts the scaler, if it is enabled.
pub fn scale(
    tasks: &mut Tasks,
    cluster: &kube::Config,
    config: &Config,
    (engine, leadership): (&Engine, &Leadership),
    watches: &WatchStore,
    metrics: Option<Arc<ScalerMetrics>>,
) -> Result<()> {
    let Some(metrics) = metrics else { return Ok(()) };
    let prometheus = config.recommender.prometheus.clone();
    // A process that was frozen past its lease must not scale when it resumes.
    let client = match &leadership.fence {
        Some(fence) => fence.client(cluster.clone())?,
        None => without_retries(cluster.clone())?,
    };
    let place = ScalerContext {
        interval: config.scaling.interval.get(),
        hints_window: config.scaling.hints.then(|| config.scaling.hints_window.get()),
        tenancy: Arc::new(config.scaling.clone()),
        api: Recommending::new(client.clone()),
        watches: watches.clone(),
        resizer: Arc::new(Resizer::new(engine.clone(), PodWriter::new(client, host_name()))),
        source: PrometheusSource::new(prometheus.context("scaling needs recommender.prometheus")?)?,
        leadership: leadership.clone(),
        instance: host_name().into(),
        metrics,
    };
    tasks.spawn("scaler", async move {
        let begin = |term| Some(Scaler::new(place.clone(), term));
        rounds::run(|| place.leadership.decides(), place.interval, begin, std::future::pending()).await;
    });
    Ok(())
}

/// State of services while this process leads.
struct Scaler {
    context: ScalerContext,
    term: u64,
    owners: OwnerResolver,
    windows: Windows,
    affinity: Option<Affinity>,
    /// By uid of the ServiceScaler.
    remembered: BTreeMap<String, Remembered>,
    /// Number of services by condition reason, in this round.
    standings: BTreeMap<&'static str, usize>,
}

impl Rounds for Scaler {
    async fn round(&mut self) {
        let began = Instant::now();
        let scaled = self.scale().await;
        self.context.metrics.round(scaled.is_ok(), began.elapsed(), std::mem::take(&mut self.standings));
        if let Err(error) = scaled {
            tracing::warn!(%error, "services are not scaled in this round");
        }
    }

    fn leadership_ended(&self) {
        self.context.metrics.rests();
    }
}

impl Scaler {
    fn new(place: ScalerContext, term: u64) -> Self {
        let owners = OwnerResolver::new(place.api.clone(), place.watches.index.clone(), None);
        let windows = Windows::new(place.interval);
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let affinity = place
            .hints_window
            .map(|window| Affinity::new(seconds(window), seconds(place.interval), place.tenancy.clone()));
        Scaler {
            context: place,
            term,
            owners,
            windows,
            affinity,
            remembered: BTreeMap::new(),
            standings: BTreeMap::new(),
        }
    }

    /// Runs one round.
    async fn scale(&mut self) -> Result<(), ApiError> {
        let now = Timestamp::now();
        self.owners.next_round();
        let mut services = match self.context.api.services().await {
            Ok(services) => services,
            Err(ApiError::NotFound(_)) => {
                tracing::debug!("no ServiceScalers in this cluster: apply the CRDs of berth");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for service in &mut services {
            refuse_queries(service, &self.context.tenancy);
        }
        let left_out;
        (services, left_out) = shares(services, SERVICES_MAX);
        if !left_out.is_empty() {
            let left_out = left_out.len();
            tracing::warn!(left_out, most = SERVICES_MAX, "too many ServiceScalers: some are not scaled");
        }
        self.remembered.retain(|uid, _| services.iter().any(|service| service.uid == *uid));
        self.tell_left_out(&left_out, now).await;
        if services.is_empty() {
            return Ok(());
        }
        let namespaces: BTreeSet<Arc<str>> = services.iter().map(|it| it.namespace.clone()).collect();
        let usage_error = self.read_usage(&namespaces, now).await.err();
        let others = self.read_autoscalers(&namespaces).await;
        let looks = self.look_at(&services, now).await;
        let in_the_way: Vec<_> =
            services.iter().map(|service| in_the_way(service, &services, &others)).collect();
        if self.affinity.is_some() {
            let names: Vec<String> = namespaces.iter().map(|name| name.to_string()).collect();
            if let Err(error) = self.read_network(&names, now).await {
                tracing::debug!(error, "network usage of pods is unknown");
            }
            // Of two services with one target, the second would peak with the first.
            let counts = services.iter().zip(&in_the_way).map(|(service, in_the_way)| {
                in_the_way.is_ok() && service.plan.as_ref().is_ok_and(|plan| !plan.dry_run)
            });
            let counts: Vec<bool> = counts.collect();
            self.correlate(&services, &looks, &counts, now);
        }
        for ((service, look), in_the_way) in services.iter().zip(looks).zip(in_the_way) {
            if !self.context.leadership.decides_in(self.term) {
                break;
            }
            self.scale_service(service, look, in_the_way, usage_error.as_deref(), now).await;
        }
        Ok(())
    }
}

/// Returns the services that are scaled, and those that are too many: namespaces take turns, and each has its oldest ones scaled. Both
/// sorted by name.
fn shares(mut services: Vec<ScaledService>, most: usize) -> (Vec<ScaledService>, Vec<ScaledService>) {
    if services.len() <= most {
        return (services, Vec::new());
    }
    services.sort_by(|a, b| (&a.namespace, a.created, &a.name).cmp(&(&b.namespace, b.created, &b.name)));
    let mut turns = Vec::with_capacity(services.len());
    for of_namespace in services.chunk_by(|a, b| a.namespace == b.namespace) {
        turns.extend(0..of_namespace.len());
    }
    let mut by_turn: Vec<(usize, ScaledService)> = turns.into_iter().zip(services).collect();
    // Stable: in one turn, by namespace.
    by_turn.sort_by_key(|(turn, _)| *turn);
    let mut scaled: Vec<ScaledService> = by_turn.into_iter().map(|(_, service)| service).collect();
    let mut left_out = scaled.split_off(most);
    for services in [&mut scaled, &mut left_out] {
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    }
    (scaled, left_out)
}

/// Refuses queries of a service's own where its namespace may not have any.
fn refuse_queries(service: &mut ScaledService, tenancy: &Scaling) {
    let has_own = service.plan.as_ref().is_ok_and(ScalingPlan::has_custom_query);
    if has_own && !tenancy.may_query(&service.namespace) {
        service.plan = Err(format!(
            "queries of its own are not allowed in namespace {}: remove them, or ask the operator of berth to add the namespace to \
             scaling.customQueries",
            service.namespace
        ));
    }
}

/// Other controllers of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct InTheWay {
    replicas: Option<String>,
    sizes: Option<String>,
    /// Whether they are unknown because they could not be read.
    perhaps: bool,
}

/// Returns the other controllers of a service. `Err`: an older ServiceScaler controls it completely.
fn in_the_way(
    service: &ScaledService,
    services: &[ScaledService],
    others: &BTreeMap<Arc<str>, Result<Vec<Other>, String>>,
) -> Result<InTheWay, String> {
    let same = |other: &&ScaledService| {
        other.namespace == service.namespace && same_target(&other.target, &service.target)
    };
    let first = services.iter().filter(same).min_by_key(|it| (it.created, &it.name));
    if let Some(first) = first.filter(|first| first.uid != service.uid) {
        return Err(format!("ServiceScaler {} is older and scales the same", first.name));
    }
    match others.get(&service.namespace) {
        Some(Ok(others)) => {
            let of = |sizes: bool| {
                let same =
                    |other: &&Other| other.sizes == sizes && same_target(&other.target, &service.target);
                others.iter().find(same).map(|other| other.name.clone())
            };
            Ok(InTheWay { replicas: of(false), sizes: of(true), perhaps: false })
        }
        Some(Err(error)) => {
            let unknown = Some(format!("an unknown autoscaler ({error})"));
            Ok(InTheWay { replicas: unknown.clone(), sizes: unknown, perhaps: true })
        }
        None => Ok(InTheWay::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_of_its_own_is_sent_only_where_the_operator_allows_it() {
        let plan = |signal: serde_json::Value, allowed: &[&str]| {
            let object = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {
                    "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                    "objectives": {"signal": signal},
                    "bounds": {"maxReplicas": 3},
                },
            });
            let mut service = ScaledService::read(&object.to_string()).expect("a ServiceScaler");
            assert!(service.plan.is_ok(), "{:?}", service.plan);
            let custom_queries = allowed.iter().map(|&namespace| namespace.to_owned()).collect();
            refuse_queries(&mut service, &Scaling { custom_queries, ..Scaling::default() });
            service.plan
        };
        let own = || serde_json::json!({"type": "Query", "query": "sum(secrets{namespace=\"bank\"})", "target": "5"});
        let why = plan(own(), &["bank"]).expect_err("it reads what others have");
        assert!(
            why.contains("not allowed in namespace shop") && why.contains("scaling.customQueries"),
            "{why}"
        );
        assert!(plan(own(), &["shop"]).is_ok() && plan(own(), &["*"]).is_ok());
        assert!(plan(serde_json::json!({"type": "CpuThrottling", "target": "0.1"}), &[]).is_ok());
    }

    #[test]
    fn a_namespace_with_many_services_leaves_the_others_their_turn() {
        let service = |namespace: &str, name: &str, second: u32| {
            let object = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
                "metadata": {
                    "namespace": namespace, "name": name,
                    "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
                },
                "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
            });
            ScaledService::read(&object.to_string()).expect("a ServiceScaler")
        };
        let services = || {
            // The youngest of the first namespace comes first by name.
            let greedy = (0..9).map(|at| service("a", &format!("s{at}"), 59 - at));
            greedy
                .chain([service("b", "x", 1), service("c", "y", 1), service("c", "z", 2)])
                .collect::<Vec<_>>()
        };
        let names = |services: &[ScaledService]| {
            services.iter().map(|it| format!("{}/{}", it.namespace, it.name)).collect::<Vec<_>>()
        };
        let (scaled, left_out) = shares(services(), 5);
        assert_eq!(names(&scaled), ["a/s7", "a/s8", "b/x", "c/y", "c/z"]);
        assert_eq!(left_out.len(), 7);
        let (scaled, left_out) = shares(services(), 12);
        assert_eq!((scaled.len(), left_out.len()), (12, 0));
    }
}
