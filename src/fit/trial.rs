//! The scheduler places the pods of manifests on a copy of a cluster.

use std::collections::HashSet;
use std::sync::Arc;

use super::manifest::{Manifests, TriedWorkload};
use super::{
    API_VERSION, FitReport, Help, More, Placement, Preempting, Unplaced, WaitingBefore, WorkloadFit,
    keeps_daemons_away, parsed,
};
use crate::explain::{Remedy, World, remedies};
use crate::trial::Trial;
use berth_kube_io::{Interner, LeanObject, LeanPersistentVolumeClaim, LeanPod};
use berth_model::Pod;
use berth_scheduler::rules::Reasons;

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
    let mut trial = FitTrial { trial: Trial::begin(world), interner: Interner::default() };
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
    trial.trial.run();
    let mut fits = Vec::new();
    for (workload, pods) in manifests.workloads.iter().zip(&tried) {
        fits.push(trial.answer(workload, pods));
    }
    for (fit, workload) in fits.iter_mut().zip(&manifests.workloads).filter(|_| more > 0) {
        fit.more = trial.more(workload, &scheduler, more)?;
    }
    let all = fits.iter().all(|fit| fit.fit == fit.pods);
    Ok(FitReport {
        api_version: API_VERSION.to_owned(),
        fits: all,
        waiting,
        workloads: fits,
        notes: Vec::new(),
    })
}

/// A trial of manifests.
struct FitTrial<'a> {
    trial: Trial<'a>,
    interner: Interner,
}

impl FitTrial<'_> {
    fn waiting_before(&self) -> WaitingBefore {
        let placed = self.trial.pods.keys().filter(|uid| self.trial.nodes.contains_key(*uid)).count();
        WaitingBefore { placed, unplaced: self.trial.pods.len() - placed }
    }

    fn create(&mut self, workload: &TriedWorkload, at: usize, scheduler: &str) -> Result<Arc<str>, String> {
        let (pod, claims) = workload.pod(at, scheduler);
        for claim in claims {
            let claim: LeanPersistentVolumeClaim = parsed(claim, workload)?;
            let claim = claim.into_object(&mut self.interner);
            self.trial.world.parts().0.apply_object(claim);
        }
        let pod = parsed::<LeanPod>(pod, workload)?.into_pod(&mut self.interner);
        let uid = pod.uid.clone();
        self.trial.add(pod);
        Ok(uid)
    }

    /// Places a pod on each node that a DaemonSet selects, as its controller and the scheduler together do.
    fn place_daemons(&mut self, workload: &TriedWorkload, scheduler: &str) -> Result<Vec<Arc<str>>, String> {
        let (pod, _) = workload.pod(0, scheduler);
        let template = parsed::<LeanPod>(pod, workload)?.into_pod(&mut self.interner);
        let verdict = self.trial.world.verdict(&template);
        let feasible: HashSet<Arc<str>> =
            verdict.feasible.iter().map(|candidate| candidate.node.clone()).collect();
        let unselected = self.unselected(&template);
        let mut uids = Vec::new();
        for node in self.trial.world.node_names() {
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
                self.trial.add(pod);
            } else {
                self.trial.told.insert(uid.clone(), format!("on node {node}: {why}").into());
                self.trial.pods.insert(uid.clone(), pod);
            }
            uids.push(uid);
        }
        Ok(uids)
    }

    /// Returns the nodes for which the controller of a DaemonSet with this template creates no pods.
    fn unselected(&mut self, template: &Pod) -> HashSet<Arc<str>> {
        let (scheduler, agent) = self.trial.world.parts();
        let (_, standings) = scheduler.standings(agent, template);
        let is_never =
            |standing: &Result<_, Reasons>| standing.as_ref().is_err_and(|why| keeps_daemons_away(*why));
        let ids = standings.iter().filter(|(_, standing)| is_never(standing)).map(|(id, _)| *id);
        ids.map(|id| scheduler.inventory().name(id).clone()).collect()
    }

    fn answer(&mut self, workload: &TriedWorkload, pods: &[Arc<str>]) -> WorkloadFit {
        let (mut placements, mut preempting) = (Vec::new(), Vec::new());
        let mut reasons: Vec<(Arc<str>, Vec<Arc<str>>)> = Vec::new();
        for uid in pods {
            let name = self.trial.pods.get(uid).map(|pod| pod.name.to_string()).unwrap_or_default();
            let node = self.trial.nodes.get(uid).map(ToString::to_string);
            match (node, self.trial.victims.get(uid)) {
                (node, Some(victims)) => {
                    preempting.push(Preempting { pod: name, node, victims: victims.clone() });
                }
                (Some(node), None) => placements.push(Placement { pod: name, node }),
                (None, None) => {
                    let why = self.trial.why(uid);
                    match reasons.iter_mut().find(|(known, _)| *known == why) {
                        Some((_, uids)) => uids.push(uid.clone()),
                        None => reasons.push((why, vec![uid.clone()])),
                    }
                }
            }
        }
        let unplaced = reasons.into_iter().enumerate().map(|(at, (message, uids))| {
            let remedies = if at < REMEDIED_MAX { self.remedies(&uids[0]) } else { Vec::new() };
            let pod = self.trial.pods.get(&uids[0]).map(|pod| pod.name.to_string()).unwrap_or_default();
            Unplaced { pods: uids.len(), pod, message: message.to_string(), remedies }
        });
        let unplaced = unplaced.collect();
        WorkloadFit {
            fit: placements.len(),
            placements,
            preempting,
            unplaced,
            ..WorkloadFit::of(workload, pods.len())
        }
    }

    /// Returns what would make this pod fit, if it fits no node.
    fn remedies(&mut self, uid: &Arc<str>) -> Vec<Help> {
        let Some(pod) = self.trial.pods.get(uid).cloned().filter(|pod| pod.gates.is_empty()) else {
            return Vec::new();
        };
        let help = |remedy: Remedy| Help {
            changes: remedy.changes.iter().map(ToString::to_string).collect(),
            nodes: remedy.nodes.iter().take(REMEDY_NODES).map(ToString::to_string).collect(),
        };
        remedies(self.trial.world, &pod).into_iter().map(help).collect()
    }

    /// Returns how many further pods of a workload get a node, if they are placed one by one. Takes them away again.
    fn more(
        &mut self,
        workload: &TriedWorkload,
        scheduler: &str,
        most: usize,
    ) -> Result<Option<More>, String> {
        let Some(first) = workload.replicas else { return Ok(None) };
        self.trial.evicts = false;
        let mut added = Vec::new();
        let mut is_full = false;
        while added.len() < most && !is_full {
            let uid = self.create(workload, first + added.len(), scheduler)?;
            self.trial.work();
            is_full = !self.trial.nodes.contains_key(&uid);
            added.push(uid);
        }
        let pods = added.len() - usize::from(is_full);
        added.iter().for_each(|uid| self.trial.remove(uid));
        self.trial.act();
        self.trial.evicts = true;
        Ok(Some(More { pods, at_limit: !is_full }))
    }
}
