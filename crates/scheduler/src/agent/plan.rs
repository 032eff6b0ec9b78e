//! Placement of several pods together: each is placed on the agent's view with those before it charged.

mod together;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Agent, Part, View};
use crate::class::{Class, ClassId};
use crate::gang::{GangPlan, GangTopology, GangTopologyMode, Lacking, WantedMembers};
use crate::inventory::{Held, NodeId, Revision, Row};
use crate::rules::{CellLoad, Diagnosis};
use berth_model::{Amounts, Usage};

/// Maximum number of domains in which a whole allocation is tried: the most promising ones.
const MOST_DOMAINS: usize = 64;
/// Maximum number of topology keys whose domains are cached.
const MOST_KEYS: usize = 16;

/// Nodes of each domain of one topology, by domain name.
type Nodes = Arc<Vec<(Arc<str>, Vec<NodeId>)>>;

/// Nodes of the domains of the topologies that allocations use.
#[derive(Debug, Default)]
pub(super) struct Topologies {
    /// By key, each with the revision of the view it was built from.
    known: HashMap<Arc<str>, (Revision, Nodes)>,
}

impl Topologies {
    fn get(&mut self, key: &Arc<str>, view: &View) -> Nodes {
        if let Some((revision, nodes)) = self.known.get(key)
            && view.renewed_since(*revision).next().is_none()
        {
            return nodes.clone();
        }
        let mut domains: BTreeMap<Arc<str>, Vec<NodeId>> = BTreeMap::new();
        for (at, row) in view.rows().iter().enumerate() {
            if let Some(value) = row.node.as_ref().and_then(|node| node.labels.get(key)) {
                match domains.get_mut(value) {
                    Some(nodes) => nodes.push(NodeId(at as u32)),
                    None => drop(domains.insert(value.into(), vec![NodeId(at as u32)])),
                }
            }
        }
        let nodes: Nodes = Arc::new(domains.into_iter().collect());
        if self.known.len() >= MOST_KEYS {
            self.known.clear();
        }
        self.known.insert(key.clone(), (view.revision(), nodes.clone()));
        nodes
    }
}

impl Agent {
    /// Places all members of `wanted`, or as many as are needed, on the view without alterations.
    pub fn plan(&mut self, wanted: &WantedMembers, now: Duration, lap: impl FnMut(Part)) -> GangPlan {
        self.view.restore();
        self.plan_upon(wanted, None, now, lap)
    }

    /// Does the same on the altered view, and leaves it as it was; if the topology is required, only in `domain`.
    pub fn plan_upon(
        &mut self,
        wanted: &WantedMembers,
        domain: Option<&Arc<str>>,
        now: Duration,
        mut lap: impl FnMut(Part),
    ) -> GangPlan {
        let before = self.view.alterations();
        for (node, uid) in &wanted.reserved {
            self.view.alter(*node, |row| row.unreserve(uid));
        }
        for class in wanted.classes() {
            self.cache.list(class, &self.view, &mut self.domains, now, &mut lap);
        }
        let turns = self.turns(wanted);
        let plan = match &wanted.topology {
            None => self.place(wanted, &turns, &Room::Anywhere, now),
            Some(topology) => self.place_in_topology(wanted, &turns, topology, domain, now),
        };
        self.view.restore_to(before);
        plan
    }

    /// Returns the order in which members are placed: the largest first, as they are the hardest to place.
    fn turns(&self, wanted: &WantedMembers) -> Vec<usize> {
        let members = &wanted.members;
        let mut turns: Vec<usize> = (0..members.len()).collect();
        if wanted.classes().len() > 1 {
            let most = self.view.rows().iter().fold(Amounts::default(), |most, row| Amounts {
                cpu_milli: most.cpu_milli.max(row.allocatable.cpu_milli),
                memory: most.memory.max(row.allocatable.memory),
                ephemeral_storage: most.ephemeral_storage.max(row.allocatable.ephemeral_storage),
                pods: most.pods,
            });
            turns.sort_by(|a, b| {
                let size = |at: usize| size(&members[at].holding.usage, &most);
                size(*b).total_cmp(&size(*a)).then(a.cmp(b))
            });
        }
        turns
    }

    fn place_in_topology(
        &mut self,
        wanted: &WantedMembers,
        turns: &[usize],
        topology: &GangTopology,
        domain: Option<&Arc<str>>,
        now: Duration,
    ) -> GangPlan {
        let before = self.view.alterations();
        let domains = self.topologies.get(&topology.key, &self.view);
        if topology.mode == GangTopologyMode::Spread {
            return self.place(wanted, turns, &Room::Spread(&topology.key, &domains), now);
        }
        let mut best: Option<GangPlan> = None;
        let only = domain.map(|only| domains.iter().position(|(name, _)| name == only).into_iter().collect());
        let to_try = only.unwrap_or_else(|| self.domains_to_try(wanted, &topology.key, &domains, now));
        for at in to_try {
            let (name, nodes) = &domains[at];
            let mut plan = self.place(wanted, turns, &Room::Domain(nodes), now);
            self.view.restore_to(before);
            if plan.complete && plan.places.len() == wanted.members.len() {
                return plan;
            }
            if let Some(lacking) = &mut plan.lacking {
                lacking.domain = Some(name.clone());
            }
            let worth = |plan: &GangPlan| (plan.complete, plan.places.len());
            if best.as_ref().is_none_or(|best| worth(&plan) > worth(best)) {
                best = Some(plan);
            }
        }
        match best {
            Some(plan) if plan.complete || topology.mode == GangTopologyMode::Required => plan,
            None if topology.mode == GangTopologyMode::Required => {
                let class = wanted.members[turns[0]].class.clone();
                let lacking = Lacking { class, diagnosis: Diagnosis::default(), domain: None };
                GangPlan { complete: false, places: Vec::new(), lacking: Some(lacking) }
            }
            _ => self.place(wanted, turns, &Room::Anywhere, now),
        }
    }

    /// Returns the indexes of the domains to try. If members are placed already: only their domain. Otherwise first the
    /// domains with room for all members, judged by the first class, least room first, so that large ones stay whole, and
    /// of equal ones the fullest; then the remaining ones, most room first.
    fn domains_to_try(
        &mut self,
        wanted: &WantedMembers,
        key: &Arc<str>,
        domains: &Nodes,
        now: Duration,
    ) -> Vec<usize> {
        if let Some(home) = self.home(wanted, key, domains) {
            return vec![home];
        }
        let first = &wanted.members[0];
        self.freshen(&first.class, now);
        let Some(list) = self.cache.peek(first.class.id) else {
            return Vec::new();
        };
        let all = wanted.members.iter().filter(|member| member.class.id == first.class.id).count() as i64;
        let least: i64 = wanted.need.iter().map(|need| i64::from(*need)).sum();
        let alone = wanted.classes().len() == 1;
        let mut open: Vec<(u8, i64, Reverse<u32>, usize)> = Vec::new();
        for (at, (_, nodes)) in domains.iter().enumerate() {
            let valid = nodes.iter().filter(|id| list.is_valid(&self.domains, **id));
            let copies = valid.map(|id| copies(&first.holding.usage, self.view.row(*id), &Held::default()));
            let room = copies.fold(0, i64::saturating_add);
            let (rank, order) = match room {
                _ if room >= all => (0, room),
                _ if room > 0 && (!alone || room >= least) => (1, -room),
                _ => (2, -room),
            };
            let loads = nodes.iter().map(|id| CellLoad::of(self.view.row(*id)));
            let taken = loads.fold(CellLoad::default(), CellLoad::plus).taken();
            open.push((rank, order, Reverse(taken), at));
        }
        open.sort_unstable();
        // If no domain has room, the one with most room explains why.
        let hopeful = open.iter().filter(|(rank, ..)| *rank < 2).count().clamp(1, MOST_DOMAINS);
        open.into_iter().take(hopeful).map(|(.., at)| at).collect()
    }

    /// Returns the index of the domain with the most placed members, if there are any.
    fn home(&self, wanted: &WantedMembers, key: &Arc<str>, domains: &Nodes) -> Option<usize> {
        let mut there: BTreeMap<&str, usize> = BTreeMap::new();
        for node in wanted.placed.iter().filter_map(|id| self.view.row(*id).node.as_ref()) {
            if let Some(value) = node.labels.get(key) {
                *there.entry(value).or_default() += 1;
            }
        }
        let (home, _) = there.into_iter().max_by_key(|(name, pods)| (*pods, Reverse(*name)))?;
        domains.iter().position(|(name, _)| **name == *home)
    }

    /// Returns the domains that could hold all members if they were empty enough: only that of placed members, if there
    /// are any; otherwise all, most room for the first class first.
    pub fn roomiest(&mut self, wanted: &WantedMembers, key: &Arc<str>, now: Duration) -> Vec<Arc<str>> {
        let domains = self.topologies.get(key, &self.view);
        if let Some(home) = self.home(wanted, key, &domains) {
            return vec![domains[home].0.clone()];
        }
        let first = &wanted.members[0];
        self.freshen(&first.class, now);
        let Some(list) = self.cache.peek(first.class.id) else {
            return Vec::new();
        };
        let room = |nodes: &[NodeId]| {
            let valid = nodes.iter().filter(|id| list.is_valid(&self.domains, **id));
            valid
                .map(|id| copies(&first.holding.usage, self.view.row(*id), &Held::default()))
                .fold(0, i64::saturating_add)
        };
        let mut rooms: Vec<_> = domains.iter().map(|(name, nodes)| (-room(nodes), name.clone())).collect();
        rooms.sort_unstable();
        rooms.into_iter().map(|(_, name)| name).collect()
    }

    /// Places members one after the other: first those that every role needs, then the rest. A member with a
    /// reservation goes to the reserved node: all reservations were found to fit together.
    fn place(&mut self, wanted: &WantedMembers, turns: &[usize], room: &Room, now: Duration) -> GangPlan {
        let mut plan = GangPlan { complete: true, places: Vec::new(), lacking: None };
        let mut need = wanted.need.to_vec();
        let mut placed = vec![false; wanted.members.len()];
        let mut in_vain: BTreeSet<ClassId> = BTreeSet::new();
        let mut load = room.load(wanted, &self.view);
        for needed in [true, false] {
            for at in turns {
                let member = &wanted.members[*at];
                let open = need.get(member.role).copied().unwrap_or(0);
                if placed[*at] || needed && open == 0 || in_vain.contains(&member.class.id) {
                    continue;
                }
                self.freshen(&member.class, now);
                let kept = wanted.reserved.iter().find(|(_, uid)| *uid == member.uid);
                let kept = kept.filter(|(node, _)| self.may_take(&member.class, room, *node));
                let picked = match kept {
                    Some((node, _)) => {
                        room.loaded(*node, &mut load);
                        Some(*node)
                    }
                    None => self.pick(&member.class, room, &mut load),
                };
                let Some(node) = picked else {
                    in_vain.insert(member.class.id);
                    if plan.lacking.is_none() {
                        plan.lacking = self.lacking(&member.class, room);
                    }
                    continue;
                };
                self.suppose_placed(node, &member.class, &member.holding);
                placed[*at] = true;
                plan.places.push((*at, node));
                if let Some(need) = need.get_mut(member.role) {
                    *need = need.saturating_sub(1);
                }
            }
            if needed && need.iter().any(|need| *need > 0) {
                plan.complete = false;
                return plan;
            }
        }
        plan
    }

    pub(super) fn freshen(&mut self, class: &Arc<Class>, now: Duration) {
        if !self.cache.refresh(class.id, &self.view, &mut self.domains) {
            self.cache.list(class, &self.view, &mut self.domains, now, |_| {});
        }
    }

    /// Returns the best node for a class whose list is up to date.
    fn pick(&self, class: &Class, room: &Room, load: &mut [usize]) -> Option<NodeId> {
        let list = self.cache.peek(class.id)?;
        match room {
            Room::Anywhere => list.best(&self.domains),
            Room::Domain(nodes) => list.best_among(&self.domains, nodes),
            Room::Spread(_, domains) => {
                let mut emptiest: Vec<usize> = (0..load.len()).collect();
                emptiest.sort_by_key(|at| (load[*at], *at));
                let found = |at: usize| Some((at, list.best_among(&self.domains, &domains[at].1)?));
                let (at, node) = emptiest.into_iter().find_map(found)?;
                load[at] += 1;
                Some(node)
            }
        }
    }

    /// Returns whether this node is in the room and valid for a class whose list is up to date.
    fn may_take(&self, class: &Class, room: &Room, node: NodeId) -> bool {
        let there = match room {
            Room::Domain(nodes) => nodes.contains(&node),
            Room::Anywhere | Room::Spread(..) => true,
        };
        there && self.cache.peek(class.id).is_some_and(|list| list.admits(&self.domains, node))
    }

    fn lacking(&self, class: &Arc<Class>, room: &Room) -> Option<Lacking> {
        let list = self.cache.peek(class.id)?;
        let diagnosis = match room {
            Room::Domain(nodes) => list.diagnose_among(&self.domains, nodes),
            _ => list.diagnose(&self.domains),
        };
        Some(Lacking { class: class.clone(), diagnosis, domain: None })
    }
}

/// Nodes that members may use.
enum Room<'a> {
    Anywhere,
    Domain(&'a [NodeId]),
    /// All domains of the topology of this key, evenly.
    Spread(&'a Arc<str>, &'a Nodes),
}

impl Room<'_> {
    /// Counts a member that goes to this node.
    fn loaded(&self, node: NodeId, load: &mut [usize]) {
        if let Room::Spread(_, domains) = self
            && let Some(at) = domains.iter().position(|(_, nodes)| nodes.contains(&node))
        {
            load[at] += 1;
        }
    }

    /// Returns the number of placed members by domain. Empty unless members are to be spread.
    fn load(&self, wanted: &WantedMembers, view: &View) -> Vec<usize> {
        let Room::Spread(key, domains) = self else {
            return Vec::new();
        };
        let mut load = vec![0; domains.len()];
        for node in wanted.placed.iter().filter_map(|id| view.row(*id).node.as_ref()) {
            let value = node.labels.get(key);
            if let Some(at) = domains.iter().position(|(name, _)| Some(&**name) == value) {
                load[at] += 1;
            }
        }
        load
    }
}

/// Returns the largest share of the largest node that the pod requests; a device counts as a whole node.
fn size(usage: &Usage, most: &Amounts) -> f64 {
    let share = |wanted: i64, most: i64| wanted as f64 / most.max(1) as f64;
    let wanted = &usage.requests;
    let devices = usage.extended.iter().map(|(_, amount)| amount).fold(0, i64::saturating_add);
    let plain = share(wanted.cpu_milli, most.cpu_milli)
        .max(share(wanted.memory, most.memory))
        .max(share(wanted.ephemeral_storage, most.ephemeral_storage));
    plain + devices as f64
}

/// Returns how many such pods fit in the free resources of a node after pods holding `gone` are removed.
fn copies(usage: &Usage, row: &Row, gone: &Held) -> i64 {
    let (wanted, all, mut taken) = (&usage.requests, &row.allocatable, row.requested);
    taken.sub(&gone.amounts);
    let of = |wanted: i64, taken: i64, all: i64| match wanted {
        ..=0 => i64::MAX,
        _ => all.saturating_sub(taken).max(0) / wanted,
    };
    let plain = of(1, taken.pods, all.pods)
        .min(of(wanted.cpu_milli, taken.cpu_milli, all.cpu_milli))
        .min(of(wanted.memory, taken.memory, all.memory))
        .min(of(wanted.ephemeral_storage, taken.ephemeral_storage, all.ephemeral_storage));
    usage.extended.iter().fold(plain, |least, (name, wanted)| {
        let taken = row.extended_requested(name).saturating_sub(gone.extended.get(name));
        row.extended_allocatable(name).map_or(least, |all| least.min(of(wanted, taken, all)))
    })
}
