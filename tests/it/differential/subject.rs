//! berth as subject: one scheduler and one agent over a cluster's whole history, so that lists are repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth_kube_io::{
    Interner, LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity, LeanNamespace, LeanNode, LeanObject,
    LeanPersistentVolume, LeanPersistentVolumeClaim, LeanPod, LeanPodDisruptionBudget, LeanReplicaSet,
    LeanReplicationController, LeanService, LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment,
};
use berth_model::Pod;
use berth_scheduler::agent::{Agent, AgentChoice, AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::inventory::Occupant;
use berth_scheduler::objects::{ObjectKind, ObjectName};
use berth_scheduler::preempt::{self, Cost};
use berth_scheduler::profile::{Profile, Profiles};
use berth_scheduler::scheduler::{Scheduler, SchedulerConfig};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::oracle::Victims;
use super::scenario::{Question, Step, key_of};

/// berth's answer for one pod.
#[derive(Clone, Debug, Default)]
pub struct Says {
    /// Reason why berth does not schedule it at all, in any cluster.
    pub refused: Option<String>,
    /// The pod's message if no node is feasible.
    pub message: Option<String>,
    /// The node chosen for it.
    pub chosen: Option<String>,
    pub feasible: BTreeSet<String>,
    pub rejected: BTreeMap<String, Vec<String>>,
    pub preemption: Option<Preempts>,
}

/// Preemption victims of the pod, as if it fitted no node.
#[derive(Clone, Debug, Default)]
pub struct Preempts {
    /// By node: the victims of its dry run, or the reasons for having none.
    pub dry_runs: BTreeMap<String, Result<(Victims, Cost), Vec<String>>>,
    /// Nodes kept by the survey; `None`: the pod fits without preemption.
    pub surveyed: Option<BTreeSet<String>>,
    /// Its message after all of those were tried without success.
    pub message: Option<String>,
}

pub struct Subject {
    interner: Interner,
    scheduler: Scheduler,
    agent: Agent,
    /// Of the pods, by `namespace/name`.
    uids: HashMap<String, Arc<str>>,
}

impl Subject {
    pub fn new(seed: u64) -> Self {
        let default_spread = berth_scheduler::objects::system_defaults();
        let profiles = Profiles::from(Profile { default_spread, ..Profile::default() }).into();
        let config = SchedulerConfig { profiles, ..SchedulerConfig::default() };
        let cache = CacheLimits::unlimited();
        Subject {
            interner: Interner::default(),
            scheduler: Scheduler::new(config, Estimator::default()),
            agent: Agent::new(AgentConfig { cache, seed }),
            uids: HashMap::new(),
        }
    }

    /// Returns one answer for each question of the step.
    pub fn step(&mut self, step: &Step) -> Vec<Says> {
        for (resource, keys) in &step.delete {
            keys.iter().for_each(|key| self.delete(resource, key));
        }
        for (resource, objects) in &step.apply {
            objects.iter().for_each(|object| self.apply(resource, object));
        }
        step.ask.iter().map(|question| self.ask(question)).collect()
    }

    fn apply(&mut self, resource: &str, object: &Value) {
        match resource {
            "nodes" => {
                let node = read::<LeanNode>(object).into_node(&mut self.interner);
                self.scheduler.apply_node(node);
            }
            "pods" => {
                let pod = read::<LeanPod>(object).into_pod(&mut self.interner);
                self.uids.insert(key_of(object), pod.uid.clone());
                self.scheduler.apply_pod(pod, Duration::ZERO);
            }
            "namespaces" => self.apply_object::<LeanNamespace>(object),
            "services" => self.apply_object::<LeanService>(object),
            "replicationcontrollers" => self.apply_object::<LeanReplicationController>(object),
            "replicasets" => self.apply_object::<LeanReplicaSet>(object),
            "statefulsets" => self.apply_object::<LeanStatefulSet>(object),
            "persistentvolumes" => self.apply_object::<LeanPersistentVolume>(object),
            "persistentvolumeclaims" => self.apply_object::<LeanPersistentVolumeClaim>(object),
            "storageclasses" => self.apply_object::<LeanStorageClass>(object),
            "csinodes" => self.apply_object::<LeanCsiNode>(object),
            "csidrivers" => self.apply_object::<LeanCsiDriver>(object),
            "csistoragecapacities" => self.apply_object::<LeanCsiStorageCapacity>(object),
            "volumeattachments" => self.apply_object::<LeanVolumeAttachment>(object),
            "poddisruptionbudgets" => self.apply_object::<LeanPodDisruptionBudget>(object),
            other => panic!("{other} are not handed to the scheduler yet"),
        }
    }

    fn apply_object<K: LeanObject + DeserializeOwned>(&mut self, object: &Value) {
        let object = read::<K>(object).into_object(&mut self.interner);
        self.scheduler.apply_object(object);
    }

    fn delete(&mut self, resource: &str, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let kind = match resource {
            "nodes" => {
                self.scheduler.delete_node(key);
                return;
            }
            "pods" => {
                self.uids.remove(key).iter().for_each(|uid| self.scheduler.delete_pod(uid));
                return;
            }
            "namespaces" => ObjectKind::Namespace,
            "services" => ObjectKind::Service,
            "replicationcontrollers" => ObjectKind::ReplicationController,
            "replicasets" => ObjectKind::ReplicaSet,
            "statefulsets" => ObjectKind::StatefulSet,
            "persistentvolumes" => ObjectKind::PersistentVolume,
            "persistentvolumeclaims" => ObjectKind::PersistentVolumeClaim,
            "storageclasses" => ObjectKind::StorageClass,
            "csinodes" => ObjectKind::CsiNode,
            "csidrivers" => ObjectKind::CsiDriver,
            "csistoragecapacities" => ObjectKind::CsiStorageCapacity,
            "volumeattachments" => ObjectKind::VolumeAttachment,
            "poddisruptionbudgets" => ObjectKind::DisruptionBudget,
            other => panic!("{other} are not handed to the scheduler yet"),
        };
        let object = ObjectName { namespace: namespace.into(), name: name.into() };
        self.scheduler.delete_object(kind, &object);
    }

    fn ask(&mut self, question: &Question) -> Says {
        let pod = read::<LeanPod>(&question.pod).into_pod(&mut self.interner);
        let verdict = self.scheduler.verdict(&mut self.agent, &pod);
        let preemption = question.preempt.then(|| self.preempt(&pod));
        // Actions are discarded.
        self.scheduler.take_actions();
        Says {
            refused: verdict.refused.map(|text| text.to_string()),
            message: verdict.message,
            chosen: verdict.chosen.map(|node| node.to_string()),
            feasible: verdict.feasible.iter().map(|candidate| candidate.node.to_string()).collect(),
            rejected: verdict.reasons.into_iter().map(|(node, texts)| (node.to_string(), texts)).collect(),
            preemption,
        }
    }

    /// Runs dry runs on all infeasible nodes, also on those that the survey leaves out.
    fn preempt(&mut self, pod: &Pod) -> Preempts {
        let (class, standings) = self.scheduler.standings(&mut self.agent, pod);
        let (priority, now) = (pod.priority, Duration::ZERO);
        let survey = self.agent.survey(&class, priority, &[], now, |_| {}).ok();
        let inventory = self.scheduler.inventory();
        let mut told = survey.as_ref().map(|survey| survey.unhelped.clone()).unwrap_or_default();
        let mut says = Preempts::default();
        let candidates = survey.as_ref().map(|survey| survey.candidates.as_slice());
        let out = standings.iter().filter(|(_, standing)| standing.is_err());
        let out: Vec<_> = out.map(|(node, _)| *node).collect();
        let (sites, budgets) = self.scheduler.sites_of(&out, &class, priority);
        for site in &sites {
            let node = &site.node;
            let found = self.agent.dry_run(&class, site, &budgets, now);
            if let (Err(why), true) = (&found, candidates.unwrap_or_default().contains(node)) {
                told.add(why.reasons());
            }
            let found = found.map(|victims| (named(&victims), victims.cost()));
            let found = found.map_err(|why| why.reasons().texts(&class));
            says.dry_runs.insert(inventory.name(*node).to_string(), found);
        }
        says.surveyed =
            candidates.map(|nodes| nodes.iter().map(|node| inventory.name(*node).to_string()).collect());
        if let AgentChoice::Nowhere(diagnosis) = self.agent.choose(&class, now, |_| {}) {
            says.message = Some(diagnosis.message_of(&class, pod.preemption_policy, Some(&told)));
        }
        says
    }
}

fn named(victims: &preempt::Victims) -> Victims {
    let name = |pod: &Arc<Occupant>| format!("{}/{}", pod.pod.namespace, pod.pod.name);
    Victims { pods: victims.pods.iter().map(name).collect(), violations: victims.violations }
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).unwrap_or_else(|error| panic!("{error} in {object}"))
}
