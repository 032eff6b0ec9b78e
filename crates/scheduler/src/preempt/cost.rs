//! Cost of a dry run, to choose the cheapest (upstream: `pickOneNodeForPreemption`).

use std::cmp::Reverse;

use super::{Victims, started};

/// Fields in order of importance; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    violations: u32,
    /// Not in upstream, which does not handle groups here.
    groups: u32,
    /// Number of victims that do not borrow: pods that borrow are evicted in preference to them.
    unlent: usize,
    highest_priority: i32,
    sum_of_priorities: i64,
    pods: usize,
    /// Earliest start of the victims with the highest priority: the later, the less work is lost.
    earliest_start: Reverse<i64>,
}

/// Makes all priorities positive, so that fewer victims with negative priority are better than more.
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
