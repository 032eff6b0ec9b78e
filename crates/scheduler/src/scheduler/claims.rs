//! PersistentVolumeClaims that are bound together with their pod's node (upstream: Reserve and PreBind of
//! VolumeBinding).
//!
//! When such a pod has its node in the ledger, its claims are written: a free volume is reserved for a claim, or a
//! claim is annotated with the node its volume is to be provisioned for. Then the pod waits with its node, not counted
//! as a bind, until the volume controller has bound every claim; only then its own bind begins. There is no polling:
//! the watches of claims and volumes report progress.
//!
//! [`Claims`] reads the cluster and changes only itself; the scheduler carries out what it finds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::charge_walks::Charged;
use super::cluster::Cluster;
use super::{Action, Scheduler, Stale, State};
use crate::inventory::NodeId;
use crate::objects::{BindingError, ClaimProgress, VolumeNews, WantedVolume};
use crate::placement::{Binding, ClaimOrder};
use crate::rules::{VolumeChoice, plan_volumes};
use berth_model::{ClaimName, Holding, VolumeNeeds};

/// Interval at which all pods waiting for claims are checked: the node may be deleted, or the deadline passed.
const CHECK_ALL_EVERY: Duration = Duration::from_secs(1);

/// Prefix of upstream's error message.
const PRE_BIND: &str = "running PreBind plugin \"VolumeBinding\"";

/// Claims of waiting pods, by pod and by claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Uids of the waiting pods that use each claim.
    users: HashMap<ClaimName, BTreeSet<Arc<str>>>,
    /// By uid: pods with a node that wait for their claims.
    claiming: BTreeMap<Arc<str>, Claiming>,
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

/// Reason why the claims of a pod cannot be bound on its node, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ClaimError {
    /// The API server did not accept a claim or a volume, for this reason.
    #[error("{PRE_BIND}: {0}")]
    Write(String),
    #[error("{PRE_BIND}: binding volumes: failed to get node {0:?}: node {0:?} not found")]
    NodeGone(Arc<str>),
    /// The volume controller or the provisioner gave up.
    #[error("{PRE_BIND}: binding volumes: {0}")]
    Failed(BindingError),
    #[error("{PRE_BIND}: binding volumes: context deadline exceeded")]
    DeadlineExceeded,
}

/// The pod's volumes no longer match its class.
pub(super) struct Outdated;

impl Claims {
    /// Records the claims of a pod that begins to wait.
    pub(super) fn add_user(&mut self, uid: &Arc<str>, holding: &Holding) {
        for claim in holding.volumes.iter().flat_map(|held| &held.claims) {
            self.users.entry(claim.clone()).or_default().insert(uid.clone());
        }
    }

    pub(super) fn remove_user(&mut self, uid: &str, holding: &Holding) {
        for claim in holding.volumes.iter().flat_map(|held| &held.claims) {
            if let Some(pods) = self.users.get_mut(claim) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.users.remove(claim);
                }
            }
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
        for uid in self.users.get(claim).into_iter().flatten() {
            match self.claiming.contains_key(uid) {
                true => {
                    self.due.insert(uid.clone());
                }
                false => stale.mark_pod(uid),
            }
        }
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
        claiming.written = Some(versions.map_err(ClaimError::Write)?);
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
            return Err(ClaimError::NodeGone(order.node.clone()));
        };
        match cluster.objects.volumes.progress(&order.requests, written, node) {
            ClaimProgress::Done => Ok(true),
            ClaimProgress::Failed(why) => Err(ClaimError::Failed(why)),
            ClaimProgress::Waiting if now >= claiming.deadline => Err(ClaimError::DeadlineExceeded),
            ClaimProgress::Waiting => Ok(false),
        }
    }

    fn begin(&mut self, order: ClaimOrder, deadline: Duration) {
        self.claiming.insert(order.uid.clone(), Claiming { order, written: None, deadline });
    }

    fn end(&mut self, uid: &str) -> Option<ClaimOrder> {
        self.due.remove(uid);
        Some(self.claiming.remove(uid)?.order)
    }
}

impl Scheduler {
    /// Requests the claims of a pod that has this node. The commit has checked that volumes for them are available
    /// there.
    pub(super) fn claim(
        &mut self,
        uid: &Arc<str>,
        claims: Vec<ClaimName>,
        needs: &VolumeNeeds,
        node: NodeId,
        now: Duration,
    ) {
        let inventory = self.cluster.inventory();
        let Ok(choices) = plan_volumes(&needs.unbound, inventory.row(node)) else {
            debug_assert!(false, "the commit has checked the same row");
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
        let order = ClaimOrder { uid: uid.clone(), work: self.next_work, node: host.clone(), requests };
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

    /// Records that the claims of an [`Action::Claim`] were written, with these versions, or failed for this reason.
    pub fn claims_written(&mut self, order: &ClaimOrder, written: Result<Vec<u64>, String>, now: Duration) {
        match self.claims.written(order, written) {
            Ok(true) => self.check_claims(&order.uid, now),
            Ok(false) => {}
            Err(error) => self.claims_failed(&order.uid, &error, now),
        }
    }

    /// Checks the pods whose claims changed, and periodically all that wait for claims. Without leadership nothing is
    /// decided, and the next leader requests the claims again.
    pub(super) fn maintain_claims(&mut self, now: Duration) {
        if !self.cluster.leading {
            let claiming: Vec<_> = self.claims.claiming.keys().cloned().collect();
            for uid in claiming {
                if self.yields_to_rival(&uid, now) {
                    continue;
                }
                self.discharge(&uid);
                self.withdraw(&uid);
                self.stale.mark_pod(&uid);
                self.admit(&uid, now);
            }
            return;
        }
        for uid in self.claims.take_due(now) {
            self.check_claims(&uid, now);
        }
    }

    fn check_claims(&mut self, uid: &Arc<str>, now: Duration) {
        let news = self.cluster.waiting.get(uid).and_then(|waiting| waiting.news.as_ref());
        if self.claims.waits(uid) && news.is_some_and(|pod| pod.deleting) {
            return self.delete_pod(uid);
        }
        if !self.cluster.leading {
            return;
        }
        match self.claims.all_bound(uid, &self.cluster, now) {
            Ok(true) if self.binds >= self.cluster.config.max_waiting_binds => self.claims.mark_due(uid),
            Ok(true) => {
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
        let binding = Binding { uid: uid.clone(), namespace, name, node: order.node.clone() };
        let rival = self.foreign.take_rival(uid, now);
        if let Some(until) = rival {
            self.leave_to_rival(&binding, until);
        }
        rival.is_some()
    }

    /// Ends the pod's wait for claims: their reservations fall back to the API server's state.
    pub(super) fn release_claims(&mut self, uid: &str) -> Option<ClaimOrder> {
        let order = self.claims.end(uid)?;
        let news = self.cluster.objects.volumes.release(&order.requests);
        self.requeue_affected(news.into());
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
}
