//! Lean resource slices: the devices that drivers publish.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::{device_effect, device_meta, texts};
use crate::convert::node_terms;
use crate::lean::{LeanNodeSelector, LeanQuantity, nullable};
use crate::objects::{LeanObject, name};
use crate::{Interner, OptionalKind};
use berth_devices::{
    Attribute, Counters, Device, DeviceCapacity, DeviceTraits, PoolId, Reach, RequestPolicy, ResourceSlice,
    ValidRange,
};
use berth_model::{DeviceTaint, Quantity};
use berth_scheduler::objects::{ClusterObject, ObjectKind};

/// A slice to watch with `Api<LeanResourceSlice>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::resource::v1::ResourceSlice")]
pub struct LeanResourceSlice {
    #[serde(deserialize_with = "device_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanSliceSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanSliceSpec {
    driver: String,
    #[serde(deserialize_with = "nullable")]
    pool: LeanPool,
    node_name: Option<String>,
    node_selector: Option<LeanNodeSelector>,
    all_nodes: Option<bool>,
    per_device_node_selection: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    devices: Vec<LeanDevice>,
    #[serde(deserialize_with = "nullable")]
    shared_counters: Vec<LeanCounterSet>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanPool {
    name: String,
    generation: i64,
    resource_slice_count: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCounterSet {
    name: String,
    #[serde(deserialize_with = "nullable")]
    counters: BTreeMap<String, LeanCounter>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCounter {
    value: LeanQuantity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDevice {
    name: String,
    #[serde(deserialize_with = "nullable")]
    attributes: BTreeMap<String, Value>,
    #[serde(deserialize_with = "nullable")]
    capacity: BTreeMap<String, LeanCapacity>,
    #[serde(deserialize_with = "nullable")]
    consumes_counters: Vec<LeanConsumption>,
    node_name: Option<String>,
    node_selector: Option<LeanNodeSelector>,
    all_nodes: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    taints: Vec<LeanDeviceTaint>,
    #[serde(deserialize_with = "nullable")]
    binding_conditions: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    binding_failure_conditions: Vec<String>,
    allow_multiple_allocations: Option<bool>,
    binds_to_node: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanCapacity {
    value: LeanQuantity,
    request_policy: Option<LeanRequestPolicy>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanRequestPolicy {
    default: Option<LeanQuantity>,
    #[serde(deserialize_with = "nullable")]
    valid_values: Vec<LeanQuantity>,
    valid_range: Option<LeanValidRange>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanValidRange {
    min: Option<LeanQuantity>,
    max: Option<LeanQuantity>,
    step: Option<LeanQuantity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanConsumption {
    counter_set: String,
    #[serde(deserialize_with = "nullable")]
    counters: BTreeMap<String, LeanCounter>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceTaint {
    key: String,
    value: Option<String>,
    effect: String,
}

impl OptionalKind for LeanResourceSlice {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanObject for LeanResourceSlice {
    const KIND: ObjectKind = ObjectKind::ResourceSlice;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let spec = self.spec;
        let selected =
            reach(spec.node_name.as_deref(), spec.node_selector.as_ref(), spec.all_nodes, interner);
        let mut reach = match (spec.per_device_node_selection == Some(true), selected) {
            (true, None) => Reach::PerDevice,
            (false, Some(reach)) => reach,
            _ => Reach::Unknown,
        };
        let per_device = reach == Reach::PerDevice;
        let read = spec.devices.into_iter().map(|lean| lean.into_device(per_device, interner));
        let mut devices: Vec<(Device, Validity)> = read.collect();
        if devices.iter().any(|(_, validity)| *validity == Validity::Invalid) {
            // Only the invalid ones are out of reach.
            for (device, validity) in &mut devices {
                let own = device.reach.take().unwrap_or_else(|| reach.clone());
                device.reach = Some(if *validity == Validity::Invalid { Reach::Unknown } else { own });
            }
            reach = Reach::PerDevice;
        }
        let sets = spec.shared_counters.into_iter();
        let sets = sets.map(|set| {
            // An invalid counter is missing, so nothing can consume it.
            (interner.text(&set.name), counters(set.counters, interner, &mut Validity::Valid))
        });
        let slice = ResourceSlice {
            counters: sets.collect(),
            name: name(&self.metadata, interner),
            pool: PoolId { driver: interner.text(&spec.driver), name: interner.text(&spec.pool.name) },
            generation: spec.pool.generation,
            slices_of_pool: spec.pool.resource_slice_count,
            reach,
            devices: devices.into_iter().map(|(device, _)| device).collect(),
        };
        ClusterObject::ResourceSlice(Arc::new(slice))
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Whether all amounts of a device could be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Validity {
    Valid,
    Invalid,
}

/// Returns the nodes that a slice or a device selects; `None` if it selects none, [`Reach::Unknown`] if it does so in several
/// ways.
fn reach(
    node: Option<&str>,
    selector: Option<&LeanNodeSelector>,
    all: Option<bool>,
    interner: &mut Interner,
) -> Option<Reach> {
    match (node.filter(|node| !node.is_empty()), selector, all == Some(true)) {
        (None, None, false) => None,
        (Some(node), None, false) => Some(Reach::Node(interner.text(node))),
        (None, Some(selector), false) => {
            Some(Reach::Nodes(node_terms(&selector.node_selector_terms, interner)))
        }
        (None, None, true) => Some(Reach::All),
        _ => Some(Reach::Unknown),
    }
}

/// Returns an amount; 0 if invalid, which is noted.
fn amount(lean: LeanQuantity, validity: &mut Validity) -> Quantity {
    lean.0.unwrap_or_else(|_| {
        *validity = Validity::Invalid;
        Quantity::ZERO
    })
}

/// Converts counters; invalid ones are missing, which is noted.
fn counters(
    lean: BTreeMap<String, LeanCounter>,
    interner: &mut Interner,
    validity: &mut Validity,
) -> Counters {
    let mut counters = Counters::new();
    for (name, counter) in lean {
        match counter.value.0 {
            Ok(value) => drop(counters.insert(interner.text(&name), value)),
            Err(_) => *validity = Validity::Invalid,
        }
    }
    counters
}

impl LeanDevice {
    fn into_device(self, per_device: bool, interner: &mut Interner) -> (Device, Validity) {
        let mut validity = Validity::Valid;
        let selected =
            reach(self.node_name.as_deref(), self.node_selector.as_ref(), self.all_nodes, interner);
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| (interner.text(name), attribute(value, interner)));
        let attributes = attributes.collect();
        let capacity = self.capacity.into_iter();
        let capacity = capacity.map(|(name, lean)| (interner.text(&name), lean.into_capacity(&mut validity)));
        let traits = DeviceTraits {
            attributes,
            capacity: capacity.collect(),
            multiple: self.allow_multiple_allocations == Some(true),
        };
        let mut consumes: BTreeMap<Arc<str>, Counters> = BTreeMap::new();
        for consumption in self.consumes_counters {
            let set = consumes.entry(interner.text(&consumption.counter_set)).or_default();
            set.extend(counters(consumption.counters, interner, &mut validity));
        }
        let device = Device {
            name: interner.text(&self.name),
            traits,
            reach: per_device.then(|| selected.unwrap_or(Reach::Unknown)),
            binds_to_node: self.binds_to_node.unwrap_or(false),
            taints: self.taints.iter().filter_map(|lean| taint(lean, interner)).collect(),
            consumes,
            binding_conditions: texts(&self.binding_conditions, interner),
            binding_failure_conditions: texts(&self.binding_failure_conditions, interner),
        };
        (device, validity)
    }
}

/// Reads the value of an attribute: an object with one field, named after the type.
fn attribute(value: &Value, interner: &mut Interner) -> Attribute {
    let mut set = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let (Some((kind, value)), None) = (set.next(), set.next()) else { return Attribute::Unknown };
    let known = match &**kind {
        "int" => value.as_i64().map(Attribute::Int),
        "bool" => value.as_bool().map(Attribute::Bool),
        "string" => value.as_str().map(|text| Attribute::Text(interner.text(text))),
        "version" => value.as_str().map(|text| Attribute::Version(interner.text(text))),
        _ => None,
    };
    known.unwrap_or(Attribute::Unknown)
}

impl LeanCapacity {
    fn into_capacity(self, validity: &mut Validity) -> DeviceCapacity {
        let policy = self.request_policy.map(|lean| {
            let mut some = |lean: Option<LeanQuantity>| lean.map(|lean| amount(lean, validity));
            let default = some(lean.default);
            let valid_range = lean.valid_range.map(|range| ValidRange {
                min: some(range.min),
                max: some(range.max),
                step: some(range.step),
            });
            let mut valid_values: Box<[Quantity]> =
                lean.valid_values.into_iter().map(|lean| amount(lean, validity)).collect();
            valid_values.sort_unstable();
            RequestPolicy { default, valid_values, valid_range }
        });
        DeviceCapacity { value: amount(self.value, validity), policy }
    }
}

fn taint(lean: &LeanDeviceTaint, interner: &mut Interner) -> Option<DeviceTaint> {
    let effect = device_effect(&lean.effect)?;
    let value = interner.text(lean.value.as_deref().unwrap_or_default());
    Some(DeviceTaint { key: interner.text(&lean.key), value, effect })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::read;
    use super::*;
    use berth_model::{DeviceTaintEffect, Labels};

    fn slice(spec: Value) -> Arc<ResourceSlice> {
        let object = read::<LeanResourceSlice>(&json!({"metadata": {"name": "s"}, "spec": spec}));
        let ClusterObject::ResourceSlice(slice) = object else { panic!("{object:?}") };
        slice
    }

    fn units(units: i64) -> Quantity {
        Quantity::from_units(units)
    }

    #[test]
    fn a_slice_is_read_with_all_that_its_devices_say_about_themselves() {
        let slice = slice(json!({
            "driver": "gpu.example.com",
            "pool": {"name": "p", "generation": 3, "resourceSliceCount": 2},
            "nodeName": "n",
            "sharedCounters": [{"name": "chip", "counters": {"slices": {"value": "8"}}}],
            "devices": [{
                "name": "gpu-0",
                "attributes": {
                    "index": {"int": 7}, "ecc": {"bool": true}, "example.com/model": {"string": "A"},
                    "driver": {"version": "1.2.3"}, "numa": {"ints": [0, 1]}, "both": {"int": 1, "bool": true},
                    "half": {"int": 1.5}, "nothing": null,
                },
                "capacity": {"memory": {"value": "2Ki", "requestPolicy": {
                    "default": "1", "validValues": ["4", "2"], "validRange": {"min": 1, "step": "1"},
                }}},
                "consumesCounters": [{"counterSet": "chip", "counters": {"slices": {"value": 2}}}],
                "taints": [
                    {"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "v", "effect": "NoExecute"},
                    {"key": "c", "effect": "None"},
                ],
                "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"],
                "allowMultipleAllocations": true, "bindsToNode": true,
            }],
        }));
        assert_eq!((&*slice.name, &*slice.pool.driver, &*slice.pool.name), ("s", "gpu.example.com", "p"));
        assert_eq!((slice.generation, slice.slices_of_pool), (3, 2));
        assert_eq!(slice.reach, Reach::Node("n".into()));
        let counter = |amount| Counters::from([("slices".into(), units(amount))]);
        assert_eq!(slice.counters, [("chip".into(), counter(8))].into());
        let [device] = &*slice.devices else { panic!("{slice:?}") };
        let attributes: BTreeMap<Arc<str>, Attribute> = [
            ("index".into(), Attribute::Int(7)),
            ("ecc".into(), Attribute::Bool(true)),
            ("example.com/model".into(), Attribute::Text("A".into())),
            ("driver".into(), Attribute::Version("1.2.3".into())),
            ("numa".into(), Attribute::Unknown),
            ("both".into(), Attribute::Unknown),
            ("half".into(), Attribute::Unknown),
            ("nothing".into(), Attribute::Unknown),
        ]
        .into();
        assert_eq!(device.traits.attributes, attributes);
        let policy = RequestPolicy {
            default: Some(units(1)),
            valid_values: [units(2), units(4)].into(),
            valid_range: Some(ValidRange { min: Some(units(1)), max: None, step: Some(units(1)) }),
        };
        let memory = DeviceCapacity { value: units(2048), policy: Some(policy) };
        assert_eq!(device.traits.capacity, [("memory".into(), memory)].into());
        assert!(device.traits.multiple && device.reach.is_none());
        assert_eq!(device.consumes, [("chip".into(), counter(2))].into());
        let taint =
            |key: &str, value: &str, effect| DeviceTaint { key: key.into(), value: value.into(), effect };
        let taints =
            [taint("a", "", DeviceTaintEffect::NoSchedule), taint("b", "v", DeviceTaintEffect::NoExecute)];
        assert_eq!(*device.taints, taints);
        assert!(device.binds_to_node);
        assert_eq!(*device.binding_conditions, ["Ready".into()]);
        assert_eq!(*device.binding_failure_conditions, ["Broken".into()]);
    }

    #[test]
    fn a_slice_is_reached_only_by_nodes_that_it_selects_in_one_known_way() {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
        let invalid = json!({"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["b"]}]});
        let Reach::Nodes(terms) =
            slice(json!({"nodeSelector": {"nodeSelectorTerms": [term, invalid]}})).reach.clone()
        else {
            panic!("terms")
        };
        let labels: Labels = [("zone", "a")].into_iter().collect();
        assert!(terms.len() == 1 && terms[0].matches("n", &labels));
        assert_eq!(slice(json!({"allNodes": true})).reach, Reach::All);
        for odd in [
            json!({}),
            Value::Null,
            json!({"nodesOfRack": "r"}),
            json!({"allNodes": false}),
            json!({"nodeName": "n", "allNodes": true}),
            json!({"nodeName": "n", "perDeviceNodeSelection": true}),
        ] {
            assert_eq!(slice(odd.clone()).reach, Reach::Unknown, "{odd}");
        }
    }

    #[test]
    fn devices_have_their_own_nodes_if_the_slice_says_so() {
        let devices = json!([{"name": "a", "nodeName": "n"}, {"name": "b", "allNodes": true}, {"name": "c"}]);
        let slice = slice(json!({"perDeviceNodeSelection": true, "devices": devices}));
        assert_eq!(slice.reach, Reach::PerDevice);
        let reach: Vec<_> = slice.devices.iter().filter_map(|device| device.reach.clone()).collect();
        assert_eq!(reach, [Reach::Node("n".into()), Reach::All, Reach::Unknown]);
    }

    #[test]
    fn a_device_with_an_invalid_amount_is_out_of_reach_and_the_others_of_its_slice_are_not() {
        for odd in [
            json!({"capacity": {"memory": {"value": "much"}}}),
            json!({"capacity": {"memory": {"value": "1", "requestPolicy": {"validValues": ["some"]}}}}),
            json!({"consumesCounters": [{"counterSet": "chip", "counters": {"slices": {"value": "few"}}}]}),
        ] {
            let slice = slice(json!({"nodeName": "n", "devices": [odd, {"name": "good"}]}));
            assert_eq!(slice.reach, Reach::PerDevice, "{odd}");
            assert_eq!(slice.devices[0].reach, Some(Reach::Unknown), "{odd}");
            assert_eq!(slice.devices[1].reach, Some(Reach::Node("n".into())), "{odd}");
        }
        let sets = json!([{"name": "chip", "counters": {"good": {"value": "1"}, "bad": {"value": "1x"}}}]);
        let slice = slice(json!({"allNodes": true, "sharedCounters": sets}));
        assert_eq!(slice.counters["chip"].keys().map(|name| &**name).collect::<Vec<_>>(), ["good"]);
    }
}
