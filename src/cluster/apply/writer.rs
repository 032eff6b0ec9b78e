//! Writer of resizes and evictions: one request each. The caller decides what to do after a refusal.

use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};

use super::events::PodEvent;
use crate::cluster::client::{self, json_request};
use crate::cluster::pod_reader::is_name;

const JSON_PATCH: &str = "application/json-patch+json";

/// Identity of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodId<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// The reason why a pod was not resized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// It is gone, or another pod has its name.
    #[error("the pod is gone")]
    Gone,
    /// The API server refused the resize.
    #[error("{0}")]
    Refused(String),
    /// The result is unknown: it may have been carried out.
    #[error("{0}")]
    Unknown(String),
}

/// The result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    Yes,
    /// It is gone, or another pod has its name.
    Gone,
    /// A PodDisruptionBudget does not allow it.
    Kept(String),
    Failed(String),
}

/// Writes to pods through the API server. Cheap to clone.
#[derive(Clone)]
pub struct PodWriter {
    client: Client,
    /// Identifies the replica of berth, in events.
    host: String,
}

impl PodWriter {
    /// Creates a writer. `client` must send each request once, without retries.
    pub fn new(client: Client, host: String) -> Self {
        Self { client, host }
    }

    /// Changes the requests and limits of a running pod's containers through the `resize` subresource. `operations` is a JSON
    /// patch of [`crate::apply::patch::in_place`], which tests the pod's uid first. Success does not mean that the kubelet carried
    /// it out: the pod's conditions `PodResizePending` and `PodResizeInProgress` show that.
    ///
    /// The caller must first check that the node has room ([`crate::scheduler::Scheduler::grow_in_place`]).
    ///
    /// # Errors
    /// When the resize was refused, or its result is unknown.
    pub async fn resize_pod(&self, pod: PodId<'_>, operations: &[Value]) -> Result<(), ResizeError> {
        let path = format!("{}/resize", path(pod).ok_or(ResizeError::Gone)?);
        let request =
            json_request(Method::PATCH, &path, JSON_PATCH, &operations).map_err(ResizeError::Refused)?;
        let answer = client::exchange(&self.client, request).await.map_err(ResizeError::Unknown)?;
        let message = answer.message();
        match answer.status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if answer.is_object_not_found() => Err(ResizeError::Gone),
            // A `test` operation of the patch failed.
            StatusCode::UNPROCESSABLE_ENTITY if message.contains("/metadata/uid") => Err(ResizeError::Gone),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(ResizeError::Unknown(message))
            }
            _ => Err(ResizeError::Refused(message)),
        }
    }

    /// Requests the eviction of a pod, which PodDisruptionBudgets may refuse.
    pub async fn evict(&self, pod: PodId<'_>) -> Evicted {
        let Some(path) = path(pod) else { return Evicted::Gone };
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let request = json_request(Method::POST, &format!("{path}/eviction"), "application/json", &body);
        let request = match request {
            Ok(request) => request,
            Err(error) => return Evicted::Failed(error),
        };
        let answer = match client::exchange(&self.client, request).await {
            Ok(answer) => answer,
            Err(error) => return Evicted::Failed(error),
        };
        let message = answer.message();
        match answer.status {
            status if status.is_success() => Evicted::Yes,
            StatusCode::NOT_FOUND if answer.is_object_not_found() => Evicted::Gone,
            StatusCode::CONFLICT if message.contains("UID in precondition") => Evicted::Gone,
            StatusCode::TOO_MANY_REQUESTS => Evicted::Kept(message),
            _ => Evicted::Failed(message),
        }
    }

    /// Sends an event about a pod. A lost event is not retried.
    pub async fn tell(&self, event: PodEvent<'_>) {
        let namespace = event.pod.namespace;
        if !is_name(namespace) {
            return;
        }
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let body = event.body(&self.host);
        let sent = match json_request(Method::POST, &path, "application/json", &body) {
            Ok(request) => client::exchange(&self.client, request).await.map(|answer| answer.status),
            Err(error) => Err(error),
        };
        tracing::debug!(?sent, pod = event.pod.name, reason = event.reason, "an event");
    }
}

/// Returns the path of the pod; `None` if the name or namespace is invalid.
fn path(pod: PodId) -> Option<String> {
    let PodId { namespace, name, uid } = pod;
    let is_one = is_name(namespace) && is_name(name) && !uid.is_empty();
    is_one.then(|| format!("/api/v1/namespaces/{namespace}/pods/{name}"))
}
