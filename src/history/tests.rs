use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::recording::RunResult;
use berth_model::Packing;
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::rules::PlacementSettings;
use berth_scheduler::scheduler::SchedulerConfig;

/// Time of the first dump, in seconds since 1970.
const NOON: i64 = 1_790_000_000;

fn time(second: i64) -> String {
    jiff::Timestamp::from_second(NOON + second).expect("a time").to_string()
}

fn node(name: &str, cpu: &str, created: i64, heard: i64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "creationTimestamp": time(created)},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time(heard), "lastTransitionTime": time(created)}],
        },
    })
}

fn pod(name: &str, cpu: &str, created: i64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "creationTimestamp": time(created)},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending"},
    })
}

fn on(node: &str, scheduled: i64, mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod["status"] = json!({
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": time(scheduled)}],
        "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": time(scheduled)}}}],
    });
    pod
}

fn ended(second: i64, mut pod: Value) -> Value {
    pod["status"]["phase"] = "Succeeded".into();
    pod["status"]["containerStatuses"] =
        json!([{"name": "c", "state": {"terminated": {"finishedAt": time(second)}}}]);
    pod
}

fn list(items: &[Value]) -> Vec<u8> {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string().into_bytes()
}

fn of_dumps(dumps: &[Vec<u8>]) -> Result<ClusterHistory, HistoryError> {
    let mut history = DumpHistory::new(BTreeSet::new());
    dumps.iter().try_for_each(|dump| history.add(dump))?;
    history.finish()
}

fn settings(name: &str, packing: Packing) -> (String, SchedulerConfig, Vec<AgentConfig>) {
    let placement = PlacementSettings { packing, ..PlacementSettings::default() };
    let profiles = Arc::new(Arc::new(placement).into());
    let config = SchedulerConfig { preemption: true, profiles, ..SchedulerConfig::default() };
    (name.to_owned(), config, vec![AgentConfig { cache: CacheLimits::unlimited(), seed: 1 }])
}

fn lived(history: &ClusterHistory) -> Vec<RunResult> {
    let all = [settings("spread", Packing::LeastAllocated), settings("packed", Packing::MostAllocated)];
    let report = live(history, &all);
    assert_eq!(
        serde_json::to_value(&report).expect("JSON"),
        serde_json::to_value(live(history, &all)).expect("JSON"),
        "the same each time"
    );
    report.runs.into_iter().map(|run| run.result).collect()
}

#[test]
fn pods_between_two_dumps_come_and_are_placed_when_they_were_and_berth_places_them_anew() {
    let before =
        list(&[node("n0", "4", -1000, 0), on("n0", -500, pod("old", "3", -500)), pod("queued", "2", -5)]);
    let after = list(&[
        node("n0", "4", -1000, 100),
        node("n1", "4", 40, 100),
        on("n1", 50, pod("queued", "2", -5)),
        // Another scheduler was slow, and left it with the larger rest.
        on("n1", 70, pod("web", "1", 10)),
        pod("huge", "64", 20),
    ]);
    let history = of_dumps(&[before, after]).expect("a history");
    assert_eq!(history.scheduler_names, [Arc::from("default-scheduler")].into());
    let [happened, spread, _] = &lived(&history)[..] else { panic!("three runs") };
    assert_eq!((happened.pods, happened.placed, happened.waiting, happened.preempted), (3, 2, 1, None));
    assert_eq!((happened.wait_median, happened.wait_max), (60.0, 60.0));
    assert_eq!((spread.pods, spread.placed, spread.waiting, spread.preempted), (3, 2, 1, Some(0)));
    // One CPU was free for web all the time; queued waits for the new node.
    assert_eq!((spread.wait_median, spread.wait_max), (40.0, 40.0));
    // `old` is gone at the time of the second dump only.
    assert!((happened.nodes_in_use - 1.5).abs() < 0.02, "{happened:?}");
    let requested = [40.0 * 3.0 / 4.0, 10.0 * 3.0 / 8.0, 20.0 * 5.0 / 8.0, 30.0 * 6.0 / 8.0];
    let mean = requested.into_iter().sum::<f64>() / 100.0;
    assert!((happened.cpu_requested - mean).abs() < 0.01, "{happened:?}, not {mean}");
}

#[test]
fn a_pod_that_ended_runs_as_long_and_static_pods_and_those_of_before_do_not_arrive() {
    let mut of_kubelet = on("n0", 30, pod("kube-proxy", "1", 30));
    of_kubelet["metadata"]["ownerReferences"] =
        json!([{"kind": "Node", "name": "n0", "apiVersion": "v1", "uid": "n"}]);
    let past = ended(-20, on("n0", -90, pod("past", "1", -100)));
    let before = list(&[node("n0", "3", -1000, 0), past.clone()]);
    let batch = |name: &str| pod(name, "2", 10);
    let first = ended(60, on("n0", 10, batch("first")));
    let later = list(&[
        node("n0", "3", -1000, 100),
        past,
        first.clone(),
        ended(90, on("n0", 61, batch("second"))),
        of_kubelet.clone(),
    ]);
    let last = list(&[node("n0", "3", -1000, 200), first, of_kubelet]);
    let [happened, spread, _] = &lived(&of_dumps(&[before, later, last]).expect("a history"))[..] else {
        panic!()
    };
    assert_eq!((happened.pods, happened.placed, happened.waiting), (2, 2, 0));
    assert_eq!((happened.wait_median, happened.wait_max), (51.0, 51.0));
    // Berth starts the second when the first has run its 50 seconds.
    assert_eq!((spread.pods, spread.placed, spread.wait_max), (2, 2, 50.0));
}

#[test]
fn what_berth_packs_needs_fewer_nodes() {
    let nodes =
        |heard| [node("n0", "8", -1000, heard), node("n1", "8", -1000, heard), node("n2", "8", -1000, heard)];
    let before = list(&nodes(0));
    let pods = ["a", "b", "c"].map(|name| pod(name, "2", 1));
    let placed = [("n0", 0), ("n1", 1), ("n2", 2)].map(|(node, of)| on(node, 2, pods[of].clone()));
    let after = list(&[&nodes(500)[..], &placed[..]].concat());
    let history = of_dumps(&[before, after]).expect("a history");
    let [happened, spread, packed] = &lived(&history)[..] else { panic!() };
    assert!(happened.nodes_in_use > 2.9 && spread.nodes_in_use > 2.9, "{happened:?}, {spread:?}");
    assert!(packed.nodes_in_use <= 1.0 && packed.free_cpu_on_empty_nodes > 0.7, "{packed:?}");
    let report = live(&history, &[settings("with packed.yaml", Packing::MostAllocated)]);
    let mut text = Vec::new();
    show_history(&report, &mut text).expect("written");
    let text = String::from_utf8(text).expect("text");
    assert!(text.starts_with("2 dumps, over 500 s\n"), "{text}");
    assert!(text.contains("as it happened  with packed.yaml\n"), "{text}");
    assert!(text.contains("preempted pods                        -                 0\n"), "{text}");
}

/// Six nodes, of which another scheduler spread the pods of two Deployments over; the node of the last pods came late.
fn example() -> ClusterHistory {
    let nodes = |count: usize, heard| (0..count).map(move |at| node(&format!("n{at}"), "8", -86_400, heard));
    let service = |prefix: &str, count: usize, cpu: &str, created: i64| -> Vec<Value> {
        (0..count).map(|at| pod(&format!("{prefix}-{at}"), cpu, created)).collect()
    };
    let placed = |pods: Vec<Value>, wait: i64, created: i64| {
        let place = |(at, pod)| on(&format!("n{}", at % 6), created + wait * at as i64, pod);
        pods.into_iter().enumerate().map(place).collect::<Vec<_>>()
    };
    let first: Vec<_> = nodes(6, 0).collect();
    let web = placed(service("web", 12, "1", 60), 1, 61);
    let search = placed(service("search", 6, "2", 400), 3, 402);
    let second: Vec<_> = nodes(6, 300).chain(web.clone()).collect();
    let third: Vec<_> = nodes(6, 600).chain(web).chain(search).chain([pod("train-0", "8", 450)]).collect();
    of_dumps(&[first, second, third].map(|dump| list(&dump))).expect("a history")
}

#[test]
fn the_example_of_the_page_is_what_is_printed() {
    let report = live(&example(), &[settings("with packed.yaml", Packing::MostAllocated)]);
    let mut text = Vec::new();
    show_history(&report, &mut text).expect("written");
    let text = String::from_utf8(text).expect("text");
    let page = include_str!("../../docs/replay.md");
    assert!(page.contains(&format!("```\n{text}```\n")), "docs/replay.md lacks\n{text}");
}

#[test]
fn dumps_in_the_wrong_order_or_without_times_are_refused() {
    let at = |second| list(&[node("n0", "4", -1000, second)]);
    let why = |dumps: &[Vec<u8>]| of_dumps(dumps).expect_err("an error").to_string();
    assert!(why(&[at(0)]).contains("name at least two"));
    assert!(why(&[at(1000), at(0)]).contains("older than the dump before it"));
    // What was latest may be gone, and kubelets are quiet for five minutes.
    assert_eq!(of_dumps(&[at(10), at(0)]).expect("a history").entries.last().expect("a tick").at, 0);
    let mut timeless = node("n0", "4", 0, 0);
    timeless["metadata"] = json!({"name": "n0"});
    timeless["status"]["conditions"] = json!([]);
    assert!(why(&[list(&[timeless])]).contains("nothing in it has a time"));
    assert!(why(&[b"{".to_vec()]).contains("is it cut off?"));
    assert!(why(&[list(&[pod("a", "1", 0)]), list(&[pod("a", "1", 0)])]).contains("no nodes"));
}

#[test]
fn a_successor_comes_when_its_predecessor_goes_and_a_pod_that_fails_without_a_node_is_gone() {
    let of = |uid: &str, mut pod: Value| {
        pod["metadata"]["uid"] = uid.into();
        pod
    };
    let before = list(&[
        node("n0", "4", -1000, 0),
        of("first", on("n0", -50, pod("db-0", "4", -50))),
        pod("doomed", "64", -5),
    ]);
    let mut doomed = pod("doomed", "64", -5);
    doomed["status"]["phase"] = "Failed".into();
    // Evicted: nothing says when its containers ended.
    let mut evicted = on("n0", 20, pod("evicted", "10m", 20));
    evicted["status"]["phase"] = "Failed".into();
    evicted["status"]["containerStatuses"] = json!([]);
    let after = list(&[
        node("n0", "4", -1000, 100),
        of("second", on("n0", 42, pod("db-0", "3", 40))),
        doomed,
        evicted,
    ]);
    let [happened, spread, _] = &lived(&of_dumps(&[before, after]).expect("a history"))[..] else { panic!() };
    for run in [happened, spread] {
        assert_eq!((run.pods, run.placed, run.waiting), (3, 2, 0), "{run:?}");
    }
    // Never both of db-0.
    assert_eq!((spread.wait_max, happened.wait_max), (20.0, 2.0));
    assert!(happened.cpu_requested < 0.9 && spread.cpu_requested < 0.9, "{happened:?}, {spread:?}");
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tracked {
    pod_spec_template_path: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    track_lifecycle: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    tracked_objects: HashMap<String, Tracked>,
}

#[derive(Serialize)]
struct Event {
    ts: i64,
    applied_objs: Vec<Value>,
    deleted_objs: Vec<Value>,
}

#[derive(Clone, Serialize)]
enum Life {
    Running(i64),
    Finished(i64, i64),
}

#[derive(Serialize)]
struct Trace2 {
    version: u16,
    config: Config,
    events: Vec<Event>,
    index: HashMap<String, HashMap<String, u64>>,
    pod_lifecycles: HashMap<(String, String), HashMap<u64, Vec<Life>>>,
}

#[derive(Serialize)]
struct PodData {
    lifecycle: Life,
}

#[derive(Serialize)]
struct Trace3 {
    version: u16,
    config: Config,
    events: Vec<Event>,
    index: HashMap<String, BTreeMap<String, BTreeMap<String, Vec<PodData>>>>,
}

const JOBS: &str = "batch/v1.Job";

fn config() -> Config {
    let tracked = |track_lifecycle| Tracked {
        pod_spec_template_path: Some("/spec/template".to_owned()),
        track_lifecycle,
    };
    let all = [("apps/v1.Deployment".to_owned(), tracked(false)), (JOBS.to_owned(), tracked(true))];
    Config { tracked_objects: all.into() }
}

fn workload(kind: &str, version: &str, name: &str, cpu: &str, spec: Value) -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}, "volumeMounts": [{"name": "data", "mountPath": "/d"}]});
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], "volumes": volumes}});
    let mut object = json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec,
    });
    object["spec"]["template"] = template;
    object
}

/// A Deployment of 3, then 1, then of larger pods, then deleted; a Job of 4 pods, two at once, which run 30 seconds each.
fn events() -> Vec<Event> {
    let web =
        |replicas: usize, cpu| workload("Deployment", "apps/v1", "web", cpu, json!({"replicas": replicas}));
    let job = workload("Job", "batch/v1", "sum", "1", json!({"completions": 4, "parallelism": 2}));
    let daemons = workload("DaemonSet", "apps/v1", "agent", "1", json!({}));
    let event = |ts, applied: &[Value], deleted: &[Value]| Event {
        ts: NOON + ts,
        applied_objs: applied.to_vec(),
        deleted_objs: deleted.to_vec(),
    };
    vec![
        event(0, &[web(3, "1"), daemons], &[]),
        event(10, &[job], &[]),
        event(40, &[web(1, "1")], &[]),
        event(60, &[web(1, "2")], &[]),
        event(100, &[], &[web(1, "2")]),
        event(200, &[], &[]),
    ]
}

fn lives() -> Vec<Life> {
    let life = |start: i64| Life::Finished(NOON + start, NOON + start + 30);
    vec![life(10), life(11), life(41), life(42)]
}

fn check(trace: &[u8]) {
    let cluster = list(&[node("n0", "8", -1000, 0), on("n0", -500, pod("resident", "1", -500))]);
    let history = from_simkube(trace, &cluster, BTreeSet::new()).expect("a history");
    assert_eq!(history.notes, ["pods of DaemonSets are left out: trace what they make"]);
    let [spread, packed] = &lived(&history)[..] else { panic!("nothing is known of what happened") };
    assert_eq!((spread.pods, spread.placed, spread.waiting), (8, 8, 0), "{spread:?}");
    assert_eq!(spread.cpu_requested, packed.cpu_requested, "one node");
    // CPU seconds of the resident, the Deployment, and the Job.
    let used = 200.0 + (3.0 * 40.0 + 20.0 + 2.0 * 40.0) + 4.0 * 30.0;
    assert!((spread.cpu_requested - used / (8.0 * 200.0)).abs() < 0.01, "{spread:?}, not {used}");
}

#[test]
fn a_trace_of_simkube_lets_workloads_scale_and_jobs_run_as_long_as_they_did() {
    let owner = (JOBS.to_owned(), "shop/sum".to_owned());
    let of_web = ("apps/v1.Deployment".to_owned(), "shop/web".to_owned());
    let (jobs, web) = (HashMap::from([(7, lives())]), HashMap::from([(8, vec![Life::Running(NOON)])]));
    let trace = Trace2 {
        version: 2,
        config: config(),
        events: events(),
        index: [(JOBS.to_owned(), [("shop/sum".to_owned(), 1234)].into())].into(),
        pod_lifecycles: [(owner, jobs), (of_web, web)].into(),
    };
    check(&rmp_serde::to_vec_named(&trace).expect("MessagePack"));
}

#[test]
fn a_trace_of_simkube_of_the_third_format_does_so_too() {
    let pods = lives().into_iter().map(|lifecycle| PodData { lifecycle }).collect();
    let of_job = [("shop/sum".to_owned(), [((NOON + 10).to_string(), pods)].into())].into();
    let trace =
        Trace3 { version: 3, config: config(), events: events(), index: [(JOBS.to_owned(), of_job)].into() };
    check(&rmp_serde::to_vec_named(&trace).expect("MessagePack"));
}

#[test]
fn a_workload_that_is_deleted_can_come_back_and_a_deleted_job_starts_no_more_pods() {
    let web = |replicas: usize| workload("Deployment", "apps/v1", "web", "1", json!({"replicas": replicas}));
    let job = |suspend| {
        let spec = json!({"completions": 100, "parallelism": 1, "suspend": suspend});
        workload("Job", "batch/v1", "sum", "1", spec)
    };
    let event = |ts, applied: &[Value], deleted: &[Value]| Event {
        ts: NOON + ts,
        applied_objs: applied.to_vec(),
        deleted_objs: deleted.to_vec(),
    };
    let by_name =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum", "namespace": "shop"}});
    let events = vec![
        // Both in one second.
        event(0, &[web(3), web(1), job(true)], &[]),
        event(20, &[job(false)], &[web(1)]),
        event(60, &[web(2)], &[]),
        event(65, &[], &[by_name]),
        event(100, &[], &[]),
    ];
    let lives = [Life::Finished(NOON, NOON + 10)].map(|lifecycle| PodData { lifecycle });
    let of_job = [("shop/sum".to_owned(), [(NOON.to_string(), lives.into())].into())].into();
    let trace = Trace3 { version: 3, config: config(), events, index: [(JOBS.to_owned(), of_job)].into() };
    let cluster = list(&[node("n0", "8", -1000, 0)]);
    let trace = rmp_serde::to_vec_named(&trace).expect("MessagePack");
    let history = from_simkube(&trace, &cluster, BTreeSet::new()).expect("a history");
    let [spread, _] = &lived(&history)[..] else { panic!() };
    // Those of the Job that came at 20, 30, 40, 50 and 60.
    assert_eq!((spread.pods, spread.waiting), (3 + 2 + 5, 0), "{spread:?}");
    let used = 20.0 + 2.0 * 40.0 + 5.0 * 10.0;
    assert!((spread.cpu_requested - used / 800.0).abs() < 0.02, "{spread:?}, not {used}");
    assert_eq!(history.entries.last().expect("a tick").at, 100_000_000_000);
}

#[test]
fn more_pods_than_anybody_has_are_refused() {
    let web = workload("Deployment", "apps/v1", "web", "1", json!({"replicas": 2_147_483_647}));
    let events = vec![Event { ts: i64::MIN, applied_objs: vec![web], deleted_objs: Vec::new() }];
    let trace = Trace3 { version: 3, config: config(), events, index: HashMap::new() };
    let trace = rmp_serde::to_vec_named(&trace).expect("MessagePack");
    let cluster = list(&[node("n0", "8", -1000, 0)]);
    let error = from_simkube(&trace, &cluster, BTreeSet::new()).expect_err("too many");
    assert_eq!(error.to_string(), "it has more than 500000 pods");
}

#[test]
fn what_is_no_trace_or_has_no_cluster_is_refused() {
    #[derive(Serialize)]
    struct Version {
        version: u16,
    }
    let cluster = list(&[node("n0", "8", -1000, 0)]);
    let why = |trace: &[u8], cluster: &[u8]| {
        from_simkube(trace, cluster, BTreeSet::new()).expect_err("an error").to_string()
    };
    let of_version = |version| rmp_serde::to_vec_named(&Version { version }).expect("MessagePack");
    assert!(why(&of_version(1), &cluster).contains("a trace of version 1, not 2 or 3"));
    assert!(why(&of_version(2), &cluster).contains("it is no trace of SimKube: "));
    assert!(why(&[0x81, 0xa1], &cluster).contains("it is no trace of SimKube: "));
    let trace = |events| Trace3 { version: 3, config: config(), events, index: HashMap::new() };
    let written = |trace: &Trace3| rmp_serde::to_vec_named(trace).expect("MessagePack");
    assert!(why(&written(&trace(Vec::new())), &cluster).contains("it has no events"));
    assert!(why(&written(&trace(events())), &list(&[])).contains("there are no nodes in it"));
}
