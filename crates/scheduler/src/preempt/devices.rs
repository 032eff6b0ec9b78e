//! Devices of a node that evictions free. A claim has its devices until the last pod that uses it is gone; then Kubernetes' controller
//! deallocates it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::inventory::Row;
use crate::rules::{free_devices, use_devices};
use berth_devices::AllocatedDevice;

/// Devices of one node that are not free now, but could be.
#[derive(Debug, Clone, Default)]
pub struct SiteDevices {
    /// They become free without any eviction for this preemptor: all pods that use them are gone or on their way. Without those that are
    /// kept for pods which are nominated for the node.
    pub leaving: Vec<AllocatedDevice>,
    /// The others, by claim.
    pub held: Vec<HeldDevices>,
}

/// Devices of one claim.
#[derive(Debug, Clone)]
pub struct HeldDevices {
    /// Uids of the pods that use it.
    pub users: Vec<Arc<str>>,
    pub devices: Vec<AllocatedDevice>,
}

impl HeldDevices {
    fn is_free_without(&self, gone: &BTreeSet<Arc<str>>) -> bool {
        self.users.iter().all(|uid| gone.contains(uid))
    }
}

impl SiteDevices {
    /// Frees in the row of the node what pods with these uids use alone, and what others leave.
    pub(super) fn free_without(&self, gone: &BTreeSet<Arc<str>>, row: &mut Row) {
        free_devices(&self.leaving, row);
        let freed = self.held.iter().filter(|claim| claim.is_free_without(gone));
        free_devices(freed.flat_map(|claim| &claim.devices), row);
    }

    /// Reverts that for the pods in `back`, which are among those in `gone`.
    pub(super) fn use_again(&self, back: &BTreeSet<Arc<str>>, gone: &BTreeSet<Arc<str>>, row: &mut Row) {
        let is_back = |claim: &&HeldDevices| {
            claim.is_free_without(gone) && claim.users.iter().any(|uid| back.contains(uid))
        };
        use_devices(self.held.iter().filter(is_back).flat_map(|claim| &claim.devices), row);
    }

    /// Returns what is left to be freed once these pods are gone, and what others leave is free.
    pub(super) fn left_without(mut self, gone: &BTreeSet<Arc<str>>) -> SiteDevices {
        self.held.retain(|claim| !claim.is_free_without(gone));
        for claim in &mut self.held {
            claim.users.retain(|uid| !gone.contains(uid));
        }
        SiteDevices { held: self.held, ..SiteDevices::default() }
    }
}
