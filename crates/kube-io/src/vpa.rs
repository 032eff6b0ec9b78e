//! API access of the recommender: VerticalPodAutoscalers, their checkpoints, samples of
//! `metrics.k8s.io`, and owners.
//!
//! Objects are parsed one by one, so that an invalid one affects only itself. Fields that are not read are never overwritten:
//! a VPA status is merged into the object, a checkpoint's status is replaced within it.

mod api;
mod checkpoints;
mod events;
mod objects;
mod owners;
mod usage;

pub use api::{ApiError, Recommending, lists_of};
pub use checkpoints::{DIMENSIONS, FoundCheckpoint, OPEN_WINDOWS, Saved, Written};
pub use events::{EVICTIONS_MAX, Evictions, PressureEviction};
pub use objects::{LAST_EVICTION, USAGE, read_vpa, status_patch};
pub(crate) use objects::{Quantities, amounts, quantity};
pub use owners::{OwnerResolver, TopOwner};
pub use usage::{ContainerUsage, PodUsage};
