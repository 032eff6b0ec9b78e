//! `/explain?namespace=NAMESPACE&pod=POD`: feasible nodes of a waiting pod of any scheduler in the current cluster state, and why
//! the other nodes are not feasible.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::extender::Judge;

/// Nodes listed in a response.
const NODES_NAMED: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct PodQuery {
    #[serde(default = "default_namespace")]
    pub(super) namespace: String,
    pub(super) pod: String,
}

pub(super) fn default_namespace() -> String {
    "default".to_owned()
}

/// The response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    namespace: String,
    pod: String,
    scheduler: Arc<str>,
    /// The queue the pod is in.
    state: &'static str,
    /// Why the pod is not scheduled at all, however much room there is.
    refused: Option<Arc<str>>,
    /// The node the pod would get now.
    chosen: Option<Arc<str>>,
    /// The best feasible nodes, best first.
    nodes: Vec<Arc<str>>,
    /// Number of feasible nodes.
    feasible: usize,
    /// Nodes per reason for which they are not feasible.
    reasons: BTreeMap<String, usize>,
    /// The message of the pod's condition if no node is feasible.
    message: Option<String>,
    /// What the pod's gang waits for, or that it fits; `null`: it is not a member of one.
    gang: Option<Arc<str>>,
}

pub(super) async fn explain(
    State(judge): State<Arc<Judge>>,
    Query(asked): Query<PodQuery>,
) -> Result<Json<Explained>, (StatusCode, String)> {
    let PodQuery { namespace, pod: name } = asked;
    let (in_, of) = (namespace.clone(), name.clone());
    // A class without a ranked list evaluates every node.
    let found = tokio::task::spawn_blocking(move || judge.explain(&in_, &of));
    let found = found.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let Some((pod, state, verdict)) = found else {
        let why = format!(
            "berth knows no waiting pod {namespace}/{name} (it watches pods of other schedulers only when the \
             extender or the guard is enabled)\n"
        );
        return Err((StatusCode::NOT_FOUND, why));
    };
    let mut reasons = BTreeMap::new();
    for reason in verdict.reasons.into_values().flatten() {
        *reasons.entry(reason).or_default() += 1;
    }
    Ok(Json(Explained {
        namespace,
        pod: name,
        scheduler: pod.scheduler_name,
        state,
        refused: verdict.refused,
        chosen: verdict.chosen,
        feasible: verdict.feasible.len(),
        nodes: verdict.feasible.into_iter().take(NODES_NAMED).map(|candidate| candidate.node).collect(),
        reasons,
        message: verdict.message,
        gang: verdict.gang,
    }))
}
