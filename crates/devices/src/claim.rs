//! Device classes and resource claims as the API server has them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::DeviceId;
use berth_model::{
    ClaimName, ContainerRequest, DeviceRequest, DeviceRequests, DeviceToleration, NodeSelectorTerm, Quantity,
};

/// The finalizer that keeps an allocated claim until its devices are free again.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Most users of one claim (upstream: `ResourceClaimReservedForMaxSize`).
pub const CLAIM_USERS_MAX: usize = 256;

/// `resource.k8s.io/v1.DeviceClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceClass {
    pub name: Arc<str>,
    /// Why no device can be allocated from it, for its author; the selectors are then incomplete.
    pub invalid: Option<Arc<str>>,
    /// CEL expressions that are all true for a device of the class.
    pub selectors: Box<[Arc<str>]>,
    pub config: Box<[DeviceConfig]>,
    /// `spec.extendedResourceName`: an extended resource that these devices provide.
    pub extended_resource: Option<Arc<str>>,
    /// Creation time in seconds since the epoch.
    pub created_s: i64,
}

/// An entry of `spec.config` of a class, or of `spec.devices.config` of a claim: handed on to the driver, never read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceConfig {
    /// The requests it is meant for; empty: all.
    pub requests: Box<[Arc<str>]>,
    /// The entry without `requests`, as a JSON object.
    pub json: Arc<str>,
}

/// `resource.k8s.io/v1.ResourceClaim`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceClaim {
    pub name: ClaimName,
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`; 0 if it is not a number.
    pub version: u64,
    pub deleting: bool,
    /// `metadata.finalizers`, with [`CLAIM_FINALIZER`] if it was allocated once.
    pub finalizers: Box<[Arc<str>]>,
    /// The uid of its controller.
    pub owner: Option<Arc<str>>,
    /// Why its spec cannot be served, for its author; `spec` is then incomplete.
    pub invalid: Option<Arc<str>>,
    /// As in the spec: [`DeviceAlternative::selectors`](berth_model::DeviceAlternative::selectors) has only those of the
    /// requests.
    pub spec: DeviceRequests,
    pub config: Box<[DeviceConfig]>,
    /// `status.allocation`.
    pub allocation: Option<Arc<ClaimAllocation>>,
    /// `status.reservedFor`.
    pub reserved: Box<[ClaimUser]>,
    /// `status.devices`: conditions of allocated devices that are `True`.
    pub conditions: Box<[DeviceConditions]>,
}

/// Conditions of one allocated device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceConditions {
    pub device: DeviceId,
    pub share: Option<Arc<str>>,
    /// Types of the conditions that are `True`.
    pub holding: Box<[Arc<str>]>,
}

/// Who may use an allocated claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimUser {
    /// Empty for pods.
    pub api_group: Arc<str>,
    /// `pods`, or a resource of `api_group`.
    pub resource: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

/// `status.allocation`: the devices that a claim has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimAllocation {
    pub devices: Box<[AllocatedDevice]>,
    /// The nodes that reach all of them; `None`: every node.
    pub nodes: Option<Box<[NodeSelectorTerm]>>,
}

impl ClaimAllocation {
    /// Returns whether drivers prepare some of the devices before the pod is bound.
    pub fn is_to_be_prepared(&self) -> bool {
        self.devices.iter().any(|device| !device.binding_conditions.is_empty())
    }
}

/// One of `status.allocation.devices.results`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AllocatedDevice {
    /// `request`, or `request/subrequest`.
    pub request: Arc<str>,
    pub id: DeviceId,
    pub admin_access: bool,
    /// Names this share of a device that several claims share.
    pub share: Option<Arc<str>>,
    /// What the share takes of the device's capacity, sorted by name.
    pub consumed: Box<[(Arc<str>, Quantity)]>,
    pub tolerations: Box<[DeviceToleration]>,
    pub binding_conditions: Box<[Arc<str>]>,
    pub binding_failure_conditions: Box<[Arc<str>]>,
}

/// A change of a claim's status before its pod is bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimUpdate {
    pub claim: ClaimName,
    pub uid: Arc<str>,
    /// The version that the change is based on: on any other the write is refused.
    pub version: u64,
    /// See [`ResourceClaim::finalizers`]; a missing [`CLAIM_FINALIZER`] is added before an allocation is written.
    pub finalizers: Box<[Arc<str>]>,
    /// The whole `status.reservedFor`, with the pod.
    pub reserved: Box<[ClaimUser]>,
    /// `None`: it was allocated before.
    pub allocation: Option<NewAllocation>,
    /// The allocation that it had before: of any other, the node may not reach the devices. `None`: not compared.
    pub held: Option<Arc<ClaimAllocation>>,
    /// The claim is created first, and the pod's status names it then.
    pub new: Option<NewClaim>,
}

/// A claim to create for the extended resources of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewClaim {
    pub requests: Box<[NewRequest]>,
    /// The resource of each request that serves a container.
    pub containers: Box<[(Arc<str>, ContainerRequest)]>,
}

/// One of `spec.devices.requests` of a claim to create.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewRequest {
    pub name: Arc<str>,
    pub class: Arc<str>,
    /// Number of devices.
    pub count: u64,
}

impl NewRequest {
    /// Returns `None` for a request of another kind than those for extended resources.
    pub fn of(request: &DeviceRequest) -> Option<NewRequest> {
        let wanted = request.alternatives.first()?;
        Some(NewRequest { name: request.name.clone(), class: wanted.class.clone(), count: wanted.count? })
    }
}

/// A claim whose devices are to be freed, unless it has changed: an earlier attempt to place its pod has allocated them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRelease {
    pub claim: ClaimName,
    pub uid: Arc<str>,
    pub version: u64,
    /// `Some`: the claim is deleted, after its finalizers are set to these. `None`: it only loses its devices and its users.
    pub delete: Option<Box<[Arc<str>]>>,
}

/// An allocation to be written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewAllocation {
    pub allocation: Arc<ClaimAllocation>,
    /// `devices.config`, each with its source.
    pub config: Box<[(ConfigSource, DeviceConfig)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConfigSource {
    Class,
    Claim,
}
