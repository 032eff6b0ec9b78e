//! Proxy in front of the API server that fails some requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, Uri, header};
use kube::Client;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Handling of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// It never arrives.
    Refuse(StatusCode),
    /// It is carried out, but the client gets an error.
    LoseAnswer,
}

type Decide = dyn Fn(usize, &Method, &Uri) -> Fate + Send + Sync;

struct Shared {
    client: Client,
    decide: Box<Decide>,
    count: AtomicUsize,
    /// Verb, path and query of each request.
    requests: Mutex<Vec<(Method, Uri)>>,
}

/// Ends when dropped.
pub struct Flaky {
    task: JoinHandle<()>,
    shared: Arc<Shared>,
    folder: TempDir,
}

impl Flaky {
    /// `decide` gets the number of the request, its verb, and its path and query.
    pub async fn start(
        client: Client,
        decide: impl Fn(usize, &Method, &Uri) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let decide = Box::new(decide);
        let (count, requests) = (AtomicUsize::new(0), Mutex::default());
        let shared = Arc::new(Shared { client, decide, count, requests });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().fallback(forward).with_state(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: 'http://{address}'}}}}]\n\
             users: [{{name: it, user: {{}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("written");
        Self { task, shared, folder }
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<(Method, Uri)> {
        self.shared.requests.lock().clone()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(status: StatusCode) -> Response<Body> {
    let body =
        format!(r#"{{"kind":"Status","status":"Failure","message":"flaky","code":{}}}"#, status.as_u16());
    let mut response = Response::builder().status(status);
    if status == StatusCode::TOO_MANY_REQUESTS {
        // As the API server does.
        response = response.header(header::RETRY_AFTER, "1");
    }
    response.body(Body::from(body)).expect("an answer")
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let number = shared.count.fetch_add(1, Ordering::Relaxed);
    shared.requests.lock().push((request.method().clone(), request.uri().clone()));
    let fate = (shared.decide)(number, request.method(), request.uri());
    if let Fate::Refuse(status) = fate {
        return answer(status);
    }
    let (mut parts, body) = request.into_parts();
    for name in [header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::ACCEPT_ENCODING] {
        parts.headers.remove(name);
    }
    let body = to_bytes(body, 64 << 20).await.unwrap_or_default();
    let request = axum::http::Request::from_parts(parts, kube::client::Body::from(body));
    match shared.client.send(request).await {
        Ok(_) if fate == Fate::LoseAnswer => answer(StatusCode::INTERNAL_SERVER_ERROR),
        Ok(response) => response.map(Body::new),
        Err(error) => {
            eprintln!("the proxy got no answer: {error}");
            answer(StatusCode::BAD_GATEWAY)
        }
    }
}
