//! Volumes, claims and the objects they depend on.
//!
//! A free volume that only a few hosts reach (a local disk) is offered to those hosts: it becomes part of their rows,
//! so that thousands of them cost a pod no more than one. Every other free volume is a candidate of every claim of its
//! storage class. `needs.rs` converts a pod's claims to what the rules read; `progress.rs` checks whether claims have
//! been bound as requested.

mod needs;
mod progress;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use needs::Resolved;
pub use progress::{BindingError, ClaimProgress, ClaimRequest, WantedVolume};

use super::{ObjectKind, ObjectName};
use berth_model::{
    AttachLimits, ClaimName, CsiVolume, LabelSelector, NodeStorage, Operator, Requirement, Shared,
    StaticVolume, VolumeKind,
};

/// `v1.PersistentVolume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// `metadata.resourceVersion`; 0 if it is not a number.
    pub version: u64,
    pub spec: Arc<StaticVolume>,
    /// `spec.claimRef`.
    pub claim: Option<ClaimRef>,
    /// `status.phase`.
    pub available: bool,
    pub deleting: bool,
    /// As identified by its CSI driver, also for an in-tree volume type that has been migrated to the driver.
    pub csi: Option<CsiVolume>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRef {
    pub claim: ClaimName,
    /// Empty: any claim with this name.
    pub uid: Arc<str>,
}

/// `v1.PersistentVolumeClaim`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub name: ClaimName,
    pub uid: Arc<str>,
    /// As in [`Volume`].
    pub version: u64,
    pub kind: VolumeKind,
    pub size_bytes: i64,
    pub selector: Option<LabelSelector>,
    /// `spec.volumeName`.
    pub volume: Option<Arc<str>>,
    /// Annotation `pv.kubernetes.io/bind-completed`.
    pub bind_completed: bool,
    /// Annotation `volume.kubernetes.io/selected-node`.
    pub selected_node: Option<Arc<str>>,
    /// Phase `Lost`: its volume is gone.
    pub lost: bool,
    pub deleting: bool,
    /// The uid of its controller.
    pub owner: Option<Arc<str>>,
}

impl Claim {
    /// Upstream: `isPVCFullyBound`.
    fn bound_to(&self) -> Option<&Arc<str>> {
        self.volume.as_ref().filter(|_| self.bind_completed)
    }
}

/// `storage.k8s.io/v1.StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageClass {
    pub name: Arc<str>,
    pub provisioner: Arc<str>,
    /// `WaitForFirstConsumer`.
    pub delayed: bool,
    /// As in [`berth_model::Provision`].
    pub topologies: Shared<Vec<Box<[Requirement]>>>,
}

/// `storage.k8s.io/v1.CSIStorageCapacity`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    pub object: ObjectName,
    pub class: Arc<str>,
    /// Largest volume that can be provisioned; `None`: unknown, treated as no capacity.
    pub bytes: Option<i64>,
    pub nodes: LabelSelector,
}

impl Capacity {
    fn suffices(&self, size_bytes: i64) -> bool {
        self.bytes.is_some_and(|bytes| bytes >= size_bytes)
    }
}

/// `storage.k8s.io/v1.VolumeAttachment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub name: Arc<str>,
    pub node: Arc<str>,
    pub driver: Arc<str>,
    pub volume: Arc<str>,
}

/// Effects of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeNews {
    /// Pods that use these.
    pub claims: BTreeSet<ClaimName>,
    /// All waiting pods that use claims.
    pub all_claims: bool,
    /// All pods that have a node and use claims.
    pub all_holdings: bool,
    /// Hosts (by the label `kubernetes.io/hostname`) whose reachable free volumes changed.
    pub hosts: BTreeSet<Arc<str>>,
    /// Nodes (by name) whose [`NodeStorage`] changed.
    pub nodes: BTreeSet<Arc<str>>,
}

impl VolumeNews {
    pub fn is_empty(&self) -> bool {
        *self == VolumeNews::default()
    }
}

const HOSTNAME: &str = "kubernetes.io/hostname";
/// A volume is local if at most this many hosts reach it.
const MAX_HOSTS: usize = 16;
/// Maximum number of cached claim sizes per storage class.
const MAX_SIZES: usize = 256;

/// Smallest first.
type Free = BTreeMap<(i64, Arc<str>), Arc<StaticVolume>>;

/// Receivers that a volume is offered to.
#[derive(Debug, PartialEq, Eq)]
enum Offer {
    Nobody,
    Hosts(BTreeSet<Arc<str>>),
    Class(Arc<str>),
    /// Pre-bound or bound to this claim.
    Claim(ClaimName),
}

/// All volumes, claims and related objects.
#[derive(Debug, Default)]
pub struct Volumes {
    volumes: HashMap<Arc<str>, Volume>,
    claims: HashMap<ClaimName, Claim>,
    classes: HashMap<Arc<str>, StorageClass>,
    limits: HashMap<Arc<str>, AttachLimits>,
    /// Drivers that publish storage capacity.
    drivers_with_capacity: BTreeSet<Arc<str>>,
    /// By storage class.
    capacities: HashMap<Arc<str>, BTreeMap<ObjectName, Capacity>>,
    class_of_capacity: HashMap<ObjectName, Arc<str>>,
    attachments: HashMap<Arc<str>, Attachment>,
    attachments_by_node: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    attachments_by_volume: HashMap<Arc<str>, BTreeSet<Arc<str>>>,

    /// Volumes and nodes assigned to claims, not yet confirmed by the API server.
    reserved: HashMap<Arc<str>, ClaimName>,
    selected: HashMap<ClaimName, Arc<str>>,

    offered_to_hosts: HashMap<Arc<str>, Free>,
    offered_to_classes: HashMap<Arc<str>, Free>,
    offered_to_claims: HashMap<ClaimName, BTreeSet<Arc<str>>>,
    /// Claims by their `spec.volumeName`.
    claims_by_volume: HashMap<Arc<str>, BTreeSet<ClaimName>>,

    /// Caches, computed on demand from the fields above.
    candidates: HashMap<Arc<str>, Shared<Vec<Arc<StaticVolume>>>>,
    segments: HashMap<Arc<str>, BTreeMap<i64, Shared<Vec<LabelSelector>>>>,
}

/// Adds a value to one set of an index.
fn note<K: std::hash::Hash + Eq + Clone, V: Ord>(index: &mut HashMap<K, BTreeSet<V>>, key: &K, value: V) {
    index.entry(key.clone()).or_default().insert(value);
}

fn forget<K: std::hash::Hash + Eq, V: Ord>(index: &mut HashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

impl Volumes {
    pub fn apply_volume(&mut self, volume: Volume) -> VolumeNews {
        let name = volume.spec.name.clone();
        let news = match self.volumes.get_mut(&name) {
            Some(known) if Volume { version: volume.version, ..known.clone() } == volume => {
                known.version = volume.version;
                return VolumeNews::default();
            }
            _ => self.change_volume(&name, |volumes| {
                if volume.claim.is_some() {
                    // Confirmed by the API server.
                    volumes.reserved.remove(&volume.spec.name);
                }
                volumes.volumes.insert(volume.spec.name.clone(), volume);
            }),
        };
        self.with_attached_nodes(news, &name)
    }

    pub fn delete_volume(&mut self, name: &Arc<str>) -> VolumeNews {
        let news = self.change_volume(name, |volumes| {
            volumes.volumes.remove(name);
            volumes.reserved.remove(name);
        });
        self.with_attached_nodes(news, name)
    }

    /// An attachment names its volume; the volume determines what is attached.
    fn with_attached_nodes(&self, mut news: VolumeNews, volume: &Arc<str>) -> VolumeNews {
        let attachments = self.attachments_by_volume.get(volume).into_iter().flatten();
        news.nodes.extend(attachments.map(|name| self.attachments[name].node.clone()));
        news
    }

    /// Changes a volume or its reservation, and updates its offer.
    fn change_volume(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Self)) -> VolumeNews {
        let mut news = VolumeNews::default();
        let before = self.volumes.get(name).map(|volume| (self.offer(volume), volume.spec.clone()));
        change(self);
        let after = self.volumes.get(name).map(|volume| (self.offer(volume), volume.spec.clone()));
        news.claims.extend(self.claims_by_volume.get(name).into_iter().flatten().cloned());
        if before == after {
            if let Some((Offer::Claim(claim), _)) = after {
                news.claims.insert(claim);
            }
            return news;
        }
        if let Some((offer, spec)) = before {
            self.withdraw(&offer, &spec, &mut news);
        }
        if let Some((offer, spec)) = after {
            self.extend(&offer, &spec, &mut news);
        }
        news
    }

    fn offer(&self, volume: &Volume) -> Offer {
        let reserved = self.reserved.get(&volume.spec.name);
        if let Some(claim) = reserved.or(volume.claim.as_ref().map(|reference| &reference.claim)) {
            return Offer::Claim(claim.clone());
        }
        if !volume.available || volume.deleting {
            return Offer::Nobody;
        }
        match hosts(&volume.spec) {
            Some(hosts) => Offer::Hosts(hosts),
            None => Offer::Class(volume.spec.kind.class.clone()),
        }
    }

    fn extend(&mut self, offer: &Offer, spec: &Arc<StaticVolume>, news: &mut VolumeNews) {
        let place = (spec.capacity_bytes, spec.name.clone());
        match offer {
            Offer::Nobody => {}
            Offer::Hosts(hosts) => {
                for host in hosts {
                    let free = self.offered_to_hosts.entry(host.clone()).or_default();
                    free.insert(place.clone(), spec.clone());
                }
                news.hosts.extend(hosts.iter().cloned());
            }
            Offer::Class(class) => {
                let free = self.offered_to_classes.entry(class.clone()).or_default();
                free.insert(place, spec.clone());
                self.candidates.remove(class);
                news.all_claims = true;
            }
            Offer::Claim(claim) => {
                note(&mut self.offered_to_claims, claim, spec.name.clone());
                news.claims.insert(claim.clone());
            }
        }
    }

    fn withdraw(&mut self, offer: &Offer, spec: &Arc<StaticVolume>, news: &mut VolumeNews) {
        let place = (spec.capacity_bytes, spec.name.clone());
        let take = |index: &mut HashMap<Arc<str>, Free>, key: &Arc<str>| {
            if let Some(free) = index.get_mut(key) {
                free.remove(&place);
                if free.is_empty() {
                    index.remove(key);
                }
            }
        };
        match offer {
            Offer::Nobody => {}
            Offer::Hosts(hosts) => {
                hosts.iter().for_each(|host| take(&mut self.offered_to_hosts, host));
                news.hosts.extend(hosts.iter().cloned());
            }
            Offer::Class(class) => {
                take(&mut self.offered_to_classes, class);
                self.candidates.remove(class);
                news.all_claims = true;
            }
            Offer::Claim(claim) => {
                forget(&mut self.offered_to_claims, claim, &spec.name);
                news.claims.insert(claim.clone());
            }
        }
    }

    pub fn has_claim(&self, name: &ClaimName) -> bool {
        self.claims.contains_key(name)
    }

    pub fn apply_claim(&mut self, claim: Claim) -> VolumeNews {
        let name = claim.name.clone();
        let known = self.claims.get_mut(&name);
        if let Some(known) = known {
            if (Claim { version: claim.version, ..known.clone() }) == claim {
                known.version = claim.version;
                return VolumeNews::default();
            }
            if let Some(volume) = known.volume.clone() {
                forget(&mut self.claims_by_volume, &volume, &name);
            }
        }
        if let Some(volume) = &claim.volume {
            note(&mut self.claims_by_volume, volume, name.clone());
        }
        self.claims.insert(name.clone(), claim);
        VolumeNews { claims: [name].into(), ..VolumeNews::default() }
    }

    pub fn delete_claim(&mut self, name: &ClaimName) -> VolumeNews {
        let Some(claim) = self.claims.remove(name) else {
            return VolumeNews::default();
        };
        if let Some(volume) = claim.volume {
            forget(&mut self.claims_by_volume, &volume, name);
        }
        VolumeNews { claims: [name.clone()].into(), ..VolumeNews::default() }
    }

    pub fn apply_class(&mut self, class: StorageClass) -> VolumeNews {
        let same = self.classes.get(&class.name) == Some(&class);
        self.classes.insert(class.name.clone(), class);
        VolumeNews { all_claims: !same, all_holdings: !same, ..VolumeNews::default() }
    }

    pub fn delete_class(&mut self, name: &str) -> VolumeNews {
        let known = self.classes.remove(name).is_some();
        VolumeNews { all_claims: known, all_holdings: known, ..VolumeNews::default() }
    }

    /// Upserts the maximum number of attached volumes of a node, by driver; sorted.
    pub fn apply_limits(&mut self, node: &Arc<str>, limits: AttachLimits) -> VolumeNews {
        let known = self.limits.insert(node.clone(), limits);
        let same = known.as_ref() == self.limits.get(node);
        VolumeNews { nodes: (!same).then(|| node.clone()).into_iter().collect(), ..VolumeNews::default() }
    }

    pub fn delete_limits(&mut self, node: &Arc<str>) -> VolumeNews {
        let known = self.limits.remove(node).is_some();
        VolumeNews { nodes: known.then(|| node.clone()).into_iter().collect(), ..VolumeNews::default() }
    }

    pub fn apply_driver(&mut self, name: &Arc<str>, tells_capacity: bool) -> VolumeNews {
        let changed = match tells_capacity {
            true => self.drivers_with_capacity.insert(name.clone()),
            false => self.drivers_with_capacity.remove(name),
        };
        VolumeNews { all_claims: changed, ..VolumeNews::default() }
    }

    pub fn apply_capacity(&mut self, capacity: Capacity) -> VolumeNews {
        let mut news = VolumeNews::default();
        let object = capacity.object.clone();
        if self.class_of_capacity.get(&object).is_some_and(|class| *class != capacity.class) {
            news = self.delete_capacity(&object);
        }
        self.class_of_capacity.insert(object.clone(), capacity.class.clone());
        let of_class = self.capacities.entry(capacity.class.clone()).or_default();
        let known = of_class.insert(object, capacity.clone());
        news.all_claims |= self.capacity_changed(&capacity.class, known.as_ref(), Some(&capacity));
        news
    }

    pub fn delete_capacity(&mut self, object: &ObjectName) -> VolumeNews {
        let Some(class) = self.class_of_capacity.remove(object) else {
            return VolumeNews::default();
        };
        let known = self.capacities.get_mut(&class).and_then(|of_class| of_class.remove(object));
        VolumeNews {
            all_claims: self.capacity_changed(&class, known.as_ref(), None),
            ..VolumeNews::default()
        }
    }

    /// Invalidates cached segments that contain a changed capacity. Returns whether any claim may have used them.
    fn capacity_changed(&mut self, class: &str, before: Option<&Capacity>, after: Option<&Capacity>) -> bool {
        let Some(segments) = self.segments.get_mut(class) else {
            return before != after;
        };
        let nodes = |capacity: Option<&Capacity>, size| {
            capacity.filter(|capacity| capacity.suffices(size)).map(|capacity| capacity.nodes.clone())
        };
        let asked = segments.len();
        if asked >= MAX_SIZES {
            // Sizes beyond the limit are not cached, but may have been used.
            segments.clear();
            return before != after;
        }
        segments.retain(|size, _| nodes(before, *size) == nodes(after, *size));
        segments.len() < asked
    }

    pub fn apply_attachment(&mut self, attachment: Attachment) -> VolumeNews {
        if self.attachments.get(&attachment.name) == Some(&attachment) {
            return VolumeNews::default();
        }
        let name = attachment.name.clone();
        let mut news = self.delete_attachment(&name);
        self.note_attached(&attachment, &mut news);
        note(&mut self.attachments_by_node, &attachment.node, name.clone());
        note(&mut self.attachments_by_volume, &attachment.volume, name.clone());
        self.attachments.insert(name, attachment);
        news
    }

    pub fn delete_attachment(&mut self, name: &Arc<str>) -> VolumeNews {
        let mut news = VolumeNews::default();
        if let Some(attachment) = self.attachments.remove(name) {
            self.note_attached(&attachment, &mut news);
            forget(&mut self.attachments_by_node, &attachment.node, name);
            forget(&mut self.attachments_by_volume, &attachment.volume, name);
        }
        news
    }

    fn note_attached(&self, attachment: &Attachment, news: &mut VolumeNews) {
        news.nodes.insert(attachment.node.clone());
        news.claims.extend(self.claims_by_volume.get(&attachment.volume).into_iter().flatten().cloned());
    }

    pub fn delete(&mut self, kind: ObjectKind, object: &ObjectName) -> VolumeNews {
        let ObjectName { namespace, name } = object.clone();
        match kind {
            ObjectKind::PersistentVolume => self.delete_volume(&name),
            ObjectKind::PersistentVolumeClaim => self.delete_claim(&ClaimName { namespace, name }),
            ObjectKind::StorageClass => self.delete_class(&name),
            ObjectKind::CsiNode => self.delete_limits(&name),
            ObjectKind::CsiDriver => self.apply_driver(&name, false),
            ObjectKind::CsiStorageCapacity => self.delete_capacity(object),
            ObjectKind::VolumeAttachment => self.delete_attachment(&name),
            _ => VolumeNews::default(),
        }
    }

    /// In no particular order.
    pub fn names(&self, kind: ObjectKind) -> Vec<ObjectName> {
        fn global<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Vec<ObjectName> {
            let nowhere: Arc<str> = Arc::from("");
            names.map(|name| ObjectName { namespace: nowhere.clone(), name: name.clone() }).collect()
        }
        match kind {
            ObjectKind::PersistentVolume => global(self.volumes.keys()),
            ObjectKind::PersistentVolumeClaim => {
                let name = |ClaimName { namespace, name }: &ClaimName| ObjectName {
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                self.claims.keys().map(name).collect()
            }
            ObjectKind::StorageClass => global(self.classes.keys()),
            ObjectKind::CsiNode => global(self.limits.keys()),
            ObjectKind::CsiDriver => global(self.drivers_with_capacity.iter()),
            ObjectKind::CsiStorageCapacity => self.class_of_capacity.keys().cloned().collect(),
            ObjectKind::VolumeAttachment => global(self.attachments.keys()),
            _ => Vec::new(),
        }
    }

    /// Returns the storage of a node; `None`: unknown.
    pub fn storage_of(&self, node: &str) -> Option<NodeStorage> {
        let attached = self.attachments_by_node.get(node).into_iter().flatten();
        let mut attachments: Vec<CsiVolume> = attached
            .filter_map(|name| {
                let attachment = &self.attachments[name];
                let volume = self.volumes.get(&attachment.volume)?.csi.as_ref()?;
                Some(CsiVolume { driver: attachment.driver.clone(), handle: volume.handle.clone() })
            })
            .collect();
        attachments.sort();
        attachments.dedup();
        let limits = self.limits.get(node).cloned().unwrap_or_default();
        (!limits.is_empty() || !attachments.is_empty())
            .then(|| NodeStorage { limits, attachments: attachments.into() })
    }

    /// Returns free volumes that only this and a few other hosts reach, smallest first.
    pub fn local(&self, host: &str) -> Option<Arc<Vec<Arc<StaticVolume>>>> {
        let free = self.offered_to_hosts.get(host)?;
        Some(Arc::new(free.values().cloned().collect()))
    }

    fn candidates(&mut self, class: &Arc<str>) -> Shared<Vec<Arc<StaticVolume>>> {
        let Some(free) = self.offered_to_classes.get(class) else {
            return Shared::default();
        };
        let make = || Shared::new(free.values().cloned().collect());
        self.candidates.entry(class.clone()).or_insert_with(make).clone()
    }

    /// Returns the segments where a volume of this size can be provisioned.
    fn segments(&mut self, class: &Arc<str>, size_bytes: i64) -> Shared<Vec<LabelSelector>> {
        let sizes = self.segments.entry(class.clone()).or_default();
        if let Some(known) = sizes.get(&size_bytes) {
            return known.clone();
        }
        let capacities = self.capacities.get(class).into_iter().flat_map(|of_class| of_class.values());
        let enough = capacities.filter(|capacity| capacity.suffices(size_bytes));
        let segments = Shared::new(united(enough.map(|capacity| &capacity.nodes)));
        if sizes.len() < MAX_SIZES {
            sizes.insert(size_bytes, segments.clone());
        }
        segments
    }
}

/// Returns the hosts that a volume is limited to, if they are few: each of its terms names hosts.
fn hosts(volume: &StaticVolume) -> Option<BTreeSet<Arc<str>>> {
    let mut hosts = BTreeSet::new();
    for term in volume.affinity.as_ref()? {
        let named = term.expressions.iter().find_map(|requirement| match &requirement.operator {
            Operator::In(values) if *requirement.key == *HOSTNAME => Some(values),
            _ => None,
        });
        hosts.extend(named?.iter().cloned());
    }
    (hosts.len() <= MAX_HOSTS).then_some(hosts)
}

/// Merges selectors without changing what they match together. Selectors for one value of one label, which node-local
/// drivers publish for every node, become one selector with all values.
fn united<'a>(selectors: impl Iterator<Item = &'a LabelSelector>) -> Vec<LabelSelector> {
    let mut by_key: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for selector in selectors {
        match selector {
            LabelSelector::All(requirements) => match &**requirements {
                [Requirement { key, operator: Operator::In(values) }] => {
                    by_key.entry(key.clone()).or_default().extend(values.iter().cloned());
                }
                _ => {
                    all.insert(selector.clone());
                }
            },
            LabelSelector::Nothing => {}
        }
    }
    for (key, values) in by_key {
        let operator = Operator::In(values.into_iter().collect());
        all.insert(LabelSelector::All([Requirement { key, operator }].into()));
    }
    all.into_iter().collect()
}
