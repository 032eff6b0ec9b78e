//! The other objects of a cluster that decide what a pod wants and what other pods see of it: namespaces, and what makes
//! pods belong together.
//!
//! May not know: kube, tokio, clocks, nodes. Each store answers whether a change changes anything, and for whom.

mod budgets;
mod spreading;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub use budgets::{Budgets, DisruptionBudget, Spending};
pub use volumes::{
    Attachment, Capacity, Claim, ClaimRef, ClaimRequest, Progress, Resolved, StorageClass, Volume,
    VolumeNews, Volumes, Wanted,
};

pub use spreading::{default_constraint, system_defaults};

use crate::gang::Allocation;
use crate::policy::Policy;
use crate::quota;
use berth_model::{
    AttachLimits, ClaimName, Holding, Identity, LabelSelector, Labels, Peer, Pod, PodSpec, Pool, Spread,
};
use spreading::Spreading;

/// What kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
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
    DisruptionBudget,
    /// The kinds of [`AllocationKind`](crate::gang::AllocationKind).
    Allocation,
    PodGroup,
    CoschedulingPodGroup,
    AllocationPolicy,
    Quota,
}

impl Kind {
    /// What says which pods belong together.
    pub const SPREADING: [Kind; 4] =
        [Kind::Service, Kind::ReplicationController, Kind::ReplicaSet, Kind::StatefulSet];
}

/// An object by all its names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// Empty for objects that belong to no namespace.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The part of an object that scheduling reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    Namespace {
        name: Arc<str>,
        labels: Labels,
    },
    Volume(Volume),
    Claim(Claim),
    StorageClass(StorageClass),
    /// How many volumes the node of this name can have attached, by driver; sorted.
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
    /// One of [`Kind::SPREADING`], and the pods it selects; of a service single labels only.
    Selecting {
        kind: Kind,
        name: ObjectName,
        selector: LabelSelector,
    },
    DisruptionBudget(DisruptionBudget),
    /// Not kept here: the scheduler hands it to the gangs.
    Allocation(Box<Allocation>),
    /// Not kept here: the scheduler hands it to the policies.
    Policy(Box<Policy>),
    Quota(Box<quota::Quota>),
}

/// Which pods must be looked at again after a change.
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
    /// All pods of this namespace, those with a node too: others see them differently now.
    Everyone(Arc<str>),
    /// See there.
    Volumes(Box<VolumeNews>),
}

impl From<VolumeNews> for Affected {
    fn from(news: VolumeNews) -> Self {
        if news.is_empty() { Affected::Nothing } else { Affected::Volumes(news.into()) }
    }
}

/// Everything known.
#[derive(Debug, Default)]
pub struct Objects {
    namespaces: HashMap<Arc<str>, Labels>,
    pub volumes: Volumes,
    pub budgets: Budgets,
    /// The scheduler hands them to the index.
    pub quotas: quota::Index,
    /// Pods made from one template share what others see of them.
    peers: Pool<Peer>,
    spreading: Spreading,
}

impl Objects {
    /// With the constraints that pods get that have none of their own; their selectors are not read.
    pub fn new(default_spread: Spread) -> Self {
        Objects { spreading: Spreading::new(default_spread), ..Objects::default() }
    }

    /// The object is now so.
    pub fn apply(&mut self, object: Object) -> Affected {
        match object {
            Object::Namespace { name, labels } => {
                let known = self.namespaces.insert(name.clone(), labels.clone());
                if known.as_ref() == Some(&labels) { Affected::Nothing } else { Affected::Everyone(name) }
            }
            Object::Volume(volume) => self.volumes.apply_volume(volume).into(),
            Object::Claim(claim) => self.volumes.apply_claim(claim).into(),
            Object::StorageClass(class) => self.volumes.apply_class(class).into(),
            Object::CsiNode { name, limits } => self.volumes.apply_limits(&name, limits).into(),
            Object::CsiDriver { name, tells_capacity } => {
                self.volumes.apply_driver(&name, tells_capacity).into()
            }
            Object::Capacity(capacity) => self.volumes.apply_capacity(capacity).into(),
            Object::Attachment(attachment) => self.volumes.apply_attachment(attachment).into(),
            Object::Selecting { kind, name, selector } => self.spreading.apply(kind, name, selector),
            Object::DisruptionBudget(budget) => {
                self.budgets.apply(budget);
                Affected::Nothing
            }
            Object::Allocation(_) | Object::Policy(_) | Object::Quota(_) => Affected::Nothing,
        }
    }

    /// Those that exist, each with its labels.
    pub fn namespaces(&self) -> impl Iterator<Item = (&Arc<str>, &Labels)> {
        self.namespaces.iter()
    }

    /// The object is gone.
    pub fn delete(&mut self, kind: Kind, object: &ObjectName) -> Affected {
        match kind {
            // Its pods are going, too; what is known of it stands until then.
            Kind::Namespace => {
                self.namespaces.remove(&object.name);
                Affected::Nothing
            }
            Kind::Service | Kind::ReplicationController | Kind::ReplicaSet | Kind::StatefulSet => {
                self.spreading.delete(kind, object)
            }
            Kind::DisruptionBudget => {
                self.budgets.delete(object);
                Affected::Nothing
            }
            _ => self.volumes.delete(kind, object).into(),
        }
    }

    /// A list of all objects of this kind is complete: the others are gone.
    pub fn retain(&mut self, kind: Kind, listed: &HashSet<ObjectName>) -> Vec<Affected> {
        let gone: Vec<_> = self.names(kind).into_iter().filter(|name| !listed.contains(name)).collect();
        gone.iter().map(|name| self.delete(kind, name)).collect()
    }

    /// Sorted.
    fn names(&self, kind: Kind) -> Vec<ObjectName> {
        let mut names: Vec<_> = match kind {
            Kind::Namespace => {
                let name = |name: &Arc<str>| ObjectName { namespace: Arc::from(""), name: name.clone() };
                self.namespaces.keys().map(name).collect()
            }
            Kind::Service | Kind::ReplicationController | Kind::ReplicaSet | Kind::StatefulSet => {
                self.spreading.names(kind)
            }
            Kind::DisruptionBudget => self.budgets.names().cloned().collect(),
            _ => self.volumes.names(kind),
        };
        names.sort();
        names
    }

    /// What the pod takes of its node and shows there, with the labels of its namespace.
    pub fn holding(&mut self, pod: &Pod) -> Holding {
        let volumes = pod.volumes.as_ref().map(|volumes| Arc::new(self.volumes.held(pod, volumes)));
        let peer = self.peer(&pod.peer);
        let quota = self.quotas.find(&peer.identity).cloned();
        Holding { usage: pod.usage.clone(), peer, volumes, priority: pod.priority, quota }
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

    /// The same for a pod that is charged already, after its namespace or a claim of it changed.
    pub fn renewed(&mut self, holding: &Holding) -> Holding {
        let volumes = holding.volumes.as_ref().map(|held| Arc::new(self.volumes.renewed(held)));
        let peer = self.peer(&holding.peer);
        let quota = self.quotas.find(&peer.identity).cloned();
        Holding { peer, volumes, quota, ..holding.clone() }
    }

    /// What the pod wants, with what the cluster adds to that. `used` tells whether a pod that has a node uses a claim.
    pub fn wishes(
        &mut self,
        spec: &Arc<PodSpec>,
        pod: &Pod,
        used: &dyn Fn(&ClaimName) -> bool,
    ) -> Arc<PodSpec> {
        let spec = self.spreading.wishes(spec, pod);
        let Some(volumes) = &pod.volumes else {
            return spec;
        };
        let needs = self.volumes.resolve(pod, volumes, used).needs;
        Arc::new(PodSpec { volumes: Some(Arc::new(needs)), ..PodSpec::clone(&spec) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, team: &str) -> Object {
        Object::Namespace { name: name.into(), labels: [("team", team)].into_iter().collect() }
    }

    fn pod(namespace: &str) -> Pod {
        let identity = Identity { namespace: namespace.into(), ..Identity::default() };
        Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..Pod::default() }
    }

    #[test]
    fn a_namespace_that_is_relabelled_changes_what_others_see_of_all_its_pods() {
        let mut objects = Objects::default();
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
    fn a_namespace_missing_from_a_list_is_forgotten() {
        let mut objects = Objects::default();
        objects.apply(namespace("x", "a"));
        objects.apply(namespace("y", "a"));
        let y = ObjectName { namespace: "".into(), name: "y".into() };
        objects.retain(Kind::Namespace, &HashSet::from([y]));
        assert_eq!(objects.apply(namespace("y", "a")), Affected::Nothing);
        assert_eq!(objects.apply(namespace("x", "a")), Affected::Everyone("x".into()));
    }
}
