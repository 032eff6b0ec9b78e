//! Benchmarks of an agent alone, with the ledger in memory: the cost of a hit, of a miss, and per node.
//!
//! `cargo bench --bench agent` runs all sizes; `cargo bench --bench agent -- --quick` takes seconds. Times are of one
//! thread; the setup of a measurement (pods that come and go on nodes) is not measured.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_devices::{Device, DevicePools, PoolId, Reach, ResourceSlice};
use berth_kube_io::Interner;
use berth_model::{
    Amounts, DeviceAlternative, DeviceNeeds, DeviceRequest, DeviceRequests, Effect, Holding, Identity,
    LabelSelector, Labels, Node, NodeAffinity, NodeSelectorTerm, Operator, Peer, Pod, PodAffinity,
    PodSelector, PodSpec, PodTerm, PreferredTerm, Requirement, Shared, Spread, SpreadConstraint, Taint,
    Usage, WeightedPodTerm,
};
use berth_rightsizing::correlate::{CorrelatedResource, CorrelationSettings, Correlations, Window};
use berth_scheduler::agent::{Agent, AgentChoice, AgentConfig, CacheLimits, Rng};
use berth_scheduler::class::{Class, ClassContext, Classifier};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::inventory::{Ledger, NodeId, Row};
use berth_scheduler::live_selectors::LiveSelectors;
use berth_scheduler::placement::BindOutcome;
use berth_scheduler::rules::{PlacementSettings, still_admits};
use berth_scheduler::scheduler::{Action, Scheduler, SchedulerConfig, Settled};

const GIB: i64 = 1 << 30;
/// Constant, so that the age limit of the caches plays no role.
const NOW: Duration = Duration::ZERO;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (sizes, repeat): (&[usize], usize) = match quick {
        true => (&[5_000], 500),
        false => (&[5_000, 20_000, 100_000], 20_000),
    };
    println!("{:>7}  {:<54} {:>10} {:>24}", "nodes", "", "target", "measured");
    println!("{:>7}  {:<54} {:>10} {:>24}", "", "the clock itself", "", nanos(clock()));
    correlations(if quick { 5 } else { 31 });
    for &nodes in sizes {
        let mut bench = Bench::new(nodes);
        bench.hits(repeat);
        bench.misses(if quick { 5 } else { 31 });
        bench.memory();
        bench.claims(repeat);
        selectors(nodes, repeat);
        hopeless(nodes, if quick { 5 } else { 31 });
        for (classes, remembered) in [(1, 0), (1, 100_000), (10, 0), (10, 100_000)] {
            end_to_end(nodes, classes, if quick { 2_000 } else { 20_000 }, remembered);
        }
    }
}

/// Measures one pass over all pairs of 500 services with random walks: CPU, memory and network in windows of five minutes.
fn correlations(repeat: usize) {
    const SERVICES: usize = 500;
    const POINTS: usize = 20;
    let names: Vec<Arc<str>> = (0..SERVICES).map(|at| format!("service-{at}").into()).collect();
    let mut random = Rng(1);
    let mut known = Correlations::new(CorrelationSettings::default());
    let mut pass = |number: usize| {
        let from = (number * POINTS * 15) as f64;
        let mut window = Window::new(from, 15.0, POINTS, names.iter().cloned()).expect("a window");
        for name in &names {
            for resource in CorrelatedResource::ALL {
                let mut value = 1e4;
                for point in 0..POINTS {
                    value += (random.next() % 1_000) as f64 - 500.0;
                    window.add(name, resource, from + point as f64 * 15.0, value);
                }
            }
        }
        let began = Instant::now();
        let pass = black_box(known.observe(&window)).expect("it is the next one");
        black_box(known.hints());
        let took = began.elapsed();
        let all = 3 * SERVICES * (SERVICES - 1) / 2;
        assert!(pass.defined > all / 10 * 9, "flat series cost nothing: {pass:?}");
        took
    };
    let mut times: Vec<Duration> = (0..repeat).map(&mut pass).collect();
    let median = quantile(&mut times, 0.5) / 1e6;
    let what = "correlations of 500 services x 3, target in ms";
    report(SERVICES, what, Some(100.0), median, &format!("{median:.1} ms, {} KiB", known.heap_bytes() >> 10));
}

/// Measures a preemption without candidates, on full nodes with 30 pods each of three priorities: the class's list exists and is empty.
fn hopeless(nodes: usize, repeat: usize) {
    let mut ledger = Ledger::default();
    let allocatable = Amounts { cpu_milli: 3_000, memory: 32 * GIB, pods: 110, ..Amounts::default() };
    for at in 0..nodes {
        let name: Arc<str> = format!("node-{at}").into();
        ledger.apply_node(Node { name: name.clone(), allocatable, ..Node::default() });
        for pod in 0..30 {
            let holding = Holding { usage: usage(100, GIB / 4), priority: pod % 3 * 4, ..Holding::default() };
            ledger.bound(&format!("{at}-{pod}").into(), &name, &holding);
        }
    }
    let class = Classifier::default().classify(&plain(2_500).into(), &Identity::default(), 5);
    let mut agent = new_agent();
    agent.catch_up(ledger.inventory());
    assert!(matches!(agent.choose(&class, NOW, |_| {}), AgentChoice::Nowhere(_)));
    let survey = || {
        let began = Instant::now();
        let found = black_box(agent.survey(&class, 5, &[], NOW, |_| {}));
        assert!(found.is_ok_and(|survey| survey.candidates.is_empty()), "it must be hopeless");
        began.elapsed()
    };
    let mut times: Vec<Duration> = std::iter::repeat_with(survey).take(repeat).collect();
    let median = quantile(&mut times, 0.5) / 1e6;
    let target = (nodes == 5_000).then_some(2.0);
    let what = "a hopeless preemption, 30 pods a node, target in ms";
    report(nodes, what, target, median, &format!("{median:.2} ms"));
}

/// Prints one line; `target` and `measured` have the same unit.
fn report(nodes: usize, what: &str, target: Option<f64>, measured: f64, shown: &str) {
    let verdict = match target {
        Some(target) if measured <= target => "ok",
        Some(_) => "MISSED",
        None => "",
    };
    let target = target.map_or(String::new(), |target| format!("<= {target}"));
    println!("{nodes:>7}  {what:<54} {target:>10} {shown:>24}  {verdict}");
}

fn nanos(ns: f64) -> String {
    format!("{ns:.0} ns")
}

/// Returns the median time between two clock readings, in nanoseconds: part of every figure.
fn clock() -> f64 {
    let mut times: Vec<Duration> = (0..1001).map(|_| Instant::now().elapsed()).collect();
    quantile(&mut times, 0.5)
}

/// Returns a quantile in nanoseconds.
fn quantile(times: &mut [Duration], q: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * q) as usize].as_nanos() as f64
}

/// Returns a node of 4 CPUs and 32 GiB. Equal strings are shared, as for nodes that were read from the API server.
fn node(at: usize, texts: &mut Interner) -> Node {
    let labels = [
        ("kubernetes.io/arch", "amd64".to_owned()),
        ("kubernetes.io/hostname", format!("node-{at}")),
        ("kubernetes.io/os", "linux".to_owned()),
        ("node.kubernetes.io/instance-type", format!("type-{}", at % 4)),
        ("topology.kubernetes.io/region", "region".to_owned()),
        ("topology.kubernetes.io/zone", format!("zone-{}", at % 3)),
        ("example.com/disk", ["ssd", "hdd"][at / 3 % 2].to_owned()),
        ("example.com/generation", format!("{}", at % 7)),
        ("example.com/pool", format!("pool-{}", at % 10)),
        ("example.com/team", format!("team-{}", at % 20)),
    ];
    let taint = Taint { key: "dedicated".into(), value: "infra".into(), effect: Effect::NoSchedule };
    Node {
        name: format!("node-{at}").into(),
        labels: labels.into_iter().map(|(key, value)| (texts.text(key), texts.text(&value))).collect(),
        taints: (at % 100 == 99).then_some(taint).into_iter().collect(),
        allocatable: Amounts { cpu_milli: 4000, memory: 32 * GIB, ephemeral_storage: 100 * GIB, pods: 110 },
        ..Node::default()
    }
}

fn usage(cpu_milli: i64, memory: i64) -> Arc<Usage> {
    Arc::new(Usage {
        requests: Amounts { cpu_milli, memory, ephemeral_storage: 0, pods: 1 },
        nonzero_cpu_milli: cpu_milli,
        nonzero_memory: memory,
        ..Usage::default()
    })
}

/// Returns a pod with nothing but requests.
fn plain(cpu_milli: i64) -> PodSpec {
    PodSpec { usage: usage(cpu_milli, GIB / 4), containers: 1, ..PodSpec::default() }
}

/// Returns a pod with a resource claim for one device.
fn claiming(cpu_milli: i64) -> PodSpec {
    let selector = "device.driver == \"gpu.example.com\"".into();
    let alternative = DeviceAlternative {
        class: "gpu".into(),
        selectors: [selector].into(),
        count: Some(1),
        ..DeviceAlternative::default()
    };
    let request = DeviceRequest { name: "gpu".into(), alternatives: [alternative].into() };
    let claim = DeviceRequests { requests: [request].into(), constraints: [].into() };
    let needs = DeviceNeeds { unallocated: [Shared::new(claim)].into(), ..DeviceNeeds::default() };
    PodSpec { devices: Some(needs.into()), ..plain(cpu_milli) }
}

/// Returns a pod that requires two of the three zones, and prefers fast disks and nodes of another team.
fn choosy(cpu_milli: i64) -> PodSpec {
    let term = |key: &str, operator| NodeSelectorTerm {
        expressions: [Requirement { key: key.into(), operator }].into(),
        fields: [].into(),
    };
    let values = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
    let preferred = [
        (80, term("example.com/disk", Operator::In(values(&["ssd"])))),
        (20, term("example.com/team", Operator::NotIn(values(&["team-3", "team-4"])))),
    ];
    let zones = values(&["zone-0", "zone-1"]);
    PodSpec {
        node_affinity: NodeAffinity {
            required: Some([term("topology.kubernetes.io/zone", Operator::In(zones))].into()),
            preferred: preferred.map(|(weight, term)| PreferredTerm { weight, term }).into(),
            ..NodeAffinity::default()
        },
        ..plain(cpu_milli)
    }
}

fn new_agent() -> Agent {
    Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 1 })
}

/// A cluster in which every node has one pod of some size.
struct Bench {
    nodes: usize,
    ledger: Ledger,
    classifier: Classifier,
    rng: Rng,
    /// By node: a pod that comes and goes on it.
    guests: Vec<Arc<str>>,
    guest: Arc<Usage>,
}

impl Bench {
    fn new(nodes: usize) -> Self {
        let (mut ledger, mut texts, mut rng) = (Ledger::default(), Interner::default(), Rng(7));
        let sizes: Vec<_> = (0..20).map(|at| usage(100 * at, GIB / 4 * at)).collect();
        for at in 0..nodes {
            let node = node(at, &mut texts);
            let name = node.name.clone();
            ledger.apply_node(node);
            ledger.bound(&format!("resident-{at}").into(), &name, &sizes[(rng.next() % 20) as usize]);
        }
        Bench {
            nodes,
            ledger,
            classifier: Classifier::default(),
            rng,
            guests: (0..nodes).map(|at| format!("guest-{at}").into()).collect(),
            guest: usage(200, GIB),
        }
    }

    fn class(&mut self, spec: PodSpec) -> Arc<Class> {
        self.classifier.classify(&Arc::new(spec), &Identity::default(), 0)
    }

    /// Changes `count` nodes: a guest pod comes or goes on each.
    fn change(&mut self, count: usize) {
        let mut picked = Vec::with_capacity(count);
        while picked.len() < count {
            let at = (self.rng.next() % self.nodes as u64) as u32;
            if !picked.contains(&at) {
                picked.push(at);
            }
        }
        for at in picked {
            let uid = &self.guests[at as usize];
            if !self.ledger.discharge(uid) {
                let came = self.ledger.commit(uid, &self.guest, NodeId(at), |_| true);
                came.expect("the guest is not there and nothing is asked");
            }
        }
    }

    fn hits(&mut self, repeat: usize) {
        let class = self.class(plain(100));
        // The target is for choosing, at 5,000 and at 100,000 nodes; choosing and committing together meet it, too.
        let target_us = if self.nodes <= 5_000 { 3.0 } else { 5.0 };
        let target = |changed| (changed == 1).then_some(target_us);
        for changed in [1, 10, 100] {
            let times = self.hit(&class, changed, repeat / changed.min(10));
            self.report_us(&format!("hit, {changed} changed: catch up + choose"), target(changed), times);
        }
        for changed in [1, 10, 100] {
            let times = self.cycle(&class, changed, repeat / changed.min(10));
            self.report_us(
                &format!("hit, {changed} changed: catch up + choose + commit"),
                target(changed),
                times,
            );
        }
        let wide = PlacementSettings { candidate_width: 10, ..PlacementSettings::default() };
        let (spec, identity) = (class.spec.clone(), Identity::default());
        let context = ClassContext { placement: wide.into(), ..ClassContext::default() };
        let wide = self.classifier.classify_in(context, &spec, &identity, 0);
        let times = self.hit(&wide, 1, repeat);
        self.report_us("hit, 1 changed: catch up + choose among the best 10", None, times);
        let class = self.class(choosy(100));
        let times = self.hit(&class, 1, repeat);
        self.report_us("hit, 1 changed: same, class with node affinity", None, times);
    }

    /// Measures hits of a class with a resource claim, compared with one without.
    fn claims(&mut self, repeat: usize) {
        self.add_devices();
        let plain = self.class(plain(100));
        let mut without = self.hit(&plain, 1, repeat);
        let class = self.class(claiming(100));
        let times = self.hit(&class, 1, repeat);
        let most = 3.0 * quantile(&mut without, 0.5) / 1e3;
        self.report_us("hit, 1 changed: same, class with a resource claim", Some(most), times);
    }

    /// Gives each node 8 devices.
    fn add_devices(&mut self) {
        let mut pools = DevicePools::default();
        for at in 0..self.nodes {
            let name: Arc<str> = format!("node-{at}").into();
            let device = |at: usize| Device { name: format!("gpu-{at}").into(), ..Device::default() };
            pools.apply_slice(Arc::new(ResourceSlice {
                name: format!("slice-{at}").into(),
                pool: PoolId { driver: "gpu.example.com".into(), name: name.clone() },
                generation: 1,
                slices_of_pool: 1,
                reach: Reach::Node(name.clone()),
                devices: (0..8).map(device).collect(),
                counters: Default::default(),
            }));
            self.ledger.set_devices(&name, pools.on(&name), true);
        }
    }

    fn hit(&mut self, class: &Arc<Class>, changed: usize, repeat: usize) -> Vec<Duration> {
        let mut agent = new_agent();
        agent.catch_up(self.ledger.inventory());
        agent.choose(class, NOW, |_| {});
        let mut times = Vec::with_capacity(repeat);
        for _ in 0..repeat {
            self.change(changed);
            let start = Instant::now();
            let rows = agent.catch_up(self.ledger.inventory());
            black_box(agent.choose(class, NOW, |_| {}));
            times.push(start.elapsed());
            assert_eq!(rows, changed);
        }
        times
    }

    /// Measures as [`Bench::hit`], with the commit: one of the changed nodes is always the node chosen before.
    fn cycle(&mut self, class: &Arc<Class>, changed: usize, repeat: usize) -> Vec<Duration> {
        let uids: Vec<Arc<str>> = (0..repeat).map(|at| format!("placed-{at}").into()).collect();
        let mut agent = new_agent();
        agent.catch_up(self.ledger.inventory());
        agent.choose(class, NOW, |_| {});
        let mut times = Vec::with_capacity(repeat);
        for uid in &uids {
            self.change(changed - 1);
            let start = Instant::now();
            agent.catch_up(self.ledger.inventory());
            let AgentChoice::Node { node, seen } = agent.choose(class, NOW, |_| {}) else {
                panic!("the cluster is full: fewer repetitions, or larger nodes");
            };
            let admits = |row: &Row| still_admits(class, row, seen);
            let committed = self.ledger.commit(uid, &class.spec.usage, node, admits);
            times.push(start.elapsed());
            committed.expect("nothing happened in between");
        }
        for uid in &uids {
            self.ledger.discharge(uid);
        }
        times
    }

    fn misses(&mut self, repeat: usize) {
        let plain = [100, 150].map(|cpu| self.class(plain(cpu)));
        let choosy = [100, 150].map(|cpu| self.class(choosy(cpu)));
        let [ints, affinity] = ["integer rules", "node affinity"];
        for (what, [class, sibling], target) in [(ints, plain, Some(150.0)), (affinity, choosy, None)] {
            let missing = self.miss(&class, None, repeat);
            self.report_a_node(&format!("miss, {what}, rule objects missing too"), target, missing);
            let present = self.miss(&class, Some(&sibling), repeat);
            self.report_a_node(&format!("miss, {what}, rule objects present"), target, present);
        }
    }

    /// Measures choosing for a class without a list; its rule objects exist if its `sibling` has a list.
    fn miss(&self, class: &Arc<Class>, sibling: Option<&Arc<Class>>, repeat: usize) -> Vec<Duration> {
        let time = |_| {
            let mut agent = new_agent();
            agent.catch_up(self.ledger.inventory());
            if let Some(sibling) = sibling {
                agent.choose(sibling, NOW, |_| {});
            }
            let start = Instant::now();
            black_box(agent.choose(class, NOW, |_| {}));
            start.elapsed()
        };
        (0..repeat).map(time).collect()
    }

    fn memory(&mut self) {
        let class = self.class(choosy(100));
        let mut agent = new_agent();
        agent.catch_up(self.ledger.inventory());
        agent.choose(&class, NOW, |_| {});
        let (list, common) = agent.list(class.id).map_or((0, 0), |list| list.bytes());
        let stats = agent.cache_stats();
        let object = (stats.bytes - list - common) / stats.objects;
        let line = |what: &str, target, bytes: usize| {
            let each = bytes as f64 / self.nodes as f64;
            report(self.nodes, what, target, each, &format!("{each:.1} B/node"));
        };
        line("memory of a list that classes share", Some(24.0), common);
        line("memory of what a class adds to it", None, list);
        line("memory of a rule object", None, object);
        // A row, and its link in each of the view's two journals.
        line("memory of the view's rows", None, agent.view().bytes());
    }

    fn report_us(&self, what: &str, target_us: Option<f64>, mut times: Vec<Duration>) {
        let [p50, p99] = [0.5, 0.99].map(|q| quantile(&mut times, q) / 1e3);
        let shown = format!("p50 {p50:.2} p99 {p99:.2} us");
        report(self.nodes, what, target_us, p50, &shown);
    }

    fn report_a_node(&self, what: &str, target_ns: Option<f64>, mut times: Vec<Duration>) {
        let p50 = quantile(&mut times, 0.5);
        let each = p50 / self.nodes as f64;
        let shown = format!("{:.2} ms, {each:.1} ns/node", p50 / 1e6);
        report(self.nodes, what, target_ns, each, &shown);
    }
}

/// Number of applications, each with its own selector.
const APPS: usize = 200;

/// Returns a pod of one application, with a term that selects pods of the same application.
fn mate(app: usize, texts: &mut Interner) -> (PodSpec, Arc<Peer>) {
    let name = texts.text(&format!("app-{app}"));
    let requirement = Requirement { key: "app".into(), operator: Operator::In([name.clone()].into()) };
    let selector = PodSelector {
        namespaces: [texts.text("default")].into(),
        namespace_selector: LabelSelector::Nothing,
        labels: LabelSelector::All([requirement].into()),
    };
    let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    let term = |key: &str| PodTerm { selector: selector.clone(), topology_key: key.into() };
    let spread = |key: &str, hard| SpreadConstraint {
        topology_key: key.into(),
        max_skew: if hard { 1 } else { 3 },
        min_domains: 1,
        hard,
        selector: selector.clone(),
        self_match: true,
        honor_affinity: true,
        honor_taints: false,
    };
    let mut affinity = PodAffinity::default();
    let mut constraints = Vec::new();
    match app % 5 {
        0 => constraints.push(spread(zone, true)),
        1 => affinity.preferred = [WeightedPodTerm { weight: 10, term: term(zone) }].into(),
        2 => affinity.required = [term(zone)].into(),
        3 => affinity.required_anti = [term(host)].into(),
        _ => constraints.extend([spread(zone, false), spread(host, false)]),
    }
    let affinity = Arc::new(affinity);
    let identity = Identity {
        namespace: texts.text("default"),
        namespace_labels: Labels::default(),
        labels: [(texts.text("app"), name)].into_iter().collect(),
    };
    let spread = Spread { constraints: constraints.into(), defaulted: false };
    let spec = PodSpec { pod_affinity: affinity.clone(), spread, ..plain(100) };
    (spec, Arc::new(Peer { identity, terminating: false, affinity, ..Peer::default() }))
}

/// Measures placing a pod while pods of many applications come and go, two and a half per node: in a burst of one class, and
/// with classes in random order.
fn selectors(nodes: usize, repeat: usize) {
    let (mut ledger, mut texts, mut rng) = (Ledger::default(), Interner::default(), Rng(11));
    let mut classifier = Classifier::default();
    (0..nodes).for_each(|at| {
        ledger.apply_node(node(at, &mut texts));
    });
    let mates: Vec<_> = (0..APPS).map(|app| mate(app, &mut texts)).collect();
    let mut live = LiveSelectors::default();
    mates.iter().for_each(|(spec, _)| live.add(&"default".into(), &spec.pod_affinity));
    let apps: Vec<(Arc<Class>, Holding)> = (mates.into_iter())
        .map(|(spec, peer)| {
            let holding = Holding { usage: spec.usage.clone(), peer: peer.clone(), ..Holding::default() };
            let context =
                ClassContext { selected_by: live.selecting(&peer.identity), ..ClassContext::default() };
            (classifier.classify_in(context, &Arc::new(spec), &peer.identity, 0), holding)
        })
        .collect();
    let mut agent = new_agent();
    let mut next = 0u64;
    let mut pods: Vec<Arc<str>> = Vec::new();
    let mut place = |ledger: &mut Ledger, agent: &mut Agent, app: usize, pods: &mut Vec<Arc<str>>| {
        let (class, holding) = &apps[app];
        next += 1;
        let uid: Arc<str> = format!("pod-{next}").into();
        let start = Instant::now();
        agent.catch_up(ledger.inventory());
        let AgentChoice::Node { node, seen } = agent.choose(class, NOW, |_| {}) else {
            panic!("app {app} fits nowhere");
        };
        let admitted = agent.still_admits(class.id, node, ledger.inventory());
        let fits = |row: &Row| admitted && still_admits(class, row, seen);
        ledger.commit(&uid, holding, node, fits).expect("nothing happened in between");
        let took = start.elapsed();
        pods.push(uid);
        took
    };
    for at in 0..nodes * 5 / 2 {
        place(&mut ledger, &mut agent, at % APPS, &mut pods);
    }
    // A list catches up on missed changes when it is used, unless its agent was idle before.
    for (what, burst, idle) in [
        ("in bursts of 100 of a class", 100, false),
        ("classes in turn, idle in between", 1, true),
        ("classes in turn, never idle", 1, false),
    ] {
        let mut times = Vec::with_capacity(repeat);
        while times.len() < repeat {
            let app = (rng.next() % APPS as u64) as usize;
            for _ in 0..burst {
                let gone = (rng.next() % pods.len() as u64) as usize;
                ledger.discharge(&pods.swap_remove(gone));
                times.push(place(&mut ledger, &mut agent, app, &mut pods));
            }
            if idle {
                agent.catch_up(ledger.inventory());
                while agent.repair_one() {}
            }
        }
        let [p50, p99] = [0.5, 0.99].map(|q| quantile(&mut times, q) / 1e3);
        let target = (nodes == 20_000).then_some(20.0);
        let shown = format!("p50 {p50:.2} p99 {p99:.2} us");
        report(nodes, &format!("200 selectors, a pod replaced, {what}"), target, p50, &shown);
    }
    let bytes = agent.cache_stats().bytes as f64 / (1 << 20) as f64;
    report(nodes, "memory of its 200 lists and what they count", None, bytes, &format!("{bytes:.0} MiB"));
}

/// Measures the whole scheduler with one agent, and a store that accepts every bind at once, all in one thread. `remembered`: number of
/// decisions that it remembers.
fn end_to_end(nodes: usize, classes: usize, pods: usize, remembered: usize) {
    let config = SchedulerConfig { remembered_decisions: remembered, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config, Estimator::default());
    let mut shared = Interner::default();
    for at in 0..nodes {
        scheduler.apply_node(node(at, &mut shared));
    }
    let names = scheduler.inventory().node_names().cloned().collect();
    scheduler.retain_nodes(&names);
    scheduler.retain_pods(&Default::default());
    scheduler.set_leading(true);
    let mut spec_of = |at: usize| shared.spec(plain(100 + (at % classes) as i64));
    let arriving: Vec<Pod> = (0..pods).map(|at| pod(at, spec_of(at))).collect();

    let start = Instant::now();
    for pod in arriving {
        scheduler.apply_pod(pod, start.elapsed());
    }
    let arrived = start.elapsed();
    drive(&mut scheduler, start);
    let took = start.elapsed();
    assert_eq!(scheduler.stats().scheduled, pods as u64);
    let each = |took: Duration| took.as_secs_f64() * 1e6 / pods as f64;
    let shown = format!("{:.0} pods/s", pods as f64 / took.as_secs_f64());
    let (arrival, placing) = (each(arrived), each(took - arrived));
    let why = if remembered > 0 { ", decisions remembered" } else { "" };
    let what =
        format!("scheduler, {classes:>2} classes{why} ({arrival:.1} us arrival + {placing:.1} us a pod)");
    report(nodes, &what, None, 0.0, &shown);
    if remembered > 0 {
        let memory = scheduler.decisions();
        let (bytes, count) = (memory.bytes() as f64 / (1 << 20) as f64, memory.len());
        report(
            nodes,
            &format!("memory of {count} decisions, room for {remembered}"),
            Some(32.0),
            bytes,
            &format!("{bytes:.1} MiB"),
        );
    }
}

/// Places pods until no work is left.
fn drive(scheduler: &mut Scheduler, start: Instant) {
    let mut agent = new_agent();
    let mut laps = Vec::new();
    while let Some(task) = scheduler.next_task(0, start.elapsed()) {
        loop {
            agent.catch_up(scheduler.inventory());
            laps.clear();
            let mut last = Instant::now();
            let answer = task.carry_out(&mut agent, start.elapsed(), |part| {
                let now = Instant::now();
                laps.push((part, now - std::mem::replace(&mut last, now)));
            });
            scheduler.learn(0, &task, &laps, &agent.cache_changes());
            let seen = agent.revision();
            if scheduler.settle(0, &mut agent, &task, answer, seen, start.elapsed()) == Settled::Done {
                break;
            }
        }
        for action in scheduler.take_actions() {
            if let Action::Bind(binding) = action {
                scheduler.bind_finished(&binding, BindOutcome::Bound, start.elapsed());
            }
        }
    }
}

fn pod(at: usize, spec: Arc<PodSpec>) -> Pod {
    Pod {
        uid: format!("pod-{at}").into(),
        namespace: "default".into(),
        name: format!("pod-{at}").into(),
        scheduler_name: "berth".into(),
        generation: 1,
        usage: spec.usage.clone(),
        spec: Ok(spec),
        ..Pod::default()
    }
}
