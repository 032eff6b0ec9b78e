//! Search for moves, on an agent's view that assumes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::site::{Resident, Residents};
use super::{Advice, Case, Effort, Finding, MOST_DOMAINS, MOST_MOVES, MOST_NODES, Move, Obstacles, nodes_of};
use crate::agent::Agent;
use crate::gang::{GangPlan, GangTopologyMode, UnboundMember, WantedMembers};
use crate::inventory::NodeId;
use crate::objects::Budgets;

/// Searches for moves, case by case. The agent's input must not change during the search.
pub struct Repacker<'a> {
    pub(super) agent: &'a mut Agent,
    pub(super) residents: &'a mut dyn Residents,
    pub(super) budgets: &'a Budgets,
    /// Returns whether there is time to continue.
    pub(super) go_on: &'a mut dyn FnMut() -> bool,
    pub(super) sites: BTreeMap<NodeId, Arc<[Resident]>>,
    pub(super) effort: Effort,
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

    /// Returns the fewest moves found that make room for the waiting pods: for all that a gang needs, or for as many
    /// single pods as possible.
    pub fn advise(&mut self, case: &Case) -> Finding {
        self.agent.suppose_nothing();
        if case.wanted.members.is_empty() {
            return Finding::Fits;
        }
        let mut wanted = case.wanted.clone();
        let fit = match case.is_gang() {
            true => {
                // The gang was scheduled before: its missing members are placed individually.
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

    pub(super) fn plan(&mut self, wanted: &WantedMembers, domain: Option<&Arc<str>>) -> GangPlan {
        self.agent.plan_upon(wanted, domain, Duration::ZERO, |_| {})
    }

    /// Returns the domains to search, each separately, or all nodes together.
    fn domains(&mut self, wanted: &WantedMembers) -> Vec<Option<Arc<str>>> {
        match &wanted.topology {
            Some(topology) if topology.mode == GangTopologyMode::Required => {
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
        wanted: &WantedMembers,
        domain: Option<&Arc<str>>,
        fit: usize,
    ) -> Result<Advice, Obstacles> {
        self.agent.suppose_nothing();
        let goals: Vec<WantedMembers> = match case.is_gang() {
            true => vec![wanted.clone()],
            false => (fit + 1..=wanted.members.len())
                .map(|goal| WantedMembers { need: [goal as u32].into(), ..wanted.clone() })
                .collect(),
        };
        let mut moves = Vec::new();
        let mut reached: Option<(Advice, &WantedMembers)> = None;
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

    /// Adds moves, already assumed on the view, until all of `wanted` fits. Returns the number of pods that fit.
    fn reach(
        &mut self,
        wanted: &WantedMembers,
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

    pub(super) fn suppose_placed(&mut self, wanted: &WantedMembers, plan: &GangPlan) {
        for (at, node) in &plan.places {
            self.agent.suppose_there(*node, &wanted.members[*at].holding);
        }
    }

    pub(super) fn suppose_move(&mut self, step: &Move) {
        self.agent.suppose_gone(step.from, &step.resident.holding);
        self.agent.suppose_there(step.to, &step.resident.holding);
    }

    /// Removes unnecessary moves, node by node.
    fn trim(&mut self, moves: &mut Vec<Move>, wanted: &WantedMembers) {
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

    /// Returns whether each move is possible after those before it, and all of `wanted` then fits.
    fn is_proved(&mut self, moves: &[Move], wanted: &WantedMembers) -> bool {
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

/// Returns the first member of the class that found no place.
fn left_out<'a>(wanted: &'a WantedMembers, plan: &GangPlan) -> Option<&'a UnboundMember> {
    let placed: BTreeSet<usize> = plan.places.iter().map(|(at, _)| *at).collect();
    let class = plan.lacking.as_ref().map(|lacking| lacking.class.id);
    let mut left = wanted.members.iter().enumerate().filter(|(at, _)| !placed.contains(at));
    left.find(|(_, member)| class.is_none_or(|class| member.class.id == class)).map(|(_, member)| member)
}
