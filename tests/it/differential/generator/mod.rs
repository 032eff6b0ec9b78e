//! Random clusters with a history, from a seed: everything that the API server accepts, in small vocabularies, so
//! that labels, taints, ports and selectors of one object often match another.

mod affinity;
mod churn;
mod nodes;
mod pods;
mod preemption;
mod sizes;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::scenario::{Question, Scenario, Step, key_of};
use crate::simulation::dice::Dice;

/// Namespaces of pods. The last has no object: its labels are unknown, as during its deletion.
pub const NAMESPACES: [&str; 4] = ["default", "dev", "prod", "gone"];

const ROUNDS: u64 = 10;

/// Features of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Topology spread, pod affinity and anti-affinity.
    pub domains: bool,
    /// Services and other owners of pods for the default spreading.
    pub owners: bool,
    /// Claims, persistent volumes and related objects.
    pub volumes: bool,
    /// Init containers and sidecars, overhead, pod-level resources, and resizes in place.
    pub sizes: bool,
    /// Pods of another scheduler that are nominated for a node.
    pub nominated: bool,
    /// Pods of different priorities on full nodes, and disruption budgets; also asks for preemption victims.
    pub preemption: bool,
}

/// Frequencies of features in one cluster, in percent, so that clusters differ clearly.
struct Theme {
    taints: u64,
    node_affinity: u64,
    ports: u64,
    /// Of the pods: large ones, of which few fit on a node.
    big: u64,
    spread: u64,
    owners: u64,
    volumes: u64,
    pod_affinity: u64,
    /// Nodes that lack one of the topology labels.
    unlabelled: u64,
    init_containers: u64,
    overhead: u64,
    pod_level: u64,
    resizes: u64,
    nominated: u64,
    preemption: bool,
    budgets: u64,
}

pub struct Generator {
    dice: Dice,
    theme: Theme,
    /// The state of the cluster after the steps so far.
    nodes: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    /// Nominated pods, by key.
    nominated: BTreeSet<String>,
    namespaces: BTreeMap<String, Value>,
    /// Services and other owners for the default spreading, by resource and key.
    owners: BTreeSet<(&'static str, String)>,
    /// Claims and other storage objects, by resource and key.
    storage: BTreeSet<(&'static str, String)>,
    /// Claims, by namespace and name, for which a free volume is reserved.
    reserved: BTreeSet<[&'static str; 2]>,
    /// Pods without node and name: one workload each.
    templates: Vec<Value>,
    named: u64,
}

/// The whole history of the cluster of `seed`.
pub fn scenario(seed: u64, features: Features) -> Scenario {
    let mut generator = Generator::new(seed, features);
    let mut steps = vec![generator.first()];
    for _ in 0..ROUNDS {
        steps.push(generator.round());
    }
    steps
}

impl Generator {
    fn new(seed: u64, features: Features) -> Self {
        let mut dice = Dice::new(seed, 0);
        let mut dial = |on: bool, most: u64| if on && dice.percent(60) { dice.below(most) } else { 0 };
        let theme = Theme {
            taints: dial(true, 50),
            node_affinity: dial(true, 80),
            ports: dial(true, 60),
            big: if features.preemption { 30 + dial(true, 60) } else { dial(true, 60) },
            spread: dial(features.domains, 100),
            owners: dial(features.owners, 60),
            volumes: dial(features.volumes, 80),
            pod_affinity: dial(features.domains, 80),
            unlabelled: dial(true, 30),
            init_containers: dial(features.sizes, 80),
            overhead: dial(features.sizes, 60),
            pod_level: dial(features.sizes, 60),
            resizes: dial(features.sizes, 80),
            nominated: dial(features.nominated, 60),
            preemption: features.preemption,
            budgets: dial(features.preemption, 100),
        };
        Generator {
            dice,
            theme,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            nominated: BTreeSet::new(),
            namespaces: BTreeMap::new(),
            owners: BTreeSet::new(),
            storage: BTreeSet::new(),
            reserved: BTreeSet::new(),
            templates: Vec::new(),
            named: 0,
        }
    }

    fn first(&mut self) -> Step {
        let mut step = Step { reset: true, ..Step::default() };
        for name in &NAMESPACES[..3] {
            self.relabel_namespace(name, &mut step);
        }
        for _ in 0..2 + self.dice.below(5) {
            let template = self.template();
            self.templates.push(template);
        }
        for _ in 0..self.dice.below(6) {
            if self.dice.percent(self.theme.owners) {
                self.add_owner(&mut step);
            }
        }
        for _ in 0..5 + self.dice.below(36) {
            self.add_node(&mut step);
        }
        if self.theme.volumes > 0 {
            self.add_storage(&mut step);
        }
        let (nodes, crowd) = (self.nodes.len() as u64, 1 + self.dice.below(4));
        for _ in 0..nodes * crowd {
            self.add_bound_pod(&mut step);
        }
        self.change_budgets(&mut step);
        self.change_nominations(&mut step);
        self.ask(&mut step);
        step
    }

    fn round(&mut self) -> Step {
        let mut step = Step::default();
        for _ in 0..self.dice.below(6) {
            self.churn(&mut step);
        }
        if self.dice.percent(10) {
            let (template, at) = (self.template(), self.dice.below(self.templates.len() as u64));
            self.templates[at as usize] = template;
        }
        self.change_budgets(&mut step);
        self.change_nominations(&mut step);
        self.ask(&mut step);
        step
    }

    fn ask(&mut self, step: &mut Step) {
        for template in self.templates.clone() {
            if self.dice.percent(60) {
                let mut pod = self.pod_of(&template);
                if self.theme.nominated > 0 {
                    pod["spec"]["priority"] = json!(self.one(preemption::PREEMPTORS));
                }
                step.ask.push(match self.theme.preemption {
                    true => Question { pod: self.preemptor(pod), scores: false, preempt: true },
                    false => Question { pod, scores: self.dice.percent(50), preempt: false },
                });
            }
        }
    }

    /// One of these.
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *self.dice.pick(of).expect("there is one at least")
    }

    /// Any of these, each with this chance.
    fn some<T: Copy>(&mut self, of: &[T], percent: u64) -> Vec<T> {
        of.iter().copied().filter(|_| self.dice.percent(percent)).collect()
    }

    fn new_name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    fn relabel_namespace(&mut self, name: &str, step: &mut Step) {
        let mut labels = json!({"kubernetes.io/metadata.name": name});
        for (key, values) in [("team", &["red", "blue"]), ("env", &["live", "test"])] {
            if self.dice.percent(70) {
                labels[key] = json!(self.one(values));
            }
        }
        let namespace = json!({"metadata": {"name": name, "uid": name, "labels": labels}});
        self.namespaces.insert(name.to_owned(), namespace.clone());
        step.apply("namespaces", namespace);
    }

    /// Adds an object that groups pods for the default spreading.
    fn add_owner(&mut self, step: &mut Step) {
        let selector = self.pod_labels();
        let resource =
            self.one(&["services", "services", "replicasets", "statefulsets", "replicationcontrollers"]);
        let mut metadata = json!({"namespace": self.one(&NAMESPACES[..3])});
        let spec = match resource {
            "services" | "replicationcontrollers" => json!({"selector": selector}),
            _ => json!({"selector": self.selector()}),
        };
        // Few names, so that pods find their owners.
        metadata["name"] = json!(self.one(pods::OWNER_NAMES));
        metadata["uid"] = json!(format!("{resource}-{}", metadata["name"]));
        let owner = json!({"metadata": metadata, "spec": spec});
        self.owners.insert((resource, key_of(&owner)));
        step.apply(resource, owner);
    }
}
