//! Scheduler extender for kube-scheduler: the verbs `filter`, `prioritize`, `preempt` and `bind` over HTTP.
//!
//! Errors are reported as the protocol has it: in the `Error` field of the response where it has one; with a status other than
//! 200 where it has none, or if the body does not follow the protocol at all.

mod binder;
mod judge;
mod names;
mod places;
pub mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use binder::Binder;
pub use judge::Judge;
use wire::{BindingResult, FilterResult, PreemptionResult};

use super::body;
use super::forward::FORWARDED;
use super::metrics::{Histograms, Verb};
use berth_config as config;

/// One kube-scheduler sends one request at a time; more at once come from several schedulers or other clients.
const REQUESTS_AT_ONCE: usize = 8;

/// How long to wait for berth's watches to catch up with the caller's.
const PATIENCE: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Bodies up to this many bytes (some ten thousand node names) take 1 to 2 ms.
const LITTLE_WORK: usize = 256 << 10;

/// State of the handlers.
pub struct Extender {
    pub judge: Arc<Judge>,
    pub binder: Binder,
    pub histograms: Histograms,
    pub max_body_bytes: usize,
    /// Common names of the client certificates that may call the extender over HTTPS without a check by RBAC.
    pub clients: Arc<[String]>,
    slots: Semaphore,
}

impl Extender {
    pub fn new(
        judge: Arc<Judge>,
        binder: Binder,
        histograms: Histograms,
        config: &config::ExtenderConfig,
    ) -> Self {
        let slots = Semaphore::new(REQUESTS_AT_ONCE);
        let (max_body_bytes, clients) = (config.max_body_bytes as usize, config.clients.clone().into());
        Extender { judge, binder, histograms, max_body_bytes, clients, slots }
    }
}

/// Routes each verb at its own name.
pub fn router(extender: Arc<Extender>) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/preempt", post(preempt))
        .route("/bind", post(bind))
        .with_state(extender)
}

/// Result of a request, for the metrics.
enum Answered {
    Well(Response),
    /// The request was valid and was refused.
    Refused(Response),
    /// The body does not follow the protocol.
    Badly(Response),
}

async fn filter(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    let work = |judge: &Judge, body: &[u8], patient: bool| match wire::extender_args(body) {
        Ok(args) => {
            let outcome = judge.filter(&args.pod, &args.nodes);
            if patient && outcome.may_change() {
                return None;
            }
            let outcome = outcome.last_word(judge);
            Some(match (outcome.to_json(), outcome.counts()) {
                (Ok(text), Some(_)) => Answered::Well(json_text(text)),
                (Ok(text), None) => Answered::Refused(json_text(text)),
                (Err(error), _) => Answered::Badly(broken(&error.to_string())),
            })
        }
        Err(error) if is_of_protocol(body) => {
            Some(Answered::Refused(json(&FilterResult { error, ..FilterResult::default() })))
        }
        Err(error) => Some(Answered::Badly(bad(error))),
    };
    extender.carry_out(Verb::Filter, body, work).await
}

async fn prioritize(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    let work = |judge: &Judge, body: &[u8], _| {
        Some(match wire::extender_args(body) {
            Ok(args) => match judge.prioritize(&args.pod, &args.nodes) {
                Ok(scores) => Answered::Well(json_text(scores)),
                // The protocol has no error field here; kube-scheduler continues without these scores.
                Err(why) => {
                    Answered::Refused((StatusCode::UNPROCESSABLE_ENTITY, why.to_string()).into_response())
                }
            },
            Err(error) => Answered::Badly(bad(error)),
        })
    };
    extender.carry_out(Verb::Prioritize, body, work).await
}

async fn preempt(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    let work = |judge: &Judge, body: &[u8], _| {
        Some(match wire::preemption_args(body) {
            Ok(args) => match judge.preempt(args) {
                Ok(victims) => Answered::Well(json(&PreemptionResult { node_name_to_meta_victims: victims })),
                Err(why) => {
                    Answered::Refused((StatusCode::UNPROCESSABLE_ENTITY, why.to_string()).into_response())
                }
            },
            Err(error) => Answered::Badly(bad(error)),
        })
    };
    extender.carry_out(Verb::Preempt, body, work).await
}

async fn bind(State(extender): State<Arc<Extender>>, headers: HeaderMap, body: Body) -> Response {
    let began = Instant::now();
    if headers.contains_key(FORWARDED) && extender.binder.forward.begin_bind().is_none() {
        let why = "this berth replica does not lead\n";
        return extender.observe(
            Verb::Bind,
            Answered::Refused((StatusCode::SERVICE_UNAVAILABLE, why).into_response()),
            began,
        );
    }
    let answered = match body::read(body, extender.max_body_bytes).await {
        Err(refused) => Answered::Badly(refused.into_response()),
        Ok(body) => match wire::binding_args(&body) {
            Err(error) if is_of_protocol(&body) => Answered::Refused(json(&BindingResult { error })),
            Err(error) => Answered::Badly(bad(error)),
            Ok(args) => match extender.binder.bind(args, body.clone()).await {
                Ok(()) => Answered::Well(json(&BindingResult::default())),
                Err(error) => Answered::Refused(json(&BindingResult { error })),
            },
        },
    };
    extender.observe(Verb::Bind, answered, began)
}

impl Extender {
    /// Decodes the body and does the work; `None` if `patient` is true and a retry may give a better result. Large requests run on a
    /// blocking thread; small ones run here, as the handover would take longer than the work.
    async fn carry_out(
        &self,
        verb: Verb,
        body: Body,
        work: impl Fn(&Judge, &[u8], bool) -> Option<Answered> + Clone + Send + 'static,
    ) -> Response {
        let began = Instant::now();
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let body = match body::read(body, self.max_body_bytes).await {
            Err(refused) => return self.observe(verb, Answered::Badly(refused.into_response()), began),
            Ok(body) => body,
        };
        loop {
            let patient = began.elapsed() < PATIENCE;
            let answered = if body.len() <= LITTLE_WORK {
                work(&self.judge, &body, patient)
            } else {
                let (judge, body, work) = (self.judge.clone(), body.clone(), work.clone());
                let work = tokio::task::spawn_blocking(move || work(&judge, &body, patient));
                work.await.unwrap_or_else(|error| Some(Answered::Badly(broken(&error.to_string()))))
            };
            match answered {
                Some(answered) => return self.observe(verb, answered, began),
                None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    fn observe(&self, verb: Verb, answered: Answered, began: Instant) -> Response {
        let (result, response) = match answered {
            Answered::Well(response) => ("success", response),
            Answered::Refused(response) => ("refused", response),
            Answered::Badly(response) => ("bad_request", response),
        };
        self.histograms.observe_request(verb, result, began.elapsed());
        response
    }
}

/// Whether the body is a JSON object; then errors are reported in a response of the protocol.
fn is_of_protocol(body: &[u8]) -> bool {
    serde_json::from_slice::<std::collections::BTreeMap<String, serde::de::IgnoredAny>>(body).is_ok()
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => json_text(text),
        Err(error) => broken(&error.to_string()),
    }
}

fn json_text(text: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Bytes::from(text)).into_response()
}

fn bad(why: String) -> Response {
    (StatusCode::BAD_REQUEST, why).into_response()
}

fn broken(why: &str) -> Response {
    tracing::error!(why, "cannot answer a request to the extender");
    (StatusCode::INTERNAL_SERVER_ERROR, why.to_owned()).into_response()
}
