use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    Difference, FORMAT, Opening, Pseudonyms, RecordError, RecordedWords, RecordingEntry, Replay, ReplayError,
    Tape, framed, parse, records,
};
use crate::agent::{Agent, AgentConfig, CacheLimits};
use crate::dispatch::Estimator;
use crate::engine::Engine;
use crate::hints::{Hint, SelectedPods};
use crate::objects::{ClusterObject, DisruptionBudget, ObjectKind, ObjectName, system_defaults};
use crate::placement::{BindOutcome, Binding, Truth};
use crate::profile::{Profile, Profiles};
use crate::queue::BackoffLimits;
use crate::repack::Residents;
use crate::rules::mix;
use crate::scheduler::{Eviction, Requester, SchedulerConfig, Share};
use crate::testing::FakeOutlet;
use berth_devices::{DeviceClass, PoolId};
use berth_model::{
    Amounts, DeviceConstraint, Identity, Image, LabelSelector, Labels, Node, NodeAffinity, NodeSelectorTerm,
    NodeSize, Operator, Peer, Pod, PodAffinity, PodOwner, PodSelector, PodSpec, PodTerm, Requirement, Usage,
};

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<Vec<u8>>>>);

impl Tape for Memory {
    fn write(&mut self, block: Vec<u8>) -> bool {
        self.0.lock().push(block);
        true
    }
}

impl Memory {
    /// Returns the opening and the entries.
    fn recorded(&self) -> (Opening, Vec<RecordingEntry>) {
        let blocks = self.0.lock().concat();
        let mut records = records(&blocks).map(|record| record.expect("whole records"));
        let opening = parse(records.next().expect("an opening")).expect("an opening");
        (opening, records.map(|record| parse(record).expect("an entry")).collect())
    }
}

/// A tape that is full from the beginning.
struct Full;

impl Tape for Full {
    fn write(&mut self, _: Vec<u8>) -> bool {
        false
    }
}

enum Told {
    Bind(Binding),
    Evict(Eviction),
}

/// Returns an outlet, and what it is told.
fn outlet() -> (Box<FakeOutlet>, Receiver<Told>) {
    let (to_binds, told) = channel();
    let to_evictions = to_binds.clone();
    // The receiver has ended when the test has.
    let bind = Box::new(move |binding| drop(to_binds.send(Told::Bind(binding))));
    let evict = Box::new(move |eviction| drop(to_evictions.send(Told::Evict(eviction))));
    (Box::new(FakeOutlet { bind, evict }), told)
}

/// A cluster that lives at random around an engine with three agents.
struct Life {
    engine: Engine,
    told: Receiver<Told>,
    seed: u64,
    drawn: u64,
    pods: BTreeMap<Arc<str>, Pod>,
    made: u64,
    /// No other replica has a share.
    is_alone: bool,
}

const NODES: u64 = 12;

impl Life {
    fn draw(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        mix(self.seed ^ mix(self.drawn)) % below
    }

    fn node(&mut self, at: u64) -> Node {
        let zone = format!("z{}", at % 3);
        let name: Arc<str> = format!("n{at}").into();
        Node {
            labels: [("zone", zone.as_str()), ("kubernetes.io/hostname", &*name)].into_iter().collect(),
            name,
            images: ["docker.io/app0", "registry.k8s.io/pause", "us.gcr.io/app1"]
                .map(|name| Image { name: name.into(), size_bytes: at as i64 * (100 << 20) })
                .into(),
            unschedulable: self.draw(8) == 0,
            allocatable: Amounts { cpu_milli: 4000, memory: 1 << 33, ephemeral_storage: 0, pods: 30 },
            ..Node::default()
        }
    }

    fn pod(&mut self) -> Pod {
        self.made += 1;
        let uid: Arc<str> = format!("p{}", self.made).into();
        let app = format!("app{}", self.draw(5));
        let cpu_milli = 100 + 300 * self.draw(6) as i64;
        let requests = Amounts { cpu_milli, memory: 1 << 20, pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, nonzero_cpu_milli: cpu_milli, ..Usage::default() });
        let apart = || {
            let requirement =
                Requirement { key: "app".into(), operator: Operator::any_of(vec![app.as_str().into()]) };
            let selector = PodSelector {
                namespaces: ["ns".into()].into(),
                labels: LabelSelector::All([requirement].into()),
                ..PodSelector::default()
            };
            PodTerm { selector, topology_key: "kubernetes.io/hostname".into() }
        };
        let anti: Box<[PodTerm]> = if self.draw(4) == 0 { [apart()].into() } else { [].into() };
        let affinity = Arc::new(PodAffinity { required_anti: anti, ..PodAffinity::default() });
        let identity = Identity {
            namespace: "ns".into(),
            labels: [("app", app.as_str())].into_iter().collect(),
            ..Identity::default()
        };
        let theirs = self.draw(6) == 0;
        // Of the values, `true` is one that the scheduler knows.
        let zones = Operator::any_of(vec!["a1".into(), "true".into(), "z0".into(), "z1".into()]);
        let zone = Requirement { key: "zone".into(), operator: zones };
        let term = NodeSelectorTerm { expressions: [zone].into(), ..NodeSelectorTerm::default() };
        let required = (self.draw(4) == 0).then(|| [term].into());
        let node_affinity = NodeAffinity { required, ..NodeAffinity::default() };
        let images = [["docker.io/app0", "us.gcr.io/app1"][self.draw(2) as usize].into()].into();
        let owner = PodOwner {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: format!("{app}-set").into(),
        };
        Pod {
            uid: uid.clone(),
            namespace: "ns".into(),
            name: uid,
            scheduler_name: if theirs { "default-scheduler".into() } else { "berth".into() },
            priority: self.draw(3) as i32 * 100,
            generation: 1,
            peer: Arc::new(Peer { identity, affinity: affinity.clone(), ..Peer::default() }),
            usage: usage.clone(),
            owner: Some(owner),
            spec: Ok(Arc::new(PodSpec {
                usage,
                pod_affinity: affinity,
                node_affinity,
                images,
                ..PodSpec::default()
            })),
            ..Pod::default()
        }
    }

    /// Applies the ReplicaSets of the pods.
    fn replica_sets(&self) {
        let sets = (0..5).map(|at| {
            let app: Arc<str> = format!("app{at}").into();
            let requirement =
                Requirement { key: "app".into(), operator: Operator::any_of(vec![app.clone()]) };
            let name = ObjectName { namespace: "ns".into(), name: format!("{app}-set").into() };
            let selector = LabelSelector::All([requirement].into());
            self.engine.apply_object(ClusterObject::Selecting {
                kind: ObjectKind::ReplicaSet,
                name: name.clone(),
                selector,
            });
            name
        });
        let names = sets.collect();
        self.engine.retain_objects(ObjectKind::ReplicaSet, &names);
    }

    /// Carries out what the engine has told so far.
    fn answer_all(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            self.answer(told);
        }
    }

    fn answer(&mut self, told: Told) {
        match told {
            Told::Bind(binding) => {
                let refused = self.draw(10) == 0;
                let Some(pod) = self.pods.get_mut(&binding.uid) else {
                    self.engine.bind_finished(&binding, BindOutcome::Vanished);
                    return;
                };
                if refused {
                    self.engine.bind_finished(&binding, BindOutcome::Refused("no luck".into()));
                    return;
                }
                pod.node_name = Some(binding.node.clone());
                let bound = pod.clone();
                self.engine.bind_finished(&binding, BindOutcome::Bound);
                self.engine.apply_pod(bound);
            }
            Told::Evict(eviction) => {
                let ended = if self.draw(4) == 0 { Err("its budget".to_owned()) } else { Ok(()) };
                let gone = ended.is_ok();
                self.engine.eviction_finished(&eviction, ended);
                if gone {
                    self.pods.remove(&eviction.victim.uid);
                    self.engine.delete_pod(&eviction.victim.uid);
                }
            }
        }
    }

    /// Adds a pod that fits, and waits until it is placed, however slow the agents are.
    fn place_one(&mut self) {
        let engine = self.engine.clone();
        engine.set_share(Share::new("me", ["me"]));
        engine.set_term(Some(self.drawn));
        engine.apply_node(Node { unschedulable: false, ..self.node(0) });
        let usage =
            Arc::new(Usage { requests: Amounts { pods: 1, ..Amounts::default() }, ..Usage::default() });
        let spec = Ok(Arc::new(PodSpec { usage: usage.clone(), ..PodSpec::default() }));
        let scheduler_name = "berth".into();
        let pod = Pod { scheduler_name, peer: Arc::default(), usage, spec, ..self.pod() };
        let uid = pod.uid.clone();
        self.pods.insert(uid.clone(), pod.clone());
        engine.apply_pod(pod);
        let began = Instant::now();
        while self.pods.get(&uid).is_some_and(|pod| pod.node_name.is_none()) {
            if let Ok(told) = self.told.recv_timeout(Duration::from_millis(5)) {
                self.answer(told);
            }
            engine.tick();
            assert!(began.elapsed() < Duration::from_secs(60), "{uid} is not placed, seed {}", self.seed);
        }
    }

    fn some_pod(&mut self) -> Option<Pod> {
        let at = self.draw(self.pods.len().max(1) as u64) as usize;
        self.pods.values().nth(at).cloned()
    }

    fn step(&mut self, judge: &mut Agent) {
        let engine = self.engine.clone();
        match self.draw(24) {
            0..10 => {
                let pod = self.pod();
                self.pods.insert(pod.uid.clone(), pod.clone());
                engine.apply_pod(pod);
            }
            10..13 => {
                if let Some(pod) = self.some_pod() {
                    self.pods.remove(&pod.uid);
                    engine.delete_pod(&pod.uid);
                }
            }
            13 => {
                let at = self.draw(NODES);
                engine.apply_node(self.node(at));
            }
            14 => engine.tick(),
            15 => {
                let labels: Labels = [("team", ["a", "b"][self.draw(2) as usize])].into_iter().collect();
                engine.apply_object(ClusterObject::Namespace { name: "ns".into(), labels });
                let selector = LabelSelector::All([].into());
                let name = ObjectName { namespace: "ns".into(), name: "budget".into() };
                let allowed = self.draw(3) as i32;
                let budget = DisruptionBudget { name, selector, allowed, disrupted: ["p1".into()].into() };
                engine.apply_object(ClusterObject::DisruptionBudget(budget));
            }
            16 => {
                let term = (self.draw(3) > 0).then_some(self.drawn);
                engine.set_term(term);
                engine.set_term(Some(self.drawn));
            }
            17 => {
                engine.retain_pods(&self.pods.keys().cloned().collect());
                engine.retain_nodes(&(0..NODES).map(|at| format!("n{at}").into()).collect());
                engine.retain_objects(ObjectKind::Namespace, &HashSet::new());
            }
            18 => {
                let of = |app: &str| SelectedPods {
                    namespace: "ns".into(),
                    selector: LabelSelector::All(
                        [Requirement { key: "app".into(), operator: Operator::any_of(vec![app.into()]) }]
                            .into(),
                    ),
                };
                let weight = 10 * (1 + self.draw(5) as i32);
                engine.hints_changed(vec![Hint { of: of("app1"), other: of("app2"), weight }]);
            }
            19 => {
                let theirs = self.pods.values().find(|pod| &*pod.scheduler_name != "berth").cloned();
                if let Some(pod) = theirs {
                    let _ = engine.begin_evaluation(judge, &pod, None);
                    let wanted = Binding {
                        uid: pod.uid.clone(),
                        namespace: pod.namespace.clone(),
                        name: pod.name.clone(),
                        node: "n3".into(),
                        decision: None,
                    };
                    engine.review(&wanted, Some(&pod), Some(Duration::from_secs(1)), Requester::Other);
                    engine.held_pod_read(&wanted, &Truth::Gone, engine.now());
                    engine.begin_extender_bind(&wanted, Some(&pod));
                    engine.extender_bind_finished(&wanted, &BindOutcome::Vanished);
                }
            }
            20 => {
                if let Some(pod) = self.some_pod() {
                    engine.explain(judge, &pod.namespace, &pod.name);
                    Residents::class_of(&mut engine.clone(), &pod.uid);
                    let labels: Labels = [("team", "new")].into_iter().collect();
                    let beside = [ClusterObject::Namespace { name: "ns".into(), labels }];
                    let _ = engine.suppose(&pod, &beside);
                }
            }
            21 => {
                assert_eq!(engine.heal(), []);
                if let Some(pod) = self.some_pod() {
                    engine.mend_pod(pod);
                }
                engine.mend_pod_gone(&"nobody".into());
                let node = self.node(1);
                engine.mend_node(node);
                engine.mend_node_gone("nobody");
            }
            22 => {
                if let Some(pod) = self.some_pod() {
                    let more = NodeSize { cpu: 50, memory: 1 << 10 };
                    if let Ok(growth) = engine.grow_in_place(&pod.uid, None, more) {
                        let growth = engine.grow_in_place(&pod.uid, Some(&growth), more).unwrap_or(growth);
                        engine.take_growth_back(&pod.uid, &growth);
                    }
                }
            }
            _ => {
                let names = ["me", "other"];
                let replicas = 1 + self.draw(if self.is_alone { 1 } else { 2 }) as usize;
                engine.set_share(Share::new("me", names.into_iter().take(replicas)));
                engine.give_devices(self.drawn.is_multiple_of(2));
                engine.advise(BTreeMap::new());
                engine.withdraw_advice();
            }
        }
    }
}

/// Records a random life of so many steps.
fn recorded(seed: u64, steps: usize) -> (Opening, Vec<RecordingEntry>) {
    recorded_with(seed, steps, false)
}

fn recorded_with(seed: u64, steps: usize, is_alone: bool) -> (Opening, Vec<RecordingEntry>) {
    let tape = Memory::default();
    let agents = (1..=3).map(|seed| AgentConfig {
        // So that lists are evicted, and expire.
        cache: CacheLimits { bytes: usize::MAX, slots: 3, age: Duration::from_millis(20) },
        seed,
    });
    let config = SchedulerConfig {
        preemption: true,
        knows_others: true,
        advice: true,
        remembered_decisions: 10,
        backoff: BackoffLimits { initial: Duration::from_millis(1), max: Duration::from_millis(5) },
        refresh: Duration::from_millis(5),
        reserve_after: Duration::from_millis(50),
        objects: [ObjectKind::ReplicaSet].into(),
        profiles: Profiles::from(Profile { default_spread: system_defaults(), ..Profile::default() }).into(),
        ..SchedulerConfig::default()
    };
    let (outlet, told) = outlet();
    let (engine, threads) = Engine::start_recorded(
        config,
        agents.collect(),
        Estimator::default(),
        outlet,
        Some(Box::new(tape.clone())),
    )
    .expect("it starts");
    let mut judge = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 9 });
    let mut life =
        Life { engine: engine.clone(), told, seed, drawn: 0, pods: BTreeMap::new(), made: 0, is_alone };
    for at in 0..NODES {
        let node = life.node(at);
        engine.apply_node(node);
    }
    engine.retain_nodes(&(0..NODES).map(|at| format!("n{at}").into()).collect());
    life.replica_sets();
    engine.retain_pods(&HashSet::new());
    engine.set_term(Some(1));
    for at in 0..steps {
        life.step(&mut judge);
        life.answer_all();
        if at % 20 == 19 {
            life.place_one();
        }
    }
    engine.stop();
    threads.join().expect("no thread panics");
    drop((engine, life));
    tape.recorded()
}

/// Returns the replay, and where it differs first.
fn replayed(opening: Opening, entries: Vec<RecordingEntry>) -> (Replay, Option<Difference>) {
    let mut replay = Replay::begin(opening).expect("the same format");
    for entry in entries {
        let words = format!("{entry:?}");
        if let Some(difference) = replay.hear(entry).unwrap_or_else(|error| panic!("{error}: {words}")) {
            return (replay, Some(difference));
        }
    }
    (replay, None)
}

#[test]
fn a_replay_of_three_agents_at_work_decides_what_they_decided() {
    let mut decisions = 0;
    for seed in 0..8 {
        let (opening, entries) = recorded(seed, 400);
        let (replay, difference) = replayed(opening, entries);
        assert_eq!(difference, None, "seed {seed}");
        decisions += replay.decisions();
    }
    assert!(decisions > 100, "{decisions} decisions");
}

#[test]
fn what_is_recorded_is_the_same_as_json() {
    let (opening, entries) = recorded(50, 400);
    let as_json = |entry: &RecordingEntry| serde_json::to_string(entry).expect("JSON");
    let lines: Vec<String> = entries.iter().map(as_json).collect();
    let again =
        lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let opening = serde_json::to_string(&opening).expect("JSON");
    let (replay, difference) = replayed(serde_json::from_str(&opening).expect("an opening"), again.collect());
    assert_eq!((replay.entries(), difference), (entries.len() as u64, None));
}

#[test]
fn without_names_a_recording_is_decided_alike_and_tells_none() {
    let mut decisions = 0;
    for seed in 200..208 {
        let (opening, entries) = recorded_with(seed, 400, true);
        let words = RecordedWords::default();
        words.see(&opening).expect("words");
        entries.iter().for_each(|entry| words.see(entry).expect("words"));
        let names = Pseudonyms::of(words);
        let mut replay =
            Replay::begin(names.applied(&opening).expect("an opening")).expect("the same format");
        for mut entry in entries {
            let recorded = std::mem::take(&mut entry.decisions);
            let entry = names.applied(&entry).expect("an entry");
            let text = serde_json::to_string(&entry).expect("JSON");
            let decided = replay.hear(entry).expect("it follows").map_or(Vec::new(), |anew| anew.replayed);
            assert_eq!(recorded.len(), decided.len(), "seed {seed}: {recorded:?} {decided:?}");
            for (recorded, decided) in recorded.iter().zip(&decided) {
                assert!(names.are_all(recorded, decided), "seed {seed}: {recorded} {decided}");
            }
            decisions += decided.len();
            for name in ["\"ns\"", "\"p1\"", "\"n1\"", "\"zone\"", "\"z1\"", "\"app1\"", "\"berth\""] {
                assert!(!text.contains(name), "{name} in {text}");
            }
            assert!(decided.iter().all(|decided| !decided.contains("ns/")), "{decided:?}");
        }
    }
    assert!(decisions > 100, "{decisions} decisions");
}

#[test]
fn words_keep_their_order_and_those_that_the_scheduler_knows_stay() {
    let words = RecordedWords::default();
    let labels: Labels = [
        ("team", "blue"),
        ("kubernetes.io/hostname", "node-1"),
        ("topology.kubernetes.io/zone", "zone-a"),
        ("example.kubernetes.io.com/a", "7"),
        ("berth.dev/queue", ""),
    ]
    .into_iter()
    .collect();
    let class = DeviceClass {
        name: "gpu".into(),
        selectors: ["device.driver == 'gpu.example.com'".into()].into(),
        ..DeviceClass::default()
    };
    let pool = PoolId { driver: "gpu.example.com".into(), name: "node-1".into() };
    let constraint = DeviceConstraint {
        requests: ["request/big".into()].into(),
        attribute: "gpu.example.com/model".into(),
        distinct: false,
    };
    let owner = PodOwner { api_version: "apps/v1".into(), kind: "ReplicaSet".into(), name: "web".into() };
    let composed = [
        "web-0-extended-resources-uid-1",
        "web-0",
        "uid-1",
        "deviceclass.resource.kubernetes.io/gpu",
        "gpu",
        "zone-a__zone-b",
        "zone-a",
        "zone-b",
        "request",
        "big",
        "scheduling.x-k8s.io/pod-group",
    ];
    let record = (&labels, &class, &pool, &constraint, &owner, &composed);
    words.see(&record).expect("words");
    let names = Pseudonyms::of(words);
    let renamed: Labels = names.applied(&labels).expect("labels");
    let pairs: Vec<_> = renamed.iter().collect();
    let stays = |key: &str| pairs.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    assert_eq!(stays("berth.dev/queue"), Some(""));
    let [node, zone] =
        ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(|key| stays(key).expect(key));
    assert!(node < zone && [node, zone].iter().all(|name| name.starts_with('n') && !name.contains('-')));
    let with_domain: Vec<_> = pairs.iter().filter(|(key, _)| key.ends_with("/n")).collect();
    assert!(matches!(&with_domain[..], [(_, "7")]), "{pairs:?}");
    let class: DeviceClass = names.applied(&class).expect("a class");
    assert_eq!(&*class.selectors[0], "device.driver == 'gpu.example.com'");
    assert_ne!(&*class.name, "gpu");
    let pool: PoolId = names.applied(&pool).expect("a pool");
    assert_eq!((&*pool.driver, &*pool.name), ("gpu.example.com", node));
    let owner: PodOwner = names.applied(&owner).expect("an owner");
    assert_eq!((&*owner.api_version, &*owner.kind), ("apps/v1", "ReplicaSet"));
    assert_ne!(&*owner.name, "web");
    let composed: Vec<String> = names.applied(&composed.map(str::to_owned).to_vec()).expect("words");
    let [made, pod, uid, of_class, of, zones, first, second, request, big, group] = &composed[..] else {
        panic!("{composed:?}")
    };
    assert_eq!(*made, format!("{pod}-extended-resources-{uid}"));
    assert_eq!(*of_class, format!("deviceclass.resource.kubernetes.io/{of}"));
    assert_eq!(**of, *class.name);
    assert_eq!(*zones, format!("{first}__{second}"));
    assert_eq!(group, "scheduling.x-k8s.io/pod-group");
    let constraint: DeviceConstraint = names.applied(&constraint).expect("a constraint");
    assert_eq!(*constraint.requests[0], format!("{request}/{big}"));
    assert_eq!(&*constraint.attribute, "gpu.example.com/model");
    let (bind, anew) = ("bind web-0/uid-1 to node-1", format!("bind {pod}/{uid} to {node}"));
    assert!(names.are_all(bind, &anew));
    assert!(!names.are_all(bind, &format!("bind {pod}/{uid} to {zone}")));
    assert!(!names.are_all(bind, &anew.replace("bind", "claim")));
}

#[test]
fn a_replay_names_the_first_decision_that_differs() {
    let (opening, mut entries) = recorded(100, 60);
    let binds =
        |entry: &RecordingEntry| entry.decisions.first().is_some_and(|first| first.starts_with("bind "));
    let at: Vec<usize> = (0..entries.len()).filter(|at| binds(&entries[*at])).collect();
    let at = at[at.len() / 2];
    let changed = entries[at].decisions[0].replacen(" to n", " to another-n", 1);
    entries[at].decisions[0] = changed.clone();
    let (replay, difference) = replayed(opening, entries);
    let difference = difference.expect("a difference");
    assert_eq!((difference.entry, replay.entries()), (at as u64 + 1, at as u64 + 1));
    assert!(difference.recorded[0] == changed && difference.replayed[0] != changed, "{difference:?}");
}

#[test]
fn a_record_that_is_cut_off_or_another_is_an_error() {
    let (opening, _) = recorded(1, 0);
    let block = framed(&opening).expect("a record");
    let whole: Vec<_> = records(&block).collect();
    assert!(matches!(&whole[..], [Ok(record)] if parse::<Opening>(record).is_ok()));
    let cut: Vec<_> = records(&block[..block.len() - 1]).collect();
    assert_eq!(cut, [Err(RecordError("it is longer than its block".to_owned()))]);
    assert!(parse::<RecordingEntry>(&[1]).is_err());
}

#[test]
fn a_recording_of_another_format_is_refused() {
    let mut opening = Opening::new(SchedulerConfig::default(), Vec::new(), Estimator::default());
    opening.format = FORMAT + 1;
    assert_eq!(Replay::begin(opening).err(), Some(ReplayError::Format(FORMAT + 1)));
}

#[test]
fn an_entry_that_cannot_follow_those_before_is_an_error() {
    let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
    let opening = Opening::new(SchedulerConfig::default(), vec![agent], Estimator::default());
    let problem = |entry: &str| {
        let mut replay = Replay::begin(opening.clone()).expect("the same format");
        let entry = serde_json::from_str(entry).expect("JSON");
        match replay.hear(entry) {
            Err(ReplayError::Impossible { entry: 1, problem }) => problem,
            other => panic!("{other:?}"),
        }
    };
    let agent = |number: u32, did: &str, step: &str| {
        format!(r#"{{"at":1,"in":{{"agent":{{"agent":{number},"did":[{did}],"step":"{step}"}}}}}}"#)
    };
    assert_eq!(problem(&agent(1, "", "take")), "there is no agent 1");
    assert_eq!(problem(&agent(0, "", "settle")), "an agent without an answer settles");
    let answered = r#"{"answered":{"at":1,"laps":[]}}"#;
    assert_eq!(problem(&agent(0, answered, "settle")), "an agent without a task answers");
}

#[test]
fn an_engine_whose_tape_is_full_goes_on_without_it() {
    let (outlet, told) = outlet();
    let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
    let (engine, threads) = Engine::start_recorded(
        SchedulerConfig::default(),
        vec![agent],
        Estimator::default(),
        outlet,
        Some(Box::new(Full)),
    )
    .expect("it starts");
    let mut life = Life {
        engine: engine.clone(),
        told,
        seed: 1,
        drawn: 0,
        pods: BTreeMap::new(),
        made: 0,
        is_alone: false,
    };
    let node = Node { unschedulable: false, ..life.node(0) };
    engine.apply_node(node);
    engine.retain_nodes(&["n0".into()].into());
    engine.retain_pods(&HashSet::new());
    engine.set_term(Some(1));
    let began = Instant::now();
    while engine.records() {
        engine.tick();
        assert!(began.elapsed() < Duration::from_secs(60), "a block is written each second");
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.apply_pod(Pod { scheduler_name: "berth".into(), ..life.pod() });
    assert!(matches!(life.told.recv_timeout(Duration::from_secs(60)), Ok(Told::Bind(_))));
    engine.stop();
    threads.join().expect("no thread panics");
}
