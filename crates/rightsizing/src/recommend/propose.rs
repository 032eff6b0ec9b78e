//! Recommendations for the containers of one VPA, from the usage in the store.

use std::collections::BTreeMap;

use super::aggregate::Aggregate;
use super::amount::{self, Amount};
use super::estimate::{Controlled, minimum, recommend};
use super::method::ContainerSizes;
use super::post::{self, OptionalAmounts, Recommendation};
use super::room::room;
use super::settings::RecommenderSettings;
use super::store::{Store, Workload};
use super::time;
use super::vpa::Vpa;
use berth_model::{NodeSize, PerResource};

/// Requests of the containers of running pods, by container name: the maximum over all pods.
pub type Requests = BTreeMap<String, NodeSize>;

/// Recommendations and the messages for the VPA's conditions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    pub recommendations: Vec<Recommendation>,
    /// Containers whose samples span less than the confidence interval.
    pub low_confidence: Vec<String>,
    /// Empty unless a target was capped to the size of a node.
    pub capped: String,
}

/// Computes the recommendations for a VPA.
///
/// `running` are the containers of the workload's pods, and `placed` those of its pods that have started on a node.
/// When `running` is empty, every container in the store gets a recommendation. `nodes` are the nodes that the pods may
/// run on.
pub fn propose<N: IntoIterator<Item = NodeSize>>(
    vpa: &Vpa,
    store: &Store,
    workload: &Workload,
    (running, placed): (&Requests, &Requests),
    max_allowed: OptionalAmounts,
    nodes: impl FnOnce() -> N,
) -> Proposal {
    let settings = store.settings();
    let is_there = |name: &str| running.is_empty() || running.contains_key(name);
    let wanted: Vec<(&str, &Aggregate, Controlled)> = store
        .containers(workload)
        .filter(|(name, _)| is_there(name))
        .filter_map(|(name, aggregate)| Some((&**name, aggregate, vpa.controlled(name)?)))
        .collect();
    let mut proposal = Proposal::default();
    for (name, aggregate, controlled) in &wanted {
        let controlled = sampled_resources(aggregate, *controlled, settings.strict_upstream);
        // Without any sample, the floor would be a guess and not a recommendation.
        if aggregate.cpu.is_empty() && aggregate.memory.is_empty() {
            continue;
        }
        let mut recommendation = recommend(name, aggregate, settings, wanted.len(), controlled);
        if let Some(sizes) = store.sizes(workload, name) {
            let before = vpa.status.recommendation.iter().flatten().find(|it| it.container == *name);
            resize(&mut recommendation, sizes, before, settings, wanted.len());
        }
        proposal.recommendations.push(recommendation);
        if is_low(aggregate, settings) {
            proposal.low_confidence.push((*name).to_owned());
        }
    }
    let mut policy = vpa.post_policy(max_allowed);
    post::process(&mut proposal.recommendations, &policy);
    // Containers keep the requests for which they get no recommendation.
    let others = sum_of_requests(running, &proposal.recommendations, false);
    let sum = |of: fn(&OptionalAmounts) -> Option<Amount>| {
        proposal.recommendations.iter().filter_map(|it| of(&it.target)).fold(0, Amount::saturating_add)
    };
    let wanted = PerResource { cpu: sum(|it| it.cpu), memory: sum(|it| it.memory) };
    let whole = wanted.zip(others).map(|(wanted, others)| wanted.saturating_add(others));
    // What has started fits a node, although that node may be gone: nothing shrinks because nodes are replaced.
    let have = sum_of_requests(placed, &proposal.recommendations, true);
    policy.node_room = room(nodes(), whole).zip(others).zip(have).map(|((room, others), have)| {
        let room: Option<Amount> = room;
        room.map(|room| room.saturating_sub(others).max(have))
    });
    let capped = post::process(&mut proposal.recommendations, &policy);
    if capped.any() {
        let what = match (capped.0.cpu, capped.0.memory) {
            (true, true) => "CPU and memory are",
            (true, false) => "CPU is",
            _ => "memory is",
        };
        proposal.capped = format!("{what} capped to what the largest node that the pods may run on can hold");
    }
    proposal
}

/// Bounds around the target of the other estimators, which have none of their own, as a share of the target.
const BOUND: f64 = 0.15;

/// Replaces the targets of a recommendation by those of another estimator. Until the estimator has seen a day of
/// samples, its target only raises the one recommended `before` (or the current one), and the current bounds are
/// widened to include it.
fn resize(
    recommendation: &mut Recommendation,
    sizes: &ContainerSizes,
    before: Option<&Recommendation>,
    settings: &RecommenderSettings,
    containers: usize,
) {
    type Of = fn(&mut OptionalAmounts) -> &mut Option<Amount>;
    let mut held = before.map_or(recommendation.target, |before| before.uncapped);
    let (said, is_settled) = (sizes.targets(), sizes.is_settled());
    let parts: [(Of, _, _, _); 2] = [
        (|amounts| &mut amounts.cpu, said.cpu, is_settled.cpu, &settings.cpu),
        (|amounts| &mut amounts.memory, said.memory, is_settled.memory, &settings.memory),
    ];
    for (of, said, is_settled, resource) in parts {
        let (held, floor) = (*of(&mut held), minimum(resource.pod_minimum, containers));
        let rounded = |amount| amount::round_up(amount, resource.round_to.max(1)).unwrap_or(amount);
        let said = said.map(|said| rounded(said.max(floor)));
        let size = if is_settled { said.or(held) } else { said.max(held) };
        let Recommendation { target, lower, upper, uncapped, .. } = &mut *recommendation;
        let (target, lower, upper) = (of(target), of(lower), of(upper));
        // Resources without a recommendation stay without one.
        let Some(size) = size.filter(|_| target.is_some()) else { continue };
        if is_settled {
            *lower = Some(amount::scale(size, 1.0 - BOUND));
            *upper = Some(amount::scale(size, 1.0 + BOUND));
        } else {
            *lower = lower.map(|lower| lower.min(size));
            *upper = upper.map(|upper| upper.max(size));
        }
        *target = Some(size);
        *of(uncapped) = Some(size);
    }
}

/// Limits `controlled` to resources with samples. Upstream recommends its floor for a resource without samples.
fn sampled_resources(aggregate: &Aggregate, controlled: Controlled, strict_upstream: bool) -> Controlled {
    let has = PerResource { cpu: !aggregate.cpu.is_empty(), memory: !aggregate.memory.is_empty() };
    controlled.zip(has).map(|(controlled, has)| controlled && (has || strict_upstream))
}

fn is_low(aggregate: &Aggregate, settings: &RecommenderSettings) -> bool {
    let low = settings.resources().map(|resource| {
        let interval = time::nanos(resource.confidence_interval);
        aggregate.confidence(interval, settings.strict_upstream) < 1.0
    });
    low.cpu || low.memory
}

/// Sums the requests for which there is a recommendation, or for which there is none.
fn sum_of_requests(requests: &Requests, recommendations: &[Recommendation], recommended: bool) -> NodeSize {
    requests.iter().fold(NodeSize::default(), |sum, (name, requests)| {
        let target = recommendations.iter().find(|it| it.container == *name).map(|it| it.target);
        sum.zip(*requests).zip(target.unwrap_or_default()).map(
            |((sum, requested), target): ((Amount, Amount), Option<Amount>)| {
                if target.is_some() == recommended { sum.saturating_add(requested) } else { sum }
            },
        )
    })
}
