//! A collector of OpenTelemetry that takes spans, as OTLP over HTTP in JSON.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What was sent to it.
#[derive(Debug)]
pub struct SpanCollector {
    requests: Mutex<Vec<Value>>,
    status: StatusCode,
}

impl SpanCollector {
    /// Starts one that answers all requests with this status. Returns its URL, too.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(status: StatusCode) -> (Arc<SpanCollector>, String) {
        async fn take(
            State(collector): State<Arc<SpanCollector>>,
            Json(body): Json<Value>,
        ) -> (StatusCode, Json<Value>) {
            collector.requests.lock().push(body);
            (collector.status, Json(json!({})))
        }
        let collector = Arc::new(SpanCollector { requests: Mutex::default(), status });
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, url)
    }

    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().clone()
    }

    /// Returns all spans.
    ///
    /// # Panics
    /// If a request has none.
    pub fn spans(&self) -> Vec<Value> {
        let requests = self.requests.lock();
        let scopes = requests
            .iter()
            .flat_map(|body| body["resourceSpans"][0]["scopeSpans"].as_array().expect("scopes"));
        scopes.flat_map(|scope| scope["spans"].as_array().expect("spans").clone()).collect()
    }

    /// Returns the spans of this name.
    ///
    /// # Panics
    /// If a request has no spans.
    pub fn named(&self, name: &str) -> Vec<Value> {
        self.spans().into_iter().filter(|span| span["name"] == name).collect()
    }
}
