//! Advice carried out on a real ledger, move by move, and compared with every possible single move.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::agent::{Agent, AgentConfig, CacheLimits};
use crate::class::{ClassContext, Classifier};
use crate::gang::{AllocationKind, GangTopology, GangTopologyMode, UnboundMember};
use crate::inventory::{Ledger, Revision};
use crate::objects::{Budgets, ClusterObject, DisruptionBudget, ObjectName, ObjectStores};
use berth_model::{
    Amounts, Holding, Identity, LabelSelector, Node, Operator, Peer, PodAffinity, PodSelector, PodSpec,
    PodTerm, Requirement, Usage,
};

const CPU: i64 = 1000;

/// A pod of a random cluster.
#[derive(Debug, Clone, Copy)]
struct Small {
    node: usize,
    cpu: i64,
    app: u8,
    /// The only zone allowed.
    zone: Option<u8>,
    /// Anti-affinity to pods of its app.
    alone: bool,
    controlled: bool,
}

/// Waiting pods of a random cluster.
#[derive(Debug, Clone, Copy)]
struct Big {
    pods: usize,
    cpu: i64,
    zone: Option<u8>,
    gang: bool,
    together: bool,
}

struct World {
    ledger: Ledger,
    classifier: Classifier,
    pods: Vec<(Resident, Arc<PodSpec>)>,
    budgets: Budgets,
}

fn labels(pairs: &[(&str, &str)]) -> berth_model::Labels {
    pairs.iter().copied().collect()
}

fn app_selector(app: u8) -> LabelSelector {
    let requirement =
        Requirement { key: "app".into(), operator: Operator::In([app.to_string().into()].into()) };
    LabelSelector::All([requirement].into())
}

fn spec(cpu_milli: i64, zone: Option<u8>, affinity: Arc<PodAffinity>) -> Arc<PodSpec> {
    let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
    let usage = Arc::new(Usage { requests, ..Usage::default() });
    let zone = zone.map(|zone| zone.to_string());
    let node_selector = zone.iter().map(|zone| ("zone", &**zone)).collect();
    Arc::new(PodSpec { usage, node_selector, pod_affinity: affinity, ..PodSpec::default() })
}

impl World {
    fn new(zones: &[u8], pods: &[Small], allowed: &[i32]) -> World {
        let mut ledger = Ledger::default();
        for (at, zone) in zones.iter().enumerate() {
            let allocatable = Amounts { cpu_milli: CPU, pods: 110, ..Amounts::default() };
            let labels = labels(&[("zone", &zone.to_string()), ("host", &format!("n{at}"))]);
            ledger.apply_node(Node { name: format!("n{at}").into(), allocatable, labels, ..Node::default() });
        }
        let mut objects = ObjectStores::default();
        for (app, allowed) in allowed.iter().enumerate() {
            let name = ObjectName { namespace: "ns".into(), name: format!("budget-{app}").into() };
            let selector = app_selector(app as u8);
            let disrupted = Default::default();
            let budget = DisruptionBudget { name, selector, allowed: *allowed, disrupted };
            objects.apply(ClusterObject::DisruptionBudget(budget));
        }
        let mut world =
            World { ledger, classifier: Classifier::default(), pods: Vec::new(), budgets: objects.budgets };
        pods.iter().for_each(|pod| world.add(*pod, zones.len()));
        world
    }

    fn add(&mut self, pod: Small, nodes: usize) {
        let node = format!("n{}", pod.node % nodes).into();
        let uid: Arc<str> = format!("u{:03}", self.pods.len()).into();
        let labels = labels(&[("app", &pod.app.to_string())]);
        let identity = Identity { namespace: "ns".into(), labels, ..Identity::default() };
        let affinity = Arc::new(match pod.alone {
            false => PodAffinity::default(),
            true => {
                let selector = PodSelector {
                    namespaces: ["ns".into()].into(),
                    labels: app_selector(pod.app),
                    ..PodSelector::default()
                };
                let term = PodTerm { selector, topology_key: "host".into() };
                PodAffinity { required_anti: [term].into(), ..PodAffinity::default() }
            }
        });
        let spec = spec(pod.cpu, pod.zone, affinity.clone());
        let peer = Arc::new(Peer { identity, affinity, ..Peer::default() });
        let holding = Holding { usage: spec.usage.clone(), peer, ..Holding::default() };
        self.ledger.bound(&uid, &node, &holding);
        let pod_ref = PodRef {
            namespace: "ns".into(),
            name: uid.clone(),
            uid: uid.clone(),
            scheduler_name: "berth".into(),
        };
        self.ledger.note_seen(pod_ref.clone(), 1, None);
        let fixed = (!pod.controlled).then_some(Fixed::NoController);
        self.pods.push((Resident { pod: pod_ref, holding, fixed, gang: None }, spec));
    }

    fn node(&self, name: &str) -> NodeId {
        self.ledger.inventory().find(name).expect("it is there")
    }

    fn case(&mut self, big: Big) -> Case {
        let spec = spec(big.cpu, big.zone, Arc::default());
        let class = self.classifier.classify(&spec, &Identity::default(), 0);
        let member = |at: usize| UnboundMember {
            uid: format!("w{at}").into(),
            class: class.clone(),
            holding: Holding::from(&spec.usage),
            role: 0,
        };
        let members: Vec<_> = (0..big.pods).map(member).collect();
        let mode = GangTopologyMode::Required;
        let topology = (big.gang && big.together).then(|| GangTopology { key: "zone".into(), mode });
        let need = if big.gang { big.pods as u32 } else { 0 };
        let what = match big.gang {
            true => Waits::Allocation(AllocationName {
                kind: AllocationKind::Allocation,
                namespace: "ns".into(),
                name: "gang".into(),
            }),
            false => Waits::Pods(Vec::new()),
        };
        let wanted = WantedMembers {
            members,
            need: [need].into(),
            topology,
            placed: Vec::new(),
            reserved: Vec::new(),
        };
        Case { what, wanted, waiting: big.pods }
    }

    fn advise(&mut self, case: &Case) -> (Finding, Effort) {
        let mut agent = agent(&self.ledger);
        let budgets = self.budgets.clone();
        let mut go_on = || true;
        let mut repacker = Repacker::new(&mut agent, self, &budgets, &mut go_on);
        let finding = repacker.advise(case);
        let effort = repacker.effort();
        assert_eq!(agent.view().alterations(), 0, "no assumption is left in the view");
        (finding, effort)
    }

    /// Moves the pod on the ledger. Returns whether all rules allow the move.
    fn carry_out(&mut self, uid: &Arc<str>, to: NodeId) -> bool {
        let (resident, _) = self.pods.iter().find(|(known, _)| known.pod.uid == *uid).expect("it is there");
        let resident = resident.clone();
        let class = self.class_of(uid).expect("it is there");
        self.ledger.discharge(uid);
        let admitted = agent(&self.ledger).admits_now(&class, to);
        let node = self.ledger.inventory().name(to).clone();
        self.ledger.bound(uid, &node, &resident.holding);
        self.ledger.note_seen(resident.pod, 1, None);
        admitted
    }

    fn fits(&self, case: &Case, pods: usize) -> bool {
        let need = if case.is_gang() { case.wanted.need.clone() } else { [pods as u32].into() };
        let wanted = WantedMembers { need, ..case.wanted.clone() };
        agent(&self.ledger).plan(&wanted, Duration::ZERO, |_| {}).complete
    }

    fn may_move(&self, uid: &str) -> bool {
        let (resident, _) = self.pods.iter().find(|(known, _)| *known.pod.uid == *uid).expect("it is there");
        let pod = &resident.pod;
        let identity = &resident.holding.peer.identity;
        resident.fixed.is_none() && !self.budgets.spending().violates(&pod.namespace, &pod.name, identity)
    }
}

impl Residents for World {
    fn on(&mut self, node: NodeId, _: Revision) -> Option<Vec<Resident>> {
        let pods = self.ledger.occupants(node).into_iter();
        let known = |uid: &str| self.pods.iter().find(|(known, _)| *known.pod.uid == *uid);
        Some(pods.filter_map(|pod| Some(known(&pod.pod.uid)?.0.clone())).collect())
    }

    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>> {
        let (resident, spec) = self.pods.iter().find(|(known, _)| *known.pod.uid == *uid)?;
        let identity = &resident.holding.peer.identity;
        let selected_by = self.ledger.selectors().selecting(identity);
        let context = ClassContext { selected_by, ..ClassContext::default() };
        Some(self.classifier.classify_in(context, spec, identity, 0))
    }
}

fn agent(ledger: &Ledger) -> Agent {
    let mut agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 1 });
    agent.catch_up(ledger.inventory());
    agent
}

fn small() -> impl Strategy<Value = Small> {
    let zone = prop::option::weighted(0.3, 0u8..2);
    (0usize..6, 1i64..7, 0u8..4, zone, prop::bool::weighted(0.2), prop::bool::weighted(0.8)).prop_map(
        |(node, cpu, app, zone, alone, controlled)| Small {
            node,
            cpu: cpu * 100,
            app,
            zone,
            alone,
            controlled,
        },
    )
}

fn big() -> impl Strategy<Value = Big> {
    let zone = prop::option::weighted(0.3, 0u8..2);
    (1usize..4, 3i64..11, zone, any::<bool>(), any::<bool>())
        .prop_map(|(pods, cpu, zone, gang, together)| Big { pods, cpu: cpu * 100, zone, gang, together })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn moves_that_are_advised_can_be_made_in_order_and_what_waits_fits_then(
        zones in prop::collection::vec(0u8..2, 2..6),
        pods in prop::collection::vec(small(), 2..14),
        allowed in prop::collection::vec(0i32..3, 0..3),
        big in big(),
    ) {
        let mut world = World::new(&zones, &pods, &allowed);
        let case = world.case(big);
        let fits_already = world.fits(&case, big.pods);
        match world.advise(&case).0 {
            Finding::Fits => prop_assert!(fits_already),
            Finding::Nothing(_) => prop_assert!(!fits_already),
            Finding::Moves(advice) => {
                prop_assert!(!fits_already && !advice.moves.is_empty());
                prop_assert!(advice.nodes().len() <= MOST_NODES);
                let budgets = world.budgets.clone();
                let mut spending = budgets.spending();
                let mut moved = std::collections::BTreeSet::new();
                let fit = (0..=big.pods).rev().find(|pods| world.fits(&case, *pods)).unwrap_or(0);
                for step in &advice.moves {
                    let Resident { pod, holding, fixed, .. } = &step.resident;
                    prop_assert!(fixed.is_none(), "it cannot be moved: {pod:?}");
                    prop_assert!(moved.insert(pod.uid.clone()), "it is moved once");
                    prop_assert!(step.from != step.to);
                    prop_assert_eq!(world.ledger.charge_of(&pod.uid).map(|charge| charge.node), Some(step.from));
                    prop_assert!(!spending.violates(&pod.namespace, &pod.name, &holding.peer.identity));
                    prop_assert!(world.carry_out(&pod.uid, step.to), "a rule is against it");
                }
                let helped = if case.is_gang() { big.pods } else { fit + advice.places };
                prop_assert!(advice.places >= 1 && world.fits(&case, helped));
            }
        }
    }

    #[test]
    fn where_one_move_is_enough_one_is_advised(
        zones in prop::collection::vec(0u8..2, 2..5),
        pods in prop::collection::vec(small(), 2..9),
        allowed in prop::collection::vec(0i32..2, 0..3),
        big in big().prop_map(|big| Big { pods: if big.gang { big.pods } else { 1 }, ..big }),
    ) {
        let mut world = World::new(&zones, &pods, &allowed);
        let case = world.case(big);
        prop_assume!(!world.fits(&case, 1));
        let mut enough = Vec::new();
        for at in 0..pods.len() {
            let uid = world.pods[at].0.pod.uid.clone();
            for to in (0..zones.len()).map(|at| world.node(&format!("n{at}"))) {
                let mut other = World::new(&zones, &pods, &allowed);
                let from = other.ledger.charge_of(&uid).map(|charge| charge.node);
                let made = other.may_move(&uid) && from != Some(to) && other.carry_out(&uid, to);
                let case = other.case(big);
                if made && other.fits(&case, 1) {
                    enough.push((uid.clone(), to));
                }
            }
        }
        let found = match world.advise(&case).0 {
            Finding::Moves(advice) => advice.moves.len(),
            _ => 0,
        };
        prop_assert_eq!(found == 1, !enough.is_empty(), "one of {:?} is enough, found {} moves", enough, found);
    }
}

#[test]
fn what_fits_nowhere_else_than_where_its_like_is_goes_there() {
    let of_zone_0 = |node| Small { zone: Some(0), ..plain(node, 500) };
    let stuck = || Small { controlled: false, ..plain(2, 300) };
    // The first pod fits no other node; the second fits the node of the first.
    let mut world = World::new(&[0, 1, 0], &[stuck(), of_zone_0(0), of_zone_0(1), stuck()], &[]);
    let case = world.case(single(600));
    let Finding::Moves(advice) = world.advise(&case).0 else { panic!("one move is enough") };
    let moves: Vec<_> = advice.moves.iter().map(|step| (&*step.resident.pod.uid, step.to)).collect();
    assert_eq!(moves, [("u002", world.node("n0"))]);
}

fn plain(node: usize, cpu: i64) -> Small {
    Small { node, cpu, app: 9, zone: None, alone: false, controlled: true }
}

fn single(cpu: i64) -> Big {
    Big { pods: 1, cpu, zone: None, gang: false, together: false }
}

fn told(world: &World, finding: &Finding) -> String {
    told_in("ns", world, finding)
}

fn told_in(reader: &str, world: &World, finding: &Finding) -> String {
    match finding {
        Finding::Fits => "fits".to_owned(),
        Finding::Moves(advice) => {
            advice.sentence(reader, &|node| world.ledger.inventory().name(node).clone())
        }
        Finding::Nothing(obstacles) => obstacles.to_string(),
    }
}

#[test]
fn the_smallest_pod_that_is_enough_moves_to_where_there_is_room() {
    // n0 lacks 300 and n1 lacks 400; only n2 has room for the moved pods.
    let pods = [plain(0, 300), plain(0, 400), plain(1, 800), plain(2, 600)];
    let mut world = World::new(&[0, 0, 0], &pods, &[]);
    let case = world.case(single(600));
    let finding = world.advise(&case).0;
    assert_eq!(told(&world, &finding), "moving 1 pod off n0 (ns/u000 to n2) would make room");
    let elsewhere = told_in("tenant", &world, &finding);
    assert_eq!(elsewhere, "moving 1 pod off n0 (one of another namespace to n2) would make room");
}

#[test]
fn a_sentence_names_at_most_four_moves_and_the_nodes_that_pods_leave_if_there_are_several() {
    let pods = [plain(0, 100), plain(0, 100), plain(0, 100), plain(1, 100), plain(1, 100)];
    let mut world = World::new(&[0, 0, 0], &pods, &[]);
    let step = |at: usize| {
        let resident = world.pods[at].0.clone();
        let class = world.class_of(&resident.pod.uid).expect("it is there");
        Move { resident, class, from: world.node(["n0", "n1"][at / 3]), to: world.node("n2") }
    };
    let advice = Advice { moves: (0..5).map(step).collect(), places: 1 };
    let expected = "moving 5 pods off 2 nodes (ns/u000 from n0 to n2, ns/u001 from n0 to n2, ns/u002 from n0 to n2, \
                    ns/u003 from n1 to n2, ...) would make room";
    assert_eq!(told(&world, &Finding::Moves(advice)), expected);
}

#[test]
fn a_report_says_what_fits_which_moves_help_and_why_none_does() {
    let pods = [plain(0, 300), plain(0, 400), plain(1, 800), plain(2, 600)];
    let mut world = World::new(&[0, 0, 0], &pods, &[]);
    let waits = PodRef {
        namespace: "ns".into(),
        name: "w0".into(),
        uid: "w0".into(),
        scheduler_name: "berth".into(),
    };
    let case = |big| Case { what: Waits::Pods(vec![waits.clone()]), ..world.case(big) };
    let cases = [single(100), single(600), single(1_100)].map(case);
    let findings: Vec<_> = cases.iter().map(|case| world.advise(case).0).collect();
    let name = |node: NodeId| world.ledger.inventory().name(node).clone();
    let waiting = cases.iter().zip(&findings).map(|(case, finding)| Entry::new(case, finding, &name));
    let mut report = FragmentationReport { waiting: waiting.collect(), ..FragmentationReport::default() };
    report.note(Effort { proofs: 3, cut: 2 });
    let [fits, helped, stuck] = &report.waiting[..] else { panic!("three cases") };
    assert_eq!((fits.kind, &*fits.namespace, &*fits.name, fits.pods), ("Pod", "ns", "w0", 1));
    assert_eq!((fits.fits, &fits.moves[..], &fits.help, &fits.why), (true, &[][..], &None, &None));
    let step = NamedMove { pod: "ns/u000".to_owned(), from: "n0".into(), to: "n2".into() };
    assert_eq!((helped.fits, helped.makes_room_for, &helped.moves[..]), (false, 1, &[step][..]));
    assert_eq!(helped.help.as_deref(), Some("moving 1 pod off n0 (ns/u000 to n2) would make room"));
    let why = "3 nodes are rejected for reasons independent of their pods";
    assert_eq!((stuck.fits, stuck.makes_room_for, stuck.why.as_deref()), (false, 0, Some(why)));
    assert_eq!((report.nodes(), report.helped()), (vec!["n0".into()], 1));
    assert_eq!((report.proofs, report.cut), (3, 2));
}

#[test]
fn two_pods_move_when_no_single_one_is_enough_and_each_has_its_own_place() {
    let pods = [plain(0, 300), plain(0, 300), plain(0, 300), plain(1, 700), plain(2, 700)];
    let mut world = World::new(&[0, 0, 0], &pods, &[]);
    let case = world.case(single(700));
    let finding = world.advise(&case).0;
    assert_eq!(told(&world, &finding), "moving 2 pods off n0 (ns/u000 to n1, ns/u001 to n2) would make room");
}

#[test]
fn obstacles_are_named_when_no_move_helps() {
    let fixed = |node: usize| Small { controlled: false, ..plain(node, 600) };
    let budgeted = |node: usize| Small { app: 0, ..plain(node, 600) };
    let mut world = World::new(&[0, 0, 0], &[fixed(0), budgeted(1), plain(2, 600)], &[0]);
    let case = world.case(single(700));
    let finding = world.advise(&case).0;
    let expected = "on 1 node the pods that would have to move fit no other node; 2 nodes have too few pods that can be moved \
                    (of the rest, 1 have no controller that would recreate them, 1 are protected by the disruption \
                    budget ns/budget-0)";
    assert_eq!(told(&world, &finding), expected);
    let case = world.case(single(1100));
    let finding = world.advise(&case).0;
    assert_eq!(told(&world, &finding), "3 nodes are rejected for reasons independent of their pods");
}

#[test]
fn for_several_single_pods_room_is_made_for_as_many_as_possible() {
    let pods = [plain(0, 500), plain(1, 500), plain(2, 500)];
    let mut world = World::new(&[0, 0, 0], &pods, &[]);
    let case = world.case(Big { pods: 3, ..single(600) });
    let Finding::Moves(advice) = world.advise(&case).0 else { panic!("one move helps one of them") };
    assert_eq!((advice.places, advice.moves.len()), (1, 1));
}

#[test]
fn members_that_a_gang_cannot_do_without_stay_and_those_it_can_spare_move_one_by_one() {
    for (spare, expected) in [(0, false), (1, false), (2, true)] {
        let pods = [plain(0, 300), plain(0, 300), plain(0, 300), plain(1, 700), plain(2, 700)];
        let mut world = World::new(&[0, 0, 0], &pods, &[]);
        for (resident, _) in &mut world.pods[..3] {
            resident.gang = Some(Gang { name: "ns/ring".into(), role: 0, spare });
        }
        let case = world.case(single(700));
        assert_eq!(matches!(world.advise(&case).0, Finding::Moves(_)), expected, "{spare} to spare");
    }
}

#[test]
fn the_number_of_proofs_is_bounded() {
    // Each pod may be moved but fits no other node; with anti-affinity this is found only by trying.
    let alone = |node: usize| Small { alone: true, ..plain(node, 600) };
    let nodes = 2 * MOST_PROOFS;
    let pods: Vec<_> = (0..nodes).map(alone).collect();
    let mut world = World::new(&vec![0; nodes], &pods, &[]);
    let case = world.case(single(700));
    let (finding, effort) = world.advise(&case);
    assert_eq!(effort, Effort { proofs: MOST_PROOFS, cut: 1 });
    assert!(matches!(finding, Finding::Nothing(obstacles) if obstacles.untried == nodes));
}

#[test]
fn when_there_is_no_time_nothing_is_tried() {
    let mut world = World::new(&[0, 0], &[plain(0, 600), plain(1, 300)], &[]);
    let case = world.case(single(800));
    let mut agent = agent(&world.ledger);
    let mut go_on = || false;
    let budgets = Budgets::default();
    let mut repacker = Repacker::new(&mut agent, &mut world, &budgets, &mut go_on);
    assert!(matches!(repacker.advise(&case), Finding::Nothing(obstacles) if obstacles.untried == 2));
    assert_eq!(repacker.effort(), Effort { proofs: 0, cut: 1 });
}

/// Prints the time for one class in a large cluster: `cargo test --profile dist -- --ignored the_time_of_advice`.
#[test]
#[ignore = "a measurement"]
fn the_time_of_advice_for_one_class_in_5000_nodes_with_150000_pods() {
    // Pods of 26 sizes; about 25 of 1000 are free on a node.
    let size = |at: usize| 20 + (at as i64).wrapping_mul(2_654_435_761) % 26;
    let pods: Vec<_> = (0..150_000).map(|at| plain(at % 5000, size(at))).collect();
    let mut world = World::new(&vec![0; 5000], &pods, &[]);
    for waiting in [160, 300, 900] {
        let by_uid =
            world.pods.iter().enumerate().map(|(at, (known, _))| (known.pod.uid.clone(), at)).collect();
        let case = world.case(single(waiting));
        let (mut agent, budgets) = (agent(&world.ledger), Budgets::default());
        let mut residents = Indexed { world: &mut world, by_uid };
        let mut go_on = || true;
        let began = std::time::Instant::now();
        let mut repacker = Repacker::new(&mut agent, &mut residents, &budgets, &mut go_on);
        let finding = repacker.advise(&case);
        let (took, effort) = (began.elapsed(), repacker.effort());
        println!("a pod of {waiting}: {took:?}, {effort:?}; {}", told(&world, &finding));
    }
}

struct Indexed<'a> {
    world: &'a mut World,
    by_uid: std::collections::HashMap<Arc<str>, usize>,
}

impl Residents for Indexed<'_> {
    fn on(&mut self, node: NodeId, _: Revision) -> Option<Vec<Resident>> {
        let pods = self.world.ledger.occupants(node).into_iter();
        Some(pods.map(|pod| self.world.pods[self.by_uid[&pod.pod.uid]].0.clone()).collect())
    }

    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>> {
        let (resident, spec) = &self.world.pods[*self.by_uid.get(uid)?];
        let identity = &resident.holding.peer.identity;
        let selected_by = self.world.ledger.selectors().selecting(identity);
        let context = ClassContext { selected_by, ..ClassContext::default() };
        Some(self.world.classifier.classify_in(context, spec, identity, 0))
    }
}
