//! Stores of other cluster objects that affect what a pod requires and what other pods read of it: namespaces, volumes,
//! disruption budgets, and the services and controllers that select pods.
//!
//! Must not depend on kube, tokio, clocks or nodes. Each store returns whether a change has an effect, and which pods
//! it affects.

mod budgets;
mod devices;
mod spreading;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use budgets::{Budgets, DisruptionBudget, Spending};
pub use devices::{Devices, DevicesChanged, ResolvedClaims};
pub use volumes::{
    Attachment, BindingError, Capacity, Claim, ClaimProgress, ClaimRef, ClaimRequest, Resolved, StorageClass,
    Volume, VolumeNews, Volumes, WantedVolume,
};

pub use spreading::{default_constraint, system_defaults};

use crate::gang::Allocation;
use crate::policy::ObservedPolicy;
use crate::profile::Profiles;
use crate::quota;
use berth_devices::{DeviceClass, ResourceClaim, ResourceSlice};
use berth_model::{
    AttachLimits, ClaimName, Holding, Identity, LabelSelector, Labels, Peer, Pod, PodSpec, Pool,
};
use spreading::Spreading;

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectKind {
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    DisruptionBudget,
    /// The kinds of [`AllocationKind`](crate::gang::AllocationKind).
    Allocation,
    PodGroup,
    CoschedulingPodGroup,
    AllocationPolicy,
    Quota,
}

impl ObjectKind {
    /// Kinds that select pods for default topology spread.
    pub const SPREADING: [ObjectKind; 4] = [
        ObjectKind::Service,
        ObjectKind::ReplicationController,
        ObjectKind::ReplicaSet,
        ObjectKind::StatefulSet,
    ];
}

/// Name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The part of an object that scheduling reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterObject {
    Namespace {
        name: Arc<str>,
        labels: Labels,
    },
    Volume(Volume),
    Claim(Claim),
    StorageClass(StorageClass),
    /// Maximum number of attached volumes of the node with this name, by driver; sorted.
    CsiNode {
        name: Arc<str>,
        limits: AttachLimits,
    },
    CsiDriver {
        name: Arc<str>,
        tells_capacity: bool,
    },
    Capacity(Capacity),
    Attachment(Attachment),
    /// One of [`ObjectKind::SPREADING`], and the pods it selects; for a service only single labels.
    Selecting {
        kind: ObjectKind,
        name: ObjectName,
        selector: LabelSelector,
    },
    ResourceClaim(Box<ResourceClaim>),
    ResourceSlice(Arc<ResourceSlice>),
    DeviceClass(DeviceClass),
    DisruptionBudget(DisruptionBudget),
    /// Not stored here: the scheduler passes it to the gangs.
    Allocation(Box<Allocation>),
    /// Not stored here: the scheduler passes it to the policies.
    Policy(Box<ObservedPolicy>),
    Quota(Box<quota::Quota>),
}

impl ClusterObject {
    /// Returns kind and name of an object that may come with pods and changes only what those require: a namespace, a claim without
    /// devices, a service or a controller. `None`: it is none of these.
    pub fn beside_key(&self) -> Option<(ObjectKind, ObjectName)> {
        let claimed =
            |claim: &ClaimName| ObjectName { namespace: claim.namespace.clone(), name: claim.name.clone() };
        Some(match self {
            ClusterObject::Namespace { name, .. } => {
                (ObjectKind::Namespace, ObjectName { namespace: "".into(), name: name.clone() })
            }
            ClusterObject::Claim(claim) => (ObjectKind::PersistentVolumeClaim, claimed(&claim.name)),
            ClusterObject::ResourceClaim(claim) if claim.allocation.is_none() => {
                (ObjectKind::ResourceClaim, claimed(&claim.name))
            }
            ClusterObject::Selecting { kind, name, .. } => (*kind, name.clone()),
            _ => return None,
        })
    }
}

/// Pods to re-evaluate after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Affected {
    Nothing,
    /// Waiting pods of this namespace.
    Waiting(Arc<str>),
    /// Waiting pods of this namespace whose controller has this name.
    Owned {
        namespace: Arc<str>,
        owner: Arc<str>,
    },
    /// All pods of this namespace, including bound ones: other pods read different labels of them now.
    Everyone(Arc<str>),
    /// Pods affected by volumes, see [`VolumeNews`].
    Volumes(Box<VolumeNews>),
    /// Pods and nodes affected by devices.
    Devices(Box<DevicesChanged>),
}

impl From<DevicesChanged> for Affected {
    fn from(changed: DevicesChanged) -> Self {
        if changed.is_empty() { Affected::Nothing } else { Affected::Devices(changed.into()) }
    }
}

impl From<VolumeNews> for Affected {
    fn from(news: VolumeNews) -> Self {
        if news.is_empty() { Affected::Nothing } else { Affected::Volumes(news.into()) }
    }
}

/// All stores.
#[derive(Debug, Default)]
pub struct ObjectStores {
    namespaces: HashMap<Arc<str>, Labels>,
    pub volumes: Volumes,
    pub devices: Devices,
    pub budgets: Budgets,
    profiles: Arc<Profiles>,
    /// Filled by the scheduler.
    pub quotas: quota::Index,
    /// Pods made from one template share their [`Peer`].
    peers: Pool<Peer>,
    /// Pods made from one template share their spec.
    specs: Pool<PodSpec>,
    spreading: Spreading,
}

impl ObjectStores {
    /// Creates empty stores; the profiles add to the specs of pods.
    pub fn new(profiles: Arc<Profiles>) -> Self {
        ObjectStores { profiles, ..ObjectStores::default() }
    }

    /// Upserts an object.
    pub fn apply(&mut self, object: ClusterObject) -> Affected {
        match object {
            ClusterObject::Namespace { name, labels } => {
                let known = self.namespaces.insert(name.clone(), labels.clone());
                if known.as_ref() == Some(&labels) { Affected::Nothing } else { Affected::Everyone(name) }
            }
            ClusterObject::Volume(volume) => self.volumes.apply_volume(volume).into(),
            ClusterObject::Claim(claim) => self.volumes.apply_claim(claim).into(),
            ClusterObject::StorageClass(class) => self.volumes.apply_class(class).into(),
            ClusterObject::CsiNode { name, limits } => self.volumes.apply_limits(&name, limits).into(),
            ClusterObject::CsiDriver { name, tells_capacity } => {
                self.volumes.apply_driver(&name, tells_capacity).into()
            }
            ClusterObject::Capacity(capacity) => self.volumes.apply_capacity(capacity).into(),
            ClusterObject::Attachment(attachment) => self.volumes.apply_attachment(attachment).into(),
            ClusterObject::Selecting { kind, name, selector } => self.spreading.apply(kind, name, selector),
            ClusterObject::DisruptionBudget(budget) => {
                self.budgets.apply(budget);
                Affected::Nothing
            }
            ClusterObject::ResourceClaim(claim) => self.devices.apply_claim(*claim).into(),
            ClusterObject::ResourceSlice(slice) => self.devices.apply_slice(slice).into(),
            ClusterObject::DeviceClass(class) => self.devices.apply_class(class).into(),
            ClusterObject::Allocation(_) | ClusterObject::Policy(_) | ClusterObject::Quota(_) => {
                Affected::Nothing
            }
        }
    }

    /// Returns the labels of a namespace; `None`: it is not known.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }

    /// Returns the existing namespaces with their labels.
    pub fn namespaces(&self) -> impl Iterator<Item = (&Arc<str>, &Labels)> {
        self.namespaces.iter()
    }

    /// Returns whether an object with this [key](ClusterObject::beside_key) exists.
    pub fn has(&self, kind: ObjectKind, object: &ObjectName) -> bool {
        let claim = || ClaimName { namespace: object.namespace.clone(), name: object.name.clone() };
        match kind {
            ObjectKind::Namespace => self.namespaces.contains_key(&object.name),
            ObjectKind::PersistentVolumeClaim => self.volumes.has_claim(&claim()),
            ObjectKind::ResourceClaim => self.devices.has_claim(&claim()),
            kind => self.spreading.has(kind, object),
        }
    }

    /// Deletes an object.
    pub fn delete(&mut self, kind: ObjectKind, object: &ObjectName) -> Affected {
        match kind {
            // Its pods are being deleted, too; their known labels stay valid until then.
            ObjectKind::Namespace => {
                self.namespaces.remove(&object.name);
                Affected::Nothing
            }
            ObjectKind::Service
            | ObjectKind::ReplicationController
            | ObjectKind::ReplicaSet
            | ObjectKind::StatefulSet => self.spreading.delete(kind, object),
            ObjectKind::DisruptionBudget => {
                self.budgets.delete(object);
                Affected::Nothing
            }
            ObjectKind::ResourceClaim => {
                let (namespace, name) = (object.namespace.clone(), object.name.clone());
                self.devices.delete_claim(&ClaimName { namespace, name }).into()
            }
            ObjectKind::ResourceSlice => self.devices.delete_slice(&object.name).into(),
            ObjectKind::DeviceClass => self.devices.delete_class(&object.name).into(),
            _ => self.volumes.delete(kind, object).into(),
        }
    }

    /// Handles a complete list of all objects of this kind: deletes objects that are not in it.
    pub fn retain(&mut self, kind: ObjectKind, listed: &HashSet<ObjectName>) -> Vec<Affected> {
        let gone: Vec<_> = self.names(kind).into_iter().filter(|name| !listed.contains(name)).collect();
        gone.iter().map(|name| self.delete(kind, name)).collect()
    }

    /// Sorted.
    fn names(&self, kind: ObjectKind) -> Vec<ObjectName> {
        let mut names: Vec<_> = match kind {
            ObjectKind::Namespace => {
                let name = |name: &Arc<str>| ObjectName { namespace: Arc::from(""), name: name.clone() };
                self.namespaces.keys().map(name).collect()
            }
            ObjectKind::Service
            | ObjectKind::ReplicationController
            | ObjectKind::ReplicaSet
            | ObjectKind::StatefulSet => self.spreading.names(kind),
            ObjectKind::DisruptionBudget => self.budgets.names().cloned().collect(),
            ObjectKind::ResourceClaim | ObjectKind::ResourceSlice | ObjectKind::DeviceClass => {
                self.devices.names(kind)
            }
            _ => self.volumes.names(kind),
        };
        names.sort();
        names
    }

    /// Returns the pod's usage of its node and what other pods there read of it, with the labels of its namespace.
    pub fn holding(&mut self, pod: &Pod) -> Holding {
        let volumes = pod.volumes.as_ref().map(|volumes| Arc::new(self.volumes.held(pod, volumes)));
        let devices = self.devices.names_of(pod);
        let peer = self.peer(&pod.peer);
        let quota = self.quotas.find(&peer.identity).cloned();
        Holding { usage: pod.usage.clone(), peer, volumes, devices, priority: pod.priority, quota }
    }

    fn peer(&mut self, bare: &Arc<Peer>) -> Arc<Peer> {
        let known = self.namespaces.get(&bare.identity.namespace);
        let namespace_labels = known.cloned().unwrap_or_default();
        if bare.identity.namespace_labels == namespace_labels {
            return bare.clone();
        }
        let identity = Identity { namespace_labels, ..bare.identity.clone() };
        self.peers.share(Peer { identity, ..Peer::clone(bare) })
    }

    /// Recomputes the holding of a charged pod, after its namespace or one of its claims changed.
    pub fn renewed(&mut self, holding: &Holding) -> Holding {
        let volumes = holding.volumes.as_ref().map(|held| Arc::new(self.volumes.renewed(held)));
        let peer = self.peer(&holding.peer);
        let quota = self.quotas.find(&peer.identity).cloned();
        Holding { peer, volumes, quota, ..holding.clone() }
    }

    /// Returns the pod's requirements, completed from its profile and cluster objects. `used` returns whether a bound pod uses a claim.
    pub fn effective_spec(
        &mut self,
        spec: &Arc<PodSpec>,
        pod: &Pod,
        used: &dyn Fn(&ClaimName) -> bool,
    ) -> Arc<PodSpec> {
        let spec = self.profiled_spec(spec, pod);
        let volumes = pod.volumes.as_ref().map(|volumes| self.volumes.resolve(pod, volumes, used).needs);
        let devices = self.devices.needs(pod);
        if volumes.is_none() && devices.is_none() {
            return spec;
        }
        let (volumes, devices) = (volumes.map(Arc::new), devices.map(Arc::new));
        Arc::new(PodSpec { volumes, devices, ..PodSpec::clone(&spec) })
    }

    /// Returns `spec` with what the pod's profile adds.
    fn profiled_spec(&mut self, spec: &Arc<PodSpec>, pod: &Pod) -> Arc<PodSpec> {
        let profile = self.profiles.of(&pod.scheduler_name);
        let spread = self.spreading.constraints(&profile.default_spread, spec, pod);
        let node_affinity = profile.add_affinity(&spec.node_affinity);
        if spread.is_none() && node_affinity.is_none() {
            return spec.clone();
        }
        let mut spec = PodSpec::clone(spec);
        spec.spread = spread.unwrap_or(spec.spread);
        spec.node_affinity = node_affinity.unwrap_or(spec.node_affinity);
        self.specs.share(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use berth_model::{NodeAffinity, NodeSelectorTerm, PreferredTerm};

    fn namespace(name: &str, team: &str) -> ClusterObject {
        ClusterObject::Namespace { name: name.into(), labels: [("team", team)].into_iter().collect() }
    }

    fn pod(namespace: &str) -> Pod {
        let identity = Identity { namespace: namespace.into(), ..Identity::default() };
        Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..Pod::default() }
    }

    #[test]
    fn a_namespace_that_is_relabelled_changes_what_others_see_of_all_its_pods() {
        let mut objects = ObjectStores::default();
        assert_eq!(objects.apply(namespace("x", "a")), Affected::Everyone("x".into()));
        assert_eq!(objects.apply(namespace("x", "a")), Affected::Nothing);
        let before = objects.holding(&pod("x"));
        assert_eq!(before.peer.identity.namespace_labels.get("team"), Some("a"));
        assert!(Arc::ptr_eq(&before.peer, &objects.holding(&pod("x")).peer), "pods alike share it");
        assert_eq!(objects.apply(namespace("x", "b")), Affected::Everyone("x".into()));
        let after = objects.renewed(&before);
        assert_eq!(after.peer.identity.namespace_labels.get("team"), Some("b"));
        assert!(objects.holding(&pod("y")).peer.identity.namespace_labels.is_empty());
    }

    #[test]
    fn a_profile_adds_its_node_affinity_to_the_pods_of_its_name_alone() {
        let term = |name: &str| {
            let fields = [berth_model::FieldRequirement::NameIsNot(name.into())].into();
            NodeSelectorTerm { fields, ..NodeSelectorTerm::default() }
        };
        let preferred = |weight, name| PreferredTerm { weight, term: term(name) };
        let added_affinity = NodeAffinity {
            enforced: Some([term("x")].into()),
            preferred: [preferred(5, "y")].into(),
            required: None,
        };
        let named = [(Arc::from("far"), Profile { added_affinity, ..Profile::default() })].into();
        let mut objects = ObjectStores::new(Profiles { named, ..Profiles::default() }.into());
        let own = NodeAffinity { preferred: [preferred(9, "z")].into(), ..NodeAffinity::default() };
        let spec = Arc::new(PodSpec { node_affinity: own, ..PodSpec::default() });
        let mut of = |scheduler: &str| {
            let pod = Pod { scheduler_name: scheduler.into(), ..pod("a") };
            objects.effective_spec(&spec, &pod, &|_| false)
        };
        let far = of("far");
        assert!(Arc::ptr_eq(&far, &of("far")), "pods made from one template share it");
        assert_eq!(far.node_affinity.enforced.as_deref(), Some(&[term("x")][..]));
        assert_eq!(*far.node_affinity.preferred, [preferred(5, "y"), preferred(9, "z")]);
        assert!(Arc::ptr_eq(&spec, &of("near")));
    }

    #[test]
    fn a_namespace_missing_from_a_list_is_forgotten() {
        let mut objects = ObjectStores::default();
        objects.apply(namespace("x", "a"));
        objects.apply(namespace("y", "a"));
        let y = ObjectName { namespace: "".into(), name: "y".into() };
        objects.retain(ObjectKind::Namespace, &HashSet::from([y]));
        assert_eq!(objects.apply(namespace("y", "a")), Affected::Nothing);
        assert_eq!(objects.apply(namespace("x", "a")), Affected::Everyone("x".into()));
    }
}
