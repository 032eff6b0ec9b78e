//! Queries for service quality signals that return one number. No I/O.

use super::config::PrometheusConfig;
use super::query::{literal, quoted};

/// Signals that the replicas of a service are overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalKind {
    /// Fraction of CFS periods in which the containers were throttled.
    CpuThrottling,
    /// Seconds per second in which some task of a container waited for a CPU (PSI); of the worst pod.
    CpuPressure,
    /// Seconds that tasks waited in run queues, per second that they ran.
    RunQueueLatency,
    /// The 95th percentile of Istio's histograms, in milliseconds.
    RequestLatency,
}

/// The workload that a query is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceName<'a> {
    pub namespace: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

impl ServiceName<'_> {
    /// Returns a regular expression (RE2) that matches the names of its pods.
    pub fn pods(self) -> String {
        let suffix = match self.kind {
            "Deployment" => "-[0-9a-z]+-[0-9a-z]{5}",
            "ReplicaSet" | "ReplicationController" => "-[0-9a-z]{5}",
            "StatefulSet" => "-[0-9]+",
            _ => "-.+",
        };
        format!("{}{suffix}", literal(self.name))
    }
}

/// Returns the query for a signal of a service. `RequestLatency` is measured on the server side.
pub fn signal(config: &PrometheusConfig, kind: SignalKind, service: ServiceName<'_>) -> String {
    let window = config.live_window;
    let rate = |metric: &str| format!("rate({metric}{{{}}}[{window}])", of_containers(config, service));
    match kind {
        SignalKind::CpuThrottling => format!(
            "sum({}) / sum({})",
            rate("container_cpu_cfs_throttled_periods_total"),
            rate("container_cpu_cfs_periods_total")
        ),
        SignalKind::CpuPressure => format!("max({})", rate("container_pressure_cpu_waiting_seconds_total")),
        SignalKind::RunQueueLatency => format!(
            "sum({}) / sum({})",
            rate("container_cpu_schedstat_runqueue_seconds_total"),
            rate("container_cpu_schedstat_run_seconds_total")
        ),
        SignalKind::RequestLatency => format!(
            "histogram_quantile(0.95, sum by (le) (rate(istio_request_duration_milliseconds_bucket{{{}}}[{window}])))",
            of_requests(service)
        ),
    }
}

/// Returns the query for the fraction of a service's requests that succeed, as Istio counts them.
pub fn success_rate(config: &PrometheusConfig, service: ServiceName<'_>) -> String {
    let (window, requests) = (config.live_window, of_requests(service));
    format!(
        r#"sum(rate(istio_requests_total{{{requests}, response_code!~"5.."}}[{window}])) / sum(rate(istio_requests_total{{{requests}}}[{window}]))"#
    )
}

/// Fills `$namespace`, `$name` and `$pods` into a user's query. In PromQL they stand between quotes.
pub fn filled(query: &str, service: ServiceName<'_>) -> String {
    let inner = |text: &str| quoted(text).trim_matches('"').to_owned();
    // `$namespace` before `$name`, which is its prefix.
    query
        .replace("$namespace", &inner(service.namespace))
        .replace("$name", &inner(service.name))
        .replace("$pods", &inner(&service.pods()))
}

fn of_containers(config: &PrometheusConfig, service: ServiceName<'_>) -> String {
    let modern = super::LabelNames::modern();
    let super::LabelNames { namespace, pod, container } = config.labels.as_ref().unwrap_or(&modern);
    let (in_namespace, pods) = (quoted(service.namespace), quoted(&service.pods()));
    format!(r#"{namespace}={in_namespace}, {pod}=~{pods}, {container}!="""#)
}

fn of_requests(service: ServiceName<'_>) -> String {
    let (namespace, name) = (quoted(service.namespace), quoted(service.name));
    format!(
        r#"reporter="destination", destination_workload_namespace={namespace}, destination_workload={name}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: ServiceName<'_> = ServiceName { namespace: "shop", kind: "Deployment", name: "web" };

    #[test]
    fn a_signal_is_asked_of_the_pods_of_the_service_only() {
        let config = PrometheusConfig::default();
        let of = |kind| signal(&config, kind, WEB);
        let pods = r#"namespace="shop", pod=~"web-[0-9a-z]+-[0-9a-z]{5}", container!="""#;
        let expected = format!(
            "sum(rate(container_cpu_cfs_throttled_periods_total{{{pods}}}[{window}])) / sum(rate(container_cpu_cfs_periods_total{{{pods}}}[{window}]))",
            window = config.live_window
        );
        assert_eq!(of(SignalKind::CpuThrottling), expected);
        assert!(
            of(SignalKind::CpuPressure).starts_with("max(rate(container_pressure_cpu_waiting_seconds_total{")
        );
        assert!(of(SignalKind::RunQueueLatency).contains("container_cpu_schedstat_runqueue_seconds_total"));
        assert!(of(SignalKind::RequestLatency).contains(r#"destination_workload="web""#));
        assert!(success_rate(&config, WEB).contains(r#"response_code!~"5..""#));
    }

    #[test]
    fn names_in_a_query_are_replaced_and_cannot_end_its_strings() {
        let query = r#"x{namespace="$namespace", name="$name", pod=~"$pods"}"#;
        assert_eq!(
            filled(query, WEB),
            r#"x{namespace="shop", name="web", pod=~"web-[0-9a-z]+-[0-9a-z]{5}"}"#
        );
        let odd = ServiceName { namespace: "a", kind: "Other", name: "b.c" };
        assert_eq!(filled(r#"x{pod=~"$pods"}"#, odd), r#"x{pod=~"b\\.c-.+"}"#);
        assert!(filled(r#"x{name="$name"}"#, ServiceName { name: r#"a"b"#, ..odd }).contains(r#"a\"b"#));
    }
}
