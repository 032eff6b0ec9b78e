//! Deserialisers of the lean types. They skip fields that are not needed and never fail on them.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{LeanConditions, LeanDisk, LeanScheduled, LeanVolume, LeanVolumeSource, ResourceList};
use berth_model::{Quantity, QuantityError};
use berth_rightsizing::apply::boost;
use berth_rightsizing::apply::patch::OBSERVED;

/// `null` is what it would be if it were absent: Go writes `null` for empty lists and maps.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Annotation of cluster-autoscaler.
pub(crate) const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Reads metadata. Annotations are `Some` if the object has any, with only [`SAFE_TO_EVICT`],
/// [`OBSERVED`] and [`boost::ANNOTATION`].
pub(crate) fn lean_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Meta {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<Annotations>,
        creation_timestamp: Option<LenientTime>,
        deletion_timestamp: Option<LenientTime>,
        #[serde(deserialize_with = "nullable")]
        owner_references: Vec<Owner>,
    }
    #[derive(Deserialize)]
    struct Annotations {
        #[serde(rename = "cluster-autoscaler.kubernetes.io/safe-to-evict")]
        safe_to_evict: Option<serde_json::Value>,
        #[serde(rename = "vpaObservedContainers")]
        observed: Option<serde_json::Value>,
        #[serde(rename = "berth.dev/startup-boost")]
        boosts: Option<serde_json::Value>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Owner {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
        #[serde(default)]
        name: String,
        controller: Option<bool>,
    }
    let meta = Meta::deserialize(deserializer)?;
    let controller = meta.owner_references.into_iter().find(|owner| owner.controller == Some(true));
    let controller = controller.map(|owner| OwnerReference {
        api_version: owner.api_version,
        kind: owner.kind,
        name: owner.name,
        controller: Some(true),
        ..OwnerReference::default()
    });
    let annotations = meta.annotations.map(|Annotations { safe_to_evict, observed, boosts }| {
        let read =
            [(SAFE_TO_EVICT, safe_to_evict), (OBSERVED, observed), (boost::ANNOTATION, boosts)].into_iter();
        read.filter_map(|(name, value)| Some((name.to_owned(), value?.as_str()?.to_owned()))).collect()
    });
    Ok(ObjectMeta {
        annotations,
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        labels: meta.labels,
        creation_timestamp: meta.creation_timestamp.map(|time| Time(time.0)),
        deletion_timestamp: meta.deletion_timestamp.map(|time| Time(time.0)),
        owner_references: controller.map(|controller| vec![controller]),
        ..ObjectMeta::default()
    })
}

/// A time; the epoch if invalid, since it matters more that a pod is being deleted than when.
struct LenientTime(jiff::Timestamp);

impl<'de> Deserialize<'de> for LenientTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        Ok(LenientTime(text.parse().unwrap_or_default()))
    }
}

/// A key or a short text that is only compared: borrowed from the input if possible.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = ResourceList;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of resource quantities")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ResourceList, A::Error> {
                let mut list = Vec::with_capacity(2);
                while let Some((Text(name), LeanQuantity(amount))) = map.next_entry()? {
                    let name = match &*name {
                        "cpu" => Cow::Borrowed("cpu"),
                        "memory" => Cow::Borrowed("memory"),
                        "ephemeral-storage" => Cow::Borrowed("ephemeral-storage"),
                        _ => Cow::Owned(name.into_owned()),
                    };
                    list.push((name, amount));
                }
                Ok(ResourceList(list))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A quantity, parsed as upstream's `Quantity.UnmarshalJSON`: text or number, surrounding spaces allowed, `null` is zero.
#[derive(Debug, Clone)]
pub(crate) struct LeanQuantity(pub Result<Quantity, QuantityError>);

impl Default for LeanQuantity {
    fn default() -> Self {
        LeanQuantity(Ok(Quantity::ZERO))
    }
}

impl<'de> Deserialize<'de> for LeanQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amount;
        impl<'de> Visitor<'de> for Amount {
            type Value = LeanQuantity;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E>(self, text: &str) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Quantity::parse(text.trim())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Quantity::parse(&number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Quantity::parse(&number.to_string())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Quantity::parse(&number.to_string())))
            }

            fn visit_unit<E>(self) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Ok(Quantity::ZERO)))
            }

            fn visit_bool<E>(self, value: bool) -> Result<LeanQuantity, E> {
                Ok(LeanQuantity(Quantity::parse(&value.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LeanQuantity, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LeanQuantity(Quantity::parse("[]")))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LeanQuantity, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(LeanQuantity(Quantity::parse("{}")))
            }
        }
        deserializer.deserialize_any(Amount)
    }
}

impl<'de> Deserialize<'de> for LeanConditions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Condition<'a> {
            #[serde(borrow, rename = "type")]
            kind: Text<'a>,
            #[serde(borrow)]
            status: Option<Text<'a>>,
            #[serde(borrow)]
            reason: Option<Text<'a>>,
            #[serde(borrow)]
            message: Option<Text<'a>>,
            #[serde(borrow, rename = "lastTransitionTime")]
            changed: Option<Text<'a>>,
        }
        fn owned(text: Option<Text>) -> String {
            text.map_or_else(String::new, |text| text.0.into_owned())
        }
        fn is_true(status: Text) -> bool {
            status.0 == "True"
        }

        struct Conditions;
        impl<'de> Visitor<'de> for Conditions {
            type Value = LeanConditions;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of conditions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LeanConditions, A::Error> {
                let mut found = LeanConditions::default();
                while let Some(condition) = seq.next_element::<Condition<'de>>()? {
                    match &*condition.kind.0 {
                        "PodScheduled" => {
                            found.scheduled = Some(LeanScheduled {
                                status: condition.status.is_some_and(is_true),
                                reason: owned(condition.reason),
                                message: owned(condition.message),
                            });
                        }
                        "Ready" => {
                            found.ready = condition.status.is_some_and(is_true);
                            found.ready_changed = condition.changed.map(|at| at.0.into_owned());
                        }
                        "PodResizePending" => {
                            found.resize_infeasible =
                                condition.reason.as_ref().is_some_and(|why| why.0 == "Infeasible");
                            if condition.status.is_some_and(is_true) {
                                found.resize_pending = Some(owned(condition.reason));
                            }
                        }
                        "PodResizeInProgress" if condition.status.is_some_and(is_true) => {
                            found.resize_in_progress =
                                Some((owned(condition.reason), owned(condition.message)));
                        }
                        _ => {}
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_seq(Conditions)
    }
}

impl<'de> Deserialize<'de> for LeanVolume {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct EmptyDir {
            medium: Option<String>,
        }
        #[derive(Deserialize)]
        struct Image {
            #[serde(default)]
            reference: Option<String>,
        }

        struct Source;
        impl<'de> Visitor<'de> for Source {
            type Value = LeanVolume;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a volume")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LeanVolume, A::Error> {
                use LeanVolumeSource::{Claim, Disk, Ephemeral, Image as ImageSource, Unknown};
                let mut volume = LeanVolume::default();
                while let Some(Text(key)) = map.next_key()? {
                    let source = match &*key {
                        "name" => {
                            volume.name = map.next_value::<Option<String>>()?.unwrap_or_default();
                            continue;
                        }
                        "image" => {
                            map.next_value::<Option<Image>>()?.map(|image| ImageSource(image.reference))
                        }
                        "emptyDir" => {
                            let on_disk = |dir: &EmptyDir| dir.medium.as_deref() != Some("Memory");
                            volume.local |=
                                map.next_value::<Option<EmptyDir>>()?.as_ref().is_some_and(on_disk);
                            continue;
                        }
                        "hostPath" => {
                            volume.local |= map.next_value::<Option<IgnoredAny>>()?.is_some();
                            continue;
                        }
                        "persistentVolumeClaim" => map.next_value::<Option<_>>()?.map(Claim),
                        "ephemeral" => map.next_value::<Option<IgnoredAny>>()?.map(|_| Ephemeral),
                        "gcePersistentDisk" => map.next_value::<Option<_>>()?.map(LeanDisk::Gce).map(Disk),
                        "awsElasticBlockStore" => map.next_value::<Option<_>>()?.map(LeanDisk::Aws).map(Disk),
                        "azureDisk" => map.next_value::<Option<_>>()?.map(LeanDisk::Azure).map(Disk),
                        "cinder" => map.next_value::<Option<_>>()?.map(LeanDisk::Cinder).map(Disk),
                        "portworxVolume" => map.next_value::<Option<_>>()?.map(LeanDisk::Portworx).map(Disk),
                        "iscsi" => map.next_value::<Option<_>>()?.map(LeanDisk::Iscsi).map(Disk),
                        "rbd" => map.next_value::<Option<_>>()?.map(LeanDisk::Rbd).map(Disk),
                        key => {
                            let known = is_free_to_place(key);
                            map.next_value::<Option<IgnoredAny>>()?.filter(|_| !known).map(|_| Unknown)
                        }
                    };
                    volume.source = source.or(volume.source);
                }
                Ok(volume)
            }
        }
        deserializer.deserialize_map(Source)
    }
}

/// Whether no plugin of kube-scheduler 1.36 reads this volume field. `azureFile` and `vsphereVolume` are among them, as
/// NodeVolumeLimits counts neither (upstream: `isCSIMigrationOn`), nor an inline `csi` volume.
fn is_free_to_place(field: &str) -> bool {
    matches!(
        field,
        "azureFile"
            | "cephfs"
            | "configMap"
            | "csi"
            | "downwardAPI"
            | "fc"
            | "flexVolume"
            | "flocker"
            | "gitRepo"
            | "glusterfs"
            | "nfs"
            | "photonPersistentDisk"
            | "projected"
            | "quobyte"
            | "scaleIO"
            | "secret"
            | "storageos"
            | "vsphereVolume"
    )
}
