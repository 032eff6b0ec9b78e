//! One request, one answer: how berth writes to the API server.
//!
//! kube's `Api` retries by itself (429, 503 and 504, up to 15 times), parses what it gets back and turns answers into
//! errors. Writes want none of this: a retry has to be decided by whoever knows what the request meant.

use berth_model::with_causes;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};

/// What the API server is asked to give up after (`?timeout=`).
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// When we stop listening. Later than the server, so that its own word about a time-out still arrives.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(12);

/// A client that sends every request once.
///
/// # Errors
/// When the configuration cannot be used: unreadable certificates, or no TLS provider.
pub fn without_retries(mut config: kube::Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

/// A complete HTTP answer. That there is none is an error text of [`exchange`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

/// The part of `metav1.Status` we read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
}

impl Answer {
    fn parsed(&self) -> Status {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether the API server itself, and not something between us and it, says that the object does not exist.
    pub fn is_object_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.parsed().reason == "NotFound"
    }

    /// Whether the API server refused because an admission webhook that it must ask did not answer.
    pub fn is_webhook_failure(&self) -> bool {
        let status = self.parsed();
        status.reason == "InternalError" && status.message.contains("failed calling webhook")
    }

    /// What went wrong, for a person.
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
/// When the path is not one, or the body cannot be serialised.
pub(crate) fn json_request(
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &impl Serialize,
) -> Result<Request<Body>, String> {
    json_request_within(SERVER_TIMEOUT, method, path, content_type, body)
}

/// The same, given up by the API server after `timeout`.
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

/// A request that the API server gives up after [`SERVER_TIMEOUT`].
pub(crate) fn request(method: Method, path: &str) -> http::request::Builder {
    request_within(SERVER_TIMEOUT, method, path)
}

fn request_within(timeout: Duration, method: Method, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!("{path}?timeout={}ms", timeout.as_millis()))
        .header(header::ACCEPT, "application/json")
}

/// Sends `request` once.
///
/// The body is always read to its end: a connection with an unread body cannot be used again.
///
/// # Errors
/// When no complete answer came. Whether the server carried the request out is then unknown.
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

/// Seconds only: the API server never sends a date.
fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
