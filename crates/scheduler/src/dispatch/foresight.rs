//! Prediction of each agent's cached lists once it has served all its waiting requests, evictions included.
//!
//! Kamino's augmented cache assumes that nothing is evicted. This is right while caches are large; where they thrash,
//! it sends requests to lists that will be evicted first. Caches are LRU, so evictions are predictable: the dispatcher
//! keeps each agent's lists in the order of use as it assigns requests.

use std::collections::{BTreeMap, HashMap};

use crate::class::ClassId;

/// Predicted lists of all agents. Its size is bounded by the caches and the queues.
#[derive(Debug)]
pub(super) struct Foresight {
    forecasts: Box<[Forecast]>,
    holders: HashMap<ClassId, Holders>,
    /// Number of requests assigned.
    uses: u64,
}

/// Lists of one agent, by last use.
#[derive(Debug, Default)]
struct Forecast {
    by_use: BTreeMap<u64, ClassId>,
    /// Maximum number of lists: the number left at the last eviction, or a larger number it has held since; `None`: no
    /// eviction yet.
    capacity: Option<usize>,
}

#[derive(Debug)]
struct Holders {
    /// Bit mask of agents.
    agents: u64,
    /// Last use at each agent that has the bit.
    used: Box<[u64]>,
}

impl Foresight {
    pub fn new(agents: usize) -> Self {
        let forecasts = (0..agents).map(|_| Forecast::default()).collect();
        Foresight { forecasts, holders: HashMap::new(), uses: 0 }
    }

    /// Returns a bit mask of the agents that will have the list.
    pub fn holders(&self, class: ClassId) -> u64 {
        self.holders.get(&class).map_or(0, |holders| holders.agents)
    }

    /// Returns a bit mask of the agents that must evict a list before they can add one.
    pub fn full_agents(&self) -> u64 {
        (0..self.forecasts.len()).fold(0, |bits, agent| bits | u64::from(self.is_full(agent)) << agent)
    }

    /// Returns whether the agent must evict a list before it can add one.
    pub fn is_full(&self, agent: usize) -> bool {
        let Forecast { by_use, capacity } = &self.forecasts[agent];
        capacity.is_some_and(|most| by_use.len() >= most)
    }

    /// Records that a request of this class was assigned to the agent.
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

    /// Records that the agent will not have this list.
    pub fn expect_removal(&mut self, agent: usize, class: ClassId) {
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

    /// Updates the agent's capacity from its number of lists and whether it evicted one because memory was full.
    pub fn counted(&mut self, agent: usize, lists: usize, evicted: bool) {
        let capacity = &mut self.forecasts[agent].capacity;
        *capacity = match evicted {
            true => Some(lists.max(1)),
            // The capacity has grown: lists shrink with the cluster.
            false => capacity.map(|most| most.max(lists)),
        };
        self.trim(agent);
    }

    /// Removes the lists beyond the capacity, least recently used first.
    fn trim(&mut self, agent: usize) {
        while let Forecast { by_use, capacity: Some(most) } = &self.forecasts[agent]
            && by_use.len() > *most
            && let Some((_, oldest)) = by_use.first_key_value()
        {
            self.expect_removal(agent, *oldest);
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
        assert!(!foresight.is_full(ALONE), "no list was evicted yet");
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
        foresight.expect_removal(0, ClassId(1));
        foresight.expect_removal(0, ClassId(1));
        assert_eq!(foresight.holders(ClassId(1)), 0b10);
        foresight.expect_removal(1, ClassId(1));
        assert!(foresight.is_empty());
    }
}
