//! Workloads: pods of a few classes, on nodes that differ as little as the workload allows.

use serde::Serialize;
use serde_json::{Value, json};

use crate::lived_in;

/// Size of a benchmark.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Size {
    pub nodes: usize,
    /// As requested; see [`Workload::pod_count`].
    pub pods: usize,
}

/// Properties of pods and nodes.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    /// Description for the table.
    pub about: &'static str,
    /// Number of different requests, taken in turn.
    pub sizes: usize,
    pub zones: Zones,
    /// Every tenth node is tainted, and every other pod tolerates that.
    pub taints: bool,
    /// Constraints between the pods; with any, there are half as many pods.
    pub mates: Mates,
    /// Nearly all pods are larger than any node; one in eleven fits.
    pub hopeless: bool,
    /// Pods per gang, which are placed together or not at all; 0: no gangs.
    pub gang: usize,
    /// Gangs are PodGroups of Kubernetes, which kube-scheduler knows, too; else they are allocations.
    pub pod_groups: bool,
    /// Every node is full of a pod of lower priority, which must be evicted for each of the pods.
    pub preempts: bool,
    /// Devices that a driver has published for each node; each pod requests one, by the extended resource of their class.
    pub devices: usize,
    /// Instead, each pod has a claim for it, which Kubernetes' controller has made from a template.
    pub templates: bool,
    /// Pods, controllers, Services and bystanders as in [`crate::lived_in`].
    pub lived_in: bool,
}

/// The zones that required node affinity allows a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Zones {
    /// No affinity.
    Any,
    /// All pods: the first two of three.
    Two,
    /// One of three, by the size of the pod: `sizes` is the number of classes.
    OneBySize,
}

/// Constraints between pods with the same label, as in kube-scheduler's own benchmarks (`scheduler_perf`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mates {
    Nothing,
    /// Topology spread over zones, maxSkew 1.
    SpreadOverZones,
    /// Preferred affinity by hostname.
    NodePreferred,
    /// Required affinity by zone.
    SameZone,
    /// Required anti-affinity by hostname.
    OtherNodes,
}

const PLAIN: Workload = Workload {
    name: "basic",
    about: "one class",
    sizes: 1,
    zones: Zones::Any,
    taints: false,
    mates: Mates::Nothing,
    hopeless: false,
    gang: 0,
    pod_groups: false,
    preempts: false,
    devices: 0,
    templates: false,
    lived_in: false,
};

pub const WORKLOADS: &[Workload] = &[
    PLAIN,
    Workload { name: "ten-classes", about: "ten classes interleaved, by their requests", sizes: 10, ..PLAIN },
    Workload { name: "node-affinity", about: "one class; zone In two of three", zones: Zones::Two, ..PLAIN },
    Workload {
        name: "taints",
        about: "a tenth of the nodes is tainted, every other pod tolerates it",
        taints: true,
        ..PLAIN
    },
    Workload {
        name: "mixed",
        about: "ten classes interleaved, by their requests; zone In one of three",
        sizes: 10,
        zones: Zones::OneBySize,
        ..PLAIN
    },
    Workload {
        name: "zone-spread",
        about: "one class; hard topology spread over zones, maxSkew 1",
        mates: Mates::SpreadOverZones,
        ..PLAIN
    },
    Workload {
        name: "preferred-affinity",
        about: "one class; preferred pod affinity by hostname",
        mates: Mates::NodePreferred,
        ..PLAIN
    },
    Workload {
        name: "zone-affinity",
        about: "one class; required pod affinity by zone",
        mates: Mates::SameZone,
        ..PLAIN
    },
    Workload {
        name: "anti-affinity",
        about: "one class; required pod anti-affinity by hostname",
        mates: Mates::OtherNodes,
        ..PLAIN
    },
    Workload {
        name: "hundred-classes",
        about: "a hundred classes interleaved, by their requests",
        sizes: 100,
        ..PLAIN
    },
    Workload {
        name: "unschedulable",
        about: "all pods of one class are larger than any node; a tenth more of another class fit",
        hopeless: true,
        ..PLAIN
    },
    Workload { name: "gangs", about: "one class; allocations of 8 pods each", gang: 8, ..PLAIN },
    Workload {
        name: "pod-groups",
        about: "one class; PodGroups of Kubernetes of 8 pods each",
        gang: 8,
        pod_groups: true,
        ..PLAIN
    },
    Workload {
        name: "preemption",
        about: "every node is full of one pod of lower priority, without a grace period; a pod for each",
        preempts: true,
        ..PLAIN
    },
    Workload {
        name: "extended-resource",
        about: "one class; each pod requests one of 8 devices of each node, as an extended resource that DRA provides",
        devices: 8,
        ..PLAIN
    },
    Workload {
        name: "claim-template",
        about: "one class; each pod has a claim for one of 8 devices of each node, made from a template by Kubernetes' controller",
        devices: 8,
        templates: true,
        ..PLAIN
    },
    Workload {
        name: "lived-in",
        about: "500 workloads in 50 namespaces with controllers and Services (default spreading applies), three tenths of \
                them with pod anti-affinity, a tenth with soft zone spread, a tenth StatefulSets; a CoreDNS; 25 pods/s of \
                another scheduler come and go",
        sizes: lived_in::WORKLOADS,
        lived_in: true,
        ..PLAIN
    },
];

pub const ZONES: usize = 3;
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const TAINT_KEY: &str = "dedicated";
pub const NODE_MILLI_CPU: usize = 4_000;
pub const NODE_MEMORY_MIB: usize = 32 << 10;
pub const NODE_PODS: usize = 110;

const DRIVER: &str = "gpu.example.com";
const DEVICE_CLASS: &str = "gpu";
const CLAIM_TEMPLATE: &str = "one-gpu";
/// The extended resource that the devices of the class provide.
const DEVICE: &str = "example.com/gpu";

/// Larger than any node.
const HOPELESS_MILLI_CPU: usize = 5_000;
/// More than half of a node.
const PREEMPTOR_MILLI_CPU: usize = 3_000;
const PRIORITY: i32 = 1_000;
const PRIORITY_CLASS: &str = "high";
/// Name prefix of the pods to be evicted.
const VICTIM: &str = "low";

/// In the unschedulable workload, the number of pods that do not fit per pod that fits.
const HOPELESS_PER_FITTING: usize = 10;

/// One pod to create.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    pub index: usize,
    pub milli_cpu: usize,
    pub memory_mib: usize,
    /// Fits on no node.
    pub hopeless: bool,
}

impl Workload {
    /// Returns the actual number of pods when `pods` were requested.
    pub fn pod_count(&self, pods: usize) -> usize {
        match (self.hopeless, self.mates) {
            (true, _) => pods + pods / HOPELESS_PER_FITTING,
            (false, Mates::Nothing) => pods,
            // Half as many: kube-scheduler takes minutes for these workloads.
            (false, _) => pods / 2,
        }
    }

    /// Returns the events per pod: one for the decision; with preemption one more for the condition, and one for the victim.
    /// kube-scheduler writes them all; for a scheduler that writes fewer, the measurement waits a little longer.
    pub fn events_per_pod(&self) -> usize {
        if self.preempts { 3 } else { 1 }
    }

    pub fn pod(&self, index: usize) -> Pod {
        let size = index % self.sizes;
        let hopeless = self.hopeless && index % (HOPELESS_PER_FITTING + 1) != HOPELESS_PER_FITTING;
        Pod {
            index,
            milli_cpu: match (hopeless, self.preempts) {
                (true, _) => HOPELESS_MILLI_CPU,
                (_, true) => PREEMPTOR_MILLI_CPU,
                _ => 100 + 5 * (size % 20),
            },
            memory_mib: 500 + 10 * (size % 20) + size / 20,
            hopeless,
        }
    }

    fn zones_of(&self, pod: Pod) -> Vec<usize> {
        match self.zones {
            Zones::Any => (0..ZONES).collect(),
            Zones::Two => vec![0, 1],
            Zones::OneBySize => vec![pod.index % self.sizes % ZONES],
        }
    }

    fn tolerates(&self, pod: Pod) -> bool {
        pod.index.is_multiple_of(2)
    }

    fn is_tainted(&self, node: usize) -> bool {
        self.taints && node.is_multiple_of(10)
    }

    /// Whether the node's labels and taints allow the pod.
    pub fn allows(&self, pod: Pod, node: usize) -> bool {
        !pod.hopeless
            && self.zones_of(pod).contains(&(node % ZONES))
            && (self.tolerates(pod) || !self.is_tainted(node))
    }

    pub fn pod_json(&self, pod: Pod, scheduler: &str) -> Value {
        if self.lived_in {
            return lived_in::pod_json(pod, scheduler);
        }
        let requests = json!({
            "cpu": format!("{}m", pod.milli_cpu),
            "memory": format!("{}Mi", pod.memory_mib),
        });
        let mut resources = json!({"requests": requests});
        if self.templates {
            resources["claims"] = json!([{"name": DEVICE_CLASS}]);
        } else if self.devices > 0 {
            resources["limits"] = json!({DEVICE: "1"});
        }
        let mut spec = json!({
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "pause", "resources": resources}],
        });
        if self.templates {
            spec["resourceClaims"] =
                json!([{"name": DEVICE_CLASS, "resourceClaimTemplateName": CLAIM_TEMPLATE}]);
        }
        if self.preempts {
            spec["priorityClassName"] = json!(PRIORITY_CLASS);
        }
        if self.zones != Zones::Any {
            let zones: Vec<_> = self.zones_of(pod).into_iter().map(zone_name).collect();
            let term = json!({"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": zones}]});
            spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
        }
        if self.taints && self.tolerates(pod) {
            spec["tolerations"] = json!([{"key": TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}]);
        }
        self.add_mates(&mut spec);
        let mut labels = json!({"app": "mates"});
        if let Some(gang) = pod.index.checked_div(self.gang) {
            if self.pod_groups {
                spec["schedulingGroup"] = json!({"podGroupName": gang_name(gang)});
            } else {
                labels["gang"] = json!(gang_name(gang));
            }
        }
        json!({"metadata": {"name": pod_name(pod.index), "labels": labels}, "spec": spec})
    }

    /// Returns the pods that fill the nodes, one per node.
    pub fn victims(&self, nodes: usize) -> impl ExactSizeIterator<Item = Value> {
        (0..if self.preempts { nodes } else { 0 }).map(|index| {
            let requests = json!({"cpu": format!("{PREEMPTOR_MILLI_CPU}m")});
            json!({
                "metadata": {"name": format!("{VICTIM}-{index:06}")},
                "spec": {
                    "nodeName": node_name(index),
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "pause", "resources": {"requests": requests}}],
                },
            })
        })
    }

    /// Returns the gangs of `pods` pods: allocations or PodGroups.
    pub fn gangs(&self, pods: usize) -> impl ExactSizeIterator<Item = Value> {
        let (size, is_pod_group) = (self.gang, self.pod_groups);
        (0..pods.checked_div(size).unwrap_or(0)).map(move |index| {
            let name = gang_name(index);
            let (api_version, kind, spec) = if is_pod_group {
                (
                    "scheduling.k8s.io/v1alpha2",
                    "PodGroup",
                    json!({"schedulingPolicy": {"gang": {"minCount": size}}}),
                )
            } else {
                let spec = json!({"minimum": size, "selector": {"matchLabels": {"gang": name}}});
                ("berth.dev/v1alpha1", "Allocation", spec)
            };
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
        })
    }

    /// Returns the devices of each node.
    pub fn slices(&self, nodes: usize) -> impl ExactSizeIterator<Item = Value> {
        let devices: Vec<_> = (0..self.devices).map(|at| json!({"name": format!("gpu-{at}")})).collect();
        (0..if self.devices > 0 { nodes } else { 0 }).map(move |index| {
            let node = node_name(index);
            let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
            json!({
                "metadata": {"name": format!("gpus-of-{node}")},
                "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
            })
        })
    }

    fn add_mates(&self, spec: &mut Value) {
        let selector = json!({"matchLabels": {"app": "mates"}});
        let term = |key: &str| json!({"labelSelector": selector, "topologyKey": key});
        match self.mates {
            Mates::Nothing => {}
            Mates::SpreadOverZones => {
                spec["topologySpreadConstraints"] = json!([{
                    "maxSkew": 1, "topologyKey": ZONE_LABEL, "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": selector,
                }]);
            }
            Mates::NodePreferred => {
                let weighted = json!([{"weight": 1, "podAffinityTerm": term(HOSTNAME_LABEL)}]);
                spec["affinity"] =
                    json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}});
            }
            Mates::SameZone => {
                let terms = json!([term(ZONE_LABEL)]);
                spec["affinity"] =
                    json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
            }
            Mates::OtherNodes => {
                let terms = json!([term(HOSTNAME_LABEL)]);
                spec["affinity"] =
                    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
            }
        }
    }

    /// Whether pods on these nodes (`pods` is their number by node) satisfy the constraints between them.
    pub fn are_mates_content(&self, pods: &[usize]) -> bool {
        let mut zones = [0; ZONES];
        pods.iter().enumerate().for_each(|(node, pods)| zones[node % ZONES] += pods);
        match self.mates {
            Mates::Nothing | Mates::NodePreferred => true,
            Mates::SpreadOverZones => {
                zones.iter().max() <= zones.iter().min().map(|least| least + 1).as_ref()
            }
            Mates::SameZone => zones.iter().filter(|pods| **pods > 0).count() <= 1,
            Mates::OtherNodes => pods.iter().all(|pods| *pods <= 1),
        }
    }

    pub fn node_json(&self, index: usize) -> Value {
        let name = node_name(index);
        let resources = json!({
            "cpu": format!("{NODE_MILLI_CPU}m"),
            "memory": format!("{NODE_MEMORY_MIB}Mi"),
            "pods": NODE_PODS.to_string(),
        });
        let taints = if self.is_tainted(index) {
            json!([{"key": TAINT_KEY, "value": "batch", "effect": "NoSchedule"}])
        } else {
            json!([])
        };
        json!({
            "metadata": {
                "name": name,
                "labels": {HOSTNAME_LABEL: name, ZONE_LABEL: zone_name(index % ZONES)},
            },
            "spec": {"taints": taints},
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }
}

fn zone_name(zone: usize) -> String {
    format!("zone-{zone}")
}

/// Returns a name. Lists are ordered by name: the zeros keep interleaved classes interleaved.
pub fn pod_name(index: usize) -> String {
    format!("pod-{index:06}")
}

fn gang_name(index: usize) -> String {
    format!("gang-{index:06}")
}

pub fn node_name(index: usize) -> String {
    format!("node-{index:06}")
}

/// Whether the pod of this name is not to be scheduled: one of [`Workload::victims`], or of another scheduler.
pub fn is_bystander(name: &str) -> bool {
    name.starts_with(VICTIM) || name.starts_with(lived_in::FOREIGN)
}

/// Returns the priority class of the pods that preempt.
pub fn priority_class() -> Value {
    json!({"metadata": {"name": PRIORITY_CLASS}, "value": PRIORITY})
}

/// Returns the class of the devices of [`Workload::slices`].
pub fn device_class() -> Value {
    let expression = format!("device.driver == '{DRIVER}'");
    json!({
        "metadata": {"name": DEVICE_CLASS},
        "spec": {"extendedResourceName": DEVICE, "selectors": [{"cel": {"expression": expression}}]},
    })
}

/// Returns the template of the claims of the pods.
pub fn claim_template() -> Value {
    let request = json!({"name": "one", "exactly": {"deviceClassName": DEVICE_CLASS}});
    json!({
        "metadata": {"name": CLAIM_TEMPLATE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    })
}

/// Returns the index in the name of a pod or node of the workload.
pub fn index_in(name: &str) -> Option<usize> {
    name.rsplit('-').next()?.parse().ok()
}
