//! One node as agents see it: what it is, and what is taken of it.

use std::sync::Arc;

use super::Revision;
use crate::model::{Amounts, Extended, HostPort, Node, Usage};

/// A row is cheap to copy: numbers, and shared pointers to what seldom changes.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// The latest change of anything in this row.
    pub revision: Revision,
    /// The latest change of `node`: label, taint, allocatable…
    pub node_revision: Revision,
    /// `None`: there is no such node (yet, or any more), though pods may still be bound to its name.
    pub node: Option<Arc<Node>>,
    /// As in `node`, here so that rules which only count need not follow the pointer.
    pub allocatable: Amounts,
    pub unschedulable: bool,
    /// What bound and assumed pods request.
    pub requested: Amounts,
    pub nonzero_cpu_milli: i64,
    pub nonzero_memory: i64,
    /// `None`: nothing taken.
    pub extended: Option<Arc<Extended>>,
    /// Ports taken; `None`: none. A port stands once for every pod that has it.
    pub ports: Option<Arc<Vec<HostPort>>>,
}

impl Row {
    /// Sets what the node is.
    pub(crate) fn set_node(&mut self, node: Option<Arc<Node>>) {
        self.allocatable = node.as_ref().map(|n| n.allocatable).unwrap_or_default();
        self.unschedulable = node.as_ref().is_some_and(|n| n.unschedulable);
        self.node = node;
    }

    /// Accounts for one more pod.
    pub(crate) fn charge(&mut self, usage: &Usage) {
        self.requested.add(&usage.requests);
        self.nonzero_cpu_milli = self.nonzero_cpu_milli.saturating_add(usage.nonzero_cpu_milli);
        self.nonzero_memory = self.nonzero_memory.saturating_add(usage.nonzero_memory);
        self.add_extended(usage, 1);
        if !usage.ports.is_empty() {
            Arc::make_mut(self.ports.get_or_insert_default()).extend(usage.ports.iter().cloned());
        }
    }

    /// Takes back what [`Row::charge`] did.
    pub(super) fn discharge(&mut self, usage: &Usage) {
        self.requested.sub(&usage.requests);
        self.nonzero_cpu_milli = self.nonzero_cpu_milli.saturating_sub(usage.nonzero_cpu_milli);
        self.nonzero_memory = self.nonzero_memory.saturating_sub(usage.nonzero_memory);
        self.add_extended(usage, -1);
        if let Some(ports) = &mut self.ports {
            let taken = Arc::make_mut(ports);
            for port in usage.ports.iter() {
                if let Some(at) = taken.iter().position(|p| p == port) {
                    taken.swap_remove(at);
                }
            }
            if taken.is_empty() {
                self.ports = None;
            }
        }
    }

    /// A sum has reached the end of the numbers: it does not tell any more what it was before the last pods came, so
    /// they cannot be taken back from it.
    pub(super) fn is_saturated(&self) -> bool {
        let requested = &self.requested;
        let sums = [
            requested.cpu_milli,
            requested.memory,
            requested.ephemeral_storage,
            self.nonzero_cpu_milli,
            self.nonzero_memory,
        ];
        let mut extended = self.extended.iter().flat_map(|extended| extended.iter());
        sums.contains(&i64::MAX) || extended.any(|(_, sum)| sum == i64::MAX)
    }

    fn add_extended(&mut self, usage: &Usage, sign: i64) {
        if usage.extended.is_empty() {
            return;
        }
        let taken = Arc::make_mut(self.extended.get_or_insert_default());
        for (name, amount) in usage.extended.iter() {
            taken.add(name, amount.saturating_mul(sign));
        }
        if taken.is_empty() {
            self.extended = None;
        }
    }

    /// How much of the extended resource `name` is taken.
    pub fn extended_requested(&self, name: &str) -> i64 {
        self.extended.as_ref().map_or(0, |taken| taken.get(name))
    }

    /// Nothing is known and nothing is taken: the id can serve another node.
    pub(super) fn is_vacant(&self) -> bool {
        self.node.is_none() && self.requested.pods == 0
    }
}
