//! Preemption: a parked pod whose class fits nowhere evicts lower-priority pods from a node, and is placed there when
//! they are gone (upstream: DefaultPreemption and its executor).
//!
//! `hunts.rs` finds victims, one class at a time, `gangs.rs` for a whole gang. A pod with victims is *nominated*: it
//! stays parked, and `nominations.rs` keeps its reservation until they are gone. `aged.rs` reserves nodes for pods that
//! have waited long, and `guarantees.rs` decides what quotas allow to preempt.
//!
//! [`Preemption`] is the interface of these components: it reads the cluster, the parked pods and the gangs, and
//! changes only itself and the reservations in the ledger. `conductor.rs` carries out what they decide.

pub(in crate::scheduler) mod aged;
mod conductor;
mod gangs;
mod guarantees;
mod hunts;
mod nominations;
mod surveyed;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gangs::Gangs;
use super::{Action, Cluster};
use crate::class::{Class, ClassId};
use crate::gang::{AllocationName, WantedMembers};
use crate::inventory::{Ledger, NodeId};
use crate::preempt::{Prospect, Site, SiteDevices, Together, UsedClaim, Victims};
use crate::queue::Parked;
use crate::quota::{Quota, Toll};
use aged::Aged;
use berth_model::{ClaimName, PodRef};
use gangs::GangHunts;
pub use gangs::{GangAttempt, GangHuntResult};
use guarantees::{By, Guarantees};
use hunts::Hunts;
pub(super) use hunts::survey;
pub use hunts::{Attempt, HuntResult};
use nominations::Nominations;

/// Eviction of a pod for a pod of higher priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    pub victim: PodRef,
    pub preemptor: PodRef,
    /// Uid of the PodGroup of the preemptor, if it is a member of one.
    pub group: Option<Arc<str>>,
    pub node: Arc<str>,
    /// Generation of the victim.
    pub generation: i64,
}

/// Nominations, and the searches for victims.
#[derive(Debug, Default)]
pub(super) struct Preemption {
    nominations: Nominations,
    hunts: Hunts,
    gangs: GangHunts,
    aged: Aged,
}

impl Preemption {
    pub(super) fn has_nominated(&self, uid: &str) -> bool {
        self.nominations.has(uid)
    }

    /// Returns the node it is nominated for.
    pub(super) fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.nominations.node_of(uid)
    }

    /// Returns the node that its status is to name: room that is kept for an aged pod is not written.
    pub(super) fn written_node(&self, uid: &str) -> Option<&Arc<str>> {
        self.node_of(uid).filter(|_| !self.aged.keeps_for(uid))
    }

    /// Returns the number of pods and rows that searches for aged pods have visited.
    pub(super) fn visits(&self) -> u64 {
        self.aged.examined()
    }

    /// Returns whether its eviction was requested and it is still there.
    pub(super) fn is_evicting(&self, uid: &str) -> bool {
        self.nominations.is_evicting(uid)
    }

    fn guarantees<'a>(&'a self, cluster: &'a Cluster) -> Guarantees<'a> {
        Guarantees::of(cluster, &self.nominations)
    }

    /// Returns whether a nominated pod is to be checked.
    pub(super) fn is_due(&self) -> bool {
        self.nominations.is_due()
    }

    /// Marks the nominated pods of a changed node to be checked.
    pub(super) fn node_changed(&mut self, node: &str) {
        self.nominations.node_changed(node);
    }

    /// Records that the pod (by uid) has left its node or is about to.
    pub(super) fn victim_left(&mut self, uid: &str, ledger: &Ledger) {
        self.nominations.victim_left(uid, ledger);
    }

    pub(super) fn has_nominated_gang(&self, name: &AllocationName, gangs: &Gangs) -> bool {
        gangs.waiting_uids(name).iter().any(|uid| self.has_nominated(uid))
    }

    /// Returns whether some victims of the gang are still there, or the devices that they had are not free yet.
    pub(super) fn gang_awaits_victims(
        &self,
        name: &AllocationName,
        gangs: &Gangs,
        cluster: &Cluster,
    ) -> bool {
        let uids = gangs.waiting_uids(name);
        self.nominations.await_victims(&uids) || uids.iter().any(|uid| cluster.awaits_devices(uid))
    }

    /// Records that no pod of the class is being placed: nominated ones may be tried.
    pub(super) fn probe_over(&mut self, class: ClassId) {
        self.nominations.probe_over(class);
    }

    /// Lifts the reservations of these members, so that they can use them.
    pub(super) fn lift(&self, wanted: &WantedMembers, cluster: &mut Cluster) {
        self.nominations.lift(wanted, &mut cluster.ledger);
        wanted.reserved.iter().for_each(|(_, uid)| cluster.kept_devices.lift(uid, true));
    }

    /// Restores the reservations of the members that are still nominated.
    pub(super) fn restore(&self, wanted: &WantedMembers, cluster: &mut Cluster) {
        self.nominations.restore(wanted, &cluster.waiting, &mut cluster.ledger);
        wanted.reserved.iter().for_each(|(_, uid)| cluster.kept_devices.lift(uid, false));
    }

    /// Returns whether preemption for a pod of this class is still to be tried.
    pub(super) fn hunts(&self, class: ClassId) -> bool {
        self.hunts.hunts(class)
    }

    /// Returns the pods (by uid) of higher priority than this for which victims are now sought on this node.
    pub(super) fn looking_at<'a>(
        &'a self,
        node: NodeId,
        priority: i32,
        parked: &'a Parked,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        self.hunts.looking_at(node, priority, parked)
    }

    /// Starts preemption for a pod that was just parked. Returns whether it is still unknown if preemption helps its
    /// class.
    pub(super) fn pod_parked(
        &mut self,
        uid: &Arc<str>,
        cluster: &Cluster,
        parked: &Parked,
        actions: &mut Vec<Action>,
    ) -> bool {
        self.nominations.mark_due(uid);
        self.nominations.clear_outdated(uid, cluster, actions);
        self.hunt(uid, cluster, parked, actions);
        if let Some(pod) = cluster.waiting.get(uid) {
            // It may have been the one of its class that was being placed.
            self.nominations.probe_over(pod.class.id);
        }
        cluster.waiting.get(uid).is_some_and(|pod| self.hunts(pod.class.id))
    }

    /// Starts preemption for this parked pod, once it is certain that its class fits nowhere.
    pub(super) fn hunt(&mut self, uid: &str, cluster: &Cluster, parked: &Parked, actions: &mut Vec<Action>) {
        self.hunts.start(uid, cluster, parked, &self.nominations, actions);
    }

    /// Schedules the next step of the class's hunt at an agent.
    pub(super) fn hunt_on(&mut self, class: ClassId, parked: &Parked, actions: &mut Vec<Action>) {
        self.hunts.go_on(class, parked, actions);
    }

    /// Retries failed preemption attempts after a change of quotas or gangs.
    pub(super) fn retry_preemption(&mut self) {
        self.hunts.retry_preemption();
        self.gangs.retry_preemption();
    }

    /// Tries preemption for all parked classes and gangs at the next check.
    pub(super) fn hunt_for_all(&mut self) {
        self.hunts.walk_all();
    }

    /// Retries gangs and classes whose preemption failed, if something changed.
    pub(super) fn hunt_again(
        &mut self,
        cluster: &Cluster,
        parked: &Parked,
        gangs: &Gangs,
        agents: usize,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let lower = self.hunts.less_important_came(&cluster.ledger);
        self.gangs.retry(lower, cluster, gangs, agents, now, actions);
        self.hunts.retry(lower, cluster, parked, now, actions);
    }

    /// Retries preemption for the parked classes after quotas changed, if any quota guarantees something.
    pub(super) fn hunt_for_quotas(&mut self, cluster: &Cluster) {
        let guarantees = |quota: &Quota| quota.valid().is_some_and(|limits| !limits.guaranteed.is_empty());
        if cluster.config.preemption && cluster.objects.quotas.iter().any(|quota| guarantees(quota)) {
            self.hunts.walk_all();
        }
    }

    /// Starts preemption for a gang that fits nowhere, with the message `lacking`, if it may preempt now. Returns
    /// whether it does.
    pub(super) fn hunt_together(
        &mut self,
        agent: usize,
        (name, lacking): (&AllocationName, &Arc<str>),
        cluster: &Cluster,
        gangs: &Gangs,
        actions: &mut Vec<Action>,
    ) -> bool {
        let may = gangs::priority_of(name, cluster, gangs, &self.nominations).is_some();
        self.gangs.start(agent, name, lacking, may, actions)
    }

    /// Returns this agent's next step for gangs that preempt.
    pub(super) fn next_gang_step(
        &mut self,
        agent: usize,
        cluster: &Cluster,
        gangs: &Gangs,
    ) -> Option<Box<GangAttempt>> {
        loop {
            let name = self.gangs.next(agent, cluster, gangs, &self.nominations)?;
            match self.gang_step(&name, cluster, gangs) {
                Some(step) => return Some(Box::new(step)),
                None => self.gangs.end(&name),
            }
        }
    }

    fn gang_step(&mut self, name: &AllocationName, cluster: &Cluster, gangs: &Gangs) -> Option<GangAttempt> {
        let priority = gangs::priority_of(name, cluster, gangs, &self.nominations)?;
        let (version, wanted) = gangs.preempting(name, cluster, self)?;
        let rights = self.guarantees(cluster).rights_together(&wanted);
        let prospects = self.gangs.begin(name, &cluster.ledger);
        let by = (priority, &rights);
        let needed = Needed::of(wanted.classes().into_iter().map(|class| &**class));
        let sites = |mut prospect: Prospect<NodeId>| {
            prospect.nodes.retain(|id| cluster.inventory().row(*id).node.is_some());
            let mut nodes = self.sites(prospect.nodes, by, (true, &needed), cluster, gangs);
            for site in &mut nodes {
                site.pods.retain(|known| !gangs.is_placed_member(&known.pod.pod.uid, name));
            }
            Prospect { domain: prospect.domain, nodes }
        };
        let together = prospects.map(|prospects| Together {
            prospects: prospects.into_iter().map(sites).collect(),
            budgets: cluster.objects.budgets.clone(),
        });
        Some(GangAttempt { name: name.clone(), version, priority, rights, wanted, together })
    }

    /// Returns the pods that a pod with this priority and these rights may preempt on each of these nodes. `together`:
    /// the victims of all nodes must leave quotas their guarantees, not only those of each node. `needed`: by the preemptor.
    pub(super) fn sites(
        &self,
        nodes: Vec<NodeId>,
        by: By,
        (together, needed): (bool, &Needed),
        cluster: &Cluster,
        gangs: &Gangs,
    ) -> Vec<Site> {
        let guarantees = self.guarantees(cluster);
        let (known, leaving, mut toll) = (Default::default(), guarantees.leaving(), Toll::default());
        let group_of = |uid: &str| gangs.victim_group(uid, &known, cluster, self);
        let site = |node| {
            if !together {
                toll = Toll::default();
            }
            let claim = |pod: &_| guarantees.claim_on(pod, by, &leaving, &mut toll);
            let mut site = Site::claimed(&cluster.ledger, node, (by.0, by.1.reclaims()), claim, &group_of);
            site.devices = needed.devices.then(|| devices_at(&site, cluster));
            site.once.extend(needed.once.iter().map(|claim| UsedClaim {
                claim: (*claim).clone(),
                users: cluster.ledger.users_of(claim).cloned().collect(),
            }));
            site
        };
        nodes.into_iter().map(site).collect()
    }

    /// Returns whether the pod may still preempt all of these: other pods of their quotas and gangs may have left in
    /// the meantime.
    fn still_claims(&self, uid: &str, victims: &Victims, cluster: &Cluster, gangs: &Gangs) -> bool {
        let guarantees = self.guarantees(cluster);
        cluster.waiting.get(uid).is_some_and(|pod| {
            let by = (pod.priority, &guarantees.rights_of(pod));
            gangs.bear(by.0, victims.pods.iter(), cluster, self) && guarantees.still_allow(by, &victims.pods)
        })
    }
}

/// What preemptors need besides room.
#[derive(Debug, Default)]
pub(super) struct Needed<'a> {
    devices: bool,
    /// `ReadWriteOncePod` claims that other pods use.
    once: BTreeSet<&'a ClaimName>,
}

impl<'a> Needed<'a> {
    pub(super) fn of(classes: impl IntoIterator<Item = &'a Class>) -> Self {
        let mut needed = Needed::default();
        for class in classes {
            needed.devices |= class.spec.devices.is_some();
            needed.once.extend(class.spec.volumes.iter().flat_map(|volumes| &volumes.claims_in_use));
        }
        needed
    }
}

/// Returns the devices that pods of a site use, and those that other victims leave there.
fn devices_at(site: &Site, cluster: &Cluster) -> SiteDevices {
    let (row, name) = (cluster.inventory().row(site.node), cluster.inventory().name(site.node));
    let devices = &cluster.objects.devices;
    let own = row.devices.iter().flat_map(|devices| &devices.own);
    let mut claims: BTreeSet<&ClaimName> =
        own.flat_map(|pool| devices.pools.claims_of(&pool.pool.id)).collect();
    let of_pods = site.pods.iter().filter_map(|known| known.pod.holding.devices.as_ref());
    claims.extend(of_pods.flat_map(|claims| claims.iter()));
    let leaving = cluster.devices_left(name, None).leaving;
    let held = claims.into_iter().filter(|claim| !devices.is_awaited(claim));
    let held = held.filter_map(|claim| devices.held_by(claim)).filter(|held| !held.users.is_empty());
    SiteDevices { leaving, held: held.collect() }
}
