//! Nothing less important is placed where a more important pod is looking (kubernetes#72124).

use super::gangs::{allocation, member};
use super::*;

/// Returns a bench of two agents, and a node with one pod, without which `important` fits.
fn bench() -> Bench {
    let mut bench = Bench::new(2, &["n"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.apply(Pod { started_s: Some(10), ..on("n", pod("victim", 500)) });
    bench
}

fn important() -> Pod {
    Pod { priority: 5, ..pod("important", 950) }
}

/// Returns a pod that fits beside `victim`, and without which `important` would have to evict one pod only.
fn low(priority: i32) -> Pod {
    Pod { priority, ..pod("low", 400) }
}

impl Bench {
    fn carry_on(&mut self, agent: usize, task: &Task) -> Settled {
        let answer = self.choose(agent, task);
        self.settle(agent, task, answer)
    }

    /// Lets agent 1 choose a node for this pod. Returns whether it is bound there.
    fn places(&mut self, pod: Pod) -> bool {
        let (uid, binds) = (pod.uid.clone(), self.binds.len());
        self.apply(pod);
        assert_eq!(self.scheduler.agent_of(&uid), Some(1), "agent 0 is busy");
        let task = self.take(1).expect("it is tried");
        assert_eq!(self.carry_on(1, &task), Settled::Done);
        self.binds.len() > binds
    }

    fn evicted_uids(&self) -> Vec<&str> {
        self.evictions.iter().map(|eviction| &*eviction.victim.uid).collect()
    }
}

/// Returns the first task of agent 0 that follows so many others of it.
fn task_after(bench: &mut Bench, tasks: usize) -> Task {
    for _ in 0..tasks {
        let task = bench.take(0).expect("it is not done yet");
        assert_eq!(bench.carry_on(0, &task), Settled::Done);
    }
    bench.take(0).expect("it is not done yet")
}

#[test]
fn one_victim_is_enough_whatever_another_agent_places_while_an_agent_looks_for_it() {
    // Choosing a node, the survey, the dry runs.
    for tasks in 0..3 {
        let mut bench = bench();
        bench.apply(important());
        let task = task_after(&mut bench, tasks);
        assert!(!bench.places(low(1)), "after {tasks} tasks");
        assert_eq!(bench.carry_on(0, &task), Settled::Done);
        bench.work();
        assert_eq!(bench.evicted_uids(), ["victim"], "after {tasks} tasks");
        bench.scheduler.delete_pod(&Arc::from("victim"));
        bench.work();
        assert_eq!(bench.bound(), ["important"]);
        assert_eq!(bench.in_state("parked"), 1, "the room of the other one is taken");
    }
}

#[test]
fn a_more_important_pod_that_an_agent_is_about_to_take_goes_first_too() {
    let mut bench = bench();
    bench.apply(important());
    assert_eq!(bench.scheduler.agent_of("important"), Some(0));
    assert!(!bench.places(low(1)));
    bench.work();
    assert_eq!(bench.evicted_uids(), ["victim"]);
}

#[test]
fn pods_that_are_no_less_important_or_go_where_nobody_looks_are_placed_meanwhile() {
    for (pod, elsewhere) in [(low(5), false), (low(9), false), (low(1), true)] {
        let mut bench = bench();
        if elsewhere {
            // The pod that looks for a node never fits there.
            bench.scheduler.apply_node(node("small", 900));
        }
        bench.apply(important());
        let task = task_after(&mut bench, 1);
        assert!(matches!(task, Task::Survey { .. }));
        assert!(bench.places(pod));
    }
}

#[test]
fn a_pod_that_arrived_after_a_less_important_one_was_taken_from_its_queue_comes_after_it() {
    let mut bench = bench();
    bench.apply(low(1));
    let first = bench.take(0).expect("it is tried");
    bench.apply(important());
    let second = bench.take(1).expect("it is tried");
    assert_eq!(bench.carry_on(0, &first), Settled::Done);
    assert_eq!(bench.bound(), ["low"]);
    assert_eq!(bench.carry_on(1, &second), Settled::Done);
}

#[test]
fn a_pod_that_yielded_is_placed_as_soon_as_the_search_ends_without_victims() {
    let mut bench = bench();
    let spec = important().spec.unwrap();
    let nowhere = PodSpec { node_selector: [("no", "node")].into_iter().collect(), ..PodSpec::clone(&spec) };
    bench.apply(Pod { spec: Ok(Arc::new(nowhere)), ..important() });
    let task = task_after(&mut bench, 1);
    assert!(!bench.places(low(1)));
    assert_eq!(bench.in_state("yielding"), 1);
    assert_eq!(bench.scheduler.queue_lengths().active, 1);
    assert_eq!(bench.scheduler.cluster.waiting.get("low").expect("it waits").tries, 0, "it did not conflict");
    assert_eq!(bench.carry_on(0, &task), Settled::Done);
    bench.work();
    assert_eq!((bench.bound(), bench.evictions.len()), (vec!["low"], 0));
}

#[test]
fn a_pod_yields_to_the_search_for_victims_that_follows_when_no_node_was_found() {
    let mut bench = bench();
    bench.apply(important());
    let task = bench.take(0).expect("it is tried");
    assert!(!bench.places(low(1)));
    assert_eq!(bench.carry_on(0, &task), Settled::Done);
    bench.tick(S / 10);
    assert_eq!((bench.in_state("yielding"), bench.in_state("queued")), (1, 0));
    bench.work();
    assert_eq!(bench.evicted_uids(), ["victim"]);
    assert_eq!(bench.in_state("yielding"), 0, "a node is nominated");
}

#[test]
fn a_pod_yields_no_longer_when_the_more_important_one_is_deleted() {
    let mut bench = bench();
    bench.apply(important());
    let task = task_after(&mut bench, 1);
    assert!(!bench.places(low(1)));
    bench.scheduler.delete_pod(&Arc::from("important"));
    bench.tick(S / 10);
    assert_eq!(bench.in_state("queued"), 1);
    bench.carry_on(0, &task);
    bench.work();
    assert_eq!(bench.bound(), ["low"]);
}

#[test]
fn a_pod_yields_for_a_second_at_most() {
    let mut bench = bench();
    bench.has_lists(1, &[low(1)]);
    bench.apply(important());
    // A search that takes too long.
    let _task = task_after(&mut bench, 1);
    assert!(!bench.places(low(1)));
    bench.tick(S - Duration::from_millis(1));
    assert_eq!(bench.in_state("yielding"), 1);
    bench.tick(S);
    let low = bench.take(1).expect("it is tried");
    assert_eq!(bench.carry_on(1, &low), Settled::Done);
    assert_eq!(bench.bound(), ["low"]);
}

#[test]
fn a_pod_that_yields_leaves_nothing_behind_when_it_is_deleted() {
    let mut bench = bench();
    bench.apply(important());
    let task = task_after(&mut bench, 1);
    assert!(!bench.places(low(1)));
    bench.scheduler.delete_pod(&Arc::from("low"));
    bench.collect();
    assert_eq!((bench.in_state("yielding"), bench.scheduler.queue_lengths().active), (0, 0));
    bench.carry_on(0, &task);
}

#[test]
fn a_gang_yields_as_a_whole() {
    let mut bench = bench();
    bench.apply(important());
    let task = task_after(&mut bench, 1);
    bench.allocate(allocation("g", 2));
    (0..2).for_each(|at| bench.apply(Pod { priority: 1, ..member(&format!("g-{at}"), "g", 200) }));
    let gang = bench.take(1).expect("it is tried");
    assert!(matches!(gang, Task::Gang { .. }), "{gang:?}");
    assert_eq!(bench.carry_on(1, &gang), Settled::Done);
    assert_eq!((bench.binds.len(), bench.scheduler.stats().yields), (0, 1));
    assert_eq!(bench.carry_on(0, &task), Settled::Done);
    bench.run_until(S / 10);
    assert_eq!(bench.evicted_uids(), ["victim"]);
    assert!(bench.bound().is_empty());
    // It does not fit beside the more important pod, which leaves.
    bench.scheduler.delete_pod(&Arc::from("important"));
    bench.run_until(2 * S);
    assert_eq!(bench.bound(), ["g-0", "g-1"]);
}

#[test]
fn many_pods_that_yielded_are_queued_again_in_slices() {
    let mut bench = bench();
    bench.apply(important());
    let task = task_after(&mut bench, 1);
    for at in 0..100 {
        let uid = format!("low-{at}");
        assert!(!bench.places(Pod { priority: 1, ..pod(&uid, 1) }));
    }
    bench.scheduler.delete_pod(&Arc::from("important"));
    for yielding in [36, 0] {
        bench.woken.clear();
        bench.tick(S / 10);
        assert_eq!((bench.in_state("yielding"), bench.in_state("queued")), (yielding, 100 - yielding));
        assert!(yielding == 0 || bench.woken.contains(&0), "an agent carries on");
    }
    bench.carry_on(0, &task);
}
