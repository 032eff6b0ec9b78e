//! Pods as JSON, in an admission review or in a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::lean::nullable;
use crate::vpa::{ContainerState, OwnerReference, Quantities, amounts, controller};
use berth_model::PerResource;
use berth_rightsizing::apply::patch::OBSERVED;
use berth_rightsizing::apply::pod::Has;
use berth_rightsizing::apply::{Container, Pod, Resize, Resources};
use berth_rightsizing::recommend::time;

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRunningPod {
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
    namespace: String,
    uid: String,
    deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
    annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "nullable")]
    owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    resources: Option<Requirements>,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<WireContainer>,
    #[serde(deserialize_with = "nullable")]
    init_containers: Vec<WireContainer>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireContainer {
    name: String,
    resources: Option<Requirements>,
    #[serde(deserialize_with = "nullable")]
    resize_policy: Vec<ResizePolicy>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Requirements {
    requests: Option<Quantities>,
    limits: Option<Quantities>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResizePolicy {
    resource_name: String,
    restart_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    start_time: Option<String>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(deserialize_with = "nullable")]
    reason: String,
    #[serde(deserialize_with = "nullable")]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    resources: Option<Requirements>,
    #[serde(deserialize_with = "nullable")]
    state: ContainerState,
    #[serde(deserialize_with = "nullable")]
    last_state: ContainerState,
}

/// Parses a pod; `None` if it is finished.
///
/// # Errors
/// When it is not a pod.
pub fn read_running(json: &str) -> Result<Option<Pod>, String> {
    let object: WireRunningPod = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let is_finished = matches!(object.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    Ok((!is_finished).then(|| pod(object)))
}

/// Parses a pod that is being created in this namespace.
///
/// # Errors
/// When it is not a pod.
pub fn read_pod(json: &str, namespace: &str) -> Result<Pod, String> {
    let object: WireRunningPod = serde_json::from_str(json).map_err(|error| error.to_string())?;
    Ok(Pod { namespace: namespace.into(), ..pod(object) })
}

fn pod(WireRunningPod { metadata, spec, status }: WireRunningPod) -> Pod {
    let has_annotations = metadata.annotations.is_some();
    let observed = metadata.annotations.unwrap_or_default().remove(OBSERVED);
    let names = |text: String| text.split(',').map(|name| name.trim().to_owned()).collect();
    let resize = resize(&status.conditions);
    let mut statuses: BTreeMap<String, ContainerStatus> =
        status.container_statuses.into_iter().map(|status| (status.name.clone(), status)).collect();
    let time = |text: Option<String>| text.and_then(|text| time::from_text(&text).ok());
    let of = |container: &WireContainer| container.resources.as_ref().map(resources).unwrap_or_default();
    let init = spec.init_containers.iter().map(of);
    Pod {
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
        uid: metadata.uid.into(),
        owner: controller(metadata.owner_references),
        template_hash: metadata.labels.get("pod-template-hash").cloned(),
        node: spec.node_name.filter(|name| !name.is_empty()).map(Arc::from),
        started: time(status.start_time),
        is_pending: status.phase.as_deref() != Some("Running"),
        is_ready: status.conditions.iter().any(|it| it.kind == "Ready" && it.status == "True"),
        is_deleting: metadata.deletion_timestamp.is_some(),
        has_annotations,
        observed: observed.map(names),
        is_sized_as_a_whole: spec.resources.is_some_and(|it| resources(&it) != Resources::default()),
        init_containers: init.collect(),
        containers: spec
            .containers
            .into_iter()
            .map(|it| {
                let status = statuses.remove(&it.name).unwrap_or_default();
                container(it, status)
            })
            .collect(),
        resize,
    }
}

fn container(wire: WireContainer, status: ContainerStatus) -> Container {
    let restarts = |resource: &str| {
        let policy = wire.resize_policy.iter().find(|policy| policy.resource_name == resource);
        policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    let has_resources = wire.resources.is_some();
    let asked = wire.resources.unwrap_or_default();
    Container {
        wanted: resources(&asked),
        actual: status.resources.as_ref().map(resources),
        has: Has {
            resources: has_resources,
            requests: asked.requests.is_some(),
            limits: asked.limits.is_some(),
        },
        oom_after: status.last_state.oom_after(),
        // Until the restart, the OOM kill is the current state, not the last one.
        oom_killed: status.state.oom_killed().or_else(|| status.last_state.oom_killed()),
        restarts: PerResource { cpu: restarts("cpu"), memory: restarts("memory") },
        name: wire.name,
    }
}

fn resources(requirements: &Requirements) -> Resources {
    let of = |list: &Option<Quantities>| list.as_ref().map(amounts).unwrap_or_default();
    Resources { requests: of(&requirements.requests), limits: of(&requirements.limits) }
}

/// Returns the state of a resize. Pending comes first: a kubelet can carry out one resize while the next one waits.
fn resize(conditions: &[Condition]) -> Option<Resize> {
    let find = |kind: &str| conditions.iter().find(|it| it.kind == kind && it.status == "True");
    if let Some(pending) = find("PodResizePending") {
        return Some(match pending.reason.as_str() {
            "Deferred" => Resize::Deferred,
            "Infeasible" => Resize::Infeasible,
            _ => Resize::Unknown,
        });
    }
    find("PodResizeInProgress").map(|at_it| match at_it.reason.as_str() {
        "Error" => Resize::Error,
        "" if at_it.message.is_empty() => Resize::InProgress,
        _ => Resize::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use berth_rightsizing::recommend::Amounts;

    fn amounts_of(cpu: Option<i64>, memory: Option<i64>) -> Amounts {
        PerResource { cpu, memory }
    }

    #[test]
    fn a_running_pod_is_read_with_what_it_has_and_how_it_was_killed() {
        let json = json!({
            "metadata": {
                "name": "web-5d4f8-x", "namespace": "shop", "uid": "u",
                "labels": {"pod-template-hash": "5d4f8"}, "annotations": {OBSERVED: "app, proxy"},
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8", "controller": true}],
            },
            "spec": {"nodeName": "n", "containers": [{
                "name": "app", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}, "limits": {"cpu": 2}},
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
            }, {"name": "proxy"}]},
            "status": {
                "phase": "Running", "startTime": "1970-01-01T00:00:02Z",
                "conditions": [
                    {"type": "PodResizeInProgress", "status": "True"}, {"type": "Ready", "status": "True"},
                    {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}],
                "containerStatuses": [{
                    "name": "app", "resources": {"requests": {"cpu": "500m", "memory": "1Ki"}},
                    "lastState": {"terminated": {"reason": "OOMKilled", "startedAt": "1970-01-01T00:00:03Z",
                        "finishedAt": "1970-01-01T00:00:13Z"}},
                }],
            },
        });
        let pod = read_running(&json.to_string()).unwrap().unwrap();
        assert_eq!((&*pod.name, pod.started), ("web-5d4f8-x", Some(2_000_000_000)));
        assert_eq!(pod.owner.as_ref().unwrap().name, "web-5d4f8");
        assert_eq!((pod.template_hash.as_deref(), pod.node.as_deref()), (Some("5d4f8"), Some("n")));
        assert_eq!((pod.is_pending, pod.is_deleting, pod.resize), (false, false, Some(Resize::Deferred)));
        assert!(pod.is_ready && pod.is_observed("proxy") && !pod.is_observed("late"));
        let [app, proxy] = &pod.containers[..] else { panic!("{pod:?}") };
        assert_eq!(app.wanted.requests, amounts_of(Some(1_000), Some(1_024)));
        assert_eq!(app.wanted.limits, amounts_of(Some(2_000), None));
        assert_eq!(app.now().requests, amounts_of(Some(500), Some(1_024)));
        assert_eq!(
            (app.oom_after, app.restarts.cpu, app.restarts.memory),
            (Some(10_000_000_000), false, true)
        );
        assert_eq!((app.oom_killed, proxy.oom_killed), (Some(13_000_000_000), None));
        assert_eq!((proxy.has, proxy.actual), (Has::default(), None));
        let finished = json.to_string().replace("\"Running\"", "\"Failed\"");
        assert_eq!(read_running(&finished).unwrap(), None);
    }

    #[test]
    fn a_pod_that_is_created_may_lack_everything() {
        let pod = read_pod(
            r#"{"metadata":{"generateName":"web-"},"spec":{"resources":{"limits":{"cpu":"1"}}}}"#,
            "shop",
        );
        let pod = pod.unwrap();
        assert_eq!((&*pod.namespace, &*pod.name, pod.has_annotations), ("shop", "", false));
        assert!(pod.is_sized_as_a_whole && pod.is_pending && pod.owner.is_none());
        let of = |resources: serde_json::Value| {
            let pod = json!({"spec": {"containers": [{"name": "app", "resources": resources}]}});
            read_pod(&pod.to_string(), "shop").unwrap().containers[0].has
        };
        let resources = Has { resources: true, ..Has::default() };
        assert_eq!(of(json!(null)), Has::default());
        for bare in [json!({}), json!({"claims": [{"name": "gpu"}]}), json!({"requests": null})] {
            assert_eq!(of(bare), resources);
        }
        assert_eq!(of(json!({"limits": {}})), Has { limits: true, ..resources });
        for bad in ["7", r#"{"spec":{"containers":"none"}}"#] {
            assert!(read_pod(bad, "shop").is_err(), "{bad}");
        }
    }

    #[test]
    fn where_a_resize_stands_is_told_by_conditions() {
        let of = |kind: &str, reason: &str, message: &str| {
            let condition = Condition {
                kind: kind.into(),
                status: "True".into(),
                reason: reason.into(),
                message: message.into(),
            };
            resize(&[condition])
        };
        for (kind, reason, message, expected) in [
            ("PodResizePending", "Infeasible", "too much", Some(Resize::Infeasible)),
            ("PodResizePending", "Other", "", Some(Resize::Unknown)),
            ("PodResizeInProgress", "", "", Some(Resize::InProgress)),
            ("PodResizeInProgress", "Error", "no cgroup", Some(Resize::Error)),
            ("PodResizeInProgress", "", "a text", Some(Resize::Unknown)),
            ("Ready", "", "", None),
        ] {
            assert_eq!(of(kind, reason, message), expected, "{kind} {reason}");
        }
    }
}
