//! Requests, each sent once: the next round is the retry.

use std::collections::BTreeSet;

use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::objects::{read_vpa, usage_patch};
use super::pods::{OwnedPod, PodUsage, read_pod, read_usage};
use crate::cluster::client::{self, Answer, json_request};
use crate::recommend::Vpa;

/// So many objects in one answer, where the server follows that: pods take about 8 KB each.
const PAGE_SIZE: u32 = 500;

pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(super) const JSON_PATCH: &str = "application/json-patch+json";

/// Why a request did not do what it was to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There is no such object, or the server does not have this kind.
    #[error("not found: {0}")]
    NotFound(String),
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The object is another one by now.
    #[error("changed meanwhile: {0}")]
    Conflict(String),
    #[error("{0}")]
    Other(String),
}

/// The API server as the recommender needs it. Cheap to clone.
#[derive(Clone)]
pub struct Recommending {
    pub(super) client: Client,
}

impl Recommending {
    /// `client` must send each request once.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// All VPAs, of all recommenders; those that cannot be read are left out and logged.
    ///
    /// # Errors
    /// [`ApiError::NotFound`]: the server has no VPAs.
    pub async fn vpas(&self) -> Result<Vec<Vpa>, ApiError> {
        let mut vpas = Vec::new();
        let path = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers";
        self.list(path, |item| match read_vpa(item) {
            Ok(vpa) => vpas.push(vpa),
            Err(error) => tracing::warn!(%error, "a VerticalPodAutoscaler cannot be read"),
        })
        .await?;
        Ok(vpas)
    }

    /// The pods of a namespace that are not finished; the first one of each owner with its spec.
    ///
    /// # Errors
    /// Not all could be read.
    pub async fn pods(&self, namespace: &str) -> Result<Vec<OwnedPod>, ApiError> {
        let mut pods = Vec::new();
        let mut owners = BTreeSet::new();
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        self.list(&path, |item| match read_pod(item) {
            Ok(None) => {}
            Ok(Some(mut pod)) => {
                if !owners.insert(pod.owner.clone()) {
                    pod.drop_spec();
                }
                pods.push(pod);
            }
            Err(error) => tracing::warn!(namespace, %error, "a pod cannot be read"),
        })
        .await?;
        Ok(pods)
    }

    /// The newest samples of a namespace's pods, from `metrics.k8s.io`.
    ///
    /// # Errors
    /// [`ApiError::NotFound`]: the cluster has no metrics server.
    pub async fn pod_metrics(&self, namespace: &str) -> Result<Vec<PodUsage>, ApiError> {
        let mut usages = Vec::new();
        let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        self.list(&path, |item| match read_usage(item) {
            Ok(usage) => usages.push(usage),
            Err(error) => tracing::debug!(namespace, %error, "a pod's metrics cannot be read"),
        })
        .await?;
        Ok(usages)
    }

    /// Writes the status of a VPA, unless it was deleted or made anew since it was read.
    ///
    /// # Errors
    /// It was not written.
    pub async fn write_status(&self, vpa: &Vpa, patch: &Value) -> Result<(), ApiError> {
        let (namespace, name) = (&vpa.namespace, &vpa.name);
        let path = format!(
            "/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalers/{name}/status"
        );
        self.send(json_request(Method::PATCH, &path, MERGE_PATCH, patch)).await.map(drop)
    }

    /// Tells the usage of a VPA's containers in its annotation, unless it was deleted or made anew since it was read.
    ///
    /// # Errors
    /// It was not written.
    pub async fn write_usage(
        &self,
        (namespace, name): (&str, &str),
        uid: &str,
        text: &str,
    ) -> Result<(), ApiError> {
        let path =
            format!("/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalers/{name}");
        self.send(json_request(Method::PATCH, &path, MERGE_PATCH, &usage_patch(uid, text))).await.map(drop)
    }

    pub(super) async fn send(&self, request: Result<Request<Body>, String>) -> Result<Answer, ApiError> {
        let answer = client::exchange(&self.client, request.map_err(ApiError::Other)?);
        let answer = answer.await.map_err(ApiError::Other)?;
        let message = || answer.message();
        match answer.status {
            status if status.is_success() => Ok(answer),
            StatusCode::NOT_FOUND => Err(ApiError::NotFound(message())),
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Err(ApiError::Forbidden(message())),
            // 422: a test in a JSON patch did not hold.
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => Err(ApiError::Conflict(message())),
            _ => Err(ApiError::Other(message())),
        }
    }

    pub(super) async fn get(&self, path: &str, accept: &str) -> Result<Answer, ApiError> {
        let request = Request::builder()
            .method(Method::GET)
            // What the API server has in its cache is new enough, and costs etcd nothing.
            .uri(format!("{path}?resourceVersion=0"))
            .header(http::header::ACCEPT, accept)
            .body(Body::empty());
        self.send(request.map_err(|error| error.to_string())).await
    }

    /// Hands every object to `take`, as JSON.
    pub(super) async fn list(&self, path: &str, mut take: impl FnMut(&str)) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(default)]
            metadata: Metadata,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Default, Deserialize)]
        struct Metadata {
            #[serde(rename = "continue", default)]
            next: Option<String>,
        }
        let mut from = "resourceVersion=0".to_owned();
        loop {
            let request = Request::builder()
                .method(Method::GET)
                .uri(format!("{path}?limit={PAGE_SIZE}&{from}"))
                .header(http::header::ACCEPT, "application/json")
                .body(Body::empty());
            let answer = self.send(request.map_err(|error| error.to_string())).await?;
            let page: Page = serde_json::from_slice(&answer.body)
                .map_err(|error| ApiError::Other(format!("the API server sent no list: {error}")))?;
            for item in page.items.unwrap_or_default() {
                take(item.get());
            }
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => from = format!("continue={token}"),
                None => return Ok(()),
            }
        }
    }
}
