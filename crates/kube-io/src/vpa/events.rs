//! Kubelet evictions, read from Events.
//!
//! Upstream: `pkg/recommender/input/oom/observer.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::api::{ApiError, Recommending};
use super::owners::METADATA;
use super::owners::controller;
use crate::lean::nullable;
use crate::pod_reader::is_name;
use berth_model::Quantity;
use berth_rightsizing::recommend::{Amount, OwnerRef, UnixNanos, time};

/// Maximum number of evictions read per namespace and round. The API server drops Events after an hour.
pub const EVICTIONS_MAX: usize = 1_000;

/// A pod that the kubelet evicted because of memory pressure on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PressureEviction {
    /// Uid of the Event.
    pub uid: String,
    pub time: UnixNanos,
    pub pod: String,
    /// May be empty.
    pub pod_uid: Arc<str>,
    /// Containers that used more memory than they requested, and their usage in bytes.
    pub used: Vec<(String, Amount)>,
}

/// Evictions by namespace, and the number of those beyond the limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evictions {
    pub by_namespace: BTreeMap<Arc<str>, Vec<PressureEviction>>,
    pub beyond: usize,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Event {
    metadata: Meta,
    reason: String,
    involved_object: Involved,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    namespace: Arc<str>,
    uid: String,
    creation_timestamp: Option<String>,
    #[serde(deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Involved {
    kind: String,
    name: String,
    #[serde(deserialize_with = "nullable")]
    uid: String,
}

impl Recommending {
    /// Lists the memory-pressure evictions of a namespace, or of all: of each at most [`EVICTIONS_MAX`], and counts the rest.
    ///
    /// # Errors
    /// When the list is incomplete.
    pub async fn evictions(&self, namespace: Option<&str>) -> Result<Evictions, ApiError> {
        let mut evictions = Evictions::default();
        let within = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let path = format!("/api/v1/{within}events");
        self.list_where(&path, "fieldSelector=reason%3DEvicted", |item| {
            let Some((namespace, eviction)) = read(item) else { return };
            let of_namespace = evictions.by_namespace.entry(namespace).or_default();
            match of_namespace.len() < EVICTIONS_MAX {
                true => of_namespace.push(eviction),
                false => evictions.beyond += 1,
            }
        })
        .await?;
        Ok(evictions)
    }

    /// Returns the controller of a pod, which may be finished; `None` if the pod is gone or has no controller.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn controller_of(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
    ) -> Result<Option<OwnerRef>, ApiError> {
        let metadata =
            match self.metadata(&format!("/api/v1/namespaces/{namespace}/pods/{pod}"), METADATA).await {
                Err(ApiError::NotFound(_)) => return Ok(None),
                answer => answer?,
            };
        Ok((metadata.uid == uid).then(|| controller(metadata.owner_references)).flatten())
    }
}

/// Parses an eviction, with its namespace; `None` if the cause is not memory pressure or the Event is incomplete.
fn read(json: &str) -> Option<(Arc<str>, PressureEviction)> {
    let Event { metadata, reason, involved_object } = serde_json::from_str(json).ok()?;
    if reason != "Evicted" || involved_object.kind != "Pod" || !is_name(&involved_object.name) {
        return None;
    }
    let list = |key: &str| -> Vec<&str> {
        metadata.annotations.get(key).map_or_else(Vec::new, |text| text.split(',').collect())
    };
    let (containers, usages) = (list("offending_containers"), list("offending_containers_usage"));
    let starved = list("starved_resource");
    if containers.len() != usages.len() || containers.len() != starved.len() {
        return None;
    }
    let used = containers.into_iter().zip(usages).zip(starved).filter(|(_, starved)| *starved == "memory");
    let used: Vec<_> = used
        .filter_map(|((container, usage), _)| {
            let bytes = Quantity::parse(usage).ok().map(Quantity::value)?;
            (bytes >= 0).then(|| (container.to_owned(), bytes))
        })
        .collect();
    let time = time::from_text(metadata.creation_timestamp.as_deref()?).ok()?;
    let eviction = PressureEviction {
        uid: metadata.uid,
        time,
        pod: involved_object.name,
        pod_uid: involved_object.uid.into(),
        used,
    };
    (!eviction.used.is_empty() && !eviction.uid.is_empty()).then_some((metadata.namespace, eviction))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(containers: &str, usages: &str, starved: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": "web.1", "uid": "e", "creationTimestamp": "1970-01-01T00:00:01Z",
                "annotations": {
                    "offending_containers": containers, "offending_containers_usage": usages,
                    "starved_resource": starved,
                },
            },
            "reason": "Evicted",
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web", "uid": "u"},
        })
    }

    fn used(event: &Value) -> Option<Vec<(String, Amount)>> {
        read(&event.to_string()).map(|(_, eviction)| eviction.used)
    }

    #[test]
    fn an_eviction_tells_the_memory_of_each_container_that_used_too_much() {
        let (namespace, eviction) = read(&event("app", "1024Ki", "memory").to_string()).unwrap();
        assert_eq!(&*namespace, "shop");
        assert_eq!((eviction.time, eviction.pod.as_str(), &*eviction.pod_uid), (1_000_000_000, "web", "u"));
        assert_eq!(eviction.used, [("app".to_owned(), 1 << 20)]);
        let several = event("app,proxy,log", "1Mi,bad,3Ki", "memory,memory,memory");
        assert_eq!(used(&several).unwrap(), [("app".to_owned(), 1 << 20), ("log".to_owned(), 3 << 10)]);
        let mixed = event("app,proxy", "1Mi,2Mi", "ephemeral-storage,memory");
        assert_eq!(used(&mixed).unwrap(), [("proxy".to_owned(), 2 << 20)]);
    }

    #[test]
    fn other_events_and_those_that_do_not_say_enough_are_none() {
        for (containers, usages, starved) in [
            ("app", "1Mi", "ephemeral-storage"),
            ("app,proxy", "1Mi", "memory,memory"),
            ("app", "1Mi", "memory,memory"),
            ("app", "lots", "memory"),
            ("app", "-5", "memory"),
            ("", "", ""),
        ] {
            assert_eq!(used(&event(containers, usages, starved)), None, "{containers} {usages} {starved}");
        }
        for change in [
            ("/reason", json!("Killing")),
            ("/involvedObject/kind", json!("Node")),
            ("/involvedObject/name", json!("../secrets")),
            ("/metadata/annotations", json!(null)),
            ("/metadata/creationTimestamp", json!("now")),
        ] {
            let mut event = event("app", "1Mi", "memory");
            *event.pointer_mut(change.0).unwrap() = change.1.clone();
            assert_eq!(used(&event), None, "{change:?}");
        }
        assert_eq!(read("[]"), None);
    }
}
