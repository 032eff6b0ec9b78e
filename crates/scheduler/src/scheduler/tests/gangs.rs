//! Gangs: placed together or not at all, whatever happens to their members, their object and the nodes.

use super::*;
use crate::gang::{
    Allocation, AllocationKind, AllocationName, GangRole, GangStatus, GangTopology, GangTopologyMode, Phase,
    RoleMembers,
};
use crate::objects::ObjectKind;

pub(super) fn name(of: &str) -> AllocationName {
    AllocationName { kind: AllocationKind::Allocation, namespace: "ns".into(), name: of.into() }
}

fn gang_label(of: &str) -> LabelSelector {
    let operator = Operator::In([Arc::from(of)].into());
    LabelSelector::All([Requirement { key: "gang".into(), operator }].into())
}

pub(super) fn allocation(of: &str, minimum: u32) -> Allocation {
    Allocation {
        name: name(of),
        uid: format!("uid-{of}").into(),
        generation: 1,
        created_s: 100,
        roles: [GangRole { name: "".into(), members: RoleMembers::Selected(gang_label(of)), minimum }].into(),
        timeout: None,
        topology: None,
        evicted_whole: false,
        was_scheduled: false,
        problem: None,
    }
}

pub(super) fn within(mode: GangTopologyMode, allocation: Allocation) -> Allocation {
    Allocation { topology: Some(GangTopology { key: "zone".into(), mode }), ..allocation }
}

pub(super) fn member(uid: &str, gang: &str, cpu_milli: i64) -> Pod {
    let labels = [("gang", gang)].into_iter().collect();
    let identity = Identity { namespace: "ns".into(), labels, ..Identity::default() };
    Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..pod(uid, cpu_milli) }
}

pub(super) fn in_zone(name: &str, zone: &str, cpu_milli: i64) -> Node {
    Node { labels: [("zone", zone)].into_iter().collect(), ..node(name, cpu_milli) }
}

impl Bench {
    pub(super) fn allocate(&mut self, allocation: Allocation) {
        self.scheduler.apply_object(ClusterObject::Allocation(Box::new(allocation)));
        self.collect();
    }

    /// Adds members `GANG-0` to `GANG-(count - 1)`.
    pub(super) fn join(&mut self, gang: &str, count: usize, cpu_milli: i64) {
        (0..count).for_each(|at| self.apply(member(&format!("{gang}-{at}"), gang, cpu_milli)));
    }

    /// Advances time while agents work.
    pub(super) fn run_until(&mut self, at: Duration) {
        self.tick(at);
        self.work();
        self.tick(at + Duration::from_millis(60));
        self.work();
    }

    pub(super) fn finish_all(&mut self) {
        for binding in std::mem::take(&mut self.binds) {
            self.finish(&binding, BindOutcome::Bound);
        }
    }

    /// Returns the nodes of all binds so far.
    pub(super) fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<_> = self.binds.iter().map(|binding| &*binding.node).collect();
        hosts.sort();
        hosts
    }

    pub(super) fn status(&self, of: &str) -> &GangStatus {
        self.statuses.iter().rfind(|status| *status.name.name == *of).expect("it has a status")
    }

    pub(super) fn messages(&self, uid: &str) -> Vec<&str> {
        self.told.iter().filter(|(told, ..)| told == uid).map(|(_, _, message, _)| &**message).collect()
    }
}

#[test]
fn members_wait_until_enough_of_them_are_there_and_then_all_get_a_node() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 2, 400);
    bench.run_until(S);
    assert!(bench.bound().is_empty());
    assert_eq!(bench.status("g").phase, Phase::Pending);
    assert!(bench.told.is_empty(), "more members may be created");
    bench.run_until(6 * S);
    assert_eq!(bench.messages("g-0"), ["Allocation ns/g has 2 of 3 members"]);
    bench.join("g", 3, 400);
    bench.work();
    assert_eq!(bench.bound().len(), 3);
    bench.finish_all();
    bench.run_until(8 * S);
    let status = bench.status("g");
    assert_eq!((status.phase, status.roles[0].bound, status.roles[0].members), (Phase::Scheduled, 3, 3));
    assert_eq!(status.placement.iter().map(|(_, pods)| pods).sum::<u32>(), 3);
}

#[test]
fn a_gang_that_does_not_fit_takes_nothing_and_is_placed_when_it_does() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 5));
    bench.join("g", 5, 500);
    bench.run_until(S);
    assert_eq!((bench.binds.len(), bench.cpu_taken("a"), bench.cpu_taken("b")), (0, 0, 0));
    let told = bench.messages("g-4")[0];
    assert!(told.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{told}");
    assert!(told.ends_with(" ns/g must place 5 pods at once; 4 fit."), "{told}");
    assert_eq!(bench.status("g").phase, Phase::Unschedulable);
    // A single pod takes what the gang cannot use.
    bench.apply(pod("single", 1000));
    bench.work();
    assert_eq!(bench.bound(), ["single"]);
    bench.scheduler.apply_node(node("c", 2000));
    bench.run_until(4 * S);
    assert_eq!(bench.bound().len(), 6);
}

#[test]
fn two_gangs_that_fit_one_at_a_time_do_not_share_the_nodes_half_and_half() {
    let mut bench = Bench::new(2, &["a", "b", "c", "d"]);
    bench.allocate(allocation("g", 4));
    bench.allocate(allocation("h", 4));
    // They take turns.
    for at in 0..4 {
        bench.apply(member(&format!("g-{at}"), "g", 700));
        bench.apply(member(&format!("h-{at}"), "h", 700));
    }
    bench.work();
    let bound = bench.bound();
    assert_eq!(bound.len(), 4);
    let first = bound[0].split('-').next().unwrap().to_owned();
    assert!(bound.iter().all(|uid| uid.starts_with(&first)), "{bound:?}");
    bench.finish_all();
    bench.binds.clear();
    for at in 0..4 {
        bench.scheduler.delete_pod(&format!("{first}-{at}").into());
    }
    bench.run_until(4 * S);
    assert!(bench.bound().len() == 4 && !bench.bound()[0].starts_with(&first));
}

#[test]
fn a_new_leader_plans_gangs_that_nobody_has_tried_before_those_that_fitted_nowhere() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.set_leading(false);
    let condition = unschedulable("ns/hopeless must place 2 pods at once; 0 fit.");
    for (name, cpu_milli, scheduled) in [("hopeless", 90_000, Some(condition)), ("new", 100, None)] {
        bench.allocate(allocation(name, 2));
        for at in 0..2 {
            let pod = member(&format!("{name}-{at}"), name, cpu_milli);
            bench.apply(Pod { scheduled: scheduled.clone(), ..pod });
        }
    }
    bench.scheduler.set_leading(true);
    bench.tick(S);
    let task = bench.take(0).expect("a task");
    let Task::Gang { gang, .. } = &task else { panic!("{task:?}") };
    assert_eq!(&*gang.wanted.members[0].uid, "new-0");
}

#[test]
fn a_plan_that_is_overtaken_is_rolled_back_whole_and_made_again() {
    let mut bench = Bench::new(2, &["a", "b"]);
    bench.allocate(allocation("g", 2));
    bench.join("g", 2, 600);
    let agent = if bench.woken.contains(&0) { 0 } else { 1 };
    let task = bench.take(agent).expect("the gang is ready");
    let answer = bench.choose(agent, &task);
    // Another pod takes one of the nodes.
    bench.apply(on("b", pod("other", 600)));
    bench.scheduler.apply_node(node("c", 1000));
    assert_eq!(bench.settle(agent, &task, answer), Settled::Again);
    assert_eq!((bench.binds.len(), bench.cpu_taken("a")), (0, 0));
    bench.agents[agent].catch_up(bench.scheduler.inventory());
    let answer = bench.choose(agent, &task);
    assert_eq!(bench.settle(agent, &task, answer), Settled::Done);
    assert_eq!(bench.hosts(), ["a", "c"]);
}

#[test]
fn a_gang_whose_plans_are_always_overtaken_backs_off_without_holding_anything() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 2));
    bench.join("g", 2, 600);
    let task = bench.take(0).unwrap();
    for round in 0..3 {
        bench.agents[0].catch_up(bench.scheduler.inventory());
        let answer = bench.choose(0, &task);
        bench.apply(on("a", pod(&format!("x{round}"), 600)));
        let last = round == 2;
        let settled = bench.settle(0, &task, answer);
        assert_eq!(settled, if last { Settled::Done } else { Settled::Again });
        bench.scheduler.delete_pod(&format!("x{round}").into());
    }
    assert!(bench.binds.is_empty() && bench.messages("g-0")[0].contains("in a row conflicted"));
    bench.run_until(2 * S);
    assert_eq!(bench.bound().len(), 2);
}

#[test]
fn a_failed_bind_is_tried_elsewhere_and_those_that_succeeded_stay() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 2));
    bench.join("g", 2, 600);
    bench.work();
    let binds = std::mem::take(&mut bench.binds);
    bench.finish(&binds[0], BindOutcome::Bound);
    bench.finish(&binds[1], BindOutcome::Refused("no".into()));
    bench.run_until(S);
    bench.run_until(3 * S);
    assert_eq!(bench.bound(), [&*binds[1].uid]);
    bench.finish_all();
    bench.run_until(5 * S);
    assert_eq!(bench.status("g").phase, Phase::Scheduled);
}

#[test]
fn a_member_that_is_deleted_while_its_bind_is_in_flight_does_not_count_towards_the_minimum() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 3, 300);
    bench.work();
    let binds = std::mem::take(&mut bench.binds);
    bench.finish(&binds[0], BindOutcome::Bound);
    bench.apply(Pod { deleting: true, ..member(&binds[1].uid, "g", 300) });
    bench.finish(&binds[2], BindOutcome::Refused("no".into()));
    bench.run_until(S);
    // The members are found again when the allocation changes.
    bench.allocate(Allocation { generation: 2, ..allocation("g", 3) });
    bench.run_until(3 * S);
    assert!(bench.binds.is_empty(), "two members are less than the minimum: {:?}", bench.bound());
    bench.finish(&binds[1], BindOutcome::Vanished);
    bench.apply(member("g-3", "g", 300));
    bench.run_until(5 * S);
    let mut bound = bench.bound();
    bound.sort();
    assert_eq!(bound, [&*binds[2].uid, "g-3"]);
}

#[test]
fn after_a_restart_in_the_middle_only_the_missing_members_are_needed() {
    let mut bench = Bench::silent(1);
    bench.scheduler.apply_node(node("a", 1000));
    bench.scheduler.apply_node(node("b", 1000));
    // Pods are listed before the allocation is.
    bench.apply(on("a", member("g-0", "g", 600)));
    bench.apply(member("g-1", "g", 600));
    bench.scheduler.retain_nodes(&["a".into(), "b".into()].into());
    bench.scheduler.retain_pods(&["g-0".into(), "g-1".into()].into());
    bench.allocate(allocation("g", 2));
    bench.scheduler.set_leading(true);
    bench.work();
    assert_eq!(bench.bound(), ["g-1"]);
}

#[test]
fn once_scheduled_a_member_that_comes_later_is_placed_alone() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 3, 300);
    bench.work();
    bench.finish_all();
    bench.run_until(S);
    bench.scheduler.delete_pod(&"g-1".into());
    bench.scheduler.delete_pod(&"g-2".into());
    bench.run_until(3 * S);
    bench.apply(member("g-3", "g", 300));
    bench.run_until(5 * S);
    assert_eq!(bench.bound(), ["g-3"]);
    // The object's status has it after a restart, too.
    let mut later = Bench::new(1, &["a"]);
    later.allocate(Allocation { was_scheduled: true, ..allocation("g", 3) });
    later.join("g", 1, 300);
    later.work();
    assert_eq!(later.bound(), ["g-0"]);
}

#[test]
fn more_members_than_the_minimum_are_placed_as_far_as_there_is_room() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 2));
    bench.scheduler.set_leading(false);
    bench.join("g", 6, 500);
    bench.scheduler.set_leading(true);
    bench.work();
    assert_eq!(bench.bound().len(), 4);
    bench.finish_all();
    bench.run_until(S);
    let left = bench.in_state("grouped");
    assert_eq!((left, bench.status("g").phase), (2, Phase::Scheduled));
    bench.scheduler.apply_node(node("c", 1000));
    bench.run_until(4 * S);
    assert_eq!(bench.bound().len(), 2);
}

#[test]
fn every_role_needs_its_own_minimum_and_the_large_ones_are_placed_first() {
    let roles = |gang: &str, minima: [u32; 2]| Allocation {
        roles: [("driver", minima[0]), ("worker", minima[1])]
            .map(|(role, minimum)| {
                let requirement = |key: &str, value: &str| Requirement {
                    key: key.into(),
                    operator: Operator::In([Arc::from(value)].into()),
                };
                let selector =
                    LabelSelector::All([requirement("gang", gang), requirement("role", role)].into());
                GangRole { name: role.into(), members: RoleMembers::Selected(selector), minimum }
            })
            .into(),
        ..allocation(gang, 1)
    };
    let with_role = |uid: &str, role: &str, cpu: i64| {
        let labels = [("gang", "g"), ("role", role)].into_iter().collect();
        let identity = Identity { namespace: "ns".into(), labels, ..Identity::default() };
        Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..pod(uid, cpu) }
    };
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.apply_node(node("big", 4000));
    bench.allocate(roles("g", [1, 3]));
    (0..5).for_each(|at| bench.apply(with_role(&format!("w{at}"), "worker", 1000)));
    bench.work();
    assert!(bench.bound().is_empty(), "there is no driver");
    // Workers placed first would leave no room for it.
    bench.apply(with_role("driver", "driver", 2000));
    bench.work();
    let mut bound = bench.bound();
    bound.sort();
    assert_eq!(bound, ["driver", "w0", "w1", "w2"]);
}

#[test]
fn all_members_share_one_zone_the_one_with_room_for_all() {
    let mut bench = Bench::new(1, &[]);
    let zones =
        [("a1", "a", 2000), ("a2", "a", 500), ("b1", "b", 1000), ("b2", "b", 1000), ("b3", "b", 1000)];
    for (name, zone, cpu) in zones {
        bench.scheduler.apply_node(in_zone(name, zone, cpu));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 3)));
    bench.join("g", 3, 900);
    bench.work();
    assert_eq!(bench.hosts(), ["b1", "b2", "b3"]);
    bench.finish_all();
    bench.run_until(S);
    assert_eq!(&*bench.status("g").placement, [("b".into(), 3)]);
    // A replacement goes to the domain of the other members, though another has more free resources.
    bench.scheduler.apply_node(in_zone("a3", "a", 9000));
    bench.scheduler.delete_pod(&"g-1".into());
    bench.apply(member("g-3", "g", 900));
    bench.run_until(3 * S);
    assert!(bench.hosts()[0].starts_with('b'));
}

#[test]
fn of_zones_with_room_for_all_members_the_one_with_least_room_is_taken_and_of_equal_ones_the_fullest() {
    let mut bench = Bench::new(1, &[]);
    let nodes = [("a1", 900), ("a2", 900), ("a3", 900), ("b1", 900), ("b2", 900), ("b3", 900), ("b4", 900)];
    for (name, cpu) in nodes.into_iter().chain([("c1", 900), ("c2", 900), ("d1", 900)]) {
        bench.scheduler.apply_node(in_zone(name, &name[..1], cpu));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 2)));
    bench.join("g", 2, 900);
    bench.work();
    assert_eq!(bench.hosts(), ["c1", "c2"], "the last one has too little room, the others more than needed");
    bench.finish_all();
    // Now there is as much room in the first two, and more taken in the second.
    bench.apply(on("b1", pod("other", 900)));
    bench.allocate(within(GangTopologyMode::Required, allocation("h", 2)));
    bench.join("h", 2, 900);
    bench.work();
    assert!(bench.hosts().iter().all(|host| host.starts_with('b')), "{:?}", bench.hosts());
}

#[test]
fn of_zones_that_hold_a_part_of_a_gang_the_one_that_holds_most_of_it_is_taken() {
    let mut bench = Bench::new(1, &[]);
    // For the small member alone, the first zone has most room.
    for (name, cpu) in [("a1", 900), ("a2", 900), ("a3", 900), ("b1", 1000), ("b2", 1000), ("b3", 100)] {
        bench.scheduler.apply_node(in_zone(name, &name[..1], cpu));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 1)));
    bench.scheduler.set_leading(false);
    for (uid, cpu) in [("g-0", 100), ("g-1", 1000), ("g-2", 1000), ("g-3", 1000)] {
        bench.apply(member(uid, "g", cpu));
    }
    bench.scheduler.set_leading(true);
    bench.work();
    assert_eq!(bench.hosts(), ["b1", "b2", "b3"]);
}

#[test]
fn a_zone_that_must_hold_all_and_cannot_leaves_the_gang_waiting_and_says_so() {
    let mut bench = Bench::new(1, &[]);
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 3)));
    bench.allocate(within(GangTopologyMode::Preferred, allocation("h", 3)));
    bench.join("g", 3, 400);
    bench.join("g", 3, 600);
    bench.run_until(S);
    assert!(bench.bound().is_empty());
    let told = bench.messages("g-0")[0];
    assert!(told.contains("must place 3 pods at once in one zone; 2 fit"), "{told}");
    bench.join("h", 3, 600);
    bench.run_until(2 * S);
    assert_eq!(bench.bound().len(), 3, "it would rather share a zone, but need not");
}

#[test]
fn members_that_come_later_go_where_most_of_the_others_are() {
    let mut bench = Bench::new(1, &[]);
    for (name, zone) in [("a1", "a"), ("b1", "b")] {
        bench.scheduler.apply_node(in_zone(name, zone, 1000));
    }
    bench.allocate(within(GangTopologyMode::Preferred, allocation("g", 5)));
    for (uid, node) in [("g-0", "a1"), ("g-1", "b1"), ("g-2", "b1")] {
        bench.apply(on(node, member(uid, "g", 100)));
    }
    bench.apply(member("g-3", "g", 100));
    bench.apply(member("g-4", "g", 100));
    bench.run_until(S);
    assert_eq!(bench.hosts(), ["b1", "b1"], "though the other zone has more room");
}

#[test]
fn a_topology_that_no_node_has_is_said_and_nothing_breaks() {
    let mut bench = Bench::new(1, &["a"]);
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 1)));
    bench.join("g", 1, 100);
    bench.run_until(S);
    assert!(bench.bound().is_empty());
    assert_eq!(bench.status("g").phase, Phase::Unschedulable);
}

#[test]
fn members_that_are_to_be_spread_are_spread_over_the_zones() {
    let mut bench = Bench::new(1, &[]);
    for (name, zone, cpu) in [("a1", "a", 9000), ("b1", "b", 1000), ("c1", "c", 1000)] {
        bench.scheduler.apply_node(in_zone(name, zone, cpu));
    }
    bench.allocate(within(GangTopologyMode::Spread, allocation("g", 6)));
    bench.join("g", 6, 400);
    bench.work();
    assert_eq!(bench.hosts(), ["a1", "a1", "b1", "b1", "c1", "c1"]);
}

#[test]
fn members_see_each_other_while_they_are_planned() {
    let mut bench = Bench::new(1, &["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        bench.scheduler.apply_node(in_zone(name, name, 9000));
    }
    bench.allocate(allocation("g", 3));
    let selector = berth_model::PodSelector {
        namespaces: ["ns".into()].into(),
        labels: gang_label("g"),
        ..Default::default()
    };
    let term = berth_model::PodTerm { selector, topology_key: "zone".into() };
    let affinity = Arc::new(berth_model::PodAffinity { required_anti: [term].into(), ..Default::default() });
    for at in 0..3 {
        let plain = member(&format!("g-{at}"), "g", 100);
        let spec = PodSpec { pod_affinity: affinity.clone(), ..PodSpec::clone(plain.spec.as_ref().unwrap()) };
        let peer = Peer { affinity: affinity.clone(), ..Peer::clone(&plain.peer) };
        bench.apply(Pod { peer: Arc::new(peer), spec: Ok(Arc::new(spec)), ..plain });
    }
    bench.work();
    assert_eq!(bench.hosts(), ["a", "b", "c"]);
}

#[test]
fn a_gang_whose_members_wait_for_another_pod_is_tried_again_when_that_comes() {
    let mut bench = Bench::new(1, &["a", "b"]);
    for name in ["a", "b"] {
        bench.scheduler.apply_node(in_zone(name, name, 9000));
    }
    bench.allocate(allocation("g", 2));
    let selector = berth_model::PodSelector {
        namespaces: ["ns".into()].into(),
        labels: gang_label("server"),
        ..Default::default()
    };
    let term = berth_model::PodTerm { selector, topology_key: "zone".into() };
    let affinity = Arc::new(berth_model::PodAffinity { required: [term].into(), ..Default::default() });
    for at in 0..2 {
        let plain = member(&format!("g-{at}"), "g", 100);
        let spec = PodSpec { pod_affinity: affinity.clone(), ..PodSpec::clone(plain.spec.as_ref().unwrap()) };
        let peer = Peer { affinity: affinity.clone(), ..Peer::clone(&plain.peer) };
        bench.apply(Pod { peer: Arc::new(peer), spec: Ok(Arc::new(spec)), ..plain });
    }
    bench.run_until(S);
    assert_eq!(bench.binds.len(), 0);
    bench.apply(on("b", member("server", "server", 100)));
    bench.run_until(60 * S);
    assert_eq!(bench.hosts(), ["b", "b"]);
}

#[test]
fn members_and_minimum_may_change_at_any_time() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 3, 300);
    let task = bench.take(0).expect("the gang is ready");
    let answer = bench.choose(0, &task);
    bench.scheduler.delete_pod(&"g-2".into());
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert_eq!((bench.binds.len(), bench.cpu_taken("a") + bench.cpu_taken("b")), (0, 0));
    bench.allocate(Allocation { generation: 2, ..allocation("g", 2) });
    bench.run_until(2 * S);
    assert_eq!(bench.bound().len(), 2);
    bench.finish_all();
    bench.run_until(3 * S);
    assert_eq!(bench.status("g").phase, Phase::Scheduled);
    // Raised: the new members come together.
    bench.allocate(Allocation { generation: 3, ..allocation("g", 4) });
    bench.apply(member("g-3", "g", 300));
    bench.run_until(5 * S);
    assert_eq!((bench.bound().len(), bench.status("g").phase), (0, Phase::Pending));
    bench.apply(member("g-4", "g", 300));
    bench.run_until(7 * S);
    assert_eq!(bench.bound().len(), 2);
}

#[test]
fn when_the_object_goes_its_members_are_pods_like_any_other() {
    let mut bench = Bench::new(1, &["a"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 2, 300);
    bench.work();
    assert!(bench.bound().is_empty());
    let object = ObjectName { namespace: "ns".into(), name: "g".into() };
    bench.scheduler.delete_object(ObjectKind::Allocation, &object);
    bench.run_until(S);
    assert_eq!(bench.bound().len(), 2);
    assert_eq!(bench.in_state("grouped"), 0);
}

#[test]
fn pods_of_a_group_that_does_not_exist_wait_for_it() {
    let mut bench = Bench::new(1, &["a"]);
    let grouped = |uid: &str| {
        let peer = Peer { group: Some("later".into()), ..Peer::clone(&member(uid, "x", 0).peer) };
        Pod { peer: Arc::new(peer), ..pod(uid, 100) }
    };
    bench.apply(grouped("p"));
    bench.apply(grouped("q"));
    bench.run_until(6 * S);
    assert!(bench.bound().is_empty());
    assert_eq!(bench.messages("p"), ["PodGroup ns/later does not exist"]);
    let name =
        AllocationName { kind: AllocationKind::PodGroup, namespace: "ns".into(), name: "later".into() };
    let role = GangRole { name: "".into(), members: RoleMembers::Grouped, minimum: 2 };
    bench.allocate(Allocation { name, roles: [role].into(), ..allocation("later", 2) });
    bench.run_until(8 * S);
    assert_eq!(bench.bound().len(), 2);
}

#[test]
fn a_pod_that_two_allocations_claim_belongs_to_the_older_and_the_younger_says_so() {
    let mut bench = Bench::new(1, &["a"]);
    let twin = |of: &str, created_s| Allocation { name: name(of), created_s, ..allocation("g", 2) };
    bench.allocate(twin("young", 200));
    bench.allocate(twin("old", 100));
    bench.join("g", 2, 100);
    bench.run_until(S);
    assert_eq!(bench.bound().len(), 2);
    bench.finish_all();
    bench.run_until(3 * S);
    assert_eq!(bench.status("old").phase, Phase::Scheduled);
    let young = bench.status("young");
    assert_eq!((young.phase, young.claimed_by_others), (Phase::Pending, 0), "they are bound and done with");
    bench.apply(member("g-9", "g", 5000));
    bench.run_until(5 * S);
    let young = bench.status("young");
    assert_eq!(young.claimed_by_others, 1);
    assert!(young.message.contains("1 more belong to an older allocation"), "{}", young.message);
}

#[test]
fn a_gang_that_waits_longer_than_its_timeout_is_given_up_until_it_changes() {
    let mut bench = Bench::new(1, &["a"]);
    bench.allocate(Allocation { timeout: Some(10 * S), ..allocation("g", 3) });
    bench.join("g", 3, 600);
    bench.run_until(S);
    bench.run_until(12 * S);
    assert_eq!(bench.status("g").phase, Phase::TimedOut);
    bench.scheduler.apply_node(node("b", 9000));
    bench.run_until(20 * S);
    assert!(bench.bound().is_empty());
    bench.apply(member("g-3", "g", 600));
    bench.run_until(30 * S);
    assert_eq!(bench.bound().len(), 4);
}

#[test]
fn an_invalid_allocation_places_no_pods_and_its_status_says_why() {
    let mut bench = Bench::new(1, &["a"]);
    bench.allocate(Allocation {
        problem: Some("spec.minimum: must not be negative".into()),
        ..allocation("g", 1)
    });
    bench.join("g", 1, 100);
    bench.run_until(6 * S);
    assert!(bench.bound().is_empty());
    let status = bench.status("g");
    assert_eq!((status.phase, &*status.message), (Phase::Invalid, "spec.minimum: must not be negative"));
}

#[test]
fn the_times_of_many_waiting_gangs_are_checked_in_rotation() {
    const GANGS: usize = 600;
    let mut bench = Bench::new(1, &["n"]);
    for at in 0..GANGS {
        bench.allocate(allocation(&format!("g{at}"), 1));
        bench.join(&format!("g{at}"), 1, 5_000);
    }
    bench.work();
    assert!(bench.binds.is_empty());
    bench.scheduler.apply_node(node("big", 10_000_000));
    // The interval of so many.
    bench.tick(7 * S);
    let queued = bench.scheduler.dispatcher.len();
    assert!((1..=512).contains(&queued), "{queued} at once");
    bench.work();
    bench.finish_all();
    for at in 0..40 {
        bench.run_until(8 * S + Duration::from_millis(200) * at);
        bench.finish_all();
    }
    assert_eq!(bench.in_state("grouped"), 0);
}

#[test]
fn a_parked_gang_is_retried_at_most_once_per_interval() {
    let mut bench = Bench::new(1, &["a"]);
    bench.allocate(allocation("g", 3));
    bench.join("g", 3, 600);
    bench.work();
    let before = bench.choices;
    for at in 0..100u32 {
        bench.apply(on("a", pod("x", 100)));
        bench.scheduler.delete_pod(&"x".into());
        bench.run_until(S + at * Duration::from_millis(100));
    }
    let tries = bench.choices - before;
    assert!((8..=12).contains(&tries), "{tries} tries in ten seconds");
}

#[test]
fn a_gang_belongs_to_one_replica_whatever_the_classes_of_its_members() {
    let replicas = ["r1", "r2", "r3"];
    let mut placed = Vec::new();
    for me in replicas {
        let mut bench = Bench::new(1, &["a", "b"]);
        bench.scheduler.set_share(Some(Share::new(me, replicas)));
        bench.allocate(allocation("g", 3));
        (0..3i64).for_each(|at| bench.apply(member(&format!("g-{at}"), "g", 100 + at)));
        bench.run_until(S);
        placed.push(bench.bound().len());
    }
    placed.sort();
    assert_eq!(placed, [0, 0, 3]);
}

/// Returns a bench with two members of a low-priority gang, each alone on a full node, and a preemptor.
fn preempted(minimum: u32) -> Bench {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.allocate(allocation("g", minimum));
    for (uid, node) in [("g-0", "a"), ("g-1", "b")] {
        bench.apply(Pod { started_s: Some(10), ..on(node, member(uid, "g", 1000)) });
    }
    bench.run_until(S);
    assert_eq!(bench.status("g").phase, Phase::Scheduled);
    bench.apply(Pod { priority: 5, ..pod("p", 1000) });
    bench.run_until(2 * S);
    bench
}

pub(super) fn evicted(bench: &Bench) -> Vec<&str> {
    let mut uids: Vec<_> = bench.evictions.iter().map(|eviction| &*eviction.victim.uid).collect();
    uids.sort();
    uids
}

#[test]
fn a_gang_that_would_be_left_below_its_minimum_is_evicted_whole_and_comes_back_whole() {
    let mut bench = preempted(2);
    assert_eq!(evicted(&bench), ["g-0", "g-1"]);
    bench.scheduler.delete_pod(&"g-0".into());
    bench.scheduler.delete_pod(&"g-1".into());
    bench.run_until(4 * S);
    assert_eq!(bench.bound(), ["p"]);
    bench.finish_all();
    // Its controller creates new members one by one: they wait for each other again.
    bench.apply(member("g-2", "g", 1000));
    bench.run_until(6 * S);
    assert_eq!((bench.bound().len(), bench.status("g").phase), (0, Phase::Pending));
}

#[test]
fn a_gang_with_members_to_spare_loses_only_those() {
    let bench = preempted(1);
    assert_eq!(bench.evictions.len(), 1);
}

#[test]
fn a_member_that_is_too_important_stays_and_protects_no_other() {
    let mut bench = Bench::new(1, &["a", "b", "c"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.allocate(allocation("g", 3));
    for (uid, node, priority) in [("g-0", "a", 0), ("g-1", "b", 9), ("g-2", "c", 1)] {
        bench.apply(Pod { started_s: Some(10), priority, ..on(node, member(uid, "g", 1000)) });
    }
    bench.run_until(S);
    bench.apply(Pod { priority: 5, ..pod("p", 1000) });
    bench.run_until(2 * S);
    assert_eq!(evicted(&bench), ["g-0", "g-2"], "the others are of no use without each other");
}

#[test]
fn a_member_whose_eviction_is_refused_is_a_member_again_and_is_evicted_with_all_others_or_not_at_all() {
    let mut bench = preempted(2);
    let refused = bench.evictions.iter().find(|e| *e.victim.uid == *"g-0").expect("it is evicted").clone();
    bench.evictions.clear();
    bench.scheduler.delete_pod(&"g-1".into());
    bench.scheduler.eviction_finished(&refused, Err("no".into()), bench.now);
    bench.collect();
    assert!(bench.scheduler.gangs.is_placed_member("g-0", &name("g")));
    let mut handed_over = preempted(2);
    handed_over.evictions.clear();
    handed_over.scheduler.set_leading(false);
    handed_over.scheduler.set_leading(true);
    handed_over.run_until(20 * S);
    assert_eq!(evicted(&handed_over), ["g-0", "g-1"], "the first requests may not have been sent");
}

/// One hundred thousand objects of a hundred tenants.
#[test]
fn allocations_without_pods_cost_nothing_but_their_status_however_many_they_are() {
    let mut bench = Bench::new(1, &["a"]);
    let many = 100_000;
    for at in 0..many {
        let mut object = allocation(&format!("empty-{at}"), 2);
        object.name.namespace = format!("tenant-{}", at / 1_000).into();
        bench.scheduler.apply_object(ClusterObject::Allocation(Box::new(object)));
    }
    bench.scheduler.take_actions();
    assert!(bench.scheduler.gangs.due.is_empty(), "there is nothing to decide");

    // Others' gangs are placed meanwhile, and reported.
    bench.scheduler.apply_object(ClusterObject::Allocation(Box::new(allocation("web", 2))));
    for uid in ["web-0", "web-1"] {
        bench.scheduler.apply_pod(member(uid, "web", 100), bench.now);
    }
    let task = bench.scheduler.next_task(0, bench.now).expect("the gang is ready");
    bench.agents[0].catch_up(bench.scheduler.inventory());
    let (answer, seen) = bench.choose(0, &task);
    let now = bench.now;
    assert_eq!(bench.scheduler.settle(0, &mut bench.agents[0], &task, answer, seen, now), Settled::Done);
    let (mut statuses, mut told_web) = (0, false);
    for tick in 0.. {
        bench.scheduler.tick(Duration::from_millis(60 * tick));
        let actions = bench.scheduler.take_actions();
        let told = actions.iter().filter(|action| matches!(action, Action::TellAllocation(_))).count();
        assert!(told <= 6, "one tick reports {told} statuses");
        let is_web =
            |action: &Action| matches!(action, Action::TellAllocation(status) if *status.name.name == *"web");
        told_web |= actions.iter().any(is_web);
        statuses += told;
        if statuses > many {
            break;
        }
        // It is looked at after at most all of the others.
        assert!(told_web || tick < 400, "{statuses} statuses after {tick} ticks");
    }
    assert!(told_web);
    let started = std::time::Instant::now();
    (0..200)
        .for_each(|tick| bench.scheduler.tick(Duration::from_secs(100) + tick * Duration::from_millis(60)));
    // One look at all of them takes longer than that.
    assert!(started.elapsed() < Duration::from_millis(500), "200 ticks took {:?}", started.elapsed());
}

#[test]
fn an_allocation_that_comes_after_too_many_that_select_the_same_pods_says_so() {
    let mut bench = Bench::new(1, &["a"]);
    for at in 0..=crate::gang::CONSIDERED_MAX {
        let roles = allocation("same", 2).roles;
        bench.allocate(Allocation { roles, created_s: at as i64, ..allocation(&format!("same-{at}"), 2) });
    }
    (1..40).for_each(|at| bench.run_until(at * S));
    let last = crate::gang::CONSIDERED_MAX;
    let (status, before) =
        (bench.status(&format!("same-{last}")), bench.status(&format!("same-{}", last - 1)));
    assert_eq!(status.phase, Phase::LimitReached);
    assert!(status.message.contains("256 oldest allocations"), "{}", status.message);
    assert!(before.message.contains("0 of 2 members"), "{}", before.message);
    assert_eq!(bench.scheduler.ignored_allocations(), 1);
}

#[test]
fn an_allocation_beyond_the_limit_of_its_namespace_has_no_pods_until_an_older_one_goes() {
    let mut bench = Bench::new(1, &["a"]);
    let most = crate::gang::ALLOCATIONS_MAX;
    for at in 0..=most {
        bench.allocate(Allocation { created_s: at as i64, ..allocation(&format!("gang-{at}"), 1) });
    }
    let last = format!("gang-{most}");
    // After the statuses of all others, in slices.
    (0..600).for_each(|at| bench.run_until(at * S));
    let status = bench.status(&last);
    assert_eq!(status.phase, Phase::LimitReached);
    assert!(status.message.contains("4096 oldest"), "{}", status.message);
    assert_eq!(bench.scheduler.ignored_allocations(), 1);
    let first = ObjectName { namespace: "ns".into(), name: "gang-0".into() };
    bench.scheduler.delete_object(ObjectKind::Allocation, &first);
    assert_eq!(bench.scheduler.ignored_allocations(), 0);
    bench.join(&last, 1, 100);
    bench.work();
    bench.finish_all();
    (600..620).for_each(|at| bench.run_until(at * S));
    assert_eq!(bench.status(&last).phase, Phase::Scheduled);
}

#[test]
fn the_status_of_a_gang_that_waits_has_the_advice_for_it() {
    let mut bench = Bench::new(1, &["n"]);
    bench.allocate(allocation("a", 2));
    bench.join("a", 2, 600);
    bench.run_until(S);
    assert_eq!((bench.status("a").phase, &bench.status("a").help), (Phase::Unschedulable, &None));
    bench.scheduler.advise([(name("a"), "move x".into())].into());
    bench.run_until(2 * S);
    assert_eq!(bench.status("a").help.as_deref(), Some("move x"));
}
