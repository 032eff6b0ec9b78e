//! The search for nodes that can be emptied.
//!
//! First each node is tried alone, those with the fewest pods first, and stays empty if all its pods get other nodes. A pod may move
//! twice in that: to a node that is emptied later. So the nodes that were found are tried again, all of them cordoned from the beginning as
//! in a real drain; what fails then is left out. That second run is the plan.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::costs::deletion_costs;
use super::{DRAIN_API_VERSION, DrainError, DrainPlan, DrainSubject, EmptiedNode, KeptNodes, PlannedMove};
use crate::explain::World;
use crate::trial::Trial;
use berth_model::{Node, Pod, PodRef, PreemptionPolicy};
use berth_scheduler::repack::{Fixed, Resident};

/// Labels of nodes that are emptied only if they are named.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Ticks in which a pod must get its node: gangs and quotas decide in ticks.
const TICKS_MAX: usize = 4;
/// Maximum number of runs over all nodes that were found.
const RUNS_MAX: usize = 8;

/// Plans which nodes can be emptied.
///
/// # Errors
/// See [`DrainError`].
pub fn plan(world: &mut World, subject: &DrainSubject) -> Result<DrainPlan, DrainError> {
    let candidates = candidates(world, subject)?;
    let mut planner = Planner::begin(world);
    let mut kept = Vec::new();
    let mut found: Vec<Arc<str>> = Vec::new();
    let mut moves = 0;
    for (count, node) in planner.by_effort(candidates) {
        if subject.nodes_max.is_some_and(|most| found.len() >= most) {
            kept.push((node, Obstacle::limit("the plan has as many nodes as --max-nodes allows")));
        } else if subject.moves_max.is_some_and(|most| moves + count > most) {
            kept.push((node, Obstacle::limit("its pods are more than --max-moves leaves")));
        } else {
            match planner.empty(&node) {
                Ok(_) => {
                    moves += count;
                    found.push(node);
                }
                Err(why) => kept.push((node, why)),
            }
        }
    }
    let emptied = planner.proved(found, &mut kept);
    Ok(planner.report(emptied, kept))
}

/// Returns the nodes to try.
fn candidates(world: &World, subject: &DrainSubject) -> Result<Vec<Arc<str>>, DrainError> {
    let known: BTreeMap<Arc<str>, Arc<Node>> =
        world.inventory().nodes().map(|node| (node.name.clone(), node.clone())).collect();
    if let Some(unknown) = subject.nodes.iter().find(|name| !known.contains_key(name.as_str())) {
        return Err(DrainError::NoNode(unknown.clone()));
    }
    let is_named = |node: &Node| subject.nodes.iter().any(|name| **name == *node.name);
    let is_of_control_plane =
        |node: &Node| CONTROL_PLANE.iter().any(|label| node.labels.get(label).is_some());
    let has_labels = |node: &Node| {
        subject.labels.iter().all(|(key, value)| node.labels.get(key).is_some_and(|found| *found == **value))
    };
    let wanted = known.values().filter(|node| match subject.nodes.is_empty() {
        true => !is_of_control_plane(node) && has_labels(node),
        false => is_named(node) && has_labels(node),
    });
    let wanted: Vec<_> = wanted.map(|node| node.name.clone()).collect();
    match wanted.is_empty() && !subject.labels.is_empty() {
        true => Err(DrainError::NoneSelected),
        false => Ok(wanted),
    }
}

/// Why a node cannot be emptied.
struct Obstacle {
    reason: String,
    pod: String,
}

impl Obstacle {
    fn limit(reason: &str) -> Self {
        Obstacle { reason: reason.to_owned(), pod: String::new() }
    }

    fn of(pod: &PodRef, reason: String) -> Self {
        Obstacle { reason, pod: format!("{}/{}", pod.namespace, pod.name) }
    }
}

struct Planner<'a> {
    trial: Trial<'a>,
    /// Name of the scheduler that places moved pods.
    scheduler: Arc<str>,
    /// By uid: the bound pods of the cluster, and those that waited, on the nodes that they got first.
    bound: HashMap<Arc<str>, Pod>,
    /// Uids of the pods that waited: they go elsewhere from the beginning.
    waited: HashSet<Arc<str>>,
    /// Pods that were taken off their node, in order.
    moved: Vec<Arc<str>>,
    /// Nodes as they were before they were cordoned.
    cordoned: Vec<Arc<Node>>,
}

/// What is on a node.
struct Leaving {
    /// Sorted by name.
    pods: Vec<Resident>,
    stay: usize,
    wait_for_budgets: usize,
}

impl<'a> Planner<'a> {
    fn begin(world: &'a mut World) -> Self {
        let scheduler = world.scheduler_name();
        let mut bound: HashMap<Arc<str>, Pod> =
            world.bound().map(|(_, pod)| (pod.uid.clone(), pod.clone())).collect();
        let mut trial = Trial::begin(world);
        trial.evicts = false;
        let waited = trial.nodes.keys().cloned().collect();
        for (uid, node) in &trial.nodes {
            if let Some(pod) = trial.pods.get(uid) {
                bound.insert(uid.clone(), Pod { node_name: Some(node.clone()), ..pod.clone() });
            }
        }
        Planner { trial, scheduler, bound, waited, moved: Vec::new(), cordoned: Vec::new() }
    }

    /// Sorts nodes by the number of their pods that would move. Returns it with them.
    fn by_effort(&self, nodes: Vec<Arc<str>>) -> Vec<(usize, Arc<str>)> {
        let moves = |pod: &&Pod| {
            let kind = pod.peer.owner.as_ref().map(|owner| &*owner.kind);
            let goes = !pod.deleting && !matches!(kind, Some("DaemonSet" | "Node"));
            goes && !self.waited.contains(&pod.uid)
        };
        let mut counts: HashMap<&Arc<str>, usize> = HashMap::new();
        for node in self.bound.values().filter(moves).filter_map(|pod| pod.node_name.as_ref()) {
            *counts.entry(node).or_default() += 1;
        }
        let count = |node: &Arc<str>| counts.get(node).copied().unwrap_or(0);
        let mut nodes: Vec<_> = nodes.into_iter().map(|node| (count(&node), node)).collect();
        nodes.sort();
        nodes
    }

    /// Empties the nodes anew, all of them cordoned before the first one. Those that fail are kept.
    fn proved(&mut self, mut nodes: Vec<Arc<str>>, kept: &mut Vec<(Arc<str>, Obstacle)>) -> Vec<EmptiedNode> {
        let mut runs = 0;
        loop {
            self.start_over();
            nodes.iter().for_each(|node| self.cordon(node));
            let mut emptied = Vec::new();
            let mut failure = None;
            for node in &nodes {
                match self.empty(node) {
                    Ok(node) => emptied.push(node),
                    Err(why) => {
                        failure = Some(why);
                        break;
                    }
                }
            }
            let Some(why) = failure else {
                return emptied;
            };
            let failed = nodes.remove(emptied.len());
            kept.push((failed, why));
            runs += 1;
            if runs == RUNS_MAX {
                let rest = nodes.split_off(emptied.len());
                let left = "its turn came after too many nodes that could not be emptied together";
                kept.extend(rest.into_iter().map(|node| (node, Obstacle::limit(left))));
                // With fewer nodes cordoned, what was emptied has more room than before.
                return emptied;
            }
        }
    }

    /// Moves all pods off a node, or none if one of them gets no other node.
    fn empty(&mut self, node: &Arc<str>) -> Result<EmptiedNode, Obstacle> {
        let Leaving { pods, stay, wait_for_budgets } = self.leaving(node)?;
        let (cordoned, moved) = (self.cordoned.len(), self.moved.len());
        self.cordon(node);
        let mut moves = Vec::new();
        for resident in pods {
            match self.move_away(&resident.pod.uid) {
                Ok(_) if self.waited.contains(&resident.pod.uid) => {}
                Ok(to) => {
                    let pod = format!("{}/{}", resident.pod.namespace, resident.pod.name);
                    moves.push(PlannedMove { pod, to: to.to_string() });
                }
                Err(why) => {
                    self.undo(node, moved, cordoned);
                    return Err(Obstacle::of(&resident.pod, why));
                }
            }
        }
        Ok(EmptiedNode { node: node.to_string(), moves, stay, wait_for_budgets })
    }

    /// Returns the pods that must leave a node.
    fn leaving(&mut self, node: &Arc<str>) -> Result<Leaving, Obstacle> {
        let (scheduler, _) = self.trial.world.parts();
        let inventory = scheduler.inventory();
        let residents =
            inventory.find(node).and_then(|id| scheduler.residents(id, inventory.row(id).revision));
        let mut leaving = Leaving { pods: Vec::new(), stay: 0, wait_for_budgets: 0 };
        let budgets = scheduler.budgets();
        let mut spending = budgets.spending();
        let mut spent: BTreeMap<(Arc<str>, usize), u32> = BTreeMap::new();
        for resident in residents.unwrap_or_default() {
            let PodRef { uid, namespace, name, .. } = &resident.pod;
            let fixed = |fixed: &Fixed| Obstacle::of(&resident.pod, format!("pods {fixed}"));
            match &resident.fixed {
                Some(Fixed::DaemonSet | Fixed::Static | Fixed::Terminating) => {
                    leaving.stay += 1;
                    continue;
                }
                Some(why) => return Err(fixed(why)),
                None => {}
            }
            if let Some(gang) = &resident.gang {
                let spent = spent.entry((gang.name.clone(), gang.role)).or_default();
                *spent += 1;
                if *spent > gang.spare {
                    return Err(fixed(&Fixed::Gang(gang.name.clone())));
                }
            }
            if self.bound.get(uid).is_some_and(|pod| !pod.devices.is_empty()) {
                return Err(Obstacle::of(&resident.pod, "pods have devices".to_owned()));
            }
            let identity = &resident.holding.peer.identity;
            if let Some(budget) = budgets.spending().exhausted(namespace, name, identity) {
                let name = format!("{}/{}", budget.namespace, budget.name);
                return Err(fixed(&Fixed::Budget(name.into())));
            }
            leaving.wait_for_budgets += usize::from(spending.violates(namespace, name, identity));
            leaving.pods.push(resident);
        }
        leaving.pods.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        Ok(leaving)
    }

    fn cordon(&mut self, node: &Arc<str>) {
        if let Some(before) = self.node(node).filter(|node| !node.unschedulable) {
            let after = Node { unschedulable: true, ..Node::clone(&before) };
            self.trial.world.parts().0.apply_node(after);
            self.cordoned.push(before);
        }
    }

    /// Takes a pod off its node and lets the scheduler place one like it. Returns its node, or why it gets none.
    fn move_away(&mut self, uid: &Arc<str>) -> Result<Arc<str>, String> {
        let Some(pod) = self.bound.get(uid).cloned() else {
            return Err("it is not known".to_owned());
        };
        self.trial.remove(uid);
        self.moved.push(uid.clone());
        self.trial.add(Pod {
            node_name: None,
            nominated_node: None,
            started_s: None,
            scheduled: None,
            scheduler_name: self.scheduler.clone(),
            // A drain must not make others wait.
            preemption_policy: PreemptionPolicy::Never,
            ..pod
        });
        for _ in 0..TICKS_MAX {
            self.trial.work();
            if let Some(node) = self.trial.nodes.get(uid).cloned() {
                return match self.is_cordoned(&node) {
                    true => Err("pods tolerate cordoned nodes, and would come back".to_owned()),
                    false => Ok(node),
                };
            }
            self.trial.tick();
        }
        Err(self.why(uid))
    }

    /// Returns why the pod that was taken off its node gets no other one.
    fn why(&mut self, uid: &Arc<str>) -> String {
        let Some(pod) = self.trial.pods.get(uid).cloned() else {
            return "it is not known".to_owned();
        };
        let verdict = self.trial.world.verdict(&pod);
        if verdict.refused.is_some() || !verdict.feasible.is_empty() {
            // Its quota or its gang.
            return verdict.refused.unwrap_or_else(|| self.trial.why(uid)).to_string();
        }
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for (node, why) in verdict.reasons {
            if !self.is_cordoned(&node) {
                *reasons.entry(why.join(" and ")).or_default() += 1;
            }
        }
        let counted = reasons.into_iter().map(|(why, nodes)| format!("{nodes} {why}"));
        match counted.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "no other node is left".to_owned(),
            reasons => format!("pods fit no other node: {reasons}"),
        }
    }

    fn is_cordoned(&self, node: &Arc<str>) -> bool {
        self.node(node).is_some_and(|node| node.unschedulable)
    }

    fn node(&self, name: &Arc<str>) -> Option<Arc<Node>> {
        let inventory = self.trial.world.inventory();
        inventory.find(name).and_then(|id| inventory.row(id).node.clone())
    }

    /// Puts the pods that were moved since then back on this node, and uncordons what was cordoned since then.
    fn undo(&mut self, node: &Arc<str>, moved: usize, cordoned: usize) {
        for uid in self.moved.split_off(moved) {
            self.trial.remove(&uid);
            if let Some(pod) = self.bound.get(&uid) {
                self.trial.add(Pod { node_name: Some(node.clone()), ..pod.clone() });
            }
        }
        self.uncordon(cordoned);
    }

    fn uncordon(&mut self, from: usize) {
        for before in self.cordoned.split_off(from) {
            self.trial.world.parts().0.apply_node(Node::clone(&before));
        }
        self.trial.act();
    }

    /// Puts everything back where it was in the beginning.
    fn start_over(&mut self) {
        let mut moved = std::mem::take(&mut self.moved);
        moved.sort();
        moved.dedup();
        for uid in &moved {
            self.trial.remove(uid);
        }
        for pod in moved.iter().filter_map(|uid| self.bound.get(uid)) {
            self.trial.add(pod.clone());
        }
        self.uncordon(0);
    }

    fn report(&self, nodes: Vec<EmptiedNode>, kept: Vec<(Arc<str>, Obstacle)>) -> DrainPlan {
        let mut reasons: BTreeMap<String, KeptNodes> = BTreeMap::new();
        for (node, Obstacle { reason, pod }) in kept {
            let kept = reasons.entry(reason.clone());
            let kept = kept.or_insert_with(|| KeptNodes { reason, pod, nodes: Vec::new() });
            kept.nodes.push(node.to_string());
        }
        let mut kept: Vec<_> = reasons.into_values().collect();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.nodes.len()));
        let emptied: Vec<_> = nodes.iter().filter_map(|node| self.node(&node.node.as_str().into())).collect();
        let freed =
            |amount: fn(&Node) -> i64| emptied.iter().map(|node| amount(node)).fold(0, i64::saturating_add);
        let names: Vec<Arc<str>> = nodes.iter().map(|node| node.node.as_str().into()).collect();
        let inventory = self.trial.world.inventory();
        let known = inventory.nodes().map(|node| (node.name.clone(), node.clone())).collect();
        let bound = self.bound.iter().filter(|(uid, _)| !self.waited.contains(*uid)).map(|(_, pod)| pod);
        DrainPlan {
            api_version: DRAIN_API_VERSION,
            deletion_costs: deletion_costs(&names, bound, &known),
            moves: nodes.iter().map(|node| node.moves.len()).sum(),
            nodes,
            kept,
            freed_cpu_milli: freed(|node| node.allocatable.cpu_milli),
            freed_memory_bytes: freed(|node| node.allocatable.memory),
        }
    }
}
