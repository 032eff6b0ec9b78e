//! Self-check: invariants, and comparison with lists of the API server. These calls hold the lock longest; they run minutes apart.

use super::{Engine, Operation};
use crate::invariants::Violation;
use crate::inventory::Discrepancy;
use crate::scheduler::StateDifference;
use berth_model::{Node, Pod};

impl Engine {
    /// Returns violated invariants. Changes nothing. Bounded by the number of waiting pods.
    pub fn check_invariants(&self) -> Vec<Violation> {
        self.with(Operation::SelfCheck, |scheduler, _| scheduler.check())
    }

    /// Recounts the resource sums of all nodes, corrects them and returns the wrong ones. Bounded by the number of pods and nodes.
    pub fn heal(&self) -> Vec<Discrepancy> {
        self.with(Operation::SelfCheck, |scheduler, _| scheduler.heal())
    }

    /// Compares with complete lists of live pods and nodes; sorted. Changes nothing. Bounded by the number of pods and nodes.
    pub fn differences(&self, pods: &[Pod], nodes: &[Node]) -> Vec<StateDifference> {
        self.with(Operation::SelfCheck, |scheduler, _| scheduler.differences(pods, nodes))
    }

    /// Takes over the listed objects for these differences and returns the number of repairs. Bounded by the number of pods and nodes.
    pub fn mend(&self, differences: &[StateDifference], pods: &[Pod], nodes: &[Node]) -> usize {
        self.with(Operation::SelfCheck, |scheduler, now| scheduler.mend(differences, pods, nodes, now))
    }
}
