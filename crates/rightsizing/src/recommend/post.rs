//! Post-processing of recommendations before they are published: whole cores, the VPA's limits, the node size.
//!
//! Upstream: `pkg/recommender/routines/{cpu_integer,capping}_post_processor.go` and `pkg/utils/vpa/capping.go`, in
//! that order. The last step is not in upstream: a pod whose requests fit no node is never scheduled.

use std::collections::BTreeMap;

use super::amount::{self, Amount};
use berth_model::PerResource;

const CORE: Amount = 1000;

/// Name of the policy for containers that have none of their own.
const ANY_CONTAINER: &str = "*";

/// Millicores and bytes; `None` where unset.
pub type OptionalAmounts = PerResource<Option<Amount>>;

/// Recommendation for one container, as in a VPA's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recommendation {
    pub container: String,
    pub target: OptionalAmounts,
    pub lower: OptionalAmounts,
    pub upper: OptionalAmounts,
    /// Target before any capping.
    pub uncapped: OptionalAmounts,
}

/// Minimum and maximum that the policy of one container allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllowedRange {
    pub min: OptionalAmounts,
    pub max: OptionalAmounts,
}

/// Post-processing settings for the recommendations of one pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PostPolicy {
    /// By container name; `*` is for containers without a policy of their own.
    pub allowed: BTreeMap<String, AllowedRange>,
    /// Maximum for resources of containers whose policy has none;
    /// `--container-recommendation-max-allowed-{cpu,memory}`.
    pub max_allowed: OptionalAmounts,
    /// Containers that get whole cores.
    pub integer_cpu: Vec<String>,
    /// Maximum sum of the requests of all containers of the pod: the capacity of the largest node that the pod may
    /// run on, less the requests of containers without a recommendation.
    pub node_room: OptionalAmounts,
}

/// Whether each of a pod's resources was capped to fit a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capped(pub PerResource<bool>);

impl Capped {
    pub fn any(self) -> bool {
        self.0.cpu || self.0.memory
    }
}

/// Applies all steps to the recommendations of one pod.
pub fn process(recommendations: &mut [Recommendation], policy: &PostPolicy) -> Capped {
    for recommendation in recommendations.iter_mut() {
        if policy.integer_cpu.contains(&recommendation.container) {
            round_up_to_cores(recommendation);
        }
        cap_to_allowed(recommendation, policy);
    }
    cap_to_node(recommendations, policy)
}

impl Recommendation {
    fn bounds_mut(&mut self) -> [&mut OptionalAmounts; 3] {
        [&mut self.target, &mut self.lower, &mut self.upper]
    }
}

fn round_up_to_cores(recommendation: &mut Recommendation) {
    let uncapped = &mut recommendation.uncapped.cpu;
    let bounds =
        [&mut recommendation.target.cpu, &mut recommendation.lower.cpu, &mut recommendation.upper.cpu];
    for cpu in bounds.into_iter().chain([uncapped]).flatten() {
        *cpu = amount::round_up(*cpu, CORE).unwrap_or(*cpu);
    }
}

/// Clamps to the allowed range. The maximum is applied last: it wins over a higher minimum.
fn cap_to_allowed(recommendation: &mut Recommendation, policy: &PostPolicy) {
    let own = policy.allowed.get(&recommendation.container).or_else(|| policy.allowed.get(ANY_CONTAINER));
    let AllowedRange { min, max } = own.copied().unwrap_or_default();
    let max = max.zip(policy.max_allowed).map(|(own, global)| own.or(global));
    for bound in recommendation.bounds_mut() {
        *bound = bound.zip(min).zip(max).map(|((amount, min), max)| {
            let raised = amount.map(|amount| amount.max(min.unwrap_or(amount)));
            raised.map(|amount| amount.min(max.unwrap_or(amount)))
        });
    }
}

fn cap_to_node(recommendations: &mut [Recommendation], policy: &PostPolicy) -> Capped {
    let cpu_step = |name: &str| if policy.integer_cpu.iter().any(|other| other == name) { CORE } else { 1 };
    let PerResource { cpu, memory } = policy.node_room;
    Capped(PerResource {
        cpu: cap_resource(recommendations, cpu, |amounts| &mut amounts.cpu, cpu_step),
        memory: cap_resource(recommendations, memory, |amounts| &mut amounts.memory, |_| 1),
    })
}

/// Scales the targets down in proportion so that their sum fits, rounded down to multiples of the container's
/// `step` if at least one step remains. Moves the bounds to the right sides of the targets. No bound exceeds the
/// whole room.
fn cap_resource(
    recommendations: &mut [Recommendation],
    room: Option<Amount>,
    of: fn(&mut OptionalAmounts) -> &mut Option<Amount>,
    step: impl Fn(&str) -> Amount,
) -> bool {
    let Some(room) = room.map(|room| room.max(0)) else { return false };
    let wanted: i128 = recommendations.iter_mut().filter_map(|r| *of(&mut r.target)).map(i128::from).sum();
    let too_much = wanted > i128::from(room);
    for recommendation in recommendations {
        if let Some(target) = of(&mut recommendation.target).as_mut().filter(|_| too_much) {
            let share = (i128::from(*target) * i128::from(room) / wanted) as Amount;
            let step = step(&recommendation.container);
            *target = if share >= step { share - share % step } else { share };
        }
        let target = *of(&mut recommendation.target);
        let lower = of(&mut recommendation.lower);
        *lower = lower.map(|lower| lower.min(target.unwrap_or(room)));
        let upper = of(&mut recommendation.upper);
        *upper = upper.map(|upper| upper.min(room).max(target.unwrap_or(0)));
    }
    too_much
}
