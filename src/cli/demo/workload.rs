//! Workload of the demo: kinds of nodes and classes of pods, with their shares.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

/// Minimum number of nodes: contains every kind in its share.
const NODES_MIN: usize = 20;
/// Minimum number of pods: every hundred pods contain every class in its share.
const PODS_MIN: usize = 100;
/// Up to this number, all pods that can be placed fit, in any order: `every_class_has_room` below.
const PODS_PER_NODE_MAX: usize = 10;
/// Label of every pod with the name of its class.
pub const CLASS_LABEL: &str = "class";
/// Label of all objects that a demo creates on an existing cluster, and taint of its nodes; the value is the demo's name.
pub const DEMO_LABEL: &str = "berth.dev/demo";
/// Taints that the pods tolerate on an existing cluster: that of the demo's nodes, which are cordoned, and those that a node may
/// get from the node lifecycle controller.
pub const DEMO_TOLERATIONS: [&str; 4] = [
    DEMO_LABEL,
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

const POOL: &str = "pool";
const ZONE: &str = "topology.kubernetes.io/zone";
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const GPU: &str = "nvidia.com/gpu";
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const PODS_PER_LATE_NODE: usize = 100;

/// Expected result for the pods of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Placed,
    /// Waits until the demo adds its nodes.
    PlacedLate,
    /// Requests that no node satisfies.
    Waits,
}

/// Pods that differ only in their names.
#[derive(Debug, Clone, Copy)]
pub struct DemoClass {
    pub name: &'static str,
    pub about: &'static str,
    /// Share of all pods, in percent.
    pub percent: usize,
    pub fate: Fate,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub gpus: i64,
    pub host_port: Option<u16>,
    /// Required label of its nodes.
    pub requires: Option<(&'static str, &'static str)>,
    /// Whether the label is required by node affinity, not by `nodeSelector`.
    pub by_affinity: bool,
    /// Key of a tolerated taint.
    pub tolerates: Option<&'static str>,
}

const PLAIN: DemoClass = DemoClass {
    name: "web",
    about: "runs on any node",
    percent: 40,
    fate: Fate::Placed,
    cpu_milli: 100,
    memory_mib: 256,
    gpus: 0,
    host_port: None,
    requires: None,
    by_affinity: false,
    tolerates: None,
};

pub const CLASSES: [DemoClass; 10] = [
    PLAIN,
    DemoClass {
        name: "batch",
        about: "larger requests",
        percent: 24,
        cpu_milli: 500,
        memory_mib: 1024,
        ..PLAIN
    },
    DemoClass {
        name: "zonal",
        about: "bound to zone-b",
        percent: 10,
        cpu_milli: 250,
        requires: Some((ZONE, ZONES[1])),
        ..PLAIN
    },
    DemoClass {
        name: "ingest",
        about: "tolerates its pool's taint",
        percent: 8,
        cpu_milli: 200,
        requires: Some((POOL, "ingest")),
        tolerates: Some("dedicated"),
        ..PLAIN
    },
    DemoClass {
        name: "compute",
        about: "node affinity to an instance type",
        percent: 6,
        cpu_milli: 250,
        requires: Some((INSTANCE_TYPE, "c8")),
        by_affinity: true,
        ..PLAIN
    },
    DemoClass {
        name: "gpu",
        about: "one GPU each, tolerates the taint",
        percent: 3,
        gpus: 1,
        tolerates: Some(GPU),
        ..PLAIN
    },
    DemoClass {
        name: "hostport",
        about: "port 9100, so one per node",
        percent: 3,
        host_port: Some(9100),
        ..PLAIN
    },
    DemoClass {
        name: "late",
        about: "its pool comes last",
        percent: 2,
        fate: Fate::PlacedLate,
        requires: Some((POOL, "late")),
        ..PLAIN
    },
    DemoClass {
        name: "giant",
        about: "64 CPUs, more than any node",
        percent: 2,
        fate: Fate::Waits,
        cpu_milli: 64_000,
        ..PLAIN
    },
    DemoClass {
        name: "nowhere",
        about: "a zone that does not exist",
        percent: 2,
        fate: Fate::Waits,
        requires: Some((ZONE, "zone-z")),
        ..PLAIN
    },
];

/// Size of the demo, and how its objects are named.
#[derive(Debug, Clone)]
pub struct DemoWorkload {
    pub nodes: usize,
    pub pods: usize,
    /// On an existing cluster: the demo's name, which is also its namespace, its `schedulerName`, and the prefix of its nodes.
    /// `None`: the control plane has no other users.
    pub name: Option<Arc<str>>,
}

impl DemoWorkload {
    /// Namespace of the pods.
    pub fn namespace(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }

    pub fn scheduler_name(&self) -> &str {
        self.name.as_deref().unwrap_or("berth")
    }

    /// Returns the label that stands for `key` on the demo's nodes.
    ///
    /// On an existing cluster no node has a well-known label: kube-scheduler would count a node with a zone or a hostname as a
    /// domain of the topology spread constraints of other pods, tainted or not.
    pub fn label_key(&self, key: &'static str) -> Cow<'static, str> {
        let Some(_) = self.name else { return Cow::Borrowed(key) };
        let (_, short) = key.rsplit_once('/').unwrap_or(("", key));
        Cow::Owned(format!("{DEMO_LABEL}-{short}"))
    }

    /// Checks that the demo can place its pods with these numbers.
    pub fn check(&self) -> Result<(), String> {
        let &DemoWorkload { nodes, pods, .. } = self;
        if nodes < NODES_MIN {
            return Err(format!(
                "--nodes {nodes} is too few: give at least {NODES_MIN}, so that there are nodes of every kind"
            ));
        }
        if pods < PODS_MIN {
            return Err(format!(
                "--pods {pods} is too few: give at least {PODS_MIN}, so that there are pods of every class"
            ));
        }
        if pods > nodes * PODS_PER_NODE_MAX {
            return Err(format!(
                "--pods {pods} is too many for {nodes} nodes: all fit up to {PODS_PER_NODE_MAX} pods per node"
            ));
        }
        Ok(())
    }

    /// Returns the class of every pod, in the order of creation: well mixed, as in a cluster.
    pub fn classes(&self) -> impl Iterator<Item = &'static DemoClass> + use<> {
        // 37 and 100 are coprime: a hundred pods in a row contain every percent once.
        (0..self.pods).map(|index| class_of_percent(index * 37 % 100))
    }

    pub fn count(&self, is_counted: impl Fn(&DemoClass) -> bool) -> usize {
        self.classes().filter(|class| is_counted(class)).count()
    }

    /// Returns names and objects of all pods, in the order of creation.
    pub fn pods(&self) -> impl Iterator<Item = (String, Value)> {
        self.classes().enumerate().map(|(index, class)| {
            let name = format!("{}-{index}", class.name);
            let object = class.pod(&name, self);
            (name, object)
        })
    }

    pub fn first_nodes(&self) -> impl Iterator<Item = (String, Value)> {
        (0..self.nodes).map(|index| kind_of_node(index).node(&format!("node-{index}"), index, self))
    }

    /// Returns the nodes that the class `late` waits for.
    pub fn late_nodes(&self) -> impl Iterator<Item = (String, Value)> {
        let late = self.count(|class| class.fate == Fate::PlacedLate);
        (0..late.div_ceil(PODS_PER_LATE_NODE))
            .map(|index| LATE.node(&format!("late-node-{index}"), index, self))
    }
}

fn class_of_percent(percent: usize) -> &'static DemoClass {
    let mut end = 0;
    let found = CLASSES.iter().find(|class| {
        end += class.percent;
        percent < end
    });
    found.expect("the shares add up to 100")
}

impl DemoClass {
    fn pod(&self, name: &str, workload: &DemoWorkload) -> Value {
        let mut requests = json!({
            "cpu": format!("{}m", self.cpu_milli),
            "memory": format!("{}Mi", self.memory_mib),
        });
        let mut container = json!({"name": "main", "image": "registry.k8s.io/pause:3.10"});
        if self.gpus > 0 {
            requests[GPU] = json!(self.gpus.to_string());
            container["resources"]["limits"] = json!({GPU: self.gpus.to_string()});
        }
        container["resources"]["requests"] = requests;
        if let Some(port) = self.host_port {
            container["ports"] = json!([{"containerPort": port, "hostPort": port}]);
        }
        let mut spec = json!({"schedulerName": workload.scheduler_name(), "containers": [container]});
        if let Some((key, value)) = self.requires {
            let key = workload.label_key(key);
            if self.by_affinity {
                let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
                spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    json!({"nodeSelectorTerms": [term]});
            } else {
                spec["nodeSelector"] = json!({&*key: value});
            }
        }
        let mut tolerations: Vec<Value> = Vec::new();
        tolerations.extend(
            self.tolerates.map(|key| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})),
        );
        if let Some(demo) = workload.name.as_deref() {
            spec["nodeSelector"][DEMO_LABEL] = json!(demo);
            tolerations.extend(DEMO_TOLERATIONS.map(|key| json!({"key": key, "operator": "Exists"})));
            // No kubelet confirms that it has ended: any deletion takes effect at once.
            spec["terminationGracePeriodSeconds"] = json!(0);
            spec["automountServiceAccountToken"] = json!(false);
        }
        spec["tolerations"] = json!(tolerations);
        json!({"metadata": {"name": name, "labels": {CLASS_LABEL: self.name}}, "spec": spec})
    }
}

/// Nodes that differ only in their names and zones.
struct NodeKind {
    pool: &'static str,
    instance_type: &'static str,
    cpus: i64,
    gpus: i64,
    taint: Option<&'static str>,
}

const GENERAL: NodeKind = NodeKind { pool: "general", instance_type: "m4", cpus: 4, gpus: 0, taint: None };
const COMPUTE: NodeKind = NodeKind { pool: "compute", instance_type: "c8", cpus: 8, ..GENERAL };
const INGEST: NodeKind = NodeKind { pool: "ingest", taint: Some("dedicated"), ..GENERAL };
const WITH_GPUS: NodeKind =
    NodeKind { pool: "gpu", instance_type: "g4", gpus: 8, taint: Some(GPU), ..GENERAL };
const LATE: NodeKind = NodeKind { pool: "late", instance_type: "m16", cpus: 16, ..GENERAL };

/// The rarest kinds come first, so that a number that is not a multiple never has too few of them.
fn kind_of_node(index: usize) -> &'static NodeKind {
    match index % NODES_MIN {
        0 => &COMPUTE,
        1 => &WITH_GPUS,
        2 | 3 => &INGEST,
        _ => &GENERAL,
    }
}

impl NodeKind {
    fn node(&self, name: &str, index: usize, workload: &DemoWorkload) -> (String, Value) {
        let mut resources = json!({"cpu": self.cpus.to_string(), "memory": "32Gi", "pods": "110"});
        if self.gpus > 0 {
            resources[GPU] = json!(self.gpus.to_string());
        }
        let taint = |key| json!({"key": key, "value": "demo", "effect": "NoSchedule"});
        let mut taints: Vec<Value> = self.taint.map(taint).into_iter().collect();
        let mut labels = json!({
            &*workload.label_key(POOL): self.pool,
            &*workload.label_key(ZONE): ZONES[index % ZONES.len()],
            &*workload.label_key(INSTANCE_TYPE): self.instance_type,
        });
        let (mut name, mut annotations) = (name.to_owned(), json!({}));
        if let Some(demo) = workload.name.as_deref() {
            name = format!("{demo}-{name}");
            labels[DEMO_LABEL] = json!(demo);
            labels["node.kubernetes.io/exclude-from-external-load-balancers"] = json!("");
            annotations["kwok.x-k8s.io/node"] = json!("fake");
            taints.push(json!({"key": DEMO_LABEL, "value": demo, "effect": "NoSchedule"}));
        } else {
            labels["kubernetes.io/hostname"] = json!(name);
        }
        let node = json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            // Cordoned beside other users: what counts schedulable nodes does not count these.
            "spec": {"taints": taints, "unschedulable": workload.name.is_some()},
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        (name, node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_pods_hold_every_class_in_its_share() {
        let workload = DemoWorkload { nodes: NODES_MIN, pods: 300, name: None };
        for class in &CLASSES {
            assert_eq!(workload.count(|other| other.name == class.name), class.percent * 3, "{}", class.name);
        }
    }

    /// With the maximum of pods per node, the requests of each class fit, for any number of nodes.
    #[test]
    fn every_class_has_room() {
        for nodes in NODES_MIN..200 {
            let workload = DemoWorkload { nodes, pods: nodes * PODS_PER_NODE_MAX, name: None };
            let asked = |name: &str| -> i64 {
                let pods = workload.classes().filter(|class| class.name == name);
                pods.map(|class| class.cpu_milli).sum()
            };
            let kinds = || (0..nodes).map(kind_of_node);
            let has = |pool: &str| -> i64 {
                let of_pool = kinds().filter(|kind| kind.pool == pool);
                of_pool.map(|kind| kind.cpus * 1000).sum()
            };
            assert!(asked("ingest") <= has("ingest"));
            let gpus: i64 = kinds().map(|kind| kind.gpus).sum();
            assert!(workload.count(|class| class.gpus > 0) as i64 <= gpus);
            // These classes share the untainted nodes. A fifth is left for fragments, and no class that can
            // use only some of these nodes requests more than half of them.
            let open = has("general") + has("compute");
            let shared = ["web", "batch", "zonal", "compute", "hostport"].map(asked);
            assert!(shared.iter().sum::<i64>() * 5 <= open * 4);
            assert!(asked("zonal") * 2 <= open / 3);
            assert!(asked("compute") * 2 <= has("compute"));
            let untainted = kinds().filter(|kind| kind.taint.is_none()).count();
            assert!(workload.count(|class| class.host_port.is_some()) * 2 <= untainted);
        }
    }

    #[test]
    fn numbers_that_break_the_promise_are_refused_with_the_limit() {
        let check = |nodes, pods| DemoWorkload { nodes, pods, name: None }.check();
        let refusal = |nodes, pods| check(nodes, pods).unwrap_err();
        assert!(refusal(10, 300).contains("at least 20"));
        assert!(refusal(100, 50).contains("at least 100"));
        assert!(refusal(100, 1001).contains("up to 10 pods per node"));
        assert!(check(100, 1000).is_ok());
    }

    /// Pods of the demo can only be on its nodes, and no others tolerate their taint or find a label they know there.
    #[test]
    fn on_an_existing_cluster_all_objects_keep_apart_from_those_of_others() {
        let workload = DemoWorkload { nodes: NODES_MIN, pods: PODS_MIN, name: Some("berth-demo-x".into()) };
        for (name, pod) in workload.pods() {
            let spec = &pod["spec"];
            assert_eq!(spec["nodeSelector"][DEMO_LABEL], "berth-demo-x", "{name}");
            assert_eq!(spec["schedulerName"], "berth-demo-x");
            let tolerated: Vec<&str> =
                spec["tolerations"].as_array().unwrap().iter().filter_map(|it| it["key"].as_str()).collect();
            assert!(DEMO_TOLERATIONS.iter().all(|key| tolerated.contains(key)), "{tolerated:?}");
        }
        for (name, node) in workload.first_nodes().chain(workload.late_nodes()) {
            assert!(name.starts_with("berth-demo-x-"), "{name}");
            let own = json!({"key": DEMO_LABEL, "value": "berth-demo-x", "effect": "NoSchedule"});
            assert!(node["spec"]["taints"].as_array().unwrap().contains(&own));
            for label in node["metadata"]["labels"].as_object().unwrap().keys() {
                let is_own = label.starts_with(DEMO_LABEL);
                assert!(
                    is_own || label == "node.kubernetes.io/exclude-from-external-load-balancers",
                    "{label}"
                );
            }
        }
    }
}
