//! Plain values of pods and nodes that the rules read.
//!
//! Must not depend on kube, tokio or clocks. All values are cheap to move, compare by value, and are
//! validated on creation: a `Pod` with an invalid spec carries the error instead of the spec.

mod affinity;
mod causes;
mod devices;
mod duration;
mod labels;
pub mod names;
mod node;
mod oldest;
mod per_resource;
mod pod;
mod pool;
mod preference;
mod quantity;
mod report;
mod resources;
mod selector;
mod sorted;
mod taints;
pub mod validate;
mod volumes;
mod weekly;

pub use affinity::{
    Identity, LabelSelector, Peer, PodAffinity, PodSelector, PodTerm, Spread, SpreadConstraint,
    WeightedPodTerm,
};
pub use causes::with_causes;
pub use devices::{
    ContainerRequest, DEVICE_CLASS_PREFIX, DeviceAlternative, DeviceClaimSource, DeviceClaims,
    DeviceConstraint, DeviceNeeds, DeviceRequest, DeviceRequests, DeviceTaint, DeviceTaintEffect,
    DeviceToleration, DeviceTolerationOperator, ExtendedNeed, ExtendedResource, ExtendedResources,
    GeneratedClaim, PodDeviceClaim, ProvidedResources,
};
pub use duration::{ConfigDuration, DurationError};
pub use labels::Labels;
pub use node::{Image, Node};
pub use oldest::{Oldest, Ranked};
pub use per_resource::{NodeSize, PerResource};
pub use pod::{
    Holding, HostPort, Pinned, Pod, PodOwner, PodSpec, PreemptionPolicy, Protocol, ScheduledCondition,
    SpecError, Unsupported,
};
pub use pool::{Pool, SWEEP_AT_MIN};
pub use preference::{Packing, Preference};
pub use quantity::{Quantity, QuantityError, exact_bytes};
pub use report::{PodRef, PodReport};
pub use resources::{Amounts, Extended, Usage};
pub use selector::{
    FieldRequirement, NodeAffinity, NodeSelectorTerm, Operator, PreferredTerm, Requirement, WrongRequirement,
};
pub use taints::{Effect, Taint, Toleration, TolerationOperator, taint_number};
pub use validate::InvalidField;
pub use volumes::{
    AccessModes, AttachLimits, ClaimName, CsiVolume, Disk, HeldVolumes, NodeStorage, PodClaim, PodVolumes,
    Provision, Shared, StaticVolume, UnboundClaim, VolumeKind, VolumeNeeds, VolumeZone, admits,
};
pub use weekly::{WeeklyWindow, WeeklyWindowError};
