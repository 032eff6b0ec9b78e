//! The QoS class of a pod, as Kubernetes computes it (`ComputePodQOS`). It cannot change in place.

use super::pod::SizeChange;
use super::pod::{Resources, SizedPod};
use berth_model::PerResource;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    BestEffort,
    Burstable,
    Guaranteed,
}

/// Returns the class of a pod with containers of these resources.
pub fn class(containers: impl IntoIterator<Item = Resources>) -> QosClass {
    let mut sums: PerResource<(i128, i128)> = PerResource::default();
    let mut all_limited = true;
    for container in containers {
        let pairs = container.requests.zip(container.limits);
        let add = |sum: &mut (i128, i128), (request, limit): (Option<i64>, Option<i64>)| {
            let (request, limit) = (request.unwrap_or(0).max(0), limit.unwrap_or(0).max(0));
            sum.0 += i128::from(request);
            sum.1 += i128::from(limit);
            limit > 0
        };
        all_limited &= add(&mut sums.cpu, pairs.cpu);
        all_limited &= add(&mut sums.memory, pairs.memory);
    }
    let is_zero = |sum: (i128, i128)| sum == (0, 0);
    if is_zero(sums.cpu) && is_zero(sums.memory) {
        return QosClass::BestEffort;
    }
    let is_equal = |sum: (i128, i128)| sum.0 == sum.1;
    match all_limited && is_equal(sums.cpu) && is_equal(sums.memory) {
        true => QosClass::Guaranteed,
        false => QosClass::Burstable,
    }
}

/// Returns whether the pod keeps its class with these changes.
pub fn is_kept(pod: &SizedPod, changes: &[SizeChange]) -> bool {
    let before = pod.containers.iter().map(|container| container.wanted);
    let after = pod.containers.iter().enumerate().map(|(index, container)| {
        let change = changes.iter().find(|change| change.container == index);
        change.map_or(container.wanted, |change| change.applied_to(container.wanted))
    });
    let init = || pod.init_containers.iter().copied();
    class(before.chain(init())) == class(after.chain(init()))
}
