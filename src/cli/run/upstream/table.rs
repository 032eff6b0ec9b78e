//! Flags of the upstream recommender 1.8.1, except `--kubeconfig` and `--leader-elect`, which berth has too.

use super::Effect::{Credentials, LeaderElection, Needless, Prometheus, Recommender, Refused};
use super::{Effect, Flag};
use berth_config::Storage;
use berth_model::ConfigDuration;
use berth_prometheus::{BasicAuth, LabelNames, PrometheusConfig, Secret};

const fn flag(name: &'static str, effect: Effect) -> Flag {
    Flag { name, is_bool: false, effect }
}

const fn switch(name: &'static str, effect: Effect) -> Flag {
    Flag { name, is_bool: true, effect }
}

const LOGS: &str =
    "berth logs to standard error; RUST_LOG=berth=debug logs more, and logFormat sets the format";
const RATE: &str =
    "berth sends only the requests that a round needs; recommender.updateWorkers limits its writes";
const OWNERS: &str = "pods are assigned by their owners and not by labels in Prometheus";
const EXTERNAL: &str =
    "external metrics are not supported; set the metrics in recommender.prometheus (cpuMetric, memoryMetric)";

/// In the order in which they are applied.
pub(super) const FLAGS: &[Flag] = &[
    flag("storage", Recommender("recommender.storage", |it, text| set(&mut it.storage, storage(text)))),
    flag("recommender-name", Recommender("recommender.name", |it, text| set(&mut it.name, name(text)))),
    flag(
        "recommender-interval",
        Recommender("recommender.interval", |it, text| set(&mut it.interval, duration(text))),
    ),
    flag(
        "checkpoints-timeout",
        Recommender("recommender.checkpointsTimeout", |it, text| {
            set(&mut it.checkpoints_timeout, duration(text))
        }),
    ),
    flag(
        "checkpoints-gc-interval",
        Recommender("recommender.checkpointsGcInterval", |it, text| {
            set(&mut it.checkpoints_gc_interval, duration(text))
        }),
    ),
    flag(
        "update-worker-count",
        Recommender("recommender.updateWorkers", |it, text| set(&mut it.update_workers, whole(text))),
    ),
    flag(
        "vpa-object-namespace",
        Recommender("recommender.namespaces", |it, text| set(&mut it.namespaces, Ok(list(text)))),
    ),
    flag(
        "ignored-vpa-object-namespaces",
        Recommender("recommender.ignoredNamespaces", |it, text| {
            set(&mut it.ignored_namespaces, Ok(list(text)))
        }),
    ),
    flag(
        "recommendation-margin-fraction",
        Recommender("recommender.marginFraction", |it, text| set(&mut it.margin_fraction, number(text))),
    ),
    flag(
        "pod-recommendation-min-cpu-millicores",
        Recommender("recommender.podMinCpuMillicores", |it, text| {
            set(&mut it.pod_min_cpu_millicores, whole(text))
        }),
    ),
    flag(
        "pod-recommendation-min-memory-mb",
        Recommender("recommender.podMinMemoryMb", |it, text| set(&mut it.pod_min_memory_mb, whole(text))),
    ),
    flag(
        "target-cpu-percentile",
        Recommender("recommender.cpu.targetPercentile", |it, text| {
            set(&mut it.cpu.target_percentile, number(text))
        }),
    ),
    flag(
        "recommendation-lower-bound-cpu-percentile",
        Recommender("recommender.cpu.lowerBoundPercentile", |it, text| {
            set(&mut it.cpu.lower_bound_percentile, number(text))
        }),
    ),
    flag(
        "recommendation-upper-bound-cpu-percentile",
        Recommender("recommender.cpu.upperBoundPercentile", |it, text| {
            set(&mut it.cpu.upper_bound_percentile, number(text))
        }),
    ),
    flag(
        "confidence-interval-cpu",
        Recommender("recommender.cpu.confidenceInterval", |it, text| {
            set(&mut it.cpu.confidence_interval, duration(text))
        }),
    ),
    flag(
        "cpu-histogram-decay-half-life",
        Recommender("recommender.cpu.halfLife", |it, text| set(&mut it.cpu.half_life, duration(text))),
    ),
    flag(
        "target-memory-percentile",
        Recommender("recommender.memory.targetPercentile", |it, text| {
            set(&mut it.memory.target_percentile, number(text))
        }),
    ),
    flag(
        "recommendation-lower-bound-memory-percentile",
        Recommender("recommender.memory.lowerBoundPercentile", |it, text| {
            set(&mut it.memory.lower_bound_percentile, number(text))
        }),
    ),
    flag(
        "recommendation-upper-bound-memory-percentile",
        Recommender("recommender.memory.upperBoundPercentile", |it, text| {
            set(&mut it.memory.upper_bound_percentile, number(text))
        }),
    ),
    flag(
        "confidence-interval-memory",
        Recommender("recommender.memory.confidenceInterval", |it, text| {
            set(&mut it.memory.confidence_interval, duration(text))
        }),
    ),
    flag(
        "memory-histogram-decay-half-life",
        Recommender("recommender.memory.halfLife", |it, text| set(&mut it.memory.half_life, duration(text))),
    ),
    flag(
        "memory-aggregation-interval",
        Recommender("recommender.memoryAggregationInterval", |it, text| {
            set(&mut it.memory_aggregation_interval, duration(text))
        }),
    ),
    flag(
        "memory-aggregation-interval-count",
        Recommender("recommender.memoryAggregationIntervalCount", |it, text| {
            set(&mut it.memory_aggregation_interval_count, whole(text))
        }),
    ),
    flag(
        "oom-bump-up-ratio",
        Recommender("recommender.oomBumpUpRatio", |it, text| set(&mut it.oom_bump_up_ratio, number(text))),
    ),
    flag(
        "oom-min-bump-up-bytes",
        Recommender("recommender.oomMinBumpUpBytes", |it, text| {
            set(&mut it.oom_min_bump_up_bytes, whole(text))
        }),
    ),
    flag(
        "round-cpu-millicores",
        Recommender("recommender.roundCpuMillicores", |it, text| {
            set(&mut it.round_cpu_millicores, whole(text))
        }),
    ),
    flag(
        "round-memory-bytes",
        Recommender("recommender.roundMemoryBytes", |it, text| set(&mut it.round_memory_bytes, whole(text))),
    ),
    flag(
        "container-recommendation-max-allowed-cpu",
        Recommender("recommender.maxAllowedCpu", |it, text| set(&mut it.max_allowed_cpu, Ok(optional(text)))),
    ),
    flag(
        "container-recommendation-max-allowed-memory",
        Recommender("recommender.maxAllowedMemory", |it, text| {
            set(&mut it.max_allowed_memory, Ok(optional(text)))
        }),
    ),
    flag(
        "prometheus-address",
        Prometheus("recommender.prometheus.url", |it, text| set(&mut it.url, name(text))),
    ),
    switch(
        "prometheus-insecure",
        Prometheus("recommender.prometheus.insecureSkipVerify", |it, text| {
            set(&mut it.insecure_skip_verify, truth(text))
        }),
    ),
    flag(
        "prometheus-cadvisor-job-name",
        Prometheus("recommender.prometheus.jobName", |it, text| set(&mut it.job_name, name(text))),
    ),
    flag(
        "history-length",
        Prometheus("recommender.prometheus.historyLength", |it, text| {
            set(&mut it.history_length, long(text))
        }),
    ),
    flag(
        "history-resolution",
        Prometheus("recommender.prometheus.historyResolution", |it, text| {
            set(&mut it.history_resolution, long(text))
        }),
    ),
    flag(
        "history-cpu-metric",
        Prometheus("recommender.prometheus.cpuMetric", |it, text| set(&mut it.cpu_metric, name(text))),
    ),
    flag(
        "history-memory-metric",
        Prometheus("recommender.prometheus.memoryMetric", |it, text| set(&mut it.memory_metric, name(text))),
    ),
    flag(
        "prometheus-query-timeout",
        Prometheus("recommender.prometheus.queryTimeout", |it, text| set(&mut it.query_timeout, long(text))),
    ),
    flag(
        "container-namespace-label",
        Prometheus("recommender.prometheus.labels.namespace", |it, text| {
            set(&mut labels(it).namespace, name(text))
        }),
    ),
    flag(
        "container-pod-name-label",
        Prometheus("recommender.prometheus.labels.pod", |it, text| set(&mut labels(it).pod, name(text))),
    ),
    flag(
        "container-name-label",
        Prometheus("recommender.prometheus.labels.container", |it, text| {
            set(&mut labels(it).container, name(text))
        }),
    ),
    flag(
        "username",
        Credentials("recommender.prometheus.basicAuth.user", |it, text| set(&mut basic(it).user, name(text))),
    ),
    flag(
        "password",
        Credentials("recommender.prometheus.basicAuth.password", |it, text| {
            set(&mut basic(it).password, Ok(Some(Secret::new(text))))
        }),
    ),
    flag(
        "prometheus-bearer-token",
        Credentials("recommender.prometheus.bearerToken", |it, text| {
            set(&mut it.bearer_token, Ok(Some(Secret::new(text))))
        }),
    ),
    flag(
        "prometheus-bearer-token-file",
        Credentials("recommender.prometheus.bearerTokenFile", |it, text| {
            set(&mut it.bearer_token_file, Ok(Some(text.into())))
        }),
    ),
    flag(
        "leader-elect-lease-duration",
        LeaderElection("leaderElection.leaseDuration", |it, text| {
            set(&mut it.lease_duration, duration(text))
        }),
    ),
    flag(
        "leader-elect-renew-deadline",
        LeaderElection("leaderElection.renewDeadline", |it, text| {
            set(&mut it.renew_deadline, duration(text))
        }),
    ),
    flag(
        "leader-elect-retry-period",
        LeaderElection("leaderElection.retryPeriod", |it, text| set(&mut it.retry_period, duration(text))),
    ),
    flag(
        "leader-elect-resource-name",
        LeaderElection("leaderElection.name", |it, text| set(&mut it.name, name(text))),
    ),
    flag(
        "leader-elect-resource-namespace",
        LeaderElection("leaderElection.namespace", |it, text| set(&mut it.namespace, name(text))),
    ),
    flag(
        "leader-elect-resource-lock",
        LeaderElection("leaderElection", |_, text| match text {
            "leases" => Ok(()),
            other => Err(format!("`{other}` is not supported, the only lock is leases")),
        }),
    ),
    flag(
        "address",
        Refused("metrics are served at healthAddress and serving.address: give --health-address"),
    ),
    switch("use-external-metrics", Refused(EXTERNAL)),
    flag("external-metrics-cpu-metric", Refused(EXTERNAL)),
    flag("external-metrics-memory-metric", Refused(EXTERNAL)),
    switch("humanize-memory", Refused("it is deprecated upstream; round with --round-memory-bytes")),
    switch("profiling", Refused("profiling is not supported")),
    flag("kube-api-qps", Needless(RATE)),
    flag("kube-api-burst", Needless(RATE)),
    switch("memory-saver", Needless("only pods of workloads with a VPA are watched")),
    flag("min-checkpoints", Needless("it has no effect upstream either")),
    switch(
        "cpu-integer-post-processor-enabled",
        Needless(
            "a VPA's annotation vpa-post-processor.kubernetes.io/CONTAINER_integerCPU is always respected",
        ),
    ),
    flag("feature-gates", Needless("settings in a VPA (PerVPAConfig) are always respected")),
    flag("metric-for-pod-labels", Needless(OWNERS)),
    flag("pod-label-prefix", Needless(OWNERS)),
    flag("pod-name-label", Needless(OWNERS)),
    flag("pod-namespace-label", Needless(OWNERS)),
    switch("add-dir-header", Needless(LOGS)),
    switch("alsologtostderr", Needless(LOGS)),
    flag("alsologtostderrthreshold", Needless(LOGS)),
    switch("legacy-stderr-threshold-behavior", Needless(LOGS)),
    flag("log-backtrace-at", Needless(LOGS)),
    flag("log-dir", Needless(LOGS)),
    flag("log-file", Needless(LOGS)),
    flag("log-file-max-size", Needless(LOGS)),
    switch("logtostderr", Needless(LOGS)),
    switch("one-output", Needless(LOGS)),
    switch("skip-headers", Needless(LOGS)),
    switch("skip-log-headers", Needless(LOGS)),
    flag("stderrthreshold", Needless(LOGS)),
    flag("v", Needless(LOGS)),
    flag("vmodule", Needless(LOGS)),
];

fn set<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

fn name(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn optional(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn storage(text: &str) -> Result<Storage, String> {
    match text {
        "checkpoint" | "" => Ok(Storage::Checkpoint),
        "prometheus" => Ok(Storage::Prometheus),
        other => Err(format!("`{other}` is neither checkpoint nor prometheus")),
    }
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("`{other}` is neither true nor false")),
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

/// Parses a whole number. Upstream has some of these as fractions, and writes large ones as `1.048576e+08`.
fn whole(text: &str) -> Result<u32, String> {
    let number = number(text)?;
    match number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        true => Ok(number as u32),
        false => Err(format!("`{text}` is not a whole number from 0 to {}", u32::MAX)),
    }
}

fn duration(text: &str) -> Result<ConfigDuration, String> {
    text.parse().map_err(|error: berth_model::DurationError| error.to_string())
}

/// Parses a duration of Prometheus, `1w2d12h`, which has longer units than Go's.
fn long(text: &str) -> Result<ConfigDuration, String> {
    const HOURS: [(char, u64); 3] = [('y', 365 * 24), ('w', 7 * 24), ('d', 24)];
    let (mut rest, mut hours) = (text, 0_u64);
    for (unit, hours_each) in HOURS {
        let Some((count, after)) = rest.split_once(unit) else { continue };
        let count: u64 =
            count.parse().map_err(|_| format!("`{text}` is not a duration such as 8d, 1w or 12h30m"))?;
        hours = hours.saturating_add(count.saturating_mul(hours_each));
        rest = after;
    }
    match (hours, rest) {
        (0, rest) => duration(rest),
        (hours, rest) => duration(&format!("{hours}h{rest}")),
    }
}

/// Returns the label names; upstream's by default.
fn labels(config: &mut PrometheusConfig) -> &mut LabelNames {
    config.labels.get_or_insert_with(|| LabelNames {
        namespace: "namespace".to_owned(),
        pod: "pod_name".to_owned(),
        container: "name".to_owned(),
    })
}

fn basic(config: &mut PrometheusConfig) -> &mut BasicAuth {
    config.basic_auth.get_or_insert_default()
}
