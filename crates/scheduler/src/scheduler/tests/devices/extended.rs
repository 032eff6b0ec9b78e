//! Extended resources that devices provide to nodes without a device plugin.

use super::*;
use berth_devices::NewRequest;
use berth_model::{ContainerRequest, ExtendedResource, ExtendedResources};

const GPU: &str = "example.com/gpu";

fn class(name: &str, created_s: i64, resource: Option<&str>) -> ClusterObject {
    ClusterObject::DeviceClass(DeviceClass {
        name: name.into(),
        extended_resource: resource.map(Arc::from),
        created_s,
        ..DeviceClass::default()
    })
}

/// Returns a pod that requests devices by this name.
fn wants(resource: &str, count: u64, pod: Pod) -> Pod {
    let mut usage = Usage::clone(&pod.usage);
    usage.extended.add(&resource.into(), count as i64);
    let usage = Arc::new(usage);
    let request: Arc<str> = "container-0-request-1".into();
    let resource = ExtendedResource {
        name: resource.into(),
        requests: [(request.clone(), count)].into(),
        containers: [ContainerRequest { container: "main".into(), request }].into(),
    };
    let spec = Arc::new(PodSpec { usage: usage.clone(), ..PodSpec::default() });
    let extended = Some(Box::new(ExtendedResources { resources: [resource].into(), claim: None }));
    Pod { usage, spec: Ok(spec), extended, ..pod }
}

/// Returns a node whose device plugin offers so many devices.
fn node_with_plugin(name: &str, devices: i64) -> Node {
    Node { extended: [(Arc::from(GPU), devices)].into_iter().collect(), ..node(name, 1000) }
}

fn bench(nodes: &[(&str, usize)]) -> Bench {
    let mut bench = Bench::with_devices(nodes, &[]);
    bench.object(class("gpu", 1, Some(GPU)));
    bench
}

/// Returns the claim as the API server has it after this order was carried out.
fn made(order: &ClaimOrder, version: u64) -> ResourceClaim {
    let update = &order.devices[0];
    ResourceClaim {
        name: update.claim.clone(),
        uid: "made".into(),
        owner: Some(order.uid.clone()),
        finalizers: [berth_devices::CLAIM_FINALIZER.into(), "other".into()].into(),
        ..as_written(order, 0, version)
    }
}

#[test]
fn a_pod_gets_devices_by_a_claim_that_is_created_for_it_where_the_node_has_no_plugin() {
    let mut bench = bench(&[("a", 0), ("b", 2)]);
    bench.apply(wants(GPU, 2, pod("p", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    assert_eq!((&*order.node, bench.binds.len()), ("b", 0));
    let update = &order.devices[0];
    assert_eq!((&*update.claim.name, update.version), ("p-extended-resources-p", 0));
    let new = update.new.as_ref().expect("it is created");
    let wanted = NewRequest { name: "container-0-request-1".into(), class: "gpu".into(), count: 2 };
    assert_eq!(*new.requests, [wanted]);
    assert_eq!((&*new.containers[0].0, &*new.containers[0].1.container), (GPU, "main"));
    assert_eq!(update.allocation.as_ref().map(|new| new.allocation.devices.len()), Some(2));
    // The watch may show the claim before or after the writes are answered.
    bench.object(object(ResourceClaim { allocation: None, ..made(&order, 2) }));
    bench.written(&order, Ok(vec![3]));
    assert_eq!(bench.bound(), ["p"]);
    bench.object(object(made(&order, 3)));
    bench.finish(&bench.binds[0].clone(), BindOutcome::Bound);
    bench.later(60 * S);
    assert!(bench.releases.is_empty());
    bench.apply(wants(GPU, 1, pod("q", 10)));
    bench.work();
    assert!(
        bench.last_told().starts_with("0/2 nodes are available: 2 cannot allocate all claims."),
        "{}",
        bench.last_told()
    );
}

#[test]
fn a_claim_that_the_watch_has_not_shown_yet_does_not_delay_its_pod() {
    let mut bench = bench(&[("a", 1)]);
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Ok(vec![3]));
    assert_eq!(bench.bound(), ["p"]);
    // Its device is taken nevertheless.
    bench.apply(wants(GPU, 1, pod("q", 10)));
    bench.work();
    assert_eq!(bench.orders.len(), 1);
}

#[test]
fn a_node_with_a_plugin_counts_its_own_devices_and_only_those() {
    let mut bench = bench(&[("a", 1), ("b", 1)]);
    bench.scheduler.apply_node(node_with_plugin("a", 1));
    for uid in ["p", "q", "r"] {
        bench.apply(wants(GPU, 1, pod(uid, 10)));
    }
    bench.work();
    assert_eq!((bench.orders.len(), bench.binds.len()), (1, 1), "one by claim, one by the plugin");
    assert_eq!((&*bench.orders[0].node, &*bench.binds[0].node), ("b", "a"));
    let told = bench.last_told();
    assert!(
        told.contains("1 Insufficient example.com/gpu") && told.contains("1 cannot allocate all claims"),
        "{told}"
    );
}

#[test]
fn a_resource_that_no_class_provides_is_insufficient_and_one_that_a_class_begins_to_provide_is_not() {
    let mut bench = Bench::with_devices(&[("a", 1)], &[]);
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.apply(wants("deviceclass.resource.kubernetes.io/gpu", 1, pod("q", 10)));
    bench.work();
    // The name of the class alone is enough for q.
    assert_eq!(bench.orders.iter().map(|order| &*order.uid).collect::<Vec<_>>(), ["q"]);
    assert!(
        bench.last_told().starts_with("0/1 nodes are available: 1 Insufficient example.com/gpu."),
        "{}",
        bench.last_told()
    );
    bench.object(slice("a", 2));
    bench.object(class("gpu", 1, Some(GPU)));
    bench.later(S);
    bench.later(10 * S);
    assert_eq!(bench.orders.len(), 2);
    let gone = ObjectName { namespace: "".into(), name: "gpu".into() };
    bench.scheduler.delete_object(ObjectKind::DeviceClass, &gone);
    bench.collect();
    bench.apply(wants(GPU, 1, pod("r", 10)));
    bench.work();
    assert!(
        bench.last_told().starts_with("0/1 nodes are available: 1 Insufficient example.com/gpu."),
        "{}",
        bench.last_told()
    );
}

#[test]
fn of_classes_that_provide_one_resource_the_newest_does_and_an_invalid_one_never() {
    let mut bench = Bench::with_devices(&[("a", 1)], &[]);
    bench.object(class("old", 1, Some(GPU)));
    bench.object(class("new", 2, Some(GPU)));
    bench.object(class("as-new", 2, Some(GPU)));
    let ClusterObject::DeviceClass(newest) = class("newest", 3, Some(GPU)) else { panic!("a class") };
    bench.object(ClusterObject::DeviceClass(DeviceClass { invalid: Some("odd".into()), ..newest }));
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.work();
    let new = bench.orders[0].devices[0].new.clone().expect("it is created");
    assert_eq!(&*new.requests[0].class, "as-new");
}

#[test]
fn a_claim_that_an_earlier_attempt_has_left_behind_is_deleted_before_the_next() {
    let mut bench = bench(&[("a", 1)]);
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.work();
    let order = bench.orders[0].clone();
    bench.written(&order, Err("no answer"));
    // It was written, though.
    let left = made(&order, 3);
    bench.object(object(left.clone()));
    bench.later(S);
    bench.later(S);
    let [release] = &*bench.releases else { panic!("{:?}", bench.releases) };
    assert_eq!((&release.claim, &*release.uid, release.version), (&left.name, "made", 3));
    assert_eq!(release.delete.as_deref(), Some(&["other".into()][..]));
    bench.later(2 * LATE_EFFECT);
    assert!(bench.releases.len() > 1, "asked for until it is gone");
    assert_eq!(bench.orders.len(), 1, "nothing is tried before");
    let told = bench.last_told();
    assert!(told.contains("of an earlier attempt has not been deleted yet"), "{told}");
    let gone = ObjectName { namespace: "ns".into(), name: left.name.name.clone() };
    bench.scheduler.delete_object(ObjectKind::ResourceClaim, &gone);
    bench.collect();
    bench.later(S);
    bench.later(60 * S);
    assert_eq!(bench.orders.len(), 2);
    let releases = bench.releases.len();
    bench.written(&bench.orders[1].clone(), Ok(vec![5]));
    bench.later(60 * S);
    assert_eq!((bench.bound(), bench.releases.len()), (vec!["p"], releases));
}

#[test]
fn a_claim_of_that_name_that_is_not_the_pods_is_never_deleted() {
    let mut bench = bench(&[("a", 1)]);
    let theirs = ResourceClaim { owner: Some("other".into()), ..claim("p-extended-resources-p") };
    bench.object(object(theirs));
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.work();
    bench.later(60 * S);
    assert!(bench.orders.is_empty() && bench.releases.is_empty());
    assert!(bench.last_told().contains("belongs to others"), "{}", bench.last_told());
}

#[test]
fn a_leader_that_finds_a_claim_of_a_pod_without_a_node_deletes_it_and_a_follower_does_not() {
    let mut bench = bench(&[("a", 1)]);
    bench.apply(wants(GPU, 1, pod("p", 10)));
    bench.work();
    let left = made(&bench.orders[0].clone(), 3);
    let mut next = Bench::with_devices(&[("a", 1)], &[]);
    next.object(class("gpu", 1, Some(GPU)));
    next.scheduler.set_leading(false);
    next.object(object(left));
    next.apply(wants(GPU, 1, pod("p", 10)));
    next.later(S);
    assert!(next.releases.is_empty());
    next.scheduler.set_leading(true);
    next.later(S);
    next.later(S);
    assert_eq!((next.releases.len(), next.orders.len()), (1, 0));
}

#[test]
fn the_guard_admits_a_pod_of_another_scheduler_to_a_node_where_devices_provide_what_it_requests() {
    let mut bench = bench(&[("a", 1)]);
    bench.scheduler.cluster.config.knows_others = true;
    let scheduler_name = "default-scheduler".into();
    bench.apply(Pod { scheduler_name, ..wants(GPU, 1, pod("p", 10)) });
    let review = |bench: &mut Bench| {
        let binding = Binding {
            uid: "p".into(),
            namespace: "ns".into(),
            name: "p".into(),
            node: "a".into(),
            decision: None,
        };
        bench.scheduler.review(&binding, None, Some(60 * S), Requester::Other)
    };
    assert_eq!(review(&mut bench), BindReview::Allowed);
}

#[test]
fn the_name_of_the_claim_is_valid_however_long_that_of_the_pod_is() {
    let mut bench = bench(&[("a", 2)]);
    let name: Arc<str> = format!("{}.{}", "x".repeat(231), "y".repeat(21)).into();
    bench.apply(Pod { name, ..wants(GPU, 1, pod("u", 10)) });
    bench.work();
    let claim = &bench.orders[0].devices[0].claim.name;
    assert!(claim.len() <= 253 && claim.ends_with("x-extended-resources-u"), "{claim}");
}

#[test]
fn very_many_claims_that_were_left_behind_are_deleted_some_at_a_time() {
    const PODS: usize = 200;
    let mut bench = bench(&[("a", 1)]);
    for at in 0..PODS {
        let uid = format!("p{at}");
        let name =
            ClaimName { namespace: "ns".into(), name: format!("{uid}-extended-resources-{uid}").into() };
        bench.object(object(ResourceClaim { name, owner: Some(uid.as_str().into()), ..claim("left") }));
        bench.apply(wants(GPU, 1, pod(&uid, 1)));
    }
    bench.work();
    let mut before = bench.releases.len();
    let mut ticks = 0;
    while before < PODS {
        bench.later(Duration::from_millis(100));
        let new = bench.releases.len() - before;
        assert!((1..=64).contains(&new), "{new} at once");
        (before, ticks) = (bench.releases.len(), ticks + 1);
    }
    assert!(ticks >= 3);
    let claims: HashSet<_> = bench.releases.iter().map(|release| release.claim.clone()).collect();
    assert_eq!(claims.len(), PODS);
}

#[test]
fn a_claim_that_was_left_behind_is_deleted_before_its_pod_is_bound_also_without_the_class() {
    for appears_late in [false, true] {
        let mut bench = bench(&[("a", 1)]);
        bench.apply(wants(GPU, 1, pod("p", 10)));
        bench.work();
        let order = bench.orders[0].clone();
        let left = made(&order, 3);
        if !appears_late {
            bench.object(object(left.clone()));
        }
        bench.written(&order, Err("no answer"));
        let class = ObjectName { namespace: "".into(), name: "gpu".into() };
        bench.scheduler.delete_object(ObjectKind::DeviceClass, &class);
        bench.scheduler.apply_node(node_with_plugin("b", 1));
        bench.collect();
        bench.later(S);
        if appears_late {
            bench.object(object(left.clone()));
        }
        bench.later(S);
        bench.later(10 * S);
        assert!(bench.binds.is_empty() && !bench.releases.is_empty(), "{appears_late}");
        let gone = ObjectName { namespace: "ns".into(), name: left.name.name.clone() };
        bench.scheduler.delete_object(ObjectKind::ResourceClaim, &gone);
        bench.collect();
        bench.later(S);
        bench.later(60 * S);
        assert_eq!(bench.bound(), ["p"], "{appears_late}");
    }
}
