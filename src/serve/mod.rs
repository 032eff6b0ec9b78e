//! What berth serves over HTTP: health and readiness in plain, and everything else over TLS (`secure.rs`).

mod body;
mod explain;
pub mod extender;
mod fields;
pub mod forward;
pub mod guard;
mod health;
pub mod metrics;
pub mod secure;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use extender::{Extender, Judge};
use guard::Guard;
pub use health::Health;
use metrics::Metrics;
pub use secure::Secure;

/// What the handlers need.
#[derive(Clone)]
pub struct Served {
    pub metrics: Metrics,
    pub health: Health,
    pub judge: Arc<Judge>,
    pub extender: Option<Arc<Extender>>,
    pub guard: Option<Arc<Guard>>,
}

/// Binds the address, so that an error is told before anything else starts. `setting` is where it comes from.
///
/// # Errors
/// The address is in use or not of this machine; the text says which.
pub async fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    let explain = || format!("cannot listen on {address}: set {setting} to a free one");
    anyhow::Context::with_context(TcpListener::bind(address).await, explain)
}

/// Serves in plain HTTP until `stop` resolves: what anybody may see, and the rest only to this machine; the extender only if
/// `plaintext` is set.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    plaintext: bool,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let probes = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(served.clone());
    let is_local = listener.local_addr()?.ip().to_canonical().is_loopback();
    let rest = match is_local {
        true => {
            let extender = served.extender.clone().filter(|_| plaintext);
            inspection(&served).merge(extender_routes(extender))
        }
        false => Router::new().route("/metrics", get(elsewhere)).route("/explain", get(elsewhere)),
    };
    axum::serve(listener, probes.merge(rest)).with_graceful_shutdown(stop).await
}

/// Everything that is served over HTTPS.
pub fn secure_routes(served: Served) -> Router {
    let guard = served.guard.clone().map(|guard| Router::new().nest("/guard", guard::router(guard)));
    inspection(&served).merge(extender_routes(served.extender)).merge(guard.unwrap_or_default())
}

/// What people and Prometheus look at.
fn inspection(served: &Served) -> Router {
    let explain = Router::new().route("/explain", get(explain::explain)).with_state(served.judge.clone());
    Router::new().route("/metrics", get(scrape)).with_state(served.clone()).merge(explain)
}

fn extender_routes(extender: Option<Arc<Extender>>) -> Router {
    let routes = extender.map(|extender| Router::new().nest("/extender", extender::router(extender)));
    routes.unwrap_or_default()
}

async fn elsewhere() -> Response {
    let text = "not here: this port is for probes. Metrics are served over HTTPS at serving.address, and here only when \
                healthAddress is a loopback address.\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn alive(State(served): State<Served>) -> Response {
    answer(served.health.alive())
}

async fn ready(State(served): State<Served>) -> Response {
    answer(served.health.ready())
}

fn answer(health: Result<(), &'static str>) -> Response {
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
