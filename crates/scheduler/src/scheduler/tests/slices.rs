//! Changes that concern many pods: they are applied in slices, and never too late for a decision.

use super::*;
use crate::scheduler::stale::SLICE_MAX;
use berth_model::{PodAffinity, PodSelector, PodTerm};

const PODS: usize = 2 * SLICE_MAX;

fn labelled(uid: &str, namespace: &str, app: &str) -> Pod {
    let identity = Identity {
        namespace: namespace.into(),
        labels: [("app", app)].into_iter().collect(),
        ..Identity::default()
    };
    Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..pod(uid, 1) }
}

/// Returns a pod on node `a` that refuses pods of this application near it.
fn hermit(uid: &str, namespace: &str, app: &str) -> Pod {
    let operator = Operator::In([app.into()].into());
    let labels = LabelSelector::All([Requirement { key: "app".into(), operator }].into());
    let selector = PodSelector { namespaces: [namespace.into()].into(), labels, ..PodSelector::default() };
    let affinity = PodAffinity {
        required_anti: [PodTerm { selector, topology_key: "host".into() }].into(),
        ..PodAffinity::default()
    };
    let pod = labelled(uid, namespace, "hermit");
    let peer = Peer { affinity: Arc::new(affinity), ..Peer::clone(&pod.peer) };
    Pod { node_name: Some("a".into()), peer: Arc::new(peer), ..pod }
}

/// Pods that wait in one namespace and one in another.
fn crowd() -> Bench {
    let mut bench = Bench::new(1, &["a", "b"]);
    for at in 0..PODS {
        bench.apply(labelled(&format!("web-{at:04}"), "x", "web"));
    }
    bench.apply(labelled("other", "y", "web"));
    bench
}

fn selected(bench: &Bench) -> usize {
    bench.scheduler.cluster.waiting.values().filter(|pod| !pod.class.selected_by.is_empty()).count()
}

#[test]
fn a_term_about_many_waiting_pods_changes_their_class_slice_by_slice() {
    let mut bench = crowd();
    bench.apply(hermit("hermit", "x", "web"));
    let mut ticks = 0;
    while !bench.scheduler.stale.is_empty() || ticks == 0 {
        let before = selected(&bench);
        bench.tick(bench.now);
        let changed = selected(&bench) - before;
        assert!(changed <= SLICE_MAX / 8, "one slice reclassified {changed} pods");
        ticks += 1;
        assert!(ticks < 100, "the slices make no progress");
    }
    assert_eq!(selected(&bench), PODS, "all pods that the term selects, and no other");
    assert!(ticks > 2, "{ticks} slices");
    let classes: HashSet<_> = bench.scheduler.cluster.waiting.values().map(|pod| pod.class.id).collect();
    assert_eq!(classes.len(), 2);
}

#[test]
fn a_pod_that_is_decided_on_before_its_slice_comes_has_its_new_class() {
    let mut bench = crowd();
    bench.apply(Pod { priority: 10, ..labelled("urgent", "x", "web") });
    bench.apply(hermit("hermit", "x", "web"));
    let task = bench.take(0).expect("there is work");
    // Its old place in the queue is void; the next task is the same pod with its new class.
    let Task::Place { request, .. } = &task else { panic!("{task:?}") };
    assert_eq!(&*request.uid, "urgent");
    assert!(!request.class.selected_by.is_empty(), "the class is the old one");
    assert!(!bench.scheduler.stale.is_empty(), "all pods were reclassified at once");
}

#[test]
fn an_agent_whose_pod_was_marked_meanwhile_does_not_place_it_by_its_old_class() {
    let mut bench = crowd();
    bench.apply(Pod { priority: 10, ..labelled("urgent", "x", "web") });
    let task = bench.take(0).expect("there is work");
    let answer = bench.choose(0, &task);
    bench.apply(hermit("hermit", "x", "web"));
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert!(bench.binds.is_empty());
}

#[test]
fn marks_that_never_end_keep_no_mark_waiting() {
    let mut bench = crowd();
    bench.apply(hermit("hermit", "x", "web"));
    for round in 0..100 {
        // Another term in each round, about the same namespace.
        bench.apply(hermit(&format!("hermit-{round}"), "x", &format!("app-{round}")));
        bench.tick(bench.now);
    }
    assert_eq!(selected(&bench), PODS);
}

#[test]
fn ten_thousand_marks_are_one_of_all_pods() {
    let mut bench = crowd();
    for at in 0..10_000 {
        bench.scheduler.stale.mark_namespace(format!("namespace-{at}").into());
    }
    bench.apply(hermit("hermit", "x", "web"));
    bench.tick(bench.now);
    assert!(bench.scheduler.stale.marks() < 100, "{} marks", bench.scheduler.stale.marks());
    (0..100).for_each(|_| bench.tick(bench.now));
    assert_eq!(selected(&bench), PODS);
    assert_eq!(bench.scheduler.stale.marks(), 0);
}

#[test]
fn a_term_that_is_written_about_one_pod_of_a_set_makes_two_classes_of_it_and_one_when_it_is_gone() {
    let mut bench = Bench::new(1, &["a", "b"]);
    let member = |at: usize| {
        let mut pod = labelled(&format!("db-{at}"), "x", "db");
        let labels = [("app", "db"), ("name", &*format!("db-{at}"))].into_iter().collect();
        let peer =
            Peer { identity: Identity { labels, ..pod.peer.identity.clone() }, ..Peer::clone(&pod.peer) };
        pod.peer = Arc::new(peer);
        pod
    };
    // Another tenant's pod reads the label that differs for each pod of the set.
    bench.apply(hermit("foreign", "y", "db"));
    (0..10).for_each(|at| bench.apply(member(at)));
    assert_eq!(bench.scheduler.classes(), 1);
    bench.apply(hermit("same-namespace", "x", "db"));
    bench.tick(bench.now);
    assert_eq!(selected(&bench), 10);
    assert_eq!(bench.scheduler.classes(), 2, "before and after");
    bench.scheduler.delete_pod(&"same-namespace".into());
    assert_eq!(bench.scheduler.ledger().selectors().len(), 1);
    bench.apply(member(10));
    assert_eq!(bench.scheduler.classes(), 2, "a new pod has the class from before");
}

#[test]
fn a_namespace_that_is_relabelled_changes_its_placed_pods_slice_by_slice() {
    const PLACED: usize = 3 * crate::scheduler::namespace_walks::SLICE_MAX;
    let mut bench = Bench::new(1, &["a", "b"]);
    for at in 0..PLACED {
        let pod = labelled(&format!("web-{at:04}"), "x", "web");
        bench.apply(Pod { node_name: Some("a".into()), ..pod });
    }
    bench.apply(Pod { node_name: Some("a".into()), ..labelled("other", "y", "web") });
    let labels: berth_model::Labels = [("team", "a")].into_iter().collect();
    let updated = |bench: &Bench| {
        let peers = bench.scheduler.ledger().charges().map(|(_, charge)| &charge.holding.peer);
        peers.filter(|peer| peer.identity.namespace_labels.get("team").is_some()).count()
    };
    let (mut before, mut slices) = (0, 0);
    bench.scheduler.apply_object(ClusterObject::Namespace { name: "x".into(), labels });
    while updated(&bench) < PLACED {
        let done = updated(&bench) - before;
        assert!(done <= crate::scheduler::namespace_walks::SLICE_MAX, "{done} in one slice");
        (before, slices) = (updated(&bench), slices + 1);
        assert!(slices < 10, "the slices make no progress");
        bench.tick(bench.now);
    }
    assert_eq!((slices, bench.scheduler.ledger().consistency_check().len()), (2, 0));
}
