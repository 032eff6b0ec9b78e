//! Capacities of devices, and counters of pools.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::json::{fields, list, text};
use super::super::pools::{Pool, PoolDevice, consumed};
use super::super::quantity::{rounded_up, thousandths};
use super::{Use, allocated, ensure, id_of, show};

/// Checks that each device has the requested capacity and, for shareable ones, that the shares do not exceed it.
pub fn check(scenario: &Value, uses: &[Use]) -> Result<(), String> {
    let mut totals: BTreeMap<_, i128> = BTreeMap::new();
    for one in uses {
        let device = one.device.device;
        check_shares(one).map_err(|why| format!("{}: {why}", show(one)))?;
        for (name, capacity) in fields(&device["capacity"]) {
            let share = amount(one.wants, name, capacity);
            let total = totals.entry((one.id(), name)).or_insert_with(|| in_use(scenario, one.id(), name));
            if one.is_shareable() && !one.result.admin {
                *total += share;
            }
            let value = thousandths(text(&capacity["value"]));
            let enough = share <= value && (!one.is_shareable() || one.result.admin || *total <= value);
            ensure(enough, || format!("{}: {total} of {value} thousandths of {name}", show(one)))?;
        }
    }
    Ok(())
}

/// Checks what the result reports as consumed.
fn check_shares(one: &Use) -> Result<(), String> {
    let device = one.device.device;
    for (name, _) in fields(&one.wants["capacity"]["requests"]) {
        ensure(!device["capacity"][name].is_null(), || format!("the device has no {name}"))?;
    }
    let mut expected = BTreeMap::new();
    for (name, capacity) in fields(&device["capacity"]) {
        let share = amount(one.wants, name, capacity);
        ensure(is_allowed(share, &capacity["requestPolicy"]), || format!("{share} thousandths of {name}"))?;
        if one.is_shareable() {
            expected.insert(name.as_str(), share);
        }
    }
    let consumed: BTreeMap<_, _> =
        one.result.consumed.iter().map(|(name, amount)| (name.as_str(), thousandths(amount))).collect();
    let left_out = one.result.admin && consumed.is_empty();
    ensure(left_out || consumed == expected, || format!("consumes {consumed:?} instead of {expected:?}"))
}

/// Whether the device has what is requested of it beside its present shares. Without that, a request for all devices
/// leaves the device out.
pub fn suffice(scenario: &Value, wants: &Value, pool: &Pool, device: &PoolDevice) -> bool {
    let device = device.device;
    let id = (pool.driver, pool.name, text(&device["name"]));
    fields(&wants["capacity"]["requests"]).all(|(name, _)| !device["capacity"][name].is_null())
        && fields(&device["capacity"]).all(|(name, capacity)| {
            let share = amount(wants, name, capacity);
            let total = in_use(scenario, id, name) + share;
            is_allowed(share, &capacity["requestPolicy"]) && total <= thousandths(text(&capacity["value"]))
        })
}

/// Returns how much of a capacity the request gets.
fn amount(wants: &Value, name: &str, capacity: &Value) -> i128 {
    let policy = &capacity["requestPolicy"];
    let Some(requested) = wants["capacity"]["requests"][name].as_str().map(thousandths) else {
        return thousandths(policy["default"].as_str().unwrap_or(text(&capacity["value"])));
    };
    let range = &policy["validRange"];
    if let Some(least) = range["min"].as_str().map(thousandths) {
        return match range["step"].as_str().map(thousandths) {
            _ if requested <= least => least,
            None => requested,
            Some(step) => {
                let above = rounded_up(requested) - rounded_up(least);
                rounded_up(least) + (above + step - 1).div_euclid(step) * step
            }
        };
    }
    let mut values = list(&policy["validValues"]).iter().map(|value| thousandths(text(value)));
    values.find(|value| requested <= *value).unwrap_or(requested)
}

fn is_allowed(amount: i128, policy: &Value) -> bool {
    let values = list(&policy["validValues"]);
    let most = policy["validRange"]["max"].as_str().map(thousandths);
    (values.is_empty() || values.iter().any(|value| thousandths(text(value)) == amount))
        && most.is_none_or(|most| amount <= most)
}

/// Returns what allocated claims consume of a capacity.
fn in_use(scenario: &Value, id: (&str, &str, &str), name: &str) -> i128 {
    let shares = allocated(scenario).filter(|result| result["shareID"].is_string() && id_of(result) == id);
    shares.filter_map(|result| result["consumedCapacity"][name].as_str()).map(thousandths).sum()
}

/// Checks that devices with a first owner do not make a pool's devices consume more counters than there are.
pub fn check_counters(scenario: &Value, pools: &[Pool], uses: &[Use]) -> Result<(), String> {
    let before: BTreeSet<_> = allocated(scenario).map(id_of).collect();
    let is_new = |one: &&Use| !one.result.admin && !before.contains(&one.id());
    for pool in pools {
        let is_owned = |device: &&&Value| before.contains(&(pool.driver, pool.name, text(&device["name"])));
        let new: BTreeMap<_, _> = uses.iter().filter(is_new).map(|one| (one.id(), one)).collect();
        let new = new.into_values().filter(|one| std::ptr::eq(one.pool, pool)).map(|one| &one.device.device);
        let mut totals = BTreeMap::new();
        for device in pool.everywhere.iter().filter(is_owned).chain(new) {
            consumed(device).for_each(|(key, amount)| *totals.entry(key).or_insert(0) += amount);
        }
        for one in uses.iter().filter(is_new).filter(|one| std::ptr::eq(one.pool, pool)) {
            for (key, _) in consumed(one.device.device) {
                let (total, most) = (totals[&key], pool.counters[&key]);
                ensure(total <= most, || format!("{}: {total} of {most} thousandths of {key:?}", show(one)))?;
            }
        }
    }
    Ok(())
}
