//! Gang objects: berth's `Allocation` and the two kinds of `PodGroup`.
//!
//! Only metadata must parse. An invalid spec becomes the problem of the allocation and is reported in its status.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::LeanObject;
use crate::convert::label_selector;
use crate::lean::{LeanLabelSelector, LeanRequirement, lean_meta, nullable};
use crate::{Interner, OptionalKind};
use berth_crds::{self as api, AllocationSpec};
use berth_model::names::is_label_key;
use berth_model::{ConfigDuration, LabelSelector};
use berth_scheduler::gang::{
    Allocation, AllocationKind, AllocationName, GangRole, GangTopology, GangTopologyMode, OwnerName,
    RoleMembers,
};
use berth_scheduler::objects::{ClusterObject, ObjectKind};

/// The limit in the CRD.
const ROLES_MAX: usize = 16;
/// Longer timeouts are cut to this.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// `allocations.berth.dev`
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "berth_crds::Allocation")]
pub struct LeanAllocation {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanStatus,
}

/// `podgroups.scheduling.k8s.io`
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LeanPodGroup {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanStatus,
}

/// `podgroups.scheduling.x-k8s.io`
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LeanCoschedulingPodGroup {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanStatus,
}

/// The part of a status that shows whether the minimum was bound before.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanStatus {
    phase: Value,
    conditions: Value,
}

/// The conditions that show it.
const SCHEDULED_CONDITIONS: [&str; 3] = ["Scheduled", "PodGroupInitiallyScheduled", "PodGroupScheduled"];
/// The phases of a coscheduling group that show it.
const SCHEDULED_PHASES: [&str; 2] = ["Scheduled", "Running"];

impl LeanStatus {
    /// Whether the minimum of this generation was bound before: a minimum that was raised since does not count.
    fn was_scheduled(&self, generation: i64) -> bool {
        let says_so = |condition: &Value| {
            let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
            let observed = condition.get("observedGeneration").and_then(Value::as_i64);
            SCHEDULED_CONDITIONS.contains(&text("type"))
                && text("status") == "True"
                && observed.is_none_or(|observed| observed == generation)
        };
        let conditions = self.conditions.as_array().map_or(&[][..], Vec::as_slice);
        let phase = self.phase.as_str().unwrap_or_default();
        conditions.iter().any(says_so) || conditions.is_empty() && SCHEDULED_PHASES.contains(&phase)
    }
}

/// The versions of `podgroups.scheduling.k8s.io` that have `spec.schedulingPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum PodGroupVersion {
    /// Kubernetes 1.37.
    #[default]
    V1Beta1,
    V1Alpha3,
    /// Kubernetes 1.36.
    V1Alpha2,
}

impl PodGroupVersion {
    pub fn name(self) -> &'static str {
        match self {
            PodGroupVersion::V1Beta1 => "v1beta1",
            PodGroupVersion::V1Alpha3 => "v1alpha3",
            PodGroupVersion::V1Alpha2 => "v1alpha2",
        }
    }

    /// The condition that shows whether the group is scheduled.
    pub fn condition(self) -> &'static str {
        match self {
            PodGroupVersion::V1Beta1 | PodGroupVersion::V1Alpha3 => "PodGroupInitiallyScheduled",
            PodGroupVersion::V1Alpha2 => "PodGroupScheduled",
        }
    }
}

/// Defines a kind for which k8s-openapi has no type.
macro_rules! podgroups {
    ($lean:ident, $group:literal, $version:ty, $version_name:expr) => {
        impl Resource for $lean {
            type DynamicType = $version;
            type Scope = NamespaceResourceScope;

            fn kind(_: &$version) -> Cow<'_, str> {
                "PodGroup".into()
            }

            fn group(_: &$version) -> Cow<'_, str> {
                $group.into()
            }

            fn version(version: &$version) -> Cow<'_, str> {
                let name: fn(&$version) -> &'static str = $version_name;
                name(version).into()
            }

            fn plural(_: &$version) -> Cow<'_, str> {
                "podgroups".into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

podgroups!(LeanPodGroup, "scheduling.k8s.io", PodGroupVersion, |version| version.name());
podgroups!(LeanCoschedulingPodGroup, "scheduling.x-k8s.io", (), |()| "v1alpha1");

impl OptionalKind for LeanAllocation {
    const VERSIONS: &'static [()] = &[()];
}

impl OptionalKind for LeanPodGroup {
    const VERSIONS: &'static [PodGroupVersion] =
        &[PodGroupVersion::V1Beta1, PodGroupVersion::V1Alpha3, PodGroupVersion::V1Alpha2];
}

impl OptionalKind for LeanCoschedulingPodGroup {
    const VERSIONS: &'static [()] = &[()];
}

macro_rules! allocating {
    ($lean:ident, $kind:ident, $source:ident, $read:path) => {
        impl LeanObject for $lean {
            const KIND: ObjectKind = ObjectKind::$kind;

            fn into_object(self, interner: &mut Interner) -> ClusterObject {
                let read = $read(self.spec, interner);
                let was_scheduled = self.status.was_scheduled(self.metadata.generation.unwrap_or(0));
                let allocation = read.of(AllocationKind::$source, &self.metadata, interner);
                ClusterObject::Allocation(Box::new(Allocation { was_scheduled, ..allocation }))
            }

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
        }
    };
}

allocating!(LeanAllocation, Allocation, Allocation, allocation);
allocating!(LeanPodGroup, PodGroup, PodGroup, pod_group);
allocating!(LeanCoschedulingPodGroup, CoschedulingPodGroup, Coscheduling, coscheduling_pod_group);

/// The content of a spec, and its problem.
#[derive(Default)]
struct Read {
    roles: Vec<GangRole>,
    timeout: Option<Duration>,
    topology: Option<GangTopology>,
    evicted_whole: bool,
    /// The first problem.
    problem: Option<String>,
}

impl Read {
    fn note(&mut self, problem: impl Into<String>) {
        self.problem.get_or_insert_with(|| problem.into());
    }

    /// Parses the spec; on an error, notes the problem and returns the default.
    fn parse<T: Default + DeserializeOwned>(&mut self, spec: Value) -> T {
        if spec.is_null() {
            return T::default();
        }
        serde_json::from_value(spec).unwrap_or_else(|error| {
            self.note(format!("spec: {error}"));
            T::default()
        })
    }

    fn minimum(&mut self, field: &str, minimum: Option<i64>) -> u32 {
        let known = minimum.and_then(|minimum| u32::try_from(minimum).ok()).filter(|minimum| *minimum >= 1);
        if known.is_none() {
            self.note(match minimum {
                Some(minimum) => format!("{field} is {minimum}: it must be between 1 and {}", u32::MAX),
                None => format!("{field} is missing: set the number of pods to schedule together"),
            });
        }
        known.unwrap_or(1)
    }

    fn topology(&mut self, field: &str, key: &str, mode: GangTopologyMode, interner: &mut Interner) {
        if is_label_key(key) {
            self.topology = Some(GangTopology { key: interner.text(key), mode });
        } else {
            self.note(format!("{field} is {key:?}: it must be a valid label key"));
        }
    }

    fn of(self, kind: AllocationKind, meta: &ObjectMeta, interner: &mut Interner) -> Allocation {
        let mut text = |text: Option<&String>| interner.text(text.map_or("", String::as_str));
        let name =
            AllocationName { kind, namespace: text(meta.namespace.as_ref()), name: text(meta.name.as_ref()) };
        Allocation {
            name,
            uid: text(meta.uid.as_ref()),
            generation: meta.generation.unwrap_or(0),
            // Without a creation time it has the lowest precedence.
            created_s: meta.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
            roles: self.roles.into(),
            timeout: self.timeout,
            topology: self.topology,
            evicted_whole: self.evicted_whole,
            was_scheduled: false,
            problem: self.problem.map(Arc::from),
        }
    }
}

fn allocation(spec: Value, interner: &mut Interner) -> Read {
    let mut read = Read::default();
    let spec: AllocationSpec = read.parse(spec);
    let is_short = spec.minimum.is_some() || spec.selector.is_some() || spec.owner.is_some();
    if spec.roles.is_empty() {
        let members = members("spec", spec.selector.as_ref(), spec.owner.as_ref(), &mut read, interner);
        let minimum = read.minimum("spec.minimum", spec.minimum.map(i64::from));
        read.roles.push(GangRole { name: Arc::from(""), members, minimum });
    } else if is_short {
        read.note("spec has roles and minimum, selector or owner: set only one of the two forms");
    }
    if spec.roles.len() > ROLES_MAX {
        read.note(format!("spec.roles has {} roles: {ROLES_MAX} at most", spec.roles.len()));
    }
    for (i, role) in spec.roles.iter().take(ROLES_MAX).enumerate() {
        let path = format!("spec.roles[{i}]");
        let members = members(&path, role.selector.as_ref(), role.owner.as_ref(), &mut read, interner);
        let minimum = read.minimum(&format!("{path}.minimum"), Some(role.minimum.into()));
        if read.roles.iter().any(|other| *other.name == *role.name) {
            read.note(format!("{path}.name is {:?}, as of another role", role.name));
        }
        read.roles.push(GangRole { name: interner.text(&role.name), members, minimum });
    }
    if let Some(timeout) = spec.timeout.as_deref() {
        match timeout.parse::<ConfigDuration>() {
            Ok(timeout) if !timeout.get().is_zero() => read.timeout = Some(timeout.get()),
            Ok(_) => read.note("spec.timeout is 0s: leave it out to wait without a timeout"),
            Err(error) => read.note(format!("spec.timeout: {error}")),
        }
    }
    if let Some(topology) = &spec.topology {
        let mode = match topology.mode {
            api::TopologyMode::Required => GangTopologyMode::Required,
            api::TopologyMode::Preferred => GangTopologyMode::Preferred,
            api::TopologyMode::Spread => GangTopologyMode::Spread,
        };
        read.topology("spec.topology.key", &topology.key, mode, interner);
    }
    read
}

/// Returns the members of a role; none if the selector is invalid.
fn members(
    path: &str,
    selector: Option<&api::AllocationSelector>,
    owner: Option<&api::OwnerSelector>,
    read: &mut Read,
    interner: &mut Interner,
) -> RoleMembers {
    let nobody = RoleMembers::Selected(LabelSelector::Nothing);
    match (selector, owner) {
        (Some(selector), None) => match label_selector(Some(&lean(selector)), interner) {
            Ok(selector) => RoleMembers::Selected(selector),
            Err(error) => {
                let field = error.field.strip_prefix("spec.selector").unwrap_or(&error.field);
                read.note(format!("{path}.selector{field}: {}", error.problem));
                nobody
            }
        },
        (None, Some(owner)) => {
            if owner.kind.is_empty() || owner.name.is_empty() {
                read.note(format!("{path}.owner needs a kind and a name"));
            }
            RoleMembers::Owned(OwnerName {
                kind: interner.text(&owner.kind),
                name: interner.text(&owner.name),
            })
        }
        (None, None) => {
            read.note(format!("{path} has neither selector nor owner: set one to select its pods"));
            nobody
        }
        (Some(_), Some(_)) => {
            read.note(format!("{path} has both selector and owner: set only one of them"));
            nobody
        }
    }
}

fn lean(selector: &api::AllocationSelector) -> LeanLabelSelector {
    let requirement = |it: &api::AllocationRequirement| LeanRequirement {
        key: it.key.clone(),
        operator: it.operator.clone(),
        values: it.values.clone(),
    };
    LeanLabelSelector {
        match_labels: selector.match_labels.clone(),
        match_expressions: selector.match_expressions.iter().map(requirement).collect(),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodGroupSpec {
    #[serde(deserialize_with = "nullable")]
    scheduling_policy: SchedulingPolicy,
    #[serde(deserialize_with = "nullable")]
    scheduling_constraints: SchedulingConstraints,
    disruption_mode: Option<DisruptionMode>,
    parent_composite_pod_group_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SchedulingPolicy {
    basic: Option<Value>,
    gang: Option<Gang>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Gang {
    min_count: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SchedulingConstraints {
    #[serde(deserialize_with = "nullable")]
    topology: Vec<TopologyConstraint>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TopologyConstraint {
    key: String,
}

/// A name in v1alpha2; later an object with one of these fields.
#[derive(Deserialize)]
#[serde(untagged)]
enum DisruptionMode {
    Named(String),
    Chosen { single: Option<Value>, all: Option<Value> },
}

fn grouped(minimum: u32) -> GangRole {
    GangRole { name: Arc::from(""), members: RoleMembers::Grouped, minimum }
}

fn pod_group(spec: Value, interner: &mut Interner) -> Read {
    let mut read = Read::default();
    let spec: PodGroupSpec = read.parse(spec);
    let minimum = match (&spec.scheduling_policy.gang, &spec.scheduling_policy.basic) {
        (Some(gang), None) => read.minimum("spec.schedulingPolicy.gang.minCount", gang.min_count),
        (None, Some(_)) => 0,
        _ => {
            read.note("spec.schedulingPolicy must be exactly one of basic and gang");
            1
        }
    };
    read.roles.push(grouped(minimum));
    if spec.parent_composite_pod_group_name.is_some_and(|name| !name.is_empty()) {
        read.note("spec.parentCompositePodGroupName: berth does not place composite pod groups");
    }
    match spec.disruption_mode {
        None => {}
        Some(DisruptionMode::Named(mode)) => match &*mode {
            "" | "Pod" => {}
            "PodGroup" => read.evicted_whole = true,
            other => read.note(format!("spec.disruptionMode is {other:?}: it must be Pod or PodGroup")),
        },
        Some(DisruptionMode::Chosen { single, all }) => match (single, all) {
            (_, None) => {}
            (None, Some(_)) => read.evicted_whole = true,
            (Some(_), Some(_)) => read.note("spec.disruptionMode has single and all: set only one of them"),
        },
    }
    match spec.scheduling_constraints.topology.as_slice() {
        [] => {}
        [one] => {
            let field = "spec.schedulingConstraints.topology[0].key";
            read.topology(field, &one.key, GangTopologyMode::Required, interner);
        }
        more => {
            read.note(format!("spec.schedulingConstraints.topology has {} entries: 1 at most", more.len()))
        }
    }
    read
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CoschedulingSpec {
    min_member: Option<i64>,
    schedule_timeout_seconds: Option<i64>,
}

fn coscheduling_pod_group(spec: Value, _: &mut Interner) -> Read {
    let mut read = Read::default();
    let spec: CoschedulingSpec = read.parse(spec);
    let minimum = read.minimum("spec.minMember", spec.min_member);
    read.roles.push(grouped(minimum));
    match spec.schedule_timeout_seconds.map(u64::try_from) {
        None | Some(Ok(0)) => {}
        Some(Ok(seconds)) => read.timeout = Some(Duration::from_secs(seconds).min(TIMEOUT_MAX)),
        Some(Err(_)) => read.note("spec.scheduleTimeoutSeconds is negative"),
    }
    read
}

#[cfg(test)]
mod tests;
