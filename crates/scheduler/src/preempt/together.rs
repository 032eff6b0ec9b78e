//! Pods that are placed together and preempt together: what is asked and what is answered.

use std::sync::Arc;

use super::Site;
use crate::inventory::{NodeId, Occupant};
use crate::objects::Budgets;

/// Nodes to look at for a whole allocation, all in the domain of its topology that has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prospect<Node> {
    pub domain: Option<Arc<str>>,
    pub nodes: Vec<Node>,
}

/// What pods may preempt together.
#[derive(Debug)]
pub struct Together {
    /// Each is tried; the one that costs least is taken.
    pub prospects: Vec<Prospect<Site>>,
    pub budgets: Budgets,
}

/// A place for one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// By its place in [`crate::gang::Wanted::members`].
    pub member: usize,
    pub node: NodeId,
    /// Who must leave for it, wherever they are. May be nobody.
    pub victims: Vec<Arc<Occupant>>,
    /// As of [`super::Victims`].
    pub lent: Vec<Arc<str>>,
}
