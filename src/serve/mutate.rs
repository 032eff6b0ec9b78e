//! The mutating admission webhook for pods that are created: they get what a VPA recommends. It answers from what watches have
//! told, without a request, on every replica; and it never keeps a pod from being created: in doubt the pod stays as it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::body;
use super::metrics::{Histograms, Verb};
use super::review::{self, Request};
use crate::apply::{Hold, Index, Pod, changes, patch};
use crate::cluster::apply::read_pod;
use crate::config;

/// Where the webhook is.
pub const PATH: &str = "/mutate-pods";

/// An API server takes no larger objects, and a review has two at most.
const MAX_BODY: usize = 4 << 20;
const REVIEWS_AT_ONCE: usize = 512;
/// What is wrong is told at most this often.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// What the handler needs.
pub struct Mutate {
    index: Arc<RwLock<Index>>,
    /// Which namespaces are looked after.
    config: config::Recommender,
    histograms: Histograms,
    slots: Semaphore,
    last_warning: Mutex<Option<Instant>>,
}

/// What a review comes to.
#[derive(Debug, PartialEq)]
enum Outcome {
    Patched(Vec<Value>),
    /// Unchanged, for this reason, which is a label of metrics.
    Unchanged(&'static str),
}

impl Mutate {
    pub fn new(index: Arc<RwLock<Index>>, histograms: Histograms, config: &config::Recommender) -> Self {
        Mutate {
            index,
            config: config.clone(),
            histograms,
            slots: Semaphore::new(REVIEWS_AT_ONCE),
            last_warning: Mutex::default(),
        }
    }

    fn outcome(&self, request: &Request) -> Outcome {
        let object = request.created_of_pods().filter(|_| request.sub_resource.is_empty());
        let Some(object) = object else { return Outcome::Unchanged("other") };
        if !self.config.covers(&request.namespace) {
            return Outcome::Unchanged("no_vpa");
        }
        let pod = match read_pod(object, &request.namespace) {
            Ok(pod) => pod,
            Err(error) => {
                self.warn(&format!("a pod in review cannot be read: {error}"));
                return Outcome::Unchanged("bad_pod");
            }
        };
        self.decide(&pod)
    }

    fn decide(&self, pod: &Pod) -> Outcome {
        let governed = {
            let index = self.index.read();
            if !index.is_complete() {
                return Outcome::Unchanged("not_ready");
            }
            index.govern(pod)
        };
        let Some(governed) = governed else { return Outcome::Unchanged("no_vpa") };
        match changes(pod, &governed.vpa, &governed.ranges) {
            Ok(changes) => Outcome::Patched(patch::at_creation(pod, &governed.vpa.name, &changes)),
            Err(why) => {
                if why != Hold::NoRecommendation {
                    tracing::debug!(namespace = %pod.namespace, vpa = %governed.vpa.name, why = why.why(), "a pod stays as it is");
                }
                Outcome::Unchanged(why.name())
            }
        }
    }

    fn warn(&self, text: &str) {
        let mut last = self.last_warning.lock();
        if last.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!("{text}; it is created as it is");
        }
    }

    async fn respond(&self, body: Body) -> (&'static str, Response) {
        let body = match body::read(body, MAX_BODY).await {
            Ok(body) => body,
            Err(refused) => return ("bad_request", refused.into_response()),
        };
        let request = match Request::read(&body) {
            Ok(request) => request,
            Err(why) => return ("bad_request", (StatusCode::BAD_REQUEST, why).into_response()),
        };
        let outcome = self.outcome(&request);
        let (result, operations) = match &outcome {
            Outcome::Patched(operations) => ("patched", Some(operations)),
            Outcome::Unchanged(why) => (*why, None),
        };
        match review::allowed(&request.uid, operations.map(Vec::as_slice)) {
            Ok(answer) => (result, json(answer.into())),
            Err(error) => ("failed", (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()),
        }
    }
}

/// The webhook at [`PATH`].
pub fn router(mutate: Arc<Mutate>) -> Router {
    Router::new().route(PATH, post(review)).with_state(mutate)
}

async fn review(State(mutate): State<Arc<Mutate>>, body: Body) -> Response {
    let began = Instant::now();
    // Never closed.
    let _slot = mutate.slots.acquire().await;
    let (result, response) = mutate.respond(body).await;
    mutate.histograms.observe_request(Verb::Mutate, result, began.elapsed());
    response
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests;
