//! Topology domains and their pod counts, for the lists of one agent.
//!
//! All state derives from the rows of the view: a changed row is compared with its last counted state, and only the
//! difference is added. A count is shared by all lists that use it, and dropped with the last of them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::cells::CellLayout;
use super::kinds::{ByPods, KindIndex};
use super::view::View;
use crate::inventory::{NodeId, Peers, Revision};
use crate::live_selectors::SelectedBy;
use crate::rules::counted::{Counted, Eligible, TopologyKey};
use crate::rules::{CellLoad, inter_pod_affinity};
use berth_model::{Node, Peer};

/// Index of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopologyId(u32);

/// Index of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountId(u32);

/// Index of a cell layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayoutId(u32);

/// Index of a domain of a topology. Reused when its last node has left it.
pub type Domain = u32;

/// Marks a node without a domain.
pub const NO_DOMAIN: Domain = Domain::MAX;

/// Stands for any domain in which nothing is counted.
pub const EMPTY_DOMAIN: Domain = Domain::MAX - 1;

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
    /// Number of nodes with a domain.
    nodes: usize,
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
            nodes: 0,
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
        self.nodes += 1;
    }

    fn leave(&mut self, id: NodeId, revision: Revision) {
        let domain = self.domain_of(id);
        if domain == NO_DOMAIN {
            return;
        }
        self.domain_of[id.index()] = NO_DOMAIN;
        self.nodes -= 1;
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
    /// `None`: pods on all nodes count.
    scope: Option<ScopeId>,
    pods: DomainCounts,
    total: i64,
    /// Number of domains for each pod count except 0. Only with a scope: its pods are all on its nodes.
    histogram: BTreeMap<i64, u32>,
    users: usize,
}

/// Index of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ScopeId(u32);

/// The eligible nodes of a topology. Shared by all counts that are limited to the same nodes.
#[derive(Debug)]
struct Scope {
    topology: TopologyId,
    eligible: Box<Eligible>,
    /// Whether each node is eligible.
    is: Vec<bool>,
    /// Eligible nodes per domain.
    nodes: Vec<u32>,
    /// Number of domains with eligible nodes.
    domains: usize,
    users: usize,
}

impl Scope {
    fn enter(&mut self, id: NodeId, node: &Node, domain: Domain) {
        let is = domain != NO_DOMAIN && self.eligible.admits(node);
        *slot(&mut self.is, id.index()) = is;
        if is {
            let nodes = slot(&mut self.nodes, domain as usize);
            *nodes += 1;
            self.domains += usize::from(*nodes == 1);
        }
    }

    fn leave(&mut self, id: NodeId, domain: Domain) {
        if std::mem::take(slot(&mut self.is, id.index())) {
            let nodes = &mut self.nodes[domain as usize];
            *nodes -= 1;
            self.domains -= usize::from(*nodes == 0);
        }
    }

    fn bytes(&self) -> usize {
        self.is.capacity() + self.nodes.capacity() * size_of::<u32>()
    }
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

/// Pods per domain. Most counts are those of one workload, whose pods are in few of many domains: these are kept alone.
#[derive(Debug)]
enum DomainCounts {
    /// The domains with another count than 0, sorted.
    Sparse(Vec<(Domain, i64)>),
    /// All domains; grows on demand.
    Dense { pods: Vec<i64>, occupied: usize },
}

/// Beyond this, finding a place among the domains takes longer than keeping them all.
const MOST_SPARSE: usize = 1024;

impl DomainCounts {
    fn get(&self, domain: Domain) -> i64 {
        match self {
            DomainCounts::Sparse(known) => {
                known.binary_search_by_key(&domain, |(known, _)| *known).map_or(0, |at| known[at].1)
            }
            DomainCounts::Dense { pods, .. } => at(pods, domain as usize),
        }
    }

    fn set(&mut self, domain: Domain, count: i64) {
        match self {
            DomainCounts::Sparse(known) => {
                match (known.binary_search_by_key(&domain, |(known, _)| *known), count) {
                    (Ok(at), 0) => {
                        known.remove(at);
                    }
                    (Ok(at), _) => known[at].1 = count,
                    (Err(_), 0) => {}
                    (Err(at), _) => known.insert(at, (domain, count)),
                }
                if known.len() > MOST_SPARSE {
                    let mut pods = Vec::new();
                    known.iter().for_each(|(domain, count)| *slot(&mut pods, *domain as usize) = *count);
                    *self = DomainCounts::Dense { occupied: known.len(), pods };
                }
            }
            DomainCounts::Dense { pods, occupied } => {
                let known = slot(pods, domain as usize);
                *occupied = *occupied + usize::from(count != 0) - usize::from(*known != 0);
                *known = count;
            }
        }
    }

    /// Visits the domains with another count than 0.
    fn visit(&self, mut visit: impl FnMut(Domain)) {
        match self {
            DomainCounts::Sparse(known) => known.iter().for_each(|(domain, _)| visit(*domain)),
            DomainCounts::Dense { pods, .. } => {
                let occupied = pods.iter().enumerate().filter(|(_, pods)| **pods != 0);
                occupied.for_each(|(domain, _)| visit(domain as Domain));
            }
        }
    }

    /// Returns the number of domains with another count than 0.
    fn occupied(&self) -> usize {
        match self {
            DomainCounts::Sparse(known) => known.len(),
            DomainCounts::Dense { occupied, .. } => *occupied,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            DomainCounts::Sparse(known) => known.capacity() * size_of::<(Domain, i64)>(),
            DomainCounts::Dense { pods, .. } => pods.capacity() * size_of::<i64>(),
        }
    }
}

impl Count {
    /// Adds `by` pods in this domain.
    fn add(&mut self, domain: Domain, by: i64) {
        let before = self.pods.get(domain);
        let after = before + by;
        self.pods.set(domain, after);
        self.total += by;
        if self.scope.is_some() {
            if let Some(domains) = self.histogram.get_mut(&before) {
                *domains -= 1;
                if *domains == 0 {
                    self.histogram.remove(&before);
                }
            }
            if after != 0 {
                *self.histogram.entry(after).or_default() += 1;
            }
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Count>() + self.pods.bytes() + self.histogram.len() * 4 * size_of::<i64>()
    }
}

/// Counts to which a kind of pods typically contributes, for the estimate of their size.
const TYPICAL_ADDS: usize = 4;

/// Returns the domain in which the count counts the pods of this node, if it does.
fn place_of(
    count: &Count,
    topologies: &[Option<Topology>],
    scopes: &[Option<Scope>],
    node: NodeId,
) -> Option<Domain> {
    let domain = topologies[count.topology.0 as usize].as_ref()?.domain_of(node);
    let is_eligible =
        |scope: ScopeId| scopes[scope.0 as usize].as_ref().is_some_and(|scope| at(&scope.is, node.index()));
    (domain != NO_DOMAIN && count.scope.is_none_or(is_eligible)).then_some(domain)
}

/// Pods with equal scheduling properties, on any node.
#[derive(Debug)]
struct PeerKind {
    peer: Arc<Peer>,
    pods: u64,
    /// Counts these pods contribute to, with their weights.
    adds: Vec<(CountId, i64)>,
}

/// Topologies over which existing pods have affinity terms with one of these selectors.
#[derive(Debug)]
struct Looked {
    selectors: SelectedBy,
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
    /// Counts by which pods they may count.
    counts_of: ByPods<CountId>,
    /// Bytes of all counts.
    count_bytes: usize,
    scopes: Vec<Option<Scope>>,
    by_scope: HashMap<(TopologyId, Box<Eligible>), ScopeId>,
    /// By address of the `Peer`, which stays valid while the kind is stored; the order of this map never matters.
    kinds: HashMap<usize, PeerKind>,
    /// Addresses of the kinds, by what may count them.
    kinds_of: KindIndex,
    looked: HashMap<SelectedBy, Looked>,
    /// Cells by coarse topologies, each with the number of its users.
    layouts: Vec<Option<(CellLayout, usize)>>,
    by_coarse: HashMap<Box<[TopologyId]>, LayoutId>,
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
            let (topologies, revision) = (&self.topologies, self.revision);
            for (layout, _) in self.layouts.iter_mut().flatten() {
                let cell = row.node.as_ref().map(|_| domains_of(layout.topologies(), topologies, id));
                layout.put(id, cell, revision);
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
        let is_gone = kind.pods == 0;
        for (count, weight) in &kind.adds {
            if let Some(count) = &mut self.counts[count.0 as usize] {
                let place = place_of(count, &self.topologies, &self.scopes, node);
                let before = count.bytes();
                place.into_iter().for_each(|domain| count.add(domain, weight * by));
                self.count_bytes = self.count_bytes + count.bytes() - before;
            }
        }
        if is_gone && let Some(kind) = self.kinds.remove(&address) {
            self.kinds_of.remove(&kind.peer);
        }
    }

    /// Adds a new kind of pods.
    fn meet(&mut self, peer: &Arc<Peer>) {
        let mut adds = Vec::new();
        for id in self.counts_of.concerned(peer) {
            let weight = self.get(id).map_or(0, |count| count.counted.weight(peer));
            if weight != 0 {
                adds.push((id, weight));
            }
        }
        if !peer.affinity.is_empty() {
            self.looked.values_mut().for_each(|looked| looked.see(peer));
        }
        self.kinds_of.insert(peer);
        self.kinds.insert(address_of(peer), PeerKind { peer: peer.clone(), pods: 0, adds });
    }

    fn enter(&mut self, id: NodeId, node: &Node) {
        self.topologies.iter_mut().flatten().for_each(|topology| topology.enter(id, node));
        for scope in self.scopes.iter_mut().flatten() {
            let topology = self.topologies[scope.topology.0 as usize].as_ref();
            scope.enter(id, node, topology.map_or(NO_DOMAIN, |topology| topology.domain_of(id)));
        }
    }

    fn leave(&mut self, id: NodeId) {
        for scope in self.scopes.iter_mut().flatten() {
            let topology = self.topologies[scope.topology.0 as usize].as_ref();
            scope.leave(id, topology.map_or(NO_DOMAIN, |topology| topology.domain_of(id)));
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
        let scope = counted.nodes.as_ref().map(|eligible| self.scope(topology, eligible));
        let pods = DomainCounts::Sparse(Vec::new());
        let histogram = BTreeMap::new();
        let mut count =
            Count { counted: counted.clone(), topology, scope, pods, total: 0, histogram, users: 1 };
        let id = CountId(vacancy(&mut self.counts) as u32);
        let mut counted_kinds: Vec<(usize, i64)> = Vec::new();
        for address in self.kinds_of.concerned(counted) {
            let Some(kind) = self.kinds.get_mut(&address) else {
                continue;
            };
            let weight = counted.weight(&kind.peer);
            if weight != 0 {
                kind.adds.push((id, weight));
                counted_kinds.push((address, weight));
            }
        }
        // Of a new workload there are no pods yet: no node is visited.
        if !counted_kinds.is_empty() {
            for (at, seen) in self.seen.iter().enumerate().filter(|(_, seen)| seen.node.is_some()) {
                let Some(domain) = place_of(&count, &self.topologies, &self.scopes, NodeId(at as u32)) else {
                    continue;
                };
                for (address, weight) in &counted_kinds {
                    let pods = i64::from(seen.peers.count_at(*address));
                    if pods != 0 {
                        count.add(domain, weight * pods);
                    }
                }
            }
        }
        self.count_bytes += count.bytes();
        self.counts_of.insert(counted, id);
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
        let Some(count) = self.counts[id.0 as usize].take() else {
            return;
        };
        self.count_bytes = self.count_bytes.saturating_sub(count.bytes());
        self.by_counted.remove(&count.counted);
        self.counts_of.remove(&count.counted, id);
        for address in self.kinds_of.concerned(&count.counted) {
            if let Some(kind) = self.kinds.get_mut(&address) {
                kind.adds.retain(|(count, _)| *count != id);
            }
        }
        if let Some(scope) = count.scope {
            self.release_scope(scope);
        }
        self.release_topology(count.topology);
    }

    /// Keeps the eligible nodes of a topology until they are released.
    fn scope(&mut self, topology: TopologyId, eligible: &Eligible) -> ScopeId {
        let key = (topology, Box::new(eligible.clone()));
        if let Some(id) = self.by_scope.get(&key) {
            if let Some(scope) = &mut self.scopes[id.0 as usize] {
                scope.users += 1;
            }
            return *id;
        }
        let (eligible, is, nodes) = (key.1.clone(), Vec::new(), Vec::new());
        let mut scope = Scope { topology, eligible, is, nodes, domains: 0, users: 1 };
        if let Some(topology) = &self.topologies[topology.0 as usize] {
            for (at, seen) in self.seen.iter().enumerate() {
                if let Some(node) = &seen.node {
                    let id = NodeId(at as u32);
                    scope.enter(id, node, topology.domain_of(id));
                }
            }
        }
        let id = ScopeId(vacancy(&mut self.scopes) as u32);
        self.scopes[id.0 as usize] = Some(scope);
        self.by_scope.insert(key, id);
        id
    }

    fn release_scope(&mut self, id: ScopeId) {
        let Some(scope) = &mut self.scopes[id.0 as usize] else {
            return;
        };
        scope.users -= 1;
        if scope.users == 0
            && let Some(scope) = self.scopes[id.0 as usize].take()
        {
            self.by_scope.remove(&(scope.topology, scope.eligible));
        }
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
        self.keep_topology(id);
        id
    }

    /// Keeps a known topology for one more user.
    pub fn keep_topology(&mut self, id: TopologyId) {
        if let Some(topology) = &mut self.topologies[id.0 as usize] {
            topology.users += 1;
        }
    }

    /// Keeps the cells of these coarse topologies until they are released, which must be before the topologies are.
    pub fn layout(&mut self, coarse: &[TopologyId]) -> LayoutId {
        if let Some(id) = self.by_coarse.get(coarse) {
            if let Some((_, users)) = &mut self.layouts[id.0 as usize] {
                *users += 1;
            }
            return *id;
        }
        let mut layout = CellLayout::new(coarse);
        for (at, _) in self.seen.iter().enumerate().filter(|(_, seen)| seen.node.is_some()) {
            let id = NodeId(at as u32);
            layout.put(id, Some(domains_of(coarse, &self.topologies, id)), self.revision);
        }
        let id = LayoutId(vacancy(&mut self.layouts) as u32);
        self.layouts[id.0 as usize] = Some((layout, 1));
        self.by_coarse.insert(coarse.into(), id);
        id
    }

    /// Reverts one [`Domains::layout`].
    pub fn release_layout(&mut self, id: LayoutId) {
        if let Some((layout, users)) = &mut self.layouts[id.0 as usize] {
            *users -= 1;
            if *users == 0 {
                self.by_coarse.remove(layout.topologies());
                self.layouts[id.0 as usize] = None;
            }
        }
    }

    /// Returns cells that are kept.
    pub fn cells(&self, id: LayoutId) -> Option<&CellLayout> {
        self.layouts.get(id.0 as usize)?.as_ref().map(|(layout, _)| layout)
    }

    /// Keeps the topologies over which existing pods have terms with these selectors, until released.
    pub fn look(&mut self, selectors: &SelectedBy) {
        if selectors.is_empty() {
            return;
        }
        let (kinds, affine) = (&self.kinds, &self.kinds_of.affine);
        let looked = self.looked.entry(selectors.clone()).or_insert_with(|| {
            let mut looked = Looked {
                selectors: selectors.clone(),
                hard: BTreeSet::new(),
                soft: BTreeSet::new(),
                users: 0,
            };
            let affine = affine.iter().filter_map(|address| kinds.get(address));
            affine.for_each(|kind| looked.see(&kind.peer));
            looked
        });
        looked.users += 1;
    }

    pub fn look_away(&mut self, selectors: &SelectedBy) {
        if let Some(looked) = self.looked.get_mut(selectors) {
            looked.users -= 1;
            if looked.users == 0 {
                self.looked.remove(selectors);
            }
        }
    }

    /// Returns the topologies over which existing pods have required anti-affinity with one of these selectors, and
    /// those over which they have preferred terms. Both only grow.
    pub fn looked_at(&self, selectors: &SelectedBy) -> (Vec<&Arc<str>>, Vec<&Arc<str>>) {
        let looked = self.looked.get(selectors);
        let keys =
            |set: fn(&Looked) -> &BTreeSet<Arc<str>>| looked.map_or(Vec::new(), |l| set(l).iter().collect());
        (keys(|looked| &looked.hard), keys(|looked| &looked.soft))
    }

    /// Returns the number of these topologies.
    pub fn looked_at_len(&self, selectors: &SelectedBy) -> usize {
        self.looked.get(selectors).map_or(0, |looked| looked.hard.len() + looked.soft.len())
    }

    pub fn topology_of(&self, count: CountId) -> TopologyId {
        self.get(count).map_or(TopologyId(u32::MAX), |count| count.topology)
    }

    /// Returns the count in this domain; `None` for a node without a domain.
    pub fn pods(&self, count: CountId, domain: Domain) -> Option<i64> {
        (domain != NO_DOMAIN).then(|| self.get(count).map_or(0, |count| count.pods.get(domain)))
    }

    /// Visits the domains with another count than 0.
    pub fn occupied(&self, count: CountId, visit: impl FnMut(Domain)) {
        if let Some(count) = self.get(count) {
            count.pods.visit(visit);
        }
    }

    pub fn total(&self, count: CountId) -> i64 {
        self.get(count).map_or(0, |count| count.total)
    }

    /// Returns the smallest count of a domain with eligible nodes, and the number of domains with that count.
    pub fn emptiest(&self, count: CountId) -> (Option<i64>, usize) {
        let Some(count) = self.get(count) else {
            return (None, 0);
        };
        let scope = count.scope.and_then(|scope| self.scopes[scope.0 as usize].as_ref());
        let domains = scope.map_or(0, |scope| scope.domains);
        let emptiest = match domains {
            0 => None,
            domains if count.pods.occupied() < domains => Some(0),
            _ => count.histogram.keys().next().copied(),
        };
        (emptiest, domains)
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

    /// Adds the nodes that share a domain of one of these topologies with one of these nodes.
    pub fn add_neighbours(&self, topologies: &[TopologyId], nodes: &mut Vec<NodeId>) {
        let given = nodes.len();
        for topology in topologies.iter().filter_map(|id| self.topologies[id.0 as usize].as_ref()) {
            // Hostnames have no neighbours.
            if topology.domains.len() == topology.nodes {
                continue;
            }
            for at in 0..given {
                let id = nodes[at];
                let members = topology.members.get(topology.domain_of(id) as usize);
                nodes.extend(members.into_iter().flatten().filter(|member| **member != id));
            }
        }
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
        let topologies: usize = self.topologies.iter().flatten().map(Topology::bytes).sum();
        let scopes: usize = self.scopes.iter().flatten().map(Scope::bytes).sum();
        let kinds = self.kinds.len() * (size_of::<PeerKind>() + TYPICAL_ADDS * size_of::<(CountId, i64)>());
        let layouts: usize = self.layouts.iter().flatten().map(|(layout, _)| layout.bytes()).sum();
        self.count_bytes + topologies + scopes + layouts + kinds + self.seen.capacity() * size_of::<Seen>()
    }
}

impl Looked {
    fn see(&mut self, peer: &Peer) {
        for (hard, key) in inter_pod_affinity::topologies(peer, &self.selectors) {
            let keys = if hard { &mut self.hard } else { &mut self.soft };
            if !keys.contains(key) {
                keys.insert(key.clone());
            }
        }
    }
}

/// Returns the domains of a node in these topologies.
fn domains_of(coarse: &[TopologyId], topologies: &[Option<Topology>], node: NodeId) -> Box<[Domain]> {
    let topologies = coarse.iter().map(|topology| topologies[topology.0 as usize].as_ref());
    topologies.map(|topology| topology.map_or(NO_DOMAIN, |topology| topology.domain_of(node))).collect()
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
