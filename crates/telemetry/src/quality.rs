//! Quality of recommendations, compared with every usage sample: names, labels and buckets of the upstream recommender.
//!
//! Upstream: `pkg/utils/metrics/quality/quality.go`.

use std::fmt;
use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::encode::MetricLabels;

/// Relative differences from -100 % to +10,000 %.
const RELATIVE: [f64; 29] = [
    -1.0, -0.75, -0.5, -0.25, -0.1, -0.05, -0.025, -0.01, -0.005, -0.0025, -0.001, 0.0, 0.001, 0.0025, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0,
];
/// Cap of the VPA size label (log2 of its pods).
const SIZE_LOG2_MAX: u32 = 20;

/// A resource of a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizedResource {
    Cpu,
    Memory,
}

/// A usage sample, or the need of an OOM-killed container. Cores or bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsageSample<'a> {
    pub update_mode: &'a str,
    pub resource: SizedResource,
    pub amount: f64,
    pub is_oom: bool,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SampleLabel {
    update_mode: String,
    resource: &'static str,
    is_oom: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CpuDiffLabel {
    update_mode: String,
    recommendation_missing: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MemoryDiffLabel {
    update_mode: String,
    recommendation_missing: &'static str,
    is_oom: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CpuLabel {
    update_mode: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MemoryLabel {
    update_mode: String,
    is_oom: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ChangeLabel {
    update_mode: String,
    resource: &'static str,
    vpa_size_log2: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Quality metrics. The number of series is bounded by the update modes of VPAs.
pub struct QualityMetrics {
    relative: Histograms<SampleLabel>,
    /// A counter; a gauge here, because the library would add `_total` to the name of a counter.
    missing: Family<SampleLabel, Gauge<i64, AtomicI64>>,
    cpu_over: Histograms<CpuDiffLabel>,
    cpu_under: Histograms<CpuDiffLabel>,
    memory_over: Histograms<MemoryDiffLabel>,
    memory_under: Histograms<MemoryDiffLabel>,
    cpu: Histograms<CpuLabel>,
    memory: Histograms<MemoryLabel>,
    changes: Histograms<ChangeLabel>,
}

impl Default for QualityMetrics {
    fn default() -> Self {
        let relative = || Histogram::new(RELATIVE);
        let cores = || Histogram::new(exponential_buckets(0.01, 2.0, 17));
        let bytes = || Histogram::new(exponential_buckets(1e6, 2.0, 17));
        Self {
            relative: Family::new_with_constructor(relative),
            missing: Family::default(),
            cpu_over: Family::new_with_constructor(cores),
            cpu_under: Family::new_with_constructor(cores),
            memory_over: Family::new_with_constructor(bytes),
            memory_under: Family::new_with_constructor(bytes),
            cpu: Family::new_with_constructor(cores),
            memory: Family::new_with_constructor(bytes),
            changes: Family::new_with_constructor(relative),
        }
    }
}

fn flag(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

impl SizedResource {
    fn name(self) -> &'static str {
        match self {
            SizedResource::Cpu => "cpu",
            SizedResource::Memory => "memory",
        }
    }
}

impl QualityMetrics {
    /// Compares a sample with the recommendation before any cap; `None` or 0: there is no recommendation.
    pub fn observe(&self, usage: UsageSample<'_>, recommended: Option<f64>) {
        let UsageSample { update_mode, resource, amount, is_oom } = usage;
        let recommended = recommended.filter(|recommended| *recommended != 0.0);
        let update_mode = update_mode.to_owned();
        let label =
            SampleLabel { update_mode: update_mode.clone(), resource: resource.name(), is_oom: flag(is_oom) };
        match recommended {
            None => drop(self.missing.get_or_create(&label).inc()),
            Some(recommended) => {
                self.recommended(resource, &update_mode, is_oom, recommended);
                if recommended > 0.0 {
                    self.relative.get_or_create(&label).observe((amount - recommended) / recommended);
                }
            }
        }
        let is_missing = recommended.is_none();
        let recommended = recommended.unwrap_or(0.0);
        let (diff, is_over) = ((amount - recommended).abs(), recommended > amount);
        match resource {
            SizedResource::Cpu => {
                let label = CpuDiffLabel { update_mode, recommendation_missing: flag(is_missing) };
                let family = if is_over { &self.cpu_over } else { &self.cpu_under };
                family.get_or_create(&label).observe(diff);
            }
            SizedResource::Memory => {
                let (recommendation_missing, is_oom) = (flag(is_missing), flag(is_oom));
                let label = MemoryDiffLabel { update_mode, recommendation_missing, is_oom };
                let family = if is_over { &self.memory_over } else { &self.memory_under };
                family.get_or_create(&label).observe(diff);
            }
        }
    }

    fn recommended(&self, resource: SizedResource, update_mode: &str, is_oom: bool, value: f64) {
        let update_mode = update_mode.to_owned();
        match resource {
            SizedResource::Cpu => self.cpu.get_or_create(&CpuLabel { update_mode }).observe(value),
            SizedResource::Memory => {
                let label = MemoryLabel { update_mode, is_oom: flag(is_oom) };
                self.memory.get_or_create(&label).observe(value);
            }
        }
    }

    /// Observes a changed recommendation of a VPA with this number of pods. Both values have the same unit.
    pub fn changed(&self, update_mode: &str, resource: SizedResource, old: i64, new: i64, pods: usize) {
        if old <= 0 {
            return;
        }
        let label = ChangeLabel {
            update_mode: update_mode.to_owned(),
            resource: resource.name(),
            vpa_size_log2: pods.checked_ilog2().unwrap_or(0).min(SIZE_LOG2_MAX).to_string(),
        };
        self.changes.get_or_create(&label).observe(new as f64 / old as f64 - 1.0);
    }

    pub fn register(&self, registry: &mut Registry) {
        macro_rules! register {
            ($name:literal, $help:literal, $family:expr) => {
                registry.register(concat!("vpa_quality_", $name), $help, $family.clone());
            };
        }
        register!(
            "usage_recommendation_relative_diffs",
            "Diffs between recommendation and usage, normalized by recommendation value",
            self.relative
        );
        register!(
            "usage_sample_missing_recommendation_count",
            "Count of usage samples when a recommendation should be present but is missing",
            self.missing
        );
        register!(
            "cpu_recommendation_over_usage_diffs_cores",
            "Absolute diffs between recommendation and usage for CPU when recommendation > usage",
            self.cpu_over
        );
        register!(
            "mem_recommendation_over_usage_diffs_bytes",
            "Absolute diffs between recommendation and usage for memory when recommendation > usage",
            self.memory_over
        );
        register!(
            "cpu_recommendation_lower_equal_usage_diffs_cores",
            "Absolute diffs between recommendation and usage for CPU when recommendation <= usage",
            self.cpu_under
        );
        register!(
            "mem_recommendation_lower_equal_usage_diffs_bytes",
            "Absolute diffs between recommendation and usage for memory when recommendation <= usage",
            self.memory_under
        );
        register!(
            "cpu_recommendations_cores",
            "CPU recommendation values as observed on recorded usage sample",
            self.cpu
        );
        register!(
            "mem_recommendations_bytes",
            "Memory recommendation values as observed on recorded usage sample",
            self.memory
        );
        register!(
            "relative_recommendation_changes",
            "Changes between consecutive recommendation values, normalized by old value",
            self.changes
        );
    }
}

/// Counts that upstream exports under a name without `_total`.
pub fn same_name_counts(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: &[(MetricLabels, u64)],
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Unknown)?;
    for (labels, value) in values {
        family.encode_family(labels)?.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(quality: &QualityMetrics) -> String {
        let mut registry = Registry::default();
        quality.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[track_caller]
    fn assert_has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn usage_is_held_against_what_was_recommended() {
        let quality = QualityMetrics::default();
        let cpu =
            UsageSample { update_mode: "Off", resource: SizedResource::Cpu, amount: 0.5, is_oom: false };
        quality.observe(cpu, Some(0.4));
        quality.observe(UsageSample { amount: 0.1, ..cpu }, Some(0.4));
        let memory = UsageSample { resource: SizedResource::Memory, amount: 3e6, is_oom: true, ..cpu };
        quality.observe(memory, Some(3e6));
        let text = text(&quality);
        let relative = "vpa_quality_usage_recommendation_relative_diffs";
        assert_has(
            &text,
            &[
                &format!(
                    r#"{relative}_bucket{{le="0.25",update_mode="Off",resource="cpu",is_oom="false"}} 2"#
                ),
                &format!(
                    r#"{relative}_bucket{{le="-0.75",update_mode="Off",resource="cpu",is_oom="false"}} 1"#
                ),
                &format!(
                    r#"{relative}_bucket{{le="0.0",update_mode="Off",resource="memory",is_oom="true"}} 1"#
                ),
                r#"vpa_quality_cpu_recommendations_cores_sum{update_mode="Off"} 0.8"#,
                r#"vpa_quality_cpu_recommendation_over_usage_diffs_cores_count{update_mode="Off",recommendation_missing="false"} 1"#,
                r#"vpa_quality_cpu_recommendation_lower_equal_usage_diffs_cores_count{update_mode="Off",recommendation_missing="false"} 1"#,
                r#"vpa_quality_mem_recommendation_lower_equal_usage_diffs_bytes_count{update_mode="Off",recommendation_missing="false",is_oom="true"} 1"#,
                r#"vpa_quality_mem_recommendations_bytes_bucket{le="4000000.0",update_mode="Off",is_oom="true"} 1"#,
            ],
        );
        assert!(!text.contains("missing_recommendation_count{"), "{text}");
    }

    #[test]
    fn a_sample_without_a_recommendation_is_counted_as_such() {
        let quality = QualityMetrics::default();
        let usage =
            UsageSample { update_mode: "Auto", resource: SizedResource::Memory, amount: 5e6, is_oom: false };
        quality.observe(usage, None);
        quality.observe(usage, Some(0.0));
        assert_has(
            &text(&quality),
            &[
                r#"vpa_quality_usage_sample_missing_recommendation_count{update_mode="Auto",resource="memory",is_oom="false"} 2"#,
                r#"vpa_quality_mem_recommendation_lower_equal_usage_diffs_bytes_sum{update_mode="Auto",recommendation_missing="true",is_oom="false"} 10000000.0"#,
            ],
        );
    }

    #[test]
    fn changes_are_relative_to_the_old_value_and_told_by_the_size_of_the_vpa() {
        let quality = QualityMetrics::default();
        quality.changed("Off", SizedResource::Cpu, 100, 150, 5);
        quality.changed("Off", SizedResource::Cpu, 0, 150, 5);
        quality.changed("Off", SizedResource::Memory, 100, 50, 0);
        quality.changed("Off", SizedResource::Memory, 100, 50, usize::MAX);
        let text = text(&quality);
        let name = "vpa_quality_relative_recommendation_changes_sum";
        assert_has(
            &text,
            &[
                &format!(r#"{name}{{update_mode="Off",resource="cpu",vpa_size_log2="2"}} 0.5"#),
                &format!(r#"{name}{{update_mode="Off",resource="memory",vpa_size_log2="0"}} -0.5"#),
                &format!(r#"{name}{{update_mode="Off",resource="memory",vpa_size_log2="20"}} -0.5"#),
            ],
        );
    }
}
