//! Pods with claims: resolution, reservation, requests, waiting.

use super::*;
use crate::objects::{
    Claim, ClaimRef, ClusterObject, ObjectKind, ObjectName, StorageClass, Volume, WantedVolume,
};
use crate::placement::ClaimOrder;
use berth_model::{
    AccessModes, ClaimName, FieldRequirement, Labels, NodeSelectorTerm, Operator, PodClaim, PodVolumes,
    Requirement, StaticVolume, VolumeKind,
};

const HOSTNAME: &str = "kubernetes.io/hostname";

fn host(name: &str) -> Node {
    let labels: Labels = [(HOSTNAME, name)].into_iter().collect();
    Node { labels, ..node(name, 1000) }
}

fn kind(class: &str) -> VolumeKind {
    VolumeKind { class: class.into(), ..VolumeKind::default() }
}

/// Returns a free volume that only this host can reach.
fn volume(name: &str, host: &str) -> Volume {
    let operator = Operator::In([host.into()].into());
    let expressions = [Requirement { key: HOSTNAME.into(), operator }].into();
    let fields: Box<[FieldRequirement]> = [].into();
    let spec = StaticVolume {
        name: name.into(),
        kind: kind("local"),
        capacity_bytes: 10,
        labels: Labels::default(),
        affinity: Some([NodeSelectorTerm { expressions, fields }].into()),
    };
    Volume { version: 1, spec: spec.into(), available: true, ..Volume::default() }
}

fn claim_name(name: &str) -> ClaimName {
    ClaimName { namespace: "ns".into(), name: name.into() }
}

fn claim(name: &str, class: &str) -> Claim {
    Claim {
        name: claim_name(name),
        uid: format!("uid of {name}").into(),
        version: 1,
        kind: kind(class),
        size_bytes: 5,
        ..Claim::default()
    }
}

fn uses(claim: &str, pod: Pod) -> Pod {
    let claims = [PodClaim { name: claim.into(), ephemeral: false }].into();
    Pod { volumes: Some(Arc::new(PodVolumes { claims, ..PodVolumes::default() })), ..pod }
}

impl Bench {
    /// Returns a bench with hosts and two storage classes: `local` has static volumes, `made` provisions them.
    fn with_claims(hosts: &[&str], objects: impl IntoIterator<Item = ClusterObject>) -> Bench {
        let mut bench = Bench::new(1, hosts);
        for name in hosts {
            bench.scheduler.apply_node(host(name));
        }
        for (name, provisioner) in [("local", "kubernetes.io/no-provisioner"), ("made", "example.com/maker")]
        {
            let class = StorageClass {
                name: name.into(),
                provisioner: provisioner.into(),
                delayed: true,
                topologies: Default::default(),
            };
            bench.object(ClusterObject::StorageClass(class));
        }
        objects.into_iter().for_each(|object| bench.object(object));
        bench
    }

    pub(super) fn object(&mut self, object: ClusterObject) {
        self.scheduler.apply_object(object);
        self.collect();
    }

    pub(super) fn written(&mut self, order: &ClaimOrder, result: Result<Vec<u64>, &str>) {
        self.scheduler.claims_written(order, result.map_err(str::to_owned), self.now);
        self.collect();
    }

    /// Binds the claim, as the volume controller does after a volume was reserved.
    fn bind_claim(&mut self, name: &str, volume: Volume) {
        let reference = ClaimRef { claim: claim_name(name), uid: format!("uid of {name}").into() };
        let bound = Some(volume.spec.name.clone());
        self.object(ClusterObject::Volume(Volume {
            version: 2,
            claim: Some(reference),
            available: false,
            ..volume
        }));
        self.object(ClusterObject::Claim(Claim {
            version: 3,
            volume: bound,
            bind_completed: true,
            ..claim(name, "local")
        }));
    }

    /// Advances to the next tick of the clock.
    fn soon(&mut self) {
        self.tick(self.now + Duration::from_millis(50));
        self.work();
    }

    pub(super) fn last_told(&self) -> &str {
        &self.told.last().expect("a condition was written").2
    }
}

#[test]
fn a_pod_is_bound_once_its_claim_has_the_volume_of_the_chosen_node() {
    let objects = [ClusterObject::Volume(volume("pv", "b")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a", "b"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    assert_eq!((bench.orders.len(), bench.binds.len(), bench.in_state("claiming")), (1, 0, 1));
    let order = bench.orders[0].clone();
    assert_eq!((&*order.uid, &*order.node), ("p", "b"));
    assert_eq!(order.requests[0].wanted, WantedVolume::Volume("pv".into()));
    assert_eq!(&*order.requests[0].uid, "uid of data");
    assert_eq!((bench.scheduler.binds(), bench.cpu_taken("b")), (0, 100), "it waits outside of the binds");

    bench.written(&order, Ok(vec![2]));
    bench.soon();
    assert!(bench.binds.is_empty());
    bench.bind_claim("data", volume("pv", "b"));
    bench.soon();
    assert_eq!(bench.bound(), ["p"]);
    assert_eq!(&*bench.binds[0].node, "b");
    bench.finish(&bench.binds[0].clone(), BindOutcome::Bound);
    assert_eq!(bench.scheduled, ["p"]);
}

#[test]
fn two_pods_never_get_one_volume_and_the_second_wakes_when_there_is_another() {
    let claims = ["c1", "c2"].map(|name| ClusterObject::Claim(claim(name, "local")));
    let mut bench = Bench::with_claims(&["a", "b"], claims);
    bench.object(ClusterObject::Volume(volume("pv1", "a")));
    bench.apply(uses("c1", pod("p1", 1)));
    bench.apply(uses("c2", pod("p2", 1)));
    bench.work();
    assert_eq!(bench.orders.len(), 1);
    assert_eq!(&*bench.told[0].0, "p2");
    assert!(bench.last_told().contains("2 node(s) didn't find available persistent volumes to bind."));
    bench.object(ClusterObject::Volume(volume("pv2", "b")));
    bench.work();
    assert_eq!(bench.orders.len(), 2);
    assert_eq!(bench.orders[1].requests[0].wanted, WantedVolume::Volume("pv2".into()));
}

#[test]
fn pods_of_a_stateful_set_with_own_claims_are_one_class() {
    let claims = ["c1", "c2", "c3"].map(|name| ClusterObject::Claim(claim(name, "local")));
    let mut bench = Bench::with_claims(&["a", "b", "c"], claims);
    for (name, host) in [("pv1", "a"), ("pv2", "b"), ("pv3", "c")] {
        bench.object(ClusterObject::Volume(volume(name, host)));
    }
    for at in 1..=3 {
        bench.apply(uses(&format!("c{at}"), pod(&format!("p{at}"), 1)));
    }
    assert_eq!(bench.scheduler.classes(), 1);
    bench.work();
    let volumes: HashSet<_> = bench.orders.iter().map(|order| order.requests[0].wanted.clone()).collect();
    assert_eq!(volumes.len(), 3);
    assert_eq!(bench.scheduler.stats().list_misses, 0, "the bench reports no laps");
    assert_eq!(bench.agents[0].cache_stats().lists, 1);
}

#[test]
fn a_claim_that_could_not_be_asked_for_gives_node_and_volume_back() {
    let objects = [ClusterObject::Volume(volume("pv", "a")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Err("persistentvolumes is forbidden"));
    assert_eq!(bench.last_told(), "running PreBind plugin \"VolumeBinding\": persistentvolumes is forbidden");
    assert_eq!((bench.cpu_taken("a"), bench.in_state("backing off")), (0, 1));
    bench.tick(2 * S);
    bench.work();
    assert_eq!(bench.orders.len(), 2, "the volume is free again");
    bench.written(&order, Ok(vec![9]));
    bench.bind_claim("data", volume("pv", "a"));
    bench.soon();
    assert!(bench.binds.is_empty(), "an answer to the first order says nothing about the second");
}

#[test]
fn a_pod_does_not_go_to_the_volume_of_its_node_when_its_claim_got_another_one() {
    let objects = [ClusterObject::Volume(volume("pv", "a")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a", "b"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    // The volume refers to the claim, which an earlier write for another pod has bound elsewhere.
    bench.bind_claim("data", volume("other", "b"));
    let reference = ClaimRef { claim: claim_name("data"), uid: "uid of data".into() };
    bench.object(ClusterObject::Volume(Volume { version: 2, claim: Some(reference), ..volume("pv", "a") }));
    bench.soon();
    assert_eq!(
        bench.last_told(),
        "running PreBind plugin \"VolumeBinding\": binding volumes: persistentvolumeclaim \"data\" is bound to pv \"other\""
    );
    bench.tick(bench.now + 2 * S);
    bench.work();
    assert_eq!((bench.bound(), &*bench.binds[0].node), (vec!["p"], "b"));
}

#[test]
fn a_provisioner_that_takes_the_node_away_makes_the_pod_choose_again() {
    let mut bench = Bench::with_claims(&["a"], [ClusterObject::Claim(claim("data", "made"))]);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    let order = bench.orders[0].clone();
    assert_eq!(order.requests[0].wanted, WantedVolume::Provision);
    bench.written(&order, Ok(vec![5]));
    bench.soon();
    assert_eq!(bench.in_state("claiming"), 1, "what was written is not seen yet");
    let with_node = Claim { version: 5, selected_node: Some("a".into()), ..claim("data", "made") };
    bench.object(ClusterObject::Claim(with_node));
    bench.soon();
    assert_eq!(bench.in_state("claiming"), 1);
    bench.object(ClusterObject::Claim(Claim { version: 6, ..claim("data", "made") }));
    bench.soon();
    assert_eq!(
        bench.last_told(),
        "running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"data\""
    );
    bench.tick(bench.now + 2 * S);
    bench.work();
    assert_eq!(bench.orders.len(), 2);
}

#[test]
fn claims_that_take_too_long_or_vanish_give_the_node_back() {
    let objects = ["slow", "gone"].map(|name| ClusterObject::Claim(claim(name, "made")));
    let mut bench = Bench::with_claims(&["a"], objects);
    for name in ["slow", "gone"] {
        bench.apply(uses(name, pod(name, 100)));
    }
    bench.work();
    for order in bench.orders.clone() {
        bench.written(&order, Ok(vec![2]));
        let name = &order.requests[0].claim.name;
        let claim = Claim { version: 2, selected_node: Some("a".into()), ..claim(name, "made") };
        bench.object(ClusterObject::Claim(claim));
    }
    bench.scheduler.delete_object(
        ObjectKind::PersistentVolumeClaim,
        &ObjectName { namespace: "ns".into(), name: "gone".into() },
    );
    bench.soon();
    let gone = "binding volumes: persistentvolumeclaim \"gone\" not found";
    assert!(bench.told.iter().any(|told| told.2.ends_with(gone)));
    assert_eq!(bench.cpu_taken("a"), 100);
    bench.tick(600 * S);
    assert!(bench.told.iter().any(|told| {
        told.2 == "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded"
    }));
    assert_eq!(bench.cpu_taken("a"), 0);
}

#[test]
fn a_pod_that_is_deleted_while_it_waits_leaves_its_volume_to_the_next() {
    let claims = ["c1", "c2"].map(|name| ClusterObject::Claim(claim(name, "local")));
    let mut bench = Bench::with_claims(&["a"], claims);
    bench.object(ClusterObject::Volume(volume("pv", "a")));
    bench.apply(uses("c1", pod("p1", 1)));
    bench.work();
    bench.apply(uses("c2", pod("p2", 1)));
    bench.work();
    assert_eq!(bench.orders.len(), 1);
    bench.apply(Pod { deleting: true, ..uses("c1", pod("p1", 1)) });
    bench.soon();
    bench.work();
    assert_eq!((bench.orders.len(), bench.cpu_taken("a")), (2, 1));
    assert_eq!(&*bench.orders[1].uid, "p2");
}

#[test]
fn a_claim_for_one_pod_keeps_others_out_until_that_pod_is_gone() {
    let modes: AccessModes = ["ReadWriteOncePod"].into_iter().collect();
    let mut data = claim("data", "local");
    data.kind.modes = modes;
    let (bound, mut pv) = (Some("pv".into()), volume("pv", "a"));
    pv.claim = Some(ClaimRef { claim: claim_name("data"), uid: data.uid.clone() });
    let data = Claim { volume: bound, bind_completed: true, ..data };
    let mut bench = Bench::with_claims(&["a", "b"], [ClusterObject::Volume(pv), ClusterObject::Claim(data)]);
    for name in ["p1", "p2"] {
        bench.apply(uses("data", pod(name, 1)));
    }
    bench.work();
    assert_eq!(bench.bound(), ["p1"]);
    assert!(bench.last_told().contains(
        "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
    ));
    bench.finish(&bench.binds[0].clone(), BindOutcome::Bound);
    bench.scheduler.delete_pod(&Arc::from("p1"));
    bench.soon();
    assert_eq!(bench.bound(), ["p1", "p2"]);
}

#[test]
fn a_pod_preempts_the_less_important_ones_that_use_its_claims_for_one_pod() {
    let once = |name: &str| {
        let modes: AccessModes = ["ReadWriteOncePod"].into_iter().collect();
        let kind = VolumeKind { modes, ..kind("made") };
        let volume = format!("volume of {name}");
        let mut volume = Volume {
            spec: StaticVolume { name: volume.as_str().into(), ..StaticVolume::default() }.into(),
            ..Volume::default()
        };
        let claim = Claim {
            kind,
            bind_completed: true,
            volume: Some(volume.spec.name.clone()),
            ..claim(name, "made")
        };
        volume.claim = Some(ClaimRef { claim: claim.name.clone(), uid: claim.uid.clone() });
        [ClusterObject::Claim(claim), ClusterObject::Volume(volume)]
    };
    let both = |pod: Pod| {
        let claims = ["c", "d"].map(|name| PodClaim { name: name.into(), ephemeral: false }).into();
        Pod { volumes: Some(Arc::new(PodVolumes { claims, ..PodVolumes::default() })), ..pod }
    };
    let bench = || {
        let mut bench = Bench::with_claims(&["a", "b"], once("c").into_iter().chain(once("d")));
        bench.scheduler.cluster.config.preemption = true;
        bench.apply(on("b", pod("bystander", 100)));
        bench
    };
    let victims = |bench: &Bench| {
        let mut victims: Vec<_> = bench.evictions.iter().map(|it| it.victim.uid.to_string()).collect();
        victims.sort();
        victims
    };
    let mut first = bench();
    first.apply(on("a", uses("c", pod("x", 100))));
    first.apply(on("a", uses("d", pod("y", 100))));
    first.apply(Pod { priority: 5, ..both(pod("p", 100)) });
    first.work();
    assert_eq!(victims(&first), ["x", "y"]);
    for uid in ["x", "y"] {
        first.scheduler.delete_pod(&uid.into());
        first.collect();
        first.tick(first.now + S);
        first.work();
    }
    assert_eq!((first.bound(), first.evictions.len()), (vec!["p"], 2));

    // One of the users is more important, or on another node: no eviction would help.
    for (node, priority) in [("a", 9), ("b", 0)] {
        let mut other = bench();
        other.apply(on("a", uses("c", pod("x", 100))));
        other.apply(Pod { priority, ..on(node, uses("d", pod("y", 100))) });
        other.apply(Pod { priority: 5, ..both(pod("p", 100)) });
        other.work();
        assert_eq!(victims(&other), Vec::<String>::new(), "{node} {priority}");
    }
}

#[test]
fn a_missing_claim_is_reported_and_the_pod_is_placed_once_it_exists() {
    let mut bench = Bench::with_claims(&["a"], [ClusterObject::Volume(volume("pv", "a"))]);
    bench.apply(uses("data", pod("p", 1)));
    bench.work();
    assert_eq!(
        bench.last_told(),
        "0/1 nodes are available: persistentvolumeclaim \"data\" not found. not found"
    );
    bench.object(ClusterObject::Claim(claim("data", "local")));
    bench.work();
    assert_eq!(bench.orders.len(), 1);
}

#[test]
fn pods_wait_for_claims_without_holding_up_binds() {
    let claims: Vec<_> = (0..100).map(|at| ClusterObject::Claim(claim(&format!("c{at}"), "made"))).collect();
    let mut bench = Bench::with_claims(&["a"], claims);
    for at in 0..100 {
        bench.apply(uses(&format!("c{at}"), pod(&format!("p{at}"), 1)));
    }
    bench.apply(pod("plain", 1));
    bench.work();
    assert_eq!((bench.orders.len(), bench.bound()), (100, vec!["plain"]), "64 binds may wait");
}

#[test]
fn a_deposed_leader_gives_up_what_its_claims_wait_for() {
    let objects = [ClusterObject::Volume(volume("pv", "a")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    bench.scheduler.set_leading(false);
    bench.soon();
    assert_eq!((bench.cpu_taken("a"), bench.in_state("queued")), (0, 1));
    bench.bind_claim("data", volume("pv", "a"));
    bench.soon();
    assert!(bench.binds.is_empty());
    bench.scheduler.set_leading(true);
    bench.soon();
    assert_eq!(bench.bound(), ["p"]);
}

#[test]
fn a_node_that_vanishes_while_claims_are_bound_is_given_up() {
    let objects = [ClusterObject::Volume(volume("pv", "a")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![2]));
    bench.scheduler.delete_node("a");
    bench.tick(2 * S);
    assert!(bench.last_told().ends_with("binding volumes: failed to get node \"a\": node \"a\" not found"));
}

#[test]
fn a_pod_whose_bind_is_refused_after_its_claim_was_bound_follows_its_volume() {
    let objects = [ClusterObject::Volume(volume("pv", "b")), ClusterObject::Claim(claim("data", "local"))];
    let mut bench = Bench::with_claims(&["a", "b"], objects);
    bench.apply(uses("data", pod("p", 100)));
    bench.work();
    bench.written(&bench.orders[0].clone(), Ok(vec![2]));
    bench.bind_claim("data", volume("pv", "b"));
    bench.soon();
    bench.finish(&bench.binds[0].clone(), BindOutcome::Refused("no".into()));
    bench.tick(bench.now + 2 * S);
    bench.work();
    assert_eq!((bench.orders.len(), bench.bound()), (1, vec!["p", "p"]), "there is nothing more to ask for");
    assert_eq!(&*bench.binds[1].node, "b");
}
