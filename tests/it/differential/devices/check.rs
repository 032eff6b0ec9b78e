//! Checker of proposed devices, which works on the API's objects and shares no code with an allocator. It does not
//! judge whether other devices would have been better.

mod amounts;
mod constraints;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{list, text};
use super::oracle::Selectors;
use super::pools::{Pool, PoolDevice, pools};
use super::{ClaimResult, DeviceResult};

/// Results of one claim: `status.allocation.devices.results` of a claim may have as many.
const RESULTS_MAX: usize = 32;

/// One result, with the objects that it names.
struct Use<'a> {
    /// Index of the claim.
    claim: usize,
    result: &'a DeviceResult,
    /// `exactly`, or the alternative.
    wants: &'a Value,
    pool: &'a Pool<'a>,
    device: &'a PoolDevice<'a>,
}

impl Use<'_> {
    fn id(&self) -> (&str, &str, &str) {
        (self.pool.driver, self.pool.name, text(&self.device.device["name"]))
    }

    fn is_shareable(&self) -> bool {
        self.device.device["allowMultipleAllocations"] == true
    }
}

/// Checks the devices that are proposed for each claim of the scenario on the node. CEL is not evaluated: expressions
/// that `selectors` does not have are not checked.
///
/// # Errors
/// Returns what is wrong.
pub fn check(
    scenario: &Value,
    node: &Value,
    allocation: &[ClaimResult],
    selectors: &Selectors,
) -> Result<(), String> {
    let claims = list(&scenario["claims"]);
    ensure(claims.len() == allocation.len(), || {
        format!("{} results for {} claims", allocation.len(), claims.len())
    })?;
    let pools = pools(scenario, node);
    let mut uses = Vec::new();
    for (at, (claim, results)) in claims.iter().zip(allocation).enumerate() {
        ensure(results.devices.len() <= RESULTS_MAX, || {
            format!("more than {RESULTS_MAX} devices for a claim")
        })?;
        let claim = &claim["spec"]["devices"];
        let of_claim = results.devices.iter().map(|result| resolve(at, claim, result, &pools));
        let of_claim: Vec<_> = of_claim.collect::<Result<_, _>>()?;
        for one in &of_claim {
            check_device(scenario, one, selectors).map_err(|why| format!("{}: {why}", show(one)))?;
        }
        for request in list(&claim["requests"]) {
            check_request(scenario, request, &of_claim, &pools, selectors)
                .map_err(|why| format!("claim {at}, request {}: {why}", request["name"]))?;
        }
        constraints::check(claim, &of_claim)?;
        uses.extend(of_claim);
    }
    check_uses(scenario, &uses)?;
    amounts::check(scenario, &uses)?;
    amounts::check_counters(scenario, &pools, &uses)
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn show(one: &Use) -> String {
    let (driver, pool, device) = one.id();
    format!("claim {}, request {}, device {driver}/{pool}/{device}", one.claim, one.result.request)
}

fn resolve<'a>(
    claim: usize,
    spec: &'a Value,
    result: &'a DeviceResult,
    pools: &'a [Pool<'a>],
) -> Result<Use<'a>, String> {
    let named = |list: &'a [Value], name: &str| list.iter().find(|it| it["name"] == name);
    let requests = list(&spec["requests"]);
    let wants = match result.request.split_once('/') {
        Some((request, alternative)) => {
            named(requests, request).and_then(|request| named(list(&request["firstAvailable"]), alternative))
        }
        None => {
            named(requests, &result.request).map(|request| &request["exactly"]).filter(|it| it.is_object())
        }
    };
    let wants = wants.ok_or_else(|| format!("claim {claim} has no request {:?}", result.request))?;
    let pool = pools.iter().find(|pool| pool.driver == result.driver && pool.name == result.pool);
    let pool = pool.ok_or_else(|| format!("the node reaches no pool {}/{}", result.driver, result.pool))?;
    if let Some(why) = pool.unusable {
        return Err(format!("{}/{}: {why}", result.driver, result.pool));
    }
    let device = pool.devices.iter().find(|it| it.device["name"] == result.device);
    let device = device.ok_or_else(|| format!("the node reaches no device {result:?}"))?;
    Ok(Use { claim, result, wants, pool, device })
}

/// Checks what concerns one device alone.
fn check_device(scenario: &Value, one: &Use, selectors: &Selectors) -> Result<(), String> {
    let admin = one.wants["adminAccess"] == true;
    ensure(admin == one.result.admin, || format!("admin access is {}", one.result.admin))?;
    for taint in list(&one.device.device["taints"]) {
        let tolerated = list(&one.wants["tolerations"]).iter().any(|toleration| tolerates(toleration, taint));
        ensure(tolerated || taint["effect"] == "None", || format!("the taint {taint} is not tolerated"))?;
    }
    match selected(scenario, one.wants, one.device, selectors)? {
        None => Ok(()),
        Some(expression) => Err(format!("not selected by {expression:?}")),
    }
}

/// Returns an expression that does not select the device.
fn selected<'a>(
    scenario: &'a Value,
    wants: &'a Value,
    device: &PoolDevice,
    selectors: &Selectors,
) -> Result<Option<&'a str>, String> {
    let class =
        list(&scenario["classes"]).iter().find(|it| it["metadata"]["name"] == wants["deviceClassName"]);
    let class = class.ok_or_else(|| format!("no class {}", wants["deviceClassName"]))?;
    let key = format!("{}/{}", device.slice, text(&device.device["name"]));
    let all = list(&class["spec"]["selectors"]).iter().chain(list(&wants["selectors"]));
    let mut all = all.map(|selector| text(&selector["cel"]["expression"]));
    let selects = |expression: &str| {
        selectors.get(expression).and_then(|results| results.get(&key)).is_none_or(|result| result == "true")
    };
    Ok(all.find(|expression| !selects(expression)))
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let any_or = |field: &str| text(&toleration[field]).is_empty() || toleration[field] == taint[field];
    let value = toleration["operator"] == "Exists" || text(&toleration["value"]) == text(&taint["value"]);
    any_or("effect") && any_or("key") && value
}

/// Checks the number of devices, and that they are those of one alternative.
fn check_request(
    scenario: &Value,
    request: &Value,
    uses: &[Use],
    pools: &[Pool],
    selectors: &Selectors,
) -> Result<(), String> {
    let name = text(&request["name"]);
    let is_for = |one: &&Use| one.result.request.split('/').next() == Some(name);
    let uses: Vec<_> = uses.iter().filter(is_for).collect();
    let names: BTreeSet<_> = uses.iter().map(|one| &one.result.request).collect();
    ensure(names.len() <= 1, || format!("devices of several alternatives: {names:?}"))?;
    let first = uses.first().ok_or("no devices")?;
    let devices: BTreeSet<_> = uses.iter().map(|one| one.id()).collect();
    ensure(devices.len() == uses.len(), || "one device twice".to_owned())?;
    if first.wants["allocationMode"] != "All" {
        let count = &first.wants["count"];
        return ensure(count.as_u64() == Some(uses.len() as u64), || {
            format!("{} devices of {count}", uses.len())
        });
    }
    for pool in pools {
        ensure(pool.unusable.is_none(), || {
            format!("all devices, but of {}: {:?}", pool.name, pool.unusable)
        })?;
        for device in &pool.devices {
            let wanted = selected(scenario, first.wants, device, selectors)?.is_none()
                && amounts::suffice(scenario, first.wants, pool, device);
            let id = (pool.driver, pool.name, text(&device.device["name"]));
            ensure(devices.contains(&id) == wanted || !selectors_known(selectors), || {
                format!("of all devices, {id:?} is {}", if wanted { "missing" } else { "not one" })
            })?;
        }
    }
    Ok(())
}

fn selectors_known(selectors: &Selectors) -> bool {
    !selectors.is_empty()
}

/// Checks that nobody else has the devices.
fn check_uses(scenario: &Value, uses: &[Use]) -> Result<(), String> {
    let exclusive = allocated(scenario).filter(|result| !result["shareID"].is_string());
    let taken: BTreeSet<_> = exclusive.map(id_of).collect();
    let (mut in_claim, mut owners) = (BTreeSet::new(), BTreeMap::new());
    for one in uses {
        ensure(one.result.admin || !taken.contains(&one.id()), || {
            format!("{}: allocated already", show(one))
        })?;
        if one.is_shareable() {
            continue;
        }
        ensure(in_claim.insert((one.claim, one.id())), || format!("{}: twice in a claim", show(one)))?;
        if !one.result.admin {
            let other = owners.insert(one.id(), one.claim);
            ensure(other.is_none(), || format!("{}: in claim {other:?}, too", show(one)))?;
        }
    }
    Ok(())
}

/// Returns the results of allocated claims, except for those with admin access.
fn allocated(scenario: &Value) -> impl Iterator<Item = &Value> {
    let claims = list(&scenario["allocated"]).iter();
    let all = claims.flat_map(|claim| list(&claim["status"]["allocation"]["devices"]["results"]));
    all.filter(|result| result["adminAccess"] != true)
}

fn id_of(result: &Value) -> (&str, &str, &str) {
    (text(&result["driver"]), text(&result["pool"]), text(&result["device"]))
}
