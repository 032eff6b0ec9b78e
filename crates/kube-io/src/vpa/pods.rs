//! Pods and their usage, as rightsizing reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::objects::{Quantities, amounts};
use crate::Interner;
use crate::lean::{LeanPod, nullable};
use berth_model::{NodeSize, PerResource, PodSpec};
use berth_rightsizing::recommend::{Amount, Owner, UnixNanos, time};

/// A pod that is not finished.
#[derive(Debug, Clone)]
pub struct OwnedPod {
    pub uid: Arc<str>,
    pub name: String,
    /// Its controller.
    pub owner: Option<Owner>,
    pub containers: Vec<PodContainer>,
    /// The spec, kept for the first pod of an owner only: the other pods have the same constraints.
    json: Option<Box<str>>,
}

/// A container of a pod, without init containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodContainer {
    pub name: String,
    /// Current requests: after an in-place resize, those in its status.
    pub requests: NodeSize,
    pub restarts: i64,
    /// Time of its last termination, if that was an OOM kill.
    pub oom_killed: Option<UnixNanos>,
}

/// The usage of a pod at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    pub name: String,
    pub time: UnixNanos,
    pub containers: Vec<ContainerUsage>,
}

/// Millicores and bytes; `None`: not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: String,
    pub usage: PerResource<Option<Amount>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WirePod {
    metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    #[serde(deserialize_with = "nullable")]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    uid: String,
    #[serde(deserialize_with = "nullable")]
    owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    controller: Option<bool>,
}

/// Returns the controller among these references.
pub(crate) fn controller(owners: Vec<OwnerReference>) -> Option<Owner> {
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    Some(Owner { api_version: owner.api_version, kind: owner.kind, name: owner.name })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    containers: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    #[serde(deserialize_with = "nullable")]
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "nullable")]
    requests: Quantities,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    restart_count: i64,
    #[serde(deserialize_with = "nullable")]
    state: ContainerState,
    #[serde(deserialize_with = "nullable")]
    last_state: ContainerState,
    resources: Option<Resources>,
}

/// The current or last state of a container; only its termination is read.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    reason: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
}

/// Parses a pod; `None` if it is finished.
pub(super) fn read_pod(json: &str) -> Result<Option<OwnedPod>, String> {
    let WirePod { metadata, spec, status } = serde_json::from_str(json).map_err(|error| error.to_string())?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(None);
    }
    if metadata.uid.is_empty() {
        return Err(format!("pod `{}` has no uid", metadata.name));
    }
    let mut statuses: BTreeMap<String, ContainerStatus> =
        status.container_statuses.into_iter().map(|status| (status.name.clone(), status)).collect();
    let containers = spec.containers.into_iter().map(|container| {
        let status = statuses.remove(&container.name).unwrap_or_default();
        let specified = amounts(&container.resources.requests);
        let actual = status.resources.as_ref().map(|resources| amounts(&resources.requests));
        let requests = actual.unwrap_or_default().zip(specified).map(|(actual, said)| actual.or(said));
        PodContainer {
            name: container.name,
            requests: requests.map(Option::unwrap_or_default),
            restarts: status.restart_count,
            // Until the restart, the OOM kill is the current state, not the last one.
            oom_killed: status.state.oom_killed().or_else(|| status.last_state.oom_killed()),
        }
    });
    Ok(Some(OwnedPod {
        uid: metadata.uid.into(),
        name: metadata.name,
        owner: controller(metadata.owner_references),
        containers: containers.collect(),
        json: Some(json.into()),
    }))
}

impl OwnedPod {
    /// Drops the spec, which is not needed.
    pub(super) fn drop_spec(&mut self) {
        self.json = None;
    }

    /// Returns the scheduling spec; `None` if it is invalid or was dropped.
    pub fn spec(&self) -> Option<Arc<PodSpec>> {
        let pod: LeanPod = serde_json::from_str(self.json.as_deref()?).ok()?;
        pod.into_pod(&mut Interner::default()).spec.ok()
    }
}

impl ContainerState {
    /// Returns the time of the termination, if it was an OOM kill.
    pub fn oom_killed(&self) -> Option<UnixNanos> {
        let terminated = self.terminated.as_ref()?;
        let is_oom = terminated.reason.as_deref() == Some("OOMKilled");
        time::from_text(terminated.finished_at.as_deref().filter(|_| is_oom)?).ok()
    }

    /// Returns the run time before the OOM kill, in nanoseconds.
    pub fn oom_after(&self) -> Option<i64> {
        let began = time::from_text(self.terminated.as_ref()?.started_at.as_deref()?).ok()?;
        Some(self.oom_killed()?.saturating_sub(began))
    }
}

/// Parses a `PodMetrics` of `metrics.k8s.io`.
pub(super) fn read_usage(json: &str) -> Result<PodUsage, String> {
    #[derive(Deserialize)]
    struct PodMetrics {
        metadata: Named,
        timestamp: String,
        #[serde(default)]
        containers: Vec<Measured>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    #[derive(Deserialize)]
    struct Measured {
        name: String,
        #[serde(default)]
        usage: Quantities,
    }
    let metrics: PodMetrics = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let containers = metrics.containers.into_iter();
    Ok(PodUsage {
        name: metrics.metadata.name,
        time: time::from_text(&metrics.timestamp).map_err(|error| error.to_string())?,
        containers: containers
            .map(|it| ContainerUsage { name: it.name, usage: amounts(&it.usage) })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"{
        "metadata": {"name": "web-7d4b9c6f5-abcde", "uid": "u", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Other", "name": "x"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c6f5", "controller": true}]},
        "spec": {"nodeSelector": {"pool": "big"}, "containers": [
            {"name": "app", "resources": {"requests": {"cpu": "1", "memory": "100Mi"}}},
            {"name": "sidecar"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "app", "restartCount": 3, "resources": {"requests": {"memory": "200Mi"}}, "lastState":
                {"terminated": {"reason": "OOMKilled", "finishedAt": "1970-01-01T00:00:01Z"}}}]}}"#;

    #[test]
    fn a_pod_is_read_with_its_controller_and_how_its_containers_ended() {
        let pod = read_pod(POD).unwrap().unwrap();
        assert_eq!(pod.owner.as_ref().unwrap().name, "web-7d4b9c6f5");
        let [app, sidecar] = &pod.containers[..] else { panic!("{pod:?}") };
        assert_eq!(app.requests, PerResource { cpu: 1000, memory: 200 << 20 }, "resized in place");
        assert_eq!((app.restarts, app.oom_killed), (3, Some(1_000_000_000)));
        assert_eq!((sidecar.requests, sidecar.oom_killed), (NodeSize::default(), None));
        assert_eq!(pod.spec().unwrap().node_selector.iter().count(), 1);
        let other_end = POD.replace("OOMKilled", "Error");
        assert_eq!(read_pod(&other_end).unwrap().unwrap().containers[0].oom_killed, None);
        assert!(read_pod(&POD.replace("Running", "Succeeded")).unwrap().is_none());
    }

    #[test]
    fn metrics_are_read_with_what_was_not_measured() {
        let text = r#"{"metadata":{"name":"p"},"timestamp":"1970-01-01T00:00:01Z","window":"15s","containers":[
            {"name":"app","usage":{"cpu":"12345678n","memory":"100Ki"}},{"name":"new","usage":{"cpu":"bad"}}]}"#;
        let usage = read_usage(text).unwrap();
        assert_eq!(usage.time, 1_000_000_000);
        assert_eq!(usage.containers[0].usage, PerResource { cpu: Some(13), memory: Some(102_400) });
        assert_eq!(usage.containers[1].usage, PerResource::default());
        assert!(read_usage(r#"{"metadata":{"name":"p"},"timestamp":"now"}"#).is_err());
    }
}
