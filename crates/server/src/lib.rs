//! HTTP endpoints: health and readiness in plain HTTP, everything else over TLS (`secure.rs`).
//!
//! May not know: the controllers and the command line.

pub mod access;
mod body;
mod explain;
pub mod extender;
mod fields;
pub mod fit;
pub mod forward;
pub mod fragmentation;
pub mod guard;
pub mod metrics;
pub mod mutate;
pub mod review;
pub mod secure;
pub mod ui;
pub mod webhook;
mod why;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use tokio::net::TcpListener;

pub use access::Access;
use berth_telemetry::Health;
use extender::{Extender, Judge};
use fit::FitEndpoint;
use guard::Guard;
use metrics::Metrics;
use mutate::Mutate;
pub use secure::Secure;
pub use webhook::WebhookAccess;

/// State shared by the handlers.
#[derive(Clone)]
pub struct Served {
    pub metrics: Metrics,
    pub health: Health,
    pub judge: Arc<Judge>,
    pub extender: Option<Arc<Extender>>,
    pub guard: Option<Arc<Guard>>,
    pub mutate: Option<Arc<Mutate>>,
    /// `None` while `fragmentation.period` is unset.
    pub fragmentation: Option<Arc<fragmentation::Latest>>,
    pub ui: Arc<ui::Feed>,
    pub fit: FitEndpoint,
}

/// Binds the address, so that an error is reported before anything else starts. `setting` is the configuration key of the address.
///
/// # Errors
/// The address is in use or does not belong to this machine; the text says which.
pub async fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    let explain = || format!("cannot listen on {address}: set {setting} to a free address of this machine");
    anyhow::Context::with_context(TcpListener::bind(address).await, explain)
}

/// Serves plain HTTP until `stop` resolves: the probes to every client, everything else only on a loopback address; the extender
/// only if `plaintext` is set.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    plaintext: bool,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let is_local = listener.local_addr()?.ip().to_canonical().is_loopback();
    axum::serve(listener, plain_routes(served, is_local, plaintext)).with_graceful_shutdown(stop).await
}

fn plain_routes(served: Served, is_local: bool, plaintext: bool) -> Router {
    let probes = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(served.clone());
    let rest = if is_local {
        let extender = served.extender.clone().filter(|_| plaintext);
        inspection(&served).merge(extender.map(extender_routes).unwrap_or_default())
    } else {
        let paths = ["/metrics", "/explain", "/why", "/fragmentation", "/fit"];
        paths
            .into_iter()
            .chain(ui::paths())
            .fold(Router::new(), |router, path| router.route(path, any(elsewhere)))
    };
    probes.merge(rest)
}

/// Everything served over HTTPS, with the access checks in front of it.
pub fn secure_routes(served: Served, access: &Access, webhooks: &WebhookAccess) -> Router {
    let extender = served.extender.clone().map(|extender| {
        let clients = extender.clients.clone();
        access.admit_clients(extender_routes(extender), clients)
    });
    let guard = served.guard.clone().map(|guard| {
        let certified = guard.require_client_certificate;
        webhooks.route(guard::PATH, guard::webhook(guard), access, certified)
    });
    let mutate = served.mutate.clone();
    let mutate = mutate.map(|mutate| webhooks.route(mutate::PATH, mutate::webhook(mutate), access, false));
    let asked = [extender, guard, mutate].into_iter().flatten().fold(Router::new(), Router::merge);
    access.guard(inspection(&served)).merge(asked)
}

/// Endpoints for people and Prometheus.
fn inspection(served: &Served) -> Router {
    let explain = Router::new()
        .route("/explain", get(explain::explain))
        .route("/why", get(why::why))
        .with_state(served.judge.clone());
    let fragmentation = Router::new()
        .route("/fragmentation", get(fragmentation::fragmentation))
        .with_state(served.fragmentation.clone());
    let fit = Router::new().route("/fit", post(fit::fit)).with_state(served.fit.clone());
    let metrics = Router::new().route("/metrics", get(scrape)).with_state(served.clone());
    metrics.merge(explain).merge(fragmentation).merge(fit).merge(ui::routes(served.ui.clone()))
}

fn extender_routes(extender: Arc<Extender>) -> Router {
    Router::new().nest("/extender", extender::router(extender))
}

async fn elsewhere() -> Response {
    let text = "this port serves only probes. Metrics are served over HTTPS at serving.address; they are served here only if \
                healthAddress is a loopback address.\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn alive(State(served): State<Served>) -> Response {
    answer(served.health.alive())
}

async fn ready(State(served): State<Served>) -> Response {
    answer(served.health.ready())
}

fn answer(health: Result<(), String>) -> Response {
    match health {
        Ok(()) => (StatusCode::OK, "ok").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn scrape(State(served): State<Served>) -> Response {
    match served.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    struct Nobody;

    impl fit::Fitter for Nobody {
        fn fit(&self, _: &fit::FitQuestion) -> Result<Vec<u8>, fit::FitRefusal> {
            Err(fit::FitRefusal::Busy)
        }
    }

    #[test]
    fn what_others_can_reach_in_plain_is_for_probes_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        berth_scheduler::testing::with_engine(|engine, agent| {
            let judge = Arc::new(Judge::new(engine.clone(), agent));
            let (metrics, health) = (Metrics::default(), Health::default());
            let (extender, guard, mutate) = (None, None, None);
            let ui = Arc::new(ui::Feed::new(engine.clone(), ui::PageSources::default(), Arc::default()));
            let fit = FitEndpoint { fitter: Arc::new(Nobody), counters: Arc::default() };
            let served =
                Served { metrics, health, judge, extender, guard, mutate, fragmentation: None, ui, fit };
            for (is_local, path, status) in [
                (true, "/metrics", StatusCode::OK),
                (true, "/explain?pod=nobody", StatusCode::NOT_FOUND),
                (true, "/why?pod=nobody", StatusCode::NOT_FOUND),
                (true, "/fragmentation", StatusCode::NOT_FOUND),
                (true, "/ui", StatusCode::PERMANENT_REDIRECT),
                (true, "/ui/", StatusCode::OK),
                (true, "/extender/filter", StatusCode::NOT_FOUND),
                (true, "/fit", StatusCode::METHOD_NOT_ALLOWED),
                (false, "/fit", StatusCode::NOT_FOUND),
                (false, "/metrics", StatusCode::NOT_FOUND),
                (false, "/explain?pod=nobody", StatusCode::NOT_FOUND),
                (false, "/ui/", StatusCode::NOT_FOUND),
                (false, "/ui/stream", StatusCode::NOT_FOUND),
                (false, "/healthz", StatusCode::OK),
                (false, "/readyz", StatusCode::SERVICE_UNAVAILABLE),
            ] {
                let request = Request::get(path).body(Body::empty()).unwrap();
                let answer = plain_routes(served.clone(), is_local, true).oneshot(request);
                assert_eq!(runtime.block_on(answer).unwrap().status(), status, "{path}");
            }
        });
    }
}
