//! The domain-scoped rules of one class, prepared for the lists of one agent: the counts they read, and their result
//! for a node or a whole cell.
//!
//! A topology with few, large domains is *coarse*: nodes with the same coarse domains form a cell, and the result of
//! rules over coarse counts holds for the whole cell. The result of rules over fine topologies (mostly one node per
//! domain) is part of a node's own key. It is the same for all nodes in whose domains nothing is counted ([`Plain`]).

use std::collections::BTreeSet;

use super::cells::CellLayout;
use super::domains::{CountId, Domain, Domains, EMPTY_DOMAIN, LayoutId, NO_DOMAIN, TopologyId};
use super::view::View;
use crate::class::Class;
use crate::inventory::NodeId;
use crate::rules::counted::{Counted, TopologyKey};
use crate::rules::{self, Key, Reasons, inter_pod_affinity, pod_topology_spread};

/// Counts and topologies of one class.
#[derive(Debug)]
pub struct Scoped {
    /// Hard spread constraints, by their index in the spec.
    hard: Vec<(usize, DomainCount)>,
    affinity: Vec<DomainCount>,
    anti: Vec<DomainCount>,
    existing: Vec<DomainCount>,
    preferred: Vec<(DomainCount, i64)>,
    /// Soft spread constraints, by their index in the spec.
    soft: Vec<(usize, DomainCount)>,
    /// Cells of the policy's utilisation limit, and whether they are coarse.
    limit: Option<(TopologyId, bool)>,
    /// All topologies in use, sorted.
    topologies: Vec<TopologyId>,
    /// Topologies whose domains form the cells.
    coarse: Vec<TopologyId>,
    fine: Vec<TopologyId>,
    /// Number of topologies used by matching terms of existing pods.
    looked_at: usize,
}

/// One count that a rule reads.
#[derive(Debug, Clone, Copy)]
struct DomainCount {
    count: CountId,
    topology: TopologyId,
    coarse: bool,
}

impl DomainCount {
    /// Keeps the count; whether it is coarse is decided when all counts are known.
    fn at(counted: &Counted, domains: &mut Domains) -> DomainCount {
        let count = domains.count(counted);
        DomainCount { count, topology: domains.topology_of(count), coarse: false }
    }
}

/// What a common list keeps of the domains.
#[derive(Debug, Default)]
pub struct CommonGround {
    topologies: Vec<TopologyId>,
    /// The cells, if any topology is coarse.
    layout: Option<LayoutId>,
    /// Fine topology of the policy's utilisation limit.
    limit: Option<TopologyId>,
}

impl CommonGround {
    /// Returns the ground of a common list for classes with these coarse topologies, to be given back with [`CommonGround::release`].
    pub fn acquire(class: &Class, coarse: &[TopologyId], domains: &mut Domains, view: &View) -> CommonGround {
        let limit = class.placement.limit.as_ref().and_then(|limit| limit.topology_key.as_ref());
        if coarse.is_empty() && limit.is_none() {
            return CommonGround::default();
        }
        domains.wake(view);
        let limit = limit.map(|key| domains.topology(&TopologyKey::Label(key.clone())));
        coarse.iter().for_each(|topology| domains.keep_topology(*topology));
        CommonGround {
            topologies: coarse.iter().copied().chain(limit).collect(),
            layout: (!coarse.is_empty()).then(|| domains.layout(coarse)),
            limit: limit.filter(|limit| !coarse.contains(limit)),
        }
    }

    pub fn release(self, domains: &mut Domains) {
        if self.topologies.is_empty() {
            return;
        }
        self.layout.into_iter().for_each(|layout| domains.release_layout(layout));
        self.topologies.iter().for_each(|topology| domains.release_topology(*topology));
        domains.rest();
    }

    /// Returns the cells; `None`: no topology is coarse, so that all nodes are in one.
    pub fn cells<'a>(&self, domains: &'a Domains) -> Option<&'a CellLayout> {
        domains.cells(self.layout?)
    }

    pub fn limit(&self) -> Option<TopologyId> {
        self.limit
    }

    /// Checks the utilisation limit of the node's fine domain.
    pub fn beyond_limit(&self, class: &Class, domains: &Domains, id: NodeId) -> Option<Reasons> {
        let topology = self.limit?;
        beyond_limit(class, domains, topology, domains.domain_of(topology, id))
    }
}

/// Checks the utilisation limit of a domain. A node in no domain is one of its own; the node-local rules check it.
fn beyond_limit(class: &Class, domains: &Domains, topology: TopologyId, domain: Domain) -> Option<Reasons> {
    let limit = class.placement.limit.as_ref().filter(|_| domain != NO_DOMAIN)?;
    rules::beyond(limit, &class.spec.usage, &domains.load(topology, domain))
}

/// Result of the rules over fine counts for a node: reasons, or the negated affinity score and the spread.
#[derive(Debug, Clone, Copy)]
pub struct Plain(Result<(i64, i64), Reasons>);

impl Default for Plain {
    /// That of a class without such rules.
    fn default() -> Self {
        Plain(Ok((0, 0)))
    }
}

impl Plain {
    /// Returns why they refuse the node.
    pub fn refuses(&self) -> Option<Reasons> {
        self.0.err()
    }

    /// Adds the result to a node's key.
    #[inline]
    pub fn apply(&self, class: &Class, key: Key) -> Key {
        match self.0 {
            Ok((0, 0)) => key,
            _ if !key.is_valid() => key,
            Ok((pods, spread)) => key.with_pods(class.placement.layout(), pods, spread),
            Err(reasons) => Key::invalid(reasons),
        }
    }
}

/// Selection of rules by topology: all, coarse or fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    All,
    Coarse,
    Fine,
}

impl RuleScope {
    fn has(self, look: DomainCount) -> bool {
        match self {
            RuleScope::All => true,
            RuleScope::Coarse => look.coarse,
            RuleScope::Fine => !look.coarse,
        }
    }
}

/// Values that are the same for all nodes and change the result of fine counts.
pub type Globals = Vec<i64>;

/// Maximum number of cells; above it the topology with the most domains becomes fine.
const MOST_CELLS: usize = 1024;

impl Scoped {
    /// Returns the scoped rules of a class, to be given back with [`Scoped::release`]; `None`: it has no domain-scoped
    /// rule.
    pub fn acquire(class: &Class, domains: &mut Domains, view: &View) -> Option<Scoped> {
        let spec = &class.spec;
        if !class.looks_at_pods() {
            return None;
        }
        domains.wake(view);
        domains.look(&class.selected_by);
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
        let mut look = |counted: &_| DomainCount::at(counted, domains);
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

    /// Adds the counts for matching terms of existing pods.
    fn speak(&mut self, class: &Class, domains: &mut Domains) {
        let (hard, soft) = domains.looked_at(&class.selected_by);
        let refusing: Vec<_> =
            hard.iter().map(|key| inter_pod_affinity::refusing(&class.selected_by.refusing, key)).collect();
        let preferring: Vec<_> = soft
            .iter()
            .map(|key| inter_pod_affinity::preferring(&class.selected_by.preferring, key))
            .collect();
        self.looked_at = refusing.len() + preferring.len();
        let mut look = |counted: &_| DomainCount::at(counted, domains);
        self.existing = refusing.iter().map(&mut look).collect();
        self.preferred.extend(preferring.iter().map(|counted| (look(counted), 1)));
    }

    pub fn release(self, class: &Class, domains: &mut Domains) {
        self.looks().for_each(|look| domains.release(look.count));
        if let Some((topology, _)) = self.limit {
            domains.release_topology(topology);
        }
        domains.look_away(&class.selected_by);
        domains.rest();
    }

    fn looks(&self) -> impl Iterator<Item = &DomainCount> {
        let spread = self.hard.iter().chain(&self.soft).map(|(_, look)| look);
        let preferred = self.preferred.iter().map(|(look, _)| look);
        spread.chain(&self.affinity).chain(&self.anti).chain(&self.existing).chain(preferred)
    }

    /// Returns the topologies that are coarse now.
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

    /// Returns whether the list must be rebuilt: the cells have changed, or existing pods use another topology.
    pub fn is_outdated(&self, class: &Class, domains: &Domains, view: &View) -> bool {
        self.lacks_counts(class, domains) || self.coarse != self.coarse_now(domains, view)
    }

    /// Returns whether existing pods use another topology, which is not counted.
    pub fn lacks_counts(&self, class: &Class, domains: &Domains) -> bool {
        self.looked_at != domains.looked_at_len(&class.selected_by)
    }

    pub fn globals(&self, class: &Class, domains: &Domains) -> Globals {
        let mut globals = vec![i64::from(self.is_first(class, domains))];
        for (_, look) in self.hard.iter().filter(|(_, look)| !look.coarse) {
            let (emptiest, count) = domains.emptiest(look.count);
            globals.extend([emptiest.unwrap_or(-1), count as i64]);
        }
        if self.fine_soft().count() > 1 {
            // A weight follows the logarithm of the number of domains; it may lag behind.
            globals.extend(self.fine_soft().map(|(_, look)| self.rough_size(*look, domains) as i64));
        }
        globals
    }

    fn fine_soft(&self) -> impl Iterator<Item = &(usize, DomainCount)> {
        self.soft.iter().filter(|(_, look)| !look.coarse)
    }

    fn rough_size(&self, look: DomainCount, domains: &Domains) -> usize {
        domains.domains(look.topology).next_power_of_two()
    }

    /// Returns whether no existing pod matches the required affinity while the pod itself does.
    fn is_first(&self, class: &Class, domains: &Domains) -> bool {
        class.self_affine && self.affinity.iter().all(|look| domains.total(look.count) == 0)
    }

    /// Returns the topologies whose domains form the cells.
    pub fn coarse(&self) -> &[TopologyId] {
        &self.coarse
    }

    /// Returns the topologies whose counts are part of a node's own key.
    pub fn fine(&self) -> &[TopologyId] {
        &self.fine
    }

    /// Returns the reasons why the class may not go there, in the order of kube-scheduler's plugins. `domain` returns
    /// the domain in a topology.
    pub fn refusal(
        &self,
        class: &Class,
        domains: &Domains,
        scope: RuleScope,
        domain: impl Fn(TopologyId) -> Domain,
    ) -> Option<Reasons> {
        self.beyond_limit(class, domains, scope, &domain)
            .or_else(|| self.refusal_by_counts(class, domains, scope, domain))
    }

    fn refusal_by_counts(
        &self,
        class: &Class,
        domains: &Domains,
        scope: RuleScope,
        domain: impl Fn(TopologyId) -> Domain,
    ) -> Option<Reasons> {
        let here = |look: DomainCount| domains.pods(look.count, domain(look.topology));
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

    fn beyond_limit(
        &self,
        class: &Class,
        domains: &Domains,
        scope: RuleScope,
        domain: impl Fn(TopologyId) -> Domain,
    ) -> Option<Reasons> {
        let (topology, coarse) = self.limit?;
        let in_scope = match scope {
            RuleScope::All => true,
            RuleScope::Coarse => coarse,
            RuleScope::Fine => !coarse,
        };
        if in_scope { beyond_limit(class, domains, topology, domain(topology)) } else { None }
    }

    /// Returns the negated score of pods in the same domains: smaller is better.
    fn pods(&self, domains: &Domains, scope: RuleScope, domain: impl Fn(TopologyId) -> Domain) -> i64 {
        let here = |look: &DomainCount| domains.pods(look.count, domain(look.topology)).unwrap_or(0);
        let in_scope = self.preferred.iter().filter(|(look, _)| scope.has(*look));
        -in_scope.map(|(look, weight)| weight * here(look)).sum::<i64>()
    }

    /// Adds the result of its fine domains to a node's key.
    pub fn apply_fine(&self, class: &Class, domains: &Domains, id: NodeId, key: Key) -> Key {
        if self.fine.is_empty() || !key.is_valid() {
            return key;
        }
        let domain = |topology| domains.domain_of(topology, id);
        match self.beyond_limit(class, domains, RuleScope::Fine, domain) {
            Some(reasons) => Key::invalid(reasons),
            None => self.by_fine_counts(class, domains, domain).apply(class, key),
        }
    }

    /// Returns what holds for all nodes that are no exceptions.
    pub fn plain(&self, class: &Class, domains: &Domains) -> Plain {
        self.by_fine_counts(class, domains, |_| EMPTY_DOMAIN)
    }

    /// Returns whether something is counted in a fine domain of this node, or it has none.
    pub fn is_exception(&self, domains: &Domains, id: NodeId) -> bool {
        let mut fine = self.looks().filter(|look| !look.coarse);
        fine.any(|look| domains.pods(look.count, domains.domain_of(look.topology, id)) != Some(0))
    }

    /// Returns all such nodes of the first `nodes` ones, some of them several times.
    pub fn exceptions(&self, domains: &Domains, nodes: usize) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut topologies: Vec<TopologyId> = Vec::new();
        for look in self.looks().filter(|look| !look.coarse) {
            domains.occupied(look.count, |domain| found.extend(domains.members(look.topology, domain)));
            if !topologies.contains(&look.topology) {
                topologies.push(look.topology);
            }
        }
        for topology in topologies {
            let all = (0..nodes as u32).map(NodeId);
            found.extend(all.filter(|id| domains.domain_of(topology, *id) == NO_DOMAIN));
        }
        found
    }

    fn by_fine_counts(
        &self,
        class: &Class,
        domains: &Domains,
        domain: impl Fn(TopologyId) -> Domain + Copy,
    ) -> Plain {
        if let Some(reasons) = self.refusal_by_counts(class, domains, RuleScope::Fine, domain) {
            return Plain(Err(reasons));
        }
        let pods = self.pods(domains, RuleScope::Fine, domain);
        let mut constraints = self.fine_soft();
        let spread = match (constraints.next(), constraints.next()) {
            (None, _) => 0,
            // A single fine constraint is weighted when cells are compared, with the topology's size at that time.
            (Some((_, look)), None) => match domains.pods(look.count, domain(look.topology)) {
                Some(pods) => pods + 1,
                None if class.spec.spread.defaulted => 0,
                None => Key::MOST_SPREAD,
            },
            _ => self.fine_cost(class, domains, domain),
        };
        Plain(Ok((pods, spread)))
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

    /// Returns the weights of the soft constraints, given the cells with valid nodes and the number of these nodes.
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

    /// Returns the negated affinity score and the spread cost of all nodes of a cell.
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
        (self.pods(domains, RuleScope::Coarse, domain), spread)
    }

    /// Returns the cost of the fine part of a key's spread, in the units of [`Scoped::cell`].
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

    /// Returns the domain in this topology that all nodes of a cell share.
    pub fn domain_in(&self, cell: &[Domain], topology: TopologyId) -> Domain {
        let at = self.coarse.iter().position(|coarse| *coarse == topology);
        at.map_or(NO_DOMAIN, |at| cell[at])
    }
}

/// Cost of a matching pod, by soft constraint.
#[derive(Debug)]
pub struct Weights(Vec<f64>);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::class::Classifier;
    use crate::inventory::Ledger;
    use berth_model::{Identity, Node, PodSelector, PodSpec, Spread, SpreadConstraint};

    /// Returns the number of coarse topologies for a class that is spread over two labels with so many values.
    fn coarse(values: [usize; 2]) -> usize {
        let mut ledger = Ledger::default();
        for at in 0..600 {
            let name: Arc<str> = format!("n{at}").into();
            let (rack, row) = (format!("rack-{}", at % values[0]), format!("row-{}", at % values[1]));
            let labels = [("rack", rack.as_str()), ("row", row.as_str())].into_iter().collect();
            ledger.apply_node(Node { name, labels, ..Node::default() });
        }
        let mut view = View::default();
        view.catch_up(ledger.inventory());
        let constraint = |key: &str| SpreadConstraint {
            topology_key: key.into(),
            max_skew: 1,
            min_domains: 1,
            hard: true,
            selector: PodSelector::default(),
            self_match: false,
            honor_affinity: false,
            honor_taints: false,
        };
        let spread = Spread { constraints: [constraint("rack"), constraint("row")].into(), defaulted: false };
        let spec = Arc::new(PodSpec { spread, ..PodSpec::default() });
        let class = Classifier::default().classify(&spec, &Identity::default(), 0);
        let mut domains = Domains::default();
        let scoped = Scoped::acquire(&class, &mut domains, &view).expect("it looks at pods");
        scoped.coarse.len()
    }

    #[test]
    fn topologies_are_coarse_while_their_domains_and_nodes_without_one_make_few_cells() {
        assert_eq!(coarse([31, 31]), 2, "32 * 32 cells");
        assert_eq!(coarse([32, 31]), 1, "33 * 32 cells");
        assert_eq!(coarse([200, 31]), 1, "few nodes for each domain");
    }
}
