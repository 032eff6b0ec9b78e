//! Inputs of preemption: priorities, start times, disruption budgets; and nominated pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Generator, NAMESPACES};
use crate::differential::scenario::{Step, key_of};

const PRIORITIES: &[i32] = &[i32::MIN, -10, 0, 0, 5, 5, 100, 1000];
pub(super) const PREEMPTORS: &[i32] = &[0, 5, 100, 100, 1000, 1000, 2000, 2_000_000_000];
const BUDGETS: u64 = 6;
/// Namespace of nominated pods.
const NOMINATED: &str = "nominated";
/// In seconds since the epoch. All starts are in the past.
const FIRST_START: u64 = 1_600_000_000;

impl Generator {
    /// Upstream does not count a terminating pod for topology spread, but subtracts it when it simulates its removal.
    /// The result is wrong, so there is nothing to compare.
    pub(super) fn may_terminate(&self) -> bool {
        !self.theme.preemption || self.theme.spread == 0
    }

    /// Sets the priority and start time of a bound pod. Upstream orders pods with the same start time randomly, and
    /// treats all pods without one as starting now: so there is at most one of them on a node.
    pub(super) fn start(&mut self, pod: &mut Value) {
        if !self.theme.preemption {
            return;
        }
        if self.dice.percent(90) {
            pod["spec"]["priority"] = json!(self.one(PRIORITIES));
        }
        let node = &pod["spec"]["nodeName"];
        let mut others = self.pods.values().filter(|other| other["spec"]["nodeName"] == *node);
        if self.dice.percent(90) || others.any(|other| other["status"]["startTime"].is_null()) {
            let second = FIRST_START + self.dice.below(15_000) * 10_000 + self.named;
            let started = Timestamp::from_second(second as i64).expect("it is in this century");
            pod["status"]["startTime"] = json!(started.to_string());
        }
    }

    /// Returns the pod with large requests, so that it seldom fits without preemption.
    pub(super) fn preemptor(&mut self, mut pod: Value) -> Value {
        if self.dice.percent(60) {
            pod["spec"]["containers"] = self.containers(true);
        }
        if self.dice.percent(95) {
            pod["spec"]["priority"] = json!(self.one(PREEMPTORS));
        }
        if self.dice.percent(20) {
            pod["spec"]["preemptionPolicy"] = json!(self.one(&["Never", "PreemptLowerPriority"]));
        }
        pod
    }

    pub(super) fn change_budgets(&mut self, step: &mut Step) {
        if !self.theme.preemption {
            return;
        }
        for _ in 0..self.dice.below(4) {
            if self.dice.percent(self.theme.budgets) {
                self.change_budget(step);
            }
        }
    }

    fn change_budget(&mut self, step: &mut Step) {
        let name = format!("budget-{}", self.dice.below(BUDGETS));
        let namespace = self.one(&NAMESPACES[..3]);
        let key = format!("{namespace}/{name}");
        super::churn::forget(step, "poddisruptionbudgets", &key);
        if self.dice.percent(20) {
            step.delete("poddisruptionbudgets", &key);
            return;
        }
        let selector = match self.dice.below(20) {
            0 => Value::Null,
            1 => json!({}),
            _ => self.selector(),
        };
        let disrupted: serde_json::Map<_, _> = (self.pods.values())
            .filter(|pod| pod["metadata"]["namespace"] == namespace && self.dice.percent(10))
            .map(|pod| {
                (
                    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    json!("2026-01-01T00:00:00Z"),
                )
            })
            .collect();
        let budget = json!({
            "metadata": {"namespace": namespace, "name": name, "uid": key},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": self.one(&[0, 0, 1, 1, 2, 3]), "disruptedPods": disrupted},
        });
        step.apply("poddisruptionbudgets", budget);
    }

    /// Adds and removes nominations.
    pub(super) fn change_nominations(&mut self, step: &mut Step) {
        for _ in 0..self.dice.below(4) {
            if !self.dice.percent(self.theme.nominated) {
                continue;
            }
            match self.dice.below(4) {
                0 => self.end_nomination(step),
                _ => self.nominate(step),
            }
        }
    }

    /// berth reserves the resources and ports of a nominated pod, but ignores it in pod affinity and spread: so it is in
    /// a namespace that no selector reaches.
    fn nominate(&mut self, step: &mut Step) {
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        let Some(node) = self.dice.pick(&names).cloned() else { return };
        let (name, big, priority) =
            (self.new_name("nominated-"), self.dice.percent(50), self.one(PREEMPTORS));
        let mut pod = json!({
            "metadata": {"namespace": NOMINATED, "name": name, "uid": format!("uid-{name}")},
            "spec": {"schedulerName": "another", "containers": self.containers(big), "priority": priority},
            "status": {"phase": "Pending", "nominatedNodeName": node},
        });
        self.add_sizes(&mut pod["spec"]);
        self.nominated.insert(key_of(&pod));
        step.apply("pods", pod);
    }

    fn end_nomination(&mut self, step: &mut Step) {
        let keys: Vec<_> = self.nominated.iter().cloned().collect();
        let Some(key) = self.dice.pick(&keys) else { return };
        self.nominated.remove(key);
        super::churn::forget(step, "pods", key);
        step.delete("pods", key);
    }
}

/// Such a selector of a spread constraint selects no pod upstream, until preemption removes pods: then it selects
/// them all.
pub(super) fn selects_all(selector: &Value) -> bool {
    let empty = |part: &str| match &selector[part] {
        Value::Object(labels) => labels.is_empty(),
        Value::Array(expressions) => expressions.is_empty(),
        _ => true,
    };
    empty("matchLabels") && empty("matchExpressions")
}
