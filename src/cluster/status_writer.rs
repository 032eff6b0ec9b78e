//! Writer of the statuses of berth's cluster-scoped objects. It keeps only the latest status per object and writes them one
//! after the other in the background.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ClusterResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::api::policy::Condition;

/// Maximum number of waiting statuses. Statuses of further objects are dropped until they change again.
const MOST_WAITING: usize = 4096;
/// Attempts per status, with exponential backoff.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// A status of one object, to be written to the API server.
pub trait Told {
    type Object: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug;

    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &str;
    /// Returns the merge patch from the status in the API server to this one; `None` if they are equal.
    fn patch(&self, there: &Self::Object, now: &str) -> Option<Value>;
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

impl<T: Told> StatusWriter<T> {
    /// Queues a status and replaces a waiting one of the same object. Never blocks.
    pub fn tell(&self, status: T) {
        let mut latest = self.shared.latest.lock();
        if latest.len() >= MOST_WAITING && !latest.contains_key(status.name()) {
            tracing::warn!(kind = kind::<T>(), name = %status.name(), "too many statuses are waiting, dropped this one");
            return;
        }
        latest.insert(status.name().clone(), status);
        drop(latest);
        self.shared.came.notify_one();
    }

    fn take(&self) -> Option<T> {
        self.shared.latest.lock().pop_first().map(|(_, status)| status)
    }

    /// Writes queued statuses while `leads` returns true. Never returns; drop the future to stop.
    pub async fn run(&self, client: Client, leads: impl Fn() -> bool) {
        let api: Api<T::Object> = Api::all(client);
        loop {
            let Some(status) = self.take() else {
                self.shared.came.notified().await;
                continue;
            };
            let mut pause = FIRST_PAUSE;
            for tried in 1..=TRIES {
                let superseded = self.shared.latest.lock().contains_key(status.name());
                if superseded || !leads() {
                    break;
                }
                let written = tokio::time::timeout(REQUEST_MAX, write(&api, &status)).await;
                let error = match written {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "the API server did not answer in time".to_owned(),
                };
                if tried == TRIES {
                    tracing::warn!(kind = kind::<T>(), name = %status.name(), error, "writing a status failed");
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
    }
}

fn kind<T: Told>() -> String {
    T::Object::kind(&()).into_owned()
}

/// Writes the difference to the current status. Does nothing if the object was deleted or recreated.
async fn write<T: Told>(api: &Api<T::Object>, status: &T) -> Result<(), kube::Error> {
    let Some(there) = api.get_opt(status.name()).await? else {
        return Ok(());
    };
    if there.uid().as_deref() != Some(status.uid()) {
        return Ok(());
    }
    let Some(patch) = status.patch(&there, &now()) else {
        return Ok(());
    };
    // A recreated object of this name has another uid: the server refuses the patch.
    let patch = json!({"metadata": {"uid": status.uid()}, "status": patch});
    match api.patch_status(status.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Builds conditions from (type, status, reason, message). A condition whose status equals that in `before` keeps its transition time.
pub(crate) fn conditions(
    told: &[(&str, bool, &str, &str)],
    before: &[Condition],
    generation: i64,
    now: &str,
) -> Vec<Condition> {
    let condition = |(type_, is, reason, message): &(&str, bool, &str, &str)| {
        let status = if *is { "True" } else { "False" };
        let known = before.iter().find(|known| known.type_ == *type_ && known.status == status);
        Condition {
            type_: (*type_).to_owned(),
            status: status.to_owned(),
            observed_generation: generation,
            last_transition_time: known.map_or(now, |known| &known.last_transition_time).to_owned(),
            reason: (*reason).to_owned(),
            message: (*message).to_owned(),
        }
    };
    told.iter().map(condition).collect()
}
