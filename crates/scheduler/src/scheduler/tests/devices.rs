//! Pods with resource claims: promises of devices, their writes, and what becomes of them.

mod extended;
mod preemption;

use std::collections::BTreeSet;

use super::gangs::{allocation, member};
use super::*;
use crate::objects::ObjectKind;
use crate::placement::{ClaimOrder, LATE_EFFECT};
use crate::scheduler::{BindReview, Requester, Share};
use berth_devices::{
    ClaimAllocation, ClaimUser, Device, DeviceClass, DeviceConditions, DeviceId, PoolId, Reach,
    ResourceClaim, ResourceSlice,
};
use berth_model::{
    ClaimName, DeviceAlternative, DeviceClaimSource, DeviceRequest, DeviceRequests, FieldRequirement,
    GeneratedClaim, NodeSelectorTerm, PodDeviceClaim,
};

const DRIVER: &str = "gpu.example.com";

fn slice(node: &str, devices: usize) -> ClusterObject {
    let device = |at: usize| Device { name: format!("gpu-{at}").into(), ..Device::default() };
    ClusterObject::ResourceSlice(Arc::new(ResourceSlice {
        name: format!("slice of {node}").into(),
        pool: PoolId { driver: DRIVER.into(), name: node.into() },
        generation: 1,
        slices_of_pool: 1,
        reach: Reach::Node(node.into()),
        devices: (0..devices).map(device).collect(),
        counters: Default::default(),
    }))
}

fn claim_name(name: &str) -> ClaimName {
    ClaimName { namespace: "ns".into(), name: name.into() }
}

fn claim(name: &str) -> ResourceClaim {
    let alternative =
        DeviceAlternative { class: "gpu".into(), count: Some(1), ..DeviceAlternative::default() };
    let request = DeviceRequest { name: "r".into(), alternatives: [alternative].into() };
    ResourceClaim {
        name: claim_name(name),
        uid: format!("uid of {name}").into(),
        version: 1,
        spec: DeviceRequests { requests: [request].into(), constraints: [].into() },
        ..ResourceClaim::default()
    }
}

fn object(claim: ResourceClaim) -> ClusterObject {
    ClusterObject::ResourceClaim(claim.into())
}

fn uses(claim: &str, pod: Pod) -> Pod {
    let source = DeviceClaimSource::Named(claim.into());
    Pod { devices: [PodDeviceClaim { entry: "gpu".into(), source }].into(), ..pod }
}

/// Returns these pods, by uid, as the users of a claim.
fn reserved(users: &[&str]) -> Box<[ClaimUser]> {
    let user = |uid: &&str| ClaimUser {
        api_group: "".into(),
        resource: "pods".into(),
        name: (*uid).into(),
        uid: (*uid).into(),
    };
    users.iter().map(user).collect()
}

/// Returns the claim as the API server has it after this order was written.
fn as_written(order: &ClaimOrder, at: usize, version: u64) -> ResourceClaim {
    let update = &order.devices[at];
    let known = claim(&update.claim.name);
    let allocation = update.allocation.as_ref().map(|new| new.allocation.clone());
    ResourceClaim { version, allocation, reserved: update.reserved.clone(), ..known }
}

fn device_of(order: &ClaimOrder) -> &DeviceId {
    &order.devices[0].allocation.as_ref().expect("allocated now").allocation.devices[0].id
}

impl Bench {
    /// Returns a bench with a device class, and nodes with so many devices.
    fn with_devices(nodes: &[(&str, usize)], claims: &[&str]) -> Bench {
        Bench::of_agents(1, nodes, claims)
    }

    fn of_agents(agents: usize, nodes: &[(&str, usize)], claims: &[&str]) -> Bench {
        let names: Vec<_> = nodes.iter().map(|(name, _)| *name).collect();
        let mut bench = Bench::new(agents, &names);
        bench
            .object(ClusterObject::DeviceClass(DeviceClass { name: "gpu".into(), ..DeviceClass::default() }));
        nodes.iter().for_each(|(node, devices)| bench.object(slice(node, *devices)));
        claims.iter().for_each(|name| bench.object(object(claim(name))));
        bench
    }

    fn later(&mut self, after: Duration) {
        self.tick(self.now + after);
        self.work();
    }
}

#[test]
fn a_pod_is_bound_as_soon_as_its_claim_is_written_with_the_devices_of_the_chosen_node() {
    let mut bench = Bench::with_devices(&[("a", 0), ("b", 1)], &["c"]);
    bench.apply(uses("c", pod("p", 100)));
    bench.work();
    assert_eq!((bench.orders.len(), bench.binds.len(), bench.in_state("claiming")), (1, 0, 1));
    let order = bench.orders[0].clone();
    assert_eq!(&*order.node, "b");
    let update = &order.devices[0];
    assert_eq!((&update.claim, &*update.uid, update.version), (&claim_name("c"), "uid of c", 1));
    assert_eq!(&*device_of(&order).device, "gpu-0");
    assert_eq!(update.reserved, reserved(&["p"]));
    bench.written(&order, Ok(vec![2]));
    assert_eq!(bench.bound(), ["p"]);
    assert_eq!(&*bench.binds[0].node, "b");
}

#[test]
fn a_device_is_never_given_twice_whatever_the_watch_has_shown() {
    let mut bench = Bench::with_devices(&[("a", 2)], &["c0", "c1", "c2"]);
    for at in 0..3 {
        bench.apply(uses(&format!("c{at}"), pod(&format!("p{at}"), 10)));
    }
    bench.work();
    assert_eq!(bench.orders.len(), 2);
    assert_ne!(device_of(&bench.orders[0]), device_of(&bench.orders[1]));
    assert!(
        bench.last_told().starts_with("0/1 nodes are available: 1 cannot allocate all claims."),
        "{}",
        bench.last_told()
    );
    // The write is answered, then shown, and nothing is free in between.
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    bench.later(S);
    assert_eq!(bench.orders.len(), 2);
    bench.object(object(as_written(&order, 0, 2)));
    bench.later(S);
    assert_eq!(bench.orders.len(), 2);
    // Its claim is deallocated by the claim controller.
    bench.object(object(ResourceClaim { version: 3, ..claim("c0") }));
    bench.later(S);
    assert_eq!(bench.orders.len(), 3);
    assert_eq!(device_of(&bench.orders[2]), device_of(&order));
}

#[test]
fn a_write_that_failed_may_have_taken_effect_so_its_devices_stay_taken_for_a_while() {
    let mut bench = Bench::with_devices(&[("a", 1)], &["c0", "c1"]);
    bench.apply(uses("c0", pod("p0", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Err("connection lost"));
    assert_eq!(bench.last_told(), "running PreBind plugin \"DynamicResources\": connection lost");
    assert_eq!(bench.cpu_taken("a"), 0);
    bench.apply(uses("c1", pod("p1", 10)));
    bench.later(S);
    assert_eq!(bench.orders.len(), 1, "neither pod gets it");
    bench.later(LATE_EFFECT);
    bench.later(S);
    bench.later(10 * S);
    assert_eq!(bench.orders.len(), 2);
    // The other way round: it took effect.
    let mut bench = Bench::with_devices(&[("a", 1)], &["c0", "c1"]);
    bench.apply(uses("c0", pod("p0", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Err("connection lost"));
    bench.object(object(as_written(&order, 0, 2)));
    bench.later(2 * LATE_EFFECT);
    bench.apply(uses("c1", pod("p1", 10)));
    bench.later(2 * LATE_EFFECT);
    assert_eq!(bench.bound(), ["p0"], "with the devices that it has");
    assert!(bench.orders.iter().all(|order| &*order.uid == "p0"));
}

#[test]
fn a_claim_that_several_pods_share_keeps_them_where_its_devices_are() {
    let mut bench = Bench::with_devices(&[("a", 1), ("b", 1)], &["c"]);
    bench.apply(uses("c", pod("p0", 10)));
    bench.apply(uses("c", pod("p1", 10)));
    bench.work();
    assert_eq!(bench.orders.len(), 1);
    assert!(
        bench.last_told().contains("resource claim ns/c is in the process of being allocated"),
        "{}",
        bench.last_told()
    );
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    bench.object(object(as_written(&order, 0, 2)));
    bench.later(S);
    assert_eq!(bench.orders.len(), 2);
    let second = bench.orders[1].clone();
    assert_eq!((&second.node, &second.devices[0].allocation), (&order.node, &None));
    assert_eq!(second.devices[0].reserved.len(), 2);
    bench.written(&second, Ok(vec![3]));
    assert_eq!(bench.bound(), ["p0", "p1"]);
}

#[test]
fn a_pod_waits_for_a_claim_a_class_or_its_own_copy_of_a_template_and_is_told_so() {
    let mut bench = Bench::with_devices(&[("a", 1)], &[]);
    bench.apply(uses("c", pod("p", 10)));
    bench.work();
    assert!(
        bench.last_told().starts_with("0/1 nodes are available: resourceclaim \"c\" not found."),
        "{}",
        bench.last_told()
    );
    let mut other = claim("c");
    other.spec.requests[0].alternatives[0].class = "tpu".into();
    bench.object(object(other));
    bench.later(S);
    assert!(
        bench.last_told().contains("request r: device class tpu does not exist"),
        "{}",
        bench.last_told()
    );
    bench.object(object(ResourceClaim { deleting: true, version: 2, ..claim("c") }));
    bench.later(S);
    assert!(bench.last_told().contains("resourceclaim \"c\" is being deleted"), "{}", bench.last_told());
    bench.object(object(ResourceClaim { version: 3, ..claim("c") }));
    bench.later(S);
    assert_eq!(bench.orders.len(), 1);

    let mut bench = Bench::with_devices(&[("a", 1)], &["p-gpu"]);
    let with = |made: Option<&str>| {
        let made = made.map(|name| GeneratedClaim::Named(name.into()));
        let source = DeviceClaimSource::Template { template: "t".into(), made };
        Pod { devices: [PodDeviceClaim { entry: "gpu".into(), source }].into(), ..pod("p", 10) }
    };
    bench.apply(with(None));
    bench.work();
    assert!(
        bench.last_told().contains("pod \"ns/p\": ResourceClaim not created yet"),
        "{}",
        bench.last_told()
    );
    bench.apply(with(Some("p-gpu")));
    bench.later(S);
    assert!(bench.last_told().contains("was not created for Pod ns/p"), "{}", bench.last_told());
    bench.object(object(ResourceClaim { owner: Some("p".into()), version: 2, ..claim("p-gpu") }));
    bench.later(S);
    assert_eq!(bench.orders.len(), 1);
}

#[test]
fn pods_whose_claims_come_from_one_template_are_one_class() {
    let mut bench = Bench::with_devices(&[("a", 8)], &["c0", "c1", "c2"]);
    for at in 0..3 {
        bench.apply(uses(&format!("c{at}"), pod(&format!("p{at}"), 10)));
    }
    bench.work();
    assert_eq!((bench.orders.len(), bench.scheduler.classes()), (3, 1));
}

#[test]
fn a_pod_waits_until_its_devices_are_prepared_and_fails_when_a_driver_gives_up() {
    let prepared = |conditions: &[&str]| {
        let ClusterObject::ResourceSlice(known) = slice("a", 1) else { unreachable!("a slice") };
        let mut known = ResourceSlice::clone(&known);
        known.devices[0].binding_conditions = ["ready".into()].into();
        known.devices[0].binding_failure_conditions = ["failed".into()].into();
        let mut bench = Bench::with_devices(&[("a", 1)], &["c"]);
        bench.object(ClusterObject::ResourceSlice(known.into()));
        bench.apply(uses("c", pod("p", 10)));
        bench.work();
        let order = bench.orders[0].clone();
        bench.written(&order, Ok(vec![2]));
        bench.later(S);
        assert!(bench.binds.is_empty());
        let holding = conditions.iter().map(|name| Arc::from(*name)).collect();
        let conditions =
            [DeviceConditions { device: device_of(&order).clone(), share: None, holding }].into();
        bench.object(object(ResourceClaim { conditions, ..as_written(&order, 0, 3) }));
        bench.later(Duration::from_millis(50));
        bench
    };
    assert_eq!(prepared(&["ready"]).bound(), ["p"]);
    assert!(prepared(&[]).binds.is_empty());
    let failed = prepared(&["ready", "failed"]);
    assert!(failed.binds.is_empty());
    assert!(
        failed.last_told().contains("device binding failed: claim=c, driver=gpu.example.com"),
        "{}",
        failed.last_told()
    );
}

#[test]
fn nodes_are_packed_so_that_whole_nodes_stay_for_large_claims() {
    let mut bench = Bench::with_devices(&[("a", 4), ("b", 4), ("c", 4)], &["c0", "c1", "c2"]);
    for at in 0..3 {
        bench.apply(uses(&format!("c{at}"), pod(&format!("p{at}"), 10)));
        bench.work();
    }
    let nodes: HashSet<_> = bench.orders.iter().map(|order| order.node.clone()).collect();
    assert_eq!((bench.orders.len(), nodes.len()), (3, 1), "{:?}", bench.orders);
}

#[test]
fn the_members_of_a_gang_get_devices_together_or_none_does() {
    let gang = |count: u32| {
        let names: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
        let mut bench = Bench::with_devices(&[("a", 2), ("b", 1)], &[]);
        names.iter().for_each(|name| bench.object(object(claim(name))));
        bench.allocate(allocation("g", count));
        for at in 0..count {
            bench.apply(uses(&format!("c{at}"), member(&format!("p{at}"), "g", 10)));
        }
        bench.work();
        bench
    };
    let placed = gang(3);
    let devices: HashSet<_> = placed.orders.iter().map(device_of).collect();
    assert_eq!((placed.orders.len(), devices.len()), (3, 3));
    let mut refused = gang(4);
    assert!(refused.orders.is_empty());
    refused.object(slice("b", 2));
    refused.later(S);
    refused.later(10 * S);
    assert_eq!(refused.orders.len(), 4);
}

/// Returns one of two replicas, with pods that need devices, alone (`p0`) and in a gang (`p1`, with `p2`), and one without.
fn replica(me: &str) -> Bench {
    let mut bench = Bench::with_devices(&[("a", 2)], &["c0", "c1"]);
    bench.scheduler.set_share(Some(Share::new(me, ["one", "two"])));
    bench.apply(uses("c0", pod("p0", 10)));
    bench.allocate(allocation("g", 2));
    bench.apply(uses("c1", member("p1", "g", 10)));
    bench.apply(member("p2", "g", 10));
    bench.apply(pod("p3", 10));
    bench.work();
    bench
}

fn places_claims_of(bench: &Bench) -> BTreeSet<&str> {
    bench.orders.iter().map(|order| &*order.uid).collect()
}

#[test]
fn of_replicas_that_all_schedule_only_the_one_that_gives_devices_places_pods_and_gangs_that_need_them() {
    for me in ["one", "two"] {
        let mut bench = replica(me);
        assert!(bench.orders.is_empty(), "{:?}", bench.orders);
        assert_eq!(bench.bound().contains(&"p3"), bench.in_state("elsewhere") == 3, "{:?}", bench.bound());
        bench.scheduler.give_devices(true);
        bench.later(S);
        assert_eq!(places_claims_of(&bench), BTreeSet::from(["p0", "p1"]));
        assert!(bench.bound().contains(&"p2"));
    }
}

#[test]
fn a_replica_that_gives_devices_no_more_leaves_pods_that_wait_for_their_claims_to_the_next_one() {
    let mut bench = replica("one");
    bench.scheduler.give_devices(true);
    bench.later(S);
    let orders = bench.orders.clone();
    bench.scheduler.give_devices(false);
    bench.later(S);
    for order in &orders {
        bench.written(order, Ok(vec![2]));
    }
    bench.later(S);
    assert!(bench.bound().iter().all(|uid| *uid != "p0" && *uid != "p1"), "{:?}", bench.bound());
    assert_eq!(bench.in_state("claiming"), 0);
}

#[test]
fn a_gang_changes_its_replica_when_its_only_member_that_needs_devices_comes_or_goes() {
    let mut benches = ["one", "two"].map(|me| {
        let mut bench = Bench::with_devices(&[("a", 2)], &["c"]);
        bench.scheduler.set_share(Some(Share::new(me, ["one", "two"])));
        bench.allocate(allocation("g", 3));
        bench.apply(member("p0", "g", 10));
        bench.apply(member("p1", "g", 10));
        bench.work();
        bench
    });
    let grouped = |benches: &[Bench; 2]| benches.each_ref().map(|bench| bench.in_state("grouped"));
    let by_name = grouped(&benches);
    assert!(by_name == [2, 0] || by_name == [0, 2], "{by_name:?}");
    let other = usize::from(by_name[0] == 2);
    benches[other].scheduler.give_devices(true);
    for bench in &mut benches {
        bench.apply(Pod { gates: ["wait".into()].into(), ..uses("c", member("p2", "g", 10)) });
        bench.later(S);
    }
    assert_eq!(grouped(&benches)[other], 2);
    for bench in &mut benches {
        bench.scheduler.delete_pod(&"p2".into());
        bench.later(2 * S);
    }
    assert_eq!(grouped(&benches), by_name);
}

#[test]
fn devices_of_a_pod_that_is_deleted_before_its_claim_was_written_are_free_once_that_is_certain() {
    let mut bench = Bench::with_devices(&[("a", 1)], &["c0", "c1"]);
    bench.apply(uses("c0", pod("p0", 10)));
    bench.work();
    bench.scheduler.delete_pod(&"p0".into());
    bench.collect();
    bench.apply(uses("c1", pod("p1", 10)));
    bench.later(S);
    assert_eq!(bench.orders.len(), 1);
    let gone = ObjectName { namespace: "ns".into(), name: "c0".into() };
    bench.scheduler.delete_object(ObjectKind::ResourceClaim, &gone);
    bench.collect();
    bench.later(S);
    assert_eq!(bench.orders.len(), 2);
}

#[test]
fn of_two_pods_to_which_two_schedulers_gave_one_device_the_first_with_a_node_keeps_it() {
    let mut bench = Bench::with_devices(&[("a", 2)], &["ours"]);
    bench.scheduler.cluster.config.knows_others = true;
    bench.apply(uses("ours", pod("p", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    bench.object(object(as_written(&order, 0, 2)));
    assert_eq!(bench.bound(), ["p"]);
    // Another scheduler has not seen that yet, and gave the same device to its own pods' claims.
    let taken = as_written(&order, 0, 2).allocation;
    for (name, user) in [("theirs", "q"), ("more", "r")] {
        bench.object(object(ResourceClaim {
            allocation: taken.clone(),
            reserved: reserved(&[user]),
            ..claim(name)
        }));
        let scheduler_name = "default-scheduler".into();
        bench.apply(Pod { scheduler_name, ..uses(name, pod(user, 10)) });
    }
    let review = |bench: &mut Bench, uid: &str| {
        let binding = Binding {
            uid: uid.into(),
            namespace: "ns".into(),
            name: uid.into(),
            node: "a".into(),
            decision: None,
        };
        bench.scheduler.review(&binding, None, Some(60 * S), Requester::Other)
    };
    let BindReview::Refused(why) = review(&mut bench, "q") else { panic!("the device is used") };
    let text = "device gpu.example.com/a/gpu-0 is used by resource claim ns/ours";
    assert!(why.to_string().contains(text), "{why}");
    // Without the first pod, one of the two others gets it.
    bench.finish(&bench.binds[0].clone(), BindOutcome::Bound);
    bench.scheduler.delete_pod(&"p".into());
    bench.object(object(ResourceClaim { version: 9, ..claim("ours") }));
    assert_eq!(review(&mut bench, "q"), BindReview::Allowed);
    assert!(matches!(review(&mut bench, "r"), BindReview::Refused(_)));
}

/// Returns a claim with devices that only node a reaches, which is reserved for these pods.
fn allocated_on_a(users: &[&str]) -> ResourceClaim {
    let name = FieldRequirement::NameIs("a".into());
    let on_a = NodeSelectorTerm { fields: [name].into(), ..NodeSelectorTerm::default() };
    let allocation = ClaimAllocation { devices: [].into(), nodes: Some([on_a].into()) };
    ResourceClaim { allocation: Some(allocation.into()), reserved: reserved(users), ..claim("c") }
}

#[test]
fn no_pod_is_bound_with_a_claim_that_is_being_deallocated() {
    let mut bench = Bench::with_devices(&[("a", 1), ("b", 1)], &[]);
    bench.object(object(allocated_on_a(&["p"])));
    bench.scheduler.apply_node(node("a", 5));
    bench.apply(uses("c", pod("p", 10)));
    bench.work();
    bench.later(S);
    assert_eq!(bench.releases.len(), 1);
    // Its node has room again, and the reservation would need no write.
    bench.scheduler.apply_node(node("a", 1000));
    bench.later(S);
    bench.later(20 * S);
    assert!(bench.binds.is_empty() && bench.orders.is_empty());
    assert!(bench.releases.len() > 1, "asked for until it is seen");
    bench.object(object(ResourceClaim { version: 2, ..claim("c") }));
    bench.later(S);
    bench.later(20 * S);
    assert_eq!(bench.orders.len(), 1);
}

#[test]
fn a_claim_whose_devices_keep_its_pod_from_every_node_with_room_is_deallocated_unless_others_use_it() {
    for (users, expected) in [(&["p"][..], 1), (&[], 1), (&["p", "q"], 0)] {
        let mut bench = Bench::with_devices(&[("a", 1), ("b", 1)], &[]);
        bench.object(object(allocated_on_a(users)));
        bench.apply(uses("c", pod("p", 10)));
        // Its node has no room any more, and there is one with room.
        bench.scheduler.apply_node(node("a", 5));
        bench.work();
        bench.later(S);
        assert_eq!(bench.releases.len(), expected, "{users:?}");
        if let Some(release) = bench.releases.first() {
            assert_eq!((&release.claim, release.version, &release.delete), (&claim_name("c"), 1, &None));
            bench.object(object(ResourceClaim { version: 2, ..claim("c") }));
            bench.later(S);
            bench.later(10 * S);
            assert_eq!(bench.orders.first().map(|order| &*order.node), Some("b"));
        }
    }
}

#[test]
fn a_claim_stays_allocated_where_other_devices_would_not_help_its_pod() {
    let mut bench = Bench::with_devices(&[("a", 1), ("b", 1)], &[]);
    let allocation = ClaimAllocation { devices: [].into(), nodes: None };
    bench.object(object(ResourceClaim { allocation: Some(allocation.into()), ..claim("c") }));
    bench.apply(uses("c", pod("p", 5000)));
    bench.work();
    bench.later(60 * S);
    assert!(bench.releases.is_empty() && bench.last_told().contains("2 Insufficient cpu"));
}

#[test]
fn a_device_that_a_former_leader_gave_away_late_stays_with_the_pod_that_has_a_node() {
    let mut bench = Bench::with_devices(&[("a", 2)], &["c"]);
    bench.apply(uses("c", pod("p", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    assert_eq!(bench.scheduler.binds_under_way().requested, 1, "a hand-over waits for the write");
    bench.written(&order, Ok(vec![2]));
    bench.object(object(as_written(&order, 0, 2)));
    bench.finish(&bench.binds[0].clone(), BindOutcome::Bound);
    assert_eq!(bench.scheduler.binds_under_way().requested, 0);
    // The same device, for the claim of a pod that has no node yet.
    let late = ResourceClaim { name: claim_name("late"), ..as_written(&order, 0, 3) };
    let user = ClaimUser { api_group: "".into(), resource: "pods".into(), name: "q".into(), uid: "q".into() };
    bench.object(object(ResourceClaim { reserved: [user].into(), uid: "late".into(), ..late }));
    bench.apply(uses("late", pod("q", 10)));
    bench.work();
    bench.later(S);
    assert_eq!(bench.bound(), ["p"]);
    let [release] = &*bench.releases else { panic!("{:?}", bench.releases) };
    assert_eq!((&release.claim, &release.delete), (&claim_name("late"), &None));
    bench.object(object(ResourceClaim { uid: "late".into(), version: 4, ..claim("late") }));
    bench.later(S);
    bench.later(30 * S);
    assert_eq!(&*device_of(&bench.orders[1]).device, "gpu-1");
}

#[test]
fn a_nominated_pod_gets_its_devices_before_it_is_bound() {
    let mut bench = Bench::with_devices(&[("a", 1)], &["c"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.apply(on("a", pod("old", 800)));
    bench.apply(Pod { priority: 5, ..uses("c", pod("p", 500)) });
    bench.work();
    assert_eq!(bench.evictions.len(), 1);
    bench.scheduler.delete_pod(&"old".into());
    bench.collect();
    bench.later(S);
    assert!(bench.binds.is_empty());
    let [order] = &*bench.orders else { panic!("{:?}", bench.orders) };
    assert_eq!((&*order.uid, &*device_of(order).device), ("p", "gpu-0"));
}

#[test]
fn a_slice_that_a_list_lacks_gives_no_devices() {
    let mut bench = Bench::with_devices(&[("a", 1)], &["c"]);
    bench.scheduler.retain_objects(ObjectKind::ResourceSlice, &HashSet::new());
    bench.apply(uses("c", pod("p", 100)));
    bench.work();
    assert_eq!((bench.orders.len(), bench.in_state("parked")), (0, 1));
}
