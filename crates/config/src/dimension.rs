//! Metrics that the recommender estimates besides CPU and memory: presets for network and disk I/O, or any
//! metric.

use berth_model::validate::{DAY, MONTH, SECOND, lasts, refuse};
use berth_model::{ConfigDuration, InvalidField};
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recommender;
use berth_prometheus::{LabelNames, Matcher, Metric, MetricKind, is_name};
use berth_rightsizing::recommend::dimension::{BUCKETS_MAX, DIMENSIONS_MAX};
use berth_rightsizing::recommend::{self, ResourceSettings, time};
use berth_rightsizing::usage::SeriesScope;

/// A metric besides CPU and memory. Values are in the unit of the metric; for a counter, in that unit per
/// second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DimensionConfig {
    /// Name in annotations and metrics. `networkReceive`, `networkTransmit`, `diskRead` and `diskWrite` need
    /// no other key: they are cAdvisor metrics, in bytes per second. Any other name needs a `metric`.
    #[schemars(regex(pattern = "^[A-Za-z][A-Za-z0-9-]{0,62}$"))]
    pub name: String,
    /// Name of the metric in Prometheus. Its series need the labels of a namespace and a pod, see
    /// `prometheus.labels`.
    #[schemars(regex(pattern = "^[a-zA-Z_:][a-zA-Z0-9_:]*$"))]
    pub metric: Option<String>,
    /// `rate` for a counter, `gauge` for a value. Default: `rate` if the name of the metric ends with
    /// `_total`, else `gauge`.
    pub kind: Option<MetricKind>,
    /// `container`: each container is measured. `pod`: each pod as a whole. Default: `container`.
    pub scope: Option<SeriesScope>,
    /// Label matchers that select the series: `LABEL=VALUE`, `LABEL!=VALUE`, `LABEL=~EXPRESSION` or
    /// `LABEL!~EXPRESSION`, without quotes. A matcher of `job` replaces `prometheus.jobName`. A disk on top
    /// of another disk (LVM) is counted twice unless one of them is excluded, for example with
    /// `device!~/dev/dm-.*`.
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub matchers: Vec<String>,
    /// Labels of the parts of a container or pod whose values are summed, such as `interface` or `device`. If
    /// series differ in other labels, for example because two jobs scrape the same target, the largest value
    /// is used. Default: none, except for the presets.
    #[schemars(length(max = 4), inner(regex(pattern = "^[a-zA-Z_][a-zA-Z0-9_]*$")))]
    pub sum_over: Option<Vec<String>>,
    /// Percentile of the usage for the target, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub target_percentile: f64,
    /// Percentile of the usage for the lower bound, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lower_bound_percentile: f64,
    /// Percentile of the usage for the upper bound, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub upper_bound_percentile: f64,
    /// Safety margin that is added to the estimate, as a fraction of it.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub margin: f64,
    /// Duration of samples that narrow bounds need. Bounds are wider while there are fewer samples.
    pub confidence_interval: ConfigDuration,
    /// Age at which a sample has half its weight.
    pub half_life: ConfigDuration,
    /// Size of the first histogram bucket. Smaller values are not distinguished.
    #[schemars(range(min = 1e-9, max = 1e15))]
    pub first_bucket: f64,
    /// Largest value of the histogram. Larger values are not distinguished.
    #[schemars(range(min = 1e-9, max = 1e15))]
    pub largest_value: f64,
    /// Growth factor of the histogram buckets: the smaller it is, the more exact are the estimates. At most
    /// 512 buckets are allowed.
    #[schemars(range(min = 1.001, max = 10.0))]
    pub bucket_ratio: f64,
    /// Weight of a sample. A bucket with a weight below 0.0001 counts as empty.
    #[schemars(range(min = 0.001, max = 1000.0))]
    pub sample_weight: f64,
}

impl Default for DimensionConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            metric: None,
            kind: None,
            scope: None,
            matchers: Vec::new(),
            sum_over: None,
            target_percentile: 0.9,
            lower_bound_percentile: 0.5,
            upper_bound_percentile: 0.95,
            margin: 0.15,
            confidence_interval: DAY,
            half_life: DAY,
            first_bucket: 1e3,
            largest_value: 1e12,
            bucket_ratio: 1.05,
            sample_weight: 1.0,
        }
    }
}

/// A metric of cAdvisor: a counter of bytes.
struct Preset {
    name: &'static str,
    metric: &'static str,
    scope: SeriesScope,
    part: &'static str,
}

/// Network interfaces belong to a pod: their series have no container, or the sandbox container.
const PRESETS: [Preset; 4] = [
    Preset {
        name: "networkReceive",
        metric: "container_network_receive_bytes_total",
        scope: SeriesScope::Pod,
        part: "interface",
    },
    Preset {
        name: "networkTransmit",
        metric: "container_network_transmit_bytes_total",
        scope: SeriesScope::Pod,
        part: "interface",
    },
    Preset {
        name: "diskRead",
        metric: "container_fs_reads_bytes_total",
        scope: SeriesScope::Container,
        part: "device",
    },
    Preset {
        name: "diskWrite",
        metric: "container_fs_writes_bytes_total",
        scope: SeriesScope::Container,
        part: "device",
    },
];

const FIELD: &str = "recommender.dimensions";
const VALUES: RangeInclusive<f64> = 1e-9..=1e15;

pub(super) fn validate(config: &Recommender) -> Result<(), InvalidField> {
    let all = &config.dimensions;
    if all.is_empty() {
        return Ok(());
    }
    if all.len() > DIMENSIONS_MAX {
        return refuse(FIELD, format!("there are {}; at most {DIMENSIONS_MAX} are allowed", all.len()));
    }
    let Some(prometheus) = &config.prometheus else {
        return refuse(FIELD, "dimensions are read from Prometheus: set recommender.prometheus");
    };
    for (at, dimension) in all.iter().enumerate() {
        let labels = prometheus.labels.as_ref();
        if let Err(problem) = dimension.check(labels) {
            return refuse(FIELD, format!("`{}`: {problem}", dimension.name.escape_debug()));
        }
        if all[..at].iter().any(|other| other.name == dimension.name) {
            return refuse(FIELD, format!("`{}`: the name is used twice", dimension.name));
        }
    }
    Ok(())
}

/// Returns an error if the value is out of its range; the message lacks the path of the field.
fn share(field: &str, value: f64, allowed: RangeInclusive<f64>) -> Result<(), String> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(format!("{field} {value} is not from {} to {}", allowed.start(), allowed.end()))
}

impl DimensionConfig {
    fn check(&self, labels: Option<&LabelNames>) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !self.name.starts_with(|c: char| c.is_ascii_alphabetic())
            || !self.name.chars().all(is_plain)
            || self.name.len() > 63
        {
            return Err("name is not 1 to 63 letters, digits and '-', with a letter first".to_owned());
        }
        let metric = self.metric_name();
        if metric.is_empty() {
            let presets = PRESETS.map(|preset| preset.name).join(", ");
            return Err(format!("metric is missing; only {presets} have a default"));
        }
        if !is_name(metric, ":") {
            return Err(format!("metric `{}` is not a valid metric name", metric.escape_debug()));
        }
        self.check_labels(labels)?;
        self.check_estimation()
    }

    fn check_labels(&self, labels: Option<&LabelNames>) -> Result<(), String> {
        if self.matchers.len() > 16 {
            return Err(format!("matchers: there are {}; at most 16 are allowed", self.matchers.len()));
        }
        for matcher in &self.matchers {
            if matcher.len() > 253 {
                return Err("matchers: one has more than 253 bytes".to_owned());
            }
            Matcher::parse(matcher).map_err(|error| format!("matchers: {error}"))?;
        }
        let (modern, legacy) = (LabelNames::modern(), LabelNames::legacy());
        let known = labels.map_or_else(|| vec![&modern, &legacy], |labels| vec![labels]);
        let sum_over = self.sum_over.as_deref().unwrap_or_default();
        if sum_over.len() > 4 {
            return Err(format!("sumOver: there are {}; at most 4 are allowed", sum_over.len()));
        }
        for (at, label) in sum_over.iter().enumerate() {
            let names_the_whole =
                |names: &&LabelNames| [&names.namespace, &names.pod, &names.container].contains(&label);
            if !is_name(label, "") {
                return Err(format!("sumOver: `{}` is not a valid label name", label.escape_debug()));
            }
            if known.iter().any(names_the_whole) {
                return Err(format!(
                    "sumOver: `{label}` identifies the container or pod, not a part of it: remove it"
                ));
            }
            if sum_over[..at].contains(label) {
                return Err(format!("sumOver: `{label}` is listed twice"));
            }
        }
        Ok(())
    }

    fn check_estimation(&self) -> Result<(), String> {
        let (lower, target, upper) =
            (self.lower_bound_percentile, self.target_percentile, self.upper_bound_percentile);
        share("targetPercentile", target, 0.0..=1.0)?;
        share("lowerBoundPercentile", lower, 0.0..=target)?;
        share("upperBoundPercentile", upper, target..=1.0)?;
        share("margin", self.margin, 0.0..=10.0)?;
        let limits = SECOND..=MONTH;
        for (field, value) in [("confidenceInterval", self.confidence_interval), ("halfLife", self.half_life)]
        {
            lasts(FIELD, value, limits.clone()).map_err(|error| format!("{field} {}", error.problem))?;
        }
        share("firstBucket", self.first_bucket, VALUES)?;
        share("largestValue", self.largest_value, self.first_bucket..=*VALUES.end())?;
        share("bucketRatio", self.bucket_ratio, 1.001..=10.0)?;
        share("sampleWeight", self.sample_weight, 0.001..=1000.0)?;
        let buckets = self.resolve().0.buckets().map_err(|error| format!("bucketRatio: {error}"))?;
        if buckets.count() > BUCKETS_MAX {
            return Err(format!(
                "bucketRatio {} makes {} buckets from firstBucket to largestValue; at most {BUCKETS_MAX} are allowed",
                self.bucket_ratio,
                buckets.count()
            ));
        }
        Ok(())
    }

    fn preset(&self) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == self.name)
    }

    /// Returns the name of the metric; empty if there is none.
    fn metric_name(&self) -> &str {
        let of_preset = self.preset().map_or("", |preset| preset.metric);
        self.metric.as_deref().unwrap_or(of_preset)
    }

    /// Returns the settings of the estimate and the metric to query in Prometheus. Skips matchers that do not
    /// parse: validation rejects them.
    pub fn resolve(&self) -> (recommend::Dimension, Metric) {
        let (preset, name) = (self.preset(), self.metric_name());
        let is_counter = name.ends_with("_total");
        let kind = self.kind.unwrap_or(if is_counter { MetricKind::Rate } else { MetricKind::Gauge });
        let scope = self.scope.or(preset.map(|preset| preset.scope)).unwrap_or(SeriesScope::Container);
        let part = preset.map(|preset| vec![preset.part.to_owned()]);
        let metric = Metric {
            name: name.to_owned(),
            kind,
            scope,
            matchers: self.matchers.iter().filter_map(|text| Matcher::parse(text).ok()).collect(),
            sum_over: self.sum_over.clone().or(part).unwrap_or_default(),
        };
        let meaning = match kind {
            MetricKind::Rate => format!("rate of {name}"),
            MetricKind::Gauge => name.to_owned(),
        };
        let estimation = ResourceSettings {
            target_percentile: self.target_percentile,
            lower_percentile: self.lower_bound_percentile,
            upper_percentile: self.upper_bound_percentile,
            margin: self.margin,
            confidence_interval: self.confidence_interval.get(),
            half_life: self.half_life.get(),
            first_bucket: self.first_bucket,
            largest_value: self.largest_value,
            bucket_ratio: self.bucket_ratio,
            sample_weight: self.sample_weight,
            pod_minimum: 0,
            round_to: 1,
        };
        let dimension = recommend::Dimension { name: self.name.as_str().into(), scope, meaning, estimation };
        (dimension, metric)
    }
}

impl Recommender {
    /// Returns the dimensions besides CPU and memory: the settings of each estimate, and the metric to query
    /// in Prometheus.
    pub fn resolved_dimensions(&self) -> Vec<(recommend::Dimension, Metric)> {
        self.dimensions.iter().map(DimensionConfig::resolve).collect()
    }

    /// Returns the time without samples after which a history expires, in nanoseconds.
    pub fn expiry_ns(&self) -> i64 {
        let windows = i64::from(self.memory_aggregation_interval_count);
        time::nanos(self.memory_aggregation_interval.get()).saturating_mul(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use berth_prometheus::PrometheusConfig;

    fn config(dimensions: Vec<DimensionConfig>) -> Config {
        let mut config = Config::default();
        config.recommender.prometheus = Some(PrometheusConfig::default());
        config.recommender.dimensions = dimensions;
        config
    }

    fn named(name: &str) -> DimensionConfig {
        DimensionConfig { name: name.to_owned(), ..DimensionConfig::default() }
    }

    #[test]
    fn a_preset_needs_only_its_name() {
        let presets = PRESETS.map(|preset| named(preset.name));
        assert_eq!(config(presets.to_vec()).validate(), Ok(()));
        let (received, metric) = named("networkReceive").resolve();
        assert_eq!(
            metric,
            Metric {
                name: "container_network_receive_bytes_total".to_owned(),
                kind: MetricKind::Rate,
                scope: SeriesScope::Pod,
                matchers: Vec::new(),
                sum_over: vec!["interface".to_owned()],
            }
        );
        assert_eq!(received.scope, SeriesScope::Pod);
        assert_eq!(received.buckets().unwrap().count(), 365);
        let (written, metric) = named("diskWrite").resolve();
        assert_eq!((written.scope, metric.sum_over), (SeriesScope::Container, vec!["device".to_owned()]));
    }

    #[test]
    fn another_dimension_is_what_its_metric_is() {
        let gauge = DimensionConfig { metric: Some("open_files".to_owned()), ..named("files") };
        let (dimension, metric) = gauge.resolve();
        assert_eq!((metric.kind, metric.scope), (MetricKind::Gauge, SeriesScope::Container));
        assert!(metric.sum_over.is_empty());
        assert_eq!(dimension.meaning, "open_files");
        let counter = DimensionConfig { metric: Some("calls_total".to_owned()), ..named("calls") };
        assert_eq!(counter.resolve().1.kind, MetricKind::Rate);
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_dimension_and_field() {
        type Change = fn(&mut DimensionConfig);
        let cases: [(Change, &str); 22] = [
            (|it| it.name = String::new(), "``: name is not"),
            (|it| it.name = "a b\n".to_owned(), r"`a b\n`: name is not"),
            (|it| it.name = "a".repeat(64), "name is not"),
            (|it| it.name = "files".to_owned(), "`files`: metric is missing; only networkReceive, "),
            (|it| it.metric = Some(String::new()), "metric is missing"),
            (|it| it.metric = Some("up or vector(1)".to_owned()), "metric `up or vector(1)` is not"),
            (|it| it.matchers = vec!["interface".to_owned()], "matchers: `interface` is not a matcher"),
            (|it| it.matchers = vec!["a=b".to_owned(); 17], "matchers: there are 17"),
            (|it| it.matchers = vec![format!("a={}", "b".repeat(300))], "matchers: one has more"),
            (|it| it.sum_over = Some(vec!["a-b".to_owned()]), "sumOver: `a-b` is not"),
            (|it| it.sum_over = Some(vec!["pod_name".to_owned()]), "sumOver: `pod_name` identifies"),
            (|it| it.sum_over = Some(vec!["a".to_owned(), "a".to_owned()]), "sumOver: `a` is listed twice"),
            (|it| it.target_percentile = f64::NAN, "targetPercentile NaN is not from 0 to 1"),
            (|it| it.lower_bound_percentile = 0.95, "lowerBoundPercentile 0.95 is not from 0 to 0.9"),
            (|it| it.upper_bound_percentile = 0.8, "upperBoundPercentile 0.8 is not from 0.9 to 1"),
            (|it| it.margin = -0.1, "margin -0.1"),
            (|it| it.half_life = ConfigDuration::from_secs(0), "halfLife 0s is not from 1s to 720h"),
            (|it| it.first_bucket = 0.0, "firstBucket 0 "),
            (|it| it.largest_value = 10.0, "largestValue 10 is not from 1000 to"),
            (|it| it.bucket_ratio = 1.0, "bucketRatio 1 is not"),
            (|it| it.bucket_ratio = 1.01, "bucketRatio 1.01 makes"),
            (|it| it.sample_weight = f64::INFINITY, "sampleWeight inf is not"),
        ];
        for (change, problem) in cases {
            let mut dimension = named("networkReceive");
            change(&mut dimension);
            let error = config(vec![dimension]).validate().unwrap_err();
            assert_eq!(error.field, FIELD);
            assert!(error.problem.contains(problem), "{}: {problem}", error.problem);
        }
    }

    #[test]
    fn there_are_few_of_different_names_and_a_prometheus() {
        let refused = |config: Config| config.validate().unwrap_err().to_string();
        let mut without = config(vec![named("diskRead")]);
        without.recommender.prometheus = None;
        assert_eq!(
            refused(without),
            "recommender.dimensions: dimensions are read from Prometheus: set recommender.prometheus"
        );
        let twice = config(vec![named("diskRead"), named("diskRead")]);
        assert!(refused(twice).contains("`diskRead`: the name is used twice"));
        let many =
            (0..17).map(|n| DimensionConfig { metric: Some("a".to_owned()), ..named(&format!("d{n}")) });
        assert!(refused(config(many.collect())).contains("there are 17"));
    }
}
