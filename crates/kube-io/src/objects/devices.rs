//! Lean objects of dynamic resource allocation (`resource.k8s.io/v1`): only the fields that scheduling needs.
//!
//! What this version does not know is never allocated: a slice whose nodes are selected in an unknown way is out of reach, and
//! a claim or class with an unknown kind of request, constraint or selector is invalid as a whole.

mod claims;
mod slices;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub(crate) use claims::LeanDeviceAllocation;
pub use claims::LeanResourceClaim;
pub use slices::LeanResourceSlice;

use super::{LeanObject, name};
use crate::convert::Problems;
use crate::lean::nullable;
use crate::{Interner, OptionalKind};
use berth_devices::{DeviceClass, DeviceConfig};
use berth_model::DeviceTaintEffect;
use berth_scheduler::objects::{ClusterObject, ObjectKind};

/// Name, namespace, uid, creation, resource version, deletion, finalizers and the controller.
fn device_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = ObjectMeta::deserialize(deserializer)?;
    let controller = meta.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        creation_timestamp: meta.creation_timestamp,
        resource_version: meta.resource_version,
        deletion_timestamp: meta.deletion_timestamp,
        finalizers: meta.finalizers,
        owner_references: controller.map(|controller| vec![controller]),
        ..ObjectMeta::default()
    })
}

/// A device class to watch with `Api<LeanDeviceClass>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::resource::v1::DeviceClass")]
pub struct LeanDeviceClass {
    #[serde(deserialize_with = "device_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanDeviceClassSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceClassSpec {
    #[serde(deserialize_with = "nullable")]
    selectors: Vec<LeanDeviceSelector>,
    #[serde(deserialize_with = "nullable")]
    config: Vec<LeanDeviceConfig>,
    extended_resource_name: Option<String>,
}

impl OptionalKind for LeanDeviceClass {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanObject for LeanDeviceClass {
    const KIND: ObjectKind = ObjectKind::DeviceClass;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let mut problems = Problems::default();
        let selectors = selectors(&self.spec.selectors, &|| "spec".to_owned(), interner, &mut problems);
        ClusterObject::DeviceClass(DeviceClass {
            name: name(&self.metadata, interner),
            selectors,
            config: configs(self.spec.config, interner),
            invalid: problems.text(),
            extended_resource: self.spec.extended_resource_name.map(|name| interner.text(&name)),
            created_s: self.metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceSelector {
    cel: Option<LeanCel>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCel {
    expression: String,
}

/// Converts `selectors` of the object at `path`.
fn selectors(
    lean: &[LeanDeviceSelector],
    path: &dyn Fn() -> String,
    interner: &mut Interner,
    problems: &mut Problems,
) -> Box<[Arc<str>]> {
    let mut expressions = Vec::with_capacity(lean.len());
    for (i, selector) in lean.iter().enumerate() {
        match &selector.cel {
            Some(cel) => expressions.push(interner.text(&cel.expression)),
            None => problems.note(
                || format!("{}.selectors[{i}]", path()),
                || "has no cel, the only known kind of selector".to_owned(),
            ),
        }
    }
    expressions.into()
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceConfig {
    #[serde(deserialize_with = "nullable")]
    requests: Vec<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

fn configs(lean: Vec<LeanDeviceConfig>, interner: &mut Interner) -> Box<[DeviceConfig]> {
    let configs = lean.into_iter().map(|config| {
        let rest = Value::Object(config.rest.into_iter().collect());
        DeviceConfig {
            requests: texts(&config.requests, interner),
            // Pods of one template have the same.
            json: interner.text(&rest.to_string()),
        }
    });
    configs.collect()
}

fn texts(lean: &[String], interner: &mut Interner) -> Box<[Arc<str>]> {
    lean.iter().map(|text| interner.text(text)).collect()
}

/// Returns `None` for effects that do not matter to a scheduler.
fn device_effect(name: &str) -> Option<DeviceTaintEffect> {
    match name {
        "NoSchedule" => Some(DeviceTaintEffect::NoSchedule),
        "NoExecute" => Some(DeviceTaintEffect::NoExecute),
        _ => None,
    }
}

#[cfg(test)]
fn read<K: LeanObject + serde::de::DeserializeOwned>(json: &Value) -> ClusterObject {
    let lean: K = serde_json::from_str(&json.to_string()).expect("it is read");
    lean.into_object(&mut Interner::default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(spec: Value) -> DeviceClass {
        let object = read::<LeanDeviceClass>(&json!({"metadata": {"name": "gpu"}, "spec": spec}));
        let ClusterObject::DeviceClass(class) = object else { panic!("{object:?}") };
        class
    }

    #[test]
    fn a_class_is_read_with_its_selectors_and_what_it_hands_on_to_the_driver() {
        let opaque = json!({"driver": "gpu.example.com", "parameters": {"z": null, "a": 1.5}});
        let gpu = class(json!({
            "selectors": [{"cel": {"expression": "device.driver == \"gpu.example.com\""}}],
            "config": [{"opaque": opaque}],
            "extendedResourceName": "example.com/gpu",
        }));
        assert_eq!((&*gpu.name, &gpu.invalid), ("gpu", &None));
        assert_eq!(*gpu.selectors, ["device.driver == \"gpu.example.com\"".into()]);
        let json: Value = serde_json::from_str(&gpu.config[0].json).expect("JSON");
        assert_eq!(gpu.extended_resource.as_deref(), Some("example.com/gpu"));
        assert_eq!((json, gpu.config[0].requests.len()), (json!({"opaque": opaque}), 0));
        assert_eq!(class(json!({"selectors": null, "config": null})), class(Value::Null));
    }

    #[test]
    fn a_class_with_an_unknown_kind_of_selector_is_invalid() {
        let gpu = class(json!({"selectors": [{"cel": {"expression": "true"}}, {"wasm": {}}]}));
        assert!(gpu.invalid.is_some_and(|why| why.starts_with("spec.selectors[1]: has no cel")));
    }

    #[test]
    fn the_objects_of_dynamic_resource_allocation_can_be_watched() {
        fn path<K: kube::Resource<DynamicType = ()>>() -> String {
            K::url_path(&(), None)
        }
        assert_eq!(path::<LeanDeviceClass>(), "/apis/resource.k8s.io/v1/deviceclasses");
        assert_eq!(path::<LeanResourceSlice>(), "/apis/resource.k8s.io/v1/resourceslices");
        assert_eq!(path::<LeanResourceClaim>(), "/apis/resource.k8s.io/v1/resourceclaims");
    }
}
