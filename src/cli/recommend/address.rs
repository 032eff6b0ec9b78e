//! Where Prometheus is: at an address, or a Service of the cluster behind the API server. Its configuration, and errors in the words of
//! this command.

use anyhow::anyhow;
use kube::Client;

use super::discover::{PrometheusService, discover, named};
use super::service_proxy::ServiceProxy;
use super::{Failure, LabelSet, RecommendOptions};
use crate::cli::cluster::cluster_config;
use berth_model::{ConfigDuration, with_causes};
use berth_prometheus::{BasicAuth, LabelNames, PrometheusConfig, Secret, SourceError};

/// Address of a Prometheus.
pub struct PrometheusAddress {
    /// For people: the URL, or the name of the Service.
    shown: String,
    /// For a Service of the cluster.
    proxy: Option<ServiceProxy>,
}

impl PrometheusAddress {
    /// Returns the address of the options, or that of the only Prometheus of the cluster.
    ///
    /// # Errors
    /// There is no cluster, or none or several Services of a Prometheus.
    pub async fn find(options: &RecommendOptions) -> Result<Self, Failure> {
        if let Some(url) = &options.prometheus {
            return Ok(Self { shown: url.clone(), proxy: None });
        }
        let mut cluster =
            cluster_config(options.kubeconfig.as_deref(), options.context.as_deref(), NO_CLUSTER).await?;
        // The client of Prometheus has a limit of its own, which may be longer.
        cluster.read_timeout = None;
        let client = Client::try_from(cluster).map_err(anyhow::Error::from)?;
        let service = match &options.prometheus_service {
            Some(reference) => named(&client, reference).await,
            None => discover(&client).await,
        };
        let service = service.map_err(|problem| anyhow!("{problem}"))?;
        let proxy = ServiceProxy::start(client, service.proxy_path()).await?;
        let PrometheusService { namespace, name, .. } = service;
        Ok(Self { shown: format!("Service {namespace}/{name}"), proxy: Some(proxy) })
    }

    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the failure of the command for this error.
    pub fn failure(&self, error: SourceError) -> Failure {
        let text = anyhow!("{}", self.explain(&error));
        match error {
            SourceError::Config(_) => Failure::Input(text),
            _ => Failure::Other(text),
        }
    }

    /// Returns the error in words of this command.
    pub fn explain(&self, error: &SourceError) -> String {
        let text = as_options(&with_causes(error));
        let Some(proxy) = &self.proxy else { return text };
        let text = text.replace(&proxy.url, &self.shown);
        BEHIND_API_SERVER.into_iter().fold(text, |text, (direct, behind)| text.replace(direct, behind))
    }

    pub fn config(&self, options: &RecommendOptions) -> PrometheusConfig {
        let config = direct_config(options);
        match &self.proxy {
            None => config,
            Some(ServiceProxy { url, token, .. }) => {
                PrometheusConfig { url: url.clone(), bearer_token: Some(Secret::new(token)), ..config }
            }
        }
    }
}

const NO_CLUSTER: &str =
    "no cluster configured, in which to find Prometheus: give --prometheus URL, or --kubeconfig FILE";

/// Advice for a Prometheus with an address, and that for one behind the API server.
const BEHIND_API_SERVER: [(&str, &str); 4] = [
    (
        "--prometheus must be the address before /api/v1",
        "the Service has no ready pod, or does not serve the HTTP API of Prometheus: give --prometheus-service or --prometheus",
    ),
    (
        "give --bearer-token-file, or --user and --password-file, or renew the credentials",
        "renew the credentials of the kubeconfig; a Prometheus that asks for credentials of its own is reached only with --prometheus",
    ),
    (
        "allow the account of the token to query this Prometheus",
        "allow the account of the kubeconfig to create services/proxy in that namespace, or give --prometheus",
    ),
    ("it is overloaded or starting: wait", "it is overloaded, starting or has no ready pod: wait"),
];

fn direct_config(options: &RecommendOptions) -> PrometheusConfig {
    // Prometheus returns at most 11,000 points of a series per query.
    const POINTS: u64 = 10_000;
    let usual = PrometheusConfig::default().slice.get().as_secs();
    let resolution = options.resolution.get().as_secs();
    let slice = usual.min(resolution.saturating_mul(POINTS)).max(resolution);
    PrometheusConfig {
        url: options.prometheus.clone().unwrap_or_default(),
        matchers: options.prometheus_label.clone(),
        headers: options.prometheus_header.clone(),
        labels: options.label_set.map(|set| match set {
            LabelSet::Modern => LabelNames::modern(),
            LabelSet::Legacy => LabelNames::legacy(),
        }),
        history_length: options.history,
        history_resolution: options.resolution,
        memory_peaks: true,
        slice: ConfigDuration::from_secs(slice.max(1)),
        query_timeout: options.query_timeout,
        bearer_token_file: options.bearer_token_file.clone(),
        basic_auth: options.user.clone().map(|user| BasicAuth {
            user,
            password: None,
            password_file: options.password_file.clone(),
        }),
        ca_file: options.ca_file.clone(),
        ..PrometheusConfig::default()
    }
}

/// Rewrites advice that names fields of the configuration file to options of this command.
pub fn as_options(text: &str) -> String {
    const WORDS: [(&str, &str); 20] = [
        ("use prometheus.basicAuth", "give --user and --password-file instead"),
        (
            "set prometheus.bearerTokenFile or prometheus.basicAuth",
            "give --bearer-token-file, or --user and --password-file",
        ),
        ("prometheus.basicAuth.user", "--user"),
        ("prometheus.basicAuth.passwordFile", "--password-file"),
        (
            "raise prometheus.queryTimeout, or shorten prometheus.slice",
            "raise --query-timeout, or choose a coarser --resolution",
        ),
        (
            "raise prometheus.maxResponseBytes, or shorten prometheus.slice",
            "ask for fewer namespaces, or choose a coarser --resolution",
        ),
        ("wait, or lower prometheus.parallelism", "wait"),
        ("that a network policy lets berth connect", "that it can be connected to from here"),
        ("allow berth's account to query", "allow the account of the token to query"),
        ("prometheus.matchers", "--prometheus-label"),
        ("prometheus.headers", "--prometheus-header"),
        ("write them to a file, and name that in valueFile", "write them to a file, and give NAME=@FILE"),
        ("prometheus.url", "--prometheus"),
        ("prometheus.historyResolution", "--resolution"),
        ("prometheus.historyLength", "--history"),
        ("prometheus.queryTimeout", "--query-timeout"),
        ("prometheus.bearerTokenFile", "--bearer-token-file"),
        ("prometheus.caFile", "--ca-file"),
        ("historyResolution", "--resolution"),
        ("prometheus.slice", "--resolution"),
    ];
    WORDS.into_iter().fold(text.to_owned(), |text, (field, option)| text.replace(field, option))
}
