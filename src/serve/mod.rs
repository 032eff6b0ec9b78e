//! What berth serves over HTTP: health, readiness and metrics.

mod body;
pub mod extender;
mod fields;
pub mod forward;
pub mod guard;
mod health;
pub mod metrics;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

pub use health::Health;
use metrics::Metrics;

/// What the handlers need.
#[derive(Clone)]
pub struct Served {
    pub metrics: Metrics,
    pub health: Health,
}

/// Binds the address, so that an error is told before anything else starts.
///
/// # Errors
/// The address is in use or not of this machine; the text says which.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let explain =
        || format!("cannot listen on {address}: set healthAddress or --health-address to a free one");
    anyhow::Context::with_context(TcpListener::bind(address).await, explain)
}

/// Serves until `stop` resolves.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(served);
    axum::serve(listener, app).with_graceful_shutdown(stop).await
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
