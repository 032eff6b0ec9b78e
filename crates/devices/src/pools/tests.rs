use super::*;
use proptest::prelude::*;

const NODE: &str = "n";

fn pool_id(shared: bool) -> PoolId {
    PoolId { driver: "gpu.example.com".into(), name: if shared { "network" } else { NODE }.into() }
}

fn amount(of: &str, units: i64) -> Counters {
    BTreeMap::from([(of.into(), Quantity::from_units(units))])
}

/// Returns a pool of 6 devices, of which every second one takes a part of a counter and may be shared.
fn slices(shared: bool) -> Vec<ResourceSlice> {
    let device = |at: usize| {
        let partition = at.is_multiple_of(2);
        let mut device = Device { name: format!("gpu-{at}").into(), ..Device::default() };
        if partition {
            device.consumes = BTreeMap::from([("set".into(), amount("memory", at as i64 + 1))]);
            device.traits.multiple = true;
        }
        device
    };
    let slice = ResourceSlice {
        name: format!("{shared}").into(),
        pool: pool_id(shared),
        generation: 1,
        slices_of_pool: 2,
        reach: if shared { Reach::All } else { Reach::Node(NODE.into()) },
        devices: (0..6).map(device).collect(),
        counters: BTreeMap::new(),
    };
    let counters = BTreeMap::from([("set".into(), amount("memory", 10))]);
    let of_counters = ResourceSlice {
        name: format!("{shared} counters").into(),
        devices: [].into(),
        counters,
        ..slice.clone()
    };
    vec![slice, of_counters]
}

/// Pool, device, administrative access and units of capacity for a share of one device. Each device is shared or whole, and then several
/// claims may have it, as schedulers may disagree.
type Held = (bool, usize, bool, i64);

fn allocated((shared, device, admin_access, units): Held) -> AllocatedDevice {
    let share = device.is_multiple_of(2).then(|| Arc::from("share"));
    let consumed = share.iter().map(|_| ("memory".into(), Quantity::from_units(units))).collect();
    AllocatedDevice {
        id: DeviceId { pool: pool_id(shared), device: format!("gpu-{device}").into() },
        admin_access,
        share,
        consumed,
        ..AllocatedDevice::default()
    }
}

proptest! {
    #[test]
    fn devices_without_some_claims_are_what_a_recount_without_them_gives_and_with_them_again_as_before(
        held in prop::collection::vec(((any::<bool>(), 0usize..6, any::<bool>(), 0i64..4), any::<bool>()), 0..20),
    ) {
        let mut pools = DevicePools::default();
        [true, false].into_iter().flat_map(slices).for_each(|slice| drop(pools.apply_slice(slice.into())));
        let held: Vec<_> = held
            .into_iter()
            .enumerate()
            .map(|(at, (held, leaves))| {
                let claim = ClaimName { namespace: "ns".into(), name: format!("claim-{at}").into() };
                (claim, allocated(held), leaves)
            })
            .collect();
        for (claim, device, _) in &held {
            pools.set_allocation(claim, Some(&ClaimAllocation { devices: [device.clone()].into(), nodes: None }));
        }
        let before = pools.on(NODE).expect("it has a pool");
        let leaving: Vec<_> = held.iter().filter(|(_, _, leaves)| *leaves).collect();
        let without = before.with(leaving.iter().map(|(_, device, _)| device));
        for (claim, ..) in &leaving {
            pools.set_allocation(claim, None);
        }
        let recounted = pools.on(NODE).expect("it has a pool");
        prop_assert_eq!(used(&without), used(&recounted));
        let again = without.without(leaving.iter().map(|(_, device, _)| device));
        prop_assert_eq!(used(&again), used(&before));
        for (claim, ..) in &held {
            pools.set_allocation(claim, None);
        }
        let nothing = pools.on(NODE).expect("it has a pool");
        prop_assert_eq!(&before.unused().own, &nothing.own);
    }
}

/// What is in use of a pool, and left.
type InUse = (Vec<DeviceUse>, BTreeMap<Arc<str>, Counters>);

/// Returns what is in use of each pool, without shares of nothing.
fn used(devices: &NodeDevices) -> Vec<InUse> {
    let plain = |used: &DeviceUse| {
        let mut used = used.clone();
        used.consumed.retain(|_, amount| *amount != Quantity::ZERO);
        used
    };
    let pools = devices.own.iter().chain(devices.shared.iter());
    pools.map(|pool| (pool.used.iter().map(plain).collect(), pool.left.clone())).collect()
}

#[test]
fn a_pool_with_counters_is_a_matter_of_its_own_node_once_it_is_complete() {
    let mut pools = DevicePools::default();
    let [devices, counters] = <[ResourceSlice; 2]>::try_from(slices(false)).expect("two slices");
    pools.apply_slice(counters.into());
    assert!(pools.shared().is_some(), "its devices are missing, so that nobody knows how many it has");
    let news = pools.apply_slice(devices.into());
    assert!(news.everywhere && news.nodes.contains(NODE));
    assert!(pools.shared().is_none() && pools.on(NODE).is_some_and(|on| on.own.len() == 1));
}
