//! The pods of a service, as far as scaling reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::cluster::lean::nullable;
use crate::cluster::vpa::{ContainerStatus, Quantities, amounts};
use crate::recommend::{Amount, PerResource, UnixNanos};

/// A pod that is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePod {
    pub uid: Arc<str>,
    pub name: String,
    pub node: Option<Arc<str>>,
    pub ready: bool,
    /// It is about to go.
    pub deleting: bool,
    /// Why its kubelet has not done the last resize, if it has not.
    pub resize_pending: Option<String>,
    pub containers: Vec<ServiceContainer>,
}

/// A container of a pod, without init containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceContainer {
    pub name: String,
    /// As the spec says: what a resize asks for stands there at once.
    pub requests: PerResource<Option<Amount>>,
    pub limits: PerResource<Option<Amount>>,
    /// A resize in place of this would restart it.
    pub restarts: PerResource<bool>,
    /// When it was last killed for want of memory, if that was its last end.
    pub oom_killed: Option<UnixNanos>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    #[serde(deserialize_with = "nullable")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<Arc<str>>,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(deserialize_with = "nullable")]
    resources: Resources,
    #[serde(deserialize_with = "nullable")]
    resize_policy: Vec<ResizePolicy>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResizePolicy {
    resource_name: String,
    restart_policy: String,
}

impl Container {
    fn restarts(&self) -> PerResource<bool> {
        let of = |resource: &str| {
            let is =
                |it: &&ResizePolicy| it.resource_name == resource && it.restart_policy == "RestartContainer";
            self.resize_policy.iter().any(|it| is(&it))
        };
        PerResource { cpu: of("cpu"), memory: of("memory") }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "nullable")]
    requests: Quantities,
    #[serde(deserialize_with = "nullable")]
    limits: Quantities,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(deserialize_with = "nullable")]
    reason: String,
}

/// Reads a pod; `None` when it is finished.
pub(super) fn read_pod(json: &str) -> Result<Option<ServicePod>, String> {
    let Object { metadata, spec, status } = serde_json::from_str(json).map_err(|error| error.to_string())?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(None);
    }
    if metadata.uid.is_empty() {
        return Err(format!("pod `{}` has no uid", metadata.name));
    }
    let kills: BTreeMap<&str, UnixNanos> = (status.container_statuses.iter())
        .filter_map(|it| Some((it.name.as_str(), it.oom_killed()?)))
        .collect();
    let containers = spec.containers.into_iter().map(|container| ServiceContainer {
        oom_killed: kills.get(container.name.as_str()).copied(),
        restarts: container.restarts(),
        name: container.name,
        requests: amounts(&container.resources.requests),
        limits: amounts(&container.resources.limits),
    });
    let is = |type_: &str| status.conditions.iter().find(|it| it.type_ == type_ && it.status == "True");
    Ok(Some(ServicePod {
        uid: metadata.uid.into(),
        name: metadata.name,
        node: spec.node_name.filter(|node| !node.is_empty()),
        ready: is("Ready").is_some(),
        deleting: metadata.deletion_timestamp.is_some(),
        resize_pending: is("PodResizePending").map(|it| it.reason.clone()),
        containers: containers.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_with_what_scaling_needs() {
        let json = r#"{"metadata":{"name":"web-0","uid":"u"},
            "spec":{"nodeName":"n","containers":[{"name":"app","resources":{
                "requests":{"cpu":"250m","memory":"1Gi"},"limits":{"memory":"2Gi"}},"resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"}]},{"name":"proxy"}]},
            "status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},
                {"type":"PodResizePending","status":"True","reason":"Deferred"}],
                "containerStatuses":[{"name":"app","lastState":{"terminated":{
                    "reason":"OOMKilled","finishedAt":"2026-11-22T10:00:00Z"}}}]}}"#;
        let pod = read_pod(json).unwrap().unwrap();
        assert!(pod.ready && !pod.deleting);
        assert_eq!((pod.node.as_deref(), pod.resize_pending.as_deref()), (Some("n"), Some("Deferred")));
        let app = &pod.containers[0];
        assert_eq!(app.requests, PerResource { cpu: Some(250), memory: Some(1 << 30) });
        assert_eq!(app.limits, PerResource { cpu: None, memory: Some(2 << 30) });
        assert!(app.oom_killed.is_some());
        assert_eq!(app.restarts, PerResource { cpu: false, memory: true });
        assert_eq!(pod.containers[1].requests, PerResource::default());
    }

    #[test]
    fn a_finished_pod_is_nobody_and_one_without_a_uid_an_error() {
        assert_eq!(read_pod(r#"{"metadata":{"uid":"u"},"status":{"phase":"Failed"}}"#), Ok(None));
        assert!(read_pod(r#"{"metadata":{"name":"web-0"}}"#).unwrap_err().contains("web-0"));
    }
}
