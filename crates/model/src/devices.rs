//! Devices (`resource.k8s.io/v1`): what pods ask for by resource claims.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ClaimName, Extended, NodeSelectorTerm, Quantity, Shared};

/// A resource claim of a pod (`spec.resourceClaims`), in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodDeviceClaim {
    /// The name of the entry in the pod's spec.
    pub entry: Arc<str>,
    pub source: DeviceClaimSource,
}

/// Which claim an entry means.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceClaimSource {
    /// `resourceClaimName`: a claim that others may share.
    Named(Arc<str>),
    /// `resourceClaimTemplateName`: a claim made for this pod alone; its name is in the status of the pod.
    Template {
        template: Arc<str>,
        /// `None`: not made yet.
        made: Option<GeneratedClaim>,
    },
}

/// What the claim controller wrote for an entry into `status.resourceClaimStatuses`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GeneratedClaim {
    Named(Arc<str>),
    /// The pod needs no claim for this entry.
    NotNeeded,
}

/// What a pod's resource claims require of its node now; part of the pod's class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct DeviceNeeds {
    /// Why no node is possible: a claim or a device class is missing, a claim is being deleted…
    pub refusal: Option<Arc<str>>,
    /// Where the devices of claims that are allocated already can be reached; sorted, without duplicates.
    pub allocated: Box<[Box<[NodeSelectorTerm]>]>,
    /// Claims that get their devices together with the pod's node, in the order of the pod. They are unnamed: pods whose
    /// claims come from one template are one class.
    pub unallocated: Box<[Shared<DeviceRequests>]>,
    /// Extended resources that devices provide where the node does not; sorted by name.
    pub extended: Box<[ExtendedNeed]>,
}

impl DeviceNeeds {
    /// Returns what needs devices of a node with these extended resources: the claims, and one more for the extended resources that
    /// the node does not have itself.
    pub fn on(&self, offered: &Extended) -> Cow<'_, [Shared<DeviceRequests>]> {
        let is_asked = |extended: &&ExtendedNeed| offered.get(&extended.resource) == 0;
        let asked: Vec<_> = self.extended.iter().filter(is_asked).collect();
        if asked.is_empty() {
            return Cow::Borrowed(&self.unallocated);
        }
        let mut requests: Vec<_> =
            asked.iter().flat_map(|extended| extended.requests.iter().cloned()).collect();
        requests.sort_by(|a, b| a.name.cmp(&b.name));
        let made = DeviceRequests { requests: requests.into(), constraints: [].into() };
        let claims = self.unallocated.iter().cloned().chain([Shared::new(made)]);
        Cow::Owned(claims.collect())
    }
}

/// An extended resource of the pod that a device class provides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExtendedNeed {
    pub resource: Arc<str>,
    /// As for a claim, where the node does not have the resource itself; named as in [`ExtendedResource::requests`].
    pub requests: Box<[DeviceRequest]>,
}

/// What the containers of a pod request of its extended resources, as far as devices could provide them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedResources {
    /// Sorted by name.
    pub resources: Box<[ExtendedResource]>,
    /// The claim that a scheduler has made for them (`status.extendedResourceClaimStatus.resourceClaimName`).
    pub claim: Option<Arc<str>>,
}

/// One extended resource of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedResource {
    pub name: Arc<str>,
    /// Device requests that together serve all containers, with the number of devices (upstream: `createRequestsAndMappings`).
    pub requests: Box<[(Arc<str>, u64)]>,
    /// Which requests serve each container.
    pub containers: Box<[ContainerRequest]>,
}

/// A device request that serves a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerRequest {
    pub container: Arc<str>,
    pub request: Arc<str>,
}

/// Extended resources that device classes provide, by the name of the resource: those of `extendedResourceName`, and one named after
/// each class. The values are the classes.
pub type ProvidedResources = BTreeMap<Arc<str>, Arc<str>>;

/// Prefix of the extended resource that is named after a device class.
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// `spec.devices` of a claim, with the selectors of its device classes filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceRequests {
    pub requests: Box<[DeviceRequest]>,
    pub constraints: Box<[DeviceConstraint]>,
}

/// One of `spec.devices.requests`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceRequest {
    pub name: Arc<str>,
    /// What serves the request, most wanted first: one alternative for `exactly`, several for `firstAvailable`.
    pub alternatives: Box<[DeviceAlternative]>,
}

impl DeviceRequest {
    /// Returns how results and constraints name this alternative: `request`, or `request/subrequest`.
    pub fn name_of(&self, alternative: &DeviceAlternative) -> Arc<str> {
        match alternative.name.is_empty() {
            true => self.name.clone(),
            false => format!("{}/{}", self.name, alternative.name).into(),
        }
    }
}

/// `exactly`, or one of `firstAvailable`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceAlternative {
    /// Name of the subrequest; empty: this is `exactly`.
    pub name: Arc<str>,
    pub class: Arc<str>,
    /// CEL expressions that are all true for a device that serves: those of the class, then those of the request.
    pub selectors: Box<[Arc<str>]>,
    /// How many of these are of the class.
    pub selectors_of_class: usize,
    /// `None`: all devices that match, and at least one (`allocationMode: All`).
    pub count: Option<u64>,
    /// Devices that others use serve, too.
    pub admin_access: bool,
    pub tolerations: Box<[DeviceToleration]>,
    /// `capacity.requests`, sorted by name.
    pub capacity: Box<[(Arc<str>, Quantity)]>,
}

impl DeviceAlternative {
    pub fn tolerates(&self, taint: &DeviceTaint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }
}

/// One of `spec.devices.constraints`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceConstraint {
    /// Names of requests, or `request/subrequest`; empty: all requests of the claim.
    pub requests: Box<[Arc<str>]>,
    /// Fully qualified: `domain/name`.
    pub attribute: Arc<str>,
    /// `distinctAttribute`: no two devices have the same value; else `matchAttribute`: all have the same.
    pub distinct: bool,
}

/// A taint of a device. Other effects than these two do not matter to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceTaint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    pub effect: DeviceTaintEffect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceTaintEffect {
    NoSchedule,
    NoExecute,
}

/// A toleration of device taints.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceToleration {
    /// Empty: every key, with [`DeviceTolerationOperator::Exists`].
    pub key: Arc<str>,
    pub operator: DeviceTolerationOperator,
    /// `None`: every effect. `Some(None)`: an effect that tolerates none of [`DeviceTaintEffect`].
    pub effect: Option<Option<DeviceTaintEffect>>,
    /// `tolerationSeconds`, which is only handed on.
    pub seconds: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceTolerationOperator {
    Exists,
    Equal(Arc<str>),
    /// An unknown operator: tolerates nothing.
    Unknown(Arc<str>),
}

impl DeviceToleration {
    /// Upstream: `resourceclaim.ToleratesTaint`.
    pub fn tolerates(&self, taint: &DeviceTaint) -> bool {
        (self.key.is_empty() || self.key == taint.key)
            && self.effect.is_none_or(|effect| effect == Some(taint.effect))
            && match &self.operator {
                DeviceTolerationOperator::Exists => true,
                DeviceTolerationOperator::Equal(value) => *value == taint.value,
                DeviceTolerationOperator::Unknown(_) => false,
            }
    }
}

/// Resource claims that a pod uses; on a node they are charged with it.
pub type DeviceClaims = Box<[ClaimName]>;
