//! Effects of hints on waiting pods and their nodes.

use super::*;
use crate::hints::{Hint, SelectedPods, Taken};

pub(super) fn app(name: &str) -> LabelSelector {
    let operator = Operator::In([name.into()].into());
    LabelSelector::All([Requirement { key: "app".into(), operator }].into())
}

pub(super) fn workload(name: &str) -> SelectedPods {
    SelectedPods { namespace: "x".into(), selector: app(name) }
}

pub(super) fn hint(of: &str, other: &str, weight: i32) -> Hint {
    Hint { of: workload(of), other: workload(other), weight }
}

/// Returns a pod of this application in the namespace `x`.
pub(super) fn of_app(uid: &str, name: &str, cpu_milli: i64) -> Pod {
    let labels = [("app", name)].into_iter().collect();
    let identity = Identity { namespace: "x".into(), labels, ..Identity::default() };
    Pod { namespace: "x".into(), peer: Arc::new(Peer { identity, ..Peer::default() }), ..pod(uid, cpu_milli) }
}

/// As kubelets label them.
pub(super) fn host(name: &str) -> Node {
    Node { labels: [("kubernetes.io/hostname", name)].into_iter().collect(), ..node(name, 1000) }
}

/// Two nodes; `db` is on `a`, which is fuller than `b`.
fn two_hosts() -> Bench {
    let mut bench = Bench::new(1, &["a", "b"]);
    for name in ["a", "b"] {
        bench.scheduler.apply_node(host(name));
    }
    bench.apply(on("a", of_app("db", "db", 300)));
    bench
}

fn place(bench: &mut Bench, uid: &str, app: &str) -> String {
    bench.apply(of_app(uid, app, 10));
    bench.work();
    let binding = bench.binds.last().expect("it fits").clone();
    assert_eq!(&*binding.uid, uid);
    binding.node.to_string()
}

#[test]
fn the_next_pod_follows_a_hint_and_the_one_after_the_hint_is_gone_does_not() {
    let mut bench = two_hosts();
    assert_eq!(place(&mut bench, "1", "web"), "b", "the emptier one");
    let taken = bench.scheduler.hints_changed([hint("web", "db", 80)]);
    assert_eq!(taken, Taken { in_force: 1, refused: 0, namespaces: 1 });
    assert_eq!(place(&mut bench, "2", "web"), "a");
    assert_eq!(place(&mut bench, "3", "other"), "b", "hints are of one workload");
    bench.scheduler.hints_changed([]);
    assert_eq!(place(&mut bench, "4", "web"), "b");
    assert_eq!(bench.binds.len(), 4, "pods that have a node stay there");
}

#[test]
fn pods_are_kept_apart_as_long_as_they_fit_elsewhere_and_no_longer() {
    let mut bench = two_hosts();
    bench.apply(on("b", of_app("large", "large", 900)));
    bench.scheduler.hints_changed([hint("web", "db", -80)]);
    assert_eq!(place(&mut bench, "1", "web"), "b", "the fuller one");
    bench.apply(of_app("2", "web", 200));
    bench.work();
    assert_eq!(&*bench.binds[1].node, "a", "a hint makes no node invalid");
}

#[test]
fn only_waiting_pods_that_a_change_concerns_are_evaluated_again() {
    let mut bench = Bench::new(1, &[]);
    bench.apply(of_app("web", "web", 10));
    bench.apply(of_app("other", "other", 10));
    bench.work();
    assert_eq!(bench.in_state("parked"), 2);
    let changed = |bench: &mut Bench, hints: &[Hint]| {
        let choices = bench.choices;
        let taken = bench.scheduler.hints_changed(hints.iter().cloned());
        bench.work();
        assert_eq!(bench.in_state("parked"), 2);
        (taken.namespaces, bench.choices - choices)
    };
    assert_eq!(changed(&mut bench, &[hint("web", "db", 80)]), (1, 1));
    assert_eq!(changed(&mut bench, &[hint("web", "db", 80)]), (0, 0), "the same as before");
    assert_eq!(changed(&mut bench, &[hint("web", "db", 80), hint("db", "web", 80)]), (1, 0));
    assert_eq!(changed(&mut bench, &[]).0, 1);
}

#[test]
fn hints_that_are_refused_change_no_class() {
    let mut bench = two_hosts();
    assert_eq!(place(&mut bench, "1", "web"), "b");
    let classes = bench.scheduler.classes();
    let nothing = SelectedPods { namespace: "x".into(), selector: LabelSelector::Nothing };
    let wrong =
        [hint("web", "db", 0), hint("web", "db", 1000), Hint { other: nothing, ..hint("web", "db", 80) }];
    let taken = bench.scheduler.hints_changed(wrong);
    assert_eq!(taken, Taken { in_force: 0, refused: 3, namespaces: 0 });
    assert!(bench.scheduler.take_actions().is_empty(), "no agent is woken");
    assert_eq!(place(&mut bench, "2", "web"), "b");
    assert_eq!(bench.scheduler.classes(), classes);
}

#[test]
fn a_choice_made_before_a_hint_came_is_not_bound() {
    let mut bench = two_hosts();
    bench.apply(of_app("web", "web", 10));
    let task = bench.take(0).expect("a pod waits");
    let answer = bench.choose(0, &task);
    bench.scheduler.hints_changed([hint("web", "db", 80)]);
    bench.scheduler.tick(S);
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert!(bench.binds.is_empty());
    bench.work();
    assert_eq!(&*bench.binds[0].node, "a");
}

#[test]
fn hints_known_to_one_replica_do_not_change_the_owner_of_a_pod() {
    let mut bench = two_hosts();
    let web = of_app("web", "web", 10);
    let before = bench.scheduler.class_of(&web).fingerprint();
    bench.scheduler.hints_changed([hint("web", "db", 80)]);
    let class = bench.scheduler.class_of(&web);
    assert!(class.looks_at_pods() && class.hints.len() == 1);
    assert_eq!(class.fingerprint(), before);
}
