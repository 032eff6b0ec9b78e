//! Policies apply to waiting pods without a restart.

use super::gangs::{allocation, in_zone, within};
use super::*;
use crate::gang::GangTopologyMode;
use crate::policy::{Governs, ObservedPolicy, PolicySettings, PolicyStatus, StatusReason};
use crate::rules::CellLimit;
use berth_model::Packing;

pub(super) fn policy(wishes: PolicySettings) -> ClusterObject {
    let governs = Governs { schedulers: [Arc::from("berth")].into(), ..Governs::default() };
    ClusterObject::Policy(Box::new(ObservedPolicy {
        name: "p".into(),
        uid: "u".into(),
        generation: 1,
        created: 1,
        governs,
        settings: Ok(wishes),
    }))
}

pub(super) fn packed() -> PolicySettings {
    PolicySettings { packing: Some(Packing::MostAllocated), ..PolicySettings::default() }
}

fn limited(cpu: u8) -> PolicySettings {
    let limit = Some(CellLimit { cpu: Some(cpu), ..CellLimit::default() });
    PolicySettings { limit, ..PolicySettings::default() }
}

fn told(scheduler: &mut Scheduler) -> Vec<PolicyStatus> {
    let policy = |action| match action {
        Action::TellPolicy(status) => Some(*status),
        _ => None,
    };
    scheduler.take_actions().into_iter().filter_map(policy).collect()
}

#[test]
fn the_next_pod_is_packed_as_soon_as_a_policy_says_so_and_spread_again_when_it_is_gone() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.apply(on("a", pod("there", 500)));
    let place = |bench: &mut Bench, name: &str| {
        bench.apply(pod(name, 10));
        bench.work();
        let binding = bench.binds.last().expect("it fits").clone();
        assert_eq!(&*binding.uid, name);
        binding.node.to_string()
    };
    assert_eq!(place(&mut bench, "1"), "b");
    bench.scheduler.apply_object(policy(packed()));
    assert_eq!(place(&mut bench, "2"), "a");
    let name = ObjectName { namespace: "".into(), name: "p".into() };
    bench.scheduler.delete_object(ObjectKind::AllocationPolicy, &name);
    assert_eq!(place(&mut bench, "3"), "b");
}

#[test]
fn a_pod_beyond_the_limit_of_its_policy_waits_with_that_reason_until_the_limit_is_raised() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.scheduler.apply_object(policy(limited(50)));
    bench.apply(on("a", pod("there", 200)));
    bench.apply(on("b", pod("too", 300)));
    bench.apply(pod("new", 301));
    bench.work();
    assert!(bench.binds.is_empty());
    let (_, _, message, _) = bench.told.last().expect("it has a condition");
    let expected = "0/2 nodes are available: 2 node(s) exceeded the utilisation limit of their cell. ";
    assert!(message.starts_with(expected), "{message}");
    bench.scheduler.apply_object(policy(limited(51)));
    bench.work();
    assert_eq!(bench.binds[0].node, "a".into());
    // A node whose pods end is open again.
    bench.apply(pod("next", 400));
    bench.work();
    assert_eq!(bench.binds.len(), 1);
    bench.scheduler.delete_pod(&"too".into());
    bench.work();
    assert_eq!(bench.binds[1].node, "b".into());
}

#[test]
fn a_choice_made_before_the_policy_changed_is_not_bound() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.apply(on("a", pod("there", 500)));
    bench.apply(pod("new", 10));
    let task = bench.take(0).expect("a pod waits");
    let answer = bench.choose(0, &task);
    bench.scheduler.apply_object(policy(packed()));
    bench.scheduler.tick(S);
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert!(bench.binds.is_empty());
    bench.work();
    assert_eq!(bench.binds[0].node, "a".into());
}

#[test]
fn a_gang_that_is_packed_goes_to_a_zone_that_it_fills_exactly() {
    let mut bench = Bench::new(1, &[]);
    for name in ["a1", "a2", "a3", "b1", "b2"] {
        bench.scheduler.apply_node(in_zone(name, &name[..1], 1000));
    }
    bench.scheduler.apply_object(policy(packed()));
    bench.allocate(within(GangTopologyMode::Required, allocation("g", 2)));
    bench.join("g", 2, 1000);
    bench.work();
    assert_eq!(bench.hosts(), ["b1", "b2"]);
}

#[test]
fn the_leader_writes_each_policy_status_once() {
    let mut bench = Bench::new(1, &["a"]);
    bench.scheduler.apply_object(policy(packed()));
    bench.scheduler.tick(S);
    let first = told(&mut bench.scheduler);
    assert_eq!((first.len(), first[0].reason), (1, StatusReason::Applied));
    bench.scheduler.apply_object(policy(packed()));
    bench.scheduler.tick(2 * S);
    assert_eq!(told(&mut bench.scheduler), []);
    bench.scheduler.set_leading(false);
    bench.scheduler.apply_object(policy(limited(50)));
    bench.scheduler.tick(3 * S);
    assert_eq!(told(&mut bench.scheduler), []);
    bench.scheduler.set_leading(true);
    bench.scheduler.tick(4 * S);
    let again = told(&mut bench.scheduler);
    assert_eq!(again[0].effective.as_ref().and_then(|placement| placement.limit.as_ref()?.cpu), Some(50));
}
