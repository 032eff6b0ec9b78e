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
