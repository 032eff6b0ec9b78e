//! Reads the usage of containers from Prometheus: the history, oldest first, and the newest samples.

use berth_rightsizing::usage::{Sample, UsageKind};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use berth_model::ConfigDuration;
use jiff::Timestamp;
use reqwest::Response;
use tokio::task::JoinHandle;

use super::client::{Failure, Patience, PrometheusClient, When};
use super::config::{LabelNames, PrometheusConfig};
use super::counters::QueryCounters;
use super::decode::{Decoder, ResponseSummary};
use super::error::SourceError;
use super::metric::Metric;
use super::query::{Measure, QueriedNamespaces, SCRAPES_S, any_container, groups, scrapes, slices};
use super::series::ResultType;
use super::series::{Series, Skipped};
use super::signal::{SignalKind, SignalValues};

/// Maximum number of distinct warnings kept per read.
const WARNINGS_MAX: usize = 20;

/// Summary of a read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadSummary {
    /// Queries that succeeded.
    pub queries: u64,
    /// Series passed on: a container has one per slice and kind.
    pub series: u64,
    /// Samples passed on.
    pub samples: u64,
    pub skipped: Skipped,
    /// Distinct warnings of Prometheus that results may be incomplete, up to a limit.
    pub warnings: Vec<String>,
}

/// Usage from one Prometheus. Cheap to clone.
#[derive(Clone)]
pub struct PrometheusSource {
    shared: Arc<Shared>,
    /// Window of rates of the newest samples.
    live_window: ConfigDuration,
}

struct Shared {
    client: PrometheusClient,
    /// Detected once, unless they are configured.
    labels: OnceLock<LabelNames>,
    /// Held while they are detected: concurrent reads wait for one detection.
    detecting: tokio::sync::Mutex<()>,
}

/// One query for one measurement.
#[derive(Clone)]
struct Job<M> {
    kind: M,
    group: Arc<[String]>,
    when: When,
}

/// The next query in order; it may be sent already, then its response waits in the connection.
struct Ahead<M> {
    job: Job<M>,
    request: Option<Request>,
}

/// Aborted when dropped: the response would not be read.
struct Request(JoinHandle<Result<Response, Failure>>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PrometheusSource {
    /// Creates the source without connecting.
    ///
    /// # Errors
    /// The configuration is invalid, or the CA file cannot be read.
    ///
    /// # Panics
    /// If the process has no default TLS provider of rustls; `berth` installs it at start.
    pub fn new(config: PrometheusConfig) -> Result<Self, SourceError> {
        Self::with_patience(config, Patience::default())
    }

    pub(super) fn with_patience(config: PrometheusConfig, patience: Patience) -> Result<Self, SourceError> {
        let live_window = config.live_window;
        let client = PrometheusClient::new(config, patience)?;
        Ok(Self {
            live_window,
            shared: Arc::new(Shared {
                client,
                labels: OnceLock::new(),
                detecting: tokio::sync::Mutex::default(),
            }),
        })
    }

    pub(super) fn client(&self) -> &PrometheusClient {
        &self.shared.client
    }

    pub fn config(&self) -> &PrometheusConfig {
        self.shared.client.config()
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &QueryCounters {
        self.shared.client.counters()
    }

    /// Checks that Prometheus accepts queries with these credentials.
    ///
    /// # Errors
    /// Why the query failed.
    pub async fn check(&self, now: Timestamp) -> Result<(), SourceError> {
        self.shared.client.has_result("vector(1)", now.as_second()).await.map(drop)
    }

    /// Returns the single number that a query gives now; `None` if it gives none, or one that is not finite.
    ///
    /// # Errors
    /// The query failed, or returned several series.
    pub async fn number(&self, query: &str, now: Timestamp) -> Result<Option<Sample>, SourceError> {
        self.shared.client.number(query, now.as_second()).await
    }

    /// Returns what the clock of Prometheus shows, by which it dates samples; `None` if it returns no time.
    ///
    /// # Errors
    /// The query failed.
    pub async fn time(&self) -> Result<Option<Timestamp>, SourceError> {
        let seconds = self.shared.client.time().await?;
        Ok(seconds.and_then(|seconds| Timestamp::from_microsecond((seconds * 1e6) as i64).ok()))
    }

    /// Returns the same source, whose rates of the newest samples have this window.
    pub fn with_live_window(&self, live_window: ConfigDuration) -> Self {
        Self { live_window, ..self.clone() }
    }

    /// Returns the time between two scrapes of the kubelets, as the samples of the last minutes show it; `None`: they are too few.
    ///
    /// # Errors
    /// The query failed.
    pub async fn scrape_interval(&self, now: Timestamp) -> Result<Option<ConfigDuration>, SourceError> {
        let labels = self.labels(now).await?;
        let query = scrapes(self.config(), &labels);
        let scrapes = self.number(&query, now).await?.map(|number| number.value).filter(|it| *it >= 2.0);
        Ok(scrapes.map(|scrapes| ConfigDuration::from_secs((SCRAPES_S as f64 / scrapes).ceil() as u64)))
    }

    /// Returns the labels that identify a container: the configured ones, otherwise a set with existing series, otherwise the modern ones.
    ///
    /// # Errors
    /// The query failed.
    pub async fn labels(&self, now: Timestamp) -> Result<LabelNames, SourceError> {
        let Shared { client, labels, detecting } = &*self.shared;
        let known = || client.config().labels.as_ref().or_else(|| labels.get()).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        let _detecting = detecting.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        for candidate in [LabelNames::modern(), LabelNames::legacy()] {
            if client.has_result(&any_container(client.config(), &candidate), now.as_second()).await? {
                return Ok(labels.get_or_init(|| candidate).clone());
            }
        }
        Ok(LabelNames::modern())
    }

    /// Passes the history to `sink`, as samples at intervals of `historyResolution` that end at `now`.
    ///
    /// Older slices come first: all of one slice before any of the next, so the samples of one container and kind come in strictly
    /// increasing time. Within a slice, series come as they arrive. Memory is bounded by one series, and `parallelism` responses that
    /// wait in their connections. Dropping the future aborts all requests.
    ///
    /// # Errors
    /// Why not everything could be read. Samples before the error have been passed on: a caller that retries must discard them.
    pub async fn history(
        &self,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        sink: impl FnMut(UsageKind, Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        self.read(&UsageKind::ALL, namespaces, self.past(now), now, sink).await
    }

    /// Reads the [`history`](Self::history) of one metric.
    ///
    /// # Errors
    /// As [`history`](Self::history).
    pub async fn history_of(
        &self,
        metric: &Metric,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        self.read(&[metric], namespaces, self.past(now), now, |_, series| sink(series)).await
    }

    /// Passes the newest sample of each container and kind to `sink`: CPU as the rate over `liveWindow`.
    ///
    /// # Errors
    /// Why not everything could be read. Samples before the error have been passed on.
    pub async fn latest(
        &self,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        sink: impl FnMut(UsageKind, Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        self.read(&UsageKind::ALL, namespaces, present(now), now, sink).await
    }

    /// Reads the [`latest`](Self::latest) samples of one metric.
    ///
    /// # Errors
    /// As [`latest`](Self::latest).
    pub async fn latest_of(
        &self,
        metric: &Metric,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        self.read(&[metric], namespaces, present(now), now, |_, series| sink(series)).await
    }

    /// Reads one signal of all services in these namespaces.
    ///
    /// # Errors
    /// Why not everything could be read.
    pub async fn signal(
        &self,
        kind: SignalKind,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
    ) -> Result<(SignalValues, ReadSummary), SourceError> {
        let mut values = SignalValues::new(kind);
        let kinds = [kind];
        let read = self.read(&kinds, namespaces, present(now), now, |_, series| values.add(&series));
        let summary = read.await?;
        Ok((values, summary))
    }

    /// Returns the evaluation times of a history that ends now.
    fn past(&self, now: Timestamp) -> impl Iterator<Item = When> + Send + use<> {
        slices(self.shared.client.config(), now.as_second()).map(When::During)
    }

    /// Queries all of `kinds` at these times, one after the other.
    async fn read<M: Measure>(
        &self,
        kinds: &[M],
        namespaces: QueriedNamespaces<'_>,
        times: impl Iterator<Item = When> + Send,
        now: Timestamp,
        sink: impl FnMut(M, Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        let groups = shared_groups(namespaces);
        if groups.is_empty() {
            return Ok(ReadSummary::default());
        }
        let jobs = times.flat_map(|when| {
            let of = |group: &Arc<[String]>| {
                let group = group.clone();
                kinds.iter().map(move |kind| Job { kind: *kind, group: group.clone(), when })
            };
            groups.iter().flat_map(of).collect::<Vec<_>>()
        });
        self.run(jobs, now, sink).await
    }

    /// Sends all of `jobs`, some concurrently, and reads their responses one after the other.
    async fn run<M: Measure>(
        &self,
        mut jobs: impl Iterator<Item = Job<M>> + Send,
        now: Timestamp,
        mut sink: impl FnMut(M, Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        let labels = self.labels(now).await?;
        let mut summary = ReadSummary::default();
        let mut points_max = i64::MAX;
        let mut ahead: VecDeque<Ahead<M>> = VecDeque::new();
        loop {
            self.send_ahead(&mut ahead, &mut jobs, points_max, &labels);
            let Some(Ahead { job, request: Some(mut request) }) = ahead.pop_front() else {
                return Ok(summary);
            };
            let ended = |problem| SourceError::Ended { url: self.shared.client.url(), problem };
            match (&mut request.0).await.map_err(|error| ended(error.to_string()))? {
                Ok(response) => {
                    // The query is evaluated: while its response is decoded, Prometheus can work on the next ones.
                    self.send_ahead(&mut ahead, &mut jobs, points_max, &labels);
                    let query = self.query(&job, &labels);
                    let decoder = Decoder::new(job.result_type(), job.kind.labels(&labels));
                    let hand_on = |series: Series<'_>| sink(job.kind, series);
                    let answer = self.shared.client.decode(response, &query, decoder, hand_on).await?;
                    summary.add(answer);
                }
                Err(Failure::TooMuch(said)) => {
                    self.shared.client.counters().halve();
                    let url = self.shared.client.url();
                    let parts = job.halves().ok_or(SourceError::TooMuch { url, said })?;
                    points_max = points_max.min(parts[0].points());
                    // Later points stay behind these parts, even if their query was sent already.
                    for job in parts.into_iter().rev() {
                        ahead.push_front(Ahead { job, request: None });
                    }
                }
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Keeps `parallelism` queries in flight.
    fn send_ahead<M: Measure>(
        &self,
        ahead: &mut VecDeque<Ahead<M>>,
        jobs: &mut impl Iterator<Item = Job<M>>,
        points_max: i64,
        labels: &LabelNames,
    ) {
        let parallelism = self.shared.client.config().parallelism as usize;
        while ahead.len() < parallelism
            && let Some(job) = jobs.next()
        {
            ahead.extend(job.pieces(points_max).into_iter().map(|job| Ahead { job, request: None }));
        }
        let sent = ahead.iter().filter(|next| next.request.is_some()).count();
        let unsent = ahead.iter_mut().filter(|next| next.request.is_none());
        for next in unsent.take(parallelism.saturating_sub(sent)) {
            next.request = Some(self.send(&next.job, labels));
        }
    }

    fn query<M: Measure>(&self, job: &Job<M>, labels: &LabelNames) -> String {
        let config = self.shared.client.config();
        let window = match job.when {
            When::During(_) => config.history_resolution,
            When::At(_) | When::Now => self.live_window,
        };
        job.kind.query(config, labels, window, &job.group)
    }

    fn send<M: Measure>(&self, job: &Job<M>, labels: &LabelNames) -> Request {
        let (query, when) = (self.query(job, labels), job.when);
        let shared = self.shared.clone();
        Request(tokio::spawn(async move { shared.client.query(&query, when).await }))
    }
}

fn shared_groups(namespaces: QueriedNamespaces<'_>) -> Vec<Arc<[String]>> {
    groups(namespaces).into_iter().map(Arc::from).collect()
}

/// Returns the evaluation time of the newest samples.
fn present(now: Timestamp) -> impl Iterator<Item = When> + Send {
    std::iter::once(When::At(now.as_second()))
}

impl<M: Measure> Job<M> {
    fn points(&self) -> i64 {
        match self.when {
            When::During(points) => points.count,
            When::At(_) | When::Now => 1,
        }
    }

    fn result_type(&self) -> ResultType {
        match self.when {
            When::During(_) => ResultType::Matrix,
            When::At(_) | When::Now => ResultType::Vector,
        }
    }

    /// Splits into queries for at most `points_max` points, oldest first.
    fn pieces(self, points_max: i64) -> Vec<Self> {
        match self.when {
            When::During(points) if points.count > points_max => points
                .pieces(points_max)
                .map(|points| Job { when: When::During(points), ..self.clone() })
                .collect(),
            _ => vec![self],
        }
    }

    /// Halves by time first, then by namespaces. `None` for one point of one namespace, or of all namespaces.
    fn halves(self) -> Option<Vec<Self>> {
        let points = self.points();
        if points > 1 {
            return Some(self.pieces(points - points / 2));
        }
        if self.group.len() < 2 {
            return None;
        }
        let (first, second) = self.group.split_at(self.group.len() / 2);
        Some([first, second].map(|group| Job { group: group.into(), ..self.clone() }).into())
    }
}

impl ReadSummary {
    pub(super) fn add(&mut self, answer: ResponseSummary) {
        self.queries += 1;
        self.series += answer.series;
        self.samples += answer.samples;
        self.skipped.add(&answer.skipped);
        for warning in answer.warnings {
            if self.warnings.len() < WARNINGS_MAX && !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}
