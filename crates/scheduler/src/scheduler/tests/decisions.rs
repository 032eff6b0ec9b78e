//! What is remembered of decisions.

use super::gangs::{allocation, member};
use super::hints::{hint, host, of_app};
use super::policies::{packed, policy};
use super::*;
use crate::agent::{AgentChoice, Part};
use crate::decisions::{ListUse, PlacementDecision};
use berth_model::Preference;

impl Bench {
    fn confirm_binds(&mut self) {
        for binding in std::mem::take(&mut self.binds) {
            self.finish(&binding, BindOutcome::Bound);
        }
    }

    fn why(&self, name: &str) -> &PlacementDecision {
        self.scheduler.decisions().recall("ns", name).expect("it is remembered")
    }
}

fn candidates(decision: &PlacementDecision) -> Vec<(&str, i32, u8)> {
    decision.candidates.iter().map(|it| (&*it.node, it.free_cpu_milli, it.share)).collect()
}

#[test]
fn a_bound_pod_is_remembered_with_the_best_nodes_of_that_moment_and_what_told_them_apart() {
    let mut bench = Bench::new(1, &["a", "b", "c", "d"]);
    for (node, cpu) in [("a", 500), ("b", 100), ("c", 300), ("d", 950)] {
        bench.apply(on(node, pod(&format!("on-{node}"), cpu)));
    }
    bench.now = Duration::from_millis(1000);
    bench.apply(pod("p", 100));
    bench.now = Duration::from_millis(1250);
    bench.work();
    assert_eq!(bench.scheduler.decisions().recall("ns", "p"), None, "it is not bound");
    bench.now = Duration::from_millis(1300);
    bench.confirm_binds();
    // What happens later changes nothing.
    bench.apply(on("b", pod("later", 800)));
    let decision = bench.why("p");
    assert_eq!((&*decision.node, decision.decided_by()), ("b", Some(Preference::NodeResourcesFit)));
    let candidates = candidates(decision);
    assert_eq!(
        candidates.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
        [("b", 900), ("c", 700), ("a", 500)]
    );
    assert!(candidates[0].2 < candidates[1].2 && candidates[1].2 < candidates[2].2, "{candidates:?}");
    assert_eq!(
        (decision.waited_ms, decision.bind_ms, decision.attempts, decision.conflicts),
        (250, 50, 1, 0)
    );
    assert_eq!((decision.agent, decision.circumstances.as_deref()), (Some(0), None));
    assert_eq!(decision.age(Duration::from_millis(3250)), Duration::from_secs(2));
}

#[test]
fn conflicts_and_the_measured_choice_are_remembered() {
    let mut bench = Bench::new(2, &["a", "b"]);
    bench.apply(pod("p", 600));
    let agent = bench.scheduler.agent_of("p").expect("it is queued");
    let task = bench.take(agent).expect("a task");
    let answer = bench.choose(agent, &task);
    let TaskResult::Chosen(AgentChoice::Node { node, .. }, _) = answer.0 else {
        panic!("it fits: {answer:?}")
    };
    // Another client is faster on that node.
    let name = bench.scheduler.inventory().name(node).to_string();
    bench.apply(on(&name, pod("other", 600)));
    assert_eq!(bench.settle(agent, &task, answer), Settled::Again);
    bench.agents[agent].catch_up(bench.scheduler.inventory());
    let laps = [(Part::ListMiss, Duration::from_micros(30)), (Part::CommonMiss, Duration::from_micros(12))];
    bench.scheduler.learn(agent, &task, &laps, &[]);
    let answer = bench.choose(agent, &task);
    assert_eq!(bench.settle(agent, &task, answer), Settled::Done);
    bench.confirm_binds();
    let decision = bench.why("p");
    assert_ne!(*decision.node, *name);
    assert_eq!((decision.conflicts, decision.choice_us), (1, 42));
    assert_eq!(decision.list, Some(ListUse::Miss));
    assert_eq!((candidates(decision).len(), decision.decided_by()), (1, None), "no other node was valid");
}

#[test]
fn members_of_a_gang_and_pods_whose_node_was_kept_for_them_say_so() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.allocate(allocation("g", 2));
    bench.join("g", 2, 300);
    bench.work();
    bench.confirm_binds();
    let decision = bench.why("g-1");
    let gang = decision.circumstances.as_ref().and_then(|about| about.gang.as_deref());
    assert!(gang.is_some_and(|gang| gang.contains("ns/g")), "{gang:?}");
    assert!(decision.candidates.is_empty());

    for node in ["a", "b"] {
        bench.apply(on(node, Pod { started_s: Some(1), ..member(&format!("low-{node}"), "", 700) }));
    }
    bench.apply(Pod { priority: 5, ..pod("p", 700) });
    bench.work();
    let victim = bench.evictions.last().expect("it preempts").victim.uid.clone();
    bench.scheduler.delete_pod(&victim);
    bench.work();
    bench.confirm_binds();
    let about = bench.why("p").circumstances.as_ref().expect("it is special");
    assert!(about.nominated);
    assert_eq!(bench.why("p").agent, None);
}

#[test]
fn policies_and_hints_that_counted_are_remembered_after_they_are_gone() {
    let mut bench = Bench::new(1, &["a", "b"]);
    for name in ["a", "b"] {
        bench.scheduler.apply_node(host(name));
    }
    bench.apply(on("a", of_app("db", "db", 300)));
    bench.scheduler.hints_changed([hint("web", "db", 80)]);
    bench.scheduler.apply_object(policy(packed()));
    bench.apply(of_app("web", "web", 10));
    bench.work();
    bench.confirm_binds();
    bench.scheduler.hints_changed([]);
    let decision = bench.scheduler.decisions().recall("x", "web").expect("it is remembered");
    assert_eq!((&*decision.node, decision.decided_by()), ("a", Some(Preference::InterPodAffinity)));
    let report = decision.report(None);
    assert_eq!(report.policy.as_deref(), Some("p"));
    assert_eq!(report.hints.len(), 1);
    assert_eq!((report.hints[0].weight, &*report.hints[0].selector), (80, "app=db"));
}

#[test]
fn a_pod_that_comes_again_under_its_name_is_told_by_its_last_placement() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.apply(pod("p", 100));
    bench.work();
    bench.confirm_binds();
    let first = bench.why("p").node.clone();
    bench.scheduler.delete_pod(&"p".into());
    bench.apply(on(&first, pod("filler", 900)));
    bench.apply(Pod { uid: "again".into(), ..pod("p", 200) });
    bench.work();
    bench.confirm_binds();
    assert_ne!(bench.why("p").node, first);
}
