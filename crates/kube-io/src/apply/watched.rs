//! Watches of the objects that pod admission depends on.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use kube::api::ObjectMeta;
use kube::{Client, Resource};
use parking_lot::RwLock;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::lean::{lean_meta, nullable};
use crate::scaling::LeanServiceScaler;
use crate::vpa::{Quantities, amounts, quantity, read_vpa};
use crate::{Change, Listed, OptionalKind, WatchCounters, watch, watch_if_served};
use berth_model::PerResource;
use berth_rightsizing::apply::index::{Kind, Name, Object};
use berth_rightsizing::apply::{Index, Range, Ranges};
use berth_rightsizing::recommend::{Owner, Vpa};

/// A kind that the index watches.
pub trait Follows: Resource + Clone + DeserializeOwned + Debug + Send + 'static {
    const KIND: Kind;

    fn into_object(self) -> Object;
}

/// Watches all kinds and updates the index; ServiceScalers only if `scaled`. Never returns.
pub async fn follow(client: Client, counters: &WatchCounters, index: &RwLock<Index>, scaled: bool) {
    let scalers = async {
        match scaled {
            true => optional::<LeanServiceScaler>(client.clone(), counters, index).await,
            false => index.write().retain(Kind::ServiceScaler, &BTreeSet::new()),
        }
    };
    tokio::join!(
        optional::<LeanVpa>(client.clone(), counters, index),
        scalers,
        one::<LeanLimitRange>(client.clone(), counters, index),
        one::<OwnedReplicaSet>(client.clone(), counters, index),
        one::<OwnedDeployment>(client.clone(), counters, index),
        one::<OwnedStatefulSet>(client.clone(), counters, index),
        one::<OwnedJob>(client.clone(), counters, index),
    );
}

async fn one<K: Follows<DynamicType: Default>>(
    client: Client,
    counters: &WatchCounters,
    index: &RwLock<Index>,
) {
    let mut listed = Listed::default();
    watch(client, None, counters, |change: Change<K>| take(&mut listed, change, index)).await;
}

async fn optional<K: Follows + OptionalKind>(
    client: Client,
    counters: &WatchCounters,
    index: &RwLock<Index>,
) {
    let mut listed = Listed::default();
    watch_if_served(client, counters, |_| {}, |change: Change<K>| take(&mut listed, change, index)).await;
}

fn take<K: Follows>(listed: &mut Listed<BTreeSet<Name>>, change: Change<K>, index: &RwLock<Index>) {
    match change {
        Change::ListBegins => listed.begin(),
        Change::Apply(Ok(object)) => {
            let meta = object.meta();
            let name = name_of(meta.namespace.as_deref(), meta.name.as_deref());
            listed.note(name.clone());
            index.write().apply(K::KIND, name, object.into_object());
        }
        // The last version that could be read may be outdated, so it is not used.
        Change::Apply(Err(bad)) => {
            let name = name_of(Some(&bad.id.namespace), Some(&bad.id.name));
            index.write().delete(K::KIND, &name);
        }
        Change::Delete(id) => {
            index.write().delete(K::KIND, &name_of(Some(&id.namespace), Some(&id.name)));
        }
        Change::ListEnds => index.write().retain(K::KIND, &listed.end()),
        Change::Refused => {}
    }
}

fn name_of(namespace: Option<&str>, name: Option<&str>) -> Name {
    (namespace.unwrap_or_default().into(), name.unwrap_or_default().into())
}

/// A VPA to watch.
#[derive(Debug, Clone)]
pub struct LeanVpa {
    metadata: Box<ObjectMeta>,
    vpa: Arc<Vpa>,
}

impl<'de> Deserialize<'de> for LeanVpa {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let vpa = read_vpa(raw.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            namespace: Some(vpa.namespace.to_string()),
            name: Some(vpa.name.to_string()),
            uid: Some(vpa.uid.clone()),
            resource_version: Some(vpa.resource_version.clone()),
            ..ObjectMeta::default()
        };
        Ok(LeanVpa { metadata: Box::new(metadata), vpa: Arc::new(vpa) })
    }
}

impl Resource for LeanVpa {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VerticalPodAutoscaler".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "autoscaling.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "verticalpodautoscalers".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl OptionalKind for LeanVpa {
    const VERSIONS: &'static [()] = &[()];
}

impl Follows for LeanVpa {
    const KIND: Kind = Kind::Vpa;

    fn into_object(self) -> Object {
        Object::Vpa(Box::new(Arc::unwrap_or_clone(self.vpa)))
    }
}

impl Follows for LeanServiceScaler {
    const KIND: Kind = Kind::ServiceScaler;

    fn into_object(self) -> Object {
        Object::ServiceScaler(self.sizes().map(Box::new))
    }
}

/// A LimitRange to watch.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::LimitRange")]
pub struct LeanLimitRange {
    #[serde(deserialize_with = "lean_meta")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LimitRangeSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LimitRangeSpec {
    #[serde(deserialize_with = "nullable")]
    limits: Vec<LimitRangeItem>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LimitRangeItem {
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    min: Quantities,
    #[serde(deserialize_with = "nullable")]
    max: Quantities,
    #[serde(deserialize_with = "nullable")]
    default: Quantities,
    #[serde(deserialize_with = "nullable")]
    max_limit_request_ratio: Quantities,
}

impl Follows for LeanLimitRange {
    const KIND: Kind = Kind::LimitRange;

    fn into_object(self) -> Object {
        let mut ranges = Ranges::default();
        for item in self.spec.limits {
            let milli = |name: &str| {
                item.max_limit_request_ratio
                    .get(name)
                    .and_then(quantity)
                    .map(berth_model::Quantity::milli_value)
            };
            let range = Range {
                min: amounts(&item.min),
                max: amounts(&item.max),
                default_limit: amounts(&item.default),
                ratio_milli: PerResource { cpu: milli("cpu"), memory: milli("memory") },
            };
            match item.kind.as_str() {
                "Container" => ranges.container.join(&range),
                "Pod" => ranges.pod.join(&range),
                _ => {}
            }
        }
        Object::LimitRange(ranges)
    }
}

/// Defines a kind of which only the controller is read.
macro_rules! owned {
    ($lean:ident, $kind:ident, $inherit:path) => {
        #[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
        #[resource(inherit = $inherit)]
        pub struct $lean {
            #[serde(deserialize_with = "lean_meta")]
            metadata: ObjectMeta,
        }

        impl Follows for $lean {
            const KIND: Kind = Kind::$kind;

            fn into_object(self) -> Object {
                Object::Owned(controller(self.metadata))
            }
        }
    };
}

owned!(OwnedReplicaSet, ReplicaSet, k8s_openapi::api::apps::v1::ReplicaSet);
owned!(OwnedDeployment, Deployment, k8s_openapi::api::apps::v1::Deployment);
owned!(OwnedStatefulSet, StatefulSet, k8s_openapi::api::apps::v1::StatefulSet);
owned!(OwnedJob, Job, k8s_openapi::api::batch::v1::Job);

fn controller(metadata: ObjectMeta) -> Option<Owner> {
    let owners = metadata.owner_references.unwrap_or_default();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    Some(Owner { api_version: owner.api_version, kind: owner.kind, name: owner.name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_the_index_keeps_them() {
        let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"},"spec":{"limits":[
            {"type":"Container","max":{"cpu":"2"},"default":{"cpu":"500m"},"maxLimitRequestRatio":{"cpu":"1.5"}},
            {"type":"Container","max":{"cpu":"1","memory":"1Ki"}},
            {"type":"Pod","min":{"memory":"1"}}, {"type":"PersistentVolumeClaim"}]}}"#;
        let object: LeanLimitRange = serde_json::from_str(text).unwrap();
        let Object::LimitRange(ranges) = object.into_object() else { panic!("a LimitRange") };
        assert_eq!(ranges.container.max, PerResource { cpu: Some(1_000), memory: Some(1_024) });
        assert_eq!(
            (ranges.container.default_limit.cpu, ranges.container.ratio_milli.cpu),
            (Some(500), Some(1_500))
        );
        assert_eq!(ranges.pod.min.memory, Some(1));

        let text = r#"{"metadata":{"name":"a","namespace":"b","ownerReferences":[
            {"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"u","controller":true}]},"spec":7}"#;
        let object: OwnedReplicaSet = serde_json::from_str(text).unwrap();
        let Object::Owned(Some(owner)) = object.into_object() else { panic!("an owner") };
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Deployment", "web"));

        let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"}}"#;
        let object: LeanVpa = serde_json::from_str(text).unwrap();
        assert_eq!(object.meta().resource_version.as_deref(), Some("7"));
        assert!(serde_json::from_str::<LeanVpa>("{}").is_err());
    }
}
