//! Writes statuses of cluster-wide objects of ours. It keeps the latest status of each and writes one after the other, behind
//! everything else: what counts is the last.

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

use berth_crds::policy::Condition;

/// Statuses that wait to be written, at most; what is told of more objects is lost until it changes again.
const MOST_WAITING: usize = 4096;
/// A write that failed is tried again so many times, each after a longer pause.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// What is to be told of one object.
pub trait Told {
    type Object: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug;

    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &str;
    /// What differs from what is there, as a merge patch of the status; `None`: nothing.
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
    /// Never blocks. The latest status of an object replaces an earlier one that waits.
    pub fn tell(&self, status: T) {
        let mut latest = self.shared.latest.lock();
        if latest.len() >= MOST_WAITING && !latest.contains_key(status.name()) {
            tracing::warn!(kind = kind::<T>(), name = %status.name(), "too many statuses wait to be written: this one is not");
            return;
        }
        latest.insert(status.name().clone(), status);
        drop(latest);
        self.shared.came.notify_one();
    }

    fn take(&self) -> Option<T> {
        self.shared.latest.lock().pop_first().map(|(_, status)| status)
    }

    /// Writes what is told while `leads`. Never returns; drop the future to stop.
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
                    tracing::warn!(kind = kind::<T>(), name = %status.name(), error, "a status cannot be written");
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

/// Writes what differs from what is there. An object that is gone, or was made anew, is done with.
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
    // One made anew under this name has another uid: the server refuses the patch.
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

/// Conditions (type, whether it is so, reason, message) over those of `before`: one keeps its time while it is so.
pub fn conditions(
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
