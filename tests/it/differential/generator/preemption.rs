//! Inputs of preemption: priorities, start times, disruption budgets, and nominated pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Generator, NAMESPACES};
use crate::differential::scenario::{Step, key_of};

const PRIORITIES: &[i32] = &[i32::MIN, -10, 0, 0, 5, 5, 100, 1000];
const PREEMPTORS: &[i32] = &[0, 5, 100, 100, 1000, 1000, 2000, 2_000_000_000];
const BUDGETS: u64 = 6;
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

    /// Changes budgets and nominations.
    pub(super) fn rank(&mut self, step: &mut Step) {
        if !self.theme.preemption {
            return;
        }
        for _ in 0..self.dice.below(4) {
            if self.dice.percent(self.theme.budgets) {
                self.change_budget(step);
            }
        }
        // berth reserves room for nominated pods, but ignores them in pod affinity and spread.
        let plain = self.theme.spread == 0 && self.theme.pod_affinity == 0;
        if plain && self.dice.percent(self.theme.nominated) {
            self.nominate(step);
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

    fn nominate(&mut self, step: &mut Step) {
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        let Some(node) = self.dice.pick(&names).cloned() else { return };
        let template = self.template();
        let mut pod = self.pod_of(&template);
        let (big, priority) = (self.dice.percent(50), self.one(PREEMPTORS));
        pod["spec"] =
            json!({"schedulerName": "another", "containers": self.containers(big), "priority": priority});
        pod["status"]["nominatedNodeName"] = json!(node);
        super::churn::forget(step, "pods", &key_of(&pod));
        self.put_pod(pod, step);
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
