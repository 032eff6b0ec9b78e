//! Asks Prometheus for the usage of containers: the history oldest first, and the newest samples.

use berth_rightsizing::usage::Sample;
use berth_rightsizing::usage::UsageKind;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use reqwest::Response;
use tokio::task::JoinHandle;

use super::client::{Failure, Patience, PrometheusClient, When};
use super::config::{LabelNames, PrometheusConfig};
use super::counters::Counters;
use super::decode::{Answer, Decoder, ResultType};
use super::error::SourceError;
use super::metric::Metric;
use super::query::{Measure, Namespaces, any_container, groups, slices};
use super::series::{Series, Skipped};

/// So many different warnings are kept of one reading.
const WARNINGS_MAX: usize = 20;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Queries that were answered.
    pub queries: u64,
    /// Series handed on: a container has one for each of its slices and kinds.
    pub series: u64,
    /// Samples handed on.
    pub samples: u64,
    pub skipped: Skipped,
    /// What Prometheus says may be missing; each text once, and only the first ones.
    pub warnings: Vec<String>,
}

/// The usage that a Prometheus has. Cheap to clone.
#[derive(Clone)]
pub struct PrometheusSource {
    shared: Arc<Shared>,
}

struct Shared {
    client: PrometheusClient,
    /// Found out once, unless they are configured.
    labels: OnceLock<LabelNames>,
}

/// One query, for something that is measured.
#[derive(Clone)]
struct Job<M> {
    kind: M,
    group: Arc<[String]>,
    when: When,
}

/// A query whose turn comes, perhaps sent already: its answer waits in the connection.
struct Ahead<M> {
    job: Job<M>,
    request: Option<Request>,
}

/// Ends with its owner: nobody would read the answer.
struct Request(JoinHandle<Result<Response, Failure>>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PrometheusSource {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// The configuration is not valid, or the CA file cannot be read.
    ///
    /// # Panics
    /// When the process has no default TLS provider of rustls; `berth` installs it first thing.
    pub fn new(config: PrometheusConfig) -> Result<Self, SourceError> {
        Self::with_patience(config, Patience::default())
    }

    pub(super) fn with_patience(config: PrometheusConfig, patience: Patience) -> Result<Self, SourceError> {
        let client = PrometheusClient::new(config, patience)?;
        Ok(Self { shared: Arc::new(Shared { client, labels: OnceLock::new() }) })
    }

    pub(super) fn client(&self) -> &PrometheusClient {
        &self.shared.client
    }

    pub fn config(&self) -> &PrometheusConfig {
        self.shared.client.config()
    }

    /// What was asked since the start.
    pub fn counters(&self) -> &Counters {
        self.shared.client.counters()
    }

    /// Whether Prometheus answers queries with these credentials.
    ///
    /// # Errors
    /// Why not.
    pub async fn check(&self, now: Timestamp) -> Result<(), SourceError> {
        self.shared.client.has_result("vector(1)", now.as_second()).await.map(drop)
    }

    /// The one number that a query gives now; `None` when it gives none, or one that is not finite.
    ///
    /// # Errors
    /// Prometheus cannot be asked, or gives several.
    pub async fn number(&self, query: &str, now: Timestamp) -> Result<Option<Sample>, SourceError> {
        self.shared.client.number(query, now.as_second()).await
    }

    /// The labels that name a container: the configured ones, else those that there are series with, else the modern ones.
    ///
    /// # Errors
    /// Prometheus cannot be asked.
    pub async fn labels(&self, now: Timestamp) -> Result<LabelNames, SourceError> {
        let Shared { client, labels } = &*self.shared;
        if let Some(known) = client.config().labels.as_ref().or_else(|| labels.get()) {
            return Ok(known.clone());
        }
        for candidate in [LabelNames::modern(), LabelNames::legacy()] {
            if client.has_result(&any_container(client.config(), &candidate), now.as_second()).await? {
                return Ok(labels.get_or_init(|| candidate).clone());
            }
        }
        Ok(LabelNames::modern())
    }

    /// Hands the history to `sink`, in samples of `historyResolution` that end at `now`.
    ///
    /// What is before in time comes first: all of one slice before any of the next, so the samples of one container and
    /// kind come in strictly increasing time. Within a slice, a series comes as it arrives. Memory is bounded by one series,
    /// and `parallelism` answers that wait in their connections. Dropping the future ends all requests.
    ///
    /// # Errors
    /// Why not all could be read. What came before has been handed on: who reads again must begin anew.
    pub async fn history(
        &self,
        namespaces: Namespaces<'_>,
        now: Timestamp,
        sink: impl FnMut(UsageKind, Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        self.read(&UsageKind::ALL, namespaces, self.past(now), now, sink).await
    }

    /// As [`history`](Self::history), of one metric.
    ///
    /// # Errors
    /// As there.
    pub async fn history_of(
        &self,
        metric: &Metric,
        namespaces: Namespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        self.read(&[metric], namespaces, self.past(now), now, |_, series| sink(series)).await
    }

    /// Hands the newest sample of each container and kind to `sink`: CPU as the rate over `liveWindow`.
    ///
    /// # Errors
    /// Why not all could be read. What came before has been handed on.
    pub async fn latest(
        &self,
        namespaces: Namespaces<'_>,
        now: Timestamp,
        sink: impl FnMut(UsageKind, Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        self.read(&UsageKind::ALL, namespaces, present(now), now, sink).await
    }

    /// As [`latest`](Self::latest), of one metric.
    ///
    /// # Errors
    /// As there.
    pub async fn latest_of(
        &self,
        metric: &Metric,
        namespaces: Namespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        self.read(&[metric], namespaces, present(now), now, |_, series| sink(series)).await
    }

    /// The times of a history that ends now.
    fn past(&self, now: Timestamp) -> impl Iterator<Item = When> + Send + use<> {
        slices(self.shared.client.config(), now.as_second()).map(When::During)
    }

    /// Asks for all of `kinds` at these times, one after the other.
    async fn read<M: Measure>(
        &self,
        kinds: &[M],
        namespaces: Namespaces<'_>,
        times: impl Iterator<Item = When> + Send,
        now: Timestamp,
        sink: impl FnMut(M, Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        let groups = shared_groups(namespaces);
        if groups.is_empty() {
            return Ok(Summary::default());
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

    /// Asks all of `jobs`, some at the same time, and reads their answers one after the other.
    async fn run<M: Measure>(
        &self,
        mut jobs: impl Iterator<Item = Job<M>> + Send,
        now: Timestamp,
        mut sink: impl FnMut(M, Series<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        let labels = self.labels(now).await?;
        let mut summary = Summary::default();
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
                    // It is evaluated: while it is decoded, Prometheus works on as many others.
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
                    // What comes later in time stays behind them, even when it was sent already.
                    for job in parts.into_iter().rev() {
                        ahead.push_front(Ahead { job, request: None });
                    }
                }
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Keeps so many queries asked as Prometheus may work on at a time.
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
            When::At(_) => config.live_window,
        };
        job.kind.query(config, labels, window, &job.group)
    }

    fn send<M: Measure>(&self, job: &Job<M>, labels: &LabelNames) -> Request {
        let (query, when) = (self.query(job, labels), job.when);
        let shared = self.shared.clone();
        Request(tokio::spawn(async move { shared.client.ask(&query, when).await }))
    }
}

fn shared_groups(namespaces: Namespaces<'_>) -> Vec<Arc<[String]>> {
    groups(namespaces).into_iter().map(Arc::from).collect()
}

/// The newest samples.
fn present(now: Timestamp) -> impl Iterator<Item = When> + Send {
    std::iter::once(When::At(now.as_second()))
}

impl<M: Measure> Job<M> {
    fn points(&self) -> i64 {
        match self.when {
            When::During(points) => points.count,
            When::At(_) => 1,
        }
    }

    fn result_type(&self) -> ResultType {
        match self.when {
            When::During(_) => ResultType::Matrix,
            When::At(_) => ResultType::Vector,
        }
    }

    /// The same in queries for at most so many points, oldest first.
    fn pieces(self, points_max: i64) -> Vec<Self> {
        match self.when {
            When::During(points) if points.count > points_max => points
                .pieces(points_max)
                .map(|points| Job { when: When::During(points), ..self.clone() })
                .collect(),
            _ => vec![self],
        }
    }

    /// In two: first by time, then by namespaces. `None` when it is one point of one namespace, or of all of them.
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

impl Summary {
    pub(super) fn add(&mut self, answer: Answer) {
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
