//! API requests of the recommender, each sent once: the next round is the retry.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::objects::{annotation_patch, made, read_vpa};
use super::usage::{PodUsage, read_usage};
use crate::client::{self, Answer, MERGE_PATCH, json_request};
use crate::retry::{self, WriteReply};
use berth_rightsizing::recommend::Vpa;
use berth_rightsizing::recommend::create::CreationCandidate;

/// Objects in one page, if the server supports pages: pods take about 8 KB each.
const PAGE_SIZE: u32 = 500;

/// Objects that are read before other tasks of this thread, such as binds, have a turn: with `resourceVersion=0` the API server sends all
/// objects in one page.
const ITEMS_AT_ONCE: usize = 32;

/// Error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The object or its kind does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The object changed or was recreated.
    #[error("changed meanwhile: {0}")]
    Conflict(String),
    #[error("{0}")]
    Other(String),
}

/// Maximum number of namespaces that are listed one by one.
const LISTED_EACH_MAX: usize = 16;

/// Returns the lists that cover these namespaces: one of each, or if there are many, one of all namespaces (`None`).
pub fn lists_of<'a>(namespaces: impl ExactSizeIterator<Item = &'a str>) -> Vec<Option<&'a str>> {
    match namespaces.len() {
        ..=LISTED_EACH_MAX => namespaces.map(Some).collect(),
        _ => vec![None],
    }
}

pub(super) fn vpa_folder(namespace: &str) -> String {
    format!("/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalers")
}

/// API client of the recommender. Cheap to clone.
#[derive(Clone)]
pub struct Recommending {
    pub(super) client: Client,
}

impl Recommending {
    /// Creates an API client. `client` must send each request once, without retries.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Lists the newest samples of the pods of a namespace, or of all, from `metrics.k8s.io`.
    ///
    /// # Errors
    /// [`ApiError::NotFound`]: the cluster has no metrics server; with what to do then.
    pub async fn pod_metrics(&self, namespace: Option<&str>) -> Result<Vec<PodUsage>, ApiError> {
        let mut usages = Vec::new();
        let within = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let path = format!("/apis/metrics.k8s.io/v1beta1/{within}pods");
        self.list(&path, |item| match read_usage(item) {
            Ok(usage) => usages.push(usage),
            Err(error) => tracing::debug!(namespace, %error, "the metrics of a pod cannot be parsed"),
        })
        .await
        .map_err(|error| match error {
            ApiError::NotFound(error) => ApiError::NotFound(format!(
                "{error} (install a metrics server, or set recommender.prometheus)"
            )),
            error => error,
        })?;
        Ok(usages)
    }

    /// Reads a VPA; `None`: there is none of this name.
    ///
    /// # Errors
    /// The request failed, the cluster does not have the kind, or the object cannot be parsed.
    pub async fn vpa(&self, namespace: &str, name: &str) -> Result<Option<Vpa>, ApiError> {
        let found = self.get_one(&vpa_folder(namespace), name, "VerticalPodAutoscalers").await?;
        found.map(|json| read_vpa(&json).map_err(ApiError::Other)).transpose()
    }

    /// Returns the JSON of an object; `None`: there is none of this name. `kinds`: its kind, for messages.
    ///
    /// # Errors
    /// The request failed, or the cluster does not have the kind.
    pub(crate) async fn get_one(
        &self,
        folder: &str,
        name: &str,
        kinds: &str,
    ) -> Result<Option<String>, ApiError> {
        match self.get(&format!("{folder}/{name}"), "application/json").await {
            Ok(answer) => Ok(Some(String::from_utf8_lossy(&answer.body).into_owned())),
            // The API server names the object only where it knows the kind.
            Err(ApiError::NotFound(why)) if why.contains(&format!("{name:?}")) => Ok(None),
            Err(ApiError::NotFound(_)) => {
                Err(ApiError::NotFound(format!("the cluster has no {kinds}: apply their CRD")))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the status of a VPA, unless it was deleted or recreated since it was read.
    ///
    /// # Errors
    /// When it was not written.
    pub async fn write_status(&self, vpa: &Vpa, patch: &Value) -> Result<(), ApiError> {
        let path = format!("{}/{}/status", vpa_folder(&vpa.namespace), vpa.name);
        self.send(json_request(Method::PATCH, &path, MERGE_PATCH, patch)).await.map(drop)
    }

    /// Lists the names of the namespaces with this label set to `true`.
    ///
    /// # Errors
    /// When the list is incomplete.
    pub async fn namespaces_with(&self, label: &str) -> Result<BTreeSet<Arc<str>>, ApiError> {
        #[derive(Deserialize)]
        struct WireWorkload {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            name: Arc<str>,
        }
        let mut names = BTreeSet::new();
        let selector = format!("labelSelector={}%3Dtrue", label.replace('/', "%2F"));
        self.list_where("/api/v1/namespaces", &selector, |item| {
            if let Ok(WireWorkload { metadata }) = serde_json::from_str(item) {
                names.insert(metadata.name);
            }
        })
        .await?;
        Ok(names)
    }

    /// Creates a VPA for a workload that has none.
    ///
    /// # Errors
    /// When it was not created; [`ApiError::Conflict`]: an object of its name exists.
    pub async fn make_vpa(&self, candidate: &CreationCandidate, recommender: &str) -> Result<(), ApiError> {
        let object = made(candidate, recommender);
        let path = vpa_folder(&candidate.namespace);
        self.send(json_request(Method::POST, &path, "application/json", &object)).await.map(drop)
    }

    /// Deletes a VPA, if it is unchanged since it was read.
    ///
    /// # Errors
    /// When it was not deleted.
    pub async fn delete_vpa(&self, vpa: &Vpa) -> Result<(), ApiError> {
        let path = format!("{}/{}", vpa_folder(&vpa.namespace), vpa.name);
        let body = json!({"preconditions": {"uid": vpa.uid, "resourceVersion": vpa.resource_version}});
        match self.send(json_request(Method::DELETE, &path, "application/json", &body)).await {
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes an annotation of a VPA, unless it was deleted or recreated since it was read.
    ///
    /// # Errors
    /// When it was not written.
    pub async fn annotate(
        &self,
        (namespace, name): (&str, &str),
        uid: &str,
        (key, text): (&str, &str),
    ) -> Result<(), ApiError> {
        let path = format!("{}/{name}", vpa_folder(namespace));
        let patch = annotation_patch(uid, key, text);
        self.send(json_request(Method::PATCH, &path, MERGE_PATCH, &patch)).await.map(drop)
    }

    pub(crate) async fn send(&self, request: Result<Request<Body>, String>) -> Result<Answer, ApiError> {
        match retry::send(&self.client, request).await {
            WriteReply::Done(answer) => Ok(answer),
            WriteReply::Gone(answer) if answer.status == StatusCode::NOT_FOUND => {
                Err(ApiError::NotFound(answer.message()))
            }
            WriteReply::Gone(answer) | WriteReply::Conflict(answer) => {
                Err(ApiError::Conflict(answer.message()))
            }
            WriteReply::Rejected(answer) | WriteReply::RetryAfter(answer) => Err(match answer.status {
                StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => ApiError::Forbidden(answer.message()),
                // A test in a JSON patch failed.
                StatusCode::UNPROCESSABLE_ENTITY => ApiError::Conflict(answer.message()),
                _ => ApiError::Other(answer.message()),
            }),
            WriteReply::Unsent(why) | WriteReply::Unknown(why) => Err(ApiError::Other(why)),
        }
    }

    pub(crate) async fn get(&self, path: &str, accept: &str) -> Result<Answer, ApiError> {
        let request = Request::builder()
            .method(Method::GET)
            // The API server's cache is recent enough, and spares etcd a read.
            .uri(format!("{path}?resourceVersion=0"))
            .header(http::header::ACCEPT, accept)
            .body(Body::empty());
        self.send(request.map_err(|error| error.to_string())).await
    }

    /// Reads the current object, not the one in the API server's cache.
    pub(crate) async fn get_now(&self, path: &str) -> Result<Answer, ApiError> {
        let request = client::request(Method::GET, path).body(Body::empty());
        self.send(request.map_err(|error| error.to_string())).await
    }

    /// Lists objects, and passes each to `take` as JSON.
    pub(crate) async fn list(&self, path: &str, take: impl FnMut(&str)) -> Result<(), ApiError> {
        self.list_as(path, "", "application/json", take).await
    }

    /// The same with a selector, such as `labelSelector=app%3Dweb`.
    pub(crate) async fn list_where(
        &self,
        path: &str,
        selector: &str,
        take: impl FnMut(&str),
    ) -> Result<(), ApiError> {
        self.list_as(path, selector, "application/json", take).await
    }

    /// Lists with this `Accept` header.
    pub(super) async fn list_as(
        &self,
        path: &str,
        selector: &str,
        accept: &str,
        mut take: impl FnMut(&str),
    ) -> Result<(), ApiError> {
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
                .uri(format!("{path}?limit={PAGE_SIZE}&{from}&{selector}").trim_end_matches('&'))
                .header(http::header::ACCEPT, accept)
                .body(Body::empty());
            let answer = self.send(request.map_err(|error| error.to_string())).await?;
            let page: Page = serde_json::from_slice(&answer.body)
                .map_err(|error| ApiError::Other(format!("the API server sent an invalid list: {error}")))?;
            for some in page.items.unwrap_or_default().chunks(ITEMS_AT_ONCE) {
                some.iter().for_each(|item| take(item.get()));
                tokio::task::yield_now().await;
            }
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => from = format!("continue={token}"),
                None => return Ok(()),
            }
        }
    }
}
