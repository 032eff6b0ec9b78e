//! The recommender: in each round it reads VPAs, pods and usage, and writes recommendations.
//!
//! Steps of a round: read the existing objects (`world.rs`), create VPAs for workloads that have none
//! (`create.rs`), load the past (`past.rs`), take samples (`samples.rs`, `evictions.rs`), write statuses
//! (`publish.rs`), estimate further dimensions (`dimensions.rs`), and save checkpoints (`keep.rs`). If a read
//! fails, the affected state stays unchanged. All decisions are in `recommend`; only the process that holds
//! the Lease has this state.

mod create;
mod dimensions;
mod evictions;
mod keep;
mod past;
mod publish;
mod quality;
mod samples;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::watch;

use super::clock::Clock;
use super::leadership::Leadership;
use super::rounds::{self, Rounds};
use super::tasks::Tasks;
use berth_config as config;
use berth_kube_io::WatchStore;
use berth_kube_io::client::fenced;
use berth_kube_io::vpa::{OwnerResolver, Recommending, lists_of};
use berth_prometheus::PrometheusSource;
use berth_rightsizing::recommend::Status;
use berth_rightsizing::recommend::store::{Store, Workload};
use berth_scheduler::engine::Engine;
use berth_telemetry::RecommenderMetrics;
use dimensions::Dimensions;
use world::World;

/// Shutdown: time for the last checkpoints.
const LAST_SAVE_MAX: Duration = Duration::from_secs(3);

/// Dependencies of the recommender.
#[derive(Clone)]
struct RecommenderContext {
    config: Arc<config::Recommender>,
    api: Recommending,
    watches: WatchStore,
    source: Option<PrometheusSource>,
    engine: Engine,
    leadership: Leadership,
    clock: Clock,
    metrics: Arc<RecommenderMetrics>,
}

/// Shuts the recommender down in order.
pub struct Handle {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Handle {
    /// Saves all checkpoints while this process still leads. Takes a few seconds at most.
    pub async fn finish(mut self) {
        let _ = self.stop.send(true);
        let _ = tokio::time::timeout(LAST_SAVE_MAX, self.ended.wait_for(|ended| *ended)).await;
    }
}

/// Starts the recommender, if it is enabled.
pub fn recommend(
    tasks: &mut Tasks,
    cluster: &kube::Config,
    config: &config::Recommender,
    (engine, leadership): (&Engine, &Leadership),
    (watches, clock): (&WatchStore, &Clock),
    metrics: Option<Arc<RecommenderMetrics>>,
) -> Result<Option<Handle>> {
    let Some(metrics) = metrics else { return Ok(None) };
    let source = config.prometheus.clone().map(PrometheusSource::new).transpose()?;
    metrics.follow(source.clone());
    metrics.dimensions.follow(config.dimensions.iter().map(|it| it.name.as_str().into()));
    let place = RecommenderContext {
        config: Arc::new(config.clone()),
        api: Recommending::new(fenced(cluster.clone(), leadership.fence.as_ref())?),
        watches: watches.clone(),
        source,
        engine: engine.clone(),
        leadership: leadership.clone(),
        clock: clock.clone(),
        metrics,
    };
    // Invalid buckets are rejected when the configuration is read.
    Recommender::new(place.clone(), 0)?;
    let ((stop, mut stopping), (end, ended)) = (watch::channel(false), watch::channel(false));
    tasks.spawn("recommender", async move {
        let (interval, begin) =
            (place.config.interval.get(), |term| Recommender::new(place.clone(), term).ok());
        let stop = async { drop(stopping.wait_for(|stop| *stop).await) };
        rounds::run(|| place.leadership.decides(), (&place.clock, interval), begin, stop).await;
        let _ = end.send(true);
        // Tasks end with the process.
        std::future::pending::<()>().await;
    });
    Ok(Some(Handle { stop, ended }))
}

/// State while this process leads.
struct Recommender {
    context: RecommenderContext,
    term: u64,
    store: Store,
    /// Metrics besides CPU and memory.
    dimensions: Dimensions,
    owners: OwnerResolver,
    /// VPAs whose past has been loaded, by uid, with the workload it was loaded for.
    loaded: BTreeMap<String, Workload>,
    /// Pods of the last round, by uid.
    pods: BTreeMap<Arc<str>, samples::SeenPod>,
    /// Statuses that were just written, by uid of the VPA: the previous and the written one.
    written: BTreeMap<String, (Status, Status)>,
    /// Known checkpoints, by namespace and name.
    kept: BTreeMap<(String, String), keep::Kept>,
    /// Checkpoints that were unused at the last search.
    suspects: BTreeSet<(String, String)>,
    /// Creation of VPAs for workloads that have none.
    making: create::Making,
    /// Last recommendations, for the metrics of quality.
    recommended: quality::Recommended,
    /// Events of evictions that were counted or are of other pods.
    heard: evictions::Heard,
    /// By [`Clock::elapsed`].
    saved_at: Option<Duration>,
    collected_at: Option<Duration>,
    /// The last complete world, for the checkpoints at shutdown.
    world: World,
    complaints: Complaints,
}

impl Recommender {
    fn new(place: RecommenderContext, term: u64) -> Result<Self> {
        Ok(Self {
            owners: OwnerResolver::new(place.api.clone(), place.watches.index.clone(), place.label()),
            store: Store::new(place.config.settings())?,
            dimensions: Dimensions::new(&place.config)?,
            context: place,
            term,
            loaded: BTreeMap::new(),
            pods: BTreeMap::new(),
            written: BTreeMap::new(),
            kept: BTreeMap::new(),
            suspects: BTreeSet::new(),
            making: create::Making::default(),
            recommended: quality::Recommended::new(),
            heard: evictions::Heard::new(),
            saved_at: None,
            collected_at: None,
            world: World::default(),
            complaints: Complaints::default(),
        })
    }
}

impl Rounds for Recommender {
    async fn round(&mut self) {
        let metrics = self.context.metrics.clone();
        let whole = Instant::now();
        if let Some(prometheus) = &self.context.source {
            let followed = self.context.clock.follow(prometheus).await;
            self.complaints.record("clock", "the clock of Prometheus", followed);
        }
        let began = Instant::now();
        let world = match self.look().await {
            Ok(world) => world,
            Err(error) => {
                self.complaints.record("vpas", "VerticalPodAutoscalers", Err(error.to_string()));
                metrics.round(false);
                return;
            }
        };
        self.complaints.record("vpas", "VerticalPodAutoscalers", Ok(()));
        metrics.took("LoadVPAs", began);
        let began = Instant::now();
        self.make_vpas(&world).await;
        self.drop_deleted(&world);
        self.apply_rules(&world);
        self.learn_past(&world).await;
        self.apply_methods(&world);
        self.read_evictions(&world).await;
        self.follow_pods(&world);
        metrics.took("LoadPods", began);
        let began = Instant::now();
        self.take_samples(&world).await;
        self.store.advance_methods(self.context.clock.now_ns());
        metrics.took("LoadMetrics", began);
        let began = Instant::now();
        self.publish(&world).await;
        metrics.took("UpdateVPAs", began);
        if !self.dimensions.is_empty() {
            let began = Instant::now();
            self.measure_dimensions(&world).await;
            self.publish_dimensions(&world).await;
            metrics.took("Dimensions", began);
        }
        let began = Instant::now();
        self.maintain_checkpoints(&world).await;
        metrics.took("MaintainCheckpoints", began);
        metrics.took("total", whole);
        metrics.holds(self.store.counts(), self.store.aggregate_bytes());
        metrics.dimensions.holds(self.dimensions.store.counts());
        metrics.round(true);
        self.world = world;
    }

    fn leadership_ended(&self) {
        self.context.metrics.rests();
    }

    /// Saves all checkpoints.
    async fn stop(&mut self) {
        self.save_all().await;
    }
}

impl Recommender {
    fn leads(&self) -> bool {
        self.context.leadership.decides_in(self.term)
    }

    /// Returns the lists that cover these namespaces: where the configuration names them, one of each.
    fn lists<'a>(&self, namespaces: impl ExactSizeIterator<Item = &'a str>) -> Vec<Option<&'a str>> {
        match self.context.config.namespaces.is_empty() {
            true => lists_of(namespaces),
            false => namespaces.map(Some).collect(),
        }
    }
}

/// Logs a failure once, and its recovery once.
#[derive(Default)]
struct Complaints(BTreeMap<String, String>);

impl Complaints {
    fn has(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    fn record(&mut self, topic: &str, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                if self.0.remove(topic).is_some() {
                    tracing::info!("recommender: {what} can be read again");
                }
            }
            Err(error) => {
                if !self.0.contains_key(topic) {
                    tracing::warn!(%error, "recommender: cannot read {what}, retrying every round");
                }
                self.0.insert(topic.to_owned(), error);
            }
        }
    }
}
