//! Gangs that preempt: for all needed members, or for none.

use super::gangs::{allocation, evicted, in_zone, member, within};
use super::*;
use crate::agent::Rng;
use crate::gang::{Allocation, AllocationKind, AllocationName, GangTopologyMode, Phase};
use crate::objects::ObjectKind;

/// Returns a bench with nodes of 1000 milli-CPU, preemption, and a gang `g` with this minimum.
fn bench(nodes: &[&str], minimum: u32) -> Bench {
    let mut bench = Bench::new(1, nodes);
    bench.scheduler.cluster.config.preemption = true;
    bench.allocate(allocation("g", minimum));
    bench
}

fn low(node: &str, uid: &str, cpu_milli: i64, priority: i32) -> Pod {
    Pod { started_s: Some(10), priority, ..on(node, pod(uid, cpu_milli)) }
}

impl Bench {
    /// Adds members `g-0`… of priority 5.
    fn join_important(&mut self, count: usize, cpu_milli: i64) {
        (0..count)
            .for_each(|at| self.apply(Pod { priority: 5, ..member(&format!("g-{at}"), "g", cpu_milli) }));
    }

    fn leave(&mut self, uid: &str) {
        self.scheduler.delete_pod(&Arc::from(uid));
        self.collect();
        self.work();
    }

    fn kept(&self) -> Vec<(String, String)> {
        let nominated = self.scheduler.nominated_pods();
        nominated.map(|(uid, node)| (uid.to_string(), node.to_string())).collect()
    }

    /// Checks that no reservations are left and that waiting pods have a condition.
    fn assert_nothing_is_kept(&self) {
        assert_eq!((self.kept(), self.scheduler.ledger().reserved().count()), (vec![], 0));
        let mut last = BTreeMap::new();
        last.extend(self.nominations.iter().map(|(uid, node)| (uid, node)));
        let waits = |uid: &str| {
            let waiting = self.scheduler.cluster.waiting.get(uid);
            waiting.is_some_and(|waiting| !matches!(waiting.state, State::Binding))
        };
        let left = last.iter().filter(|(uid, node)| node.is_some() && waits(uid));
        assert_eq!(left.count(), 0, "{:?}", self.nominations);
    }
}

#[test]
fn a_gang_evicts_what_all_its_members_need_at_once_and_is_placed_when_the_last_victim_is_gone() {
    let mut bench = bench(&["a", "b"], 2);
    bench.apply(low("a", "x", 1000, 0));
    bench.apply(low("b", "y", 1000, 0));
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!(evicted(&bench), ["x", "y"]);
    assert_eq!(bench.kept().len(), 2);
    let told = bench.messages("g-0");
    assert!(told.last().is_some_and(|told| told.ends_with(" are to leave 2 nodes for it.")), "{told:?}");
    bench.leave("x");
    assert_eq!((bench.binds.len(), bench.kept().len()), (0, 2), "not before both fit");
    bench.leave("y");
    assert_eq!(bench.hosts(), ["a", "b"]);
    bench.assert_nothing_is_kept();
    bench.finish_all();
    bench.run_until(3 * S);
    assert_eq!(bench.status("g").phase, Phase::Scheduled);
    assert_eq!(bench.evictions.len(), 2);
}

#[test]
fn evictions_for_members_of_a_podgroup_name_it_and_those_for_an_allocation_do_not() {
    for (kind, expected) in [(AllocationKind::PodGroup, Some("uid-g")), (AllocationKind::Allocation, None)] {
        let mut bench = Bench::new(1, &["a"]);
        bench.scheduler.cluster.config.preemption = true;
        let name = AllocationName { kind, ..allocation("g", 1).name };
        bench.allocate(Allocation { name, ..allocation("g", 1) });
        bench.apply(low("a", "x", 1000, 0));
        bench.join_important(1, 1000);
        bench.run_until(S);
        assert_eq!(evicted(&bench), ["x"]);
        assert_eq!(bench.evictions[0].group.as_deref(), expected);
    }
}

#[test]
fn of_a_gang_that_may_only_be_evicted_whole_all_members_leave_although_the_minimum_would_stay() {
    for (evicted_whole, expected) in [(false, &["g-0"][..]), (true, &["g-0", "g-1", "g-2"])] {
        let mut bench = Bench::new(1, &["a", "b", "c"]);
        bench.scheduler.cluster.config.preemption = true;
        bench.allocate(Allocation { evicted_whole, ..allocation("g", 1) });
        for (uid, node) in [("g-0", "a"), ("g-1", "b"), ("g-2", "c")] {
            bench.apply(on(node, member(uid, "g", 1000)));
        }
        bench.run_until(S);
        let moves = bench.scheduler.gangs.of_placed("g-0").map(|gang| gang.spare);
        assert_eq!(moves, Some(if evicted_whole { 0 } else { 2 }));
        bench.apply(Pod { priority: 5, ..pod("important", 1000) });
        bench.run_until(2 * S);
        let mut gone = evicted(&bench);
        gone.sort();
        assert_eq!(gone, expected);
    }
}

#[test]
fn of_a_gang_on_one_node_only_the_members_beyond_its_minimum_are_evicted_one_by_one() {
    for (minimum, expected) in [(1, &["g-2"][..]), (2, &["g-2"]), (3, &["g-0", "g-1", "g-2"])] {
        let mut bench = bench(&["a"], minimum);
        for (uid, priority) in [("g-0", 3), ("g-1", 2), ("g-2", 1)] {
            bench.apply(Pod { priority, ..on("a", member(uid, "g", 300)) });
        }
        bench.run_until(S);
        bench.apply(Pod { priority: 5, ..pod("important", 300) });
        bench.run_until(2 * S);
        let mut gone = evicted(&bench);
        gone.sort();
        assert_eq!(gone, expected, "minimum {minimum}");
    }
}

#[test]
fn a_gang_that_preempts_on_several_nodes_leaves_another_one_its_minimum() {
    // The minimum of g can spare one member; the other node is freed of a more important pod.
    let mut bench = bench(&["a", "b"], 1);
    bench.allocate(allocation("h", 2));
    for (uid, node) in [("g-0", "a"), ("g-1", "b")] {
        bench.apply(Pod { priority: 1, ..on(node, member(uid, "g", 500)) });
        bench.apply(low(node, &format!("alone-{node}"), 500, 2));
    }
    bench.run_until(S);
    (0..2).for_each(|at| bench.apply(Pod { priority: 5, ..member(&format!("h-{at}"), "h", 500) }));
    bench.run_until(2 * S);
    let gone = evicted(&bench);
    assert_eq!(gone.iter().filter(|uid| uid.starts_with("g-")).count(), 1, "{gone:?}");
    assert_eq!(gone.len(), 2, "{gone:?}");
}

#[test]
fn a_gang_waiting_for_its_victims_preempts_no_more_pods() {
    let mut bench = bench(&["a", "b", "c"], 2);
    for (node, uid) in [("a", "x"), ("b", "y"), ("c", "z")] {
        bench.apply(low(node, uid, 900, 1));
    }
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!((bench.evictions.len(), bench.kept().len()), (2, 2));
    // A pod with a new lowest priority.
    bench.apply(low("c", "lowest", 100, 0));
    bench.run_until(20 * S);
    assert_eq!((bench.evictions.len(), bench.kept().len()), (2, 2));
    let victims: Vec<String> = evicted(&bench).into_iter().map(str::to_owned).collect();
    victims.iter().for_each(|uid| bench.leave(uid));
    bench.run_until(22 * S);
    assert_eq!(bench.binds.len(), 2);
    bench.assert_nothing_is_kept();
}

#[test]
fn no_pod_is_evicted_for_a_gang_that_would_still_not_fit() {
    let mut bench = bench(&["a", "b"], 2);
    bench.apply(low("a", "x", 1000, 0));
    bench.apply(low("b", "y", 1000, 5));
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert!(bench.evictions.is_empty());
    bench.assert_nothing_is_kept();
    let told = bench.messages("g-0");
    assert!(told.last().is_some_and(|told| told.contains("no victims found that could")), "{told:?}");
}

#[test]
fn a_member_that_needs_no_victims_keeps_its_room_until_those_of_the_others_are_gone() {
    let mut bench = bench(&["a", "b"], 2);
    bench.apply(low("a", "x", 1000, 0));
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!((evicted(&bench), bench.kept().len()), (vec!["x"], 2));
    bench.apply(Pod { priority: 5, ..pod("other", 500) });
    bench.run_until(2 * S);
    assert!(bench.bound().is_empty(), "the room on b is taken");
    bench.leave("x");
    bench.run_until(3 * S);
    assert_eq!(bench.hosts(), ["a", "b"]);
    bench.assert_nothing_is_kept();
}

#[test]
fn a_gang_that_must_share_a_zone_preempts_in_one_where_all_of_it_fits() {
    let mut bench = bench(&[], 2);
    for (name, zone) in [("a", "one"), ("b", "one"), ("c", "two"), ("d", "two")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 2)));
    // One node is cheaper but fits only one member.
    for (node, priority) in [("a", 0), ("b", 7), ("c", 3), ("d", 3)] {
        bench.apply(low(node, &format!("on-{node}"), 1000, priority));
    }
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!(evicted(&bench), ["on-c", "on-d"]);
    bench.leave("on-c");
    bench.leave("on-d");
    assert_eq!(bench.hosts(), ["c", "d"]);
}

#[test]
fn a_zone_where_free_nodes_and_victims_together_are_enough_is_preempted_in() {
    let mut bench = bench(&[], 2);
    for (name, zone) in [("a", "one"), ("b", "one"), ("c", "two")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 2)));
    bench.apply(low("b", "x", 1000, 0));
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!(evicted(&bench), ["x"]);
    bench.leave("x");
    assert_eq!(bench.hosts(), ["a", "b"]);
}

#[test]
fn of_zones_a_gang_prefers_one_where_it_violates_no_budget_to_one_with_less_important_victims() {
    let mut bench = bench(&[], 1);
    for (name, zone) in [("a", "one"), ("b", "two")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 1)));
    let labels = [("app", "kept")].into_iter().collect();
    let identity = Identity { namespace: "ns".into(), labels, ..Identity::default() };
    bench.apply(Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..low("a", "kept", 1000, 0) });
    bench.apply(low("b", "other", 1000, 3));
    bench.scheduler.apply_object(budget(0));
    bench.join_important(1, 1000);
    bench.run_until(S);
    assert_eq!(evicted(&bench), ["other"]);
}

#[test]
fn of_zones_where_a_gang_could_preempt_it_takes_the_one_that_costs_less() {
    let mut bench = bench(&[], 2);
    for (name, zone) in [("a", "one"), ("b", "one"), ("c", "two"), ("d", "two")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 2)));
    for (node, priority) in [("a", 1), ("b", 3), ("c", 2), ("d", 2)] {
        bench.apply(low(node, &format!("on-{node}"), 1000, priority));
    }
    bench.join_important(2, 1000);
    bench.run_until(S);
    assert_eq!(evicted(&bench), ["on-c", "on-d"], "no pod of priority 3 is evicted");
}

#[test]
fn a_budget_that_bears_one_disruption_is_not_asked_for_two_where_others_can_go() {
    let mut bench = bench(&["a", "b", "c"], 2);
    let labelled = |node: &str, uid: &str| {
        let labels = [("app", "kept")].into_iter().collect();
        let identity = Identity { namespace: "ns".into(), labels, ..Identity::default() };
        Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..low(node, uid, 1000, 0) }
    };
    bench.apply(labelled("a", "kept-1"));
    bench.apply(labelled("b", "kept-2"));
    bench.apply(low("c", "other", 1000, 3));
    bench.scheduler.apply_object(budget(1));
    bench.join_important(2, 1000);
    bench.run_until(S);
    let evicted = evicted(&bench);
    assert!(evicted.len() == 2 && evicted.contains(&"other"), "{evicted:?}");
}

#[test]
fn of_zones_a_gang_prefers_one_where_it_breaks_up_no_other_gang_to_one_with_less_important_victims() {
    let mut bench = bench(&[], 1);
    for (name, zone) in [("a", "one"), ("b", "two")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 1)));
    bench.allocate(allocation("h", 1));
    bench.apply(Pod { started_s: Some(10), ..on("a", member("h-0", "h", 1000)) });
    bench.apply(low("b", "other", 1000, 3));
    bench.run_until(S);
    bench.join_important(1, 1000);
    bench.run_until(2 * S);
    assert_eq!(evicted(&bench), ["other"]);
}

#[test]
fn a_gang_whose_members_must_not_preempt_does_not() {
    let mut bench = bench(&["a"], 2);
    bench.apply(low("a", "x", 1000, 0));
    bench.apply(Pod { priority: 5, ..member("g-0", "g", 500) });
    let never = PreemptionPolicy::Never;
    bench.apply(Pod { priority: 5, preemption_policy: never, ..member("g-1", "g", 500) });
    bench.run_until(S);
    assert!(bench.evictions.is_empty());
}

#[test]
fn whatever_becomes_of_a_gang_or_its_nodes_while_victims_leave_no_room_stays_kept() {
    let ready = || {
        let mut bench = bench(&["a", "b"], 2);
        bench.apply(low("a", "x", 1000, 0));
        bench.apply(low("b", "y", 1000, 0));
        bench.join_important(2, 1000);
        bench.run_until(S);
        assert_eq!((bench.kept().len(), bench.evictions.len()), (2, 2));
        bench
    };
    let mut deleted = ready();
    deleted.leave("g-1");
    deleted.run_until(3 * S);
    deleted.assert_nothing_is_kept();

    let mut gone = ready();
    ["g-0", "g-1"].iter().for_each(|uid| gone.leave(uid));
    gone.run_until(3 * S);
    gone.assert_nothing_is_kept();

    let mut raised = ready();
    raised.allocate(Allocation { generation: 2, ..allocation("g", 3) });
    raised.run_until(3 * S);
    raised.assert_nothing_is_kept();

    let mut lost = ready();
    lost.scheduler.delete_node("a");
    lost.collect();
    lost.work();
    lost.run_until(3 * S);
    lost.assert_nothing_is_kept();

    let mut refused = ready();
    let eviction = refused.evictions[0].clone();
    refused.scheduler.eviction_finished(&eviction, Err("forbidden".into()), refused.now);
    refused.collect();
    refused.assert_nothing_is_kept();
    assert!(refused.messages("g-0").last().is_some_and(|told| told.contains("could not be evicted")));

    let mut follower = ready();
    follower.scheduler.set_leading(false);
    assert_eq!(follower.kept(), []);

    let mut alone = ready();
    alone
        .scheduler
        .delete_object(ObjectKind::Allocation, &ObjectName { namespace: "ns".into(), name: "g".into() });
    alone.leave("x");
    alone.leave("y");
    alone.run_until(3 * S);
    assert_eq!(alone.hosts(), ["a", "b"], "its members are pods like any other");
    alone.assert_nothing_is_kept();
}

#[test]
fn a_restart_keeps_the_reservations_of_a_gang_and_evicts_no_pod_twice() {
    let mut bench = bench(&["a", "b"], 2);
    let terminating = Arc::new(Peer { terminating: true, ..Peer::default() });
    bench.apply(Pod { peer: terminating.clone(), deleting: true, ..low("a", "x", 1000, 0) });
    bench.apply(Pod { peer: terminating, deleting: true, ..low("b", "y", 1000, 0) });
    for (uid, node) in [("g-0", "a"), ("g-1", "b")] {
        let nominated_node = Some(Arc::from(node));
        bench.apply(Pod { priority: 5, nominated_node, ..member(uid, "g", 1000) });
    }
    bench.run_until(S);
    assert_eq!((bench.kept().len(), bench.evictions.len()), (2, 0));
    bench.leave("x");
    bench.leave("y");
    bench.run_until(3 * S);
    assert_eq!((bench.hosts(), bench.evictions.len()), (vec!["a", "b"], 0));
    bench.assert_nothing_is_kept();
}

#[test]
fn once_it_has_its_minimum_a_gang_preempts_for_one_more_member_at_a_time() {
    let mut bench = bench(&["a", "b", "c"], 1);
    bench.apply(low("b", "x", 1000, 0));
    bench.apply(low("c", "y", 1000, 9));
    bench.join_important(3, 1000);
    bench.run_until(S);
    assert_eq!(bench.hosts(), ["a"]);
    bench.finish_all();
    bench.run_until(3 * S);
    assert_eq!(evicted(&bench), ["x"]);
    bench.leave("x");
    bench.run_until(5 * S);
    assert_eq!(bench.hosts(), ["b"]);
    bench.assert_nothing_is_kept();
}

#[test]
fn a_gang_without_hope_is_not_tried_again_before_something_changes_and_not_at_once() {
    let mut bench = bench(&["a"], 2);
    bench.apply(low("a", "x", 400, 0));
    bench.apply(low("a", "y", 600, 9));
    bench.join_important(2, 500);
    bench.run_until(S);
    let attempts = |bench: &Bench| bench.scheduler.stats().preemption_attempts;
    assert_eq!(attempts(&bench), 1);
    for second in 2..10 {
        bench.run_until(second * S);
    }
    assert_eq!(attempts(&bench), 1);
    bench.scheduler.apply_node(node("a", 1600));
    bench.collect();
    bench.run_until(10 * S);
    bench.run_until(11 * S);
    assert_eq!((evicted(&bench), attempts(&bench)), (vec!["x"], 2));
}

/// Random clusters: victims have lower priority, nothing is evicted in vain, and no reservation is left.
#[test]
fn on_any_cluster_a_gang_that_evicts_is_placed_whole_when_its_victims_are_gone() {
    let (mut preempted, mut waited) = (0, 0);
    for seed in 0..500 {
        let mut rng = Rng(seed);
        let mut below = |limit: u64| (rng.next() % limit) as i64;
        let nodes = 3 + below(5) as usize;
        let members = 2 + below(4) as usize;
        let mode =
            [None, Some(GangTopologyMode::Required), Some(GangTopologyMode::Spread)][below(3) as usize];
        let mut bench = bench(&[], members as u32);
        let gang = allocation("g", members as u32);
        bench.allocate(mode.map_or(gang.clone(), |mode| within(mode, gang)));
        for at in 0..nodes {
            bench.scheduler.apply_node(in_zone(&format!("n{at}"), &format!("z{}", below(2)), 1000));
            for pod in 0..1 + below(4) {
                let cpu = 100 + 100 * below(3);
                bench.apply(low(&format!("n{at}"), &format!("n{at}-{pod}"), cpu, below(8) as i32));
            }
        }
        for at in 0..members {
            let cpu = 200 + 100 * below(4);
            bench.apply(Pod { priority: 5, ..member(&format!("g-{at}"), "g", cpu) });
        }
        bench.run_until(S);
        if bench.evictions.is_empty() {
            waited += usize::from(bench.binds.is_empty());
            continue;
        }
        preempted += 1;
        assert_eq!(bench.kept().len(), members, "seed {seed}");
        for uid in evicted(&bench).into_iter().map(str::to_owned).collect::<Vec<_>>() {
            let priority = bench.scheduler.ledger().charge_of(&uid).expect("it runs").holding.priority;
            assert!(priority < 5, "seed {seed}: {uid}");
            bench.leave(&uid);
        }
        assert_eq!(bench.binds.len(), members, "seed {seed}: {:?}", bench.messages("g-0"));
        bench.assert_nothing_is_kept();
    }
    assert!(preempted > 40 && waited > 5, "{preempted} preempted, {waited} waited");
}
