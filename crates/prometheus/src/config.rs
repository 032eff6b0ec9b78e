//! Configuration of Prometheus: address, metrics, labels, limits and credentials.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use super::metric::Matcher;
use berth_model::validate::{lasts, refuse, whole_number, within};
use berth_model::{ConfigDuration, InvalidField};

/// The Prometheus with the usage of containers, or anything that serves its HTTP API (Thanos, Mimir, VictoriaMetrics).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PrometheusConfig {
    /// Address without `/api/v1`, such as `http://prometheus.monitoring.svc:9090`.
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"))]
    pub url: String,
    /// Use only series of this scrape job. Empty: all jobs.
    pub job_name: String,
    /// Label matchers of every query, such as `cluster=prod` where several clusters share a Thanos or Mimir: `LABEL=VALUE`,
    /// `LABEL!=VALUE`, `LABEL=~EXPRESSION` or `LABEL!~EXPRESSION`, without quotes. In a query of a ServiceScaler's own they stand
    /// where it has `$matchers`.
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub matchers: Vec<String>,
    /// HTTP headers of every request, such as `X-Scope-OrgID` for the tenant of a Mimir.
    #[schemars(length(max = 16))]
    pub headers: Vec<HttpHeader>,
    /// Labels of a series that identify its container. Default: `namespace`, `pod` and `container` if there are such series,
    /// otherwise the labels of Kubernetes before 1.16, `namespace`, `pod_name` and `container_name`.
    pub labels: Option<LabelNames>,
    /// A counter of CPU seconds.
    #[schemars(regex(pattern = "^[a-zA-Z_:][a-zA-Z0-9_:]*$"))]
    pub cpu_metric: String,
    /// A gauge of bytes.
    #[schemars(regex(pattern = "^[a-zA-Z_:][a-zA-Z0-9_:]*$"))]
    pub memory_metric: String,
    /// Whether a point of the history has the highest memory since the point before it. Upstream's recommender takes the memory at
    /// the point, and misses peaks between two of them.
    #[serde(skip)]
    #[schemars(skip)]
    pub memory_peaks: bool,
    /// Length of the history that is read at start.
    pub history_length: ConfigDuration,
    /// Interval between samples of the history, and window of its CPU rates. Whole seconds.
    pub history_resolution: ConfigDuration,
    /// The history is queried in slices of this duration, oldest first. Shorter slices need less memory in Prometheus.
    pub slice: ConfigDuration,
    /// Window of the newest CPU rate: at least two scrape intervals. Whole seconds.
    pub live_window: ConfigDuration,
    /// Timeout of one query.
    pub query_timeout: ConfigDuration,
    /// Concurrent queries.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 16))]
    pub parallelism: u32,
    /// Maximum bytes of one response.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1048576, max = 2147483648_u32))]
    pub max_response_bytes: u32,
    /// Sent as `Authorization: Bearer …`. Only flags of upstream set it.
    #[serde(skip_serializing, deserialize_with = "refused")]
    #[schemars(skip)]
    pub bearer_token: Option<Secret>,
    /// File with the bearer token. Read again for every request, so the token can be rotated.
    pub bearer_token_file: Option<PathBuf>,
    /// User and password, instead of a token.
    pub basic_auth: Option<BasicAuth>,
    /// PEM file of the CAs that Prometheus's certificate may be signed by, instead of the system's. Read at start.
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate: an attacker between berth and Prometheus can then read the credentials and forge usage.
    pub insecure_skip_verify: bool,
}

/// Labels of a series that identify its container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelNames {
    /// Label with the namespace of the pod.
    #[schemars(regex(pattern = "^[a-zA-Z_][a-zA-Z0-9_]*$"))]
    pub namespace: String,
    /// Label with the name of the pod.
    #[schemars(regex(pattern = "^[a-zA-Z_][a-zA-Z0-9_]*$"))]
    pub pod: String,
    /// Label with the name of the container.
    #[schemars(regex(pattern = "^[a-zA-Z_][a-zA-Z0-9_]*$"))]
    pub container: String,
}

/// An HTTP header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpHeader {
    /// Name, such as `X-Scope-OrgID`.
    #[schemars(regex(pattern = "^[-a-zA-Z0-9_.]+$"))]
    pub name: String,
    /// Value, if it is no secret.
    pub value: Option<String>,
    /// File with the value. Read again for every request.
    pub value_file: Option<PathBuf>,
}

/// HTTP basic authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BasicAuth {
    /// Name of the user.
    pub user: String,
    /// Only flags of upstream set it.
    #[serde(skip_serializing, deserialize_with = "refused")]
    #[schemars(skip)]
    pub password: Option<Secret>,
    /// File with the password. Read again for every request.
    pub password_file: Option<PathBuf>,
}

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Refuses a credential in a configuration, which in a cluster is a ConfigMap.
fn refused<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    match Option::<IgnoredAny>::deserialize(deserializer)? {
        None => Ok(None),
        Some(_) => Err(D::Error::custom(
            "credentials do not belong in a configuration: write them to a file, and name that in bearerTokenFile or \
             basicAuth.passwordFile (with Helm: put them into a Secret, and name that in recommender.credentialsSecret)",
        )),
    }
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// Returns the string itself: only for the request that it is sent with.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

const REDACTED: &str = "(secret)";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl HttpHeader {
    /// Checks the header.
    ///
    /// # Errors
    /// The problem, without the value.
    fn validate(&self) -> Result<(), String> {
        let name = self.name.to_ascii_lowercase();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("`{}` is not the name of a header", self.name.escape_debug()));
        }
        if RESERVED_HEADERS.contains(&&*name) {
            return Err(format!("{} is set by the HTTP client", self.name));
        }
        if name == "authorization" {
            return Err(
                "for Authorization, set prometheus.bearerTokenFile or prometheus.basicAuth".to_owned()
            );
        }
        match (&self.value, &self.value_file) {
            (Some(_), _) if SECRET_WORDS.iter().any(|word| name.contains(word)) => Err(format!(
                "{}: credentials do not belong in a configuration: write them to a file, and name that in valueFile",
                self.name
            )),
            (Some(value), None) if HeaderValue::from_str(value).is_err() || value.is_empty() => {
                Err(format!("{}: the value is empty, or has characters that no header can have", self.name))
            }
            (None, Some(file)) if file.as_os_str().is_empty() => {
                Err(format!("{}: valueFile is empty", self.name))
            }
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(format!("{}: set exactly one of value and valueFile", self.name)),
        }
    }
}

impl LabelNames {
    /// Returns the labels of cAdvisor's metrics since Kubernetes 1.16.
    pub fn modern() -> Self {
        Self::of("namespace", "pod", "container")
    }

    /// Returns the labels before Kubernetes 1.16.
    pub fn legacy() -> Self {
        Self::of("namespace", "pod_name", "container_name")
    }

    fn of(namespace: &str, pod: &str, container: &str) -> Self {
        Self { namespace: namespace.to_owned(), pod: pod.to_owned(), container: container.to_owned() }
    }
}

impl Default for LabelNames {
    fn default() -> Self {
        Self::modern()
    }
}

impl Default for PrometheusConfig {
    fn default() -> Self {
        Self {
            url: "http://prometheus.monitoring.svc".to_owned(),
            job_name: String::new(),
            matchers: Vec::new(),
            headers: Vec::new(),
            labels: None,
            cpu_metric: "container_cpu_usage_seconds_total".to_owned(),
            memory_metric: "container_memory_working_set_bytes".to_owned(),
            memory_peaks: false,
            history_length: ConfigDuration::from_secs(8 * DAY_SECS),
            history_resolution: ConfigDuration::from_secs(3_600),
            slice: ConfigDuration::from_secs(DAY_SECS / 2),
            live_window: ConfigDuration::from_secs(300),
            query_timeout: ConfigDuration::from_secs(300),
            parallelism: 2,
            max_response_bytes: 512 << 20,
            bearer_token: None,
            bearer_token_file: None,
            basic_auth: None,
            ca_file: None,
            insecure_skip_verify: false,
        }
    }
}

const DAY_SECS: u64 = 86_400;
const MATCHERS_MAX: usize = 16;
const MATCHER_BYTES_MAX: usize = 253;
const HEADERS_MAX: usize = 16;
/// Headers that the HTTP client sets, or that belong to one connection.
const RESERVED_HEADERS: [&str; 9] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Parts of the names of headers whose values are credentials.
const SECRET_WORDS: [&str; 7] = ["auth", "cookie", "credential", "key", "password", "secret", "token"];
const SECOND: ConfigDuration = ConfigDuration::from_secs(1);
const DAY: ConfigDuration = ConfigDuration::from_secs(DAY_SECS);
const YEAR: ConfigDuration = ConfigDuration::from_secs(365 * DAY_SECS);
/// Prometheus rejects range queries for more points per series.
const POINTS_PER_QUERY_MAX: u64 = 11_000;
const SLICES_MAX: u64 = 10_000;

impl PrometheusConfig {
    /// Checks limits, and fields against each other. Fields are named `prometheus.…`.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), InvalidField> {
        self.url()?;
        if self.job_name.chars().any(char::is_control) {
            return refuse("prometheus.jobName", "it has a control character");
        }
        self.names()?;
        self.matchers()?;
        self.headers()?;
        self.times()?;
        within("prometheus.parallelism", self.parallelism, 1..=16)?;
        within("prometheus.maxResponseBytes", self.max_response_bytes, 1 << 20..=1 << 31)?;
        self.credentials()?;
        if self.insecure_skip_verify && self.ca_file.is_some() {
            return refuse(
                "prometheus.caFile",
                "insecureSkipVerify accepts any certificate: leave one of them out",
            );
        }
        filled("prometheus.caFile", self.ca_file.as_deref())
    }

    /// Returns the parsed and checked address.
    ///
    /// # Errors
    /// It is not an HTTP address, or has parts that it must not have.
    pub fn url(&self) -> Result<Url, InvalidField> {
        const FIELD: &str = "prometheus.url";
        let problem = match Url::parse(&self.url) {
            Err(error) => format!("`{}` is not an address: {error}", self.url),
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                "it has a user or a password: use prometheus.basicAuth".to_owned()
            }
            Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => {
                format!("`{}` is not http://HOST or https://HOST", self.url)
            }
            Ok(url) if url.query().is_some() || url.fragment().is_some() => {
                format!("`{}` has more than an address and a path", self.url)
            }
            Ok(url) => return Ok(url),
        };
        Err(InvalidField { field: FIELD.into(), problem })
    }

    fn names(&self) -> Result<(), InvalidField> {
        for (field, name) in
            [("prometheus.cpuMetric", &self.cpu_metric), ("prometheus.memoryMetric", &self.memory_metric)]
        {
            if !is_name(name, ":") {
                return refuse(field, format!("`{name}` is not a metric's name"));
            }
        }
        let Some(labels) = &self.labels else { return Ok(()) };
        for (field, name) in [
            ("prometheus.labels.namespace", &labels.namespace),
            ("prometheus.labels.pod", &labels.pod),
            ("prometheus.labels.container", &labels.container),
        ] {
            if !is_name(name, "") {
                return refuse(field, format!("`{name}` is not a label's name"));
            }
        }
        if labels.pod == labels.container
            || labels.pod == labels.namespace
            || labels.container == labels.namespace
        {
            return refuse("prometheus.labels", "two of them are the same label");
        }
        Ok(())
    }

    fn matchers(&self) -> Result<(), InvalidField> {
        const FIELD: &str = "prometheus.matchers";
        if self.matchers.len() > MATCHERS_MAX {
            return refuse(FIELD, format!("at most {MATCHERS_MAX} are allowed"));
        }
        for matcher in &self.matchers {
            if matcher.len() > MATCHER_BYTES_MAX {
                return refuse(FIELD, format!("one has more than {MATCHER_BYTES_MAX} bytes"));
            }
            Matcher::parse(matcher)
                .map_err(|error| InvalidField { field: FIELD.into(), problem: error.to_string() })?;
        }
        Ok(())
    }

    fn headers(&self) -> Result<(), InvalidField> {
        const FIELD: &str = "prometheus.headers";
        if self.headers.len() > HEADERS_MAX {
            return refuse(FIELD, format!("at most {HEADERS_MAX} are allowed"));
        }
        for (at, header) in self.headers.iter().enumerate() {
            let is_same = |other: &HttpHeader| other.name.eq_ignore_ascii_case(&header.name);
            if self.headers[..at].iter().any(is_same) {
                return refuse(FIELD, format!("{} is set twice", header.name));
            }
            header.validate().map_err(|problem| InvalidField { field: FIELD.into(), problem })?;
        }
        Ok(())
    }

    fn times(&self) -> Result<(), InvalidField> {
        const RESOLUTION: &str = "prometheus.historyResolution";
        lasts(RESOLUTION, self.history_resolution, SECOND..=DAY)?;
        whole_seconds(RESOLUTION, self.history_resolution)?;
        lasts("prometheus.historyLength", self.history_length, self.history_resolution..=YEAR)?;
        lasts("prometheus.slice", self.slice, self.history_resolution..=YEAR)?;
        // One more than the quotient: the first slice has a point at both of its ends.
        let points = self.slice.get().as_secs() / self.history_resolution.get().as_secs() + 1;
        if points > POINTS_PER_QUERY_MAX {
            return refuse(
                "prometheus.slice",
                format!(
                    "{} has {points} points of historyResolution ({}), and Prometheus returns at most {POINTS_PER_QUERY_MAX}",
                    self.slice, self.history_resolution
                ),
            );
        }
        if self.history_length.get().as_secs() / self.slice.get().as_secs() > SLICES_MAX {
            return refuse(
                "prometheus.slice",
                format!("{} cuts {} into more than {SLICES_MAX} slices", self.slice, self.history_length),
            );
        }
        lasts("prometheus.liveWindow", self.live_window, SECOND..=DAY)?;
        whole_seconds("prometheus.liveWindow", self.live_window)?;
        lasts("prometheus.queryTimeout", self.query_timeout, SECOND..=ConfigDuration::from_secs(3_600))
    }

    fn credentials(&self) -> Result<(), InvalidField> {
        let given =
            [self.bearer_token.is_some(), self.bearer_token_file.is_some(), self.basic_auth.is_some()];
        if given.into_iter().filter(|given| *given).count() > 1 {
            return refuse(
                "prometheus.bearerToken",
                "set only one of bearerToken, bearerTokenFile and basicAuth",
            );
        }
        if self.bearer_token.as_ref().is_some_and(|token| token.reveal().trim().is_empty()) {
            return refuse("prometheus.bearerToken", "it is empty");
        }
        filled("prometheus.bearerTokenFile", self.bearer_token_file.as_deref())?;
        let Some(basic) = &self.basic_auth else { return Ok(()) };
        if basic.user.is_empty() || basic.user.contains(':') {
            return refuse(
                "prometheus.basicAuth.user",
                "a user name must not be empty and must not contain `:`",
            );
        }
        if basic.password.is_some() == basic.password_file.is_some() {
            return refuse("prometheus.basicAuth.password", "set exactly one of password and passwordFile");
        }
        filled("prometheus.basicAuth.passwordFile", basic.password_file.as_deref())
    }
}

fn filled(field: &'static str, file: Option<&Path>) -> Result<(), InvalidField> {
    match file {
        Some(file) if file.as_os_str().is_empty() => refuse(field, "it is empty; set it or remove it"),
        _ => Ok(()),
    }
}

fn whole_seconds(field: &'static str, duration: ConfigDuration) -> Result<(), InvalidField> {
    match Duration::from(duration).subsec_nanos() {
        0 => Ok(()),
        _ => refuse(field, format!("{duration} is not a whole number of seconds")),
    }
}

/// Whether the name needs no quoting in a query. `more` are characters that are allowed besides letters, digits and `_`.
pub fn is_name(name: &str, more: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || more.contains(c);
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}
