//! Reads of Prometheus, or of the metrics server, for all services at once, in the background: usage, network, and one read per signal. A
//! round waits for them only for a short time, and a read that is late is used by a later round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::hints::network_metrics;
use super::settle::SECOND_NS;
use crate::clock::Clock;
use berth_config::Scaling;
use berth_kube_io::scaling::ScaledService;
use berth_kube_io::vpa::{ApiError, Recommending, lists_of};
use berth_model::ConfigDuration;
use berth_prometheus::{
    PrometheusConfig, PrometheusSource, QueriedNamespaces, SignalKind, SignalValues, rate_window,
};
use berth_rightsizing::scaling::{Measured, MeasuredKind, Point, Windows};
use berth_telemetry::ScalerMetrics;

/// Maximum duration of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum age of an answer that decisions use, in seconds.
pub(super) const FRESH_S: i64 = 60;

/// What is read at once for all services. Of each, one read is in flight at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reading {
    /// CPU and memory of containers.
    Usage,
    /// Network usage of pods.
    Network,
    Signal(SignalKind),
}

impl Reading {
    /// Returns the value of the label of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reading::Usage => "usage",
            Reading::Network => "network",
            Reading::Signal(kind) => kind.name(),
        }
    }
}

/// Shortest window of rates of signals: the paper's controller looks at a minute.
const SIGNAL_WINDOW_MIN: ConfigDuration = ConfigDuration::from_secs(60);

/// Why something cannot be read from the metrics server.
pub(super) const NO_PROMETHEUS: &str =
    "it is read from Prometheus: set recommender.prometheus in berth's configuration";

/// Where usage and signals are read.
#[derive(Clone)]
pub(super) enum Source {
    Prometheus(Arc<Sources>),
    MetricsServer(Recommending),
}

impl Source {
    pub fn prometheus(wide: PrometheusSource, clock: Clock) -> Source {
        Source::Prometheus(Arc::new(Sources { wide, clock, fine: OnceCell::new() }))
    }
}

/// Prometheus, with windows of rates as fine as its scrapes allow once these are known: sizes follow the deviation of usage, which a
/// wide window hides.
pub(super) struct Sources {
    /// With the configured window.
    wide: PrometheusSource,
    clock: Clock,
    fine: OnceCell<FineSources>,
}

#[derive(Clone)]
struct FineSources {
    usage: PrometheusSource,
    signals: PrometheusSource,
}

impl Sources {
    /// Returns the finest sources. Asks Prometheus for the time between its scrapes until it knows.
    async fn finest(&self, now: Timestamp) -> FineSources {
        let detect = || async {
            let interval = self.wide.scrape_interval(now).await;
            let interval =
                interval.inspect_err(|error| tracing::debug!(%error, "scaler: scrapes are unknown"));
            let window = rate_window(interval.ok().flatten().ok_or(())?).min(self.wide.config().live_window);
            let signals = window.max(SIGNAL_WINDOW_MIN.min(self.wide.config().live_window));
            tracing::info!(usage = %window, signals = %signals, "scaler: windows of rates, by the time between two scrapes");
            Ok::<_, ()>(FineSources {
                usage: self.wide.with_live_window(window),
                signals: self.wide.with_live_window(signals),
            })
        };
        let fine = self.fine.get_or_try_init(detect).await;
        fine.cloned()
            .unwrap_or_else(|()| FineSources { usage: self.wide.clone(), signals: self.wide.clone() })
    }
}

/// Signal values, if a signal was read; or the error.
type ReadResult = Result<Option<SignalValues>, String>;

/// A read in flight. Aborted when dropped.
struct Flight {
    asked_s: i64,
    task: JoinHandle<ReadResult>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The newest finished read.
struct Finished {
    asked_s: i64,
    result: ReadResult,
}

/// Reads in flight and their newest results.
pub(super) struct Readings {
    source: Source,
    metrics: Arc<ScalerMetrics>,
    /// Usage and network of containers, filled by reads.
    pub windows: Arc<Mutex<Windows>>,
    flights: BTreeMap<Reading, Flight>,
    finished: BTreeMap<Reading, Finished>,
}

/// Returns the configuration of reads: Prometheus itself gives up after the timeout, too.
pub(super) fn config_of_reads(config: &PrometheusConfig, scaling: &Scaling) -> [PrometheusConfig; 2] {
    let within = |timeout: Duration| PrometheusConfig {
        query_timeout: config.query_timeout.min(ConfigDuration::new(timeout)),
        ..config.clone()
    };
    [within(READ_TIMEOUT), within(scaling.interval.get())]
}

impl Readings {
    pub fn new(source: Source, interval: Duration, metrics: Arc<ScalerMetrics>) -> Readings {
        let windows = Arc::new(Mutex::new(Windows::new(interval)));
        Readings { source, metrics, windows, flights: BTreeMap::new(), finished: BTreeMap::new() }
    }

    /// Returns the configuration of Prometheus, if there is one.
    pub fn config(&self) -> Option<&PrometheusConfig> {
        match &self.source {
            Source::Prometheus(sources) => Some(sources.wide.config()),
            Source::MetricsServer(_) => None,
        }
    }

    /// Starts these reads, each for its namespaces, unless the last one of its kind is still in flight. Forgets results of others.
    pub fn start(&mut self, wanted: BTreeMap<Reading, Vec<String>>, now: Timestamp) {
        self.flights.retain(|reading, _| wanted.contains_key(reading));
        self.finished.retain(|reading, _| wanted.contains_key(reading));
        for (reading, namespaces) in wanted {
            self.flights.entry(reading).or_insert_with(|| {
                let (source, windows) = (self.source.clone(), self.windows.clone());
                let metrics = self.metrics.clone();
                let task = tokio::spawn(async move {
                    let began = Instant::now();
                    let read = read(reading, &source, &windows, &namespaces);
                    let result = timeout(READ_TIMEOUT, read)
                        .await
                        .unwrap_or_else(|_| Err(format!("no answer within {READ_TIMEOUT:?}")));
                    metrics.read(reading.name(), result.is_ok(), began.elapsed());
                    result
                });
                Flight { asked_s: now.as_second(), task }
            });
        }
    }

    /// Waits for the reads in flight, until this time.
    pub async fn wait(&mut self, until: Instant) {
        let readings: Vec<Reading> = self.flights.keys().copied().collect();
        for reading in readings {
            let Some(flight) = self.flights.get_mut(&reading) else { continue };
            let Ok(ended) = timeout_at(until, &mut flight.task).await else {
                self.metrics.late(reading.name());
                continue;
            };
            let asked_s = flight.asked_s;
            let result = ended.unwrap_or_else(|error| Err(format!("the read ended: {error}")));
            self.flights.remove(&reading);
            self.finished.insert(reading, Finished { asked_s, result });
        }
    }

    /// Returns why there is no current usage.
    pub fn usage_error(&self, now_s: i64) -> Option<String> {
        self.newest(Reading::Usage, now_s).err()
    }

    /// Returns a signal of a service, from the newest read.
    ///
    /// # Errors
    /// The read failed, or no read has ended recently.
    pub fn signal<'a>(
        &self,
        kind: SignalKind,
        service: &ScaledService,
        pods: impl Iterator<Item = &'a str>,
        now_s: i64,
    ) -> Result<Option<Measured>, String> {
        let values = self.newest(Reading::Signal(kind), now_s)?;
        let sample = values.and_then(|values| values.of(&service.namespace, &service.target.name, pods));
        Ok(sample.map(|sample| Measured { time_s: sample.at as i64, value: sample.value }))
    }

    fn newest(&self, reading: Reading, now_s: i64) -> Result<Option<&SignalValues>, String> {
        if let Some(finished) = self.finished.get(&reading)
            && now_s.saturating_sub(finished.asked_s) <= FRESH_S
        {
            return finished.result.as_ref().map(Option::as_ref).map_err(Clone::clone);
        }
        let name = reading.name();
        Err(match self.flights.get(&reading) {
            Some(flight) => {
                let for_s = now_s.saturating_sub(flight.asked_s);
                format!("the query for {name} is slow: there has been no answer for {for_s} s")
            }
            None => format!("{name} was not read recently"),
        })
    }
}

async fn read(
    reading: Reading,
    source: &Source,
    windows: &Mutex<Windows>,
    namespaces: &[String],
) -> ReadResult {
    let sources = match (source, reading) {
        (Source::Prometheus(sources), _) => sources,
        (Source::MetricsServer(api), Reading::Usage) => {
            let read = read_metrics_server(api, windows, namespaces).await;
            return read.map(|()| None).map_err(|error| error.to_string());
        }
        (Source::MetricsServer(_), Reading::Network | Reading::Signal(_)) => {
            return Err(NO_PROMETHEUS.to_owned());
        }
    };
    let namespaces = QueriedNamespaces::These(namespaces);
    sources.clock.follow(&sources.wide).await?;
    let now = sources.clock.now();
    let read = async {
        let FineSources { usage, signals } = sources.finest(now).await;
        match reading {
            Reading::Usage => read_usage(&usage, windows, namespaces, now).await.map(|()| None),
            Reading::Network => read_network(&usage, windows, namespaces, now).await.map(|()| None),
            Reading::Signal(kind) => {
                signals.signal(kind, namespaces, now).await.map(|(values, _)| Some(values))
            }
        }
    };
    read.await.map_err(|error| error.to_string())
}

/// Adds the newest samples of all containers of these namespaces to the windows.
async fn read_usage(
    source: &PrometheusSource,
    windows: &Mutex<Windows>,
    namespaces: QueriedNamespaces<'_>,
    now: Timestamp,
) -> Result<(), berth_prometheus::SourceError> {
    let read = source.latest(namespaces, now, |kind, series| {
        let mut windows = windows.lock();
        let container = (series.namespace, series.pod, series.container);
        for sample in series.samples {
            windows.add(container, kind.into(), Point::of(kind, sample));
        }
    });
    read.await.map(drop)
}

/// Adds the samples of the metrics server to the windows.
async fn read_metrics_server(
    api: &Recommending,
    windows: &Mutex<Windows>,
    namespaces: &[String],
) -> Result<(), ApiError> {
    for namespace in lists_of(namespaces.iter().map(String::as_str)) {
        let usages = api.pod_metrics(namespace).await?;
        let mut windows = windows.lock();
        for pod in usages.iter().filter(|pod| namespaces.binary_search(&pod.namespace).is_ok()) {
            let time_s = pod.time / SECOND_NS;
            for container in &pod.containers {
                let key = (pod.namespace.as_str(), pod.name.as_str(), container.name.as_str());
                let measured = [
                    (MeasuredKind::Cpu, container.usage.cpu),
                    (MeasuredKind::Memory, container.usage.memory),
                ];
                for (kind, amount) in measured {
                    if let Some(amount) = amount {
                        windows.add(key, kind, Point { time_s, value: amount as f64 });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Adds the network usage of pods to the windows.
async fn read_network(
    source: &PrometheusSource,
    windows: &Mutex<Windows>,
    namespaces: QueriedNamespaces<'_>,
    now: Timestamp,
) -> Result<(), berth_prometheus::SourceError> {
    for metric in network_metrics() {
        let read = source.latest_of(&metric, namespaces, now, |series| {
            let mut windows = windows.lock();
            for sample in series.samples {
                windows.add_to((series.namespace, series.pod), sample.at as i64, sample.value);
            }
        });
        read.await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
