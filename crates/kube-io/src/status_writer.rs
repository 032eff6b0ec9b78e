//! Writer of the statuses of cluster-scoped berth objects. It keeps the latest status of each and writes one at a time.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use http::Method;
use k8s_openapi::ClusterResourceScope;
use kube::client::Body;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::client::{self, MERGE_PATCH};
use super::retry::{self, Abandoned, Failure, PATIENT, retry};
use berth_crds::policy::PolicyCondition;

/// Maximum number of waiting statuses. The status of a further object is dropped until it changes again.
const MOST_WAITING: usize = 4096;

/// The status of one object.
pub trait ObjectStatus {
    type Object: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug;

    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &str;
    /// Returns a merge patch of the status from that of `current`; `None` if they are equal.
    fn patch(&self, current: &Self::Object, now: &str) -> Option<Value>;
}

/// Cheap to clone.
#[derive(Debug)]
pub struct StatusWriter<T> {
    shared: Arc<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    latest: Mutex<BTreeMap<Arc<str>, T>>,
    came: Notify,
}

impl<T> Clone for StatusWriter<T> {
    fn clone(&self) -> Self {
        StatusWriter { shared: self.shared.clone() }
    }
}

impl<T> Default for StatusWriter<T> {
    fn default() -> Self {
        StatusWriter { shared: Arc::new(Waiting { latest: Mutex::default(), came: Notify::new() }) }
    }
}

impl<T: ObjectStatus> StatusWriter<T> {
    /// Queues a status. Never blocks. It replaces an earlier one of the same object.
    pub fn enqueue(&self, status: T) {
        let mut latest = self.shared.latest.lock();
        if latest.len() >= MOST_WAITING && !latest.contains_key(status.name()) {
            tracing::warn!(kind = kind::<T>(), name = %status.name(), "too many statuses are waiting: dropped one");
            return;
        }
        latest.insert(status.name().clone(), status);
        drop(latest);
        self.shared.came.notify_one();
    }

    fn take(&self) -> Option<T> {
        self.shared.latest.lock().pop_first().map(|(_, status)| status)
    }

    /// Writes statuses while `leads` returns true. Never returns; drop the future to stop.
    ///
    /// `client` must not retry by itself ([`client::without_retries`]).
    pub async fn run(&self, client: Client, leads: impl Fn() -> bool) {
        loop {
            let Some(status) = self.take() else {
                self.shared.came.notified().await;
                continue;
            };
            let fence = |_| leads() && !self.shared.latest.lock().contains_key(status.name());
            let written = retry(PATIENT, status.name(), fence, || write(&client, &status)).await;
            if let Err(Abandoned::Failed(error)) = written {
                tracing::warn!(kind = kind::<T>(), name = %status.name(), error, "cannot write a status");
            }
        }
    }
}

fn kind<T: ObjectStatus>() -> String {
    T::Object::kind(&()).into_owned()
}

/// Writes the fields that differ from the object. If it is gone or was recreated, nothing is left to do.
async fn write<T: ObjectStatus>(client: &Client, status: &T) -> Result<(), Failure> {
    let path = format!("{}/{}", T::Object::url_path(&(), None), status.name());
    let read = client::request(Method::GET, &path).body(Body::empty());
    let read = retry::send(client, read.map_err(|error| error.to_string())).await;
    let Some(body) = read.settled()? else { return Ok(()) };
    let current: T::Object = serde_json::from_slice(&body)
        .map_err(|error| Failure::Final(format!("the object cannot be read: {error}")))?;
    if current.uid().as_deref() != Some(status.uid()) {
        return Ok(());
    }
    let Some(patch) = status.patch(&current, &now()) else { return Ok(()) };
    // The uid is a precondition: an object recreated since the read is not changed.
    let patch = json!({"metadata": {"uid": status.uid()}, "status": patch});
    let write = client::json_request(Method::PATCH, &format!("{path}/status"), MERGE_PATCH, &patch);
    retry::send(client, write).await.settled().map(drop)
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Builds conditions from type, whether it is true, reason and message. A condition whose status is that in `before` keeps its
/// transition time.
pub fn conditions(
    conditions: &[(&str, bool, &str, &str)],
    before: &[PolicyCondition],
    generation: i64,
    now: &str,
) -> Vec<PolicyCondition> {
    let condition = |(type_, is_true, reason, message): &(&str, bool, &str, &str)| {
        let status = if *is_true { "True" } else { "False" };
        let known = before.iter().find(|known| known.type_ == *type_ && known.status == status);
        PolicyCondition {
            type_: (*type_).to_owned(),
            status: status.to_owned(),
            observed_generation: generation,
            last_transition_time: known.map_or(now, |known| &known.last_transition_time).to_owned(),
            reason: (*reason).to_owned(),
            message: (*message).to_owned(),
        }
    };
    conditions.iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use http::{Request, Response};

    use super::*;
    use berth_scheduler::policy::{PolicyStatus, StatusReason};

    /// Writes a status to an API server with a policy of uid `u`, which answers with these codes and then with 200. Returns its
    /// requests.
    async fn requests(uid: &str, codes: &[u16]) -> Vec<String> {
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, mut codes) = (requests.clone(), VecDeque::from(codes.to_vec()));
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock().push(format!("{} {}", request.method(), request.uri().path()));
            let code = codes.pop_front().unwrap_or(200);
            let policy = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "AllocationPolicy",
                "metadata": {"name": "p", "uid": "u"}, "spec": {},
            });
            async move { Response::builder().status(code).body(Body::from(policy.to_string().into_bytes())) }
        });
        let writer = StatusWriter::default();
        writer.enqueue(PolicyStatus {
            name: "p".into(),
            uid: uid.into(),
            observed_generation: 1,
            reason: StatusReason::Applied,
            message: "the policy is in force".into(),
            contradiction: None,
            governs: "all pods".into(),
            effective: None,
        });
        let run = writer.run(Client::new(service, "default"), || true);
        let _ = tokio::time::timeout(Duration::from_secs(60), run).await;
        requests.lock().clone()
    }

    const GET: &str = "GET /apis/berth.dev/v1alpha1/allocationpolicies/p";
    const PATCH: &str = "PATCH /apis/berth.dev/v1alpha1/allocationpolicies/p/status";

    #[tokio::test(start_paused = true)]
    async fn a_status_is_patched_after_a_read_and_both_are_retried() {
        assert_eq!(requests("u", &[503, 200, 500]).await, [GET, GET, PATCH, GET, PATCH]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_that_is_gone_or_was_recreated_is_not_patched() {
        assert_eq!(requests("older", &[]).await, [GET]);
        assert_eq!(requests("u", &[404]).await, [GET]);
    }
}
