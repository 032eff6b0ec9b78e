//! Which dry run is taken (upstream: `pickOneNodeForPreemption`).

use std::cmp::Reverse;

use super::{Victims, started};

/// Fields in order of importance; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    violations: u32,
    /// Not upstream's, which knows no groups here.
    groups: u32,
    /// Those that have not borrowed are kept before those that have.
    unlent: usize,
    highest_priority: i32,
    sum_of_priorities: i64,
    pods: usize,
    /// When the first of the most important victims started: the later, the less is lost.
    earliest_start: Reverse<i64>,
}

/// Makes all priorities positive, so that fewer victims of a negative priority are better than more.
const OFFSET: i64 = i32::MAX as i64 + 1;

impl Victims {
    pub fn cost(&self) -> Cost {
        let priority = |at: usize| self.pods.get(at).map_or(i32::MIN, |pod| pod.holding.priority);
        let highest_priority = priority(0);
        let sum = self.pods.iter().map(|pod| i64::from(pod.holding.priority) + OFFSET);
        let most_important = self.pods.iter().filter(|pod| pod.holding.priority == highest_priority);
        Cost {
            violations: self.violations,
            groups: self.groups,
            unlent: self.unlent,
            highest_priority,
            sum_of_priorities: sum.fold(0, i64::saturating_add),
            pods: self.pods.len(),
            earliest_start: Reverse(most_important.map(|pod| started(pod)).min().unwrap_or(i64::MAX)),
        }
    }
}
