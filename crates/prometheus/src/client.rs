//! HTTP client for Prometheus queries: credentials, timeouts, retries, and streamed responses.

use berth_rightsizing::usage::Sample;
use std::path::Path;
use std::time::Duration;

use prometheus_http_query::Client;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::config::{HttpHeader, PrometheusConfig, Secret};
use super::counters::QueryCounters;
use super::decode::{Decoder, ResponseSummary};
use super::error::SourceError;
use super::query::Points;
use super::series::Series;
use super::small::{SAID_CHARS_MAX, SmallAnswer};
use berth_model::with_causes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TRIES_MAX: u32 = 5;
/// Also caps a server's `Retry-After`.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Bytes read of an error response, or of a response that is known to be small.
const SMALL_ANSWER_BYTES_MAX: usize = 64 << 10;

/// Backoff and grace times; tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Pause before the first retry; doubles for each further retry.
    pub first_pause: Duration,
    /// Prometheus gets `queryTimeout` as its own timeout, and reports a timeout itself; berth waits this much longer for the report.
    pub grace: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first_pause: Duration::from_millis(500), grace: Duration::from_secs(5) }
    }
}

/// Evaluation times of a query.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    During(Points),
    /// Seconds since 1970.
    At(i64),
    /// By the clock of Prometheus.
    Now,
}

/// Sends queries to Prometheus.
pub(super) struct PrometheusClient {
    http: Client,
    /// For messages.
    url: String,
    config: PrometheusConfig,
    counters: QueryCounters,
    patience: Patience,
}

/// Why a query failed.
pub(super) enum Failure {
    /// A smaller query may succeed. The text of Prometheus.
    TooMuch(String),
    Other(SourceError),
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Failure::Other(error)
    }
}

/// Result of one try.
enum Try {
    Answered(Response),
    /// A retry may succeed, after the server's `Retry-After` if it sent one.
    Again(SourceError, Option<Duration>),
    Failed(Failure),
}

/// An error in Prometheus's JSON format, or that of an API server before it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ErrorBody {
    error_type: String,
    /// `message` in a Status of Kubernetes.
    #[serde(alias = "message")]
    error: String,
}

impl PrometheusClient {
    /// Creates the client without connecting.
    ///
    /// # Errors
    /// The configuration is invalid, or the CA file cannot be read.
    pub fn new(config: PrometheusConfig, patience: Patience) -> Result<Self, SourceError> {
        config.validate()?;
        let address = config.url()?;
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // A redirected form arrives empty: the address must be that of Prometheus itself.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .tls_danger_accept_invalid_certs(config.insecure_skip_verify);
        if let Some(file) = &config.ca_file {
            let pem = read("caFile", file)?;
            let unusable = |problem: &dyn ToString| SourceError::Credentials {
                field: "caFile",
                problem: problem.to_string(),
            };
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
            if certificates.is_empty() {
                return Err(unusable(&format!("{} has no certificate", file.display())));
            }
            builder = builder.tls_certs_only(certificates);
        }
        if is_loopback(&address) {
            builder = builder.no_proxy();
        }
        let url = address.as_str().trim_end_matches('/').to_owned();
        let problem = |problem: String| berth_model::InvalidField { field: "prometheus.url".into(), problem };
        let http = builder.build().map_err(|error| problem(with_causes(&error)))?;
        let http = Client::from(http, &url).map_err(|error| problem(with_causes(&error)))?;
        Ok(Self { http, url, config, counters: QueryCounters::default(), patience })
    }

    pub fn config(&self) -> &PrometheusConfig {
        &self.config
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn counters(&self) -> &QueryCounters {
        &self.counters
    }

    /// Sends a query until the status is 200, and returns when the response begins, which is when Prometheus has evaluated the query.
    /// Retries at most four times, and only errors that may pass.
    pub async fn query(&self, query: &str, when: When) -> Result<Response, Failure> {
        let mut pause = self.patience.first_pause;
        for tries in 1.. {
            match self.try_once(query, when, tries).await? {
                Try::Answered(response) => return Ok(response),
                Try::Failed(failure) => return Err(failure),
                Try::Again(error, _) if tries == TRIES_MAX => return Err(error.into()),
                Try::Again(error, asked) => {
                    let now = asked.unwrap_or(pause).min(PAUSE_MAX);
                    tracing::warn!(%error, ?now, "retrying the query to Prometheus");
                    self.counters.retry();
                    sleep(now).await;
                    pause *= 2;
                }
            }
        }
        unreachable!("the last try returns")
    }

    async fn try_once(&self, query: &str, when: When, tries: u32) -> Result<Try, SourceError> {
        let limit = self.config.query_timeout.get();
        let milliseconds = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let headers = self.headers()?;
        let started = Instant::now();
        let sent = async {
            match when {
                When::During(points) => {
                    // A step of at most a day is exact as a float.
                    let (start, end, step) = (points.start, points.end(), points.step as f64);
                    let mut request = self.http.query_range(query, start, end, step).timeout(milliseconds);
                    for (name, value) in headers {
                        request = request.header(name, value);
                    }
                    request.post_raw().await
                }
                When::At(_) | When::Now => {
                    let mut request = self.http.query(query).timeout(milliseconds);
                    if let When::At(time) = when {
                        request = request.at(time);
                    }
                    for (name, value) in headers {
                        request = request.header(name, value);
                    }
                    request.post_raw().await
                }
            }
        };
        let Ok(sent) = timeout(limit + self.patience.grace, sent).await else {
            self.counters.request(0, started.elapsed());
            return Ok(Try::Failed(SourceError::TimedOut { url: self.url(), timeout: limit }.into()));
        };
        let code = sent.as_ref().map_or(0, |response| response.status().as_u16());
        self.counters.request(code, started.elapsed());
        match sent {
            Ok(response) if response.status() == StatusCode::OK => Ok(Try::Answered(response)),
            Ok(response) => Ok(self.refused(response).await),
            Err(error) => {
                let problem = with_causes(&error);
                Ok(Try::Again(SourceError::Unreachable { url: self.url(), problem, tries }, None))
            }
        }
    }

    /// Maps a status other than 200 to the result of the try.
    async fn refused(&self, mut response: Response) -> Try {
        let status = response.status();
        let pause = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let location = response.headers().get(reqwest::header::LOCATION).cloned();
        let body = self.small_body(&mut response).await.unwrap_or_default();
        let body: ErrorBody = serde_json::from_slice(&body).unwrap_or_else(|_| ErrorBody {
            error_type: String::new(),
            error: String::from_utf8_lossy(&body).trim().chars().take(SAID_CHARS_MAX).collect(),
        });
        let said = match (&location, &*body.error) {
            (Some(location), _) => format!("it redirects to {location:?}"),
            (None, "") => "it gave no reason".to_owned(),
            (None, error) => error.chars().take(SAID_CHARS_MAX).collect(),
        };
        if is_too_much(status, &body) {
            return Try::Failed(Failure::TooMuch(said));
        }
        let error =
            SourceError::Status { url: self.url(), status: status.as_u16(), said, advice: advice(status) };
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Try::Again(error, pause),
            _ => Try::Failed(error.into()),
        }
    }

    /// Reads the response to the end and passes each series to `sink` as it arrives. The timeout does not count the time in `sink`.
    pub async fn decode(
        &self,
        mut response: Response,
        query: &str,
        mut decoder: Decoder,
        mut sink: impl FnMut(Series<'_>),
    ) -> Result<ResponseSummary, SourceError> {
        let explain = |source| SourceError::Answer { url: self.url(), query: query.to_owned(), source };
        let bytes_max = u64::from(self.config.max_response_bytes);
        let mut bytes = 0;
        let mut left = self.config.query_timeout.get();
        loop {
            let started = Instant::now();
            let Ok(piece) = timeout(left, response.chunk()).await else {
                let timeout = self.config.query_timeout.get();
                return Err(SourceError::TimedOut { url: self.url(), timeout });
            };
            left = left.saturating_sub(started.elapsed());
            let piece = piece.map_err(|error| SourceError::Broken {
                url: self.url(),
                bytes,
                problem: with_causes(&error),
            })?;
            let Some(piece) = piece else { break };
            bytes += piece.len() as u64;
            if bytes > bytes_max {
                return Err(SourceError::TooLong { url: self.url(), bytes_max });
            }
            decoder.push(&piece, &mut sink).map_err(explain)?;
        }
        let answer = decoder.finish().map_err(explain)?;
        self.counters.answer(&answer);
        Ok(answer)
    }

    /// Returns whether a query has any result now. For queries with at most one result.
    ///
    /// # Errors
    /// As those of `ask` and `decode`.
    pub async fn has_result(&self, query: &str, at: i64) -> Result<bool, SourceError> {
        Ok(self.small(query, at).await?.found > 0)
    }

    /// Returns the single number that a query gives at a time; `None` if it gives none, or one that is not finite.
    ///
    /// # Errors
    /// As those of `ask` and `decode`, and if the query gives several series.
    pub async fn number(&self, query: &str, at: i64) -> Result<Option<Sample>, SourceError> {
        let small = self.small(query, at).await?;
        match small.found {
            0 | 1 => Ok(small.first),
            several => Err(SourceError::Several { query: query.to_owned(), several }),
        }
    }

    /// Returns the time at which Prometheus evaluates a query that names none. It is asked once: a later try would have another answer.
    ///
    /// # Errors
    /// The query failed.
    pub async fn time(&self) -> Result<Option<f64>, SourceError> {
        const QUERY: &str = "time()";
        match self.try_once(QUERY, When::Now, 1).await? {
            Try::Answered(response) => {
                let small = self.read_small(response, QUERY).await?;
                // Its value would be the time that VictoriaMetrics evaluates, which is a little earlier.
                Ok(small.first.map(|sample| sample.at))
            }
            Try::Again(error, _) => Err(error),
            Try::Failed(failure) => Err(self.explained(failure)),
        }
    }

    /// Returns the number of results that a query has at a time, and the first of them.
    async fn small(&self, query: &str, at: i64) -> Result<SmallAnswer, SourceError> {
        let response = self.query(query, When::At(at)).await.map_err(|failure| self.explained(failure))?;
        self.read_small(response, query).await
    }

    fn explained(&self, failure: Failure) -> SourceError {
        match failure {
            Failure::Other(error) => error,
            Failure::TooMuch(said) => SourceError::TooMuch { url: self.url(), said },
        }
    }

    async fn read_small(&self, mut response: Response, query: &str) -> Result<SmallAnswer, SourceError> {
        let body = self.small_body(&mut response).await?;
        let explain = |source| SourceError::Answer { url: self.url(), query: query.to_owned(), source };
        SmallAnswer::read(&body).map_err(explain)
    }

    /// Returns at most the first bytes of a response.
    async fn small_body(&self, response: &mut Response) -> Result<Vec<u8>, SourceError> {
        let mut body = Vec::new();
        let limit = self.config.query_timeout.get();
        let read = async {
            while body.len() < SMALL_ANSWER_BYTES_MAX
                && let Some(piece) = response.chunk().await?
            {
                body.extend_from_slice(&piece);
            }
            Ok::<(), reqwest::Error>(())
        };
        match timeout(limit, read).await {
            Ok(Ok(())) => Ok(body),
            Ok(Err(error)) => Err(SourceError::Broken {
                url: self.url(),
                bytes: body.len() as u64,
                problem: with_causes(&error),
            }),
            Err(_) => Err(SourceError::TimedOut { url: self.url(), timeout: limit }),
        }
    }

    /// Builds the headers of credentials and tenants, from the current content of the files.
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, SourceError> {
        let of = |header: &HttpHeader| {
            let value = match (&header.value, &header.value_file) {
                (Some(value), _) => Secret::new(value),
                (None, Some(file)) => secret("headers", file)?,
                (None, None) => Secret::new(""),
            };
            let invalid = || SourceError::Credentials {
                field: "headers",
                problem: format!("{} has characters that no header can have", header.name),
            };
            let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| invalid())?;
            value.set_sensitive(header.value_file.is_some());
            Ok((name, value))
        };
        let authorization = self.authorization()?.map(|value| (AUTHORIZATION, value));
        self.config.headers.iter().map(of).chain(authorization.map(Ok)).collect()
    }

    /// Builds the `Authorization` header, from the current content of the files.
    fn authorization(&self) -> Result<Option<HeaderValue>, SourceError> {
        let config = &self.config;
        // The request builder knows the encoding of both schemes.
        let blank = self.http.inner().get(self.http.base_url().clone());
        let (field, request) = if let Some(token) = &config.bearer_token {
            ("bearerToken", blank.bearer_auth(token.reveal().trim()))
        } else if let Some(file) = &config.bearer_token_file {
            ("bearerTokenFile", blank.bearer_auth(secret("bearerTokenFile", file)?.reveal()))
        } else if let Some(basic) = &config.basic_auth {
            let password = match (&basic.password, &basic.password_file) {
                (Some(password), _) => password.clone(),
                (None, Some(file)) => secret("basicAuth.passwordFile", file)?,
                (None, None) => Secret::new(""),
            };
            ("basicAuth", blank.basic_auth(&basic.user, Some(password.reveal())))
        } else {
            return Ok(None);
        };
        let request = request.build().map_err(|_| SourceError::Credentials {
            field,
            problem: "it has characters that no header can have".to_owned(),
        })?;
        Ok(request.headers().get(AUTHORIZATION).cloned())
    }
}

fn read(field: &'static str, file: &Path) -> Result<Vec<u8>, SourceError> {
    // Blocking is fine: small files, mounted from memory.
    std::fs::read(file).map_err(|source| SourceError::File { field, file: file.to_owned(), source })
}

/// Reads a file without the trailing white space that editors leave.
fn secret(field: &'static str, file: &Path) -> Result<Secret, SourceError> {
    let text = read(field, file)?;
    let text = String::from_utf8_lossy(&text);
    match text.trim() {
        "" => Err(SourceError::Credentials { field, problem: format!("{} is empty", file.display()) }),
        text => Ok(Secret::new(text)),
    }
}

fn is_loopback(address: &Url) -> bool {
    let host = address.host_str().unwrap_or_default();
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Whether half of the query may succeed: it loads too many samples, or takes too long.
fn is_too_much(status: StatusCode, body: &ErrorBody) -> bool {
    let is_limit = |text: &str| {
        let text = text.to_ascii_lowercase();
        ["too many", "too large", "limit", "maximum", "exceed"].iter().any(|word| text.contains(word))
    };
    match status {
        StatusCode::UNPROCESSABLE_ENTITY => is_limit(&body.error),
        StatusCode::SERVICE_UNAVAILABLE => body.error_type == "timeout",
        _ => false,
    }
}

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        300..=399 => "set prometheus.url to an address that does not redirect",
        401 => "set prometheus.bearerTokenFile or prometheus.basicAuth, or renew the credentials",
        403 => "allow berth's account to query this Prometheus",
        404 | 405 => "prometheus.url must be the address before /api/v1",
        429 | 503 => "it is overloaded or starting: wait, or lower prometheus.parallelism",
        500..=599 => "see the log of Prometheus",
        _ => "check that it is a Prometheus, and see its log",
    }
}
