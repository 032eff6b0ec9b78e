//! Nominated pods that need devices: of what their node has free, they come first, the most important one before the others.
//!
//! The devices of their victims are not free when these are gone, but some time later, when Kubernetes' controller has deallocated their
//! claims. [`KeptDevices`] knows which pod waits for which claims; the [`Cluster`] decides what is left for others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Cluster, Waiting};
use crate::inventory::{Occupant, Row};
use crate::queue::Place;
use crate::rules;
use berth_devices::{AllocatedDevice, NodeDevices};
use berth_model::ClaimName;

/// How long a nominated pod waits for devices of victims that are gone.
const FREED_MAX: Duration = Duration::from_secs(60);

/// Nominated pods by their place in the queue and their uid.
type PodsOfNode = BTreeMap<(Place, Arc<str>), Kept>;

/// Nominated pods by node. Only pods whose class needs devices are here.
#[derive(Debug, Default)]
pub(super) struct KeptDevices {
    by_node: BTreeMap<Arc<str>, PodsOfNode>,
    /// Node and place, by uid of the pod.
    of: BTreeMap<Arc<str>, (Arc<str>, Place)>,
    /// Uids of the pods by the claims that they use.
    users: BTreeMap<ClaimName, BTreeSet<Arc<str>>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The pod is being placed: what it is to take is free for now.
    yielded: bool,
    /// It is being placed together with others: nothing is kept for it.
    lifted: bool,
    /// Claims that the pod uses.
    own: Vec<ClaimName>,
    /// Uids of its victims, and their claims.
    victims: BTreeSet<Arc<str>>,
    claims: BTreeSet<ClaimName>,
    /// Since when all victims are gone.
    gone_since: Option<Duration>,
    /// It waits for these claims no longer.
    given_up: bool,
}

/// Devices of a node that are left for a pod.
#[derive(Debug, Default)]
pub(super) struct DevicesLeft {
    pub(super) now: Option<Arc<NodeDevices>>,
    /// Once victims of nominated pods are gone and their claims deallocated.
    pub(super) later: Option<Arc<NodeDevices>>,
    /// What is left later and not now.
    pub(super) leaving: Vec<AllocatedDevice>,
}

impl KeptDevices {
    /// Keeps devices of the node for this pod, unless they are kept already.
    pub(super) fn keep(&mut self, pod: &Waiting, node: &Arc<str>) {
        let (uid, place) = (pod.pod.uid.clone(), pod.place());
        if self.of.contains_key(&uid) {
            return;
        }
        let own: Vec<_> = pod.holding.devices.iter().flat_map(|claims| claims.iter()).cloned().collect();
        for claim in &own {
            self.users.entry(claim.clone()).or_default().insert(uid.clone());
        }
        self.of.insert(uid.clone(), (node.clone(), place));
        self.by_node.entry(node.clone()).or_default().insert((place, uid), Kept { own, ..Kept::default() });
    }

    /// Records the victims of a pod. Returns their claims.
    pub(super) fn expect<'a>(
        &mut self,
        uid: &str,
        victims: impl Iterator<Item = &'a Occupant>,
    ) -> Vec<ClaimName> {
        let Some(kept) = self.kept_mut(uid) else {
            return Vec::new();
        };
        for victim in victims {
            kept.victims.insert(victim.pod.uid.clone());
            kept.claims.extend(victim.holding.devices.iter().flat_map(|claims| claims.iter()).cloned());
        }
        kept.claims.iter().cloned().collect()
    }

    /// Lets the pod take what is kept for it. Returns the node.
    pub(super) fn yield_to(&mut self, uid: &str) -> Option<Arc<str>> {
        self.kept_mut(uid)?.yielded = true;
        Some(self.of.get(uid)?.0.clone())
    }

    /// Keeps nothing for the pod while it is committed together with others, or does so again.
    pub(super) fn lift(&mut self, uid: &str, lifted: bool) {
        if let Some(kept) = self.kept_mut(uid) {
            kept.lifted = lifted;
        }
    }

    /// Keeps none for the pod any more. Returns the node, and the claims that it waits for no longer.
    pub(super) fn let_go(&mut self, uid: &str) -> Option<(Arc<str>, BTreeSet<ClaimName>)> {
        let (uid, (node, place)) = self.of.remove_entry(uid)?;
        let pods = self.by_node.get_mut(&node)?;
        let kept = pods.remove(&(place, uid.clone())).unwrap_or_default();
        if pods.is_empty() {
            self.by_node.remove(&node);
        }
        for claim in &kept.own {
            if let Some(users) = self.users.get_mut(claim) {
                users.remove(&uid);
                if users.is_empty() {
                    self.users.remove(claim);
                }
            }
        }
        Some((node, kept.claims))
    }

    /// Returns the nodes with such pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_node.keys()
    }

    pub(super) fn is_empty_on(&self, node: &str) -> bool {
        !self.by_node.contains_key(node)
    }

    /// Returns whether a pod waits for this claim to be deallocated.
    fn awaits(&self, claim: &ClaimName) -> bool {
        self.by_node
            .values()
            .flat_map(BTreeMap::values)
            .any(|kept| !kept.given_up && kept.claims.contains(claim))
    }

    /// Returns whether another pod that uses one of these claims is nominated.
    pub(super) fn has_other_user(&self, uid: &str, claims: &[ClaimName]) -> bool {
        let others = |claim: &ClaimName| {
            self.users.get(claim).is_some_and(|users| users.iter().any(|user| **user != *uid))
        };
        !self.users.is_empty() && claims.iter().any(others)
    }

    /// Returns the pods for which devices of this node are kept, in their order. `before`: all that come before this place. `None`: those
    /// that come before any that is being placed.
    fn on(&self, node: &str, before: Option<Place>) -> impl Iterator<Item = &Arc<str>> {
        let pods = self.by_node.get(node).into_iter().flatten();
        let pods = pods.take_while(move |((place, _), kept)| match before {
            Some(before) => *place < before,
            None => !kept.yielded,
        });
        pods.filter(|(_, kept)| !kept.lifted).map(|((_, uid), _)| uid)
    }

    fn kept_mut(&mut self, uid: &str) -> Option<&mut Kept> {
        let (uid, (node, place)) = self.of.get_key_value(uid)?;
        self.by_node.get_mut(node)?.get_mut(&(*place, uid.clone()))
    }

    fn kept(&self, uid: &str) -> Option<&Kept> {
        let (uid, (node, place)) = self.of.get_key_value(uid)?;
        self.by_node.get(node)?.get(&(*place, uid.clone()))
    }
}

impl Cluster {
    /// Returns the devices of a node that are left after the nominated pods there had theirs. `before`: only those before this place.
    pub(super) fn devices_left(&self, node: &Arc<str>, before: Option<Place>) -> DevicesLeft {
        let pools = &self.objects.devices.pools;
        let devices = pools.on(node).or_else(|| pools.shared());
        if self.kept_devices.is_empty_on(node) {
            return DevicesLeft { now: devices.clone(), later: devices, leaving: Vec::new() };
        }
        let row = self.inventory().find(node).map(|id| self.inventory().row(id).clone());
        let mut now = Row { devices, ..row.unwrap_or_default() };
        let mut leaving = self.leaving_on(node);
        let mut later = now.clone();
        rules::free_devices(&leaving, &mut later);
        for uid in self.kept_devices.on(node, before) {
            let Some(pod) = self.waiting.get(uid) else {
                continue;
            };
            let taken = rules::take_devices(&pod.class, &mut later).unwrap_or_default();
            let taken: Vec<_> = taken.iter().flat_map(|claim| &claim.devices).collect();
            rules::use_devices(taken.iter().copied(), &mut now);
            leaving.retain(|device| taken.iter().all(|taken| taken.id != device.id));
        }
        DevicesLeft { now: now.devices, later: later.devices, leaving }
    }

    /// Shows agents the devices of a node, without those that are kept for nominated pods. `freed`: some may serve where they did not.
    pub(super) fn show_devices(&mut self, node: &Arc<str>, freed: bool) {
        let own = match self.kept_devices.is_empty_on(node) {
            true => self.objects.devices.pools.on(node),
            false => self.devices_left(node, None).now,
        };
        self.ledger.set_devices(node, own, freed);
    }

    /// Returns whether this pod waits for devices of its victims: these are gone or about to go, and their claims not deallocated.
    pub(super) fn awaits_devices(&self, uid: &str) -> bool {
        self.kept_devices.kept(uid).is_some_and(|kept| !self.leaving_for(kept).is_empty())
    }

    /// Returns the devices on a node that victims of its nominated pods leave.
    fn leaving_on(&self, node: &str) -> Vec<AllocatedDevice> {
        let pods = self.kept_devices.by_node.get(node).into_iter().flat_map(BTreeMap::values);
        let mut leaving: Vec<AllocatedDevice> = Vec::new();
        for device in pods.flat_map(|kept| self.leaving_for(kept)) {
            if !leaving.contains(&device) {
                leaving.push(device);
            }
        }
        leaving
    }

    fn leaving_for(&self, kept: &Kept) -> Vec<AllocatedDevice> {
        if kept.given_up || kept.claims.is_empty() {
            return Vec::new();
        }
        let goes = |uid: &str| {
            let charge = self.ledger.charge_of(uid);
            kept.victims.contains(uid) || charge.is_none_or(|charge| charge.holding.peer.terminating)
        };
        self.objects.devices.freed(&kept.claims, &goes)
    }

    /// Gives up waiting for devices of victims that have been gone for long. Returns the pods that waited for them.
    pub(super) fn give_up_late_devices(&mut self, now: Duration) -> Vec<Arc<str>> {
        let mut late = Vec::new();
        let ledger = &self.ledger;
        for ((_, uid), kept) in self.kept_devices.by_node.values_mut().flatten() {
            let waits = !kept.given_up && !kept.claims.is_empty();
            if waits && kept.victims.iter().all(|victim| ledger.charge_of(victim).is_none()) {
                kept.given_up = now.saturating_sub(*kept.gone_since.get_or_insert(now)) >= FREED_MAX;
                late.extend(kept.given_up.then(|| uid.clone()));
            }
        }
        late
    }

    /// Lets the claims of the victims of this pod have no further users until they are deallocated, or no longer so.
    pub(super) fn await_claims(&mut self, claims: impl IntoIterator<Item = ClaimName>) -> Vec<ClaimName> {
        let Cluster { objects, kept_devices, .. } = self;
        let changed = |claim: &ClaimName| objects.devices.set_awaited(claim, kept_devices.awaits(claim));
        claims.into_iter().filter(changed).collect()
    }
}
