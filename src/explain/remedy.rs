//! Search for the smallest changes that make a pod fit.
//!
//! For each rejected node, `cures.rs` lists the obstacles there as changes of the pod or of the cluster. The most
//! promising nodes are tried: the changes are applied, the scheduler evaluates the pod again, and its remaining
//! refusals are resolved until the node is feasible. Only changes verified this way are reported.

use std::collections::HashMap;
use std::sync::Arc;

use super::World;
use super::change::{NodeChange, Shape};
use super::cures::{self, Side};
use super::world::Undo;
use berth_model::{Pod, PodSpec};
use berth_scheduler::inventory::NodeId;
use berth_scheduler::rules::Reasons;

/// Changes that together let the pod fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    pub changes: Vec<NodeChange>,
    /// Nodes that are feasible after the changes.
    pub nodes: Vec<Arc<str>>,
}

const SHOWN: usize = 3;
/// Maximum number of drafts to try per pod; each evaluates the pod at least twice.
const TRIES: usize = 10;
/// Maximum number of drafts of one shape to try until one helps.
const TRIES_OF_SHAPE: usize = 2;
/// Maximum number of rounds: a scheduler reports one kind of refusal at a time.
const ROUNDS: usize = 5;
const MOST_CHANGES: usize = 6;

/// Number of changes, then their weight.
type Cost = (usize, u32);

/// Drafts of one kind are equally promising: their shapes and, where the node's own rules refuse nothing, the other
/// refusals.
type Kind<'a> = (Vec<Shape<'a>>, Option<(Side, Reasons)>);

/// Changes that one node seems to need.
struct Draft {
    cost: Cost,
    node: NodeId,
    side: Side,
    reasons: Reasons,
    changes: Vec<NodeChange>,
}

/// Returns at most three remedies, best first. `pod` must fit no node.
pub(super) fn remedies(world: &mut World, pod: &Pod) -> Vec<Remedy> {
    let drafts = drafts(world, pod);
    let mut found: Vec<(Cost, Remedy)> = Vec::new();
    let mut tries_of: HashMap<Kind, usize> = HashMap::new();
    let mut tries = 0;
    for draft in &drafts {
        let settled = found.get(SHOWN - 1).is_some_and(|(cost, _)| *cost <= draft.cost);
        if settled || tries == TRIES {
            break;
        }
        let drafted = shapes(&draft.changes);
        if is_known(&found, &drafted) {
            continue;
        }
        let unknown = draft.changes.is_empty().then_some((draft.side, draft.reasons));
        let of_shape = tries_of.entry((drafted, unknown)).or_default();
        if *of_shape == TRIES_OF_SHAPE {
            continue;
        }
        (tries, *of_shape) = (tries + 1, *of_shape + 1);
        if let Some(remedy) = attempt(world, pod, draft.node, draft.side)
            && !is_known(&found, &shapes(&remedy.changes))
        {
            found.push((cost(&remedy.changes), remedy));
            found.sort_by_key(|(cost, _)| *cost);
        }
    }
    found.into_iter().take(SHOWN).map(|(_, remedy)| remedy).collect()
}

/// Returns the sorted shapes.
fn shapes(changes: &[NodeChange]) -> Vec<Shape<'_>> {
    let mut shapes: Vec<_> = changes.iter().map(NodeChange::shape).collect();
    shapes.sort_unstable();
    shapes
}

/// Returns whether a subset of these changes is already known to be enough.
fn is_known(found: &[(Cost, Remedy)], shapes: &[Shape]) -> bool {
    let within = |shape: &Shape| shapes.binary_search(shape).is_ok();
    found.iter().any(|(_, remedy)| remedy.changes.iter().all(|change| within(&change.shape())))
}

/// Returns drafts for each rejected node and each side, most promising first.
fn drafts(world: &mut World, pod: &Pod) -> Vec<Draft> {
    let (class, standings) = world.evaluate(pod);
    let mut drafts = Vec::new();
    for (node, standing) in standings {
        let Err(reasons) = standing else {
            continue;
        };
        for side in [Side::Pod, Side::Cluster] {
            if let Some(changes) = cures::of_node(world, &class, node, side) {
                let unknown = usize::from(changes.is_empty());
                let (count, weight) = cost(&changes);
                drafts.push(Draft { cost: (count + unknown, weight), node, side, reasons, changes });
            }
        }
    }
    drafts.sort_by_key(|draft| (draft.cost, draft.node, draft.side));
    drafts
}

/// Applies changes until the pod fits this node; restores the world afterwards.
fn attempt(world: &mut World, pod: &Pod, node: NodeId, side: Side) -> Option<Remedy> {
    let mut trial = Trial { pod: pod.clone(), changes: Vec::new(), undo: Undo::default() };
    let nodes = (0..ROUNDS).find_map(|_| trial.round(world, node, side));
    world.undo(trial.undo);
    let nodes = nodes.flatten()?;
    Some(Remedy { changes: trial.changes, nodes })
}

/// A pod and a world under step-by-step changes.
pub(super) struct Trial {
    pub pod: Pod,
    pub changes: Vec<NodeChange>,
    undo: Undo,
}

impl Trial {
    /// Runs one round. `None`: not feasible yet. `Some(None)`: no change is known that would help.
    fn round(&mut self, world: &mut World, node: NodeId, side: Side) -> Option<Option<Vec<Arc<str>>>> {
        let (class, standings) = world.evaluate(&self.pod);
        let here = standings.iter().find(|(id, _)| *id == node);
        let reasons = match here {
            None => return Some(None),
            Some((_, Ok(_))) => {
                let fitting = standings.iter().filter(|(_, standing)| standing.is_ok());
                return Some(Some(fitting.map(|(id, _)| world.inventory().name(*id).clone()).collect()));
            }
            Some((_, Err(reasons))) => *reasons,
        };
        let local = cures::of_node(world, &class, node, side);
        let changes = match local {
            Some(changes) if changes.is_empty() => {
                cures::of_domains(world, self, &class, node, reasons, side)
            }
            local => local,
        };
        match changes {
            Some(changes) if !changes.is_empty() && self.changes.len() + changes.len() <= MOST_CHANGES => {
                changes.into_iter().for_each(|change| self.make(world, change));
                None
            }
            _ => Some(None),
        }
    }

    fn make(&mut self, world: &mut World, change: NodeChange) {
        let spec = wanted(world, &self.pod);
        change.apply_to_pod(&mut self.pod, &spec);
        world.apply(&change, &mut self.undo);
        self.changes.push(change);
    }

    /// Returns the node's refusal after one more change of the pod; `None` if it becomes feasible.
    pub fn objection(&self, world: &mut World, node: NodeId, change: &NodeChange) -> Option<Reasons> {
        let (spec, mut pod) = (wanted(world, &self.pod), self.pod.clone());
        change.apply_to_pod(&mut pod, &spec);
        let (_, standings) = world.evaluate(&pod);
        let here = standings.into_iter().find(|(id, _)| *id == node);
        here.map_or(Some(Reasons::NONE), |(_, standing)| standing.err())
    }
}

/// Returns the pod's spec with the cluster's defaults added.
fn wanted(world: &mut World, pod: &Pod) -> Arc<PodSpec> {
    world.class_of(pod).spec.clone()
}

fn cost(changes: &[NodeChange]) -> Cost {
    (changes.len(), changes.iter().map(NodeChange::weight).sum())
}
