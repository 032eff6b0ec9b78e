//! A local address whose queries the API server forwards to a Service in the cluster.
//!
//! The client of Prometheus does not know the ways to sign in to Kubernetes (plugins of clouds, client certificates, tokens that are
//! renewed); the client of Kubernetes does. So it sends the queries, as `kubectl proxy` would, and only those of this process: they
//! carry a random token, which is not sent on.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use berth_kube_io::webhook_path::random_token;
use berth_model::with_causes;

/// Longest query: a form, of which a list of namespaces is most.
const QUERY_BYTES_MAX: usize = 1 << 20;

/// Stops when dropped.
pub struct ServiceProxy {
    pub url: String,
    /// The bearer token of its queries.
    pub token: String,
    server: JoinHandle<()>,
}

struct Forwarding {
    client: Client,
    /// Path at the API server that stands for the root.
    path: String,
    authorization: String,
}

impl Drop for ServiceProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ServiceProxy {
    /// Forwards queries to this path of the API server.
    ///
    /// # Errors
    /// There is no local port, or no random number.
    pub async fn start(client: Client, path: String) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot open a local port")?;
        let url = format!("http://{}", listener.local_addr().context("cannot open a local port")?);
        let token = random_token().map_err(|_| anyhow!("the system has no random numbers"))?;
        let forwarding = Forwarding { client, path, authorization: format!("Bearer {token}") };
        let app = Router::new().fallback(forward).with_state(Arc::new(forwarding));
        let server = tokio::spawn(async move {
            // Ends only with the process, or when this is dropped.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { url, token, server })
    }
}

async fn forward(State(to): State<Arc<Forwarding>>, request: Request<Body>) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    if parts.headers.get(AUTHORIZATION).is_none_or(|own| own.as_bytes() != to.authorization.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Ok(body) = to_bytes(body, QUERY_BYTES_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let Ok(uri) = format!("{}{}", to.path, parts.uri).parse() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    parts.uri = uri;
    // Those of the connection that ends here.
    for header in [AUTHORIZATION, HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(header);
    }
    match to.client.send(Request::from_parts(parts, body.to_vec().into())).await {
        Ok(response) => response.map(Body::new),
        Err(error) => {
            let problem = format!("the API server cannot be reached: {}", with_causes(&error));
            (StatusCode::BAD_GATEWAY, problem).into_response()
        }
    }
}
