//! Reviews of pods by the mutating webhook: every pod is allowed, and only its sizes and pod affinity may change.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use berth_config::Recommender;
use berth_kube_io::read_new_pod;
use berth_kube_io::scaling::LeanServiceScaler;
use berth_kube_io::vpa::read_vpa;
use berth_model::{LabelSelector, Operator, PerResource, Requirement};
use berth_rightsizing::apply::index::{SizingKind, SizingObject};
use berth_rightsizing::apply::{Range, Ranges, SizedContainer, SizingIndex};
use berth_scheduler::hints::{Hint, Hints, SelectedPods};
use berth_server::metrics::Histograms;
use berth_server::mutate::{Mutate, Placing};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;
use serde_json::{Map, Value};

/// Sizes for Deployments and StatefulSets of the namespaces `shop` and, with LimitRanges, `bank`.
const VPAS: [&str; 3] = [
    r#"{"metadata":{"name":"web","namespace":"shop"},"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}},
        "status":{"recommendation":{"containerRecommendations":[
            {"containerName":"app","target":{"cpu":"500m","memory":"300Mi"}},{"containerName":"proxy","target":{"cpu":"25m"}}]}}}"#,
    r#"{"metadata":{"name":"db","namespace":"shop"},"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"StatefulSet","name":"db"},
        "updatePolicy":{"updateMode":"Initial"},"resourcePolicy":{"containerPolicies":[
            {"containerName":"app","controlledValues":"RequestsOnly","maxAllowed":{"cpu":"2"}},
            {"containerName":"*","controlledResources":["memory"]}]}},
        "status":{"recommendation":{"containerRecommendations":[
            {"containerName":"app","target":{"cpu":"3","memory":"1Gi"}},{"containerName":"proxy","target":{"cpu":"1","memory":"64Mi"}}]}}}"#,
    r#"{"metadata":{"name":"web","namespace":"bank"},"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}},
        "status":{"recommendation":{"containerRecommendations":[
            {"containerName":"app","target":{"cpu":"1500m","memory":"700Mi"}},{"containerName":"proxy","target":{"cpu":"5m","memory":"1Mi"}}]}}}"#,
];

const SERVICE_SCALER: &str = r#"{"metadata":{"name":"cart","namespace":"shop"},
    "spec":{"target":{"apiVersion":"apps/v1","kind":"Deployment","name":"cart"}},
    "status":{"containers":[{"name":"app","target":{"cpu":"750m","memory":"104857600"}}]}}"#;

/// The namespace with LimitRanges.
const WITH_RANGES: &str = "bank";

/// What the webhook may set in `metadata.annotations`.
const ANNOTATIONS: [&str; 2] = ["vpaUpdates", "vpaObservedContainers"];

static WEBHOOK: LazyLock<Mutate> = LazyLock::new(|| {
    let mut index = SizingIndex::default();
    SizingKind::ALL.iter().for_each(|kind| index.retain(*kind, &BTreeSet::new()));
    for (at, json) in VPAS.iter().enumerate() {
        let vpa = Arc::new(read_vpa(json).expect("a VPA"));
        let name = (vpa.namespace.clone(), at.to_string().into());
        index.apply(SizingKind::Vpa, name, SizingObject::Vpa(vpa));
    }
    let scaler: LeanServiceScaler = serde_json::from_str(SERVICE_SCALER).expect("a ServiceScaler");
    let sizes = SizingObject::ServiceScaler(scaler.sizes().map(Arc::new));
    index.apply(SizingKind::ServiceScaler, ("shop".into(), "cart".into()), sizes);
    let both = |cpu, memory| PerResource { cpu: Some(cpu), memory: Some(memory) };
    let container = Range {
        min: both(10, 4 << 20),
        max: both(1_000, 512 << 20),
        default_limit: both(400, 256 << 20),
        ratio_milli: PerResource { cpu: Some(4_000), memory: None },
    };
    let pod = Range { max: both(1_800, 1 << 30), ..Range::default() };
    let ranges = SizingObject::LimitRange(Ranges { container, pod });
    index.apply(SizingKind::LimitRange, (WITH_RANGES.into(), "limits".into()), ranges);
    let workload = |app: &str| {
        let requirement = Requirement { key: "app".into(), operator: Operator::In([app.into()].into()) };
        SelectedPods { namespace: "shop".into(), selector: LabelSelector::All([requirement].into()) }
    };
    let hint = |other, weight| Hint { of: workload("web"), other: workload(other), weight };
    let hints = Arc::new(RwLock::new(Hints::new([hint("db", -80), hint("cart", 40)]).0));
    let placing = Placing { hints, own_schedulers: vec!["berth".into()] };
    let index = Arc::new(RwLock::new(index));
    Mutate::new(index, Histograms::default(), &Recommender::default(), Some(placing))
});

pub fn check(data: &[u8]) {
    let answer = match WEBHOOK.answer(data) {
        (_, Ok(answer)) => answer,
        (label, Err((status, why))) => {
            assert_eq!((label, status.as_u16()), ("bad_request", 400));
            return assert!(!why.is_empty());
        }
    };
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    let response = &answer["response"];
    assert_eq!(response["allowed"], true);
    // Parts that are skipped may be nested deeper than a `Value`; they are not changed either.
    let Ok(mut review) = serde_json::from_slice::<Value>(data) else { return };
    // The API server sends objects of their types: no list in place of an object.
    let request = &review["request"];
    if !request.is_object() || serde_json::from_value::<Pod>(request["object"].clone()).is_err() {
        return;
    }
    assert_eq!(response["uid"], request["uid"]);
    let Some(after) = patched(response, &review["request"]["object"]) else { return };
    let namespace = review["request"]["namespace"].as_str().unwrap_or_default().to_owned();
    let before = std::mem::replace(&mut review["request"]["object"], after.clone());
    only_sizes_and_hints_differ(&before, &after);
    stays_valid(&before, &after, &namespace);
    // The API server may call the webhook again, after other webhooks (`reinvocationPolicy`). Sizes that were cut to a LimitRange
    // may then be rounded again.
    if namespace == WITH_RANGES {
        return;
    }
    let (_, again) = WEBHOOK.answer(review.to_string().as_bytes());
    let again: Value = serde_json::from_slice(&again.expect("an answer")).expect("JSON");
    let again = patched(&again["response"], &after).unwrap_or_else(|| after.clone());
    assert_eq!(again, after, "a second review changes the pod again");
}

/// Returns the pod after the patch of the response; `None` without a patch.
fn patched(response: &Value, pod: &Value) -> Option<Value> {
    let encoded = response.get("patch")?;
    assert_eq!(response["patchType"], "JSONPatch");
    let ByteString(patch) = serde_json::from_value(encoded.clone()).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("operations of RFC 6902");
    let mut after = pod.clone();
    if let Err(error) = json_patch::patch(&mut after, &patch) {
        panic!("{error}: {} does not apply to {pod}", serde_json::json!(patch));
    }
    Some(after)
}

fn only_sizes_and_hints_differ(before: &Value, after: &Value) {
    let has_terms = |side: &str| {
        let lists = before.pointer(&format!("/spec/affinity/{side}")).and_then(Value::as_object);
        lists.is_some_and(|lists| lists.values().any(|it| it.as_array().is_some_and(|list| !list.is_empty())))
    };
    let may_place = !has_terms("podAffinity") && !has_terms("podAntiAffinity");
    assert_eq!(rest(before, may_place), rest(after, may_place), "the webhook may not change this");
}

/// Returns the pod without what the webhook may set.
fn rest(pod: &Value, without_affinity: bool) -> Value {
    let mut pod = pod.clone();
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        remove(metadata, "annotations", &ANNOTATIONS);
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return pod };
    if without_affinity {
        remove(spec, "affinity", &["podAffinity", "podAntiAffinity"]);
    }
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
            remove(resources, "requests", &["cpu", "memory"]);
            remove(resources, "limits", &["cpu", "memory"]);
        }
        remove(container, "resources", &[]);
    }
    pod
}

/// Removes fields of `parent[name]`, and then that object if it is empty or null.
fn remove(parent: &mut Map<String, Value>, name: &str, fields: &[&str]) {
    let Some(child) = parent.get_mut(name) else { return };
    let is_empty = match child {
        Value::Null => true,
        Value::Object(child) => {
            fields.iter().for_each(|field| drop(child.remove(*field)));
            child.is_empty()
        }
        _ => false,
    };
    if is_empty {
        parent.remove(name);
    }
}

/// Checks that no request is above its limit, unless it was before: the API server refuses such a pod.
fn stays_valid(before: &Value, after: &Value, namespace: &str) {
    let read = |pod: &Value| read_new_pod(&pod.to_string(), namespace).expect("the webhook has read it");
    let (before, after) = (read(before), read(after));
    assert_eq!(before.containers.len(), after.containers.len());
    for (before, after) in before.containers.iter().zip(&after.containers) {
        let is_valid = |it: &SizedContainer| {
            let pairs = it.wanted.requests.zip(it.wanted.limits);
            pairs.map(|(request, limit)| match (request, limit) {
                (Some(request), Some(limit)) => request <= limit,
                _ => true,
            })
        };
        let (was, is) = (is_valid(before), is_valid(after));
        assert!((is.cpu || !was.cpu) && (is.memory || !was.memory), "{before:?} became {after:?}");
    }
}
