//! Wrong devices that the checker refuses.

use serde_json::{Value, json};

use super::check::check;
use super::oracle::Selectors;
use super::{ClaimResult, DeviceResult};

const DRIVER: &str = "gpu.example.com";

/// One node with devices `a` to `d` and a shareable one, in one pool; another pool is incomplete, the third invalid.
fn scenario(requests: &Value) -> Value {
    let attributes = |model: &str| json!({"model": {"string": model}});
    let counters = |amount: &str| json!([{"counterSet": "set", "counters": {"parts": {"value": amount}}}]);
    let policy = json!({"default": "1Gi", "validValues": ["1Gi", "2Gi"]});
    let slice = |name: &str, pool: &str, declared: u32, reach: (&str, Value), content: (&str, Value)| {
        let pool = json!({"name": pool, "generation": 1, "resourceSliceCount": declared});
        json!({"metadata": {"name": name}, "spec": {
            "driver": DRIVER, "pool": pool, reach.0: reach.1, content.0: content.1,
        }})
    };
    let all = || ("allNodes", json!(true));
    let devices = json!([
        {"name": "a", "attributes": attributes("x"), "consumesCounters": counters("2")},
        {"name": "b", "attributes": attributes("x"), "consumesCounters": counters("2")},
        {"name": "c", "attributes": attributes("y")},
        {"name": "d", "taints": [{"key": "broken", "effect": "NoSchedule"}]},
        {
            "name": "shared", "allowMultipleAllocations": true,
            "capacity": {"memory": {"value": "4Gi", "requestPolicy": policy}},
        },
    ]);
    let twice = json!([{"name": "a"}, {"name": "a"}]);
    let set = json!([{"name": "set", "counters": {"parts": {"value": "3"}}}]);
    json!({
        "nodes": [{"metadata": {"name": "n", "labels": {}}}],
        "classes": [{"metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": "selected"}}]}}],
        "slices": [
            slice("1", "p", 2, all(), ("devices", devices)),
            slice("2", "p", 2, all(), ("sharedCounters", set)),
            slice("3", "incomplete", 2, all(), ("devices", json!([{"name": "a"}]))),
            slice("4", "invalid", 1, all(), ("devices", twice)),
            slice("5", "elsewhere", 1, ("nodeName", json!("other")), ("devices", json!([{"name": "a"}]))),
        ],
        "claims": [{"spec": {"devices": {"requests": requests}}}],
        "allocated": [],
    })
}

fn exactly(more: &Value) -> Value {
    request("r", more)
}

fn request(name: &str, more: &Value) -> Value {
    let mut wants = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    more.as_object().into_iter().flatten().for_each(|(name, value)| wants[name] = value.clone());
    json!({"name": name, "exactly": wants})
}

fn device(name: &str) -> DeviceResult {
    of_pool("p", name)
}

fn of_pool(pool: &str, name: &str) -> DeviceResult {
    let [request, driver, pool, device] = ["r", DRIVER, pool, name].map(str::to_owned);
    DeviceResult { request, driver, pool, device, ..DeviceResult::default() }
}

fn share(amount: &str) -> DeviceResult {
    let consumed = [("memory".to_owned(), amount.to_owned())].into();
    DeviceResult { consumed, ..device("shared") }
}

fn for_request(request: &str, device: DeviceResult) -> DeviceResult {
    DeviceResult { request: request.to_owned(), ..device }
}

fn checked(scenario: &Value, devices: &[DeviceResult]) -> Result<(), String> {
    let allocation = [ClaimResult { devices: devices.to_vec() }];
    check(scenario, &scenario["nodes"][0], &allocation, &selectors())
}

/// The class selects all devices except for `d` and those of other pools.
fn selectors() -> Selectors {
    let results = ["a", "b", "c", "shared"].map(|name| (format!("1/{name}"), "true".to_owned()));
    let others = [("1/d".to_owned(), "false".to_owned())];
    [("selected".to_owned(), results.into_iter().chain(others).collect())].into()
}

#[track_caller]
fn refused(scenario: &Value, devices: &[DeviceResult], why: &str) {
    let error = checked(scenario, devices).expect_err("it is refused");
    assert!(error.contains(why), "{error}");
}

fn with_allocated(mut scenario: Value, result: &Value) -> Value {
    scenario["allocated"] = json!([{"status": {"allocation": {"devices": {"results": [result]}}}}]);
    scenario
}

#[test]
fn it_accepts_right_devices() {
    let two = scenario(&json!([request("r", &json!({"count": 2})), request("s", &Value::Null)]));
    let devices = [device("a"), device("c"), for_request("s", share("1Gi"))];
    assert_eq!(checked(&two, &devices), Ok(()));
}

#[test]
fn it_refuses_devices_that_the_request_does_not_want() {
    let one = scenario(&json!([exactly(&Value::Null)]));
    refused(&one, &[], "no devices");
    refused(&one, &[device("a"), device("c")], "2 devices of 1");
    refused(&one, &[for_request("s", device("a"))], "no request \"s\"");
    refused(&one, &[DeviceResult { admin: true, ..device("a") }], "admin access");
    refused(&one, &[device("d")], "the taint");
    let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
    refused(&scenario(&json!([exactly(&tolerant)])), &[device("d")], "not selected by \"selected\"");
}

#[test]
fn it_refuses_devices_that_the_node_cannot_have() {
    let one = scenario(&json!([exactly(&Value::Null)]));
    refused(&one, &[device("missing")], "reaches no device");
    refused(&one, &[of_pool("elsewhere", "a")], "reaches no pool");
    refused(&one, &[of_pool("incomplete", "a")], "the pool is incomplete");
    refused(&one, &[of_pool("invalid", "a")], "two devices of one name");
}

#[test]
fn it_refuses_devices_of_an_old_generation() {
    let mut one = scenario(&json!([exactly(&Value::Null)]));
    let mut newer = one["slices"][0].clone();
    newer["metadata"]["name"] = "6".into();
    newer["spec"]["pool"] = json!({"name": "p", "generation": 2, "resourceSliceCount": 1});
    newer["spec"]["devices"] = json!([{"name": "new"}]);
    one["slices"].as_array_mut().expect("it is one").push(newer);
    refused(&one, &[device("c")], "reaches no device");
}

#[test]
fn it_refuses_devices_that_have_an_owner() {
    let two = scenario(&json!([request("r", &Value::Null), request("s", &Value::Null)]));
    refused(&two, &[device("c"), for_request("s", device("c"))], "twice in a claim");
    let one = scenario(&json!([exactly(&Value::Null)]));
    let owned = with_allocated(one, &json!({"driver": DRIVER, "pool": "p", "device": "c"}));
    refused(&owned, &[device("c")], "allocated already");
    let mut claims = scenario(&json!([exactly(&Value::Null)]));
    let claim = claims["claims"][0].clone();
    claims["claims"].as_array_mut().expect("it is one").push(claim);
    let both = [ClaimResult { devices: vec![device("c")] }, ClaimResult { devices: vec![device("c")] }];
    let error = check(&claims, &claims["nodes"][0], &both, &selectors()).expect_err("it is refused");
    assert!(error.contains("in claim Some(0), too"), "{error}");
}

#[test]
fn it_refuses_all_devices_without_one_of_them() {
    let all = scenario(&json!([exactly(&json!({"allocationMode": "All"}))]));
    refused(&all, &[device("c")], "all devices, but of");
    let mut complete = all;
    let slices = complete["slices"].as_array_mut().expect("it is one");
    slices.retain(|slice| slice["spec"]["pool"]["name"] == "p");
    complete["slices"][1]["spec"]["sharedCounters"][0]["counters"]["parts"]["value"] = "4".into();
    refused(&complete, &[device("a"), device("b"), device("c")], "is missing");
    assert_eq!(checked(&complete, &[device("a"), device("b"), device("c"), share("1Gi")]), Ok(()));
}

#[test]
fn it_refuses_devices_of_two_alternatives() {
    let wants =
        |name| json!({"name": name, "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    let either = scenario(&json!([{"name": "r", "firstAvailable": [wants("x"), wants("y")]}]));
    let devices = [for_request("r/x", device("a")), for_request("r/y", device("c"))];
    assert_eq!(checked(&either, &devices[1..]), Ok(()));
    refused(&either, &devices, "several alternatives");
    refused(&either, &[device("a")], "no request \"r\"");
}

#[test]
fn it_refuses_devices_that_break_a_constraint() {
    let mut two = scenario(&json!([exactly(&json!({"count": 2}))]));
    let constraint = |two: &mut Value, kind: &str, name: &str| {
        two["claims"][0]["spec"]["devices"]["constraints"] = json!([{"requests": ["r"], kind: name}]);
    };
    constraint(&mut two, "matchAttribute", "gpu.example.com/model");
    refused(&two, &[device("a"), device("c")], "does not hold");
    refused(&two, &[device("c"), share("1Gi")], "without the attribute");
    constraint(&mut two, "distinctAttribute", "gpu.example.com/model");
    assert_eq!(checked(&two, &[device("a"), device("c")]), Ok(()));
    two["slices"][1]["spec"]["sharedCounters"][0]["counters"]["parts"]["value"] = "4".into();
    refused(&two, &[device("a"), device("b")], "does not hold");
}

#[test]
fn it_refuses_more_than_there_is_of_a_counter() {
    let two = scenario(&json!([exactly(&json!({"count": 2}))]));
    refused(&two, &[device("a"), device("b")], "4000 of 3000 thousandths");
    let one = scenario(&json!([exactly(&Value::Null)]));
    let owned = with_allocated(one, &json!({"driver": DRIVER, "pool": "p", "device": "b"}));
    refused(&owned, &[device("a")], "4000 of 3000 thousandths");
}

#[test]
fn it_refuses_more_than_there_is_of_a_capacity() {
    let wants =
        |amount: &str| scenario(&json!([exactly(&json!({"capacity": {"requests": {"memory": amount}}}))]));
    assert_eq!(checked(&wants("1500Mi"), &[share("2Gi")]), Ok(()));
    refused(&wants("1500Mi"), &[share("1500Mi")], "instead of");
    refused(&wants("3Gi"), &[share("3Gi")], "thousandths of memory");
    refused(&wants("1Gi"), &[device("c")], "has no memory");
    let owned = with_allocated(
        wants("2Gi"),
        &json!({
            "driver": DRIVER, "pool": "p", "device": "shared", "shareID": "1",
            "consumedCapacity": {"memory": "3Gi"},
        }),
    );
    refused(&owned, &[share("2Gi")], "thousandths of memory");
}
