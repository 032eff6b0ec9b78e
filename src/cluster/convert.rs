//! Lean objects -> model values: everything the API allows is understood, defaulted or refused here, once.
//!
//! Nothing here panics or fails as a whole: what cannot be understood of a pod is its `SpecError`, of a node its
//! `problems`. Of several problems of one pod the first is told.

mod affinity;
mod interner;
mod names;
mod node;
mod placing;
mod requests;

pub use interner::Interner;

use std::collections::BTreeMap;

use super::lean::{LeanPod, LeanPodSpec, LeanPodTerms};
use crate::model::{Labels, Pod, PodSpec, PreemptionPolicy, ScheduledCondition, SpecError, Unsupported};

/// The first problem met in a pod.
#[derive(Default)]
struct Problems(Option<SpecError>);

impl Problems {
    /// Paths and texts are made only when they are wanted.
    fn note(&mut self, field: impl FnOnce() -> String, problem: impl FnOnce() -> String) {
        if self.0.is_none() {
            self.0 = Some(SpecError { field: field(), problem: problem() });
        }
    }
}

impl LeanPod {
    /// The pod as the rules see it. Texts, usages and specs that are alike are shared through `interner`.
    pub fn into_pod(self, interner: &mut Interner) -> Pod {
        let mut problems = Problems::default();
        let usage = requests::usage(&self, interner, &mut problems);
        let usage = interner.usage(usage);

        let spec = PodSpec {
            usage: usage.clone(),
            tolerations: placing::tolerations(&self.spec.tolerations, interner, &mut problems),
            node_selector: labels(&self.spec.node_selector, interner),
            node_affinity: affinity::node_affinity(
                &self.spec.affinity.node_affinity,
                interner,
                &mut problems,
            ),
            images: placing::images(&self.spec, interner),
            containers: (self.spec.containers.len() + self.spec.init_containers.len()) as u32,
            unsupported: unsupported(&self.spec),
        };
        let spec = match problems.0 {
            Some(error) => Err(error),
            None => Ok(interner.spec(spec)),
        };

        let (metadata, lean, status) = (self.metadata, self.spec, self.status);
        Pod {
            uid: metadata.uid.unwrap_or_default().into(),
            namespace: interner.text(&metadata.namespace.unwrap_or_default()),
            name: metadata.name.unwrap_or_default().into(),
            labels: labels(&metadata.labels.unwrap_or_default(), interner),
            // The API server defaults it.
            scheduler_name: interner.text(&lean.scheduler_name.unwrap_or_default()),
            node_name: lean.node_name.filter(|name| !name.is_empty()).map(|name| interner.text(&name)),
            priority: lean.priority.unwrap_or(0),
            preemption_policy: match lean.preemption_policy.as_deref() {
                Some("Never") => PreemptionPolicy::Never,
                _ => PreemptionPolicy::PreemptLowerPriority,
            },
            created_s: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            generation: metadata.generation.unwrap_or(0),
            deleting: metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            gates: lean.scheduling_gates.iter().map(|gate| interner.text(&gate.name)).collect(),
            scheduled: status.conditions.scheduled.map(|condition| ScheduledCondition {
                status: condition.status,
                reason: interner.text(&condition.reason),
                message: interner.text(&condition.message),
            }),
            usage,
            spec,
        }
    }
}

fn labels(labels: &BTreeMap<String, String>, interner: &mut Interner) -> Labels {
    labels.iter().map(|(key, value)| (interner.text(key), interner.text(value))).collect()
}

fn unsupported(spec: &LeanPodSpec) -> Box<[Unsupported]> {
    let affinity = &spec.affinity;
    let some = |terms: &LeanPodTerms| !(terms.required.is_empty() && terms.preferred.is_empty());
    // In the order of the enumeration, so sorted.
    [
        (some(&affinity.pod_affinity), Unsupported::PodAffinity),
        (some(&affinity.pod_anti_affinity), Unsupported::PodAntiAffinity),
        (!spec.topology_spread_constraints.is_empty(), Unsupported::TopologySpreadConstraints),
        (spec.volumes.iter().any(|volume| volume.constrains), Unsupported::Volumes),
        (!spec.resource_claims.is_empty(), Unsupported::ResourceClaims),
        (spec.scheduling_group.is_some() || spec.workload_ref.is_some(), Unsupported::SchedulingGroup),
    ]
    .into_iter()
    .filter_map(|(asked, what)| asked.then_some(what))
    .collect()
}

#[cfg(test)]
mod tests;
