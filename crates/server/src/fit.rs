//! `POST /fit?namespace=NAMESPACE&max=PODS`: whether the pods of the manifests in the body would fit now. Nothing is created.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::body;

/// Maximum size of the manifests.
pub const MANIFESTS_MAX: usize = 1 << 20;

/// Manifests, and what is asked about their pods.
#[derive(Debug)]
pub struct FitQuestion {
    /// YAML or JSON.
    pub manifests: Bytes,
    /// Of objects that name none.
    pub namespace: String,
    /// Maximum number of further pods of each workload to try.
    pub more: usize,
}

/// Why a question is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitRefusal {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}; retry")]
    NotReady(String),
    #[error("another question is being answered; retry")]
    Busy,
}

/// Answers questions; blocks.
pub trait Fitter: Send + Sync + 'static {
    /// Returns the report in JSON.
    ///
    /// # Errors
    /// Why there is none.
    fn fit(&self, question: &FitQuestion) -> Result<Vec<u8>, FitRefusal>;
}

/// Results of questions.
#[derive(Debug, Default)]
pub struct FitCounters {
    pub answered: AtomicU64,
    /// Invalid, or before all nodes and pods were known.
    pub refused: AtomicU64,
    pub busy: AtomicU64,
}

/// The handler's state.
#[derive(Clone)]
pub struct FitEndpoint {
    pub fitter: Arc<dyn Fitter>,
    pub counters: Arc<FitCounters>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FitQuery {
    #[serde(default = "super::explain::default_namespace")]
    namespace: String,
    #[serde(default)]
    max: usize,
}

impl IntoResponse for FitRefusal {
    fn into_response(self) -> Response {
        let status = match self {
            FitRefusal::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            FitRefusal::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
            FitRefusal::Busy => StatusCode::TOO_MANY_REQUESTS,
        };
        (status, format!("{self}\n")).into_response()
    }
}

pub(super) async fn fit(
    State(fit): State<FitEndpoint>,
    Query(asked): Query<FitQuery>,
    manifests: Body,
) -> Response {
    let manifests = match body::read(manifests, MANIFESTS_MAX).await {
        Ok(manifests) => manifests,
        Err(refusal) => return refusal.into_response(),
    };
    let question = FitQuestion { manifests, namespace: asked.namespace, more: asked.max };
    let fitter = fit.fitter.clone();
    let answer = match tokio::task::spawn_blocking(move || fitter.fit(&question)).await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    let counter = match &answer {
        Ok(_) => &fit.counters.answered,
        Err(FitRefusal::Busy) => &fit.counters.busy,
        Err(_) => &fit.counters.refused,
    };
    counter.fetch_add(1, Relaxed);
    match answer {
        Ok(report) => ([(header::CONTENT_TYPE, "application/json")], report).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}
