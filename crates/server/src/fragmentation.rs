//! `/fragmentation`: the latest report on which few pods could move so that what waits has room.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;

use berth_scheduler::repack::Report;

/// One pass.
#[derive(Debug, Default)]
pub struct Pass {
    pub report: Report,
    pub took: Duration,
}

/// The latest pass; nothing while nothing waits, and in a process that does not lead.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Option<Arc<Pass>>>);

impl Latest {
    pub fn set(&self, pass: Pass) {
        *self.0.lock() = Some(Arc::new(pass));
    }

    /// Returns whether there was a report.
    pub fn clear(&self) -> bool {
        self.0.lock().take().is_some()
    }

    pub fn get(&self) -> Option<Arc<Pass>> {
        self.0.lock().clone()
    }
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told {
    /// How long it took to find out.
    seconds: f64,
    /// The nodes that pods would leave.
    nodes: Vec<Arc<str>>,
    #[serde(flatten)]
    report: Report,
}

pub(super) async fn fragmentation(
    State(latest): State<Option<Arc<Latest>>>,
) -> Result<Json<Told>, (StatusCode, &'static str)> {
    let Some(latest) = latest else {
        let why =
            "the report on fragmentation is switched off: set fragmentation.period in the configuration\n";
        return Err((StatusCode::NOT_FOUND, why));
    };
    let Some(pass) = latest.get() else {
        return Err((
            StatusCode::NOT_FOUND,
            "there is no report: nothing waits, or this process does not lead\n",
        ));
    };
    let report = pass.report.clone();
    Ok(Json(Told { seconds: pass.took.as_secs_f64(), nodes: report.nodes(), report }))
}
