//! Preemption executor, as kube-scheduler's (upstream: `framework/preemption/executor.go`): the victim gets the condition
//! `DisruptionTarget` and is deleted with its grace period; the preemptor's status gets its nominated node.
//!
//! Every request is retried. Each carries the uid, so that a recreated pod is not touched.

use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};

use super::Fence;
use super::client::{self, STRATEGIC_MERGE_PATCH};
use super::report_json::{ConditionPatch, PodCondition};
use super::retry::{self, Abandoned, PATIENT, retry};
use berth_model::PodRef;
use berth_scheduler::scheduler::Eviction;

/// Writes through the API server.
#[derive(Clone)]
pub struct Evictor {
    client: Client,
}

impl Evictor {
    /// Creates the evictor.
    ///
    /// # Errors
    /// When no client can be built from `config`.
    pub fn new(config: kube::Config, fence: Option<&Fence>) -> kube::Result<Self> {
        let client = client::fenced(config, fence)?;
        Ok(Evictor { client })
    }

    /// Evicts a pod and returns whether it existed. `leads` is checked before each request.
    ///
    /// # Errors
    /// The reason why the pod was not evicted.
    pub async fn evict(&self, eviction: &Eviction, leads: impl Fn() -> bool) -> Result<bool, String> {
        let path = pod_path(&eviction.victim);
        let condition = condition(eviction, Timestamp::now());
        let marked = self
            .send(Method::PATCH, &format!("{path}/status"), STRATEGIC_MERGE_PATCH, &condition, &leads)
            .await?;
        Ok(marked
            && self.send(Method::DELETE, &path, "application/json", &deletion(eviction), &leads).await?)
    }

    /// Writes the nominated node to the pod's status.
    ///
    /// # Errors
    /// The reason why it was not written.
    pub async fn nominate(
        &self,
        pod: &PodRef,
        node: Option<&Arc<str>>,
        leads: impl Fn() -> bool,
    ) -> Result<bool, String> {
        let body = nomination(pod, node);
        self.send(Method::PATCH, &format!("{}/status", pod_path(pod)), STRATEGIC_MERGE_PATCH, &body, &leads)
            .await
    }

    /// Sends a request with retries. Returns whether the pod exists.
    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &impl Serialize,
        leads: &impl Fn() -> bool,
    ) -> Result<bool, String> {
        let attempt = || async {
            let request = client::json_request(method.clone(), path, content_type, body);
            Ok(retry::send(&self.client, request).await.settled()?.is_some())
        };
        retry(PATIENT, path, |_| leads(), attempt).await.map_err(|abandoned| match abandoned {
            Abandoned::Stopped => "leadership was lost".to_owned(),
            Abandoned::Failed(why) => why,
        })
    }
}

fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// Builds the condition as kube-scheduler writes it.
fn condition(eviction: &Eviction, now: Timestamp) -> Value {
    let by = &eviction.preemptor.scheduler_name;
    json!(ConditionPatch::new(
        &eviction.victim.uid,
        PodCondition {
            kind: "DisruptionTarget",
            status: "True",
            reason: "PreemptionByScheduler",
            message: &format!("{by}: preempting to accommodate a higher priority pod"),
            observed_generation: eviction.generation,
            last_transition_time: Some(Time(now)),
            last_probe_time: None,
        }
    ))
}

fn deletion(eviction: &Eviction) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": &*eviction.victim.uid},
    })
}

fn nomination(pod: &PodRef, node: Option<&Arc<str>>) -> Value {
    json!({
        "metadata": {"uid": &*pod.uid},
        "status": {"nominatedNodeName": node.map(|node| &**node)},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;

    fn pod(name: &str) -> PodRef {
        PodRef {
            namespace: "x".into(),
            name: name.into(),
            uid: format!("u-{name}").into(),
            scheduler_name: "berth".into(),
        }
    }

    fn eviction() -> Eviction {
        Eviction { victim: pod("v"), preemptor: pod("p"), group: None, node: "n".into(), generation: 3 }
    }

    /// Evicts a pod at an API server that gives these answers. Returns the requests and the result.
    async fn evicted(answers: &[(u16, &str)]) -> (Vec<String>, Result<bool, String>) {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Mutex<VecDeque<_>> =
            Mutex::new(answers.iter().map(|(code, message)| (*code, (*message).to_owned())).collect());
        let service = {
            let requests = requests.clone();
            tower::service_fn(move |request: Request<Body>| {
                requests.lock().push(format!("{} {}", request.method(), request.uri().path()));
                let (code, message) = answers.lock().pop_front().unwrap_or((200, String::new()));
                let body = json!({"kind": "Status", "message": message}).to_string();
                async move { Response::builder().status(code).body(Body::from(body.into_bytes())) }
            })
        };
        let evictor = Evictor { client: Client::new(service, "default") };
        let ended = evictor.evict(&eviction(), || true).await;
        let requests = requests.lock().clone();
        (requests, ended)
    }

    const PATCH: &str = "PATCH /api/v1/namespaces/x/pods/v/status";
    const DELETE: &str = "DELETE /api/v1/namespaces/x/pods/v";

    #[tokio::test(start_paused = true)]
    async fn a_victim_is_marked_and_then_deleted_and_a_busy_server_is_asked_again() {
        let (requests, ended) = evicted(&[(503, "busy"), (200, ""), (429, "later"), (200, "")]).await;
        assert_eq!(requests, [PATCH, PATCH, DELETE, DELETE]);
        assert_eq!(ended, Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_victim_that_is_gone_or_was_recreated_is_settled() {
        for (code, message) in [(404, "pods \"v\" not found"), (422, "metadata.uid: Invalid value")] {
            assert_eq!(evicted(&[(code, message)]).await, (vec![PATCH.to_owned()], Ok(false)));
        }
        let recreated = "Precondition failed: UID in precondition: u-v, UID in object meta: u-w";
        assert_eq!(evicted(&[(200, ""), (409, recreated)]).await.1, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_at_once() {
        let (requests, ended) = evicted(&[(200, ""), (403, "no")]).await;
        assert_eq!((requests.len(), ended), (2, Err("no".to_owned())));
    }

    #[test]
    fn the_condition_is_kube_schedulers() {
        let now = "2026-03-04T05:06:07Z".parse().expect("a time");
        assert_eq!(
            condition(&eviction(), now),
            json!({
                "metadata": {"uid": "u-v"},
                "status": {"conditions": [{
                    "lastProbeTime": null, "lastTransitionTime": "2026-03-04T05:06:07Z",
                    "message": "berth: preempting to accommodate a higher priority pod", "observedGeneration": 3,
                    "reason": "PreemptionByScheduler", "status": "True", "type": "DisruptionTarget",
                }]},
            })
        );
        assert_eq!(nomination(&pod("p"), None)["status"], json!({"nominatedNodeName": null}));
    }
}
