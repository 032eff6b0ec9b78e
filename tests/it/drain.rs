//! `berth drain` as users run it: on dumps made here, and carried out on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use berth_scheduler::agent::Rng;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::explain::{Cluster, Ran, merged, pod, requests, run};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

fn drain(dump: &str, options: &[&str]) -> Ran {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(dump.as_bytes()).expect("written");
    run(
        Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["drain", "--plan", "-f"])
            .arg(file.path())
            .args(options),
        b"",
    )
}

fn plan(cluster: &Cluster, options: &[&str]) -> Value {
    let ran = drain(&cluster.dump(), &[&["-o", "json"], options].concat());
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err))
}

fn owned(kind: &str) -> Value {
    json!({"metadata": {"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "1", "controller": true}]}})
}

/// A pod of a ReplicaSet on this node; `more` is merged into it.
fn placed(name: &str, node: &str, cpu: &str, more: Value) -> Value {
    let spec = merged(json!({"nodeName": node}), requests(json!({"cpu": cpu})));
    merged(merged(pod(name, spec), owned("ReplicaSet")), more)
}

fn three_nodes() -> Cluster {
    Cluster::default().node("a", json!({})).node("b", json!({})).node("c", json!({}))
}

/// Returns the emptied nodes in their order.
fn emptied(plan: &Value) -> Vec<&str> {
    let nodes = plan["nodes"].as_array().expect("a list").iter();
    nodes.map(|node| node["node"].as_str().expect("a name")).collect()
}

/// Returns why this node is kept.
fn reason<'a>(plan: &'a Value, node: &str) -> &'a str {
    let kept = plan["kept"].as_array().expect("a list").iter();
    let of = |kept: &&Value| kept["nodes"].as_array().is_some_and(|nodes| nodes.contains(&json!(node)));
    kept.clone().find(of).map_or("", |kept| kept["reason"].as_str().expect("text"))
}

#[test]
fn nodes_are_emptied_in_order_as_long_as_all_their_pods_get_other_nodes() {
    let cluster = three_nodes()
        .with(placed("api-0", "a", "3", json!({})))
        .with(placed("web-0", "b", "1", json!({})))
        .with(placed("web-1", "c", "1", json!({})))
        .with(placed("web-2", "c", "1", json!({})));
    let plan = plan(&cluster, &[]);
    assert_eq!(plan["apiVersion"], "drain.berth.dev/v1");
    // Either b or a could be emptied besides, but not both: 6 CPUs are requested, and a node has 4.
    assert_eq!(emptied(&plan), ["a"]);
    assert_eq!(plan["nodes"][0]["moves"], json!([{"pod": "default/api-0", "to": "b"}]));
    assert_eq!((&plan["moves"], &plan["freedCpuMilli"]), (&json!(1), &json!(4_000)));
    assert!(reason(&plan, "b").contains("Insufficient cpu"), "{plan}");
    let ran = drain(&cluster.dump(), &[]);
    let page = std::fs::read_to_string("docs/drain.md").expect("the page");
    assert!(
        page.contains(&format!("```\n{}```\n", ran.out)),
        "docs/drain.md shows other output than\n{}",
        ran.out
    );
}

#[test]
fn pods_that_wait_get_their_room_first_and_are_no_moves() {
    let waiting =
        |name: &str, cpu: &str| merged(pod(name, requests(json!({"cpu": cpu}))), owned("ReplicaSet"));
    let cluster = three_nodes().with(placed("x", "a", "1", json!({}))).with(waiting("new", "2"));
    let plan = plan(&cluster, &[]);
    // On the third node are the waiting pod and x.
    assert_eq!(
        (emptied(&plan).len(), &plan["moves"]),
        (2, &json!(usize::from(emptied(&plan).contains(&"a"))))
    );
    assert!(!plan["nodes"].to_string().contains("default/new"), "{plan}");
    let many = ["1", "2", "3"].map(|at| waiting(&format!("new-{at}"), "3500m"));
    let full = many.into_iter().fold(three_nodes(), Cluster::with);
    assert_eq!(emptied(&self::plan(&full, &[])), [""; 0]);
}

#[test]
fn what_keeps_a_node_is_named_and_what_goes_with_it_does_not() {
    let daemon = merged(pod("daemon", json!({"nodeName": "a"})), owned("DaemonSet"));
    let fixed = merged(pod("static", json!({"nodeName": "a"})), owned("Node"));
    let empty = three_nodes().with(daemon).with(fixed);
    assert_eq!(emptied(&plan(&empty, &["a"])), ["a"]);
    assert_eq!(plan(&empty, &["a"])["nodes"][0]["stay"], 2);

    let safe = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let volume = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
    let claim = json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}});
    let everywhere = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    for (name, pod, expected) in [
        ("alone", pod("x", json!({"nodeName": "a"})), "no controller"),
        ("local", placed("x", "a", "1", volume), "local storage"),
        (
            "unsafe",
            placed("x", "a", "1", json!({"metadata": {"annotations": {safe: "false"}}})),
            "not safe to evict",
        ),
        ("device", placed("x", "a", "1", claim), "devices"),
        ("large", placed("x", "a", "3500m", json!({"spec": {"nodeSelector": {"pool": "a"}}})), "affinity"),
        ("daemon-like", placed("x", "a", "1", everywhere), "would come back"),
    ] {
        // The others are too full for a pod that may stay.
        let full = match name {
            "daemon-like" => "3500m",
            _ => "1",
        };
        let cluster = three_nodes().with(pod).with(placed("y", "b", full, json!({}))).with(placed(
            "z",
            "c",
            full,
            json!({}),
        ));
        let ran = drain(&cluster.dump(), &["a", "-o", "json"]);
        let plan: Value = serde_json::from_str(&ran.out).expect("JSON");
        assert!(reason(&plan, "a").contains(expected), "{name}: {plan}");
        assert_eq!((ran.code, emptied(&plan).len()), (3, 0), "{name}");
        assert_eq!(plan["kept"][0]["pod"], "default/x");
    }
}

#[test]
fn disruption_budgets_keep_a_node_only_if_they_allow_nothing_and_else_pods_wait() {
    let budget = |allowed: u32| {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"tier": "web"}}}, "status": {"disruptionsAllowed": allowed}})
    };
    let cluster = |allowed| {
        let web = json!({"metadata": {"labels": {"tier": "web"}}});
        let pods = (0..3).map(|at| placed(&format!("web-{at}"), "a", "500m", web.clone()));
        pods.fold(three_nodes().with(budget(allowed)), Cluster::with)
    };
    let refused = plan(&cluster(0), &["a"]);
    assert!(reason(&refused, "a").contains("protected by the disruption budget default/web"), "{refused}");
    let waits = plan(&cluster(1), &["a"]);
    assert_eq!((emptied(&waits), &waits["nodes"][0]["waitForBudgets"]), (vec!["a"], &json!(2)));
}

#[test]
fn spread_and_anti_affinity_of_the_pods_count_and_room_is_not_made_by_preemption() {
    let apart = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"tier": "db"}}}]}}},
        "metadata": {"labels": {"tier": "db"}}});
    let cluster = |nodes: &[&str]| {
        let pods = nodes.iter().map(|node| placed(&format!("db-{node}"), node, "1", apart.clone()));
        pods.fold(three_nodes(), Cluster::with)
    };
    assert_eq!(emptied(&plan(&cluster(&["a", "b", "c"]), &[])), [""; 0]);
    assert_eq!(emptied(&plan(&cluster(&["a", "b"]), &[])), ["c"], "the other two need a node each");
    let urgent = placed("urgent", "a", "3", json!({"spec": {"priority": 1000}}));
    let low = |name: &str, node: &str| placed(name, node, "2", json!({}));
    let full = three_nodes().with(urgent).with(low("x", "b")).with(low("y", "c"));
    assert!(reason(&plan(&full, &["a"]), "a").contains("Insufficient cpu"));
}

#[test]
fn scale_ins_can_be_told_to_take_the_pods_of_nodes_that_can_go() {
    let web = |name: &str, node: &str| placed(name, node, "1", json!({}));
    let cluster = three_nodes().with(web("w1", "a")).with(web("w2", "b")).with(web("w3", "b"));
    let told = plan(&cluster, &["a", "b"]);
    let cost = |name: &str, cost: i32| json!({"namespace": "default", "name": name, "cost": cost});
    assert_eq!(told["deletionCosts"], json!([cost("w1", -2), cost("w2", -1), cost("w3", -1)]), "{told}");
    let commands = drain(&cluster.dump(), &["a", "--deletion-costs"]);
    assert_eq!(
        commands.out,
        "kubectl annotate pod --overwrite -n default w1 controller.kubernetes.io/pod-deletion-cost=-1\n"
    );
    let none = drain(&three_nodes().dump(), &["--deletion-costs"]);
    assert!(none.code == 0 && none.out.starts_with("# no pod"), "{}{}", none.out, none.err);
}

#[test]
fn nodes_are_chosen_by_name_label_and_limits_and_those_of_the_control_plane_only_by_name() {
    let role = "node-role.kubernetes.io/control-plane";
    let master = json!({"metadata": {"labels": {role: ""}}, "spec": {"taints": [{"key": role, "effect": "NoSchedule"}]}});
    let cluster = three_nodes().node("master", master).with(placed("x", "a", "1", json!({})));
    assert_eq!(emptied(&plan(&cluster, &[])), ["b", "c"], "and the pod stays on a");
    assert_eq!(emptied(&plan(&cluster, &["master"])), ["master"]);
    assert_eq!(emptied(&plan(&cluster, &["--selector", "pool=a"])), ["a"]);
    assert_eq!(emptied(&plan(&cluster, &["--max-nodes", "1"])), ["b"]);
    let few = plan(&cluster, &["--max-moves", "0"]);
    assert_eq!(
        (emptied(&few), reason(&few, "a")),
        (vec!["b", "c"], "its pods are more than --max-moves leaves")
    );
    for (options, expected) in [
        (&["nowhere"][..], "there is no node nowhere"),
        (&["-l", "pool=x"], "no node has these labels"),
        (&["-l", "pool"], "use KEY=VALUE"),
    ] {
        let ran = drain(&cluster.dump(), options);
        assert!(ran.code == 2 && ran.err.contains(expected), "{options:?}: {}", ran.err);
    }
    let only_plans = run(Command::new(env!("CARGO_BIN_EXE_berth")).args(["drain", "a"]), b"");
    assert!(only_plans.code == 2 && only_plans.err.contains("--plan"), "{}", only_plans.err);
}

/// Checks each plan without the scheduler: everything that moves has room, and no emptied node gets anything.
#[test]
fn on_random_clusters_all_pods_of_emptied_nodes_have_room_elsewhere() {
    let mut emptied_nodes = 0;
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let mut random = |below: u64| rng.next() % below;
        let nodes: Vec<String> = (0..8).map(|at| format!("n{at}")).collect();
        let mut cluster = nodes.iter().fold(Cluster::default(), |all, node| all.node(node, json!({})));
        let mut free: BTreeMap<&str, i64> = nodes.iter().map(|node| (node.as_str(), 4_000)).collect();
        let mut pods: BTreeMap<String, (&str, i64)> = BTreeMap::new();
        for at in 0..40 {
            let node = nodes[random(8) as usize].as_str();
            let cpu = 100 + 100 * random(10) as i64;
            let room = free.get_mut(node).expect("a node");
            if *room >= cpu && pods.values().filter(|(on, _)| *on == node).count() < 10 {
                *room -= cpu;
                let name = format!("p{at}");
                cluster = cluster.with(placed(&name, node, &format!("{cpu}m"), json!({})));
                pods.insert(format!("default/{name}"), (node, cpu));
            }
        }
        let plan = plan(&cluster, &[]);
        let gone: BTreeSet<&str> = emptied(&plan).into_iter().collect();
        emptied_nodes += gone.len();
        let mut moved = BTreeSet::new();
        for step in plan["nodes"].as_array().expect("a list") {
            for pod in step["moves"].as_array().expect("a list") {
                let (name, to) = (pod["pod"].as_str().expect("a name"), pod["to"].as_str().expect("a name"));
                let (from, cpu) = pods[name];
                assert_eq!(step["node"], from, "seed {seed}: {name}");
                assert!(!gone.contains(to), "seed {seed}: {name} goes to {to}, which is emptied");
                *free.get_mut(to).expect("a node") -= cpu;
                assert!(free[to] >= 0, "seed {seed}: {to} is overcommitted");
                moved.insert(name);
            }
        }
        let expected =
            pods.iter().filter(|(_, (node, _))| gone.contains(node)).map(|(name, _)| name.as_str());
        assert_eq!(moved, expected.collect(), "seed {seed}");
        assert_eq!(gone.len() + plan["kept"].as_array().expect("a list").iter().map(count).sum::<usize>(), 8);
    }
    assert!(emptied_nodes >= 20, "most clusters have a node to spare: {emptied_nodes}");
}

fn count(kept: &Value) -> usize {
    kept["nodes"].as_array().expect("a list").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_carried_out_puts_each_pod_where_it_says() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, cpu: "4", ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), "agents: 1");
    let pods: kube::Api<Pod> = kube::Api::default_namespaced(client.clone());
    let create = async |name: &str, cpu: usize| {
        let cpu = format!("{}m", 300 + 100 * (cpu % 7));
        let pod = merged(
            pod(name, requests(json!({"cpu": cpu}))),
            merged(owned("ReplicaSet"), json!({"metadata": {"uid": null}})),
        );
        pods.create(&Default::default(), &serde_json::from_value(pod).expect("a pod"))
            .await
            .expect("created");
    };
    let node_of =
        async |name: &str| pods.get(name).await.expect("a pod").spec.and_then(|spec| spec.node_name);
    for at in 0..12 {
        create(&format!("web-{at}"), at).await;
        await_bound(&client, SOON, at + 1, |_| true).await;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let ran =
        run(command.args(["drain", "--plan", "-o", "json", "--kubeconfig"]).arg(cluster.kubeconfig()), b"");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let plan: Value = serde_json::from_str(&ran.out).expect("JSON");
    let nodes = emptied(&plan);
    assert!(!nodes.is_empty() && nodes.len() < 5, "{plan}");
    for node in &nodes {
        patch_node(&client, node, json!({"spec": {"unschedulable": true}})).await;
    }
    let mut next = 100;
    for step in plan["nodes"].as_array().expect("a list") {
        for planned in step["moves"].as_array().expect("a list") {
            let name = planned["pod"].as_str().and_then(|pod| pod.strip_prefix("default/")).expect("a name");
            assert_eq!(node_of(name).await.as_deref(), step["node"].as_str());
            let number: usize = name.trim_start_matches("web-").parse().expect("a number");
            delete_pods(&client, [name.to_owned()]).await;
            // As its controller does; the same requests.
            let successor = format!("web-{}", next * 7 + number % 7);
            next += 1;
            create(&successor, number).await;
            await_bound(&client, SOON, 12, |_| true).await;
            assert_eq!(node_of(&successor).await.as_deref(), planned["to"].as_str(), "{name}: {plan}");
        }
    }
    drop(berth);
}

/// A pod of the controller of these tests, which is gone as soon as it is evicted.
fn replica(name: &str) -> Pod {
    let at_once = json!({"spec": {"terminationGracePeriodSeconds": 0}, "metadata": {"uid": null, "labels": {"app": "web"}}});
    let pod = merged(pod(name, requests(json!({"cpu": "500m"}))), merged(owned("ReplicaSet"), at_once));
    serde_json::from_value(pod).expect("a pod")
}

/// Creates pods `web-0` and so on, and waits until they are bound.
async fn start_replicas(client: &kube::Client, count: usize) -> kube::Api<Pod> {
    let pods: kube::Api<Pod> = kube::Api::default_namespaced(client.clone());
    for at in 0..count {
        pods.create(&Default::default(), &replica(&format!("web-{at}"))).await.expect("created");
    }
    await_bound(client, SOON, count, |_| true).await;
    pods
}

/// Does what a ReplicaSet with this number of pods does, for ever.
async fn replace_pods(pods: kube::Api<Pod>, replicas: usize) {
    for number in 0.. {
        let there = pods.list(&Default::default()).await.expect("a list").items;
        if there.len() < replicas {
            let successor = replica(&format!("again-{number}"));
            pods.create(&Default::default(), &successor).await.expect("created");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn apply(cluster: &TestControlPlane, options: &[&str]) -> Ran {
    let (kubeconfig, options) =
        (cluster.kubeconfig(), options.iter().map(ToString::to_string).collect::<Vec<_>>());
    let ran = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        run(command.args(["drain", "--apply", "--kubeconfig"]).arg(kubeconfig).args(options), b"")
    });
    ran.await.expect("no panic")
}

async fn cordoned(client: &kube::Client) -> BTreeSet<String> {
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client.clone());
    let nodes = nodes.list(&Default::default()).await.expect("a list").items.into_iter();
    let is_cordoned = |node: &k8s_openapi::api::core::v1::Node| {
        node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
    };
    nodes.filter(is_cordoned).filter_map(|node| node.metadata.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_empties_the_nodes_of_its_plan_and_their_pods_run_elsewhere() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, cpu: "4", ..Nodes::default() }).await;
    let _berth = Berth::start(&cluster.kubeconfig(), "agents: 1");
    let pods = start_replicas(&client, 12).await;
    let controller = tokio::spawn(replace_pods(pods.clone(), 12));
    let ran = apply(&cluster, &["-o", "json", "--step-timeout", "60"]).await;
    controller.abort();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    let planned: BTreeSet<String> = emptied(&answer).into_iter().map(str::to_owned).collect();
    assert!(!planned.is_empty() && planned.len() < 5, "{answer}");
    let steps = answer["applied"].as_array().expect("a list");
    let done: BTreeSet<_> =
        steps.iter().map(|step| step["node"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(done, planned);
    assert_eq!((&answer["stopped"], &answer["uncordoned"]), (&Value::Null, &json!([])));
    assert_eq!(cordoned(&client).await, planned, "they stay cordoned, and no other one is");
    let all = pods.list(&Default::default()).await.expect("a list").items;
    let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("bound");
    assert_eq!(all.len(), 12);
    assert!(all.iter().all(|pod| !planned.contains(&on(pod))), "a pod is on a node that is empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_stops_when_pods_do_not_come_back_and_uncordons_what_is_not_empty() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 4, cpu: "4", ..Nodes::default() }).await;
    let _berth = Berth::start(&cluster.kubeconfig(), "agents: 1");
    let pods = start_replicas(&client, 4).await;
    let ran = apply(&cluster, &["--step-timeout", "2"]).await;
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(
        ran.err.contains("stopped after 0 of ") && ran.err.contains("its 4 pods on other nodes"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("uncordoned again: "), "{}", ran.err);
    assert_eq!(cordoned(&client).await, BTreeSet::new());
    assert_eq!(
        pods.list(&Default::default()).await.expect("a list").items.len(),
        3,
        "one was evicted, and no more"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_waits_for_a_disruption_budget_and_stops_if_it_allows_nothing_in_time() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_node(&client, "full", json!({"cpu": "4", "memory": "32Gi", "pods": "110"}), json!({})).await;
    let _berth = Berth::start(&cluster.kubeconfig(), "agents: 1");
    let pods = start_replicas(&client, 2).await;
    // Budgets protect only pods that run.
    for at in 0..2 {
        let runs =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let name = format!("web-{at}");
        pods.patch_status(&name, &Default::default(), &kube::api::Patch::Merge(runs)).await.expect("patched");
    }
    create_node(&client, "other", json!({"cpu": "4", "memory": "32Gi", "pods": "110"}), json!({})).await;
    let budgets: kube::Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
        kube::Api::default_namespaced(client.clone());
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    budgets
        .create(&Default::default(), &serde_json::from_value(budget).expect("a budget"))
        .await
        .expect("created");
    // No controller counts again: one eviction is allowed.
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    budgets
        .patch_status("web", &Default::default(), &kube::api::Patch::Merge(status))
        .await
        .expect("patched");
    let controller = tokio::spawn(replace_pods(pods.clone(), 2));
    let ran = apply(&cluster, &["full", "--step-timeout", "4"]).await;
    controller.abort();
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("of which 1 must wait for a disruption budget"), "{}", ran.out);
    assert!(ran.err.contains("may not be evicted") && ran.err.contains("uncordoned again"), "{}", ran.err);
    assert_eq!(cordoned(&client).await, BTreeSet::new());
}

#[test]
#[ignore = "a speed for release builds: cargo test --profile dist --test it -- --ignored drain::"]
fn a_plan_for_1000_nodes_and_20000_pods_takes_at_most_ten_seconds() {
    let mut cluster = Cluster::default();
    let large = json!({"status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"}}});
    for at in 0..1_000 {
        cluster = cluster.node(&format!("n{at}"), large.clone());
    }
    for at in 0..20_000 {
        let cpu = format!("{}m", 100 + 50 * (at % 11));
        cluster = cluster.with(placed(&format!("p{at}"), &format!("n{}", at % 1_000), &cpu, json!({})));
    }
    let dump = cluster.dump();
    let began = Instant::now();
    let ran = drain(&dump, &["-o", "json"]);
    let took = began.elapsed();
    let plan: Value = serde_json::from_str(&ran.out).expect("JSON");
    println!("{} nodes, {} moves: {took:?}", emptied(&plan).len(), plan["moves"]);
    assert!(took < Duration::from_secs(10), "{took:?}");
}
