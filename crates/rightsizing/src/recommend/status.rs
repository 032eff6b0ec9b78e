//! The status of a VPA: what to recommend, which conditions hold, and whether that is worth a write.
//!
//! Upstream: `pkg/recommender/model/vpa.go` and `pkg/utils/vpa/api.go`.

use super::amount::Amount;
use super::post::{Amounts, Recommendation};
use super::time::{self, UnixNanos};

/// Types of conditions.
pub mod condition {
    pub const RECOMMENDATION_PROVIDED: &str = "RecommendationProvided";
    pub const LOW_CONFIDENCE: &str = "LowConfidence";
    pub const NO_PODS_MATCHED: &str = "NoPodsMatched";
    pub const FETCHING_HISTORY: &str = "FetchingHistory";
    pub const CONFIG_UNSUPPORTED: &str = "ConfigUnsupported";

    /// Those that are decided here, in the order in which they are written. Others are left as they are.
    pub const DECIDED: [&str; 5] =
        [RECOMMENDATION_PROVIDED, LOW_CONFIDENCE, NO_PODS_MATCHED, FETCHING_HISTORY, CONFIG_UNSUPPORTED];
}

/// The status of a VPA as far as it is read and written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// `None`: nothing is recommended.
    pub recommendation: Option<Vec<Recommendation>>,
    pub conditions: Vec<Condition>,
}

/// As in any Kubernetes status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    pub reason: String,
    pub message: String,
    /// `lastTransitionTime`.
    pub since: Option<String>,
    pub observed_generation: Option<i64>,
}

/// What was found out about one VPA.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Why its target cannot be looked after: there is no such object, or another VPA does it.
    pub unsupported: Option<String>,
    /// Another VPA looks after the target.
    pub is_shadowed: bool,
    /// Running pods of the target.
    pub pods: usize,
    /// What is known from before has not been read yet.
    pub fetches_history: bool,
    /// The names of the containers that its pods have, without those whose policy is off.
    pub containers: Vec<String>,
    /// Of containers of which enough is known, by name.
    pub recommendations: Vec<Recommendation>,
    /// Containers of which little is known yet.
    pub low_confidence: Vec<String>,
    /// What is said about limits by nodes; empty when nothing was capped.
    pub capped: String,
}

/// Differences below these are not written, once something is recommended. 0: every difference is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thresholds {
    pub cpu_milli: Amount,
    pub memory_bytes: Amount,
}

/// The status that follows from what was found, or `None` when the one that is there says it already.
pub fn next(old: &Status, found: &Findings, thresholds: Thresholds, now: UnixNanos) -> Option<Status> {
    let recommendation = match found.is_shadowed {
        true => None,
        false => recommendation(old, found, thresholds),
    };
    let conditions = conditions(&old.conditions, found, recommendation.is_some(), now);
    let next = Status { recommendation, conditions };
    (next != *old).then_some(next)
}

/// What is recommended from now on. What was recommended to a container that is still there stays until there is something
/// better: requests that were set by it would fall back otherwise.
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

/// Whether both say the same, but for differences that are below the thresholds.
fn is_about(old: &[Recommendation], new: &[Recommendation], thresholds: Thresholds) -> bool {
    let close = |old: Option<Amount>, new: Option<Amount>, threshold: Amount| match (old, new) {
        (Some(old), Some(new)) => old == new || old.abs_diff(new) < threshold.unsigned_abs(),
        (old, new) => old == new,
    };
    let amounts = |old: Amounts, new: Amounts| {
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

fn conditions(old: &[Condition], found: &Findings, is_provided: bool, now: UnixNanos) -> Vec<Condition> {
    use condition::*;
    let no_pods = found.pods == 0 && found.unsupported.is_none();
    let provided = match (is_provided, no_pods) {
        (true, _) => (true, "", found.capped.clone()),
        (false, true) => (false, "NoPodsMatched", "No pods match this VPA object".to_owned()),
        (false, false) if found.unsupported.is_some() => (false, "ConfigUnsupported", String::new()),
        (false, false) => (false, "NoSamples", "no usage of the containers is known yet".to_owned()),
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
            found.fetches_history.then(|| (true, "", "the usage of the past is not read yet".to_owned())),
        ),
        (CONFIG_UNSUPPORTED, found.unsupported.clone().map(|why| (true, "TargetUnsupported", why))),
    ];
    let known = |kind: &str| old.iter().find(|condition| condition.kind == kind);
    let decided = wanted.into_iter().filter_map(|(kind, condition)| {
        let (is_true, reason, message) = condition?;
        let status = if is_true { "True" } else { "False" };
        let known = known(kind);
        let since = known.filter(|known| known.status == status).and_then(|known| known.since.clone());
        Some(Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            since: since.or_else(|| time::to_text(now)),
            observed_generation: known.and_then(|known| known.observed_generation),
        })
    });
    let mut all: Vec<Condition> =
        old.iter().filter(|condition| !DECIDED.contains(&condition.kind.as_str())).cloned().collect();
    all.extend(decided);
    // As they stand in the status, so that an order of somebody else's is no difference.
    let place = |condition: &Condition| {
        old.iter().position(|known| known.kind == condition.kind).unwrap_or(usize::MAX)
    };
    all.sort_by_key(place);
    all
}
