//! API requests of the service scaler.

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::{Other, ScaledService, read_other, read_selector};
use crate::client::{MERGE_PATCH, json_request};
use crate::report_json::{EventBody, Regarding, note_of};
use crate::vpa::{ApiError, Recommending};
use berth_crds::service_scaler::ServiceScalerStatus;
use berth_model::LabelSelector;

const SCALERS: &str = "servicescalers";
/// Kinds of other autoscalers: the path before and after the namespace, and the kind.
const OTHERS: [(&str, &str, &str); 2] = [
    ("/apis/autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("/apis/keda.sh/v1alpha1", "scaledobjects", "ScaledObject"),
];
/// Reporting controller of events.
const CONTROLLER: &str = "berth.dev/scaler";

/// The `scale` of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadScale {
    pub replicas: u32,
    /// Selector of its pods, in the syntax of a query.
    pub selector: String,
    /// The parsed selector; `None` if it is empty or invalid.
    pub labels: Option<LabelSelector>,
    resource_version: String,
    path: String,
}

impl WorkloadScale {
    /// A scale with this number of replicas that cannot be written.
    pub fn of(replicas: u32) -> WorkloadScale {
        let (selector, resource_version, path) = ("app=web".to_owned(), String::new(), String::new());
        WorkloadScale { replicas, selector, labels: None, resource_version, path }
    }
}

/// A change that is reported as an event of the ServiceScaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalerChange {
    ScaledUp,
    ScaledDown,
    Resized,
    /// An action failed.
    Failed,
    /// The workload is no longer scaled.
    Stopped,
}

impl ScalerChange {
    /// The reason of its event.
    pub fn reason(self) -> &'static str {
        match self {
            ScalerChange::ScaledUp => "ScaledUp",
            ScalerChange::ScaledDown => "ScaledDown",
            ScalerChange::Resized => "Resized",
            ScalerChange::Failed => "ScalingFailed",
            ScalerChange::Stopped => "ScalingStopped",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            ScalerChange::Failed | ScalerChange::Stopped => "Warning",
            _ => "Normal",
        }
    }
}

fn folder(namespace: &str) -> String {
    format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/{SCALERS}")
}

impl Recommending {
    /// Lists all ServiceScalers; skips and logs those that cannot be parsed.
    ///
    /// # Errors
    /// [`ApiError::NotFound`]: the server does not serve the kind.
    pub async fn services(&self) -> Result<Vec<ScaledService>, ApiError> {
        let mut services = Vec::new();
        self.list(&format!("/apis/berth.dev/v1alpha1/{SCALERS}"), |item| match ScaledService::read(item) {
            Ok(service) => services.push(service),
            Err(error) => tracing::warn!(%error, "a ServiceScaler cannot be parsed"),
        })
        .await?;
        Ok(services)
    }

    /// Reads a ServiceScaler; `None`: there is none of this name.
    ///
    /// # Errors
    /// The request failed, the cluster does not have the kind, or the object cannot be parsed.
    pub async fn service(&self, namespace: &str, name: &str) -> Result<Option<ScaledService>, ApiError> {
        let found = self.get_one(&folder(namespace), name, "ServiceScalers").await?;
        found.map(|json| ScaledService::read(&json).map_err(ApiError::Other)).transpose()
    }

    /// Reads the `scale` at a path that [`OwnerResolver`](crate::vpa::OwnerResolver) found.
    ///
    /// # Errors
    /// [`ApiError::NotFound`]: the workload does not exist.
    pub async fn scale(&self, path: &str) -> Result<WorkloadScale, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WireScale {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            resource_version: String,
        }
        #[derive(Default, Deserialize)]
        struct Spec {
            #[serde(default)]
            replicas: u32,
        }
        #[derive(Default, Deserialize)]
        struct Status {
            #[serde(default)]
            selector: String,
        }
        // Not from the API server's cache: decisions need the newest number of replicas.
        let answer = self.get_now(path).await?;
        let WireScale { metadata, spec, status } = serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Other(format!("{path} is no scale: {error}")))?;
        Ok(WorkloadScale {
            replicas: spec.replicas,
            labels: read_selector(&status.selector),
            selector: status.selector,
            resource_version: metadata.resource_version,
            path: path.to_owned(),
        })
    }

    /// Sets the replicas of a workload, if its scale is unchanged since it was read.
    ///
    /// # Errors
    /// [`ApiError::Conflict`]: another client changed the workload meanwhile.
    pub async fn set_replicas(&self, scale: &WorkloadScale, replicas: u32) -> Result<(), ApiError> {
        let patch = json!({
            "metadata": {"resourceVersion": scale.resource_version},
            "spec": {"replicas": replicas},
        });
        self.send(json_request(Method::PATCH, &scale.path, MERGE_PATCH, &patch)).await.map(drop)
    }

    /// Lists the HorizontalPodAutoscalers and ScaledObjects of one namespace, or of all. Kinds that the server does not serve have no
    /// objects.
    ///
    /// # Errors
    /// When a list fails.
    pub async fn autoscalers(&self, namespace: Option<&str>) -> Result<Vec<Other>, ApiError> {
        let mut others = Vec::new();
        for (prefix, plural, kind) in OTHERS {
            let path = match namespace {
                Some(namespace) => format!("{prefix}/namespaces/{namespace}/{plural}"),
                None => format!("{prefix}/{plural}"),
            };
            match self.list(&path, |item| others.extend(read_other(item, kind))).await {
                Ok(()) | Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(others)
    }

    /// Writes the status of a ServiceScaler, unless it was deleted or recreated since it was read.
    ///
    /// # Errors
    /// When it was not written.
    pub async fn write_service_status(
        &self,
        service: &ScaledService,
        status: &ServiceScalerStatus,
    ) -> Result<(), ApiError> {
        let path = format!("{}/{}/status", folder(&service.namespace), service.name);
        let mut written = serde_json::to_value(status).unwrap_or_default();
        for field in ["replicas", "desiredReplicas", "selector", "lastChangeTime", "memory"] {
            if written.get(field).is_none() {
                written[field] = Value::Null;
            }
        }
        let patch = json!({"metadata": {"uid": service.uid}, "status": written});
        self.send(json_request(Method::PATCH, &path, MERGE_PATCH, &patch)).await.map(drop)
    }

    /// Sends an event about a change of the ServiceScaler.
    ///
    /// # Errors
    /// When it was not sent.
    pub async fn write_event_of(
        &self,
        service: &ScaledService,
        change: ScalerChange,
        note: &str,
        (now, instance): (jiff::Timestamp, &str),
    ) -> Result<(), ApiError> {
        let regarding = Regarding {
            api_version: "berth.dev/v1alpha1",
            kind: "ServiceScaler",
            namespace: &service.namespace,
            name: &service.name,
            uid: &service.uid,
        };
        let said = (change.kind(), change.reason(), "Scale", note_of(note));
        let body = EventBody::about(regarding, said, (CONTROLLER, instance.to_owned()), now);
        self.send(body.request()).await.map(drop)
    }
}
