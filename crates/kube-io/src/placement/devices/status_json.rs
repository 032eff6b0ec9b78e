//! JSON of a claim's status: allocation and reservations.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Interner;
use crate::objects::LeanDeviceAllocation;
use berth_devices::{AllocatedDevice, ClaimAllocation, ClaimUser, ConfigSource, DeviceConfig, NewAllocation};
use berth_model::{
    DeviceTaintEffect, DeviceToleration, DeviceTolerationOperator, FieldRequirement, NodeSelectorTerm,
    Operator, Quantity, Requirement,
};

/// Returns `status` for a merge patch; without a new allocation, the present one stays.
///
/// # Errors
/// An entry of the configuration is no JSON object.
pub(super) fn status(
    new: Option<&NewAllocation>,
    reserved: &[ClaimUser],
    now: Timestamp,
) -> Result<Value, String> {
    let mut status = Map::new();
    if let Some(NewAllocation { allocation, config }) = new {
        let mut json = allocation_json(allocation);
        let config = config.iter().map(config_json).collect::<Result<Vec<_>, _>>()?;
        if !config.is_empty() {
            json["devices"]["config"] = config.into();
        }
        // The wait for the conditions counts from then.
        if allocation.is_to_be_prepared() {
            json["allocationTimestamp"] = json!(Time(now));
        }
        status.insert("allocation".to_owned(), json);
    }
    let reserved = reserved.iter().map(user_json).collect();
    status.insert("reservedFor".to_owned(), Value::Array(reserved));
    Ok(status.into())
}

/// Returns the allocation as it is read when it is written: comparable with one that was read.
///
/// # Errors
/// Never for an allocation that can be written.
pub(super) fn read_back(allocation: &ClaimAllocation) -> Result<ClaimAllocation, String> {
    let lean = LeanDeviceAllocation::deserialize(allocation_json(allocation));
    Ok(lean.map_err(|error| error.to_string())?.into_allocation(&mut Interner::default()))
}

fn allocation_json(allocation: &ClaimAllocation) -> Value {
    let results: Vec<_> = allocation.devices.iter().map(device_json).collect();
    let mut json = json!({"devices": {"results": results}});
    if let Some(nodes) = &allocation.nodes {
        let terms: Vec<_> = nodes.iter().map(term_json).collect();
        json["nodeSelector"] = json!({"nodeSelectorTerms": terms});
    }
    json
}

/// Inserts `items`, unless there are none.
fn insert_list<T>(json: &mut Value, field: &str, items: &[T], item: impl Fn(&T) -> Value) {
    if !items.is_empty() {
        json[field] = items.iter().map(item).collect();
    }
}

fn device_json(device: &AllocatedDevice) -> Value {
    let mut json = json!({
        "request": device.request,
        "driver": device.id.pool.driver,
        "pool": device.id.pool.name,
        "device": device.id.device,
    });
    if device.admin_access {
        json["adminAccess"] = true.into();
    }
    if let Some(share) = &device.share {
        json["shareID"] = json!(share);
    }
    if !device.consumed.is_empty() {
        let consumed = device.consumed.iter();
        json["consumedCapacity"] =
            consumed.map(|(name, amount)| (name.to_string(), quantity_text(*amount))).collect();
    }
    let tolerations: Vec<_> = device.tolerations.iter().filter_map(toleration_json).collect();
    insert_list(&mut json, "tolerations", &tolerations, Value::clone);
    insert_list(&mut json, "bindingConditions", &device.binding_conditions, |kind| json!(kind));
    insert_list(&mut json, "bindingFailureConditions", &device.binding_failure_conditions, |kind| {
        json!(kind)
    });
    json
}

/// `None` for one whose effect tolerates nothing: without the effect, which is not known, it would tolerate more.
fn toleration_json(toleration: &DeviceToleration) -> Option<Value> {
    let effect = match toleration.effect {
        None => None,
        Some(effect) => Some(match effect? {
            DeviceTaintEffect::NoSchedule => "NoSchedule",
            DeviceTaintEffect::NoExecute => "NoExecute",
        }),
    };
    let (operator, value) = match &toleration.operator {
        DeviceTolerationOperator::Exists => ("Exists", None),
        DeviceTolerationOperator::Equal(value) => ("Equal", Some(value)),
        DeviceTolerationOperator::Unknown(operator) => (&**operator, None),
    };
    let mut json = json!({"operator": operator});
    if !toleration.key.is_empty() {
        json["key"] = json!(toleration.key);
    }
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        json["value"] = json!(value);
    }
    if let Some(effect) = effect {
        json["effect"] = effect.into();
    }
    if let Some(seconds) = toleration.seconds {
        json["tolerationSeconds"] = seconds.into();
    }
    Some(json)
}

fn config_json((source, config): &(ConfigSource, DeviceConfig)) -> Result<Value, String> {
    let mut json: Map<String, Value> = serde_json::from_str(&config.json)
        .map_err(|error| format!("a configuration of devices is no JSON object: {error}"))?;
    let source = match source {
        ConfigSource::Class => "FromClass",
        ConfigSource::Claim => "FromClaim",
    };
    json.insert("source".to_owned(), source.into());
    let mut json = Value::Object(json);
    insert_list(&mut json, "requests", &config.requests, |request| json!(request));
    Ok(json)
}

fn user_json(user: &ClaimUser) -> Value {
    let mut json = json!({"resource": user.resource, "name": user.name, "uid": user.uid});
    if !user.api_group.is_empty() {
        json["apiGroup"] = json!(user.api_group);
    }
    json
}

fn term_json(term: &NodeSelectorTerm) -> Value {
    let mut json = json!({});
    insert_list(&mut json, "matchExpressions", &term.expressions, expression_json);
    insert_list(&mut json, "matchFields", &term.fields, |field| {
        let (operator, name) = match field {
            FieldRequirement::NameIs(name) => ("In", name),
            FieldRequirement::NameIsNot(name) => ("NotIn", name),
        };
        json!({"key": "metadata.name", "operator": operator, "values": [name]})
    });
    json
}

fn expression_json(Requirement { key, operator }: &Requirement) -> Value {
    match operator {
        Operator::In(values) => json!({"key": key, "operator": "In", "values": values}),
        Operator::NotIn(values) => json!({"key": key, "operator": "NotIn", "values": values}),
        Operator::Exists => json!({"key": key, "operator": "Exists"}),
        Operator::DoesNotExist => json!({"key": key, "operator": "DoesNotExist"}),
        Operator::Gt(bound) => json!({"key": key, "operator": "Gt", "values": [bound.to_string()]}),
        Operator::Lt(bound) => json!({"key": key, "operator": "Lt", "values": [bound.to_string()]}),
    }
}

/// Formats a quantity exactly, with the coarsest of the suffixes that leaves a whole number.
fn quantity_text(amount: Quantity) -> String {
    let nano = amount.nano();
    let scales = [("", 1_000_000_000), ("m", 1_000_000), ("u", 1_000)];
    let (suffix, unit) = scales.into_iter().find(|(_, unit)| nano % unit == 0).unwrap_or(("n", 1));
    format!("{}{suffix}", nano / unit)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use berth_devices::{DeviceId, PoolId};

    fn device() -> AllocatedDevice {
        let pool = PoolId { driver: "d".into(), name: "p".into() };
        AllocatedDevice {
            request: "r".into(),
            id: DeviceId { pool, device: "gpu-0".into() },
            ..AllocatedDevice::default()
        }
    }

    fn toleration(key: &str, operator: DeviceTolerationOperator) -> DeviceToleration {
        DeviceToleration { key: key.into(), operator, effect: None, seconds: None }
    }

    /// One with every field.
    fn full() -> ClaimAllocation {
        let of_effect = |effect| DeviceToleration {
            effect: Some(effect),
            seconds: Some(30),
            ..toleration("", DeviceTolerationOperator::Exists)
        };
        let device = AllocatedDevice {
            request: "r/fast".into(),
            admin_access: true,
            share: Some("s".into()),
            consumed: [("a".into(), Quantity::from_units(1 << 30)), ("b".into(), Quantity::from_milli(1500))]
                .into(),
            tolerations: [
                of_effect(Some(DeviceTaintEffect::NoExecute)),
                of_effect(None),
                toleration("k", DeviceTolerationOperator::Equal("v".into())),
            ]
            .into(),
            binding_conditions: ["Ready".into()].into(),
            binding_failure_conditions: ["Broken".into()].into(),
            ..device()
        };
        let expression = |key: &str, operator| Requirement { key: key.into(), operator };
        let term = NodeSelectorTerm {
            expressions: [
                expression("a", Operator::In(["1".into(), "2".into()].into())),
                expression("b", Operator::NotIn(["1".into()].into())),
                expression("c", Operator::Exists),
                expression("d", Operator::DoesNotExist),
                expression("e", Operator::Gt(-7)),
                expression("f", Operator::Lt(7)),
            ]
            .into(),
            fields: [FieldRequirement::NameIs("n".into()), FieldRequirement::NameIsNot("m".into())].into(),
        };
        ClaimAllocation { devices: [device].into(), nodes: Some([term].into()) }
    }

    fn user() -> ClaimUser {
        ClaimUser { api_group: "".into(), resource: "pods".into(), name: "p".into(), uid: "1".into() }
    }

    fn of(allocation: ClaimAllocation, config: &[(ConfigSource, DeviceConfig)]) -> Value {
        let new = NewAllocation { allocation: Arc::new(allocation), config: config.into() };
        status(Some(&new), &[user()], Timestamp::UNIX_EPOCH).expect("it can be written")
    }

    #[test]
    fn an_allocation_is_written_with_every_field_of_its_devices() {
        let config = |json: &str| DeviceConfig { requests: ["r".into()].into(), json: json.into() };
        let all = DeviceConfig { requests: [].into(), ..config(r#"{"opaque":{}}"#) };
        let config =
            [(ConfigSource::Class, config(r#"{"opaque":{"driver":"d"}}"#)), (ConfigSource::Claim, all)];
        let values = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let expected = json!({
            "allocation": {
                "devices": {
                    "results": [{
                        "request": "r/fast", "driver": "d", "pool": "p", "device": "gpu-0",
                        "adminAccess": true, "shareID": "s",
                        "consumedCapacity": {"a": "1073741824", "b": "1500m"},
                        "tolerations": [
                            {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
                            {"key": "k", "operator": "Equal", "value": "v"},
                        ],
                        "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"],
                    }],
                    "config": [
                        {"source": "FromClass", "requests": ["r"], "opaque": {"driver": "d"}},
                        {"source": "FromClaim", "opaque": {}},
                    ],
                },
                "nodeSelector": {"nodeSelectorTerms": [{
                    "matchExpressions": [
                        values("a", "In", &["1", "2"]), values("b", "NotIn", &["1"]),
                        {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist"},
                        values("e", "Gt", &["-7"]), values("f", "Lt", &["7"]),
                    ],
                    "matchFields": [
                        values("metadata.name", "In", &["n"]), values("metadata.name", "NotIn", &["m"]),
                    ],
                }]},
                "allocationTimestamp": "1970-01-01T00:00:00Z",
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}],
        });
        assert_eq!(of(full(), &config), expected);
    }

    #[test]
    fn what_an_allocation_does_not_have_is_not_written() {
        let plain = of(ClaimAllocation { devices: [device()].into(), nodes: None }, &[]);
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "gpu-0"});
        assert_eq!(plain["allocation"], json!({"devices": {"results": [result]}}));
        let group = ClaimUser { api_group: "g".into(), ..user() };
        let expected =
            json!({"reservedFor": [{"apiGroup": "g", "resource": "pods", "name": "p", "uid": "1"}]});
        assert_eq!(status(None, &[group], Timestamp::UNIX_EPOCH), Ok(expected));
    }

    #[test]
    fn an_allocation_is_read_as_it_was_written_whatever_the_order_of_its_amounts_and_terms() {
        let written = full();
        let mut shuffled = written.clone();
        shuffled.devices[0].consumed.reverse();
        let terms = shuffled.nodes.as_mut().expect("some nodes");
        terms[0].expressions.reverse();
        assert_ne!(shuffled, written);
        let read = read_back(&written).expect("it can be read");
        assert_eq!(read_back(&shuffled).as_ref(), Ok(&read));
        assert_eq!(read_back(&read).as_ref(), Ok(&read));
        assert_eq!(read.devices[0].consumed, written.devices[0].consumed);
    }

    #[test]
    fn a_quantity_is_written_exactly() {
        for text in ["0", "1", "-3", "1500m", "1u", "1000001n", "9223372036854775807"] {
            assert_eq!(quantity_text(Quantity::parse(text).expect(text)), text);
        }
        assert_eq!(quantity_text(Quantity::parse("1.5Ki").expect("a quantity")), "1536");
    }
}
