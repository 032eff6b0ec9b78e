//! Watched objects other than pods and nodes: their index and conversion.

mod allocations;
mod budgets;
mod devices;
mod volumes;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub use allocations::{LeanAllocation, LeanCoschedulingPodGroup, LeanPodGroup, PodGroupVersion};
pub use budgets::LeanPodDisruptionBudget;
pub(crate) use devices::LeanDeviceAllocation;
pub use devices::{LeanDeviceClass, LeanResourceClaim, LeanResourceSlice};
pub(crate) use volumes::SELECTED_NODE;
pub use volumes::{
    LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity, LeanPersistentVolume, LeanPersistentVolumeClaim,
    LeanStorageClass, LeanVolumeAttachment,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::convert::label_selector;
use super::lean::{LeanLabelSelector, lean_meta, nullable};
use super::{Interner, Listed, WatchChange};
use berth_model::{ClaimName, LabelSelector};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};

/// A lean type that becomes a [`ClusterObject`].
pub trait LeanObject {
    const KIND: ObjectKind;
    fn into_object(self, interner: &mut Interner) -> ClusterObject;
    fn metadata(&self) -> &ObjectMeta;
}

/// Receiver of objects.
pub trait ObjectSink {
    fn apply_object(&mut self, object: ClusterObject);
    fn delete_object(&mut self, kind: ObjectKind, object: &ObjectName);
    /// A list of all objects of this kind was complete, with exactly these.
    fn retain_objects(&mut self, kind: ObjectKind, listed: &HashSet<ObjectName>);
}

/// State of one watch.
#[derive(Default)]
pub struct ObjectIndex {
    interner: Interner,
    listed: Listed<HashSet<ObjectName>>,
    /// A list was complete once.
    listed_once: bool,
}

impl ObjectIndex {
    pub fn take<K: LeanObject>(&mut self, change: WatchChange<K>, sink: &mut impl ObjectSink) {
        match change {
            WatchChange::ListBegins => self.listed.begin(),
            WatchChange::Apply(Ok(object)) => {
                let meta = object.metadata();
                self.listed.note(name_of(meta.namespace.as_deref(), meta.name.as_deref()));
                sink.apply_object(object.into_object(&mut self.interner));
            }
            // It exists: the last version that could be read stays.
            WatchChange::Apply(Err(bad)) => {
                self.listed.note(name_of(Some(&bad.id.namespace), Some(&bad.id.name)))
            }
            WatchChange::Delete(id) => {
                sink.delete_object(K::KIND, &name_of(Some(&id.namespace), Some(&id.name)))
            }
            WatchChange::ListEnds => {
                self.listed_once = true;
                sink.retain_objects(K::KIND, &self.listed.end());
            }
            WatchChange::NotServed => {
                self.listed_once = true;
                sink.retain_objects(K::KIND, &HashSet::new());
            }
            // Treated as empty: the server need not serve every kind, and pods that don't use it need not wait.
            WatchChange::Refused if !self.listed_once => {
                self.listed_once = true;
                sink.retain_objects(K::KIND, &HashSet::new());
            }
            WatchChange::Refused => {}
        }
    }
}

fn name_of(namespace: Option<&str>, name: Option<&str>) -> ObjectName {
    ObjectName { namespace: namespace.unwrap_or_default().into(), name: name.unwrap_or_default().into() }
}

fn name(meta: &ObjectMeta, interner: &mut Interner) -> Arc<str> {
    interner.text(meta.name.as_deref().unwrap_or_default())
}

/// The name of a claim, of volumes or of devices.
fn claim_name(meta: &ObjectMeta, interner: &mut Interner) -> ClaimName {
    let namespace = interner.text(meta.namespace.as_deref().unwrap_or_default());
    ClaimName { namespace, name: name(meta, interner) }
}

/// The resource version; 0 if it is not a number.
fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// A namespace to watch with `Api<LeanNamespace>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Namespace")]
pub struct LeanNamespace {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
}

impl LeanObject for LeanNamespace {
    const KIND: ObjectKind = ObjectKind::Namespace;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let name: Arc<str> = interner.text(self.metadata.name.as_deref().unwrap_or_default());
        let labels = interner.labels(&self.metadata.labels.unwrap_or_default());
        ClusterObject::Namespace { name, labels }
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// The selector of a service or replication controller: labels of its pods.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SelectsLabels {
    replicas: Option<i64>,
    selector: Option<BTreeMap<String, String>>,
}

/// The selector of a controller with a full label selector.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Selects {
    replicas: Option<i64>,
    selector: Option<LeanLabelSelector>,
}

impl SelectsLabels {
    fn read(self, interner: &mut Interner) -> LabelSelector {
        let selects = |match_labels| LeanLabelSelector { match_labels, ..LeanLabelSelector::default() };
        Selects { selector: self.selector.map(selects), ..Selects::default() }.read(interner)
    }
}

impl Selects {
    /// An invalid selector selects nothing, as upstream.
    fn read(self, interner: &mut Interner) -> LabelSelector {
        label_selector(self.selector.as_ref(), interner).unwrap_or_default()
    }
}

/// Defines a kind of [`ObjectKind::SPREADING`], to watch with `Api`.
macro_rules! selecting {
    ($lean:ident, $kind:ident, $inherit:path, $selects:ident) => {
        #[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
        #[resource(inherit = $inherit)]
        pub struct $lean {
            #[serde(deserialize_with = "lean_meta")]
            pub metadata: ObjectMeta,
            #[serde(default, deserialize_with = "nullable")]
            spec: $selects,
        }

        impl $lean {
            /// Returns the number of pods that it wants.
            pub fn replicas(&self) -> i64 {
                self.spec.replicas.unwrap_or(1)
            }
        }

        impl LeanObject for $lean {
            const KIND: ObjectKind = ObjectKind::$kind;

            fn into_object(self, interner: &mut Interner) -> ClusterObject {
                let mut text = |text: Option<String>| interner.text(text.as_deref().unwrap_or_default());
                let (namespace, name) = (text(self.metadata.namespace), text(self.metadata.name));
                let selector = self.spec.read(interner);
                ClusterObject::Selecting {
                    kind: ObjectKind::$kind,
                    name: ObjectName { namespace, name },
                    selector,
                }
            }

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
        }
    };
}

selecting!(LeanService, Service, k8s_openapi::api::core::v1::Service, SelectsLabels);
selecting!(
    LeanReplicationController,
    ReplicationController,
    k8s_openapi::api::core::v1::ReplicationController,
    SelectsLabels
);
selecting!(LeanReplicaSet, ReplicaSet, k8s_openapi::api::apps::v1::ReplicaSet, Selects);
selecting!(LeanStatefulSet, StatefulSet, k8s_openapi::api::apps::v1::StatefulSet, Selects);

#[cfg(test)]
mod tests {
    use super::*;

    fn selector<K: LeanObject + serde::de::DeserializeOwned>(spec: &str) -> LabelSelector {
        let json = format!(r#"{{"metadata":{{"namespace":"x","name":"web"}},"spec":{spec}}}"#);
        let object: K = serde_json::from_str(&json).expect(&json);
        let ClusterObject::Selecting { kind, name, selector } = object.into_object(&mut Interner::default())
        else {
            panic!("{json}")
        };
        assert_eq!((kind, &*name.namespace, &*name.name), (K::KIND, "x", "web"));
        selector
    }

    #[test]
    fn a_service_or_controller_is_read_as_what_it_selects() {
        let web = selector::<LeanService>(r#"{"ports":[{"port":80}],"selector":{"app":"web"}}"#);
        let LabelSelector::All(requirements) = &web else { panic!("{web:?}") };
        assert_eq!(&*requirements[0].key, "app");
        assert_eq!(selector::<LeanReplicationController>(r#"{"selector":{"app":"web"}}"#), web);
        let both = r#"{"replicas":2,"selector":{"matchLabels":{"app":"web"},"matchExpressions":[
            {"key":"app","operator":"In","values":["web"]}]},"template":{}}"#;
        assert_eq!(selector::<LeanReplicaSet>(both), web);
        assert_eq!(selector::<LeanStatefulSet>(both), web);
    }

    #[test]
    fn what_selects_nothing_or_cannot_be_understood_selects_no_pods() {
        assert_eq!(selector::<LeanService>(r#"{"type":"ExternalName"}"#), LabelSelector::Nothing);
        assert_eq!(selector::<LeanService>("null"), LabelSelector::Nothing);
        let bad =
            r#"{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Near"}]}}"#;
        assert_eq!(selector::<LeanReplicaSet>(bad), LabelSelector::Nothing);
    }
}
