//! Pods and nodes as the API server sends them, cut down to what scheduling needs.
//!
//! Everything else (managed fields, annotations, probes, environment…) is skipped while it is read, without an
//! allocation: five times less work than `k8s_openapi`'s `Pod`. What can be malformed in one object (quantities,
//! enumerations, times) never fails the reading of a list or a watch; `convert` turns it into an error of that object.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::model::{Quantity, QuantityError};

/// A pod to watch with `Api<LeanPod>`; see `into_pod`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct LeanPod {
    /// Only name, namespace, uid, resource version, generation, labels and the two timestamps.
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) spec: LeanPodSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) status: LeanPodStatus,
}

/// A node to watch with `Api<LeanNode>`; see `into_node`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Node")]
pub struct LeanNode {
    /// Only name, uid, resource version, generation, labels and the two timestamps.
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) spec: LeanNodeSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) status: LeanNodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodSpec {
    pub scheduler_name: Option<String>,
    pub node_name: Option<String>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub scheduling_gates: Vec<Named>,
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<LeanContainer>,
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<LeanContainer>,
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub overhead: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub affinity: LeanAffinity,
    #[serde(deserialize_with = "nullable")]
    pub tolerations: Vec<LeanToleration>,
    #[serde(deserialize_with = "nullable")]
    pub topology_spread_constraints: Vec<IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    pub volumes: Vec<LeanVolume>,
    #[serde(deserialize_with = "nullable")]
    pub resource_claims: Vec<IgnoredAny>,
    pub scheduling_group: Option<IgnoredAny>,
    /// What `schedulingGroup` was called in 1.35.
    pub workload_ref: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanContainer {
    pub name: String,
    pub image: Option<String>,
    pub restart_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub resources: LeanRequirements,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<LeanPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPort {
    pub host_port: Option<i64>,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    pub protocol: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanRequirements {
    #[serde(deserialize_with = "nullable")]
    pub requests: ResourceList,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanAffinity {
    #[serde(deserialize_with = "nullable")]
    pub node_affinity: LeanNodeAffinity,
    #[serde(deserialize_with = "nullable")]
    pub pod_affinity: LeanPodTerms,
    #[serde(deserialize_with = "nullable")]
    pub pod_anti_affinity: LeanPodTerms,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanPodTerms {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "nullable"
    )]
    pub required: Vec<IgnoredAny>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "nullable"
    )]
    pub preferred: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<LeanNodeSelector>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "nullable"
    )]
    pub preferred: Vec<LeanPreferredTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanNodeSelector {
    #[serde(deserialize_with = "nullable")]
    pub node_selector_terms: Vec<LeanTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanPreferredTerm {
    pub weight: i64,
    #[serde(deserialize_with = "nullable")]
    pub preference: LeanTerm,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanTerm {
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<LeanRequirement>,
    #[serde(deserialize_with = "nullable")]
    pub match_fields: Vec<LeanRequirement>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanRequirement {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanToleration {
    pub key: Option<String>,
    pub operator: Option<String>,
    pub value: Option<String>,
    pub effect: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanPodStatus {
    pub phase: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: LeanConditions,
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<LeanContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<LeanContainerStatus>,
    /// What the pod-level resources were set to.
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanContainerStatus {
    pub name: String,
    pub resources: Option<LeanRequirements>,
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: ResourceList,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeSpec {
    pub unschedulable: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<LeanTaint>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanTaint {
    pub key: String,
    pub value: Option<String>,
    pub effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeanNodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub allocatable: ResourceList,
    #[serde(deserialize_with = "nullable")]
    pub images: Vec<LeanImage>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeanImage {
    #[serde(deserialize_with = "nullable")]
    pub names: Vec<String>,
    pub size_bytes: Option<i64>,
}

/// Of `status.conditions`, the two that say something to a scheduler.
#[derive(Debug, Clone, Default)]
pub(super) struct LeanConditions {
    pub scheduled: Option<LeanScheduled>,
    /// `PodResizePending` with reason `Infeasible`.
    pub resize_infeasible: bool,
}

#[derive(Debug, Clone)]
pub(super) struct LeanScheduled {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// Of a volume, whether it says where the pod can run.
#[derive(Debug, Clone, Default)]
pub(super) struct LeanVolume {
    /// VolumeBinding, VolumeZone, VolumeRestrictions or NodeVolumeLimits would look at it, or its type is not known.
    pub constrains: bool,
    /// `image.reference`.
    pub image: Option<String>,
}

/// A `ResourceList`, parsed; a malformed quantity is kept as its error.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceList(pub Vec<(Cow<'static, str>, Result<Quantity, QuantityError>)>);

/// `null` is what it would be if it were absent: Go writes `null` for empty lists and maps.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn lean_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Meta {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
        creation_timestamp: Option<LenientTime>,
        deletion_timestamp: Option<LenientTime>,
    }
    let meta = Meta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        labels: meta.labels,
        creation_timestamp: meta.creation_timestamp.map(|time| Time(time.0)),
        deletion_timestamp: meta.deletion_timestamp.map(|time| Time(time.0)),
        ..ObjectMeta::default()
    })
}

/// A time; the epoch if it cannot be read, as that a pod is being deleted counts more than when.
struct LenientTime(jiff::Timestamp);

impl<'de> Deserialize<'de> for LenientTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        Ok(LenientTime(text.parse().unwrap_or_default()))
    }
}

/// A key or a short text that is compared while reading: borrowed from the input where that is possible.
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

/// As upstream's `Quantity.UnmarshalJSON`: text or number, spaces around it allowed, `null` is zero.
struct LeanQuantity(Result<Quantity, QuantityError>);

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
        }
        fn owned(text: Option<Text>) -> String {
            text.map_or_else(String::new, |text| text.0.into_owned())
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
                                status: condition.status.is_some_and(|status| status.0 == "True"),
                                reason: owned(condition.reason),
                                message: owned(condition.message),
                            });
                        }
                        "PodResizePending" => {
                            found.resize_infeasible =
                                condition.reason.is_some_and(|why| why.0 == "Infeasible");
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
                let mut volume = LeanVolume::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "image" => {
                            volume.image = map.next_value::<Option<Image>>()?.and_then(|i| i.reference)
                        }
                        key => {
                            let is_set = map.next_value::<Option<IgnoredAny>>()?.is_some();
                            volume.constrains |= is_set && !is_free_to_place(key);
                        }
                    }
                }
                Ok(volume)
            }
        }
        deserializer.deserialize_map(Source)
    }
}

/// Volume fields that no plugin of kube-scheduler 1.36 looks at. Not among them are claims and `ephemeral` (all four
/// volume plugins), `gcePersistentDisk`, `awsElasticBlockStore`, `rbd`, `iscsi` (VolumeRestrictions), and what
/// NodeVolumeLimits counts as CSI after migration: `azureDisk`, `azureFile`, `cinder`, `vsphereVolume`,
/// `portworxVolume`. An inline `csi` volume is counted by none of them.
fn is_free_to_place(field: &str) -> bool {
    matches!(
        field,
        "name"
            | "cephfs"
            | "configMap"
            | "csi"
            | "downwardAPI"
            | "emptyDir"
            | "fc"
            | "flexVolume"
            | "flocker"
            | "gitRepo"
            | "glusterfs"
            | "hostPath"
            | "nfs"
            | "photonPersistentDisk"
            | "projected"
            | "quobyte"
            | "scaleIO"
            | "secret"
            | "storageos"
    )
}
