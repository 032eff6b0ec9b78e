//! Changes of a cluster between two questions.

use serde_json::{Value, json};

use super::{Generator, NAMESPACES};
use crate::differential::scenario::Step;

impl Generator {
    /// Adds one event. If an object changes twice in a step, only its last state is sent.
    pub(super) fn churn(&mut self, step: &mut Step) {
        match self.dice.below(23) {
            0 => self.add_node(step),
            1 => self.remove_node(step),
            2 | 3 => self.change_node(step, |it, name, node| {
                let labels = it.node_labels(name);
                // Losing or changing one label is more frequent than changing all.
                match labels.as_object().and_then(|labels| labels.iter().next()) {
                    Some((key, value)) if it.dice.percent(60) => {
                        node["metadata"]["labels"][key] = value.clone();
                    }
                    _ => node["metadata"]["labels"] = labels,
                }
            }),
            4 | 5 => self.change_node(step, |it, _, node| it.taint(node)),
            6 => self.change_node(step, |it, _, node| node["status"]["allocatable"] = it.allocatable()),
            7..=10 => self.add_bound_pod(step),
            11..=13 => self.remove_pod(step),
            14 | 15 => self.change_pod(step, |it, pod| pod["metadata"]["labels"] = it.pod_labels()),
            16 if self.may_terminate() => self.change_pod(step, |_, pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }),
            17 => self.change_pod(step, |it, pod| {
                pod["status"]["phase"] = json!(it.one(&["Succeeded", "Failed"]));
            }),
            18 if self.theme.resizes > 0 => self.change_pod(step, Self::resize),
            19 => {
                let name = self.one(&NAMESPACES[..3]);
                forget(step, "namespaces", name);
                self.relabel_namespace(name, step);
            }
            _ if self.theme.volumes > 0 && self.dice.percent(70) => self.change_storage(step),
            _ if self.theme.owners > 0 => self.change_owners(step),
            _ => {}
        }
    }

    fn remove_node(&mut self, step: &mut Step) {
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        let Some(name) = self.dice.pick(&names) else { return };
        self.nodes.remove(name);
        forget(step, "nodes", name);
        step.delete("nodes", name);
    }

    fn change_node(&mut self, step: &mut Step, change: impl FnOnce(&mut Self, &str, &mut Value)) {
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        let Some(name) = self.dice.pick(&names) else { return };
        let mut node = self.nodes[name].clone();
        change(self, name, &mut node);
        forget(step, "nodes", name);
        self.put_node(name, node, step);
    }

    fn remove_pod(&mut self, step: &mut Step) {
        let keys: Vec<_> = self.pods.keys().cloned().collect();
        let Some(key) = self.dice.pick(&keys) else { return };
        self.pods.remove(key);
        forget(step, "pods", key);
        step.delete("pods", key);
    }

    fn change_pod(&mut self, step: &mut Step, change: impl FnOnce(&mut Self, &mut Value)) {
        let keys: Vec<_> = self.pods.keys().cloned().collect();
        let Some(key) = self.dice.pick(&keys) else { return };
        let mut pod = self.pods[key].clone();
        change(self, &mut pod);
        forget(step, "pods", key);
        self.put_pod(pod, step);
    }

    fn change_owners(&mut self, step: &mut Step) {
        let known: Vec<_> = self.owners.iter().cloned().collect();
        match self.dice.pick(&known) {
            Some(owner @ (resource, key)) if self.dice.percent(50) => {
                self.owners.remove(owner);
                forget(step, resource, key);
                step.delete(resource, key);
            }
            _ => self.add_owner(step),
        }
    }
}

/// Removes the step's changes of this object so far: deletions are applied before additions, in whichever order they
/// were generated.
pub(super) fn forget(step: &mut Step, resource: &str, key: &str) {
    if let Some(objects) = step.apply.get_mut(resource) {
        objects.retain(|object| crate::differential::scenario::key_of(object) != key);
    }
}
