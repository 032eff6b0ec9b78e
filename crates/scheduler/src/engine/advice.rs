//! Input of fragmentation advice, and its result.
//!
//! A pass takes seconds and holds the lock for its input, then for one node or one pod at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, Operation};
use crate::agent::Agent;
use crate::class::Class;
use crate::gang::AllocationName;
use crate::inventory::{NodeId, Revision};
use crate::objects::Budgets;
use crate::recording::Input;
use crate::repack::{Case, Resident, Residents};

/// What a pass begins with.
pub struct AdviceInput {
    /// Waiting classes and allocations that did not fit, the first first.
    pub cases: Vec<Case>,
    /// Number of those that are left out.
    pub more: usize,
    pub budgets: Budgets,
}

impl Engine {
    /// Returns at most `most` cases, and copies the rows to `agent` if there are any; `None` unless this process leads and is synced.
    /// Changes only the agent. Bounded by the parked classes and allocations, `most`, the disruption budgets and the changed rows.
    pub fn advice_input(&self, agent: &mut Agent, most: usize) -> Option<AdviceInput> {
        if self.read(Operation::Advice, |scheduler, _| {
            scheduler.leading() && scheduler.synced() && !scheduler.stuck(1).0.is_empty()
        }) {
            self.approach(Operation::Advice, agent);
        }
        self.read(Operation::Advice, |scheduler, _| {
            if !scheduler.leading() || !scheduler.synced() {
                return None;
            }
            let (cases, more) = scheduler.stuck(most);
            if !cases.is_empty() {
                agent.catch_up(scheduler.inventory());
            }
            Some(AdviceInput { cases, more, budgets: scheduler.budgets().clone() })
        })
    }

    /// Replaces the advice that the statuses of allocations show, unless leadership was lost. Bounded by the advised allocations.
    pub fn advise(&self, help: BTreeMap<AllocationName, Arc<str>>) {
        let heard = self.heard(|| Input::Advise(help.clone().into_iter().collect()));
        self.hear(Operation::Advice, heard, |scheduler, _| {
            if scheduler.leading() {
                scheduler.advise(help);
            }
        });
    }

    /// Removes the advice from the statuses of all allocations, leading or not. Bounded by the advised allocations.
    pub fn withdraw_advice(&self) {
        let heard = self.heard(|| Input::WithdrawAdvice);
        self.hear(Operation::Advice, heard, |scheduler, _| scheduler.advise(BTreeMap::new()));
    }

    /// Returns the name that a node id has now. Constant time.
    pub fn node_name(&self, node: NodeId) -> Arc<str> {
        self.read(Operation::Advice, |scheduler, _| scheduler.inventory().name(node).clone())
    }
}

/// Reads the live pods. Changes only the classifier; bounded by the pods of one node, or by one pod.
impl Residents for Engine {
    fn on(&mut self, node: NodeId, revision: Revision) -> Option<Vec<Resident>> {
        self.read(Operation::Advice, |scheduler, _| scheduler.residents(node, revision))
    }

    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>> {
        let heard = self.heard(|| Input::ClassOfResident(uid.into()));
        self.hear(Operation::Advice, heard, |scheduler, _| scheduler.class_of_resident(uid))
    }
}
