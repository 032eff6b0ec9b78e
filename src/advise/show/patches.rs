//! Advice as commands and files that set it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::units::cpu;
use crate::advise::advice::{AdviceReport, ContainerAdvice, Current};
use berth_model::exact_bytes;
use berth_rightsizing::recommend::Amount;

/// Resources of one container, by name: as in a pod spec.
#[derive(Serialize)]
struct Resources {
    requests: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<&'static str, String>,
}

/// Returns the resources to set, or `None` if nothing changes.
fn resources(advice: &ContainerAdvice) -> Option<Resources> {
    let named = [
        ("cpu", &advice.size.cpu, cpu as fn(Amount) -> String),
        ("memory", &advice.size.memory, |bytes| exact_bytes(bytes.into())),
    ];
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for (name, size, unit) in named {
        let Some(target) = size.target.filter(|target| size.request != Current::Set(*target)) else {
            continue;
        };
        requests.insert(name, unit(target));
        limits.extend(size.limit_target().map(|limit| (name, unit(limit))));
    }
    (!requests.is_empty()).then_some(Resources { requests, limits })
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
fn obstacle(advice: &ContainerAdvice) -> Option<&'static str> {
    match () {
        () if advice.guessed => Some("the workload is guessed from pod names"),
        () if api_version(&advice.kind).is_none() => {
            Some("its kind has no template that berth knows to change")
        }
        () => None,
    }
}

/// Formats a command for each container whose requests change.
pub fn kubectl(report: &AdviceReport) -> String {
    let mut text = String::new();
    for advice in &report.advice {
        let Some(Resources { requests, limits }) = resources(advice) else { continue };
        let list = |amounts: &BTreeMap<&str, String>| {
            amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
        };
        let ContainerAdvice { namespace, kind, workload, container, .. } = advice;
        let mut command = format!(
            "kubectl set resources --namespace={} {} --containers={} --requests={}",
            word(namespace),
            word(&format!("{}/{workload}", kind.to_lowercase())),
            word(container),
            list(&requests)
        );
        if !limits.is_empty() {
            let _ = write!(command, " --limits={}", list(&limits));
        }
        match obstacle(advice) {
            Some(why) => {
                let _ = writeln!(text, "# {why}: {command}");
            }
            None => {
                let _ = writeln!(text, "{command}");
            }
        }
    }
    text
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

/// Formats a component of kustomize with a patch for each workload whose requests change.
///
/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn kustomize(report: &AdviceReport) -> anyhow::Result<String> {
    type Named<'a> = (&'a str, &'a str, &'a str);
    let mut workloads: BTreeMap<Named<'_>, Vec<serde_json::Value>> = BTreeMap::new();
    let (mut left_out, mut notes) = (0, String::new());
    for advice in &report.advice {
        let Some(resources) = resources(advice) else { continue };
        if obstacle(advice).is_some() {
            left_out += 1;
            continue;
        }
        let container = serde_json::json!({"name": advice.container, "resources": resources});
        let workload = (&*advice.namespace, &*advice.kind, &*advice.workload);
        workloads.entry(workload).or_default().push(container);
    }
    if left_out > 0 {
        let _ = writeln!(
            notes,
            "# Containers that are left out, as their workloads are guessed from pod names or have no template to change: {left_out}."
        );
    }
    let mut patches = Vec::new();
    for ((namespace, kind, name), containers) in workloads {
        let pod = serde_json::json!({"spec": {"containers": containers}});
        let spec = match kind {
            "CronJob" => serde_json::json!({"jobTemplate": {"spec": {"template": pod}}}),
            _ => serde_json::json!({"template": pod}),
        };
        let object = serde_json::json!({
            "apiVersion": api_version(kind), "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        });
        let patch = serde_saphyr::to_string(&object)?;
        patches.push(Patch { target: PatchTarget { kind, name, namespace }, patch });
    }
    let component = Component { api_version: "kustomize.config.k8s.io/v1alpha1", kind: "Component", patches };
    Ok(notes + &serde_saphyr::to_string(&component)?)
}
