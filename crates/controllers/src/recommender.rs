//! The recommender: reads VPAs, pods and usage again and again, and writes what it recommends.
//!
//! A round is: what is there (`world.rs`), VPAs for workloads that have none (`create.rs`), what was known before (`past.rs`), what
//! is used now (`samples.rs`, `evictions.rs`), statuses (`publish.rs`), other things than CPU and memory (`dimensions.rs`),
//! checkpoints (`keep.rs`). A round that fails in part leaves what it could not see as it was. All decisions are in `recommend`;
//! only the process that holds the Lease has any of this state.

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
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::leadership::Leadership;
use super::tasks::Tasks;
use berth_config as config;
use berth_kube_io::client::without_retries;
use berth_kube_io::vpa::{ApiError, Owners, Recommending};
use berth_model::Node;
use berth_prometheus::PrometheusSource;
use berth_rightsizing::recommend::store::{Store, Workload};
use berth_rightsizing::recommend::{Status, UnixNanos};
use berth_scheduler::engine::Engine;
use berth_telemetry::RecommenderMetrics;
use dimensions::Dimensions;
use world::World;

/// How often a process that does not lead looks whether it does.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// At the end: how long checkpoints may take.
const LAST_SAVE_MAX: Duration = Duration::from_secs(3);

/// Everything that the recommender depends on.
#[derive(Clone)]
struct Place {
    config: Arc<config::Recommender>,
    api: Recommending,
    source: Option<PrometheusSource>,
    engine: Engine,
    leadership: Leadership,
    metrics: Arc<RecommenderMetrics>,
}

/// Ends the recommender in order.
pub struct Handle {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Handle {
    /// Saves what is known, while this process still leads. Takes some seconds at most.
    pub async fn finish(mut self) {
        let _ = self.stop.send(true);
        let _ = tokio::time::timeout(LAST_SAVE_MAX, self.ended.wait_for(|ended| *ended)).await;
    }
}

/// Starts it, if it is switched on.
pub fn recommend(
    tasks: &mut Tasks,
    cluster: &kube::Config,
    config: &config::Recommender,
    (engine, leadership): (&Engine, &Leadership),
    metrics: Option<Arc<RecommenderMetrics>>,
) -> Result<Option<Handle>> {
    let Some(metrics) = metrics else { return Ok(None) };
    let source = config.prometheus.clone().map(PrometheusSource::new).transpose()?;
    metrics.follow(source.clone());
    metrics.dimensions.follow(config.dimensions.iter().map(|it| it.name.as_str().into()));
    let place = Place {
        config: Arc::new(config.clone()),
        api: Recommending::new(without_retries(cluster.clone())?),
        source,
        engine: engine.clone(),
        leadership: leadership.clone(),
        metrics,
    };
    // Buckets that cannot be are refused when the configuration is read.
    Store::new(config.settings())?;
    Dimensions::new(config)?;
    let ((stop, stopping), (end, ended)) = (watch::channel(false), watch::channel(false));
    tasks.spawn("recommender", async move {
        place.run(stopping).await;
        let _ = end.send(true);
        // Tasks end with the process.
        std::future::pending::<()>().await;
    });
    Ok(Some(Handle { stop, ended }))
}

impl Place {
    fn leads(&self, term: u64) -> bool {
        self.leadership.decides() == Some(term)
    }

    /// Recommends whenever this process leads, until it is told to stop.
    async fn run(&self, mut stopping: watch::Receiver<bool>) {
        loop {
            let Some(term) = self.leadership.decides() else {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_AGAIN) => continue,
                    () = told(&mut stopping) => return,
                }
            };
            // Another process may have written meanwhile: everything is read anew.
            let Ok(store) = Store::new(self.config.settings()) else { return };
            let Ok(dimensions) = Dimensions::new(&self.config) else { return };
            let mut recommender = Recommender::new(self.clone(), store, dimensions, term);
            let mut ticks = tokio::time::interval(self.config.interval.get());
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while self.leads(term) {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = told(&mut stopping) => {
                        recommender.save_all().await;
                        return;
                    }
                }
                if self.leads(term) {
                    recommender.round().await;
                }
            }
            self.metrics.rests();
        }
    }
}

/// What is known while this process leads.
struct Recommender {
    place: Place,
    term: u64,
    store: Store,
    /// What is measured besides CPU and memory.
    dimensions: Dimensions,
    owners: Owners,
    /// VPAs of which the past has been read, by uid, with the workload that it was read for.
    known: BTreeMap<String, Workload>,
    /// Pods that were seen, by uid.
    pods: BTreeMap<Arc<str>, samples::SeenPod>,
    /// Statuses that were just written, by uid of the VPA: what was there, and what is there now.
    written: BTreeMap<String, (Status, Status)>,
    /// Checkpoints as far as they are known, by namespace and name.
    kept: BTreeMap<(String, String), keep::Kept>,
    /// Checkpoints that seemed to be of no use the last time.
    suspects: BTreeSet<(String, String)>,
    /// VPAs that are made for workloads that have none.
    making: create::Making,
    /// For the metrics of quality.
    recommended: quality::Recommended,
    /// Events of evictions that were counted, or are not ours.
    heard: evictions::Heard,
    saved_at: Option<Instant>,
    collected_at: Option<Instant>,
    /// The last world that was seen whole, for what is saved at the end.
    world: World,
    complaints: Complaints,
}

impl Recommender {
    fn new(place: Place, store: Store, dimensions: Dimensions, term: u64) -> Self {
        Self {
            owners: Owners::new(place.api.clone(), place.label()),
            place,
            term,
            store,
            dimensions,
            known: BTreeMap::new(),
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
        }
    }

    /// One look at everything, and what follows from it.
    async fn round(&mut self) {
        let metrics = self.place.metrics.clone();
        let whole = Instant::now();
        let began = Instant::now();
        let world = match self.look().await {
            Ok(world) => world,
            Err(error) => {
                let error = match error {
                    ApiError::NotFound(_) => {
                        "there are no VerticalPodAutoscalers in this cluster, their CRDs must be installed"
                            .to_owned()
                    }
                    error => error.to_string(),
                };
                self.complaints.say("vpas", "VerticalPodAutoscalers", Err(error));
                metrics.round(false);
                return;
            }
        };
        self.complaints.say("vpas", "VerticalPodAutoscalers", Ok(()));
        metrics.took("LoadVPAs", began);
        let began = Instant::now();
        self.make_vpas(&world).await;
        self.forget_what_is_gone(&world);
        self.apply_rules(&world);
        self.learn_past(&world).await;
        self.apply_methods(&world);
        self.hear_of_evictions(&world).await;
        self.follow_pods(&world);
        metrics.took("LoadPods", began);
        let began = Instant::now();
        self.take_samples(&world).await;
        self.store.advance_methods(now());
        metrics.took("LoadMetrics", began);
        let began = Instant::now();
        self.publish(&world).await;
        metrics.took("UpdateVPAs", began);
        if !self.dimensions.is_empty() {
            let began = Instant::now();
            self.measure_dimensions(&world).await;
            self.tell_dimensions(&world).await;
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

    fn leads(&self) -> bool {
        self.place.leads(self.term)
    }

    /// The nodes of the cluster.
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.place.engine.with(|scheduler, _| scheduler.inventory().nodes().cloned().collect())
    }
}

/// Resolves when the flag is raised, or nobody is left who could.
async fn told(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Nanoseconds since 1970.
fn now() -> UnixNanos {
    UnixNanos::try_from(Timestamp::now().as_nanosecond()).unwrap_or(UnixNanos::MAX)
}

/// Says once that something fails, and once that it works again.
#[derive(Default)]
struct Complaints(BTreeMap<String, String>);

impl Complaints {
    fn has(&self, topic: &str) -> bool {
        self.0.contains_key(topic)
    }

    fn say(&mut self, topic: &str, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                if self.0.remove(topic).is_some() {
                    tracing::info!("recommender: {what} can be read again");
                }
            }
            Err(error) => {
                if !self.0.contains_key(topic) {
                    tracing::warn!(%error, "recommender: cannot read {what}, trying again every round");
                }
                self.0.insert(topic.to_owned(), error);
            }
        }
    }
}
