//! Scenarios that are not compared, because kube-scheduler's own answer is known to be wrong there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{list, text};

/// Returns why the scenario is not compared.
pub fn oddity(scenario: &Value) -> Option<&'static str> {
    for claim in list(&scenario["claims"]) {
        let devices = &claim["spec"]["devices"];
        for constraint in list(&devices["constraints"]) {
            let names: Vec<_> = list(&constraint["requests"])
                .iter()
                .map(|name| name.as_str().unwrap_or_default().to_owned())
                .collect();
            if constraint["distinctAttribute"].is_string()
                && !allows_distinct(list(&devices["requests"]), &names)
            {
                return Some("remembers one value per request for distinctAttribute");
            }
        }
    }
    let mut counted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for slice in list(&scenario["slices"]) {
        if list(&slice["spec"]["devices"]).iter().any(shares_are_not_seen) {
            return Some("charges the counters of a shared device without capacity for each share");
        }
        if !list(&slice["spec"]["sharedCounters"]).is_empty() {
            let pool = counted.entry(text(&slice["spec"]["pool"]["name"])).or_default();
            pool.insert(text(&slice["spec"]["driver"]));
        }
    }
    counted
        .values()
        .any(|drivers| drivers.len() > 1)
        .then_some("takes counters of pools of one name for the same")
}

fn shares_are_not_seen(device: &Value) -> bool {
    device["allowMultipleAllocations"] == true
        && !list(&device["consumesCounters"]).is_empty()
        && device["capacity"].as_object().is_none_or(|capacity| capacity.is_empty())
}

/// Whether each of the named requests, or each request if there are no names, gets one device.
pub fn allows_distinct(requests: &[Value], names: &[String]) -> bool {
    let one = |wants: &Value| wants["allocationMode"] == "ExactCount" && wants["count"] == 1;
    requests.iter().all(|request| {
        let name = text(&request["name"]);
        let named = |full: &str| names.iter().any(|named| named == full);
        let whole = names.is_empty() || named(name);
        let alternatives = list(&request["firstAvailable"]).iter();
        (request["exactly"].is_null() || !whole || one(&request["exactly"]))
            && alternatives.filter(|it| whole || named(&format!("{name}/{}", text(&it["name"])))).all(one)
    })
}

/// Whether a pool has slices of several generations, or devices of one name: kube-scheduler looks only at the slices that a node
/// reaches, and may use an old generation there, or one of several devices of one name. berth looks at all slices.
pub fn is_contested(scenario: &Value) -> bool {
    let mut generations: BTreeMap<(&str, &str), BTreeSet<i64>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    let mut is_repeated = false;
    for slice in list(&scenario["slices"]) {
        let pool = &slice["spec"]["pool"];
        let id = (text(&slice["spec"]["driver"]), text(&pool["name"]));
        generations.entry(id).or_default().insert(pool["generation"].as_i64().unwrap_or_default());
        for device in list(&slice["spec"]["devices"]) {
            is_repeated |= !names.insert((id, text(&device["name"])));
        }
    }
    is_repeated || generations.values().any(|of_pool| of_pool.len() > 1)
}
