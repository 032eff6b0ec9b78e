//! PersistentVolumeClaims and ResourceClaims that are bound together with their pod's node (upstream: Reserve and PreBind of
//! VolumeBinding and DynamicResources).
//!
//! When such a pod has its node in the ledger, its claims are written: a free volume is reserved for a claim, or a
//! claim is annotated with the node its volume is to be provisioned for. Then the pod waits with its node, not counted
//! as a bind, until the volume controller has bound every claim; only then its own bind begins. There is no polling:
//! the watches of claims and volumes report progress. Resource claims are written with their devices, which were promised
//! when the node was committed; only drivers that prepare devices first make the pod wait longer.
//!
//! [`Claims`] reads the cluster and changes only itself; the scheduler carries out what it finds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::charge_walks::Charged;
use super::cluster::Cluster;
use super::foreign_binds::device_of_others;
use super::{Action, Scheduler, Stale, State, Waiting};
use crate::inventory::NodeId;
use crate::objects::{BindingError, ClaimProgress, DevicesChanged, VolumeNews, WantedVolume};
use crate::placement::{Binding, ClaimOrder};
use crate::rules::{VolumeChoice, plan_volumes};
use berth_devices::ClaimUpdate;
use berth_model::{ClaimName, Holding, VolumeNeeds};

/// Interval at which all pods waiting for claims are checked: the node may be deleted, or the deadline passed.
const CHECK_ALL_EVERY: Duration = Duration::from_secs(1);

/// Interval at which devices that are left behind are freed, until that is seen.
const RELEASE_EVERY: Duration = Duration::from_secs(5);

/// Most claims released in one tick; the rest follow in later ticks.
const RELEASES_MAX: usize = 64;

/// Upstream's plugins, in its error messages.
const VOLUMES: &str = "VolumeBinding";
const DEVICES: &str = "DynamicResources";

/// Claims of waiting pods, by pod and by claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Uids of the waiting pods that use each claim.
    users: HashMap<ClaimName, BTreeSet<Arc<str>>>,
    /// The same for resource claims.
    device_users: HashMap<ClaimName, BTreeSet<Arc<str>>>,
    /// By uid: pods with a node that wait for their claims.
    claiming: BTreeMap<Arc<str>, Claiming>,
    /// By uid: when to free the devices that an earlier attempt to place the pod has left behind.
    left_behind: BTreeMap<Arc<str>, Duration>,
    /// Pods whose claims changed.
    due: BTreeSet<Arc<str>>,
    all_due: Duration,
}

/// Claims a pod waits for.
#[derive(Debug)]
struct Claiming {
    order: ClaimOrder,
    /// Resource versions of the written claims, once written.
    written: Option<Vec<u64>>,
    deadline: Duration,
}

impl Claiming {
    /// Returns whether another replica decides about it now.
    fn is_lost(&self, cluster: &Cluster) -> bool {
        !cluster.leading || !self.order.devices.is_empty() && !cluster.may_give_devices()
    }
}

/// Reason why the claims of a pod cannot be bound on its node, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("running PreBind plugin {plugin:?}: {why}")]
struct ClaimError {
    plugin: &'static str,
    why: ClaimFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ClaimFailure {
    /// The API server did not accept a claim or a volume, for this reason.
    #[error("{0}")]
    Write(String),
    #[error("binding volumes: failed to get node {0:?}: node {0:?} not found")]
    NodeGone(Arc<str>),
    /// The volume controller or the provisioner gave up.
    #[error("binding volumes: {0}")]
    Failed(BindingError),
    /// A driver gave up preparing a device, or its claim has changed.
    #[error("{0}")]
    Devices(String),
    #[error("binding volumes: context deadline exceeded")]
    VolumesLate,
    #[error("device binding timeout")]
    DevicesLate,
}

impl ClaimFailure {
    /// Says of which kind of claims it is about.
    fn of(self, plugin: &'static str) -> ClaimError {
        ClaimError { plugin, why: self }
    }
}

/// Claims of a pod that are bound together with its node, in the order of its class.
#[derive(Debug, Default)]
pub(super) struct UnboundClaims {
    pub volumes: Vec<ClaimName>,
    /// Resource claims.
    pub devices: Vec<ClaimName>,
}

/// The pod's claims no longer match its class.
pub(super) struct Outdated;

impl Claims {
    /// Records the claims of a pod that begins to wait.
    pub(super) fn add_user(&mut self, uid: &Arc<str>, holding: &Holding) {
        for claim in holding.volumes.iter().flat_map(|held| &held.claims) {
            self.users.entry(claim.clone()).or_default().insert(uid.clone());
        }
        for claim in holding.devices.iter().flat_map(|claims| claims.iter()) {
            self.device_users.entry(claim.clone()).or_default().insert(uid.clone());
        }
    }

    pub(super) fn remove_user(&mut self, uid: &str, holding: &Holding) {
        for claim in holding.volumes.iter().flat_map(|held| &held.claims) {
            remove_user_of(&mut self.users, claim, uid);
        }
        for claim in holding.devices.iter().flat_map(|claims| claims.iter()) {
            remove_user_of(&mut self.device_users, claim, uid);
        }
    }

    /// Returns whether the pod has a node and waits for its claims.
    pub(super) fn waits(&self, uid: &str) -> bool {
        self.claiming.contains_key(uid)
    }

    /// Returns the number of pods that wait for their claims.
    pub(super) fn waiting(&self) -> usize {
        self.claiming.len()
    }

    /// Marks the pod to be checked if it waits for its claims.
    pub(super) fn mark_due(&mut self, uid: &Arc<str>) {
        if self.waits(uid) {
            self.due.insert(uid.clone());
        }
    }

    /// Marks the waiting pods that use a changed claim: those with a node to be checked, the rest to be reclassified.
    pub(super) fn claim_changed(&mut self, claim: &ClaimName, stale: &mut Stale) {
        self.changed(self.users.get(claim).cloned(), stale);
    }

    /// The same for a resource claim.
    pub(super) fn device_claim_changed(&mut self, claim: &ClaimName, stale: &mut Stale) {
        self.changed(self.device_users.get(claim).cloned(), stale);
    }

    fn changed(&mut self, users: Option<BTreeSet<Arc<str>>>, stale: &mut Stale) {
        for uid in users.into_iter().flatten() {
            match self.claiming.contains_key(&uid) {
                true => drop(self.due.insert(uid)),
                false => stale.mark_pod(&uid),
            }
        }
    }

    /// Records that an earlier attempt to place the pod may have left devices behind.
    pub(super) fn note_left_behind(&mut self, uid: &Arc<str>) {
        self.left_behind.entry(uid.clone()).or_default();
    }

    /// Takes the pods to check: those marked, and periodically all.
    fn take_due(&mut self, now: Duration) -> BTreeSet<Arc<str>> {
        let mut due = std::mem::take(&mut self.due);
        if now >= self.all_due {
            self.all_due = now + CHECK_ALL_EVERY;
            due.extend(self.claiming.keys().cloned());
        }
        due
    }

    /// Records that the claims of this order were written. Returns whether the pod still waits for them.
    fn written(
        &mut self,
        order: &ClaimOrder,
        versions: Result<Vec<u64>, String>,
    ) -> Result<bool, ClaimError> {
        let Some(claiming) = self.claiming.get_mut(&order.uid).filter(|known| known.order.work == order.work)
        else {
            return Ok(false);
        };
        let plugin = if order.requests.is_empty() { DEVICES } else { VOLUMES };
        claiming.written = Some(versions.map_err(|why| ClaimFailure::Write(why).of(plugin))?);
        Ok(true)
    }

    /// Returns whether all claims of the pod are bound. While their write is in flight they are not.
    fn all_bound(&self, uid: &str, cluster: &Cluster, now: Duration) -> Result<bool, ClaimError> {
        let Some((claiming, charge)) = self.claiming.get(uid).zip(cluster.ledger.charge_of(uid)) else {
            return Ok(false);
        };
        let Some(written) = &claiming.written else {
            return Ok(false);
        };
        let order = &claiming.order;
        let Some(node) = &cluster.inventory().row(charge.node).node else {
            return Err(ClaimFailure::NodeGone(order.node.clone()).of(VOLUMES));
        };
        let of_volumes = order.requests.len().min(written.len());
        let is_late = now >= claiming.deadline;
        match cluster.objects.volumes.progress(&order.requests, &written[..of_volumes], node) {
            ClaimProgress::Done => {}
            ClaimProgress::Failed(why) => return Err(ClaimFailure::Failed(why).of(VOLUMES)),
            ClaimProgress::Waiting if is_late => return Err(ClaimFailure::VolumesLate.of(VOLUMES)),
            ClaimProgress::Waiting => return Ok(false),
        }
        match cluster.objects.devices.progress(&order.devices, &written[of_volumes..]) {
            Ok(false) if is_late => Err(ClaimFailure::DevicesLate.of(DEVICES)),
            Ok(ready) => Ok(ready),
            Err(why) => Err(ClaimFailure::Devices(why).of(DEVICES)),
        }
    }

    fn begin(&mut self, order: ClaimOrder, deadline: Duration) {
        self.claiming.insert(order.uid.clone(), Claiming { order, written: None, deadline });
    }

    fn end(&mut self, uid: &str) -> Option<Claiming> {
        self.due.remove(uid);
        self.claiming.remove(uid)
    }
}

fn remove_user_of(users: &mut HashMap<ClaimName, BTreeSet<Arc<str>>>, claim: &ClaimName, uid: &str) {
    if let Some(pods) = users.get_mut(claim) {
        pods.remove(uid);
        if pods.is_empty() {
            users.remove(claim);
        }
    }
}

impl Scheduler {
    /// Requests the claims of a pod that has this node. The commit has checked that volumes for them are available
    /// there, and promised the devices.
    pub(super) fn claim(
        &mut self,
        uid: &Arc<str>,
        claims: Vec<ClaimName>,
        needs: Option<&VolumeNeeds>,
        devices: Arc<[ClaimUpdate]>,
        node: NodeId,
        now: Duration,
    ) {
        let inventory = self.cluster.inventory();
        let unbound = needs.map_or(&[][..], |needs| &needs.unbound);
        let Ok(choices) = plan_volumes(unbound, inventory.row(node)) else {
            debug_assert!(false, "the commit has checked the same row");
            self.release_devices(uid, false);
            self.discharge(uid);
            return self.back_off(uid, "its volumes were claimed by another pod".to_owned(), now);
        };
        let wanted = |choice| match choice {
            VolumeChoice::Volume(volume) => WantedVolume::Volume(volume.name.clone()),
            VolumeChoice::Made => WantedVolume::Provision,
        };
        let wanted: Vec<_> = claims.into_iter().zip(choices.into_iter().map(wanted)).collect();
        let (host, requests) = (inventory.name(node).clone(), self.cluster.objects.volumes.requests(&wanted));
        self.next_work += 1;
        let order =
            ClaimOrder { uid: uid.clone(), work: self.next_work, node: host.clone(), requests, devices };
        let news = self.cluster.objects.volumes.reserve(&order.requests, &host);
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Claiming;
            // Undelivered reports are withdrawn: if the claims fail to bind, the message must be reported again.
            waiting.reported = None;
            self.claims.begin(order.clone(), now + self.cluster.config.volume_bind_timeout);
        }
        self.actions.push(Action::Claim(order));
        self.requeue_affected(news.into());
    }

    /// Promises devices of this node, which the pod has in the ledger, to its claims. Returns whether there are enough.
    pub(super) fn promise_devices(&mut self, uid: &Arc<str>, claims: &[ClaimName], node: NodeId) -> bool {
        let needs_some = |waiting: &&Waiting| waiting.class.spec.devices.is_some();
        let Some(place) = self.cluster.waiting.get(uid).filter(needs_some).map(Waiting::place) else {
            return true;
        };
        // Agents see what is free for pods that are being placed, and for others at that time, too.
        let left = self.cluster.devices_left(self.inventory().name(node), Some(place)).now;
        let Cluster { objects, ledger, waiting, .. } = &mut self.cluster;
        let Some((waiting, node)) = waiting.get(uid).zip(ledger.inventory().row(node).node.as_ref()) else {
            return true;
        };
        let Some(needs) = waiting.class.spec.devices.as_ref() else {
            return true;
        };
        if needs.on(&node.extended).is_empty() {
            return true;
        }
        let Some(devices) = left else {
            return false;
        };
        match objects.devices.promise(&waiting.source, claims, needs, node, &devices) {
            Ok(changed) => {
                self.requeue_for_devices(changed, false);
                true
            }
            Err(_) => false,
        }
    }

    /// Ends the promises to a pod that has no node any more. `sent`: they may have been written.
    pub(super) fn release_devices(&mut self, uid: &str, sent: bool) {
        let changed = self.cluster.objects.devices.release(uid, sent);
        self.requeue_affected(changed.into());
    }

    /// Records that the claims of an [`Action::Claim`] were written, with these versions, or failed for this reason.
    pub fn claims_written(&mut self, order: &ClaimOrder, written: Result<Vec<u64>, String>, now: Duration) {
        if let Ok(versions) = &written {
            let of_volumes = order.requests.len().min(versions.len());
            let changed = self.cluster.objects.devices.written(&order.devices, &versions[of_volumes..]);
            self.requeue_affected(changed.into());
        }
        match self.claims.written(order, written) {
            Ok(true) => self.check_claims(&order.uid, now),
            Ok(false) => {}
            Err(error) => self.claims_failed(&order.uid, &error, now),
        }
    }

    /// Checks the pods whose claims changed, and periodically all that wait for claims. Without leadership, and for devices when
    /// another replica gives them, nothing is decided, and the next leader requests the claims again.
    pub(super) fn maintain_claims(&mut self, now: Duration) {
        let changed = self.cluster.objects.devices.expire(now);
        self.requeue_affected(changed.into());
        if !self.cluster.may_give_devices() {
            let lost = self.claims.claiming.iter().filter(|(_, claiming)| claiming.is_lost(&self.cluster));
            for uid in lost.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
                if self.yields_to_rival(&uid, now) {
                    continue;
                }
                self.discharge(&uid);
                self.withdraw(&uid);
                self.stale.mark_pod(&uid);
                self.admit(&uid, now);
            }
        }
        if !self.cluster.leading {
            return;
        }
        for uid in self.claims.take_due(now) {
            self.check_claims(&uid, now);
        }
        if self.cluster.may_give_devices() {
            self.release_left_behind(now);
        }
    }

    /// Frees the devices that earlier attempts have left behind for pods that neither have nor are about to get a node: those of
    /// extended resources, and those that a placed pod has got, too, at once; those of other claims when their pod fits nowhere.
    fn release_left_behind(&mut self, now: Duration) {
        let Scheduler { claims, cluster, .. } = self;
        let (devices, mut released) = (&cluster.objects.devices, Vec::new());
        claims.left_behind.retain(|uid, due| {
            let Some(pod) = cluster.waiting.get(uid) else {
                return false;
            };
            if matches!(pod.state, State::Claiming | State::Binding | State::Held | State::Elsewhere) {
                return false;
            }
            let is_placed = |user: &str| user != &**uid && cluster.ledger.charge_of(user).is_some();
            let mut release = devices.left_behind(&pod.source);
            release = release.or_else(|| devices.contested(&pod.source, &is_placed));
            if pod.state == State::Parked || devices.is_releasing(&pod.source) {
                release = release.or_else(|| devices.in_the_way(&pod.source));
            }
            if let Some(release) = release.clone().filter(|_| now >= *due && released.len() < RELEASES_MAX) {
                *due = now + RELEASE_EVERY;
                released.push(release);
            }
            release.is_some()
        });
        for release in released {
            let changed = self.cluster.objects.devices.begin_release(&release, now);
            self.actions.push(Action::ReleaseClaim(release));
            self.requeue_affected(changed.into());
        }
    }

    fn check_claims(&mut self, uid: &Arc<str>, now: Duration) {
        let news = self.cluster.waiting.get(uid).and_then(|waiting| waiting.news.as_ref());
        if self.claims.waits(uid) && news.is_some_and(|pod| pod.deleting) {
            return self.delete_pod(uid);
        }
        let is_lost = self.claims.claiming.get(uid).is_some_and(|claiming| claiming.is_lost(&self.cluster));
        if !self.cluster.leading || is_lost {
            return;
        }
        match self.claims.all_bound(uid, &self.cluster, now) {
            Ok(true) if self.binds >= self.cluster.config.max_waiting_binds => self.claims.mark_due(uid),
            Ok(true) => {
                let holding = self.cluster.waiting.get(uid).map(|waiting| &waiting.holding);
                if let Some(why) = holding.and_then(|holding| device_of_others(&self.cluster, holding, uid)) {
                    self.claims_failed(uid, &ClaimFailure::Devices(why).of(DEVICES), now);
                    return self.claims.note_left_behind(uid);
                }
                if let Some(order) = self.release_claims(uid) {
                    self.begin_bind(uid, order.node);
                }
            }
            Ok(false) => {}
            Err(error) => self.claims_failed(uid, &error, now),
        }
    }

    /// Releases the pod's node and retries it after a backoff. Written claims stay as they are, as upstream: a reserved
    /// volume stays reserved, and a provisioner that fails removes the selected node from the claim itself.
    fn claims_failed(&mut self, uid: &Arc<str>, error: &ClaimError, now: Duration) {
        if self.yields_to_rival(uid, now) {
            return;
        }
        self.release_claims(uid);
        self.discharge(uid);
        let news = self.cluster.waiting.get_mut(uid).and_then(|pod| pod.news.take());
        self.back_off(uid, error.to_string(), now);
        if let Some(pod) = news {
            self.apply_pod(*pod, now);
        }
        self.wake_for_parked();
    }

    /// Leaves the node to another client's request that may still bind the pod there. Returns whether there is one.
    fn yields_to_rival(&mut self, uid: &Arc<str>, now: Duration) -> bool {
        let order = self.claims.claiming.get(uid).map(|claiming| &claiming.order);
        let Some((order, waiting)) = order.zip(self.cluster.waiting.get(uid)) else {
            return false;
        };
        // The API server binds no pod that is being deleted.
        if waiting.news.as_ref().is_some_and(|pod| pod.deleting) {
            return false;
        }
        let (namespace, name) = (waiting.source.namespace.clone(), waiting.source.name.clone());
        let binding = Binding { uid: uid.clone(), namespace, name, node: order.node.clone(), decision: None };
        let rival = self.foreign.take_rival(uid, now);
        if let Some(until) = rival {
            self.leave_to_rival(&binding, until);
        }
        rival.is_some()
    }

    /// Ends the pod's wait for claims: their reservations fall back to the API server's state.
    pub(super) fn release_claims(&mut self, uid: &str) -> Option<ClaimOrder> {
        let Claiming { order, written, .. } = self.claims.end(uid)?;
        let news = self.cluster.objects.volumes.release(&order.requests);
        self.requeue_affected(news.into());
        self.release_devices(uid, written.is_none());
        Some(order)
    }

    pub(super) fn requeue_for_volumes(&mut self, news: VolumeNews) {
        for claim in &news.claims {
            self.claims.claim_changed(claim, &mut self.stale);
            self.recharges.mark(Charged::Using(claim.clone()));
        }
        if news.all_claims {
            self.stale.mark_claimants();
        }
        if news.all_holdings {
            self.recharges.mark(Charged::All);
        }
        self.recharge();
        let Cluster { objects, ledger, .. } = &mut self.cluster;
        for host in &news.hosts {
            ledger.set_local_volumes(host, objects.volumes.local(host));
        }
        for node in &news.nodes {
            ledger.set_storage(node, objects.volumes.storage_of(node));
        }
    }

    /// Lets pods and nodes know of changed claims and devices. `freed`: some devices may serve where they did not.
    pub(super) fn requeue_for_devices(&mut self, changed: DevicesChanged, freed: bool) {
        for claim in &changed.claims {
            self.claims.device_claim_changed(claim, &mut self.stale);
        }
        if changed.all_claims {
            self.stale.mark_device_users();
        }
        if changed.provided {
            self.cluster.ledger.set_provided(self.cluster.objects.devices.provided());
        }
        let mut nodes = changed.nodes.nodes;
        if changed.nodes.everywhere {
            let Cluster { objects, ledger, kept_devices, .. } = &mut self.cluster;
            ledger.set_shared_devices(objects.devices.pools.shared(), freed);
            nodes.extend(objects.devices.pools.nodes().chain(kept_devices.nodes()).cloned());
        }
        for node in &nodes {
            self.cluster.show_devices(node, freed);
            self.preemption.node_changed(node);
        }
        if !nodes.is_empty() {
            self.wake_for_parked();
        }
    }
}
