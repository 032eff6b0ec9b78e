//! PersistentVolumeClaims that are bound together with their pod's node (upstream: Reserve and PreBind of
//! VolumeBinding).
//!
//! When such a pod has its node in the ledger, its claims are written: a free volume is reserved for a claim, or a
//! claim is annotated with the node its volume is to be provisioned for. Then the pod waits with its node, not counted
//! as a bind, until the volume controller has bound every claim; only then its own bind begins. There is no polling:
//! the watches of claims and volumes report progress.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Scheduler, State};
use crate::inventory::NodeId;
use crate::objects::{Progress, VolumeNews, Wanted};
use crate::placement::{Binding, ClaimOrder};
use crate::rules::{VolumeChoice, plan_volumes};
use berth_model::{ClaimName, VolumeNeeds};

/// Claims a pod waits for.
#[derive(Debug)]
pub(super) struct Claiming {
    order: ClaimOrder,
    /// Resource versions of the written claims, once written.
    written: Option<Vec<u64>>,
    deadline: Duration,
}

/// Pods that wait for their claims, and those to check.
#[derive(Debug, Default)]
pub(super) struct Claimants {
    waiting: BTreeSet<Arc<str>>,
    /// Pods whose claims changed.
    due: BTreeSet<Arc<str>>,
    all_due: Duration,
}

/// Interval at which all pods waiting for claims are checked: the node may be deleted, or the deadline passed.
const LOOK_AT_ALL: Duration = Duration::from_secs(1);

/// Prefix of upstream's error message.
const PRE_BIND: &str = "running PreBind plugin \"VolumeBinding\"";

/// The pod's volumes no longer match its class.
pub(super) struct Outdated;

impl Scheduler {
    /// Returns the pod's claims that need a volume, in the order of its class.
    pub(super) fn unbound_claims(&mut self, uid: &str) -> Result<Vec<ClaimName>, Outdated> {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return Err(Outdated);
        };
        let Some(volumes) = &waiting.source.volumes else {
            return Ok(Vec::new());
        };
        let used = |claim: &ClaimName| self.cluster.ledger.is_used(claim);
        let resolved = self.cluster.objects.volumes.resolve(&waiting.source, volumes, &used);
        match waiting.class.spec.volumes.as_deref() == Some(&resolved.needs) {
            true => Ok(resolved.unbound),
            false => Err(Outdated),
        }
    }

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
        let inventory = self.cluster.ledger.inventory();
        let Ok(choices) = plan_volumes(&needs.unbound, inventory.row(node)) else {
            debug_assert!(false, "the commit has checked the same row");
            self.discharge(uid);
            return self.back_off(uid, "its volumes were claimed by another pod".to_owned(), now);
        };
        let wanted = |choice| match choice {
            VolumeChoice::Volume(volume) => Wanted::Volume(volume.name.clone()),
            VolumeChoice::Made => Wanted::Provision,
        };
        let wanted: Vec<_> = claims.into_iter().zip(choices.into_iter().map(wanted)).collect();
        let (host, requests) = (inventory.name(node).clone(), self.cluster.objects.volumes.requests(&wanted));
        self.next_work += 1;
        let order = ClaimOrder { uid: uid.clone(), work: self.next_work, node: host.clone(), requests };
        let news = self.cluster.objects.volumes.reserve(&order.requests, &host);
        if let Some(waiting) = self.cluster.waiting.get_mut(uid) {
            waiting.state = State::Claiming;
            // Undelivered reports are withdrawn: if the claims fail to bind, the message must be reported again.
            waiting.told = None;
            let deadline = now + self.cluster.config.volume_bind_timeout;
            waiting.claiming = Some(Box::new(Claiming { order: order.clone(), written: None, deadline }));
            self.claimants.waiting.insert(uid.clone());
        }
        self.actions.push(Action::Claim(order));
        self.heed(news.into());
    }

    /// Records that the claims of an [`Action::Claim`] were written, with these versions, or failed for this reason.
    pub fn claims_written(&mut self, order: &ClaimOrder, written: Result<Vec<u64>, String>, now: Duration) {
        let uid = &order.uid;
        let Some(claiming) = self.cluster.waiting.get_mut(uid).and_then(|waiting| waiting.claiming.as_mut())
        else {
            return;
        };
        if claiming.order.work != order.work {
            return;
        }
        match written {
            Ok(versions) => {
                claiming.written = Some(versions);
                self.look_at_claims(uid, now);
            }
            Err(why) => self.claims_failed(uid, &why, now),
        }
    }

    /// Checks the pods whose claims changed, and periodically all that wait for claims.
    pub(super) fn look_after_claims(&mut self, now: Duration) {
        if !self.cluster.leading {
            return self.abandon_claims(now);
        }
        let mut due = std::mem::take(&mut self.claimants.due);
        if now >= self.claimants.all_due {
            self.claimants.all_due = now + LOOK_AT_ALL;
            due.extend(self.claimants.waiting.iter().cloned());
        }
        for uid in due {
            self.look_at_claims(&uid, now);
        }
    }

    /// Marks the pod to be checked.
    pub(super) fn claims_due(&mut self, uid: &Arc<str>) {
        if self.claimants.waiting.contains(uid) {
            self.claimants.due.insert(uid.clone());
        }
    }

    fn look_at_claims(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return;
        };
        let (Some(claiming), Some(charge)) = (&waiting.claiming, self.cluster.ledger.charge_of(uid)) else {
            return;
        };
        if waiting.news.as_ref().is_some_and(|pod| pod.deleting) {
            self.delete_pod(uid);
            return;
        }
        // While a write is in flight, its result will arrive; without leadership nothing is decided.
        let Some(written) = claiming.written.as_ref().filter(|_| self.cluster.leading) else {
            return;
        };
        let order = &claiming.order;
        let progress = match &self.cluster.ledger.inventory().row(charge.node).node {
            Some(node) => self.cluster.objects.volumes.progress(&order.requests, written, node),
            None => Progress::Failed(format!("failed to get node {0:?}: node {0:?} not found", order.node)),
        };
        match progress {
            Progress::Done => self.claims_bound(uid),
            Progress::Failed(why) => self.claims_failed(uid, &format!("binding volumes: {why}"), now),
            Progress::Waiting if now >= claiming.deadline => {
                self.claims_failed(uid, "binding volumes: context deadline exceeded", now);
            }
            Progress::Waiting => {}
        }
    }

    /// Begins the bind of the pod: all claims are bound.
    fn claims_bound(&mut self, uid: &Arc<str>) {
        if self.binds >= self.cluster.config.max_waiting_binds {
            self.claimants.due.insert(uid.clone());
            return;
        }
        let Some(order) = self.release_claims(uid) else {
            return;
        };
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        waiting.state = State::Binding;
        let (namespace, name) = (waiting.pod.namespace.clone(), waiting.pod.name.clone());
        self.binds += 1;
        self.actions.push(Action::Bind(Binding { uid: uid.clone(), namespace, name, node: order.node }));
    }

    /// Releases the pod's node and retries it after a backoff. Written claims stay as they are, as upstream: a reserved
    /// volume stays reserved, and a provisioner that fails removes the selected node from the claim itself.
    fn claims_failed(&mut self, uid: &Arc<str>, why: &str, now: Duration) {
        self.release_claims(uid);
        self.discharge(uid);
        let news = self.cluster.waiting.get_mut(uid).and_then(|pod| pod.news.take());
        self.back_off(uid, format!("{PRE_BIND}: {why}"), now);
        if let Some(pod) = news {
            self.apply_pod(*pod, now);
        }
        self.wake_for_parked();
    }

    /// Ends the pod's wait for claims: their reservations fall back to the API server's state.
    pub(super) fn release_claims(&mut self, uid: &str) -> Option<ClaimOrder> {
        let claiming = self.cluster.waiting.get_mut(uid)?.claiming.take()?;
        self.claimants.waiting.remove(uid);
        self.claimants.due.remove(uid);
        let news = self.cluster.objects.volumes.release(&claiming.order.requests);
        self.heed(news.into());
        Some(claiming.order)
    }

    /// Gives up the claims when leadership is lost: the next leader requests them.
    fn abandon_claims(&mut self, now: Duration) {
        for uid in self.claimants.waiting.clone() {
            self.discharge(&uid);
            self.withdraw(&uid);
            self.stale.pods.insert(uid.clone());
            self.admit(&uid, now);
        }
    }

    /// Returns the pods that wait for their claims.
    pub(super) fn claiming(&self) -> &BTreeSet<Arc<str>> {
        &self.claimants.waiting
    }

    pub(super) fn heed_volumes(&mut self, news: VolumeNews) {
        for claim in &news.claims {
            for uid in self.pods_by_claim.get(claim).into_iter().flatten() {
                // A pod that waits for its claims has its node; it is reclassified if it loses it.
                match self.claimants.waiting.contains(uid) {
                    true => self.claimants.due.insert(uid.clone()),
                    false => self.stale.pods.insert(uid.clone()),
                };
            }
            let objects = &mut self.cluster.objects;
            self.cluster.ledger.rehold_users(claim, |holding| objects.renewed(holding));
        }
        self.stale.claimants |= news.all_claims;
        if news.all_holdings {
            let objects = &mut self.cluster.objects;
            self.cluster.ledger.rehold(|holding| holding.volumes.is_some().then(|| objects.renewed(holding)));
        }
        for host in &news.hosts {
            self.cluster.ledger.set_local_volumes(host, self.cluster.objects.volumes.local(host));
        }
        for node in &news.nodes {
            self.cluster.ledger.set_storage(node, self.cluster.objects.volumes.storage_of(node));
        }
    }
}
