//! berth's side: one scheduler and one agent over a cluster's whole history, so that lists are repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth::agent::{Agent, AgentConfig, CacheLimits};
use berth::cluster::{
    Interner, LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity, LeanNamespace, LeanNode, LeanObject,
    LeanPersistentVolume, LeanPersistentVolumeClaim, LeanPod, LeanReplicaSet, LeanReplicationController,
    LeanService, LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment,
};
use berth::dispatch::Estimator;
use berth::objects::{Kind, ObjectName};
use berth::scheduler::{Scheduler, SchedulerConfig};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::scenario::{Step, key_of};

/// What berth says of one pod.
#[derive(Clone, Debug, Default)]
pub struct Says {
    /// Why berth does not schedule it at all, whatever the cluster is.
    pub refused: Option<String>,
    /// What the pod is told if there is no node for it.
    pub message: Option<String>,
    /// The node it would get.
    pub chosen: Option<String>,
    pub feasible: BTreeSet<String>,
    pub rejected: BTreeMap<String, Vec<String>>,
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
        let default_spread = berth::objects::system_defaults();
        let config = SchedulerConfig { default_spread, ..SchedulerConfig::default() };
        let cache = CacheLimits::unlimited();
        Subject {
            interner: Interner::default(),
            scheduler: Scheduler::new(config, Estimator::default()),
            agent: Agent::new(AgentConfig { cache, seed }),
            uids: HashMap::new(),
        }
    }

    /// One answer for each question of the step.
    pub fn step(&mut self, step: &Step) -> Vec<Says> {
        for (resource, keys) in &step.delete {
            keys.iter().for_each(|key| self.delete(resource, key));
        }
        for (resource, objects) in &step.apply {
            objects.iter().for_each(|object| self.apply(resource, object));
        }
        step.ask.iter().map(|question| self.ask(&question.pod)).collect()
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
            "namespaces" => Kind::Namespace,
            "services" => Kind::Service,
            "replicationcontrollers" => Kind::ReplicationController,
            "replicasets" => Kind::ReplicaSet,
            "statefulsets" => Kind::StatefulSet,
            "persistentvolumes" => Kind::PersistentVolume,
            "persistentvolumeclaims" => Kind::PersistentVolumeClaim,
            "storageclasses" => Kind::StorageClass,
            "csinodes" => Kind::CsiNode,
            "csidrivers" => Kind::CsiDriver,
            "csistoragecapacities" => Kind::CsiStorageCapacity,
            "volumeattachments" => Kind::VolumeAttachment,
            other => panic!("{other} are not handed to the scheduler yet"),
        };
        let object = ObjectName { namespace: namespace.into(), name: name.into() };
        self.scheduler.delete_object(kind, &object);
    }

    fn ask(&mut self, pod: &Value) -> Says {
        let pod = read::<LeanPod>(pod).into_pod(&mut self.interner);
        let verdict = self.scheduler.verdict(&mut self.agent, &pod);
        // Nobody carries them out.
        self.scheduler.take_actions();
        Says {
            refused: verdict.refused.map(|text| text.to_string()),
            message: verdict.message,
            chosen: verdict.chosen.map(|node| node.to_string()),
            feasible: verdict.feasible.iter().map(|candidate| candidate.node.to_string()).collect(),
            rejected: verdict.reasons.into_iter().map(|(node, texts)| (node.to_string(), texts)).collect(),
        }
    }
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).unwrap_or_else(|error| panic!("{error} in {object}"))
}
