//! The binding guard: a validating admission webhook for `pods/binding`, and for pods that are created on a node. It refuses
//! what does not fit the ledger, whoever sends it, and holds the room of what it allows.

pub mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::sync::Semaphore;

use super::body;
use super::forward::{FORWARDED, Forward};
use super::metrics::{Histograms, Verb};
use crate::cluster::PodReader;
use crate::config;
use crate::engine::Engine;
use crate::model::Pod;
use crate::placement::{Binding, KubeStore, PlacementStore};
use crate::scheduler::Review;
use wire::Subject;

/// An API server takes no larger objects, and a review has two at most.
const MAX_BODY: usize = 4 << 20;
const REVIEWS_AT_ONCE: usize = 512;
/// While a refusal is not certain, it is looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Reads at the same time of pods whose bind never came.
const READS_AT_ONCE: usize = 8;
const LOOK_FOR_DUE: Duration = Duration::from_secs(1);

/// What the handler needs.
pub struct Guard {
    pub engine: Engine,
    pub reader: PodReader,
    pub histograms: Histograms,
    pub forward: Forward,
    /// What does not fit is refused only after so long.
    pub patience: Duration,
    pub require_client_certificate: bool,
    slots: Semaphore,
}

/// What the guard says, and `Err`: why it cannot say anything, so that the API server does as its `failurePolicy` wants.
type Said = Result<Option<String>, String>;

impl Guard {
    pub fn new(
        engine: Engine,
        reader: PodReader,
        histograms: Histograms,
        forward: Forward,
        config: &config::Guard,
    ) -> Self {
        let slots = Semaphore::new(REVIEWS_AT_ONCE);
        let (patience, require_client_certificate) =
            (config.patience.get(), config.require_client_certificate);
        Guard { engine, reader, histograms, forward, patience, require_client_certificate, slots }
    }

    async fn say(&self, subject: &Subject, dry_run: bool) -> Said {
        match subject {
            Subject::Other => Ok(None),
            Subject::Placed(pod) => {
                let Some(node) = pod.node_name.clone() else {
                    return Ok(None);
                };
                let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
                self.review(&Binding { uid, namespace, name, node }, Some(pod), dry_run).await
            }
            Subject::Binding(binding) if !binding.uid.is_empty() => self.review(binding, None, dry_run).await,
            Subject::Binding(binding) => match self.reader.read(&binding.namespace, &binding.name).await? {
                Some(pod) => {
                    let binding = Binding { uid: pod.uid.clone(), ..binding.clone() };
                    self.review(&binding, Some(&pod), dry_run).await
                }
                // The API server says so itself.
                None => Ok(None),
            },
        }
    }

    async fn review(&self, binding: &Binding, pod: Option<&Pod>, dry_run: bool) -> Said {
        let began = Instant::now();
        let mut read = None;
        loop {
            let pod = pod.or(read.as_ref());
            match self.engine.with(|scheduler, now| scheduler.review(binding, pod, !dry_run, now)) {
                Review::Allowed => return Ok(None),
                Review::Unknown if pod.is_none() => {
                    let found = self.reader.read(&binding.namespace, &binding.name).await?;
                    read = found.filter(|pod| pod.uid == binding.uid);
                    if read.is_none() {
                        // Gone, or another one: the API server refuses it by its uid.
                        return Ok(None);
                    }
                }
                Review::Unknown => return Err("the pod cannot be counted".to_owned()),
                Review::Refused(why) if began.elapsed() >= self.patience => return Ok(Some(why)),
                // What freed the room may be on its way to us.
                Review::Refused(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Finds out what became of binds that were allowed and never seen. Never returns.
    pub async fn look_after_holds(engine: Engine, store: KubeStore, limit: Duration) {
        use futures::StreamExt;
        loop {
            tokio::time::sleep(LOOK_FOR_DUE).await;
            let due = engine.with(|scheduler, now| scheduler.holds_due(limit, now));
            let reads = futures::stream::iter(due).map(|binding| {
                let store = &store;
                async move { (store.read(&binding).await, binding) }
            });
            let mut reads = reads.buffer_unordered(READS_AT_ONCE);
            while let Some((truth, binding)) = reads.next().await {
                tracing::debug!(pod = %binding.name, node = %binding.node, ?truth, "a bind that was allowed never came");
                engine.with(|scheduler, now| scheduler.held_pod_read(&binding, &truth, now));
            }
        }
    }
}

/// The webhook at `/`.
pub fn router(guard: Arc<Guard>) -> Router {
    Router::new().route("/", post(review)).with_state(guard)
}

async fn review(State(guard): State<Arc<Guard>>, headers: HeaderMap, body: Body) -> Response {
    let began = Instant::now();
    // Never closed.
    let _slot = guard.slots.acquire().await;
    let (result, response) = guard.respond(&headers, body).await;
    guard.histograms.observe_request(Verb::Guard, result, began.elapsed());
    response
}

impl Guard {
    async fn respond(&self, headers: &HeaderMap, body: Body) -> (&'static str, Response) {
        let body = match body::read(body, MAX_BODY).await {
            Ok(body) => body,
            Err(refused) => return ("bad_request", refused),
        };
        let request = match wire::request(&body) {
            Ok(request) => request,
            Err(why) => return ("bad_request", (StatusCode::BAD_REQUEST, why).into_response()),
        };
        if !self.forward.is_ours() {
            let forwarded = match headers.contains_key(FORWARDED) {
                true => Err("this berth does not lead".to_owned()),
                false => self.forward.review(body).await,
            };
            return match forwarded {
                Ok(answer) => ("forwarded", json(answer)),
                Err(why) => ("unavailable", unavailable(&why)),
            };
        }
        match self.say(&request.subject, request.dry_run).await {
            Ok(refused) => match wire::answer(&request.uid, refused.as_deref()) {
                Ok(answer) => (if refused.is_some() { "refused" } else { "allowed" }, json(answer.into())),
                Err(error) => ("unavailable", unavailable(&error.to_string())),
            },
            Err(why) => ("unavailable", unavailable(&why)),
        }
    }
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn unavailable(why: &str) -> Response {
    tracing::warn!(why, "a binding could not be reviewed; the API server does as failurePolicy says");
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned()).into_response()
}
