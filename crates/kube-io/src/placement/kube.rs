//! API-server placement store (`pods/binding`).
//!
//! Source of the semantics: upstream `pkg/registry/core/pod/storage/storage.go`, `BindingREST`.

use berth_scheduler::decisions::ANNOTATION;
use berth_scheduler::placement::{Binding, PlacementStore, Reply, Truth};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use ::kube::Client;
use ::kube::client::Body;
use http::{Method, StatusCode};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::client::{self, Answer};

/// Binds through the API server with a dedicated client: no hidden retries, no queueing behind other traffic.
#[derive(Clone)]
pub struct KubeStore {
    /// Sends binds; with a `fence`, none after the end of leadership.
    writer: Client,
    /// Reads pods; not fenced, since reading needs no leadership.
    reader: Client,
    server_timeout: Duration,
    /// Names this process in its binds: the guard of another replica must not take one for its own.
    field_manager: Arc<str>,
}

impl KubeStore {
    /// Creates the store.
    ///
    /// # Errors
    /// When no client can be built from `config`.
    pub fn new(config: ::kube::Config, fence: Option<&Fence>) -> ::kube::Result<Self> {
        let reader = client::without_retries(config.clone())?;
        let (writer, server_timeout) = match fence {
            Some(fence) => (fence.client(config)?, fence.server_timeout()),
            None => (reader.clone(), client::SERVER_TIMEOUT),
        };
        let run = RandomState::new().hash_one(std::process::id());
        Ok(KubeStore { writer, reader, server_timeout, field_manager: format!("berth-{run:016x}").into() })
    }

    /// Returns the field manager that the binds of this process name; no other process has it.
    pub fn field_manager(&self) -> &str {
        &self.field_manager
    }
}

impl PlacementStore for KubeStore {
    async fn bind(&self, binding: &Binding) -> Reply {
        let (namespace, name, manager) = (&binding.namespace, &binding.name, &self.field_manager);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding?fieldManager={manager}");
        let body = BindingBody::of(binding);
        let request =
            client::json_request_within(self.server_timeout, Method::POST, &path, "application/json", &body);
        match request {
            Err(why) => Reply::Rejected(format!("the bind request cannot be built: {why}")),
            Ok(request) => reply(client::exchange(&self.writer, request).await),
        }
    }

    async fn read(&self, binding: &Binding) -> Truth {
        let path = format!("/api/v1/namespaces/{}/pods/{}", binding.namespace, binding.name);
        let request = client::request(Method::GET, &path).body(Body::empty());
        match request {
            Err(why) => Truth::Unreadable(format!("the read request cannot be built: {why}")),
            Ok(request) => truth(client::exchange(&self.reader, request).await, &binding.uid),
        }
    }
}

/// `v1.Binding`. The uid is a precondition. The resource version is omitted: with it, any edit of a label would cause a
/// conflict.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BindingBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    target: Target<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    /// The API server adds them to those of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<&'static str, &'a str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Target<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
}

impl<'a> BindingBody<'a> {
    fn of(binding: &'a Binding) -> Self {
        let decision = binding.decision.as_deref();
        let annotations = decision.map(|decision| BTreeMap::from([(ANNOTATION, decision)]));
        let Binding { name, namespace, uid, .. } = binding;
        BindingBody {
            api_version: "v1",
            kind: "Binding",
            metadata: Metadata { name, namespace, uid, annotations },
            target: Target { api_version: "v1", kind: "Node", name: &binding.node },
        }
    }
}

/// Maps an answer to a reply. Only a definite answer of the API server itself counts; everything else is `Unknown`, and the pod is read.
fn reply(answer: Result<Answer, String>) -> Reply {
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return Reply::Unknown(why),
    };
    match answer.status {
        StatusCode::CREATED => Reply::Bound,
        StatusCode::NOT_FOUND if answer.is_object_not_found() => Reply::NotFound,
        StatusCode::CONFLICT => Reply::Conflict(answer.message()),
        StatusCode::TOO_MANY_REQUESTS => Reply::Busy { retry_after: answer.retry_after },
        // Admission runs before the write to storage, and a webhook that does not answer usually recovers soon.
        StatusCode::INTERNAL_SERVER_ERROR if answer.is_webhook_failure() => Reply::Busy { retry_after: None },
        // Proxies send these two as well, without knowing whether the request was carried out.
        StatusCode::NOT_FOUND | StatusCode::REQUEST_TIMEOUT => Reply::Unknown(answer.message()),
        status if status.is_client_error() => Reply::Rejected(answer.message()),
        _ => Reply::Unknown(answer.message()),
    }
}

/// The fields of a pod that decide whether it can be bound.
#[derive(Deserialize)]
struct PodTruth {
    metadata: PodMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<Arc<str>>,
    scheduling_gates: Option<Vec<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
}

impl PodTruth {
    fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

fn truth(answer: Result<Answer, String>, uid: &str) -> Truth {
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return Truth::Unreadable(why),
    };
    if answer.is_object_not_found() {
        return Truth::Gone;
    }
    if answer.status != StatusCode::OK {
        return Truth::Unreadable(answer.message());
    }
    match serde_json::from_slice::<PodTruth>(&answer.body) {
        Err(error) => Truth::Unreadable(format!("the API server sent a pod that cannot be parsed: {error}")),
        Ok(pod) if pod.metadata.uid != uid || pod.is_finished() => Truth::Gone,
        Ok(pod) => match pod.spec.node_name {
            Some(node) if !node.is_empty() => Truth::BoundTo(node),
            _ => Truth::Unbound {
                bindable: pod.metadata.deletion_timestamp.is_none()
                    && pod.spec.scheduling_gates.is_none_or(|gates| gates.is_empty()),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};

    use super::*;
    use crate::client::{CLIENT_TIMEOUT, SERVER_TIMEOUT};
    use crate::placement::{BindCounters, drive};
    use berth_scheduler::placement::{BindOutcome, LATE_EFFECT};

    fn binding() -> Binding {
        Binding {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web-0".into(),
            node: "node-1".into(),
            decision: None,
        }
    }

    /// A store with an API server that answers every request with `answer`.
    fn store<F>(answer: impl FnMut(Request<Body>) -> F + Send + 'static) -> KubeStore
    where
        F: Future<Output = Result<Response<Body>, &'static str>> + Send + 'static,
    {
        let client = Client::new(tower::service_fn(answer), "default");
        let (writer, field_manager) = (client.clone(), "berth-1".into());
        KubeStore { writer, reader: client, server_timeout: client::SERVER_TIMEOUT, field_manager }
    }

    fn response(status: u16, body: &str) -> Result<Response<Body>, &'static str> {
        let response = Response::builder().status(status).header("retry-after", "3");
        Ok(response.body(Body::from(body.as_bytes().to_vec())).expect("valid"))
    }

    async fn reply_to(status: u16, body: &'static str) -> Reply {
        store(move |_| async move { response(status, body) }).bind(&binding()).await
    }

    #[tokio::test]
    async fn only_a_certain_answer_of_the_api_server_counts_as_one() {
        let gone = r#"{"reason":"NotFound","message":"pods \"web-0\" not found","details":{"name":"web-0","kind":"pods"}}"#;
        // Of a resource or a subresource.
        let not_served = r#"{"reason":"NotFound","message":"the server could not find the requested resource","details":{}}"#;
        let said = |why: &str| why.to_string();
        let cases = [
            (201, r#"{"kind":"Status"}"#, Reply::Bound),
            (404, gone, Reply::NotFound),
            (404, not_served, Reply::Unknown(said("the server could not find the requested resource"))),
            (404, "<html>", Reply::Unknown(said("the API server answered 404 Not Found"))),
            (409, r#"{"message":"already assigned"}"#, Reply::Conflict(said("already assigned"))),
            (429, "", Reply::Busy { retry_after: Some(Duration::from_secs(3)) }),
            (403, r#"{"message":"pods is forbidden"}"#, Reply::Rejected(said("pods is forbidden"))),
            (408, "", Reply::Unknown(said("the API server answered 408 Request Timeout"))),
            (500, r#"{"message":"etcd"}"#, Reply::Unknown(said("etcd"))),
            (504, r#"{"message":"timeout"}"#, Reply::Unknown(said("timeout"))),
            (200, "<html>", Reply::Unknown(said("the API server answered 200 OK"))),
        ];
        for (status, body, expected) in cases {
            assert_eq!(reply_to(status, body).await, expected, "{status} {body}");
        }
    }

    #[tokio::test]
    async fn a_bind_request_carries_the_uid_its_process_and_a_deadline_for_the_server() {
        let store = store(|request| async {
            assert_eq!(
                request.uri(),
                "/api/v1/namespaces/default/pods/web-0/binding?fieldManager=berth-1&timeout=10000ms"
            );
            let body = request.into_body().collect_bytes().await.expect("whole");
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(
                body,
                serde_json::json!({
                    "apiVersion": "v1", "kind": "Binding",
                    "metadata": {"name": "web-0", "namespace": "default", "uid": "u1"},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
                })
            );
            response(201, "{}")
        });
        assert_eq!(store.bind(&binding()).await, Reply::Bound);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_unknown() {
        let silent = store(|_| std::future::pending());
        assert!(matches!(silent.bind(&binding()).await, Reply::Unknown(why) if why.contains("12 s")));
        let cut = store(|_| async { Err("connection reset") });
        assert!(
            matches!(cut.bind(&binding()).await, Reply::Unknown(why) if why.contains("connection reset"))
        );
    }

    #[test]
    fn the_server_gives_up_before_a_late_effect_is_ruled_out() {
        assert!(SERVER_TIMEOUT < CLIENT_TIMEOUT);
        assert!(SERVER_TIMEOUT + Duration::from_secs(5) <= LATE_EFFECT);
    }

    #[test]
    fn the_truth_is_read_from_the_pod_with_our_uid() {
        let read = |status: u16, body: &str| {
            let answer = Answer {
                status: StatusCode::from_u16(status).expect("valid"),
                retry_after: None,
                body: body.as_bytes().to_vec(),
            };
            truth(Ok(answer), "u1")
        };
        let pod =
            |meta: &str, spec: &str| read(200, &format!(r#"{{"metadata":{{{meta}}},"spec":{{{spec}}}}}"#));
        let ours = r#""uid":"u1""#;
        let dying = r#""uid":"u1","deletionTimestamp":"2026-01-01T00:00:00Z""#;

        assert_eq!(pod(ours, r#""nodeName":"n2""#), Truth::BoundTo("n2".into()));
        assert_eq!(pod(dying, r#""nodeName":"n2""#), Truth::BoundTo("n2".into()));
        assert_eq!(pod(r#""uid":"u2""#, r#""nodeName":"n2""#), Truth::Gone);
        assert_eq!(pod(ours, ""), Truth::Unbound { bindable: true });
        for (phase, gone) in [("Running", false), ("Succeeded", true), ("Failed", true)] {
            let status = format!(r#""status":{{"phase":"{phase}"}}"#);
            let body = format!(r#"{{"metadata":{{{ours}}},"spec":{{"nodeName":"n2"}},{status}}}"#);
            assert_eq!(read(200, &body) == Truth::Gone, gone, "{phase}");
        }
        assert_eq!(pod(ours, r#""schedulingGates":[]"#), Truth::Unbound { bindable: true });
        assert_eq!(pod(ours, r#""schedulingGates":[{"name":"a"}]"#), Truth::Unbound { bindable: false });
        assert_eq!(pod(dying, ""), Truth::Unbound { bindable: false });
        assert_eq!(read(404, r#"{"reason":"NotFound","details":{"name":"p","kind":"pods"}}"#), Truth::Gone);
        assert!(matches!(read(404, "<html>"), Truth::Unreadable(_)));
        assert!(matches!(read(200, "{}"), Truth::Unreadable(_)));
        assert!(matches!(read(500, ""), Truth::Unreadable(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bind_whose_answer_was_lost_is_found_to_have_happened() {
        let store = store(|request| async move {
            match request.method() {
                &Method::POST => Err("connection reset"),
                _ => response(200, r#"{"metadata":{"uid":"u1"},"spec":{"nodeName":"node-1"}}"#),
            }
        });
        let started = tokio::time::Instant::now();
        let counters = BindCounters::default();
        let outcome = drive(&store, &binding(), || started.elapsed(), || true, &counters).await;
        assert_eq!(outcome, BindOutcome::Bound);
        assert_eq!((counters.requests(), counters.unknown()), (1, 1));
    }
}
