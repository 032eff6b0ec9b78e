//! The search for moves, on an agent's view that supposes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Round, Spot, share};
use super::site::{Freedom, Resident, Residents, held};
use super::{
    Advice, Case, Effort, Finding, MOST_DOMAINS, MOST_MOVES, MOST_NODES, MOST_PROOFS, MOST_SITES, Move,
    Obstacles, nodes_of,
};
use crate::agent::Agent;
use crate::class::{Class, ClassId};
use crate::gang::{Candidate, Plan, TopologyMode, Wanted};
use crate::inventory::NodeId;
use crate::model::{Amounts, Usage};
use crate::objects::Budgets;
use crate::rules::{insufficient_without, shortage};

/// Nodes whose pods are remembered for the next cases.
const MOST_REMEMBERED: usize = 4096;

/// Nodes on which two or more pods are tried, at most: those where least is missing.
const MOST_COMBINED: usize = 128;
/// Sets that are passed over since one of their pods is known to fit nowhere else, at most.
const MOST_SKIPPED: usize = 16 * MOST_PROOFS;

/// Where pods could leave to make room for one.
struct Field<'a> {
    /// Those where least is missing first.
    spots: Vec<Spot>,
    freedom: Freedom<'a>,
    /// Why other nodes are not among them.
    obstacles: Obstacles,
}

/// What was tried to make room for one pod.
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

/// Looks for moves, case by case. What the agent sees must not change meanwhile.
pub struct Repacker<'a> {
    agent: &'a mut Agent,
    residents: &'a mut dyn Residents,
    budgets: &'a Budgets,
    /// Whether there is time for more.
    go_on: &'a mut dyn FnMut() -> bool,
    sites: BTreeMap<NodeId, Arc<[Resident]>>,
    effort: Effort,
}

impl<'a> Repacker<'a> {
    pub fn new(
        agent: &'a mut Agent,
        residents: &'a mut dyn Residents,
        budgets: &'a Budgets,
        go_on: &'a mut dyn FnMut() -> bool,
    ) -> Self {
        Repacker { agent, residents, budgets, go_on, sites: BTreeMap::new(), effort: Effort::default() }
    }

    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// The fewest moves that were found to make room for what waits: for all that an allocation needs, for as many of single
    /// pods as possible.
    pub fn advise(&mut self, case: &Case) -> Finding {
        self.agent.suppose_nothing();
        if case.wanted.members.is_empty() {
            return Finding::Fits;
        }
        let mut wanted = case.wanted.clone();
        let fit = match case.is_gang() {
            true => {
                // It was scheduled once: whoever is missing is placed alone.
                if wanted.need.iter().all(|need| *need == 0)
                    && let Some(need) = wanted.need.get_mut(wanted.members[0].role)
                {
                    *need = 1;
                }
                if self.plan(&wanted, None).complete {
                    return Finding::Fits;
                }
                0
            }
            false => {
                wanted.need = [0].into();
                let fit = self.plan(&wanted, None).places.len();
                if fit == wanted.members.len() {
                    return Finding::Fits;
                }
                fit
            }
        };
        let mut best: Option<Advice> = None;
        let mut obstacles: Option<Obstacles> = None;
        for domain in self.domains(&wanted) {
            match self.advise_in(case, &wanted, domain.as_ref(), fit) {
                Ok(advice) if best.as_ref().is_none_or(|best| advice.moves.len() < best.moves.len()) => {
                    let least = advice.moves.len() == 1;
                    best = Some(advice);
                    if least {
                        break;
                    }
                }
                Ok(_) => {}
                Err(found) => drop(obstacles.get_or_insert(found)),
            }
        }
        self.agent.suppose_nothing();
        match best {
            Some(advice) => Finding::Moves(advice),
            None => Finding::Nothing(obstacles.unwrap_or_default()),
        }
    }

    fn plan(&mut self, wanted: &Wanted, domain: Option<&Arc<str>>) -> Plan {
        self.agent.plan_upon(wanted, domain, Duration::ZERO, |_| {})
    }

    /// The domains in which to look, each by itself, or all nodes together.
    fn domains(&mut self, wanted: &Wanted) -> Vec<Option<Arc<str>>> {
        match &wanted.topology {
            Some(topology) if topology.mode == TopologyMode::Required => {
                let mut domains = self.agent.roomiest(wanted, &topology.key, Duration::ZERO);
                self.effort.cut += usize::from(domains.len() > MOST_DOMAINS);
                domains.truncate(MOST_DOMAINS);
                domains.into_iter().map(Some).collect()
            }
            _ => vec![None],
        }
    }

    fn advise_in(
        &mut self,
        case: &Case,
        wanted: &Wanted,
        domain: Option<&Arc<str>>,
        fit: usize,
    ) -> Result<Advice, Obstacles> {
        self.agent.suppose_nothing();
        let goals: Vec<Wanted> = match case.is_gang() {
            true => vec![wanted.clone()],
            false => (fit + 1..=wanted.members.len())
                .map(|goal| Wanted { need: [goal as u32].into(), ..wanted.clone() })
                .collect(),
        };
        let mut moves = Vec::new();
        let mut reached: Option<(Advice, &Wanted)> = None;
        let mut why = Obstacles::default();
        for goal in &goals {
            match self.reach(goal, domain, &mut moves) {
                Ok(places) => reached = Some((Advice { moves: moves.clone(), places: places - fit }, goal)),
                Err(obstacles) => {
                    why = obstacles;
                    break;
                }
            }
        }
        let Some((mut advice, goal)) = reached else {
            return Err(why);
        };
        self.trim(&mut advice.moves, goal);
        match self.is_proved(&advice.moves, goal) {
            true => Ok(advice),
            false => Err(Obstacles { stuck: nodes_of(&advice.moves).len(), ..why }),
        }
    }

    /// Adds moves, which are supposed already, until all of `wanted` fits. Returns how many pods that are.
    fn reach(
        &mut self,
        wanted: &Wanted,
        domain: Option<&Arc<str>>,
        moves: &mut Vec<Move>,
    ) -> Result<usize, Obstacles> {
        loop {
            let plan = self.plan(wanted, domain);
            if plan.complete {
                return Ok(plan.places.len());
            }
            if nodes_of(moves).len() >= MOST_NODES || moves.len() >= MOST_MOVES {
                self.effort.cut += 1;
                return Err(Obstacles { too_much: true, ..Obstacles::default() });
            }
            let Some(member) = left_out(wanted, &plan) else {
                return Err(Obstacles::default());
            };
            let before = self.agent.supposed();
            self.suppose_placed(wanted, &plan);
            let field = self.field(member, wanted, domain, moves);
            let one = match wanted.members.len() {
                1 => None,
                _ => self.one_for_all(&field, (member, wanted, domain), &plan, before),
            };
            let opening = match one {
                Some(one) => Ok(vec![one]),
                None => self.opening(field, member),
            };
            self.agent.suppose_only(before);
            for step in opening? {
                self.suppose_move(&step);
                moves.push(step);
            }
        }
    }

    fn suppose_placed(&mut self, wanted: &Wanted, plan: &Plan) {
        for (at, node) in &plan.places {
            self.agent.suppose_there(*node, &wanted.members[*at].holding);
        }
    }

    fn suppose_move(&mut self, step: &Move) {
        self.agent.suppose_gone(step.from, &step.resident.holding);
        self.agent.suppose_there(step.to, &step.resident.holding);
    }

    /// The nodes where to look for pods that could make room for this one.
    fn field(
        &mut self,
        member: &Candidate,
        wanted: &Wanted,
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

    /// One move that makes room for all that lack a place, which need not be where they would be without it. The members that have
    /// places are supposed to be there, after the first `before` steps.
    fn one_for_all(
        &mut self,
        field: &Field,
        (member, wanted, domain): (&Candidate, &Wanted, Option<&Arc<str>>),
        plan: &Plan,
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

    /// The best other node for the pod, on the view as it is supposed to be.
    fn elsewhere(&mut self, resident: &Resident, class: &Arc<Class>, from: NodeId) -> Option<NodeId> {
        let before = self.agent.supposed();
        self.agent.suppose_gone(from, &resident.holding);
        let to = self.agent.best_but(class, from);
        self.agent.suppose_only(before);
        to
    }

    /// Moves off one node that make room there for this pod.
    fn opening(&mut self, field: Field, member: &Candidate) -> Result<Vec<Move>, Obstacles> {
        let Field { spots, freedom, mut obstacles } = field;
        let mut tries = Tries::default();
        let mut in_vain = BTreeSet::new();
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

    /// Nodes that could take the pod if others left, those where least is missing first.
    fn near(
        &mut self,
        member: &Candidate,
        wanted: &Wanted,
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
                // It has a place; somebody else of its kind is lacking one.
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

    /// The node, if enough would be free there without all pods that can be moved.
    fn spot(
        &mut self,
        member: &Candidate,
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

    /// Tries to move these pods; leaves the view as it was.
    fn attempt(
        &mut self,
        member: &Candidate,
        spot: &Spot,
        attempt: Attempt,
        freedom: &Freedom,
        in_vain: &mut BTreeSet<ClassId>,
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
            // Known to fit nowhere else: not worth a proof.
            if in_vain.contains(&class.id) {
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
                if moves.is_empty() && !class.looks_at_pods() {
                    in_vain.insert(class.id);
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

    /// As few of the movable pods as must go, the largest first: the smallest come back as long as there is room.
    fn needed(&mut self, member: &Candidate, spot: &Spot) -> Option<Vec<usize>> {
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

    /// Leaves out what is not needed, node by node.
    fn trim(&mut self, moves: &mut Vec<Move>, wanted: &Wanted) {
        let nodes = nodes_of(moves);
        if nodes.len() < 2 {
            return;
        }
        for node in nodes {
            let fewer: Vec<_> = moves.iter().filter(|step| step.from != node).cloned().collect();
            if !fewer.is_empty() && self.is_proved(&fewer, wanted) {
                *moves = fewer;
            }
        }
    }

    /// Whether each move can be made after those before it, and all of `wanted` fits then.
    fn is_proved(&mut self, moves: &[Move], wanted: &Wanted) -> bool {
        self.agent.suppose_nothing();
        let made = moves.iter().all(|step| {
            self.agent.suppose_gone(step.from, &step.resident.holding);
            let admits = self.agent.admits_now(&step.class, step.to);
            self.agent.suppose_there(step.to, &step.resident.holding);
            admits
        });
        let proved = made && self.plan(wanted, None).complete;
        self.agent.suppose_nothing();
        proved
    }
}

/// The first member of the class that found no place.
fn left_out<'a>(wanted: &'a Wanted, plan: &Plan) -> Option<&'a Candidate> {
    let placed: BTreeSet<usize> = plan.places.iter().map(|(at, _)| *at).collect();
    let class = plan.lacking.as_ref().map(|lacking| lacking.class.id);
    let mut left = wanted.members.iter().enumerate().filter(|(at, _)| !placed.contains(at));
    left.find(|(_, member)| class.is_none_or(|class| member.class.id == class)).map(|(_, member)| member)
}

/// What so many pods request together.
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
