//! Binding guard: a validating admission webhook for `pods/binding`, and for pods created with a node name. It denies what does
//! not fit the ledger, for every client, and reserves the room of what it allows.

mod created;
pub mod subject;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::forward::{Elsewhere, FORWARDED, Forward};
use super::metrics::{Histograms, Verb};
use super::{body, review};
use berth_config as config;
use berth_kube_io::PodReader;
use berth_kube_io::placement::KubeStore;
use berth_model::Pod;
use berth_scheduler::engine::Engine;
use berth_scheduler::placement::{Binding, LATE_EFFECT, PlacementStore, Truth};
use berth_scheduler::scheduler::{BindReview, Requester};
use created::CreatedPods;
use subject::{ReviewSubject, subject};

/// Path of the webhook.
pub const PATH: &str = "/guard";

/// The API server accepts no larger objects, and a review contains at most two.
const MAX_BODY: usize = 4 << 20;
const REVIEWS_AT_ONCE: usize = 512;
/// Interval between checks until a refusal is final.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Concurrent reads of pods whose allowed bind was never observed.
const READS_AT_ONCE: usize = 8;
const LOOK_FOR_DUE: Duration = Duration::from_secs(1);
/// Minimum interval between warnings that the guard cannot review.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// State of the handler.
pub struct Guard {
    pub engine: Engine,
    pub reader: PodReader,
    pub histograms: Histograms,
    pub forward: Forward,
    /// How long a request that does not fit is retried before it is denied.
    pub patience: Duration,
    /// How long an allowed request may still take effect.
    pub hold: Duration,
    pub require_client_certificate: bool,
    /// The user name that the API server authenticates berth as, once known.
    own_user: OnceLock<String>,
    /// The field manager that this process names in its binds.
    field_manager: String,
    created: CreatedPods,
    slots: Semaphore,
    last_warning: Mutex<Option<Instant>>,
}

/// The verdict: `Ok(None)` allows, `Ok(Some)` denies with a reason. `Err`: why there is no verdict, so that the API server applies
/// the webhook's `failurePolicy`.
type GuardVerdict = Result<Option<String>, String>;

impl Guard {
    pub fn new(
        engine: Engine,
        reader: PodReader,
        histograms: Histograms,
        forward: Forward,
        field_manager: &str,
        config: &config::GuardConfig,
    ) -> Self {
        let slots = Semaphore::new(REVIEWS_AT_ONCE);
        Guard {
            engine,
            reader,
            histograms,
            forward,
            patience: config.patience.get(),
            hold: config.hold.get(),
            require_client_certificate: config.require_client_certificate,
            own_user: OnceLock::new(),
            field_manager: field_manager.to_owned(),
            created: CreatedPods::default(),
            slots,
            last_warning: Mutex::default(),
        }
    }

    async fn review_binding(
        &self,
        request: &review::ReviewRequest<'_>,
        subject: &ReviewSubject,
    ) -> GuardVerdict {
        // The API server gives up requests of berth sooner than those of other clients.
        let is_of_berth = self.own_user.get().is_some_and(|own| *own == request.user_info.username);
        // All replicas are one user.
        let is_own = is_of_berth && request.field_manager() == self.field_manager;
        let requester = if is_own { Requester::ThisProcess } else { Requester::Other };
        let dry_run = request.dry_run.unwrap_or(false);
        let hold = (!dry_run).then_some(if is_of_berth { LATE_EFFECT.min(self.hold) } else { self.hold });
        match subject {
            ReviewSubject::Other => Ok(None),
            ReviewSubject::Placed(pod) => {
                let Some(node) = pod.node_name.clone() else {
                    return Ok(None);
                };
                let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
                let hold = hold
                    .and_then(|hold| Some(self.created.hold(&namespace, &uid, Instant::now())?.min(hold)));
                let verdict = self
                    .review(
                        &Binding { uid, namespace, name, node, decision: None },
                        Some(pod),
                        hold,
                        requester,
                    )
                    .await;
                if !matches!(verdict, Ok(None)) {
                    self.created.refused(&pod.namespace, &pod.uid);
                }
                verdict
            }
            ReviewSubject::Binding(binding) if !binding.uid.is_empty() => {
                self.review(binding, None, hold, requester).await
            }
            ReviewSubject::Binding(binding) => {
                match self.reader.read(&binding.namespace, &binding.name).await? {
                    Some(pod) => {
                        let binding = Binding { uid: pod.uid.clone(), ..binding.clone() };
                        self.review(&binding, Some(&pod), hold, requester).await
                    }
                    // The API server reports the missing pod itself.
                    None => Ok(None),
                }
            }
        }
    }

    /// `hold`: how long the request may take effect.
    async fn review(
        &self,
        binding: &Binding,
        pod: Option<&Pod>,
        hold: Option<Duration>,
        requester: Requester,
    ) -> GuardVerdict {
        let began = Instant::now();
        let mut read = None;
        loop {
            let pod = pod.or(read.as_ref());
            match self.engine.review(binding, pod, hold, requester) {
                BindReview::Allowed => return Ok(None),
                BindReview::Unknown if pod.is_none() => {
                    let found = self.reader.read(&binding.namespace, &binding.name).await?;
                    read = found.filter(|pod| pod.uid == binding.uid);
                    if read.is_none() {
                        // The pod is gone or has been replaced: the API server rejects the uid.
                        return Ok(None);
                    }
                }
                BindReview::Unknown => return Err("the pod cannot be counted".to_owned()),
                BindReview::Refused(why) if began.elapsed() >= self.patience => {
                    return Ok(Some(why.to_string()));
                }
                // The event that frees the room may be on its way.
                BindReview::Refused(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Reads the pods whose allowed binds were never observed. Never returns.
    pub async fn maintain_holds(&self, store: KubeStore, client: Client) {
        let engine = &self.engine;
        loop {
            if self.own_user.get().is_none()
                && let Ok(user) = own_user(&client).await
            {
                let _ = self.own_user.set(user);
            }
            tokio::time::sleep(LOOK_FOR_DUE).await;
            let due = engine.holds_due();
            let reads = futures::stream::iter(due).map(|binding| {
                let store = &store;
                async move {
                    // A request may be granted between the read and its answer: the time of sending counts.
                    let asked = engine.now();
                    (store.read(&binding).await, asked, binding)
                }
            });
            let mut reads = reads.buffer_unordered(READS_AT_ONCE);
            while let Some((truth, asked, binding)) = reads.next().await {
                tracing::debug!(pod = %binding.name, node = %binding.node, ?truth, "an allowed bind was never observed");
                if truth == Truth::Gone {
                    self.created.missing(&binding.namespace, &binding.uid, Instant::now());
                }
                engine.held_pod_read(&binding, &truth, asked);
            }
        }
    }
}

async fn own_user(client: &Client) -> kube::Result<String> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|status| status.user_info);
    Ok(user.and_then(|user| user.username).unwrap_or_default())
}

/// Returns the handler of the webhook.
pub fn webhook(guard: Arc<Guard>) -> MethodRouter {
    post(review).with_state(guard)
}

async fn review(
    State(guard): State<Arc<Guard>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let began = Instant::now();
    let until = began + review::time_to_answer(query.as_deref().unwrap_or_default());
    // The semaphore is never closed.
    let _slot = guard.slots.acquire().await;
    let (result, response) = guard.respond(&headers, body, until).await;
    guard.histograms.observe_request(Verb::Guard, result, began.elapsed());
    response
}

impl Guard {
    /// `until`: how long a review may wait for the leader.
    async fn respond(&self, headers: &HeaderMap, body: Body, until: Instant) -> (&'static str, Response) {
        let body = match body::read(body, MAX_BODY).await {
            Ok(body) => body,
            Err(refused) => return ("bad_request", refused.into_response()),
        };
        let read = review::ReviewRequest::read(&body).and_then(|request| Ok((subject(&request)?, request)));
        let (subject, request) = match read {
            Ok(read) => read,
            Err(why) => return ("bad_request", (StatusCode::BAD_REQUEST, why).into_response()),
        };
        let refused = loop {
            let Some(decision) = self.forward.begin_review() else {
                if headers.contains_key(FORWARDED) {
                    // The sender asks again, and warns.
                    let why = "this berth replica does not lead\n";
                    return ("unavailable", (StatusCode::SERVICE_UNAVAILABLE, why).into_response());
                }
                let left = until.saturating_duration_since(Instant::now());
                match self.forward.review(body.clone(), left).await {
                    Ok(Elsewhere::Answered(answer)) => return ("forwarded", json(answer)),
                    Ok(Elsewhere::Here) => continue,
                    Err(why) => return ("unavailable", self.unavailable(&why)),
                }
            };
            match self.review_binding(&request, &subject).await {
                // Otherwise the lease was lost meanwhile, and the next leader is asked.
                Ok(refused) if self.forward.may_finish(decision.term) => break refused,
                Ok(_) => {}
                Err(why) => return ("unavailable", self.unavailable(&why)),
            }
        };
        let (result, answer) = match refused {
            Some(why) => ("refused", review::refused(&request.uid, &why)),
            None => ("allowed", review::allowed(&request.uid, None)),
        };
        match answer {
            Ok(answer) => (result, json(answer.into())),
            Err(error) => ("unavailable", self.unavailable(&error.to_string())),
        }
    }

    fn unavailable(&self, why: &str) -> Response {
        let mut last = self.last_warning.lock();
        if last.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(why, "cannot review bindings; the API server applies failurePolicy");
        }
        (StatusCode::SERVICE_UNAVAILABLE, why.to_owned()).into_response()
    }
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
