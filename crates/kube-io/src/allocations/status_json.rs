//! JSON of allocation statuses, and the patch from the current to the new status. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::PodGroupVersion;
use crate::client::{MERGE_PATCH, STRATEGIC_MERGE_PATCH};
use crate::report_json::head;
use berth_crds::{self as api, Condition};
use berth_scheduler::gang::{AllocationKind, GangStatus, Phase};

/// Limit of a message in `metav1.Condition`.
const MESSAGE_BYTES_MAX: usize = 32_768;

/// Fields of an allocation's object that a status is compared with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Current {
    pub metadata: Meta,
    pub status: Option<Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub uid: String,
    pub resource_version: String,
}

/// A patch to send.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub content_type: &'static str,
    pub patch: Value,
    /// The phase of an `Allocation` changed.
    pub is_new_phase: bool,
}

/// Returns the path of the object, without the subresource.
pub(super) fn path(status: &GangStatus, version: PodGroupVersion) -> String {
    let (namespace, name) = (&status.name.namespace, &status.name.name);
    let (folder, plural) = match status.name.kind {
        AllocationKind::Allocation => ("berth.dev/v1alpha1".to_owned(), "allocations"),
        AllocationKind::PodGroup => (format!("scheduling.k8s.io/{}", version.name()), "podgroups"),
        AllocationKind::Coscheduling => ("scheduling.x-k8s.io/v1alpha1".to_owned(), "podgroups"),
    };
    format!("/apis/{folder}/namespaces/{namespace}/{plural}/{name}")
}

/// Returns the patch of the object; `None` if nothing differs.
pub(super) fn change(
    status: &GangStatus,
    version: PodGroupVersion,
    current: &Current,
    now: Timestamp,
) -> Option<Change> {
    let known = current.status.clone().unwrap_or_default();
    match status.name.kind {
        AllocationKind::Allocation => of_allocation(status, current, &known, now),
        AllocationKind::PodGroup => of_pod_group(status, version, current, &known, now),
        AllocationKind::Coscheduling => of_coscheduling(status, current, &known),
    }
}

/// Adds the preconditions that the object is unchanged since it was read.
fn patch(current: &Current, status: Value) -> Value {
    let Meta { uid, resource_version } = &current.metadata;
    json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": status})
}

fn of_allocation(
    status: &GangStatus,
    current: &Current,
    known: &Map<String, Value>,
    now: Timestamp,
) -> Option<Change> {
    let wanted = serde_json::to_value(api_status(status, known, now)).unwrap_or_default();
    let Value::Object(mut wanted) = wanted else { return None };
    if wanted == *known {
        return None;
    }
    let is_new_phase = known.get("phase") != wanted.get("phase");
    // A merge patch keeps fields that it does not name.
    for gone in known.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect::<Vec<_>>() {
        wanted.insert(gone, Value::Null);
    }
    Some(Change { content_type: MERGE_PATCH, patch: patch(current, wanted.into()), is_new_phase })
}

/// Returns the status of an `Allocation`. `known` has the transition times of its conditions.
fn api_status(status: &GangStatus, known: &Map<String, Value>, now: Timestamp) -> api::AllocationStatus {
    let sum = |of: fn(&berth_scheduler::gang::GangRoleStatus) -> u32| {
        status.roles.iter().map(|role| i64::from(of(role))).sum()
    };
    let role = |role: &berth_scheduler::gang::GangRoleStatus| api::RoleStatus {
        name: role.name.to_string(),
        minimum: role.minimum.into(),
        members: role.members.into(),
        bound: role.bound.into(),
    };
    let placement = |(domain, bound): &(Arc<str>, u32)| api::DomainPods {
        domain: domain.to_string(),
        bound: (*bound).into(),
    };
    let condition = |kind: &str, holds: bool, message: &str| {
        let condition = Condition {
            kind: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            observed_generation: status.observed_generation,
            last_transition_time: String::new(),
            reason: reason(kind, holds, status.phase).to_owned(),
            message: head(message, MESSAGE_BYTES_MAX).to_owned(),
        };
        since(condition, known, now)
    };
    let is_accepted = !matches!(status.phase, Phase::Invalid | Phase::LimitReached);
    let of_spec = if is_accepted { "" } else { &*status.message };
    api::AllocationStatus {
        phase: status.phase.name().to_owned(),
        observed_generation: status.observed_generation,
        minimum: sum(|role| role.minimum),
        members: sum(|role| role.members),
        bound: sum(|role| role.bound),
        claimed_by_others: status.claimed_by_others.into(),
        roles: status.roles.iter().map(role).collect(),
        placement: status.placement.iter().map(placement).collect(),
        message: head(&status.message, MESSAGE_BYTES_MAX).to_owned(),
        help: head(status.help.as_deref().unwrap_or_default(), MESSAGE_BYTES_MAX).to_owned(),
        conditions: vec![
            condition("Accepted", is_accepted, of_spec),
            condition("Scheduled", status.phase == Phase::Scheduled, &status.message),
        ],
    }
}

fn reason(kind: &str, holds: bool, phase: Phase) -> &'static str {
    match (kind, holds) {
        ("Accepted", true) => "Accepted",
        _ => phase.name(),
    }
}

/// Keeps the transition time of the existing condition, if its status is the same.
fn since(mut condition: Condition, known: &Map<String, Value>, now: Timestamp) -> Condition {
    let before = find(known, &condition.kind).filter(|before| before["status"] == *condition.status);
    let time = before.and_then(|before| before["lastTransitionTime"].as_str());
    condition.last_transition_time = time.map_or_else(|| seconds(now), str::to_owned);
    condition
}

fn find<'a>(status: &'a Map<String, Value>, kind: &str) -> Option<&'a Value> {
    status.get("conditions")?.as_array()?.iter().find(|it| it["type"] == *kind)
}

fn seconds(time: Timestamp) -> String {
    match serde_json::to_value(Time(time)) {
        Ok(Value::String(text)) => text,
        _ => time.to_string(),
    }
}

/// Returns one condition, as kube-scheduler writes it: none before the first decision, and never back from "scheduled".
fn of_pod_group(
    status: &GangStatus,
    version: PodGroupVersion,
    current: &Current,
    known: &Map<String, Value>,
    now: Timestamp,
) -> Option<Change> {
    let (holds, reason) = match status.phase {
        Phase::Pending | Phase::Scheduling => return None,
        Phase::Scheduled => ("True", "Scheduled"),
        Phase::Unschedulable | Phase::TimedOut => ("False", "Unschedulable"),
        Phase::Invalid | Phase::LimitReached => ("False", "SchedulerError"),
    };
    let kind = version.condition();
    let before = find(known, kind);
    if holds == "False" && before.is_some_and(|before| before["status"] == "True") {
        return None;
    }
    let condition = Condition {
        kind: kind.to_owned(),
        status: holds.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: String::new(),
        reason: reason.to_owned(),
        message: head(&status.message, MESSAGE_BYTES_MAX).to_owned(),
    };
    let condition = json!(since(condition, known, now));
    let same = |key: &str, empty: Value| {
        let before = before.and_then(|before| before.get(key)).unwrap_or(&empty);
        *before == condition[key]
    };
    let is_known = ["type", "status", "reason"].into_iter().all(|key| same(key, Value::Null))
        && same("message", json!(""))
        && same("observedGeneration", json!(0));
    if is_known {
        return None;
    }
    let patch = patch(current, json!({"conditions": [condition]}));
    Some(Change { content_type: STRATEGIC_MERGE_PATCH, patch, is_new_phase: false })
}

/// Returns the phase, up to running pods: from then on the group's own controller maintains phase and counts.
fn of_coscheduling(status: &GangStatus, current: &Current, known: &Map<String, Value>) -> Option<Change> {
    let before = known.get("phase").and_then(Value::as_str).unwrap_or_default();
    let bound: u32 = status.roles.iter().fold(0, |sum, role| sum.saturating_add(role.bound));
    let (phase, over) = match status.phase {
        Phase::Pending | Phase::Invalid | Phase::LimitReached => ("Pending", &[""][..]),
        Phase::Scheduling | Phase::Unschedulable | Phase::TimedOut => {
            ("Scheduling", &["", "Pending", "PreScheduling"][..])
        }
        Phase::Scheduled => ("Scheduled", &["", "Pending", "PreScheduling", "Scheduling"][..]),
    };
    if !over.contains(&before) {
        return None;
    }
    let patch = patch(current, json!({"phase": phase, "scheduled": bound}));
    Some(Change { content_type: MERGE_PATCH, patch, is_new_phase: false })
}
