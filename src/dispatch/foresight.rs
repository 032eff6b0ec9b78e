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
    /// Lists that were left when one had to go for want of room; `None`: that has not happened yet.
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
        while let Forecast { by_use, capacity: Some(most) } = &self.forecasts[agent]
            && by_use.len() > *most
            && let Some((_, oldest)) = by_use.first_key_value()
        {
            self.gone(agent, *oldest);
        }
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

    /// The agent had to evict a list for want of room, and has so many left.
    pub fn filled(&mut self, agent: usize, left: usize) {
        self.forecasts[agent].capacity = Some(left.max(1));
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
        foresight.filled(ALONE, 3);
        assert!(foresight.is_full(ALONE) && !foresight.is_full(1));
        foresight.assigned(ALONE, ClassId(4));
        let held: Vec<_> = (1..=4).filter(|class| foresight.holders(ClassId(*class)) == 1).collect();
        assert_eq!(held, [1, 3, 4]);
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
