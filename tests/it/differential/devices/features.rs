//! What a scenario contains, as a measure of coverage.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{fields, list, text};
use super::oracle::Answer;

/// Features that must be common in scenarios, both with nodes that fit and with nodes that do not.
pub const MUST_BE_SEEN: &[&str] = &[
    "slice: nodeName",
    "slice: nodeSelector",
    "slice: allNodes",
    "slice: perDeviceNodeSelection",
    "pool: incomplete",
    "pool: two generations",
    "pool: duplicate device",
    "attribute: bool",
    "attribute: bool with domain",
    "attribute: int",
    "attribute: int with domain",
    "attribute: string",
    "attribute: string with domain",
    "attribute: version",
    "attribute: version with domain",
    "selector: ==",
    "selector: in",
    "selector: quantity",
    "selector: semver",
    "selector: has",
    "selector: bind",
    "selector: and",
    "selector: or",
    "selector: not",
    "selector: conditional",
    "selector: order",
    "selector: text function",
    "selector: fails",
    "request: all",
    "request: several",
    "request: alternatives",
    "request: admin access",
    "request: tolerations",
    "request: capacity",
    "constraint: matchAttribute",
    "constraint: matchAttribute of requests",
    "constraint: distinctAttribute",
    "constraint: distinctAttribute of requests",
    "device: taint",
    "device: counters",
    "device: shareable",
    "device: policy with default",
    "device: policy with values",
    "device: policy with range",
    "device: binding conditions",
    "allocated: exclusively",
    "allocated: shared",
    "allocated: admin access",
];

pub fn features(scenario: &Value, answer: &Answer) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    of_pools(scenario, &mut found);
    for slice in list(&scenario["slices"]) {
        for reach in ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"] {
            if !slice["spec"][reach].is_null() && slice["spec"]["devices"].is_array() {
                found.insert(full_name("slice: ", reach));
            }
        }
        list(&slice["spec"]["devices"]).iter().for_each(|device| of_device(device, &mut found));
    }
    list(&scenario["claims"]).iter().for_each(|claim| of_claim(&claim["spec"]["devices"], &mut found));
    for (expression, results) in &answer.selectors {
        of_selector(expression, &mut found);
        if results.values().any(|result| !matches!(result.as_str(), "true" | "false")) {
            found.insert("selector: fails");
        }
    }
    for claim in list(&scenario["allocated"]) {
        for result in list(&claim["status"]["allocation"]["devices"]["results"]) {
            found.insert(match () {
                () if result["adminAccess"] == true => "allocated: admin access",
                () if result["shareID"].is_string() => "allocated: shared",
                () => "allocated: exclusively",
            });
        }
    }
    found
}

/// Returns the one of [`MUST_BE_SEEN`] that consists of these parts.
fn full_name(area: &str, name: &str) -> &'static str {
    let is_it = |known: &&&str| known.strip_prefix(area) == Some(name);
    MUST_BE_SEEN.iter().find(is_it).unwrap_or_else(|| panic!("{area}{name} is not in the list"))
}

fn of_pools(scenario: &Value, found: &mut BTreeSet<&'static str>) {
    let mut pools: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for slice in list(&scenario["slices"]) {
        let spec = &slice["spec"];
        pools.entry((text(&spec["driver"]), text(&spec["pool"]["name"]))).or_default().push(spec);
    }
    for slices in pools.values() {
        let generation = |spec: &&&Value| spec["pool"]["generation"].as_i64();
        let newest = slices.iter().map(|spec| generation(&spec)).max().flatten();
        let current: Vec<_> = slices.iter().filter(|spec| generation(spec) == newest).collect();
        if current.len() < slices.len() {
            found.insert("pool: two generations");
        }
        if current[0]["pool"]["resourceSliceCount"].as_u64() != Some(current.len() as u64) {
            found.insert("pool: incomplete");
        }
        let devices = || current.iter().flat_map(|spec| list(&spec["devices"]));
        let names: BTreeSet<_> = devices().map(|device| text(&device["name"])).collect();
        if names.len() < devices().count() {
            found.insert("pool: duplicate device");
        }
    }
}

fn of_device(device: &Value, found: &mut BTreeSet<&'static str>) {
    for (name, attribute) in fields(&device["attributes"]) {
        let (kind, _) = fields(attribute).next().expect("an attribute has a value");
        let domain = if name.contains('/') { " with domain" } else { "" };
        found.insert(full_name("attribute: ", &format!("{kind}{domain}")));
    }
    let mut note = |there: bool, feature| there.then(|| found.insert(feature));
    note(device["taints"].is_array(), "device: taint");
    note(device["consumesCounters"].is_array(), "device: counters");
    note(device["allowMultipleAllocations"] == true, "device: shareable");
    note(device["bindingConditions"].is_array(), "device: binding conditions");
    for (_, capacity) in fields(&device["capacity"]) {
        let policy = &capacity["requestPolicy"];
        note(policy["validValues"].is_array(), "device: policy with values");
        note(policy["validRange"].is_object(), "device: policy with range");
        let only = policy["validValues"].is_null() && policy["validRange"].is_null();
        note(policy["default"].is_string() && only, "device: policy with default");
    }
}

fn of_claim(devices: &Value, found: &mut BTreeSet<&'static str>) {
    let mut note = |there: bool, feature| there.then(|| found.insert(feature));
    for request in list(&devices["requests"]) {
        let alternatives = list(&request["firstAvailable"]);
        note(!alternatives.is_empty(), "request: alternatives");
        for wants in alternatives.iter().chain([&request["exactly"]]) {
            note(wants["allocationMode"] == "All", "request: all");
            note(wants["count"].as_u64() > Some(1), "request: several");
            note(wants["adminAccess"] == true, "request: admin access");
            note(wants["tolerations"].is_array(), "request: tolerations");
            note(wants["capacity"].is_object(), "request: capacity");
        }
    }
    for constraint in list(&devices["constraints"]) {
        let named = constraint["requests"].is_array();
        match constraint["matchAttribute"].is_string() {
            true if named => note(true, "constraint: matchAttribute of requests"),
            true => note(true, "constraint: matchAttribute"),
            false if named => note(true, "constraint: distinctAttribute of requests"),
            false => note(true, "constraint: distinctAttribute"),
        };
    }
}

fn of_selector(expression: &str, found: &mut BTreeSet<&'static str>) {
    for (part, feature) in [
        ("==", "selector: =="),
        (" in ", "selector: in"),
        ("quantity(", "selector: quantity"),
        ("semver(", "selector: semver"),
        ("has(", "selector: has"),
        ("cel.bind(", "selector: bind"),
        ("&&", "selector: and"),
        ("||", "selector: or"),
        ("!(", "selector: not"),
        (" ? ", "selector: conditional"),
        (".index <", "selector: order"),
        (".index >", "selector: order"),
        ("startsWith(", "selector: text function"),
        ("matches(", "selector: text function"),
        ("lowerAscii(", "selector: text function"),
    ] {
        if expression.contains(part) {
            found.insert(feature);
        }
    }
}
