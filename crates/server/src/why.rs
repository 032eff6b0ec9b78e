//! `/why?namespace=NAMESPACE&pod=POD`: why a pod has its node, from the memory of decisions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;

use super::explain::PodQuery;
use super::extender::Judge;
use berth_scheduler::decisions::DecisionReport;

pub(super) async fn why(
    State(judge): State<Arc<Judge>>,
    Query(PodQuery { namespace, pod }): Query<PodQuery>,
) -> Result<Json<DecisionReport>, (StatusCode, String)> {
    let Some((decision, age)) = judge.why(&namespace, &pod) else {
        let why = format!(
            "this process remembers no decision about a pod {namespace}/{pod}: it has placed none of this name since it started, or \
             rememberedDecisions later ones; ask the replica that leads, or that led then\n"
        );
        return Err((StatusCode::NOT_FOUND, why));
    };
    let placed = Timestamp::now().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
    let placed = placed.round(jiff::Unit::Millisecond).unwrap_or(placed);
    Ok(Json(decision.report(Some(placed.to_string()))))
}
