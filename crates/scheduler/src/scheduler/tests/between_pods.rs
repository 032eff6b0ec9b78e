//! Inter-pod rules, and reservations.

use super::*;
use crate::agent::KEYS_READ;
use crate::inventory::NodeId;
use crate::objects::ClusterObject;
use berth_model::{
    Identity, LabelSelector, Labels, Operator, Peer, PodAffinity, PodSelector, PodTerm, Requirement, Spread,
    SpreadConstraint,
};

fn zoned(name: &str, zone: &str) -> Node {
    let labels = [("zone", zone)].into_iter().collect();
    Node { labels, ..node(name, 1000) }
}

/// Nodes `a` and `b`, each in a zone of its own name.
fn two_zones() -> Bench {
    let mut bench = Bench::new(1, &["a", "b"]);
    for name in ["a", "b"] {
        bench.scheduler.apply_node(zoned(name, name));
    }
    bench
}

fn app(name: &str) -> LabelSelector {
    let operator = Operator::In([name.into()].into());
    LabelSelector::All([Requirement { key: "app".into(), operator }].into())
}

fn near(name: &str) -> PodTerm {
    let selector =
        PodSelector { namespaces: ["x".into()].into(), labels: app(name), ..PodSelector::default() };
    PodTerm { selector, topology_key: "zone".into() }
}

/// Returns a pod of this application in the namespace `x`.
fn of_app(uid: &str, name: &str, affinity: PodAffinity) -> Pod {
    let affinity = Arc::new(affinity);
    let identity = Identity {
        namespace: "x".into(),
        labels: [("app", name)].into_iter().collect(),
        ..Identity::default()
    };
    let plain = pod(uid, 100);
    let spec = PodSpec { pod_affinity: affinity.clone(), ..PodSpec::clone(plain.spec.as_ref().unwrap()) };
    Pod {
        peer: Arc::new(Peer { identity, terminating: false, affinity, ..Peer::default() }),
        spec: Ok(Arc::new(spec)),
        ..plain
    }
}

fn on(node: &str, pod: Pod) -> Pod {
    Pod { node_name: Some(node.into()), ..pod }
}

fn nodes_of(bench: &Bench) -> Vec<(&str, &str)> {
    bench.binds.iter().map(|bind| (&*bind.uid, &*bind.node)).collect()
}

#[test]
fn a_pod_that_waits_for_another_is_placed_as_soon_as_that_one_is() {
    let mut bench = two_zones();
    let affinity = PodAffinity { required: [near("db")].into(), ..PodAffinity::default() };
    bench.apply(of_app("web", "web", affinity));
    bench.work();
    assert!(
        bench.told[0].2.starts_with("0/2 nodes are available: 2 node(s) didn't match pod affinity rules.")
    );
    bench.apply(on("b", of_app("cache", "cache", PodAffinity::default())));
    bench.work();
    assert_eq!(nodes_of(&bench), [], "another pod does not help");
    bench.apply(of_app("db", "db", PodAffinity::default()));
    bench.work();
    let db = bench.binds[0].node.clone();
    assert_eq!(nodes_of(&bench), [("db", &*db), ("web", &*db)]);
}

#[test]
fn a_pod_that_waits_for_another_is_placed_whoever_places_that_one() {
    let binding = Binding {
        uid: "db".into(),
        namespace: "ns".into(),
        name: "db".into(),
        node: "b".into(),
        decision: None,
    };
    for by_extender in [false, true] {
        let mut bench = two_zones();
        bench.scheduler.cluster.config.knows_others = true;
        let labels = [("team", "a")].into_iter().collect::<Labels>();
        bench.scheduler.apply_object(ClusterObject::Namespace { name: "x".into(), labels });
        let operator = Operator::In(["a".into()].into());
        let of_team_a = LabelSelector::All([Requirement { key: "team".into(), operator }].into());
        // The term reads the labels of the namespace, too.
        let selector =
            PodSelector { namespace_selector: of_team_a, labels: app("db"), ..PodSelector::default() };
        let term = PodTerm { selector, topology_key: "zone".into() };
        let affinity = PodAffinity { required: [term].into(), ..PodAffinity::default() };
        bench.apply(of_app("web", "web", affinity));
        let db = of_app("db", "db", PodAffinity::default());
        bench.apply(Pod { scheduler_name: "default-scheduler".into(), ..db });
        bench.work();
        assert_eq!(nodes_of(&bench), []);
        match by_extender {
            true => drop(bench.scheduler.begin_extender_bind(&binding, None)),
            false => drop(bench.scheduler.review(&binding, None, Some(60 * S), Requester::Other)),
        }
        bench.collect();
        bench.work();
        assert_eq!(nodes_of(&bench), [("web", "b")], "by the extender: {by_extender}");
    }
}

#[test]
fn a_pod_that_comes_while_its_friend_is_evaluated_is_not_missed() {
    let mut bench = two_zones();
    let affinity = PodAffinity { required: [near("db")].into(), ..PodAffinity::default() };
    bench.apply(of_app("web", "web", affinity));
    let task = bench.take(0).expect("there is work");
    let nowhere = bench.choose(0, &task);
    bench.apply(on("b", of_app("db", "db", PodAffinity::default())));
    assert_eq!(bench.settle(0, &task, nowhere), Settled::Done);
    bench.woken.insert(0);
    bench.work();
    assert_eq!(nodes_of(&bench), [("web", "b")]);
}

#[test]
fn a_pod_with_ten_thousand_terms_is_refused_and_changes_nothing_for_others() {
    let mut bench = two_zones();
    let terms = (0..10_000).map(|at| near(&format!("app-{at}"))).collect();
    bench.apply(of_app("crowd", "crowd", PodAffinity { required_anti: terms, ..PodAffinity::default() }));
    bench.apply(of_app("web", "web", PodAffinity::default()));
    bench.work();
    assert_eq!(bench.bound(), ["web"]);
    assert!(bench.told[0].2.contains("10000 affinity terms"), "{}", bench.told[0].2);
    assert!(bench.scheduler.ledger().selectors().is_empty(), "its terms concern nobody before it has a node");
}

/// Returns a pod in the namespace `x` with its own number of terms that may select pods of any namespace.
fn reaching(uid: &str, terms: std::ops::Range<usize>) -> Pod {
    let term = |at: usize| {
        let term = near(&format!("app-{at}"));
        let namespace_selector = LabelSelector::All([].into());
        PodTerm { selector: PodSelector { namespace_selector, ..term.selector }, ..term }
    };
    of_app(uid, uid, PodAffinity { required_anti: terms.map(term).collect(), ..PodAffinity::default() })
}

#[test]
fn a_pod_whose_namespace_has_too_many_selectors_waits_until_others_have_left() {
    let mut bench = two_zones();
    let most = crate::live_selectors::FOREIGN_SELECTORS_MAX;
    // Of another scheduler: it counts, whatever it has.
    bench.apply(Pod { scheduler_name: "other".into(), ..on("a", reaching("foreign", 0..10)) });
    bench.apply(reaching("full", 10..most));
    bench.apply(reaching("late", most..most + 1));
    bench.apply(reaching("same", 3..5));
    bench.apply(of_app("plain", "plain", PodAffinity::default()));
    bench.work();
    let mut bound = bench.bound();
    bound.sort();
    assert_eq!(bound, ["full", "plain", "same"]);
    let (uid, reason, message, event) = bench.told.last().expect("it is told").clone();
    assert_eq!((&*uid, reason, event), ("late", "SchedulerError", true));
    assert!(message.contains("namespace x") && message.contains("tried again"), "{message}");
    assert_eq!(bench.scheduler.stats().over_limit, 1);
    assert_eq!(bench.scheduler.ledger().selectors().full().count(), 1);

    bench.scheduler.delete_pod(&"foreign".into());
    bench.collect();
    bench.tick(S);
    bench.work();
    assert!(bench.bound().contains(&"late"));
    assert_eq!(bench.scheduler.ledger().selectors().full().count(), 0);
}

/// Returns a pod `web` whose application must not be in one zone twice more often than in another.
fn spread_web(uid: &str) -> Pod {
    let constraint = SpreadConstraint {
        topology_key: "zone".into(),
        max_skew: 1,
        min_domains: 1,
        hard: true,
        selector: near("web").selector,
        self_match: true,
        honor_affinity: true,
        honor_taints: false,
    };
    let web = of_app(uid, "web", PodAffinity::default());
    let spread = Spread { constraints: [constraint].into(), defaulted: false };
    let spec = PodSpec { spread, ..PodSpec::clone(web.spec.as_ref().unwrap()) };
    Pod { spec: Ok(Arc::new(spec)), ..web }
}

#[test]
fn a_pod_that_is_deleted_or_renamed_while_it_is_bound_no_longer_balances_zones() {
    for deleting in [true, false] {
        let mut bench = two_zones();
        bench.apply(on("a", of_app("first", "web", PodAffinity::default())));
        bench.apply(spread_web("second"));
        bench.work();
        assert_eq!(nodes_of(&bench), [("second", "b")]);
        bench.scheduler.apply_node(Node { unschedulable: true, ..zoned("b", "b") });
        let second = spread_web("second");
        let gone = match deleting {
            true => Arc::new(Peer { terminating: true, ..Peer::clone(&second.peer) }),
            false => of_app("second", "other", PodAffinity::default()).peer,
        };
        bench.apply(Pod { peer: gone, deleting, ..second });
        bench.apply(spread_web("third"));
        bench.work();
        assert_eq!(nodes_of(&bench), [("second", "b")], "deleting: {deleting}");
    }
}

#[test]
fn a_pod_that_would_unbalance_zones_is_placed_as_soon_as_the_others_catch_up() {
    let mut bench = two_zones();
    bench.scheduler.apply_node(Node { unschedulable: true, ..zoned("b", "b") });
    for uid in ["one", "two"] {
        bench.apply(spread_web(uid));
    }
    bench.work();
    assert_eq!(nodes_of(&bench), [("one", "a")]);
    assert_eq!(bench.scheduler.parked_classes(), 1);
    bench.apply(on("b", of_app("foreign", "web", PodAffinity::default())));
    bench.work();
    assert_eq!(nodes_of(&bench), [("one", "a"), ("two", "a")]);
}

#[test]
fn a_node_without_the_label_of_a_soft_constraint_comes_first_for_defaults_and_last_for_a_pods_own() {
    for (defaulted, expected) in [(true, "b"), (false, "a")] {
        let mut bench = Bench::new(1, &["a", "b"]);
        bench.scheduler.apply_node(zoned("a", "a"));
        let web = spread_web("web");
        let mut spec = PodSpec::clone(web.spec.as_ref().unwrap());
        spec.spread.constraints[0].hard = false;
        spec.spread.defaulted = defaulted;
        bench.apply(Pod { spec: Ok(Arc::new(spec)), ..web });
        bench.work();
        assert_eq!(nodes_of(&bench), [("web", expected)]);
    }
}

#[test]
fn two_agents_that_choose_at_once_do_not_put_pods_together_that_refuse_each_other() {
    let mut bench = Bench::new(2, &["a", "b"]);
    for name in ["a", "b"] {
        bench.scheduler.apply_node(zoned(name, "same"));
    }
    let affinity = || PodAffinity { required_anti: [near("web")].into(), ..PodAffinity::default() };
    bench.apply(of_app("one", "web", affinity()));
    // Of another class, so that another agent takes it.
    let two = of_app("two", "web", affinity());
    let spec = PodSpec { containers: 2, ..PodSpec::clone(two.spec.as_ref().unwrap()) };
    bench.apply(Pod { spec: Ok(Arc::new(spec)), ..two });
    let tasks = [0, 1].map(|agent| (agent, bench.take(agent).expect("each agent has one")));
    let answers: Vec<_> = tasks.iter().map(|(agent, task)| bench.choose(*agent, task)).collect();
    let settled: Vec<_> = (tasks.iter().zip(answers))
        .map(|((agent, task), answer)| bench.settle(*agent, task, answer))
        .collect();
    assert_eq!(settled, [Settled::Done, Settled::Again]);
}

#[test]
fn anti_affinity_of_any_bound_pod_rejects_later_pods() {
    let mut bench = two_zones();
    bench.apply(of_app("early", "web", PodAffinity::default()));
    let hermit = PodAffinity { required_anti: [near("web")].into(), ..PodAffinity::default() };
    bench.apply(on("a", of_app("hermit", "hermit", hermit.clone())));
    bench.apply(on("b", of_app("hermit-too", "hermit", hermit)));
    bench.work();
    let why = "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules.";
    assert!(bench.told[0].2.starts_with(why), "{}", bench.told[0].2);
    bench.scheduler.delete_pod(&"hermit-too".into());
    bench.collect();
    bench.work();
    assert_eq!(nodes_of(&bench), [("early", "b")]);
}

/// The counts of each zone, and how many nodes each rule refuses, tell it.
#[test]
fn a_class_that_fits_nowhere_is_explained_without_a_look_at_each_node() {
    let by = |key: &str| PodTerm { topology_key: key.into(), ..near("web") };
    let hermit = |key: &str| PodAffinity { required_anti: [by(key)].into(), ..PodAffinity::default() };
    let lonely = |key: &str| PodAffinity { required: [by(key)].into(), ..PodAffinity::default() };
    let apart = "500 node(s) didn't match pod anti-affinity rules";
    let existing = "500 node(s) didn't satisfy existing pods anti-affinity rules";
    let together = "500 node(s) didn't match pod affinity rules";
    let none = PodAffinity::default;
    for (what, cpu_milli, on_each, waits, why) in [
        (
            "none has room",
            150,
            of_app("web", "web", none()),
            of_app("x", "large", none()),
            "500 Insufficient cpu",
        ),
        ("none alone", 1000, of_app("web", "web", none()), of_app("x", "hermit", hermit("host")), apart),
        ("no zone alone", 1000, of_app("web", "web", none()), of_app("x", "hermit", hermit("zone")), apart),
        ("hermits", 1000, of_app("hermit", "hermit", hermit("host")), of_app("x", "web", none()), existing),
        (
            "hermits of zones",
            1000,
            of_app("hermit", "hermit", hermit("zone")),
            of_app("x", "web", none()),
            existing,
        ),
        ("no friend", 1000, of_app("db", "db", none()), of_app("x", "x", lonely("host")), together),
        ("no friend in a zone", 1000, of_app("db", "db", none()), of_app("x", "x", lonely("zone")), together),
    ] {
        let mut bench = Bench::new(1, &[]);
        for at in 0..500 {
            let (name, zone) = (format!("n{at}"), format!("z{}", at % 5));
            let labels = [("host", &*name), ("zone", &*zone)].into_iter().collect();
            bench.scheduler.apply_node(Node { labels, ..node(&name, cpu_milli) });
            let uid: Arc<str> = format!("{name}-{}", on_each.uid).into();
            bench
                .scheduler
                .apply_pod(on(&name, Pod { name: uid.clone(), uid, ..on_each.clone() }), bench.now);
        }
        bench.apply(waits);
        let read = KEYS_READ.get();
        bench.work();
        assert!(bench.told.len() == 1 && bench.told[0].2.contains(why), "{what}: {:?}", bench.told);
        assert_eq!(KEYS_READ.get(), read, "{what}");
    }
}

#[test]
fn terms_that_name_namespaces_by_labels_follow_the_labels() {
    let mut bench = two_zones();
    let labelled = |team: &str| ClusterObject::Namespace {
        name: "x".into(),
        labels: [("team", team)].into_iter().collect::<Labels>(),
    };
    bench.scheduler.apply_object(labelled("a"));
    let operator = Operator::In(["a".into()].into());
    let team_a = LabelSelector::All([Requirement { key: "team".into(), operator }].into());
    let selector = PodSelector { namespaces: [].into(), namespace_selector: team_a, labels: app("web") };
    let hermit = PodTerm { selector, topology_key: "zone".into() };
    let hermit = PodAffinity { required_anti: [hermit].into(), ..PodAffinity::default() };
    for name in ["a", "b"] {
        bench.apply(on(name, of_app(&format!("hermit-{name}"), "hermit", hermit.clone())));
    }
    bench.apply(of_app("web", "web", PodAffinity::default()));
    bench.work();
    assert_eq!(nodes_of(&bench), []);
    bench.scheduler.apply_object(labelled("b"));
    bench.collect();
    bench.work();
    assert_eq!(nodes_of(&bench).len(), 1, "the namespace is another team's now");
}

#[test]
fn room_that_another_scheduler_has_made_for_its_pod_is_left_to_that_pod() {
    let mut bench = Bench::new(1, &["a"]);
    let foreign = Pod {
        scheduler_name: "default-scheduler".into(),
        nominated_node: Some("a".into()),
        priority: 5,
        ..pod("foreign", 950)
    };
    bench.apply(foreign.clone());
    bench.apply(Pod { priority: 5, ..pod("equal", 100) });
    bench.work();
    assert_eq!(nodes_of(&bench), []);
    assert!(bench.told[0].2.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{:?}", bench.told);
    bench.apply(Pod { priority: 6, ..pod("higher", 100) });
    bench.work();
    assert_eq!(nodes_of(&bench), [("higher", "a")], "reserved against pods of the same or a lower priority");
    bench.apply(Pod { nominated_node: None, ..foreign });
    bench.work();
    assert_eq!(nodes_of(&bench), [("higher", "a"), ("equal", "a")]);
    assert_eq!(bench.scheduler.heal_from(NodeId(0)), (Vec::new(), None));
}
