//! Status of a VPA: recommendations, conditions, and the decision whether a change is worth a write.
//!
//! Upstream: `pkg/recommender/model/vpa.go` and `pkg/utils/vpa/api.go`.

use super::amount::Amount;
use super::post::{OptionalAmounts, Recommendation};
use super::time::{self, UnixNanos};

/// Condition types.
pub mod condition {
    pub const RECOMMENDATION_PROVIDED: &str = "RecommendationProvided";
    pub const LOW_CONFIDENCE: &str = "LowConfidence";
    pub const NO_PODS_MATCHED: &str = "NoPodsMatched";
    pub const FETCHING_HISTORY: &str = "FetchingHistory";
    pub const CONFIG_UNSUPPORTED: &str = "ConfigUnsupported";

    /// Reason of [`CONFIG_UNSUPPORTED`]: its namespace has too many VPAs.
    pub const LIMIT_REACHED: &str = "LimitReached";

    /// Types managed here, in the order in which they are written. Conditions of other types are left unchanged.
    pub const DECIDED: [&str; 5] =
        [RECOMMENDATION_PROVIDED, LOW_CONFIDENCE, NO_PODS_MATCHED, FETCHING_HISTORY, CONFIG_UNSUPPORTED];
}

/// Fields of a VPA's status that are read and written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// `None`: there is no recommendation.
    pub recommendation: Option<Vec<Recommendation>>,
    pub conditions: Vec<VpaCondition>,
    /// Generation of the VPA that this status is of.
    pub observed_generation: Option<i64>,
}

/// Kubernetes condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VpaCondition {
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    pub reason: String,
    pub message: String,
    /// `lastTransitionTime`.
    pub since: Option<String>,
    pub observed_generation: Option<i64>,
}

/// Inputs for the status of one VPA.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Generation of the VPA.
    pub generation: Option<i64>,
    /// Reason why the target is not handled: it does not exist, or another VPA controls it.
    pub unsupported: Option<String>,
    /// Whether another VPA controls the target.
    pub is_shadowed: bool,
    /// Whether its namespace has too many older VPAs; `unsupported` has the message.
    pub is_beyond_limit: bool,
    /// Number of running pods of the target.
    pub pods: usize,
    /// Whether the usage history has not been loaded yet.
    pub fetches_history: bool,
    /// Names of the containers of its pods, without those whose policy is off.
    pub containers: Vec<String>,
    /// Recommendations for containers with enough samples, by name.
    pub recommendations: Vec<Recommendation>,
    /// Containers with few samples.
    pub low_confidence: Vec<String>,
    /// Message about capping to a node's size; empty when nothing was capped.
    pub capped: String,
}

/// Differences below these are not written once there is a recommendation. 0: every difference is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thresholds {
    pub cpu_milli: Amount,
    pub memory_bytes: Amount,
}

/// Returns the new status, or `None` when the current one is up to date.
pub fn next(old: &Status, found: &Findings, thresholds: Thresholds, now: UnixNanos) -> Option<Status> {
    let recommendation = match found.is_shadowed {
        true => None,
        false => recommendation(old, found, thresholds),
    };
    let conditions = conditions(&old.conditions, found, recommendation.is_some(), now);
    let mut next = Status { recommendation, conditions, observed_generation: old.observed_generation };
    // CRDs before version 1.7 of the VPA drop the generation: where it is not kept, it alone is no reason for a write.
    let is_new =
        next != *old || (old.observed_generation.is_some() && old.observed_generation != found.generation);
    next.observed_generation = found.generation;
    is_new.then_some(next)
}

/// Returns the new recommendations. The recommendation of an existing container stays until there is a better one;
/// otherwise requests set from it would fall back.
fn recommendation(old: &Status, found: &Findings, thresholds: Thresholds) -> Option<Vec<Recommendation>> {
    let published = old.recommendation.as_deref().unwrap_or_default();
    if found.recommendations.is_empty() && (found.pods == 0 || found.fetches_history) {
        return old.recommendation.clone();
    }
    let mut next = found.recommendations.clone();
    let is_there = |name: &String| found.pods == 0 || found.containers.contains(name);
    for kept in published {
        if is_there(&kept.container) && next.iter().all(|new| new.container != kept.container) {
            next.push(kept.clone());
        }
    }
    next.sort_by(|a, b| a.container.cmp(&b.container));
    if next.is_empty() {
        return None;
    }
    Some(if is_about(published, &next, thresholds) { published.to_vec() } else { next })
}

/// Returns whether all differences are below the thresholds.
fn is_about(old: &[Recommendation], new: &[Recommendation], thresholds: Thresholds) -> bool {
    let close = |old: Option<Amount>, new: Option<Amount>, threshold: Amount| match (old, new) {
        (Some(old), Some(new)) => old == new || old.abs_diff(new) < threshold.unsigned_abs(),
        (old, new) => old == new,
    };
    let amounts = |old: OptionalAmounts, new: OptionalAmounts| {
        close(old.cpu, new.cpu, thresholds.cpu_milli)
            && close(old.memory, new.memory, thresholds.memory_bytes)
    };
    old.len() == new.len()
        && old.iter().zip(new).all(|(old, new)| {
            old.container == new.container
                && amounts(old.target, new.target)
                && amounts(old.lower, new.lower)
                && amounts(old.upper, new.upper)
                && amounts(old.uncapped, new.uncapped)
        })
}

fn conditions(
    old: &[VpaCondition],
    found: &Findings,
    is_provided: bool,
    now: UnixNanos,
) -> Vec<VpaCondition> {
    use condition::*;
    let no_pods = found.pods == 0 && found.unsupported.is_none();
    let provided = match (is_provided, no_pods) {
        (true, _) => (true, "", found.capped.clone()),
        (false, true) => (false, "NoPodsMatched", "No pods match this VPA object".to_owned()),
        (false, false) if found.unsupported.is_some() => (false, "ConfigUnsupported", String::new()),
        (false, false) => (false, "NoSamples", "no usage samples of the containers yet".to_owned()),
    };
    let low = &found.low_confidence;
    let wanted = [
        (RECOMMENDATION_PROVIDED, Some(provided)),
        (
            LOW_CONFIDENCE,
            (is_provided && !low.is_empty()).then(|| {
                let message = format!("too few samples yet for narrow bounds: {}", low.join(", "));
                (true, "FewSamples", message)
            }),
        ),
        (
            NO_PODS_MATCHED,
            no_pods.then(|| (true, "NoPodsMatched", "No pods match this VPA object".to_owned())),
        ),
        (
            FETCHING_HISTORY,
            found.fetches_history.then(|| (true, "", "the usage history has not been loaded yet".to_owned())),
        ),
        (
            CONFIG_UNSUPPORTED,
            found.unsupported.clone().map(|why| {
                let reason = if found.is_beyond_limit { LIMIT_REACHED } else { "TargetUnsupported" };
                (true, reason, why)
            }),
        ),
    ];
    let known = |kind: &str| old.iter().find(|condition| condition.kind == kind);
    let decided = wanted.into_iter().filter_map(|(kind, condition)| {
        let (is_true, reason, message) = condition?;
        let status = if is_true { "True" } else { "False" };
        let known = known(kind);
        let since = known.filter(|known| known.status == status).and_then(|known| known.since.clone());
        Some(VpaCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            since: since.or_else(|| time::to_text(now)),
            observed_generation: known.and_then(|known| known.observed_generation),
        })
    });
    let mut all: Vec<VpaCondition> =
        old.iter().filter(|condition| !DECIDED.contains(&condition.kind.as_str())).cloned().collect();
    all.extend(decided);
    // Keep the current order, so that an order set by another client is no difference.
    let place = |condition: &VpaCondition| {
        old.iter().position(|known| known.kind == condition.kind).unwrap_or(usize::MAX)
    };
    all.sort_by_key(place);
    all
}
