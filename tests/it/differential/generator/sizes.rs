//! What a pod requests: its containers, init containers and sidecars, its overhead, pod-level resources; and resizes in
//! place, in any state in which they can be observed.

use serde_json::{Value, json};

use super::Generator;
use super::nodes::{GPU, HUGE_PAGES};

const BIG_CPU: [&str; 3] = ["1", "2000m", "3"];
const SMALL_CPU: [&str; 3] = ["10m", "100m", "0"];
const BIG_MEMORY: [&str; 3] = ["800Mi", "3Gi", "10G"];
const SMALL_MEMORY: [&str; 3] = ["1Mi", "64Mi", "0"];

impl Generator {
    /// One or two containers.
    pub(super) fn containers(&mut self, big: bool) -> Value {
        let mut containers = vec![self.container("main", big)];
        if self.dice.percent(20) {
            containers.push(self.container("second", big));
        }
        json!(containers)
    }

    fn container(&mut self, name: &str, big: bool) -> Value {
        let mut container =
            json!({"name": name, "image": "app:1", "resources": {"requests": self.requests(big)}});
        if self.dice.percent(self.theme.ports) {
            let port = self.one(&[80, 443]);
            let protocol = self.one(&["TCP", "TCP", "UDP"]);
            let address = self.one(&["", "0.0.0.0", "10.0.0.1", "10.0.0.2"]);
            container["ports"] =
                json!([{"containerPort": port, "hostPort": port, "hostIP": address, "protocol": protocol}]);
        }
        container
    }

    fn requests(&mut self, big: bool) -> Value {
        let mut requests = json!({});
        if self.dice.percent(70) {
            requests["cpu"] = json!(self.one(if big { &BIG_CPU } else { &SMALL_CPU }));
        }
        if self.dice.percent(70) {
            requests["memory"] = json!(self.one(if big { &BIG_MEMORY } else { &SMALL_MEMORY }));
        }
        if self.dice.percent(10) {
            requests["ephemeral-storage"] = json!(self.one(&["1Gi", "20Gi", "0"]));
        }
        if self.dice.percent(10) {
            requests[GPU] = json!(self.one(&["1", "2", "0"]));
        }
        if self.dice.percent(3) {
            requests[HUGE_PAGES] = json!(self.one(&["2Mi", "4Mi"]));
        }
        requests
    }

    /// Adds init containers, sidecars, overhead and pod-level resources to the spec of a pod.
    pub(super) fn add_sizes(&mut self, spec: &mut Value) {
        if self.dice.percent(self.theme.init_containers) {
            let containers: Vec<_> = (0..1 + self.dice.below(4))
                .map(|at| {
                    let big = self.dice.percent(30);
                    let mut container = self.container(&format!("init-{at}"), big);
                    if self.dice.percent(50) {
                        container["restartPolicy"] = json!("Always");
                    }
                    container
                })
                .collect();
            spec["initContainers"] = json!(containers);
        }
        if self.dice.percent(self.theme.overhead) {
            spec["overhead"] =
                json!({"cpu": self.one(&["10m", "250m"]), "memory": self.one(&["1Mi", "120Mi"])});
            if self.dice.percent(20) {
                spec["overhead"][GPU] = json!("1");
            }
        }
        if self.dice.percent(self.theme.pod_level) {
            spec["resources"] = self.pod_level_resources();
        }
    }

    /// They may be lower than the sum of the containers, which the API server denies: neither side checks that.
    fn pod_level_resources(&mut self) -> Value {
        let big = self.dice.percent(40);
        let mut resources = json!({"requests": {}});
        for (name, amounts) in [
            ("cpu", if big { BIG_CPU } else { SMALL_CPU }),
            ("memory", if big { BIG_MEMORY } else { SMALL_MEMORY }),
            (HUGE_PAGES, ["2Mi", "4Mi", "0"]),
        ] {
            if self.dice.percent(if name == HUGE_PAGES { 10 } else { 60 }) {
                resources["requests"][name] = json!(self.one(&amounts));
            }
            if self.dice.percent(20) {
                resources["limits"][name] = json!(self.one(&amounts));
            }
        }
        resources
    }

    /// Changes the status of a bound pod to one during or after a resize in place.
    pub(super) fn resize(&mut self, pod: &mut Value) {
        let big = self.dice.percent(self.theme.big);
        let lists = [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")];
        for (list, statuses) in lists {
            let containers = pod["spec"][list].as_array().into_iter().flatten();
            let names: Vec<_> = containers.map(|container| container["name"].clone()).collect();
            let known = names.into_iter().filter_map(|name| {
                if self.dice.percent(20) {
                    return None;
                }
                let mut status = json!({"name": name});
                if self.dice.percent(80) {
                    status["resources"] = json!({"requests": self.requests(big)});
                }
                if self.dice.percent(80) {
                    status["allocatedResources"] = self.requests(big);
                }
                Some(status)
            });
            pod["status"][statuses] = known.collect();
        }
        let has_pod_level = pod["spec"]["resources"].is_object();
        if has_pod_level && self.dice.percent(80) {
            pod["status"]["resources"] = self.pod_level_resources();
        }
        if has_pod_level && self.dice.percent(80) {
            pod["status"]["allocatedResources"] = self.pod_level_resources()["requests"].take();
        }
        let condition = |kind, reason| json!({"type": kind, "status": "True", "reason": reason});
        let mut conditions = vec![json!({"type": "PodScheduled", "status": "True"})];
        match self.dice.below(5) {
            0 => {}
            1 => conditions.push(condition("PodResizeInProgress", "")),
            2 => conditions.push(condition("PodResizePending", "Deferred")),
            _ => conditions.push(condition("PodResizePending", "Infeasible")),
        }
        pod["status"]["conditions"] = json!(conditions);
    }
}
