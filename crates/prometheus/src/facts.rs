//! What kube-state-metrics tells of pods, by way of Prometheus: who owns them, and what their containers request. And why
//! there may be no usage.

use berth_rightsizing::usage::UsageKind;
use jiff::Timestamp;

use super::client::{Failure, When};
use super::config::{LabelNames, PrometheusConfig};
use super::decode::{Decoder, ResultType};
use super::error::SourceError;
use super::query::{Namespaces, groups, namespace_matcher, selector};
use super::series::Series;
use super::source::{PrometheusSource, Summary};

/// Something that can be asked of all pods, controllers or containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// Who controls a pod.
    PodOwner,
    /// Who controls a ReplicaSet.
    ReplicaSetOwner,
    /// Who controls a Job.
    JobOwner,
    /// What a container requests: cores or bytes.
    Request(UsageKind),
    /// What a container may use at most: cores or bytes.
    Limit(UsageKind),
}

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told<'a> {
    pub namespace: &'a str,
    /// The pod, ReplicaSet or Job.
    pub object: &'a str,
    /// The owner, as KIND/NAME (`/` or `<none>/<none>` for nobody); or the container.
    pub about: &'a str,
    /// Cores or bytes, of requests and limits.
    pub value: f64,
}

/// Why a history has no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// There is no series of the metric at all.
    Metric,
    /// There are series of the metric, but none with these labels; those of Kubernetes before 1.16, or after it, are there.
    Labels { legacy: bool },
    /// There are series of the metric, with neither set of labels.
    AnyLabels,
    /// There are series, but not of these namespaces, or not of this time.
    Namespaces,
}

/// The label in which an owner's kind and name are put together.
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

    /// The labels of an answer: of the namespace, the object, and what is told of it.
    fn labels(self) -> LabelNames {
        let (object, about) = match self {
            Fact::PodOwner => ("pod", OWNER),
            Fact::ReplicaSetOwner => ("replicaset", OWNER),
            Fact::JobOwner => ("job_name", OWNER),
            Fact::Request(_) | Fact::Limit(_) => ("pod", "container"),
        };
        LabelNames { namespace: "namespace".into(), pod: object.into(), container: about.into() }
    }

    /// The last answer for everything that was there in the history: also of pods that have ended. It is looked for only at
    /// the points of the history, which keeps the samples that Prometheus must load few.
    fn query(self, config: &PrometheusConfig, group: &[String]) -> String {
        let (metric, names) = (self.metric(), namespace_matcher("namespace", group));
        let LabelNames { namespace, pod: object, container: about } = self.labels();
        let matcher = match self {
            Fact::Request(kind) | Fact::Limit(kind) => match kind {
                UsageKind::Cpu => r#"resource="cpu""#,
                UsageKind::Memory => r#"resource="memory""#,
            },
            _ => r#"owner_is_controller!="false""#,
        };
        let last = over_history(config, &format!("{metric}{{{names}{matcher}}}"));
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
    /// Hands the newest answer of everything that was there during the history to `sink`. No answers at all: there is no
    /// kube-state-metrics, or Prometheus does not keep this metric of it.
    ///
    /// # Errors
    /// Why not all could be read. What came before has been handed on.
    pub async fn facts(
        &self,
        fact: Fact,
        namespaces: Namespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Told<'_>) + Send,
    ) -> Result<Summary, SourceError> {
        let client = self.client();
        let mut summary = Summary::default();
        for group in groups(namespaces) {
            let query = fact.query(client.config(), &group);
            let response =
                client.ask(&query, When::At(now.as_second())).await.map_err(|failure| match failure {
                    Failure::Other(error) => error,
                    Failure::TooMuch(said) => SourceError::TooMuch { url: client.url(), said },
                })?;
            let decoder = Decoder::new(ResultType::Vector, fact.labels());
            let hand_on = |series: Series<'_>| {
                let Series { namespace, pod: object, container: about, samples } = series;
                sink(Told { namespace, object, about, value: samples[0].value });
            };
            summary.add(client.decode(response, &query, decoder, hand_on).await?);
        }
        Ok(summary)
    }

    /// To be asked when a history had no samples.
    ///
    /// # Errors
    /// Prometheus cannot be asked.
    pub async fn missing(&self, now: Timestamp) -> Result<Missing, SourceError> {
        let (client, at) = (self.client(), now.as_second());
        let config = client.config();
        let count = |selector: &str| format!("count({})", over_history(config, selector));
        if !client.has_result(&count(&config.memory_metric), at).await? {
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
