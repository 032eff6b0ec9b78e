//! Claims: of the pod, and allocated ones.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Generator;

/// Devices that the claims of the pod want at most: upstream tries all combinations.
const WANTED_MAX: u64 = 5;

impl Generator {
    pub(super) fn claims(&mut self) -> Vec<Value> {
        let mut wanted = 0;
        (0..self.pick(&[1, 1, 1, 1, 1, 2, 3])).map(|at| self.claim(at, &mut wanted)).collect()
    }

    fn claim(&mut self, at: usize, wanted: &mut u64) -> Value {
        let mut requests = Vec::new();
        for request in 0..self.pick(&[1, 1, 1, 1, 2, 2, 3]) {
            if request == 0 || *wanted < WANTED_MAX {
                requests.push(self.request(&format!("r{request}"), wanted));
            }
        }
        let mut devices = json!({"requests": requests});
        if self.dice.percent(self.theme.constraints) {
            let constraints: Vec<_> =
                (0..=self.dice.below(2)).filter_map(|_| self.constraint(&requests)).collect();
            if !constraints.is_empty() {
                devices["constraints"] = constraints.into();
            }
        }
        let metadata = json!({"namespace": "default", "name": format!("claim-{at}")});
        json!({"metadata": metadata, "spec": {"devices": devices}})
    }

    fn request(&mut self, name: &str, wanted: &mut u64) -> Value {
        if !self.dice.percent(self.theme.alternatives) {
            let mut request = self.wants(wanted);
            if self.dice.percent(self.theme.admin) {
                request["adminAccess"] = true.into();
            }
            return json!({"name": name, "exactly": request});
        }
        let before = *wanted;
        let alternatives: Vec<_> = (0..self.pick(&[2, 2, 3]))
            .map(|at| {
                let mut most = before;
                let mut alternative = self.wants(&mut most);
                alternative["name"] = format!("s{at}").into();
                *wanted = most.max(*wanted);
                alternative
            })
            .collect();
        json!({"name": name, "firstAvailable": alternatives})
    }

    /// A request without its name.
    fn wants(&mut self, wanted: &mut u64) -> Value {
        let class = if self.dice.below(250) == 0 { 9 } else { self.dice.below(self.classes as u64) };
        let mut request = json!({"deviceClassName": format!("c{class}")});
        if self.dice.percent(self.theme.selectors) {
            request["selectors"] = (0..self.pick(&[1, 1, 1, 2])).map(|_| self.selector()).collect();
        }
        if self.dice.percent(self.theme.all) {
            request["allocationMode"] = "All".into();
            *wanted += 1;
        } else {
            let left = WANTED_MAX.saturating_sub(*wanted).max(1);
            let several = self.dice.percent(self.theme.several);
            let count = if several { left.min(self.pick(&[2, 2, 3])) } else { 1 };
            request["allocationMode"] = "ExactCount".into();
            request["count"] = count.into();
            *wanted += count;
        }
        if self.theme.taints > 0 && self.dice.percent(40) {
            request["tolerations"] = (0..=self.dice.below(2)).map(|_| self.toleration()).collect();
        }
        if self.dice.percent(self.theme.amounts) {
            let mut amounts = Map::new();
            // A device of the other driver has no such capacity, nor have some of this one.
            if self.dice.percent(70) {
                let memory = self.pick(&["1Gi", "1500Mi", "2Gi", "3Gi", "3G", "4Gi", "5G", "7Gi", "12Gi"]);
                amounts.insert("memory".to_owned(), memory.into());
            } else {
                amounts
                    .insert("example.org/cores".to_owned(), self.pick(&["1", "1500m", "2", "3", "5"]).into());
            }
            request["capacity"] = json!({"requests": amounts});
        }
        request
    }

    fn toleration(&mut self) -> Value {
        let mut toleration = match self.dice.below(5) {
            0 => json!({"operator": "Exists"}),
            1 | 2 => json!({"operator": "Exists", "key": self.pick(&["broken", "old"])}),
            3 => json!({"operator": "Equal", "key": self.pick(&["broken", "old"])}),
            _ => json!({
                "operator": "Equal", "key": self.pick(&["broken", "old"]), "value": self.pick(&["x", "y"]),
            }),
        };
        if self.dice.percent(40) {
            toleration["effect"] = self.pick(&["NoSchedule", "NoExecute"]).into();
        }
        toleration
    }

    fn constraint(&mut self, requests: &[Value]) -> Option<Value> {
        let mut names = Vec::new();
        for request in requests.iter().filter(|_| self.dice.percent(45)).collect::<Vec<_>>() {
            let name = request["name"].as_str().expect("a request has a name");
            let alternatives = request["firstAvailable"].as_array().filter(|_| self.dice.percent(40));
            match alternatives {
                Some(alternatives) => {
                    let alternative = self.pick(&alternatives.iter().collect::<Vec<_>>());
                    names.push(format!("{name}/{}", alternative["name"].as_str().unwrap_or_default()));
                }
                None => names.push(name.to_owned()),
            }
        }
        let own = self.pick(&["model", "model", "index", "healthy", "version"]);
        let others = self.pick(&["numa", "numa", "numa", "link", "secure", "api"]);
        let domain = if self.dice.percent(60) { "example.org" } else { self.driver() };
        let attribute = format!("{domain}/{}", if domain == "example.org" { others } else { own });
        let mut constraint = json!({});
        if !names.is_empty() {
            constraint["requests"] = json!(names);
        }
        let distinct = self.dice.percent(50) && super::super::oddity::allows_distinct(requests, &names);
        constraint[if distinct { "distinctAttribute" } else { "matchAttribute" }] = attribute.into();
        (distinct || self.dice.percent(60)).then_some(constraint)
    }

    pub(super) fn allocated(&mut self) -> Vec<Value> {
        let (mut taken, mut claims) = (BTreeSet::new(), Vec::new());
        for at in 0..self.theme.allocated {
            let results: Vec<_> =
                (0..self.pick(&[1, 1, 1, 2])).filter_map(|_| self.result(&mut taken)).collect();
            if results.is_empty() {
                continue;
            }
            let request =
                json!({"deviceClassName": "c0", "allocationMode": "ExactCount", "count": results.len()});
            claims.push(json!({
                "metadata": {"namespace": "default", "name": format!("used-{at}")},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
                "status": {"allocation": {"devices": {"results": results}}},
            }));
        }
        claims
    }

    /// One device of an allocated claim, for itself or shared with others.
    fn result(&mut self, taken: &mut BTreeSet<String>) -> Option<Value> {
        let slices: Vec<_> = self.slices.iter().filter(|slice| slice["spec"]["devices"].is_array()).collect();
        let slice = (*self.dice.pick(&slices)?).clone();
        let device = self.dice.pick(slice["spec"]["devices"].as_array()?)?.clone();
        let (driver, pool) = (&slice["spec"]["driver"], &slice["spec"]["pool"]["name"]);
        // The device may be gone since.
        let name = if self.dice.percent(3) { "gone".into() } else { device["name"].clone() };
        let mut result = json!({"request": "r", "driver": driver, "pool": pool, "device": name});
        if self.dice.percent(10) {
            result["adminAccess"] = true.into();
            return Some(result);
        }
        let key = format!("{driver} {pool} {name}");
        // A device may have become shareable after it was allocated.
        if device["allowMultipleAllocations"] != true || self.dice.percent(5) {
            return taken.insert(key).then_some(result);
        }
        if taken.contains(&key) {
            return None;
        }
        result["shareID"] = format!("00000000-0000-4000-8000-{:012}", self.dice.below(1_000_000_000)).into();
        let mut consumed = Map::new();
        for (name, _) in device["capacity"].as_object().into_iter().flatten() {
            let amount = if name == "memory" {
                self.pick(&["1Gi", "2Gi", "2Gi", "4Gi"])
            } else {
                self.pick(&["1", "1", "2"])
            };
            consumed.insert(name.clone(), amount.into());
        }
        if !consumed.is_empty() {
            result["consumedCapacity"] = consumed.into();
        }
        Some(result)
    }
}
