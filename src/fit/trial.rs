//! The scheduler places the pods of manifests on a copy of a cluster.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::manifest::{Manifests, TriedWorkload};
use super::{
    API_VERSION, FitReport, Help, More, Placement, Preempting, Unplaced, WaitingBefore, WorkloadFit,
};
use crate::explain::{Remedy, Which, World, remedies};
use berth_kube_io::{Interner, LeanObject, LeanPersistentVolumeClaim, LeanPod};
use berth_model::{Pod, PodReport};
use berth_scheduler::placement::BindOutcome;
use berth_scheduler::rules::Reasons;
use berth_scheduler::scheduler::{Action, Eviction, Settled};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(500);
/// Ticks without any decision after which none is expected any more: longer than a backoff.
const QUIET_TICKS: usize = 25;
/// Maximum number of ticks of one run.
const TICKS_MAX: usize = 400;
/// Maximum number of reasons for which remedies are searched.
const REMEDIED_MAX: usize = 8;
/// Nodes listed with a remedy.
const REMEDY_NODES: usize = 3;

/// Places the pods of manifests, in their order. `more`: the maximum number of further pods of each workload to try.
///
/// # Errors
/// A pod or a claim is invalid, for this reason.
pub fn try_out(world: &mut World, manifests: &Manifests, more: usize) -> Result<FitReport, String> {
    let scheduler = world.scheduler_name();
    let mut trial = Trial::begin(world);
    let waiting = trial.waiting_before();
    let mut tried = Vec::new();
    for workload in &manifests.workloads {
        let pods = match workload.replicas {
            Some(replicas) => {
                let pods = (0..replicas).map(|at| trial.create(workload, at, &scheduler));
                pods.collect::<Result<Vec<_>, _>>()?
            }
            None => trial.place_daemons(workload, &scheduler)?,
        };
        tried.push(pods);
    }
    trial.run();
    let mut fits = Vec::new();
    for (workload, pods) in manifests.workloads.iter().zip(&tried) {
        fits.push(trial.answer(workload, pods));
    }
    for (fit, workload) in fits.iter_mut().zip(&manifests.workloads).filter(|_| more > 0) {
        fit.more = trial.more(workload, &scheduler, more)?;
    }
    let all = fits.iter().all(|fit| fit.fit == fit.pods);
    Ok(FitReport { api_version: API_VERSION, fits: all, waiting, workloads: fits })
}

struct Trial<'a> {
    world: &'a mut World,
    interner: Interner,
    now: Duration,
    /// By uid: the pods that may be placed.
    pods: HashMap<Arc<str>, Pod>,
    /// By uid.
    nodes: HashMap<Arc<str>, Arc<str>>,
    /// By uid: the last message of its condition.
    told: HashMap<Arc<str>, Arc<str>>,
    /// By uid of the preemptor: its victims.
    victims: HashMap<Arc<str>, Vec<String>>,
    /// Carry out evictions.
    evicts: bool,
    decisions: usize,
}

impl<'a> Trial<'a> {
    fn begin(world: &'a mut World) -> Self {
        let waiting = world.select(&Which::Waiting);
        let pods = waiting.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let mut trial = Trial {
            world,
            interner: Interner::default(),
            now: Duration::ZERO,
            pods,
            nodes: HashMap::new(),
            told: HashMap::new(),
            victims: HashMap::new(),
            evicts: true,
            decisions: 0,
        };
        trial.world.lead();
        trial.run();
        trial
    }

    fn waiting_before(&self) -> WaitingBefore {
        let placed = self.pods.keys().filter(|uid| self.nodes.contains_key(*uid)).count();
        WaitingBefore { placed, unplaced: self.pods.len() - placed }
    }

    fn create(&mut self, workload: &TriedWorkload, at: usize, scheduler: &str) -> Result<Arc<str>, String> {
        let (pod, claims) = workload.pod(at, scheduler);
        for claim in claims {
            let claim: LeanPersistentVolumeClaim = parsed(claim, workload)?;
            let claim = claim.into_object(&mut self.interner);
            self.world.parts().0.apply_object(claim);
        }
        let pod = parsed::<LeanPod>(pod, workload)?.into_pod(&mut self.interner);
        let uid = pod.uid.clone();
        if let Some(node) = &pod.node_name {
            self.nodes.insert(uid.clone(), node.clone());
        }
        self.world.parts().0.apply_pod(pod.clone(), self.now);
        self.pods.insert(uid.clone(), pod);
        Ok(uid)
    }

    /// Places a pod on each node that a DaemonSet selects, as its controller and the scheduler together do.
    fn place_daemons(&mut self, workload: &TriedWorkload, scheduler: &str) -> Result<Vec<Arc<str>>, String> {
        let (pod, _) = workload.pod(0, scheduler);
        let template = parsed::<LeanPod>(pod, workload)?.into_pod(&mut self.interner);
        let verdict = self.world.verdict(&template);
        let feasible: HashSet<Arc<str>> =
            verdict.feasible.iter().map(|candidate| candidate.node.clone()).collect();
        let unselected = self.unselected(&template);
        let (mut uids, now) = (Vec::new(), self.now);
        for node in self.world.node_names() {
            if unselected.contains(&node) {
                continue;
            }
            let why = verdict.reasons.get(&node).map(|reasons| reasons.join(", ")).unwrap_or_default();
            let uid: Arc<str> = format!("{}@{node}", template.uid).into();
            let name = format!("{}@{node}", workload.name);
            let is_placed = feasible.contains(&node);
            let pod = Pod {
                uid: uid.clone(),
                name: name.into(),
                node_name: is_placed.then(|| node.clone()),
                ..template.clone()
            };
            if is_placed {
                self.nodes.insert(uid.clone(), node);
                self.world.parts().0.apply_pod(pod.clone(), now);
            } else {
                self.told.insert(uid.clone(), format!("on node {node}: {why}").into());
            }
            self.pods.insert(uid.clone(), pod);
            uids.push(uid);
        }
        Ok(uids)
    }

    /// Returns the nodes for which the controller of a DaemonSet with this template creates no pods.
    fn unselected(&mut self, template: &Pod) -> HashSet<Arc<str>> {
        let never = Reasons::TAINTS | Reasons::AFFINITY | Reasons::NOT_NAMED | Reasons::UNSCHEDULABLE;
        let (scheduler, agent) = self.world.parts();
        let (_, standings) = scheduler.standings(agent, template);
        let is_never = |standing: &Result<_, Reasons>| standing.as_ref().is_err_and(|why| why.has(never));
        let ids = standings.iter().filter(|(_, standing)| is_never(standing)).map(|(id, _)| *id);
        ids.map(|id| scheduler.inventory().name(id).clone()).collect()
    }

    /// Lets the scheduler work until it decides nothing any more.
    fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..TICKS_MAX {
            let before = self.decisions;
            self.work();
            if self.decisions == before && self.is_settled() {
                quiet += 1;
            } else {
                quiet = 0;
            }
            if quiet == QUIET_TICKS || quiet > 0 && self.all_placed() {
                return;
            }
            self.now += TICK;
            let now = self.now;
            self.world.parts().0.tick(now);
            self.act();
        }
    }

    fn all_placed(&self) -> bool {
        self.pods.keys().all(|uid| self.nodes.contains_key(uid))
    }

    /// Returns whether no pod is about to be placed.
    fn is_settled(&mut self) -> bool {
        let (scheduler, _) = self.world.parts();
        let is_busy = |state: &&str| matches!(*state, "queued" | "placing" | "binding" | "yielding");
        !scheduler.census().keys().any(is_busy)
    }

    /// Lets the agent work until there is nothing to do.
    fn work(&mut self) {
        self.act();
        loop {
            let now = self.now;
            let Some(task) = self.world.parts().0.next_task(0, now) else { break };
            loop {
                let (scheduler, agent) = self.world.parts();
                agent.catch_up(scheduler.inventory());
                let answer = task.carry_out(agent, now, |_| {});
                let seen = agent.revision();
                let settled = scheduler.settle(0, agent, &task, answer, seen, now);
                self.act();
                if settled == Settled::Done {
                    break;
                }
            }
        }
        self.act();
    }

    /// Carries out what the scheduler decided.
    fn act(&mut self) {
        loop {
            let actions = self.world.parts().0.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Bind(binding) => {
                        self.place(&binding.uid, &binding.node);
                        let now = self.now;
                        let (scheduler, _) = self.world.parts();
                        scheduler.bind_finished(&binding, BindOutcome::Bound, now);
                        if let Some(pod) = self.pods.get(&binding.uid) {
                            let bound = Pod { node_name: Some(binding.node.clone()), ..pod.clone() };
                            self.world.parts().0.apply_pod(bound, now);
                        }
                    }
                    // Its volumes and devices are chosen; who would provide them does not act here.
                    Action::Claim(order) => self.place(&order.uid, &order.node),
                    Action::Evict(eviction) => self.evict(&eviction),
                    Action::Report(PodReport::Failed { pod, message, .. }) => {
                        self.told.insert(pod.uid, message);
                    }
                    Action::Report(_)
                    | Action::ReleaseClaim(_)
                    | Action::Nominate { .. }
                    | Action::TellAllocation(_)
                    | Action::TellPolicy(_)
                    | Action::TellQuota(_)
                    | Action::WakeAgent(_)
                    | Action::Observe(_) => {}
                }
            }
        }
    }

    fn place(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        self.decisions += 1;
        self.nodes.insert(uid.clone(), node.clone());
    }

    fn evict(&mut self, eviction: &Eviction) {
        let (now, evicts) = (self.now, self.evicts);
        let ended = if evicts { Ok(()) } else { Err("nobody is preempted for more pods".to_owned()) };
        let (scheduler, _) = self.world.parts();
        scheduler.eviction_finished(eviction, ended, now);
        if evicts {
            scheduler.delete_pod(&eviction.victim.uid);
            self.decisions += 1;
            let victim = format!("{}/{}", eviction.victim.namespace, eviction.victim.name);
            self.victims.entry(eviction.preemptor.uid.clone()).or_default().push(victim);
        }
    }

    fn answer(&mut self, workload: &TriedWorkload, pods: &[Arc<str>]) -> WorkloadFit {
        let (mut placements, mut preempting) = (Vec::new(), Vec::new());
        let mut reasons: Vec<(Arc<str>, Vec<Arc<str>>)> = Vec::new();
        for uid in pods {
            let name = self.pods.get(uid).map(|pod| pod.name.to_string()).unwrap_or_default();
            let node = self.nodes.get(uid).map(ToString::to_string);
            match (node, self.victims.get(uid)) {
                (node, Some(victims)) => {
                    preempting.push(Preempting { pod: name, node, victims: victims.clone() });
                }
                (Some(node), None) => placements.push(Placement { pod: name, node }),
                (None, None) => {
                    let why = self.why(uid);
                    match reasons.iter_mut().find(|(known, _)| *known == why) {
                        Some((_, uids)) => uids.push(uid.clone()),
                        None => reasons.push((why, vec![uid.clone()])),
                    }
                }
            }
        }
        let unplaced = reasons.into_iter().enumerate().map(|(at, (message, uids))| {
            let remedies = if at < REMEDIED_MAX { self.remedies(&uids[0]) } else { Vec::new() };
            let pod = self.pods.get(&uids[0]).map(|pod| pod.name.to_string()).unwrap_or_default();
            Unplaced { pods: uids.len(), pod, message: message.to_string(), remedies }
        });
        let unplaced = unplaced.collect();
        WorkloadFit {
            kind: workload.kind.clone(),
            namespace: workload.namespace.clone(),
            name: workload.name.clone(),
            pods: pods.len(),
            fit: placements.len(),
            placements,
            preempting,
            unplaced,
            more: None,
        }
    }

    fn why(&mut self, uid: &Arc<str>) -> Arc<str> {
        if let Some(why) = self.told.get(uid) {
            return why.clone();
        }
        let Some(pod) = self.pods.get(uid).cloned() else { return "it was not tried".into() };
        if !pod.gates.is_empty() {
            return format!("it is not scheduled before its gates are gone: {}", pod.gates.join(", ")).into();
        }
        let gang = self.world.verdict(&pod).gang;
        gang.map_or_else(|| "no node was found for it".into(), |gang| gang.to_string().into())
    }

    /// Returns what would make this pod fit, if it fits no node.
    fn remedies(&mut self, uid: &Arc<str>) -> Vec<Help> {
        let Some(pod) = self.pods.get(uid).cloned().filter(|pod| pod.gates.is_empty()) else {
            return Vec::new();
        };
        let help = |remedy: Remedy| Help {
            changes: remedy.changes.iter().map(ToString::to_string).collect(),
            nodes: remedy.nodes.iter().take(REMEDY_NODES).map(ToString::to_string).collect(),
        };
        remedies(self.world, &pod).into_iter().map(help).collect()
    }

    /// Returns how many further pods of a workload get a node, if they are placed one by one. Takes them away again.
    fn more(
        &mut self,
        workload: &TriedWorkload,
        scheduler: &str,
        most: usize,
    ) -> Result<Option<More>, String> {
        let Some(first) = workload.replicas else { return Ok(None) };
        self.evicts = false;
        let mut added = Vec::new();
        let mut is_full = false;
        while added.len() < most && !is_full {
            let uid = self.create(workload, first + added.len(), scheduler)?;
            self.work();
            is_full = !self.nodes.contains_key(&uid);
            added.push(uid);
        }
        let pods = added.len() - usize::from(is_full);
        for uid in added {
            self.world.parts().0.delete_pod(&uid);
            self.nodes.remove(&uid);
            self.pods.remove(&uid);
        }
        self.act();
        self.evicts = true;
        Ok(Some(More { pods, at_limit: !is_full }))
    }
}

fn parsed<T: serde::de::DeserializeOwned>(object: Value, workload: &TriedWorkload) -> Result<T, String> {
    serde_json::from_value(object)
        .map_err(|error| format!("{} {}/{}: {error}", workload.kind, workload.namespace, workload.name))
}
