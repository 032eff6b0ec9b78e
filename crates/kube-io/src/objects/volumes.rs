//! Lean volumes, claims and related storage objects: only the fields that scheduling needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};

use super::{LeanObject, claim_name, name, version};
use crate::Interner;
use crate::convert::{csi_volume, label_requirement, node_terms, selector_or_nothing};
use crate::lean::{
    LeanAzureDisk, LeanDisk, LeanGceDisk, LeanLabelSelector, LeanNodeSelector, LeanVolumeId, nullable,
};
use berth_model::{ClaimName, CsiVolume, LabelSelector, Quantity, Shared, StaticVolume, VolumeKind};
use berth_scheduler::objects::{
    Attachment, Capacity, Claim, ClaimRef, ClusterObject, ObjectKind, ObjectName, StorageClass, Volume,
};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Name, namespace, uid, resource version, labels, deletion, the uid of the controller, and three annotations.
fn volume_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = ObjectMeta::deserialize(deserializer)?;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| [BETA_CLASS, BIND_COMPLETED, SELECTED_NODE].contains(&&**key));
    }
    if let Some(owners) = &mut meta.owner_references {
        owners.retain(|owner| owner.controller == Some(true));
    }
    meta.managed_fields = None;
    Ok(meta)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    Some(meta.annotations.as_ref()?.get(key)?)
}

fn some_text(text: &Option<String>, interner: &mut Interner) -> Option<Arc<str>> {
    text.as_deref().filter(|text| !text.is_empty()).map(|text| interner.text(text))
}

/// Whole bytes; 0 if invalid.
fn bytes(amounts: &BTreeMap<String, LeanAmount>) -> i64 {
    amounts.get("storage").and_then(|amount| amount.0).unwrap_or(0)
}

/// A quantity in whole bytes; `None` if invalid.
#[derive(Debug, Clone)]
struct LeanAmount(Option<i64>);

impl<'de> Deserialize<'de> for LeanAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(LeanAmount(Quantity::parse(text.trim()).ok().map(Quantity::value)))
    }
}

/// The fields that volumes and claims share.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanKind {
    storage_class_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
}

impl LeanKind {
    fn into_kind(self, meta: &ObjectMeta, interner: &mut Interner) -> VolumeKind {
        let class = annotation(meta, BETA_CLASS).or(self.storage_class_name.as_deref());
        VolumeKind {
            class: interner.text(class.unwrap_or_default()),
            modes: self.access_modes.iter().map(String::as_str).collect(),
            block: self.volume_mode.as_deref() == Some("Block"),
            attributes_class: interner.text(self.volume_attributes_class_name.as_deref().unwrap_or_default()),
        }
    }
}

/// A volume to watch with `Api<LeanPersistentVolume>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::PersistentVolume")]
pub struct LeanPersistentVolume {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanVolumeSpec,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanPhase,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanPhase {
    phase: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanVolumeSpec {
    #[serde(flatten)]
    kind: LeanKind,
    #[serde(deserialize_with = "nullable")]
    capacity: BTreeMap<String, LeanAmount>,
    claim_ref: Option<LeanClaimRef>,
    node_affinity: Option<LeanVolumeAffinity>,
    csi: Option<LeanCsi>,
    gce_persistent_disk: Option<LeanGceDisk>,
    aws_elastic_block_store: Option<LeanVolumeId>,
    azure_disk: Option<LeanAzureDisk>,
    cinder: Option<LeanVolumeId>,
    portworx_volume: Option<LeanVolumeId>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanClaimRef {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanVolumeAffinity {
    required: Option<LeanNodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanCsi {
    driver: String,
    volume_handle: String,
}

impl LeanVolumeSpec {
    fn csi(&self, interner: &mut Interner) -> Option<CsiVolume> {
        if let Some(csi) = &self.csi {
            return Some(CsiVolume {
                driver: interner.text(&csi.driver),
                handle: csi.volume_handle.as_str().into(),
            });
        }
        let disk = (self.gce_persistent_disk.clone().map(LeanDisk::Gce))
            .or_else(|| self.aws_elastic_block_store.clone().map(LeanDisk::Aws))
            .or_else(|| self.azure_disk.clone().map(LeanDisk::Azure))
            .or_else(|| self.cinder.clone().map(LeanDisk::Cinder))
            .or_else(|| self.portworx_volume.clone().map(LeanDisk::Portworx))?;
        csi_volume(&disk, interner)
    }
}

impl LeanObject for LeanPersistentVolume {
    const KIND: ObjectKind = ObjectKind::PersistentVolume;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let (meta, spec) = (self.metadata, self.spec);
        let csi = spec.csi(interner);
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let labels = meta.labels.as_ref().map(|labels| interner.labels(labels)).unwrap_or_default();
        let claim = spec.claim_ref.map(|reference| ClaimRef {
            claim: ClaimName {
                namespace: interner.text(&reference.namespace),
                name: interner.text(&reference.name),
            },
            uid: reference.uid.into(),
        });
        let spec = StaticVolume {
            name: name(&meta, interner),
            kind: spec.kind.into_kind(&meta, interner),
            capacity_bytes: bytes(&spec.capacity),
            labels,
            affinity: required.map(|selector| node_terms(&selector.node_selector_terms, interner)),
        };
        ClusterObject::Volume(Volume {
            version: version(&meta),
            spec: Arc::new(spec),
            claim,
            available: self.status.phase.as_deref() == Some("Available"),
            deleting: meta.deletion_timestamp.is_some(),
            csi,
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// A claim to watch with `Api<LeanPersistentVolumeClaim>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::PersistentVolumeClaim")]
pub struct LeanPersistentVolumeClaim {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanClaimSpec,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanPhase,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanClaimSpec {
    #[serde(flatten)]
    kind: LeanKind,
    #[serde(deserialize_with = "nullable")]
    resources: LeanClaimResources,
    selector: Option<LeanLabelSelector>,
    volume_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanClaimResources {
    #[serde(deserialize_with = "nullable")]
    requests: BTreeMap<String, LeanAmount>,
}

impl LeanObject for LeanPersistentVolumeClaim {
    const KIND: ObjectKind = ObjectKind::PersistentVolumeClaim;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let (meta, spec) = (self.metadata, self.spec);
        let owner = meta.owner_references.as_ref().and_then(|owners| owners.first());
        ClusterObject::Claim(Claim {
            name: claim_name(&meta, interner),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version(&meta),
            kind: spec.kind.into_kind(&meta, interner),
            size_bytes: bytes(&spec.resources.requests),
            selector: spec.selector.as_ref().map(|selector| selector_or_nothing(Some(selector), interner)),
            volume: some_text(&spec.volume_name, interner),
            bind_completed: annotation(&meta, BIND_COMPLETED).is_some(),
            selected_node: annotation(&meta, SELECTED_NODE).map(|node| interner.text(node)),
            lost: self.status.phase.as_deref() == Some("Lost"),
            deleting: meta.deletion_timestamp.is_some(),
            owner: owner.map(|owner| owner.uid.as_str().into()),
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// A storage class to watch with `Api<LeanStorageClass>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::storage::v1::StorageClass")]
#[serde(rename_all = "camelCase")]
pub struct LeanStorageClass {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    provisioner: String,
    volume_binding_mode: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    allowed_topologies: Vec<LeanTopologyTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanTopologyTerm {
    #[serde(deserialize_with = "nullable")]
    match_label_expressions: Vec<LeanTopologyRequirement>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanTopologyRequirement {
    key: String,
    #[serde(deserialize_with = "nullable")]
    values: Vec<String>,
}

impl LeanObject for LeanStorageClass {
    const KIND: ObjectKind = ObjectKind::StorageClass;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let topologies = self.allowed_topologies.iter().map(|term| {
            let requirements = term.match_label_expressions.iter();
            requirements.map(|lean| label_requirement(&lean.key, &lean.values, interner)).collect()
        });
        let topologies = Shared::new(topologies.collect());
        ClusterObject::StorageClass(StorageClass {
            name: name(&self.metadata, interner),
            provisioner: interner.text(&self.provisioner),
            delayed: self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            topologies,
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// The CSI drivers of a node, to watch with `Api<LeanCsiNode>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::storage::v1::CSINode")]
pub struct LeanCsiNode {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanCsiNodeSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCsiNodeSpec {
    #[serde(deserialize_with = "nullable")]
    drivers: Vec<LeanNodeDriver>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanNodeDriver {
    name: String,
    #[serde(deserialize_with = "nullable")]
    allocatable: LeanAllocatable,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanAllocatable {
    count: Option<i64>,
}

impl LeanObject for LeanCsiNode {
    const KIND: ObjectKind = ObjectKind::CsiNode;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let limit = |driver: &LeanNodeDriver| Some((interner.text(&driver.name), driver.allocatable.count?));
        let mut limits: Vec<_> = self.spec.drivers.iter().filter_map(limit).collect();
        limits.sort();
        ClusterObject::CsiNode { name: name(&self.metadata, interner), limits: limits.into() }
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// A CSI driver to watch with `Api<LeanCsiDriver>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::storage::v1::CSIDriver")]
pub struct LeanCsiDriver {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanCsiDriverSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanCsiDriverSpec {
    storage_capacity: Option<bool>,
}

impl LeanObject for LeanCsiDriver {
    const KIND: ObjectKind = ObjectKind::CsiDriver;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let tells_capacity = self.spec.storage_capacity == Some(true);
        ClusterObject::CsiDriver { name: name(&self.metadata, interner), tells_capacity }
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// The storage capacity of a driver, to watch with `Api<LeanCsiStorageCapacity>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::storage::v1::CSIStorageCapacity")]
#[serde(rename_all = "camelCase")]
pub struct LeanCsiStorageCapacity {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    storage_class_name: String,
    node_topology: Option<LeanLabelSelector>,
    capacity: Option<LeanAmount>,
    maximum_volume_size: Option<LeanAmount>,
}

impl LeanObject for LeanCsiStorageCapacity {
    const KIND: ObjectKind = ObjectKind::CsiStorageCapacity;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let meta = &self.metadata;
        // The maximum is the more precise one (upstream: `volumeLimit`).
        let bytes = self.maximum_volume_size.or(self.capacity).and_then(|amount| amount.0);
        let nodes = match &self.node_topology {
            None => LabelSelector::Nothing,
            some => selector_or_nothing(some.as_ref(), interner),
        };
        ClusterObject::Capacity(Capacity {
            object: ObjectName {
                namespace: interner.text(meta.namespace.as_deref().unwrap_or_default()),
                name: name(meta, interner),
            },
            class: interner.text(&self.storage_class_name),
            bytes,
            nodes,
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// A volume attached to a node, to watch with `Api<LeanVolumeAttachment>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::storage::v1::VolumeAttachment")]
pub struct LeanVolumeAttachment {
    #[serde(deserialize_with = "volume_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanAttachmentSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanAttachmentSpec {
    attacher: String,
    node_name: String,
    #[serde(deserialize_with = "nullable")]
    source: LeanAttachmentSource,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanAttachmentSource {
    persistent_volume_name: Option<String>,
}

impl LeanObject for LeanVolumeAttachment {
    const KIND: ObjectKind = ObjectKind::VolumeAttachment;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let volume = self.spec.source.persistent_volume_name.unwrap_or_default();
        ClusterObject::Attachment(Attachment {
            name: name(&self.metadata, interner),
            node: interner.text(&self.spec.node_name),
            driver: interner.text(&self.spec.attacher),
            volume: interner.text(&volume),
        })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use berth_model::Labels;

    fn read<K: LeanObject + DeserializeOwned>(json: Value) -> ClusterObject {
        let lean: K = serde_json::from_str(&json.to_string()).expect("it is read");
        lean.into_object(&mut Interner::default())
    }

    #[test]
    fn a_local_volume_is_read_with_its_claim_and_the_hosts_that_reach_it() {
        let object = read::<LeanPersistentVolume>(json!({
            "metadata": {"name": "pv", "resourceVersion": "12", "labels": {"disk": "ssd"},
                "annotations": {"volume.beta.kubernetes.io/storage-class": "old", "x": "y"}},
            "spec": {
                "capacity": {"storage": "1Ki"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "new",
                "volumeMode": "Block", "local": {"path": "/x"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "u"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]},
                    {"matchExpressions": [{"key": "zone", "operator": "Sideways"}]},
                ]}},
            },
            "status": {"phase": "Available"},
        }));
        let ClusterObject::Volume(volume) = object else { panic!("{object:?}") };
        let labels = |host: &str| -> Labels { [("kubernetes.io/hostname", host)].into_iter().collect() };
        assert!(volume.spec.reaches(&labels("a")) && !volume.spec.reaches(&labels("b")));
        assert_eq!((volume.version, volume.available, volume.deleting), (12, true, false));
        assert_eq!((volume.spec.capacity_bytes, &*volume.spec.kind.class), (1024, "old"));
        assert!(volume.spec.kind.block && volume.csi.is_none());
        let claim = ClaimName { namespace: "ns".into(), name: "c".into() };
        assert_eq!(volume.claim, Some(ClaimRef { claim, uid: "u".into() }));
    }

    #[test]
    fn a_volume_is_known_by_its_csi_driver_also_when_it_is_written_as_the_older_type() {
        let csi = |source: Value| {
            let object = read::<LeanPersistentVolume>(json!({"metadata": {"name": "pv"}, "spec": source}));
            let ClusterObject::Volume(volume) = object else { panic!("{object:?}") };
            volume.csi.map(|csi| (csi.driver.to_string(), csi.handle.to_string()))
        };
        let of = |driver: &str, handle: &str| Some((driver.to_owned(), handle.to_owned()));
        assert_eq!(csi(json!({"csi": {"driver": "d", "volumeHandle": "h"}})), of("d", "h"));
        let aws = json!({"awsElasticBlockStore": {"volumeID": "aws://eu-1a/vol-1"}});
        assert_eq!(csi(aws), of("ebs.csi.aws.com", "vol-1"));
        assert_eq!(csi(json!({"nfs": {"path": "/"}})), None);
    }

    #[test]
    fn a_claim_is_read_with_what_the_controllers_wrote_on_it() {
        let object = read::<LeanPersistentVolumeClaim>(json!({
            "metadata": {
                "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "annotations": {BIND_COMPLETED: "yes", SELECTED_NODE: "n"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "not"},
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod", "controller": true},
                ],
            },
            "spec": {
                "resources": {"requests": {"storage": 5}}, "accessModes": ["ReadWriteOncePod"],
                "storageClassName": "s", "volumeName": "pv", "selector": {"matchLabels": {"a": "b"}},
            },
            "status": {"phase": "Lost"},
        }));
        let ClusterObject::Claim(claim) = object else { panic!("{object:?}") };
        assert_eq!((&*claim.uid, claim.version, claim.size_bytes), ("u", 7, 5));
        assert_eq!((claim.volume.as_deref(), claim.selected_node.as_deref()), (Some("pv"), Some("n")));
        assert!(claim.bind_completed && claim.lost && !claim.deleting);
        assert_eq!(claim.owner.as_deref(), Some("pod"));
        assert!(claim.selector.is_some_and(|selector| !selector.matches(&Labels::default())));
    }

    #[test]
    fn a_capacity_without_a_topology_is_nowhere_and_a_maximum_counts_before_the_sum() {
        let capacity = |more: Value| {
            let mut json = json!({"metadata": {"name": "c", "namespace": "ns"}, "storageClassName": "s"});
            json.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            match read::<LeanCsiStorageCapacity>(json) {
                ClusterObject::Capacity(capacity) => capacity,
                other => panic!("{other:?}"),
            }
        };
        let nowhere = capacity(json!({"capacity": "10"}));
        assert_eq!((nowhere.bytes, nowhere.nodes), (Some(10), LabelSelector::Nothing));
        let everywhere = capacity(json!({"capacity": "10", "maximumVolumeSize": "4", "nodeTopology": {}}));
        assert_eq!((everywhere.bytes, everywhere.nodes), (Some(4), LabelSelector::All([].into())));
    }
}
