//! Request to an agent to place pods together, and the resulting plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::GangTopology;
use crate::class::Class;
use crate::inventory::NodeId;
use crate::rules::Diagnosis;
use berth_model::Holding;

/// An unbound member.
#[derive(Debug, Clone)]
pub struct UnboundMember {
    pub uid: Arc<str>,
    pub class: Arc<Class>,
    pub holding: Holding,
    /// Index of its role in the allocation.
    pub role: usize,
}

/// Members to place together.
#[derive(Debug, Clone)]
pub struct WantedMembers {
    /// In queue order. Not empty.
    pub members: Vec<UnboundMember>,
    /// Required number of placed members by role; if one is not reached, none is placed.
    pub need: Box<[u32]>,
    pub topology: Option<GangTopology>,
    /// Nodes of members that are placed already.
    pub placed: Vec<NodeId>,
    /// Capacity reserved for members (by uid), available to them.
    pub reserved: Vec<(NodeId, Arc<str>)>,
}

impl WantedMembers {
    /// Returns each class of the members once, in their order.
    pub fn classes(&self) -> Vec<&Arc<Class>> {
        let mut seen = BTreeSet::new();
        self.members.iter().map(|member| &member.class).filter(|class| seen.insert(class.id)).collect()
    }
}

/// Placement found by an agent.
#[derive(Debug)]
pub struct GangPlan {
    /// Every role reaches its required number.
    pub complete: bool,
    /// Members by their index in [`WantedMembers::members`], in the order of placement. The partial placement if the plan is
    /// not complete.
    pub places: Vec<(usize, NodeId)>,
    /// The first member that could not be placed.
    pub lacking: Option<Lacking>,
}

/// Why a member could not be placed next to the placed ones.
#[derive(Debug)]
pub struct Lacking {
    pub class: Arc<Class>,
    pub diagnosis: Diagnosis,
    /// The topology domain that came closest.
    pub domain: Option<Arc<str>>,
}
