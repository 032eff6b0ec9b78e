//! Benchmark of the engine with two tenants: how long the pods of one wait, while the other creates pods that are all of different
//! classes. There is no API server: a thread answers binds after a fixed time, and delivers the watch events of bound and deleted pods.
//!
//! `cargo bench -p berth-scheduler --bench tenants -- --help`

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use berth_model::{Amounts, Identity, Node, Peer, Pod, PodSpec, Usage};
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::engine::Engine;
use berth_scheduler::placement::{BindOutcome, Binding};
use berth_scheduler::scheduler::SchedulerConfig;
use berth_scheduler::testing::FakeOutlet;
use parking_lot::Mutex;

const HELP: &str = "\
Options of `cargo bench -p berth-scheduler --bench tenants --`:
  --nodes N      nodes (5000)
  --pods N       pods of the tenant who creates many classes (20000)
  --rate N       pods that this tenant creates in a second (2000)
  --seconds N    duration of each measurement (30)
  --limit N      maxWaitingClasses (its default)
  --only NAME    one measurement: alone, fit, nowhere or mixed";

const GIB: i64 = 1 << 30;
/// Classes of the ordinary tenant.
const WORKLOADS: usize = 10;
/// Pods that the ordinary tenant creates in a second.
const ORDINARY_RATE: u32 = 200;
/// Time from a pod's bind to its deletion.
const LIFETIME: Duration = Duration::from_secs(3);
/// Time in which the store answers a bind.
const BIND_TIME: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(50);
/// As `berth run` on a machine with this number of cores.
const AGENTS: u64 = 2;
/// The default of `cacheMemoryMiB`.
const CACHE_BYTES: usize = 256 << 20;
/// Pods of the ordinary tenant in this time are not measured: their lists are being built.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
struct Options {
    nodes: usize,
    pods: usize,
    rate: u32,
    seconds: u64,
    limit: usize,
    only: Option<String>,
}

/// What the pods with many classes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crowd {
    Alone,
    Fit,
    Nowhere,
    /// Every other pod fits.
    Mixed,
}

fn main() {
    let Some(options) = options() else {
        println!("{HELP}");
        return;
    };
    println!(
        "{} nodes, {AGENTS} agents; {ORDINARY_RATE} pods/s of {WORKLOADS} classes beside {} pods of as many classes, created at {}/s",
        options.nodes, options.pods, options.rate
    );
    println!(
        "{:<8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "crowd",
        "p50 ms",
        "p99 ms",
        "max ms",
        "unplaced",
        "of crowd",
        "misses",
        "evicted",
        "parked",
        "checks",
        "MiB"
    );
    for (name, crowd) in
        [("alone", Crowd::Alone), ("fit", Crowd::Fit), ("nowhere", Crowd::Nowhere), ("mixed", Crowd::Mixed)]
    {
        if options.only.as_deref().is_none_or(|only| only == name) {
            println!("{name:<8} {}", measure(&options, crowd));
        }
    }
}

fn options() -> Option<Options> {
    let limit = SchedulerConfig::default().max_waiting_classes;
    let mut options = Options { nodes: 5_000, pods: 20_000, rate: 2_000, seconds: 30, limit, only: None };
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        let value = args.next();
        let number = value.as_ref().and_then(|value| value.parse::<usize>().ok());
        match arg.as_str() {
            "--nodes" => options.nodes = number?,
            "--pods" => options.pods = number?,
            "--rate" => options.rate = number? as u32,
            "--seconds" => options.seconds = number? as u64,
            "--limit" => options.limit = number?,
            "--only" => options.only = Some(value?),
            _ => return None,
        }
    }
    Some(options)
}

/// What the threads of a measurement share.
#[derive(Default)]
struct Cluster {
    /// Pods without a node, and when they were created, by uid.
    waiting: Mutex<HashMap<Arc<str>, (Pod, Instant)>>,
    /// Times from creation to the decision, of the ordinary tenant.
    waited: Mutex<Vec<Duration>>,
    crowd_placed: AtomicU64,
    ended: AtomicBool,
}

impl Cluster {
    fn create(&self, engine: &Engine, pod: Pod) {
        self.waiting.lock().insert(pod.uid.clone(), (pod.clone(), Instant::now()));
        engine.apply_pod(pod);
    }

    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
}

fn measure(options: &Options, crowd: Crowd) -> String {
    let (to_store, decisions) = channel();
    let config = SchedulerConfig {
        max_waiting_classes: options.limit,
        preemption: true,
        reserve_after: Duration::from_secs(600),
        ..SchedulerConfig::default()
    };
    let cache = CacheLimits { bytes: CACHE_BYTES, age: Duration::from_secs(600), ..CacheLimits::unlimited() };
    let agents = (1..=AGENTS).map(|seed| AgentConfig { cache, seed }).collect();
    // The store's thread has ended when the measurement has.
    let bind = Box::new(move |binding| drop(to_store.send((binding, Instant::now()))));
    let outlet = Box::new(FakeOutlet { bind, ..FakeOutlet::default() });
    let (engine, threads) =
        Engine::start(config, agents, Estimator::default(), outlet).expect("threads start");
    for at in 0..options.nodes {
        engine.apply_node(node(at));
    }
    engine.retain_nodes(&(0..options.nodes).map(node_name).collect());
    engine.retain_pods(&Default::default());
    engine.set_term(Some(1));
    let before = resident_mib();
    let cluster = Cluster::default();
    let began = Instant::now();
    let statistics = std::thread::scope(|scope| {
        let (to, all) = (&engine, &cluster);
        scope.spawn(move || store(to, all, decisions));
        scope.spawn(|| {
            while !cluster.ended() {
                engine.tick();
                std::thread::sleep(TICK);
            }
        });
        scope.spawn(|| {
            at_rate(&cluster, options.rate, if crowd == Crowd::Alone { 0 } else { options.pods }, |at| {
                cluster.create(&engine, crowd_pod(at, crowd));
            });
        });
        let pods = options.seconds as usize * ORDINARY_RATE as usize;
        at_rate(&cluster, ORDINARY_RATE, pods, |at| cluster.create(&engine, ordinary_pod(at)));
        let statistics = engine.statistics();
        // The last ones get their time.
        std::thread::sleep(BIND_TIME * 100);
        cluster.ended.store(true, Relaxed);
        statistics
    });
    let memory = resident_mib() - before;
    let evicted: u64 = engine.cache_stats().iter().map(|stats| stats.evictions).sum();
    engine.stop();
    threads.join().expect("no agent panics");
    let left = (cluster.waiting.lock().values())
        .filter(|(pod, created)| &*pod.namespace == "ordinary" && *created > began + WARM_UP)
        .map(|(_, created)| created.elapsed())
        .collect::<Vec<_>>();
    let mut waited = std::mem::take(&mut *cluster.waited.lock());
    waited.extend(&left);
    waited.sort_unstable();
    let at = |q: f64| waited[((waited.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
    let counters = &statistics.counters;
    format!(
        "{:>9.2} {:>9.2} {:>9.1} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8.0}",
        at(0.5),
        at(0.99),
        at(1.0),
        left.len(),
        cluster.crowd_placed.load(Relaxed),
        counters.list_misses,
        evicted,
        statistics.parked_classes,
        counters.checks,
        memory
    )
}

/// Calls `body` with 0 to `count`, at this rate in a second.
fn at_rate(cluster: &Cluster, rate: u32, count: usize, body: impl Fn(usize)) {
    let began = Instant::now();
    for at in 0..count {
        if cluster.ended() {
            return;
        }
        let due = began + Duration::from_secs(1) * at as u32 / rate;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        body(at);
    }
}

/// Answers binds, and deletes bound pods at the end of their time, until the measurement has ended.
fn store(engine: &Engine, cluster: &Cluster, decisions: Receiver<(Binding, Instant)>) {
    let mut bound: VecDeque<(Arc<str>, Instant)> = VecDeque::new();
    let began = Instant::now();
    while !cluster.ended() {
        while let Some((uid, _)) = bound.front().filter(|(_, until)| *until <= Instant::now()) {
            engine.delete_pod(uid);
            bound.pop_front();
        }
        let (binding, decided) = match decisions.recv_timeout(Duration::from_millis(10)) {
            Ok(decision) => decision,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some((pod, created)) = cluster.waiting.lock().remove(&binding.uid) else {
            continue;
        };
        match &*pod.namespace == "ordinary" {
            true if created > began + WARM_UP => cluster.waited.lock().push(decided - created),
            true => {}
            false => drop(cluster.crowd_placed.fetch_add(1, Relaxed)),
        }
        std::thread::sleep((decided + BIND_TIME).saturating_duration_since(Instant::now()));
        engine.bind_finished(&binding, BindOutcome::Bound);
        engine.apply_pod(Pod { node_name: Some(binding.node.clone()), ..pod });
        bound.push_back((binding.uid, Instant::now() + LIFETIME));
    }
}

fn node_name(at: usize) -> Arc<str> {
    format!("node-{at}").into()
}

fn node(at: usize) -> Node {
    let allocatable = Amounts { cpu_milli: 32_000, memory: 128 * GIB, pods: 110, ..Amounts::default() };
    Node { name: node_name(at), allocatable, ..Node::default() }
}

fn ordinary_pod(at: usize) -> Pod {
    pod("ordinary", at, 100 + (at % WORKLOADS) as i64)
}

fn crowd_pod(at: usize, crowd: Crowd) -> Pod {
    let fits = match crowd {
        Crowd::Fit => true,
        Crowd::Mixed => at.is_multiple_of(2),
        Crowd::Alone | Crowd::Nowhere => false,
    };
    // Different memory makes a class as well as different CPU does.
    let mut pod = pod("crowd", at, if fits { 1 } else { 1_000_000 });
    let requests = Amounts { memory: GIB / 1024 + at as i64, ..pod.usage.requests };
    let usage = Arc::new(Usage { requests, ..Usage::clone(&pod.usage) });
    (pod.usage, pod.spec) = (usage.clone(), Ok(Arc::new(PodSpec { usage, ..PodSpec::default() })));
    pod
}

fn pod(namespace: &str, at: usize, cpu_milli: i64) -> Pod {
    let requests = Amounts { cpu_milli, memory: GIB / 8, pods: 1, ..Amounts::default() };
    let usage = Arc::new(Usage {
        requests,
        nonzero_cpu_milli: cpu_milli,
        nonzero_memory: requests.memory,
        ..Usage::default()
    });
    let identity = Identity { namespace: namespace.into(), ..Identity::default() };
    let name: Arc<str> = format!("{namespace}-{at}").into();
    Pod {
        uid: name.clone(),
        namespace: namespace.into(),
        name,
        scheduler_name: "berth".into(),
        generation: 1,
        peer: Arc::new(Peer { identity, ..Peer::default() }),
        usage: usage.clone(),
        spec: Ok(Arc::new(PodSpec { usage, ..PodSpec::default() })),
        ..Pod::default()
    }
}

/// Returns the memory of this process in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}
