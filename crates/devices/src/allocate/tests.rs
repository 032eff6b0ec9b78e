use super::*;
use crate::{Device, DeviceCapacity, DevicePools, DeviceTraits, PoolId, ResourceSlice};
use berth_model::{
    ClaimName, DeviceTaint, DeviceTaintEffect, DeviceToleration, DeviceTolerationOperator, Operator,
    Requirement,
};

const DRIVER: &str = "gpu.example.com";

fn text(text: &str) -> Attribute {
    Attribute::Text(text.into())
}

fn units(units: i64) -> Quantity {
    Quantity::from_units(units)
}

fn device(name: &str, attributes: &[(&str, Attribute)]) -> Device {
    let attributes = attributes.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();
    Device {
        name: name.into(),
        traits: DeviceTraits { attributes, ..DeviceTraits::default() },
        ..Device::default()
    }
}

fn slice(name: &str, node: &str, devices: Vec<Device>) -> ResourceSlice {
    ResourceSlice {
        name: name.into(),
        pool: PoolId { driver: DRIVER.into(), name: node.into() },
        generation: 1,
        slices_of_pool: 1,
        reach: Reach::Node(node.into()),
        devices: devices.into(),
        counters: BTreeMap::new(),
    }
}

fn pools(slices: impl IntoIterator<Item = ResourceSlice>) -> DevicePools {
    let mut pools = DevicePools::default();
    for slice in slices {
        pools.apply_slice(Arc::new(slice));
    }
    pools
}

fn exactly(count: u64) -> DeviceAlternative {
    DeviceAlternative { class: "gpu".into(), count: Some(count), ..DeviceAlternative::default() }
}

fn all() -> DeviceAlternative {
    DeviceAlternative { count: None, ..exactly(1) }
}

fn with(selector: &str, alternative: DeviceAlternative) -> DeviceAlternative {
    DeviceAlternative { selectors: [selector.into()].into(), ..alternative }
}

fn named(name: &str, alternative: DeviceAlternative) -> DeviceAlternative {
    DeviceAlternative { name: name.into(), ..alternative }
}

fn request(name: &str, alternatives: impl IntoIterator<Item = DeviceAlternative>) -> DeviceRequest {
    DeviceRequest { name: name.into(), alternatives: alternatives.into_iter().collect() }
}

fn claim(requests: impl IntoIterator<Item = DeviceRequest>) -> DeviceRequests {
    DeviceRequests { requests: requests.into_iter().collect(), constraints: [].into() }
}

fn constrained(claim: DeviceRequests, attribute: &str, distinct: bool, requests: &[&str]) -> DeviceRequests {
    let requests = requests.iter().map(|name| Arc::from(*name)).collect();
    let constraint = DeviceConstraint { requests, attribute: attribute.into(), distinct };
    DeviceRequests { constraints: [constraint].into(), ..claim }
}

fn on(
    pools: &DevicePools,
    node: &str,
    claims: impl IntoIterator<Item = DeviceRequests>,
) -> Result<Vec<ClaimAllocation>, Box<NoDevices>> {
    let devices = pools.on(node).or(pools.shared()).unwrap_or_default();
    let claims: Vec<_> = claims.into_iter().map(Shared::new).collect();
    let labels = [("zone", "a")].into_iter().collect();
    allocate(&claims, &devices, node, &labels)
}

/// Returns the names of the devices of each claim.
fn names(allocations: &[ClaimAllocation]) -> Vec<Vec<String>> {
    let of = |allocation: &ClaimAllocation| {
        allocation.devices.iter().map(|device| device.id.device.to_string()).collect()
    };
    allocations.iter().map(of).collect()
}

fn why(result: Result<Vec<ClaimAllocation>, Box<NoDevices>>) -> Shortage {
    result.expect_err("no devices").why
}

fn counts(result: Result<Vec<ClaimAllocation>, Box<NoDevices>>) -> Exclusions {
    match why(result) {
        Shortage::TooFew { counts, .. } => counts,
        other => panic!("{other:?}"),
    }
}

fn claim_name(name: &str) -> ClaimName {
    ClaimName { namespace: "x".into(), name: name.into() }
}

const MODEL: &str = r#"device.attributes["gpu.example.com"].model"#;

#[test]
fn a_claim_gets_as_many_devices_as_it_wants_of_those_that_match() {
    let devices = ["a", "b", "b", "b"]
        .iter()
        .zip(0..)
        .map(|(model, at)| device(&format!("d{at}"), &[("model", text(model))]));
    let pools = pools([slice("s", "n", devices.collect())]);
    let wants = |count| [claim([request("r", [with(&format!("{MODEL} == \"b\""), exactly(count))])])];
    assert_eq!(names(&on(&pools, "n", wants(2)).unwrap()), [["d1", "d2"]]);
    let refused = on(&pools, "n", wants(4));
    assert_eq!(
        why(refused),
        Shortage::TooFew {
            wanted: 4,
            matching: 3,
            counts: Exclusions { unselected: 1, ..Exclusions::default() }
        }
    );
    let given = on(&pools, "n", wants(3)).unwrap();
    assert_eq!(given[0].devices[0].request, "r".into());
    let name_is = FieldRequirement::NameIs("n".into());
    let expected = [NodeSelectorTerm { expressions: [].into(), fields: [name_is].into() }];
    assert_eq!(given[0].nodes.as_deref(), Some(&expected[..]));
    assert!(on(&pools, "other", wants(1)).is_err());
}

#[test]
fn what_one_claim_has_no_other_gets_and_it_is_free_again_when_the_claim_has_nothing() {
    let mut pools = pools([slice("s", "n", vec![device("d0", &[]), device("d1", &[])])]);
    let one = || claim([request("r", [exactly(1)])]);
    let given = on(&pools, "n", [one(), one()]).unwrap();
    assert_eq!(names(&given), [["d0"], ["d1"]]);
    assert!(on(&pools, "n", [one(), one(), one()]).is_err());
    let news = pools.set_allocation(&claim_name("c"), Some(&given[0]));
    assert!(news.nodes.contains("n") && !news.everywhere);
    assert_eq!(names(&on(&pools, "n", [one()]).unwrap()), [["d1"]]);
    assert_eq!(counts(on(&pools, "n", [one(), one()])).taken, 2, "one of them for the same pod");
    assert!(!pools.set_allocation(&claim_name("c"), None).is_empty());
    assert!(on(&pools, "n", [one(), one()]).is_ok());
}

#[test]
fn an_administrator_gets_devices_in_use_and_takes_them_from_nobody() {
    let mut pools = pools([slice("s", "n", vec![device("d0", &[])])]);
    let admin = || claim([request("r", [DeviceAlternative { admin_access: true, ..exactly(1) }])]);
    let one = || claim([request("r", [exactly(1)])]);
    let given = on(&pools, "n", [one()]).unwrap();
    pools.set_allocation(&claim_name("c"), Some(&given[0]));
    let seen = on(&pools, "n", [admin()]).unwrap();
    assert!(seen[0].devices[0].admin_access);
    pools.set_allocation(&claim_name("c"), None);
    pools.set_allocation(&claim_name("admin"), Some(&seen[0]));
    assert!(on(&pools, "n", [one()]).is_ok());
}

#[test]
fn all_devices_are_those_that_match_at_least_one_and_none_of_them_may_be_taken() {
    let mut pools = pools([slice(
        "s",
        "n",
        vec![device("d0", &[("model", text("a"))]), device("d1", &[("model", text("b"))])],
    )]);
    let every = |model: &str| claim([request("r", [with(&format!("{MODEL} == \"{model}\""), all())])]);
    assert_eq!(names(&on(&pools, "n", [every("a")]).unwrap()), [["d0"]]);
    assert!(on(&pools, "n", [every("c")]).is_err(), "at least one");
    let given = on(&pools, "n", [every("a")]).unwrap();
    pools.set_allocation(&claim_name("c"), Some(&given[0]));
    assert_eq!(counts(on(&pools, "n", [every("a")])).taken, 1);
}

#[test]
fn a_request_takes_the_first_alternative_that_leaves_enough_for_the_rest() {
    let devices =
        vec![device("big", &[("model", text("big"))]), device("small", &[("model", text("small"))])];
    let pools = pools([slice("s", "n", devices)]);
    let of = |model: &str, count| with(&format!("{MODEL} == \"{model}\""), exactly(count));
    let any = || {
        request(
            "any",
            [named("two", of("big", 2)), named("big", of("big", 1)), named("small", of("small", 1))],
        )
    };
    let given = on(&pools, "n", [claim([any()])]).unwrap();
    assert_eq!(&*given[0].devices[0].request, "any/big");
    let needs_big = || request("must", [of("big", 1)]);
    let given = on(&pools, "n", [claim([any(), needs_big()])]).unwrap();
    let requests: Vec<_> = given[0].devices.iter().map(|device| &*device.request).collect();
    assert_eq!(requests, ["any/small", "must"], "the second request goes back on the first");
    let devices = pools.on("n").unwrap();
    let fit = |claims: Vec<DeviceRequests>| {
        let claims: Vec<_> = claims.into_iter().map(Shared::new).collect();
        fit(&claims, &devices, "n", &Labels::default()).unwrap()
    };
    assert_eq!(fit(vec![claim([any()])]), Fit { alternatives: Some(1), left_permille: 500 });
    assert_eq!(fit(vec![claim([needs_big()])]), Fit { alternatives: None, left_permille: 500 });
}

#[test]
fn devices_of_a_claim_agree_or_differ_in_an_attribute() {
    let devices = [("d0", "x"), ("d1", "y"), ("d2", "y")];
    let devices = devices.iter().map(|(name, numa)| device(name, &[("numa", text(numa))]));
    let without = device("d3", &[]);
    let pools = pools([slice("s", "n", devices.chain([without]).collect())]);
    let two = || claim([request("r", [exactly(2)])]);
    let domain = "gpu.example.com/numa";
    assert_eq!(names(&on(&pools, "n", [constrained(two(), domain, false, &[])]).unwrap()), [["d1", "d2"]]);
    assert_eq!(names(&on(&pools, "n", [constrained(two(), domain, true, &[])]).unwrap()), [["d0", "d1"]]);
    let three = claim([request("r", [exactly(3)])]);
    assert!(counts(on(&pools, "n", [constrained(three.clone(), domain, true, &[])])).constrained > 0);
    assert!(
        on(&pools, "n", [constrained(three.clone(), domain, true, &["other"])]).is_ok(),
        "of another request"
    );
    assert!(on(&pools, "n", [constrained(three, "other.example.com/numa", false, &[])]).is_err());
}

#[test]
fn a_taint_keeps_all_claims_away_that_do_not_tolerate_it() {
    let taint =
        DeviceTaint { key: "broken".into(), value: "yes".into(), effect: DeviceTaintEffect::NoSchedule };
    let tainted = Device { taints: [taint].into(), ..device("d0", &[]) };
    let pools = pools([slice("s", "n", vec![tainted])]);
    let tolerating = |operator| {
        let toleration = DeviceToleration { key: "broken".into(), operator, effect: None, seconds: None };
        claim([request("r", [DeviceAlternative { tolerations: [toleration].into(), ..exactly(1) }])])
    };
    assert_eq!(counts(on(&pools, "n", [claim([request("r", [exactly(1)])])])).tainted, 1);
    assert!(on(&pools, "n", [tolerating(DeviceTolerationOperator::Exists)]).is_ok());
    assert!(on(&pools, "n", [tolerating(DeviceTolerationOperator::Equal("no".into()))]).is_err());
}

#[test]
fn partitions_share_what_their_pool_has_and_small_requests_leave_the_large_ones_whole() {
    let part = |name: &str, slices: i64| {
        let consumes = BTreeMap::from([("gpu".into(), BTreeMap::from([("slices".into(), units(slices))]))]);
        Device { consumes, ..device(name, &[("slices", Attribute::Int(slices))]) }
    };
    let devices = vec![part("whole", 4), part("half-0", 2), part("half-1", 2), part("quarter", 1)];
    let counters = BTreeMap::from([("gpu".into(), BTreeMap::from([("slices".into(), units(4))]))]);
    let devices = ResourceSlice { slices_of_pool: 2, ..slice("devices", "n", devices) };
    let counters = ResourceSlice { counters, slices_of_pool: 2, ..slice("counters", "n", vec![]) };
    let mut pools = pools([devices, counters]);
    let any = || claim([request("r", [exactly(1)])]);
    let at_least = |slices| {
        claim([request(
            "r",
            [with(&format!(r#"device.attributes["gpu.example.com"].slices >= {slices}"#), exactly(1))],
        )])
    };
    let given = on(&pools, "n", [any()]).unwrap();
    assert_eq!(names(&given), [["quarter"]]);
    assert_eq!(names(&on(&pools, "n", [at_least(2), at_least(2)]).unwrap()), [["half-0"], ["half-1"]]);
    assert!(counts(on(&pools, "n", [at_least(4), at_least(2)])).counters > 0);
    pools.set_allocation(&claim_name("c"), Some(&given[0]));
    assert!(on(&pools, "n", [at_least(4)]).is_err());
    assert!(on(&pools, "n", [at_least(2), at_least(2)]).is_err());
    assert!(on(&pools, "n", [at_least(2)]).is_ok());
    // The driver now says that there is less than what is in use.
    let fewer = BTreeMap::from([("gpu".into(), BTreeMap::from([("slices".into(), units(0))]))]);
    let counters = ResourceSlice { counters: fewer, slices_of_pool: 2, ..slice("counters", "n", vec![]) };
    pools.apply_slice(Arc::new(counters));
    assert!(counts(on(&pools, "n", [any()])).counters > 0);
}

#[test]
fn a_device_is_shared_until_its_capacity_is_used_up() {
    let shared = |name: &str| {
        let mut device = device(name, &[]);
        device.traits.multiple = true;
        device.traits.capacity =
            BTreeMap::from([("memory".into(), DeviceCapacity { value: units(10), policy: None })]);
        device
    };
    let mut pools = pools([slice("s", "n", vec![shared("d0"), shared("d1")])]);
    let wants = |amount| {
        let capacity = [("memory".into(), units(amount))].into();
        claim([request("r", [DeviceAlternative { capacity, ..exactly(1) }])])
    };
    let given = on(&pools, "n", [wants(6), wants(6)]).unwrap();
    assert_eq!(names(&given), [["d0"], ["d1"]]);
    assert_eq!(*given[0].devices[0].consumed, [("memory".into(), units(6))]);
    assert!(given[0].devices[0].share.is_some());
    pools.set_allocation(&claim_name("b"), Some(&given[1]));
    assert_eq!(names(&on(&pools, "n", [wants(4)]).unwrap()), [["d1"]], "one that is shared already");
    assert_eq!(names(&on(&pools, "n", [wants(5)]).unwrap()), [["d0"]]);
    assert_eq!(counts(on(&pools, "n", [wants(11)])).capacity, 2);
    assert!(on(&pools, "n", [wants(10), wants(5)]).is_err());
}

#[test]
fn a_pool_that_is_incomplete_or_contradicts_itself_gives_nothing() {
    let one = || [claim([request("r", [exactly(1)])])];
    let every = || [claim([request("r", [all()])])];
    let half = ResourceSlice { slices_of_pool: 2, ..slice("s", "n", vec![device("d0", &[])]) };
    let mut incomplete = pools([half.clone()]);
    assert!(on(&incomplete, "n", one()).is_err());
    assert_eq!(why(on(&incomplete, "n", every())), Shortage::Incomplete("n".into()));
    incomplete.apply_slice(Arc::new(ResourceSlice {
        name: "t".into(),
        devices: [device("d1", &[])].into(),
        ..half.clone()
    }));
    assert_eq!(names(&on(&incomplete, "n", every()).unwrap()), [["d0", "d1"]]);
    incomplete.apply_slice(Arc::new(ResourceSlice { name: "t".into(), ..half.clone() }));
    assert_eq!(why(on(&incomplete, "n", every())), Shortage::Invalid("n".into()));
    let newer = ResourceSlice { name: "u".into(), generation: 2, slices_of_pool: 1, ..half };
    incomplete.apply_slice(Arc::new(newer));
    assert_eq!(names(&on(&incomplete, "n", every()).unwrap()), [["d0"]], "older slices do not count");
    incomplete.delete_slice("u");
    assert!(on(&incomplete, "n", one()).is_err());
}

#[test]
fn devices_that_many_nodes_reach_are_given_where_they_are_reached() {
    let zone = |zone: &str| {
        let requirement = Requirement { key: "zone".into(), operator: Operator::In([zone.into()].into()) };
        NodeSelectorTerm { expressions: [requirement].into(), fields: [].into() }
    };
    let far = ResourceSlice {
        reach: Reach::Nodes([zone("b")].into()),
        ..slice("far", "far", vec![device("f", &[])])
    };
    let near = ResourceSlice {
        reach: Reach::Nodes([zone("a")].into()),
        ..slice("near", "near", vec![device("d", &[])])
    };
    let everywhere = ResourceSlice { reach: Reach::All, ..slice("all", "all", vec![device("e", &[])]) };
    let pools = pools([far, near, everywhere]);
    assert!(pools.on("n").is_none());
    let one = || claim([request("r", [exactly(1)])]);
    let given = on(&pools, "n", [one(), one()]).unwrap();
    assert_eq!(names(&given), [["e"], ["d"]]);
    assert_eq!(given[0].nodes, None);
    assert_eq!(given[1].nodes.as_deref(), Some(&[zone("a")][..]));
    assert!(on(&pools, "n", [one(), one(), one()]).is_err());
}

#[test]
fn a_search_among_many_devices_alike_ends_soon_and_one_without_end_is_given_up() {
    let alike = (0..60).map(|at| device(&format!("d{at:02}"), &[]));
    let pools_alike = pools([slice("s", "n", alike.collect())]);
    let hopeless = || {
        claim([request("a", [exactly(30)]), request("b", [with("device.driver == \"other\"", exactly(1))])])
    };
    assert_eq!(counts(on(&pools_alike, "n", [hopeless()])).unselected, 60);
    // All different, so that every choice is tried.
    let unlike = (0..60).map(|at| device(&format!("d{at:02}"), &[("at", Attribute::Int(at))]));
    let pools_unlike = pools([slice("s", "n", unlike.collect())]);
    let never = constrained(
        claim([request("a", [exactly(12)]), request("b", [exactly(12)])]),
        "gpu.example.com/at",
        false,
        &["b"],
    );
    assert_eq!(why(on(&pools_unlike, "n", [never])), Shortage::TooMuchWork);
}

#[test]
fn more_devices_than_a_claim_or_a_pod_can_have_are_refused() {
    let many = (0..80).map(|at| device(&format!("d{at:02}"), &[]));
    let pools = pools([slice("s", "n", many.collect())]);
    let wants = |count| claim([request("r", [exactly(count)])]);
    assert!(on(&pools, "n", [wants(32), wants(32)]).is_ok());
    assert_eq!(why(on(&pools, "n", [wants(33)])), Shortage::TooMany);
    assert_eq!(why(on(&pools, "n", (0..17).map(|_| wants(31)))), Shortage::TooMany);
    assert!(on(&pools, "n", [wants(u64::MAX)]).is_err());
}

#[test]
fn a_device_on_which_a_selector_fails_does_not_serve_but_others_do() {
    let pools = pools([slice("s", "n", vec![device("d0", &[]), device("d1", &[("model", text("a"))])])]);
    let wants = |alternative| [claim([request("r", [with(&format!("{MODEL} == \"a\""), alternative)])])];
    assert_eq!(names(&on(&pools, "n", wants(exactly(1))).unwrap()), [["d1"]]);
    let failed = counts(on(&pools, "n", wants(exactly(2)))).failed.expect("it is told");
    assert!(failed.starts_with("selector #0: CEL runtime error"), "{failed}");
    assert!(matches!(why(on(&pools, "n", wants(all()))), Shortage::Selector(_)));
}

#[test]
fn a_shortage_says_which_request_and_what_became_of_the_devices() {
    let taint = DeviceTaint { key: "broken".into(), value: "".into(), effect: DeviceTaintEffect::NoExecute };
    let tainted = Device { taints: [taint].into(), ..device("d1", &[]) };
    let mut pools = pools([slice("s", "n", vec![device("d0", &[]), tainted, device("d2", &[])])]);
    let one = || claim([request("r", [exactly(1)])]);
    let given = on(&pools, "n", [one()]).unwrap();
    pools.set_allocation(&claim_name("c"), Some(&given[0]));
    let said = |claim| on(&pools, "n", [claim]).expect_err("no devices").to_string();
    assert_eq!(
        said(claim([request("r", [exactly(2)])])),
        "request r of class gpu: wants 2 of 3 matching devices: 1 taken, 1 with a taint that is not tolerated"
    );
    let of_other = with("device.driver == \"other\"", exactly(1));
    assert_eq!(
        said(claim([request("r", [named("x", of_other)])])),
        "request r/x of class gpu: the selectors are false for all 3 devices"
    );
    assert_eq!(
        on(&pools, "other", [one()]).expect_err("none").to_string(),
        "request r of class gpu: the node has no device"
    );
}

/// Model, tainted, with a capacity, and in use, of each device of two pools.
type Plenty = (Vec<(u8, bool, bool, bool)>, Vec<(u8, bool, bool, bool)>);

/// Returns two pools of node `n` with these devices.
fn plenty((first, second): &Plenty) -> DevicePools {
    let mut all = DevicePools::default();
    for (name, devices) in [("first", first), ("second", second)] {
        let of = |(at, (model, tainted, sized, _)): (usize, &(u8, bool, bool, bool))| {
            let model = [("model", text(&model.to_string()))];
            // Selectors fail on every fifth.
            let mut device = device(&format!("d{at}"), if at % 5 == 4 { &[] } else { &model });
            if *tainted {
                let (key, effect) = ("broken".into(), DeviceTaintEffect::NoSchedule);
                device.taints = [DeviceTaint { key, value: "".into(), effect }].into();
            }
            if *sized {
                let capacity = DeviceCapacity { value: units(4), policy: None };
                device.traits.capacity = [("memory".into(), capacity)].into();
            }
            device
        };
        let slice = slice(name, "n", devices.iter().enumerate().map(of).collect());
        let pool = PoolId { driver: DRIVER.into(), name: name.into() };
        all.apply_slice(Arc::new(ResourceSlice { pool: pool.clone(), ..slice }));
        for (at, (.., in_use)) in devices.iter().enumerate().filter(|(_, device)| device.3) {
            assert!(in_use);
            let id = DeviceId { pool: pool.clone(), device: format!("d{at}").into() };
            let held = AllocatedDevice { id, ..AllocatedDevice::default() };
            let held = ClaimAllocation { devices: [held].into(), nodes: None };
            all.set_allocation(&claim_name(&format!("{name}-{at}")), Some(&held));
        }
    }
    all
}

proptest::proptest! {
    #[test]
    fn plain_requests_are_served_without_a_search_as_with_one(
        devices in proptest::arbitrary::any::<Plenty>(),
        count in 0u64..40,
        selects in proptest::arbitrary::any::<bool>(),
        tolerates in proptest::arbitrary::any::<bool>(),
        model in 0u8..3,
    ) {
        // Few models, so that some match.
        let few = |devices: Vec<(u8, bool, bool, bool)>| {
            devices.into_iter().take(20).map(|device| (device.0 % 3, device.1, device.2, device.3)).collect()
        };
        let devices = (few(devices.0), few(devices.1));
        let mut wanted = exactly(count);
        if selects {
            wanted = with(&format!("{MODEL} == \"{model}\""), wanted);
        }
        if tolerates {
            let operator = DeviceTolerationOperator::Exists;
            wanted.tolerations = [DeviceToleration { key: "".into(), operator, effect: None, seconds: None }].into();
        }
        let claims = [Shared::new(claim([request("r", [wanted])]))];
        let on = plenty(&devices).on("n").expect("it has pools");
        let (labels, is_plain) = (Labels::default(), (1..=DEVICES_OF_CLAIM_MAX as u64).contains(&count));
        proptest::prop_assert_eq!(Plain::of(&claims, &on).is_some(), is_plain);
        let searched = Search::run(&claims, &on, "n", &labels).ok().map(|search| search.fit());
        proptest::prop_assert_eq!(fit(&claims, &on, "n", &labels), searched);
    }
}
