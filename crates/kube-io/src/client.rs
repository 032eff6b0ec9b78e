//! HTTP client for single requests to the API server, without retries.
//!
//! kube's `Api` retries by itself (429, 503 and 504, up to 15 times), parses the response and turns it into an error.
//! Writes must avoid this: only the caller can decide whether a request may be retried.

use crate::fence::Fence;
use berth_model::with_causes;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};

/// Content types of patches.
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";

/// Time-out of a request at the API server (`?timeout=`).
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of a request in this process. Longer than the server's, so that its reply about a time-out still arrives.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(12);

/// Returns a client that sends every request once.
///
/// # Errors
/// The configuration is invalid: unreadable certificates, or no TLS provider.
pub fn without_retries(mut config: kube::Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

/// Returns the same, which with a fence sends no request after its deadline: a process that was frozen past its lease must not write
/// when it resumes.
///
/// # Errors
/// The configuration is invalid, as for [`without_retries`].
pub fn fenced(config: kube::Config, fence: Option<&Fence>) -> kube::Result<Client> {
    match fence {
        Some(fence) => fence.client(config),
        None => without_retries(config),
    }
}

/// A complete HTTP response; without one, [`exchange`] returns an error text.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

/// The fields of `metav1.Status` that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Option<Details>,
}

/// The fields of `metav1.StatusDetails` that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
}

impl Answer {
    fn parsed(&self) -> Status {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether the API server itself, and not a proxy, reports that the object does not exist. Of a subresource that it does not
    /// serve it says `NotFound` as well, without the name of an object.
    pub fn is_object_not_found(&self) -> bool {
        let status = self.parsed();
        self.status == StatusCode::NOT_FOUND
            && status.reason == "NotFound"
            && status.details.is_some_and(|details| !details.name.is_empty())
    }

    /// Returns whether this is a 404 that may be a proxy's, or that of a subresource which is not served.
    pub fn is_foreign_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && !self.is_object_not_found()
    }

    /// Returns whether a required admission webhook did not answer.
    pub fn is_webhook_failure(&self) -> bool {
        let status = self.parsed();
        status.reason == "InternalError" && status.message.contains("failed calling webhook")
    }

    /// Returns the error message, for people.
    pub fn message(&self) -> String {
        let status = self.parsed();
        if status.message.is_empty() {
            format!("the API server answered {}", self.status)
        } else {
            status.message
        }
    }
}

/// Builds a request with a JSON body. `path` starts with a slash and ends before the query.
///
/// # Errors
/// The path is invalid, or the body cannot be serialised.
pub(crate) fn json_request(
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &impl Serialize,
) -> Result<Request<Body>, String> {
    json_request_within(SERVER_TIMEOUT, method, path, content_type, body)
}

/// Builds a request with a JSON body that the API server aborts after `timeout`.
pub(crate) fn json_request_within(
    timeout: Duration,
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &impl Serialize,
) -> Result<Request<Body>, String> {
    let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
    request_within(timeout, method, path)
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from(body))
        .map_err(|error| error.to_string())
}

/// Builds a request that the API server aborts after [`SERVER_TIMEOUT`].
pub(crate) fn request(method: Method, path: &str) -> http::request::Builder {
    request_within(SERVER_TIMEOUT, method, path)
}

/// `path` may have a query.
fn request_within(timeout: Duration, method: Method, path: &str) -> http::request::Builder {
    let and = if path.contains('?') { '&' } else { '?' };
    Request::builder()
        .method(method)
        .uri(format!("{path}{and}timeout={}ms", timeout.as_millis()))
        .header(header::ACCEPT, "application/json")
}

/// Sends `request` once.
///
/// Always reads the whole body: a connection with an unread body cannot be reused.
///
/// # Errors
/// When no complete response arrived. It is then unknown whether the server carried the request out.
pub(crate) async fn exchange(client: &Client, request: Request<Body>) -> Result<Answer, String> {
    let exchange = async {
        let response = client.send(request).await?;
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let body = response.into_body().collect_bytes().await?.into();
        Ok(Answer { status, retry_after, body })
    };
    match tokio::time::timeout(CLIENT_TIMEOUT, exchange).await {
        Ok(answer) => answer.map_err(|error: kube::Error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {} s", CLIENT_TIMEOUT.as_secs())),
    }
}

/// Parses `Retry-After` in seconds: the API server never sends a date.
fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
