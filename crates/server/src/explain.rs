//! `/explain?namespace=NAMESPACE&pod=POD`: where a waiting pod of any scheduler could go on the cluster as it is, and why not
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::extender::Judge;

/// Nodes that are named in an answer.
const NODES_NAMED: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(default = "default_namespace")]
    namespace: String,
    pod: String,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    namespace: String,
    pod: String,
    scheduler: Arc<str>,
    /// Where it waits.
    state: &'static str,
    /// Why it is not scheduled at all, wherever there is room.
    refused: Option<Arc<str>>,
    /// The node it would get now.
    chosen: Option<Arc<str>>,
    /// The best of the nodes it could go to, best first.
    nodes: Vec<Arc<str>>,
    /// How many it could go to.
    feasible: usize,
    /// Why the others are out: how many nodes have each reason.
    reasons: BTreeMap<String, usize>,
    /// What its condition says if there is no node for it.
    message: Option<String>,
}

pub(super) async fn explain(
    State(judge): State<Arc<Judge>>,
    Query(asked): Query<Asked>,
) -> Result<Json<Explained>, (StatusCode, String)> {
    let Asked { namespace, pod: name } = asked;
    let (in_, of) = (namespace.clone(), name.clone());
    // A class that nobody asked about before takes a look at every node.
    let found = tokio::task::spawn_blocking(move || judge.explain(&in_, &of));
    let found = found.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let Some((pod, state, verdict)) = found else {
        let why = format!(
            "no pod {namespace}/{name} waits for a node, as far as berth knows (pods of other schedulers are only known with the \
             extender or the guard)\n"
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
    }))
}
