//! Aging: no pod starves behind a stream of higher-priority pods.

use super::*;
use crate::scheduler::preemption::aged::WORK_MAX;

const AFTER: Duration = Duration::from_secs(60);

/// Two pods of 500 fill each node; every other second one ends and is replaced by one of higher priority. Returns the
/// second in which the large low-priority pod was bound, if it was.
fn starved(nodes: &[&str], after: Duration, seconds: u32) -> (Bench, Option<u32>) {
    let mut bench = Bench::new(1, nodes);
    bench.scheduler.cluster.config.reserve_after = after;
    let mut running = std::collections::VecDeque::new();
    for (at, node) in nodes.iter().flat_map(|node| [node, node]).enumerate() {
        let uid = format!("first-{at}");
        bench.apply(on(node, Pod { priority: 9, ..pod(&uid, 500) }));
        running.push_back(uid);
    }
    bench.apply(pod("large", 1000));
    bench.work();
    for second in 1..=seconds {
        let uid = format!("next-{second}");
        bench.apply(Pod { priority: 9, ..pod(&uid, 500) });
        if let Some(uid) = running.pop_front() {
            bench.scheduler.delete_pod(&uid.as_str().into());
            bench.collect();
        }
        bench.work();
        bench.tick(second * S);
        bench.work();
        for binding in std::mem::take(&mut bench.binds) {
            if *binding.uid == *"large" {
                return (bench, Some(second));
            }
            bench.finish(&binding, BindOutcome::Bound);
            running.push_back(binding.uid.to_string());
        }
    }
    (bench, None)
}

#[test]
fn aging_places_a_large_pod_despite_a_stream_of_higher_priorities() {
    assert_eq!(starved(&["a", "b"], Duration::ZERO, 600).1, None);
    let (bench, bound) = starved(&["a", "b"], AFTER, 600);
    let bound = bound.expect("its turn comes");
    // Both pods of its node end within four seconds.
    assert!((60..=66).contains(&bound), "{bound}");
    assert_eq!((bench.scheduler.aged(), bench.scheduler.ledger().reserved().count()), (0, 0));
}

#[test]
fn few_nodes_are_kept_at_a_time_and_those_that_wait_longest_come_first() {
    let nodes: Vec<String> = (0..150).map(|at| format!("n{at}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(|name| &**name).collect();
    let mut bench = Bench::new(1, &nodes);
    bench.scheduler.cluster.config.reserve_after = AFTER;
    for node in &nodes {
        bench.apply(on(node, pod(&format!("on-{node}"), 1000)));
    }
    for at in 0..10 {
        bench.tick(at * S);
        let namespace = if at % 2 == 0 { "even" } else { "odd" };
        bench.apply(Pod { namespace: namespace.into(), ..pod(&format!("p{at}"), 600 + i64::from(at)) });
        bench.work();
    }
    for second in 60..75 {
        bench.tick(second * S);
        bench.work();
    }
    let mut kept: Vec<_> = bench.scheduler.nominated_pods().map(|(uid, _)| uid.to_string()).collect();
    kept.sort();
    assert_eq!(kept, ["p0", "p1"], "one node, and one more for a hundred");
    assert!(bench.nominations.is_empty(), "nothing is written");
    // Their turn is over: the next pods get reservations.
    for second in 120..140 {
        bench.tick(second * S);
        bench.work();
    }
    let mut kept: Vec<_> = bench.scheduler.nominated_pods().map(|(uid, _)| uid.to_string()).collect();
    kept.sort();
    assert_eq!(kept, ["p2", "p3"]);
}

#[test]
fn a_namespace_gets_half_of_the_reservations_and_critical_pods_do_not_mind_them() {
    let nodes: Vec<String> = (0..300).map(|at| format!("n{at}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(|name| &**name).collect();
    let mut bench = Bench::new(1, &nodes);
    bench.scheduler.cluster.config.reserve_after = AFTER;
    for node in &nodes {
        bench.apply(on(node, pod(&format!("first-on-{node}"), 500)));
        bench.apply(on(node, pod(&format!("second-on-{node}"), 500)));
    }
    for at in 0..10 {
        let namespace = if at < 9 { "many" } else { "few" };
        bench.apply(Pod { namespace: namespace.into(), ..pod(&format!("p{at}"), 600) });
        bench.work();
    }
    for second in 60..75 {
        bench.tick(second * S);
        bench.work();
    }
    let kept: BTreeMap<_, _> =
        bench.scheduler.nominated_pods().map(|(uid, node)| (uid.to_string(), node.clone())).collect();
    let uids: Vec<_> = kept.keys().map(String::as_str).collect();
    assert_eq!(uids, ["p0", "p1", "p9"], "of four");
    // Room on a node that is kept is taken by a critical pod only.
    let node = &kept["p0"];
    bench.scheduler.delete_pod(&format!("first-on-{node}").as_str().into());
    bench.collect();
    bench.apply(Pod { priority: 1_000_000_000, ..pod("important", 500) });
    bench.work();
    assert_eq!(bench.binds.len(), 0);
    bench.apply(Pod { priority: 2_000_000_000, ..pod("critical", 500) });
    bench.work();
    let bound: Vec<_> = bench.binds.iter().map(|bind| (&*bind.uid, &bind.node)).collect();
    assert_eq!(bound, [("critical", node)]);
}

#[test]
fn where_nothing_ends_every_pod_gets_one_turn_and_another_only_after_a_pod_has_left() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.scheduler.cluster.config.reserve_after = AFTER;
    for node in ["a", "b"] {
        bench.apply(on(node, pod(&format!("x-{node}"), 600)));
        bench.apply(on(node, pod(&format!("y-{node}"), 300)));
    }
    for at in 0..3 {
        bench.apply(pod(&format!("p{at}"), 500 + at));
    }
    bench.work();
    let mut turns = Vec::new();
    for second in 1..1_000 {
        bench.tick(second * S);
        bench.work();
        let kept = bench.scheduler.nominated_pods().next().map(|(uid, _)| uid.to_string());
        if kept.is_some() && kept.as_ref() != turns.last() {
            turns.extend(kept);
        }
        if second == 500 {
            assert_eq!((bench.scheduler.aged(), &turns[..]), (0, &["p0", "p1", "p2"].map(String::from)[..]));
            bench.scheduler.delete_pod(&"y-a".into());
        }
    }
    assert_eq!(turns, ["p0", "p1", "p2", "p0", "p1", "p2"]);
}

#[test]
fn nothing_is_kept_for_a_pod_that_is_gone_or_that_no_node_could_ever_take() {
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.cluster.config.reserve_after = AFTER;
    bench.apply(on("a", pod("x", 1000)));
    bench.apply(pod("huge", 1001));
    bench.apply(pod("p", 500));
    bench.work();
    bench.tick(61 * S);
    bench.tick(63 * S);
    bench.work();
    let kept: Vec<_> = bench.scheduler.nominated_pods().map(|(uid, _)| uid.to_string()).collect();
    assert_eq!(kept, ["p"]);
    bench.scheduler.delete_pod(&"p".into());
    bench.tick(65 * S);
    assert_eq!((bench.scheduler.aged(), bench.scheduler.ledger().reserved().count()), (0, 0));
}

#[test]
fn a_tick_examines_few_pods_and_nodes_and_a_pod_behind_many_hopeless_classes_gets_its_turn() {
    const MS: Duration = Duration::from_millis(1);
    let nodes: Vec<String> = (0..400).map(|at| format!("n{at}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(|name| &**name).collect();
    let mut bench = Bench::new(1, &nodes);
    bench.scheduler.cluster.config.reserve_after = AFTER;
    for node in &nodes {
        bench.apply(on(node, pod(&format!("on-{node}"), 1000)));
    }
    // Larger than any node: 60 classes of 20 pods.
    for at in 0..60 {
        for pods in 0..20 {
            bench.apply(pod(&format!("huge-{at}-{pods}"), 1001 + at));
        }
    }
    bench.work();
    bench.tick(S);
    bench.apply(pod("last", 500));
    bench.work();
    bench.tick(59 * S);
    let mut kept_at = None;
    for step in 0..1_000 {
        let before = bench.scheduler.examined_for_aged();
        bench.tick(62 * S + step * 50 * MS);
        let examined = bench.scheduler.examined_for_aged() - before;
        assert!(examined <= WORK_MAX as u64, "{examined} in tick {step}");
        if kept_at.is_none() && bench.scheduler.nominated_pods().any(|(uid, _)| **uid == *"last") {
            kept_at = Some(step);
        }
    }
    // Each class takes one pass over the nodes, and one over the classes.
    assert!(kept_at.is_some_and(|step| step < 100), "{kept_at:?}");
    assert_eq!(bench.scheduler.aged(), 1);
    // A hopeless class is not tried again before its time.
    let examined = bench.scheduler.examined_for_aged();
    assert!(examined < 100 * WORK_MAX as u64, "{examined}");
}
