//! Quota objects: conversion of the spec and rendering of the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::convert::label_selector;
use super::lean::{lean_meta, nullable};
use super::policies::lean;
use super::status_writer::{ObjectStatus, StatusWriter, conditions};
use super::{Interner, LeanObject, OptionalKind};
use berth_crds::quota::{self as api, QuotaAmount, QuotaSpec, QuotaSummary};
use berth_scheduler::objects::{ClusterObject, ObjectKind};
use berth_scheduler::policy::SelectedNamespaces;
use berth_scheduler::policy::StatusReason;
use berth_scheduler::quota::{Limit, Limits, Quota, QuotaReport, QuotaResource, QuotaUsage, Reclaim, Scope};

/// A quota to watch with `Api<LeanQuota>`: without its status, which only berth writes.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "api::Quota")]
pub struct LeanQuota {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: QuotaSpec,
}

impl OptionalKind for LeanQuota {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanObject for LeanQuota {
    const KIND: ObjectKind = ObjectKind::Quota;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        ClusterObject::Quota(Box::new(read(self, interner)))
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

fn read(object: LeanQuota, interner: &mut Interner) -> Quota {
    let (meta, spec) = (object.metadata, object.spec);
    let scope = scope(&spec, interner);
    let limits = scope.as_ref().map_err(Arc::clone).and_then(|_| limits(&spec));
    Quota {
        name: meta.name.unwrap_or_default().into(),
        uid: meta.uid.unwrap_or_default().into(),
        generation: meta.generation.unwrap_or_default(),
        created: meta.creation_timestamp.map_or(0, |time| time.0.as_second()),
        scope: scope.unwrap_or_default(),
        reclaim: match spec.reclaim {
            api::ReclaimPolicy::Any => Reclaim::Any,
            api::ReclaimPolicy::LowerPriority => Reclaim::LowerPriority,
            api::ReclaimPolicy::Never => Reclaim::Never,
        },
        limits,
    }
}

fn scope(spec: &QuotaSpec, interner: &mut Interner) -> Result<Scope, Arc<str>> {
    let namespaces = match (&spec.namespaces, &spec.namespace_selector) {
        (None, None) => SelectedNamespaces::All,
        (Some(names), None) => {
            let mut names: Vec<Arc<str>> = names.iter().map(|name| Arc::from(name.as_str())).collect();
            names.sort();
            names.dedup();
            SelectedNamespaces::Named(names.into())
        }
        (None, Some(selector)) => {
            let selector = label_selector(Some(&lean(selector)), interner)
                .map_err(|error| Arc::from(format!("spec.namespaceSelector: {error}")))?;
            SelectedNamespaces::Selected(selector)
        }
        (Some(_), Some(_)) => {
            return Err("spec has both namespaces and namespaceSelector: leave one of them out".into());
        }
    };
    Ok(Scope { queue: spec.queue.as_deref().map(Arc::from), namespaces })
}

/// Validates the limits again: the API server may have another version of the CRD.
fn limits(spec: &QuotaSpec) -> Result<Limits, Arc<str>> {
    let limit = |field: &str, amounts: &Option<BTreeMap<String, QuotaAmount>>| {
        let amount = |(name, amount): (&String, &QuotaAmount)| {
            let resource = QuotaResource::of(name);
            let read = resource.amount(&amount.to_string());
            let read = read.map_err(|error| Arc::from(format!("spec.{field}[{name}]: {error}")));
            read.map(|amount| (resource, amount))
        };
        amounts.iter().flatten().map(amount).collect::<Result<Limit, Arc<str>>>()
    };
    let guaranteed = limit("guaranteed", &spec.guaranteed)?;
    let maximum = limit("maximum", &spec.maximum)?;
    if guaranteed.is_empty() && maximum.is_empty() {
        return Err("spec has neither guaranteed nor maximum: set at least one of them".into());
    }
    let more =
        |(resource, amount): &(&QuotaResource, i64)| maximum.get(resource).is_some_and(|most| *amount > most);
    if let Some((resource, _)) = guaranteed.iter().find(more) {
        return Err(format!("spec.guaranteed[{}] is more than the maximum", resource.name()).into());
    }
    Ok(Limits { guaranteed, maximum })
}

/// Writes statuses of quotas. Cheap to clone.
pub type QuotaWriter = StatusWriter<QuotaReport>;

impl ObjectStatus for QuotaReport {
    type Object = api::Quota;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn patch(&self, current: &api::Quota, now: &str) -> Option<Value> {
        let before = current.status.clone().unwrap_or_default();
        let after = render(self, &before, now);
        (current.status.as_ref() != Some(&after)).then(|| patch_of(&before, &after))
    }
}

/// Returns a merge patch with nulls for the fields that are removed.
fn patch_of(before: &api::QuotaStatus, after: &api::QuotaStatus) -> Value {
    let mut patch = serde_json::to_value(after).unwrap_or_default();
    for (field, before) in [("used", &before.used), ("borrowed", &before.borrowed)] {
        for name in before.keys() {
            if patch[field].get(name).is_none() {
                patch[field][name] = json!(null);
            }
        }
    }
    patch
}

/// Renders the status that replaces `before`.
fn render(status: &QuotaReport, before: &api::QuotaStatus, now: &str) -> api::QuotaStatus {
    let contested = status.contested.as_deref();
    let shortfall = status.shortfall.as_ref().map(|shortfall| &*shortfall.0);
    let wait = format!("{} wait for room in the quota", status.waiting);
    let states = [
        ("InForce", status.reason == StatusReason::Applied, status.reason.name(), &*status.message),
        (
            "Contested",
            contested.is_some(),
            if contested.is_some() { "Overruled" } else { "Unique" },
            contested.unwrap_or("no other quota of equal specificity takes precedence"),
        ),
        (
            "AtMaximum",
            status.waiting > 0,
            if status.waiting > 0 { "PodsWait" } else { "Room" },
            if status.waiting > 0 { &*wait } else { "no pod waits for room in the quota" },
        ),
        (
            "Overcommitted",
            shortfall.is_some(),
            if shortfall.is_some() { "TooMuchGuaranteed" } else { "Enough" },
            shortfall.unwrap_or("the nodes can provide all guarantees"),
        ),
    ];
    let by_name = |amount: fn(&QuotaUsage) -> Option<i128>| {
        let shown = status.standing.iter().filter_map(|standing| {
            let resource = &standing.resource;
            Some((resource.name().to_owned(), resource.show(amount(standing)?)))
        });
        shown.collect::<Vec<_>>()
    };
    let used = by_name(|standing| Some(standing.used));
    let borrowed = by_name(|standing| Some(standing.borrowed).filter(|amount| *amount > 0));
    let summary = QuotaSummary {
        used: in_words(&used),
        guaranteed: in_words(&by_name(|standing| standing.guaranteed.map(i128::from))),
        maximum: in_words(&by_name(|standing| standing.maximum.map(i128::from))),
        borrowed: in_words(&borrowed),
    };
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    api::QuotaStatus {
        observed_generation: status.observed_generation,
        conditions: conditions(&states, &before.conditions, status.observed_generation, now),
        pods: count(status.pods),
        waiting: count(status.waiting as u64),
        reclaimed: count(status.reclaimed),
        used: used.into_iter().collect(),
        borrowed: borrowed.into_iter().collect(),
        summary,
    }
}

/// Formats amounts as "cpu 3, memory 2Gi"; "-" if there are none.
fn in_words(amounts: &[(String, String)]) -> String {
    let words: Vec<_> = amounts.iter().map(|(name, amount)| format!("{name} {amount}")).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(spec: &str) -> Quota {
        let json = format!(
            r#"{{"metadata":{{"name":"q","uid":"u","generation":2,"creationTimestamp":"2026-11-22T10:00:00Z"}},"spec":{spec}}}"#
        );
        read(serde_json::from_str(&json).unwrap(), &mut Interner::default())
    }

    fn problem(spec: &str) -> String {
        quota(spec).limits.unwrap_err().to_string()
    }

    #[test]
    fn a_quota_is_read_as_what_it_says() {
        let quota = quota(
            r#"{"namespaces":["b","a","b"],"queue":"nightly","reclaim":"LowerPriority",
                "guaranteed":{"cpu":2,"memory":"1Gi"},"maximum":{"cpu":"2500m","pods":10,"x/gpu":"3"}}"#,
        );
        assert_eq!((&*quota.name, quota.generation, quota.created), ("q", 2, 1_795_341_600));
        assert_eq!(quota.scope.queue.as_deref(), Some("nightly"));
        assert_eq!(quota.scope.namespaces, SelectedNamespaces::Named(["a".into(), "b".into()].into()));
        assert_eq!(quota.reclaim, Reclaim::LowerPriority);
        let limits = quota.limits.unwrap();
        let all = |limit: &Limit| -> Vec<_> { limit.iter().map(|(r, a)| (r.name().to_owned(), a)).collect() };
        assert_eq!(all(&limits.guaranteed), [("cpu".to_owned(), 2000), ("memory".to_owned(), 1 << 30)]);
        let maximum = [("cpu", 2500), ("pods", 10), ("x/gpu", 3)].map(|(name, it)| (name.to_owned(), it));
        assert_eq!(all(&limits.maximum), maximum);
    }

    #[test]
    fn what_the_server_should_have_refused_is_told_and_not_obeyed() {
        assert!(problem("{}").contains("neither"));
        assert!(problem(r#"{"guaranteed":{},"maximum":{}}"#).contains("neither"));
        assert!(problem(r#"{"maximum":{"cpu":"many"}}"#).starts_with("spec.maximum[cpu]: "));
        let more = r#"{"guaranteed":{"cpu":"2"},"maximum":{"cpu":"1999m"}}"#;
        assert_eq!(problem(more), "spec.guaranteed[cpu] is more than the maximum");
        let both = r#"{"namespaces":["a"],"namespaceSelector":{},"maximum":{"cpu":1}}"#;
        assert!(problem(both).contains("both"));
    }

    #[test]
    fn a_status_says_what_is_used_and_takes_out_what_is_not_named_any_more() {
        let standing = |resource: &str, used, borrowed, guaranteed, maximum| QuotaUsage {
            resource: QuotaResource::of(resource),
            used,
            borrowed,
            guaranteed,
            maximum,
        };
        let status = QuotaReport {
            name: "q".into(),
            uid: "u".into(),
            observed_generation: 2,
            reason: StatusReason::Applied,
            message: "holds for pods of namespace a".into(),
            contested: None,
            pods: 3,
            waiting: 1,
            reclaimed: 0,
            standing: vec![
                standing("cpu", 3000, 1000, Some(2000), None),
                standing("memory", 0, 0, None, Some(1 << 31)),
            ],
            shortfall: None,
        };
        let mut before = api::QuotaStatus::default();
        before.used.insert("pods".into(), "3".into());
        let after = render(&status, &before, "T1");
        let said = |summary: &QuotaSummary| {
            let QuotaSummary { used, guaranteed, maximum, borrowed } = summary.clone();
            [used, guaranteed, maximum, borrowed]
        };
        assert_eq!(said(&after.summary), ["cpu 3, memory 0", "cpu 2", "memory 2Gi", "cpu 1"]);
        assert_eq!(patch_of(&before, &after)["used"], json!({"cpu": "3", "memory": "0", "pods": null}));
        let again = render(&status, &after, "T2");
        assert_eq!(again, after);
        let waits = after.conditions.iter().find(|it| it.type_ == "AtMaximum").unwrap();
        assert_eq!((&*waits.status, &*waits.message), ("True", "1 wait for room in the quota"));
    }
}
