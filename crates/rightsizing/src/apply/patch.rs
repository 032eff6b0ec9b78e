//! JSON patches (RFC 6902) of pods, the same as those of upstream's webhook and updater, apart from the annotation of boosts.

use serde_json::{Value, json};

use super::boost::{self, Boosts};
use super::pod::SizeChange;
use super::pod::SizedPod;
use crate::recommend::OptionalAmounts;
use crate::recommend::amount::to_quantity;

/// Annotation that names the changed resources and the VPA.
pub const UPDATES: &str = "vpaUpdates";
/// Annotation that lists the containers seen by the webhook; later webhooks may have added more.
pub const OBSERVED: &str = "vpaObservedContainers";

fn add(path: String, value: impl Into<Value>) -> Value {
    json!({"op": "add", "path": path, "value": value.into()})
}

/// Returns the patch for a pod that is being created.
pub fn at_creation(pod: &SizedPod, vpa: &str, changes: &[SizeChange], boosts: &Boosts) -> Vec<Value> {
    let mut operations = Vec::new();
    if !pod.has_annotations {
        operations.push(add("/metadata/annotations".to_owned(), json!({})));
    }
    operations.extend(resources(pod, changes));
    let texts: Vec<String> = changes.iter().map(|change| text(pod, change)).collect();
    let annotation = |name: &str, text: String| add(format!("/metadata/annotations/{name}"), text);
    if !texts.is_empty() {
        let text = format!("Pod resources updated by {vpa}: {}", texts.join("; "));
        operations.push(annotation(UPDATES, text));
    }
    let names: Vec<&str> = pod.containers.iter().map(|container| container.name.as_str()).collect();
    operations.push(annotation(OBSERVED, names.join(", ")));
    if !boosts.is_empty() {
        let text = serde_json::to_string(boosts).unwrap_or_default();
        operations.push(annotation(&boost::ANNOTATION.replace('/', "~1"), text));
    }
    operations
}

/// Returns the patch for a running pod, through `pods/resize`. It fails if the pod was replaced or its containers
/// changed.
pub fn in_place(pod: &SizedPod, changes: &[SizeChange]) -> Vec<Value> {
    let test = |path: String, value: &str| json!({"op": "test", "path": path, "value": value});
    let mut operations = vec![test("/metadata/uid".to_owned(), &pod.uid)];
    for change in changes {
        if let Some(container) = pod.containers.get(change.container) {
            operations.push(test(format!("{}/name", pod.path(change.container)), &container.name));
        }
    }
    operations.extend(resources(pod, changes));
    operations
}

/// Returns the operations that set the requests and limits.
fn resources(pod: &SizedPod, changes: &[SizeChange]) -> Vec<Value> {
    let mut operations = Vec::new();
    for change in changes {
        let Some(container) = pod.containers.get(change.container) else { continue };
        let folder = format!("{}/resources", pod.path(change.container));
        // The object may also hold claims, which an empty one would remove.
        if !container.has.resources {
            operations.push(add(folder.clone(), json!({})));
        }
        let both = [
            ("requests", change.requests, container.has.requests),
            ("limits", change.limits, container.has.limits),
        ];
        for (what, amounts, is_there) in both {
            let values = quantities(amounts);
            if !is_there && !values.is_empty() {
                operations.push(add(format!("{folder}/{what}"), json!({})));
            }
            for (resource, text) in values {
                operations.push(add(format!("{folder}/{what}/{resource}"), text));
            }
        }
    }
    operations
}

fn quantities(amounts: OptionalAmounts) -> Vec<(&'static str, String)> {
    let cpu = amounts.cpu.map(|milli| ("cpu", to_quantity(milli, true)));
    let memory = amounts.memory.map(|bytes| ("memory", to_quantity(bytes, false)));
    cpu.into_iter().chain(memory).collect()
}

/// Formats `container 0: cpu request, memory request`, after the adjustments of the recommendation. A sidecar is
/// `init-container 0`.
fn text(pod: &SizedPod, change: &SizeChange) -> String {
    let mut texts = change.notes.clone();
    for (amounts, what) in [(change.requests, "request"), (change.limits, "limit")] {
        texts.extend(quantities(amounts).into_iter().map(|(resource, _)| format!("{resource} {what}")));
    }
    let which = match pod.containers.get(change.container).and_then(|it| it.sidecar) {
        Some(index) => format!("init-container {index}"),
        None => format!("container {}", change.container),
    };
    format!("{which}: {}", texts.join(", "))
}
