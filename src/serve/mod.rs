//! What berth serves over HTTP: health and readiness in plain, and everything else over TLS (`secure.rs`).

pub mod access;
mod health;
pub mod metrics;
pub mod secure;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

pub use access::Access;
pub use health::Health;
use metrics::Metrics;
pub use secure::Secure;

/// What the handlers need.
#[derive(Clone)]
pub struct Served {
    pub metrics: Metrics,
    pub health: Health,
}

/// Binds the address, so that an error is told before anything else starts. `setting` is where it comes from.
///
/// # Errors
/// The address is in use or not of this machine; the text says which.
pub async fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    let explain = || format!("cannot listen on {address}: set {setting} to a free one");
    anyhow::Context::with_context(TcpListener::bind(address).await, explain)
}

/// Serves in plain HTTP until `stop` resolves: what anybody may see, and the rest only to this machine.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let is_local = listener.local_addr()?.ip().to_canonical().is_loopback();
    axum::serve(listener, plain_routes(served, is_local)).with_graceful_shutdown(stop).await
}

fn plain_routes(served: Served, is_local: bool) -> Router {
    let metrics = if is_local { get(scrape) } else { get(elsewhere) };
    Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", metrics)
        .with_state(served)
}

/// Everything that is served over HTTPS.
pub fn secure_routes(served: Served, access: &Access) -> Router {
    access.guard(Router::new().route("/metrics", get(scrape)).with_state(served))
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    #[tokio::test]
    async fn what_others_can_reach_in_plain_is_for_probes_alone() {
        let served = Served { metrics: Metrics::default(), health: Health::default() };
        for (is_local, path, status) in [
            (true, "/metrics", StatusCode::OK),
            (false, "/metrics", StatusCode::NOT_FOUND),
            (false, "/healthz", StatusCode::OK),
            (false, "/readyz", StatusCode::SERVICE_UNAVAILABLE),
        ] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let answer = plain_routes(served.clone(), is_local).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{path}");
        }
    }
}
