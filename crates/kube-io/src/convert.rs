//! Conversion of lean objects to model values: every API field is parsed, defaulted or refused here, once.
//!
//! No input panics or fails the conversion as a whole: an invalid field of a pod becomes its `SpecError`, of a node one of
//! its `problems`. Only the first problem of a pod is reported.

mod affinity;
mod devices;
mod extended;
mod interner;
mod node;
mod placing;
mod pod_terms;
mod requests;
mod sized;
mod volumes;

pub use interner::Interner;
pub use sized::read_new_pod;

pub(super) use affinity::{label_requirement, node_terms};
pub(super) use pod_terms::selector_or_nothing;
pub(super) use volumes::csi_volume;

use std::sync::Arc;

use super::lean::{LeanLabelSelector, LeanPod, LeanPodSpec, LeanVolumeSource, SAFE_TO_EVICT};
use berth_model::{
    Identity, LabelSelector, Labels, Peer, Pinned, Pod, PodOwner, PodSpec, PreemptionPolicy,
    ScheduledCondition, SpecError, Unsupported,
};

/// The first problem found in an object.
#[derive(Default)]
pub(super) struct Problems(Option<SpecError>);

impl Problems {
    /// Returns the problem with its path, for the author of the object.
    pub(super) fn text(&self) -> Option<Arc<str>> {
        self.0.as_ref().map(|error| error.to_string().into())
    }

    /// Records the first problem. Path and text are only built if needed.
    pub(super) fn note(&mut self, field: impl FnOnce() -> String, problem: impl FnOnce() -> String) {
        if self.0.is_none() {
            self.0 = Some(SpecError { field: field(), problem: problem() });
        }
    }
}

impl LeanPod {
    /// Converts to the pod that the rules read. Equal texts, usages and specs are shared through `interner`.
    pub fn into_pod(self, interner: &mut Interner) -> Pod {
        let mut problems = Problems::default();
        let usage = requests::usage(&self, interner, &mut problems);
        let usage = interner.usage(usage);
        let namespace = interner.text(self.metadata.namespace.as_deref().unwrap_or_default());
        let labels_of = self.metadata.labels.as_ref();
        let identity = Identity {
            namespace: namespace.clone(),
            namespace_labels: Labels::default(),
            labels: labels_of.map(|all| interner.labels(all)).unwrap_or_default(),
        };
        let pod_affinity = pod_terms::affinity(&self.spec.affinity, &namespace, interner, &mut problems);
        let pod_affinity = interner.pod_affinity(pod_affinity);
        let constraints = &self.spec.topology_spread_constraints;
        let spread = pod_terms::spread(constraints, &identity, interner, &mut problems);
        let owner =
            self.metadata.owner_references.as_ref().and_then(|owners| owners.last()).map(|owner| PodOwner {
                api_version: interner.text(&owner.api_version),
                kind: interner.text(&owner.kind),
                name: interner.text(&owner.name),
            });
        let peer = Peer {
            identity,
            terminating: self.metadata.deletion_timestamp.is_some(),
            affinity: pod_affinity.clone(),
            owner: owner.clone(),
            group: pod_group(&self.spec).map(|name| interner.text(name)),
        };

        let devices = devices::claims(&self.spec, &self.status, interner, &mut problems);
        let extended = extended::resources(&self, &usage, interner);
        let spec = PodSpec {
            devices: None,
            usage: usage.clone(),
            tolerations: placing::tolerations(&self.spec.tolerations, interner, &mut problems),
            node_selector: interner.labels(&self.spec.node_selector),
            node_affinity: affinity::node_affinity(
                &self.spec.affinity.node_affinity,
                interner,
                &mut problems,
            ),
            pod_affinity,
            spread,
            images: placing::images(&self.spec, interner),
            containers: (self.spec.containers.len() + self.spec.init_containers.len()) as u32,
            volumes: None,
            features: features(&self.spec, interner),
            unsupported: unsupported(&self.spec),
        };
        let spec = match problems.0 {
            Some(error) => Err(error),
            None => Ok(interner.spec(spec)),
        };

        let name = self.metadata.name.as_deref().unwrap_or_default();
        let volumes = volumes::volumes(&self.spec.volumes, name, interner);
        let pinned = pinned(&self);
        let (metadata, lean, status) = (self.metadata, self.spec, self.status);
        Pod {
            devices,
            extended,
            uid: metadata.uid.unwrap_or_default().into(),
            namespace,
            name: metadata.name.unwrap_or_default().into(),
            // The API server defaults it.
            scheduler_name: interner.text(&lean.scheduler_name.unwrap_or_default()),
            node_name: lean.node_name.filter(|name| !name.is_empty()).map(|name| interner.text(&name)),
            nominated_node: (status.nominated_node_name)
                .filter(|name| !name.is_empty())
                .map(|name| interner.text(&name)),
            priority: lean.priority.unwrap_or(0),
            preemption_policy: match lean.preemption_policy.as_deref() {
                Some("Never") => PreemptionPolicy::Never,
                _ => PreemptionPolicy::PreemptLowerPriority,
            },
            created_s: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            // An invalid time counts as unset: it only orders victims.
            started_s: (status.start_time)
                .and_then(|time| time.parse::<jiff::Timestamp>().ok())
                .map(|time| time.as_second()),
            generation: metadata.generation.unwrap_or(0),
            deleting: metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            gates: lean.scheduling_gates.iter().map(|gate| interner.text(&gate.name)).collect(),
            scheduled: status.conditions.scheduled.map(|condition| ScheduledCondition {
                status: condition.status,
                reason: interner.text(&condition.reason),
                message: interner.text(&condition.message),
            }),
            peer: interner.peer(peer),
            owner,
            volumes: volumes.map(Into::into),
            pinned,
            usage,
            spec,
        }
    }
}

/// Reads the annotation as cluster-autoscaler does.
fn pinned(pod: &LeanPod) -> Option<Pinned> {
    let annotations = pod.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(SAFE_TO_EVICT)).map(String::as_str) {
        Some("true") => None,
        Some("false") => Some(Pinned::NotSafeToEvict),
        _ => pod.spec.volumes.iter().any(|volume| volume.local).then_some(Pinned::LocalStorage),
    }
}

/// Returns the name of the pod's PodGroup.
fn pod_group(spec: &LeanPodSpec) -> Option<&str> {
    spec.scheduling_group.as_ref()?.pod_group_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns the features that the kubelet must declare for this pod (upstream: `InferForScheduling` of each feature of 1.36), by name.
fn features(spec: &LeanPodSpec, interner: &mut Interner) -> Box<[Arc<str>]> {
    let mut rules = spec.containers.iter().chain(&spec.init_containers).flat_map(|c| &c.restart_policy_rules);
    let restarts_all = rules.any(|rule| rule.action.as_deref() == Some("RestartAllContainers"));
    let own_users = spec.host_network == Some(true) && spec.host_users == Some(false);
    [(restarts_all, "RestartAllContainersOnContainerExits"), (own_users, "UserNamespacesHostNetworkSupport")]
        .into_iter()
        .filter(|(needed, _)| *needed)
        .map(|(_, name)| interner.text(name))
        .collect()
}

/// Converts a label selector of an object other than a pod.
///
/// # Errors
/// The first invalid field, with its path.
pub(super) fn label_selector(
    lean: Option<&LeanLabelSelector>,
    interner: &mut Interner,
) -> Result<LabelSelector, SpecError> {
    let mut problems = Problems::default();
    let selector = pod_terms::selector(lean, &|| "spec.selector".to_owned(), interner, &mut problems);
    problems.0.map_or(Ok(selector), Err)
}

fn unsupported(spec: &LeanPodSpec) -> Box<[Unsupported]> {
    // In the order of the enumeration, so it is sorted.
    [
        (
            (spec.volumes.iter()).any(|volume| matches!(volume.source, Some(LeanVolumeSource::Unknown))),
            Unsupported::Volumes,
        ),
        (spec.scheduling_group.is_some() && pod_group(spec).is_none(), Unsupported::SchedulingGroup),
        (spec.workload_ref.is_some(), Unsupported::WorkloadRef),
    ]
    .into_iter()
    .filter_map(|(asked, what)| asked.then_some(what))
    .collect()
}

#[cfg(test)]
mod tests;
