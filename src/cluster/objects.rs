//! Objects other than pods and nodes: how they are read, and handed on.

mod volumes;

use std::collections::HashSet;
use std::sync::Arc;

pub(crate) use volumes::SELECTED_NODE;
pub use volumes::{
    LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity, LeanPersistentVolume, LeanPersistentVolumeClaim,
    LeanStorageClass, LeanVolumeAttachment,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::lean::lean_meta;
use super::{Change, Interner};
use crate::objects::{Kind, Object, ObjectName};

/// A lean type that becomes an [`Object`].
pub trait LeanObject {
    const KIND: Kind;
    fn into_object(self, interner: &mut Interner) -> Object;
    fn metadata(&self) -> &ObjectMeta;
}

/// What is done with objects as they are seen.
pub trait ObjectSink {
    fn apply_object(&mut self, object: Object);
    fn delete_object(&mut self, kind: Kind, object: &ObjectName);
    /// A list of all objects of this kind was complete; it had exactly these.
    fn retain_objects(&mut self, kind: Kind, listed: &HashSet<ObjectName>);
}

/// Takes the changes of one watch.
#[derive(Default)]
pub struct ObjectIndex {
    interner: Interner,
    listed: HashSet<ObjectName>,
    listing: bool,
    /// A list was complete once.
    listed_once: bool,
}

impl ObjectIndex {
    pub fn take<K: LeanObject>(&mut self, change: Change<K>, sink: &mut impl ObjectSink) {
        match change {
            Change::ListBegins => {
                self.listing = true;
                self.listed.clear();
            }
            Change::Apply(Ok(object)) => {
                let meta = object.metadata();
                let name = name_of(meta.namespace.as_deref(), meta.name.as_deref());
                self.note(name);
                sink.apply_object(object.into_object(&mut self.interner));
            }
            // What is known of it stays as it is; that it exists is sure.
            Change::Apply(Err(bad)) => self.note(name_of(Some(&bad.id.namespace), Some(&bad.id.name))),
            Change::Delete(id) => sink.delete_object(K::KIND, &name_of(Some(&id.namespace), Some(&id.name))),
            Change::ListEnds => {
                self.listing = false;
                self.listed_once = true;
                sink.retain_objects(K::KIND, &std::mem::take(&mut self.listed));
            }
            // As if there were none: a server need not have every kind, and pods that ask for none of it need not wait.
            Change::Refused if !self.listed_once => {
                self.listed_once = true;
                sink.retain_objects(K::KIND, &HashSet::new());
            }
            Change::Refused => {}
        }
    }

    fn note(&mut self, name: ObjectName) {
        if self.listing {
            self.listed.insert(name);
        }
    }
}

fn name_of(namespace: Option<&str>, name: Option<&str>) -> ObjectName {
    ObjectName { namespace: namespace.unwrap_or_default().into(), name: name.unwrap_or_default().into() }
}

/// A namespace to watch with `Api<LeanNamespace>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Namespace")]
pub struct LeanNamespace {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
}

impl LeanObject for LeanNamespace {
    const KIND: Kind = Kind::Namespace;

    fn into_object(self, interner: &mut Interner) -> Object {
        let name: Arc<str> = interner.text(self.metadata.name.as_deref().unwrap_or_default());
        let labels = interner.labels(&self.metadata.labels.unwrap_or_default());
        Object::Namespace { name, labels }
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}
