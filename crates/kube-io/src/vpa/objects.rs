//! VerticalPodAutoscalers: their JSON, and the patch of their status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::lean::nullable;
use berth_model::{PerResource, Quantity};
use berth_rightsizing::recommend::amount::to_quantity;
use berth_rightsizing::recommend::create::{self, CreationCandidate};
use berth_rightsizing::recommend::method::Method;
use berth_rightsizing::recommend::post::{AllowedRange, OptionalAmounts, Recommendation};
use berth_rightsizing::recommend::{
    self, ContainerPolicy, CpuBoost, EvictionRequirement, OwnerRef, StartupBoost, Status, Vpa, VpaCondition,
    time,
};

/// The label that names the creator of an object, and its value on berth's objects.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const OURS: &str = "berth";
/// Annotation with the usage of resources other than CPU and memory, see [`berth_rightsizing::recommend::dimension::report`].
pub const USAGE: &str = "berth.dev/usage";
/// Annotation with the last eviction of one of its pods: [`berth_rightsizing::recommend::LastEviction`] as JSON.
pub const LAST_EVICTION: &str = "berth.dev/last-eviction";
/// Annotation that selects the estimator, see [`berth_rightsizing::recommend::method`].
const ESTIMATOR: &str = "berth.dev/estimator";

/// Amounts by resource, as in JSON.
pub(crate) type Quantities = BTreeMap<String, Value>;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireVpa {
    metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    #[serde(deserialize_with = "nullable")]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
    generation: Option<i64>,
    resource_version: String,
    creation_timestamp: Option<String>,
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    target_ref: TargetRef,
    #[serde(deserialize_with = "nullable")]
    update_policy: UpdatePolicy,
    #[serde(deserialize_with = "nullable")]
    resource_policy: ResourcePolicy,
    #[serde(deserialize_with = "nullable")]
    recommenders: Vec<Named>,
    #[serde(deserialize_with = "nullable")]
    startup_boost: WireBoost,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireBoost {
    #[serde(deserialize_with = "nullable")]
    cpu: WireCpuBoost,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireCpuBoost {
    #[serde(rename = "type")]
    kind: String,
    factor: Option<i64>,
    quantity: Value,
    duration_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TargetRef {
    #[serde(deserialize_with = "nullable")]
    api_version: String,
    kind: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct UpdatePolicy {
    update_mode: Option<String>,
    min_replicas: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    eviction_requirements: Vec<WireRequirement>,
    #[serde(rename = "evictAfterOOMSeconds")]
    evict_after_oom_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRequirement {
    #[serde(deserialize_with = "nullable")]
    resources: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    change_requirement: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourcePolicy {
    #[serde(deserialize_with = "nullable")]
    container_policies: Vec<WirePolicy>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WirePolicy {
    container_name: String,
    mode: Option<String>,
    #[serde(deserialize_with = "nullable")]
    min_allowed: Quantities,
    #[serde(deserialize_with = "nullable")]
    max_allowed: Quantities,
    controlled_resources: Option<Vec<String>>,
    controlled_values: Option<String>,
    oom_bump_up_ratio: Value,
    oom_min_bump_up: Value,
    memory_aggregation_interval_seconds: Option<i64>,
    memory_aggregation_interval_count: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    startup_boost: WireBoost,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireStatus {
    observed_generation: Option<i64>,
    recommendation: Option<WireRecommendation>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<WireCondition>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRecommendation {
    #[serde(deserialize_with = "nullable")]
    container_recommendations: Vec<WireContainer>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireContainer {
    container_name: String,
    #[serde(deserialize_with = "nullable")]
    target: Quantities,
    #[serde(deserialize_with = "nullable")]
    lower_bound: Quantities,
    #[serde(deserialize_with = "nullable")]
    upper_bound: Quantities,
    #[serde(deserialize_with = "nullable")]
    uncapped_target: Quantities,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_time: Option<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
}

/// Parses a VPA. Invalid quantities count as unset.
///
/// # Errors
/// When it is not a VPA.
pub fn read_vpa(json: &str) -> Result<Vpa, String> {
    let WireVpa { mut metadata, spec, status } =
        serde_json::from_str(json).map_err(|error| error.to_string())?;
    let named = |name: &str| format!("it has no {name}");
    if metadata.name.is_empty() || metadata.namespace.is_empty() {
        return Err(named("name or namespace"));
    }
    let TargetRef { api_version, kind, name } = spec.target_ref;
    let has_target = !kind.is_empty() && !name.is_empty();
    let integer = |(key, value): (&String, &String)| {
        let rest = key.strip_prefix("vpa-post-processor.kubernetes.io/")?;
        rest.strip_suffix("_integerCPU").filter(|_| value == "true").map(str::to_owned)
    };
    Ok(Vpa {
        created: metadata.creation_timestamp.and_then(|text| time::from_text(&text).ok()).unwrap_or(0),
        usage: metadata.annotations.remove(USAGE).map(String::into_boxed_str),
        last_eviction: metadata
            .annotations
            .get(LAST_EVICTION)
            .and_then(|text| serde_json::from_str(text).ok()),
        estimator: metadata.annotations.get(ESTIMATOR).and_then(|text| Method::parse(text).transpose()),
        integer_cpu: metadata.annotations.iter().filter_map(integer).collect(),
        is_managed: metadata.labels.get(MANAGED_BY).is_some_and(|by| by == OURS),
        resource_version: metadata.resource_version,
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
        uid: metadata.uid,
        generation: metadata.generation,
        target: has_target.then_some(OwnerRef { api_version, kind, name }),
        recommenders: spec.recommenders.into_iter().map(|named| named.name).collect(),
        update: recommend::UpdatePolicy {
            min_replicas: spec.update_policy.min_replicas,
            requirements: spec.update_policy.eviction_requirements.into_iter().map(requirement).collect(),
            evict_after_oom_s: spec.update_policy.evict_after_oom_seconds,
        },
        update_mode: spec.update_policy.update_mode.unwrap_or_else(|| "Recreate".to_owned()),
        startup_boost: startup_boost(&spec.startup_boost),
        policies: spec.resource_policy.container_policies.into_iter().map(policy).collect(),
        status: Status {
            recommendation: status.recommendation.map(|wire| {
                wire.container_recommendations.into_iter().map(recommendation).collect::<Vec<_>>()
            }),
            conditions: status.conditions.into_iter().map(condition).collect(),
            observed_generation: status.observed_generation,
        },
    })
}

fn named_resources(list: &[String]) -> PerResource<bool> {
    let has = |name: &str| list.iter().any(|resource| resource == name);
    PerResource { cpu: has("cpu"), memory: has("memory") }
}

fn requirement(wire: WireRequirement) -> EvictionRequirement {
    EvictionRequirement { resources: named_resources(&wire.resources), change: wire.change_requirement }
}

fn policy(wire: WirePolicy) -> ContainerPolicy {
    let controlled = wire.controlled_resources.map(|list| named_resources(&list));
    ContainerPolicy {
        container: wire.container_name,
        off: wire.mode.as_deref() == Some("Off"),
        requests_only: wire.controlled_values.as_deref() == Some("RequestsOnly"),
        allowed: AllowedRange { min: amounts(&wire.min_allowed), max: amounts(&wire.max_allowed) },
        controlled,
        oom_bump_ratio: quantity(&wire.oom_bump_up_ratio).map(|ratio| ratio.nano() as f64 / 1e9),
        oom_min_bump: quantity(&wire.oom_min_bump_up).map(Quantity::value),
        interval_s: wire.memory_aggregation_interval_seconds,
        interval_count: wire.memory_aggregation_interval_count,
        startup_boost: startup_boost(&wire.startup_boost),
    }
}

/// Returns the boost; an invalid one counts as unset.
fn startup_boost(wire: &WireBoost) -> Option<StartupBoost> {
    let WireCpuBoost { kind, factor, quantity: added, duration_seconds } = &wire.cpu;
    let cpu = match kind.as_str() {
        "Factor" => CpuBoost::Factor(factor.filter(|factor| *factor >= 1)?),
        "Quantity" => CpuBoost::Added(quantity(added).map(Quantity::milli_value).filter(|more| *more >= 0)?),
        _ => return None,
    };
    Some(StartupBoost { cpu, seconds: duration_seconds.unwrap_or(0).max(0) })
}

/// Parses a quantity, which may be a JSON number.
pub(crate) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

pub(crate) fn amounts(quantities: &Quantities) -> OptionalAmounts {
    PerResource {
        cpu: quantities.get("cpu").and_then(quantity).map(Quantity::milli_value),
        memory: quantities.get("memory").and_then(quantity).map(Quantity::value),
    }
}

fn quantities(amounts: OptionalAmounts) -> Quantities {
    let cpu = amounts.cpu.map(|milli| ("cpu", to_quantity(milli, true)));
    let memory = amounts.memory.map(|bytes| ("memory", to_quantity(bytes, false)));
    cpu.into_iter().chain(memory).map(|(name, text)| (name.to_owned(), text.into())).collect()
}

fn recommendation(wire: WireContainer) -> Recommendation {
    Recommendation {
        container: wire.container_name,
        target: amounts(&wire.target),
        lower: amounts(&wire.lower_bound),
        upper: amounts(&wire.upper_bound),
        uncapped: amounts(&wire.uncapped_target),
    }
}

fn condition(wire: WireCondition) -> VpaCondition {
    VpaCondition {
        kind: wire.kind,
        status: wire.status,
        reason: wire.reason,
        message: wire.message,
        since: wire.last_transition_time,
        observed_generation: wire.observed_generation,
    }
}

/// Returns a merge patch that writes only this status into the VPA with this uid.
pub fn status_patch(uid: &str, status: &Status) -> Value {
    let recommendation = status.recommendation.as_ref().map(|containers| WireRecommendation {
        container_recommendations: containers
            .iter()
            .map(|it| WireContainer {
                container_name: it.container.clone(),
                target: quantities(it.target),
                lower_bound: quantities(it.lower),
                upper_bound: quantities(it.upper),
                uncapped_target: quantities(it.uncapped),
            })
            .collect(),
    });
    let conditions: Vec<WireCondition> = status
        .conditions
        .iter()
        .map(|it| WireCondition {
            kind: it.kind.clone(),
            status: it.status.clone(),
            last_transition_time: it.since.clone(),
            reason: it.reason.clone(),
            message: it.message.clone(),
            observed_generation: it.observed_generation,
        })
        .collect();
    json!({
        "metadata": {"uid": uid},
        "status": {
            "recommendation": recommendation, "conditions": conditions, "observedGeneration": status.observed_generation,
        },
    })
}

/// Returns a VPA for a workload that has none. An owner reference deletes it with the workload.
pub(super) fn made(candidate: &CreationCandidate, recommender: &str) -> Value {
    let CreationCandidate { namespace, owner, uid, .. } = candidate;
    let OwnerRef { api_version, kind, name } = owner;
    json!({
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {
            "name": create::name(owner),
            "namespace": namespace,
            "labels": {MANAGED_BY: OURS},
            "ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}],
        },
        "spec": {
            "targetRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "updatePolicy": {"updateMode": "Off"},
            "recommenders": [{"name": recommender}],
        },
    })
}

/// Returns a merge patch that writes this annotation of the VPA with this uid.
pub(super) fn annotation_patch(uid: &str, key: &str, text: &str) -> Value {
    json!({"metadata": {"uid": uid, "annotations": {key: text}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vpa_is_read_with_its_policies_and_status() {
        let text = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "1970-01-01T00:00:01Z",
                "annotations": {"vpa-post-processor.kubernetes.io/app_integerCPU": "true", "other": "x", USAGE: "y",
                                LAST_EVICTION: r#"{"at":"1970-01-01T00:00:09Z","newestPod":"1970-01-01T00:00:03Z"}"#,
                                "berth.dev/estimator": "showar"},
            },
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": "Off", "minReplicas": 3},
                "recommenders": [{"name": "berth"}],
                "resourcePolicy": {"containerPolicies": [
                    {"containerName": "app", "minAllowed": {"cpu": "100m"}, "maxAllowed": {"memory": "1Gi"},
                     "controlledResources": ["memory"], "oomBumpUpRatio": "1.5", "oomMinBumpUp": "10Mi"},
                    {"containerName": "*", "mode": "Off"},
                ]},
            },
            "status": {
                "recommendation": {"containerRecommendations": [
                    {"containerName": "app", "target": {"cpu": "25m", "memory": "262144k"}}]},
                "conditions": [{"type": "Foreign", "status": "True"}],
            },
        });
        let vpa = read_vpa(&text.to_string()).unwrap();
        assert_eq!((vpa.created, &*vpa.namespace, &*vpa.update_mode), (1_000_000_000, "shop", "Off"));
        assert_eq!((&*vpa.integer_cpu, &vpa.estimator), (&["app".to_owned()][..], &Some(Ok(Method::Showar))));
        assert_eq!(vpa.usage.as_deref(), Some("y"));
        let last = recommend::LastEviction { at: 9_000_000_000, newest_pod: 3_000_000_000 };
        assert_eq!(vpa.last_eviction, Some(last));
        assert_eq!(vpa.controlled("app"), Some(PerResource { cpu: false, memory: true }));
        assert_eq!(vpa.controlled("sidecar"), None);
        let app = vpa.policy("app").unwrap();
        assert_eq!((app.allowed.min.cpu, app.allowed.max.memory), (Some(100), Some(1 << 30)));
        assert_eq!((app.oom_bump_ratio, app.oom_min_bump), (Some(1.5), Some(10 << 20)));
        let status = vpa.status.recommendation.as_deref().unwrap();
        assert_eq!(status[0].target, PerResource { cpu: Some(25), memory: Some(262_144_000) });
    }

    #[test]
    fn a_status_that_was_written_is_read_as_the_same() {
        let amounts = PerResource { cpu: Some(1500), memory: None };
        let status = Status {
            recommendation: Some(vec![Recommendation {
                container: "app".into(),
                target: amounts,
                lower: amounts,
                upper: PerResource { cpu: Some(100_000_000_000_000), memory: Some(262_144_000) },
                uncapped: amounts,
            }]),
            conditions: vec![VpaCondition {
                kind: "RecommendationProvided".into(),
                status: "True".into(),
                since: Some("2026-01-01T00:00:00Z".into()),
                ..VpaCondition::default()
            }],
            observed_generation: Some(3),
        };
        let mut object = status_patch("u", &status);
        object["metadata"]["name"] = "web".into();
        object["metadata"]["namespace"] = "shop".into();
        assert_eq!(read_vpa(&object.to_string()).unwrap().status, status);
        let nothing = status_patch("u", &Status::default());
        assert_eq!(nothing["status"]["recommendation"], Value::Null, "null takes it away");
    }

    #[test]
    fn a_vpa_that_was_made_is_known_as_ours_when_it_is_read() {
        let owner = OwnerRef { api_version: "apps/v1".into(), kind: "Deployment".into(), name: "web".into() };
        let candidate =
            CreationCandidate { namespace: "shop".into(), owner, uid: "of-web".into(), is_excluded: false };
        let object = made(&candidate, "berth");
        let vpa = read_vpa(&object.to_string()).unwrap();
        assert!(create::is_made(&vpa, "berth"), "{vpa:?}");
        assert_eq!(vpa.target, Some(candidate.owner));
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("of-web"), &Value::Null));
    }

    #[test]
    fn a_vpa_is_read_with_what_it_says_of_updates() {
        let text = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "updatePolicy": {
                    "updateMode": "InPlaceOrRecreate", "minReplicas": 1, "evictAfterOOMSeconds": 60,
                    "evictionRequirements": [
                        {"resources": ["memory"], "changeRequirement": "TargetHigherThanRequests"}, {},
                    ],
                },
                "resourcePolicy": {"containerPolicies": [
                    {"containerName": "app", "controlledValues": "RequestsOnly"}]},
            },
        });
        let vpa = read_vpa(&text.to_string()).unwrap();
        assert_eq!((vpa.update.min_replicas, vpa.update.evict_after_oom_s), (Some(1), Some(60)));
        let [first, empty] = &vpa.update.requirements[..] else { panic!("{:?}", vpa.update) };
        assert_eq!(first.resources, PerResource { cpu: false, memory: true });
        assert_eq!(first.change, "TargetHigherThanRequests");
        assert_eq!(*empty, EvictionRequirement::default());
        assert!(vpa.policies[0].requests_only);
    }

    #[test]
    fn a_vpa_without_anything_is_read_and_one_without_a_name_is_not() {
        let vpa = read_vpa(r#"{"metadata":{"name":"a","namespace":"b"},"spec":null,"status":null}"#).unwrap();
        assert_eq!((vpa.target, vpa.update_mode.as_str()), (None, "Recreate"));
        for bad in ["{}", r#"{"metadata":7}"#, "[]", r#"{"metadata":{"name":"a","namespace":"b"},"spec":7}"#]
        {
            assert!(read_vpa(bad).is_err(), "{bad}");
        }
    }
}
