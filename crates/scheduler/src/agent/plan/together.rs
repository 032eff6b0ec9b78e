//! Placement of a whole allocation with preemption: members are placed one after the other where there is room,
//! otherwise where preemption costs least, each with the members before it charged and their victims removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Nodes, Room, copies};
use crate::agent::Agent;
use crate::class::{Class, ClassId};
use crate::gang::{GangTopology, GangTopologyMode, WantedMembers};
use crate::inventory::{Held, NodeId};
use crate::objects::Spending;
use crate::preempt::{self, Cost, Prospect, Site, Takeover, Together, Victims, importance};
use crate::rules::{Reasons, Standing};

/// Maximum number of domains to try: those with the most free room.
const MOST_PROSPECTS: usize = 4;
/// Nodes of one prospect in addition to one per needed member.
const SPARE_NODES: usize = 16;
const MOST_NODES: usize = 256;

impl Agent {
    /// Returns the nodes where preemption could help the allocation, the cheapest first. Empty: none. `lenders`: quotas
    /// whose pods may be preempted at any priority; sorted.
    pub fn prospects(
        &mut self,
        wanted: &WantedMembers,
        priority: i32,
        lenders: &[Arc<str>],
        now: Duration,
    ) -> Vec<Prospect<NodeId>> {
        self.view.restore();
        let mut ranked: Vec<(usize, NodeId)> = Vec::new();
        for class in wanted.classes() {
            self.freshen(class, now);
            let standings = self.standings(class.id);
            let reasons = |standing: &Result<Standing, Reasons>| standing.as_ref().err().copied();
            let nodes = standings.iter().map(|(id, standing)| (*id, self.view.row(*id), reasons(standing)));
            let found = preempt::survey(class, priority, lenders, self.salt, nodes).candidates;
            ranked.extend(found.into_iter().rev().enumerate());
        }
        ranked.sort_unstable();
        let mut known = BTreeSet::new();
        let nodes: Vec<NodeId> =
            ranked.into_iter().map(|(_, id)| id).filter(|id| known.insert(*id)).collect();
        let need: usize = wanted.need.iter().map(|need| *need as usize).sum();
        let most = need.saturating_add(SPARE_NODES).min(MOST_NODES);
        let prospects = match &wanted.topology {
            Some(topology) if topology.mode == GangTopologyMode::Required => {
                self.prospects_by_domain(wanted, topology, (priority, lenders), &nodes)
            }
            _ => vec![Prospect { domain: None, nodes }],
        };
        let mut prospects: Vec<_> =
            prospects.into_iter().filter(|prospect| !prospect.nodes.is_empty()).collect();
        prospects.iter_mut().for_each(|prospect| prospect.nodes.truncate(most));
        prospects
    }

    /// Returns the domains that would have room for the first class if all preemptible pods were removed.
    fn prospects_by_domain(
        &mut self,
        wanted: &WantedMembers,
        topology: &GangTopology,
        (priority, lenders): (i32, &[Arc<str>]),
        ranked: &[NodeId],
    ) -> Vec<Prospect<NodeId>> {
        let domains = self.topologies.get(&topology.key, &self.view);
        if let Some(home) = self.home(wanted, &topology.key, &domains) {
            return vec![prospect(&domains, home, ranked)];
        }
        let first = &wanted.members[0];
        let Some(list) = self.cache.peek(first.class.id) else {
            return Vec::new();
        };
        // With several classes, each may use any part of the room, so room for one pod is enough to try.
        let least = match wanted.classes().len() {
            1 => wanted.need.iter().map(|need| i64::from(*need)).sum(),
            _ => 1,
        };
        let candidates: BTreeSet<NodeId> = ranked.iter().copied().collect();
        let usage = &first.holding.usage;
        let mut open: Vec<(i64, usize)> = Vec::new();
        for (at, (_, nodes)) in domains.iter().enumerate() {
            let (mut free, mut most) = (0i64, 0i64);
            for id in nodes {
                let row = self.view.row(*id);
                let now =
                    if list.is_valid(&self.domains, *id) { copies(usage, row, &Held::default()) } else { 0 };
                let candidate = candidates.contains(id);
                let gone = candidate.then(|| preempt::removable(row, priority, lenders).unwrap_or_default());
                let then = gone.map_or(0, |gone| copies(usage, row, &gone));
                (free, most) = (free.saturating_add(now), most.saturating_add(then.max(now)));
            }
            if most >= least {
                open.push((-free, at));
            }
        }
        open.sort_unstable();
        open.truncate(MOST_PROSPECTS);
        open.into_iter().map(|(_, at)| prospect(&domains, at, ranked)).collect()
    }

    /// Returns nodes for as many members as are needed, with their victims; of all prospects, the cheapest.
    pub fn take_over(
        &mut self,
        wanted: &WantedMembers,
        together: &Together,
        now: Duration,
    ) -> Option<Vec<Takeover>> {
        let turns = self.turns(wanted);
        let mut best: Option<(Cost, Vec<Takeover>)> = None;
        for prospect in &together.prospects {
            self.view.restore();
            let found = self.take_over_there(wanted, &turns, together, prospect, now);
            if let Some(found) = found.filter(|found| best.as_ref().is_none_or(|best| found.0 < best.0)) {
                best = Some(found);
            }
        }
        self.view.restore();
        best.map(|(_, takeovers)| takeovers)
    }

    fn take_over_there(
        &mut self,
        wanted: &WantedMembers,
        turns: &[usize],
        together: &Together,
        prospect: &Prospect<Site>,
        now: Duration,
    ) -> Option<(Cost, Vec<Takeover>)> {
        let domains = wanted.topology.as_ref().map(|topology| self.topologies.get(&topology.key, &self.view));
        let room = match (&wanted.topology, &domains, &prospect.domain) {
            (Some(_), Some(domains), Some(name)) => {
                let (_, nodes) = domains.iter().find(|(domain, _)| domain == name)?;
                Room::Domain(nodes)
            }
            (Some(topology), Some(domains), None) if topology.mode == GangTopologyMode::Spread => {
                Room::Spread(&topology.key, domains)
            }
            _ => Room::Anywhere,
        };
        let mut load = room.load(wanted, &self.view);
        let mut ground = Ground {
            sites: prospect.nodes.clone(),
            asked: BTreeMap::new(),
            spending: together.budgets.spending(),
            all: Victims::none(NodeId(0)),
        };
        let mut need = wanted.need.to_vec();
        let mut takeovers = Vec::new();
        for at in turns {
            let member = &wanted.members[*at];
            let Some(open) = need.get_mut(member.role).filter(|open| **open > 0) else {
                continue;
            };
            *open -= 1;
            self.freshen(&member.class, now);
            let Victims { node, pods: victims, lent, .. } = match self.pick(&member.class, &room, &mut load) {
                Some(node) => Victims::none(node),
                None => {
                    let victims = ground.cheapest(self, &member.class)?;
                    room.loaded(victims.node, &mut load);
                    victims
                }
            };
            self.suppose_placed(node, &member.class, &member.holding);
            ground.changed(node);
            takeovers.push(Takeover { member: *at, node, victims, lent });
        }
        ground.all.pods.sort_by_cached_key(|pod| importance(pod));
        Some((ground.all.cost(), takeovers))
    }
}

/// Search space of members that may preempt, with the preemptions of the members before them.
struct Ground<'a> {
    sites: Vec<Site>,
    /// Dry runs on nodes that have not changed since; `None`: preemption does not help.
    asked: BTreeMap<(ClassId, NodeId), Option<Victims>>,
    spending: Spending<'a>,
    /// Victims of all members placed before.
    all: Victims,
}

impl Ground<'_> {
    /// Returns the cheapest preemption for a member of this class, and removes the victims from the agent's view.
    fn cheapest(&mut self, agent: &mut Agent, class: &Class) -> Option<Victims> {
        if class.is_excluded_by_pods() {
            self.asked.retain(|(asked, _), _| *asked != class.id);
        }
        let mut cheapest: Option<(Cost, NodeId)> = None;
        for site in &self.sites {
            let run = self
                .asked
                .entry((class.id, site.node))
                .or_insert_with(|| agent.dry_run_beside(class.id, site, self.spending.clone()).ok());
            let cost = run.as_ref().map(|victims| (victims.cost(), site.node));
            cheapest = cheapest.into_iter().chain(cost).min();
        }
        let (_, node) = cheapest?;
        let victims = self.asked.remove(&(class.id, node)).flatten()?;
        self.evict(agent, &victims);
        Some(victims)
    }

    fn evict(&mut self, agent: &mut Agent, victims: &Victims) {
        let gone: BTreeSet<Arc<str>> = victims.pods.iter().map(|pod| pod.pod.uid.clone()).collect();
        let namespaces: BTreeSet<&str> = victims.pods.iter().map(|pod| &*pod.pod.namespace).collect();
        for pod in &victims.pods {
            self.spending.violates(&pod.pod.namespace, &pod.pod.name, &pod.holding.peer.identity);
        }
        let mut changed = BTreeSet::new();
        for site in std::mem::take(&mut self.sites) {
            // PodDisruptionBudgets count per namespace.
            if site.pods.iter().any(|known| namespaces.contains(&*known.pod.pod.namespace)) {
                changed.insert(site.node);
            }
            self.sites.push(agent.suppose_evicted(site, &gone));
        }
        self.asked.retain(|(_, node), _| !changed.contains(node));
        self.all.violations += victims.violations;
        self.all.groups += victims.groups;
        self.all.unlent += victims.unlent;
        self.all.pods.extend(victims.pods.iter().cloned());
    }

    fn changed(&mut self, node: NodeId) {
        self.asked.retain(|(_, asked), _| *asked != node);
    }
}

fn prospect(domains: &Nodes, at: usize, ranked: &[NodeId]) -> Prospect<NodeId> {
    let (name, nodes) = &domains[at];
    let there: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let nodes = ranked.iter().filter(|id| there.contains(id)).copied().collect();
    Prospect { domain: Some(name.clone()), nodes }
}
