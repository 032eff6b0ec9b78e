//! The recommender: which VPAs it looks after, where usage comes from, and how requests are estimated.

mod apply;
mod scope;

use berth_model::ConfigDuration;
use berth_model::InvalidField;
use berth_model::validate::DAY;
use berth_model::validate::SECOND;
use berth_model::validate::lasts;
use berth_model::validate::refuse;
use berth_model::validate::whole_number;
use berth_model::validate::within;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::dimension::Dimension;
use super::values::names;
pub use apply::Apply;
use berth_model::PerResource;
use berth_model::Quantity;
use berth_prometheus::PrometheusConfig;
use berth_rightsizing::recommend::post::Amounts;
use berth_rightsizing::recommend::{ResourceSettings, Settings, Thresholds};
pub use scope::AutoCreate;

/// Recommends requests in the status of VerticalPodAutoscalers. Defaults are those of the upstream recommender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Recommender {
    /// Switch it on. Only the process that holds the Lease recommends.
    pub enabled: bool,
    /// VPAs that name this in `spec.recommenders` are looked after. `default`: those that name none, too; no other recommender
    /// of that name may run then.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Look only after VPAs of these namespaces; nothing is read of others. Empty: all namespaces.
    #[serde(deserialize_with = "names")]
    #[schemars(extend("uniqueItems" = true), inner(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")))]
    pub namespaces: Vec<String>,
    /// Do not look after VPAs of these namespaces. Not together with `namespaces`.
    #[serde(deserialize_with = "names")]
    #[schemars(extend("uniqueItems" = true), inner(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")))]
    pub ignored_namespaces: Vec<String>,
    /// VPAs that are made for workloads that have none.
    pub auto_create: AutoCreate,
    /// How often samples are taken and recommendations made.
    pub interval: ConfigDuration,
    /// Where usage before the start is read from: `checkpoint` (VerticalPodAutoscalerCheckpoint objects) or `prometheus`.
    /// Checkpoints are written in any case.
    pub storage: Storage,
    /// A Prometheus that has the usage of containers. Without it samples come from `metrics.k8s.io`.
    pub prometheus: Option<PrometheusConfig>,
    /// Smaller differences are not written.
    pub status_thresholds: StatusThresholds,
    /// Status and checkpoints that are written at the same time.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 64))]
    pub update_workers: u32,
    /// How often the checkpoints are written of containers that had new samples.
    pub checkpoints_interval: ConfigDuration,
    /// How long writing checkpoints may take at a time; those that waited longest go first.
    pub checkpoints_timeout: ConfigDuration,
    /// How often checkpoints that nobody needs any more are looked for. They are deleted when they are found twice.
    pub checkpoints_gc_interval: ConfigDuration,
    /// How CPU is estimated.
    pub cpu: Estimation,
    /// How memory is estimated.
    pub memory: Estimation,
    /// Share that is added to what was used.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub margin_fraction: f64,
    /// The least that the containers of a pod get together, in thousandths of a core.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub pod_min_cpu_millicores: u32,
    /// The least that the containers of a pod get together, in MiB.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1048576))]
    pub pod_min_memory_mb: u32,
    /// CPU recommendations are multiples of this, in thousandths of a core.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000000))]
    pub round_cpu_millicores: u32,
    /// Memory recommendations are multiples of this, in bytes.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1073741824))]
    pub round_memory_bytes: u32,
    /// The most CPU for a container whose VPA sets no maximum, as in `4` or `1500m`.
    pub max_allowed_cpu: Option<String>,
    /// The most memory for a container whose VPA sets no maximum, as in `8Gi`.
    pub max_allowed_memory: Option<String>,
    /// Recommend to no pod more than some node that it may go to can hold. Switch it off where larger nodes can be added.
    pub cap_to_nodes: bool,
    /// One peak of memory counts for each container and so long a time.
    pub memory_aggregation_interval: ConfigDuration,
    /// What was known of a container is forgotten after so many of these times without samples.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub memory_aggregation_interval_count: u32,
    /// A container that was killed for want of memory needs so many times as much as it had.
    #[schemars(range(min = 1.0, max = 100.0))]
    pub oom_bump_up_ratio: f64,
    /// And at least so many bytes more.
    #[serde(deserialize_with = "whole_number")]
    pub oom_min_bump_up_bytes: u32,
    /// Keep those faults of upstream that change recommendations.
    pub strict_upstream: bool,
    /// What is measured besides CPU and memory, from `prometheus`, and told in the annotation `berth.dev/usage` of VPAs.
    #[schemars(length(max = 16))]
    pub dimensions: Vec<Dimension>,
    /// Whether and how recommendations are applied to pods.
    pub apply: Apply,
}

/// Where the past is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    #[default]
    Checkpoint,
    Prometheus,
}

/// A recommendation is written when it differs by as much in any of its values. 0: every difference is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StatusThresholds {
    /// Thousandths of a core.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub cpu_milli: u32,
    /// Bytes of memory.
    #[serde(deserialize_with = "whole_number")]
    pub memory_bytes: u32,
}

/// How one resource is estimated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Estimation {
    /// Share of the usage that the target covers.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub target_percentile: f64,
    /// Share of the usage that the lower bound covers.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lower_bound_percentile: f64,
    /// Share of the usage that the upper bound covers.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub upper_bound_percentile: f64,
    /// Bounds are wide until there are samples of so long a time.
    pub confidence_interval: ConfigDuration,
    /// A sample weighs half after so long.
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
pub(super) const MONTH: ConfigDuration = ConfigDuration::from_secs(30 * 86_400);

pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    apply::validate(config)?;
    let it = &config.recommender;
    if it.name.is_empty() || it.name.len() > 253 || it.name.chars().any(char::is_control) {
        return refuse("recommender.name", format!("`{}` is not a recommender's name", it.name));
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
        Some(Ok(quantity)) if quantity.milli_value() <= 0 => refuse(field, "it is not above 0"),
        _ => Ok(()),
    }
}

impl Recommender {
    /// What the estimates are made with.
    pub fn settings(&self) -> Settings {
        let default = Settings::default();
        let resource = |from: &Estimation, base: ResourceSettings| ResourceSettings {
            target_percentile: from.target_percentile,
            lower_percentile: from.lower_bound_percentile,
            upper_percentile: from.upper_bound_percentile,
            margin: self.margin_fraction,
            confidence_interval: from.confidence_interval.get(),
            half_life: from.half_life.get(),
            ..base
        };
        Settings {
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

    /// The most for containers whose VPA says nothing. Texts that are no quantities, which are refused before, count as none.
    pub fn max_allowed(&self) -> Amounts {
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
        assert_eq!(Recommender::default().settings(), Settings::default());
        assert_eq!(Recommender::default().max_allowed(), Amounts::default());
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
