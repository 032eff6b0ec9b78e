//! DynamicResources: the node must reach the devices of allocated claims, and have devices for the others.
//!
//! Upstream takes the first node that fits. Here nodes are ranked: by how much wanted the served alternatives are, then by
//! how few devices the node would have left, so that large requests to come find whole nodes.

use super::reasons::Reasons;
use super::resources_fit;
use crate::class::Class;
use crate::inventory::Row;
use berth_devices::{AllocatedDevice, ClaimAllocation, Fit, NodeDevices, allocate, fit};
use berth_model::DeviceNeeds;

/// Returns how the node serves the claims: 0 is best, below [`resources_fit::STEPS`]. `None`: it needs no devices for them.
///
/// # Errors
/// Why it does not.
pub fn answer(needs: &DeviceNeeds, row: &Row) -> Result<Option<u16>, Reasons> {
    if needs.refusal.is_some() {
        return Err(Reasons::DEVICES_REFUSED);
    }
    let Some(node) = &row.node else {
        return Err(Reasons::NO_DEVICES);
    };
    if !needs.allocated.iter().all(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels))) {
        return Err(Reasons::DEVICES_NOT_REACHED);
    }
    let wanted = needs.on(&node.extended);
    if wanted.is_empty() {
        return Ok(None);
    }
    let nothing = NodeDevices::default();
    let devices = row.devices.as_deref().unwrap_or(&nothing);
    match fit(&wanted, devices, &node.name, &node.labels) {
        Some(fit) => Ok(Some(step(&fit))),
        None => Err(Reasons::NO_DEVICES),
    }
}

/// Returns which request the node cannot serve, and what became of its devices.
pub fn device_shortage(class: &Class, row: &Row) -> Option<String> {
    let (needs, node) = (class.spec.devices.as_ref()?, row.node.as_ref()?);
    let nothing = NodeDevices::default();
    let devices = row.devices.as_deref().unwrap_or(&nothing);
    let why = allocate(&needs.on(&node.extended), devices, &node.name, &node.labels).err()?;
    Some(why.to_string())
}

/// Takes devices for a pod of this class from the row: for plans with several pods. `None`: it has too few.
pub fn take_devices(class: &Class, row: &mut Row) -> Option<Vec<ClaimAllocation>> {
    let (Some(needs), Some(node)) = (&class.spec.devices, &row.node) else {
        return Some(Vec::new());
    };
    let wanted = needs.on(&node.extended);
    if wanted.is_empty() {
        return Some(Vec::new());
    }
    let devices = row.devices.as_ref()?;
    let given = allocate(&wanted, devices, &node.name, &node.labels).ok()?;
    row.devices = Some(devices.without(given.iter().flat_map(|claim| &claim.devices)).into());
    Some(given)
}

/// Frees devices that are in use: for plans without some pods.
pub fn free_devices<'a>(freed: impl IntoIterator<Item = &'a AllocatedDevice>, row: &mut Row) {
    if let Some(devices) = &row.devices {
        row.devices = Some(devices.with(freed).into());
    }
}

/// Reverts [`free_devices`].
pub fn use_devices<'a>(used: impl IntoIterator<Item = &'a AllocatedDevice>, row: &mut Row) {
    if let Some(devices) = &row.devices {
        row.devices = Some(devices.without(used).into());
    }
}

/// Returns whether a pod of this class, for which the node has too few devices, could have enough without pods of a lower priority, or
/// of quotas that lend (`lent`). Devices that other nodes reach, too, are taken to be free then.
pub fn could_free_devices(class: &Class, priority: i32, lent: bool, row: &Row) -> bool {
    let (Some(needs), Some(node), Some(devices)) = (&class.spec.devices, &row.node, &row.devices) else {
        return false;
    };
    let lower = row.tiers.below(priority).last().is_some_and(|tier| tier.claimants > 0);
    let fits = || fit(&needs.on(&node.extended), &devices.unused(), &node.name, &node.labels).is_some();
    (lower || lent) && (!devices.shared.is_empty() || fits())
}

/// Eight steps for the alternatives, if there are any to choose from, and as many for what is left.
fn step(fit: &Fit) -> u16 {
    const STEPS: u16 = resources_fit::STEPS;
    const EACH: u16 = 8;
    let left = |steps: u16| (u32::from(fit.left_permille) * u32::from(steps - 1) / 1000) as u16;
    match fit.alternatives {
        None => left(STEPS),
        Some(passed_over) => passed_over.min(EACH - 1) * EACH + left(EACH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_more_wanted_alternative_counts_more_than_devices_that_are_left() {
        let fit = |alternatives, left_permille| Fit { alternatives, left_permille };
        assert!(step(&fit(Some(0), 1000)) < step(&fit(Some(1), 0)));
        assert!(step(&fit(Some(1), 250)) < step(&fit(Some(1), 750)));
        assert!(step(&fit(None, 10)) < step(&fit(None, 40)), "finer where nothing is to choose");
        assert!(
            step(&fit(Some(40), 1000)) < resources_fit::STEPS
                && step(&fit(None, 1000)) < resources_fit::STEPS
        );
    }
}
