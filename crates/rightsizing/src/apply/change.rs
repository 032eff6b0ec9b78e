//! New requests and limits of a pod's containers, computed from a recommendation.
//!
//! Upstream: `pkg/admission-controller/resource/pod/recommendation` and `pkg/utils/vpa/capping.go`.

use super::hold::Hold;
use super::limit_range::{Ranges, admits, fit_container, fit_pod, fit_ratio, limit_for};
use super::pod::{Resize, SizeChange, SizedContainer, SizedPod};
use super::qos::is_kept;
use crate::recommend::amount::Amount;
use crate::recommend::{ContainerPolicy, OptionalAmounts, Recommendation, Vpa};

/// Returns the recommendation for each container by index, within the limits of the VPA and of LimitRanges.
pub fn recommended(pod: &SizedPod, vpa: &Vpa, ranges: &Ranges) -> Vec<(usize, Recommendation, Vec<String>)> {
    let all = vpa.status.recommendation.as_deref().unwrap_or_default();
    let mut wanted: Vec<(usize, Recommendation)> = Vec::new();
    for (index, container) in pod.containers.iter().enumerate() {
        let Some(controlled) = vpa.controlled(&container.name) else { continue };
        let Some(found) = all.iter().find(|it| it.container == container.name) else { continue };
        let mut recommendation = found.clone();
        for amounts in [&mut recommendation.target, &mut recommendation.lower, &mut recommendation.upper] {
            *amounts = amounts
                .zip(controlled)
                .map(|(amount, controlled): (Option<Amount>, bool)| amount.filter(|_| controlled));
        }
        // A request of zero is never enough.
        recommendation.target =
            recommendation.target.map(|target: Option<Amount>| target.filter(|it| *it > 0));
        if recommendation.target != OptionalAmounts::default() {
            wanted.push((index, recommendation));
        }
    }
    fit_pod(&mut wanted, pod, &ranges.pod);
    let wanted = wanted.into_iter().filter_map(|(index, mut recommendation)| {
        let container = pod.containers.get(index)?;
        let policy = vpa.policy(&container.name);
        let notes = fit(&mut recommendation.target, container, policy, ranges);
        fit(&mut recommendation.lower, container, policy, ranges);
        fit(&mut recommendation.upper, container, policy, ranges);
        Some((index, recommendation, notes))
    });
    wanted.collect()
}

fn fit(
    amounts: &mut OptionalAmounts,
    container: &SizedContainer,
    policy: Option<&ContainerPolicy>,
    ranges: &Ranges,
) -> Vec<String> {
    let mut notes = fit_container(amounts, container, &ranges.container);
    let Some(policy) = policy else { return notes };
    let mut cap = |name: &str, amount: &mut Option<Amount>, min: Option<Amount>, max: Option<Amount>| {
        let Some(amount) = amount else { return };
        if let Some(min) = min.filter(|min| *amount < *min) {
            *amount = min;
            notes.push(format!("{name} capped to minAllowed"));
        }
        if let Some(max) = max.filter(|max| *amount > *max) {
            *amount = max;
            notes.push(format!("{name} capped to maxAllowed"));
        }
    };
    let allowed = policy.allowed;
    cap("cpu", &mut amounts.cpu, allowed.min.cpu, allowed.max.cpu);
    cap("memory", &mut amounts.memory, allowed.min.memory, allowed.max.memory);
    if policy.requests_only {
        let limits = container.wanted.limits;
        for (name, amount, limit) in
            [("cpu", &mut amounts.cpu, limits.cpu), ("memory", &mut amounts.memory, limits.memory)]
        {
            if let (Some(amount), Some(limit)) = (amount, limit)
                && *amount > limit
            {
                *amount = limit;
                notes.push(format!("{name} capped to container limit"));
            }
        }
    }
    notes
}

/// Computes the changes of the pod's containers.
///
/// # Errors
/// The reason why the pod stays unchanged.
pub fn changes(pod: &SizedPod, vpa: &Vpa, ranges: &Ranges) -> Result<Vec<SizeChange>, Hold> {
    if pod.is_sized_as_a_whole {
        return Err(Hold::PodLevelResources);
    }
    let changes: Vec<SizeChange> = recommended(pod, vpa, ranges)
        .into_iter()
        .map(|(index, recommendation, notes)| change(pod, vpa, ranges, (index, recommendation.target, notes)))
        .collect();
    if changes.is_empty() {
        return Err(Hold::NoRecommendation);
    }
    match admits(pod, &changes, ranges) {
        true => Ok(changes),
        false => Err(Hold::LimitRange),
    }
}

fn change(
    pod: &SizedPod,
    vpa: &Vpa,
    ranges: &Ranges,
    (index, mut requests, notes): (usize, OptionalAmounts, Vec<String>),
) -> SizeChange {
    let container = &pod.containers[index];
    let keeps_limits = vpa.policy(&container.name).is_some_and(|policy| policy.requests_only);
    let mut limits = OptionalAmounts::default();
    if !keeps_limits {
        let default = ranges.container.default_limit;
        limits.cpu = limit_for(container.wanted, requests.cpu, default.cpu, |it| it.cpu);
        limits.memory = limit_for(container.wanted, requests.memory, default.memory, |it| it.memory);
    }
    let after = limits.zip(container.wanted.limits).map(|(new, old): (Option<Amount>, _)| new.or(old));
    fit_ratio(&mut requests, &after, &ranges.container);
    SizeChange { container: index, requests, limits, notes }
}

/// Returns by how much the changes exceed what the pod's node gives it, or must be ready to give: millicores and
/// bytes. A node never gives what it reported as infeasible.
pub fn growth(pod: &SizedPod, changes: &[SizeChange]) -> berth_model::NodeSize {
    let mut growth = berth_model::NodeSize::default();
    for change in changes {
        let Some(container) = pod.containers.get(change.container) else { continue };
        let wanted = container.wanted.requests.zip(container.now().requests);
        let is_wanted = pod.resize != Some(Resize::Infeasible);
        let held = wanted.map(|(wanted, now): (Option<Amount>, Option<Amount>)| {
            wanted.filter(|_| is_wanted).max(now).unwrap_or(0)
        });
        let more = change
            .requests
            .zip(held)
            .map(|(new, held): (Option<Amount>, Amount)| new.map_or(0, |new| new.saturating_sub(held)));
        growth = growth.zip(more).map(|(sum, more): (Amount, Amount)| sum.saturating_add(more));
    }
    growth
}

/// Returns the memory of the changes, and their CPU, for a node that has no room for both: memory first, as too little of it kills. None
/// if all is of one resource; without a part that would change the QoS class of the pod.
pub fn parts(pod: &SizedPod, changes: &[SizeChange]) -> Vec<Vec<SizeChange>> {
    let only = |of: fn(OptionalAmounts) -> OptionalAmounts| -> Vec<SizeChange> {
        let of_both = |change: &SizeChange| SizeChange {
            requests: of(change.requests),
            limits: of(change.limits),
            ..change.clone()
        };
        let is_change = |part: &SizeChange| {
            pod.containers.get(part.container).is_some_and(|container| !part.is_in(container.wanted))
        };
        changes.iter().map(of_both).filter(is_change).collect()
    };
    let memory = only(|all| OptionalAmounts { cpu: None, ..all });
    let cpu = only(|all| OptionalAmounts { memory: None, ..all });
    if memory.is_empty() || cpu.is_empty() {
        return Vec::new();
    }
    [memory, cpu].into_iter().filter(|part| is_kept(pod, part)).collect()
}
