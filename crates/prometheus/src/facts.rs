//! Metadata of pods from kube-state-metrics, read from Prometheus: owners, and requests and limits of containers. Also finds out
//! why there is no usage.

use berth_rightsizing::usage::UsageKind;
use jiff::Timestamp;

use super::client::{Failure, When};
use super::config::{LabelNames, PrometheusConfig};
use super::decode::Decoder;
use super::error::SourceError;
use super::query::{QueriedNamespaces, extra_matchers, groups, namespace_matcher, selector};
use super::series::ResultType;
use super::series::Series;
use super::source::{PrometheusSource, ReadSummary};

/// A fact about all pods, controllers or containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// Controller of a pod.
    PodOwner,
    /// Controller of a ReplicaSet.
    ReplicaSetOwner,
    /// Controller of a Job.
    JobOwner,
    /// Request of a container: cores or bytes.
    Request(UsageKind),
    /// Limit of a container: cores or bytes.
    Limit(UsageKind),
}

/// One result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactRow<'a> {
    pub namespace: &'a str,
    /// Name of the pod, ReplicaSet or Job.
    pub object: &'a str,
    /// The owner, as KIND/NAME (`/` or `<none>/<none>` if there is none); or the container.
    pub about: &'a str,
    /// Cores or bytes, for requests and limits.
    pub value: f64,
}

/// Why a history has no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The metric has no series at all.
    Metric,
    /// The metric has series, but none with these labels; series with the labels of Kubernetes before 1.16 (or since) exist.
    Labels { legacy: bool },
    /// The metric has series, with neither set of labels.
    AnyLabels,
    /// There are series, but not in these namespaces, or not in this time range.
    Namespaces,
}

/// Label that joins an owner's kind and name.
const OWNER: &str = "berth_owner";

impl Fact {
    fn metric(self) -> &'static str {
        match self {
            Fact::PodOwner => "kube_pod_owner",
            Fact::ReplicaSetOwner => "kube_replicaset_owner",
            Fact::JobOwner => "kube_job_owner",
            Fact::Request(_) => "kube_pod_container_resource_requests",
            Fact::Limit(_) => "kube_pod_container_resource_limits",
        }
    }

    /// Returns the labels of a result: namespace, object, and owner or container.
    fn labels(self) -> LabelNames {
        let (object, about) = match self {
            Fact::PodOwner => ("pod", OWNER),
            Fact::ReplicaSetOwner => ("replicaset", OWNER),
            Fact::JobOwner => ("job_name", OWNER),
            Fact::Request(_) | Fact::Limit(_) => ("pod", "container"),
        };
        LabelNames { namespace: "namespace".into(), pod: object.into(), container: about.into() }
    }

    /// Queries the last value of every object in the history, pods that have ended included. Evaluates only at the points of the
    /// history, to limit the samples that Prometheus must load.
    fn query(self, config: &PrometheusConfig, group: &[String]) -> String {
        let (metric, extra) = (self.metric(), extra_matchers(config));
        let names = namespace_matcher("namespace", group);
        let LabelNames { namespace, pod: object, container: about } = self.labels();
        let matcher = match self {
            Fact::Request(kind) | Fact::Limit(kind) => match kind {
                UsageKind::Cpu => r#"resource="cpu""#,
                UsageKind::Memory => r#"resource="memory""#,
            },
            _ => r#"owner_is_controller!="false""#,
        };
        let last = over_history(config, &format!("{metric}{{{extra}{names}{matcher}}}"));
        let values = match self {
            Fact::Request(_) | Fact::Limit(_) => last,
            _ => format!(r#"label_join({last}, "{OWNER}", "/", "owner_kind", "owner_name")"#),
        };
        format!("max by ({namespace}, {object}, {about}) ({values})")
    }
}

fn over_history(config: &PrometheusConfig, selector: &str) -> String {
    format!("last_over_time({selector}[{}:{}])", config.history_length, config.history_resolution)
}

impl PrometheusSource {
    /// Passes the newest value of every object in the history to `sink`. No results at all: there is no kube-state-metrics, or
    /// Prometheus does not store this metric of it.
    ///
    /// # Errors
    /// Why not everything could be read. Results before the error have been passed on.
    pub async fn facts(
        &self,
        fact: Fact,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(FactRow<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        let client = self.client();
        let mut summary = ReadSummary::default();
        for group in groups(namespaces) {
            let query = fact.query(client.config(), &group);
            let response =
                client.query(&query, When::At(now.as_second())).await.map_err(|failure| match failure {
                    Failure::Other(error) => error,
                    Failure::TooMuch(said) => SourceError::TooMuch { url: client.url(), said },
                })?;
            let decoder = Decoder::new(ResultType::Vector, fact.labels());
            let hand_on = |series: Series<'_>| {
                let Series { namespace, pod: object, container: about, samples } = series;
                sink(FactRow { namespace, object, about, value: samples[0].value });
            };
            summary.add(client.decode(response, &query, decoder, hand_on).await?);
        }
        Ok(summary)
    }

    /// Finds out why a history had no samples.
    ///
    /// # Errors
    /// The query to Prometheus failed.
    pub async fn missing(&self, now: Timestamp) -> Result<Missing, SourceError> {
        let (client, at) = (self.client(), now.as_second());
        let config = client.config();
        let count = |selector: &str| format!("count({})", over_history(config, selector));
        let any = match extra_matchers(config) {
            extra if extra.is_empty() => config.memory_metric.clone(),
            extra => format!("{}{{{extra}}}", config.memory_metric),
        };
        if !client.has_result(&count(&any), at).await? {
            return Ok(Missing::Metric);
        }
        let configured = self.labels(now).await?;
        for labels in [configured.clone(), LabelNames::modern(), LabelNames::legacy()] {
            let of_containers = count(&selector(config, &labels, UsageKind::Memory, &[]));
            if client.has_result(&of_containers, at).await? {
                return Ok(match labels == configured {
                    true => Missing::Namespaces,
                    false => Missing::Labels { legacy: labels == LabelNames::legacy() },
                });
            }
        }
        Ok(Missing::AnyLabels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_requests_are_asked_for_over_the_whole_history() {
        let config = PrometheusConfig::default();
        assert_eq!(
            Fact::PodOwner.query(&config, &[]),
            r#"max by (namespace, pod, berth_owner) (label_join(last_over_time(kube_pod_owner{owner_is_controller!="false"}[192h:1h]), "berth_owner", "/", "owner_kind", "owner_name"))"#
        );
        let group = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            Fact::Request(UsageKind::Cpu).query(&config, &group),
            r#"max by (namespace, pod, container) (last_over_time(kube_pod_container_resource_requests{namespace=~"a|b", resource="cpu"}[192h:1h]))"#
        );
    }
}
