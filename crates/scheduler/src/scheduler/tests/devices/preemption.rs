//! Preemption by pods that need devices: which pods are evicted for them, and how they get what these leave.

use super::super::preemption::terminating;
use super::*;
use crate::inventory::NodeId;
use berth_devices::AllocatedDevice;

/// Returns a claim that has these devices of a node, and these users.
fn held(name: &str, node: &str, devices: &[usize], users: &[&str]) -> ResourceClaim {
    let device = |at: &usize| AllocatedDevice {
        request: "r".into(),
        id: DeviceId {
            pool: PoolId { driver: DRIVER.into(), name: node.into() },
            device: format!("gpu-{at}").into(),
        },
        ..AllocatedDevice::default()
    };
    let allocation = ClaimAllocation { devices: devices.iter().map(device).collect(), nodes: None };
    ResourceClaim { allocation: Some(allocation.into()), reserved: reserved(users), ..claim(name) }
}

fn freed(name: &str) -> ClusterObject {
    object(ResourceClaim { version: 2, ..claim(name) })
}

impl Bench {
    fn with_preemption(nodes: &[(&str, usize)], claims: &[&str]) -> Bench {
        let mut bench = Bench::with_devices(nodes, claims);
        bench.scheduler.cluster.config.preemption = true;
        bench
    }

    /// Adds a placed pod of this priority that has one device of its node, by a claim of its name.
    fn runs_with(&mut self, node: &str, device: usize, uid: &str, priority: i32) {
        self.object(object(held(uid, node, &[device], &[uid])));
        self.apply(Pod { started_s: Some(10), priority, ..on(node, uses(uid, pod(uid, 10))) });
    }

    /// Adds a pod of this priority that waits for one device.
    fn wants(&mut self, uid: &str, priority: i32) {
        self.object(object(claim(uid)));
        self.apply(Pod { priority, ..uses(uid, pod(uid, 10)) });
        self.work();
    }

    /// Adds a gang of so many pods of priority 5, `p0`…, that each wait for one device.
    fn gang_wants(&mut self, count: u32) {
        self.allocate(allocation("g", count));
        for at in 0..count {
            let uid = format!("p{at}");
            self.object(object(claim(&uid)));
            self.apply(Pod { priority: 5, ..uses(&uid, member(&uid, "g", 10)) });
        }
        self.work();
    }

    fn goes(&mut self, uid: &str) {
        self.scheduler.delete_pod(&Arc::from(uid));
        self.collect();
        self.work();
    }

    fn victims(&self) -> Vec<&str> {
        let mut victims: Vec<_> = self.evictions.iter().map(|eviction| &*eviction.victim.uid).collect();
        victims.sort_unstable();
        victims
    }

    fn ordered(&self) -> Vec<&str> {
        self.orders.iter().map(|order| &*order.uid).collect()
    }
}

#[test]
fn a_pod_evicts_the_least_important_one_that_has_a_device_and_gets_it_when_its_claim_is_deallocated() {
    let mut bench = Bench::with_preemption(&[("n", 2)], &[]);
    bench.apply(Pod { priority: -5, ..on("n", pod("without", 10)) });
    bench.runs_with("n", 0, "more", 2);
    bench.runs_with("n", 1, "least", 1);
    bench.wants("p", 5);
    assert_eq!(bench.victims(), ["least"]);
    assert_eq!(bench.nominations, [("p".to_owned(), Some("n".to_owned()))]);
    bench.goes("least");
    // Its devices are still taken. Others do not get them first, whenever they come.
    bench.wants("q", 3);
    (1..10).for_each(|_| bench.later(S));
    assert_eq!((bench.victims(), bench.ordered()), (vec!["least", "more"], vec![]));
    bench.object(freed("least"));
    bench.work();
    assert_eq!(bench.ordered(), ["p"]);
    assert_eq!(&*device_of(&bench.orders[0]).device, "gpu-1");
    bench.goes("more");
    bench.object(freed("more"));
    bench.work();
    assert_eq!(bench.ordered(), ["p", "q"]);
    assert_eq!(bench.victims().len(), 2);
}

#[test]
fn devices_that_a_victim_leaves_go_to_the_pod_that_evicted_it_and_to_no_less_important_one() {
    let mut bench = Bench::with_preemption(&[("n", 1)], &[]);
    bench.runs_with("n", 0, "victim", 0);
    bench.wants("p", 5);
    // It may preempt nobody.
    bench.wants("q", 0);
    bench.goes("victim");
    // The agent tries the class of q first.
    bench.object(freed("victim"));
    let shown = bench.scheduler.inventory().row(NodeId(0)).devices.clone().expect("devices");
    assert!(shown.own[0].used[0].is_used(), "what is kept for p is no more free than before");
    bench.later(S);
    assert_eq!((bench.ordered(), bench.victims()), (vec!["p"], vec!["victim"]));
}

#[test]
fn a_claim_that_a_more_important_pod_uses_too_is_not_freed_by_an_eviction() {
    let mut bench = Bench::with_preemption(&[("n", 1)], &[]);
    bench.object(object(held("shared", "n", &[0], &["low", "high"])));
    for (uid, priority) in [("low", 0), ("high", 9)] {
        bench.apply(Pod { priority, ..on("n", uses("shared", pod(uid, 10))) });
    }
    bench.wants("p", 5);
    bench.later(S);
    assert_eq!((bench.victims(), bench.in_state("parked")), (vec![], 1));
    let message = &bench.told.last().expect("a condition").2;
    let text = "preemption: 0/1 nodes are available: 1 cannot allocate all claims.";
    assert!(message.ends_with(text), "{message}");
}

#[test]
fn all_pods_that_share_a_claim_are_evicted_for_its_device() {
    let mut bench = Bench::with_preemption(&[("n", 1)], &[]);
    bench.object(object(held("shared", "n", &[0], &["a", "b"])));
    for uid in ["a", "b"] {
        bench.apply(on("n", uses("shared", pod(uid, 10))));
    }
    bench.wants("p", 5);
    assert_eq!(bench.victims(), ["a", "b"]);
}

#[test]
fn pods_that_preempt_on_one_node_take_different_victims_even_while_their_devices_are_not_free_yet() {
    let mut bench = Bench::with_preemption(&[("n", 3)], &[]);
    (0..3).for_each(|at| bench.runs_with("n", at, &format!("v{at}"), at as i32));
    bench.wants("p", 5);
    assert_eq!(bench.victims(), ["v0"]);
    bench.goes("v0");
    bench.wants("q", 5);
    assert_eq!(bench.victims(), ["v0", "v1"]);
    bench.goes("v1");
    (1..10).for_each(|_| bench.later(S));
    assert_eq!(bench.victims(), ["v0", "v1"], "nobody is evicted while devices are on their way");
    ["v0", "v1"].iter().for_each(|claim| bench.object(freed(claim)));
    bench.later(S);
    let mut ordered = bench.ordered();
    ordered.sort_unstable();
    assert_eq!((ordered, bench.in_state("parked")), (vec!["p", "q"], 0));
}

#[test]
fn a_pod_looks_elsewhere_when_the_devices_of_its_victim_are_never_freed() {
    let mut bench = Bench::with_preemption(&[("a", 1), ("b", 1)], &[]);
    bench.runs_with("a", 0, "first", 0);
    bench.runs_with("b", 0, "second", 1);
    bench.wants("p", 5);
    bench.goes("first");
    (0..50).for_each(|_| bench.later(S));
    assert_eq!(bench.victims(), ["first"]);
    (0..20).for_each(|_| bench.later(S));
    assert_eq!(bench.victims(), ["first", "second"]);
    bench.goes("second");
    bench.object(freed("second"));
    bench.later(S);
    assert_eq!((bench.ordered(), &*bench.orders[0].node), (vec!["p"], "b"));
}

#[test]
fn nodes_whose_devices_would_not_do_even_without_less_important_pods_are_not_tried() {
    let mut bench = Bench::with_preemption(&[("none", 0), ("small", 1), ("important", 2)], &[]);
    bench.apply(on("none", pod("x", 10)));
    bench.runs_with("small", 0, "y", 0);
    bench.runs_with("important", 0, "z", 9);
    bench.runs_with("important", 1, "w", 9);
    let mut two = claim("p");
    two.spec.requests[0].alternatives[0].count = Some(2);
    bench.object(object(two));
    bench.apply(Pod { priority: 5, ..uses("p", pod("p", 10)) });
    bench.work();
    assert_eq!(bench.victims(), Vec::<&str>::new());
    // As kube-scheduler, which never preempts for devices.
    let text = "0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
    let message = &bench.told.last().expect("a condition").2;
    assert!(message.ends_with(text), "{message}");
}

#[test]
fn the_members_of_a_gang_preempt_for_devices_together_and_wait_until_all_are_free() {
    let mut bench = Bench::with_preemption(&[("a", 2), ("b", 1), ("c", 1)], &[]);
    for (node, device, uid, priority) in
        [("a", 0, "v0", 0), ("a", 1, "v1", 0), ("b", 0, "v2", 0), ("c", 0, "other", 1)]
    {
        bench.runs_with(node, device, uid, priority);
    }
    bench.gang_wants(3);
    bench.later(S);
    assert_eq!(bench.victims(), ["v0", "v1", "v2"]);
    bench.wants("q", 0);
    for uid in ["v0", "v1", "v2"] {
        bench.goes(uid);
        (0..5).for_each(|_| bench.later(S));
    }
    for claim in ["v0", "v1"] {
        bench.object(freed(claim));
        (0..5).for_each(|_| bench.later(S));
    }
    assert_eq!((bench.ordered(), bench.scheduler.nominated_pods().count()), (vec![], 3));
    bench.object(freed("v2"));
    bench.later(S);
    let devices: HashSet<_> = bench.orders.iter().map(device_of).collect();
    assert_eq!((bench.orders.len(), devices.len(), bench.victims().len()), (3, 3, 3));
    assert!(!bench.ordered().contains(&"q"));
}

#[test]
fn a_gang_that_would_lack_one_device_evicts_nobody() {
    let mut bench = Bench::with_preemption(&[("a", 2)], &[]);
    bench.runs_with("a", 0, "v0", 0);
    bench.runs_with("a", 1, "v1", 9);
    bench.gang_wants(2);
    bench.later(S);
    assert_eq!(bench.victims(), Vec::<&str>::new());
}

#[test]
fn a_nominated_pod_waits_for_the_devices_of_pods_that_leave_on_their_own_and_evicts_no_others() {
    for adopted in [true, false] {
        let mut bench = Bench::with_preemption(&[("n", 1), ("m", 1)], &[]);
        bench.runs_with("m", 0, "cheaper", -5);
        bench.object(object(held("leaves", "n", &[0], &["leaves"])));
        let leaves = Pod { peer: terminating(), priority: -9, ..on("n", uses("leaves", pod("leaves", 10))) };
        bench.apply(Pod { deleting: true, ..leaves });
        bench.object(object(claim("p")));
        let nominated_node = adopted.then(|| "n".into());
        bench.apply(Pod { priority: 5, nominated_node, ..uses("p", pod("p", 10)) });
        bench.work();
        // Something else happens on the node.
        bench.apply(on("n", pod("x", 10)));
        (0..5).for_each(|_| bench.later(S));
        bench.goes("leaves");
        (0..5).for_each(|_| bench.later(S));
        assert_eq!((bench.victims(), bench.ordered()), (vec![], vec![]), "adopted: {adopted}");
        bench.object(freed("leaves"));
        bench.later(S);
        assert_eq!(bench.ordered(), ["p"]);
    }
}

#[test]
fn devices_that_come_free_one_by_one_are_kept_until_all_are_there() {
    let mut bench = Bench::with_preemption(&[("n", 2)], &[]);
    bench.runs_with("n", 0, "v0", 0);
    bench.runs_with("n", 1, "v1", 0);
    let mut two = claim("p");
    two.spec.requests[0].alternatives[0].count = Some(2);
    bench.object(object(two));
    bench.apply(Pod { priority: 5, ..uses("p", pod("p", 10)) });
    bench.work();
    assert_eq!(bench.victims(), ["v0", "v1"]);
    for uid in ["v0", "v1"] {
        bench.goes(uid);
        bench.object(freed(uid));
        // The pod that replaces it.
        bench.wants(&format!("{uid}-again"), 0);
        (0..3).for_each(|_| bench.later(S));
    }
    assert_eq!((bench.ordered(), bench.victims().len()), (vec!["p"], 2));
}

#[test]
fn a_pod_that_replaces_a_victim_does_not_keep_its_claim_allocated() {
    let mut bench = Bench::with_preemption(&[("n", 1)], &[]);
    bench.object(object(held("named", "n", &[0], &["v"])));
    bench.apply(Pod { started_s: Some(10), ..on("n", uses("named", pod("v", 10))) });
    bench.wants("p", 5);
    assert_eq!(bench.victims(), ["v"]);
    // Its controller makes another one, which the devices of the claim would serve.
    bench.apply(uses("named", pod("again", 10)));
    (0..3).for_each(|_| bench.later(S));
    assert_eq!((bench.ordered(), bench.bound()), (vec![], vec![]));
    let message = bench.told.iter().rev().find(|told| told.0 == "again").map(|told| &told.2);
    assert!(
        message.is_some_and(|text| text.contains("ns/named is in the process of being deallocated")),
        "{message:?}"
    );
    bench.goes("v");
    bench.object(freed("named"));
    (0..3).for_each(|_| bench.later(S));
    assert_eq!((bench.ordered(), bench.victims()), (vec!["p"], vec!["v"]));
}

#[test]
fn pods_that_share_a_claim_evict_once_for_its_device() {
    let mut bench = Bench::with_preemption(&[("n", 3)], &["shared"]);
    (0..3).for_each(|at| bench.runs_with("n", at, &format!("v{at}"), 0));
    for uid in ["p", "q"] {
        bench.apply(Pod { priority: 5, ..uses("shared", pod(uid, 10)) });
    }
    bench.work();
    (0..5).for_each(|_| bench.later(S));
    assert_eq!(bench.victims().len(), 1);
    let victim = bench.victims()[0].to_owned();
    bench.goes(&victim);
    bench.object(freed(&victim));
    bench.later(S);
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    bench.object(object(as_written(&order, 0, 2)));
    bench.later(S);
    let second = bench.orders.last().expect("an order").clone();
    bench.written(&second, Ok(vec![3]));
    bench.later(S);
    assert_eq!((bench.bound().len(), bench.victims().len()), (2, 1));
}

#[test]
fn while_a_pod_is_placed_that_preempted_a_less_important_one_does_not_get_its_devices() {
    let mut bench = Bench::of_agents(2, &[("n", 1)], &["low"]);
    bench.scheduler.cluster.config.preemption = true;
    bench.runs_with("n", 0, "v", 0);
    bench.wants("p", 5);
    bench.goes("v");
    bench.object(freed("v"));
    let (first, task) = (0..2).find_map(|agent| Some((agent, bench.take(agent)?))).expect("p is placed");
    let answer = bench.choose(first, &task);
    bench.apply(Pod { priority: 1, ..uses("low", pod("low", 11)) });
    let second = 1 - first;
    let other = bench.take(second).expect("the other agent has a task, too");
    assert!(matches!(&other, Task::Place { request, .. } if *request.uid == *"low"), "{other:?}");
    let chosen = bench.choose(second, &other);
    bench.settle(second, &other, chosen);
    assert_eq!(bench.ordered(), Vec::<&str>::new());
    bench.settle(first, &task, answer);
    (0..5).for_each(|_| bench.later(S));
    assert_eq!((bench.ordered(), bench.victims()), (vec!["p"], vec!["v"]));
}

#[test]
fn a_pod_whose_devices_are_free_is_placed_also_when_another_of_its_class_was_being_placed_in_vain() {
    let mut bench = Bench::with_preemption(&[("a", 1), ("b", 1)], &[]);
    bench.runs_with("a", 0, "v", 0);
    bench.runs_with("b", 0, "w", 0);
    bench.wants("p", 5);
    bench.wants("q", 5);
    assert_eq!(bench.victims(), ["v", "w"]);
    ["v", "w"].iter().for_each(|uid| bench.goes(uid));
    let (mine, other): (Vec<_>, Vec<_>) = bench
        .scheduler
        .nominated_pods()
        .map(|(uid, node)| (uid.to_string(), node.to_string()))
        .partition(|(uid, _)| uid == "p");
    let lost = if mine[0].1 == "a" { slice("a", 0) } else { slice("b", 0) };
    ["v", "w"].iter().for_each(|claim| bench.object(freed(claim)));
    // The agent takes the first of both. Then its devices are gone.
    let task = bench.take(0).expect("one is placed");
    bench.object(lost);
    bench.agents[0].catch_up(bench.scheduler.inventory());
    let answer = bench.choose(0, &task);
    bench.settle(0, &task, answer);
    bench.work();
    assert_eq!((bench.ordered(), &*bench.orders[0].node), (vec!["q"], &*other[0].1));
}

#[test]
fn devices_stay_kept_when_the_node_changes() {
    let mut bench = Bench::with_preemption(&[("n", 1)], &[]);
    bench.runs_with("n", 0, "v", 0);
    bench.wants("p", 5);
    bench.goes("v");
    bench.scheduler.cluster.config.max_waiting_binds = 0;
    bench.object(freed("v"));
    let free = |bench: &Bench| {
        let devices = bench.scheduler.inventory().row(NodeId(0)).devices.clone().expect("devices");
        !devices.own[0].used[0].is_used()
    };
    assert!(!free(&bench));
    let labels = [("zone", "a")].into_iter().collect();
    bench.scheduler.apply_node(Node { labels, ..node("n", 1000) });
    assert!(!free(&bench));
    bench.object(slice("n", 1));
    assert!(!free(&bench));
    bench.goes("p");
    assert!(free(&bench), "nobody waits for it");
}
