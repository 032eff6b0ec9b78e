//! The smallest changes that make a pod fit.

use super::*;

/// Returns the remedies of the only waiting pod, each as one text, with the nodes where it then fits.
fn remedies(cluster: &Cluster) -> Vec<(String, Vec<String>)> {
    let answers = cluster.explain(&["default/new"]);
    let remedies = answers[0].get("remedies").and_then(Value::as_array).cloned().unwrap_or_default();
    let owned = |list: &Value| names(list).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let shown = remedies.iter().map(|remedy| (owned(&remedy["changes"]).join("; "), owned(&remedy["nodes"])));
    shown.collect()
}

fn texts(cluster: &Cluster) -> Vec<String> {
    remedies(cluster).into_iter().map(|(text, _)| text).collect()
}

fn taints(key: &str, value: &str) -> Value {
    json!({"spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}})
}

#[test]
fn sufficient_resources_are_not_reported() {
    let cluster = Cluster::default()
        .node("a", json!({}))
        .node("b", taints("team", "b"))
        .pod("new", json!({"nodeSelector": {"kubernetes.io/arch": "arm64"}}));
    assert_eq!(texts(&cluster), ["drop kubernetes.io/arch=arm64 from the pod's node selector"]);
}

#[test]
fn a_pod_that_fits_needs_no_change() {
    assert_eq!(texts(&Cluster::default().node("n", json!({})).pod("new", json!({}))), [""; 0]);
}

#[test]
fn remedies_for_taints_name_the_nodes_that_then_fit() {
    let cluster = Cluster::default()
        .node("a", taints("team", "a"))
        .node("b", taints("team", "a"))
        .node("c", taints("team", "c"))
        .pod("new", json!({}));
    let both = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(
        remedies(&cluster),
        [
            ("let the pod tolerate team=a:NoSchedule".to_owned(), both),
            ("let the pod tolerate team=c:NoSchedule".to_owned(), vec!["c".to_owned()]),
            ("remove the taint team=a:NoSchedule from node a".to_owned(), vec!["a".to_owned()]),
        ]
    );
}

#[test]
fn no_remedy_tolerates_a_node_that_is_not_ready() {
    let cluster =
        Cluster::default().node("n", taints("node.kubernetes.io/not-ready", "")).pod("new", json!({}));
    assert_eq!(
        texts(&cluster),
        ["wait until node n loses node.kubernetes.io/not-ready:NoSchedule (see its conditions)"]
    );
}

#[test]
fn a_cordoned_node_is_uncordoned_with_the_taint_that_belongs_to_it() {
    let cordoned =
        merged(taints("node.kubernetes.io/unschedulable", ""), json!({"spec": {"unschedulable": true}}));
    let cluster = Cluster::default().node("n", cordoned).pod("new", json!({}));
    assert_eq!(texts(&cluster), ["uncordon node n"]);
}

#[test]
fn a_node_is_labelled_or_the_selector_dropped_but_what_kubernetes_says_of_a_node_stands() {
    let cluster = Cluster::default()
        .node("n", json!({"metadata": {"labels": {"disk": "hdd"}}}))
        .pod("new", json!({"nodeSelector": {"disk": "ssd"}}));
    assert_eq!(texts(&cluster), ["label node n with disk=ssd", "drop disk=ssd from the pod's node selector"]);
    let cluster = Cluster::default()
        .node("n", json!({}))
        .pod("new", json!({"nodeSelector": {"kubernetes.io/arch": "arm64"}}));
    assert_eq!(texts(&cluster), ["drop kubernetes.io/arch=arm64 from the pod's node selector"]);
}

#[test]
fn of_several_affinity_terms_the_one_that_needs_fewest_labels_is_met() {
    let terms = json!([
        {"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In", "values": ["1"]}]},
        {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]},
    ]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let cluster =
        Cluster::default().node("n", json!({})).pod("new", json!({"affinity": {"nodeAffinity": required}}));
    assert_eq!(texts(&cluster), ["label node n with cores=9", "drop the pod's required node affinity"]);
}

#[test]
fn too_little_is_free_so_requests_are_lowered_or_the_least_important_pod_goes() {
    let cluster = Cluster::default()
        .node("n", json!({}))
        .bound("important", "n", merged(requests(json!({"cpu": "1500m"})), json!({"priority": 1000})))
        .bound("batch", "n", requests(json!({"cpu": "1500m"})))
        .bound("tiny", "n", requests(json!({"cpu": "100m"})))
        .pod("new", requests(json!({"cpu": "2"})));
    assert_eq!(
        texts(&cluster),
        ["lower the pod's cpu requests from 2 to 900m", "remove pod default/batch from node n"]
    );
}

#[test]
fn what_no_node_has_in_all_is_only_to_be_had_by_asking_for_less() {
    let cluster = Cluster::default()
        .node("n", json!({}))
        .bound("other", "n", requests(json!({"memory": "1Gi"})))
        .pod("new", requests(json!({"memory": "64Gi"})));
    assert_eq!(texts(&cluster), ["lower the pod's memory requests from 64Gi to 7Gi"]);
    let gpu = requests(json!({"example.com/gpu": "1"}));
    assert_eq!(texts(&Cluster::default().node("n", json!({})).pod("new", gpu)), [""; 0]);
}

#[test]
fn a_pod_that_a_daemon_set_would_make_again_is_not_removed() {
    let mut agent = pod("agent", merged(requests(json!({"cpu": "3"})), json!({"nodeName": "n"})));
    agent["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1", "controller": true}
    ]);
    let cluster =
        Cluster::default().node("n", json!({})).with(agent).pod("new", requests(json!({"cpu": "2"})));
    assert_eq!(texts(&cluster), ["lower the pod's cpu requests from 2 to 1"]);
}

#[test]
fn a_taken_port_is_freed_and_a_full_node_emptied_by_one() {
    let port = json!({"containers": [{"name": "main", "image": "x", "ports": [{"hostPort": 80, "containerPort": 80}]}]});
    let cluster =
        Cluster::default().node("n", json!({})).bound("old", "n", port.clone()).pod("new", port.clone());
    assert_eq!(texts(&cluster), ["remove pod default/old from node n"]);
    let cluster = Cluster::default()
        .node("n", json!({"status": {"allocatable": {"pods": "1"}}}))
        .bound("old", "n", json!({}))
        .pod("new", json!({}));
    assert_eq!(texts(&cluster), ["remove pod default/old from node n"]);
}

#[test]
fn a_pod_that_is_on_its_way_out_is_waited_for() {
    let port = json!({"containers": [{"name": "main", "image": "x", "ports": [{"hostPort": 80, "containerPort": 80}]}]});
    let mut old = pod("old", merged(port.clone(), json!({"nodeName": "n"})));
    old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let cluster = Cluster::default().node("n", json!({})).with(old).pod("new", port);
    assert_eq!(texts(&cluster), ["wait until pod default/old has left node n"]);
}

#[test]
fn what_shows_only_behind_the_first_obstacle_is_cured_too() {
    let cluster = Cluster::default()
        .node("n", merged(taints("team", "a"), json!({"metadata": {"labels": {"zone": "a"}}})))
        .bound("old", "n", json!({}))
        .pod("new", merged(anti_affinity("old"), requests(json!({"cpu": "5"}))));
    let best = &texts(&cluster)[0];
    for change in [
        "let the pod tolerate team=a:NoSchedule",
        "lower the pod's cpu requests from 5 to 4",
        "drop the pod's required pod anti-affinity over kubernetes.io/hostname",
    ] {
        assert!(best.contains(change), "{best}");
    }
    assert_eq!(best.matches("; ").count(), 2, "{best}");
}

fn terms(kind: &str, app: &str) -> Value {
    let selector = json!({"matchLabels": {"app": app}});
    let term = json!([{"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}]);
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term}}})
}

fn anti_affinity(app: &str) -> Value {
    terms("podAntiAffinity", app)
}

#[test]
fn anti_affinity_separates_pods_whichever_side_declares_it() {
    let ours =
        Cluster::default().node("n", json!({})).bound("old", "n", json!({})).pod("new", anti_affinity("old"));
    assert_eq!(
        texts(&ours),
        [
            "remove pod default/old from node n",
            "drop the pod's required pod anti-affinity over kubernetes.io/hostname",
        ]
    );
    let theirs =
        Cluster::default().node("n", json!({})).bound("old", "n", anti_affinity("new")).pod("new", json!({}));
    assert_eq!(texts(&theirs), ["remove pod default/old from node n"]);
}

#[test]
fn affinity_to_pods_that_are_nowhere_is_dropped() {
    let cluster = Cluster::default().node("n", json!({})).pod("new", terms("podAffinity", "missing"));
    assert_eq!(texts(&cluster), ["drop the pod's required pod affinity over kubernetes.io/hostname"]);
}

#[test]
fn a_hard_spread_is_loosened_as_little_as_helps() {
    let zone = |zone: &str| json!({"metadata": {"labels": {"zone": zone}}});
    let spread = json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"app": "new"}}},
    ]});
    let web = |name: &str| {
        let mut web = pod(name, json!({"nodeName": "a"}));
        web["metadata"]["labels"]["app"] = json!("new");
        web
    };
    let full = merged(zone("b"), json!({"status": {"allocatable": {"cpu": "0"}}}));
    let cluster = Cluster::default()
        .node("a", zone("a"))
        .node("b", full)
        .with(web("web-0"))
        .pod("new", merged(spread.clone(), requests(json!({"cpu": "1"}))));
    assert_eq!(texts(&cluster)[0], "raise maxSkew of the pod's spread over zone to 2");
    let unlabelled = Cluster::default().node("n", json!({})).pod("new", spread);
    assert_eq!(texts(&unlabelled), ["let the pod's spread over zone be ScheduleAnyway"]);
}

#[test]
fn remedies_list_nodes_with_the_smallest_changes_first() {
    let mut cluster = Cluster::default();
    for at in 0..20 {
        cluster = cluster.node(&format!("cordoned-{at}"), json!({"spec": {"unschedulable": true}}));
        cluster = cluster.node(&format!("tainted-{at}"), taints("team", "a"));
        let both = merged(taints("team", "b"), json!({"spec": {"unschedulable": true}}));
        cluster = cluster.node(&format!("both-{at}"), both);
    }
    let found = remedies(&cluster.pod("new", json!({})));
    assert_eq!(found[0].0, "uncordon node cordoned-0");
    assert_eq!(found[1].0, "let the pod tolerate team=a:NoSchedule");
    assert_eq!(found[1].1.len(), 10, "the first of them");
    assert_eq!(found[2].0, "remove the taint team=a:NoSchedule from node tainted-0");
}
