//! Correctness of the agent's caches after any history: a repaired list equals a fresh one (invariant I5), and its
//! valid set equals that of a naive evaluation of nodes and pods.

mod oracle;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Amounts, Holding, Identity, Node, Packing, Peer, PodSpec, Preference, Usage};
use berth_scheduler::agent::{Agent, AgentChoice, AgentConfig, CacheLimits};
use berth_scheduler::class::{Class, ClassContext, Classifier};
use berth_scheduler::invariants::same_list;
use berth_scheduler::inventory::{Ledger, NodeId, Revision, Row};
use berth_scheduler::live_selectors::LiveSelectors;
use berth_scheduler::rules::{
    CellLimit, PlacementSettings, PreferenceOrder, Reasons, rank_uncached, still_admits,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;

use random::{node, spec, template};

/// Number of node names. More than the spare room of a small list, so that lists grow.
const NAMES: usize = 30;
const PODS: usize = 40;
const CLASSES: usize = 6;
const AGENTS: usize = 2;
const UNLIMITED: CacheLimits = CacheLimits::unlimited();

fn name(at: usize) -> Arc<str> {
    Arc::from(format!("n{at}"))
}

fn uid(pod: usize) -> Arc<str> {
    Arc::from(format!("p{pod}"))
}

#[derive(Debug, Clone)]
enum Event {
    NodeIs(usize, Node),
    NodeGone(usize),
    /// The agent chooses, with pending updates or without, and the pod is committed; meanwhile the chosen node may
    /// have changed.
    Place {
        agent: usize,
        class: usize,
        pod: usize,
        news: bool,
        meanwhile: Option<Node>,
    },
    Confirmed(usize),
    /// A pod is bound externally, perhaps to an unknown node, perhaps one that was on another node.
    Bound {
        pod: usize,
        class: usize,
        node: usize,
    },
    PodGone(usize),
    /// The agent repairs a list while idle, with pending updates or without.
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
        9 => (0..AGENTS, 0..CLASSES, 0..PODS, proptest::bool::weighted(0.8), option::weighted(0.2, node()))
            .prop_map(|(agent, class, pod, news, meanwhile)| Event::Place { agent, class, pod, news, meanwhile }),
        1 => (0..PODS).prop_map(Event::Confirmed),
        2 => (0..PODS, 0..CLASSES, 0..NAMES).prop_map(|(pod, class, node)| Event::Bound { pod, class, node }),
        4 => (0..PODS).prop_map(Event::PodGone),
        2 => (0..AGENTS, any::<bool>()).prop_map(|(agent, news)| Event::Repair { agent, news }),
        1 => (0..AGENTS).prop_map(|agent| Event::Expire { agent }),
    ]
}

/// The expected state by the test's own books, next to the ledger and agents under test.
struct World {
    nodes: BTreeMap<Arc<str>, Node>,
    pods: BTreeMap<usize, (Arc<str>, Holding)>,
    classes: Vec<Arc<Class>>,
    /// By class.
    holdings: Vec<Holding>,
    ledger: Ledger,
    configs: Vec<AgentConfig>,
    agents: Vec<Agent>,
    now: Duration,
}

impl World {
    fn new(templates: Vec<(PodSpec, Peer)>, limits: CacheLimits, placement: PlacementSettings) -> Self {
        let placement = Arc::new(placement);
        let mut classifier = Classifier::new(placement.clone());
        let mut selectors = LiveSelectors::default();
        let namespace = "default".into();
        templates.iter().for_each(|(spec, _)| selectors.add(&namespace, &spec.pod_affinity));
        let holding = |(spec, peer): &(PodSpec, Peer)| Holding {
            usage: spec.usage.clone(),
            peer: Arc::new(peer.clone()),
            volumes: None,
            ..Holding::default()
        };
        let holdings = templates.iter().map(holding).collect();
        let config = |seed| AgentConfig { cache: limits, seed };
        let configs: Vec<_> = (0..AGENTS as u64).map(config).collect();
        World {
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            classes: (templates.into_iter().enumerate())
                .map(|(at, (spec, peer))| {
                    // Every other class repeats its preferred terms as hints.
                    let hints = spec.pod_affinity.preferred.iter().filter(|_| at % 2 == 1).cloned().collect();
                    let selected_by = selectors.selecting(&peer.identity);
                    let context = ClassContext { placement: placement.clone(), hints, selected_by };
                    classifier.classify_in(context, &Arc::new(spec), &peer.identity, 0)
                })
                .collect(),
            holdings,
            ledger: Ledger::default(),
            agents: configs.iter().map(|config| Agent::new(*config)).collect(),
            configs,
            now: Duration::ZERO,
        }
    }

    fn happen(&mut self, event: Event) -> TestCaseResult {
        self.now += Duration::from_secs(1);
        match event {
            Event::NodeIs(at, node) => self.apply_node(&name(at), node),
            Event::NodeGone(at) => {
                let known = self.nodes.remove(&name(at)).is_some();
                prop_assert_eq!(self.ledger.delete_node(&name(at)), known);
            }
            Event::Place { agent, class, pod, news, meanwhile } => {
                if news {
                    self.agents[agent].catch_up(self.ledger.inventory());
                }
                let at = class;
                let class = self.classes[class].clone();
                let choice = self.agents[agent].choose(&class, self.now, |_| {});
                if news {
                    self.check_list(agent, at)?;
                }
                if let AgentChoice::Node { node, seen } = choice {
                    self.commit(agent, at, pod, node, seen, meanwhile)?;
                }
            }
            Event::Confirmed(pod) => self.ledger.confirm(&uid(pod)),
            Event::Bound { pod, class, node } => {
                let holding = self.holdings[class].clone();
                self.ledger.bound(&uid(pod), &name(node), &holding);
                self.pods.insert(pod, (name(node), holding));
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

    /// The agent's view may be stale: the commit must use the current state.
    fn commit(
        &mut self,
        agent: usize,
        at: usize,
        pod: usize,
        node: NodeId,
        seen: Revision,
        meanwhile: Option<Node>,
    ) -> TestCaseResult {
        let name = self.ledger.inventory().name(node).clone();
        if let Some(changed) = meanwhile
            && self.nodes.contains_key(&name)
        {
            self.apply_node(&name, changed);
        }
        let expected = self.expected_valid(at, &name) && !self.pods.contains_key(&pod);
        let class = self.classes[at].clone();
        let (holding, inventory) = (self.holdings[at].clone(), self.ledger.inventory());
        let admitted = self.agents[agent].still_admits(class.id, node, inventory);
        let fits = |row: &Row| admitted && still_admits(&class, row, seen);
        let committed = self.ledger.commit(&uid(pod), &holding, node, fits);
        prop_assert_eq!(committed.is_ok(), expected, "commit to {}", name);
        if expected {
            self.pods.insert(pod, (name, holding));
        }
        Ok(())
    }

    fn apply_node(&mut self, name: &Arc<str>, node: Node) {
        let host = (Arc::from("host"), name.clone());
        let labels = node.labels.pairs().cloned().chain([host]).collect();
        let node = Node { name: name.clone(), labels, ..node };
        self.nodes.insert(name.clone(), node.clone());
        self.ledger.apply_node(node);
    }

    fn expected_valid(&self, class: usize, name: &str) -> bool {
        let on_node = |(at, holding): &'_ (Arc<str>, Holding)| (**at == *name).then(|| holding.usage.clone());
        let pods: Vec<Arc<Usage>> = self.pods.values().filter_map(on_node).collect();
        let usages: Vec<&Usage> = pods.iter().map(|usage| &**usage).collect();
        let nodes: Vec<&Node> = self.nodes.values().collect();
        let placed =
            self.pods.values().filter_map(|(at, holding)| Some((self.nodes.get(at)?, &*holding.peer)));
        let placed: Vec<_> = placed.collect();
        let (spec, me) = (&self.classes[class].spec, &self.holdings[class].peer.identity);
        self.nodes.get(name).is_some_and(|node| {
            oracle::admits(spec, node, &usages)
                && oracle::welcome(spec, me, node, &nodes, &placed)
                && self.within_limit(class, node)
        })
    }

    /// Whether the node's cell stays within the limit of the policy.
    fn within_limit(&self, class: usize, node: &Node) -> bool {
        let Some(limit) = &self.classes[class].placement.limit else {
            return true;
        };
        let label = |node: &Node| node.labels.get(limit.topology_key.as_deref()?).map(str::to_owned);
        let cell = label(node);
        let in_cell = |other: &Node| match &cell {
            Some(_) => label(other) == cell,
            None => other.name == node.name,
        };
        let nodes: Vec<&Node> = self.nodes.values().filter(|other| in_cell(other)).collect();
        let there = |at: &Arc<str>| nodes.iter().any(|node| node.name == *at);
        let taken = self.pods.values().filter(|(at, _)| there(at)).map(|(_, holding)| &holding.usage);
        let taken: Vec<_> = taken.collect();
        let within = |percent: Option<u8>, of: fn(&Amounts) -> i64| {
            let wanted = of(&self.holdings[class].usage.requests);
            let taken: i64 = taken.iter().map(|usage| of(&usage.requests)).sum();
            let all: i64 = nodes.iter().map(|node| of(&node.allocatable)).sum();
            let within = |percent: u8| (taken + wanted) * 100 <= all * i64::from(percent);
            wanted <= 0 || percent.is_none_or(within)
        };
        within(limit.cpu, |amounts| amounts.cpu_milli) && within(limit.memory, |amounts| amounts.memory)
    }

    /// Compares the up-to-date cached list of `class` with a fresh one and with the books.
    fn check_list(&self, agent: usize, at: usize) -> TestCaseResult {
        let class = &self.classes[at];
        let inventory = self.ledger.inventory();
        let repaired = &self.agents[agent];
        let list = repaired.list(class.id).expect("it was just used");
        prop_assert_eq!(repaired.revision(), inventory.revision());
        prop_assert_eq!(list.revision(), repaired.view().revision());
        let mut fresh = Agent::new(AgentConfig { cache: UNLIMITED, ..self.configs[agent] });
        fresh.catch_up(inventory);
        fresh.choose(class, Duration::ZERO, |_| {});
        prop_assert_eq!(same_list(repaired, &fresh, class.id), Ok(()));

        let standings = repaired.standings(class.id);
        let best = standings.iter().filter_map(|(id, standing)| Some((standing.ok()?, *id))).min();
        prop_assert_eq!(repaired.best(class.id), best.map(|(_, id)| id));
        for (id, standing) in &standings {
            let reasons = rank_uncached(class, inventory.row(*id)).reasons();
            let of_cells = |reasons: Reasons| reasons.are_of_domains() || reasons.has(Reasons::LIMIT);
            let of_domains = standing.err().is_some_and(of_cells);
            if reasons.is_some_and(|reasons| reasons.has(Reasons::LIMIT)) {
                prop_assert!(of_domains);
                continue;
            }
            prop_assert_eq!(standing.err().filter(|_| !of_domains), reasons);
        }

        let valid = standings.iter().filter(|(_, standing)| standing.is_ok());
        let mut valid: Vec<_> = valid.map(|(id, _)| inventory.name(*id)).collect();
        valid.sort();
        let expected: Vec<_> = self.nodes.keys().filter(|name| self.expected_valid(at, name)).collect();
        prop_assert_eq!(valid, expected);
        Ok(())
    }

    fn check_all(&mut self) -> TestCaseResult {
        for agent in 0..self.agents.len() {
            self.agents[agent].catch_up(self.ledger.inventory());
            for class in 0..self.classes.len() {
                if self.agents[agent].refresh(self.classes[class].id) {
                    self.check_list(agent, class)?;
                }
            }
        }
        Ok(())
    }
}

/// Generates any order of some preferences, with any number of steps.
fn placement() -> impl Strategy<Value = PlacementSettings> {
    let order = Just(Preference::ALL.to_vec()).prop_shuffle();
    let packing = select(vec![Packing::LeastAllocated, Packing::MostAllocated]);
    let topology_key = select(vec![None, Some("zone"), Some("rank"), Some("host")]);
    let limit = (option::of(30u8..=100), option::of(30u8..=100), topology_key);
    let limit = limit.prop_map(|(cpu, memory, topology_key)| CellLimit {
        cpu,
        memory,
        topology_key: topology_key.map(Arc::from),
    });
    let all = (order, 2usize..10, vec(1u32..20, 7), packing, option::of(limit));
    all.prop_map(|(order, count, steps, packing, limit)| {
        if count >= order.len() {
            return PlacementSettings { packing, limit, ..PlacementSettings::default() };
        }
        let with_steps = |(preference, steps): (Preference, u32)| {
            (preference, berth_scheduler::rules::most_steps(preference).map(|most| steps.min(most.into())))
        };
        let order = order.into_iter().take(count).zip(steps).map(with_steps);
        PlacementSettings {
            order: PreferenceOrder::new(order).expect("a good order"),
            packing,
            limit,
            ..PlacementSettings::default()
        }
    })
}

proptest! {
    #[test]
    fn whatever_happened_a_repaired_list_equals_a_fresh_one_and_the_naive_truth(
        templates in vec(template(), CLASSES),
        first in vec(node(), 0..NAMES),
        events in vec(event(), 0..120),
        bytes in select(vec![0, 600, 1500, usize::MAX]),
        placement in placement(),
    ) {
        let limits = CacheLimits { bytes, age: Duration::from_secs(20), ..CacheLimits::unlimited() };
        let mut world = World::new(some_alike(templates), limits, placement);
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
        let placement = PlacementSettings { candidate_width: width, ..PlacementSettings::default() };
        let class = Classifier::new(placement.into()).classify(&Arc::new(spec), &Identity::default(), 0);
        let mut agent = agent(7);
        agent.catch_up(ledger.inventory());
        let mut chosen = BTreeSet::new();
        for _ in 0..200 {
            if let AgentChoice::Node { node, .. } = agent.choose(&class, Duration::ZERO, |_| {}) {
                chosen.insert(node);
            }
        }
        let standings = agent.standings(class.id).into_iter();
        let mut best: Vec<_> = standings.filter_map(|(id, standing)| Some((standing.ok()?, id))).collect();
        best.sort();
        let best: BTreeSet<_> = best.into_iter().take(width).map(|(_, id)| id).collect();
        prop_assert_eq!(chosen, best);
    }
}

/// Gives every other class what the one before it asks of each node alone, so that they share a list.
fn some_alike(mut templates: Vec<(PodSpec, Peer)>) -> Vec<(PodSpec, Peer)> {
    for pair in templates.chunks_exact_mut(2) {
        let of_nodes = pair[0].0.clone();
        let own = &mut pair[1].0;
        *own = PodSpec {
            pod_affinity: own.pod_affinity.clone(),
            spread: own.spread.clone(),
            images: own.images.clone(),
            containers: own.containers,
            ..of_nodes
        };
    }
    templates
}

fn agent(seed: u64) -> Agent {
    Agent::new(AgentConfig { cache: UNLIMITED, seed })
}

#[test]
fn agents_of_different_seeds_choose_different_nodes_among_equals() {
    let mut ledger = Ledger::default();
    for at in 0..1000 {
        let allocatable = Amounts { cpu_milli: 4000, memory: 1 << 35, ephemeral_storage: 0, pods: 110 };
        ledger.apply_node(Node { name: name(at), allocatable, ..Node::default() });
    }
    let class = Classifier::default().classify(&Arc::new(PodSpec::default()), &Identity::default(), 0);
    let choose = |seed| {
        let mut agent = agent(seed);
        agent.catch_up(ledger.inventory());
        match agent.choose(&class, Duration::ZERO, |_| {}) {
            AgentChoice::Node { node, .. } => node,
            AgentChoice::Nowhere(why) => panic!("no node is valid: {why:?}"),
        }
    };
    let chosen: BTreeSet<_> = (0..8).map(choose).collect();
    assert_eq!(chosen.len(), 8, "{chosen:?}");
    assert_eq!(choose(3), choose(3), "one seed, one choice");
}
