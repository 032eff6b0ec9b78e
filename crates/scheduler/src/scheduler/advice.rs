//! Scheduler state for fragmentation advice: unplaced pods, pods on nodes that could be moved, and the resulting
//! advice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Scheduler, State, Waiting};
use crate::class::{Class, ClassId};
use crate::gang::{AllocationName, UnboundMember, WantedMembers};
use crate::inventory::{NodeId, Occupant, Revision};
use crate::queue::{ParkedGroup, Place};
use crate::repack::{Case, Fixed, MOST_PODS, Resident, Waits};
use crate::sharded::ShardedMap;
use berth_model::{Pinned, Pod, PodSpec, PodVolumes};

/// State in addition to the ledger; empty unless advice is enabled.
#[derive(Debug, Default)]
pub(super) struct Advised {
    /// Pods with a node, by uid.
    known: ShardedMap<ResidentData>,
    /// Advice for allocations.
    help: BTreeMap<AllocationName, Arc<str>>,
}

/// Pod data that the ledger does not have. Equal specs are shared.
#[derive(Debug)]
struct ResidentData {
    /// `None`: the spec is invalid or not supported.
    spec: Option<Arc<PodSpec>>,
    volumes: Option<Arc<PodVolumes>>,
    pinned: Option<Pinned>,
}

impl Advised {
    pub(super) fn help_for(&self, name: &AllocationName) -> Option<&Arc<str>> {
        self.help.get(name)
    }
}

/// An unschedulable class or gang.
enum Stuck<'a> {
    Class(ClassId),
    Gang(&'a AllocationName),
}

impl Scheduler {
    // Watch events.

    /// Records a pod with a node.
    pub(super) fn note_resident(&mut self, pod: &Pod) {
        if !self.cluster.config.advice {
            return;
        }
        let spec = pod.spec.as_ref().ok().filter(|spec| spec.unsupported.is_empty()).cloned();
        let known = ResidentData { spec, volumes: pod.volumes.clone(), pinned: pod.pinned };
        self.advised.known.insert(pod.uid.clone(), known);
    }

    pub(super) fn forget_resident(&mut self, uid: &str) {
        self.advised.known.remove(uid);
    }

    // Queries.

    /// Returns the pods that watches have seen on a node, and which of them could be moved. `None`: the node has
    /// changed since `revision`.
    pub fn residents(&self, node: NodeId, revision: Revision) -> Option<Vec<Resident>> {
        let same = self.cluster.ledger.inventory().row(node).revision == revision;
        let resident = |pod: Occupant| Resident {
            fixed: self.fixed(&pod),
            gang: self.gangs.of_placed(&pod.pod.uid),
            pod: pod.pod,
            holding: pod.holding,
        };
        same.then(|| self.cluster.ledger.occupants(node).into_iter().map(resident).collect())
    }

    fn fixed(&self, pod: &Occupant) -> Option<Fixed> {
        let peer = &pod.holding.peer;
        if peer.terminating || self.preemption.is_evicting(&pod.pod.uid) {
            return Some(Fixed::Terminating);
        }
        match peer.owner.as_ref().map(|owner| &*owner.kind) {
            None => return Some(Fixed::NoController),
            Some("DaemonSet") => return Some(Fixed::DaemonSet),
            Some("Node") => return Some(Fixed::Static),
            Some(_) => {}
        }
        match self.advised.known.get(&pod.pod.uid) {
            Some(ResidentData { pinned: Some(Pinned::NotSafeToEvict), .. }) => Some(Fixed::NotSafeToEvict),
            Some(ResidentData { pinned: Some(Pinned::LocalStorage), .. }) => Some(Fixed::LocalStorage),
            Some(ResidentData { spec: Some(_), .. }) => None,
            _ => Some(Fixed::NotUnderstood),
        }
    }

    /// Returns the class of a pod that replaces this one, which has a node.
    pub fn class_of_resident(&mut self, uid: &str) -> Option<Arc<Class>> {
        let Occupant { pod, holding, .. } = self.cluster.ledger.occupant(uid)?;
        let known = self.advised.known.get(uid)?;
        let pod = Pod {
            uid: pod.uid,
            namespace: pod.namespace,
            name: pod.name,
            scheduler_name: pod.scheduler_name,
            priority: holding.priority,
            owner: holding.peer.owner.clone(),
            peer: holding.peer,
            volumes: known.volumes.clone(),
            usage: holding.usage,
            spec: Ok(known.spec.clone()?),
            ..Pod::default()
        };
        Some(self.class_of(&pod))
    }

    /// Returns at most `most` unschedulable cases in queue order, and the number of further ones.
    pub fn stuck(&self, most: usize) -> (Vec<Case>, usize) {
        let of_class =
            |group: &ParkedGroup| Some((*group.pods.first_key_value()?.0, Stuck::Class(group.class.id)));
        let gangs = self.gangs.stuck(&self.cluster).map(|(place, name)| (place, Stuck::Gang(name)));
        let mut stuck: Vec<(Place, Stuck)> = self.parked.groups().filter_map(of_class).chain(gangs).collect();
        stuck.sort_unstable_by_key(|(place, _)| *place);
        let more = stuck.len().saturating_sub(most);
        let case = |(_, stuck): &(Place, Stuck)| match stuck {
            Stuck::Class(class) => self.case_of_class(*class),
            Stuck::Gang(name) => Some(self.gangs.case(name, &self.cluster, &self.preemption)?.1),
        };
        (stuck.iter().take(most).filter_map(case).collect(), more)
    }

    /// Returns the parked pods of the class that are not nominated.
    fn case_of_class(&self, class: ClassId) -> Option<Case> {
        let group = self.parked.get(class)?;
        let pods = group.pods.values().filter(|uid| !self.preemption.has_nominated(uid)).take(MOST_PODS);
        let (_, case) = self.case_of_pods(pods)?;
        Some(Case { waiting: group.pods.len(), ..case })
    }

    /// Returns everything without a node that may be scheduled, whether it was tried yet or not.
    pub fn unplaced(&self) -> Vec<Case> {
        let mut classes: BTreeMap<ClassId, BTreeMap<Place, Arc<str>>> = BTreeMap::new();
        for (uid, waiting) in self.cluster.waiting.iter().filter(|(_, waiting)| waiting.is_free()) {
            classes.entry(waiting.class.id).or_default().insert(waiting.place(), uid.clone());
        }
        let mut cases: Vec<_> =
            classes.values().filter_map(|pods| self.case_of_pods(pods.values())).collect();
        cases.extend(self.gangs.unplaced(&self.cluster, &self.preemption));
        cases.sort_by_key(|(place, _)| *place);
        cases.into_iter().map(|(_, case)| case).collect()
    }

    /// Returns this pod alone, if it is not a member of a gang.
    pub fn unplaced_pod(&self, uid: &Arc<str>) -> Option<Case> {
        self.cluster.waiting.get(uid).filter(|waiting| waiting.is_free())?;
        Some(self.case_of_pods([uid].into_iter())?.1)
    }

    /// Returns pods of one class, in their order.
    fn case_of_pods<'a>(&self, uids: impl Iterator<Item = &'a Arc<str>>) -> Option<(Place, Case)> {
        let (mut pods, mut members, mut place, mut waiting) = (Vec::new(), Vec::new(), None, 0);
        for uid in uids {
            waiting += 1;
            if members.len() == MOST_PODS {
                continue;
            }
            let known = self.cluster.waiting.get(uid)?;
            place.get_or_insert(known.place());
            pods.push(known.pod.clone());
            let (class, holding) = (known.class.clone(), known.holding.clone());
            members.push(UnboundMember { uid: uid.clone(), class, holding, role: 0 });
        }
        let wanted = WantedMembers {
            members,
            need: [1].into(),
            topology: None,
            placed: Vec::new(),
            reserved: Vec::new(),
        };
        Some((place?, Case { what: Waits::Pods(pods), wanted, waiting }))
    }

    // Advice.

    /// Replaces the advice for allocations.
    pub fn advise(&mut self, help: BTreeMap<AllocationName, Arc<str>>) {
        let before = std::mem::replace(&mut self.advised.help, help);
        let news = |(name, text): &(&AllocationName, &Arc<str>)| self.advised.help.get(*name) != Some(*text);
        let mut changed: Vec<_> = before.iter().filter(news).map(|(name, _)| name.clone()).collect();
        changed.extend(self.advised.help.keys().filter(|name| !before.contains_key(*name)).cloned());
        for name in changed {
            self.gangs.mark_unreported(&name);
        }
    }
}

impl Waiting {
    /// Returns whether the pod waits for a node and is not a member of a gang.
    fn is_free(&self) -> bool {
        let waits = matches!(
            self.state,
            State::Queued(_) | State::Placing(_) | State::BackingOff(_) | State::Parked | State::Woken(_)
        );
        waits && self.gang.is_none()
    }
}
