//! Mutating admission webhook for pod creation: sets the requests that a VPA recommends or that the pod's ServiceScaler has
//! decided, and adds hints as preferred affinity to pods of other schedulers. Every replica answers from its watch caches, without
//! a request. It never rejects a pod: in doubt the pod is left unchanged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::body;
use super::metrics::{Histograms, Verb};
use super::review::{self, ReviewRequest};
use berth_config as config;
use berth_kube_io::apply::NewPod;
use berth_kube_io::read_new_pod;
use berth_model::PodAffinity;
use berth_rightsizing::apply::{Hold, SizedPod, SizingIndex, affinity, boost, patch};
use berth_scheduler::hints::Hints;

/// Path of the webhook.
pub const PATH: &str = "/mutate-pods";

/// The API server accepts no larger objects, and a review contains at most two.
const MAX_BODY: usize = 4 << 20;
const REVIEWS_AT_ONCE: usize = 512;
/// Minimum interval between warnings.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// State of the handler.
pub struct Mutate {
    index: Arc<RwLock<SizingIndex>>,
    /// Selects the namespaces that the recommender covers.
    config: config::Recommender,
    placing: Option<Placing>,
    histograms: Histograms,
    slots: Semaphore,
    last_warning: Mutex<Option<Instant>>,
}

/// Hints for pods of other schedulers.
#[derive(Debug, Default)]
pub struct Placing {
    /// Hints in force now.
    pub hints: Arc<RwLock<Hints>>,
    /// Schedulers that use the hints themselves; their pods get no affinity.
    pub own_schedulers: Vec<String>,
}

/// Result of a review.
#[derive(Debug, PartialEq)]
enum Outcome {
    Patched(Vec<Value>),
    /// The pod is left unchanged; the reason is a metric label.
    Unchanged(&'static str),
}

impl Mutate {
    pub fn new(
        index: Arc<RwLock<SizingIndex>>,
        histograms: Histograms,
        config: &config::Recommender,
        placing: Option<Placing>,
    ) -> Self {
        Mutate {
            index,
            config: config.clone(),
            placing,
            histograms,
            slots: Semaphore::new(REVIEWS_AT_ONCE),
            last_warning: Mutex::default(),
        }
    }

    fn outcome(&self, request: &ReviewRequest) -> Outcome {
        let object = request.created_of_pods().filter(|_| request.sub_resource.is_empty());
        let Some(object) = object else { return Outcome::Unchanged("other") };
        if !self.config.covers(&request.namespace) {
            return Outcome::Unchanged("no_vpa");
        }
        let pod = match read_new_pod(object, &request.namespace) {
            Ok(pod) => pod,
            Err(error) => {
                self.warn(&format!("cannot decode a pod in review: {error}"));
                return Outcome::Unchanged("bad_pod");
            }
        };
        match (self.decide(&pod), self.place(object, &request.namespace)) {
            (outcome, place) if place.is_empty() => outcome,
            (Outcome::Patched(mut operations), place) => {
                operations.extend(place);
                Outcome::Patched(operations)
            }
            (Outcome::Unchanged(_), place) => Outcome::Patched(place),
        }
    }

    /// Returns the patch that adds hints to a pod of another scheduler.
    fn place(&self, object: &str, namespace: &str) -> Vec<Value> {
        let Some(Placing { hints, own_schedulers: ours }) = &self.placing else { return Vec::new() };
        let hints = hints.read();
        // A pod that cannot be decoded has been warned about already.
        let pod = if hints.is_empty() { None } else { NewPod::read(object, namespace).ok() };
        let Some(pod) = pod.filter(|pod| !ours.contains(&pod.scheduler)) else { return Vec::new() };
        affinity::preferred(&hints.terms(&pod.identity, &PodAffinity::default()), pod.affinity)
    }

    fn decide(&self, pod: &SizedPod) -> Outcome {
        let governed = {
            let index = self.index.read();
            if !index.is_complete() {
                return Outcome::Unchanged("not_ready");
            }
            index.size_new(pod)
        };
        let Some(governed) = governed else { return Outcome::Unchanged("no_vpa") };
        match boost::at_creation(pod, &governed.vpa, &governed.ranges, self.config.apply.updater) {
            Ok((changes, boosts)) => {
                Outcome::Patched(patch::at_creation(pod, &governed.vpa.name, &changes, &boosts))
            }
            Err(why) => {
                if why != Hold::NoRecommendation {
                    tracing::debug!(namespace = %pod.namespace, vpa = %governed.vpa.name, why = why.why(), "pod left unchanged");
                }
                Outcome::Unchanged(why.name())
            }
        }
    }

    fn warn(&self, text: &str) {
        let mut last = self.last_warning.lock();
        if last.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!("{text}; it is created unchanged");
        }
    }

    /// Answers an `AdmissionReview`: returns the result as a metric label, and the response, or a status with the reason.
    pub fn answer(&self, body: &[u8]) -> (&'static str, Result<Vec<u8>, (StatusCode, String)>) {
        let request = match ReviewRequest::read(body) {
            Ok(request) => request,
            Err(why) => return ("bad_request", Err((StatusCode::BAD_REQUEST, why))),
        };
        let outcome = self.outcome(&request);
        let (result, operations) = match &outcome {
            Outcome::Patched(operations) => ("patched", Some(operations)),
            Outcome::Unchanged(why) => (*why, None),
        };
        match review::allowed(&request.uid, operations.map(Vec::as_slice)) {
            Ok(answer) => (result, Ok(answer)),
            Err(error) => ("failed", Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))),
        }
    }

    async fn respond(&self, body: Body) -> (&'static str, Response) {
        let body = match body::read(body, MAX_BODY).await {
            Ok(body) => body,
            Err(refused) => return ("bad_request", refused.into_response()),
        };
        let (result, answer) = self.answer(&body);
        (result, answer.map_or_else(IntoResponse::into_response, |answer| json(answer.into())))
    }
}

/// Returns the handler of the webhook.
pub fn webhook(mutate: Arc<Mutate>) -> MethodRouter {
    post(review).with_state(mutate)
}

async fn review(State(mutate): State<Arc<Mutate>>, body: Body) -> Response {
    let began = Instant::now();
    // The semaphore is never closed.
    let _slot = mutate.slots.acquire().await;
    let (result, response) = mutate.respond(body).await;
    mutate.histograms.observe_request(Verb::Mutate, result, began.elapsed());
    response
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod affinity_tests;
#[cfg(test)]
mod tests;
