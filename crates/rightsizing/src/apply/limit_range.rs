//! LimitRanges of a namespace, and the fitting of recommendations to them.
//!
//! Upstream: `pkg/utils/limitrange` and `pkg/utils/vpa/capping.go`. Unlike upstream, limit-to-request ratios are
//! respected, and a pod that would still be refused is left alone.

use super::pod::{Resources, SizeChange, SizedContainer, SizedPod};
use crate::recommend::amount::{AMOUNT_MAX, Amount};
use crate::recommend::change::proportional_limit;
use crate::recommend::{OptionalAmounts, Recommendation};
use berth_model::PerResource;

/// All LimitRanges of a namespace combined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    pub container: Range,
    pub pod: Range,
}

/// Range for containers, or for pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    pub min: OptionalAmounts,
    pub max: OptionalAmounts,
    /// Limit of containers that set none.
    pub default_limit: OptionalAmounts,
    /// Maximum ratio of limit to request, in thousandths.
    pub ratio_milli: OptionalAmounts,
}

impl Range {
    /// Adds the restrictions of another range.
    pub fn join(&mut self, other: &Range) {
        let least = |a: Option<Amount>, b: Option<Amount>| a.map_or(b, |a| Some(b.map_or(a, |b| a.min(b))));
        let most = |a: Option<Amount>, b: Option<Amount>| a.max(b);
        self.min = self.min.zip(other.min).map(|(a, b)| most(a, b));
        self.max = self.max.zip(other.max).map(|(a, b)| least(a, b));
        self.default_limit = self.default_limit.zip(other.default_limit).map(|(a, b)| least(a, b));
        self.ratio_milli = self.ratio_milli.zip(other.ratio_milli).map(|(a, b)| least(a, b));
    }
}

/// Selects one of the two resources.
type Of = fn(&OptionalAmounts) -> Option<Amount>;
type OfMut = fn(&mut OptionalAmounts) -> &mut Option<Amount>;
const RESOURCES: [(&str, Of, OfMut); 2] =
    [("cpu", |it| it.cpu, |it| &mut it.cpu), ("memory", |it| it.memory, |it| &mut it.memory)];

/// Returns `amount` times `to` / `from`, truncated.
fn scaled(amount: Amount, to: i128, from: i128) -> Amount {
    if from <= 0 {
        return amount;
    }
    Amount::try_from(i128::from(amount) * to / from).map_or(AMOUNT_MAX, |it| it.clamp(0, AMOUNT_MAX))
}

/// Scales the recommendations for all containers of a pod in proportion, so that the pod's limits stay in the range
/// of pods.
pub(super) fn fit_pod(wanted: &mut [(usize, Recommendation)], pod: &SizedPod, range: &Range) {
    let bounds: [fn(&mut Recommendation) -> &mut OptionalAmounts; 3] =
        [|it| &mut it.target, |it| &mut it.lower, |it| &mut it.upper];
    for bound in bounds {
        for (_, of, of_mut) in RESOURCES {
            fit_sum(wanted, pod, range, bound, (of, of_mut));
        }
    }
}

fn fit_sum(
    wanted: &mut [(usize, Recommendation)],
    pod: &SizedPod,
    range: &Range,
    bound: fn(&mut Recommendation) -> &mut OptionalAmounts,
    (of, of_mut): (Of, OfMut),
) {
    let (min, max) = (of(&range.min).unwrap_or(0).max(0), of(&range.max).filter(|max| *max > 0));
    let (mut limits, mut requests) = (0_i128, 0_i128);
    for (index, recommendation) in wanted.iter_mut() {
        let Some(container) = pod.containers.get(*index) else { continue };
        let Some(amount) = *of_mut(bound(recommendation)) else { continue };
        let default = of(&range.default_limit);
        let limit = limit_for(container.wanted, Some(amount), default, of);
        limits += i128::from(limit.unwrap_or(0));
        requests += i128::from(amount);
    }
    let (min, max) = (i128::from(min), max.map(i128::from));
    if limits >= min && max.is_none_or(|max| limits <= max) {
        return;
    }
    let (to, from) = match max {
        _ if min > requests && limits > 0 => (min, requests),
        _ if limits == 0 => return,
        Some(max) if limits > max => (max, limits),
        _ if limits < min => (min, limits),
        _ => return,
    };
    for (_, recommendation) in wanted.iter_mut() {
        if let Some(amount) = of_mut(bound(recommendation)) {
            *amount = scaled(*amount, to, from);
        }
    }
}

/// Returns the limit that follows from a recommended request.
pub(super) fn limit_for(
    now: Resources,
    recommended: Option<Amount>,
    default_limit: Option<Amount>,
    of: fn(&OptionalAmounts) -> Option<Amount>,
) -> Option<Amount> {
    let limit = of(&now.limits).filter(|limit| *limit > 0).or(default_limit);
    proportional_limit(limit, of(&now.requests), recommended)
}

/// Fits the recommendation for a container to the range of containers: its limit, which follows the request, must
/// be in it.
pub(super) fn fit_container(
    amounts: &mut OptionalAmounts,
    container: &SizedContainer,
    range: &Range,
) -> Vec<String> {
    let mut notes = Vec::new();
    let now = container.wanted;
    for (name, of, of_mut) in RESOURCES {
        let Some(amount) = of_mut(amounts) else { continue };
        let limit = of(&now.limits).filter(|limit| *limit > 0).or(of(&range.default_limit));
        let request_at = |boundary: Amount| {
            let limit = limit.filter(|limit| *limit > 0)?;
            let request = of(&now.requests).filter(|request| *request > 0).unwrap_or(limit);
            Some(scaled(boundary, i128::from(request), i128::from(limit)))
        };
        if let Some(most) = of(&range.max).and_then(request_at)
            && *amount > most
        {
            *amount = most;
            notes.push(format!("{name} capped to fit Max in container LimitRange"));
        }
        if let Some(least) = of(&range.min).and_then(request_at)
            && *amount < least
        {
            *amount = least;
            notes.push(format!("{name} capped to fit Min in container LimitRange"));
        }
    }
    notes
}

/// Raises a request whose limit would exceed the maximum ratio.
pub(super) fn fit_ratio(requests: &mut OptionalAmounts, limits: &OptionalAmounts, range: &Range) {
    for (_, of, of_mut) in RESOURCES {
        let (Some(limit), Some(ratio)) = (of(limits), of(&range.ratio_milli).filter(|ratio| *ratio > 0))
        else {
            continue;
        };
        if let Some(request) = of_mut(requests) {
            let least = (i128::from(limit) * 1000 + i128::from(ratio) - 1) / i128::from(ratio);
            *request = (*request).max(Amount::try_from(least).unwrap_or(limit)).min(limit.max(*request));
        }
    }
}

/// Returns whether the LimitRanges and Kubernetes itself would accept the pod with these changes.
pub(super) fn admits(pod: &SizedPod, changes: &[SizeChange], ranges: &Ranges) -> bool {
    let mut sums = Resources::default();
    let mut all_limited = PerResource { cpu: true, memory: true };
    for (index, container) in pod.containers.iter().enumerate() {
        let change = changes.iter().find(|change| change.container == index);
        let after = change.map_or(container.wanted, |change| change.applied_to(container.wanted));
        let asks_nothing =
            |change: &SizeChange| RESOURCES.iter().any(|(_, of, _)| of(&change.requests) == Some(0));
        if change.is_some_and(asks_nothing) {
            return false;
        }
        if change.is_some() && !RESOURCES.iter().all(|(_, of, _)| is_in(after, &ranges.container, *of)) {
            return false;
        }
        for (_, of, of_mut) in RESOURCES {
            let add = |sum: &mut OptionalAmounts, amount: Option<Amount>| {
                let sum = of_mut(sum);
                *sum = Some(sum.unwrap_or(0).saturating_add(amount.unwrap_or(0)));
            };
            add(&mut sums.requests, of(&after.requests).or(of(&after.limits)));
            add(&mut sums.limits, of(&after.limits));
        }
        all_limited.cpu &= after.limits.cpu.is_some();
        all_limited.memory &= after.limits.memory.is_some();
    }
    let limited = [all_limited.cpu, all_limited.memory];
    RESOURCES.iter().zip(limited).all(|((_, of, _), limited)| {
        let mut sums = sums;
        if !limited {
            // A sum that misses a container is no limit of the pod.
            sums.limits = OptionalAmounts::default();
        }
        is_in(sums, &ranges.pod, *of)
    })
}

fn is_in(it: Resources, range: &Range, of: Of) -> bool {
    let (limit, request) = (of(&it.limits), of(&it.requests).or(of(&it.limits)));
    let below = |a: Option<Amount>, b: Option<Amount>| a.zip(b).is_none_or(|(a, b)| a <= b);
    let in_ratio = || {
        let Some(((limit, request), ratio)) = limit.zip(request).zip(of(&range.ratio_milli)) else {
            return true;
        };
        i128::from(limit) * 1000 <= i128::from(request) * i128::from(ratio)
    };
    below(request, limit)
        && below(of(&range.min), request)
        && below(of(&range.min), limit)
        && below(limit, of(&range.max))
        && below(request, of(&range.max))
        && in_ratio()
}
