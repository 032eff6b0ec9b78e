//! History of one cluster, as objects of the API server: the input of both sides, and the content of a reproduction
//! file, one [`Step`] per line (the format of `tools/control-plane/filter-oracle`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// From the first step, which resets, to the last.
pub type Scenario = Vec<Step>;

/// Changes of the cluster, then questions about pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Step {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// By resource: `namespace/name`, or the name of a cluster-scoped object. Applied before `apply`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub delete: BTreeMap<String, Vec<String>>,
    /// By resource (`nodes`, `pods`, `persistentvolumeclaims`…).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub apply: BTreeMap<String, Vec<Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<Question>,
}

/// A pod whose feasible nodes are asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    pub pod: Value,
    /// Also return kube-scheduler's scores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scores: bool,
    /// Also return its preemption victims.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempt: bool,
}

impl Step {
    pub fn apply(&mut self, resource: &str, object: Value) {
        self.apply.entry(resource.to_owned()).or_default().push(object);
    }

    pub fn delete(&mut self, resource: &str, key: &str) {
        self.delete.entry(resource.to_owned()).or_default().push(key.to_owned());
    }
}

/// All pods of a cluster.
#[derive(Default)]
pub struct Pods(BTreeMap<String, Value>);

impl Pods {
    pub fn step(&mut self, step: &Step) {
        step.delete.get("pods").into_iter().flatten().for_each(|key| _ = self.0.remove(key));
        let applied = step.apply.get("pods").into_iter().flatten();
        applied.for_each(|pod| _ = self.0.insert(key_of(pod), pod.clone()));
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
}

/// Returns `namespace/name`, or the name of a cluster-scoped object.
pub fn key_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().expect("every object has a name");
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// # Panics
/// A line is not a step.
pub fn parse(lines: &str) -> Scenario {
    let step = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
    lines.lines().map(step).collect()
}

pub fn print(scenario: &[Step]) -> String {
    let line = |step| serde_json::to_string(step).expect("a step is JSON") + "\n";
    scenario.iter().map(line).collect()
}
