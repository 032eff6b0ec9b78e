//! Joint preemption for pods that are placed together: request and result.

use std::sync::Arc;

use super::Site;
use crate::inventory::{NodeId, Occupant};
use crate::objects::Budgets;

/// Nodes to consider for a whole allocation, all in the topology domain of this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prospect<Node> {
    pub domain: Option<Arc<str>>,
    pub nodes: Vec<Node>,
}

/// Pods that the members may preempt together.
#[derive(Debug)]
pub struct Together {
    /// Each is tried; the cheapest is taken.
    pub prospects: Vec<Prospect<Site>>,
    pub budgets: Budgets,
}

/// The placement of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// Index in [`crate::gang::WantedMembers::members`].
    pub member: usize,
    pub node: NodeId,
    /// Pods to evict for it, on any node. May be empty.
    pub victims: Vec<Arc<Occupant>>,
    /// As in [`super::Victims`].
    pub lent: Vec<Arc<str>>,
}
