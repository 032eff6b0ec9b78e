//! The domain-scoped rules of one class, made ready for the lists of one agent: which counts they look at, and what these say
//! of a node or of a whole cell.
//!
//! A topology with few, large domains is *coarse*: nodes with the same coarse domains form a cell, and what coarse counts say
//! holds for all of it. What the others say (fine ones: mostly a domain a node) is part of a node's own key.

use std::collections::BTreeSet;

use super::domains::{CountId, Domain, Domains, NO_DOMAIN, TopologyId};
use super::view::View;
use crate::class::Class;
use crate::inventory::NodeId;
use crate::rules::counted::{Counted, TopologyKey};
use crate::rules::{self, Key, Reasons, inter_pod_affinity, pod_topology_spread};

/// See the module.
#[derive(Debug)]
pub struct Scoped {
    /// Hard spread constraints, by their place in the spec.
    hard: Vec<(usize, Look)>,
    affinity: Vec<Look>,
    anti: Vec<Look>,
    existing: Vec<Look>,
    preferred: Vec<(Look, i64)>,
    /// Soft spread constraints, by their place in the spec.
    soft: Vec<(usize, Look)>,
    /// The cells of the policy's utilisation limit, and whether they are coarse.
    limit: Option<(TopologyId, bool)>,
    /// All of them, sorted.
    topologies: Vec<TopologyId>,
    /// Those whose domains make up the cells.
    coarse: Vec<TopologyId>,
    fine: Vec<TopologyId>,
    /// How many topologies the pods that are there speak of.
    looked_at: usize,
}

/// One count to look at.
#[derive(Debug, Clone, Copy)]
struct Look {
    count: CountId,
    topology: TopologyId,
    coarse: bool,
}

impl Look {
    /// Keeps the count; whether it is coarse is decided when all are known.
    fn at(counted: &Counted, domains: &mut Domains) -> Look {
        let count = domains.count(counted);
        Look { count, topology: domains.topology_of(count), coarse: false }
    }
}

/// Which of the rules: all of them, or one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    All,
    Coarse,
    Fine,
}

impl Scope {
    fn has(self, look: Look) -> bool {
        match self {
            Scope::All => true,
            Scope::Coarse => look.coarse,
            Scope::Fine => !look.coarse,
        }
    }
}

/// What is the same for all nodes, and changes what fine counts say of them.
pub type Globals = Vec<i64>;

/// More cells than this, and the topology with the most domains becomes fine.
const MOST_CELLS: usize = 1024;

impl Scoped {
    /// `None`: the class has no domain-scoped rule. Else what it keeps is given back by [`Scoped::release`].
    pub fn acquire(class: &Class, domains: &mut Domains, view: &View) -> Option<Scoped> {
        let spec = &class.spec;
        if !class.looks_at_pods() {
            return None;
        }
        domains.wake(view);
        domains.look(&class.identity);
        let mut scoped = Scoped {
            hard: Vec::new(),
            affinity: Vec::new(),
            anti: Vec::new(),
            existing: Vec::new(),
            preferred: Vec::new(),
            soft: Vec::new(),
            limit: None,
            topologies: Vec::new(),
            coarse: Vec::new(),
            fine: Vec::new(),
            looked_at: 0,
        };
        let mut look = |counted: &_| Look::at(counted, domains);
        for (hard, into) in [(true, &mut scoped.hard), (false, &mut scoped.soft)] {
            for (place, counted) in pod_topology_spread::counted(spec, hard) {
                into.push((place, look(&counted)));
            }
        }
        let affinity = &spec.pod_affinity;
        scoped.affinity = inter_pod_affinity::required(affinity).iter().map(&mut look).collect();
        scoped.anti = inter_pod_affinity::required_anti(affinity).iter().map(&mut look).collect();
        for terms in [&affinity.preferred[..], &class.hints] {
            for (counted, weight) in inter_pod_affinity::preferred(terms) {
                scoped.preferred.push((look(&counted), weight));
            }
        }
        scoped.speak(class, domains);
        let cell = class.placement.limit.as_ref().and_then(|limit| limit.topology_key.as_ref());
        scoped.limit = cell.map(|key| (domains.topology(&TopologyKey::Label(key.clone())), false));
        let limit = scoped.limit.map(|(topology, _)| topology);
        let topologies: BTreeSet<_> = scoped.looks().map(|look| look.topology).chain(limit).collect();
        scoped.topologies = topologies.into_iter().collect();
        scoped.split(domains, view);
        Some(scoped)
    }

    /// Looks at what the pods that are there say of these.
    fn speak(&mut self, class: &Class, domains: &mut Domains) {
        let (hard, soft) = domains.looked_at(&class.identity);
        let refusing: Vec<_> =
            hard.iter().map(|key| inter_pod_affinity::refusing(&class.identity, key)).collect();
        let preferring: Vec<_> =
            soft.iter().map(|key| inter_pod_affinity::preferring(&class.identity, key)).collect();
        self.looked_at = refusing.len() + preferring.len();
        let mut look = |counted: &_| Look::at(counted, domains);
        self.existing = refusing.iter().map(&mut look).collect();
        self.preferred.extend(preferring.iter().map(|counted| (look(counted), 1)));
    }

    pub fn release(self, class: &Class, domains: &mut Domains) {
        self.looks().for_each(|look| domains.release(look.count));
        if let Some((topology, _)) = self.limit {
            domains.release_topology(topology);
        }
        domains.look_away(&class.identity);
        domains.rest();
    }

    fn looks(&self) -> impl Iterator<Item = &Look> {
        let spread = self.hard.iter().chain(&self.soft).map(|(_, look)| look);
        let preferred = self.preferred.iter().map(|(look, _)| look);
        spread.chain(&self.affinity).chain(&self.anti).chain(&self.existing).chain(preferred)
    }

    /// The coarse topologies as things stand.
    fn coarse_now(&self, domains: &Domains, view: &View) -> Vec<TopologyId> {
        let nodes = view.rows().len();
        let mut coarse: Vec<_> = (self.topologies.iter().copied())
            .filter(|topology| domains.is_coarse(*topology, nodes))
            .collect();
        coarse.sort_by_key(|topology| (domains.domains(*topology), *topology));
        let mut cells = 1;
        coarse.retain(|topology| {
            let with = cells * (domains.domains(*topology) + 1);
            let few = with <= MOST_CELLS;
            cells = if few { with } else { cells };
            few
        });
        coarse
    }

    fn split(&mut self, domains: &Domains, view: &View) {
        self.coarse = self.coarse_now(domains, view);
        let coarse = self.coarse.clone();
        let spread = self.hard.iter_mut().chain(&mut self.soft).map(|(_, look)| look);
        let preferred = self.preferred.iter_mut().map(|(look, _)| look);
        let others = self.affinity.iter_mut().chain(&mut self.anti).chain(&mut self.existing);
        for look in spread.chain(preferred).chain(others) {
            look.coarse = coarse.contains(&look.topology);
        }
        if let Some((topology, is_coarse)) = &mut self.limit {
            *is_coarse = coarse.contains(topology);
        }
        self.fine = self.topologies.iter().copied().filter(|topology| !coarse.contains(topology)).collect();
    }

    /// Whether the list must be made anew: the cells are others now, or pods speak of another topology.
    pub fn is_outdated(&self, class: &Class, domains: &Domains, view: &View) -> bool {
        self.looked_at != domains.looked_at_len(&class.identity)
            || self.coarse != self.coarse_now(domains, view)
    }

    pub fn globals(&self, class: &Class, domains: &Domains) -> Globals {
        let mut globals = vec![i64::from(self.is_first(class, domains))];
        for (_, look) in self.hard.iter().filter(|(_, look)| !look.coarse) {
            let (emptiest, count) = domains.emptiest(look.count);
            globals.extend([emptiest.unwrap_or(-1), count as i64]);
        }
        if self.fine_soft().count() > 1 {
            // A weight follows the number of domains by its logarithm; that may lag behind.
            globals.extend(self.fine_soft().map(|(_, look)| self.rough_size(*look, domains) as i64));
        }
        globals
    }

    fn fine_soft(&self) -> impl Iterator<Item = &(usize, Look)> {
        self.soft.iter().filter(|(_, look)| !look.coarse)
    }

    fn rough_size(&self, look: Look, domains: &Domains) -> usize {
        domains.domains(look.topology).next_power_of_two()
    }

    /// No pod anywhere is one that the required affinity asks for, and the pod itself is.
    fn is_first(&self, class: &Class, domains: &Domains) -> bool {
        class.self_affine && self.affinity.iter().all(|look| domains.total(look.count) == 0)
    }

    pub fn coarse(&self) -> &[TopologyId] {
        &self.coarse
    }

    /// Topologies whose counts are part of a node's own key.
    pub fn fine(&self) -> &[TopologyId] {
        &self.fine
    }

    /// Why the class may not go there, in the order of kube-scheduler's plugins; `domain` tells the domain in a topology.
    pub fn refusal(
        &self,
        class: &Class,
        domains: &Domains,
        scope: Scope,
        domain: impl Fn(TopologyId) -> Domain,
    ) -> Option<Reasons> {
        let here = |look: Look| domains.pods(look.count, domain(look.topology));
        let beyond = self.beyond_limit(class, domains, scope, &domain);
        if beyond.is_some() {
            return beyond;
        }
        for (at, look) in self.hard.iter().filter(|(_, look)| scope.has(*look)) {
            let constraint = &class.spec.spread.constraints[*at];
            let (emptiest, count) = domains.emptiest(look.count);
            let refusal = pod_topology_spread::judge(constraint, here(*look), emptiest, count);
            if refusal.is_some() {
                return refusal;
            }
        }
        let first = !self.affinity.is_empty() && self.is_first(class, domains);
        for look in self.affinity.iter().filter(|look| scope.has(**look)) {
            let refusal = inter_pod_affinity::affinity(here(*look), first);
            if refusal.is_some() {
                return refusal;
            }
        }
        for (looks, reason) in
            [(&self.anti, Reasons::POD_ANTI_AFFINITY), (&self.existing, Reasons::EXISTING_ANTI_AFFINITY)]
        {
            for look in looks.iter().filter(|look| scope.has(**look)) {
                let refusal = inter_pod_affinity::anti_affinity(here(*look), reason);
                if refusal.is_some() {
                    return refusal;
                }
            }
        }
        None
    }

    /// Nodes that are in no cell are cells of their own; they are looked at with the other rules about nodes alone.
    fn beyond_limit(
        &self,
        class: &Class,
        domains: &Domains,
        scope: Scope,
        domain: impl Fn(TopologyId) -> Domain,
    ) -> Option<Reasons> {
        let ((topology, coarse), limit) = (self.limit?, class.placement.limit.as_ref()?);
        let in_scope = match scope {
            Scope::All => true,
            Scope::Coarse => coarse,
            Scope::Fine => !coarse,
        };
        let cell = domain(topology);
        if !in_scope || cell == NO_DOMAIN {
            return None;
        }
        rules::beyond(limit, &class.spec.usage, &domains.load(topology, cell))
    }

    /// What pods near by are worth, negated: smaller is better.
    fn pods(&self, domains: &Domains, scope: Scope, domain: impl Fn(TopologyId) -> Domain) -> i64 {
        let here = |look: &Look| domains.pods(look.count, domain(look.topology)).unwrap_or(0);
        let in_scope = self.preferred.iter().filter(|(look, _)| scope.has(*look));
        -in_scope.map(|(look, weight)| weight * here(look)).sum::<i64>()
    }

    /// Adds to a node's key what its fine domains say.
    pub fn apply_fine(&self, class: &Class, domains: &Domains, id: NodeId, key: Key) -> Key {
        if self.fine.is_empty() || !key.is_valid() {
            return key;
        }
        let domain = |topology| domains.domain_of(topology, id);
        if let Some(reasons) = self.refusal(class, domains, Scope::Fine, domain) {
            return Key::invalid(reasons);
        }
        let pods = self.pods(domains, Scope::Fine, domain);
        let mut constraints = self.fine_soft();
        let spread = match (constraints.next(), constraints.next()) {
            (None, _) => 0,
            // Alone, it is weighed when cells are compared, by the size that the topology has then.
            (Some((_, look)), None) => match domains.pods(look.count, domain(look.topology)) {
                Some(pods) => pods + 1,
                None if class.spec.spread.defaulted => 0,
                None => Key::MOST_SPREAD,
            },
            _ => self.fine_cost(class, domains, domain),
        };
        key.with_pods(class.placement.layout(), pods, spread)
    }

    fn fine_cost(&self, class: &Class, domains: &Domains, domain: impl Fn(TopologyId) -> Domain) -> i64 {
        let mut cost = 0;
        for (at, look) in self.fine_soft() {
            let pods = domains.pods(look.count, domain(look.topology));
            if pods.is_none() && !class.spec.spread.defaulted {
                return Key::MOST_SPREAD;
            }
            let weight = pod_topology_spread::weight(self.rough_size(*look, domains));
            cost += pod_topology_spread::cost(&class.spec.spread.constraints[*at], pods, weight);
        }
        cost
    }

    /// The worth of cells, given which of them have valid nodes, and how many.
    pub fn weigh<'a>(&self, cells: impl Iterator<Item = (&'a [Domain], usize)> + Clone) -> Weights {
        if self.soft.len() < 2 {
            return Weights(vec![1.0; self.soft.len()]);
        }
        let nodes: usize = cells.clone().map(|(_, nodes)| nodes).sum();
        let weights = self.soft.iter().map(|(_, look)| {
            let size = match self.coarse.iter().position(|topology| *topology == look.topology) {
                Some(at) => {
                    let mut used: Vec<Domain> = cells.clone().map(|(domains, _)| domains[at]).collect();
                    used.sort_unstable();
                    used.dedup();
                    used.len()
                }
                None => nodes,
            };
            pod_topology_spread::weight(size)
        });
        Weights(weights.collect())
    }

    /// Negated worth of pods near by, and cost of spreading, of all nodes of a cell.
    pub fn cell(&self, class: &Class, domains: &Domains, weights: &Weights, cell: &[Domain]) -> (i64, i64) {
        let domain = |topology| self.domain_in(cell, topology);
        let mut spread = 0i64;
        for ((at, look), weight) in self.soft.iter().zip(&weights.0).filter(|((_, look), _)| look.coarse) {
            let pods = domains.pods(look.count, domain(look.topology));
            if pods.is_none() && !class.spec.spread.defaulted {
                spread = i64::MAX / 2;
                break;
            }
            spread += pod_topology_spread::cost(&class.spec.spread.constraints[*at], pods, *weight);
        }
        (self.pods(domains, Scope::Coarse, domain), spread)
    }

    /// What the fine part of a key's spread costs, in the units of [`Scoped::cell`].
    pub fn fine_spread(&self, class: &Class, weights: &Weights, raw: i64) -> i64 {
        let mut constraints = self.soft.iter().zip(&weights.0).filter(|((_, look), _)| !look.coarse);
        match (constraints.next(), constraints.next()) {
            (None, _) => 0,
            _ if raw == Key::MOST_SPREAD => i64::MAX / 2,
            (Some(((at, _), weight)), None) => {
                let constraint = &class.spec.spread.constraints[*at];
                pod_topology_spread::cost(constraint, (raw > 0).then_some(raw - 1), *weight)
            }
            _ => raw,
        }
    }

    /// The domain that all nodes of a cell have in this topology.
    pub fn domain_in(&self, cell: &[Domain], topology: TopologyId) -> Domain {
        let at = self.coarse.iter().position(|coarse| *coarse == topology);
        at.map_or(NO_DOMAIN, |at| cell[at])
    }
}

/// What a matching pod costs, by soft constraint.
#[derive(Debug)]
pub struct Weights(Vec<f64>);
