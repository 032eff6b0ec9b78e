//! Tests of reading resource claims.

use serde_json::{Value, json};

use super::super::read;
use super::*;
use berth_devices::CLAIM_FINALIZER;
use berth_model::{DeviceTaint, DeviceTaintEffect, Labels};

fn claim(spec: Value, status: Value) -> ResourceClaim {
    let meta = json!({
        "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7",
        "finalizers": ["other", CLAIM_FINALIZER],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "not"},
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod", "controller": true},
        ],
    });
    let object = read::<LeanResourceClaim>(&json!({"metadata": meta, "spec": spec, "status": status}));
    let ClusterObject::ResourceClaim(claim) = object else { panic!("{object:?}") };
    *claim
}

fn of_request(request: Value) -> ResourceClaim {
    claim(json!({"devices": {"requests": [request]}}), json!({}))
}

#[test]
fn a_claim_is_read_with_its_requests_in_their_order() {
    let claim = claim(
        json!({"devices": {
            "requests": [
                {"name": "gpu", "exactly": {
                    "deviceClassName": "gpu", "count": 2, "adminAccess": true,
                    "selectors": [{"cel": {"expression": "true"}}],
                    "capacity": {"requests": {"memory": "1Ki"}},
                    "tolerations": [
                        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
                        {"key": "a", "value": "v"}, {"key": "a", "operator": "Exists", "effect": "None"},
                        {"key": "a", "operator": "Near"},
                    ],
                }},
                {"name": "nic", "firstAvailable": [
                    {"name": "fast", "deviceClassName": "fast", "allocationMode": "All"},
                    {"name": "slow", "deviceClassName": "slow", "allocationMode": "ExactCount"},
                ]},
            ],
            "constraints": [
                {"requests": ["gpu"], "matchAttribute": "example.com/numa"},
                {"distinctAttribute": "example.com/rack"},
            ],
            "config": [{"requests": ["gpu"], "opaque": {"driver": "d", "parameters": {"a": 1}}}],
        }}),
        Value::Null,
    );
    assert_eq!((&*claim.name.namespace, &*claim.name.name, &*claim.uid), ("ns", "c", "u"));
    assert_eq!((claim.version, claim.deleting, claim.invalid.as_deref()), (7, false, None));
    assert_eq!(*claim.finalizers, ["other".into(), CLAIM_FINALIZER.into()]);
    assert_eq!(claim.owner.as_deref(), Some("pod"));
    assert!(claim.allocation.is_none() && claim.reserved.is_empty());

    let [gpu, nic] = &*claim.spec.requests else { panic!("{claim:?}") };
    let [exactly] = &*gpu.alternatives else { panic!("{gpu:?}") };
    assert_eq!((&*exactly.name, &*exactly.class, exactly.count), ("", "gpu", Some(2)));
    assert!(exactly.admin_access && exactly.selectors_of_class == 0);
    assert_eq!(*exactly.selectors, ["true".into()]);
    assert_eq!(*exactly.capacity, [("memory".into(), Quantity::from_units(1024))]);
    let taint = |key: &str, value: &str, effect| DeviceTaint { key: key.into(), value: value.into(), effect };
    let tolerated = |taint: DeviceTaint| -> Vec<bool> {
        exactly.tolerations.iter().map(|toleration| toleration.tolerates(&taint)).collect()
    };
    assert_eq!(tolerated(taint("a", "v", DeviceTaintEffect::NoExecute)), [true, true, false, false]);
    assert_eq!(tolerated(taint("a", "", DeviceTaintEffect::NoSchedule)), [false; 4]);
    assert_eq!(exactly.tolerations[0].seconds, Some(30));
    let alternatives: Vec<_> = nic.alternatives.iter().map(|one| (&*one.name, one.count)).collect();
    assert_eq!(alternatives, [("fast", None), ("slow", Some(1))]);

    let constraints: Vec<_> = claim
        .spec
        .constraints
        .iter()
        .map(|one| (one.requests.len(), &*one.attribute, one.distinct))
        .collect();
    assert_eq!(constraints, [(1, "example.com/numa", false), (0, "example.com/rack", true)]);
    assert_eq!(*claim.config[0].requests, ["gpu".into()]);
    assert_eq!(&*claim.config[0].json, r#"{"opaque":{"driver":"d","parameters":{"a":1}}}"#);
}

#[test]
fn a_claim_with_something_unknown_is_invalid_and_says_where() {
    for (request, field) in [
        (json!({"name": "r"}), ""),
        (json!({"exactly": {}, "firstAvailable": [{"name": "a"}]}), ""),
        (json!({"exactly": {"allocationMode": "Most"}}), ".exactly.allocationMode"),
        (json!({"exactly": {"count": -1}}), ".exactly.count"),
        (json!({"exactly": {"capacity": {"requests": {"m": "much"}}}}), ".exactly.capacity.requests[m]"),
        (json!({"firstAvailable": [{}, {"allocationMode": "Few"}]}), ".firstAvailable[1].allocationMode"),
    ] {
        let claim = of_request(request.clone());
        let why = claim.invalid.expect("it is invalid");
        assert!(why.starts_with(&format!("spec.devices.requests[0]{field}: ")), "{why}");
        assert_eq!(*claim.spec.requests[0].alternatives, [], "{request}");
    }
    let why = of_request(json!({"exactly": {"selectors": [{"wasm": {}}]}})).invalid.expect("it is invalid");
    assert!(why.starts_with("spec.devices.requests[0].exactly.selectors[0]: "), "{why}");
    for constraint in
        [json!({"nearAttribute": "a/b"}), json!({"matchAttribute": "a/b", "distinctAttribute": "a/b"})]
    {
        let claim = claim(json!({"devices": {"constraints": [constraint]}}), json!({}));
        assert!(claim.invalid.is_some_and(|why| why.starts_with("spec.devices.constraints[0]: ")));
    }
}

#[test]
fn nulls_in_a_claim_are_what_their_absence_is() {
    let absent = claim(json!({}), json!({}));
    assert_eq!(claim(json!({"devices": null}), Value::Null), absent);
    let devices = json!({"requests": null, "constraints": null, "config": null});
    let status = json!({"allocation": null, "reservedFor": null, "devices": null});
    assert_eq!(claim(json!({"devices": devices}), status), absent);
}

#[test]
fn an_allocated_claim_is_read_with_its_devices_users_and_conditions() {
    let status = json!({
        "allocation": {
            "devices": {
                "results": [{
                    "request": "nic/fast", "driver": "d", "pool": "p", "device": "nic-0", "adminAccess": true,
                    "shareID": "s", "consumedCapacity": {"b": "1500m", "a": "odd"},
                    "tolerations": [{"key": "k", "operator": "Exists"}],
                    "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"],
                }],
                "config": [{"source": "FromClass", "opaque": {}}],
            },
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, {},
            ]},
            "allocationTimestamp": "2026-01-01T00:00:00Z",
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}],
        "devices": [
            {"driver": "d", "pool": "p", "device": "nic-0", "shareID": "s", "data": {"x": 1}, "conditions": [
                {"type": "Ready", "status": "True", "reason": "x"}, {"type": "Broken", "status": "False"},
            ]},
            {"driver": "d", "pool": "p", "device": "nic-1", "conditions": null},
        ],
    });
    let claim = claim(json!({}), status);
    let allocation = claim.allocation.expect("it is allocated");
    let [device] = &*allocation.devices else { panic!("{allocation:?}") };
    let id = DeviceId { pool: PoolId { driver: "d".into(), name: "p".into() }, device: "nic-0".into() };
    assert_eq!((&*device.request, &device.id, device.admin_access), ("nic/fast", &id, true));
    assert_eq!(device.share.as_deref(), Some("s"));
    let consumed = [("a".into(), Quantity::from_units(i64::MAX)), ("b".into(), Quantity::from_milli(1500))];
    assert_eq!(*device.consumed, consumed);
    assert_eq!((device.tolerations.len(), device.binding_conditions.len()), (1, 1));
    assert_eq!(*device.binding_failure_conditions, ["Broken".into()]);
    let nodes = allocation.nodes.as_ref().expect("only some nodes");
    let matches = |node: &str| nodes.iter().any(|term| term.matches(node, &Labels::default()));
    assert!(matches("n") && !matches("m"));
    let user = ClaimUser { api_group: "".into(), resource: "pods".into(), name: "p".into(), uid: "1".into() };
    assert_eq!(*claim.reserved, [user]);
    let conditions =
        DeviceConditions { device: id, share: Some("s".into()), holding: ["Ready".into()].into() };
    assert_eq!(*claim.conditions, [conditions]);
}
