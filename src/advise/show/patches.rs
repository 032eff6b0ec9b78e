//! Advice as commands and files that set it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::units::cpu;
use crate::advise::advice::{AdviceReport, ContainerAdvice, Current, ResourceAdvice};
use crate::advise::limits::LimitChange;
use berth_model::exact_bytes;
use berth_rightsizing::recommend::Amount;

/// Changes of the resources of one container, by name: as in a patch of a pod spec.
#[derive(Serialize)]
struct ResourceChanges {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<&'static str, String>,
    /// `None` removes a limit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<&'static str, Option<String>>,
}

/// Returns what to change, or `None` if nothing changes.
fn changes(advice: &ContainerAdvice) -> Option<ResourceChanges> {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for (name, size, unit) in named(advice) {
        if let Some(target) = size.target.filter(|target| size.request != Current::Set(*target)) {
            requests.insert(name, unit(target));
        }
        match size.limit_change() {
            LimitChange::Remove => drop(limits.insert(name, None)),
            LimitChange::Set(limit) if size.limit != Current::Set(limit) => {
                limits.insert(name, Some(unit(limit)));
            }
            LimitChange::Keep | LimitChange::Set(_) => {}
        }
    }
    (!requests.is_empty() || !limits.is_empty()).then_some(ResourceChanges { requests, limits })
}

/// Name of a resource, its advice, and how its amounts are written.
type NamedResource<'a> = (&'static str, &'a ResourceAdvice, fn(Amount) -> String);

/// Returns the resources of a container.
pub fn named(advice: &ContainerAdvice) -> [NamedResource<'_>; 2] {
    [("cpu", &advice.size.cpu, cpu), ("memory", &advice.size.memory, |bytes| exact_bytes(bytes.into()))]
}

/// API version of the kinds whose pod template can be changed.
fn api_version(kind: &str) -> Option<&'static str> {
    match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => Some("apps/v1"),
        "ReplicationController" => Some("v1"),
        "CronJob" => Some("batch/v1"),
        _ => None,
    }
}

/// Returns why a workload cannot be changed by its name.
pub fn obstacle(advice: &ContainerAdvice) -> Option<&'static str> {
    match () {
        () if advice.guessed => Some("the workload is guessed from pod names"),
        () if api_version(&advice.kind).is_none() => {
            Some("its kind has no template that berth knows to change")
        }
        () => None,
    }
}

/// Formats a command for each container whose requests or limits change.
///
/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn kubectl(report: &AdviceReport) -> anyhow::Result<String> {
    let mut text = String::new();
    for advice in &report.advice {
        let Some(changes) = changes(advice) else { continue };
        let command = command(advice, &changes)?;
        match obstacle(advice) {
            Some(why) => {
                let _ = writeln!(text, "# {why}: {command}");
            }
            None => {
                let _ = writeln!(text, "{command}");
            }
        }
    }
    Ok(text)
}

fn command(advice: &ContainerAdvice, changes: &ResourceChanges) -> anyhow::Result<String> {
    let ContainerAdvice { namespace, kind, workload, container, .. } = advice;
    let object = word(&format!("{}/{workload}", kind.to_lowercase()));
    let namespace = word(namespace);
    // `kubectl set resources` cannot remove a limit.
    if changes.limits.values().any(Option::is_none) {
        let containers = [json!({"name": container, "resources": changes})];
        let patch = serde_json::to_string(&json!({"spec": with_containers(kind, &containers)}))?;
        return Ok(format!("kubectl patch --namespace={namespace} {object} --patch={}", word(&patch)));
    }
    let mut command =
        format!("kubectl set resources --namespace={namespace} {object} --containers={}", word(container));
    let requests = changes.requests.iter().map(|(name, amount)| format!("{name}={amount}"));
    let limits =
        changes.limits.iter().flat_map(|(name, amount)| Some(format!("{name}={}", amount.as_ref()?)));
    for (option, list) in [("requests", requests.collect::<Vec<_>>()), ("limits", limits.collect())] {
        if !list.is_empty() {
            let _ = write!(command, " --{option}={}", list.join(","));
        }
    }
    Ok(command)
}

/// Returns the spec of a workload with these containers of its pods.
fn with_containers(kind: &str, containers: &[Value]) -> Value {
    let pod = json!({"spec": {"containers": containers}});
    match kind {
        "CronJob" => json!({"jobTemplate": {"spec": {"template": pod}}}),
        _ => json!({"template": pod}),
    }
}

/// Quotes a word for a shell, unless it is a name. Control characters are left out: a name has none.
fn word(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    match !text.is_empty() && text.chars().all(is_name) {
        true => text.to_owned(),
        false => {
            let printable: String = text.chars().filter(|c| !c.is_control()).collect();
            format!("'{}'", printable.replace('\'', r"'\''"))
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Component<'a> {
    api_version: &'static str,
    kind: &'static str,
    patches: Vec<Patch<'a>>,
}

#[derive(Serialize)]
struct Patch<'a> {
    target: PatchTarget<'a>,
    patch: String,
}

#[derive(Serialize)]
struct PatchTarget<'a> {
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
}

/// Returns a comment on the number of containers that a file leaves out because of an [`obstacle`]; empty if there are none.
pub fn left_out(containers: usize) -> String {
    match containers {
        0 => String::new(),
        _ => format!(
            "# Containers that are left out, as their workloads are guessed from pod names or have no template to change: {containers}.\n"
        ),
    }
}

/// Formats a component of kustomize with a patch for each workload whose requests or limits change.
///
/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn kustomize(report: &AdviceReport) -> anyhow::Result<String> {
    type Named<'a> = (&'a str, &'a str, &'a str);
    let mut workloads: BTreeMap<Named<'_>, Vec<Value>> = BTreeMap::new();
    let mut obstacles = 0;
    for advice in &report.advice {
        let Some(changes) = changes(advice) else { continue };
        if obstacle(advice).is_some() {
            obstacles += 1;
            continue;
        }
        let container = json!({"name": advice.container, "resources": changes});
        let workload = (&*advice.namespace, &*advice.kind, &*advice.workload);
        workloads.entry(workload).or_default().push(container);
    }
    let mut patches = Vec::new();
    for ((namespace, kind, name), containers) in workloads {
        let object = json!({
            "apiVersion": api_version(kind), "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": with_containers(kind, &containers),
        });
        let patch = serde_saphyr::to_string(&object)?;
        patches.push(Patch { target: PatchTarget { kind, name, namespace }, patch });
    }
    let component = Component { api_version: "kustomize.config.k8s.io/v1alpha1", kind: "Component", patches };
    Ok(left_out(obstacles) + &serde_saphyr::to_string(&component)?)
}
