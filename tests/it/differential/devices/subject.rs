//! berth as subject: its device allocator, for each node of a scenario.

use std::sync::Arc;

use berth_devices::{ClaimAllocation, allocate};
use berth_kube_io::{Interner, LeanDeviceClass, LeanObject, LeanResourceClaim, LeanResourceSlice};
use berth_model::{DeviceClaimSource, Labels, Pod, PodDeviceClaim};
use berth_scheduler::objects::{ClusterObject, ObjectStores};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::json::{list, text};
use super::{ClaimResult, DeviceResult};

/// Returns for each node of the scenario the devices of each claim, or why the claims do not fit it.
pub fn subject(scenario: &Value) -> Vec<Result<Vec<ClaimResult>, String>> {
    let mut stores = ObjectStores::default();
    apply_all::<LeanDeviceClass>(&mut stores, &scenario["classes"]);
    apply_all::<LeanResourceSlice>(&mut stores, &scenario["slices"]);
    apply_all::<LeanResourceClaim>(&mut stores, &scenario["allocated"]);
    apply_all::<LeanResourceClaim>(&mut stores, &scenario["claims"]);
    let claims = list(&scenario["claims"]);
    let entry = |claim: &Value| PodDeviceClaim {
        entry: "of the pod".into(),
        source: DeviceClaimSource::Named(text(&claim["metadata"]["name"]).into()),
    };
    let namespace = claims.first().map_or("", |claim| text(&claim["metadata"]["namespace"]));
    let pod =
        Pod { namespace: namespace.into(), devices: claims.iter().map(entry).collect(), ..Pod::default() };
    let resolved = stores.devices.resolve(&pod);
    let nodes = list(&scenario["nodes"]).iter();
    let on = |node: &Value| {
        if let Some(refusal) = &resolved.needs.refusal {
            return Err(refusal.to_string());
        }
        let name = text(&node["metadata"]["name"]);
        let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
        let labels: Labels = labels.map(|(key, value)| (key.as_str(), text(value))).collect();
        let pools = &stores.devices.pools;
        let devices = pools.on(name).or_else(|| pools.shared()).unwrap_or_default();
        match allocate(&resolved.needs.unallocated, &devices, name, &labels) {
            Ok(given) => Ok(given.iter().map(result).collect()),
            Err(why) => Err(format!("{why:?}")),
        }
    };
    nodes.map(on).collect()
}

fn apply_all<K: LeanObject + DeserializeOwned>(stores: &mut ObjectStores, objects: &Value) {
    for object in list(objects) {
        let lean: K = serde_json::from_value(object.clone()).expect("an object of its kind");
        let object: ClusterObject = lean.into_object(&mut Interner::default());
        stores.apply(object);
    }
}

fn result(allocation: &ClaimAllocation) -> ClaimResult {
    let amount = |(name, amount): &(Arc<str>, berth_model::Quantity)| {
        (name.to_string(), format!("{}m", amount.nano() / 1_000_000))
    };
    let devices = allocation.devices.iter().map(|device| DeviceResult {
        request: device.request.to_string(),
        driver: device.id.pool.driver.to_string(),
        pool: device.id.pool.name.to_string(),
        device: device.id.device.to_string(),
        consumed: device.consumed.iter().map(amount).collect(),
        admin: device.admin_access,
    });
    ClaimResult { devices: devices.collect() }
}
