//! Obstacles on one node, as the changes that would remove them.
//!
//! This file reads the rules backwards: from the rule it derives the change that satisfies it. An error here can only
//! miss a remedy, never suggest a wrong one, because the scheduler evaluates each remedy.

use std::sync::Arc;

use super::World;
use super::change::{NodeChange, Removed, ResourceQuantity, is_condition, is_cordon};
use super::remedy::Trial;
use berth_model::{Effect, Node, NodeSelectorTerm, Operator, Pod, PodSpec, Requirement};
use berth_scheduler::class::Class;
use berth_scheduler::inventory::{NodeId, Row};
use berth_scheduler::rules::{Reasons, tolerates_unschedulable};

/// Side to change, when a change on either side would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    Pod,
    Cluster,
}

/// Maximum number of pods that one change may remove.
const MOST_REMOVED: usize = 4;

/// Returns the changes that satisfy the node's own rules; empty if none of them refuses. `None`: no change would.
pub(super) fn of_node(world: &World, class: &Class, id: NodeId, side: Side) -> Option<Vec<NodeChange>> {
    let (spec, row) = (&class.spec, world.row(id));
    let node = row.node.as_ref()?;
    let reserved = row.with_reservations(class.priority);
    let row = reserved.as_ref().unwrap_or(row);
    let mut changes = Vec::new();
    taints(spec, row, node, side, &mut changes);
    labels(spec, node, side, &mut changes)?;
    ports(world, spec, row, node, &mut changes)?;
    resources(world, spec, row, node, side, &mut changes)?;
    Some(changes)
}

fn taints(spec: &PodSpec, row: &Row, node: &Node, side: Side, into: &mut Vec<NodeChange>) {
    let cordoned = row.unschedulable && !tolerates_unschedulable(&spec.tolerations);
    if cordoned {
        into.push(NodeChange::Uncordon(node.name.clone()));
    }
    for taint in &node.taints {
        let tolerated = spec.tolerations.iter().any(|toleration| toleration.tolerates(taint));
        if tolerated || taint.effect == Effect::PreferNoSchedule || cordoned && is_cordon(taint) {
            continue;
        }
        into.push(match side {
            Side::Pod if !is_condition(taint) => NodeChange::Tolerate(taint.clone()),
            _ => NodeChange::Untaint { node: node.name.clone(), taint: taint.clone() },
        });
    }
}

fn labels(spec: &PodSpec, node: &Node, side: Side, into: &mut Vec<NodeChange>) -> Option<()> {
    for (key, value) in spec.node_selector.pairs() {
        if node.labels.get(key) == Some(value) {
            continue;
        }
        into.push(match side {
            Side::Cluster if is_free(key) => {
                NodeChange::Label { node: node.name.clone(), key: key.clone(), value: value.clone() }
            }
            _ => NodeChange::Unselect { key: key.clone(), value: value.clone() },
        });
    }
    let enforced = spec.node_affinity.enforced.as_deref().unwrap_or_default();
    if !enforced.is_empty() && !enforced.iter().any(|term| term.matches(&node.name, &node.labels)) {
        // The scheduler's profile is not the pod's to change.
        into.extend(enforced.iter().filter_map(|term| relabelling(term, node)).min_by_key(Vec::len)?);
    }
    let Some(terms) = &spec.node_affinity.required else {
        return Some(());
    };
    if terms.iter().any(|term| term.matches(&node.name, &node.labels)) {
        return Some(());
    }
    // A pod bound to named nodes, such as a DaemonSet pod, is not meant for other nodes.
    if !terms.is_empty() && terms.iter().all(|term| !names_allow(term, node)) {
        return None;
    }
    let relabelled = terms.iter().filter_map(|term| relabelling(term, node)).min_by_key(Vec::len);
    match (side, relabelled) {
        (Side::Cluster, Some(changes)) => into.extend(changes),
        _ => into.push(NodeChange::DropNodeAffinity),
    }
    Some(())
}

fn names_allow(term: &NodeSelectorTerm, node: &Node) -> bool {
    term.fields.iter().all(|field| field.matches(&node.name))
}

/// Returns the labels that would make the node match.
fn relabelling(term: &NodeSelectorTerm, node: &Node) -> Option<Vec<NodeChange>> {
    if term.expressions.is_empty() || !names_allow(term, node) {
        return None;
    }
    let unmet = term.expressions.iter().filter(|requirement| !requirement.matches(&node.labels));
    unmet.map(|requirement| relabel(requirement, node)).collect()
}

fn relabel(Requirement { key, operator }: &Requirement, node: &Node) -> Option<NodeChange> {
    let label = |value| NodeChange::Label { node: node.name.clone(), key: key.clone(), value };
    is_free(key).then_some(())?;
    Some(match operator {
        Operator::In(values) => label(values.first()?.clone()),
        Operator::Exists => label("".into()),
        Operator::NotIn(_) | Operator::DoesNotExist => {
            NodeChange::Unlabel { node: node.name.clone(), key: key.clone() }
        }
        Operator::Gt(bound) => label(bound.checked_add(1)?.to_string().into()),
        Operator::Lt(bound) => label(bound.checked_sub(1)?.to_string().into()),
    })
}

/// Returns whether a user may set this label. Labels set by Kubernetes describe the node; changing them would make
/// them false.
fn is_free(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return true;
    };
    let of = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    domain == "node-role.kubernetes.io"
        || of("node-restriction.kubernetes.io")
        || !(of("kubernetes.io") || of("k8s.io"))
}

fn ports(world: &World, spec: &PodSpec, row: &Row, node: &Node, into: &mut Vec<NodeChange>) -> Option<()> {
    let taken = row.ports.as_deref().map_or(&[][..], Vec::as_slice);
    let wanted = &spec.usage.ports;
    if !wanted.iter().any(|port| taken.iter().any(|other| port.conflicts(other))) {
        return Some(());
    }
    let holds =
        |pod: &Pod| pod.usage.ports.iter().any(|other| wanted.iter().any(|port| port.conflicts(other)));
    let mut pods: Vec<_> = present(world, node).filter(|(_, pod)| holds(pod)).collect();
    pods.truncate(MOST_REMOVED);
    (!pods.is_empty()).then(|| into.extend(pods.into_iter().map(|(at, pod)| remove(at, pod, node))))
}

/// Requested and used amounts of one resource.
struct Need {
    resource: ResourceQuantity,
    wanted: i64,
    free: i64,
    all: i64,
}

fn needs<'a>(spec: &'a PodSpec, row: &'a Row) -> impl Iterator<Item = Need> + 'a {
    let (wanted, taken, all) = (&spec.usage.requests, &row.requested, &row.allocatable);
    let need = |resource, wanted, taken: i64, all: i64| Need {
        resource,
        wanted,
        free: all.saturating_sub(taken),
        all,
    };
    let fixed = [
        need(ResourceQuantity::Cpu, wanted.cpu_milli, taken.cpu_milli, all.cpu_milli),
        need(ResourceQuantity::Memory, wanted.memory, taken.memory, all.memory),
        need(
            ResourceQuantity::EphemeralStorage,
            wanted.ephemeral_storage,
            taken.ephemeral_storage,
            all.ephemeral_storage,
        ),
    ];
    let extended = spec.usage.extended.iter().filter_map(move |(name, wanted)| {
        let (taken, all) = (row.extended_requested(name), row.extended_allocatable(name)?);
        Some(need(ResourceQuantity::Extended(name.clone()), wanted, taken, all))
    });
    fixed.into_iter().chain(extended).filter(|need| need.wanted > 0 && need.wanted > need.free)
}

fn resources(
    world: &World,
    spec: &PodSpec,
    row: &Row,
    node: &Node,
    side: Side,
    into: &mut Vec<NodeChange>,
) -> Option<()> {
    let full = row.requested.pods.saturating_add(1) > row.allocatable.pods;
    let mut missing = Vec::new();
    for need in needs(spec, row) {
        let to = need.resource.round_down(need.free);
        // Removing pods cannot free more than the node's allocatable amount.
        if to > 0 && (side == Side::Pod || need.wanted > need.all) {
            into.push(NodeChange::Lower { resource: need.resource, from: need.wanted, to });
        } else if need.wanted > need.all {
            return None;
        } else {
            missing.push((need.resource, need.wanted - need.free));
        }
    }
    if full || !missing.is_empty() {
        if full && row.allocatable.pods < 1 {
            return None;
        }
        into.extend(victims(world, node, &missing)?);
    }
    Some(())
}

/// Returns the smallest set of pods, at least one, that frees the missing amounts: lowest priority first, then the
/// smallest sufficient pods.
fn victims(world: &World, node: &Node, missing: &[(ResourceQuantity, i64)]) -> Option<Vec<NodeChange>> {
    let held = |pod: &Pod, resource: &ResourceQuantity| match resource {
        ResourceQuantity::Cpu => pod.usage.requests.cpu_milli,
        ResourceQuantity::Memory => pod.usage.requests.memory,
        ResourceQuantity::EphemeralStorage => pod.usage.requests.ephemeral_storage,
        ResourceQuantity::Extended(name) => pod.usage.extended.get(name),
    };
    let mut missing = missing.to_vec();
    let mut left: Vec<_> = present(world, node).filter(|(_, pod)| !returns(pod)).collect();
    let mut changes = Vec::new();
    // The part of the missing amounts that a pod holds, in thousandths of each resource, capped at what is needed.
    let share = |pod: &Pod, missing: &[(ResourceQuantity, i64)]| -> i64 {
        let parts = missing.iter().map(|(resource, lack)| held(pod, resource).min(*lack) * 1000 / lack);
        parts.sum()
    };
    while changes.is_empty() || !missing.is_empty() {
        let best = left.iter().enumerate().max_by_key(|(_, (_, pod))| {
            let excess: i64 = missing.iter().map(|(r, lack)| (held(pod, r) - lack).max(0)).sum();
            (share(pod, &missing), pod.deleting, -i64::from(pod.priority), -excess)
        });
        let (at, (index, pod)) = best.map(|(at, found)| (at, *found))?;
        if changes.len() == MOST_REMOVED || (!missing.is_empty() && share(pod, &missing) == 0) {
            return None;
        }
        changes.push(remove(index, pod, node));
        left.swap_remove(at);
        missing.iter_mut().for_each(|(resource, lack)| *lack -= held(pod, resource));
        missing.retain(|(_, lack)| *lack > 0);
    }
    Some(changes)
}

/// Returns whether the controller would recreate the pod on the same node.
fn returns(pod: &Pod) -> bool {
    pod.owner.as_ref().is_some_and(|owner| matches!(&*owner.kind, "DaemonSet" | "Node"))
}

/// Returns the pods that are on the node now.
fn present<'a>(world: &'a World, node: &Node) -> impl Iterator<Item = (usize, &'a Pod)> {
    world.pods_on(&node.name).filter(|(_, pod)| world.peer(pod).is_some())
}

fn remove(at: usize, pod: &Pod, node: &Node) -> NodeChange {
    NodeChange::Remove(Removed {
        pod: at,
        name: format!("{}/{}", pod.namespace, pod.name),
        node: node.name.clone(),
        deleting: pod.deleting,
    })
}

/// Returns changes for the refusals caused by pods in the node's domains. `None`: there is none.
pub(super) fn of_domains(
    world: &mut World,
    trial: &Trial,
    class: &Class,
    id: NodeId,
    reasons: Reasons,
    side: Side,
) -> Option<Vec<NodeChange>> {
    let spec = &class.spec;
    let node = world.row(id).node.clone()?;
    if reasons.has(Reasons::SPREAD) || reasons.has(Reasons::SPREAD_LABEL) {
        return first_that_helps(world, trial, id, reasons, relaxed(spec));
    }
    if reasons.has(Reasons::POD_AFFINITY) {
        let terms = spec.pod_affinity.required.iter().enumerate();
        let dropped =
            terms.map(|(at, term)| NodeChange::DropPodAffinity { at, key: term.topology_key.clone() });
        return first_that_helps(world, trial, id, reasons, dropped.collect());
    }
    if reasons.has(Reasons::POD_ANTI_AFFINITY) {
        let refused = |pod: &Pod, world: &World| {
            let terms = &spec.pod_affinity.required_anti;
            let meant = |identity| terms.iter().filter(move |term| term.selector.matches(identity));
            world.peer(pod).is_some_and(|peer| {
                meant(&peer.identity).any(|term| together(world, pod, &node, &term.topology_key))
            })
        };
        if side == Side::Cluster
            && let Some(changes) = removals(world, refused)
        {
            return Some(changes);
        }
        let terms = spec.pod_affinity.required_anti.iter().enumerate();
        let dropped =
            terms.map(|(at, term)| NodeChange::DropPodAntiAffinity { at, key: term.topology_key.clone() });
        return first_that_helps(world, trial, id, reasons, dropped.collect());
    }
    if reasons.has(Reasons::EXISTING_ANTI_AFFINITY) {
        let refuses = |pod: &Pod, world: &World| {
            world.peer(pod).is_some_and(|peer| {
                let terms = peer.affinity.required_anti.iter();
                let mut meant = terms.filter(|term| class.selected_by.refusing.contains(&term.selector));
                meant.any(|term| together(world, pod, &node, &term.topology_key))
            })
        };
        return removals(world, refuses);
    }
    None
}

/// Returns the ways to relax each hard constraint, step by step.
fn relaxed(spec: &PodSpec) -> Vec<NodeChange> {
    let hard = spec.spread.constraints.iter().enumerate().filter(|(_, constraint)| constraint.hard);
    let change = |at, key: &Arc<str>, max_skew| NodeChange::Spread { at, key: key.clone(), max_skew };
    hard.flat_map(|(at, constraint)| {
        let (key, skew) = (&constraint.topology_key, constraint.max_skew);
        [change(at, key, skew.checked_add(1)), change(at, key, skew.checked_add(2)), change(at, key, None)]
    })
    .collect()
}

/// Returns the first change after which the node no longer refuses for these reasons; if there is none, the last
/// change, as a first step.
fn first_that_helps(
    world: &mut World,
    trial: &Trial,
    id: NodeId,
    reasons: Reasons,
    changes: Vec<NodeChange>,
) -> Option<Vec<NodeChange>> {
    let helps = |change: &&NodeChange| trial.objection(world, id, change) != Some(reasons);
    let found = changes.iter().find(helps).or(changes.last());
    found.map(|change| vec![change.clone()])
}

/// Returns whether the pod is in the domain of `node`.
fn together(world: &World, pod: &Pod, node: &Node, key: &str) -> bool {
    let there = pod.node_name.as_ref().and_then(|name| world.inventory().find(name));
    let there = there.and_then(|id| world.row(id).node.as_ref()?.labels.get(key));
    there.is_some() && there == node.labels.get(key)
}

/// Returns `None` if no pods match or too many do.
fn removals(world: &World, chosen: impl Fn(&Pod, &World) -> bool) -> Option<Vec<NodeChange>> {
    let mut changes = Vec::new();
    for (at, pod) in world.bound() {
        if !chosen(pod, world) {
            continue;
        }
        let node = pod.node_name.as_ref().and_then(|name| world.inventory().find(name));
        let node = node.and_then(|id| world.row(id).node.as_deref())?;
        if changes.len() == MOST_REMOVED {
            return None;
        }
        changes.push(remove(at, pod, node));
    }
    (!changes.is_empty()).then_some(changes)
}
