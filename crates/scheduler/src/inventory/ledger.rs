//! The ledger: charges of pods to nodes, and the only place where a placement is committed against the newest state
//! (DESIGN: commit).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::{Inventory, NodeId, Reservation, Revision, Row};
use crate::live_selectors::LiveSelectors;
use crate::quota::Accounts;
use crate::sharded::ShardedMap;
use crate::visits::Visits;
use berth_devices::NodeDevices;
use berth_model::{
    Amounts, ClaimName, Holding, Node, NodeStorage, Peer, PodAffinity, PodRef, PodSelector,
    ProvidedResources, StaticVolume, Usage,
};

/// Charge of one pod to one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    pub node: NodeId,
    pub holding: Holding,
    /// Whether the pod is assumed: we chose the node and asked the store to bind, but no watch has shown the pod there
    /// yet. An assumption ends when the outcome is known, never by a timer.
    pub assumed: bool,
    /// Pod as last seen by a watch; `None`: not seen yet.
    seen: Option<Seen>,
}

/// Without the uid, which is the key of the charge.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    namespace: Arc<str>,
    name: Arc<str>,
    scheduler_name: Arc<str>,
    generation: i64,
    started_s: Option<i64>,
}

/// A pod that a watch has seen on its node: the data that preemption needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    pub pod: PodRef,
    pub generation: i64,
    pub holding: Holding,
    /// Start time reported by the kubelet, in seconds since the epoch.
    pub started_s: Option<i64>,
}

/// The pod no longer fits the node; the caller reads the newest row and chooses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

/// A row whose sums differ from the sums of its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discrepancy {
    pub node: Arc<str>,
    pub counted: String,
    pub recounted: String,
}

/// A recount of the accounts that is under way, row by row.
#[derive(Debug, Default)]
struct Recount {
    /// Rows whose pods are counted: what happens there from then on is counted, too.
    rows: usize,
    accounts: Accounts,
}

/// The only type that changes inventory and charges, always together.
#[derive(Debug, Default)]
pub struct Ledger {
    inventory: Inventory,
    /// By pod uid. Never iterated where order could matter. Boxed: half of the slots of a table that has grown are empty.
    charges: ShardedMap<Box<Charge>>,
    assumed: usize,
    /// Number of charged pods that no watch has shown on their nodes.
    unseen: usize,
    /// Number of times an assumed pod was observed by a watch.
    arrivals: u64,
    /// Number of times a pod left a node or changed there.
    departures: u64,
    /// Number of times that a pod came whose priority was lower than that of all others.
    lowered: u64,
    /// Uids of the pods of each node, in no particular order.
    by_node: Vec<Vec<Arc<str>>>,
    /// Uids of the pods of each namespace.
    by_namespace: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Number of charges per priority.
    priorities: BTreeMap<i32, usize>,
    /// Uids of the pods that use each claim.
    users: HashMap<ClaimName, BTreeSet<Arc<str>>>,
    /// Claims that got their first user or lost their last one since the last read.
    claims_changed: BTreeSet<ClaimName>,
    claims_moved: bool,
    /// By uid: the node with a reservation for a pod of another scheduler.
    reservations: ShardedMap<(Arc<str>, Reservation)>,
    /// Resources charged to each quota.
    accounts: Accounts,
    recount: Option<Recount>,
    /// Selectors in the terms of charged and expected pods.
    selectors: LiveSelectors,
    /// Pods that came to a node or changed there since the last read.
    arrived: Vec<Arc<Peer>>,
    visits: Visits,
}

impl Ledger {
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub fn apply_node(&mut self, node: Node) -> bool {
        let (name, nodes) = (node.name.clone(), self.inventory.node_count());
        let changed = self.inventory.apply_node(node);
        if self.inventory.node_count() != nodes {
            self.node_came_or_went(&name);
        }
        changed
    }

    pub fn delete_node(&mut self, name: &str) -> bool {
        let changed = self.inventory.delete_node(name);
        self.node_came_or_went(name);
        changed
    }

    /// Sets the CSI storage of the named node.
    pub fn set_storage(&mut self, node: &Arc<str>, storage: Option<NodeStorage>) {
        self.inventory.set_storage(node, storage);
    }

    /// Sets the free volumes that only few hosts besides this one can reach, smallest first.
    pub fn set_local_volumes(&mut self, host: &Arc<str>, volumes: Option<Arc<Vec<Arc<StaticVolume>>>>) {
        self.inventory.set_local_volumes(host, volumes);
    }

    /// Sets the devices of a node; `None`: it has none of its own. `freed`: some of them may serve where they did not.
    pub fn set_devices(&mut self, node: &Arc<str>, devices: Option<Arc<NodeDevices>>, freed: bool) {
        self.inventory.set_devices(node, devices, freed);
    }

    /// Sets the devices of the nodes that have none of their own.
    pub fn set_shared_devices(&mut self, devices: Option<Arc<NodeDevices>>, freed: bool) {
        self.inventory.set_shared_devices(devices, freed);
    }

    /// Sets the extended resources that devices provide to nodes which do not have them.
    pub fn set_provided(&mut self, provided: Option<Arc<ProvidedResources>>) {
        self.inventory.set_provided(provided);
    }

    /// Returns whether a pod on an existing node uses this claim (upstream asks the nodes of its snapshot).
    pub fn is_used(&self, claim: &ClaimName) -> bool {
        let exists = |charge: &Charge| self.inventory.row(charge.node).node.is_some();
        let mut users = self.users.get(claim).into_iter().flatten();
        users.any(|uid| self.charge_of(uid).is_some_and(exists))
    }

    /// Returns the uids of the pods that use this claim.
    pub fn users_of(&self, claim: &ClaimName) -> impl Iterator<Item = &Arc<str>> {
        self.users.get(claim).into_iter().flatten()
    }

    /// Returns whether a node with pods was added or deleted since the last call while any claim is used.
    pub fn take_claims_moved(&mut self) -> bool {
        std::mem::take(&mut self.claims_moved)
    }

    fn node_came_or_went(&mut self, name: &str) {
        let has_pods = |id: NodeId| self.inventory.row(id).requested.pods != 0;
        self.claims_moved |= !self.users.is_empty() && self.inventory.find(name).is_some_and(has_pods);
    }

    /// Returns the claims that got their first user or lost their last one since the last call. Sorted.
    pub fn take_claims_changed(&mut self) -> BTreeSet<ClaimName> {
        std::mem::take(&mut self.claims_changed)
    }

    pub fn charge_of(&self, uid: &str) -> Option<&Charge> {
        self.charges.get(uid).map(|charge| &**charge)
    }

    /// Returns the uids of all charged pods, in no particular order.
    pub fn charged(&self) -> impl Iterator<Item = &Arc<str>> {
        self.charges().map(|(uid, _)| uid)
    }

    /// Returns all charges by uid, in no particular order.
    pub fn charges(&self) -> impl Iterator<Item = (&Arc<str>, &Charge)> {
        self.charges.iter().inspect(|_| self.visits.add_one()).map(|(uid, charge)| (uid, &**charge))
    }

    /// Returns the pods charged to the nodes from this id on, by node, until there are `most` of them; and the id of the next
    /// node, `None` after the last one.
    pub fn charged_from(&self, first: NodeId, most: usize) -> (Vec<Arc<str>>, Option<NodeId>) {
        let mut pods = Vec::new();
        for (at, uids) in self.by_node.iter().enumerate().skip(first.index()) {
            if pods.len() >= most {
                return (self.visited(pods), Some(NodeId(at as u32)));
            }
            pods.extend(uids.iter().cloned());
        }
        (self.visited(pods), None)
    }

    /// Returns the number of charges, reservations and rows that walks have visited.
    pub fn visits(&self) -> u64 {
        self.visits.count() + self.inventory.visits()
    }

    /// Returns the selectors in the affinity terms of all charged and expected pods.
    pub fn selectors(&self) -> &LiveSelectors {
        &self.selectors
    }

    /// Returns the selectors that no pod had before, since the last call.
    pub fn take_new_selectors(&mut self) -> Vec<Arc<PodSelector>> {
        self.selectors.take_new()
    }

    /// Returns the pods that came to a node, or whose labels changed there, since the last call.
    pub fn take_arrived(&mut self) -> Vec<Arc<Peer>> {
        std::mem::take(&mut self.arrived)
    }

    /// Adds the terms of a pod that waits, so that the pods they select need no other class once it is charged.
    pub fn expect(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) {
        self.selectors.add(namespace, affinity);
    }

    /// Reverts one [`Ledger::expect`].
    pub fn stop_expecting(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) {
        self.selectors.remove(namespace, affinity);
    }

    /// Returns whether the terms of a pod that waits may be expected: see [`LiveSelectors::has_room`].
    pub fn has_room_for_terms(&mut self, namespace: &Arc<str>, affinity: &PodAffinity) -> bool {
        self.selectors.has_room(namespace, affinity)
    }

    /// Returns the namespaces that have room for more terms again: see [`LiveSelectors::take_relieved`].
    pub fn take_relieved_namespaces(&mut self) -> BTreeSet<Arc<str>> {
        self.selectors.take_relieved()
    }

    /// Returns the accounts of all quotas.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Returns the quotas in which resources were freed since the last call.
    pub fn take_freed_quotas(&mut self) -> BTreeSet<Arc<str>> {
        self.accounts.take_freed()
    }

    /// Returns the number of charged pods that no watch has shown on their nodes yet.
    pub fn unseen(&self) -> usize {
        self.unseen
    }

    /// Returns the number of charged pods, and how many of them are only assumed.
    pub fn counts(&self) -> (usize, usize) {
        (self.charges.len(), self.assumed)
    }

    /// Assumes that the pod `uid` runs on `node` if `fits` accepts the newest row. A stale view that still fits is
    /// merged; one that does not is a [`Conflict`]. A pod is charged once: a second commit conflicts.
    pub fn commit(
        &mut self,
        uid: &Arc<str>,
        holding: impl Into<Holding>,
        node: NodeId,
        fits: impl FnOnce(&Row) -> bool,
    ) -> Result<Arc<str>, Conflict> {
        if self.charges.contains_key(uid) || !fits(self.inventory.row(node)) {
            return Err(Conflict);
        }
        self.insert(uid, Charge { node, holding: holding.into(), assumed: true, seen: None });
        Ok(self.inventory.name(node).clone())
    }

    /// Records that the pod `uid` is bound to `node_name` with this holding, as the store reports.
    pub fn bound(&mut self, uid: &Arc<str>, node_name: &Arc<str>, holding: impl Into<Holding>) {
        let holding = holding.into();
        let node = self.inventory.id_of(node_name);
        if let Some(charge) = self.charges.get_mut(uid)
            && charge.node == node
            && charge.holding == holding
        {
            self.assumed -= usize::from(std::mem::take(&mut charge.assumed));
            return;
        }
        // Charges the new row first, so that the row is never vacant in between.
        let old = self.charges.remove(uid);
        if let Some(old) = &old {
            self.unuse(uid, old);
        }
        self.insert(uid, Charge { node, holding, assumed: false, seen: None });
        if let Some(old) = old {
            self.assumed -= usize::from(old.assumed);
            self.unseen -= usize::from(old.seen.is_none());
            self.release(&old);
        }
    }

    /// Sets or drops the reservation for a pod that another scheduler has nominated for this node.
    pub fn reserve(&mut self, uid: &Arc<str>, wanted: Option<(&Arc<str>, i32, &Arc<Usage>)>) -> bool {
        let wanted = wanted.map(|(node, priority, usage)| {
            (node.clone(), Reservation { uid: uid.clone(), priority, usage: usage.clone() })
        });
        if self.reservations.get(uid) == wanted.as_ref() {
            return false;
        }
        if let Some((node, _)) = self.reservations.remove(uid)
            && let Some(id) = self.inventory.find(&node)
        {
            self.inventory.unreserve(id, uid);
        }
        if let Some((node, reservation)) = wanted {
            let id = self.inventory.id_of(&node);
            self.inventory.reserve(id, reservation.clone());
            self.reservations.insert(uid.clone(), (node, reservation));
        }
        true
    }

    /// Returns the uids of the pods with a reservation, in no particular order.
    pub fn reserved(&self) -> impl Iterator<Item = &Arc<str>> {
        self.reservations.keys().inspect(|_| self.visits.add_one())
    }

    /// Returns the namespaces of all charged pods, in no particular order.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_namespace.keys()
    }

    /// Returns the next charged pods of a namespace after this uid, at most so many. By uid.
    pub fn charged_in(&self, namespace: &str, after: Option<&Arc<str>>, most: usize) -> Vec<Arc<str>> {
        self.visited(next_of(self.by_namespace.get(namespace), after, most))
    }

    /// Returns the next charged pods that use this claim after this uid, at most so many. By uid.
    pub fn charged_using(&self, claim: &ClaimName, after: Option<&Arc<str>>, most: usize) -> Vec<Arc<str>> {
        self.visited(next_of(self.users.get(claim), after, most))
    }

    fn visited(&self, pods: Vec<Arc<str>>) -> Vec<Arc<str>> {
        pods.iter().for_each(|_| self.visits.add_one());
        pods
    }

    /// Returns the first namespace with charged pods after this one, or of all.
    pub fn namespace_after(&self, namespace: Option<&str>) -> Option<&Arc<str>> {
        let after = namespace.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_namespace.range::<str, _>((after, Bound::Unbounded)).next().map(|(name, _)| name)
    }

    /// Replaces the holding of a charged pod, in place, with what `news` returns.
    pub fn rehold_pod(&mut self, uid: &Arc<str>, news: impl FnOnce(&Holding) -> Holding) {
        if let Some(charge) = self.charges.get(uid) {
            let (node, holding) = (charge.node, news(&charge.holding));
            self.rehold_one(uid.clone(), node, holding);
        }
    }

    /// Replaces the requests of a charged pod in place. Returns the previous usage; `None`: the pod is not charged.
    pub fn resize(&mut self, uid: &Arc<str>, usage: Arc<Usage>) -> Option<Arc<Usage>> {
        let charge = self.charges.get(uid)?;
        let (node, before) = (charge.node, charge.holding.usage.clone());
        let holding = Holding { usage, ..charge.holding.clone() };
        self.rehold_one(uid.clone(), node, holding);
        Some(before)
    }

    /// Replaces one holding. The new one must use the same claims.
    fn rehold_one(&mut self, uid: Arc<str>, node: NodeId, holding: Holding) {
        if let Some(charge) = self.charges.get_mut(&uid)
            && charge.holding != holding
        {
            let before = Charge::clone(charge);
            charge.holding = holding.clone();
            self.inventory.charge(node, &holding);
            self.account(node, &holding, Accounts::charge);
            self.selectors.add(&holding.peer.identity.namespace, &holding.peer.affinity);
            if holding.peer != before.holding.peer {
                self.arrived.push(holding.peer.clone());
            }
            self.count_priority(before.holding.priority, false);
            self.count_priority(holding.priority, true);
            self.release(&before);
        }
    }

    /// Confirms that the bind of an assumed pod succeeded, although no watch has shown it yet.
    pub fn confirm(&mut self, uid: &str) {
        if let Some(charge) = self.charges.get_mut(uid) {
            self.assumed -= usize::from(std::mem::take(&mut charge.assumed));
        }
    }

    /// Records what a watch reported about a charged pod.
    pub fn note_seen(&mut self, pod: PodRef, generation: i64, started_s: Option<i64>) {
        if let Some(charge) = self.charges.get_mut(&pod.uid) {
            let is_new = charge.seen.is_none();
            self.arrivals += u64::from(is_new);
            self.unseen -= usize::from(is_new);
            let PodRef { namespace, name, scheduler_name, .. } = pod;
            charge.seen = Some(Seen { namespace, name, scheduler_name, generation, started_s });
        }
    }

    /// Returns a revision that grows with every change of the nodes and of [`Ledger::occupants`].
    pub fn occupancy(&self) -> Revision {
        self.inventory.revision() + self.arrivals
    }

    /// Returns the number of times that a pod left a node or changed there.
    pub fn departures(&self) -> u64 {
        self.departures
    }

    /// Returns the pods a watch has seen on a node, by uid.
    pub fn occupants(&self, node: NodeId) -> Vec<Occupant> {
        let uids = self.by_node.get(node.index()).into_iter().flatten();
        let uids = uids.inspect(|_| self.visits.add_one());
        let mut pods: Vec<_> = uids.filter_map(|uid| self.occupant(uid)).collect();
        pods.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid));
        pods
    }

    /// Returns what the pods of DaemonSets and static pods on a node request.
    pub fn requested_by_daemons(&self, node: NodeId) -> Amounts {
        let uids = self.by_node.get(node.index()).into_iter().flatten();
        let charges = uids.inspect(|_| self.visits.add_one()).filter_map(|uid| self.charges.get(uid));
        let mut sum = Amounts::default();
        for charge in charges {
            let owner = charge.holding.peer.owner.as_ref().map(|owner| &*owner.kind);
            if matches!(owner, Some("DaemonSet" | "Node")) {
                sum.add(&charge.holding.usage.requests);
            }
        }
        sum
    }

    /// Returns this pod if a watch has seen it on its node.
    pub fn occupant(&self, uid: &str) -> Option<Occupant> {
        let (uid, charge) = self.charges.get_key_value(uid)?;
        let Seen { namespace, name, scheduler_name, generation, started_s } = charge.seen.clone()?;
        let pod = PodRef { uid: uid.clone(), namespace, name, scheduler_name };
        Some(Occupant { pod, generation, holding: charge.holding.clone(), started_s })
    }

    /// Returns how often a pod came whose priority was lower than that of all charged pods.
    pub fn lowered(&self) -> u64 {
        self.lowered
    }

    /// Returns the lowest priority of any charged pod.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.first_key_value().map(|(priority, _)| *priority)
    }

    /// Removes the charge of the pod `uid`: it was deleted, has finished, or was certainly not bound.
    pub fn discharge(&mut self, uid: &str) -> bool {
        let Some(charge) = self.charges.remove(uid) else {
            return false;
        };
        self.assumed -= usize::from(charge.assumed);
        self.unseen -= usize::from(charge.seen.is_none());
        self.unuse(uid, &charge);
        self.release(&charge);
        true
    }

    /// Reverts a commit that no other component has seen yet: does not count as freed resources.
    pub fn release_growth(&mut self, uid: &str) {
        let (loosened, departures) = (self.inventory.loosened, self.departures);
        self.discharge(uid);
        (self.inventory.loosened, self.departures) = (loosened, departures);
    }

    /// Removes the pod from the indexes of its claims, node and priority.
    fn unuse(&mut self, uid: &str, charge: &Charge) {
        if let Some(uids) = self.by_node.get_mut(charge.node.index())
            && let Some(at) = uids.iter().position(|known| **known == *uid)
        {
            uids.swap_remove(at);
        }
        let namespace = &charge.holding.peer.identity.namespace;
        if let Some(pods) = self.by_namespace.get_mut(namespace) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_namespace.remove(namespace);
            }
        }
        self.count_priority(charge.holding.priority, false);
        for claim in charge.holding.volumes.iter().flat_map(|held| &held.claims) {
            if let Some(users) = self.users.get_mut(claim) {
                users.remove(uid);
                if users.is_empty() {
                    self.users.remove(claim);
                    self.claims_changed.insert(claim.clone());
                }
            }
        }
    }

    /// Subtracts `charge`, which is no longer in the ledger, from its row.
    fn release(&mut self, charge: &Charge) {
        self.departures += 1;
        self.account(charge.node, &charge.holding, Accounts::discharge);
        let peer = &charge.holding.peer;
        self.selectors.remove(&peer.identity.namespace, &peer.affinity);
        let saturated = self.inventory.row(charge.node).is_saturated();
        self.inventory.discharge(charge.node, &charge.holding);
        if saturated {
            self.inventory.replace_sums(charge.node, self.recount_row(charge.node));
        }
    }

    /// Changes the accounts, and a recount of them that has passed the node.
    fn account(&mut self, node: NodeId, holding: &Holding, change: fn(&mut Accounts, &Holding)) {
        change(&mut self.accounts, holding);
        if let Some(recount) = self.recount.as_mut().filter(|recount| node.index() < recount.rows) {
            change(&mut recount.accounts, holding);
        }
    }

    /// Sums up the pods of one node.
    fn recount_row(&self, node: NodeId) -> Row {
        let mut fresh = Row::default();
        let pods = self.by_node.get(node.index()).into_iter().flatten();
        for charge in pods.filter_map(|uid| self.charges.get(uid)) {
            fresh.charge(&charge.holding);
        }
        fresh
    }

    fn count_priority(&mut self, priority: i32, comes: bool) {
        self.lowered += u64::from(comes && self.lowest_priority().is_none_or(|lowest| priority < lowest));
        let count = self.priorities.entry(priority).or_default();
        *count = if comes { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.priorities.remove(&priority);
        }
    }

    fn insert(&mut self, uid: &Arc<str>, charge: Charge) {
        debug_assert!(
            charge.holding.usage.requests.pods > 0,
            "a row counts its pods to know when it is vacant"
        );
        self.assumed += usize::from(charge.assumed);
        self.unseen += usize::from(charge.seen.is_none());
        if self.by_node.len() <= charge.node.index() {
            self.by_node.resize_with(charge.node.index() + 1, Vec::new);
        }
        self.by_node[charge.node.index()].push(uid.clone());
        let namespace = charge.holding.peer.identity.namespace.clone();
        self.by_namespace.entry(namespace).or_default().insert(uid.clone());
        self.count_priority(charge.holding.priority, true);
        self.inventory.charge(charge.node, &charge.holding);
        self.account(charge.node, &charge.holding, Accounts::charge);
        let peer = &charge.holding.peer;
        self.selectors.add(&peer.identity.namespace, &peer.affinity);
        self.arrived.push(charge.holding.peer.clone());
        for claim in charge.holding.volumes.iter().flat_map(|held| &held.claims) {
            let users = self.users.entry(claim.clone()).or_default();
            if users.is_empty() {
                self.claims_changed.insert(claim.clone());
            }
            users.insert(uid.clone());
        }
        self.charges.insert(uid.clone(), Box::new(charge));
    }

    /// Recounts every row from its pods. Returns the discrepancies, sorted by node name.
    pub fn consistency_check(&self) -> Vec<Discrepancy> {
        let recounted = self.recount();
        let mut wrong = Vec::new();
        for id in (0..self.inventory.rows.len()).map(|at| NodeId(at as u32)) {
            let fresh = recounted.get(&id).cloned().unwrap_or_default();
            wrong.extend(self.discrepancy(id, &fresh));
        }
        wrong.sort_by(|a, b| a.node.cmp(&b.node));
        wrong.extend(self.compare_accounts(&self.recount_accounts()));
        wrong
    }

    /// Compares the accounts of the quotas with a recount.
    fn compare_accounts(&self, fresh: &Accounts) -> Vec<Discrepancy> {
        if *fresh == self.accounts {
            return Vec::new();
        }
        let quotas: BTreeSet<&Arc<str>> = fresh.quotas().into_iter().chain(self.accounts.quotas()).collect();
        let differs = quotas.into_iter().filter(|quota| fresh.of(quota) != self.accounts.of(quota));
        let wrong = differs.map(|quota| Discrepancy {
            node: format!("quota {quota}").into(),
            counted: format!("{:?}", self.accounts.of(quota)),
            recounted: format!("{:?}", fresh.of(quota)),
        });
        wrong.collect()
    }

    fn recount_accounts(&self) -> Accounts {
        let mut accounts = Accounts::default();
        self.charges.values().for_each(|charge| accounts.charge(&charge.holding));
        accounts
    }

    /// Replaces every sum of the next `rows_max` nodes, from this id on, by its recount, and those of the quotas after the last
    /// node. Returns the discrepancies, and the id of the next node, `None` after the last one.
    pub fn heal_rows(&mut self, first: NodeId, rows_max: usize) -> (Vec<Discrepancy>, Option<NodeId>) {
        /// Of one call.
        const PODS_MAX: usize = 256;
        if first == NodeId(0) {
            self.recount = Some(Recount::default());
        }
        let mut wrong = Vec::new();
        let mut pods = 0;
        let last = self.inventory.rows.len().min(first.index() + rows_max);
        for at in first.index()..last {
            let id = NodeId(at as u32);
            if pods >= PODS_MAX {
                return (wrong, Some(id));
            }
            pods += self.by_node.get(at).map_or(0, Vec::len);
            self.recount_accounts_of(id);
            let fresh = self.recount_row(id);
            if let Some(found) = self.discrepancy(id, &fresh) {
                wrong.push(found);
                self.inventory.replace_sums(id, fresh);
            }
        }
        if last < self.inventory.rows.len() {
            return (wrong, Some(NodeId(last as u32)));
        }
        if let Some(Recount { accounts, .. }) = self.recount.take() {
            let differs = self.compare_accounts(&accounts);
            if !differs.is_empty() {
                self.accounts.replace(accounts);
            }
            wrong.extend(differs);
        }
        (wrong, None)
    }

    /// Adds the pods of a node to the recount of the accounts, if it has come to this node.
    fn recount_accounts_of(&mut self, node: NodeId) {
        let Some(recount) = self.recount.as_mut().filter(|recount| recount.rows == node.index()) else {
            return;
        };
        let pods = self.by_node.get(node.index()).into_iter().flatten();
        for charge in pods.inspect(|_| self.visits.add_one()).filter_map(|uid| self.charges.get(uid)) {
            recount.accounts.charge(&charge.holding);
        }
        recount.rows += 1;
    }

    fn discrepancy(&self, id: NodeId, fresh: &Row) -> Option<Discrepancy> {
        let (counted, recounted) = (sums(self.inventory.row(id)), sums(fresh));
        let node = self.inventory.names[id.index()].clone();
        (counted != recounted).then_some(Discrepancy { node, counted, recounted })
    }

    fn recount(&self) -> BTreeMap<NodeId, Row> {
        let mut rows: BTreeMap<NodeId, Row> = BTreeMap::new();
        for charge in self.charges.values() {
            rows.entry(charge.node).or_default().charge(&charge.holding);
        }
        rows
    }

    /// Test access: corrupts the sums of a row, so that a test can see the check find it.
    #[cfg(test)]
    pub(crate) fn corrupt(&mut self, node: NodeId) {
        self.inventory.rows[node.index()].requested.cpu_milli += 1;
    }
}

/// Returns the next uids after this one, at most so many.
fn next_of(pods: Option<&BTreeSet<Arc<str>>>, after: Option<&Arc<str>>, most: usize) -> Vec<Arc<str>> {
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    let pods = pods.into_iter().flat_map(|pods| pods.range::<Arc<str>, _>((after, Bound::Unbounded)));
    pods.take(most).cloned().collect()
}

/// Formats the sums of a row so that equal text means equal sums.
fn sums(row: &Row) -> String {
    let mut ports = row.ports.as_ref().map(|p| p.to_vec()).unwrap_or_default();
    ports.sort();
    let extended = row.extended.as_deref().cloned().unwrap_or_default();
    let mut peers: Vec<_> = row.peers.iter().map(|(peer, pods)| (Arc::as_ptr(peer), pods)).collect();
    peers.sort();
    let volumes = row.volumes.as_deref().cloned().unwrap_or_default().sorted();
    format!(
        "{:?} {} {} {extended:?} {ports:?} {peers:?} {volumes:?} {:?} {:?}",
        row.requested, row.nonzero_cpu_milli, row.nonzero_memory, row.tiers, row.shares
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::QuotaResource;
    use berth_model::{Amounts, HostPort, Protocol};
    use proptest::prelude::*;

    fn usage(cpu_milli: i64, port: Option<u16>) -> Arc<Usage> {
        Arc::new(Usage {
            requests: Amounts { cpu_milli, memory: 1 << 20, pods: 1, ..Amounts::default() },
            extended: [(Arc::from("example.com/gpu"), cpu_milli % 3)].into_iter().collect(),
            nonzero_cpu_milli: cpu_milli.max(100),
            nonzero_memory: 1 << 20,
            ports: port
                .map(|port| HostPort { ip: None, protocol: Protocol::Tcp, port })
                .into_iter()
                .collect(),
        })
    }

    fn ledger_with(nodes: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for name in nodes {
            ledger.apply_node(Node { name: (*name).into(), ..Node::default() });
        }
        ledger
    }

    #[test]
    fn repeated_commits_charge_a_pod_once() {
        let mut ledger = ledger_with(&["a"]);
        let uid = Arc::from("u");
        assert!(ledger.commit(&uid, &usage(100, None), NodeId(0), |_| true).is_ok());
        assert_eq!(ledger.commit(&uid, &usage(100, None), NodeId(0), |_| true), Err(Conflict));
        assert_eq!(ledger.inventory().row(NodeId(0)).requested.cpu_milli, 100);
        assert_eq!(ledger.counts(), (1, 1));
    }

    #[test]
    fn a_commit_that_no_longer_fits_is_a_conflict_and_charges_nothing() {
        let mut ledger = ledger_with(&["a"]);
        assert_eq!(ledger.commit(&Arc::from("u"), &usage(100, None), NodeId(0), |_| false), Err(Conflict));
        assert_eq!(ledger.counts(), (0, 0));
        assert_eq!(ledger.inventory().row(NodeId(0)).requested, Amounts::default());
    }

    #[test]
    fn pods_of_a_deleted_node_stay_counted_and_are_there_when_it_comes_back() {
        let mut ledger = ledger_with(&["a"]);
        ledger.bound(&Arc::from("u"), &Arc::from("a"), &usage(300, None));
        ledger.delete_node("a");
        ledger.apply_node(Node { name: "a".into(), ..Node::default() });
        assert_eq!(ledger.inventory().row(NodeId(0)).requested.cpu_milli, 300);
    }

    #[test]
    fn a_pod_seen_on_another_node_than_assumed_moves_its_charge() {
        let mut ledger = ledger_with(&["a", "b"]);
        let uid: Arc<str> = Arc::from("u");
        ledger.commit(&uid, &usage(100, None), NodeId(0), |_| true).unwrap();
        ledger.bound(&uid, &Arc::from("b"), &usage(100, None));
        assert_eq!(ledger.inventory().row(NodeId(0)).requested.cpu_milli, 0);
        assert_eq!(ledger.inventory().row(NodeId(1)).requested.cpu_milli, 100);
        assert_eq!(ledger.counts(), (1, 0));
    }

    #[test]
    fn the_check_finds_a_wrong_sum_and_healing_mends_and_publishes_it() {
        let mut ledger = ledger_with(&["a"]);
        ledger.bound(&Arc::from("u"), &Arc::from("a"), &usage(300, Some(80)));
        ledger.corrupt(NodeId(0));
        let before = ledger.inventory().revision();
        assert_eq!(ledger.heal_rows(NodeId(0), 64).0.len(), 1);
        assert!(ledger.consistency_check().is_empty());
        assert!(ledger.inventory().revision() > before);
        assert!(ledger.inventory().row(NodeId(0)).node.is_some());
    }

    #[test]
    fn a_pod_of_an_absurd_size_that_goes_leaves_the_sums_of_the_others() {
        let mut ledger = ledger_with(&["a"]);
        let node = Arc::from("a");
        ledger.bound(&Arc::from("u"), &node, &usage(300, None));
        ledger.bound(&Arc::from("absurd"), &node, &usage(i64::MAX, None));
        ledger.discharge("absurd");
        assert_eq!(ledger.inventory().row(NodeId(0)).requested.cpu_milli, 300);
        // The same when only its usage changes.
        ledger.bound(&Arc::from("absurd"), &node, &usage(i64::MAX, None));
        ledger.bound(&Arc::from("absurd"), &node, &usage(100, None));
        assert!(ledger.consistency_check().is_empty());
    }

    #[derive(Debug, Clone)]
    enum Event {
        Commit(u8, u8, i64),
        Bound(u8, u8, i64),
        Gone(u8),
        NodeUp(u8),
        NodeDown(u8),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0u8..12, 0u8..4, 0i64..500).prop_map(|(p, n, c)| Event::Commit(p, n, c)),
            (0u8..12, 0u8..4, 0i64..500).prop_map(|(p, n, c)| Event::Bound(p, n, c)),
            (0u8..12).prop_map(Event::Gone),
            (0u8..4).prop_map(Event::NodeUp),
            (0u8..4).prop_map(Event::NodeDown),
        ]
    }

    /// Two pods of three belong to quotas.
    fn of_quota(pod: u8, cpu: i64) -> Holding {
        let quota = ["blue", "red"].get(usize::from(pod % 3)).map(|name| Arc::from(*name));
        Holding { quota, ..Holding::from(&usage(cpu, None)) }
    }

    #[test]
    fn a_wrong_account_of_a_quota_is_found_slice_by_slice_and_mended() {
        let mut ledger = ledger_with(&["a", "b", "c"]);
        for (pod, node) in ["a", "b", "c"].into_iter().enumerate() {
            ledger.bound(&Arc::from(format!("p{pod}")), &Arc::from(node), of_quota(0, 100));
        }
        ledger.accounts.discharge(&of_quota(0, 40));
        let (mut slices, mut wrong, mut next) = (0, Vec::new(), Some(NodeId(0)));
        while let Some(node) = next {
            let (found, more) = ledger.heal_rows(node, 1);
            (slices, next) = (slices + 1, more);
            wrong.extend(found);
        }
        assert_eq!((slices, wrong.len(), &*wrong[0].node), (3, 1, "quota blue"));
        assert!(ledger.consistency_check().is_empty());
    }

    proptest! {
        #[test]
        fn a_recount_in_slices_finds_nothing_whatever_happens_between_them(
            events in prop::collection::vec((event(), any::<bool>()), 0..200),
        ) {
            let mut ledger = ledger_with(&["n0", "n1", "n2", "n3"]);
            let mut next = NodeId(0);
            for (event, heals) in events {
                match event {
                    Event::Commit(pod, node, cpu) | Event::Bound(pod, node, cpu) => {
                        // Another quota when it comes again.
                        let holding = of_quota(pod.wrapping_add((cpu % 3) as u8), cpu);
                        ledger.bound(&Arc::from(format!("p{pod}")), &Arc::from(format!("n{node}")), &holding);
                    }
                    Event::Gone(pod) => { ledger.discharge(&format!("p{pod}")); }
                    Event::NodeUp(node) => { ledger.apply_node(Node { name: format!("n{node}").into(), ..Node::default() }); }
                    Event::NodeDown(node) => { ledger.delete_node(&format!("n{node}")); }
                }
                if heals {
                    let (wrong, more) = ledger.heal_rows(next, 1);
                    prop_assert!(wrong.is_empty(), "{:?}", wrong);
                    next = more.unwrap_or(NodeId(0));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_the_sums_are_those_of_the_pods(events in prop::collection::vec(event(), 0..200)) {
            let mut ledger = Ledger::default();
            for event in events {
                match event {
                    Event::Commit(pod, node, cpu) => {
                        if let Some(id) = ledger.inventory().find(&format!("n{node}")) {
                            let _ = ledger.commit(&Arc::from(format!("p{pod}")), &usage(cpu, Some(cpu as u16)), id, |_| true);
                        }
                    }
                    Event::Bound(pod, node, cpu) => {
                        ledger.bound(&Arc::from(format!("p{pod}")), &Arc::from(format!("n{node}")), &usage(cpu, None));
                    }
                    Event::Gone(pod) => { ledger.discharge(&format!("p{pod}")); }
                    Event::NodeUp(node) => {
                        let allocatable = Amounts { cpu_milli: 100, ..Amounts::default() };
                        ledger.apply_node(Node { name: format!("n{node}").into(), allocatable, ..Node::default() });
                    }
                    Event::NodeDown(node) => { ledger.delete_node(&format!("n{node}")); }
                }
                prop_assert!(ledger.consistency_check().is_empty());
                let nodes = ledger.inventory().nodes().count() as i128;
                prop_assert_eq!(ledger.inventory().allocatable().get(&QuotaResource::Cpu), 100 * nodes);
                let (mut walked, mut next) = (Vec::new(), Some(NodeId(0)));
                while let Some(node) = next {
                    let (pods, more) = ledger.charged_from(node, 2);
                    prop_assert!(more.is_none_or(|more| more > node));
                    walked.extend(pods);
                    next = more;
                }
                walked.sort();
                let mut charged: Vec<_> = ledger.charged().cloned().collect();
                charged.sort();
                prop_assert_eq!(walked, charged);
                let assumed = ledger.charges.values().filter(|c| c.assumed).count();
                prop_assert_eq!(ledger.counts(), (ledger.charges.len(), assumed));
                let unseen = ledger.charges.values().filter(|c| c.seen.is_none()).count();
                prop_assert_eq!(ledger.unseen(), unseen);
            }
        }
    }
}
