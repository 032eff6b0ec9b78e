//! `berth explain --what-if` on dumps.

use super::*;

/// A pod of a ReplicaSet on this node.
fn replica(name: &str, node: &str, cpu: &str) -> Value {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": true});
    let more = json!({"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": node}});
    merged(pod(name, requests(json!({"cpu": cpu}))), more)
}

/// Nodes a to c of 4 cores, each with 3 of them requested; of a's pods one can move.
fn fragmented() -> Cluster {
    let taken = |cpu: &str| requests(json!({"cpu": cpu}));
    Cluster::default()
        .node("a", json!({}))
        .node("b", json!({}))
        .node("c", json!({}))
        .bound("alone-a", "a", taken("2"))
        .with(replica("web-1", "a", "1"))
        .bound("alone-b", "b", taken("3"))
        .bound("alone-c", "c", taken("3500m"))
}

pub(super) fn gang(name: &str, minimum: u32) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"minimum": minimum, "selector": {"matchLabels": {"gang": name}}},
    })
}

pub(super) fn member(name: &str, gang: &str, cpu: &str) -> Value {
    merged(pod(name, requests(json!({"cpu": cpu}))), json!({"metadata": {"labels": {"gang": gang}}}))
}

fn what_if(cluster: &Cluster, options: &[&str]) -> Value {
    let ran = explain(&[&["--what-if", "-o", "json"], options].concat(), cluster.dump().as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn the_pod_that_is_in_the_way_is_named_with_where_it_could_go() {
    let cluster = fragmented().pod("big", requests(json!({"cpu": "2"})));
    let said = what_if(&cluster, &["default/big"]);
    assert_eq!(said["nodes"], json!(["a"]));
    let entry = &said["waiting"][0];
    assert_eq!(entry["moves"], json!([{"pod": "default/web-1", "from": "a", "to": "b"}]));
    assert_eq!((&entry["kind"], &entry["makesRoomFor"]), (&json!("Pod"), &json!(1)));
    assert_eq!(entry["help"], json!("moving 1 pod off a (default/web-1 to b) would make room"));
    let ran = explain(&["--what-if"], cluster.dump().as_bytes());
    let expected = "Pod default/big\n  these moves, one after the other, would make room for it:\n    node  pod            \
                    could go to\n    a     default/web-1  b\n";
    assert_eq!((ran.code, &*ran.out), (0, expected), "{}", ran.err);
}

#[test]
fn an_allocation_is_helped_as_a_whole_by_its_name_and_by_that_of_a_member() {
    let cluster = fragmented()
        .node("d", json!({"status": {"allocatable": {"cpu": "2"}}}))
        .with(gang("ring", 2))
        .with(member("ring-0", "ring", "2"))
        .with(member("ring-1", "ring", "2"));
    for subject in [&["allocation/ring", "-n", "default"][..], &["allocation/ring"], &["default/ring-1"], &[]]
    {
        let entry = &what_if(&cluster, subject)["waiting"][0];
        assert_eq!(
            (&entry["kind"], &entry["name"], &entry["pods"]),
            (&json!("Allocation"), &json!("ring"), &json!(2))
        );
        assert_eq!(entry["moves"], json!([{"pod": "default/web-1", "from": "a", "to": "b"}]));
        assert_eq!(entry["makesRoomFor"], json!(2));
    }
}

#[test]
fn protections_of_pods_are_named_when_no_move_helps() {
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web-1"}}},
        "status": {"disruptionsAllowed": 0},
    });
    let waits = || fragmented().pod("big", requests(json!({"cpu": "2"})));
    let why = |cluster: &Cluster| {
        let said = what_if(cluster, &["default/big"]);
        assert_eq!(said["waiting"][0]["moves"], json!([]));
        said["waiting"][0]["why"].as_str().expect("why").to_owned()
    };
    let said = why(&waits().with(budget));
    assert!(said.contains("3 nodes have too few pods that can be moved"), "{said}");
    assert!(said.contains("1 are protected by the disruption budget default/web"), "{said}");
    let annotated = |annotations: Value, volumes: Value| {
        let more = json!({"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}});
        why(&waits().with(merged(replica("web-1", "a", "1"), more)))
    };
    let safe_to_evict = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let said = annotated(json!({safe_to_evict: "false"}), json!([]));
    assert!(said.contains("1 are annotated as not safe to evict"), "{said}");
    let said = annotated(json!({}), json!([{"name": "cache", "emptyDir": {}}]));
    assert!(said.contains("1 have local storage"), "{said}");
    // Memory-backed volumes are lost with any restart, and an explicit safe-to-evict annotation is trusted.
    for (annotations, volumes) in [
        (json!({}), json!([{"name": "cache", "emptyDir": {"medium": "Memory"}}])),
        (json!({safe_to_evict: "true"}), json!([{"name": "cache", "hostPath": {"path": "/x"}}])),
    ] {
        let more = json!({"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}});
        let said = what_if(&waits().with(merged(replica("web-1", "a", "1"), more)), &["default/big"]);
        assert_eq!(said["waiting"][0]["makesRoomFor"], json!(1), "{said}");
    }
}

#[test]
fn a_fitting_pod_needs_no_moves_and_without_waiting_pods_nothing_is_advised() {
    let cluster = fragmented().pod("small", requests(json!({"cpu": "1"})));
    let entry = &what_if(&cluster, &[])["waiting"][0];
    assert_eq!((&entry["fits"], &entry["moves"]), (&json!(true), &json!([])));
    let ran = explain(&["--what-if"], fragmented().dump().as_bytes());
    assert_eq!((ran.code, &*ran.out), (0, ""));
    assert_eq!(ran.err, "berth: no pod waits for scheduler berth\n");
}

#[test]
fn questions_that_have_no_answer_are_refused_with_what_is_wrong() {
    let cluster = fragmented()
        .with(gang("ring", 3))
        .with(member("ring-0", "ring", "2"))
        .pod("other", json!({"schedulerName": "theirs"}));
    let refused = |cluster: &Cluster, options: &[&str]| {
        let ran = explain(&[&["--what-if"], options].concat(), cluster.dump().as_bytes());
        assert_eq!((ran.code, &*ran.out), (2, ""), "{options:?}: {}", ran.err);
        ran.err
    };
    for (options, expected) in [
        (&["allocation/none"][..], "berth: there is no Allocation default/none\n"),
        (&["allocation/ring", "-n", "shop"], "berth: there is no Allocation shop/ring\n"),
        (&["podgroup/ring"], "berth: there is no PodGroup default/ring\n"),
        (
            &["allocation/ring"],
            "berth: Allocation default/ring has not been tried yet: Allocation default/ring has 1 of 3 members\n",
        ),
        (&["default/none"], "berth: there is no pod default/none that is not finished\n"),
        (&["default/alone-a"], "berth: pod default/alone-a is on node a already\n"),
        (
            &["default/other"],
            "berth: pod default/other waits for scheduler theirs: give --scheduler-name theirs",
        ),
    ] {
        let said = refused(&cluster, options);
        assert!(said.starts_with(expected), "{options:?}: {said}");
    }
    let said = refused(&Cluster::default().pod("big", json!({})), &[]);
    assert_eq!(said, "berth: there are no nodes\n");
    let ran = explain(&["-n", "default"], fragmented().dump().as_bytes());
    assert!(ran.code == 2 && ran.err.contains("NAMESPACE/POD"), "{}", ran.err);
}
