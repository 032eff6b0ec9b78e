//! API-server access: lean types, watches, events, conditions, leases.
//!
//! Must not depend on decisions. Objects come in as JSON and leave as `model` values.

mod allocations;
pub mod apply;
mod backlog;
pub mod certificates;
pub mod client;
mod convert;
mod elector;
mod evictor;
mod fence;
mod guarded;
mod index;
mod lean;
pub mod lease;
mod listed;
mod live_pods;
mod members;
mod objects;
pub mod placement;
mod pod_reader;
mod policies;
mod quotas;
mod report_json;
mod reporter;
mod retry;
pub mod scaling;
mod self_check;
mod served;
mod shared_secret;
mod status_writer;
mod throttle;
pub mod vpa;
mod watch;
mod watch_store;
pub mod webhook_configurations;
pub mod webhook_path;
mod window;

pub use allocations::{AllocationWriter, StatusCounters};
pub use convert::{Interner, read_new_pod};
pub use elector::{Deadline, Elector, Holder, LeaseExit};
pub use evictor::Evictor;
pub use fence::Fence;
pub use guarded::{BadObject, Guarded, ObjectId};
pub use index::{ClusterSink, NodeIndex, PodIndex};
pub use lean::{LeanNode, LeanPod};
pub use lease::{LeaseConfig, LeaseConfigError};
pub use listed::Listed;
pub use live_pods::{LivePod, LivePods};
pub use members::MemberLeases;
pub(crate) use objects::SELECTED_NODE;
pub use objects::{
    LeanAllocation, LeanCoschedulingPodGroup, LeanCsiDriver, LeanCsiNode, LeanCsiStorageCapacity,
    LeanDeviceClass, LeanNamespace, LeanObject, LeanPersistentVolume, LeanPersistentVolumeClaim,
    LeanPodDisruptionBudget, LeanPodGroup, LeanReplicaSet, LeanReplicationController, LeanResourceClaim,
    LeanResourceSlice, LeanService, LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment, ObjectIndex,
    ObjectSink, PodGroupVersion,
};
pub use pod_reader::PodReader;
pub use policies::{LeanAllocationPolicy, PolicyWriter};
pub use quotas::{LeanQuota, QuotaWriter};
pub use reporter::{ReportCounters, Reporter};
pub use self_check::{
    list_all, list_cluster, list_live_pods, list_namespaces, list_nodes, list_pods_without_node, list_version,
};
pub use served::{OptionalKind, is_served, watch_if_served};
pub use status_writer::conditions;
pub use throttle::Throttle;
pub use watch::{LIVE_PODS, WatchChange, WatchCounters, WatchProgress, comparable_version, watch};
pub use watch_store::{SizingResource, VpasUnknown, WatchStore};
