//! Whether the pods of manifests would fit, and where they would go: the scheduler itself places them on a copy of the cluster, or an agent
//! of a running one on its view.
//!
//! May not know: kube's client, tokio, clocks.

mod live;
mod manifest;
pub mod show;
#[cfg(test)]
mod tests;
mod trial;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use berth_scheduler::rules::Reasons;

pub use live::LiveFit;
pub use manifest::{ManifestError, Manifests, TriedWorkload};
pub use trial::try_out;

/// Version of the JSON format: fields are only added within a version.
pub const API_VERSION: &str = "fit.berth.dev/v1";

/// The answer about all manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FitReport {
    pub api_version: String,
    /// Whether all pods fit without preemption.
    pub fits: bool,
    /// Pods that wait in the cluster already. They were placed first.
    pub waiting: WaitingBefore,
    pub workloads: Vec<WorkloadFit>,
    /// What a reader should know about the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The pods that waited before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingBefore {
    pub placed: usize,
    pub unplaced: usize,
}

/// The answer about one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadFit {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Pods that were tried.
    pub pods: usize,
    /// Pods that get a node as the cluster is.
    pub fit: usize,
    /// In the order of their numbers.
    pub placements: Vec<Placement>,
    /// Pods that get a node only after others were preempted.
    pub preempting: Vec<Preempting>,
    pub unplaced: Vec<Unplaced>,
    /// How many more of the same would fit then, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<More>,
}

/// A pod and its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub pod: String,
    pub node: String,
}

/// A pod, its node, and who must leave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preempting {
    pub pod: String,
    /// `None`: it would wait until its victims have gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// As NAMESPACE/NAME.
    pub victims: Vec<String>,
}

/// Pods without a node, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    pub pods: usize,
    /// The first of them.
    pub pod: String,
    /// As in the condition of a waiting pod.
    pub message: String,
    /// The smallest changes that were found to help, best first.
    pub remedies: Vec<Help>,
}

/// Changes that together let the pod fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Help {
    pub changes: Vec<String>,
    /// Nodes that it fits then.
    pub nodes: Vec<String>,
}

/// How many more pods fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct More {
    pub pods: usize,
    /// More were not tried.
    pub at_limit: bool,
}

impl WorkloadFit {
    /// Of a workload none of whose pods has an answer yet.
    fn of(workload: &TriedWorkload, pods: usize) -> Self {
        WorkloadFit {
            kind: workload.kind.clone(),
            namespace: workload.namespace.clone(),
            name: workload.name.clone(),
            pods,
            ..WorkloadFit::default()
        }
    }
}

/// Reads an object that belongs to a workload.
///
/// # Errors
/// It is invalid, for this reason.
fn parsed<T: DeserializeOwned>(object: Value, workload: &TriedWorkload) -> Result<T, String> {
    serde_json::from_value(object)
        .map_err(|error| format!("{} {}/{}: {error}", workload.kind, workload.namespace, workload.name))
}

/// Returns whether the controller of a DaemonSet creates no pod for a node that is not valid for these reasons.
fn keeps_daemons_away(why: Reasons) -> bool {
    why.has(Reasons::TAINTS | Reasons::AFFINITY | Reasons::NOT_NAMED | Reasons::UNSCHEDULABLE)
}
