//! Configuration of the recommender: scope, source of usage, and estimation of requests.

mod apply;
mod scope;

use berth_model::validate::{DAY, MONTH, SECOND, lasts, refuse, whole_number, within};
use berth_model::{ConfigDuration, InvalidField, PerResource, Quantity};
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::dimension::DimensionConfig;
use super::values::names;
pub use apply::Apply;
use berth_prometheus::PrometheusConfig;
use berth_rightsizing::recommend::post::OptionalAmounts;
use berth_rightsizing::recommend::{RecommenderSettings, ResourceSettings, Thresholds};
pub use scope::AutoCreate;

/// Recommends requests in the status of VerticalPodAutoscalers. The defaults are those of the upstream
/// recommender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Recommender {
    /// Enable the recommender. Only the process that holds the Lease recommends.
    pub enabled: bool,
    /// VPAs with this name in `spec.recommenders` are processed. `default` also selects VPAs that name no
    /// recommender; no other recommender with that name may run then.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Process only VPAs of these namespaces. Empty: all namespaces.
    #[serde(deserialize_with = "names")]
    #[schemars(extend("uniqueItems" = true), inner(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")))]
    pub namespaces: Vec<String>,
    /// Ignore VPAs of these namespaces. Excludes `namespaces`.
    #[serde(deserialize_with = "names")]
    #[schemars(extend("uniqueItems" = true), inner(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")))]
    pub ignored_namespaces: Vec<String>,
    /// VPAs that berth creates for workloads that have none.
    pub auto_create: AutoCreate,
    /// Interval at which samples are taken and recommendations are made.
    pub interval: ConfigDuration,
    /// Source of the usage before the start: `checkpoint` (VerticalPodAutoscalerCheckpoint objects) or
    /// `prometheus`. Checkpoints are always written.
    pub storage: Storage,
    /// A Prometheus that has the usage of containers. If unset, samples come from `metrics.k8s.io`.
    pub prometheus: Option<PrometheusConfig>,
    /// Minimum changes of a recommendation; smaller changes are not written.
    pub status_thresholds: StatusThresholds,
    /// Maximum number of concurrent writes of status and checkpoints.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 64))]
    pub update_workers: u32,
    /// Interval at which the checkpoints of containers with new samples are written.
    pub checkpoints_interval: ConfigDuration,
    /// Timeout of one round of checkpoint writes; those that have waited longest are written first.
    pub checkpoints_timeout: ConfigDuration,
    /// Interval of the search for unused checkpoints. A checkpoint is deleted when two searches find it
    /// unused.
    pub checkpoints_gc_interval: ConfigDuration,
    /// Estimation of CPU.
    pub cpu: Estimation,
    /// Estimation of memory.
    pub memory: Estimation,
    /// Safety margin that is added to the estimate, as a fraction of it.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub margin_fraction: f64,
    /// Minimum CPU of all containers of a pod together, in millicores.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub pod_min_cpu_millicores: u32,
    /// Minimum memory of all containers of a pod together, in MiB.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1048576))]
    pub pod_min_memory_mb: u32,
    /// CPU recommendations are rounded up to multiples of this, in millicores.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000000))]
    pub round_cpu_millicores: u32,
    /// Memory recommendations are rounded up to multiples of this, in bytes.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1073741824))]
    pub round_memory_bytes: u32,
    /// Maximum CPU of a container whose VPA sets no maximum, such as `4` or `1500m`.
    pub max_allowed_cpu: Option<String>,
    /// Maximum memory of a container whose VPA sets no maximum, such as `8Gi`.
    pub max_allowed_memory: Option<String>,
    /// Cap recommendations so that each pod still fits on at least one node that it may run on, beside the
    /// DaemonSets there. Never below the requests of pods that have started, and not where a pod may run on
    /// nodes of Karpenter, which adds larger ones. Disable it where another autoscaler can add larger nodes.
    pub cap_to_nodes: bool,
    /// Aggregation interval of memory: one peak per container and interval is a sample.
    pub memory_aggregation_interval: ConfigDuration,
    /// Number of memory aggregation intervals without samples after which the history of a container is
    /// deleted.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub memory_aggregation_interval_count: u32,
    /// Memory multiplier after an OOM kill.
    #[schemars(range(min = 1.0, max = 100.0))]
    pub oom_bump_up_ratio: f64,
    /// Minimum memory increase after an OOM kill, in bytes.
    #[serde(deserialize_with = "whole_number")]
    pub oom_min_bump_up_bytes: u32,
    /// Reproduce the bugs of upstream that change recommendations.
    pub strict_upstream: bool,
    /// Metrics that are estimated besides CPU and memory. They are read from `prometheus` and reported in the
    /// annotation `berth.dev/usage` of VPAs.
    #[schemars(length(max = 16))]
    pub dimensions: Vec<DimensionConfig>,
    /// Application of recommendations to pods.
    pub apply: Apply,
}

/// Source of past usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    #[default]
    Checkpoint,
    Prometheus,
}

/// A recommendation is written if any of its values changed by at least this. 0: every change is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StatusThresholds {
    /// CPU change, in millicores.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub cpu_milli: u32,
    /// Memory change, in bytes.
    #[serde(deserialize_with = "whole_number")]
    pub memory_bytes: u32,
}

/// Estimation of one resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Estimation {
    /// Percentile of the usage for the target, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub target_percentile: f64,
    /// Percentile of the usage for the lower bound, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lower_bound_percentile: f64,
    /// Percentile of the usage for the upper bound, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub upper_bound_percentile: f64,
    /// Duration of samples that narrow bounds need. Bounds are wider while there are fewer samples.
    pub confidence_interval: ConfigDuration,
    /// Age at which a sample has half its weight.
    pub half_life: ConfigDuration,
}

impl Default for Estimation {
    fn default() -> Self {
        Self {
            target_percentile: 0.9,
            lower_bound_percentile: 0.5,
            upper_bound_percentile: 0.95,
            confidence_interval: DAY,
            half_life: DAY,
        }
    }
}

impl Default for Recommender {
    fn default() -> Self {
        Self {
            enabled: false,
            name: "berth".to_owned(),
            namespaces: Vec::new(),
            ignored_namespaces: Vec::new(),
            auto_create: AutoCreate::default(),
            interval: ConfigDuration::from_secs(60),
            storage: Storage::default(),
            prometheus: None,
            status_thresholds: StatusThresholds::default(),
            update_workers: 10,
            checkpoints_interval: ConfigDuration::from_secs(300),
            checkpoints_timeout: ConfigDuration::from_secs(60),
            checkpoints_gc_interval: ConfigDuration::from_secs(600),
            cpu: Estimation::default(),
            memory: Estimation::default(),
            margin_fraction: 0.15,
            pod_min_cpu_millicores: 25,
            pod_min_memory_mb: 250,
            round_cpu_millicores: 1,
            round_memory_bytes: 1,
            max_allowed_cpu: None,
            max_allowed_memory: None,
            cap_to_nodes: true,
            memory_aggregation_interval: DAY,
            memory_aggregation_interval_count: 8,
            oom_bump_up_ratio: 1.2,
            oom_min_bump_up_bytes: 100 << 20,
            strict_upstream: false,
            dimensions: Vec::new(),
            apply: Apply::default(),
        }
    }
}

const HOUR: ConfigDuration = ConfigDuration::from_secs(3_600);

pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    apply::validate(config)?;
    let it = &config.recommender;
    if it.name.is_empty() || it.name.len() > 253 || it.name.chars().any(char::is_control) {
        return refuse("recommender.name", format!("`{}` is not a valid recommender name", it.name));
    }
    scope::validate(it)?;
    lasts("recommender.interval", it.interval, SECOND..=HOUR)?;
    lasts("recommender.checkpointsInterval", it.checkpoints_interval, SECOND..=DAY)?;
    lasts("recommender.checkpointsTimeout", it.checkpoints_timeout, SECOND..=HOUR)?;
    lasts("recommender.checkpointsGcInterval", it.checkpoints_gc_interval, SECOND..=DAY)?;
    within("recommender.updateWorkers", it.update_workers, 1..=64)?;
    within("recommender.statusThresholds.cpuMilli", it.status_thresholds.cpu_milli, 0..=1_000_000)?;
    within("recommender.podMinCpuMillicores", it.pod_min_cpu_millicores, 0..=1_000_000)?;
    within("recommender.podMinMemoryMb", it.pod_min_memory_mb, 0..=1 << 20)?;
    within("recommender.roundCpuMillicores", it.round_cpu_millicores, 1..=1_000_000)?;
    within("recommender.roundMemoryBytes", it.round_memory_bytes, 1..=1 << 30)?;
    share("recommender.marginFraction", it.margin_fraction, 0.0..=10.0)?;
    share("recommender.oomBumpUpRatio", it.oom_bump_up_ratio, 1.0..=100.0)?;
    lasts("recommender.memoryAggregationInterval", it.memory_aggregation_interval, SECOND..=MONTH)?;
    within("recommender.memoryAggregationIntervalCount", it.memory_aggregation_interval_count, 1..=1_000)?;
    for (fields, estimation) in [(&CPU_FIELDS, &it.cpu), (&MEMORY_FIELDS, &it.memory)] {
        share(fields[0], estimation.target_percentile, 0.0..=1.0)?;
        share(fields[1], estimation.lower_bound_percentile, 0.0..=1.0)?;
        share(fields[2], estimation.upper_bound_percentile, 0.0..=1.0)?;
        lasts(fields[3], estimation.confidence_interval, SECOND..=MONTH)?;
        lasts(fields[4], estimation.half_life, SECOND..=MONTH)?;
    }
    amount("recommender.maxAllowedCpu", it.max_allowed_cpu.as_deref())?;
    amount("recommender.maxAllowedMemory", it.max_allowed_memory.as_deref())?;
    super::dimension::validate(it)?;
    match &it.prometheus {
        None if it.storage == Storage::Prometheus => {
            refuse("recommender.storage", "prometheus needs recommender.prometheus")
        }
        None => Ok(()),
        Some(prometheus) => prometheus.validate(),
    }
}

const CPU_FIELDS: [&str; 5] = [
    "recommender.cpu.targetPercentile",
    "recommender.cpu.lowerBoundPercentile",
    "recommender.cpu.upperBoundPercentile",
    "recommender.cpu.confidenceInterval",
    "recommender.cpu.halfLife",
];
const MEMORY_FIELDS: [&str; 5] = [
    "recommender.memory.targetPercentile",
    "recommender.memory.lowerBoundPercentile",
    "recommender.memory.upperBoundPercentile",
    "recommender.memory.confidenceInterval",
    "recommender.memory.halfLife",
];

fn share(field: &'static str, value: f64, allowed: RangeInclusive<f64>) -> Result<(), InvalidField> {
    if allowed.contains(&value) {
        return Ok(());
    }
    refuse(field, format!("{value} is not from {} to {}", allowed.start(), allowed.end()))
}

fn amount(field: &'static str, text: Option<&str>) -> Result<(), InvalidField> {
    match text.map(Quantity::parse) {
        Some(Err(error)) => refuse(field, error.to_string()),
        Some(Ok(quantity)) if quantity.milli_value() <= 0 => refuse(field, "must be greater than 0"),
        _ => Ok(()),
    }
}

impl Recommender {
    /// Returns the settings of the estimates.
    pub fn settings(&self) -> RecommenderSettings {
        let default = RecommenderSettings::default();
        let resource = |from: &Estimation, base: ResourceSettings| ResourceSettings {
            target_percentile: from.target_percentile,
            lower_percentile: from.lower_bound_percentile,
            upper_percentile: from.upper_bound_percentile,
            margin: self.margin_fraction,
            confidence_interval: from.confidence_interval.get(),
            half_life: from.half_life.get(),
            ..base
        };
        RecommenderSettings {
            cpu: ResourceSettings {
                pod_minimum: i64::from(self.pod_min_cpu_millicores),
                round_to: i64::from(self.round_cpu_millicores),
                ..resource(&self.cpu, default.cpu)
            },
            memory: ResourceSettings {
                pod_minimum: i64::from(self.pod_min_memory_mb) << 20,
                round_to: i64::from(self.round_memory_bytes),
                ..resource(&self.memory, default.memory)
            },
            memory_interval: self.memory_aggregation_interval.get(),
            memory_interval_count: self.memory_aggregation_interval_count,
            oom_bump_ratio: self.oom_bump_up_ratio,
            oom_min_bump: i64::from(self.oom_min_bump_up_bytes),
            strict_upstream: self.strict_upstream,
        }
    }

    /// Returns the maxima of containers whose VPA sets none. Invalid quantities, which validation rejects,
    /// count as unset.
    pub fn max_allowed(&self) -> OptionalAmounts {
        let read = |text: &Option<String>| Quantity::parse(text.as_deref()?).ok();
        PerResource {
            cpu: read(&self.max_allowed_cpu).map(Quantity::milli_value),
            memory: read(&self.max_allowed_memory).map(Quantity::value),
        }
    }

    pub fn thresholds(&self) -> Thresholds {
        let StatusThresholds { cpu_milli, memory_bytes } = self.status_thresholds;
        Thresholds { cpu_milli: cpu_milli.into(), memory_bytes: memory_bytes.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_numbers() {
        assert_eq!(Recommender::default().settings(), RecommenderSettings::default());
        assert_eq!(Recommender::default().max_allowed(), OptionalAmounts::default());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_field() {
        let refused = |change: fn(&mut Recommender)| {
            let mut config = Config::default();
            change(&mut config.recommender);
            validate(&config).unwrap_err().field
        };
        assert_eq!(refused(|it| it.name.clear()), "recommender.name");
        assert_eq!(refused(|it| it.storage = Storage::Prometheus), "recommender.storage");
        assert_eq!(refused(|it| it.cpu.target_percentile = 1.5), "recommender.cpu.targetPercentile");
        assert_eq!(
            refused(|it| it.memory.lower_bound_percentile = f64::NAN),
            "recommender.memory.lowerBoundPercentile"
        );
        assert_eq!(refused(|it| it.max_allowed_cpu = Some("lots".into())), "recommender.maxAllowedCpu");
        assert_eq!(refused(|it| it.oom_bump_up_ratio = 0.5), "recommender.oomBumpUpRatio");
        assert_eq!(
            refused(|it| {
                it.prometheus =
                    Some(PrometheusConfig { url: "ftp://x".into(), ..PrometheusConfig::default() })
            }),
            "prometheus.url"
        );
        assert_eq!(validate(&Config::default()), Ok(()));
    }
}
