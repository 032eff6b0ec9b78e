//! Search on one node for pods to move away, to make room for one waiting pod or for all unplaced ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attempt::{Attempt, Round, Spot, share};
use super::search::Repacker;
use super::site::{Freedom, Resident, held};
use super::{MOST_MOVES, MOST_PROOFS, MOST_SITES, Move, Obstacles};
use crate::class::{Class, ClassId};
use crate::gang::{GangPlan, UnboundMember, WantedMembers};
use crate::inventory::NodeId;
use crate::rules::{insufficient_without, shortage};
use berth_model::{Amounts, Usage};

/// Maximum number of nodes whose pods are cached for the next cases.
const MOST_REMEMBERED: usize = 4096;

/// Maximum number of nodes on which two or more pods are tried: those with the least missing.
const MOST_COMBINED: usize = 128;
/// Maximum number of sets that are skipped because one of their pods is known to fit no other node.
const MOST_SKIPPED: usize = 16 * MOST_PROOFS;

/// Candidate nodes where moving pods could make room for one pod.
pub(super) struct Field<'a> {
    /// Nodes with the least missing first.
    spots: Vec<Spot>,
    freedom: Freedom<'a>,
    /// Reasons why other nodes are excluded.
    obstacles: Obstacles,
}

/// Record of the attempts to make room for one pod.
#[derive(Default)]
struct Tries {
    proofs: usize,
    skipped: usize,
}

impl Tries {
    fn are_over(&self) -> bool {
        self.proofs >= MOST_PROOFS || self.skipped >= MOST_SKIPPED
    }
}

impl<'a> Repacker<'a> {
    /// Returns the nodes where moving pods could make room for this one.
    pub(super) fn field(
        &mut self,
        member: &UnboundMember,
        wanted: &WantedMembers,
        domain: Option<&Arc<str>>,
        moves: &[Move],
    ) -> Field<'a> {
        let (near, mut obstacles) = self.near(member, wanted, domain);
        let freedom = Freedom::new(self.budgets, moves);
        let mut spots = Vec::new();
        for (at, node) in near.iter().enumerate() {
            if at >= MOST_SITES || !(self.go_on)() {
                self.effort.cut += 1;
                obstacles.untried += near.len() - at;
                break;
            }
            spots.extend(self.spot(member, *node, &freedom, &mut obstacles));
        }
        Field { spots, freedom, obstacles }
    }

    /// Returns one move that makes room for all unplaced members; they may be placed differently than without it. The
    /// placed members are assumed to be on their nodes, after the first `before` steps.
    pub(super) fn one_for_all(
        &mut self,
        field: &Field,
        (member, wanted, domain): (&UnboundMember, &WantedMembers, Option<&Arc<str>>),
        plan: &GangPlan,
        before: usize,
    ) -> Option<Move> {
        let need: u64 = wanted.need.iter().map(|need| u64::from(*need)).sum();
        let lacking = need.saturating_sub(plan.places.len() as u64).max(1);
        let alike = wanted.members.iter().all(|other| other.class.id == member.class.id);
        let usage = times(&member.holding.usage, if alike { lacking as i64 } else { 1 });
        let spots = field.spots.iter().enumerate();
        let attempts = spots.flat_map(|(at, spot)| spot.attempts(at, Round::One, &usage, &field.freedom));
        let mut attempts: Vec<_> = attempts.collect();
        attempts.sort_unstable();
        for attempt in attempts.into_iter().take(MOST_PROOFS) {
            if !(self.go_on)() {
                return None;
            }
            let resident = &field.spots[attempt.spot].residents[attempt.set[0]];
            let class = self.residents.class_of(&resident.pod.uid)?;
            self.effort.proofs += 1;
            let beside = self.elsewhere(resident, &class, attempt.node);
            self.agent.suppose_only(before);
            let anywhere = self.elsewhere(resident, &class, attempt.node);
            let places = [beside, anywhere.filter(|to| Some(*to) != beside)];
            for to in places.into_iter().flatten() {
                let step = Move { resident: resident.clone(), class: class.clone(), from: attempt.node, to };
                self.suppose_move(&step);
                let complete = self.plan(wanted, domain).complete;
                self.agent.suppose_only(before);
                if complete {
                    return Some(step);
                }
            }
            self.suppose_placed(wanted, plan);
        }
        None
    }

    /// Returns the best other node for the pod, on the view with its assumptions.
    fn elsewhere(&mut self, resident: &Resident, class: &Arc<Class>, from: NodeId) -> Option<NodeId> {
        let before = self.agent.supposed();
        self.agent.suppose_gone(from, &resident.holding);
        let to = self.agent.best_but(class, from);
        self.agent.suppose_only(before);
        to
    }

    /// Returns moves off one node that make room there for this pod.
    pub(super) fn opening(&mut self, field: Field, member: &UnboundMember) -> Result<Vec<Move>, Obstacles> {
        let Field { spots, freedom, mut obstacles } = field;
        let mut tries = Tries::default();
        let mut in_vain = BTreeMap::new();
        for round in Round::ALL {
            let usage = &member.holding.usage;
            let few = if round == Round::One { spots.len() } else { MOST_COMBINED };
            let spots_now = spots.iter().enumerate().take(few);
            let attempts = spots_now.flat_map(|(at, spot)| spot.attempts(at, round, usage, &freedom));
            let mut attempts: Vec<_> = attempts.collect();
            attempts.sort_unstable();
            for attempt in attempts {
                if tries.are_over() || !(self.go_on)() {
                    self.effort.cut += 1;
                    obstacles.untried += spots.len();
                    return Err(obstacles);
                }
                let spot = &spots[attempt.spot];
                if let Some(found) = self.attempt(member, spot, attempt, &freedom, &mut in_vain, &mut tries) {
                    return Ok(found);
                }
            }
        }
        obstacles.stuck += spots.len();
        Err(obstacles)
    }

    /// Returns the nodes that could take the pod if other pods left, those with the least missing first.
    fn near(
        &mut self,
        member: &UnboundMember,
        wanted: &WantedMembers,
        domain: Option<&Arc<str>>,
    ) -> (Vec<NodeId>, Obstacles) {
        let mut obstacles = Obstacles::default();
        let mut near = Vec::new();
        let key = wanted.topology.as_ref().map(|topology| &topology.key);
        for (node, standing) in self.agent.standings_now(&member.class) {
            let row = self.agent.view().row(node);
            let of = key.and_then(|key| row.node.as_ref()?.labels.get(key));
            if domain.is_some_and(|domain| of != Some(&**domain)) {
                continue;
            }
            match standing {
                Err(reasons) if reasons.resolvable_by_eviction() => {
                    near.push((shortage(&member.holding.usage, row), node));
                }
                Err(_) => obstacles.unsuited += 1,
                // This pod has a place; another pod of its class has none.
                Ok(_) => {}
            }
        }
        near.sort_unstable();
        (near.into_iter().map(|(_, node)| node).collect(), obstacles)
    }

    fn site(&mut self, node: NodeId) -> Arc<[Resident]> {
        if let Some(site) = self.sites.get(&node) {
            return site.clone();
        }
        if self.sites.len() >= MOST_REMEMBERED {
            self.sites.clear();
        }
        let revision = self.agent.view().row(node).revision;
        let site: Arc<[Resident]> = self.residents.on(node, revision).unwrap_or_default().into();
        self.sites.insert(node, site.clone());
        site
    }

    /// Returns the node if it would have enough room without all movable pods.
    fn spot(
        &mut self,
        member: &UnboundMember,
        node: NodeId,
        freedom: &Freedom,
        obstacles: &mut Obstacles,
    ) -> Option<Spot> {
        let residents = self.site(node);
        let row = self.agent.view().row(node);
        let row = row.with_reservations(member.class.priority).unwrap_or_else(|| row.clone());
        let mut movable = Vec::new();
        let mut fixed = Vec::new();
        for (at, resident) in residents.iter().enumerate() {
            if freedom.has_moved(&resident.pod.uid) {
                continue;
            }
            match freedom.refuses(resident) {
                Some(why) => fixed.push(why),
                None => movable.push(at),
            }
        }
        let gone = held(movable.iter().map(|at| &residents[*at]));
        if movable.is_empty() || insufficient_without(&member.holding.usage, &row, &gone).is_some() {
            obstacles.too_few += 1;
            fixed.into_iter().for_each(|why| *obstacles.fixed.entry(why).or_default() += 1);
            return None;
        }
        movable.sort_by_key(|at| (share(&residents[*at].holding.usage, &row), *at));
        Some(Spot { node, row, residents, movable })
    }

    /// Tries to move these pods; restores the view.
    fn attempt(
        &mut self,
        member: &UnboundMember,
        spot: &Spot,
        attempt: Attempt,
        freedom: &Freedom,
        in_vain: &mut BTreeMap<ClassId, NodeId>,
        tries: &mut Tries,
    ) -> Option<Vec<Move>> {
        let before = self.agent.supposed();
        let set = match attempt.set.is_empty() {
            true => {
                tries.proofs += 1;
                self.effort.proofs += 1;
                let set = self.needed(member, spot);
                self.agent.suppose_only(before);
                set.filter(|set| {
                    freedom.allows(&set.iter().map(|at| &spot.residents[*at]).collect::<Vec<_>>())
                })?
            }
            false => attempt.set,
        };
        let mut classes = Vec::with_capacity(set.len());
        for at in &set {
            let class = self.residents.class_of(&spot.residents[*at].pod.uid)?;
            // Known to fit nowhere, except perhaps on a node of this class that was tried: not worth a proof.
            let tried = in_vain.get(&class.id).copied();
            if tried.is_some_and(|node| node == spot.node || !self.agent.admits_now(&class, node)) {
                tries.skipped += 1;
                return None;
            }
            classes.push(class);
        }
        tries.proofs += 1;
        self.effort.proofs += 1;
        let mut moves: Vec<Move> = Vec::with_capacity(set.len());
        for (at, class) in set.iter().zip(classes) {
            let resident = &spot.residents[*at];
            self.agent.suppose_gone(spot.node, &resident.holding);
            let Some(to) = self.agent.best_but(&class, spot.node) else {
                if moves.is_empty() && !class.is_excluded_by_pods() {
                    in_vain.insert(class.id, spot.node);
                }
                break;
            };
            self.agent.suppose_there(to, &resident.holding);
            moves.push(Move { resident: resident.clone(), class, from: spot.node, to });
        }
        let opened = moves.len() == set.len() && self.agent.admits_now(&member.class, spot.node);
        self.agent.suppose_only(before);
        opened.then_some(moves)
    }

    /// Returns the smallest set of movable pods that must leave. It starts from all and puts the smallest back while
    /// there is room.
    fn needed(&mut self, member: &UnboundMember, spot: &Spot) -> Option<Vec<usize>> {
        for at in &spot.movable {
            self.agent.suppose_gone(spot.node, &spot.residents[*at].holding);
        }
        if !self.agent.admits_now(&member.class, spot.node) {
            return None;
        }
        let mut needed = Vec::new();
        for at in &spot.movable {
            let before = self.agent.supposed();
            self.agent.suppose_there(spot.node, &spot.residents[*at].holding);
            if !self.agent.admits_now(&member.class, spot.node) {
                self.agent.suppose_only(before);
                needed.push(*at);
            }
        }
        needed.reverse();
        (!needed.is_empty() && needed.len() <= MOST_MOVES).then_some(needed)
    }
}

/// Returns the total requests of `pods` pods.
fn times(usage: &Usage, pods: i64) -> Usage {
    let of = |amount: i64| amount.saturating_mul(pods);
    let Amounts { cpu_milli, memory, ephemeral_storage, pods: one } = usage.requests;
    Usage {
        requests: Amounts {
            cpu_milli: of(cpu_milli),
            memory: of(memory),
            ephemeral_storage: of(ephemeral_storage),
            pods: one,
        },
        extended: usage.extended.iter().map(|(name, amount)| (name.clone(), of(amount))).collect(),
        ..usage.clone()
    }
}
