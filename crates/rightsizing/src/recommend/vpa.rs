//! VerticalPodAutoscaler as plain values, and the effect of its policies on each container.
//!
//! Upstream: `pkg/apis/autoscaling.k8s.io/v1/types.go`, `pkg/recommender/model/vpa.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::amount::{AMOUNT_MAX, Amount};
use super::container::MemoryRules;
use super::estimate::{self, Controlled};
use super::method::{Method, UnknownMethod};
use super::post::{AllowedRange, OptionalAmounts, PostPolicy};
use super::status::Status;
use super::store::Workload;
use super::time::{self, UnixNanos};
use berth_model::PerResource;

/// Name of the recommender for VPAs that name none.
pub const DEFAULT_RECOMMENDER: &str = "default";

/// Name of the policy for containers that have none of their own.
const ANY_CONTAINER: &str = "*";

/// Longest memory window and largest multiplier that a VPA can set: the limits of berth's own configuration.
const INTERVAL_S_MAX: i64 = 30 * 86_400;
const OOM_BUMP_RATIO_MAX: f64 = 100.0;

/// Fields that are read from a VPA.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vpa {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: String,
    pub generation: Option<i64>,
    pub created: UnixNanos,
    /// `None`: there is no target, or it lacks a kind or name.
    pub target: Option<OwnerRef>,
    /// Names of `spec.recommenders`.
    pub recommenders: Vec<String>,
    pub update_mode: String,
    /// Update policy apart from the mode.
    pub update: UpdatePolicy,
    /// Whether it has the label of VPAs created by berth.
    pub is_managed: bool,
    /// Changes with every change of the object.
    pub resource_version: String,
    pub policies: Vec<ContainerPolicy>,
    /// For containers whose policy has none.
    pub startup_boost: Option<StartupBoost>,
    /// Containers that get whole cores, from an annotation.
    pub integer_cpu: Vec<String>,
    /// Estimator selected by an annotation; `None`: that of the Vertical Pod Autoscaler.
    pub estimator: Option<Result<Method, UnknownMethod>>,
    /// Annotation with the estimates of dimensions besides CPU and memory.
    pub usage: Option<Box<str>>,
    /// Annotation with the last eviction of one of its pods, also by a former leader.
    pub last_eviction: Option<LastEviction>,
    pub status: Status,
}

/// The last eviction of a pod for its new size, as JSON in an annotation of the VPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEviction {
    /// By the clock of the updater.
    #[serde(with = "time::text")]
    pub at: UnixNanos,
    /// Creation of the newest pod of that time, by the API server's clock: pods created later came afterwards.
    #[serde(with = "time::text")]
    pub newest_pod: UnixNanos,
}

/// Controller named by an owner reference or by a VPA's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerRef {
    /// `GROUP/VERSION`, or the version alone; may be empty.
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

/// Restrictions on updating the pods of a VPA, apart from the mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdatePolicy {
    /// `None`: the updater's configured value.
    pub min_replicas: Option<i64>,
    /// All of them must be met before a pod is updated.
    pub requirements: Vec<EvictionRequirement>,
    /// A container OOM-killed within this many seconds of its start is updated immediately.
    pub evict_after_oom_s: Option<i64>,
}

/// Direction in which at least one of these resources must change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvictionRequirement {
    pub resources: PerResource<bool>,
    /// `TargetHigherThanRequests` or `TargetLowerThanRequests`; any other value is never met.
    pub change: String,
}

/// Policy of a VPA for one container, or for all containers without their own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerPolicy {
    /// `*` for containers without a policy of their own.
    pub container: String,
    /// Whether the container gets no recommendation.
    pub off: bool,
    /// Whether limits are left unchanged.
    pub requests_only: bool,
    pub allowed: AllowedRange,
    /// `None`: both resources.
    pub controlled: Option<Controlled>,
    pub oom_bump_ratio: Option<f64>,
    pub oom_min_bump: Option<Amount>,
    pub interval_s: Option<i64>,
    pub interval_count: Option<i64>,
    pub startup_boost: Option<StartupBoost>,
}

/// More CPU for a container while it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupBoost {
    pub cpu: CpuBoost,
    /// Time for which it lasts after the pod became ready.
    pub seconds: i64,
}

/// How much more CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuBoost {
    /// Times this.
    Factor(i64),
    /// Millicores more.
    Added(Amount),
}

impl CpuBoost {
    /// Returns the boosted amount, in millicores.
    pub fn applied_to(self, milli_cpu: Amount) -> Amount {
        let boosted = match self {
            CpuBoost::Factor(factor) => milli_cpu.saturating_mul(factor),
            CpuBoost::Added(more) => milli_cpu.saturating_add(more),
        };
        boosted.clamp(0, AMOUNT_MAX)
    }
}

impl OwnerRef {
    /// Returns the API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns whether it is a built-in kind. As in upstream, a target may leave the group out.
    pub fn is_built_in(&self) -> bool {
        let kinds = [
            "DaemonSet",
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
            "Job",
            "CronJob",
            "ReplicationController",
        ];
        ["", "apps", "batch", "extensions"].contains(&self.group()) && kinds.contains(&self.kind.as_str())
    }

    /// Returns the workload with this owner in a namespace. Custom kinds include their group, as kind names are not
    /// unique.
    pub fn workload(&self, namespace: &Arc<str>) -> Workload {
        let kind = match self.is_built_in() || self.group().is_empty() {
            true => self.kind.as_str().into(),
            false => format!("{}.{}", self.kind, self.group()).into(),
        };
        Workload { namespace: namespace.clone(), kind, name: self.name.as_str().into() }
    }
}

impl Vpa {
    /// Returns whether the VPA belongs to the recommender of this name. `default` also gets the VPAs that name
    /// none.
    pub fn is_of(&self, recommender: &str) -> bool {
        match self.recommenders.is_empty() {
            true => recommender == DEFAULT_RECOMMENDER,
            false => self.recommenders.iter().any(|name| name == recommender),
        }
    }

    pub fn workload(&self) -> Option<Workload> {
        self.target.as_ref().map(|target| target.workload(&self.namespace))
    }

    /// Returns the policy of a container: its own, else the default one. The two are not merged.
    pub fn policy(&self, container: &str) -> Option<&ContainerPolicy> {
        let of = |name: &str| self.policies.iter().find(|policy| policy.container == name);
        of(container).or_else(|| of(ANY_CONTAINER))
    }

    /// Returns the resources of a container to recommend; `None`: its policy is off.
    pub fn controlled(&self, container: &str) -> Option<Controlled> {
        let Some(policy) = self.policy(container) else { return Some(estimate::BOTH) };
        (!policy.off).then(|| policy.controlled.unwrap_or(estimate::BOTH))
    }

    /// Returns the boost of a container for its start: that of its policy, else that of the VPA. None if its policy is
    /// off.
    pub fn startup_boost(&self, container: &str) -> Option<StartupBoost> {
        match self.policy(container) {
            Some(policy) if policy.off => None,
            policy => policy.and_then(|policy| policy.startup_boost).or(self.startup_boost),
        }
    }

    /// Returns whether some container may get a boost for its start.
    pub fn has_startup_boost(&self) -> bool {
        self.startup_boost.is_some() || self.policies.iter().any(|policy| policy.startup_boost.is_some())
    }

    /// Returns the memory rules for a container, or `None` when its policy sets none. Invalid values count as
    /// unset, and values that are too large are clamped: peaks count at the end of their window, and one far in the
    /// future would outweigh all later samples.
    pub fn memory_rules(&self, container: &str, default: MemoryRules) -> Option<MemoryRules> {
        const SECOND_NS: i64 = 1_000_000_000;
        let policy = self.policy(container)?;
        let rules = MemoryRules {
            interval_ns: policy
                .interval_s
                .filter(|seconds| *seconds > 0)
                .map_or(default.interval_ns, |seconds| seconds.min(INTERVAL_S_MAX) * SECOND_NS),
            interval_count: policy
                .interval_count
                .filter(|count| *count > 0)
                .map_or(default.interval_count, |count| u32::try_from(count).unwrap_or(u32::MAX)),
            oom_bump_ratio: policy
                .oom_bump_ratio
                .filter(|ratio| *ratio >= 1.0)
                .map_or(default.oom_bump_ratio, |ratio| ratio.min(OOM_BUMP_RATIO_MAX)),
            oom_min_bump: policy.oom_min_bump.filter(|bytes| *bytes >= 0).unwrap_or(default.oom_min_bump),
        };
        (rules != default).then_some(rules)
    }

    /// Returns the post-processing policy; `max_allowed` applies to containers whose policy has no maximum.
    pub fn post_policy(&self, max_allowed: OptionalAmounts) -> PostPolicy {
        let mut allowed = BTreeMap::new();
        for policy in &self.policies {
            // The first policy of a name wins.
            allowed.entry(policy.container.clone()).or_insert(policy.allowed);
        }
        let integer_cpu = self.integer_cpu.clone();
        PostPolicy { allowed, max_allowed, integer_cpu, node_room: OptionalAmounts::default() }
    }
}
