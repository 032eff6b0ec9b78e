//! More CPU for containers while they start: added at creation, and taken back in place when the pod has been ready for
//! a while.
//!
//! Upstream: AEP-7862, `pkg/admission-controller/resource/pod/patch`. Unlike upstream, the boost is in one annotation
//! that stays, because removing it would need a permission to patch pods: a container is boosted while its request is
//! what the annotation says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change::changes;
use super::hold::Hold;
use super::limit_range::{Ranges, admits, fit_container, limit_for};
use super::mode::Mode;
use super::pod::{SizeChange, SizedContainer, SizedPod};
use crate::recommend::amount::Amount;
use crate::recommend::{OptionalAmounts, UnixNanos, Vpa};

/// Annotation with the boosts of a pod, as JSON.
pub const ANNOTATION: &str = "berth.dev/startup-boost";

const SECOND_NS: i64 = 1_000_000_000;

/// Boost of one container, as in the annotation. CPU is in millicores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Boosted {
    /// The boosted request.
    pub milli_cpu: Amount,
    /// The request and limit without a VPA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Amount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Amount>,
    /// Time for which it lasts after the pod became ready.
    #[serde(default)]
    pub seconds: i64,
}

/// Boosts by container.
pub type Boosts = BTreeMap<String, Boosted>;

/// Parses the annotation; an invalid one is no boost.
pub fn read(annotation: &str) -> Boosts {
    serde_json::from_str(annotation).unwrap_or_default()
}

/// Computes the changes of a pod that is being created, with the boosts that they contain. `are_ended`: an updater runs
/// that takes boosts back; without it none is given.
///
/// # Errors
/// The reason why the pod stays unchanged.
pub fn at_creation(
    pod: &SizedPod,
    vpa: &Vpa,
    ranges: &Ranges,
    are_ended: bool,
) -> Result<(Vec<SizeChange>, Boosts), Hold> {
    let sized = match Mode::of(&vpa.update_mode) {
        Mode::Off => Err(Hold::NoRecommendation),
        _ => changes(pod, vpa, ranges),
    };
    if !are_ended || matches!(sized, Err(why) if why != Hold::NoRecommendation) {
        return sized.map(|changes| (changes, Boosts::new()));
    }
    let mut changes = sized.clone().unwrap_or_default();
    let mut boosts = Boosts::new();
    for (index, container) in pod.containers.iter().enumerate() {
        let at = changes.iter().position(|change| change.container == index);
        let sized = at.map_or(OptionalAmounts::default(), |at| changes[at].requests);
        let Some((boosted, cpu, limit)) = boosted(container, sized.cpu, vpa, ranges) else { continue };
        let at = at.unwrap_or_else(|| {
            changes.push(SizeChange { container: index, ..SizeChange::default() });
            changes.len() - 1
        });
        let change = &mut changes[at];
        change.requests.cpu = Some(cpu);
        change.limits.cpu = limit.or(change.limits.cpu);
        change.notes.push("cpu boosted for the start".to_owned());
        boosts.insert(container.name.clone(), boosted);
    }
    match boosts.is_empty() || pod.is_sized_as_a_whole || !admits(pod, &changes, ranges) {
        true => sized.map(|changes| (changes, Boosts::new())),
        false => Ok((changes, boosts)),
    }
}

/// Returns the boost of a container, with its boosted request and limit. `None`: it gets none, as one whose resize would
/// restart it.
fn boosted(
    container: &SizedContainer,
    sized: Option<Amount>,
    vpa: &Vpa,
    ranges: &Ranges,
) -> Option<(Boosted, Amount, Option<Amount>)> {
    let boost = vpa.startup_boost(&container.name).filter(|_| !container.restarts.cpu)?;
    let wanted = container.wanted;
    let from = sized.or(wanted.requests.cpu).or(wanted.limits.cpu).filter(|cpu| *cpu > 0)?;
    let mut amounts = OptionalAmounts { cpu: Some(boost.cpu.applied_to(from)), memory: None };
    fit_container(&mut amounts, container, &ranges.container);
    let keeps_limits = vpa.policy(&container.name).is_some_and(|policy| policy.requests_only);
    let mut cpu = amounts.cpu?;
    if keeps_limits {
        cpu = cpu.min(wanted.limits.cpu.unwrap_or(cpu));
    }
    let default = ranges.container.default_limit.cpu;
    let limit = if keeps_limits { None } else { limit_for(wanted, Some(cpu), default, |it| it.cpu) };
    let boosted = Boosted {
        milli_cpu: cpu,
        request: wanted.requests.cpu,
        limit: wanted.limits.cpu,
        seconds: boost.seconds,
    };
    (cpu > from).then_some((boosted, cpu, limit))
}

/// Progress of a pod's boosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoostState {
    /// No container is boosted.
    Over,
    /// The pod is not ready yet, or has been for too short a time.
    Lasts,
    /// These changes end the boosts whose time has come.
    Ends(Vec<SizeChange>),
}

/// Returns the progress of the pod's boosts. A boosted container gets its recommended CPU; without one, that of its
/// template.
pub fn state(pod: &SizedPod, vpa: &Vpa, ranges: &Ranges, now: UnixNanos) -> BoostState {
    if pod.boosts.is_empty() {
        return BoostState::Over;
    }
    let sized = match Mode::of(&vpa.update_mode) {
        Mode::Off => Vec::new(),
        _ => changes(pod, vpa, ranges).unwrap_or_default(),
    };
    let (mut lasts, mut ends) = (false, Vec::new());
    for (index, container) in pod.containers.iter().enumerate() {
        let Some(boost) = pod.boosts.get(&container.name) else { continue };
        if container.wanted.requests.cpu != Some(boost.milli_cpu) {
            continue;
        }
        // The VPA's duration counts, as it can be changed while a pod starts.
        let seconds = vpa.startup_boost(&container.name).map_or(boost.seconds, |boost| boost.seconds);
        let until = |ready: UnixNanos| ready.saturating_add(seconds.saturating_mul(SECOND_NS));
        if !pod.is_ready || pod.ready_since.is_some_and(|ready| now < until(ready)) {
            lasts = true;
            continue;
        }
        let recommended = sized.iter().find(|change| change.container == index);
        let recommended = recommended.filter(|change| change.requests.cpu.is_some());
        let mut change = SizeChange { container: index, ..SizeChange::default() };
        (change.requests.cpu, change.limits.cpu) = match recommended {
            Some(change) => (change.requests.cpu, change.limits.cpu),
            // Without a request in the template, Kubernetes took the limit for it.
            None => (boost.request.or(boost.limit), boost.limit),
        };
        if !change.is_in(container.wanted) {
            ends.push(change);
        }
    }
    match (ends.is_empty(), lasts) {
        (false, _) => BoostState::Ends(ends),
        (true, true) => BoostState::Lasts,
        (true, false) => BoostState::Over,
    }
}
