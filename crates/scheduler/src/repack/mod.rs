//! Defragmentation advice: nodes that would have room for waiting pods if a few of their pods moved to other nodes
//! (Protean, OSDI'20: what-if analysis finds fragmented machines, and moves re-pack them).
//!
//! Advice is proved: each move was made on an agent's view, in order, with every rule, and the waiting pods were
//! planned there by the code that places them. Nothing is moved in the cluster. Nodes are ordered by the missing
//! amounts and by the total size of their movable pods; only the most promising are tried, within a limit. May not
//! know: kube, tokio, clocks.

mod attempt;
mod obstacles;
mod opening;
mod report;
mod search;
mod site;

#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;

pub use obstacles::Obstacles;
pub use report::{Entry, FragmentationReport, NamedMove};
pub use search::Repacker;
pub use site::{Fixed, Gang, Resident, Residents};

use crate::class::Class;
use crate::gang::{AllocationName, WantedMembers};
use crate::inventory::NodeId;
use berth_model::PodRef;

/// Maximum number of nodes named by one advice.
pub const MOST_NODES: usize = 16;
/// Maximum number of moves in one advice.
pub const MOST_MOVES: usize = 32;
/// Maximum number of waiting pods of one class to make room for.
pub const MOST_PODS: usize = 16;
/// Maximum number of sets of pods to try per waiting pod.
pub const MOST_PROOFS: usize = 64;
/// Maximum number of nodes to examine per waiting pod: those with the least missing.
pub const MOST_SITES: usize = 1024;
/// Maximum number of domains to try for a gang that needs one: those with the most room.
pub const MOST_DOMAINS: usize = 16;

/// Pods to make room for.
#[derive(Debug, Clone)]
pub struct Case {
    pub what: Waits,
    /// For single pods: the first [`MOST_PODS`] of their class.
    pub wanted: WantedMembers,
    /// Total number of waiting pods.
    pub waiting: usize,
}

/// Owner of the waiting pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// The first pods of one class of single pods.
    Pods(Vec<PodRef>),
    Allocation(AllocationName),
}

/// The move of one pod to another node.
#[derive(Debug, Clone)]
pub struct Move {
    pub resident: Resident,
    /// Class of the replacement pod.
    pub class: Arc<Class>,
    pub from: NodeId,
    /// A node that fits it once the moves before are made.
    pub to: NodeId,
}

/// Moves that let waiting pods fit, to be made in this order.
#[derive(Debug, Clone)]
pub struct Advice {
    /// Never empty.
    pub moves: Vec<Move>,
    /// Number of waiting pods that then fit.
    pub places: usize,
}

/// Result for one case.
#[derive(Debug, Clone)]
pub enum Finding {
    /// Fits without any move.
    Fits,
    Moves(Advice),
    /// None of the tried moves helps.
    Nothing(Obstacles),
}

/// Effort of the search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of sets of pods tried.
    pub proofs: usize,
    /// Number of searches cut off by a limit or a deadline.
    pub cut: usize,
}

impl Case {
    /// Returns whether all needed pods must be placed at once.
    pub fn is_gang(&self) -> bool {
        matches!(self.what, Waits::Allocation(_))
    }
}

impl Waits {
    /// Returns kind, namespace and name, for display and JSON.
    pub fn name(&self) -> (&'static str, &str, &str) {
        match self {
            Waits::Pods(pods) => {
                pods.first().map_or(("Pod", "", ""), |pod| ("Pod", &pod.namespace, &pod.name))
            }
            Waits::Allocation(name) => (name.kind.object_kind(), &name.namespace, &name.name),
        }
    }
}

impl Advice {
    /// Returns the nodes that pods leave, without duplicates, in the order of the moves.
    pub fn nodes(&self) -> Vec<NodeId> {
        nodes_of(&self.moves)
    }

    /// Returns a one-sentence summary for readers of this namespace, which does not name pods of others.
    pub fn sentence(&self, reader: &str, name: &dyn Fn(NodeId) -> Arc<str>) -> String {
        const NAMED: usize = 4;
        let nodes = self.nodes();
        let pods = match self.moves.len() {
            1 => "1 pod".to_owned(),
            pods => format!("{pods} pods"),
        };
        let off = match &nodes[..] {
            [node] => name(*node).to_string(),
            nodes => format!("{} nodes", nodes.len()),
        };
        let mut text = format!("moving {pods} off {off} (");
        for (at, step) in self.moves.iter().take(NAMED).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let from = if nodes.len() > 1 { format!(" from {}", name(step.from)) } else { String::new() };
            let PodRef { namespace, name: pod, .. } = &step.resident.pod;
            let pod = match **namespace == *reader {
                true => format!("{namespace}/{pod}"),
                false => "one of another namespace".to_owned(),
            };
            let _ = write!(text, "{comma}{pod}{from} to {}", name(step.to));
        }
        if self.moves.len() > NAMED {
            text.push_str(", ...");
        }
        text.push_str(") would make room");
        text
    }
}

fn nodes_of(moves: &[Move]) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for step in moves {
        if !nodes.contains(&step.from) {
            nodes.push(step.from);
        }
    }
    nodes
}
