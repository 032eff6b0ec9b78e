//! What one query says about all pods: owners, requests, limits and OOM kills of kube-state-metrics, what HorizontalPodAutoscalers
//! scale, and quantiles of usage. Also finds out why there is no usage.

use berth_model::ConfigDuration;
use berth_rightsizing::usage::UsageKind;
use jiff::Timestamp;

use super::client::{Failure, When};
use super::config::{LabelNames, PrometheusConfig};
use super::decode::Decoder;
use super::error::SourceError;
use super::query::{QueriedNamespaces, extra_matchers, groups, namespace_matcher, selector, usage};
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
    /// The container was terminated because of its memory, and not terminated again since. The value is 1.
    OomKill,
    /// Workload that a HorizontalPodAutoscaler scales now.
    AutoscalerTarget,
    /// Resource whose utilisation, as a share of the requests, a HorizontalPodAutoscaler keeps now.
    AutoscalerResource,
    /// Quantile of a container's CPU rates at the points of the history: cores.
    CpuQuantile { per_mille: u16 },
    /// Highest memory of a container at the points of the history: bytes.
    MemoryPeak,
}

/// One result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactRow<'a> {
    pub namespace: &'a str,
    /// Name of the pod, ReplicaSet, Job or HorizontalPodAutoscaler.
    pub object: &'a str,
    /// The owner or target, as KIND/NAME (`/` or `<none>/<none>` if there is none); the container; or the resource.
    pub about: &'a str,
    /// Cores or bytes, for amounts.
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
    /// Returns whether it is about the usage of containers, which has the configured labels.
    fn is_usage(self) -> bool {
        matches!(self, Fact::CpuQuantile { .. } | Fact::MemoryPeak)
    }

    /// Returns the labels of a result: namespace, object, and owner, container or resource. `containers`: those of usage.
    fn labels(self, containers: &LabelNames) -> LabelNames {
        let (object, about) = match self {
            Fact::PodOwner => ("pod", OWNER),
            Fact::ReplicaSetOwner => ("replicaset", OWNER),
            Fact::JobOwner => ("job_name", OWNER),
            Fact::Request(_) | Fact::Limit(_) | Fact::OomKill => ("pod", "container"),
            Fact::AutoscalerTarget => ("horizontalpodautoscaler", OWNER),
            Fact::AutoscalerResource => ("horizontalpodautoscaler", "metric_name"),
            Fact::CpuQuantile { .. } | Fact::MemoryPeak => return containers.clone(),
        };
        LabelNames { namespace: "namespace".into(), pod: object.into(), container: about.into() }
    }

    /// Queries the last value of every object in the history, pods that have ended included. Evaluates only at the points of the
    /// history, to limit the samples that Prometheus must load.
    fn query(self, config: &PrometheusConfig, containers: &LabelNames, group: &[String]) -> String {
        let series = |metric: &str, matcher: &str| {
            let (extra, names) = (extra_matchers(config), namespace_matcher("namespace", group));
            format!("{metric}{{{extra}{names}{matcher}}}")
        };
        let last = |metric, matcher: &str| over_history(config, "last_over_time", &series(metric, matcher));
        let owner = |values: String, kind: &str, name: &str| {
            format!(r#"label_join({values}, "{OWNER}", "/", "{kind}", "{name}")"#)
        };
        let owned =
            |metric| owner(last(metric, r#"owner_is_controller!="false""#), "owner_kind", "owner_name");
        let resource = |kind| match kind {
            UsageKind::Cpu => r#"resource="cpu""#,
            UsageKind::Memory => r#"resource="memory""#,
        };
        let of_points = |kind| {
            let usage = usage(config, containers, kind, config.history_resolution, group);
            format!("({usage})[{}:{}]", config.history_length, config.history_resolution)
        };
        let values = match self {
            Fact::PodOwner => owned("kube_pod_owner"),
            Fact::ReplicaSetOwner => owned("kube_replicaset_owner"),
            Fact::JobOwner => owned("kube_job_owner"),
            Fact::Request(kind) => last("kube_pod_container_resource_requests", resource(kind)),
            Fact::Limit(kind) => last("kube_pod_container_resource_limits", resource(kind)),
            Fact::OomKill => {
                let kills =
                    series("kube_pod_container_status_last_terminated_reason", r#"reason="OOMKilled""#);
                format!("{} > 0", over_history(config, "max_over_time", &kills))
            }
            Fact::AutoscalerTarget => owner(
                series("kube_horizontalpodautoscaler_info", ""),
                "scaletargetref_kind",
                "scaletargetref_name",
            ),
            Fact::AutoscalerResource => series(
                "kube_horizontalpodautoscaler_spec_target_metric",
                r#"metric_target_type="utilization""#,
            ),
            Fact::CpuQuantile { per_mille } => {
                let quantile = f64::from(per_mille) / 1_000.0;
                format!("quantile_over_time({quantile}, {})", of_points(UsageKind::Cpu))
            }
            Fact::MemoryPeak => format!("max_over_time({})", of_points(UsageKind::Memory)),
        };
        let LabelNames { namespace, pod: object, container: about } = self.labels(containers);
        format!("max by ({namespace}, {object}, {about}) ({values})")
    }
}

/// Shortest time between two evaluations of a fact: Prometheus loads a sample of each pod for each.
const FACT_STEP_MIN: ConfigDuration = ConfigDuration::from_secs(3_600);

fn over_history(config: &PrometheusConfig, function: &str, selector: &str) -> String {
    let step = config.history_resolution.max(FACT_STEP_MIN).min(config.history_length);
    format!("{function}({selector}[{}:{step}])", config.history_length)
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
        let containers = if fact.is_usage() { self.labels(now).await? } else { LabelNames::modern() };
        let query = |group: &[String]| fact.query(self.config(), &containers, group);
        self.in_groups(query, fact.labels(&containers), namespaces, now, |series| {
            let Series { namespace, pod: object, container: about, samples } = series;
            sink(FactRow { namespace, object, about, value: samples[0].value });
        })
        .await
    }

    /// Sends a query of the present for each group of namespaces, one after the other.
    pub(super) async fn in_groups(
        &self,
        query: impl Fn(&[String]) -> String + Send,
        labels: LabelNames,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(Series<'_>) + Send,
    ) -> Result<ReadSummary, SourceError> {
        let client = self.client();
        let mut summary = ReadSummary::default();
        for group in groups(namespaces) {
            let query = query(&group);
            let response =
                client.query(&query, When::At(now.as_second())).await.map_err(|failure| match failure {
                    Failure::Other(error) => error,
                    Failure::TooMuch(said) => SourceError::TooMuch { url: client.url(), said },
                })?;
            let decoder = Decoder::new(ResultType::Vector, labels.clone());
            summary.add(client.decode(response, &query, decoder, &mut sink).await?);
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
        let count = |selector: &str| format!("count({})", over_history(config, "last_over_time", selector));
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
            Fact::PodOwner.query(&config, &LabelNames::modern(), &[]),
            r#"max by (namespace, pod, berth_owner) (label_join(last_over_time(kube_pod_owner{owner_is_controller!="false"}[192h:1h]), "berth_owner", "/", "owner_kind", "owner_name"))"#
        );
        let group = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            Fact::Request(UsageKind::Cpu).query(&config, &LabelNames::modern(), &group),
            r#"max by (namespace, pod, container) (last_over_time(kube_pod_container_resource_requests{namespace=~"a|b", resource="cpu"}[192h:1h]))"#
        );
    }

    #[test]
    fn kills_are_looked_for_in_the_history_and_autoscalers_now() {
        let config = PrometheusConfig {
            history_resolution: ConfigDuration::from_secs(300),
            memory_peaks: true,
            ..PrometheusConfig::default()
        };
        let query = |fact: Fact, labels: &LabelNames| fact.query(&config, labels, &["a".to_owned()]);
        let modern = |fact| query(fact, &LabelNames::modern());
        assert_eq!(
            modern(Fact::OomKill),
            r#"max by (namespace, pod, container) (max_over_time(kube_pod_container_status_last_terminated_reason{namespace="a", reason="OOMKilled"}[192h:1h]) > 0)"#
        );
        assert_eq!(
            modern(Fact::AutoscalerTarget),
            r#"max by (namespace, horizontalpodautoscaler, berth_owner) (label_join(kube_horizontalpodautoscaler_info{namespace="a", }, "berth_owner", "/", "scaletargetref_kind", "scaletargetref_name"))"#
        );
        assert_eq!(
            modern(Fact::AutoscalerResource),
            r#"max by (namespace, horizontalpodautoscaler, metric_name) (kube_horizontalpodautoscaler_spec_target_metric{namespace="a", metric_target_type="utilization"})"#
        );
        assert_eq!(
            query(Fact::CpuQuantile { per_mille: 995 }, &LabelNames::legacy()),
            r#"max by (namespace, pod_name, container_name) (quantile_over_time(0.995, (max by (namespace, pod_name, container_name) (rate(container_cpu_usage_seconds_total{namespace="a", pod_name=~".+", container_name!="POD", container_name!=""}[5m])))[192h:5m]))"#
        );
        assert_eq!(
            modern(Fact::MemoryPeak),
            r#"max by (namespace, pod, container) (max_over_time((max by (namespace, pod, container) (max_over_time(container_memory_working_set_bytes{namespace="a", pod=~".+", container!="POD", container!=""}[5m])))[192h:5m]))"#
        );
    }
}
