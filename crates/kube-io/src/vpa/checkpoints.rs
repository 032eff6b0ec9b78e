//! VPA checkpoints: upstream's objects, with the open windows in an annotation.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{ApiError, Recommending};
use crate::client::{JSON_PATCH, json_request};
use crate::lean::nullable;
use berth_rightsizing::recommend::saved::{self, Label};
use berth_rightsizing::recommend::{CheckpointStatus, OpenWindows};

/// Annotation with the open windows: upstream's schema has no field for them.
pub const OPEN_WINDOWS: &str = "berth.dev/open-windows";

/// Annotation with the usage of resources other than CPU and memory, see [`berth_rightsizing::recommend::dimension::kept`].
pub const DIMENSIONS: &str = "berth.dev/dimensions";

/// A checkpoint in the API server.
#[derive(Debug, Clone)]
pub struct FoundCheckpoint {
    pub namespace: String,
    pub label: Label,
    pub uid: String,
    /// Annotations of other clients; they are kept.
    pub annotations: BTreeMap<String, String>,
    /// The content, or the reason why it cannot be parsed.
    pub content: Result<(CheckpointStatus, OpenWindows), String>,
    /// The stored dimensions, unparsed.
    pub dimensions: Option<String>,
}

impl FoundCheckpoint {
    /// Parses a checkpoint.
    ///
    /// # Errors
    /// Its name, owner or annotations cannot be parsed; an invalid content is no error.
    pub fn read(json: &str) -> Result<FoundCheckpoint, String> {
        let WireCheckpoint { mut metadata, spec, status } =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let windows = metadata.annotations.remove(OPEN_WINDOWS);
        let dimensions = metadata.annotations.remove(DIMENSIONS);
        let label = Label {
            name: metadata.name,
            vpa: spec.vpa_object_name,
            container: spec.container_name,
            is_ours: windows.is_some(),
        };
        let content = match status {
            Value::Null => Ok(CheckpointStatus::default()),
            status => serde_json::from_value(status).map_err(|error| error.to_string()),
        };
        // Without open windows it is the same as a checkpoint of upstream.
        let windows = windows.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(FoundCheckpoint {
            namespace: metadata.namespace,
            label,
            uid: metadata.uid,
            annotations: metadata.annotations,
            content: content.map(|status| (status, windows)),
            dimensions,
        })
    }
}

/// A checkpoint to write.
#[derive(Debug, Clone)]
pub struct Saved {
    pub namespace: String,
    pub vpa: String,
    pub container: String,
    /// Annotations of other clients.
    pub annotations: BTreeMap<String, String>,
    pub status: CheckpointStatus,
    pub windows: OpenWindows,
    /// The dimensions to store.
    pub dimensions: Option<String>,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Yes,
    /// The checkpoint of another VPA and container has the name.
    NameTaken,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireCheckpoint {
    metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    status: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
    #[serde(deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    vpa_object_name: String,
    container_name: String,
}

const ALL: &str = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalercheckpoints";

fn folder(namespace: &str) -> String {
    format!("/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalercheckpoints")
}

impl Recommending {
    /// Lists the checkpoints of one or all namespaces and passes them on one by one.
    ///
    /// # Errors
    /// When the list is incomplete.
    pub async fn checkpoints(
        &self,
        namespace: Option<&str>,
        mut take: impl FnMut(FoundCheckpoint),
    ) -> Result<(), ApiError> {
        let path = namespace.map_or_else(|| ALL.to_owned(), folder);
        self.list(&path, |item| match FoundCheckpoint::read(item) {
            Ok(found) => take(found),
            Err(error) => tracing::warn!(%error, "a checkpoint cannot be parsed"),
        })
        .await
    }

    /// Whether the checkpoint exists and belongs to another VPA or container.
    async fn is_anothers(&self, path: &str, saved: &Saved) -> Result<bool, ApiError> {
        let answer = match self.get(path, "application/json").await {
            Err(ApiError::NotFound(_)) => return Ok(false),
            answer => answer?,
        };
        let current: WireCheckpoint = serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Other(format!("{path} cannot be read: {error}")))?;
        Ok(current.spec.vpa_object_name != saved.vpa || current.spec.container_name != saved.container)
    }

    /// Writes a checkpoint, and creates it if it does not exist.
    ///
    /// # Errors
    /// When it was not written.
    pub async fn save(&self, saved: &Saved) -> Result<Written, ApiError> {
        let folder = folder(&saved.namespace);
        let name = saved::name(&saved.vpa, &saved.container);
        let mut annotations = saved.annotations.clone();
        let windows =
            serde_json::to_string(&saved.windows).map_err(|error| ApiError::Other(error.to_string()))?;
        annotations.insert(OPEN_WINDOWS.to_owned(), windows);
        annotations.extend(saved.dimensions.clone().map(|text| (DIMENSIONS.to_owned(), text)));
        // A merge patch would keep old buckets.
        let patch = json!([
            {"op": "test", "path": "/spec/vpaObjectName", "value": saved.vpa},
            {"op": "test", "path": "/spec/containerName", "value": saved.container},
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "add", "path": "/status", "value": saved.status},
        ]);
        let path = format!("{folder}/{name}");
        match self.send(json_request(Method::PATCH, &path, JSON_PATCH, &patch)).await {
            Ok(_) => return Ok(Written::Yes),
            Err(error @ ApiError::Conflict(_)) => {
                // A `test` operation failed, or another client wrote at the same time.
                return if self.is_anothers(&path, saved).await? {
                    Ok(Written::NameTaken)
                } else {
                    Err(error)
                };
            }
            Err(ApiError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let object = json!({
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscalerCheckpoint",
            "metadata": {"name": name, "namespace": saved.namespace, "annotations": annotations},
            "spec": {"vpaObjectName": saved.vpa, "containerName": saved.container},
            "status": saved.status,
        });
        self.send(json_request(Method::POST, &folder, "application/json", &object))
            .await
            .map(|_| Written::Yes)
    }

    /// Deletes a checkpoint, if it still has this uid.
    ///
    /// # Errors
    /// When it was not deleted.
    pub async fn delete_checkpoint(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let path = format!("{}/{name}", folder(namespace));
        let body = json!({"preconditions": {"uid": uid}});
        match self.send(json_request(Method::DELETE, &path, "application/json", &body)).await {
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_says_whose_it_is_even_when_its_content_is_corrupt() {
        let object = |status: &str| {
            format!(
                r#"{{"metadata":{{"name":"web-app","namespace":"shop","uid":"u","annotations":{{"a":"b",
                "{OPEN_WINDOWS}":"{{}}","{DIMENSIONS}":"any"}}}},"spec":{{"vpaObjectName":"web","containerName":"app"}},"status":{status}}}"#
            )
        };
        let found = FoundCheckpoint::read(&object(r#"{"version":"v3","totalSamplesCount":7}"#)).unwrap();
        assert_eq!(found.content.unwrap().0.total_samples_count, 7);
        assert_eq!(found.annotations, BTreeMap::from([("a".into(), "b".into())]));
        assert!(found.label.is_ours);
        assert_eq!(found.dimensions.as_deref(), Some("any"));
        let corrupt =
            FoundCheckpoint::read(&object(r#"{"version":"v3","cpuHistogram":{"bucketWeights":{"x":1}}}"#))
                .unwrap();
        assert_eq!((corrupt.label.vpa.as_str(), corrupt.content.is_err()), ("web", true));
        assert_eq!(FoundCheckpoint::read(&object("null")).unwrap().content.unwrap().0.version, "");
    }
}
