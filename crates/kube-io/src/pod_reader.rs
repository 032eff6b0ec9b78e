//! Reader of single pods that the watch has not delivered yet.

use http::{Method, StatusCode};
use kube::Client;
use kube::client::Body;

use super::client::{self, without_retries};
use super::{Interner, LeanPod};
use berth_model::Pod;

/// Reads pods from the API server, each with one request. Cheap to clone.
#[derive(Clone)]
pub struct PodReader {
    client: Client,
}

impl PodReader {
    /// Creates the reader.
    ///
    /// # Errors
    /// When no client can be built from `config`.
    pub fn new(config: kube::Config) -> kube::Result<Self> {
        Ok(PodReader { client: without_retries(config)? })
    }

    /// Reads the current pod of this name; `None` if it does not exist.
    ///
    /// # Errors
    /// When the request fails, or the answer is not a pod.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Option<Pod>, String> {
        if !(is_name(namespace) && is_name(name)) {
            return Ok(None);
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let request = client::request(Method::GET, &path).body(Body::empty());
        let answer = client::exchange(&self.client, request.map_err(|error| error.to_string())?).await?;
        if answer.is_object_not_found() {
            return Ok(None);
        }
        if answer.status != StatusCode::OK {
            return Err(answer.message());
        }
        let pod: LeanPod = serde_json::from_slice(&answer.body)
            .map_err(|error| format!("the API server sent a pod that cannot be parsed: {error}"))?;
        Ok(Some(pod.into_pod(&mut Interner::default())))
    }
}

/// Whether a text is a valid object name, and so safe in a URL path.
pub(super) fn is_name(text: &str) -> bool {
    let safe = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 253 && !text.starts_with('.') && text.bytes().all(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_objects_go_into_a_path() {
        assert!(is_name("web-0.a"));
        for name in ["", "..", "a/b", "A", "a?b", "a%2fb", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
