//! berth's side: one scheduler state and one agent over a cluster's whole history, so that lists are repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth::agent::{Agent, AgentConfig, CacheLimits, Choice};
use berth::class::Classifier;
use berth::cluster::{Interner, LeanNode, LeanPod};
use berth::inventory::{Ledger, NodeId};
use berth::model::PreemptionPolicy;
use berth::rules::{Diagnosis, Packing, Reasons};
use serde::Deserialize;
use serde_json::Value;

use super::scenario::{Step, key_of};

/// What berth says of one pod.
#[derive(Clone, Debug, Default)]
pub struct Says {
    /// Why it waits whatever the nodes are.
    pub refused: Option<String>,
    pub chosen: Option<String>,
    pub feasible: BTreeSet<String>,
    pub rejected: BTreeMap<String, Vec<String>>,
}

pub struct Subject {
    interner: Interner,
    classifier: Classifier,
    ledger: Ledger,
    agent: Agent,
    uids: HashMap<String, Arc<str>>,
}

impl Subject {
    pub fn new(seed: u64) -> Self {
        let cache = CacheLimits { bytes: usize::MAX, age: Duration::MAX };
        let config = AgentConfig { packing: Packing::LeastAllocated, candidate_width: 1, cache, seed };
        Subject {
            interner: Interner::default(),
            classifier: Classifier::default(),
            ledger: Ledger::default(),
            agent: Agent::new(config),
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
                let node = LeanNode::deserialize(object).expect("a node").into_node(&mut self.interner);
                self.ledger.apply_node(node);
            }
            "pods" => {
                let pod = LeanPod::deserialize(object).expect("a pod").into_pod(&mut self.interner);
                let old = self.uids.insert(key_of(object), pod.uid.clone());
                if let Some(old) = old.filter(|old| *old != pod.uid || pod.finished) {
                    self.ledger.discharge(&old);
                }
                if let Some(node) = pod.node_name.as_ref().filter(|_| !pod.finished) {
                    self.ledger.bound(&pod.uid, node, &pod.usage);
                }
            }
            _ => {}
        }
    }

    fn delete(&mut self, resource: &str, key: &str) {
        match resource {
            "nodes" => {
                self.ledger.delete_node(key);
            }
            "pods" => {
                if let Some(uid) = self.uids.remove(key) {
                    self.ledger.discharge(&uid);
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, pod: &Value) -> Says {
        let pod = LeanPod::deserialize(pod).expect("a pod").into_pod(&mut self.interner);
        let spec = pod.spec.expect("the generator makes pods that the API server would take");
        let class = self.classifier.classify(&spec);
        self.agent.catch_up(self.ledger.inventory());
        let chosen = match self.agent.choose(&class, Duration::ZERO, |_| {}) {
            Choice::Node { node, .. } => Some(self.ledger.inventory().name(node).to_string()),
            Choice::Nowhere(_) => None,
        };
        let mut says = Says { chosen, ..Says::default() };
        let inventory = self.ledger.inventory();
        let keys = self.agent.list(class.id).expect("it was just used").keys();
        for (id, key) in (0..inventory.len() as u32).map(NodeId).zip(keys) {
            let name = inventory.name(id).to_string();
            if key.is_valid() {
                says.feasible.insert(name);
            } else if let Some(reasons) = key.reasons() {
                says.rejected.insert(name, texts(reasons, &class));
            }
        }
        says
    }
}

fn texts(reasons: Reasons, class: &berth::class::Class) -> Vec<String> {
    let message = [reasons].into_iter().collect::<Diagnosis>().message(class, PreemptionPolicy::Never);
    let text = message.strip_prefix("0/1 nodes are available: ").unwrap_or(&message);
    let text = text.split(". no new claims").next().unwrap_or(text);
    text.split(", ").map(|text| text.strip_prefix("1 ").unwrap_or(text).to_owned()).collect()
}
