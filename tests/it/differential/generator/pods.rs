//! Pods: their constraints on nodes and on other pods.

use serde_json::{Value, json};

use super::Generator;
use super::nodes::{LABELS, TAINT_KEYS, TAINT_VALUES};
use super::{NAMESPACES, key_of};
use crate::differential::scenario::Step;

/// Label keys of pods with their values.
pub const POD_LABELS: [(&str, &[&str]); 4] = [
    ("app", &["web", "db", "cache"]),
    ("tier", &["front", "back"]),
    ("track", &["stable", "canary"]),
    ("pod-template-hash", &["1a", "2b"]),
];
pub const OWNER_NAMES: &[&str] = &["one", "two"];

impl Generator {
    /// A pod without node, name and uid.
    pub(super) fn template(&mut self) -> Value {
        let namespace = if self.dice.percent(5) { NAMESPACES[3] } else { self.one(&NAMESPACES[..3]) };
        let labels = self.pod_labels();
        let big = self.dice.percent(self.theme.big);
        let mut pod = json!({
            "metadata": {"namespace": namespace, "labels": labels},
            "spec": {"schedulerName": "berth", "containers": self.containers(big)},
            "status": {"phase": "Pending"},
        });
        if self.dice.percent(self.theme.owners) {
            let kind = self.one(&["ReplicaSet", "StatefulSet", "ReplicationController", "Job"]);
            let version = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
            let (name, controls) = (self.one(OWNER_NAMES), self.dice.percent(80));
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": controls}]);
        }
        let spec = &mut pod["spec"];
        self.add_sizes(spec);
        self.tolerations(spec);
        self.select_nodes(spec);
        self.select_pods(&labels, spec);
        self.mount(spec);
        pod
    }

    /// Returns a new pod of this template.
    pub(super) fn pod_of(&mut self, template: &Value) -> Value {
        let mut pod = template.clone();
        let name = self.new_name("pod-");
        pod["metadata"]["uid"] = json!(format!("uid-{name}"));
        pod["metadata"]["name"] = json!(name);
        pod
    }

    /// Adds a pod bound without regard to any rule; sometimes to an unknown node.
    pub(super) fn add_bound_pod(&mut self, step: &mut Step) {
        let template = match self.dice.percent(70) {
            true => self.dice.pick(&self.templates).expect("there are some").clone(),
            false => self.template(),
        };
        let mut pod = self.pod_of(&template);
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        pod["spec"]["nodeName"] = json!(self.dice.pick(&names));
        pod["status"]["phase"] = json!("Running");
        self.start(&mut pod);
        if self.dice.percent(5) && self.may_terminate() {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if names.is_empty() || self.dice.percent(2) {
            pod["spec"]["nodeName"] = json!("node-unknown");
        }
        if self.dice.percent(3) {
            pod["status"]["phase"] = json!("Succeeded");
        }
        if self.dice.percent(self.theme.resizes) {
            self.resize(&mut pod);
        }
        self.drop_taken_ports(&mut pod);
        self.put_pod(pod, step);
    }

    /// Upstream keeps the ports of a node's pods in a set: when one of two pods with the same port is deleted, it
    /// considers the other's port free. Such a state cannot be compared.
    fn drop_taken_ports(&self, pod: &mut Value) {
        let node = &pod["spec"]["nodeName"];
        let others = self.pods.values().filter(|other| other["spec"]["nodeName"] == *node);
        let taken: Vec<_> = others.flat_map(|other| containers_of(other).filter_map(host_port)).collect();
        let lists = ["containers", "initContainers"];
        let spec = &mut pod["spec"];
        for list in lists {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                if host_port(container).is_some_and(|port| taken.contains(&port)) {
                    container["ports"] = json!([]);
                }
            }
        }
    }

    pub(super) fn put_pod(&mut self, pod: Value, step: &mut Step) {
        self.pods.insert(key_of(&pod), pod.clone());
        step.apply("pods", pod);
    }

    pub(super) fn pod_labels(&mut self) -> Value {
        let mut labels = json!({});
        for (key, values) in POD_LABELS {
            if self.dice.percent(60) {
                labels[key] = json!(self.one(values));
            }
        }
        labels
    }

    fn tolerations(&mut self, spec: &mut Value) {
        let mut tolerations = Vec::new();
        for key in self.some(TAINT_KEYS, self.theme.taints) {
            let effect = self.one(&["", "NoSchedule", "PreferNoSchedule", "NoExecute"]);
            tolerations.push(match self.one(&["Exists", "Equal", "", "Gt", "Lt"]) {
                "Exists" => json!({"key": key, "operator": "Exists", "effect": effect}),
                operator @ ("Gt" | "Lt") => {
                    let value = self.one(&["-3", "0", "7"]);
                    json!({"key": key, "operator": operator, "value": value, "effect": effect})
                }
                operator => {
                    json!({"key": key, "operator": operator, "value": self.one(TAINT_VALUES), "effect": effect})
                }
            });
        }
        match self.dice.below(20) {
            0 => tolerations.push(json!({"operator": "Exists"})),
            1 => tolerations.push(json!({"operator": "Exists", "effect": "NoSchedule"})),
            2 => tolerations.push(json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"})),
            _ => {}
        }
        if !tolerations.is_empty() {
            spec["tolerations"] = json!(tolerations);
        }
    }

    fn select_nodes(&mut self, spec: &mut Value) {
        let often = self.theme.node_affinity;
        if self.dice.percent(often / 3) {
            let (key, values) = self.one(&LABELS);
            spec["nodeSelector"] = json!({key: self.one(values)});
        }
        let mut affinity = json!({});
        if self.dice.percent(often) {
            let terms: Vec<_> = (0..1 + self.dice.below(3)).map(|_| self.node_term()).collect();
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": terms});
        }
        if self.dice.percent(often / 3) {
            let weighted =
                |it: &mut Self| json!({"weight": 1 + it.dice.below(100), "preference": it.node_term()});
            let terms: Vec<_> = (0..1 + self.dice.below(3)).map(|_| weighted(self)).collect();
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = json!(terms);
        }
        if affinity.as_object().is_some_and(|affinity| !affinity.is_empty()) {
            spec["affinity"]["nodeAffinity"] = affinity;
        }
    }

    /// Bounds of Gt and Lt are numbers: for other values, which the API server accepts, berth rejects the whole pod.
    fn node_term(&mut self) -> Value {
        let mut term = json!({});
        let expressions: Vec<_> = (0..self.dice.below(4).min(2)).map(|_| self.node_requirement()).collect();
        if !expressions.is_empty() {
            term["matchExpressions"] = json!(expressions);
        }
        if self.dice.percent(10) {
            let named = |it: &mut Self| {
                let operator = it.one(&["In", "In", "NotIn"]);
                json!({"key": "metadata.name", "operator": operator, "values": [format!("node-{}", it.dice.below(8))]})
            };
            // Two names at once are possible, and match nothing.
            let fields: Vec<_> = (0..1 + self.dice.below(6) / 5).map(|_| named(self)).collect();
            term["matchFields"] = json!(fields);
        }
        term
    }

    fn node_requirement(&mut self) -> Value {
        let (key, values) = self.one(&LABELS);
        match self.one(&["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]) {
            operator @ ("Exists" | "DoesNotExist") => json!({"key": key, "operator": operator}),
            operator @ ("Gt" | "Lt") => {
                json!({"key": "generation", "operator": operator, "values": [self.one(&["0", "3", "7", "1000"])]})
            }
            operator => {
                let mut chosen = self.some(values, 40);
                chosen.push(self.one(values));
                json!({"key": key, "operator": operator, "values": chosen})
            }
        }
    }
}

/// Returns all containers of a pod.
fn containers_of(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    lists.into_iter().flatten().flatten()
}

/// Returns address, protocol and number of a container's host port.
fn host_port(container: &Value) -> Option<(String, String, u64)> {
    let port = container["ports"].get(0)?;
    let address = port["hostIP"].as_str()?.replace("0.0.0.0", "");
    Some((address, port["protocol"].as_str()?.to_owned(), port["hostPort"].as_u64()?))
}
