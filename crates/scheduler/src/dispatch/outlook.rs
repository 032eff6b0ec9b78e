//! Expected cache hits of a request, and the resulting processing time (Kamino, algorithm 2).

use std::time::Duration;

use crate::rules::CachedRule;

/// Expected cache hits of a request at an agent, and the resulting processing time. Of a gang: the hits of its first
/// class, and the time of all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub list: bool,
    /// A bit for each [`CachedRule`] whose rule object is expected in the cache.
    pub rules: u8,
    pub takes: Duration,
}

impl Expected {
    pub fn has(&self, rule: CachedRule) -> bool {
        self.rules & (1 << rule.index()) != 0
    }
}

/// Expected cache state for a request, at each agent.
pub(super) struct Outlook {
    /// Bit masks of agents, here and below.
    pub lists: u64,
    pub hit: Duration,
    pub miss: Duration,
    /// Of the common list, if the list is built: cost of a hit, cost of a miss, and the agents with a hit.
    pub common: (Duration, Duration, u64),
    /// For each rule that applies: cost of a hit, cost of a miss, and the agents with a hit.
    pub rules: [Option<(Duration, Duration, u64)>; CachedRule::COUNT],
    /// By agent: time for the other members of a gang. Empty: there are none.
    pub others: Box<[Duration]>,
}

impl Outlook {
    /// Evaluates Kamino's algorithm 2 for one agent.
    pub fn at(&self, agent: usize) -> Expected {
        let bit = 1u64 << agent;
        let others = self.others.get(agent).copied().unwrap_or_default();
        if self.lists & bit != 0 {
            return Expected { list: true, rules: 0, takes: self.hit + others };
        }
        let (hit, miss, agents) = self.common;
        let common = if agents & bit != 0 { hit } else { miss };
        let mut expected = Expected { list: false, rules: 0, takes: self.miss + common + others };
        for (at, rule) in self.rules.iter().enumerate() {
            if let Some((hit, miss, agents)) = rule {
                let has = agents & bit != 0;
                expected.takes += if has { *hit } else { *miss };
                expected.rules |= u8::from(has) << at;
            }
        }
        expected
    }
}
