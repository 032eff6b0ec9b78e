//! Fragmentation advice: which nodes would have room for what waits if few of their pods moved elsewhere (Protean, OSDI'20: what-if
//! analysis finds fragmented machines, and moves re-pack them).
//!
//! Advice is proved: each move was made on an agent's view, in order, with every rule, and what waits was planned there by the
//! same code that places it. Nothing is moved. Nodes are chosen by what is missing there and by what their pods that can be
//! moved hold together; only the most promising are tried, and a limit bounds how many. May not know: kube, tokio, clocks.

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
pub use report::{Entry, NamedMove, Report};
pub use search::Repacker;
pub use site::{Fixed, Gang, Resident, Residents};

use crate::class::Class;
use crate::gang::{AllocationKind, AllocationName, Wanted};
use crate::inventory::NodeId;
use berth_model::PodRef;

/// Nodes that advice names, at most.
pub const MOST_NODES: usize = 16;
/// Moves of one advice, at most.
pub const MOST_MOVES: usize = 32;
/// Waiting pods of one class that room is looked for, at most.
pub const MOST_PODS: usize = 16;
/// Sets of pods that are tried to make room for one more pod, at most.
pub const MOST_PROOFS: usize = 64;
/// Nodes whose pods are looked at to make room for one more pod, at most: those where least is missing.
pub const MOST_SITES: usize = 1024;
/// Domains in which an allocation that needs one is tried, at most: the roomiest.
pub const MOST_DOMAINS: usize = 16;

/// What waits.
#[derive(Debug, Clone)]
pub struct Case {
    pub what: Waits,
    /// Of single pods the first [`MOST_PODS`] of their class.
    pub wanted: Wanted,
    /// Pods that wait, in all.
    pub waiting: usize,
}

/// Whose pods wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// Single pods of one class; these are the first of them.
    Pods(Vec<PodRef>),
    Allocation(AllocationName),
}

/// One pod that goes elsewhere.
#[derive(Debug, Clone)]
pub struct Move {
    pub resident: Resident,
    /// Of the pod that is made in its place.
    pub class: Arc<Class>,
    pub from: NodeId,
    /// A node that takes it once the moves before are made.
    pub to: NodeId,
}

/// Moves that, made in this order, let pods fit that wait.
#[derive(Debug, Clone)]
pub struct Advice {
    /// Never empty.
    pub moves: Vec<Move>,
    /// So many of the waiting pods are placed then.
    pub places: usize,
}

/// What was found for one case.
#[derive(Debug, Clone)]
pub enum Finding {
    /// It fits as it is.
    Fits,
    Moves(Advice),
    /// No moves that were tried help.
    Nothing(Obstacles),
}

/// What it took to find out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Sets of pods that were tried.
    pub proofs: usize,
    /// Times that a limit, or the time, ended a search.
    pub cut: usize,
}

impl Case {
    /// Whether all that is needed must be placed at once.
    pub fn is_gang(&self) -> bool {
        matches!(self.what, Waits::Allocation(_))
    }
}

impl Waits {
    /// Kind, namespace and name, for people and programs.
    pub fn name(&self) -> (&'static str, &str, &str) {
        match self {
            Waits::Pods(pods) => {
                pods.first().map_or(("Pod", "", ""), |pod| ("Pod", &pod.namespace, &pod.name))
            }
            Waits::Allocation(name) => {
                let kind = match name.kind {
                    AllocationKind::Allocation => "Allocation",
                    AllocationKind::PodGroup | AllocationKind::Coscheduling => "PodGroup",
                };
                (kind, &name.namespace, &name.name)
            }
        }
    }
}

impl Advice {
    /// The nodes that pods leave, each once, in the order of the moves.
    pub fn nodes(&self) -> Vec<NodeId> {
        nodes_of(&self.moves)
    }

    /// The shortest sentence that says it.
    pub fn sentence(&self, name: &dyn Fn(NodeId) -> Arc<str>) -> String {
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
            let (namespace, pod) = (&step.resident.pod.namespace, &step.resident.pod.name);
            let _ = write!(text, "{comma}{namespace}/{pod}{from} to {}", name(step.to));
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
