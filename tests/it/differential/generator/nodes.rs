//! Nodes with varied labels, taints and capacities.

use serde_json::{Value, json};

use super::Generator;
use crate::differential::scenario::Step;

pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";

/// Label keys of nodes with their values: numbers, near-numbers and other text, for Gt and Lt.
pub const LABELS: [(&str, &[&str]); 7] = [
    (ZONE, &["a", "b", "c"]),
    (REGION, &["east", "west"]),
    ("rack", &["1", "2", "3", "4"]),
    ("disk", &["ssd", "hdd", ""]),
    ("generation", &["1", "5", "10", "007", "99999999999999999999", "5th", "1e3", ""]),
    ("example.com/pool", &["p1", "p2"]),
    ("rare", &["yes"]),
];
pub const TAINT_KEYS: &[&str] = &["dedicated", "node.kubernetes.io/not-ready", "example.com/drain"];
/// Numbers, near-numbers and other text, for Gt and Lt.
pub const TAINT_VALUES: &[&str] = &["", "a", "b", "-4", "3", "007", "8"];
pub const GPU: &str = "example.com/gpu";
pub const HUGE_PAGES: &str = "hugepages-2Mi";

/// Removed nodes return under their old names.
const NAMES: u64 = 60;

impl Generator {
    pub(super) fn add_node(&mut self, step: &mut Step) {
        let at = self.dice.below(NAMES);
        let free = (0..NAMES).map(|i| format!("node-{}", (at + i) % NAMES));
        let Some(name) = free.into_iter().find(|name| !self.nodes.contains_key(name)) else { return };
        let mut node = json!({
            "metadata": {"name": name, "uid": name, "labels": self.node_labels(&name)},
            "spec": {},
            "status": {"allocatable": self.allocatable()},
        });
        self.taint(&mut node);
        self.put_node(&name, node, step);
    }

    pub(super) fn put_node(&mut self, name: &str, node: Value, step: &mut Step) {
        self.nodes.insert(name.to_owned(), node.clone());
        step.apply("nodes", node);
    }

    pub(super) fn node_labels(&mut self, name: &str) -> Value {
        let mut labels = json!({});
        let unlabelled = self.theme.unlabelled;
        if !self.dice.percent(unlabelled / 2) {
            labels[HOSTNAME] = json!(name);
        }
        for (at, (key, values)) in LABELS.into_iter().enumerate() {
            let missing = if at < 3 { unlabelled } else { 40 };
            if !self.dice.percent(missing) {
                labels[key] = json!(self.one(values));
            }
        }
        labels
    }

    pub(super) fn taint(&mut self, node: &mut Value) {
        let (some, mut taints) = (self.theme.taints, Vec::new());
        for key in self.some(TAINT_KEYS, some) {
            let effect = self.one(&["NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"]);
            taints.push(json!({"key": key, "value": self.one(TAINT_VALUES), "effect": effect}));
        }
        let cordoned = self.dice.percent(some / 4);
        if cordoned && self.dice.percent(80) {
            taints.push(json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}));
        }
        node["spec"]["unschedulable"] = json!(cordoned);
        node["spec"]["taints"] = json!(taints);
    }

    pub(super) fn allocatable(&mut self) -> Value {
        let mut allocatable = json!({
            "cpu": self.one(&["1", "2", "4000m", "16"]),
            "memory": self.one(&["1Gi", "4Gi", "16Gi", "64G"]),
            "ephemeral-storage": self.one(&["0", "10Gi", "100Gi"]),
            "pods": self.one(&["3", "10", "20", "110"]),
        });
        if self.dice.percent(30) {
            allocatable[HUGE_PAGES] = json!(self.one(&["4Mi", "64Mi", "1Gi"]));
        }
        if self.dice.percent(40) {
            allocatable[GPU] = json!(self.one(&["0", "1", "4"]));
        }
        allocatable
    }
}
