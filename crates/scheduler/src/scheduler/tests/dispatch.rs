//! What the dispatcher knows of the agents' work.

use super::gangs::{allocation, member};
use super::*;
use crate::agent::CacheChange;

/// Returns a bench of two agents with preemption.
fn bench(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(2, nodes);
    bench.scheduler.cluster.config.preemption = true;
    bench
}

/// Returns the kind of a search.
fn search(task: &Task) -> Option<&'static str> {
    match task {
        Task::Place { .. } | Task::Gang { .. } => None,
        Task::Check { .. } => Some("check"),
        Task::Survey { .. } => Some("survey"),
        Task::Preempt(_) => Some("dry runs"),
        Task::PreemptTogether(_) => Some("gang"),
    }
}

impl Bench {
    /// Lets agent 0 work alone. Returns its searches; during each of them a new pod is to go to the idle agent 1.
    fn searches(&mut self) -> Vec<&'static str> {
        let mut searches = Vec::new();
        while let Some(task) = self.take(0) {
            if let Some(kind) = search(&task) {
                searches.push(kind);
                // Of a class of its own.
                self.apply(pod("new", 100 + searches.len() as i64));
                assert_eq!(self.scheduler.agent_of("new"), Some(1), "while agent 0 is busy: {kind}");
                self.scheduler.delete_pod(&Arc::from("new"));
                self.collect();
            }
            let answer = self.choose(0, &task);
            assert_eq!(self.settle(0, &task, answer), Settled::Done);
        }
        searches
    }

    /// Tells the dispatcher that this agent has the lists of these pods.
    pub(super) fn has_lists(&mut self, agent: usize, pods: &[Pod]) {
        let added = pods.iter().map(|pod| CacheChange::ListAdded(self.scheduler.class_of(pod).id));
        let added: Vec<_> = added.collect();
        self.scheduler.cache_changed(agent, &added);
    }
}

#[test]
fn an_agent_that_checks_a_parked_class_is_busy() {
    let mut bench = bench(&["n"]);
    bench.apply(pod("big", 5000));
    assert_eq!(bench.scheduler.agent_of("big"), Some(0));
    bench.work();
    bench.scheduler.apply_node(node("m", 1000));
    assert_eq!(bench.searches(), ["check"]);
}

#[test]
fn an_agent_that_looks_for_victims_is_busy() {
    let mut bench = bench(&["n"]);
    bench.apply(Pod { started_s: Some(10), ..on("n", pod("victim", 1000)) });
    bench.apply(Pod { priority: 5, ..pod("p", 1000) });
    assert_eq!(bench.searches(), ["survey", "dry runs"]);
    assert_eq!(bench.evictions.len(), 1);
}

#[test]
fn an_agent_that_looks_for_victims_of_a_gang_is_busy() {
    let mut bench = bench(&["n"]);
    bench.allocate(allocation("g", 2));
    bench.apply(Pod { started_s: Some(10), ..on("n", pod("victim", 1000)) });
    (0..2).for_each(|at| bench.apply(Pod { priority: 5, ..member(&format!("g-{at}"), "g", 500) }));
    assert_eq!(bench.searches(), ["gang", "gang"]);
    assert_eq!(bench.evictions.len(), 1);
}

#[test]
fn a_gang_goes_where_most_lists_of_its_members_are_and_not_only_that_of_the_first() {
    let mut bench = bench(&["n"]);
    let members = [100, 200, 300].map(|cpu_milli| member(&format!("g-{cpu_milli}"), "g", cpu_milli));
    bench.has_lists(0, &members[..1]);
    bench.has_lists(1, &members[1..]);
    bench.allocate(allocation("g", 3));
    members.into_iter().for_each(|member| bench.apply(member));
    let lanes: Vec<_> = bench.scheduler.gangs.tickets().map(|(_, ticket)| ticket.lane()).collect();
    assert_eq!(lanes, [Some(1)]);
    let task = bench.take(1).expect("it is its task");
    // While it plans, its estimate is that of all lists.
    bench.apply(pod("new", 50));
    assert_eq!(bench.scheduler.agent_of("new"), Some(0));
    let answer = bench.choose(1, &task);
    assert_eq!(bench.settle(1, &task, answer), Settled::Done);
    assert_eq!(bench.binds.len(), 3);
}

#[test]
fn a_woken_pod_goes_where_it_is_done_first_and_not_where_its_class_was_checked() {
    let mut bench = bench(&["n"]);
    bench.apply(pod("big", 2000));
    bench.work();
    bench.has_lists(1, &[pod("big", 2000)]);
    bench.scheduler.apply_node(node("m", 3000));
    let check = bench.take(0).expect("the class is checked");
    let answer = bench.choose(0, &check);
    bench.settle(0, &check, answer);
    assert_eq!(bench.scheduler.agent_of("big"), Some(1));
    bench.work();
    assert_eq!(bench.bound(), ["big"]);
}

/// Lets every placement of this task conflict until the agent gives up.
fn conflict_until_the_limit(bench: &mut Bench, agent: usize, task: &Task) {
    for attempt in 1..=3 {
        let answer = bench.choose(agent, task);
        bench.apply(on("n", pod("thief", 600)));
        let settled = bench.settle(agent, task, answer);
        assert_eq!(settled == Settled::Again, attempt < 3);
        bench.scheduler.delete_pod(&Arc::from("thief"));
        bench.agents[agent].catch_up(bench.scheduler.inventory());
    }
}

#[test]
fn a_pod_that_met_its_limit_of_conflicts_goes_to_another_agent_and_backs_off_only_if_that_meets_it_too() {
    let mut bench = bench(&["n"]);
    bench.apply(pod("a", 600));
    let task = bench.take(0).expect("it is tried");
    conflict_until_the_limit(&mut bench, 0, &task);
    assert_eq!((bench.scheduler.agent_of("a"), bench.told.len()), (Some(1), 0));
    let task = bench.take(1).expect("it is tried");
    conflict_until_the_limit(&mut bench, 1, &task);
    assert_eq!((bench.in_state("backing off"), bench.told[0].1), (1, "SchedulerError"));
    assert!(bench.told[0].2.starts_with("6 placements in a row"), "{:?}", bench.told);
    bench.tick(S);
    bench.work();
    assert_eq!(bench.bound(), ["a"]);
}
