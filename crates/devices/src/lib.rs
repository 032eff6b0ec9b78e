//! Devices of dynamic resource allocation (`resource.k8s.io/v1`), without I/O: pools, selectors in CEL, and which devices
//! a node would give to a pod's claims.
//!
//! May not know: kube, tokio, clocks, the scheduler.

mod allocate;
mod capacity;
mod claim;
mod device;
mod pools;
mod selectors;

pub use allocate::{
    DEVICES_OF_CLAIM_MAX, DEVICES_OF_POD_MAX, Exclusions, Fit, NoDevices, STEPS_MAX, Shortage, allocate, fit,
};

pub use claim::{
    AllocatedDevice, CLAIM_FINALIZER, CLAIM_USERS_MAX, ClaimAllocation, ClaimRelease, ClaimUpdate, ClaimUser,
    ConfigSource, DeviceClass, DeviceConditions, DeviceConfig, NewAllocation, NewClaim, NewRequest,
    ResourceClaim,
};
pub use device::{
    Attribute, Counters, Device, DeviceCapacity, DeviceId, DeviceTraits, PoolId, Reach, RequestPolicy,
    ResourceSlice, ValidRange,
};
pub use pools::{
    DeviceNews, DevicePool, DevicePools, DeviceUse, NodeDevices, PoolDevice, PoolState, PoolUse,
};
pub use selectors::{CelError, Model, Selectors};
