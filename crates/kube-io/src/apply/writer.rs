//! Resizes and evictions: one request each. Whoever asks decides what to do when it is refused.

use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};

use super::events::PodEvent;
use crate::client::{self, json_request};
use crate::pod_reader::is_name;

const JSON_PATCH: &str = "application/json-patch+json";

/// Which pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodId<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Why a pod was not resized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// It is gone, or another one has its name.
    #[error("the pod is gone")]
    Gone,
    /// The API server does not allow such a resize.
    #[error("{0}")]
    Refused(String),
    /// Nobody knows whether it was carried out.
    #[error("{0}")]
    Unknown(String),
}

/// What became of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    Yes,
    /// It is gone, or another one has its name.
    Gone,
    /// A PodDisruptionBudget keeps it.
    Kept(String),
    Failed(String),
}

/// Writes to pods through the API server. Cheap to clone.
#[derive(Clone)]
pub struct PodWriter {
    client: Client,
    /// Tells the replicas of berth apart, in events.
    host: String,
}

impl PodWriter {
    /// `client` must send each request once.
    pub fn new(client: Client, host: String) -> Self {
        Self { client, host }
    }

    /// Gives the containers of a running pod other requests and limits through the subresource `resize`. `operations` are a JSON
    /// patch as [`berth_rightsizing::apply::patch::in_place`] makes it, which tests the pod's uid first. That the kubelet carries it out is not
    /// certain: the pod's conditions `PodResizePending` and `PodResizeInProgress` say so.
    ///
    /// Whether the node has room is for the caller to ask first ([`berth_scheduler::scheduler::Scheduler::grow_in_place`]).
    ///
    /// # Errors
    /// Why the pod's spec is not known to have them.
    pub async fn resize_pod(&self, pod: PodId<'_>, operations: &[Value]) -> Result<(), ResizeError> {
        let path = format!("{}/resize", path(pod).ok_or(ResizeError::Gone)?);
        let request =
            json_request(Method::PATCH, &path, JSON_PATCH, &operations).map_err(ResizeError::Refused)?;
        let answer = client::exchange(&self.client, request).await.map_err(ResizeError::Unknown)?;
        let message = answer.message();
        match answer.status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if answer.is_object_not_found() => Err(ResizeError::Gone),
            // A test of the patch did not hold.
            StatusCode::UNPROCESSABLE_ENTITY if message.contains("/metadata/uid") => Err(ResizeError::Gone),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(ResizeError::Unknown(message))
            }
            _ => Err(ResizeError::Refused(message)),
        }
    }

    /// Asks for the eviction of a pod, which PodDisruptionBudgets may refuse.
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

    /// Tells what happened to a pod. That an event is lost costs nothing else.
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

/// `None`: there can be no such pod.
fn path(pod: PodId) -> Option<String> {
    let PodId { namespace, name, uid } = pod;
    let is_one = is_name(namespace) && is_name(name) && !uid.is_empty();
    is_one.then(|| format!("/api/v1/namespaces/{namespace}/pods/{name}"))
}
