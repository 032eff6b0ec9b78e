//! Which nodes can be emptied: the scheduler itself places their pods on other nodes, on a copy of the cluster.
//!
//! May not know: kube's client, tokio, clocks.

mod costs;
mod plan;
pub mod show;

use serde::Serialize;

pub use costs::{DELETION_COST, DeletionCost};
pub use plan::plan;

/// Version of the JSON format: fields are only added within a version.
pub const DRAIN_API_VERSION: &str = "drain.berth.dev/v1";

/// What a plan is about.
#[derive(Debug, Clone, Default)]
pub struct DrainSubject {
    /// Names of the nodes to empty. Empty: as many as can be, except those of the control plane.
    pub nodes: Vec<String>,
    /// Labels that the nodes must have.
    pub labels: Vec<(String, String)>,
    /// Maximum number of pods that move.
    pub moves_max: Option<usize>,
    /// Maximum number of nodes to empty.
    pub nodes_max: Option<usize>,
}

/// Reason why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    #[error("there is no node {0}")]
    NoNode(String),
    #[error("no node has these labels: check --selector, or leave it out")]
    NoneSelected,
}

/// A plan: its nodes are cordoned, and then emptied one after the other, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlan {
    pub api_version: &'static str,
    /// The nodes that can be emptied, in this order.
    pub nodes: Vec<EmptiedNode>,
    /// The nodes that cannot, by reason, most nodes first.
    pub kept: Vec<KeptNodes>,
    /// Number of pods that move.
    pub moves: usize,
    /// Allocatable CPU of the emptied nodes, in thousandths.
    pub freed_cpu_milli: i64,
    /// Allocatable memory of the emptied nodes.
    pub freed_memory_bytes: i64,
    /// In place of moves: the pods that a scale-in of their ReplicaSets should take, so that these nodes become empty.
    pub deletion_costs: Vec<DeletionCost>,
}

/// A node that can be emptied after those before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EmptiedNode {
    pub node: String,
    pub moves: Vec<PlannedMove>,
    /// Pods of DaemonSets, static pods and pods that are ending: they go with the node.
    pub stay: usize,
    /// Pods that must wait until a disruption budget allows one more: until the pods before them run elsewhere.
    pub wait_for_budgets: usize,
}

/// A pod and the node that it would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMove {
    /// As NAMESPACE/NAME.
    pub pod: String,
    pub to: String,
}

/// Nodes that cannot be emptied for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptNodes {
    pub reason: String,
    /// One of the pods, as NAMESPACE/NAME; empty: the reason is not a pod.
    pub pod: String,
    pub nodes: Vec<String>,
}
