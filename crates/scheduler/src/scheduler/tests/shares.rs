//! Several replicas that schedule: what a replica does with the pods of others, and with those that it takes over.

use super::*;
use crate::scheduler::Share;

/// Returns a replica among these.
fn replica(me: &str, all: &[&str]) -> Bench {
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.set_share(Some(Share::new(me, all.iter().copied())));
    bench
}

/// Returns a pod that is refused, of a class of its own.
fn refused(at: i64) -> Pod {
    let pod = pod(&format!("p{at}"), 1 + at);
    let spec = PodSpec { unsupported: [Unsupported::Volumes].into(), ..(*pod.spec.clone().unwrap()).clone() };
    Pod { spec: Ok(Arc::new(spec)), ..pod }
}

#[test]
fn a_refused_pod_gets_its_condition_from_the_replica_that_owns_it_also_when_that_changes() {
    let mut benches = [replica("one", &["one", "two"]), replica("two", &["one", "two"])];
    for bench in &mut benches {
        (0..20).for_each(|at| bench.apply(refused(at)));
    }
    let [one, two] = &mut benches;
    assert!(one.told.len() < 20 && two.told.len() < 20 && one.told.len() + two.told.len() == 20);
    // The other one has ended, maybe before it wrote any.
    one.scheduler.set_share(Some(Share::new("one", ["one"])));
    one.tick(S);
    let told: HashSet<_> = one.told.iter().map(|(uid, ..)| uid.clone()).collect();
    assert_eq!((told.len(), one.told.len()), (20, 20));
}

/// Returns the share of one of two replicas, which does not own this pod.
fn share_without(bench: &mut Bench, pod: &Pod) -> Share {
    let fingerprint = bench.scheduler.class_of(pod).fingerprint();
    let shares = ["one", "two"].map(|me| Share::new(me, ["one", "two"]));
    shares.into_iter().find(|share| !share.owns(fingerprint)).expect("one of two does not own it")
}

#[test]
fn a_parked_pod_that_another_replica_owned_for_a_moment_gets_its_condition() {
    let mut bench = Bench::new(1, &["a"]);
    let large = pod("p", 90_000);
    bench.apply(large.clone());
    let task = bench.take(0).expect("a task");
    let answer = bench.choose(0, &task);
    // What it has found is not certain any more.
    bench.scheduler.apply_node(node("b", 1000));
    bench.settle(0, &task, answer);
    assert_eq!((bench.in_state("parked"), bench.told.len()), (1, 0));
    let task = bench.take(0).expect("a check of its class");
    let answer = bench.choose(0, &task);
    let share = share_without(&mut bench, &large);
    bench.scheduler.set_share(Some(share));
    bench.settle(0, &task, answer);
    bench.scheduler.set_share(None);
    bench.work();
    bench.tick(S);
    assert_eq!((bench.in_state("parked"), bench.told.len()), (1, 1));
}

fn reserved(bench: &Bench) -> usize {
    bench.scheduler.ledger().reserved().count()
}

#[test]
fn a_replica_that_takes_over_a_gang_drops_the_nomination_of_a_member_that_can_no_longer_succeed() {
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.apply(on("a", pod("resident", 1000)));
    bench.allocate(gangs::allocation("g", 1));
    for me in ["one", "two"] {
        bench.scheduler.set_share(Some(Share::new(me, ["one", "two"])));
        if !bench.scheduler.cluster.owns_gang(&gangs::name("g")) {
            break;
        }
    }
    bench.apply(Pod { nominated_node: Some("a".into()), ..gangs::member("p", "g", 1000) });
    bench.run_until(S);
    assert_eq!((bench.in_state("elsewhere"), reserved(&bench)), (1, 1));
    bench.scheduler.set_share(None);
    bench.run_until(5 * S);
    assert_eq!((bench.in_state("grouped"), reserved(&bench)), (1, 0));
    assert_eq!(bench.nominations, [("p".to_owned(), None)]);
}

#[test]
fn a_replica_keeps_no_room_for_a_pod_of_another_one_that_is_not_nominated() {
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.apply(on("a", pod("resident", 1000)));
    let important = Pod { priority: 5, ..pod("p", 1000) };
    bench.apply(important.clone());
    bench.work();
    assert_eq!((bench.nominations.len(), reserved(&bench)), (1, 1));
    // The nomination is never written.
    let share = share_without(&mut bench, &important);
    bench.scheduler.set_share(Some(share));
    bench.work();
    assert_eq!((bench.in_state("elsewhere"), reserved(&bench)), (1, 0));
}
