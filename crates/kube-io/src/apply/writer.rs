//! Resizes and evictions of pods: one request each; the caller handles failures.

use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};

use super::events::PodEvent;
use crate::client::{JSON_PATCH, json_request};
use crate::pod_reader::is_name;
use crate::retry::{self, WriteReply};

/// Identity of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodId<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Why a pod was not resized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// It does not exist, or was recreated.
    #[error("the pod is gone")]
    Gone,
    /// The API server does not allow such a resize.
    #[error("{0}")]
    Refused(String),
    /// It is unknown whether the resize was carried out.
    #[error("{0}")]
    Unknown(String),
}

/// Result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    Yes,
    /// It does not exist, or was recreated.
    Gone,
    /// A PodDisruptionBudget forbids it.
    Kept(String),
    Failed(String),
}

/// Writes to pods through the API server. Cheap to clone.
#[derive(Clone)]
pub struct PodWriter {
    client: Client,
    /// Distinguishes the replicas of berth in events.
    host: String,
}

impl PodWriter {
    /// `client` must send each request once.
    pub fn new(client: Client, host: String) -> Self {
        Self { client, host }
    }

    /// Changes requests and limits of a running pod through the subresource `resize`. `operations` are a JSON patch of
    /// [`berth_rightsizing::apply::patch::in_place`], which tests the pod's uid first. The kubelet may not carry it out: the
    /// pod's conditions `PodResizePending` and `PodResizeInProgress` show that.
    ///
    /// The caller checks first that the node has room ([`berth_scheduler::scheduler::Scheduler::grow_in_place`]).
    ///
    /// # Errors
    /// The pod's spec is not known to be changed.
    pub async fn resize_pod(&self, pod: PodId<'_>, operations: &[Value]) -> Result<(), ResizeError> {
        let path = format!("{}/resize", path(pod).ok_or(ResizeError::Gone)?);
        let request = json_request(Method::PATCH, &path, JSON_PATCH, &operations);
        match retry::send(&self.client, request).await {
            WriteReply::Done(_) => Ok(()),
            WriteReply::Gone(answer) if answer.is_foreign_not_found() => {
                Err(ResizeError::Refused(answer.message()))
            }
            WriteReply::Gone(_) => Err(ResizeError::Gone),
            WriteReply::RetryAfter(answer) => Err(ResizeError::Unknown(answer.message())),
            WriteReply::Unknown(why) => Err(ResizeError::Unknown(why)),
            WriteReply::Conflict(answer) | WriteReply::Rejected(answer) => {
                Err(ResizeError::Refused(answer.message()))
            }
            WriteReply::Unsent(why) => Err(ResizeError::Refused(why)),
        }
    }

    /// Evicts a pod, which PodDisruptionBudgets may forbid.
    pub async fn evict(&self, pod: PodId<'_>) -> Evicted {
        let Some(path) = path(pod) else { return Evicted::Gone };
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let request = json_request(Method::POST, &format!("{path}/eviction"), "application/json", &body);
        match retry::send(&self.client, request).await {
            WriteReply::Done(_) => Evicted::Yes,
            WriteReply::Gone(answer) if answer.is_foreign_not_found() => Evicted::Failed(answer.message()),
            WriteReply::Gone(_) => Evicted::Gone,
            WriteReply::RetryAfter(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                Evicted::Kept(answer.message())
            }
            WriteReply::RetryAfter(answer) | WriteReply::Conflict(answer) | WriteReply::Rejected(answer) => {
                Evicted::Failed(answer.message())
            }
            WriteReply::Unsent(why) | WriteReply::Unknown(why) => Evicted::Failed(why),
        }
    }

    /// Writes an event about a pod, once: events are not essential.
    pub async fn write_event(&self, event: PodEvent<'_>) {
        if !is_name(event.pod.namespace) {
            return;
        }
        let sent = retry::send(&self.client, event.body(&self.host).request()).await.created();
        tracing::debug!(?sent, pod = event.pod.name, reason = event.reason, "wrote an event");
    }
}

/// Returns `None` if no such pod can exist.
fn path(pod: PodId) -> Option<String> {
    let PodId { namespace, name, uid } = pod;
    let is_one = is_name(namespace) && is_name(name) && !uid.is_empty();
    is_one.then(|| format!("/api/v1/namespaces/{namespace}/pods/{name}"))
}
