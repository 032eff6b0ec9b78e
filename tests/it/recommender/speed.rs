//! Cold start from Prometheus history, compared with upstream's recommender: the same cluster and data, one after the
//! other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Method, Response, Uri};
use berth_model::PerResource;
use berth_prometheus::PrometheusConfig;
use berth_rightsizing::recommend::propose::{Requests, propose};
use berth_rightsizing::recommend::{RecommenderSettings, Store, Vpa, Workload};
use berth_telemetry::process::usage_of;
use berth_test_support::prometheus::{Fake, RecordedRequest, vector};
use berth_testenv::binaries::go_tool;
use berth_testenv::{ControlPlane, Process};
use futures::{StreamExt, stream};

use super::*;
use crate::support::{Fate, Flaky};
use crate::usage::{Prometheus, start_with};

/// Number of namespaces, to which containers are assigned in turn.
const NAMESPACES: usize = 10;
const PODS_PER_NODE: usize = 100;

#[derive(Clone)]
struct Size {
    containers: usize,
    /// Each has a VPA of berth and one of upstream.
    workloads: usize,
    /// Seconds.
    resolution: i64,
    history: i64,
    /// Interval between two samples of a CPU counter: two in each window of a rate.
    cpu_every: i64,
    memory_every: i64,
}

impl Size {
    fn namespace(workload: usize) -> String {
        format!("team-{}", workload % NAMESPACES)
    }

    /// Namespace, workload and name of each pod.
    fn pods(&self) -> impl Iterator<Item = (String, String, String)> {
        let workloads = self.workloads;
        (0..self.containers).map(move |at| {
            let workload = format!("app-{:04}", at % workloads);
            let pod = format!("{workload}-7d4b9c6f5-{:05}", at / workloads);
            (Self::namespace(at % workloads), workload, pod)
        })
    }

    /// Writes cAdvisor's history until `now`.
    fn write_history(&self, out: &mut dyn Write, now: i64) -> std::io::Result<()> {
        let mut counters = String::new();
        let mut gauges = String::new();
        writeln!(out, "# TYPE container_cpu_usage_seconds counter")?;
        // Series by series, as blocks are built from them: only the order within a series matters.
        for (at, (namespace, _, pod)) in self.pods().enumerate() {
            let labels = format!(
                r#"{{namespace="{namespace}",pod="{pod}",container="app",id="/kubepods/burstable/pod{at:08}/c",job="kubelet",node="node-{}"}}"#,
                at / PODS_PER_NODE
            );
            counters.clear();
            let (mut total, cores) = (0.0, 0.05 + (at % 97) as f64 * 0.01);
            let first = now - self.history - 2 * self.cpu_every;
            for step in 0..=(self.history / self.cpu_every + 2) {
                total += cores * (1.0 + (step % 12) as f64 / 12.0) * self.cpu_every as f64;
                let time = first + step * self.cpu_every;
                let _ = writeln!(counters, "container_cpu_usage_seconds_total{labels} {total:.3} {time}");
            }
            out.write_all(counters.as_bytes())?;
        }
        writeln!(out, "# TYPE container_memory_working_set_bytes gauge")?;
        for (at, (namespace, _, pod)) in self.pods().enumerate() {
            let labels = format!(
                r#"{{namespace="{namespace}",pod="{pod}",container="app",id="/kubepods/burstable/pod{at:08}/c",job="kubelet",node="node-{}"}}"#,
                at / PODS_PER_NODE
            );
            gauges.clear();
            let first = now - self.history - self.memory_every;
            for step in 0..=(self.history / self.memory_every + 1) {
                let bytes = (100 + at as i64 % 201 * 5 + step % 24) * MI;
                let time = first + step * self.memory_every;
                let _ = writeln!(gauges, "container_memory_working_set_bytes{labels} {bytes} {time}");
            }
            out.write_all(gauges.as_bytes())?;
        }
        // Upstream reads the labels of pods from this.
        writeln!(out, "# TYPE kube_pod_labels gauge")?;
        for (namespace, workload, pod) in self.pods() {
            writeln!(
                out,
                r#"kube_pod_labels{{namespace="{namespace}",pod="{pod}",label_app="{workload}"}} 1 {now}"#
            )?;
        }
        writeln!(out, "# EOF")
    }

    /// Creates workloads, their VPAs, and their running pods.
    async fn create(&self, client: &Client) {
        let cluster = |kind: &GroupVersionKind, plural: &str, namespace: &str| -> Api<DynamicObject> {
            Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk_with_plural(kind, plural))
        };
        let deployment = GroupVersionKind::gvk("apps", "v1", "Deployment");
        let replica_set = GroupVersionKind::gvk("apps", "v1", "ReplicaSet");
        let vpa_kind = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        for at in 0..NAMESPACES {
            let namespace = json!({"metadata": {"name": Self::namespace(at)}});
            let namespace = serde_json::from_value(namespace).expect("a namespace");
            namespaces.create(&PostParams::default(), &namespace).await.expect("it is created");
        }
        let workloads = stream::iter(0..self.workloads).map(|at| {
            let (name, namespace) = (format!("app-{at:04}"), Self::namespace(at));
            let (deployments, replica_sets, vpas) = (
                cluster(&deployment, "deployments", &namespace),
                cluster(&replica_set, "replicasets", &namespace),
                cluster(&vpa_kind, "verticalpodautoscalers", &namespace),
            );
            async move {
                let spec = json!({
                    "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": {"app": name}},
                        "spec": {"containers": [{"name": "app", "image": "pause"}]},
                    },
                });
                let object = |kind: &str, name: &str, owners: Value| {
                    json!({
                        "apiVersion": "apps/v1", "kind": kind, "spec": spec,
                        "metadata": {"name": name, "ownerReferences": owners},
                    })
                };
                let made = create(&deployments, object("Deployment", &name, json!([]))).await;
                let owner = json!([{
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": made.metadata.uid,
                    "controller": true,
                }]);
                let set = format!("{name}-7d4b9c6f5");
                let made = create(&replica_sets, object("ReplicaSet", &set, owner)).await;
                create(&vpas, vpa(&format!("{name}-ours"), &name, "berth")).await;
                create(&vpas, vpa(&format!("{name}-theirs"), &name, "default")).await;
                (name, made.metadata.uid)
            }
        });
        let sets: BTreeMap<String, Option<String>> = workloads.buffer_unordered(32).collect().await;
        let pods = stream::iter(self.pods().enumerate()).map(|(at, (namespace, workload, name))| {
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{workload}-7d4b9c6f5"),
                "uid": sets[&workload], "controller": true,
            }]);
            let pod = json!({
                "metadata": {"name": name, "labels": {"app": workload}, "ownerReferences": owner},
                "spec": {
                    "nodeName": format!("node-{}", at / PODS_PER_NODE),
                    "containers": [{
                        "name": "app", "image": "pause",
                        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
                    }],
                },
            });
            async move {
                let pod = serde_json::from_value(pod).expect("a pod");
                api.create(&PostParams::default(), &pod).await.expect("the pod is created");
                let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
                api.patch_status(&name, &PatchParams::default(), &running).await.expect("it runs");
            }
        });
        pods.buffer_unordered(32).for_each(|()| async {}).await;
    }

    /// Waits until all VPAs of a side have a recommendation.
    async fn await_recommended(&self, client: &Client, suffix: &str) {
        let kind = GroupVersionKind::gvk("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler");
        let resource = ApiResource::from_gvk_with_plural(&kind, "verticalpodautoscalers");
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        await_until(Duration::from_secs(900), "all have a recommendation", async || {
            let found = all.list(&Default::default()).await.expect("VPAs");
            let done = found.items.iter().filter(|vpa| {
                let name = vpa.metadata.name.as_deref().unwrap_or_default();
                name.ends_with(suffix) && vpa.data["status"]["recommendation"].is_object()
            });
            done.count() == self.workloads
        })
        .await;
    }
}

/// Cost of a cold start.
struct Cost {
    wall: Duration,
    cpu: Duration,
    peak_mb: f64,
}

fn cost(pid: u32, began: Instant) -> Cost {
    let usage = usage_of(&pid.to_string()).expect("it runs");
    Cost { wall: began.elapsed(), cpu: usage.cpu, peak_mb: usage.peak_resident_bytes as f64 / 1e6 }
}

async fn upstream(control_plane: &ControlPlane, prometheus: &Prometheus, size: &Size) -> Cost {
    let program = tokio::task::spawn_blocking(|| go_tool("vpa-recommender")).await.expect("a thread");
    let folder = tempfile::tempdir().expect("a folder");
    let args = [
        format!("--kubeconfig={}", control_plane.kubeconfig().display()),
        "--storage=prometheus".to_owned(),
        format!("--prometheus-address={}", prometheus.url),
        "--prometheus-cadvisor-job-name=".to_owned(),
        format!("--history-length={}s", size.history),
        format!("--history-resolution={}s", size.resolution),
        "--container-pod-name-label=pod".to_owned(),
        "--container-name-label=container".to_owned(),
        "--pod-namespace-label=namespace".to_owned(),
        "--pod-name-label=pod".to_owned(),
        "--pod-label-prefix=label_".to_owned(),
        "--metric-for-pod-labels=kube_pod_labels[8d]".to_owned(),
        "--kube-api-qps=5000".to_owned(),
        "--kube-api-burst=5000".to_owned(),
        "--address=127.0.0.1:0".to_owned(),
    ];
    let began = Instant::now();
    let log = folder.path().join("log");
    let mut process = Process::start("vpa-recommender", &program.expect("upstream's recommender"), args, log)
        .expect("a shell");
    size.await_recommended(&control_plane.client(), "-theirs").await;
    let cost = cost(process.pid(), began);
    assert!(!process.has_exited(), "{}", process.log().tail());
    cost
}

async fn ours(control_plane: &ControlPlane, prometheus: &Prometheus, size: &Size) -> Cost {
    let config = format!(
        "recommender: {{enabled: true, storage: prometheus, prometheus: {{url: '{}', historyLength: {}s, historyResolution: {}s}}}}",
        prometheus.url, size.history, size.resolution
    );
    let began = Instant::now();
    let berth = Berth::start(&control_plane.kubeconfig(), &config);
    size.await_recommended(&control_plane.client(), "-ours").await;
    let cost = cost(berth.id(), began);
    for step in ["LoadVPAs", "LoadPast", "LoadPods", "LoadMetrics", "UpdateVPAs"] {
        let sum = format!(r#"vpa_recommender_execution_latency_seconds_sum{{step="{step}"}}"#);
        println!("{step}: {:.1} s", berth.metric(&sum).await);
    }
    cost
}

/// Measures Prometheus alone with berth's queries at berth's concurrency: answers are read and dropped.
async fn queries_alone(prometheus: &Prometheus, size: &Size) -> Duration {
    const SLICE: i64 = 12 * 3_600;
    let config = PrometheusConfig::default();
    let namespaces: Vec<String> = (0..NAMESPACES).map(Size::namespace).collect();
    let selector =
        format!(r#"{{namespace=~"{}", pod=~".+", container!="POD", container!=""}}"#, namespaces.join("|"));
    let by = "max by (namespace, pod, container)";
    let texts = [
        format!("{by} (rate({}{selector}[{}s]))", config.cpu_metric, size.resolution),
        format!("{by} ({}{selector})", config.memory_metric),
    ];
    let (http, url) = (reqwest::Client::new(), format!("{}/api/v1/query_range", prometheus.url));
    let end = Timestamp::now().as_second();
    let starts = (0..size.history / SLICE).map(|at| end - size.history + at * SLICE);
    let (http, url) = (&http, &url);
    let asked = starts.flat_map(|start| texts.iter().map(move |text| (start, text))).map(|(start, query)| {
        let end = start + SLICE - size.resolution;
        let form = [
            ("query", query.clone()),
            ("start", start.to_string()),
            ("end", end.to_string()),
            ("step", size.resolution.to_string()),
        ];
        async move {
            let mut answer = http.post(url).form(&form).send().await.expect("an answer");
            assert!(answer.status().is_success());
            while answer.chunk().await.expect("a piece").is_some() {}
        }
    });
    let began = Instant::now();
    let at_once = usize::try_from(config.parallelism).expect("few");
    stream::iter(asked).buffered(at_once).for_each(|()| async {}).await;
    began.elapsed()
}

async fn compare(size: Size) {
    let now = Timestamp::now().as_second();
    let prometheus = start_with(
        |out| size.write_history(out, now),
        &[&format!("--query.lookback-delta={}s", size.memory_every + 60)],
    )
    .await;
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    let nodes = Nodes { count: size.containers.div_ceil(PODS_PER_NODE), ..Nodes::default() };
    create_nodes(&client, &nodes).await;
    size.create(&client).await;
    let theirs = upstream(&control_plane, &prometheus, &size).await;
    let before = queries_alone(&prometheus, &size).await;
    let ours = ours(&control_plane, &prometheus, &size).await;
    let after = queries_alone(&prometheus, &size).await;
    println!("the queries alone: {:.1} s before, {:.1} s after", before.as_secs_f64(), after.as_secs_f64());
    for (name, cost) in [("upstream 1.8.1", &theirs), ("berth run", &ours)] {
        println!(
            "{name}: {:.1} s, {:.2} s CPU, {:.0} MB at most",
            cost.wall.as_secs_f64(),
            cost.cpu.as_secs_f64(),
            cost.peak_mb
        );
    }
    println!(
        "{} containers of {} workloads: CPU 1/{:.1}, memory 1/{:.1} of upstream's",
        size.containers,
        size.workloads,
        theirs.cpu.as_secs_f64() / ours.cpu.as_secs_f64(),
        theirs.peak_mb / ours.peak_mb
    );
    assert!(ours.cpu < theirs.cpu && ours.peak_mb < theirs.peak_mb);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and needs a quiet machine"]
async fn a_cold_start_with_ten_thousand_containers_is_cheaper_than_upstreams() {
    compare(Size {
        containers: 10_000,
        workloads: 2_000,
        resolution: 3_600,
        history: 8 * 86_400,
        cpu_every: 1_800,
        memory_every: 3_600,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and needs a quiet machine"]
async fn a_cold_start_with_a_point_a_minute_is_cheaper_than_upstreams() {
    // Prometheus rejects queries for more than 11,000 points of a series, and upstream asks for them in one query.
    compare(Size {
        containers: 1_000,
        workloads: 1_000,
        resolution: 60,
        history: 7 * 86_400,
        cpu_every: 30,
        memory_every: 240,
    })
    .await;
}

/// Returns the usage of the containers of the namespaces that are asked for.
fn usage(size: &Size, asked: &RecordedRequest) -> String {
    let namespaces = asked.query().split_once(r#"namespace=~""#).and_then(|(_, rest)| rest.split_once('"'));
    let Some((namespaces, _)) = namespaces.filter(|_| !asked.is_count()) else {
        return asked.answer();
    };
    let (namespaces, time): (Vec<&str>, _) = (namespaces.split('|').collect(), &asked.form["time"]);
    let value = if asked.is_cpu() { "0.25" } else { "209715200" };
    let pods = size.pods().filter(|(namespace, ..)| namespaces.contains(&&**namespace));
    let results = pods.map(|(namespace, _, pod)| {
        format!(r#"{{"metric":{{"namespace":"{namespace}","pod":"{pod}","container":"app"}},"value":[{time},"{value}"]}}"#)
    });
    vector(&results.collect::<Vec<_>>().join(","))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "creates 240,000 objects, and needs a quiet machine"]
async fn a_round_over_ten_thousand_workloads_takes_little_cpu_and_reads_little() {
    const INTERVAL: Duration = Duration::from_secs(20);
    const ROUNDS: u32 = 3;
    let size = Size {
        containers: 100_000,
        workloads: 10_000,
        resolution: 0,
        history: 0,
        cpu_every: 0,
        memory_every: 0,
    };
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    create_nodes(&client, &Nodes { count: size.containers / PODS_PER_NODE, ..Nodes::default() }).await;
    let began = Instant::now();
    size.create(&client).await;
    println!("workloads, VPAs and pods were created in {:.0} s", began.elapsed().as_secs_f64());
    let pods = size.clone();
    let fake = Fake::start(move |_, asked| Response::new(Body::from(usage(&pods, asked)))).await;
    let proxy = Flaky::start(client.clone(), |_, _, _| Fate::Pass).await;
    let config = format!(
        "recommender: {{enabled: true, interval: {}s, prometheus: {{url: '{}'}}}}",
        INTERVAL.as_secs(),
        fake.url
    );
    let berth = Berth::start(&proxy.kubeconfig(), &config);
    size.await_recommended(&client, "-ours").await;
    let done = async || berth.metric(r#"berth_recommender_rounds_total{result="done"}"#).await as u32;
    let after = async |rounds: u32| {
        let last = done().await + rounds;
        await_until(INTERVAL * (rounds + 3), "rounds are made", async || done().await >= last).await;
    };
    // The first ones write each status.
    after(2).await;
    let cpu = || usage_of(&berth.id().to_string()).expect("it runs").cpu;
    let (before, known, queried) = (cpu(), proxy.requests().len(), fake.asked().len());
    after(ROUNDS).await;
    let each = (cpu() - before).as_secs_f64() / f64::from(ROUNDS);
    let is_read = |(method, uri): &&(Method, Uri)| {
        *method == Method::GET && uri.query().is_none_or(|query| !query.contains("watch=true"))
    };
    let reads = proxy.requests()[known..].iter().filter(is_read).count() / ROUNDS as usize;
    let queries = (fake.asked().len() - queried) / ROUNDS as usize;
    let peak = usage_of(&berth.id().to_string()).expect("it runs").peak_resident_bytes as f64 / 1e6;
    println!(
        "{} workloads, {} pods: a round takes {each:.2} s of CPU, {reads} reads of the API server and {queries} queries; {peak:.0} MB \
         at most",
        size.workloads, size.containers
    );
    assert!(each <= 5.0 && reads <= 50, "{each} s, {reads} reads");
}

#[test]
#[ignore = "needs a quiet machine"]
fn a_pass_over_ten_thousand_aggregates_takes_a_tenth_of_a_second() {
    const AGGREGATES: usize = 10_000;
    const SECOND: i64 = 1_000_000_000;
    let resident = || usage_of("self").expect("this process").resident_bytes;
    let start = 1_760_000_000 * SECOND;
    let hours = 8 * 24;
    let vpa = Vpa::default();
    let before = resident();
    let mut store = Store::new(RecommenderSettings::default()).expect("the defaults");
    let workloads: Vec<Workload> = (0..AGGREGATES)
        .map(|at| Workload {
            namespace: format!("team-{}", at % NAMESPACES).into(),
            kind: "Deployment".into(),
            name: format!("app-{at:05}").into(),
        })
        .collect();
    for (at, workload) in workloads.iter().enumerate() {
        let uid = format!("00000000-0000-0000-0000-{at:012}").into();
        store.pod_runs(&uid, workload);
        for hour in 0..hours {
            let time = start + hour * 3_600 * SECOND;
            // A day of load that varies by a factor of three, as typical for services.
            let load = 100 + (hour % 24) * 8 + at as i64 % 7;
            store.add_cpu(&uid, "app", load, time, time).expect("a sample");
            let bytes = (200 + at as i64 % 100 + hour) * MI;
            store.add_memory(&uid, "app", bytes, time, time).expect("a sample");
        }
    }
    let (bytes, resident) = (store.aggregate_bytes(), resident() - before);
    let running: Requests = [("app".to_owned(), PerResource { cpu: 100, memory: 200 * MI })].into();
    let nodes = [PerResource { cpu: 64_000, memory: 256 << 30 }];
    let pass = || {
        let began = Instant::now();
        let proposed = workloads.iter().map(|workload| {
            propose(&vpa, &store, workload, (&running, &running), Default::default(), || nodes)
                .recommendations
                .len()
        });
        assert_eq!(proposed.sum::<usize>(), AGGREGATES);
        began.elapsed().as_secs_f64() * 1e3
    };
    let (first, mut times) = (pass(), [pass(), pass(), pass(), pass(), pass()]);
    times.sort_by(f64::total_cmp);
    println!(
        "{AGGREGATES} aggregates: first pass {first:.1} ms, then {:.1} ms; {} bytes each, {} with pods, keys and the allocator",
        times[2],
        bytes / AGGREGATES,
        resident as usize / AGGREGATES
    );
    assert!(bytes / AGGREGATES <= 600 && times[2] <= 100.0);
}
