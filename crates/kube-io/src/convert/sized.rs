//! Conversion of lean pods to the pods that rightsizing reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lean::{
    LeanConditions, LeanContainer, LeanContainerState, LeanContainerStatus, LeanPod, LeanRequirements,
    ResourceList,
};
use berth_model::{PerResource, Quantity};
use berth_rightsizing::apply::boost;
use berth_rightsizing::apply::patch::OBSERVED;
use berth_rightsizing::apply::pod::Has;
use berth_rightsizing::apply::{Resize, Resources, SizedContainer, SizedPod};
use berth_rightsizing::recommend::{OptionalAmounts, OwnerRef, UnixNanos, time};

/// Parses a pod that is being created in this namespace.
///
/// # Errors
/// When it is not a pod.
pub fn read_new_pod(json: &str, namespace: &str) -> Result<SizedPod, String> {
    let pod: LeanPod = serde_json::from_str(json).map_err(|error| error.to_string())?;
    Ok(SizedPod { namespace: namespace.into(), ..pod.sized() })
}

impl LeanPod {
    /// Converts to the pod that rightsizing reads.
    pub fn sized(&self) -> SizedPod {
        let LeanPod { metadata, spec, status } = self;
        let text = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
        let observed = metadata.annotations.as_ref().and_then(|all| all.get(OBSERVED));
        let names = |text: &String| text.split(',').map(|name| name.trim().to_owned()).collect();
        let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
        let mut statuses: BTreeMap<&str, &LeanContainerStatus> =
            statuses.map(|status| (&*status.name, status)).collect();
        let mut container = |container: &LeanContainer| match statuses.remove(&*container.name) {
            Some(status) => sized_container(container, status),
            None => sized_container(container, &LeanContainerStatus::default()),
        };
        let mut containers: Vec<SizedContainer> = spec.containers.iter().map(&mut container).collect();
        let mut init_containers = Vec::new();
        for (index, init) in spec.init_containers.iter().enumerate() {
            match init.restart_policy.as_deref() {
                Some("Always") => {
                    containers.push(SizedContainer { sidecar: Some(index), ..container(init) });
                }
                _ => init_containers.push(init.resources.as_ref().map(resources).unwrap_or_default()),
            }
        }
        SizedPod {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            owner: metadata.owner_references.iter().flatten().next().map(|owner| OwnerRef {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
            }),
            template_hash: metadata.labels.as_ref().and_then(|all| all.get("pod-template-hash")).cloned(),
            node: spec.node_name.as_deref().filter(|name| !name.is_empty()).map(Arc::from),
            created: metadata
                .creation_timestamp
                .as_ref()
                .and_then(|time| time.0.as_nanosecond().try_into().ok()),
            started: status.start_time.as_deref().and_then(|text| time::from_text(text).ok()),
            is_pending: status.phase.as_deref() != Some("Running"),
            is_ready: status.conditions.ready,
            ready_since: (status.conditions.ready_changed.as_deref())
                .filter(|_| status.conditions.ready)
                .and_then(|text| time::from_text(text).ok()),
            boosts: (metadata.annotations.as_ref())
                .and_then(|all| all.get(boost::ANNOTATION))
                .map(|text| boost::read(text))
                .unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            has_annotations: metadata.annotations.is_some(),
            observed: observed.map(names),
            is_sized_as_a_whole: spec.resources.as_ref().map(resources).unwrap_or_default()
                != Resources::default(),
            init_containers,
            containers,
            resize: resize(&status.conditions),
        }
    }
}

fn sized_container(container: &LeanContainer, status: &LeanContainerStatus) -> SizedContainer {
    let restarts = |resource: &str| {
        let policy = container.resize_policy.iter().find(|policy| policy.resource_name == resource);
        policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    let wanted = container.resources.as_ref();
    SizedContainer {
        name: container.name.clone(),
        sidecar: None,
        wanted: wanted.map(resources).unwrap_or_default(),
        actual: status.resources.as_ref().map(resources),
        has: Has {
            resources: wanted.is_some(),
            requests: wanted.is_some_and(|it| it.requests.is_some()),
            limits: wanted.is_some_and(|it| it.limits.is_some()),
        },
        oom_after: oom_after(&status.last_state),
        // Until the restart, the OOM kill is the current state, not the last one.
        oom_killed: oom_killed(&status.state).or_else(|| oom_killed(&status.last_state)),
        restarts: PerResource { cpu: restarts("cpu"), memory: restarts("memory") },
    }
}

fn resources(requirements: &LeanRequirements) -> Resources {
    let of = |list: &Option<ResourceList>| list.as_ref().map(amounts).unwrap_or_default();
    Resources { requests: of(&requirements.requests), limits: of(&requirements.limits) }
}

/// Returns CPU and memory; an invalid quantity counts as absent.
fn amounts(list: &ResourceList) -> OptionalAmounts {
    let of = |name: &str| -> Option<Quantity> {
        let (_, amount) = list.0.iter().rfind(|(it, _): &&(Cow<str>, _)| it == name)?;
        amount.as_ref().ok().copied()
    };
    PerResource { cpu: of("cpu").map(Quantity::milli_value), memory: of("memory").map(Quantity::value) }
}

/// Returns the time of the termination, if it was an OOM kill.
fn oom_killed(state: &LeanContainerState) -> Option<UnixNanos> {
    let terminated = state.terminated.as_ref()?;
    let is_oom = terminated.reason.as_deref() == Some("OOMKilled");
    time::from_text(terminated.finished_at.as_deref().filter(|_| is_oom)?).ok()
}

/// Returns the run time before the OOM kill, in nanoseconds.
fn oom_after(state: &LeanContainerState) -> Option<i64> {
    let began = time::from_text(state.terminated.as_ref()?.started_at.as_deref()?).ok()?;
    Some(oom_killed(state)?.saturating_sub(began))
}

/// Returns the state of a resize. Pending comes first: a kubelet can carry out one resize while the next one waits.
fn resize(conditions: &LeanConditions) -> Option<Resize> {
    if let Some(reason) = &conditions.resize_pending {
        return Some(match reason.as_str() {
            "Deferred" => Resize::Deferred,
            "Infeasible" => Resize::Infeasible,
            _ => Resize::Unknown,
        });
    }
    conditions.resize_in_progress.as_ref().map(|(reason, message)| match reason.as_str() {
        "Error" => Resize::Error,
        "" if message.is_empty() => Resize::InProgress,
        _ => Resize::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use berth_model::NodeSize;

    fn read(json: &str) -> SizedPod {
        serde_json::from_str::<LeanPod>(json).expect("a pod").sized()
    }

    fn amounts_of(cpu: Option<i64>, memory: Option<i64>) -> OptionalAmounts {
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
                    "name": "app", "resources": {"requests": {"cpu": "500m"}},
                    "lastState": {"terminated": {"reason": "OOMKilled", "startedAt": "1970-01-01T00:00:03Z",
                        "finishedAt": "1970-01-01T00:00:13Z"}},
                }],
            },
        });
        let pod = read(&json.to_string());
        assert_eq!((&*pod.name, pod.started), ("web-5d4f8-x", Some(2_000_000_000)));
        assert_eq!(pod.owner.as_ref().unwrap().name, "web-5d4f8");
        assert_eq!((pod.template_hash.as_deref(), pod.node.as_deref()), (Some("5d4f8"), Some("n")));
        assert_eq!((pod.is_pending, pod.is_deleting, pod.resize), (false, false, Some(Resize::Deferred)));
        assert!(pod.is_ready && pod.is_observed("proxy") && !pod.is_observed("late"));
        let [app, proxy] = &pod.containers[..] else { panic!("{pod:?}") };
        assert_eq!(app.wanted.requests, amounts_of(Some(1_000), Some(1_024)));
        assert_eq!(app.wanted.limits, amounts_of(Some(2_000), None));
        assert_eq!(app.now().requests, amounts_of(Some(500), None));
        assert_eq!(app.requests(), PerResource { cpu: 500, memory: 1_024 }, "resized in place");
        assert_eq!(proxy.requests(), NodeSize::default());
        assert_eq!(
            (app.oom_after, app.restarts.cpu, app.restarts.memory),
            (Some(10_000_000_000), false, true)
        );
        assert_eq!((app.oom_killed, proxy.oom_killed), (Some(13_000_000_000), None));
        assert_eq!((proxy.has, proxy.actual), (Has::default(), None));
        let other_end = read(&json.to_string().replace("OOMKilled", "Error"));
        assert_eq!((other_end.containers[0].oom_killed, other_end.containers[0].oom_after), (None, None));
    }

    #[test]
    fn a_pod_that_is_created_may_lack_everything() {
        let pod = read_new_pod(
            r#"{"metadata":{"generateName":"web-"},"spec":{"resources":{"limits":{"cpu":"1"}}}}"#,
            "shop",
        );
        let pod = pod.unwrap();
        assert_eq!((&*pod.namespace, &*pod.name, pod.has_annotations), ("shop", "", false));
        assert!(pod.is_sized_as_a_whole && pod.is_pending && pod.owner.is_none());
        let of = |resources: serde_json::Value| {
            let pod =
                json!({"metadata": {}, "spec": {"containers": [{"name": "app", "resources": resources}]}});
            read_new_pod(&pod.to_string(), "shop").unwrap().containers[0].has
        };
        let resources = Has { resources: true, ..Has::default() };
        assert_eq!(of(json!(null)), Has::default());
        for bare in [json!({}), json!({"claims": [{"name": "gpu"}]}), json!({"requests": null})] {
            assert_eq!(of(bare), resources);
        }
        assert_eq!(of(json!({"limits": {}})), Has { limits: true, ..resources });
        for bad in ["7", r#"{"spec":{"containers":"none"}}"#] {
            assert!(read_new_pod(bad, "shop").is_err(), "{bad}");
        }
    }

    #[test]
    fn sidecars_are_containers_other_init_containers_are_not_and_boosts_are_read() {
        let request = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = read(
            &json!({
                "metadata": {
                    "name": "web",
                    "annotations": {boost::ANNOTATION: r#"{"app":{"milliCpu":400,"request":200,"seconds":5}}"#},
                },
                "spec": {
                    "initContainers": [
                        {"name": "migrate", "resources": request("2")},
                        {"name": "proxy", "restartPolicy": "Always", "resources": request("1")},
                    ],
                    "containers": [{"name": "app"}],
                },
                "status": {"conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:20Z"},
                ], "initContainerStatuses": [{
                    "name": "proxy", "resources": request("500m"),
                    "lastState": {"terminated": {"reason": "OOMKilled", "startedAt": "1970-01-01T00:00:03Z",
                        "finishedAt": "1970-01-01T00:00:13Z"}},
                }]},
            })
            .to_string(),
        );
        let [app, proxy] = &pod.containers[..] else { panic!("{pod:?}") };
        assert_eq!((&*app.name, app.sidecar, &*proxy.name, proxy.sidecar), ("app", None, "proxy", Some(1)));
        assert_eq!((proxy.requests().cpu, proxy.oom_killed), (500, Some(13_000_000_000)));
        assert_eq!(
            (pod.path(0), pod.path(1)),
            ("/spec/containers/0".into(), "/spec/initContainers/1".into())
        );
        assert_eq!((pod.boosts["app"].milli_cpu, pod.ready_since), (400, Some(20_000_000_000)));
        let [migrate] = &pod.init_containers[..] else { panic!("{pod:?}") };
        assert_eq!(migrate.requests.cpu, Some(2_000));
    }

    #[test]
    fn where_a_resize_stands_is_told_by_conditions() {
        let of = |kind: &str, reason: &str, message: &str| {
            let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message});
            read(&json!({"metadata": {}, "status": {"conditions": [condition]}}).to_string()).resize
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
