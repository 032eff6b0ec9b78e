//! AllocationPolicy objects: conversion of the spec and rendering of the status.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::convert::label_selector;
use super::lean::{LeanLabelSelector, LeanRequirement, lean_meta, nullable};
use super::status_writer::{ObjectStatus, StatusWriter, conditions};
use super::{Interner, LeanObject, OptionalKind};
use berth_crds::policy::{
    AllocationPolicy, AllocationPolicySpec, AllocationPolicyStatus, Effective, EffectiveLimit,
    EffectivePreference, NamespaceSelector, SelectorOperator,
};
use berth_scheduler::dispatch::MOST_AGENTS;
use berth_scheduler::objects::{ClusterObject, ObjectKind};
use berth_scheduler::policy::{
    Governs, ObservedPolicy, PolicySettings, PolicyStatus, SelectedNamespaces, StatusReason,
};
use berth_scheduler::rules::{CellLimit, PlacementSettings, PreferenceOrder};

/// A policy to watch with `Api<LeanAllocationPolicy>`: without its status, which only berth writes.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = AllocationPolicy)]
pub struct LeanAllocationPolicy {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: AllocationPolicySpec,
}

impl OptionalKind for LeanAllocationPolicy {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanObject for LeanAllocationPolicy {
    const KIND: ObjectKind = ObjectKind::AllocationPolicy;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        ClusterObject::Policy(Box::new(read(self, interner)))
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

fn read(object: LeanAllocationPolicy, interner: &mut Interner) -> ObservedPolicy {
    let meta = object.metadata;
    let governs = governs(&object.spec, interner);
    let wishes = governs.as_ref().map_err(Arc::clone).and_then(|_| policy_settings(&object.spec));
    ObservedPolicy {
        name: meta.name.unwrap_or_default().into(),
        uid: meta.uid.unwrap_or_default().into(),
        generation: meta.generation.unwrap_or_default(),
        created: meta.creation_timestamp.map_or(0, |time| time.0.as_second()),
        governs: governs.unwrap_or_default(),
        settings: wishes,
    }
}

fn governs(spec: &AllocationPolicySpec, interner: &mut Interner) -> Result<Governs, Arc<str>> {
    let sorted = |names: &Option<Vec<String>>| {
        let mut names: Vec<Arc<str>> = names.iter().flatten().map(|name| Arc::from(name.as_str())).collect();
        names.sort();
        names.dedup();
        names.into_boxed_slice()
    };
    let namespaces = match (&spec.governs.namespaces, &spec.governs.namespace_selector) {
        (None, None) => SelectedNamespaces::All,
        (Some(_), None) => SelectedNamespaces::Named(sorted(&spec.governs.namespaces)),
        (None, Some(selector)) => {
            let selector = label_selector(Some(&lean(selector)), interner)
                .map_err(|error| Arc::from(format!("spec.governs.namespaceSelector: {error}")))?;
            SelectedNamespaces::Selected(selector)
        }
        (Some(_), Some(_)) => {
            return Err(
                "spec.governs has both namespaces and namespaceSelector: leave one of them out".into()
            );
        }
    };
    Ok(Governs { schedulers: sorted(&spec.governs.scheduler_names), namespaces })
}

pub(super) fn lean(selector: &NamespaceSelector) -> LeanLabelSelector {
    let operator = |operator| match operator {
        SelectorOperator::In => "In",
        SelectorOperator::NotIn => "NotIn",
        SelectorOperator::Exists => "Exists",
        SelectorOperator::DoesNotExist => "DoesNotExist",
    };
    let expressions = selector.match_expressions.iter().map(|requirement| LeanRequirement {
        key: requirement.key.clone(),
        operator: operator(requirement.operator).to_owned(),
        values: requirement.values.clone(),
    });
    LeanLabelSelector {
        match_labels: selector.match_labels.clone(),
        match_expressions: expressions.collect(),
    }
}

/// Validates the settings again: the API server may have another version of the CRD.
fn policy_settings(spec: &AllocationPolicySpec) -> Result<PolicySettings, Arc<str>> {
    let within = |what: &str, number: Option<i32>, most: i32| match number {
        Some(number) if !(1..=most).contains(&number) => {
            Err(Arc::from(format!("spec.{what} must be 1 to {most}, not {number}")))
        }
        number => Ok(number.map(|number| number.unsigned_abs())),
    };
    let order = spec.preferences.as_ref().map(|preferences| {
        let steps = |steps: i32| u32::try_from(steps).unwrap_or(0);
        PreferenceOrder::new(preferences.iter().map(|p| (p.name, p.steps.map(steps))))
            .map_err(|error| Arc::from(format!("spec.preferences: {error}")))
    });
    let limit = spec.utilisation_limit.clone().map(|limit| {
        let percent = |what, number| {
            within(what, number, 100).map(|percent| percent.and_then(|percent| u8::try_from(percent).ok()))
        };
        let cpu = percent("utilisationLimit.cpuPercent", limit.cpu_percent)?;
        let memory = percent("utilisationLimit.memoryPercent", limit.memory_percent)?;
        let topology_key = limit.topology_key.as_deref().map(Arc::from);
        Ok::<_, Arc<str>>(CellLimit { cpu, memory, topology_key })
    });
    let memory = within("cacheMemoryMiB", spec.cache_memory_mib, 65_536)?;
    Ok(PolicySettings {
        packing: spec.packing,
        candidate_width: within("candidateWidth", spec.candidate_width, 1000)?.map(|width| width as usize),
        order: order.transpose()?,
        limit: limit.transpose()?,
        cache_bytes: memory.map(|mib| (mib as usize) << 20),
        agents: within("agents", spec.agents, MOST_AGENTS as i32)?.map(|agents| agents as u8),
    })
}

/// Writes statuses of policies. Cheap to clone.
pub type PolicyWriter = StatusWriter<PolicyStatus>;

impl ObjectStatus for PolicyStatus {
    type Object = AllocationPolicy;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn patch(&self, current: &AllocationPolicy, now: &str) -> Option<Value> {
        let before = current.status.clone().unwrap_or_default();
        let after = render(self, &before, now);
        (current.status.as_ref() != Some(&after)).then(|| patch_of(&after))
    }
}

/// Returns a merge patch with nulls for the fields that are removed.
fn patch_of(status: &AllocationPolicyStatus) -> Value {
    let mut patch = serde_json::to_value(status).unwrap_or_default();
    if status.effective.is_none() {
        patch["effective"] = Value::Null;
    }
    patch
}

/// Renders the status that replaces `before`.
fn render(status: &PolicyStatus, before: &AllocationPolicyStatus, now: &str) -> AllocationPolicyStatus {
    let contradiction = status.contradiction.as_deref();
    let states = [
        ("InForce", status.reason == StatusReason::Applied, status.reason.name(), &*status.message),
        (
            "Contradicted",
            contradiction.is_some(),
            if contradiction.is_some() { "Overruled" } else { "Unique" },
            contradiction.unwrap_or("no other policy of equal specificity takes precedence"),
        ),
    ];
    let conditions = conditions(&states, &before.conditions, status.observed_generation, now);
    AllocationPolicyStatus {
        observed_generation: status.observed_generation,
        conditions,
        governs: status.governs.to_string(),
        effective: status.effective.as_deref().map(effective),
    }
}

fn effective(placement: &PlacementSettings) -> Effective {
    let preferences = placement.order.preferences().iter().map(|(name, steps)| EffectivePreference {
        name: *name,
        steps: (*steps > 0).then_some(i64::from(*steps)),
    });
    let percent = |percent: Option<u8>| percent.map(i64::from);
    Effective {
        packing: placement.packing,
        preferences: preferences.collect(),
        candidate_width: placement.candidate_width as i64,
        utilisation_limit: placement.limit.as_ref().map(|limit| EffectiveLimit {
            cpu_percent: percent(limit.cpu),
            memory_percent: percent(limit.memory),
            topology_key: limit.topology_key.as_deref().map(str::to_owned),
        }),
        cache_memory_mib: placement.cache_bytes.map(|bytes| (bytes >> 20) as i64),
        agents: placement.agents.map(|limit| i64::from(limit.most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Packing, Preference};

    fn policy(spec: &str) -> ObservedPolicy {
        let json = format!(
            r#"{{"apiVersion":"berth.dev/v1alpha1","kind":"AllocationPolicy","metadata":{{"name":"p","uid":"u",
                "generation":3,"creationTimestamp":"2026-11-22T10:00:00Z"}},"spec":{spec}}}"#
        );
        let object: LeanAllocationPolicy = serde_json::from_str(&json).expect(&json);
        let ClusterObject::Policy(policy) = object.into_object(&mut Interner::default()) else {
            panic!("{json}")
        };
        *policy
    }

    fn problem(spec: &str) -> String {
        policy(spec).settings.unwrap_err().to_string()
    }

    #[test]
    fn a_policy_is_read_as_what_it_says() {
        let policy = policy(
            r#"{"governs":{"schedulerNames":["b","a","b"],"namespaces":["y","x"]},"packing":"MostAllocated",
                "preferences":[{"name":"NodeResourcesFit","steps":8},{"name":"PodTopologySpread"}],
                "candidateWidth":5,"utilisationLimit":{"cpuPercent":80},"cacheMemoryMiB":2,"agents":3}"#,
        );
        assert_eq!((policy.generation, policy.created), (3, 1_795_341_600));
        let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Box<[Arc<str>]>>();
        assert_eq!(policy.governs.schedulers, names(&["a", "b"]));
        assert_eq!(policy.governs.namespaces, SelectedNamespaces::Named(names(&["x", "y"])));
        let wishes = policy.settings.unwrap();
        assert_eq!(wishes.packing, Some(Packing::MostAllocated));
        assert_eq!((wishes.candidate_width, wishes.cache_bytes), (Some(5), Some(2 << 20)));
        assert_eq!(wishes.agents, Some(3));
        assert_eq!(wishes.limit, Some(CellLimit { cpu: Some(80), ..CellLimit::default() }));
        let order = wishes.order.unwrap();
        let expected = [(Preference::NodeResourcesFit, 8), (Preference::PodTopologySpread, 0)];
        assert_eq!(order.preferences(), expected);
    }

    #[test]
    fn what_says_nothing_changes_nothing() {
        for spec in ["{}", r#"{"governs":{}}"#] {
            let policy = policy(spec);
            assert_eq!(policy.governs, Governs::default());
            assert_eq!(policy.settings, Ok(PolicySettings::default()));
        }
    }

    #[test]
    fn what_the_server_should_have_refused_is_told_and_not_obeyed() {
        assert_eq!(problem(r#"{"candidateWidth":0}"#), "spec.candidateWidth must be 1 to 1000, not 0");
        assert_eq!(
            problem(r#"{"utilisationLimit":{"memoryPercent":-7}}"#),
            "spec.utilisationLimit.memoryPercent must be 1 to 100, not -7"
        );
        let twice = r#"{"preferences":[{"name":"ImageLocality"},{"name":"ImageLocality"}]}"#;
        assert_eq!(problem(twice), "spec.preferences: ImageLocality is listed twice");
        assert!(problem(r#"{"governs":{"namespaces":["a"],"namespaceSelector":{}}}"#).contains("both"));
        let bad = r#"{"governs":{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}"#;
        assert!(problem(bad).starts_with("spec.governs.namespaceSelector: "), "{}", problem(bad));
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_is_the_same() {
        let status = PolicyStatus {
            name: "p".into(),
            uid: "u".into(),
            observed_generation: 1,
            reason: StatusReason::Applied,
            message: "the policy is in force".into(),
            contradiction: None,
            governs: "all pods".into(),
            effective: Some(Arc::default()),
        };
        let first = render(&status, &AllocationPolicyStatus::default(), "T1");
        let again = render(&status, &first, "T2");
        assert_eq!(first, again);
        let worse = PolicyStatus { reason: StatusReason::Invalid, effective: None, ..status };
        let third = render(&worse, &again, "T3");
        let times: Vec<_> = third.conditions.iter().map(|c| &*c.last_transition_time).collect();
        assert_eq!(times, ["T3", "T1"]);
        assert_eq!(patch_of(&third)["effective"], Value::Null);
        let read: AllocationPolicyStatus = serde_json::from_value(patch_of(&first)).unwrap();
        assert_eq!(read, first);
    }
}
