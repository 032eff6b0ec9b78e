//! `/fragmentation`: the latest report on the few pods that could be moved to make room for waiting pods.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;

use berth_scheduler::repack::FragmentationReport;

/// One pass of the search.
#[derive(Debug, Default)]
pub struct FragmentationPass {
    pub report: FragmentationReport,
    pub took: Duration,
}

/// The latest pass; `None` while no pod waits and in processes that do not lead.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Option<Arc<FragmentationPass>>>);

impl Latest {
    pub fn set(&self, pass: FragmentationPass) {
        *self.0.lock() = Some(Arc::new(pass));
    }

    /// Removes the report. Returns whether there was one.
    pub fn clear(&self) -> bool {
        self.0.lock().take().is_some()
    }

    pub fn get(&self) -> Option<Arc<FragmentationPass>> {
        self.0.lock().clone()
    }
}

/// The response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FragmentationResponse {
    /// Duration of the pass.
    seconds: f64,
    /// Nodes that pods would be moved from.
    nodes: Vec<Arc<str>>,
    #[serde(flatten)]
    report: FragmentationReport,
}

pub(super) async fn fragmentation(
    State(latest): State<Option<Arc<Latest>>>,
) -> Result<Json<FragmentationResponse>, (StatusCode, &'static str)> {
    let Some(latest) = latest else {
        let why = "the fragmentation report is disabled: set fragmentation.period in the configuration\n";
        return Err((StatusCode::NOT_FOUND, why));
    };
    let Some(pass) = latest.get() else {
        return Err((
            StatusCode::NOT_FOUND,
            "no fragmentation report: no pod waits, or this process does not lead\n",
        ));
    };
    let report = pass.report.clone();
    Ok(Json(FragmentationResponse { seconds: pass.took.as_secs_f64(), nodes: report.nodes(), report }))
}
