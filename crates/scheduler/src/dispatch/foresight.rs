//! What each agent's top level will hold once it has served all that waits for it, evictions included.
//!
//! Kamino's augmented cache takes it that nothing is evicted, which is right while caches are large; where they thrash it
//! sends requests after lists that will be gone. Which list goes is no secret: the least recently used one. So the
//! dispatcher keeps each agent's lists in the order of use as it assigns requests.

use std::collections::{BTreeMap, HashMap};

use crate::class::ClassId;

/// See the module. As large as the caches and the queues are.
#[derive(Debug)]
pub(super) struct Foresight {
    forecasts: Box<[Forecast]>,
    holders: HashMap<ClassId, Holders>,
    /// Requests assigned so far.
    uses: u64,
}

/// One agent's lists, by their last use.
#[derive(Debug, Default)]
struct Forecast {
    by_use: BTreeMap<u64, ClassId>,
    /// The most lists there is room for: as many as were left when one had to go, or as it has had since; `None`: none
    /// had to go yet.
    capacity: Option<usize>,
}

#[derive(Debug)]
struct Holders {
    /// A bit an agent.
    agents: u64,
    /// By agent that has the bit: its last use there.
    used: Box<[u64]>,
}

impl Foresight {
    pub fn new(agents: usize) -> Self {
        let forecasts = (0..agents).map(|_| Forecast::default()).collect();
        Foresight { forecasts, holders: HashMap::new(), uses: 0 }
    }

    /// A bit for each agent that will have the list.
    pub fn holders(&self, class: ClassId) -> u64 {
        self.holders.get(&class).map_or(0, |holders| holders.agents)
    }

    /// A bit for each agent that will have to evict something for another list.
    pub fn full_agents(&self) -> u64 {
        (0..self.forecasts.len()).fold(0, |bits, agent| bits | u64::from(self.is_full(agent)) << agent)
    }

    /// Whether the agent will have to evict something for another list.
    pub fn is_full(&self, agent: usize) -> bool {
        let Forecast { by_use, capacity } = &self.forecasts[agent];
        capacity.is_some_and(|most| by_use.len() >= most)
    }

    /// A request of this class was given to the agent.
    pub fn assigned(&mut self, agent: usize, class: ClassId) {
        self.uses += 1;
        let agents = self.forecasts.len();
        let holders = self
            .holders
            .entry(class)
            .or_insert_with(|| Holders { agents: 0, used: vec![0; agents].into_boxed_slice() });
        let forecast = &mut self.forecasts[agent];
        if holders.agents & (1 << agent) != 0 {
            forecast.by_use.remove(&holders.used[agent]);
        }
        holders.agents |= 1 << agent;
        holders.used[agent] = self.uses;
        forecast.by_use.insert(self.uses, class);
        self.trim(agent);
    }

    /// The agent will not have this list.
    pub fn gone(&mut self, agent: usize, class: ClassId) {
        let Some(holders) = self.holders.get_mut(&class) else {
            return;
        };
        if holders.agents & (1 << agent) != 0 {
            self.forecasts[agent].by_use.remove(&holders.used[agent]);
            holders.agents &= !(1 << agent);
            if holders.agents == 0 {
                self.holders.remove(&class);
            }
        }
    }

    /// The agent has so many lists now, and evicted one for want of room, or did not.
    pub fn counted(&mut self, agent: usize, lists: usize, evicted: bool) {
        let capacity = &mut self.forecasts[agent].capacity;
        *capacity = match evicted {
            true => Some(lists.max(1)),
            // There is room for more than there was: lists shrink with the cluster.
            false => capacity.map(|most| most.max(lists)),
        };
        self.trim(agent);
    }

    /// What there will be no room for goes, oldest use first.
    fn trim(&mut self, agent: usize) {
        while let Forecast { by_use, capacity: Some(most) } = &self.forecasts[agent]
            && by_use.len() > *most
            && let Some((_, oldest)) = by_use.first_key_value()
        {
            self.gone(agent, *oldest);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.forecasts.iter().all(|forecast| forecast.by_use.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: usize = 0;

    #[test]
    fn the_list_used_longest_ago_is_foreseen_to_go_when_there_is_no_room() {
        let mut foresight = Foresight::new(2);
        for class in [1, 2, 3, 1] {
            foresight.assigned(ALONE, ClassId(class));
        }
        assert!(!foresight.is_full(ALONE), "nothing was evicted yet");
        foresight.counted(ALONE, 3, true);
        assert!(foresight.is_full(ALONE) && !foresight.is_full(1));
        foresight.assigned(ALONE, ClassId(4));
        let held: Vec<_> = (1..=4).filter(|class| foresight.holders(ClassId(*class)) == 1).collect();
        assert_eq!(held, [1, 3, 4]);
    }

    #[test]
    fn an_agent_that_has_more_lists_than_it_had_room_for_has_more_room_now() {
        let mut foresight = Foresight::new(1);
        foresight.assigned(ALONE, ClassId(1));
        foresight.counted(ALONE, 1, true);
        assert!(foresight.is_full(ALONE));
        foresight.counted(ALONE, 2, false);
        foresight.assigned(ALONE, ClassId(2));
        assert_eq!((foresight.holders(ClassId(1)), foresight.holders(ClassId(2))), (1, 1));
        assert_eq!(foresight.full_agents(), 1);
    }

    #[test]
    fn what_is_gone_everywhere_is_forgotten() {
        let mut foresight = Foresight::new(2);
        foresight.assigned(0, ClassId(1));
        foresight.assigned(1, ClassId(1));
        assert_eq!(foresight.holders(ClassId(1)), 0b11);
        foresight.gone(0, ClassId(1));
        foresight.gone(0, ClassId(1));
        assert_eq!(foresight.holders(ClassId(1)), 0b10);
        foresight.gone(1, ClassId(1));
        assert!(foresight.is_empty());
    }
}
