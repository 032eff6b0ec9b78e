//! Namespaces whose pods have more classes than may take part at once.

use super::quotas::{last_told, of, quota};
use super::*;

/// Classes of a crowd that take part.
const MOST: usize = 2;

fn bench(agents: usize, nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(agents, nodes);
    bench.scheduler.cluster.config.max_waiting_classes = MOST;
    bench
}

fn in_namespace(namespace: &str, pod: Pod) -> Pod {
    Pod { namespace: namespace.into(), ..pod }
}

/// Creates pods of different classes in namespace `ns`, each with one milli-CPU more.
fn crowd(bench: &mut Bench, pods: usize, cpu_milli: i64) {
    for at in 0..pods {
        bench.apply(pod(&format!("crowd-{at}"), cpu_milli + at as i64));
    }
}

/// Answers all binds, for long enough that all have had their turns.
fn settle_all(bench: &mut Bench) {
    let mut settled = bench.scheduled.len();
    for _ in 0..20 {
        bench.work();
        while settled < bench.binds.len() {
            let binding = bench.binds[settled].clone();
            bench.finish(&binding, BindOutcome::Bound);
            settled += 1;
            bench.work();
        }
        bench.tick(bench.now + Duration::from_millis(10));
    }
}

#[test]
fn a_pod_of_another_namespace_waits_behind_the_limit_and_one_turn_only() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 8, 10);
    bench.apply(in_namespace("other", pod("other", 10)));
    assert_eq!((bench.in_state("held back"), bench.scheduler.held_back()), (6, 6));
    assert_eq!(bench.scheduler.queue_lengths().held_back, 6);
    assert_eq!(bench.scheduler.namespaces_held_back().map(|name| &**name).collect::<Vec<_>>(), ["ns"]);
    bench.work();
    assert_eq!(bench.bound(), ["crowd-0", "crowd-1", "crowd-2", "other"], "its bind is not settled");
    settle_all(&mut bench);
    let crowd: Vec<_> = bench.bound().into_iter().filter(|uid| *uid != "other").collect();
    let in_order: Vec<_> = (0..8).map(|at| format!("crowd-{at}")).collect();
    assert_eq!(crowd, in_order);
    assert_eq!((bench.in_state("held back"), bench.told.len()), (0, 0), "none waited for long");
}

#[test]
fn crowds_take_turns_whatever_their_size() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 8, 10);
    for at in 0..4 {
        bench.apply(in_namespace("second", pod(&format!("second-{at}"), 30 + at)));
    }
    settle_all(&mut bench);
    let bound = bench.bound();
    let at = |uid: &str| bound.iter().position(|bound| *bound == uid).expect("it is bound");
    assert!(at("second-3") < at("crowd-6"), "{bound:?}");
}

#[test]
fn pods_of_a_class_that_takes_part_and_of_another_priority_are_not_held_back() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 4, 10);
    bench.apply(pod("alike", 10));
    bench.apply(Pod { priority: 5, ..pod("urgent", 50) });
    assert_eq!((bench.in_state("held back"), bench.in_state("queued")), (2, 4));
    bench.work();
    assert_eq!(bench.bound()[0], "urgent");
}

#[test]
fn a_pod_that_fits_has_its_turn_although_what_fits_nowhere_takes_part() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 6, 5000);
    bench.apply(pod("small", 10));
    settle_all(&mut bench);
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (MOST, 4));
    assert_eq!(bench.bound(), ["small"]);
    let before = bench.choices;
    bench.work();
    assert_eq!(bench.choices, before, "nothing has changed");
    bench.scheduler.apply_node(node("big", 100_000));
    settle_all(&mut bench);
    assert_eq!((bench.binds.len(), bench.scheduler.census().len()), (7, 0));
}

#[test]
fn what_fits_nowhere_takes_part_when_there_is_room_for_its_class() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 4, 5000);
    bench.apply(pod("alike", 5003));
    bench.work();
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (MOST, 3));
    // No node has changed.
    bench.scheduler.delete_pod(&"crowd-0".into());
    settle_all(&mut bench);
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (MOST, 2));
    bench.scheduler.delete_pod(&"crowd-1".into());
    settle_all(&mut bench);
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (3, 0), "two are of one class");
}

#[test]
fn a_pod_held_back_for_long_is_told_once_and_what_it_would_be_told_otherwise_after_that() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 3, 5000);
    bench.work();
    bench.tick(REPORT_LATEST - Duration::from_millis(1));
    assert!(bench.told.iter().all(|told| told.0 != "crowd-2"));
    for at in 0..3 {
        // Something changes, so it is tried again.
        bench.scheduler.apply_node(node("n", 1000 + at));
        bench.tick(REPORT_LATEST * (1 + at as u32));
        bench.work();
    }
    let message = "namespace ns has waiting pods of 2 different specs with priority 0, which is as many as berth schedules at \
                   once: this pod and others of its namespace are tried in turn; let more pods have the same requests, images \
                   and constraints, or delete pods that fit nowhere";
    assert_eq!(last_told(&bench, "crowd-2"), ("SchedulerError", message));
    assert_eq!(bench.told.iter().filter(|told| told.0 == "crowd-2").count(), 1);
    let mut agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 9 });
    let verdict = bench.scheduler.verdict(&mut agent, &pod("crowd-2", 5002));
    assert_eq!(verdict.refused.as_deref(), Some(message));
    bench.scheduler.delete_pod(&"crowd-0".into());
    settle_all(&mut bench);
    assert_eq!(last_told(&bench, "crowd-2").0, "Unschedulable");
}

#[test]
fn a_relist_changes_nothing_and_a_deleted_pod_leaves_its_crowd() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 5, 5000);
    bench.work();
    crowd(&mut bench, 5, 5000);
    let uids = (0..4).map(|at| Arc::from(format!("crowd-{at}"))).collect();
    bench.scheduler.retain_pods(&uids);
    bench.work();
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (MOST, 2));
    // A class that takes part loses its pod to one that is held back, and which is older now.
    bench.apply(pod("crowd-0", 5003));
    settle_all(&mut bench);
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (3, 1));
    for at in 0..4 {
        bench.scheduler.delete_pod(&format!("crowd-{at}").into());
        bench.collect();
    }
    assert!(bench.scheduler.crowds.is_empty());
}

#[test]
fn pods_that_their_quota_does_not_admit_stay_held_back_until_it_does() {
    let mut bench = bench(1, &["n"]);
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota("q", None, Some(100)))));
    for at in 0..5 {
        bench.apply(of("q", &format!("pod-{at}"), 200 + at));
    }
    bench.work();
    assert_eq!((bench.in_state("over quota"), bench.in_state("held back")), (MOST, 3));
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota("q", None, Some(900)))));
    settle_all(&mut bench);
    assert_eq!((bench.binds.len(), bench.in_state("over quota")), (4, 1));
}

#[test]
fn a_replica_holds_nothing_back_that_it_does_not_schedule() {
    let mut bench = bench(1, &["n"]);
    crowd(&mut bench, 6, 5000);
    bench.work();
    bench.scheduler.set_share(Some(Share::new("me", ["me", "you"])));
    bench.tick(S);
    settle_all(&mut bench);
    let elsewhere = bench.in_state("elsewhere");
    assert!((1..6).contains(&elsewhere), "{:?}", bench.scheduler.census());
    assert!(bench.in_state("parked") <= MOST);
    bench.scheduler.set_share(None);
    bench.tick(2 * S);
    settle_all(&mut bench);
    assert_eq!((bench.in_state("parked"), bench.in_state("held back")), (MOST, 4));
}
