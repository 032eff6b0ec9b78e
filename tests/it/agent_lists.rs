//! The agent's caches keep their promise, whatever happened before: a repaired list equals a fresh one (invariant I5),
//! and what it holds valid is what a naive reading of nodes and pods holds valid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth::agent::{Agent, AgentConfig, CacheLimits, Choice};
use berth::class::{Class, Classifier};
use berth::inventory::{Ledger, NodeId};
use berth::model::{
    Amounts, Effect, FieldRequirement, HostPort, Image, Labels, Node, NodeAffinity, NodeSelectorTerm,
    Operator, PodSpec, PreferredTerm, Protocol, Requirement, Taint, Toleration, TolerationOperator, Usage,
};
use berth::rules::{Diagnosis, Key, Packing, rank_uncached, still_admits};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestCaseResult;

/// Node names in play. More than the spare room of a small list, so that lists outgrow it.
const NAMES: usize = 30;
const PODS: usize = 40;
const CLASSES: usize = 6;
const AGENTS: usize = 2;
const CORDON: &str = "node.kubernetes.io/unschedulable";
const UNLIMITED: CacheLimits = CacheLimits {
    bytes: usize::MAX,
    age: Duration::MAX,
};

fn name(at: usize) -> Arc<str> {
    Arc::from(format!("n{at}"))
}

// Random clusters.

fn effect() -> impl Strategy<Value = Effect> {
    select(vec![
        Effect::NoSchedule,
        Effect::PreferNoSchedule,
        Effect::NoExecute,
    ])
}

fn taint() -> impl Strategy<Value = Taint> {
    (select(vec!["a", "b"]), select(vec!["", "1"]), effect()).prop_map(|(key, value, effect)| Taint {
        key: key.into(),
        value: value.into(),
        effect,
    })
}

fn extended() -> impl Strategy<Value = Vec<(Arc<str>, i64)>> {
    (0i64..3, 0i64..3).prop_map(|(gpus, disks)| vec![("x.io/gpu".into(), gpus), ("y.io/disk".into(), disks)])
}

fn images() -> impl Strategy<Value = Vec<(&'static str, i64)>> {
    subsequence(
        vec![("app:1", 400 << 20), ("db:2", 900 << 20), ("web:3", 60 << 20)],
        0..=3,
    )
}

fn node() -> impl Strategy<Value = Node> {
    let labels = (
        option::of(select(vec!["a", "b", "c"])),
        option::of(select(vec!["ssd", "hdd"])),
        option::of(select(vec!["1", "7", "many"])),
    );
    let allocatable = (
        select(vec![0, 1000, 4000]),
        select(vec![0, 1000, 9000]),
        select(vec![0, 500]),
        select(vec![0, 1, 3, 110]),
    );
    let taints = prop_oneof![2 => Just(vec![]), 1 => vec(taint(), 1..3)];
    (
        labels,
        allocatable,
        taints,
        extended(),
        images(),
        proptest::bool::weighted(0.1),
    )
        .prop_map(
            |(
                (zone, disk, rank),
                (cpu_milli, memory, ephemeral_storage, pods),
                taints,
                extended,
                images,
                unschedulable,
            )| Node {
                name: "".into(),
                labels: [("zone", zone), ("disk", disk), ("rank", rank)]
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value?)))
                    .collect(),
                taints: taints.into(),
                unschedulable,
                allocatable: Amounts {
                    cpu_milli,
                    memory,
                    ephemeral_storage,
                    pods,
                },
                extended: extended.into_iter().collect(),
                images: images
                    .into_iter()
                    .map(|(name, size_bytes)| Image {
                        name: name.into(),
                        size_bytes,
                    })
                    .collect(),
                problems: [].into(),
            },
        )
}

// Random classes.

fn sorted<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort();
    values.dedup();
    values.into()
}

fn usage() -> impl Strategy<Value = Usage> {
    let ip = option::of(select(vec!["10.0.0.1", "10.0.0.2"]));
    let port =
        (ip, select(vec![Protocol::Tcp, Protocol::Udp]), 80u16..82).prop_map(|(ip, protocol, port)| {
            HostPort {
                ip: ip.map(Arc::from),
                protocol,
                port,
            }
        });
    let ports = prop_oneof![2 => Just(vec![]), 1 => vec(port, 1..3)];
    let (cpu, memory) = (select(vec![0, 100, 1000]), select(vec![0, 300, 1000]));
    (cpu, memory, select(vec![0, 0, 300]), extended(), ports).prop_map(
        |(cpu_milli, memory, ephemeral_storage, extended, ports)| Usage {
            requests: Amounts {
                cpu_milli,
                memory,
                ephemeral_storage,
                pods: 1,
            },
            // Most ask for none, else few would ever fit.
            extended: extended.into_iter().filter(|_| cpu_milli == 100).collect(),
            nonzero_cpu_milli: cpu_milli.max(100),
            nonzero_memory: memory.max(200),
            ports: sorted(ports),
        },
    )
}

fn toleration() -> impl Strategy<Value = Toleration> {
    let operator = select(vec![TolerationOperator::Equal, TolerationOperator::Exists]);
    let key = select(vec!["", "a", "b", CORDON]);
    (key, operator, select(vec!["", "1"]), option::of(effect())).prop_map(|(key, operator, value, effect)| {
        Toleration {
            key: key.into(),
            operator,
            value: value.into(),
            effect,
        }
    })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || {
        subsequence(vec!["a", "b", "ssd", "7"], 0..3)
            .prop_map(|values| sorted(values.into_iter().map(Arc::from).collect()))
    };
    let operator = prop_oneof![
        values().prop_map(Operator::In),
        values().prop_map(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist),
        (0i64..9).prop_map(Operator::Gt),
        (0i64..9).prop_map(Operator::Lt),
    ];
    (select(vec!["zone", "disk", "rank"]), operator).prop_map(|(key, operator)| Requirement {
        key: key.into(),
        operator,
    })
}

fn term() -> impl Strategy<Value = NodeSelectorTerm> {
    let field = (0..NAMES, any::<bool>()).prop_map(|(at, is)| match is {
        true => FieldRequirement::NameIs(name(at)),
        false => FieldRequirement::NameIsNot(name(at)),
    });
    let fields = prop_oneof![3 => Just(vec![]), 1 => vec(field, 1..3)];
    (vec(requirement(), 0..3), fields).prop_map(|(expressions, fields)| NodeSelectorTerm {
        expressions: expressions.into(),
        fields: fields.into(),
    })
}

fn spec() -> impl Strategy<Value = PodSpec> {
    let preferred = (1i32..=100, term()).prop_map(|(weight, term)| PreferredTerm { weight, term });
    let node_selector = prop_oneof![3 => Just(None), 1 => select(vec!["a", "b"]).prop_map(Some)];
    let required = prop_oneof![2 => Just(None), 1 => vec(term(), 0..4).prop_map(Some)];
    (
        usage(),
        vec(toleration(), 0..3),
        node_selector,
        required,
        vec(preferred, 0..3),
        images(),
    )
        .prop_map(
            |(usage, tolerations, zone, required, preferred, images)| PodSpec {
                usage: Arc::new(usage),
                tolerations: sorted(tolerations),
                node_selector: zone.into_iter().map(|zone| ("zone", zone)).collect(),
                node_affinity: NodeAffinity {
                    required: required.map(Vec::into_boxed_slice),
                    preferred: preferred.into(),
                },
                images: images.into_iter().map(|(name, _)| Arc::from(name)).collect(),
                containers: 1,
                unsupported: [].into(),
            },
        )
}

// The oracle: what a node takes, straight from the words of the API.

fn tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().any(|toleration| {
        (toleration.effect.is_none() || toleration.effect == Some(taint.effect))
            && (toleration.key.is_empty() || toleration.key == taint.key)
            && (toleration.operator == TolerationOperator::Exists || toleration.value == taint.value)
    })
}

fn meets(requirement: &Requirement, labels: &BTreeMap<&str, &str>) -> bool {
    let value = labels.get(&*requirement.key);
    let number = value.and_then(|value| value.parse::<i64>().ok());
    match &requirement.operator {
        Operator::In(values) => value.is_some_and(|value| values.iter().any(|v| **v == **value)),
        Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| **v != **value)),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt(bound) => number.is_some_and(|number| number > *bound),
        Operator::Lt(bound) => number.is_some_and(|number| number < *bound),
    }
}

fn selected(spec: &PodSpec, node: &Node) -> bool {
    let labels: BTreeMap<&str, &str> = node.labels.iter().collect();
    let matches = |term: &NodeSelectorTerm| {
        let named = |field: &FieldRequirement| match field {
            FieldRequirement::NameIs(name) => *name == node.name,
            FieldRequirement::NameIsNot(name) => *name != node.name,
        };
        let (expressions, fields) = (&term.expressions, &term.fields);
        expressions.len() + fields.len() > 0
            && expressions.iter().all(|requirement| meets(requirement, &labels))
            && fields.iter().all(named)
    };
    let required = &spec.node_affinity.required;
    spec.node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(&value))
        && required.as_ref().is_none_or(|terms| terms.iter().any(matches))
}

fn has_room(wanted: &Usage, node: &Node, pods: &[&Usage]) -> bool {
    let taken = |amount: fn(&Amounts) -> i64| pods.iter().map(|pod| amount(&pod.requests)).sum::<i64>();
    let fits = |amount: fn(&Amounts) -> i64| {
        let wanted = amount(&wanted.requests);
        wanted == 0 || wanted + taken(amount) <= amount(&node.allocatable)
    };
    let extended_fits = wanted.extended.iter().all(|(name, wanted)| {
        let taken: i64 = pods.iter().map(|pod| pod.extended.get(name)).sum();
        wanted + taken <= node.extended.get(name)
    });
    let ports_free = wanted.ports.iter().all(|wanted| {
        pods.iter().flat_map(|pod| pod.ports.iter()).all(|taken| {
            let one_address = wanted.ip.is_none() || taken.ip.is_none() || wanted.ip == taken.ip;
            wanted.port != taken.port || wanted.protocol != taken.protocol || !one_address
        })
    });
    pods.len() < node.allocatable.pods as usize
        && fits(|amounts| amounts.cpu_milli)
        && fits(|amounts| amounts.memory)
        && fits(|amounts| amounts.ephemeral_storage)
        && extended_fits
        && ports_free
}

fn admits(spec: &PodSpec, node: &Node, pods: &[&Usage]) -> bool {
    let cordon = Taint {
        key: CORDON.into(),
        value: "".into(),
        effect: Effect::NoSchedule,
    };
    let mut hard = node
        .taints
        .iter()
        .filter(|taint| taint.effect != Effect::PreferNoSchedule);
    (!node.unschedulable || tolerated(spec, &cordon))
        && hard.all(|taint| tolerated(spec, taint))
        && selected(spec, node)
        && has_room(&spec.usage, node, pods)
}

// Histories.

#[derive(Debug, Clone)]
enum Event {
    NodeIs(usize, Node),
    NodeGone(usize),
    /// The agent chooses, with news or without, and the pod is committed.
    Place {
        agent: usize,
        class: usize,
        pod: usize,
        news: bool,
    },
    Confirmed(usize),
    /// Somebody binds a pod, perhaps to a node that nobody knows, perhaps one that was elsewhere.
    Bound {
        pod: usize,
        class: usize,
        node: usize,
    },
    PodGone(usize),
    /// The agent repairs a list while idle, with news or without.
    Repair {
        agent: usize,
        news: bool,
    },
    Expire {
        agent: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..NAMES, node()).prop_map(|(at, node)| Event::NodeIs(at, node)),
        3 => (0..NAMES).prop_map(Event::NodeGone),
        9 => (0..AGENTS, 0..CLASSES, 0..PODS, proptest::bool::weighted(0.8))
            .prop_map(|(agent, class, pod, news)| Event::Place { agent, class, pod, news }),
        1 => (0..PODS).prop_map(Event::Confirmed),
        2 => (0..PODS, 0..CLASSES, 0..NAMES).prop_map(|(pod, class, node)| Event::Bound { pod, class, node }),
        4 => (0..PODS).prop_map(Event::PodGone),
        2 => (0..AGENTS, any::<bool>()).prop_map(|(agent, news)| Event::Repair { agent, news }),
        1 => (0..AGENTS).prop_map(|agent| Event::Expire { agent }),
    ]
}

/// The truth by the test's own books, next to the ledger and agents under test.
struct World {
    nodes: BTreeMap<Arc<str>, Node>,
    pods: BTreeMap<usize, (Arc<str>, Arc<Usage>)>,
    classes: Vec<Arc<Class>>,
    ledger: Ledger,
    configs: Vec<AgentConfig>,
    agents: Vec<Agent>,
    now: Duration,
}

impl World {
    fn new(specs: Vec<PodSpec>, limits: CacheLimits, packing: Packing) -> Self {
        let mut classifier = Classifier::default();
        let config = |seed| AgentConfig {
            packing,
            candidate_width: 1,
            cache: limits,
            seed,
        };
        let configs: Vec<_> = (0..AGENTS as u64).map(config).collect();
        World {
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            classes: specs
                .into_iter()
                .map(|spec| classifier.classify(&Arc::new(spec)))
                .collect(),
            ledger: Ledger::default(),
            agents: configs.iter().map(|config| Agent::new(*config)).collect(),
            configs,
            now: Duration::ZERO,
        }
    }

    fn happen(&mut self, event: Event) -> TestCaseResult {
        self.now += Duration::from_secs(1);
        let uid = |pod: usize| Arc::<str>::from(format!("p{pod}"));
        match event {
            Event::NodeIs(at, node) => {
                let node = Node {
                    name: name(at),
                    ..node
                };
                self.nodes.insert(node.name.clone(), node.clone());
                self.ledger.apply_node(node);
            }
            Event::NodeGone(at) => {
                let known = self.nodes.remove(&name(at)).is_some();
                prop_assert_eq!(self.ledger.delete_node(&name(at)), known);
            }
            Event::Place {
                agent,
                class,
                pod,
                news,
            } => self.place(agent, class, pod, &uid(pod), news)?,
            Event::Confirmed(pod) => self.ledger.confirm(&uid(pod)),
            Event::Bound { pod, class, node } => {
                let usage = self.classes[class].spec.usage.clone();
                self.ledger.bound(&uid(pod), &name(node), &usage);
                self.pods.insert(pod, (name(node), usage));
            }
            Event::PodGone(pod) => {
                let known = self.pods.remove(&pod).is_some();
                prop_assert_eq!(self.ledger.discharge(&uid(pod)), known);
            }
            Event::Repair { agent, news } => {
                if news {
                    self.agents[agent].catch_up(self.ledger.inventory());
                }
                self.agents[agent].repair_one();
            }
            Event::Expire { agent } => self.agents[agent].expire(self.now),
        }
        Ok(())
    }

    fn place(
        &mut self,
        agent: usize,
        class: usize,
        pod: usize,
        uid: &Arc<str>,
        news: bool,
    ) -> TestCaseResult {
        if news {
            self.agents[agent].catch_up(self.ledger.inventory());
        }
        let class = self.classes[class].clone();
        let choice = self.agents[agent].choose(&class, self.now, |_| {});
        if news {
            self.check_list(agent, &class)?;
        }
        let Choice::Node { node, seen } = choice else {
            return Ok(());
        };
        let name = self.ledger.inventory().name(node).clone();
        // What the agent saw may be old: the commit must go by what is.
        let expected = self.expected_valid(&class, &name) && !self.pods.contains_key(&pod);
        let usage = &class.spec.usage;
        let committed = self
            .ledger
            .commit(uid, usage, node, |row| still_admits(&class, row, seen));
        prop_assert_eq!(committed.is_ok(), expected, "commit to {}", name);
        if expected {
            self.pods.insert(pod, (name, usage.clone()));
        }
        Ok(())
    }

    fn expected_valid(&self, class: &Class, name: &str) -> bool {
        let on_node = |(at, usage): &'_ (Arc<str>, Arc<Usage>)| (**at == *name).then(|| usage.clone());
        let pods: Vec<Arc<Usage>> = self.pods.values().filter_map(on_node).collect();
        let pods: Vec<&Usage> = pods.iter().map(|usage| &**usage).collect();
        self.nodes
            .get(name)
            .is_some_and(|node| admits(&class.spec, node, &pods))
    }

    /// The cached list of `class`, which is up to date, against a fresh one and against the books.
    fn check_list(&self, agent: usize, class: &Arc<Class>) -> TestCaseResult {
        let inventory = self.ledger.inventory();
        let list = self.agents[agent].list(class.id).expect("it was just used");
        prop_assert_eq!(list.revision(), inventory.revision());
        let mut fresh = Agent::new(AgentConfig {
            cache: UNLIMITED,
            ..self.configs[agent]
        });
        fresh.catch_up(inventory);
        fresh.choose(class, Duration::ZERO, |_| {});
        let fresh = fresh.list(class.id).expect("it was just made");
        // They may differ in the room they have for nodes to come.
        let (keys, room) = list.keys().split_at(inventory.len());
        let (fresh_keys, fresh_room) = fresh.keys().split_at(inventory.len());
        prop_assert_eq!(keys, fresh_keys);
        prop_assert!(room.iter().chain(fresh_room).all(|key| *key == Key::VACANT));

        let valid = keys.iter().enumerate().filter(|(_, key)| key.is_valid());
        let best = valid.clone().min_by_key(|(id, key)| (**key, *id));
        prop_assert_eq!(list.best(), best.map(|(id, _)| NodeId(id as u32)));

        let rows = (0..inventory.len()).map(|id| inventory.row(NodeId(id as u32)));
        let packing = self.configs[agent].packing;
        let reasons = rows.filter_map(|row| rank_uncached(class, packing, row).reasons());
        prop_assert_eq!(list.diagnose(), reasons.collect::<Diagnosis>());

        let mut valid: Vec<_> = valid.map(|(id, _)| inventory.name(NodeId(id as u32))).collect();
        valid.sort();
        let expected: Vec<_> = self
            .nodes
            .keys()
            .filter(|name| self.expected_valid(class, name))
            .collect();
        prop_assert_eq!(valid, expected);
        Ok(())
    }

    fn check_all(&mut self) -> TestCaseResult {
        for agent in 0..self.agents.len() {
            self.agents[agent].catch_up(self.ledger.inventory());
            for class in self.classes.clone() {
                if self.agents[agent].refresh(class.id) {
                    self.check_list(agent, &class)?;
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn whatever_happened_a_repaired_list_equals_a_fresh_one_and_the_naive_truth(
        specs in vec(spec(), CLASSES),
        first in vec(node(), 0..NAMES),
        events in vec(event(), 0..120),
        bytes in select(vec![0, 600, 1500, usize::MAX]),
        packing in select(vec![Packing::LeastAllocated, Packing::MostAllocated]),
    ) {
        let limits = CacheLimits { bytes, age: Duration::from_secs(20) };
        let mut world = World::new(specs, limits, packing);
        for (at, node) in first.into_iter().enumerate() {
            world.happen(Event::NodeIs(at, node))?;
        }
        for event in events {
            world.happen(event)?;
        }
        world.check_all()?;
    }

    #[test]
    fn a_choice_of_width_k_is_one_of_the_best_k_and_each_of_them_is_chosen_sometimes(
        nodes in vec(node(), 1..NAMES),
        spec in spec(),
        width in 2usize..6,
    ) {
        let mut ledger = Ledger::default();
        for (at, node) in nodes.into_iter().enumerate() {
            ledger.apply_node(Node { name: name(at), ..node });
        }
        let class = Classifier::default().classify(&Arc::new(spec));
        let mut agent = agent(7, width);
        agent.catch_up(ledger.inventory());
        let mut chosen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            if let Choice::Node { node, .. } = agent.choose(&class, Duration::ZERO, |_| {}) {
                chosen.insert(node);
            }
        }
        let keys = agent.list(class.id).expect("it was just used").keys();
        let mut best: Vec<_> = (0..).map(NodeId).zip(keys).filter(|(_, key)| key.is_valid()).collect();
        best.sort_by_key(|(id, key)| (**key, *id));
        let best: std::collections::BTreeSet<_> = best.into_iter().take(width).map(|(id, _)| id).collect();
        prop_assert_eq!(chosen, best);
    }
}

fn agent(seed: u64, candidate_width: usize) -> Agent {
    Agent::new(AgentConfig {
        packing: Packing::LeastAllocated,
        candidate_width,
        cache: UNLIMITED,
        seed,
    })
}

#[test]
fn agents_of_different_seeds_choose_different_nodes_among_equals() {
    let mut ledger = Ledger::default();
    for at in 0..1000 {
        let allocatable = Amounts {
            cpu_milli: 4000,
            memory: 1 << 35,
            ephemeral_storage: 0,
            pods: 110,
        };
        ledger.apply_node(Node {
            name: name(at),
            allocatable,
            labels: Labels::default(),
            ..Node::default()
        });
    }
    let class = Classifier::default().classify(&Arc::new(PodSpec::default()));
    let choose = |seed| {
        let mut agent = agent(seed, 1);
        agent.catch_up(ledger.inventory());
        match agent.choose(&class, Duration::ZERO, |_| {}) {
            Choice::Node { node, .. } => node,
            Choice::Nowhere(why) => panic!("no node is valid: {why:?}"),
        }
    };
    let chosen: std::collections::BTreeSet<_> = (0..8).map(choose).collect();
    assert_eq!(chosen.len(), 8, "{chosen:?}");
    assert_eq!(choose(3), choose(3), "one seed, one choice");
}
