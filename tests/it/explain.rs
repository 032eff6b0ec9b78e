//! `berth explain` as users run it: on dumps made here, and on a real API server.

mod input;
pub(crate) mod live;
mod remedies;
pub mod speed;
mod what_if;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A cluster as kubectl would dump it.
#[derive(Default)]
pub struct Cluster(Vec<Value>);

impl Cluster {
    pub fn with(mut self, object: Value) -> Self {
        self.0.push(object);
        self
    }

    /// A node of 4 cores with its name as label `pool`; `more` is merged into it.
    pub fn node(self, name: &str, more: Value) -> Self {
        let labels = json!({"pool": name, "kubernetes.io/hostname": name});
        let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"allocatable": allocatable},
        });
        self.with(merged(node, more))
    }

    /// A waiting pod of berth; `spec` is merged into its spec.
    pub fn pod(self, name: &str, spec: Value) -> Self {
        self.with(pod(name, spec))
    }

    /// A pod on this node.
    pub fn bound(self, name: &str, node: &str, spec: Value) -> Self {
        self.pod(name, merged(json!({"nodeName": node}), spec))
    }

    pub fn dump(&self) -> String {
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": self.0})
            .to_string()
    }

    /// Returns the output of `berth explain -f - -o json`.
    fn explain(&self, options: &[&str]) -> Vec<Value> {
        let ran = explain(&[&["-o", "json"], options].concat(), self.dump().as_bytes());
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).expect("JSON")
    }
}

pub fn pod(name: &str, spec: Value) -> Value {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": name}},
        "spec": {"schedulerName": "berth", "containers": [{"name": "main", "image": "pause"}]},
    });
    merged(pod, json!({"spec": spec}))
}

pub fn requests(requests: Value) -> Value {
    json!({"containers": [{"name": "main", "image": "pause", "resources": {"requests": requests}}]})
}

/// Merges objects, and replaces all other values.
pub fn merged(mut into: Value, more: Value) -> Value {
    match (&mut into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                let old = into.remove(&key).unwrap_or(Value::Null);
                into.insert(key, merged(old, value));
            }
        }
        (into, more) => *into = more,
    }
    into
}

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `berth explain -f -` with these options.
fn explain(options: &[&str], input: &[u8]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_berth")).args(["explain", "-f", "-"]).args(options), input)
}

pub fn run(command: &mut Command, input: &[u8]) -> Ran {
    let command = command.env_remove("COLUMNS").env_remove("KUBECONFIG");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("berth starts");
    // It may reject its options without reading.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("berth ends");
    Ran {
        code: output.status.code().expect("no signal"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name")).collect()
}

#[test]
fn each_waiting_pod_has_its_class_its_nodes_in_order_and_why_the_others_are_out() {
    let taint = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
    let answers = Cluster::default()
        .node("busy", json!({}))
        .node("empty", json!({}))
        .node("full", json!({"status": {"allocatable": {"cpu": "1"}}}))
        .node("tainted", json!({"spec": {"taints": taint}}))
        .bound("db", "busy", requests(json!({"cpu": "2", "memory": "4Gi"})))
        .pod("web-1", requests(json!({"cpu": "2"})))
        .pod("web-0", requests(json!({"cpu": "2"})))
        .pod("other", merged(requests(json!({"cpu": "1"})), json!({"schedulerName": "default-scheduler"})))
        .pod("small", requests(json!({"cpu": "1"})))
        .explain(&[]);
    let pods: Vec<_> = answers.iter().map(|answer| answer["pod"].as_str().expect("a name")).collect();
    assert_eq!(pods, ["default/small", "default/web-0", "default/web-1"]);
    let [small, web, again] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(names(&web["feasible"]), ["empty", "busy"]);
    assert_eq!(
        web["reasons"],
        json!({"full": ["Insufficient cpu"], "tainted": ["node(s) had untolerated taint(s)"]})
    );
    assert_eq!(names(&small["feasible"]).len(), 3);
    assert_eq!((&web["class"], &web["waiting"]), (&again["class"], &json!(2)));
    assert!(web["class"].as_str().is_some_and(|class| !class.is_empty()));
    assert_ne!(web["class"], small["class"]);
}

#[test]
fn a_class_has_the_same_name_in_every_run() {
    let cluster = Cluster::default().node("n", json!({})).pod("web", json!({}));
    let more = Cluster::default()
        .node("n", json!({}))
        .pod("db", requests(json!({"cpu": "3"})))
        .pod("web", json!({}));
    assert_eq!(cluster.explain(&[])[0]["class"], more.explain(&["default/web"])[0]["class"]);
}

#[test]
fn which_pods_are_explained_can_be_chosen() {
    let cluster = Cluster::default()
        .node("n", json!({}))
        .pod("ours", json!({}))
        .pod("theirs", json!({"schedulerName": "default-scheduler"}))
        .with(merged(pod("done", json!({})), json!({"status": {"phase": "Succeeded"}})))
        .bound("bound", "n", requests(json!({"cpu": "3"})));
    let of = |options: &[&str]| -> Vec<String> {
        let answers = cluster.explain(options);
        answers.iter().map(|answer| answer["pod"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(of(&[]), ["default/ours"]);
    assert_eq!(of(&["--all-pending"]), ["default/ours", "default/theirs"]);
    assert_eq!(of(&["--scheduler-name", "default-scheduler"]), ["default/theirs"]);
    assert_eq!(of(&["default/theirs"]), ["default/theirs"]);
    // As if it were not bound: it uses three of four cores.
    assert_eq!(names(&cluster.explain(&["default/bound"])[0]["feasible"]), ["n"]);
    let missing = explain(&["default/nobody"], cluster.dump().as_bytes());
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("there is no pod default/nobody"), "{}", missing.err);
    for wrong in [&["nobody"][..], &["default/theirs", "--all-pending"], &["-o", "yaml"]] {
        assert_eq!(explain(wrong, cluster.dump().as_bytes()).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_pod_that_is_refused_fits_nowhere_for_that_reason() {
    let operator = json!([{"key": "a", "operator": "Near"}]);
    let answers =
        Cluster::default().node("n", json!({})).pod("odd", json!({"tolerations": operator})).explain(&[]);
    let refused = answers[0]["refused"].as_str().expect("a reason");
    assert!(refused.contains("spec.tolerations[0].operator"), "{refused}");
    assert_eq!(names(&answers[0]["feasible"]), [""; 0]);
    assert_eq!(names(&answers[0]["reasons"]["n"]), [refused]);
}

#[test]
fn a_member_of_a_gang_is_told_what_the_gang_waits_for() {
    let member = |gang: &str, index: u32| what_if::member(&format!("{gang}-{index}"), gang, "3");
    let cluster = Cluster::default()
        .node("a", json!({}))
        .node("b", json!({}))
        .with(what_if::gang("few", 2))
        .with(member("few", 0))
        .with(what_if::gang("pair", 2))
        .with(member("pair", 0))
        .with(member("pair", 1))
        .with(what_if::gang("wide", 3))
        .with(member("wide", 0))
        .with(member("wide", 1))
        .with(member("wide", 2))
        .pod("alone", requests(json!({"cpu": "3"})));
    let said = cluster.explain(&[]);
    let gang_of = |pod: &str| {
        let pod = said.iter().find(|answer| answer["pod"] == format!("default/{pod}")).expect("an answer");
        // Alone it would fit.
        assert_eq!(pod["feasible"].as_array().map(Vec::len), Some(2));
        pod["gang"].as_str().map(str::to_owned)
    };
    assert_eq!(gang_of("alone"), None);
    assert_eq!(gang_of("few-0").as_deref(), Some("Allocation default/few has 1 of 2 members"));
    for pod in ["pair-0", "pair-1"] {
        let fits = "Allocation default/pair: its 2 waiting pods fit together";
        assert_eq!(gang_of(pod).as_deref(), Some(fits));
    }
    let lacking = gang_of("wide-2").expect("a gang");
    assert!(
        lacking.starts_with("Allocation default/wide: 0/2 nodes are available: 2 Insufficient cpu.")
            && lacking.ends_with("default/wide must place 3 pods at once; 2 fit."),
        "{lacking}"
    );
    let table = explain(&["default/few-0"], cluster.dump().as_bytes()).out;
    assert!(table.contains("\n  gang: Allocation default/few has 1 of 2 members\n"), "{table}");
}

#[test]
fn pods_of_a_controller_are_spread_by_default_and_the_configuration_can_change_that() {
    let zone = |zone: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    let selector = json!({"matchLabels": {"app": "web"}});
    let web = |name: &str, spec: Value| {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": true}]);
        merged(pod(name, spec), json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": owner}}))
    };
    let cluster = Cluster::default()
        .node("a", zone("a"))
        .node("b", merged(zone("b"), json!({"status": {"allocatable": {"cpu": "2"}}})))
        .with(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": selector}}))
        .with(web("web-0", json!({"nodeName": "a"})))
        .with(web("web-1", requests(json!({"cpu": "1"}))));
    assert_eq!(names(&cluster.explain(&[])[0]["feasible"]), ["b", "a"], "the other zone is better");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("berth.yaml");
    let config = |text: &str| {
        std::fs::write(&file, text).expect("written");
        cluster.explain(&["--config", file.to_str().expect("text")])[0].clone()
    };
    let off = config("podTopologySpread: {defaultingType: List}");
    assert_eq!(names(&off["feasible"]), ["a", "b"], "the emptier node is better");
    let hard = config(
        "podTopologySpread: {defaultingType: List, defaultConstraints: \
         [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]}",
    );
    assert_eq!(names(&hard["feasible"]), ["b"]);
    assert_eq!(hard["reasons"]["a"], json!(["node(s) didn't match pod topology spread constraints"]));
    std::fs::write(&file, "agentz: 3").expect("written");
    let refused = explain(&["--config", file.to_str().expect("text")], b"");
    assert!(refused.code == 2 && refused.err.contains("agentz"), "{}", refused.err);
}

#[test]
fn volumes_and_claims_of_the_dump_are_read() {
    let zone = |zone: &str| json!({"metadata": {"labels": {"zone": zone}}});
    let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let claim =
        |name: &str| json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]});
    let answers = Cluster::default()
        .node("a", zone("a"))
        .node("b", zone("b"))
        .with(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "default", "name": "data", "uid": "claim"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
            "status": {"phase": "Bound"}}))
        .with(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default", "uid": "claim",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound"}}))
        .pod("db", claim("data"))
        .pod("lost", claim("nothing"))
        .explain(&[]);
    assert_eq!(names(&answers[0]["feasible"]), ["a"]);
    assert_eq!(answers[0]["reasons"]["b"], json!(["node(s) didn't match PersistentVolume's node affinity"]));
    assert_eq!(names(&answers[1]["feasible"]), [""; 0]);
    let why = answers[1]["reasons"]["a"][0].as_str().expect("a reason");
    assert!(why.contains("persistentvolumeclaim \"nothing\" not found"), "{why}");
}

#[test]
fn devices_of_the_dump_are_judged_request_by_request() {
    const V1: &str = "resource.k8s.io/v1";
    let slice = |node: &str, model: &str| {
        let device = json!({"name": "gpu-0", "attributes": {"model": {"string": model}}});
        json!({"apiVersion": V1, "kind": "ResourceSlice", "metadata": {"name": format!("{node}-gpus")},
            "spec": {"driver": "gpu.example.com", "nodeName": node, "devices": [device],
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
    };
    let large = "device.attributes['gpu.example.com'].model == 'large'";
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
        "selectors": [{"cel": {"expression": large}}]}});
    let claim = |name: &str, status: Value| {
        json!({"apiVersion": V1, "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
            "spec": {"devices": {"requests": [request]}}, "status": status})
    };
    let result = json!({"request": "gpu", "driver": "gpu.example.com", "pool": "taken", "device": "gpu-0"});
    let uses = |claim: &str| json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]});
    let answers = Cluster::default()
        .node("free", json!({}))
        .node("none", json!({}))
        .node("small", json!({}))
        .node("taken", json!({}))
        .with(json!({"apiVersion": V1, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}))
        .with(slice("free", "large"))
        .with(slice("small", "small"))
        .with(slice("taken", "large"))
        .with(claim("theirs", json!({"allocation": {"devices": {"results": [result]}}})))
        .with(claim("ours", json!({})))
        .pod("training", uses("ours"))
        .explain(&[]);
    assert_eq!(names(&answers[0]["feasible"]), ["free"]);
    let why = |node: &str| answers[0]["reasons"][node][1].as_str().expect("a second text").to_owned();
    assert_eq!(answers[0]["reasons"]["none"][0], "cannot allocate all claims");
    assert_eq!(why("none"), "request gpu of class gpu: the node has no device");
    assert_eq!(why("small"), "request gpu of class gpu: the selectors are false for its only device");
    assert_eq!(why("taken"), "request gpu of class gpu: wants 1 of 1 matching devices: 1 taken");
}

#[test]
fn the_table_is_no_wider_than_asked_and_groups_pods_and_nodes_that_are_alike() {
    let mut cluster = Cluster::default();
    for at in 0..30 {
        let taint = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
        let more = if at < 15 { json!({}) } else { json!({"spec": {"taints": taint}}) };
        cluster = cluster.node(&format!("node-{at:02}"), more);
    }
    for at in 0..40 {
        cluster = cluster.pod(&format!("web-{at:02}"), requests(json!({"cpu": "1"})));
    }
    let dump = cluster.dump();
    let table = explain(&[], dump.as_bytes());
    assert_eq!((table.code, &*table.err), (0, ""));
    assert!(table.out.starts_with("default/web-00, default/web-01, "), "{}", table.out);
    for expected in [
        " and 32 more",
        "(40 waiting pods)",
        "fits 15 of 30 nodes; the best is node-",
        "    node     taints  node affinity  pod affinity  spread  share  balance  images\n",
        "and 5 more",
        "15 node(s) had untolerated taint(s): node-15, node-16, node-17 and 12 more",
    ] {
        assert!(table.out.contains(expected), "no {expected:?} in\n{}", table.out);
    }
    assert!(table.out.lines().all(|line| line.len() <= 110), "{}", table.out);
    assert!(table.out.is_ascii() && !table.out.contains('\x1b'));
    let all = explain(&["--all-nodes"], dump.as_bytes()).out;
    assert!((0..30).all(|at| all.contains(&format!("node-{at:02}"))), "{all}");
    let berth = env!("CARGO_BIN_EXE_berth");
    let mut narrow = Command::new("sh");
    let narrow = narrow.args(["-c", &format!("COLUMNS=80 {berth} explain -f -")]);
    let narrow = run(narrow, dump.as_bytes()).out;
    assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
}

#[test]
fn under_the_name_of_a_kubectl_plugin_it_is_the_same_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin = folder.path().join("kubectl-berth");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), &plugin).expect("a link");
    let dump = Cluster::default().node("n", json!({})).pod("web", json!({})).dump();
    let ran = run(Command::new(&plugin).args(["explain", "-f", "-", "-o", "json"]), dump.as_bytes());
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.contains(r#""pod":"default/web""#), "{}", ran.out);
    let help = run(Command::new(&plugin).args(["explain", "--help"]), b"");
    assert!(help.code == 0 && help.out.contains("kubectl-berth explain"), "{}", help.out);
}
