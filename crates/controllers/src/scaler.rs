//! The scaler: reads ServiceScalers, what their services use and how well they serve, again and again, and scales them.
//!
//! A round is: what is there (`look.rs`), what to do (`settle.rs`, which asks `scaling`), doing it (`act.rs`), and telling of it
//! (`tell.rs`). Only the process that holds the Lease has any of this state; what must outlive it is in the statuses. What a round
//! cannot see stays as it was.

mod act;
mod hints;
mod look;
mod refusals;
mod settle;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use super::leadership::Leadership;
use super::resizing::Resizer;
use super::tasks::{Tasks, host_name};
use berth_config::Config;
use berth_kube_io::apply::PodWriter;
use berth_kube_io::client::without_retries;
use berth_kube_io::scaling::{Other, Service, same_target};
use berth_kube_io::vpa::{ApiError, Owners, Recommending};
use berth_prometheus::PrometheusSource;
use berth_rightsizing::scaling::Windows;
use berth_scheduler::engine::Engine;
use berth_telemetry::ScalerMetrics;
use hints::Affinity;
use settle::Remembered;

/// How often a process that does not lead looks whether it does.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Services that are looked at at the same time.
const LOOKS_IN_FLIGHT: usize = 8;
/// Services that are scaled, at most: the first ones by namespace and name.
const SERVICES_MAX: usize = 2_000;

/// Everything that the scaler depends on.
#[derive(Clone)]
struct Place {
    interval: Duration,
    /// Windows in which services are compared; `None`: they are not.
    hints_window: Option<Duration>,
    api: Recommending,
    resizer: Arc<Resizer>,
    source: PrometheusSource,
    leadership: Leadership,
    /// This process, for events.
    instance: Arc<str>,
    metrics: Arc<ScalerMetrics>,
}

/// Starts it, if it is switched on.
pub fn scale(
    tasks: &mut Tasks,
    cluster: &kube::Config,
    config: &Config,
    (engine, leadership): (&Engine, &Leadership),
    metrics: Option<Arc<ScalerMetrics>>,
) -> Result<()> {
    let Some(metrics) = metrics else { return Ok(()) };
    let prometheus = config.recommender.prometheus.clone();
    // A process that was frozen past its lease scales nothing when it goes on.
    let client = match &leadership.fence {
        Some(fence) => fence.client(cluster.clone())?,
        None => without_retries(cluster.clone())?,
    };
    let place = Place {
        interval: config.scaling.interval.get(),
        hints_window: config.scaling.hints.then(|| config.scaling.hints_window.get()),
        api: Recommending::new(client.clone()),
        resizer: Arc::new(Resizer::new(engine.clone(), PodWriter::new(client, host_name()))),
        source: PrometheusSource::new(prometheus.context("scaling needs recommender.prometheus")?)?,
        leadership: leadership.clone(),
        instance: host_name().into(),
        metrics,
    };
    tasks.spawn("scaler", async move { place.run().await });
    Ok(())
}

impl Place {
    /// Scales whenever this process leads. Never returns.
    async fn run(&self) {
        loop {
            let Some(term) = self.leadership.decides() else {
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            };
            let mut scaler = Scaler::new(self.clone(), term);
            let mut ticks = tokio::time::interval(self.interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while self.leads(term) {
                ticks.tick().await;
                if self.leads(term) {
                    let began = Instant::now();
                    let round = scaler.round().await;
                    self.metrics.round(round.is_ok(), began.elapsed(), std::mem::take(&mut scaler.standings));
                    if let Err(error) = round {
                        tracing::warn!(%error, "services are not scaled in this round");
                    }
                }
            }
            self.metrics.rests();
        }
    }

    fn leads(&self, term: u64) -> bool {
        self.leadership.decides() == Some(term)
    }
}

/// What one leader knows of services.
struct Scaler {
    place: Place,
    term: u64,
    owners: Owners,
    windows: Windows,
    affinity: Option<Affinity>,
    /// By uid of the ServiceScaler.
    remembered: BTreeMap<String, Remembered>,
    /// Services by why they are scaled or not, in this round.
    standings: BTreeMap<&'static str, usize>,
}

impl Scaler {
    fn new(place: Place, term: u64) -> Self {
        let owners = Owners::new(place.api.clone(), None);
        let windows = Windows::new(place.interval);
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let affinity =
            place.hints_window.map(|window| Affinity::new(seconds(window), seconds(place.interval)));
        Scaler {
            place,
            term,
            owners,
            windows,
            affinity,
            remembered: BTreeMap::new(),
            standings: BTreeMap::new(),
        }
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let now = Timestamp::now();
        self.owners.next_round();
        let mut services = match self.place.api.services().await {
            Ok(services) => services,
            Err(ApiError::NotFound(_)) => {
                tracing::debug!("the cluster has no ServiceScalers: apply the CRDs of berth to have them");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        if services.len() > SERVICES_MAX {
            let left_out = services.len() - SERVICES_MAX;
            tracing::warn!(
                left_out,
                most = SERVICES_MAX,
                "there are more ServiceScalers than can be looked after"
            );
            services.truncate(SERVICES_MAX);
        }
        self.remembered.retain(|uid, _| services.iter().any(|service| service.uid == *uid));
        if services.is_empty() {
            return Ok(());
        }
        let namespaces: BTreeSet<Arc<str>> = services.iter().map(|it| it.namespace.clone()).collect();
        let usage_error = self.read_usage(&namespaces, now).await.err();
        let others = self.read_others(&namespaces).await;
        let looks = self.look_at(&services, now).await;
        let in_the_way: Vec<_> =
            services.iter().map(|service| in_the_way(service, &services, &others)).collect();
        if self.affinity.is_some() {
            let names: Vec<String> = namespaces.iter().map(|name| name.to_string()).collect();
            if let Err(error) = self.read_network(&names, now).await {
                tracing::debug!(error, "what pods send and receive is not known");
            }
            // Of two for one target the second would peak with the first.
            let counts = services.iter().zip(&in_the_way).map(|(service, in_the_way)| {
                in_the_way.is_ok() && service.plan.as_ref().is_ok_and(|plan| !plan.dry_run)
            });
            let counts: Vec<bool> = counts.collect();
            self.correlate(&services, &looks, &counts, now);
        }
        for ((service, look), in_the_way) in services.iter().zip(looks).zip(in_the_way) {
            if !self.place.leads(self.term) {
                break;
            }
            self.look_after(service, look, in_the_way, usage_error.as_deref(), now).await;
        }
        Ok(())
    }
}

/// Who else decides about a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct InTheWay {
    replicas: Option<String>,
    sizes: Option<String>,
    /// It is not known: they could not be read.
    perhaps: bool,
}

/// Who else decides about a service. `Err`: an older ServiceScaler decides about all of it.
fn in_the_way(
    service: &Service,
    services: &[Service],
    others: &BTreeMap<Arc<str>, Result<Vec<Other>, String>>,
) -> Result<InTheWay, String> {
    let same = |other: &&Service| {
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
            let unknown = Some(format!("an autoscaler, perhaps ({error})"));
            Ok(InTheWay { replicas: unknown.clone(), sizes: unknown, perhaps: true })
        }
        None => Ok(InTheWay::default()),
    }
}
