//! Index for the admission of pods: VPAs, ServiceScaler sizes, owners and LimitRanges. Kept up to date by watches,
//! so that a review needs no API request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::limit_range::Ranges;
use super::mode::Mode;
use super::pod::SizedPod;
use crate::recommend::store::Workload;
use crate::recommend::{Owner, UnixNanos, Vpa};

/// Maximum depth of an owner chain. Real chains are short; a cycle is an error of the user.
const DEPTH_MAX: usize = 8;

/// Namespace and name of an object.
pub type Name = (Arc<str>, Arc<str>);

/// Kinds whose owners are indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Vpa,
    ServiceScaler,
    LimitRange,
    ReplicaSet,
    Deployment,
    StatefulSet,
    Job,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Vpa,
        Kind::ServiceScaler,
        Kind::LimitRange,
        Kind::ReplicaSet,
        Kind::Deployment,
        Kind::StatefulSet,
        Kind::Job,
    ];

    fn of(owner: &Owner) -> Option<Kind> {
        Some(match (owner.group(), owner.kind.as_str()) {
            ("apps", "ReplicaSet") => Kind::ReplicaSet,
            ("apps", "Deployment") => Kind::Deployment,
            ("apps", "StatefulSet") => Kind::StatefulSet,
            ("batch", "Job") => Kind::Job,
            _ => return None,
        })
    }
}

/// Object received from a watch.
#[derive(Debug)]
pub enum Object {
    Vpa(Box<Vpa>),
    /// Sizes of a ServiceScaler, in the form of a VPA; `None`: it sets none now.
    ServiceScaler(Option<Box<Vpa>>),
    LimitRange(Ranges),
    /// Any other kind, with its controller.
    Owned(Option<Owner>),
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
#[derive(Debug, Default)]
struct Sizing {
    objects: BTreeMap<Name, Arc<Vpa>>,
    /// Objects that target each workload, oldest first.
    targeting: BTreeMap<Workload, BTreeSet<(UnixNanos, Name)>>,
}

impl Sizing {
    fn apply(&mut self, name: Name, vpa: Vpa) {
        self.delete(&name);
        if let Some(workload) = vpa.workload() {
            self.targeting.entry(workload).or_default().insert((vpa.created, name.clone()));
        }
        self.objects.insert(name, Arc::new(vpa));
    }

    fn delete(&mut self, name: &Name) {
        let Some(vpa) = self.objects.remove(name) else { return };
        let Some(workload) = vpa.workload() else { return };
        if let Some(targeting) = self.targeting.get_mut(&workload) {
            targeting.remove(&(vpa.created, name.clone()));
            if targeting.is_empty() {
                self.targeting.remove(&workload);
            }
        }
    }

    /// Returns the oldest object that is not off, for the topmost targeted owner in the chain.
    fn of(&self, chain: &[Owner], namespace: &Arc<str>) -> Option<Arc<Vpa>> {
        chain.iter().rev().find_map(|owner| {
            let targeting = self.targeting.get(&owner.workload(namespace))?;
            let on = |(_, name): &(UnixNanos, Name)| {
                self.objects.get(name).filter(|vpa| Mode::of(&vpa.update_mode) != Mode::Off)
            };
            targeting.iter().find_map(on).cloned()
        })
    }
}

/// Index of all kinds.
#[derive(Debug, Default)]
pub struct Index {
    vpas: Sizing,
    scalers: Sizing,
    owned: BTreeMap<(Kind, Name), Option<Owner>>,
    /// By namespace.
    ranges: BTreeMap<Arc<str>, RangesOf>,
    listed: BTreeSet<Kind>,
}

impl Index {
    /// Returns whether the initial lists of all kinds are complete.
    pub fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.listed.contains(kind))
    }

    pub fn apply(&mut self, kind: Kind, name: Name, object: Object) {
        match object {
            Object::Vpa(vpa) => self.vpas.apply(name, *vpa),
            Object::ServiceScaler(Some(sizes)) => self.scalers.apply(name, *sizes),
            Object::ServiceScaler(None) => self.scalers.delete(&name),
            Object::LimitRange(ranges) => {
                let (all, joined) = self.ranges.entry(name.0).or_default();
                all.insert(name.1, ranges);
                *joined = join(all);
            }
            Object::Owned(owner) => drop(self.owned.insert((kind, name), owner)),
        }
    }

    pub fn delete(&mut self, kind: Kind, name: &Name) {
        match kind {
            Kind::Vpa => self.vpas.delete(name),
            Kind::ServiceScaler => self.scalers.delete(name),
            Kind::LimitRange => {
                if let Some((all, joined)) = self.ranges.get_mut(&name.0) {
                    all.remove(&name.1);
                    *joined = join(all);
                    if all.is_empty() {
                        self.ranges.remove(&name.0);
                    }
                }
            }
            kind => drop(self.owned.remove(&(kind, name.clone()))),
        }
    }

    /// Removes the objects of a kind that are not in a complete list.
    pub fn retain(&mut self, kind: Kind, listed: &BTreeSet<Name>) {
        self.listed.insert(kind);
        let of = |sizing: &Sizing| -> Vec<Name> {
            sizing.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect()
        };
        let gone: Vec<Name> = match kind {
            Kind::Vpa => of(&self.vpas),
            Kind::ServiceScaler => of(&self.scalers),
            Kind::LimitRange => self
                .ranges
                .iter()
                .flat_map(|(namespace, (all, _))| all.keys().map(|name| (namespace.clone(), name.clone())))
                .filter(|name| !listed.contains(name))
                .collect(),
            kind => {
                let of_kind = self.owned.keys().filter(|(of, name)| *of == kind && !listed.contains(name));
                of_kind.map(|(_, name)| name.clone()).collect()
            }
        };
        for name in gone {
            self.delete(kind, &name);
        }
    }

    pub fn vpas(&self) -> impl Iterator<Item = &Arc<Vpa>> {
        self.vpas.objects.values()
    }

    /// Returns all LimitRanges of a namespace combined.
    pub fn ranges(&self, namespace: &str) -> Arc<Ranges> {
        self.ranges.get(namespace).map(|(_, joined)| joined.clone()).unwrap_or_default()
    }

    /// Returns the VPA that controls a pod, unless it is off: the oldest one for the topmost targeted owner in the
    /// chain.
    pub fn govern(&self, pod: &SizedPod) -> Option<Governed> {
        let vpa = self.vpas.of(&self.chain(pod), &pod.namespace)?;
        Some(self.governed(pod, vpa))
    }

    /// Returns what sizes a new pod: the VPA that controls it, else a ServiceScaler.
    pub fn size_new(&self, pod: &SizedPod) -> Option<Governed> {
        let chain = self.chain(pod);
        let of = |sizing: &Sizing| sizing.of(&chain, &pod.namespace);
        let vpa = of(&self.vpas).or_else(|| of(&self.scalers))?;
        Some(self.governed(pod, vpa))
    }

    fn governed(&self, pod: &SizedPod, vpa: Arc<Vpa>) -> Governed {
        let mode = Mode::of(&vpa.update_mode);
        Governed { vpa, mode, ranges: self.ranges(&pod.namespace) }
    }

    /// Returns the pod's controller, the controller of that one, and so on.
    fn chain(&self, pod: &SizedPod) -> Vec<Owner> {
        let mut chain: Vec<Owner> = pod.owner.iter().cloned().collect();
        while let Some(last) = chain.last()
            && chain.len() < DEPTH_MAX
        {
            let name: Name = (pod.namespace.clone(), last.name.as_str().into());
            let known = Kind::of(last).and_then(|kind| self.owned.get(&(kind, name)));
            let next = match known {
                Some(owner) => owner.clone(),
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

/// Returns the Deployment of a ReplicaSet that the watch has not delivered yet, from the pod template hash in the
/// names.
fn by_template_hash(pod: &SizedPod, owner: &Owner) -> Option<Owner> {
    if Kind::of(owner) != Some(Kind::ReplicaSet) {
        return None;
    }
    let hash = pod.template_hash.as_deref().filter(|hash| !hash.is_empty())?;
    let name = owner.name.strip_suffix(hash)?.strip_suffix('-').filter(|name| !name.is_empty())?;
    Some(Owner { api_version: "apps/v1".into(), kind: "Deployment".into(), name: name.into() })
}

fn join(all: &BTreeMap<Arc<str>, Ranges>) -> Arc<Ranges> {
    let mut joined = Ranges::default();
    for ranges in all.values() {
        joined.container.join(&ranges.container);
        joined.pod.join(&ranges.pod);
    }
    Arc::new(joined)
}
