//! Changes that concern many pods: they are applied in slices, and never too late for a decision.

use super::quotas::quota;
use super::*;
use crate::inventory::NodeId;
use crate::scheduler::PodWalk;
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
    hermit_from(uid, namespace, ("app", app))
}

/// Returns the same with any label.
fn hermit_from(uid: &str, namespace: &str, (key, value): (&str, &str)) -> Pod {
    let operator = Operator::In([value.into()].into());
    let labels = LabelSelector::All([Requirement { key: key.into(), operator }].into());
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
fn a_term_about_one_pod_of_a_set_makes_two_classes_of_it_and_none_of_each_pod() {
    let mut bench = Bench::new(1, &["a", "b"]);
    (0..10).for_each(|at| bench.apply(member(at)));
    assert_eq!(bench.scheduler.classes(), 1);
    bench.apply(hermit_from("about-one", "x", ("name", "db-3")));
    bench.tick(bench.now);
    assert_eq!((selected(&bench), bench.scheduler.classes()), (1, 2));
    bench.apply(hermit_from("foreign", "y", ("name", "db-4")));
    bench.tick(bench.now);
    assert_eq!((selected(&bench), bench.scheduler.classes()), (1, 2), "it is about pods of y");
    (10..20).for_each(|at| bench.apply(member(at)));
    assert_eq!(bench.scheduler.classes(), 2);
}

/// A pod of a set: one of its labels is that of no other.
fn member(at: usize) -> Pod {
    let mut pod = labelled(&format!("db-{at}"), "x", "db");
    let labels = [("app", "db"), ("name", &*format!("db-{at}"))].into_iter().collect();
    let peer = Peer { identity: Identity { labels, ..pod.peer.identity.clone() }, ..Peer::clone(&pod.peer) };
    pod.peer = Arc::new(peer);
    pod
}

#[test]
fn a_term_about_a_set_makes_a_second_class_of_it_and_the_first_again_when_it_is_gone() {
    let mut bench = Bench::new(1, &["a", "b"]);
    // A term of another namespace concerns nobody here.
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
    const PLACED: usize = 3 * crate::scheduler::charge_walks::SLICE_MAX;
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
        assert!(done <= crate::scheduler::charge_walks::SLICE_MAX, "{done} in one slice");
        (before, slices) = (updated(&bench), slices + 1);
        assert!(slices < 10, "the slices make no progress");
        bench.tick(bench.now);
    }
    assert_eq!((slices, bench.scheduler.ledger().consistency_check().len()), (2, 0));
}

#[test]
fn a_quota_that_gets_other_pods_admits_none_until_all_of_them_are_counted() {
    const PLACED: usize = 3 * crate::scheduler::charge_walks::SLICE_MAX;
    let mut bench = Bench::new(1, &["a", "b"]);
    for at in 0..PLACED {
        let pod = labelled(&format!("web-{at:04}"), "x", "web");
        bench.apply(Pod { node_name: Some("a".into()), ..pod });
    }
    bench.apply(labelled("late", "x", "web"));
    // The placed pods use all of it.
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota("x", None, Some(PLACED as i64)))));
    let counted = |bench: &Bench| {
        let charges = bench.scheduler.ledger().charges();
        charges.filter(|(_, charge)| charge.holding.quota.is_some()).count()
    };
    let (mut before, mut slices) = (0, 0);
    while counted(&bench) < PLACED {
        let done = counted(&bench) - before;
        assert!(done <= crate::scheduler::charge_walks::SLICE_MAX, "{done} in one slice");
        (before, slices) = (counted(&bench), slices + 1);
        assert!(slices < 10, "the slices make no progress");
        assert!(bench.take(0).is_none(), "the quota seems to have room");
    }
    bench.work();
    assert_eq!((slices, bench.in_state("over quota"), bench.binds.len()), (3, 1, 0));
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota("x", None, Some(PLACED as i64 + 1)))));
    bench.work();
    assert_eq!(bench.binds.len(), 1);
}

#[test]
fn a_new_leader_reviews_waiting_pods_slice_by_slice() {
    const WAITING: usize = 3 * crate::scheduler::REVIEWS_MAX;
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.set_leading(false);
    let refused = SpecError { field: "spec.x".into(), problem: "is odd".into() };
    for at in 0..WAITING {
        bench.apply(Pod { spec: Err(refused.clone()), ..pod(&format!("p-{at:04}"), 1) });
    }
    bench.scheduler.set_leading(true);
    bench.collect();
    let mut slices = 0;
    while bench.told.len() < WAITING {
        let before = bench.told.len();
        bench.tick(bench.now);
        let done = bench.told.len() - before;
        assert!((1..=crate::scheduler::REVIEWS_MAX).contains(&done), "{done} in one slice");
        slices += 1;
    }
    assert_eq!(slices, 3);
}

#[test]
fn pods_that_move_to_another_replica_are_withdrawn_slice_by_slice_and_none_is_placed_meanwhile() {
    let mut bench = crowd();
    let fingerprint = bench.scheduler.cluster.waiting.values().next().map(|pod| pod.class.fingerprint());
    let share = |me: &str| Share::new(me, ["r1", "r2"]);
    let me = ["r1", "r2"].into_iter().find(|me| !share(me).owns(fingerprint.unwrap_or_default()));
    bench.scheduler.set_share(Some(share(me.expect("one of two does not own it"))));
    assert_eq!(bench.in_state("elsewhere"), 0);
    let mut slices = 0;
    while !bench.scheduler.stale.is_empty() {
        let before = bench.in_state("elsewhere");
        assert!(bench.take(0).is_none(), "a pod of another replica is placed");
        let done = bench.in_state("elsewhere") - before;
        assert!(done <= SLICE_MAX / 8 + crate::scheduler::work::REQUESTS_MAX, "{done} in one slice");
        slices += 1;
    }
    assert!(slices > 1, "{slices} slices");
    assert_eq!(bench.in_state("elsewhere"), PODS + 1);
    bench.scheduler.set_share(None);
    bench.work();
    assert_eq!(bench.in_state("elsewhere"), 0);
    assert!(!bench.binds.is_empty());
}

/// Sixteen nodes with 64 pods each, and two waiting pods.
fn full_nodes() -> (Bench, Vec<Arc<str>>) {
    let mut bench = Bench::new(1, &[]);
    let mut uids = Vec::new();
    for at in 0..1_024 {
        let pod = labelled(&format!("web-{at:04}"), if at % 3 == 0 { "x" } else { "y" }, "web");
        uids.push(pod.uid.clone());
        bench.apply(Pod { node_name: Some(format!("n{}", at % 16).into()), ..pod });
    }
    for uid in ["waits", "left"] {
        bench.apply(labelled(uid, "x", "web"));
        uids.push(uid.into());
    }
    (bench, uids)
}

#[test]
fn a_list_deletes_the_pods_that_it_lacks_slice_by_slice() {
    const SLICE: usize = crate::scheduler::charge_walks::SLICE_MAX;
    let (mut bench, uids) = full_nodes();
    let listed: HashSet<_> = uids.iter().step_by(2).cloned().collect();
    let (mut next, mut slices) = (Some(NodeId(0)), 0);
    while let Some(node) = next {
        let before = bench.scheduler.ledger().counts().0;
        next = bench.scheduler.retain_pods_from(&listed, node);
        let deleted = before - bench.scheduler.ledger().counts().0;
        assert!(deleted <= SLICE, "{deleted} pods were deleted in one slice");
        slices += 1;
    }
    assert_eq!((slices, bench.scheduler.ledger().counts().0), (4, 512));
    assert_eq!(bench.scheduler.cluster.waiting.values().count(), 2, "they come last");
    assert_eq!(bench.scheduler.retain_waiting_from(&listed, 0), None);
    bench.scheduler.finish_pod_list(&listed);
    assert_eq!(
        bench.scheduler.cluster.waiting.values().map(|pod| &*pod.pod.uid).collect::<Vec<_>>(),
        ["waits"]
    );
    assert!(bench.scheduler.ledger().charged().all(|uid| listed.contains(uid)));
}

#[test]
fn a_walk_over_a_namespace_visits_each_of_its_pods_once() {
    let (bench, uids) = full_nodes();
    let of_namespace = |namespace: &str| {
        let (mut walk, mut visited) = (PodWalk::default(), Vec::new());
        loop {
            let slice = bench.scheduler.known_pods(namespace, &mut walk);
            assert!(slice.len() <= crate::scheduler::charge_walks::SLICE_MAX);
            if slice.is_empty() {
                return visited;
            }
            visited.extend(slice);
        }
    };
    let mut visited = of_namespace("x");
    assert_eq!(visited.len(), 344);
    assert_eq!(visited[342..], ["waits".into(), "left".into()], "waiting pods come last");
    visited.extend(of_namespace("y"));
    assert!(of_namespace("z").is_empty());
    visited.sort();
    let mut all = uids;
    all.sort();
    assert_eq!(visited, all);
}
