//! One node as agents see it: its properties and the resources charged to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{QuotaShares, Revision, Tiers};
use berth_devices::NodeDevices;
use berth_model::{
    Amounts, ClaimName, CsiVolume, Disk, Extended, HeldVolumes, Holding, HostPort, Node, NodeStorage, Peer,
    ProvidedResources, StaticVolume, Usage,
};

/// Row of a node. Cheap to copy: numbers, and shared pointers to data that seldom changes.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Revision of the latest change of this row.
    pub revision: Revision,
    /// Revision of the latest change of `node`: label, taint, allocatable…
    pub node_revision: Revision,
    /// `None`: the node does not exist (yet, or any more), though pods may still be bound to its name.
    pub node: Option<Arc<Node>>,
    /// Copy of `node`'s value, so that rules that only compare numbers need not follow the pointer.
    pub allocatable: Amounts,
    pub unschedulable: bool,
    /// Sum of the requests of bound and assumed pods.
    pub requested: Amounts,
    pub nonzero_cpu_milli: i64,
    pub nonzero_memory: i64,
    /// `None`: no extended resources are requested.
    pub extended: Option<Arc<Extended>>,
    /// Host ports in use; `None`: none. A port occurs once per pod that uses it.
    pub ports: Option<Arc<Vec<HostPort>>>,
    /// Requests of the pods by priority.
    pub tiers: Tiers,
    /// Requests of the pods by quota.
    pub shares: QuotaShares,
    /// Pods of this node as the rules of other pods see them.
    pub peers: Peers,
    /// Attach limits, and the attachments listed by the attach controller; `None`: unknown.
    pub storage: Option<Arc<NodeStorage>>,
    /// Free volumes that only this node and few other nodes can reach, smallest first; `None`: none.
    pub local_volumes: Option<Arc<Vec<Arc<StaticVolume>>>>,
    /// Devices that this node reaches, and what is in use of them; `None`: none.
    pub devices: Option<Arc<NodeDevices>>,
    /// Extended resources that devices provide to nodes which do not have them; `None`: none.
    pub provided: Option<Arc<ProvidedResources>>,
    /// Volumes in use by pods of this node; `None`: none.
    pub volumes: Option<Arc<VolumesInUse>>,
    /// Reservations for pods that another scheduler has nominated for this node; `None`: none.
    pub reserved: Option<Arc<Vec<Reservation>>>,
    /// In a plan without some pods: the `ReadWriteOncePod` claims that nobody uses without them. `None`: no such plan.
    pub vacated: Option<Arc<BTreeSet<ClaimName>>>,
}

/// Priority of a reservation for a request that may still take effect: nothing else may use the room, not even what
/// another client asks the API server for.
pub const GRANTED: i32 = i32::MAX;
/// Priority of a reservation that keeps room from all pods of this scheduler, except system-critical ones: theirs is higher (upstream:
/// `SystemCriticalPriority`).
pub const KEPT_FROM_ALL: i32 = 2_000_000_000 - 1;

/// Reservation for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub uid: Arc<str>,
    pub priority: i32,
    pub usage: Arc<Usage>,
}

/// Volumes in use by the pods of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumesInUse {
    /// Sorted; each with the number of pods that use it.
    attached: Vec<(CsiVolume, u32)>,
    /// A disk occurs once per pod that uses it.
    disks: Vec<Disk>,
}

impl VolumesInUse {
    pub fn is_attached(&self, volume: &CsiVolume) -> bool {
        self.attached.binary_search_by(|(known, _)| known.cmp(volume)).is_ok()
    }

    pub fn attached(&self) -> impl Iterator<Item = &CsiVolume> {
        self.attached.iter().map(|(volume, _)| volume)
    }

    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Returns a form that is equal exactly when the pods are.
    pub(super) fn sorted(mut self) -> Self {
        self.disks.sort();
        self
    }

    fn add(&mut self, held: &HeldVolumes) {
        for volume in &held.attached {
            match self.attached.binary_search_by(|(known, _)| known.cmp(volume)) {
                Ok(at) => self.attached[at].1 += 1,
                Err(at) => self.attached.insert(at, (volume.clone(), 1)),
            }
        }
        self.disks.extend(held.disks.iter().cloned());
    }

    fn remove(&mut self, held: &HeldVolumes) {
        for volume in &held.attached {
            if let Ok(at) = self.attached.binary_search_by(|(known, _)| known.cmp(volume)) {
                self.attached[at].1 -= 1;
                if self.attached[at].1 == 0 {
                    self.attached.remove(at);
                }
            }
        }
        for disk in &held.disks {
            if let Some(at) = self.disks.iter().position(|known| known == disk) {
                self.disks.swap_remove(at);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.attached.is_empty() && self.disks.is_empty()
    }
}

/// Pods of one node grouped by kind, each kind once with its number of pods. `None`: no pod.
///
/// Kinds are identified and sorted by their address, so that two states of a node are compared without reading a label;
/// nothing may depend on this order.
#[derive(Debug, Clone, Default)]
pub struct Peers(Option<Arc<Vec<PeerCount>>>);

/// A kind of pods, and the number of such pods.
pub type PeerCount = (Arc<Peer>, u32);

impl Peers {
    pub fn iter(&self) -> impl Iterator<Item = &PeerCount> {
        self.0.iter().flat_map(|kinds| kinds.iter())
    }

    /// Returns the number of pods of the kind at this address.
    pub fn count_at(&self, address: usize) -> u32 {
        let Some(kinds) = &self.0 else {
            return 0;
        };
        let found = kinds.binary_search_by_key(&address, |(kind, _)| Arc::as_ptr(kind) as usize);
        found.map_or(0, |at| kinds[at].1)
    }

    /// Compares cheaply; may return `false` for equal pods.
    pub fn same(&self, other: &Peers) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    fn add(&mut self, peer: &Arc<Peer>) {
        let kinds = Arc::make_mut(self.0.get_or_insert_default());
        match kinds.binary_search_by_key(&Arc::as_ptr(peer), |(kind, _)| Arc::as_ptr(kind)) {
            Ok(at) => kinds[at].1 += 1,
            Err(at) => kinds.insert(at, (peer.clone(), 1)),
        }
    }

    fn remove(&mut self, peer: &Arc<Peer>) {
        let Some(kinds) = &mut self.0 else {
            return;
        };
        let kinds = Arc::make_mut(kinds);
        if let Ok(at) = kinds.binary_search_by_key(&Arc::as_ptr(peer), |(kind, _)| Arc::as_ptr(kind)) {
            kinds[at].1 -= 1;
            if kinds[at].1 == 0 {
                kinds.remove(at);
            }
        }
        if kinds.is_empty() {
            self.0 = None;
        }
    }
}

impl Row {
    /// Sets the node object.
    pub(crate) fn set_node(&mut self, node: Option<Arc<Node>>) {
        self.allocatable = node.as_ref().map(|n| n.allocatable).unwrap_or_default();
        self.unschedulable = node.as_ref().is_some_and(|n| n.unschedulable);
        self.node = node;
    }

    /// Adds a pod to the sums.
    pub(crate) fn charge(&mut self, holding: &Holding) {
        self.tiers.add(holding);
        self.shares.add(holding.quota.as_ref(), &holding.usage);
        self.add(holding);
    }

    /// Adds a pod to the sums without its priority and quota.
    fn add(&mut self, holding: &Holding) {
        let usage = &*holding.usage;
        self.peers.add(&holding.peer);
        if let Some(held) = holding.volumes.as_ref().filter(|held| held.uses_node_volumes()) {
            Arc::make_mut(self.volumes.get_or_insert_default()).add(held);
        }
        self.requested.add(&usage.requests);
        self.nonzero_cpu_milli = self.nonzero_cpu_milli.saturating_add(usage.nonzero_cpu_milli);
        self.nonzero_memory = self.nonzero_memory.saturating_add(usage.nonzero_memory);
        self.add_extended(usage, 1);
        if !usage.ports.is_empty() {
            Arc::make_mut(self.ports.get_or_insert_default()).extend(usage.ports.iter().cloned());
        }
    }

    /// Reverts [`Row::charge`].
    pub(crate) fn discharge(&mut self, holding: &Holding) {
        let usage = &*holding.usage;
        self.tiers.remove(holding);
        self.shares.remove(holding.quota.as_ref(), usage);
        self.peers.remove(&holding.peer);
        if let (Some(held), Some(in_use)) = (&holding.volumes, &mut self.volumes) {
            let in_use = Arc::make_mut(in_use);
            in_use.remove(held);
            if in_use.is_empty() {
                self.volumes = None;
            }
        }
        self.requested.sub(&usage.requests);
        self.nonzero_cpu_milli = self.nonzero_cpu_milli.saturating_sub(usage.nonzero_cpu_milli);
        self.nonzero_memory = self.nonzero_memory.saturating_sub(usage.nonzero_memory);
        self.add_extended(usage, -1);
        if let Some(ports) = &mut self.ports {
            let taken = Arc::make_mut(ports);
            for port in usage.ports.iter() {
                if let Some(at) = taken.iter().position(|p| p == port) {
                    taken.swap_remove(at);
                }
            }
            if taken.is_empty() {
                self.ports = None;
            }
        }
    }

    /// Returns whether a sum is saturated: the value before the last pods were added is lost, so they cannot be
    /// subtracted.
    pub(super) fn is_saturated(&self) -> bool {
        let requested = &self.requested;
        let sums = [
            requested.cpu_milli,
            requested.memory,
            requested.ephemeral_storage,
            self.nonzero_cpu_milli,
            self.nonzero_memory,
        ];
        let mut extended = self.extended.iter().flat_map(|extended| extended.iter());
        sums.contains(&i64::MAX) || extended.any(|(_, sum)| sum == i64::MAX)
    }

    fn add_extended(&mut self, usage: &Usage, sign: i64) {
        if usage.extended.is_empty() {
            return;
        }
        let taken = Arc::make_mut(self.extended.get_or_insert_default());
        for (name, amount) in usage.extended.iter() {
            taken.add(name, amount.saturating_mul(sign));
        }
        if taken.is_empty() {
            self.extended = None;
        }
    }

    /// Returns the row as a pod of this priority must see it, with reservations of at least that priority charged
    /// (upstream: `RunFilterPluginsWithNominatedPods`, for resources and ports only).
    pub fn with_reservations(&self, priority: i32) -> Option<Row> {
        let reserved = self.reserved.as_ref()?;
        let mut row = Row { reserved: None, ..self.clone() };
        for reservation in reserved.iter().filter(|reservation| reservation.priority >= priority) {
            row.add(&Holding::from(&reservation.usage));
        }
        Some(row)
    }

    /// Drops the reservation of this pod.
    pub(crate) fn unreserve(&mut self, uid: &str) {
        if let Some(reservations) = &mut self.reserved {
            Arc::make_mut(reservations).retain(|reservation| *reservation.uid != *uid);
            if reservations.is_empty() {
                self.reserved = None;
            }
        }
    }

    /// Returns how much of an extended resource the node has; `None`: devices provide it there, so its amount does not count
    /// (upstream: `shouldDelegateResourceToDRA`).
    pub fn extended_allocatable(&self, name: &str) -> Option<i64> {
        let own = self.node.as_ref().map_or(0, |node| node.extended.get(name));
        let provided = || self.provided.as_ref().is_some_and(|provided| provided.contains_key(name));
        (own > 0 || !provided()).then_some(own)
    }

    /// Returns the requested amount of the extended resource `name`.
    pub fn extended_requested(&self, name: &str) -> i64 {
        self.extended.as_ref().map_or(0, |taken| taken.get(name))
    }

    /// Returns whether the row has no node, pods or reservations, so that the id can be reused.
    pub(super) fn is_vacant(&self) -> bool {
        self.node.is_none() && self.requested.pods == 0 && self.reserved.is_none()
    }
}
