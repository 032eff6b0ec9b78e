//! Whether the pods of manifests would fit a running scheduler's cluster: its rules place them on the view of an agent that only answers.
//!
//! The engine's lock is held to classify pods and to copy changed rows, in slices; nodes are chosen without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::manifest::{Manifests, TriedWorkload};
use super::{
    API_VERSION, FitReport, More, Placement, Preempting, Unplaced, WaitingBefore, WorkloadFit,
    keeps_daemons_away, parsed,
};
use crate::explain::dump::Dump;
use berth_kube_io::{Interner, LeanObject, LeanPersistentVolumeClaim, LeanPod};
use berth_model::PreemptionPolicy;
use berth_scheduler::agent::{Agent, AgentChoice, AgentConfig};
use berth_scheduler::engine::{Engine, EvaluationError};
use berth_scheduler::gang::{Allocation, AllocationName, Allocations, UnboundMember, WantedMembers};
use berth_scheduler::inventory::{NodeId, Occupant};
use berth_scheduler::objects::ClusterObject;
use berth_scheduler::preempt::{Site, Victims};
use berth_scheduler::scheduler::{QuotaRoom, SupposedPod, lacking_message};
use berth_server::fit::{FitQuestion, FitRefusal, Fitter};

/// Maximum number of pods of one question, and of further ones of each workload.
const PODS_MAX: usize = 1_000;
/// Maximum number of workloads of one question.
const WORKLOADS_MAX: usize = 100;
/// Maximum number of objects that come with one pod.
const BESIDE_MAX: usize = 200;
/// Maximum number of pods of one question for which victims are sought.
const PREEMPTORS_MAX: usize = 16;
/// Nodes on which victims are sought for one pod, the cheapest ones.
const SITES_MAX: usize = 16;

/// Answers with an agent of its own, one question at a time.
pub struct LiveFit {
    engine: Engine,
    agent: Mutex<Agent>,
    /// The scheduler name of the pods.
    scheduler: Arc<str>,
}

impl LiveFit {
    pub fn new(engine: Engine, agent: AgentConfig, scheduler: Arc<str>) -> Self {
        LiveFit { engine, agent: Mutex::new(Agent::new(agent)), scheduler }
    }
}

impl Fitter for LiveFit {
    fn fit(&self, question: &FitQuestion) -> Result<Vec<u8>, FitRefusal> {
        let Some(mut agent) = self.agent.try_lock() else { return Err(FitRefusal::Busy) };
        let asked = Asked::read(question)?;
        let known = Known::of(&asked, &self.engine, &self.scheduler)?;
        self.engine.catch_up(&mut agent);
        let mut trial = LiveTrial {
            engine: &self.engine,
            agent: &mut agent,
            now: self.engine.now(),
            quotas: BTreeMap::new(),
            preemptors: 0,
            gone: BTreeSet::new(),
        };
        let report = trial.answer(&asked, &known);
        agent.suppose_nothing();
        serde_json::to_vec(&report).map_err(|error| FitRefusal::Invalid(error.to_string()))
    }
}

/// What is asked.
struct Asked {
    manifests: Manifests,
    /// Objects that come with the pods.
    beside: Vec<ClusterObject>,
    allocations: Allocations,
    notes: Vec<String>,
    more: usize,
}

impl Asked {
    fn read(question: &FitQuestion) -> Result<Asked, FitRefusal> {
        let invalid = |why: String| Err(FitRefusal::Invalid(why));
        let mut manifests = Manifests::default();
        let read = manifests.read("the manifest", &question.manifests, &question.namespace);
        if let Err(error) = read.and_then(|()| manifests.require_pods("the manifest")) {
            return invalid(error.to_string());
        }
        let notes = manifests.resolve_priorities().into_iter().map(|class| {
            format!(
                "the priority class {class} is not among the manifests: its pods are tried with priority 0"
            )
        });
        let notes = notes.collect();
        let workloads = manifests.workloads.len();
        let pods: usize = manifests.workloads.iter().filter_map(|workload| workload.replicas).sum();
        if pods > PODS_MAX || workloads > WORKLOADS_MAX || question.more > PODS_MAX {
            return invalid(format!(
                "a running scheduler tries at most {PODS_MAX} pods of {WORKLOADS_MAX} workloads, and {PODS_MAX} more of each; the \
                 manifests ask for {pods} of {workloads}: `berth fit` without --server tries more"
            ));
        }
        let mut dump = Dump::default();
        manifests.move_objects_to(&mut dump);
        if let Some(bad) = dump.bad().first() {
            return invalid(bad.clone());
        }
        let (mut beside, mut allocations) = (Vec::new(), Allocations::new(WORKLOADS_MAX));
        let (objects, mut has_others) = dump.into_objects();
        for object in objects {
            match object {
                ClusterObject::Allocation(allocation) => drop(allocations.apply(*allocation)),
                // It protects pods that exist.
                ClusterObject::DisruptionBudget(_) => {}
                object if object.beside_key().is_some() => beside.push(object),
                _ => has_others = true,
            }
        }
        if has_others {
            return invalid(
                "a running scheduler takes pods, what creates them, and their claims, services, namespaces and groups; other objects \
                 that change the cluster can be tried by `berth fit` without --server"
                    .to_owned(),
            );
        }
        Ok(Asked { manifests, beside, allocations, notes, more: question.more })
    }

    /// Returns the allocation of a pod, and its role there.
    fn allocation_of(&self, pod: &SupposedPod) -> Option<(Arc<Allocation>, usize)> {
        let found = self.allocations.find(&pod.holding.peer);
        let own = found.and_then(|found| Some((self.allocations.get(&found.name)?.clone(), found.role)));
        own.or_else(|| pod.allocation.clone())
    }
}

/// A pod of the manifests.
#[derive(Clone)]
struct KnownPod {
    name: String,
    /// Its place in [`Known::kinds`].
    kind: usize,
    priority: i32,
    policy: PreemptionPolicy,
    allocation: Option<Arc<Allocation>>,
    role: usize,
}

/// A pod as the scheduler would know it, or why it is not scheduled, however much room there is.
type Kind = Result<SupposedPod, String>;

/// What quotas admit, by name.
type QuotaRooms = BTreeMap<Arc<str>, QuotaRoom>;

/// What the scheduler knows of the pods.
#[derive(Default)]
struct Known {
    /// One of each kind.
    kinds: Vec<Kind>,
    /// By workload; of a DaemonSet, its template.
    pods: Vec<Vec<KnownPod>>,
}

impl Known {
    fn of(asked: &Asked, engine: &Engine, scheduler: &str) -> Result<Known, FitRefusal> {
        let (mut known, mut interner) = (Known::default(), Interner::default());
        for workload in &asked.manifests.workloads {
            let mut pods: Vec<KnownPod> = Vec::new();
            for at in 0..workload.replicas.unwrap_or(1) {
                let (object, claims) = workload.pod(at, scheduler);
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                // Pods without claims of their own are alike.
                if claims.is_empty()
                    && let Some(first) = pods.first()
                {
                    pods.push(KnownPod { name, ..first.clone() });
                    continue;
                }
                let mut beside = asked.beside.clone();
                if beside.len() + claims.len() > BESIDE_MAX {
                    return Err(FitRefusal::Invalid(format!(
                        "{} {name}: a pod comes with at most {BESIDE_MAX} claims, services and controllers",
                        workload.kind
                    )));
                }
                for claim in claims {
                    let claim: LeanPersistentVolumeClaim =
                        parsed(claim, workload).map_err(FitRefusal::Invalid)?;
                    beside.push(claim.into_object(&mut interner));
                }
                let pod = parsed::<LeanPod>(object, workload).map_err(FitRefusal::Invalid)?;
                let pod = pod.into_pod(&mut interner);
                let supposed = match engine.suppose(&pod, &beside) {
                    Ok(supposed) => Ok(supposed),
                    Err(error @ EvaluationError::NotSynced) => {
                        return Err(FitRefusal::NotReady(error.to_string()));
                    }
                    Err(EvaluationError::Refused(why)) => Err(why.to_string()),
                };
                let (allocation, role) =
                    supposed.as_ref().ok().and_then(|pod| asked.allocation_of(pod)).unzip();
                pods.push(KnownPod {
                    name,
                    kind: known.kinds.len(),
                    priority: pod.priority,
                    policy: pod.preemption_policy,
                    allocation,
                    role: role.unwrap_or_default(),
                });
                known.kinds.push(supposed);
            }
            known.pods.push(pods);
        }
        Ok(known)
    }
}

/// What became of a pod.
#[derive(Clone)]
enum Fate {
    Placed(NodeId),
    /// For this reason; `None`: no node has room for it.
    Not(Option<String>),
}

/// Pods that are placed together: those of an allocation, else those of a workload.
struct Group<'a> {
    allocation: Option<Arc<Allocation>>,
    /// Each with its workload and its number there.
    pods: Vec<((usize, usize), &'a KnownPod)>,
}

/// Returns the groups in the order of their first pods.
fn grouped<'a>(known: &'a Known, workloads: &[TriedWorkload]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (of, pods) in known.pods.iter().enumerate().filter(|(of, _)| workloads[*of].replicas.is_some()) {
        for (at, pod) in pods.iter().enumerate() {
            let is_its = |group: &&mut Group| match (&group.allocation, &pod.allocation) {
                (Some(known), Some(allocation)) => known.name == allocation.name,
                (None, None) => group.pods[0].0.0 == of,
                _ => false,
            };
            let pod = ((of, at), pod);
            match groups.iter_mut().find(is_its) {
                Some(group) => group.pods.push(pod),
                None => groups.push(Group { allocation: pod.1.allocation.clone(), pods: vec![pod] }),
            }
        }
    }
    groups
}

/// The pods of one question on the view of an agent.
struct LiveTrial<'a> {
    engine: &'a Engine,
    agent: &'a mut Agent,
    now: Duration,
    /// By name, with the pods that were placed.
    quotas: QuotaRooms,
    /// Pods for which victims were sought.
    preemptors: usize,
    /// Uids of their victims.
    gone: BTreeSet<Arc<str>>,
}

impl LiveTrial<'_> {
    fn answer(&mut self, asked: &Asked, known: &Known) -> FitReport {
        let manifests = &asked.manifests.workloads;
        let groups = grouped(known, manifests);
        let mut fits: Vec<_> = manifests.iter().map(|workload| WorkloadFit::of(workload, 0)).collect();
        // Daemons come first, as their nodes are chosen already.
        for (at, workload) in manifests.iter().enumerate().filter(|(_, workload)| workload.replicas.is_none())
        {
            fits[at] = self.daemons(workload, &known.pods[at][0], known);
        }
        let mut fates: BTreeMap<(usize, usize), Fate> = BTreeMap::new();
        for group in &groups {
            let found = self.place(group, known);
            fates.extend(group.pods.iter().map(|(at, _)| *at).zip(found));
        }
        for (of, workload) in manifests.iter().enumerate().filter(|(_, workload)| workload.replicas.is_some())
        {
            let fates = fates.range((of, 0)..(of + 1, 0)).map(|(_, fate)| fate);
            fits[of] = self.fit_of(workload, known.pods[of].iter().zip(fates), known);
        }
        for (of, fit) in fits.iter_mut().enumerate().filter(|_| asked.more > 0) {
            if let Some(group) = groups.iter().find(|group| group.pods.iter().any(|((at, _), _)| *at == of)) {
                let placed = |(at, _): &((usize, usize), _)| match &fates[at] {
                    Fate::Placed(node) => Some(*node),
                    Fate::Not(_) => None,
                };
                let nodes: Vec<NodeId> = group.pods.iter().filter_map(placed).collect();
                let last = known.pods[of].last();
                fit.more = last.map(|last| self.more(asked.more, last, &nodes, known));
            }
        }
        FitReport {
            api_version: API_VERSION.to_owned(),
            fits: fits.iter().all(|fit| fit.fit == fit.pods),
            waiting: WaitingBefore::default(),
            workloads: fits,
            notes: asked.notes.clone(),
        }
    }

    /// Places the pods of a group together, or one by one if they belong to no allocation.
    fn place(&mut self, group: &Group, known: &Known) -> Vec<Fate> {
        let all = |why: String| vec![Fate::Not(Some(why)); group.pods.len()];
        let allocation = group.allocation.as_deref();
        if let Some(problem) = allocation.and_then(|allocation| allocation.problem.as_ref()) {
            return all(problem.to_string());
        }
        let need: Box<[u32]> =
            allocation.iter().flat_map(|gang| gang.roles.iter().map(|role| role.minimum)).collect();
        let mut fates = vec![Fate::Not(None); group.pods.len()];
        let mut quotas = self.quotas.clone();
        let (mut members, mut tried) = (Vec::new(), Vec::new());
        for (at, (_, pod)) in group.pods.iter().enumerate() {
            match member(pod, &known.kinds[pod.kind], &mut quotas) {
                Err(why) => fates[at] = Fate::Not(Some(why)),
                Ok(member) => {
                    members.push(member);
                    tried.push(at);
                }
            }
        }
        let count = |role: usize| members.iter().filter(|member| member.role == role).count();
        if let (Some(gang), Some(short)) =
            (allocation, (0..need.len()).find(|role| count(*role) < need[*role] as usize))
        {
            let why = fates.iter().find_map(|fate| match fate {
                Fate::Not(why) => why.clone(),
                Fate::Placed(_) => None,
            });
            let AllocationName { namespace, name, .. } = &gang.name;
            return all(why.unwrap_or_else(|| {
                format!("{namespace}/{name} needs {} pods; the manifests have {}", need[short], count(short))
            }));
        }
        if members.is_empty() {
            return fates;
        }
        let topology = allocation.and_then(|gang| gang.topology.clone());
        let wanted = WantedMembers { members, need, topology, placed: Vec::new(), reserved: Vec::new() };
        let plan = self.agent.suppose_all(&wanted, self.now);
        let why = allocation.map(|gang| lacking_message(&gang.name, &wanted, &plan));
        tried.iter().for_each(|at| fates[*at] = Fate::Not(why.clone()));
        if plan.complete {
            for (member, node) in &plan.places {
                let at = tried[*member];
                fates[at] = Fate::Placed(*node);
                if let Ok(kind) = &known.kinds[group.pods[at].1.kind] {
                    let _ = admit(kind, &mut self.quotas);
                }
            }
        }
        fates
    }

    /// Returns how many further pods like this one get a node, in addition to all that were placed. `nodes`: those of its group.
    fn more(&mut self, most: usize, pod: &KnownPod, nodes: &[NodeId], known: &Known) -> More {
        let mut quotas = self.quotas.clone();
        let kind = &known.kinds[pod.kind];
        let members: Vec<_> = (0..most).map_while(|_| member(pod, kind, &mut quotas).ok()).collect();
        let allocation = pod.allocation.as_deref();
        if members.is_empty() || allocation.is_some() && nodes.is_empty() {
            return More { pods: 0, at_limit: false };
        }
        let topology = allocation.and_then(|gang| gang.topology.clone());
        let wanted = WantedMembers {
            members,
            need: Box::default(),
            topology,
            placed: nodes.to_vec(),
            reserved: Vec::new(),
        };
        let pods = self.agent.plan_upon(&wanted, None, self.now, |_| {}).places.len();
        More { pods, at_limit: pods == most }
    }

    fn fit_of<'a>(
        &mut self,
        workload: &TriedWorkload,
        pods: impl Iterator<Item = (&'a KnownPod, &'a Fate)>,
        known: &Known,
    ) -> WorkloadFit {
        let mut fit = WorkloadFit::of(workload, 0);
        let mut unplaced = ByReason::default();
        for (pod, fate) in pods {
            fit.pods += 1;
            match fate {
                Fate::Placed(node) => {
                    fit.placements.push(Placement { pod: pod.name.clone(), node: self.name_of(*node) });
                }
                Fate::Not(Some(why)) => unplaced.add(&pod.name, why.clone()),
                Fate::Not(None) => match self.preempt(pod, known) {
                    Ok((node, victims)) if victims.is_empty() => {
                        fit.placements.push(Placement { pod: pod.name.clone(), node: self.name_of(node) });
                    }
                    Ok((node, victims)) => {
                        let node = Some(self.name_of(node));
                        fit.preempting.push(Preempting { pod: pod.name.clone(), node, victims });
                    }
                    Err(why) => unplaced.add(&pod.name, why),
                },
            }
        }
        fit.fit = fit.placements.len();
        fit.unplaced = unplaced.0;
        fit
    }

    /// Returns the node that a pod gets now that others of the manifests have preempted, or by preemption, and its victims, who leave the
    /// view.
    ///
    /// # Errors
    /// Why it gets none.
    fn preempt(&mut self, pod: &KnownPod, known: &Known) -> Result<(NodeId, Vec<String>), String> {
        let kind = known.kinds[pod.kind].as_ref().map_err(String::clone)?;
        // Others of its quota may have been placed since it was admitted.
        let mut quotas = self.quotas.clone();
        admit(kind, &mut quotas)?;
        let (node, victims) = match self.agent.choose(&kind.class, self.now, |_| {}) {
            AgentChoice::Node { node, .. } => (node, Vec::new()),
            AgentChoice::Nowhere(diagnosis) => match self.victims(pod, kind) {
                Some(found) => found,
                None => return Err(diagnosis.message(&kind.class, pod.policy)),
            },
        };
        self.quotas = quotas;
        self.agent.suppose_placed(node, &kind.class, &kind.holding);
        let name = |victim: &Arc<Occupant>| format!("{}/{}", victim.pod.namespace, victim.pod.name);
        Ok((node, victims.iter().map(name).collect()))
    }

    /// Returns the node where a pod that fits nowhere preempts the cheapest victims. They leave the view, but for members of gangs
    /// on other nodes.
    fn victims(&mut self, pod: &KnownPod, kind: &SupposedPod) -> Option<(NodeId, Vec<Arc<Occupant>>)> {
        if pod.policy != PreemptionPolicy::PreemptLowerPriority || self.preemptors == PREEMPTORS_MAX {
            return None;
        }
        self.preemptors += 1;
        let survey = self.agent.survey(&kind.class, pod.priority, &[], self.now, |_| {}).ok()?;
        // The cheapest are the last.
        let nodes: Vec<_> = survey.candidates.iter().rev().take(SITES_MAX).copied().collect();
        let (sites, budgets) = self.engine.sites_of(&nodes, &kind.class, pod.priority);
        let mut cheapest: Option<(Victims, Site)> = None;
        for site in sites {
            let site = site.left_without(&self.gone);
            // The view is older than the sites.
            if self.agent.view().row(site.node).revision == site.revision
                && let Ok(victims) = self.agent.dry_run(&kind.class, &site, &budgets, self.now)
                && cheapest.as_ref().is_none_or(|(known, _)| victims.cost() < known.cost())
            {
                cheapest = Some((victims, site));
            }
        }
        let (victims, site) = cheapest?;
        let node = site.node;
        let gone: BTreeSet<_> = victims.pods.iter().map(|victim| victim.pod.uid.clone()).collect();
        self.gone.extend(
            site.pods.iter().map(|there| &there.pod.pod.uid).filter(|uid| gone.contains(*uid)).cloned(),
        );
        self.agent.suppose_evicted(site, &gone);
        Some((node, victims.pods))
    }

    /// Places a pod on each node that a DaemonSet selects.
    fn daemons(&mut self, workload: &TriedWorkload, pod: &KnownPod, known: &Known) -> WorkloadFit {
        let mut fit = WorkloadFit::of(workload, 0);
        let mut unplaced = ByReason::default();
        let kind = match &known.kinds[pod.kind] {
            Ok(kind) => kind,
            Err(why) => {
                unplaced.add(&pod.name, why.clone());
                return WorkloadFit { pods: 1, unplaced: unplaced.0, ..fit };
            }
        };
        self.agent.choose(&kind.class, self.now, |_| {});
        for (node, standing) in self.agent.standings(kind.class.id) {
            if standing.as_ref().is_err_and(|why| keeps_daemons_away(*why)) {
                continue;
            }
            fit.pods += 1;
            let on = self.name_of(node);
            let name = format!("{}@{on}", workload.name);
            let why = match standing {
                Ok(_) => admit(kind, &mut self.quotas).err(),
                Err(why) => Some(format!("on node {on}: {}", why.texts(&kind.class).join(", "))),
            };
            match why {
                Some(why) => unplaced.add(&name, why),
                None => {
                    self.agent.suppose_placed(node, &kind.class, &kind.holding);
                    fit.placements.push(Placement { pod: name, node: on });
                }
            }
        }
        fit.fit = fit.placements.len();
        fit.unplaced = unplaced.0;
        fit
    }

    fn name_of(&self, node: NodeId) -> String {
        self.agent.view().row(node).node.as_ref().map(|node| node.name.to_string()).unwrap_or_default()
    }
}

/// Pods without a node, by reason.
#[derive(Default)]
struct ByReason(Vec<Unplaced>);

impl ByReason {
    fn add(&mut self, pod: &str, message: String) {
        match self.0.iter_mut().find(|known| known.message == message) {
            Some(known) => known.pods += 1,
            None => self.0.push(Unplaced { pods: 1, pod: pod.to_owned(), message, remedies: Vec::new() }),
        }
    }
}

/// Charges the quota of such a pod.
///
/// # Errors
/// Why the quota does not admit it.
fn admit(kind: &SupposedPod, quotas: &mut QuotaRooms) -> Result<(), String> {
    let Some(room) = &kind.quota else { return Ok(()) };
    let room = quotas.entry(room.name.clone()).or_insert_with(|| room.clone());
    match room.refuses(&kind.holding.usage) {
        Some(why) => Err(why),
        None => {
            room.charge(&kind.holding.usage);
            Ok(())
        }
    }
}

/// Returns a pod that may be placed, and charges its quota.
///
/// # Errors
/// Why it is not scheduled, however much room there is.
fn member(pod: &KnownPod, kind: &Kind, quotas: &mut QuotaRooms) -> Result<UnboundMember, String> {
    let kind = kind.as_ref().map_err(String::clone)?;
    admit(kind, quotas)?;
    let (class, holding) = (kind.class.clone(), kind.holding.clone());
    Ok(UnboundMember { uid: pod.name.as_str().into(), class, holding, role: pod.role })
}
