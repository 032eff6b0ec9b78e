//! Verification of the cluster against the workload, from a fresh list.

use std::collections::{BTreeMap, BTreeSet};

use super::workload::{CLASS_LABEL, CLASSES, DEMO_TOLERATIONS, DemoClass, DemoWorkload, Fate, GPU};
use berth_model::{Effect, Node, Pod};

/// Maximum number of reported problems.
const PROBLEMS_MAX: usize = 10;

#[derive(Default)]
struct Used {
    cpu_milli: i64,
    memory: i64,
    pods: i64,
    gpus: i64,
    ports: BTreeSet<u16>,
}

/// Returns the failed checks: every pod exists; pods that can be placed are bound to nodes that their class
/// may use; no node is overcommitted and no host port used twice; waiting pods have a condition with the
/// reason. Empty if all pass.
///
/// `pods` and `nodes` are those of the demo.
pub fn problems(workload: &DemoWorkload, pods: &[Pod], nodes: &[Node]) -> Vec<String> {
    let mut problems = Vec::new();
    if pods.len() != workload.pods {
        problems.push(format!("there are {} pods, not {}", pods.len(), workload.pods));
    }
    let nodes: BTreeMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
    let mut used: BTreeMap<&str, Used> = BTreeMap::new();
    for pod in pods {
        let class = class_of(pod);
        let Some(class) = class else {
            problems.push(format!("pod {} does not belong to the demo", pod.name));
            continue;
        };
        match &pod.node_name {
            None => problems.extend(problem_of_waiting(pod, class)),
            Some(name) => match nodes.get(&**name) {
                None => problems.push(format!("pod {} is bound to {name}, which does not exist", pod.name)),
                Some(node) => {
                    problems.extend(problem_of_bound(pod, class, node, workload));
                    let is_new = used.entry(name).or_default().add(class);
                    if !is_new {
                        problems
                            .push(format!("pod {} has a host port on {name} that is used twice", pod.name));
                    }
                }
            },
        }
    }
    for (name, used) in used {
        let node = nodes[name];
        let has = &node.allocatable;
        let fits = used.cpu_milli <= has.cpu_milli
            && used.memory <= has.memory
            && used.pods <= has.pods
            && used.gpus <= node.extended.get(GPU);
        if !fits {
            problems.push(format!(
                "node {name} is overcommitted: {} pods request {}m CPU",
                used.pods, used.cpu_milli
            ));
        }
    }
    problems.truncate(PROBLEMS_MAX);
    problems
}

pub fn class_of(pod: &Pod) -> Option<&'static DemoClass> {
    let name = pod.peer.identity.labels.get(CLASS_LABEL)?;
    CLASSES.iter().find(|class| class.name == name)
}

fn problem_of_waiting(pod: &Pod, class: &DemoClass) -> Option<String> {
    if class.fate != Fate::Waits {
        return Some(format!("pod {} is not bound", pod.name));
    }
    let is_told = pod.scheduled.as_ref().is_some_and(|condition| {
        !condition.status && &*condition.reason == "Unschedulable" && !condition.message.is_empty()
    });
    (!is_told).then(|| format!("pod {} waits without a condition that says why", pod.name))
}

fn problem_of_bound(pod: &Pod, class: &DemoClass, node: &Node, workload: &DemoWorkload) -> Option<String> {
    let is_tolerated = |key: &str| {
        class.tolerates == Some(key) || (workload.name.is_some() && DEMO_TOLERATIONS.contains(&key))
    };
    let has_label =
        class.requires.is_none_or(|(key, value)| node.labels.get(&workload.label_key(key)) == Some(value));
    let mut hard = node.taints.iter().filter(|taint| taint.effect != Effect::PreferNoSchedule);
    let may_be_there = class.fate != Fate::Waits && has_label && hard.all(|taint| is_tolerated(&taint.key));
    (!may_be_there).then(|| format!("pod {} must not be on {}", pod.name, node.name))
}

impl Used {
    /// Adds a pod; returns whether its port was free.
    fn add(&mut self, class: &DemoClass) -> bool {
        self.cpu_milli += class.cpu_milli;
        self.memory += class.memory_mib << 20;
        self.pods += 1;
        self.gpus += class.gpus;
        class.host_port.is_none_or(|port| self.ports.insert(port))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use berth_kube_io::{Interner, LeanNode, LeanPod};

    static WORKLOAD: DemoWorkload = DemoWorkload { nodes: 20, pods: 100, name: None };
    const NODES: usize = 21;

    fn nodes() -> Vec<Node> {
        let mut interner = Interner::default();
        let nodes = WORKLOAD.first_nodes().chain(WORKLOAD.late_nodes()).map(|(_, node)| {
            let node: LeanNode = serde_json::from_value(node).unwrap();
            node.into_node(&mut interner)
        });
        nodes.collect()
    }

    /// Returns all pods, bound correctly: the pods of each class in turn over its nodes.
    fn pods() -> Vec<Pod> {
        let (mut interner, nodes) = (Interner::default(), nodes());
        assert_eq!(nodes.len(), NODES);
        let objects = WORKLOAD.pods().zip(WORKLOAD.classes()).enumerate();
        let place = objects.map(|(index, ((_, mut object), class))| {
            let mut allowed: Vec<&Node> = Vec::new();
            let mut pod = parse(object.clone(), &mut interner);
            allowed.extend(nodes.iter().filter(|node| problem_of_bound(&pod, class, node, &WORKLOAD).is_none()));
            allowed.retain(|node| node.extended.get(GPU) >= class.gpus);
            if allowed.is_empty() {
                let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/21"});
                object["status"]["conditions"] = json!([condition]);
                pod = parse(object, &mut interner);
            } else {
                pod.node_name = Some(allowed[index % allowed.len()].name.clone());
            }
            pod
        });
        place.collect()
    }

    fn parse(object: Value, interner: &mut Interner) -> Pod {
        let pod: LeanPod = serde_json::from_value(object).unwrap();
        pod.into_pod(interner)
    }

    fn only_problem(change: impl FnOnce(&mut Vec<Pod>)) -> String {
        let mut pods = pods();
        change(&mut pods);
        let problems = problems(&WORKLOAD, &pods, &nodes());
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].clone()
    }

    fn first<'a>(pods: &'a mut [Pod], class: &str) -> &'a mut Pod {
        pods.iter_mut().find(|pod| pod.peer.identity.labels.get(CLASS_LABEL) == Some(class)).unwrap()
    }

    #[test]
    fn a_cluster_as_promised_has_no_problem() {
        assert_eq!(problems(&WORKLOAD, &pods(), &nodes()), [""; 0]);
    }

    #[test]
    fn every_invariant_violation_is_reported() {
        assert!(only_problem(|pods| drop(pods.pop())).contains("there are 99 pods, not 100"));
        assert!(only_problem(|pods| first(pods, "web").node_name = None).contains("is not bound"));
        assert!(
            only_problem(|pods| first(pods, "giant").scheduled = None).contains("waits without a condition")
        );
        assert!(
            only_problem(|pods| first(pods, "web").node_name = Some("x".into())).contains("does not exist")
        );
        assert!(
            only_problem(|pods| first(pods, "zonal").node_name = Some("node-5".into()))
                .contains("must not be on")
        );
        assert!(
            only_problem(|pods| first(pods, "web").node_name = Some("node-1".into()))
                .contains("must not be on")
        );
    }

    #[test]
    fn overcommitted_nodes_and_duplicate_ports_are_reported() {
        let mut pods = pods();
        for pod in pods.iter_mut().filter(
            |pod| matches!(class_of(pod), Some(class) if class.name == "batch" || class.name == "hostport"),
        ) {
            pod.node_name = Some("node-4".into());
        }
        let problems = problems(&WORKLOAD, &pods, &nodes());
        assert!(problems.iter().any(|problem| problem.contains("node-4 is overcommitted")), "{problems:?}");
        assert!(
            problems.iter().any(|problem| problem.contains("has a host port on node-4 that is used twice"))
        );
    }
}
