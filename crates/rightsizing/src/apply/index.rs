//! Index of the objects that sizes depend on: VPAs, ServiceScaler sizes, workloads and LimitRanges. Kept up to date by watches,
//! so that neither a review nor a round needs an API request for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::limit_range::Ranges;
use super::mode::Mode;
use super::pod::SizedPod;
use crate::recommend::store::Workload;
use crate::recommend::{OwnerRef, UnixNanos, Vpa};
use berth_model::{Oldest, Ranked};

/// Maximum depth of an owner chain. Real chains are short; a cycle is an error of the user.
const DEPTH_MAX: usize = 8;
/// Maximum number of VPAs of a namespace: the oldest count. Each costs a round of the recommender a look at its target.
pub const VPAS_MAX: usize = 4_096;

/// Namespace and name of an object.
pub type NamespacedName = (Arc<str>, Arc<str>);

/// Kinds that are indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizingKind {
    Vpa,
    ServiceScaler,
    LimitRange,
    ReplicaSet,
    ReplicationController,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

impl SizingKind {
    pub const ALL: [SizingKind; 10] = [
        SizingKind::Vpa,
        SizingKind::ServiceScaler,
        SizingKind::LimitRange,
        SizingKind::ReplicaSet,
        SizingKind::ReplicationController,
        SizingKind::Deployment,
        SizingKind::StatefulSet,
        SizingKind::DaemonSet,
        SizingKind::Job,
        SizingKind::CronJob,
    ];
    /// Kinds that own pods, or owners of pods.
    pub const WORKLOADS: [SizingKind; 7] = [
        SizingKind::ReplicaSet,
        SizingKind::ReplicationController,
        SizingKind::Deployment,
        SizingKind::StatefulSet,
        SizingKind::DaemonSet,
        SizingKind::Job,
        SizingKind::CronJob,
    ];

    fn of(owner: &OwnerRef) -> Option<SizingKind> {
        Some(match (owner.group(), owner.kind.as_str()) {
            ("apps", "ReplicaSet") => SizingKind::ReplicaSet,
            ("", "ReplicationController") => SizingKind::ReplicationController,
            ("apps", "Deployment") => SizingKind::Deployment,
            ("apps", "StatefulSet") => SizingKind::StatefulSet,
            ("apps", "DaemonSet") => SizingKind::DaemonSet,
            ("batch", "Job") => SizingKind::Job,
            ("batch", "CronJob") => SizingKind::CronJob,
            _ => return None,
        })
    }
}

/// Object received from a watch.
#[derive(Debug)]
pub enum SizingObject {
    Vpa(Arc<Vpa>),
    /// Sizes of a ServiceScaler, in the form of a VPA; `None`: it sets none now.
    ServiceScaler(Option<Arc<Vpa>>),
    LimitRange(Ranges),
    /// Any other kind.
    Workload(WorkloadObject),
}

/// An object of one of the kinds [`SizingKind::WORKLOADS`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadObject {
    pub uid: Arc<str>,
    /// Its own controller.
    pub owner: Option<OwnerRef>,
    /// Value of the label by which it opts out of created VPAs.
    pub label: Option<String>,
    /// Number of pods that it wants; `None`: its kind does not say.
    pub replicas: Option<usize>,
}

/// Whether the objects of a kind are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListState {
    NotListed,
    /// Its first list is complete.
    Listed,
    /// The API server does not serve the kind.
    NotServed,
    /// The API server refuses to list it; objects that were known stay.
    Forbidden,
}

/// VPA and LimitRanges that apply to a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Governed {
    pub vpa: Arc<Vpa>,
    pub mode: Mode,
    pub ranges: Arc<Ranges>,
}

/// LimitRanges of a namespace by name, and all of them combined.
type RangesOf = (BTreeMap<Arc<str>, Ranges>, Arc<Ranges>);

/// Objects that set sizes, by target.
#[derive(Debug)]
struct Sizing {
    objects: BTreeMap<NamespacedName, Arc<Vpa>>,
    /// Objects that target each workload, oldest first.
    targeting: BTreeMap<Workload, BTreeSet<(UnixNanos, NamespacedName)>>,
    /// Objects beyond the limit of their namespace, which have no effect.
    beyond: BTreeMap<NamespacedName, Arc<Vpa>>,
    oldest: Oldest<NamespacedName>,
}

impl Default for Sizing {
    fn default() -> Self {
        Sizing {
            objects: BTreeMap::new(),
            targeting: BTreeMap::new(),
            beyond: BTreeMap::new(),
            oldest: Oldest::new(VPAS_MAX),
        }
    }
}

impl Sizing {
    fn apply(&mut self, name: NamespacedName, vpa: Arc<Vpa>) {
        self.delete(&name);
        match self.oldest.insert(&name.0, vpa.created, name.clone()) {
            Ranked::Beyond => drop(self.beyond.insert(name, vpa)),
            Ranked::Counted => self.count(name, vpa),
            Ranked::Displaced(youngest) => {
                if let Some(displaced) = self.discount(&youngest) {
                    self.beyond.insert(youngest, displaced);
                }
                self.count(name, vpa);
            }
        }
    }

    fn delete(&mut self, name: &NamespacedName) {
        let Some(vpa) = self.beyond.remove(name).or_else(|| self.discount(name)) else { return };
        if let Some(promoted) = self.oldest.remove(&name.0, vpa.created, name)
            && let Some(vpa) = self.beyond.remove(&promoted)
        {
            self.count(promoted, vpa);
        }
    }

    fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.objects.keys().chain(self.beyond.keys())
    }

    fn count(&mut self, name: NamespacedName, vpa: Arc<Vpa>) {
        if let Some(workload) = vpa.workload() {
            self.targeting.entry(workload).or_default().insert((vpa.created, name.clone()));
        }
        self.objects.insert(name, vpa);
    }

    fn discount(&mut self, name: &NamespacedName) -> Option<Arc<Vpa>> {
        let vpa = self.objects.remove(name)?;
        if let Some(workload) = vpa.workload()
            && let Some(targeting) = self.targeting.get_mut(&workload)
        {
            targeting.remove(&(vpa.created, name.clone()));
            if targeting.is_empty() {
                self.targeting.remove(&workload);
            }
        }
        Some(vpa)
    }

    /// Returns the oldest of the objects that `counts` accepts, for the topmost targeted owner in the chain.
    fn of(&self, chain: &[OwnerRef], namespace: &Arc<str>, counts: fn(&Vpa) -> bool) -> Option<Arc<Vpa>> {
        chain.iter().rev().find_map(|owner| {
            let targeting = self.targeting.get(&owner.workload(namespace))?;
            let on =
                |(_, name): &(UnixNanos, NamespacedName)| self.objects.get(name).filter(|vpa| counts(vpa));
            targeting.iter().find_map(on).cloned()
        })
    }
}

/// Index of all kinds.
#[derive(Debug)]
pub struct SizingIndex {
    vpas: Sizing,
    scalers: Sizing,
    workloads: BTreeMap<(SizingKind, NamespacedName), WorkloadObject>,
    /// By namespace.
    ranges: BTreeMap<Arc<str>, RangesOf>,
    followed: BTreeSet<SizingKind>,
    /// Kinds of which a list was complete once.
    listed: BTreeSet<SizingKind>,
    /// Kinds that cannot be listed now, with the state.
    unavailable: BTreeMap<SizingKind, ListState>,
}

impl Default for SizingIndex {
    /// Follows all kinds.
    fn default() -> Self {
        SizingIndex::new(SizingKind::ALL.into())
    }
}

impl SizingIndex {
    /// Creates an index of these kinds; of the others there are no objects.
    pub fn new(followed: BTreeSet<SizingKind>) -> SizingIndex {
        SizingIndex {
            vpas: Sizing::default(),
            scalers: Sizing::default(),
            workloads: BTreeMap::new(),
            ranges: BTreeMap::new(),
            followed,
            listed: BTreeSet::new(),
            unavailable: BTreeMap::new(),
        }
    }

    pub fn follows(&self, kind: SizingKind) -> bool {
        self.followed.contains(&kind)
    }

    /// Returns whether the kind of this owner is followed, and has been listed.
    pub fn follows_owner(&self, owner: &OwnerRef) -> bool {
        SizingKind::of(owner).is_some_and(|kind| self.state(kind) == ListState::Listed)
    }

    /// Returns whether the initial lists of all followed kinds are complete.
    pub fn is_complete(&self) -> bool {
        self.followed.is_subset(&self.listed)
    }

    pub fn state(&self, kind: SizingKind) -> ListState {
        let known = if self.listed.contains(&kind) { ListState::Listed } else { ListState::NotListed };
        self.unavailable.get(&kind).copied().unwrap_or(known)
    }

    pub fn apply(&mut self, kind: SizingKind, name: NamespacedName, object: SizingObject) {
        match object {
            SizingObject::Vpa(vpa) => self.vpas.apply(name, vpa),
            SizingObject::ServiceScaler(Some(sizes)) => self.scalers.apply(name, sizes),
            SizingObject::ServiceScaler(None) => self.scalers.delete(&name),
            SizingObject::LimitRange(ranges) => {
                let (all, joined) = self.ranges.entry(name.0).or_default();
                all.insert(name.1, ranges);
                *joined = join(all);
            }
            SizingObject::Workload(workload) => drop(self.workloads.insert((kind, name), workload)),
        }
    }

    pub fn delete(&mut self, kind: SizingKind, name: &NamespacedName) {
        match kind {
            SizingKind::Vpa => self.vpas.delete(name),
            SizingKind::ServiceScaler => self.scalers.delete(name),
            SizingKind::LimitRange => {
                if let Some((all, joined)) = self.ranges.get_mut(&name.0) {
                    all.remove(&name.1);
                    *joined = join(all);
                    if all.is_empty() {
                        self.ranges.remove(&name.0);
                    }
                }
            }
            kind => drop(self.workloads.remove(&(kind, name.clone()))),
        }
    }

    /// Removes the objects of a kind that are not in a complete list.
    pub fn retain(&mut self, kind: SizingKind, listed: &BTreeSet<NamespacedName>) {
        self.listed.insert(kind);
        self.unavailable.remove(&kind);
        let of = |sizing: &Sizing| -> Vec<NamespacedName> {
            sizing.names().filter(|name| !listed.contains(*name)).cloned().collect()
        };
        let gone: Vec<NamespacedName> = match kind {
            SizingKind::Vpa => of(&self.vpas),
            SizingKind::ServiceScaler => of(&self.scalers),
            SizingKind::LimitRange => self
                .ranges
                .iter()
                .flat_map(|(namespace, (all, _))| all.keys().map(|name| (namespace.clone(), name.clone())))
                .filter(|name| !listed.contains(name))
                .collect(),
            kind => {
                let of_kind =
                    self.workloads.keys().filter(|(of, name)| *of == kind && !listed.contains(name));
                of_kind.map(|(_, name)| name.clone()).collect()
            }
        };
        for name in gone {
            self.delete(kind, &name);
        }
    }

    /// The API server does not serve this kind: there are no objects.
    pub fn not_served(&mut self, kind: SizingKind) {
        self.retain(kind, &BTreeSet::new());
        self.unavailable.insert(kind, ListState::NotServed);
    }

    /// The API server refuses to list this kind.
    pub fn forbidden(&mut self, kind: SizingKind) {
        self.unavailable.insert(kind, ListState::Forbidden);
    }

    /// Returns a workload by its reference; `None`: unknown, or not of a followed kind.
    pub fn workload(&self, namespace: &Arc<str>, owner: &OwnerRef) -> Option<&WorkloadObject> {
        self.workloads.get(&(SizingKind::of(owner)?, (namespace.clone(), owner.name.as_str().into())))
    }

    /// Returns the VPAs that count, by namespace and name.
    pub fn vpas(&self) -> impl Iterator<Item = &Arc<Vpa>> {
        self.vpas.objects.values()
    }

    /// Returns the VPAs beyond [`VPAS_MAX`], which have no effect, by namespace and name.
    pub fn vpas_beyond(&self) -> impl Iterator<Item = &Arc<Vpa>> {
        self.vpas.beyond.values()
    }

    /// Returns all LimitRanges of a namespace combined.
    pub fn ranges(&self, namespace: &str) -> Arc<Ranges> {
        self.ranges.get(namespace).map(|(_, joined)| joined.clone()).unwrap_or_default()
    }

    /// Returns the VPA that controls a pod, unless it is off: the oldest one for the topmost targeted owner in the
    /// chain. Without one, one that is off and boosts starts.
    pub fn govern(&self, pod: &SizedPod) -> Option<Governed> {
        let chain = self.chain(pod);
        let of = |counts| self.vpas.of(&chain, &pod.namespace, counts);
        Some(self.governed(pod, of(is_on).or_else(|| of(Vpa::has_startup_boost))?))
    }

    /// Returns what sizes a new pod: the VPA that controls it, else a ServiceScaler, else a VPA that is off and boosts
    /// its start.
    pub fn size_new(&self, pod: &SizedPod) -> Option<Governed> {
        let chain = self.chain(pod);
        let of = |sizing: &Sizing, counts| sizing.of(&chain, &pod.namespace, counts);
        let vpa = of(&self.vpas, is_on).or_else(|| of(&self.scalers, is_on));
        Some(self.governed(pod, vpa.or_else(|| of(&self.vpas, Vpa::has_startup_boost))?))
    }

    fn governed(&self, pod: &SizedPod, vpa: Arc<Vpa>) -> Governed {
        let mode = Mode::of(&vpa.update_mode);
        Governed { vpa, mode, ranges: self.ranges(&pod.namespace) }
    }

    /// Returns the pod's controller, the controller of that one, and so on.
    fn chain(&self, pod: &SizedPod) -> Vec<OwnerRef> {
        let mut chain: Vec<OwnerRef> = pod.owner.iter().cloned().collect();
        while let Some(last) = chain.last()
            && chain.len() < DEPTH_MAX
        {
            let next = match self.workload(&pod.namespace, last) {
                Some(workload) => workload.owner.clone(),
                // The pods of a new ReplicaSet arrive milliseconds after it.
                None => by_template_hash(pod, last),
            };
            match next {
                Some(next) => chain.push(next),
                None => break,
            }
        }
        chain
    }
}

fn is_on(vpa: &Vpa) -> bool {
    Mode::of(&vpa.update_mode) != Mode::Off
}

/// Returns the Deployment of a ReplicaSet that the watch has not delivered yet, from the pod template hash in the
/// names.
fn by_template_hash(pod: &SizedPod, owner: &OwnerRef) -> Option<OwnerRef> {
    if SizingKind::of(owner) != Some(SizingKind::ReplicaSet) {
        return None;
    }
    let hash = pod.template_hash.as_deref().filter(|hash| !hash.is_empty())?;
    let name = owner.name.strip_suffix(hash)?.strip_suffix('-').filter(|name| !name.is_empty())?;
    Some(OwnerRef { api_version: "apps/v1".into(), kind: "Deployment".into(), name: name.into() })
}

fn join(all: &BTreeMap<Arc<str>, Ranges>) -> Arc<Ranges> {
    let mut joined = Ranges::default();
    for ranges in all.values() {
        joined.container.join(&ranges.container);
        joined.pod.join(&ranges.pod);
    }
    Arc::new(joined)
}
