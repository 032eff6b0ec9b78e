use super::*;
use crate::LeanNode;
use berth_model::{Image, Node, Taint};

fn node(json: Value) -> Node {
    let lean: LeanNode = serde_json::from_str(&json.to_string()).unwrap();
    lean.into_node(&mut Interner::default())
}

fn allocatable(resources: Value) -> Node {
    node(json!({"metadata": {"name": "n"}, "status": {"allocatable": resources}}))
}

#[test]
fn a_node_keeps_what_scheduling_needs() {
    let node = node(json!({
        "metadata": {"name": "n1", "labels": {"zone": "a"}},
        "spec": {"unschedulable": true, "taints": [
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "old", "effect": "NoExecute"}]},
        "status": {
            "capacity": {"cpu": "99"},
            "allocatable": {"cpu": "3920m", "memory": "1.5Gi", "ephemeral-storage": "100", "pods": 110,
                "nvidia.com/gpu": "4", "hugepages-2Mi": "0", "unheard-of": "3"},
            "images": [{"names": ["b@sha256:1", "a:1"], "sizeBytes": 7}, {"names": null}, {"names": ["a:1"], "sizeBytes": 9}]
        }
    }));
    assert_eq!(&*node.name, "n1");
    assert_eq!(node.labels.get("zone"), Some("a"));
    assert!(node.unschedulable);
    let taint = |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    assert_eq!(*node.taints, [taint("gpu", "yes", Effect::NoSchedule), taint("old", "", Effect::NoExecute)]);
    let amounts = node.allocatable;
    assert_eq!((amounts.cpu_milli, amounts.memory), (3920, 3 << 29));
    assert_eq!((amounts.ephemeral_storage, amounts.pods), (100, 110));
    assert_eq!((node.extended.get("nvidia.com/gpu"), node.extended.len()), (4, 1));
    let image = |name: &str, size_bytes| Image { name: name.into(), size_bytes };
    assert_eq!(*node.images, [image("a:1", 7), image("b@sha256:1", 7)]);
    assert!(node.problems.is_empty());
}

#[test]
fn an_empty_node_holds_nothing() {
    let node = node(json!({"metadata": {"name": "n"}}));
    assert_eq!(node, Node { name: "n".into(), ..Node::default() });
}

#[test]
fn what_cannot_be_understood_of_a_node_counts_as_nothing_and_is_told() {
    let node =
        allocatable(json!({"cpu": "4 cores", "memory": "-1", "pods": "8Ei", "ephemeral-storage": "5"}));
    let amounts = node.allocatable;
    assert_eq!((amounts.cpu_milli, amounts.memory, amounts.pods), (0, 0, 0));
    assert_eq!(amounts.ephemeral_storage, 5);
    for name in ["cpu", "memory", "pods"] {
        let path = format!("status.allocatable[{name}]: ");
        assert!(node.problems.iter().any(|problem| problem.starts_with(&path)), "{name}");
    }
    assert_eq!(node.problems.len(), 3);
}

#[test]
fn a_taint_of_unknown_effect_is_told_and_ignored_as_upstream_ignores_it() {
    let node = node(json!({"metadata": {}, "spec": {"taints": [{"key": "a", "effect": "Maybe"}]}}));
    assert!(node.taints.is_empty());
    assert!(node.problems[0].contains("\"Maybe\""), "{:?}", node.problems);
}

#[test]
fn a_heartbeat_changes_nothing() {
    let beat = |version: &str, time: &str| {
        node(json!({
            "metadata": {"name": "n", "resourceVersion": version, "annotations": {"seen": time}},
            "status": {
                "allocatable": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]
            }
        }))
    };
    assert_eq!(beat("1", "2026-01-01T00:00:00Z"), beat("2", "2026-01-01T00:00:10Z"));
    assert_ne!(beat("1", ""), allocatable(json!({"cpu": "5"})));
}

/// Otherwise a pod whose request is cut to the cap could fit.
#[test]
fn a_pod_that_asks_for_more_than_can_be_counted_fits_no_node() {
    for amount in ["8Ei", "10E", "1e100", "9007199254740992"] {
        let asked = pod(json!({"containers": [{"resources": {"requests": {"memory": amount}}}]}));
        let had = allocatable(json!({"memory": amount}));
        assert!(asked.usage.requests.memory > had.allocatable.memory, "{amount}");
    }
}
