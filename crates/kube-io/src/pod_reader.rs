//! Reads one pod when the watch has not told of it yet.

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
    /// # Errors
    /// When no client can be made of `config`.
    pub fn new(config: kube::Config) -> kube::Result<Self> {
        Ok(PodReader { client: without_retries(config)? })
    }

    /// The pod of this name as it is now, `None` if there is none.
    ///
    /// # Errors
    /// The API server did not say, or sent something else.
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
            .map_err(|error| format!("the API server sent a pod that cannot be read: {error}"))?;
        Ok(Some(pod.into_pod(&mut Interner::default())))
    }
}

/// No object has another name, and no other would be safe in a path.
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
