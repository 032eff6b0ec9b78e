//! The page to watch, `/ui/`: in a real browser at the size of a large cluster, and from a real `berth run`, also through `berth ui`.

mod devtools;
mod tunnel;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth::fit::LiveFit;
use berth_model::{Amounts, Labels, Node, PerResource, Pod, PodOwner, ScheduledCondition};
use berth_rightsizing::recommend::{Workload, WorkloadSurplus};
use berth_scheduler::engine::Engine;
use berth_scheduler::testing::{pod, with_engine};
use berth_server::Served;
use berth_server::extender::Judge;
use berth_server::fit::FitEndpoint;
use berth_server::ui::{Feed, PageSources};
use berth_telemetry::RecommenderMetrics;
use berth_testenv::Process;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use serde_json::{Value, json};

use crate::explain::run;
use crate::report::browser::Screen;
use crate::report::{DESKTOP, PHONE, TEXT_SIZE_MIN};
use crate::serving::client::{Ca, in_seconds};
use crate::support::*;
use devtools::Browser;

const SOON: Duration = Duration::from_secs(60);
const NODES: usize = 5_000;
const PODS_EACH: usize = 10;
/// Changes of pods a second.
const CHURN: usize = 2_000;
/// Longest time in which the page may not answer a key or a pointer, on a machine that is fast enough.
const PAINT_MAX_MS: f64 = 100.0;
/// The same, in times of 50,000 squares that are only filled.
const PAINT_MAX_FILLS: f64 = 5.0;
const FILL: &str = "(() => {
    const context = document.createElement('canvas').getContext('2d');
    const began = performance.now();
    for (let at = 0; at < 50000; at += 1) {
        context.fillStyle = `rgb(${at % 256} 0 0)`;
        context.fillRect(at % 300, at % 150, 6, 6);
    }
    return performance.now() - began;
})()";
/// Bytes of the stream a second.
const STREAM_MAX: f64 = 50_000.0;

/// Lists a cluster of 5,000 nodes and 50,000 pods.
pub fn large_cluster(engine: &Engine) {
    for at in 0..NODES {
        let allocatable = Amounts { cpu_milli: 16_000, memory: 64 << 30, pods: 110, ..Amounts::default() };
        let labels: Labels = [
            ("topology.kubernetes.io/zone", format!("zone-{}", at % 3)),
            ("karpenter.sh/nodepool", ["general", "memory", "batch", "gpu"][at % 4].to_owned()),
        ]
        .into_iter()
        .collect();
        let unschedulable = at % 250 == 0;
        engine.apply_node(Node {
            name: node_name(at),
            labels,
            allocatable,
            unschedulable,
            ..Node::default()
        });
        for number in 0..PODS_EACH {
            let cpu = 100 * (1 + (at * 7 + number * 13) % 22) as i64;
            let mut resident = pod(&format!("{at}-{number}"), cpu);
            let usage = Arc::make_mut(&mut resident.usage);
            usage.requests.memory = (1 + (at * 5 + number * 3) % 9) as i64 * (1 << 30);
            engine.apply_pod(Pod { node_name: Some(node_name(at)), ..resident });
        }
    }
    // Twenty classes, of a ReplicaSet each.
    for at in 0..300 {
        let class = at % 20;
        let name = format!("search-{class}-{at}");
        let scheduled = ScheduledCondition {
            status: false,
            reason: "Unschedulable".into(),
            message: format!("0/5000 nodes are available: {} Insufficient cpu.", 5_000 - class).into(),
        };
        let owner = PodOwner {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: format!("search-{class}").into(),
        };
        engine.apply_pod(Pod {
            namespace: "shop".into(),
            gates: ["example.com/wait".into()].into(),
            created_s: jiff::Timestamp::now().as_second() - 400 + 19 * class,
            scheduled: Some(scheduled),
            owner: Some(owner),
            ..pod(&name, 500 + class)
        });
    }
}

/// Tells the engine that the lists of that cluster are complete.
pub fn complete_lists(engine: &Engine) {
    engine.retain_nodes(&(0..NODES).map(node_name).collect());
    let residents = (0..NODES).flat_map(|at| (0..PODS_EACH).map(move |number| format!("{at}-{number}")));
    let waiting = (0..300).map(|at| format!("search-{}-{at}", at % 20));
    engine.retain_pods(&residents.chain(waiting).map(Arc::from).collect());
}

fn node_name(at: usize) -> Arc<str> {
    format!("worker-{at:04}.example.internal").into()
}

/// Runs `body` while pods come and go.
fn with_churn(engine: &Engine, body: impl FnOnce()) {
    /// Ends the churn also when `body` panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| churn(engine, &stop));
        let _stop = Stop(&stop);
        body();
    });
}

/// Lets pods come and go until `stop`.
fn churn(engine: &Engine, stop: &AtomicBool) {
    let began = Instant::now();
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * CHURN as f64) as usize;
        for at in made..due {
            let (node, round) = (at % NODES, at / NODES);
            let uid = format!("churn-{node}");
            match round % 2 {
                0 => engine.apply_pod(Pod { node_name: Some(node_name(node)), ..pod(&uid, 2_000) }),
                _ => engine.delete_pod(&Arc::from(uid)),
            }
        }
        made = due;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A workload that requests more than recommended.
fn surplus(at: usize) -> WorkloadSurplus {
    let workload = Workload {
        namespace: "shop".into(),
        kind: "Deployment".into(),
        name: format!("service-{at}").into(),
    };
    let (cpu, memory) = (100 * (at as i64 + 5), (at as i64 + 3) << 30);
    WorkloadSurplus {
        workload,
        pods: at + 1,
        requested: PerResource { cpu, memory },
        recommended: PerResource { cpu: cpu / 3, memory: memory / 2 },
    }
}

/// Serves the engine as `berth run` does, on a port of this machine, while `body` runs.
fn served(engine: &Engine, agent: berth_scheduler::agent::AgentConfig, body: impl FnOnce(SocketAddr)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let recommender = Arc::new(RecommenderMetrics::default());
    recommender.workloads_request((0..40).map(surplus).collect());
    let sources = PageSources { recommender: Some(recommender), ..PageSources::default() };
    let feed = Arc::new(Feed::new(engine.clone(), sources, Arc::default()));
    let served = Served {
        metrics: Default::default(),
        health: Default::default(),
        judge: Arc::new(Judge::new(engine.clone(), agent)),
        extender: None,
        guard: None,
        mutate: None,
        fragmentation: None,
        ui: feed.clone(),
        fit: FitEndpoint {
            fitter: Arc::new(LiveFit::new(engine.clone(), agent, "berth".into())),
            counters: Arc::default(),
        },
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (address, server) = runtime.block_on(async {
        let listener =
            berth_server::listen(([127, 0, 0, 1], 0).into(), "healthAddress").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let stopped = async { drop(stopped.await) };
        let server = tokio::spawn(berth_server::serve(listener, served, false, stopped));
        tokio::spawn(feed.run(std::future::pending()));
        (address, server)
    });
    body(address);
    drop(stop);
    server.abort();
    runtime.shutdown_timeout(Duration::from_secs(5));
}

/// Returns the bytes of the first state and the bytes a second after it.
async fn measure_stream(address: SocketAddr, seconds: u64) -> (usize, f64) {
    let mut stream = http().get(format!("http://{address}/ui/stream")).send().await.expect("a stream");
    // The state comes at once, and what changes a second later.
    let mut first = 0;
    while let Ok(chunk) = tokio::time::timeout(Duration::from_millis(400), stream.chunk()).await {
        first += chunk.expect("no error").expect("more").len();
    }
    let (began, mut later) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        later += stream.chunk().await.expect("no error").expect("more").len();
    }
    (first, later as f64 / began.elapsed().as_secs_f64())
}

fn cpu_of_this_process() -> Duration {
    berth_telemetry::process::usage_of("self").expect("/proc").cpu
}

#[test]
fn with_5_000_nodes_and_50_000_pods_the_page_does_not_stutter_and_its_stream_is_thin() {
    needs!("chromium");
    let _quiet = wait_for(quiet_turn());
    with_engine(|engine, agent| {
        large_cluster(engine);
        with_churn(engine, || {
            served(engine, agent, |address| {
                let mut browser = Browser::start(Screen { height: 1_250, ..DESKTOP });
                browser.open(&format!("http://{address}/ui/"));
                browser.await_true("document.documentElement?.dataset.nodes === '5000'");
                browser.await_true("document.querySelector('#connection').dataset.state === 'live'");
                // Everything was drawn once: what follows are changes.
                let frames = "Number(document.documentElement.dataset.frames)";
                let before = browser.evaluate(frames).as_f64().expect("a number");
                browser.await_true(&format!("{frames} >= {}", before + 5.0));
                let mut number = |expression: &str| browser.evaluate(expression).as_f64().expect("a number");
                let (longest, fill) = (number("berthUi.longestPaintMs"), number(FILL));
                println!("the longest paint took {longest} ms, 50,000 squares take {fill} ms");
                assert!(longest < PAINT_MAX_MS.max(PAINT_MAX_FILLS * fill), "a paint took {longest} ms");

                browser.evaluate("document.querySelector('#heatmap').focus()");
                browser.press("ArrowRight");
                browser.await_true("document.querySelector('#node-details').textContent.includes('worker-')");
                browser.await_true("document.querySelectorAll('#queue-table tbody tr').length === 20");
                browser.await_true("document.querySelectorAll('#summary-table tbody tr').length === 12");
                browser
                    .await_true("document.querySelectorAll('#recommendations-table tbody tr').length === 30");
                for (of, expected) in [
                    ("#recommendations-table tbody tr", "Deployment service-39shop404.41.4742 GiB21 GiB"),
                    ("#recommendations-more", "10 more are not listed."),
                    (
                        "#recommendations-note",
                        "40 workloads; cores: 98 requested, 32.65 recommended; memory: 900 GiB requested, 450 GiB recommended",
                    ),
                ] {
                    let shown = browser.evaluate(&format!("document.querySelector('{of}').textContent"));
                    assert_eq!(shown, expected);
                }
                let summary = browser.evaluate("document.querySelector('#summary-table').textContent");
                let summary = summary.as_str().expect("text");
                for word in ["zone-0", "zone-2", "general", "gpu"] {
                    assert!(summary.contains(word), "{word} is not in {summary}");
                }
                assert!(browser.picture("large") > 50_000);
                for (screen, name) in [
                    (Screen { dark: true, height: 1_250, ..DESKTOP }, "large-dark"),
                    (Screen { height: 3_600, ..DESKTOP }, "large-tables"),
                    (Screen { height: 2_400, ..PHONE }, "large-phone"),
                ] {
                    browser.show_on(screen);
                    browser.await_true(&format!("innerWidth === {}", screen.width));
                    browser.await_true("document.documentElement.scrollWidth <= innerWidth");
                    assert!(browser.picture(name) > 30_000, "{name}");
                }
                let smallest = "Math.min(...[...document.querySelectorAll('main *')].filter(e => e.childNodes.length \
                                && e.getClientRects().length && e.textContent.trim()).map(e => parseFloat(getComputedStyle(e).fontSize)))";
                assert!(browser.evaluate(smallest).as_f64().is_some_and(|size| size >= TEXT_SIZE_MIN));
                assert_eq!(browser.console, [""; 0]);
                let foreign = format!(
                    "performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('http://{address}/ui/'))"
                );
                assert_eq!(browser.evaluate(&foreign), json!([]));
                drop(browser);

                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let (first, rate) = runtime.block_on(measure_stream(address, 5));
                println!("first state {first} bytes, then {rate:.0} bytes/s");
                assert!(
                    first > 200_000 && rate < STREAM_MAX && rate > 5_000.0,
                    "{first} bytes, then {rate} bytes/s"
                );
            });
        });
    });
}

#[test]
fn ten_viewers_cost_little() {
    let _quiet = wait_for(quiet_turn());
    with_engine(|engine, agent| {
        large_cluster(engine);
        with_churn(engine, || {
            served(engine, agent, |address| {
                const WATCHED: Duration = Duration::from_secs(5);
                let cost = |viewers: usize| {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(async {
                        let streams = (0..viewers).map(|_| async {
                            let url = format!("http://{address}/ui/stream");
                            http().get(url).send().await.expect("a stream")
                        });
                        let mut streams = futures::future::join_all(streams).await;
                        let read = |mut stream: reqwest::Response| async move {
                            while stream.chunk().await.expect("no error").is_some() {}
                        };
                        let all = futures::future::join_all(streams.drain(..).map(read));
                        let (from, began) = (std::cell::Cell::new(Duration::ZERO), Instant::now());
                        // The first second has the whole state.
                        let begin = async {
                            tokio::time::sleep(Duration::from_millis(1_500)).await;
                            from.set(cpu_of_this_process());
                            tokio::time::sleep(WATCHED).await;
                        };
                        tokio::select! { _ = all, if viewers > 0 => panic!("a stream ended"), () = begin => {} }
                        assert!(began.elapsed() < WATCHED * 3);
                        (cpu_of_this_process() - from.get()).as_secs_f64() / WATCHED.as_secs_f64()
                    })
                };
                let (none, one, ten) = (cost(0), cost(1), cost(10));
                let each = (ten - one) / 9.0;
                println!(
                    "cores without a viewer {none:.4}, with one {one:.4}, with ten {ten:.4}: {each:.4} for each further one"
                );
                // This process also reads what the ten get.
                assert!(each < 0.01, "{each} of a core for each viewer");
                assert!(ten - none < 0.2, "{none} cores without, {ten} with ten viewers");
            });
        });
    });
}

/// The events that a viewer gets in its first second, by name.
pub async fn first_events(address: SocketAddr) -> Vec<(String, Value)> {
    let mut stream = http().get(format!("http://{address}/ui/stream")).send().await.expect("a stream");
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while !text.ends_with("\n\n") || !text.contains("event: totals") {
        let chunk = stream.chunk().await.expect("no error").expect("more");
        text.push_str(std::str::from_utf8(&chunk).expect("text"));
    }
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data = data.strip_prefix("data: ").expect("data");
        (name.strip_prefix("event: ").expect("a name").to_owned(), serde_json::from_str(data).expect("JSON"))
    };
    text.split_terminator("\n\n").map(event).collect()
}

pub fn find<'a>(events: &'a [(String, Value)], name: &str) -> &'a Value {
    &events.iter().rfind(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name} in {events:?}")).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_berth_shows_its_nodes_and_why_pods_wait_and_its_end_waits_for_no_viewer() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_node(&client, "n0", json!({"cpu": "4", "memory": "8Gi", "pods": "110"}), json!({})).await;
    let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "north"}}});
    patch_node(&client, "n0", zone).await;
    let mut berth = Berth::start(&cluster.kubeconfig(), "");
    berth.await_ready().await;
    let pods = Pods { prefix: "web", requests: json!({"cpu": "1", "memory": "1Gi"}), ..Pods::default() };
    create_pods(&client, &Pods { count: 6, ..pods }, |_, _| {}).await;
    await_bound(&client, SOON, 4, |_| true).await;
    let address = berth.address().await;
    await_until(SOON, "two pods wait", async || {
        let events = first_events(address).await;
        let group = &find(&events, "queue")["groups"][0];
        group["message"].is_string() && group["pods"] == 2 && group["state"] == "parked"
    })
    .await;
    let events = first_events(address).await;
    assert_eq!(events[0].1["apiVersion"], "ui.berth.dev/v1");
    let node = &find(&events, "nodes")["nodes"][0];
    assert_eq!(
        (&node["name"], &node["zone"], &node["cpuMilli"]),
        (&json!("n0"), &json!("north"), &json!(4_000))
    );
    assert_eq!(find(&events, "use")["of"][1], 1_000, "all of the CPU is requested");
    let message = find(&events, "queue")["groups"][0]["message"].as_str().expect("text").to_owned();
    assert!(message.contains("Insufficient cpu"), "{message}");
    assert_eq!(find(&events, "totals")["queues"]["unschedulable"], 2);
    assert_eq!(find(&events, "totals")["leading"], true);

    let server = format!("http://{address}");
    for (view, expected) in [
        (
            "nodes",
            &["1 nodes · 4 pods bound · 2 wait", "queues: unschedulable 2", "north", "■■■■■■■■■■ 100%"][..],
        ),
        ("queue", &["default/web-", "parked", "Insufficient cpu"]),
        ("agents", &["requests"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let ran = run(command.args(["top", "--server", &server, "--once", "--view", view]), b"");
        assert_eq!(ran.code, 0, "{}", ran.err);
        expected.iter().for_each(|expected| assert!(ran.out.contains(expected), "{expected}:\n{}", ran.out));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let ran = run(command.args(["top", "--server", &server]), b"");
    assert!(ran.code == 2 && ran.err.contains("--once"), "{}", ran.err);

    let mut viewer = http().get(format!("http://{address}/ui/stream")).send().await.expect("a stream");
    await_until(SOON, "it is counted", async || berth.metric("berth_ui_viewers").await >= 1.0).await;
    assert!(berth.metric("berth_ui_bytes_total").await > 0.0);
    // Its stream comes to an end: the end of the process alone would break it off.
    let ended = async {
        loop {
            match viewer.chunk().await {
                Ok(Some(_)) => {}
                end => break end.map(|_| ()),
            }
        }
    };
    let (status, ended) = tokio::join!(berth.terminate(), ended);
    assert!(status.success(), "{status}");
    ended.expect("the stream ends before the process");
}

/// Starts `berth ui`, and returns its address.
async fn start_ui(log: PathBuf, options: &[&str]) -> (Process, SocketAddr) {
    let args = [&["ui", "--port", "0"], options].concat();
    let ui =
        Process::start("berth ui", Path::new(env!("CARGO_BIN_EXE_berth")), args, log).expect("it starts");
    let mut address = None;
    await_until(SOON, "the page has an address", async || {
        let said = ui.log().tail();
        address = said
            .split_once("is at http://")
            .and_then(|(_, rest)| rest.split_once("/ui/"))
            .map(|(address, _)| address.parse().expect("an address"));
        address.is_some()
    })
    .await;
    (ui, address.expect("just seen"))
}

#[tokio::test(flavor = "multi_thread")]
async fn over_https_the_page_is_for_who_may_read_it_and_berth_ui_brings_it_to_a_browser() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let rules = json!([{"nonResourceURLs": ["/ui/", "/ui/*"], "verbs": ["get"]}]);
    let role = json!({"metadata": {"name": "watcher"}, "rules": rules});
    crate::serving::access::create(Api::<ClusterRole>::all(client.clone()), role).await;
    let binding = json!({
        "metadata": {"name": "watcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "watcher"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "watcher"}],
    });
    crate::serving::access::create(Api::<ClusterRoleBinding>::all(client.clone()), binding).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let tokens = [
        crate::serving::access::account(&client, "watcher").await,
        crate::serving::access::account(&client, "stranger").await,
    ];
    let [watcher, stranger] = [file("watcher", &tokens[0]), file("stranger", &tokens[1])];
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let pair = servers.server(in_seconds(3_600));
    let serving = json!({
        "address": "127.0.0.1:0", "certFile": file("tls.crt", &pair.certificate), "keyFile": file("tls.key", &pair.key),
        "clientCaFile": file("clients.crt", &clients.certificate),
    });
    let berth = Berth::start(&cluster.kubeconfig(), &format!("serving: {serving}"));
    berth.await_ready().await;
    let server = format!("https://{}", berth.secure_address().await);
    let authority = file("servers.crt", &servers.certificate);

    let ask = |token: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(["ui", "--server", &server, "--port", "0", "--certificate-authority", &authority]);
        crate::explain::run(command.args(["--token-file", token]), b"")
    };
    let refused = ask(&stranger);
    assert!(refused.code == 1 && refused.err.contains("ClusterRole allows `get` of /ui/"), "{}", refused.err);
    let plain = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["ui", "--server", "http://127.0.0.1:1", "--token-file", &watcher])
        .output()
        .expect("berth runs");
    assert_eq!(plain.status.code(), Some(2), "a token over HTTP");

    let options = ["--server", &server, "--certificate-authority", &authority, "--token-file", &watcher];
    let (_ui, address) = start_ui(folder.path().join("ui.log"), &options).await;
    let events = first_events(address).await;
    assert_eq!(find(&events, "totals")["nodes"], 0);
    let page = http().get(format!("http://{address}/ui/")).send().await.expect("a page");
    assert!(page.headers()["content-security-policy"].to_str().expect("text").contains("default-src 'none'"));
    assert!(page.text().await.expect("text").contains("id=\"heatmap\""));
    // A page of another site, whose name resolves to this machine, cannot read with the token.
    let rebound =
        http().get(format!("http://{address}/ui/stream")).header("host", "example.com").send().await;
    assert_eq!(rebound.expect("an answer").status().as_u16(), 421);
    let elsewhere = http().get(format!("http://{address}/metrics")).send().await.expect("an answer");
    assert_eq!(elsewhere.status().as_u16(), 404);
}
