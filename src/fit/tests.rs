//! The answers of a running scheduler against those of the scheduler on a copy of the cluster.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{FitReport, LiveFit, Manifests, try_out};
use crate::explain::ExplainSettings;
use crate::explain::dump::Dump;
use berth_kube_io::{Interner, LeanNode, LeanObject, LeanPod, LeanQuota};
use berth_scheduler::agent::Rng;
use berth_scheduler::engine::Engine;
use berth_scheduler::testing::with_engine;
use berth_server::fit::{FitQuestion, FitRefusal, Fitter};

/// Objects of a cluster.
#[derive(Default)]
struct Objects {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    quotas: Vec<Value>,
}

impl Objects {
    fn node(&mut self, name: &str, zone: usize, cpu: u64, taints: Value) {
        self.nodes.push(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{zone}")}},
            "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": format!("{cpu}m"), "memory": "64Gi", "pods": "110"}},
        }));
    }

    fn bound(&mut self, name: &str, node: &str, cpu: u64, priority: i64) {
        let mut pod = pod(name, cpu);
        pod["spec"]["nodeName"] = node.into();
        pod["spec"]["priority"] = priority.into();
        pod["metadata"]["uid"] = name.into();
        self.pods.push(pod);
    }

    fn quota(&mut self, cpu: u64) {
        self.quotas.push(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Quota", "metadata": {"name": "red"},
            "spec": {"namespaces": ["default"], "maximum": {"cpu": format!("{cpu}m")}},
        }));
    }

    /// Asks the scheduler on a copy of the cluster.
    fn copied(&self, manifests: &str, more: usize) -> FitReport {
        let mut dump = Dump::default();
        for object in self.nodes.iter().chain(&self.pods).chain(&self.quotas) {
            dump.take_object(&object.to_string());
        }
        let mut asked = Manifests::default();
        asked.read("test", manifests.as_bytes(), "default").expect("valid");
        asked.resolve_priorities();
        asked.move_objects_to(&mut dump);
        let settings = ExplainSettings { scheduler_names: ["berth".into()].into(), profiles: Arc::default() };
        try_out(&mut dump.into_world(settings), &asked, more).expect("an answer")
    }

    /// Feeds an engine.
    fn feed(&self, engine: &Engine) {
        let mut interner = Interner::default();
        for quota in &self.quotas {
            let quota: LeanQuota = serde_json::from_value(quota.clone()).expect("a quota");
            engine.apply_object(quota.into_object(&mut interner));
        }
        let (mut nodes, mut pods) = (HashSet::new(), HashSet::new());
        for node in &self.nodes {
            let node: LeanNode = serde_json::from_value(node.clone()).expect("a node");
            let node = node.into_node(&mut interner);
            nodes.insert(node.name.clone());
            engine.apply_node(node);
        }
        for pod in &self.pods {
            let pod: LeanPod = serde_json::from_value(pod.clone()).expect("a pod");
            let pod = pod.into_pod(&mut interner);
            pods.insert(pod.uid.clone());
            engine.apply_pod(pod);
        }
        engine.retain_nodes(&nodes);
        engine.retain_pods(&pods);
    }

    /// Asks a running scheduler.
    fn live(&self, manifests: &str, more: usize) -> FitReport {
        let mut found = None;
        with_engine(|engine, agent| {
            self.feed(engine);
            let live = LiveFit::new(engine.clone(), agent, "berth".into());
            let first = ask(&live, manifests, more).expect("an answer");
            assert_eq!(ask(&live, manifests, more).as_ref(), Ok(&first), "a question leaves nothing behind");
            found = Some(first);
        });
        found.expect("an answer")
    }
}

fn ask(live: &LiveFit, manifests: &str, more: usize) -> Result<FitReport, FitRefusal> {
    let manifests = manifests.to_owned().into();
    let answer = live.fit(&FitQuestion { manifests, namespace: "default".to_owned(), more })?;
    Ok(serde_json::from_slice(&answer).expect("a report"))
}

fn pod(name: &str, cpu: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"schedulerName": "berth", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": format!("{cpu}m")}}}]},
    })
}

fn deployment(name: &str, replicas: usize, cpu: u64) -> Value {
    let pod = pod(name, cpu);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]}},
    })
}

/// What both must agree on: the choice among equal nodes is each agent's own.
fn summary(report: &FitReport, with_messages: bool) -> Value {
    let of = |fit: &super::WorkloadFit| {
        let messages: Vec<_> =
            fit.unplaced.iter().map(|unplaced| (unplaced.pods, &unplaced.message)).collect();
        json!({
            "pods": fit.pods, "fit": fit.fit, "more": fit.more,
            "preempting": fit.preempting.iter().map(|it| (&it.pod, &it.victims)).collect::<Vec<_>>(),
            "unplaced": fit.unplaced.iter().map(|it| it.pods).sum::<usize>(),
            "messages": with_messages.then_some(messages),
        })
    };
    json!({"fits": report.fits, "workloads": report.workloads.iter().map(of).collect::<Vec<_>>()})
}

#[test]
fn a_running_scheduler_answers_as_the_scheduler_on_a_copy_of_the_cluster() {
    for seed in 0..80 {
        let mut rng = Rng(seed);
        let mut any = |most: u64| rng.next() % most;
        let mut cluster = Objects::default();
        for at in 0..3 + any(8) {
            let taints = match any(5) {
                0 => json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]),
                _ => json!([]),
            };
            let name = format!("n{at}");
            cluster.node(&name, any(3) as usize, 1_000 + 500 * any(8), taints);
            if any(2) == 0 {
                cluster.bound(&format!("there-{at}"), &name, 100 * any(15), 0);
            }
        }
        let has_quota = any(3) == 0;
        if has_quota {
            cluster.quota(2_000 + 500 * any(20));
        }
        let replicas = 1 + any(12);
        let mut web = deployment("web", replicas as usize, 100 + 100 * any(20));
        let shape = any(6);
        let spec = &mut web["spec"]["template"]["spec"];
        match shape {
            0 => spec["nodeSelector"] = json!({"topology.kubernetes.io/zone": "z1"}),
            1 => {
                spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}});
            }
            2 => {
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]);
            }
            3 => spec["tolerations"] = json!([{"key": "a", "operator": "Exists"}]),
            _ => {}
        }
        let mut manifests = vec![web];
        if shape == 4 {
            manifests.push(
                json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "g"},
                "spec": {"minimum": 1 + any(replicas), "selector": {"matchLabels": {"app": "web"}}}}),
            );
        }
        if shape == 5 {
            let mut agents = deployment("agents", 0, 300);
            agents["kind"] = "DaemonSet".into();
            manifests.push(agents);
        }
        let text: String = manifests.iter().map(|manifest| format!("{manifest}\n")).collect();
        let (copied, live) = (cluster.copied(&text, 9), cluster.live(&text, 9));
        let with_messages = matches!(shape, 0 | 1 | 3);
        assert_eq!(summary(&live, with_messages), summary(&copied, with_messages), "seed {seed}: {text}");
    }
}

#[test]
fn victims_are_named_and_more_important_pods_stay() {
    let mut cluster = Objects::default();
    cluster.node("a", 0, 4_000, json!([]));
    cluster.node("b", 1, 4_000, json!([]));
    cluster.bound("low", "a", 3_000, 1);
    cluster.bound("high", "b", 3_000, 5_000);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "mid"}, "value": 100});
    let mut web = deployment("web", 2, 2_000);
    web["spec"]["template"]["spec"]["priorityClassName"] = "mid".into();
    let text = format!("{class}\n{web}\n");
    let (copied, live) = (cluster.copied(&text, 0), cluster.live(&text, 0));
    assert_eq!(summary(&live, false), summary(&copied, false));
    // The second pod fits beside the first one.
    let fit = &live.workloads[0];
    assert_eq!((fit.fit, fit.preempting.len(), &*fit.preempting[0].victims[0]), (1, 1, "default/low"));
}

#[test]
fn a_victim_leaves_once_however_many_pods_preempt_on_its_node() {
    let mut cluster = Objects::default();
    cluster.node("a", 0, 4_000, json!([]));
    cluster.bound("low-1", "a", 1_900, 1);
    cluster.bound("low-2", "a", 1_900, 1);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "mid"}, "value": 100});
    let mut web = deployment("web", 3, 2_000);
    web["spec"]["template"]["spec"]["priorityClassName"] = "mid".into();
    let fit = &cluster.live(&format!("{class}\n{web}\n"), 5).workloads[0];
    let mut victims: Vec<_> = fit.preempting.iter().flat_map(|it| it.victims.clone()).collect();
    victims.sort();
    assert_eq!(victims, ["default/low-1", "default/low-2"]);
    assert_eq!((fit.fit, fit.unplaced[0].pods), (0, 1));
    assert_eq!(fit.more.map(|more| more.pods), Some(0));
}

#[test]
fn what_a_running_scheduler_cannot_try_is_refused_with_the_reason() {
    with_engine(|engine, agent| {
        let live = LiveFit::new(engine.clone(), agent, "berth".into());
        let web = deployment("web", 1, 100).to_string();
        assert!(matches!(ask(&live, &web, 0), Err(FitRefusal::NotReady(_))), "before the first lists");
        let mut cluster = Objects::default();
        cluster.node("a", 0, 4_000, json!([]));
        cluster.feed(engine);
        assert!(ask(&live, &web, 0).is_ok_and(|report| report.fits));
        let node = &cluster.nodes[0];
        for (manifests, expected) in [
            ("a: [".to_owned(), "cannot be read"),
            (deployment("web", 1_001, 1).to_string(), "at most 1000 pods"),
            (format!("{web}\n{node}"), "other objects that change the cluster"),
            (web.replace("\"containers\":[", "\"containers\":[7,"), "Deployment default/web"),
        ] {
            match ask(&live, &manifests, 0) {
                Err(FitRefusal::Invalid(why)) => assert!(why.contains(expected), "{why}"),
                other => panic!("{manifests}: {other:?}"),
            }
        }
        assert!(matches!(ask(&live, &web, 1_001), Err(FitRefusal::Invalid(_))));
    });
}

/// Returns the pointers to all values in this one.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let mut below = |key: &str, value: &Value| pointers(value, &format!("{at}/{key}"), found);
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, value)| below(&at.to_string(), value)),
        _ => {}
    }
}

#[test]
fn manifests_with_a_value_of_another_type_anywhere_are_answered_or_refused() {
    let mut web = deployment("web", 2, 100);
    let spec = &mut web["spec"]["template"]["spec"];
    spec["priorityClassName"] = "system-node-critical".into();
    spec["resources"] = json!({"limits": {"cpu": "1"}});
    spec["containers"][0]["resources"]["limits"] = json!({"memory": "1Gi"});
    spec["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1"}}}}}}]);
    spec["tolerations"] = json!([]);
    let mut set = web.clone();
    set["kind"] = "StatefulSet".into();
    set["spec"]["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "data"}, "spec": {"storageClassName": "x"}}]);
    let mut agents = web.clone();
    agents["kind"] = "DaemonSet".into();
    let jobs = json!({"kind": "JobSet", "metadata": {"name": "j"},
        "spec": {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": web["spec"].clone()}}]}});
    let class = json!({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": "p"}, "value": 1});
    let list = json!({"kind": "List", "items": [web, set, agents, jobs, class]});
    let mut all = Vec::new();
    pointers(&list, "", &mut all);
    assert!(all.len() > 150, "{}", all.len());
    with_engine(|engine, agent| {
        let live = LiveFit::new(engine.clone(), agent, "berth".into());
        let mut cluster = Objects::default();
        cluster.node("a", 0, 4_000, json!([]));
        cluster.feed(engine);
        for pointer in &all {
            for other in [json!(null), json!(7), json!("x"), json!([7]), json!({"x": 7})] {
                let mut changed = list.clone();
                *changed.pointer_mut(pointer).expect("a value") = other;
                if let Err(refusal) = ask(&live, &changed.to_string(), 1) {
                    assert!(matches!(refusal, FitRefusal::Invalid(_)), "{pointer}: {refusal}");
                }
            }
        }
    });
}
