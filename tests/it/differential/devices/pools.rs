//! Pools as a node sees them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::json::{fields, list, text};
use super::quantity::thousandths;

/// The slices of a pool that count for a node.
pub struct Pool<'a> {
    pub driver: &'a str,
    pub name: &'a str,
    /// Why nothing may be allocated from it now.
    pub unusable: Option<&'static str>,
    /// Devices that the node reaches.
    pub devices: Vec<PoolDevice<'a>>,
    /// All devices of this generation.
    pub everywhere: Vec<&'a Value>,
    /// Amounts in thousandths, by counter set and counter.
    pub counters: BTreeMap<(&'a str, &'a str), i128>,
}

pub struct PoolDevice<'a> {
    /// Name of the slice.
    pub slice: &'a str,
    pub device: &'a Value,
}

pub fn pools<'a>(scenario: &'a Value, node: &Value) -> Vec<Pool<'a>> {
    let mut slices: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
    for slice in list(&scenario["slices"]) {
        let spec = &slice["spec"];
        slices.entry((text(&spec["driver"]), text(&spec["pool"]["name"]))).or_default().push(slice);
    }
    slices.into_iter().filter_map(|(id, slices)| pool(id, &slices, node)).collect()
}

/// Returns nothing for a pool that the node does not reach.
fn pool<'a>((driver, name): (&'a str, &'a str), slices: &[&'a Value], node: &Value) -> Option<Pool<'a>> {
    let generation = |slice: &Value| slice["spec"]["pool"]["generation"].as_i64().unwrap_or_default();
    let relevant = || slices.iter().copied().filter(|slice| is_relevant(&slice["spec"], node));
    let newest = relevant().map(generation).max()?;
    let current: Vec<_> = relevant().filter(|slice| generation(slice) == newest).collect();
    let everywhere: Vec<_> = slices.iter().copied().filter(|slice| generation(slice) == newest).collect();
    let declared = |slices: &[&Value]| {
        slices[0]["spec"]["pool"]["resourceSliceCount"].as_u64() == Some(slices.len() as u64)
    };
    if !declared(&current) && slices.iter().any(|slice| generation(slice) > newest) {
        // It moved away from the node.
        return None;
    }
    let mut pool = Pool {
        driver,
        name,
        unusable: None,
        devices: Vec::new(),
        everywhere: everywhere.iter().flat_map(|slice| list(&slice["spec"]["devices"])).collect(),
        counters: BTreeMap::new(),
    };
    for slice in &current {
        for set in list(&slice["spec"]["sharedCounters"]) {
            for (counter, amount) in fields(&set["counters"]) {
                let key = (text(&set["name"]), counter.as_str());
                pool.counters.insert(key, thousandths(text(&amount["value"])));
            }
        }
        let per_device = slice["spec"]["perDeviceNodeSelection"] == true;
        let devices = list(&slice["spec"]["devices"]).iter();
        let reached = devices.filter(|device| !per_device || reaches(device, node));
        let slice = text(&slice["metadata"]["name"]);
        pool.devices.extend(reached.map(|device| PoolDevice { slice, device }));
    }
    pool.unusable = if !declared(&current) && !declared(&everywhere) {
        Some("the pool is incomplete")
    } else {
        invalid(&current, &pool)
    };
    Some(pool)
}

/// Slices with counters count on every node.
fn is_relevant(spec: &Value, node: &Value) -> bool {
    !list(&spec["sharedCounters"]).is_empty()
        || reaches(spec, node)
        || list(&spec["devices"])
            .iter()
            .any(|device| spec["perDeviceNodeSelection"] == true && reaches(device, node))
}

fn invalid(current: &[&Value], pool: &Pool) -> Option<&'static str> {
    let devices = || current.iter().flat_map(|slice| list(&slice["spec"]["devices"]));
    let names: BTreeSet<_> = devices().map(|device| text(&device["name"])).collect();
    if names.len() < devices().count() {
        return Some("the pool has two devices of one name");
    }
    let unknown = pool
        .everywhere
        .iter()
        .any(|device| consumed(device).any(|(key, _)| !pool.counters.contains_key(&key)));
    unknown.then_some("the pool lacks a counter that a device consumes")
}

/// Returns what the device consumes: counter set, counter and thousandths.
pub fn consumed(device: &Value) -> impl Iterator<Item = ((&str, &str), i128)> {
    list(&device["consumesCounters"]).iter().flat_map(|of_set| {
        let set = text(&of_set["counterSet"]);
        let counters = fields(&of_set["counters"]);
        counters.map(move |(counter, amount)| ((set, counter.as_str()), thousandths(text(&amount["value"]))))
    })
}

/// Whether `nodeName`, `nodeSelector` or `allNodes` of a slice or device covers the node.
fn reaches(of: &Value, node: &Value) -> bool {
    let terms = list(&of["nodeSelector"]["nodeSelectorTerms"]);
    of["allNodes"] == true
        || (of["nodeName"].is_string() && of["nodeName"] == node["metadata"]["name"])
        || terms.iter().any(|term| matches(term, node))
}

fn matches(term: &Value, node: &Value) -> bool {
    let (fields, expressions) = (list(&term["matchFields"]), list(&term["matchExpressions"]));
    let labels = &node["metadata"]["labels"];
    !(fields.is_empty() && expressions.is_empty())
        && fields.iter().all(|field| holds(field, &node["metadata"]["name"]))
        && expressions.iter().all(|expression| holds(expression, &labels[text(&expression["key"])]))
}

fn holds(expression: &Value, value: &Value) -> bool {
    let values = list(&expression["values"]);
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    let numbers = || number(value).zip(values.first().and_then(number));
    match text(&expression["operator"]) {
        "In" => values.contains(value),
        "NotIn" => !values.contains(value),
        "Exists" => !value.is_null(),
        "DoesNotExist" => value.is_null(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        other => panic!("the checker does not know the operator {other:?}"),
    }
}
