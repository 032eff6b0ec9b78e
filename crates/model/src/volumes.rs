//! Volumes: requirements and usage of pods, and what nodes offer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{LabelSelector, Labels, NodeSelectorTerm, Requirement};

/// Name of a persistent volume claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The part of a pod's `spec.volumes` that restricts where the pod can run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodVolumes {
    /// In the order of the spec, without duplicates.
    pub claims: Box<[PodClaim]>,
    /// Sorted.
    pub disks: Box<[Disk]>,
    /// Disks in the pod spec that a CSI driver attaches since CSI migration; sorted, without duplicates.
    pub inline: Box<[CsiVolume]>,
}

/// A claim that a pod uses, in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodClaim {
    pub name: Arc<str>,
    /// Created for this pod only (`ephemeral.volumeClaimTemplate`), and named after it.
    pub ephemeral: bool,
}

/// A disk in the pod spec, of a kind that two pods on one node cannot share freely.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Disk {
    GcePersistentDisk { name: Arc<str>, read_only: bool },
    AwsElasticBlockStore { id: Arc<str> },
    Iscsi { iqn: Arc<str>, read_only: bool },
    Rbd { monitors: Box<[Arc<str>]>, pool: Arc<str>, image: Arc<str>, read_only: bool },
}

impl Disk {
    /// Returns whether two pods on one node cannot both use the disks (upstream: `isVolumeConflict`).
    pub fn conflicts(&self, other: &Disk) -> bool {
        use Disk::*;
        match (self, other) {
            (GcePersistentDisk { name, read_only }, GcePersistentDisk { name: theirs, read_only: also }) => {
                name == theirs && !(*read_only && *also)
            }
            (AwsElasticBlockStore { id }, AwsElasticBlockStore { id: theirs }) => id == theirs,
            (Iscsi { iqn, read_only }, Iscsi { iqn: theirs, read_only: also }) => {
                iqn == theirs && !(*read_only && *also)
            }
            (
                Rbd { monitors, pool, image, read_only },
                Rbd { monitors: their_monitors, pool: their_pool, image: their_image, read_only: also },
            ) => {
                monitors.iter().any(|monitor| their_monitors.contains(monitor))
                    && (pool, image) == (their_pool, their_image)
                    && !(*read_only && *also)
            }
            _ => false,
        }
    }
}

/// A volume as identified by its CSI driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CsiVolume {
    pub driver: Arc<str>,
    pub handle: Arc<str>,
}

/// Volumes that a bound pod uses on its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeldVolumes {
    pub claims: Box<[ClaimName]>,
    pub disks: Box<[Disk]>,
    /// See [`PodVolumes::inline`].
    pub inline: Box<[CsiVolume]>,
    /// All volumes that a CSI driver attaches: those of the known claims, and the inline ones. Sorted, without
    /// duplicates.
    pub attached: Box<[CsiVolume]>,
}

impl HeldVolumes {
    /// Returns whether any of the volumes counts on the node: disks or attached volumes.
    pub fn uses_node_volumes(&self) -> bool {
        !self.attached.is_empty() || !self.disks.is_empty()
    }
}

/// Set of access modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccessModes(u8);

impl AccessModes {
    pub const READ_WRITE_ONCE_POD: AccessModes = AccessModes(1 << 3);

    pub fn contains(self, others: AccessModes) -> bool {
        self.0 & others.0 == others.0
    }
}

impl<'a> FromIterator<&'a str> for AccessModes {
    /// Maps all unknown modes to one bit: a claim with an unknown mode only gets a volume with one.
    fn from_iter<I: IntoIterator<Item = &'a str>>(modes: I) -> Self {
        let bit = |mode| match mode {
            "ReadWriteOnce" => 1,
            "ReadOnlyMany" => 1 << 1,
            "ReadWriteMany" => 1 << 2,
            "ReadWriteOncePod" => AccessModes::READ_WRITE_ONCE_POD.0,
            _ => 1 << 4,
        };
        AccessModes(modes.into_iter().fold(0, |all, mode| all | bit(mode)))
    }
}

/// Attributes that claims request and volumes have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VolumeKind {
    /// Storage class; empty: none.
    pub class: Arc<str>,
    pub modes: AccessModes,
    /// `volumeMode: Block`; else a file system.
    pub block: bool,
    /// `volumeAttributesClassName`; empty: none.
    pub attributes_class: Arc<str>,
}

/// A persistent volume as a candidate for claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StaticVolume {
    pub name: Arc<str>,
    pub kind: VolumeKind,
    pub capacity_bytes: i64,
    pub labels: Labels,
    /// One of these terms must match the labels of a node; `None`: every node reaches the volume. An empty list matches
    /// none.
    pub affinity: Option<Box<[NodeSelectorTerm]>>,
}

impl StaticVolume {
    pub fn reaches(&self, node_labels: &Labels) -> bool {
        self.affinity.as_ref().is_none_or(|terms| admits(terms, node_labels))
    }
}

/// Returns whether a volume's node affinity admits a node with these labels (upstream: `volume.CheckNodeAffinity`,
/// which only passes the labels).
pub fn admits(terms: &[NodeSelectorTerm], node_labels: &Labels) -> bool {
    terms.iter().any(|term| term.matches("", node_labels))
}

/// Current requirements of a pod's claims and disks on nodes; part of the pod's class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct VolumeNeeds {
    /// Why no node is possible: a claim is missing, lost, not bound…
    pub refusal: Option<Arc<str>>,
    /// Node affinity of the bound volumes; sorted, without duplicates.
    pub bound: Box<[Box<[NodeSelectorTerm]>]>,
    /// A claim is bound to a volume that does not exist.
    pub volume_missing: bool,
    /// Zone and region labels of the bound volumes; sorted, without duplicates.
    pub zones: Box<[VolumeZone]>,
    /// Claims whose volume is bound or provisioned when the pod gets its node, in the order of selection: smallest
    /// first.
    pub unbound: Box<[UnboundClaim]>,
    /// Number of volumes that no other pod uses, by CSI driver; sorted.
    pub fresh: Box<[(Arc<str>, u32)]>,
    /// Volumes that may already be attached to a node for other pods; sorted, without duplicates.
    pub shared: Box<[CsiVolume]>,
    /// See [`PodVolumes::disks`].
    pub disks: Box<[Disk]>,
    /// `ReadWriteOncePod` claims that other pods use; sorted, without duplicates.
    pub claims_in_use: Box<[ClaimName]>,
}

/// A topology label of a bound volume: the node's label must have one of these values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeZone {
    pub key: Arc<str>,
    /// Sorted.
    pub values: Box<[Arc<str>]>,
}

/// An unbound claim of a class with `WaitForFirstConsumer`. It is unnamed: the pods of a StatefulSet are one class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UnboundClaim {
    pub size_bytes: i64,
    pub kind: VolumeKind,
    /// Labels that the volume must have; `None`: any.
    pub selector: Option<LabelSelector>,
    /// The node that its volume is being provisioned for.
    pub selected_node: Option<Arc<str>>,
    /// The volume pre-bound to this claim: no other one is used.
    pub prebound: Option<Arc<StaticVolume>>,
    /// Free volumes of the class that more than a few nodes reach, smallest first. Volumes that only a few nodes reach
    /// are part of those nodes' rows.
    pub candidates: Shared<Vec<Arc<StaticVolume>>>,
    /// `None`: volumes of this class are not provisioned dynamically.
    pub provision: Option<Provision>,
}

/// Dynamic provisioning for a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Provision {
    /// Allowed topologies: one must match with all its requirements; empty: everywhere.
    pub topologies: Shared<Vec<Box<[Requirement]>>>,
    /// Segments with enough storage capacity; `None`: the driver does not report capacity.
    pub segments: Option<Shared<Vec<LabelSelector>>>,
}

/// Maximum number of attached volumes of a node, by CSI driver; sorted.
pub type AttachLimits = Box<[(Arc<str>, i64)]>;

/// Attach limits and attachments of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStorage {
    pub limits: AttachLimits,
    /// Volumes attached according to the attach controller; sorted, without duplicates.
    pub attachments: Box<[CsiVolume]>,
}

impl NodeStorage {
    pub fn limit(&self, driver: &str) -> Option<i64> {
        let at = self.limits.binary_search_by(|(name, _)| (**name).cmp(driver)).ok()?;
        Some(self.limits[at].1)
    }
}

/// A large shared value with a cached hash: comparing two references to the same value is cheap.
#[derive(Debug)]
pub struct Shared<T> {
    hash: u64,
    value: Arc<T>,
}

impl<T: Hash> Shared<T> {
    pub fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Shared { hash: hasher.finish(), value: Arc::new(value) }
    }
}

impl<T: Hash + Default> Default for Shared<T> {
    fn default() -> Self {
        Shared::new(T::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { hash: self.hash, value: self.value.clone() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<'de, T: Hash + Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Shared::new)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.value, &other.value) || (self.hash == other.hash && self.value == other.value)
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_conflict_when_they_are_the_same_and_not_both_read_only() {
        let gce = |name: &str, read_only| Disk::GcePersistentDisk { name: name.into(), read_only };
        assert!(gce("a", false).conflicts(&gce("a", true)));
        assert!(!gce("a", true).conflicts(&gce("a", true)) && !gce("a", false).conflicts(&gce("b", false)));
        let ebs = |id: &str| Disk::AwsElasticBlockStore { id: id.into() };
        assert!(ebs("a").conflicts(&ebs("a")) && !ebs("a").conflicts(&ebs("b")));
        assert!(!ebs("a").conflicts(&gce("a", false)), "of another kind");
        let iscsi = |read_only| Disk::Iscsi { iqn: "iqn".into(), read_only };
        assert!(iscsi(true).conflicts(&iscsi(false)) && !iscsi(true).conflicts(&iscsi(true)));
        let rbd = |monitors: &[&str], image: &str, read_only| Disk::Rbd {
            monitors: monitors.iter().map(|name| Arc::from(*name)).collect(),
            pool: "rbd".into(),
            image: image.into(),
            read_only,
        };
        assert!(rbd(&["a", "b"], "x", true).conflicts(&rbd(&["b", "c"], "x", false)));
        assert!(!rbd(&["a"], "x", false).conflicts(&rbd(&["c"], "x", false)), "no monitor in common");
        assert!(!rbd(&["a"], "x", false).conflicts(&rbd(&["a"], "y", false)));
        assert!(!rbd(&["a"], "x", true).conflicts(&rbd(&["a"], "x", true)));
    }

    #[test]
    fn a_volume_has_all_access_modes_of_the_claim_or_does_not_serve_it() {
        let modes = |names: &[&str]| names.iter().copied().collect::<AccessModes>();
        let volume = modes(&["ReadWriteOnce", "ReadOnlyMany"]);
        assert!(volume.contains(modes(&["ReadOnlyMany"])) && volume.contains(modes(&[])));
        assert!(!volume.contains(modes(&["ReadWriteOnce", "ReadWriteOncePod"])));
        assert!(!volume.contains(modes(&["SomethingNew"])));
    }

    #[test]
    fn shared_values_are_equal_when_their_contents_are() {
        let (a, b) = (Shared::new(vec![1]), Shared::new(vec![1]));
        assert_eq!(a, b);
        assert_eq!(a, a.clone());
        assert_ne!(a, Shared::new(vec![2]));
    }
}
