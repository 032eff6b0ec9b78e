//! Constraints between pods: topology spread, affinity and anti-affinity.

use serde_json::{Value, json};

use super::nodes::{HOSTNAME, REGION, ZONE};
use super::pods::POD_LABELS;
use super::{Generator, NAMESPACES};

/// No node has the last label.
const TOPOLOGY_KEYS: &[&str] = &[ZONE, ZONE, ZONE, HOSTNAME, HOSTNAME, "rack", REGION, "example.com/nowhere"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

impl Generator {
    /// Adds spread constraints and pod affinity to the spec of a pod with these labels.
    pub(super) fn select_pods(&mut self, labels: &Value, spec: &mut Value) {
        if self.dice.percent(self.theme.spread) {
            spec["topologySpreadConstraints"] = self.spread_constraints(labels);
        }
        for (kind, often) in [("podAffinity", 2), ("podAntiAffinity", 2)] {
            let often = self.theme.pod_affinity / often;
            if self.dice.percent(often) {
                let terms: Vec<_> = (0..self.few()).map(|_| self.pod_term(labels)).collect();
                spec["affinity"][kind][REQUIRED] = json!(terms);
            }
            if self.dice.percent(often) {
                let weighted = |it: &mut Self| json!({"weight": 1 + it.dice.below(100), "podAffinityTerm": it.pod_term(labels)});
                let terms: Vec<_> = (0..self.few()).map(|_| weighted(self)).collect();
                spec["affinity"][kind][PREFERRED] = json!(terms);
            }
        }
    }

    fn few(&mut self) -> u64 {
        self.one(&[1, 1, 1, 2, 3])
    }

    fn spread_constraints(&mut self, labels: &Value) -> Value {
        let mut constraints: Vec<Value> = Vec::new();
        for _ in 0..self.few() {
            let key = self.one(TOPOLOGY_KEYS);
            let action = self.one(&["DoNotSchedule", "ScheduleAnyway"]);
            if constraints.iter().any(|c| c["topologyKey"] == key && c["whenUnsatisfiable"] == action) {
                continue;
            }
            let mut constraint = json!({
                "topologyKey": key, "whenUnsatisfiable": action, "maxSkew": 1 + self.dice.below(3),
            });
            if let Some(mut selector) = self.selector_near(labels) {
                if self.theme.preemption && super::preemption::selects_all(&selector) {
                    selector = self.selector();
                }
                constraint["labelSelector"] = selector;
                if self.dice.percent(20) {
                    let keys: Vec<_> = self.some(&["pod-template-hash", "track", "absent"], 50);
                    constraint["matchLabelKeys"] = json!(keys);
                }
            }
            if action == "DoNotSchedule" && self.dice.percent(30) {
                constraint["minDomains"] = json!(1 + self.dice.below(5));
            }
            for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
                if self.dice.percent(40) {
                    constraint[policy] = json!(self.one(&["Honor", "Ignore"]));
                }
            }
            constraints.push(constraint);
        }
        json!(constraints)
    }

    fn pod_term(&mut self, labels: &Value) -> Value {
        let mut term = json!({"topologyKey": self.one(TOPOLOGY_KEYS)});
        if let Some(selector) = self.selector_near(labels) {
            term["labelSelector"] = selector;
        }
        if self.dice.percent(25) {
            term["namespaces"] = json!(self.some(&NAMESPACES, 40));
        }
        match self.dice.below(10) {
            // Of these only an empty one reaches nominated pods.
            0 | 1 if self.theme.nominated == 0 => term["namespaceSelector"] = json!({}),
            2 => term["namespaceSelector"] = json!({"matchLabels": {"team": self.one(&["red", "blue"])}}),
            3 => {
                // A requirement that some labels exist keeps the selector from matching nothing: kube-scheduler 1.36
                // forgets to replace such a selector by the namespaces it found, and then matches it with every pod.
                let any = json!({"key": "kubernetes.io/metadata.name", "operator": "Exists"});
                let expression = json!({"key": "env", "operator": self.one(&["Exists", "DoesNotExist"])});
                term["namespaceSelector"] = json!({"matchExpressions": [any, expression]});
            }
            _ => {}
        }
        term
    }

    /// `None`: null, which selects nothing. Often it selects pods with these labels.
    fn selector_near(&mut self, labels: &Value) -> Option<Value> {
        match self.dice.below(20) {
            0 => None,
            1 => Some(json!({})),
            2..=11 => {
                let labels = labels.as_object().into_iter().flatten();
                let some: serde_json::Map<_, _> = labels
                    .filter(|_| self.dice.percent(60))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                Some(json!({"matchLabels": some}))
            }
            _ => Some(self.selector()),
        }
    }

    /// A label selector for pods, not empty.
    pub(super) fn selector(&mut self) -> Value {
        let (key, values) = self.one(&POD_LABELS);
        match self.one(&["=", "=", "In", "NotIn", "Exists", "DoesNotExist"]) {
            "=" => json!({"matchLabels": {key: self.one(values)}}),
            operator @ ("In" | "NotIn") => {
                let mut chosen = self.some(values, 40);
                chosen.push(self.one(values));
                json!({"matchExpressions": [{"key": key, "operator": operator, "values": chosen}]})
            }
            operator => json!({"matchExpressions": [{"key": key, "operator": operator}]}),
        }
    }
}
