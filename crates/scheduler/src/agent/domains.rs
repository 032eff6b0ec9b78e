//! Topology domains and their pod counts, for the lists of one agent.
//!
//! All state derives from the rows of the view: a changed row is compared with its last counted state, and only the
//! difference is added. A count is shared by all lists that use it, and dropped with the last of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::view::View;
use crate::inventory::{NodeId, Peers, Revision};
use crate::rules::counted::{Counted, TopologyKey};
use crate::rules::{CellLoad, inter_pod_affinity};
use berth_model::{Identity, Node, Peer};

/// Index of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopologyId(u32);

/// Index of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountId(u32);

/// Index of a domain of a topology. Reused when its last node has left it.
pub type Domain = u32;

/// Marks a node without a domain.
pub const NO_DOMAIN: Domain = Domain::MAX;

/// A topology with more domains than this is never coarse.
const MOST_COARSE_DOMAINS: usize = 256;

#[derive(Debug)]
struct Topology {
    key: TopologyKey,
    domains: HashMap<Arc<str>, Domain>,
    names: Vec<Arc<str>>,
    vacant: Vec<Domain>,
    /// Domain of each node.
    domain_of: Vec<Domain>,
    /// Nodes of each domain.
    members: Vec<Vec<NodeId>>,
    /// Capacity and requests of the nodes of each domain.
    loads: Vec<CellLoad>,
    /// Revision at which a node last left a domain that still has nodes.
    reshaped: Revision,
    users: usize,
}

impl Topology {
    fn new(key: TopologyKey) -> Self {
        Topology {
            key,
            domains: HashMap::new(),
            names: Vec::new(),
            vacant: Vec::new(),
            domain_of: Vec::new(),
            members: Vec::new(),
            loads: Vec::new(),
            reshaped: 0,
            users: 0,
        }
    }

    fn domain_of(&self, node: NodeId) -> Domain {
        self.domain_of.get(node.index()).copied().unwrap_or(NO_DOMAIN)
    }

    fn enter(&mut self, id: NodeId, node: &Node) {
        let Some(value) = self.key.domain(node) else {
            return;
        };
        let domain = match self.domains.get(value) {
            Some(domain) => *domain,
            None => {
                let name: Arc<str> = Arc::from(value);
                let domain = self.vacant.pop().unwrap_or_else(|| {
                    self.members.push(Vec::new());
                    self.names.push(name.clone());
                    (self.members.len() - 1) as Domain
                });
                self.names[domain as usize] = name.clone();
                self.domains.insert(name, domain);
                domain
            }
        };
        if self.domain_of.len() <= id.index() {
            self.domain_of.resize(id.index() + 1, NO_DOMAIN);
        }
        self.domain_of[id.index()] = domain;
        self.members[domain as usize].push(id);
    }

    fn leave(&mut self, id: NodeId, revision: Revision) {
        let domain = self.domain_of(id);
        if domain == NO_DOMAIN {
            return;
        }
        self.domain_of[id.index()] = NO_DOMAIN;
        let members = &mut self.members[domain as usize];
        if let Some(at) = members.iter().position(|member| *member == id) {
            members.swap_remove(at);
        }
        if members.is_empty() {
            self.domains.remove(&self.names[domain as usize]);
            self.vacant.push(domain);
        } else {
            self.reshaped = revision;
        }
    }

    /// Adds the load of the node to its domain.
    fn load(&mut self, id: NodeId, load: CellLoad) {
        let domain = self.domain_of(id);
        if domain != NO_DOMAIN {
            let sum = slot(&mut self.loads, domain as usize);
            *sum = sum.plus(load);
        }
    }

    /// Subtracts the load of the node from its domain.
    fn unload(&mut self, id: NodeId, load: CellLoad) {
        let domain = self.domain_of(id);
        if domain != NO_DOMAIN {
            let sum = slot(&mut self.loads, domain as usize);
            *sum = sum.minus(load);
        }
    }

    fn bytes(&self) -> usize {
        self.domain_of.capacity() * size_of::<Domain>()
            + self.loads.capacity() * size_of::<CellLoad>()
            + self.members.capacity() * (size_of::<Vec<NodeId>>() + size_of::<NodeId>())
            + self.names.capacity() * (2 * size_of::<Arc<str>>() + 8)
    }
}

#[derive(Debug)]
struct Count {
    counted: Counted,
    topology: TopologyId,
    /// Pods per domain; grows on demand.
    pods: Vec<i64>,
    total: i64,
    /// Set only for counts limited to some nodes.
    eligible: Option<EligibleNodes>,
    users: usize,
}

#[derive(Debug, Default)]
struct EligibleNodes {
    /// Whether each node is eligible.
    is: Vec<bool>,
    /// Eligible nodes per domain.
    nodes: Vec<u32>,
    /// Number of domains with eligible nodes for each pod count.
    histogram: BTreeMap<i64, u32>,
    domains: usize,
}

fn at<T: Copy + Default>(values: &[T], index: usize) -> T {
    values.get(index).copied().unwrap_or_default()
}

fn slot<T: Clone + Default>(values: &mut Vec<T>, index: usize) -> &mut T {
    if values.len() <= index {
        values.resize(index + 1, T::default());
    }
    &mut values[index]
}

impl Count {
    /// Adds `by` pods on this node, which is in this domain.
    fn add(&mut self, node: NodeId, domain: Domain, by: i64) {
        if domain == NO_DOMAIN || by == 0 {
            return;
        }
        if let Some(eligible) = &mut self.eligible {
            if !at(&eligible.is, node.index()) {
                return;
            }
            let before = at(&self.pods, domain as usize);
            eligible.move_domain(before, before + by);
        }
        *slot(&mut self.pods, domain as usize) += by;
        self.total += by;
    }

    /// Adds a node without its pods.
    fn enter(&mut self, id: NodeId, node: &Node, domain: Domain) {
        let Some(eligible) = &mut self.eligible else {
            return;
        };
        let is = domain != NO_DOMAIN && self.counted.nodes.as_ref().is_none_or(|nodes| nodes.admits(node));
        *slot(&mut eligible.is, id.index()) = is;
        if is {
            let nodes = slot(&mut eligible.nodes, domain as usize);
            *nodes += 1;
            if *nodes == 1 {
                eligible.domains += 1;
                *eligible.histogram.entry(at(&self.pods, domain as usize)).or_default() += 1;
            }
        }
    }

    /// Removes a node whose pods have been removed already.
    fn leave(&mut self, id: NodeId, domain: Domain) {
        let Some(eligible) = &mut self.eligible else {
            return;
        };
        if std::mem::take(slot(&mut eligible.is, id.index())) {
            let nodes = &mut eligible.nodes[domain as usize];
            *nodes -= 1;
            if *nodes == 0 {
                eligible.domains -= 1;
                eligible.drop_domain(at(&self.pods, domain as usize));
            }
        }
    }

    fn bytes(&self) -> usize {
        let eligible = self.eligible.as_ref();
        self.pods.capacity() * size_of::<i64>()
            + eligible.map_or(0, |e| e.is.capacity() + e.nodes.capacity() * size_of::<u32>())
    }
}

impl EligibleNodes {
    fn move_domain(&mut self, from: i64, to: i64) {
        self.drop_domain(from);
        *self.histogram.entry(to).or_default() += 1;
    }

    fn drop_domain(&mut self, pods: i64) {
        if let Some(domains) = self.histogram.get_mut(&pods) {
            *domains -= 1;
            if *domains == 0 {
                self.histogram.remove(&pods);
            }
        }
    }
}

/// Pods with equal scheduling properties, on any node.
#[derive(Debug)]
struct PeerKind {
    peer: Arc<Peer>,
    pods: u64,
    /// Counts these pods contribute to, with their weights.
    adds: Vec<(CountId, i64)>,
}

/// Topologies over which existing pods have affinity terms that match pods of one identity.
#[derive(Debug)]
struct Looked {
    identity: Identity,
    hard: BTreeSet<Arc<str>>,
    soft: BTreeSet<Arc<str>>,
    users: usize,
}

/// State of a node when it was last counted.
#[derive(Debug, Clone, Default)]
struct Seen {
    node: Option<Arc<Node>>,
    peers: Peers,
    load: CellLoad,
}

/// All topologies and counts of one agent.
#[derive(Debug, Default)]
pub struct Domains {
    topologies: Vec<Option<Topology>>,
    counts: Vec<Option<Count>>,
    by_key: HashMap<TopologyKey, TopologyId>,
    by_counted: HashMap<Counted, CountId>,
    /// By address of the `Peer`, which stays valid while the kind is stored; the order of this map never matters.
    kinds: HashMap<usize, PeerKind>,
    looked: HashMap<Identity, Looked>,
    seen: Vec<Seen>,
    /// Number of users of pod counts; with none, nothing is kept.
    active: usize,
    revision: Revision,
}

impl Domains {
    /// Counts the changed rows.
    pub fn advance(&mut self, view: &View) {
        if self.active == 0 || self.revision == view.revision() {
            return;
        }
        let changed: Vec<NodeId> = view.changed_since(self.revision).collect();
        self.revision = view.revision();
        for id in changed {
            self.advance_row(view, id);
        }
    }

    fn advance_row(&mut self, view: &View, id: NodeId) {
        let row = view.row(id);
        let seen = std::mem::take(slot(&mut self.seen, id.index()));
        self.topologies.iter_mut().flatten().for_each(|topology| topology.unload(id, seen.load));
        let same_node = match (&seen.node, &row.node) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                Arc::ptr_eq(a, b) || (a.name == b.name && a.labels == b.labels && a.taints == b.taints)
            }
            _ => false,
        };
        if !same_node {
            if seen.node.is_some() {
                for (peer, pods) in seen.peers.iter() {
                    self.move_pods(id, peer, -i64::from(*pods));
                }
                self.leave(id);
            }
            if let Some(node) = &row.node {
                self.enter(id, node);
                for (peer, pods) in row.peers.iter() {
                    self.move_pods(id, peer, i64::from(*pods));
                }
            }
        } else if row.node.is_some() && !seen.peers.same(&row.peers) {
            self.move_difference(id, &seen.peers, &row.peers);
        }
        let load = row.node.as_ref().map_or(CellLoad::default(), |_| CellLoad::of(row));
        self.topologies.iter_mut().flatten().for_each(|topology| topology.load(id, load));
        self.seen[id.index()] = Seen { node: row.node.clone(), peers: row.peers.clone(), load };
    }

    fn move_difference(&mut self, id: NodeId, before: &Peers, after: &Peers) {
        // Both are sorted by address.
        let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
        loop {
            let (peer, by) = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some((a, was)), Some((b, is))) if Arc::ptr_eq(a, b) => {
                    old.next();
                    new.next();
                    (a, i64::from(*is) - i64::from(*was))
                }
                (Some((a, was)), Some((b, _))) if Arc::as_ptr(a) < Arc::as_ptr(b) => {
                    old.next();
                    (a, -i64::from(*was))
                }
                (Some((a, was)), None) => {
                    old.next();
                    (a, -i64::from(*was))
                }
                (_, Some((b, is))) => {
                    new.next();
                    (b, i64::from(*is))
                }
            };
            self.move_pods(id, peer, by);
        }
    }

    /// Adds `by` pods of this kind on an existing node.
    fn move_pods(&mut self, node: NodeId, peer: &Arc<Peer>, by: i64) {
        if by == 0 {
            return;
        }
        let address = address_of(peer);
        if !self.kinds.contains_key(&address) {
            self.meet(peer);
        }
        let Some(kind) = self.kinds.get_mut(&address) else {
            return;
        };
        kind.pods = kind.pods.saturating_add_signed(by);
        for (count, weight) in &kind.adds {
            if let Some(count) = &mut self.counts[count.0 as usize] {
                let topology = self.topologies[count.topology.0 as usize].as_ref();
                let domain = topology.map_or(NO_DOMAIN, |topology| topology.domain_of(node));
                count.add(node, domain, weight * by);
            }
        }
        if kind.pods == 0 {
            self.kinds.remove(&address);
        }
    }

    /// Adds a new kind of pods.
    fn meet(&mut self, peer: &Arc<Peer>) {
        let mut adds = Vec::new();
        for (at, count) in self.counts.iter().enumerate() {
            let weight = count.as_ref().map_or(0, |count| count.counted.weight(peer));
            if weight != 0 {
                adds.push((CountId(at as u32), weight));
            }
        }
        if !peer.affinity.is_empty() {
            self.looked.values_mut().for_each(|looked| looked.see(peer));
        }
        self.kinds.insert(address_of(peer), PeerKind { peer: peer.clone(), pods: 0, adds });
    }

    fn enter(&mut self, id: NodeId, node: &Node) {
        self.topologies.iter_mut().flatten().for_each(|topology| topology.enter(id, node));
        for count in self.counts.iter_mut().flatten() {
            let topology = self.topologies[count.topology.0 as usize].as_ref();
            count.enter(id, node, topology.map_or(NO_DOMAIN, |topology| topology.domain_of(id)));
        }
    }

    fn leave(&mut self, id: NodeId) {
        for count in self.counts.iter_mut().flatten() {
            let topology = self.topologies[count.topology.0 as usize].as_ref();
            count.leave(id, topology.map_or(NO_DOMAIN, |topology| topology.domain_of(id)));
        }
        let revision = self.revision;
        self.topologies.iter_mut().flatten().for_each(|topology| topology.leave(id, revision));
    }

    /// Registers a user of counts. Must be called before [`Domains::count`] and [`Domains::look`]; reverted by
    /// [`Domains::rest`].
    pub fn wake(&mut self, view: &View) {
        self.active += 1;
        if self.active == 1 {
            self.revision = 0;
        }
        self.advance(view);
    }

    /// Reverts one [`Domains::wake`]; the last one drops all state.
    pub fn rest(&mut self) {
        self.active -= 1;
        if self.active == 0 {
            *self = Domains::default();
        }
    }

    /// Keeps this count until it is released.
    pub fn count(&mut self, counted: &Counted) -> CountId {
        if let Some(id) = self.by_counted.get(counted) {
            if let Some(count) = &mut self.counts[id.0 as usize] {
                count.users += 1;
            }
            return *id;
        }
        let topology = self.topology(&counted.topology);
        let eligible = counted.nodes.is_some().then(EligibleNodes::default);
        let mut count =
            Count { counted: counted.clone(), topology, pods: Vec::new(), total: 0, eligible, users: 1 };
        let id = CountId(vacancy(&mut self.counts) as u32);
        for kind in self.kinds.values_mut() {
            let weight = counted.weight(&kind.peer);
            if weight != 0 {
                kind.adds.push((id, weight));
            }
        }
        if let Some(topology) = &self.topologies[topology.0 as usize] {
            for (at, seen) in self.seen.iter().enumerate() {
                let Some(node) = &seen.node else {
                    continue;
                };
                let (at, domain) = (NodeId(at as u32), topology.domain_of(NodeId(at as u32)));
                count.enter(at, node, domain);
                for (peer, pods) in seen.peers.iter() {
                    let adds = self.kinds.get(&address_of(peer)).and_then(|kind| kind.adds.last());
                    if let Some((_, weight)) = adds.filter(|(counted, _)| *counted == id) {
                        count.add(at, domain, weight * i64::from(*pods));
                    }
                }
            }
        }
        self.counts[id.0 as usize] = Some(count);
        self.by_counted.insert(counted.clone(), id);
        id
    }

    pub fn release(&mut self, id: CountId) {
        let Some(count) = &mut self.counts[id.0 as usize] else {
            return;
        };
        count.users -= 1;
        if count.users > 0 {
            return;
        }
        let topology = count.topology;
        self.by_counted.remove(&count.counted);
        self.counts[id.0 as usize] = None;
        for kind in self.kinds.values_mut() {
            kind.adds.retain(|(count, _)| *count != id);
        }
        self.release_topology(topology);
    }

    /// Reverts one [`Domains::topology`].
    pub fn release_topology(&mut self, topology: TopologyId) {
        if let Some(shared) = &mut self.topologies[topology.0 as usize] {
            shared.users -= 1;
            if shared.users == 0 {
                self.by_key.remove(&shared.key);
                self.topologies[topology.0 as usize] = None;
            }
        }
    }

    /// Keeps this topology until it is released.
    pub fn topology(&mut self, key: &TopologyKey) -> TopologyId {
        let id = match self.by_key.get(key) {
            Some(id) => *id,
            None => {
                let id = TopologyId(vacancy(&mut self.topologies) as u32);
                let mut topology = Topology::new(key.clone());
                for (at, seen) in self.seen.iter().enumerate() {
                    if let Some(node) = &seen.node {
                        topology.enter(NodeId(at as u32), node);
                        topology.load(NodeId(at as u32), seen.load);
                    }
                }
                self.topologies[id.0 as usize] = Some(topology);
                self.by_key.insert(key.clone(), id);
                id
            }
        };
        if let Some(topology) = &mut self.topologies[id.0 as usize] {
            topology.users += 1;
        }
        id
    }

    /// Keeps the topologies over which existing pods have terms that match `identity`, until released.
    pub fn look(&mut self, identity: &Identity) {
        let kinds = &self.kinds;
        let looked = self.looked.entry(identity.clone()).or_insert_with(|| {
            let mut looked =
                Looked { identity: identity.clone(), hard: BTreeSet::new(), soft: BTreeSet::new(), users: 0 };
            kinds.values().for_each(|kind| looked.see(&kind.peer));
            looked
        });
        looked.users += 1;
    }

    pub fn look_away(&mut self, identity: &Identity) {
        if let Some(looked) = self.looked.get_mut(identity) {
            looked.users -= 1;
            if looked.users == 0 {
                self.looked.remove(identity);
            }
        }
    }

    /// Returns the topologies over which existing pods have required anti-affinity to pods like `identity`, and those
    /// over which they have preferred terms. Both only grow.
    pub fn looked_at(&self, identity: &Identity) -> (Vec<&Arc<str>>, Vec<&Arc<str>>) {
        let looked = self.looked.get(identity);
        let keys =
            |set: fn(&Looked) -> &BTreeSet<Arc<str>>| looked.map_or(Vec::new(), |l| set(l).iter().collect());
        (keys(|looked| &looked.hard), keys(|looked| &looked.soft))
    }

    /// Returns the number of these topologies.
    pub fn looked_at_len(&self, identity: &Identity) -> usize {
        self.looked.get(identity).map_or(0, |looked| looked.hard.len() + looked.soft.len())
    }

    pub fn topology_of(&self, count: CountId) -> TopologyId {
        self.get(count).map_or(TopologyId(u32::MAX), |count| count.topology)
    }

    /// Returns the count in this domain; `None` for a node without a domain.
    pub fn pods(&self, count: CountId, domain: Domain) -> Option<i64> {
        (domain != NO_DOMAIN).then(|| self.get(count).map_or(0, |count| at(&count.pods, domain as usize)))
    }

    pub fn total(&self, count: CountId) -> i64 {
        self.get(count).map_or(0, |count| count.total)
    }

    /// Returns the smallest count of a domain with eligible nodes, and the number of domains with that count.
    pub fn emptiest(&self, count: CountId) -> (Option<i64>, usize) {
        let eligible = self.get(count).and_then(|count| count.eligible.as_ref());
        eligible.map_or((None, 0), |e| (e.histogram.keys().next().copied(), e.domains))
    }

    fn get(&self, count: CountId) -> Option<&Count> {
        self.counts[count.0 as usize].as_ref()
    }

    pub fn domain_of(&self, topology: TopologyId, node: NodeId) -> Domain {
        self.topologies[topology.0 as usize].as_ref().map_or(NO_DOMAIN, |topology| topology.domain_of(node))
    }

    /// Returns the capacity and requests of all nodes of a domain.
    pub fn load(&self, topology: TopologyId, domain: Domain) -> CellLoad {
        let topology = self.topologies[topology.0 as usize].as_ref();
        topology.map_or(CellLoad::default(), |topology| at(&topology.loads, domain as usize))
    }

    pub fn members(&self, topology: TopologyId, domain: Domain) -> &[NodeId] {
        let topology = self.topologies[topology.0 as usize].as_ref();
        topology.and_then(|topology| topology.members.get(domain as usize)).map_or(&[], |members| members)
    }

    pub fn domains(&self, topology: TopologyId) -> usize {
        self.topologies[topology.0 as usize].as_ref().map_or(0, |topology| topology.domains.len())
    }

    pub fn reshaped(&self, topology: TopologyId) -> Revision {
        self.topologies[topology.0 as usize].as_ref().map_or(0, |topology| topology.reshaped)
    }

    /// Returns whether the topology has few domains with many nodes each, so that separate cells are cheaper than
    /// ranking all nodes of a domain again whenever its count changes.
    pub fn is_coarse(&self, topology: TopologyId, nodes: usize) -> bool {
        let domains = self.domains(topology);
        domains <= MOST_COARSE_DOMAINS && domains * 4 < nodes
    }

    pub fn bytes(&self) -> usize {
        let counts: usize = self.counts.iter().flatten().map(Count::bytes).sum();
        let topologies: usize = self.topologies.iter().flatten().map(Topology::bytes).sum();
        counts + topologies + self.seen.capacity() * size_of::<Seen>()
    }
}

impl Looked {
    fn see(&mut self, peer: &Peer) {
        for (hard, key) in inter_pod_affinity::topologies(peer, &self.identity) {
            let keys = if hard { &mut self.hard } else { &mut self.soft };
            if !keys.contains(key) {
                keys.insert(key.clone());
            }
        }
    }
}

fn address_of(peer: &Arc<Peer>) -> usize {
    Arc::as_ptr(peer) as usize
}

/// Returns a free index; appends one if there is none.
fn vacancy<T>(slots: &mut Vec<Option<T>>) -> usize {
    match slots.iter().position(Option::is_none) {
        Some(at) => at,
        None => {
            slots.push(None);
            slots.len() - 1
        }
    }
}
