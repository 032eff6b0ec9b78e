//! Fault-tolerant parsing of objects in lists and watches.
//!
//! Upstream types parse a whole list page or watch event at once, so one invalid object blocks all objects after it.
//! Here each object is first read as raw JSON and then parsed separately.

use std::borrow::Cow;

use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::value::RawValue;

/// Identity of an object: namespace, name and uid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl ObjectId {
    /// Moves the identity out of `meta`.
    pub(crate) fn take(meta: &mut ObjectMeta) -> Self {
        ObjectId {
            namespace: meta.namespace.take().unwrap_or_default(),
            name: meta.name.take().unwrap_or_default(),
            uid: meta.uid.take().unwrap_or_default(),
        }
    }

    /// Returns `namespace/name`, or the name alone.
    pub fn shown(&self) -> String {
        if self.namespace.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }
}

/// An object that exists but cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadObject {
    pub id: ObjectId,
    /// The parse error, with its position in the JSON.
    pub error: String,
}

/// A `K`, or the metadata of one that does not parse.
///
/// Deserialises from JSON text only (`serde_json::from_str` and `from_slice`), as kube's clients do.
#[derive(Debug, Clone)]
pub struct Guarded<K>(Content<K>);

#[derive(Debug, Clone)]
enum Content<K> {
    Good(K),
    Bad { meta: Box<ObjectMeta>, error: String },
}

impl<K> Guarded<K> {
    /// Returns the parsed object.
    ///
    /// # Errors
    /// The identity and the error of an object that does not parse.
    pub fn into_result(self) -> Result<K, BadObject> {
        match self.0 {
            Content::Good(object) => Ok(object),
            Content::Bad { mut meta, error } => Err(BadObject { id: ObjectId::take(&mut meta), error }),
        }
    }
}

/// The metadata that a watch needs. Each field is parsed separately: an invalid one does not affect the rest.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Remains {
    metadata: RemainingMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RemainingMeta {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let content = match serde_json::from_str(raw.get()) {
            Ok(object) => Content::Good(object),
            Err(error) => {
                let meta = serde_json::from_str::<Remains>(raw.get()).unwrap_or_default().metadata;
                Content::Bad {
                    meta: Box::new(ObjectMeta {
                        namespace: meta.namespace,
                        name: meta.name,
                        uid: meta.uid,
                        resource_version: meta.resource_version,
                        ..ObjectMeta::default()
                    }),
                    error: error.to_string(),
                }
            }
        };
        Ok(Guarded(content))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Content::Good(object) => object.meta(),
            Content::Bad { meta, .. } => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Content::Good(object) => object.meta_mut(),
            Content::Bad { meta, .. } => meta,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt;
    use kube::api::{ObjectList, WatchEvent};

    use super::*;

    const GOOD: &str = r#"{"metadata":{"name":"a","namespace":"x","uid":"1","resourceVersion":"7"},"spec":{"containers":[]}}"#;
    const BAD: &str = r#"{"kind":"Pod","metadata":{"name":"b","namespace":"x","uid":"2","resourceVersion":"8"},"spec":{"containers":"none"}}"#;

    fn event(kind: &str, object: &str) -> WatchEvent<Guarded<Pod>> {
        serde_json::from_str(&format!(r#"{{"type":"{kind}","object":{object}}}"#)).expect("an event")
    }

    #[test]
    fn a_bad_object_leaves_the_rest_of_its_list_page_readable() {
        let page = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"9","continue":"c"}},"items":[{GOOD},{BAD},{GOOD}]}}"#
        );
        let page: ObjectList<Guarded<Pod>> = serde_json::from_str(&page).expect("a page");
        assert_eq!(page.metadata.continue_.as_deref(), Some("c"));
        let objects: Vec<_> = page.items.into_iter().map(Guarded::into_result).collect();
        assert_eq!(objects.len(), 3);
        assert_eq!(objects[2].as_ref().expect("good").name_any(), "a");
        let bad = objects[1].as_ref().expect_err("bad");
        assert_eq!((bad.id.namespace.as_str(), bad.id.name.as_str(), bad.id.uid.as_str()), ("x", "b", "2"));
        assert!(bad.error.contains("expected a sequence"), "{}", bad.error);
    }

    #[test]
    fn a_bad_object_in_a_watch_event_still_moves_the_watch_on() {
        let WatchEvent::Modified(bad) = event("MODIFIED", BAD) else { panic!("not a modification") };
        assert_eq!(bad.resource_version().as_deref(), Some("8"));
        assert!(bad.into_result().is_err());
        let WatchEvent::Added(good) = event("ADDED", GOOD) else { panic!("not an addition") };
        assert_eq!(good.into_result().expect("good").name_any(), "a");
    }

    #[test]
    fn bookmarks_and_errors_are_no_objects() {
        let bookmark =
            event("BOOKMARK", r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}"#);
        assert!(matches!(bookmark, WatchEvent::Bookmark(mark) if mark.metadata.resource_version == "12"));
        let error = event(
            "ERROR",
            r#"{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410}"#,
        );
        assert!(matches!(error, WatchEvent::Error(status) if status.code == 410));
    }
}
