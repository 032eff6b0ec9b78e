//! Advice for one container, and the severity of its deviation.

use std::cmp::Reverse;

use serde::Serialize;

use super::costs::PriceList;
use super::limits::LimitRule;
use berth_model::PerResource;
use berth_rightsizing::recommend::Amount;

/// Deviation of a request from its target. The limits are those of KRR: an absolute difference of at least
///
/// | | CPU | memory |
/// |---|---:|---:|
/// | critical | 500m | 500Mi |
/// | warning | 250m | 250Mi |
/// | ok | 100m | 100Mi |
///
/// Below that it is good. An unset request is a warning. The worse of CPU and memory counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The current request or the usage is unknown
    Unknown,
    /// Less than 100m and 100Mi off
    Good,
    /// 100m or 100Mi off, or more
    Ok,
    /// 250m or 250Mi off, or more; or a request is unset
    Warning,
    /// 500m or 500Mi off, or more
    Critical,
}

impl Severity {
    pub const ALL: [Severity; 5] =
        [Severity::Critical, Severity::Warning, Severity::Ok, Severity::Good, Severity::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Severity::Unknown => "unknown",
            Severity::Good => "good",
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }

    /// Rates one request. `unit` is a hundredth of the limits: a millicore or a MiB.
    fn of(request: Current, target: Option<Amount>, unit: Amount) -> Self {
        let (Some(target), Current::Set(request)) = (target, request) else {
            let unset = target.is_some() && request == Current::Unset;
            return if unset { Severity::Warning } else { Severity::Unknown };
        };
        match request.abs_diff(target) / unit.unsigned_abs() {
            500.. => Severity::Critical,
            250.. => Severity::Warning,
            100.. => Severity::Ok,
            _ => Severity::Good,
        }
    }
}

/// Current request or limit of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Current {
    /// Not reported.
    #[default]
    Unknown,
    /// No request, or no limit.
    Unset,
    /// Millicores or bytes.
    Set(Amount),
}

/// What decided a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No usage is known.
    NoUsage,
    /// The strategy, from the usage.
    Usage,
    /// The minimum for the containers of a pod.
    Minimum,
    /// A container was killed because of its memory.
    OomKill,
    /// A HorizontalPodAutoscaler keeps usage at a share of the request: with another request it would change the replicas.
    Autoscaler,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoUsage => "no-usage",
            Reason::Usage => "usage",
            Reason::Minimum => "minimum",
            Reason::OomKill => "oom-kill",
            Reason::Autoscaler => "autoscaler",
        }
    }
}

/// One resource of one container. Amounts are millicores or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceAdvice {
    pub severity: Severity,
    pub request: Current,
    pub limit: Current,
    pub limit_rule: LimitRule,
    pub reason: Reason,
    /// `None` if there is no advice; the same holds for the bounds.
    pub target: Option<Amount>,
    pub lower: Option<Amount>,
    pub upper: Option<Amount>,
}

impl ResourceAdvice {
    /// Returns the reduction of each pod's request; negative for an increase.
    pub fn saved(&self) -> Option<Amount> {
        match (self.request, self.target) {
            (Current::Set(request), Some(target)) => Some(request - target),
            _ => None,
        }
    }
}

/// One container of one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerAdvice {
    pub severity: Severity,
    pub namespace: String,
    pub kind: String,
    pub workload: String,
    /// Kind and name of the workload are guessed from pod names.
    pub guessed: bool,
    pub container: String,
    /// Number of pods running at the end of the history.
    pub pods: u32,
    /// Number of all pods of the history.
    pub pods_seen: u32,
    pub size: PerResource<ResourceAdvice>,
    /// The HorizontalPodAutoscaler that keeps the utilisation of a resource.
    pub autoscaler: Option<String>,
    /// Highest usage in equal parts of the history, in cores and bytes; NaN without samples. Empty unless it was asked for.
    pub history: PerResource<Vec<f32>>,
    /// Days from the first to the last sample.
    pub days: f64,
    pub samples: u64,
    /// Same as VPA confidence: 1 after a day with a sample per minute, or after the same number of samples at another
    /// interval.
    pub confidence: f64,
}

impl ContainerAdvice {
    /// Sets `size.severity` and `severity`.
    pub fn judged(mut self) -> Self {
        const MILLICORE: Amount = 1;
        const MIB: Amount = 1 << 20;
        self.size = self.size.zip(PerResource { cpu: MILLICORE, memory: MIB }).map(|(size, unit)| {
            ResourceAdvice { severity: Severity::of(size.request, size.target, unit), ..size }
        });
        self.severity = self.size.cpu.severity.max(self.size.memory.severity);
        self
    }

    /// Returns the total reduction of all pods' requests, in bytes; a core counts as 8 GiB.
    pub fn saved(&self) -> i128 {
        let of = |size: &ResourceAdvice| i128::from(size.saved().unwrap_or(0)) * i128::from(self.pods);
        of(&self.size.cpu) * i128::from(BYTES_PER_CORE) / 1000 + of(&self.size.memory)
    }
}

/// Memory that costs about as much as a core in public clouds.
const BYTES_PER_CORE: i64 = 8 << 30;

/// Sorts by severity, worst first, then by the largest savings, then by name.
pub fn sort(advice: &mut [ContainerAdvice]) {
    advice.sort_by_cached_key(|each| {
        let names = [&each.namespace, &each.kind, &each.workload, &each.container].map(String::clone);
        (Reverse(each.severity), Reverse(each.saved()), names)
    });
}

/// Source of the workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadsFrom {
    KubeStateMetrics,
    PodNames,
}

/// All advice of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct AdviceReport {
    /// The Prometheus URL.
    pub source: String,
    /// How targets are computed, in words.
    pub strategy: String,
    pub prices: Option<PriceList>,
    /// The end of the history, RFC 3339.
    pub at: String,
    /// The requested length of the history.
    pub history: String,
    pub workloads_from: WorkloadsFrom,
    /// Sorted.
    pub advice: Vec<ContainerAdvice>,
    /// Notes for the reader about the input.
    pub notes: Vec<String>,
}

/// Returns the total requests of all running pods whose requests are known: current, and as advised.
pub fn totals<'a>(
    advice: impl IntoIterator<Item = &'a ContainerAdvice> + Clone,
) -> PerResource<Option<(Amount, Amount)>> {
    let total = |of: fn(&PerResource<ResourceAdvice>) -> &ResourceAdvice| {
        let mut known = advice.clone().into_iter().filter_map(|each| {
            let size = of(&each.size);
            let (Current::Set(request), Some(target)) = (size.request, size.target) else { return None };
            let pods = Amount::from(each.pods);
            Some((request.saturating_mul(pods), target.saturating_mul(pods)))
        });
        let first = known.next()?;
        Some(known.fold(first, |sum, more| (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1))))
    };
    PerResource { cpu: total(|size| &size.cpu), memory: total(|size| &size.memory) }
}
