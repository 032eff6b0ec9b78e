//! Queries for signals of services: one for all services of some namespaces, and their values per service. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_model::ConfigDuration;
use berth_rightsizing::usage::Sample;

use super::config::{LabelNames, PrometheusConfig};
use super::query::{Measure, extra_matchers, literal, namespace_matcher, quoted};
use super::series::Series;

/// Signals of a service: that its replicas are overloaded, or how many of its requests succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignalKind {
    /// Fraction of CFS periods in which the containers were throttled.
    CpuThrottling,
    /// Seconds per second in which some task of a container waited for a CPU (PSI); of the worst pod.
    CpuPressure,
    /// Seconds that tasks waited in run queues, per second that they ran.
    RunQueueLatency,
    /// The 95th percentile on the server side, in milliseconds.
    RequestLatency(RequestSource),
    /// Fraction of requests that do not fail on the server side.
    SuccessRate(RequestSource),
}

/// Who measures the requests of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestSource {
    Istio,
    /// With the labels of linkerd-viz: one of the pod's workload, by its kind.
    Linkerd,
    /// The stable HTTP conventions, with the resource attributes of Kubernetes as labels.
    OpenTelemetry,
}

/// Where the metrics of a [`RequestSource`] are, and what their labels are called.
struct RequestMetrics {
    namespace: &'static str,
    /// One of them is set.
    workloads: &'static [&'static str],
    /// Selects the server side.
    server: &'static str,
    buckets: &'static str,
    /// From the unit of the buckets to milliseconds.
    to_millis: &'static str,
    count: &'static str,
    failed: &'static str,
}

impl RequestSource {
    pub const ALL: [RequestSource; 3] =
        [RequestSource::Istio, RequestSource::Linkerd, RequestSource::OpenTelemetry];

    fn metrics(self) -> RequestMetrics {
        match self {
            RequestSource::Istio => RequestMetrics {
                namespace: "destination_workload_namespace",
                workloads: &["destination_workload"],
                server: r#"reporter="destination""#,
                buckets: "istio_request_duration_milliseconds_bucket",
                to_millis: "",
                count: "istio_requests_total",
                failed: r#"response_code=~"5..""#,
            },
            RequestSource::Linkerd => RequestMetrics {
                namespace: "namespace",
                workloads: &["deployment", "statefulset", "replicaset", "replicationcontroller"],
                server: r#"direction="inbound""#,
                buckets: "response_latency_ms_bucket",
                to_millis: "",
                count: "response_total",
                failed: r#"classification="failure""#,
            },
            // A pod of a Deployment has the label of its ReplicaSet, too.
            RequestSource::OpenTelemetry => RequestMetrics {
                namespace: "k8s_namespace_name",
                workloads: &["k8s_deployment_name", "k8s_statefulset_name"],
                server: "",
                buckets: "http_server_request_duration_seconds_bucket",
                to_millis: "1000 * ",
                count: "http_server_request_duration_seconds_count",
                failed: r#"http_response_status_code=~"5..""#,
            },
        }
    }

    /// Returns the window of rates. OpenTelemetry's metrics are pushed once a minute by default, and a rate needs two points.
    fn window(self, window: ConfigDuration) -> ConfigDuration {
        match self {
            RequestSource::Istio | RequestSource::Linkerd => window,
            RequestSource::OpenTelemetry => ConfigDuration::new(window.get().max(PUSHED_WINDOW)),
        }
    }
}

/// Two and a half minutes.
const PUSHED_WINDOW: Duration = Duration::from_secs(150);

/// Label of a result: which half of a fraction it is.
const PART: &str = "berth_part";
const NUMERATOR: &str = "numerator";
const DENOMINATOR: &str = "denominator";
/// Label of a result: the workload, where one of several labels has it.
const WORKLOAD: &str = "berth_workload";

impl SignalKind {
    /// Returns the name in metrics and in ServiceScalers.
    pub fn name(self) -> &'static str {
        match self {
            SignalKind::CpuThrottling => "CpuThrottling",
            SignalKind::CpuPressure => "CpuPressure",
            SignalKind::RunQueueLatency => "RunQueueLatency",
            SignalKind::RequestLatency(_) => "RequestLatency",
            SignalKind::SuccessRate(_) => "SuccessRate",
        }
    }

    /// Whether a result is of a workload. Otherwise it is of a pod.
    fn is_of_workload(self) -> bool {
        matches!(self, SignalKind::RequestLatency(_) | SignalKind::SuccessRate(_))
    }
}

impl Measure for SignalKind {
    /// Returns a query with one result per pod, or two for a fraction, whose halves are summed over the pods of a service before
    /// they are divided; or with one result per workload.
    fn query(
        self,
        config: &PrometheusConfig,
        labels: &LabelNames,
        window: ConfigDuration,
        group: &[String],
    ) -> String {
        let LabelNames { namespace, pod, container } = labels;
        let extra = extra_matchers(config);
        let in_namespaces = namespace_matcher(namespace, group);
        let of_containers = |metric: &str| {
            format!(r#"rate({metric}{{{extra}{in_namespaces}{pod}=~".+", {container}!=""}}[{window}])"#)
        };
        let fraction = |numerator: &str, denominator: &str| {
            let half = |part: &str, metric: &str| {
                let sum = format!("sum by ({namespace}, {pod}) ({})", of_containers(metric));
                format!(r#"label_replace({sum}, "{PART}", "{part}", "", "")"#)
            };
            format!("{} or {}", half(NUMERATOR, numerator), half(DENOMINATOR, denominator))
        };
        // Without requests both are NaN, which `>= 0` leaves out.
        match self {
            SignalKind::CpuThrottling => {
                fraction("container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total")
            }
            SignalKind::CpuPressure => format!(
                "max by ({namespace}, {pod}) ({})",
                of_containers("container_pressure_cpu_waiting_seconds_total")
            ),
            SignalKind::RunQueueLatency => fraction(
                "container_cpu_schedstat_runqueue_seconds_total",
                "container_cpu_schedstat_run_seconds_total",
            ),
            SignalKind::RequestLatency(source) => {
                let RequestMetrics { namespace, buckets, to_millis, .. } = source.metrics();
                let (rate, workload) = requests(source, &extra, window, group);
                let rate = rate(buckets, "");
                format!(
                    "{to_millis}histogram_quantile(0.95, sum by (le, {namespace}, {workload}) ({rate})) >= 0"
                )
            }
            SignalKind::SuccessRate(source) => {
                let RequestMetrics { namespace, count, failed, .. } = source.metrics();
                let (rate, workload) = requests(source, &extra, window, group);
                let sum = |more: &str| format!("sum by ({namespace}, {workload}) ({})", rate(count, more));
                // There is no series of failures before the first one, nor of successes.
                format!("1 - ({} or 0 * {all}) / {all} >= 0", sum(failed), all = sum(""))
            }
        }
    }

    fn labels(self, labels: &LabelNames) -> LabelNames {
        let LabelNames { namespace, pod, .. } = labels.clone();
        match self {
            SignalKind::CpuThrottling | SignalKind::RunQueueLatency => {
                LabelNames { namespace, pod, container: PART.to_owned() }
            }
            SignalKind::CpuPressure => LabelNames { namespace, pod, container: String::new() },
            SignalKind::RequestLatency(source) | SignalKind::SuccessRate(source) => {
                let RequestMetrics { namespace, workloads, .. } = source.metrics();
                LabelNames {
                    namespace: namespace.to_owned(),
                    pod: workload_label(workloads).to_owned(),
                    container: String::new(),
                }
            }
        }
    }
}

/// Returns the label of a result with the workload.
fn workload_label(workloads: &[&'static str]) -> &'static str {
    if let [workload] = workloads { workload } else { WORKLOAD }
}

/// Returns the rate of a metric with some matchers more, and the label that names the workload in it.
fn requests(
    source: RequestSource,
    extra: &str,
    window: ConfigDuration,
    group: &[String],
) -> (impl Fn(&str, &str) -> String, &'static str) {
    let RequestMetrics { namespace, workloads, server, .. } = source.metrics();
    let (in_namespaces, window) = (namespace_matcher(namespace, group), source.window(window));
    let label = workload_label(workloads);
    let ours = format!("{extra}{in_namespaces}");
    let rate = move |metric: &str, more: &str| {
        let matchers = [ours.trim_end_matches([',', ' ']), server, more];
        let matchers: Vec<&str> = matchers.into_iter().filter(|matcher| !matcher.is_empty()).collect();
        let rate = format!("rate({metric}{{{}}}[{window}])", matchers.join(", "));
        match workloads {
            [_] => rate,
            several => {
                let labels: Vec<String> = several.iter().map(|label| format!("\"{label}\"")).collect();
                format!(r#"label_join({rate}, "{label}", "", {})"#, labels.join(", "))
            }
        }
    };
    (rate, label)
}

/// Values of one signal in some namespaces.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalValues {
    kind: SignalKind,
    /// Evaluation time, in seconds since 1970.
    at: f64,
    /// By namespace, then by pod or workload.
    values: BTreeMap<Box<str>, BTreeMap<Box<str>, Halves>>,
}

/// The value, or the halves of a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Halves {
    numerator: Option<f64>,
    denominator: Option<f64>,
}

impl SignalValues {
    pub fn new(kind: SignalKind) -> SignalValues {
        SignalValues { kind, at: f64::NEG_INFINITY, values: BTreeMap::new() }
    }

    /// Adds one result of the query.
    pub fn add(&mut self, series: &Series<'_>) {
        let Some(sample) = series.samples.last() else { return };
        self.at = self.at.max(sample.at);
        let of_namespace = match self.values.get_mut(series.namespace) {
            Some(of_namespace) => of_namespace,
            None => self.values.entry(series.namespace.into()).or_default(),
        };
        let halves = of_namespace.entry(series.pod.into()).or_default();
        let half = match series.container == DENOMINATOR {
            true => &mut halves.denominator,
            false => &mut halves.numerator,
        };
        *half = Some(sample.value);
    }

    /// Returns the value for a service: a fraction of the sums over its pods, the maximum of its pods, or that of its workload.
    /// `None`: no series of it, or nothing happened. Pods that are not named count for nothing.
    pub fn of<'a>(
        &self,
        namespace: &str,
        workload: &str,
        pods: impl IntoIterator<Item = &'a str>,
    ) -> Option<Sample> {
        let of_namespace = self.values.get(namespace)?;
        if self.kind.is_of_workload() {
            let value = of_namespace.get(workload)?.numerator?;
            return Some(Sample { at: self.at, value });
        }
        let of_pods = pods.into_iter().filter_map(|pod| of_namespace.get(pod));
        let value = match self.kind {
            SignalKind::CpuPressure => of_pods.filter_map(|it| it.numerator).reduce(f64::max)?,
            _ => {
                let sum = |sum: Option<f64>, more: Option<f64>| match more {
                    Some(more) => Some(sum.unwrap_or(0.0) + more),
                    None => sum,
                };
                let (numerator, denominator) = of_pods.fold((None, None), |(numerator, denominator), it| {
                    (sum(numerator, it.numerator), sum(denominator, it.denominator))
                });
                numerator? / denominator?
            }
        };
        value.is_finite().then_some(Sample { at: self.at, value })
    }
}

/// The workload that a custom query is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceName<'a> {
    pub namespace: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

/// The API server cuts `metadata.generateName` to this number of bytes, and adds five letters and digits.
const GENERATED_BASE_MAX: usize = 58;
/// Maximum length of the hash in the name of a Deployment's ReplicaSet.
const HASH_MAX: usize = 10;

impl ServiceName<'_> {
    /// Returns a regular expression (RE2) that matches the names of its pods. Names that are cut match more than those of its pods.
    pub fn pods(self) -> String {
        let base = format!("{}-", self.name);
        let (suffix, base_max) = match self.kind {
            "Deployment" => ("[0-9a-z]+-[0-9a-z]{5}", base.len() + HASH_MAX + 1),
            "ReplicaSet" | "ReplicationController" => ("[0-9a-z]{5}", base.len()),
            // Not generated, and never cut.
            "StatefulSet" => ("[0-9]+", 0),
            _ => (".+", 0),
        };
        if base_max <= GENERATED_BASE_MAX {
            return format!("{}{suffix}", literal(&base));
        }
        let end = (0..=base.len().min(GENERATED_BASE_MAX)).rev().find(|at| base.is_char_boundary(*at));
        format!("{}[-0-9a-z]+", literal(&base[..end.unwrap_or(0)]))
    }

    /// Returns whether this is the name of one of its pods, which may be gone. Of names that are cut, none is.
    pub fn has_pod(self, pod: &str) -> bool {
        let Some(suffix) = pod.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('-')) else {
            return false;
        };
        let is_generated = |part: &str| part.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
        let is_of_set = |part: &str| part.len() == 5 && is_generated(part);
        let is_of_deployment = |suffix: &str| {
            suffix.split_once('-').is_some_and(|(hash, end)| {
                !hash.is_empty() && hash.len() <= HASH_MAX && is_generated(hash) && is_of_set(end)
            })
        };
        let is_ordinal = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        match self.kind {
            "Deployment" => is_of_deployment(suffix),
            "ReplicaSet" | "ReplicationController" => is_of_set(suffix),
            "StatefulSet" => is_ordinal(suffix),
            _ => is_of_deployment(suffix) || is_of_set(suffix) || is_ordinal(suffix),
        }
    }
}

/// Fills `$namespace`, `$name`, `$pods` and `$matchers` into a user's query. In PromQL the first three stand between quotes;
/// `$matchers` stands for the configured matchers, separated by commas.
pub fn filled(config: &PrometheusConfig, query: &str, service: ServiceName<'_>) -> String {
    let inner = |text: &str| quoted(text).trim_matches('"').to_owned();
    // `$namespace` before `$name`, which is its prefix.
    query
        .replace("$matchers", extra_matchers(config).trim_end_matches([',', ' ']))
        .replace("$namespace", &inner(service.namespace))
        .replace("$name", &inner(service.name))
        .replace("$pods", &inner(&service.pods()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: ServiceName<'_> = ServiceName { namespace: "shop", kind: "Deployment", name: "web" };

    fn query(config: &PrometheusConfig, kind: SignalKind, namespaces: &[&str]) -> String {
        let group: Vec<String> = namespaces.iter().map(|name| (*name).to_owned()).collect();
        kind.query(config, &LabelNames::modern(), config.live_window, &group)
    }

    #[test]
    fn a_signal_of_all_pods_of_some_namespaces_is_one_query() {
        let config = PrometheusConfig::default();
        let of = |kind| query(&config, kind, &["bank", "shop"]);
        let pods = r#"namespace=~"bank|shop", pod=~".+", container!="""#;
        let half = |part: &str, metric: &str| {
            format!(
                r#"label_replace(sum by (namespace, pod) (rate({metric}{{{pods}}}[5m])), "berth_part", "{part}", "", "")"#
            )
        };
        let throttling = [
            half("numerator", "container_cpu_cfs_throttled_periods_total"),
            half("denominator", "container_cpu_cfs_periods_total"),
        ];
        assert_eq!(of(SignalKind::CpuThrottling), throttling.join(" or "));
        assert_eq!(
            of(SignalKind::CpuPressure),
            format!(
                "max by (namespace, pod) (rate(container_pressure_cpu_waiting_seconds_total{{{pods}}}[5m]))"
            )
        );
        assert!(of(SignalKind::RunQueueLatency).contains("container_cpu_schedstat_runqueue_seconds_total"));
        assert_eq!(
            of(SignalKind::RequestLatency(RequestSource::Istio)),
            r#"histogram_quantile(0.95, sum by (le, destination_workload_namespace, destination_workload) (rate(istio_request_duration_milliseconds_bucket{destination_workload_namespace=~"bank|shop", reporter="destination"}[5m]))) >= 0"#
        );
        let wide = of(SignalKind::RequestLatency(RequestSource::OpenTelemetry));
        assert!(wide.contains("[5m]"), "{wide}");
        let narrow = PrometheusConfig { live_window: "1m".parse().unwrap(), ..config };
        let pushed = query(&narrow, SignalKind::SuccessRate(RequestSource::OpenTelemetry), &["shop"]);
        assert!(pushed.contains("[2m30s]") && !pushed.contains("[1m]"), "{pushed}");
    }

    fn values(kind: SignalKind, results: &[(&str, &str, &str, f64)]) -> SignalValues {
        let mut values = SignalValues::new(kind);
        for (namespace, pod, container, value) in results {
            values.add(&Series { namespace, pod, container, samples: &[Sample { at: 7.0, value: *value }] });
        }
        values
    }

    #[test]
    fn a_fraction_is_of_the_sums_over_the_pods_of_a_service() {
        let throttling = values(
            SignalKind::CpuThrottling,
            &[
                ("shop", "a", NUMERATOR, 1.0),
                ("shop", "a", DENOMINATOR, 2.0),
                ("shop", "b", NUMERATOR, 0.0),
                ("shop", "b", DENOMINATOR, 8.0),
                ("shop", "c", DENOMINATOR, 3.0),
                ("bank", "a", NUMERATOR, 9.0),
                ("bank", "idle", NUMERATOR, 0.0),
                ("bank", "idle", DENOMINATOR, 0.0),
            ],
        );
        let of = |namespace, pods: &[&str]| {
            throttling.of(namespace, "web", pods.iter().copied()).map(|it| (it.at, it.value))
        };
        assert_eq!(of("shop", &["a", "b"]), Some((7.0, 0.1)));
        assert_eq!(of("shop", &["a"]), Some((7.0, 0.5)));
        assert_eq!(of("shop", &["c"]), None, "without throttled periods there is no such metric");
        assert_eq!(of("bank", &["a"]), None);
        assert_eq!(of("bank", &["idle"]), None, "0 / 0");
        assert_eq!((of("shop", &["gone"]), of("none", &["a"])), (None, None));
    }

    #[test]
    fn pressure_is_that_of_the_worst_pod_and_requests_are_of_the_workload() {
        let pressure = values(
            SignalKind::CpuPressure,
            &[("shop", "a", "", 0.2), ("shop", "b", "", 0.7), ("shop", "c", "", 0.9)],
        );
        assert_eq!(pressure.of("shop", "web", ["a", "b"]).map(|it| it.value), Some(0.7));
        let latency = values(SignalKind::RequestLatency(RequestSource::Istio), &[("shop", "web", "", 120.0)]);
        assert_eq!(latency.of("shop", "web", []).map(|it| it.value), Some(120.0));
        assert_eq!(latency.of("shop", "cart", ["web"]), None);
    }

    /// Generated names cut their base at 58 bytes: matched by their names, such services had no signal.
    #[test]
    fn a_service_with_a_long_name_has_a_signal() {
        let name = "a".repeat(52);
        let pod = format!("{}x7k2p", &format!("{name}-6d4b75cb6d-")[..58]);
        let results = [("shop", &*pod, NUMERATOR, 1.0), ("shop", &*pod, DENOMINATOR, 4.0)];
        let throttling = values(SignalKind::CpuThrottling, &results);
        assert_eq!(throttling.of("shop", &name, [&*pod]).map(|it| it.value), Some(0.25));
    }

    #[test]
    fn names_in_a_query_are_replaced_and_cannot_end_its_strings() {
        let config = PrometheusConfig::default();
        let query = r#"x{namespace="$namespace", name="$name", pod=~"$pods"}"#;
        assert_eq!(
            filled(&config, query, WEB),
            r#"x{namespace="shop", name="web", pod=~"web-[0-9a-z]+-[0-9a-z]{5}"}"#
        );
        let odd = ServiceName { namespace: "a", kind: "Other", name: "b.c" };
        assert_eq!(filled(&config, r#"x{pod=~"$pods"}"#, odd), r#"x{pod=~"b\\.c-.+"}"#);
        assert!(
            filled(&config, r#"x{name="$name"}"#, ServiceName { name: r#"a"b"#, ..odd }).contains(r#"a\"b"#)
        );
    }

    #[test]
    fn pods_match_their_names_even_where_they_are_cut() {
        let of = |kind: &'static str, length: usize| {
            let name = "n".repeat(length);
            ServiceName { namespace: "shop", kind, name: &name }.pods()
        };
        assert!(of("Deployment", 46).ends_with("-[0-9a-z]+-[0-9a-z]{5}"));
        assert_eq!(of("Deployment", 47), format!("{}-[-0-9a-z]+", "n".repeat(47)));
        assert_eq!(of("Deployment", 60), format!("{}[-0-9a-z]+", "n".repeat(58)));
        assert!(of("ReplicaSet", 57).ends_with("n-[0-9a-z]{5}"));
        assert_eq!(of("ReplicaSet", 58), format!("{}[-0-9a-z]+", "n".repeat(58)));
        assert!(of("StatefulSet", 60).ends_with("n-[0-9]+"));
    }

    #[test]
    fn a_pod_belongs_to_its_workload_and_to_none_whose_name_begins_as_its_own() {
        let has =
            |kind: &str, name: &str, pod: &str| ServiceName { namespace: "shop", kind, name }.has_pod(pod);
        assert!(has("Deployment", "web", "web-6d4b75cb6d-x7k2p"));
        assert!(!has("Deployment", "web", "web-api-6d4b75cb6d-x7k2p"));
        assert!(!has("Deployment", "web-api", "web-6d4b75cb6d-x7k2p"));
        assert!(
            !has("Deployment", "web", "web-0")
                && !has("Deployment", "web", "web")
                && !has("Deployment", "web", "webs-a-abcde")
        );
        assert!(has("StatefulSet", "web", "web-12") && !has("StatefulSet", "web", "web-x7k2p"));
        assert!(has("ReplicaSet", "web", "web-x7k2p") && !has("ReplicaSet", "web", "web-0"));
        assert!(has("Rollout", "web", "web-6d4b75cb6d-x7k2p") && !has("Rollout", "web", "web-api-1"));
    }
}
