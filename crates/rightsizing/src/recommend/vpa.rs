//! A VerticalPodAutoscaler as plain values, and what its policies mean for each container.
//!
//! Upstream: `pkg/apis/autoscaling.k8s.io/v1/types.go`, `pkg/recommender/model/vpa.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::amount::Amount;
use super::container::MemoryRules;
use super::estimate::{self, Controlled};
use super::method::{Method, UnknownMethod};
use super::post::{Allowed, Amounts, PostPolicy};
use super::status::Status;
use super::store::Workload;
use super::time::UnixNanos;
use berth_model::PerResource;

/// The name under which VPAs that name no recommender are asked for.
pub const DEFAULT_RECOMMENDER: &str = "default";

/// The policy of containers that have none of their own.
const ANY_CONTAINER: &str = "*";

/// The longest window of memory that a VPA can set, and the most that it can multiply with: those of our own configuration.
const INTERVAL_S_MAX: i64 = 30 * 86_400;
const OOM_BUMP_RATIO_MAX: f64 = 100.0;

/// What is read of a VPA.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vpa {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: String,
    pub created: UnixNanos,
    /// `None`: it has none, or one without a kind or name.
    pub target: Option<Owner>,
    /// Names of `spec.recommenders`.
    pub recommenders: Vec<String>,
    pub update_mode: String,
    /// What else it says of how its pods are updated.
    pub update: UpdatePolicy,
    /// It has the label of VPAs that berth makes itself.
    pub is_managed: bool,
    /// Changes with every change of the object.
    pub resource_version: String,
    pub policies: Vec<ContainerPolicy>,
    /// Containers that get whole cores, by an annotation.
    pub integer_cpu: Vec<String>,
    /// The estimator that an annotation asks for; `None`: the one of the Vertical Pod Autoscaler.
    pub estimator: Option<Result<Method, UnknownMethod>>,
    /// What its annotation says of other things than CPU and memory.
    pub usage: Option<Box<str>>,
    pub status: Status,
}

/// A controller, as an owner reference or a VPA's target names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// `GROUP/VERSION`, or the version alone; may be empty.
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

/// How the pods of a VPA may be updated, beside the mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdatePolicy {
    /// `None`: what the updater is configured with.
    pub min_replicas: Option<i64>,
    /// All of them must be fulfilled before a pod is updated.
    pub requirements: Vec<EvictionRequirement>,
    /// A container that was killed for want of memory within so many seconds is updated at once.
    pub evict_after_oom_s: Option<i64>,
}

/// A direction in which at least one of these resources must change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvictionRequirement {
    pub resources: PerResource<bool>,
    /// `TargetHigherThanRequests` or `TargetLowerThanRequests`; nothing fulfils another one.
    pub change: String,
}

/// What a VPA says of one container, or of all that it does not name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerPolicy {
    /// `*` for those that have no policy of their own.
    pub container: String,
    /// It gets no recommendation.
    pub off: bool,
    /// Limits stay as they are.
    pub requests_only: bool,
    pub allowed: Allowed,
    /// `None`: both resources.
    pub controlled: Option<Controlled>,
    pub oom_bump_ratio: Option<f64>,
    pub oom_min_bump: Option<Amount>,
    pub interval_s: Option<i64>,
    pub interval_count: Option<i64>,
}

impl Owner {
    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether it is one of the kinds that Kubernetes itself has. As upstream, a target may leave the group out.
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

    /// The workload that this is in a namespace. Kinds of others carry their group: names of kinds are not unique.
    pub fn workload(&self, namespace: &Arc<str>) -> Workload {
        let kind = match self.is_built_in() || self.group().is_empty() {
            true => self.kind.as_str().into(),
            false => format!("{}.{}", self.kind, self.group()).into(),
        };
        Workload { namespace: namespace.clone(), kind, name: self.name.as_str().into() }
    }
}

impl Vpa {
    /// Whether the recommender of this name looks after it. The one named `default` also has those that name none.
    pub fn is_of(&self, recommender: &str) -> bool {
        match self.recommenders.is_empty() {
            true => recommender == DEFAULT_RECOMMENDER,
            false => self.recommenders.iter().any(|name| name == recommender),
        }
    }

    pub fn workload(&self) -> Option<Workload> {
        self.target.as_ref().map(|target| target.workload(&self.namespace))
    }

    /// The policy of a container: its own, else the one for all others. The two are not mixed.
    pub fn policy(&self, container: &str) -> Option<&ContainerPolicy> {
        let of = |name: &str| self.policies.iter().find(|policy| policy.container == name);
        of(container).or_else(|| of(ANY_CONTAINER))
    }

    /// Which resources of a container are recommended; `None`: its policy is off.
    pub fn controlled(&self, container: &str) -> Option<Controlled> {
        let Some(policy) = self.policy(container) else { return Some(estimate::BOTH) };
        (!policy.off).then(|| policy.controlled.unwrap_or(estimate::BOTH))
    }

    /// How memory samples of a container become peaks; `None` when its policy says nothing of it. What makes no sense counts
    /// as not said, and what is too much as the most that there can be: peaks count at the end of their window, and one that is
    /// far ahead would outweigh all later samples.
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

    /// What is done with recommendations; `max_allowed` is for containers whose policy has no maximum.
    pub fn post_policy(&self, max_allowed: Amounts) -> PostPolicy {
        let mut allowed = BTreeMap::new();
        for policy in &self.policies {
            // The first one of a name counts.
            allowed.entry(policy.container.clone()).or_insert(policy.allowed);
        }
        let integer_cpu = self.integer_cpu.clone();
        PostPolicy { allowed, max_allowed, integer_cpu, node_room: Amounts::default() }
    }
}
