//! What an agent is asked to place together, and what it answers.

use std::sync::Arc;

use super::Topology;
use crate::class::Class;
use crate::inventory::NodeId;
use crate::rules::Diagnosis;
use berth_model::Holding;

/// A member without a node.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub uid: Arc<str>,
    pub class: Arc<Class>,
    pub holding: Holding,
    /// The place of its role in the allocation.
    pub role: usize,
}

/// What is to be placed together.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// In the order in which they would have their turn. Not empty.
    pub members: Vec<Candidate>,
    /// By role: so many of these members must find a place, or none gets one.
    pub need: Box<[u32]>,
    pub topology: Option<Topology>,
    /// Where other members are already.
    pub placed: Vec<NodeId>,
    /// Room that is kept for members (by uid): it is theirs.
    pub reserved: Vec<(NodeId, Arc<str>)>,
}

/// What an agent found.
#[derive(Debug)]
pub struct Plan {
    /// Every role has what it needs.
    pub complete: bool,
    /// Members by their place in [`Wanted::members`], in the order in which they were placed. If the plan is not complete, how
    /// far it got.
    pub places: Vec<(usize, NodeId)>,
    /// Of the first member that found no place.
    pub lacking: Option<Lacking>,
}

/// Why a member found no place beside those that did.
#[derive(Debug)]
pub struct Lacking {
    pub class: Arc<Class>,
    pub diagnosis: Diagnosis,
    /// The domain of the topology that came closest.
    pub domain: Option<Arc<str>>,
}
