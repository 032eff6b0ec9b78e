//! The scaler: in each round it reads ServiceScalers, the usage and the signals of their services, and scales
//! them.
//!
//! Steps of a round: start the reads of Prometheus (`readings.rs` for all services at once, `custom.rs` for queries of services' own,
//! `past.rs` for the past of new ones), read the existing objects (`look.rs`), decide (`settle.rs`, which calls `scaling`), act (`act.rs`),
//! and report (`report.rs`).
//! No round waits for a slow Prometheus, and OOM kills are acted on between rounds. Only the process that holds the Lease has this
//! state; state that must survive it is in the statuses. If a read fails, the affected state stays unchanged.

mod act;
mod budget;
mod custom;
mod hints;
mod look;
mod past;
mod readings;
mod refusals;
mod report;
mod settle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::clock::Clock;
use super::leadership::Leadership;
use super::node_rooms::NodeRoom;
use super::resizing::Resizer;
use super::rounds::{self, Rounds};
use super::tasks::{Tasks, host_name};
use berth_config::{Config, Scaling};
use berth_kube_io::apply::PodWriter;
use berth_kube_io::client::fenced;
use berth_kube_io::scaling::{ScaledService, ScalingPlan};
use berth_kube_io::vpa::{ApiError, OwnerResolver, Recommending};
use berth_kube_io::{LivePod, WatchStore};
use berth_model::LabelSelector;
use berth_prometheus::PrometheusSource;
use berth_rightsizing::apply::SizedPod;
use berth_rightsizing::recommend::OwnerRef;
use berth_scheduler::engine::Engine;
use berth_telemetry::ScalerMetrics;
use budget::RequestBudget;
use custom::CustomQueries;
use hints::Affinity;
use look::Autoscalers;
use past::PastReads;
use readings::{Readings, Source, config_of_reads};
use report::Observed;
use settle::Remembered;

/// Maximum number of scaled services: the first ones by namespace and name.
const SERVICES_MAX: usize = 2_000;
/// Those of one namespace, the oldest ones: each costs a request in every round.
const SERVICES_OF_NAMESPACE_MAX: usize = 500;
/// Maximum interval at which pods are checked for OOM kills. It needs no request.
const KILLS_EVERY: Duration = Duration::from_secs(5);
/// Share of the interval that a round waits for Prometheus.
const WAIT_SHARE: u32 = 5;

/// Dependencies of the scaler.
#[derive(Clone)]
struct ScalerContext {
    interval: Duration,
    /// Windows in which services are compared; `None`: disabled.
    hints_window: Option<Duration>,
    /// What services of different namespaces may learn of each other.
    tenancy: Arc<Scaling>,
    api: Recommending,
    budget: Arc<RequestBudget>,
    watches: WatchStore,
    resizer: Arc<Resizer>,
    /// For the largest node; `None`: larger ones may be added.
    engine: Option<Engine>,
    /// For reads of all services, and for queries of services' own; `None`: usage comes from the metrics server.
    sources: Option<[PrometheusSource; 2]>,
    leadership: Leadership,
    clock: Clock,
    /// The term in which it writes.
    term: u64,
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
    (watches, clock): (&WatchStore, &Clock),
    metrics: Option<Arc<ScalerMetrics>>,
) -> Result<()> {
    let Some(metrics) = metrics else { return Ok(()) };
    let sources = match &config.recommender.prometheus {
        Some(prometheus) => {
            let [shared, own] = config_of_reads(prometheus, &config.scaling);
            Some([PrometheusSource::new(shared)?, PrometheusSource::new(own)?])
        }
        None => None,
    };
    let client = fenced(cluster.clone(), leadership.fence.as_ref())?;
    let place = ScalerContext {
        interval: config.scaling.interval.get(),
        hints_window: (config.scaling.hints && sources.is_some()).then(|| config.scaling.hints_window.get()),
        tenancy: Arc::new(config.scaling.clone()),
        api: Recommending::new(client.clone()),
        budget: Arc::new(RequestBudget::new()),
        watches: watches.clone(),
        engine: config.recommender.cap_to_nodes.then(|| engine.clone()),
        resizer: Arc::new(Resizer::new(engine.clone(), PodWriter::new(client, host_name()))),
        sources,
        leadership: leadership.clone(),
        clock: clock.clone(),
        term: 0,
        instance: host_name().into(),
        metrics,
    };
    tasks.spawn("scaler", async move {
        let begin = |term| Some(Scaler::new(ScalerContext { term, ..place.clone() }));
        let every = place.interval / checks_per_round(place.interval);
        rounds::run(|| place.leadership.decides(), (&place.clock, every), begin, std::future::pending())
            .await;
    });
    Ok(())
}

/// Returns how many times pods are checked for OOM kills in one interval.
fn checks_per_round(interval: Duration) -> u32 {
    u32::try_from(interval.as_millis().div_ceil(KILLS_EVERY.as_millis())).unwrap_or(u32::MAX).max(1)
}

/// State of services while this process leads.
struct Scaler {
    context: ScalerContext,
    owners: OwnerResolver,
    readings: Readings,
    custom: Option<CustomQueries>,
    past: Option<PastReads>,
    affinity: Option<Affinity>,
    /// By uid of the ServiceScaler.
    remembered: BTreeMap<String, Remembered>,
    /// By uid of the ServiceScaler: namespace and labels of the pods of the services that are scaled.
    watched: BTreeMap<String, (Arc<str>, LabelSelector)>,
    /// The nodes, as of this round.
    rooms: Option<Vec<NodeRoom>>,
    /// Number of services by condition reason, in this round.
    standings: BTreeMap<&'static str, usize>,
    /// Checks of OOM kills until the next round.
    checks_left: u32,
}

/// The services that are scaled, and those that are too many.
struct Services {
    scaled: Vec<ScaledService>,
    left_out: Vec<ScaledService>,
    namespaces: BTreeSet<Arc<str>>,
}

impl Rounds for Scaler {
    /// Reacts to OOM kills; and at the interval, runs a round.
    async fn round(&mut self) {
        if let Err(error) = self.react_to_kills().await {
            tracing::warn!(%error, "services are not scaled after OOM kills");
        }
        if self.checks_left > 0 {
            self.checks_left -= 1;
            return;
        }
        self.checks_left = checks_per_round(self.context.interval) - 1;
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
    fn new(context: ScalerContext) -> Self {
        let owners = OwnerResolver::new(context.api.clone(), context.watches.index.clone(), None);
        let (interval, metrics) = (context.interval, &context.metrics);
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let affinity = context
            .hints_window
            .map(|window| Affinity::new(seconds(window), seconds(interval), context.tenancy.clone()));
        let (shared, own) = context.sources.clone().map(|[shared, own]| (shared, own)).unzip();
        let clock = &context.clock;
        let past =
            shared.as_ref().map(|it| PastReads::new(it.config().clone(), clock.clone(), metrics.clone()));
        let source = match shared {
            Some(shared) => Source::prometheus(shared, clock.clone()),
            None => Source::MetricsServer(context.api.clone()),
        };
        Scaler {
            owners,
            past,
            readings: Readings::new(source, interval, metrics.clone()),
            custom: own.map(|own| CustomQueries::start(own, clock, interval, metrics.clone())),
            affinity,
            remembered: BTreeMap::new(),
            watched: BTreeMap::new(),
            rooms: None,
            standings: BTreeMap::new(),
            checks_left: 0,
            context,
        }
    }

    /// Runs one round. It waits for Prometheus only for a short time.
    async fn scale(&mut self) -> Result<(), ApiError> {
        let (now, began) = (self.context.clock.now(), self.context.clock.elapsed());
        let wait_until = tokio::time::Instant::now() + self.context.interval / WAIT_SHARE;
        self.owners.next_round();
        let Some(Services { scaled: services, left_out, namespaces }) = self.services().await? else {
            return Ok(());
        };
        if !left_out.is_empty() {
            let left_out = left_out.len();
            tracing::warn!(left_out, most = SERVICES_MAX, "too many ServiceScalers: some are not scaled");
        }
        let uids: BTreeSet<&str> = services.iter().map(|service| &*service.uid).collect();
        self.remembered.retain(|uid, _| uids.contains(&**uid));
        if let Some(past) = &mut self.past {
            past.go_on(&services, &self.remembered, now);
        }
        self.watched.clear();
        let (readings, custom) = self.wanted(&services);
        if let Some(queries) = &self.custom {
            queries.want(custom);
        }
        self.readings.start(readings, now);
        let looks = self.look_at(&services.iter().collect::<Vec<_>>()).await;
        let others = self.read_autoscalers(&namespaces).await;
        let controllers = Controllers::new(&services, &others);
        let in_the_way: Vec<_> = services.iter().map(|service| controllers.of(service)).collect();
        self.readings.wait(wait_until).await;
        // The time of the looks, as the clock shows it now: the first reads have made it follow that of Prometheus.
        let took = self.context.clock.elapsed().saturating_sub(began);
        let now = self.context.clock.now().checked_sub(took).unwrap_or(now);
        self.readings.windows.lock().forget(now.as_second());
        // Of two services with one target, the second would peak with the first.
        let counts = services.iter().zip(&in_the_way).map(|(service, in_the_way)| {
            in_the_way.is_ok() && service.plan.as_ref().is_ok_and(|plan| !plan.dry_run)
        });
        let counts: Vec<bool> = counts.collect();
        self.correlate(&services, &looks, &counts, now);
        let observed = services.iter().zip(looks).zip(in_the_way);
        let observed =
            observed.map(|((service, look), in_the_way)| Observed { service, look, in_the_way }).collect();
        for reason in self.scale_services(observed, now).await {
            *self.standings.entry(reason).or_default() += 1;
        }
        self.report_left_out(&left_out, now).await;
        Ok(())
    }

    /// Scales the services of which a pod was OOM killed since the last decision. It needs nothing from Prometheus.
    async fn react_to_kills(&mut self) -> Result<(), ApiError> {
        let killed = self.killed_services();
        if killed.is_empty() {
            return Ok(());
        }
        let now = self.context.clock.now();
        let Some(Services { scaled: services, namespaces, .. }) = self.services().await? else {
            return Ok(());
        };
        let of_killed: Vec<&ScaledService> =
            services.iter().filter(|service| killed.contains(&service.uid)).collect();
        let looks = self.look_at(&of_killed).await;
        let others = self.read_autoscalers(&namespaces).await;
        let controllers = Controllers::new(&services, &others);
        let observed = of_killed.into_iter().zip(looks).map(|(service, look)| Observed {
            service,
            look,
            in_the_way: controllers.of(service),
        });
        let observed = observed.collect();
        self.scale_services(observed, now).await;
        Ok(())
    }

    /// Returns the uids of ServiceScalers whose pods were OOM killed since the last decision, as the watch shows them.
    fn killed_services(&self) -> BTreeSet<String> {
        let mut killed: BTreeMap<&Arc<str>, Vec<Arc<LivePod>>> = BTreeMap::new();
        for (namespace, _) in self.watched.values() {
            killed.entry(namespace).or_insert_with(|| {
                let mut pods = self.context.watches.pods.of(namespace);
                let was_killed = |pod: &SizedPod| pod.containers.iter().any(|it| it.oom_killed.is_some());
                pods.retain(|live| !live.pod.is_deleting && was_killed(&live.pod));
                pods
            });
        }
        let is_new = |uid: &str, live: &LivePod, labels: &LabelSelector| {
            let remembered = self.remembered.get(uid);
            live.matches(labels) && remembered.is_some_and(|remembered| remembered.has_new_kill(&live.pod))
        };
        self.watched
            .iter()
            .filter(|(uid, (namespace, labels))| {
                killed.get(namespace).is_some_and(|pods| pods.iter().any(|live| is_new(uid, live, labels)))
            })
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Reads all services; `None`: the cluster does not have the kind.
    async fn services(&self) -> Result<Option<Services>, ApiError> {
        let mut services = match self.context.api.services().await {
            Ok(services) => services,
            Err(ApiError::NotFound(_)) => {
                tracing::debug!("no ServiceScalers in this cluster: apply the CRDs of berth");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for service in &mut services {
            refuse_queries(service, &self.context.tenancy);
        }
        let (scaled, left_out) = shares(services, SERVICES_MAX, SERVICES_OF_NAMESPACE_MAX);
        let namespaces = scaled.iter().map(|service| service.namespace.clone()).collect();
        Ok(Some(Services { scaled, left_out, namespaces }))
    }
}

/// Returns the services that are scaled, and those that are too many: namespaces take turns, and each has its oldest ones scaled. Both
/// sorted by name.
fn shares(
    mut services: Vec<ScaledService>,
    most: usize,
    most_each: usize,
) -> (Vec<ScaledService>, Vec<ScaledService>) {
    services.sort_by(|a, b| (&a.namespace, a.created, &a.name).cmp(&(&b.namespace, b.created, &b.name)));
    let mut turns = Vec::with_capacity(services.len());
    for of_namespace in services.chunk_by(|a, b| a.namespace == b.namespace) {
        turns.extend(0..of_namespace.len());
    }
    let mut by_turn: Vec<(usize, ScaledService)> = turns.into_iter().zip(services).collect();
    // Stable: in one turn, by namespace.
    by_turn.sort_by_key(|(turn, _)| *turn);
    let first_left_out = by_turn.partition_point(|(turn, _)| *turn < most_each).min(most);
    let mut scaled: Vec<ScaledService> = by_turn.into_iter().map(|(_, service)| service).collect();
    let mut left_out = scaled.split_off(first_left_out);
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

/// All that control replicas or sizes, by their target: a namespace may have thousands of each.
struct Controllers<'a> {
    /// The oldest ServiceScaler of each target.
    first: HashMap<TargetKey<'a>, &'a ScaledService>,
    /// Whether it controls sizes, and the target: the name of the first such autoscaler.
    others: HashMap<(bool, TargetKey<'a>), &'a str>,
    by_namespace: &'a Autoscalers,
}

/// Namespace, group, kind and name: targets in different versions of a group are the same.
type TargetKey<'a> = (&'a str, &'a str, &'a str, &'a str);

fn target_key<'a>(namespace: &'a str, target: &'a OwnerRef) -> TargetKey<'a> {
    (namespace, target.group(), &target.kind, &target.name)
}

impl<'a> Controllers<'a> {
    fn new(services: &'a [ScaledService], by_namespace: &'a Autoscalers) -> Self {
        let mut first: HashMap<TargetKey<'a>, &'a ScaledService> = HashMap::new();
        for service in services {
            let known = first.entry(target_key(&service.namespace, &service.target)).or_insert(service);
            if (service.created, &service.name) < (known.created, &known.name) {
                *known = service;
            }
        }
        let mut others = HashMap::new();
        for other in by_namespace.values().flatten().flatten() {
            let key = (other.sizes, target_key(&other.namespace, &other.target));
            others.entry(key).or_insert(other.name.as_str());
        }
        Controllers { first, others, by_namespace }
    }

    /// Returns the other controllers of a service. `Err`: an older ServiceScaler controls it completely.
    fn of(&self, service: &ScaledService) -> Result<InTheWay, String> {
        let key = target_key(&service.namespace, &service.target);
        if let Some(first) = self.first.get(&key).filter(|first| first.uid != service.uid) {
            return Err(format!("ServiceScaler {} is older and scales the same", first.name));
        }
        match self.by_namespace.get(&service.namespace) {
            Some(Ok(_)) => {
                let of = |sizes: bool| self.others.get(&(sizes, key)).map(|name| (*name).to_owned());
                Ok(InTheWay { replicas: of(false), sizes: of(true), perhaps: false })
            }
            Some(Err(error)) => {
                let unknown = Some(format!("an unknown autoscaler ({error})"));
                Ok(InTheWay { replicas: unknown.clone(), sizes: unknown, perhaps: true })
            }
            None => Ok(InTheWay::default()),
        }
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
        let (scaled, left_out) = shares(services(), 5, 9);
        assert_eq!(names(&scaled), ["a/s7", "a/s8", "b/x", "c/y", "c/z"]);
        assert_eq!(left_out.len(), 7);
        let (scaled, left_out) = shares(services(), 12, 9);
        assert_eq!((scaled.len(), left_out.len()), (12, 0));
        let (scaled, left_out) = shares(services(), 12, 1);
        assert_eq!(names(&scaled), ["a/s8", "b/x", "c/y"]);
        assert_eq!(left_out.len(), 9);
    }
}
