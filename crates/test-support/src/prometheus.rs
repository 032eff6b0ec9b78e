//! Fake Prometheus on a loopback port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response};
use axum::response::IntoResponse;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub path: String,
    pub authorization: Option<String>,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    pub form: BTreeMap<String, String>,
}

type Reply = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
/// Requests in order.
type Log = Arc<Mutex<Vec<RecordedRequest>>>;
type Script = dyn Fn(usize, RecordedRequest) -> Reply + Send + Sync;

/// Stops when dropped.
pub struct Fake {
    pub url: String,
    asked: Log,
    server: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl RecordedRequest {
    pub fn query(&self) -> &str {
        &self.form["query"]
    }

    pub fn is_cpu(&self) -> bool {
        self.query().contains("rate(")
    }

    /// Whether the query detects the names of labels.
    pub fn is_count(&self) -> bool {
        self.query().starts_with("count(")
    }

    /// Whether the query asks for the time.
    pub fn is_time(&self) -> bool {
        self.query() == "time()"
    }

    fn number(&self, name: &str) -> i64 {
        self.form[name].parse().expect("a whole number")
    }

    /// Returns the evaluation times of a range query.
    pub fn times(&self) -> Vec<i64> {
        let (start, end, step) = (self.number("start"), self.number("end"), self.number("step"));
        (0..=(end - start) / step).map(|index| start + index * step).collect()
    }

    /// Returns a valid response: one container, whose values are the times.
    pub fn answer(&self) -> String {
        if self.is_time() {
            return scalar(now_s());
        }
        if self.is_count() || self.query() == "vector(1)" {
            return vector(r#"{"metric":{},"value":[1,"1"]}"#);
        }
        let labels = r#""metric":{"namespace":"n","pod":"p","container":"c"}"#;
        if !self.path.ends_with("query_range") {
            let time = self.number("time");
            return vector(&format!(r#"{{{labels},"value":[{time},"{time}"]}}"#));
        }
        let values: Vec<String> = self.times().iter().map(|time| format!(r#"[{time},"{time}"]"#)).collect();
        matrix(&format!(r#"{{{labels},"values":[{}]}}"#, values.join(",")))
    }
}

pub fn matrix(elements: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"matrix","result":[{elements}]}}}}"#)
}

pub fn vector(elements: &str) -> String {
    matrix(elements).replace("matrix", "vector")
}

/// Returns the answer to a query for the time.
pub fn scalar(time_s: i64) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"scalar","result":[{time_s},"{time_s}"]}}}}"#)
}

fn now_s() -> i64 {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970");
    since_1970.as_secs().cast_signed()
}

/// Returns an error response of Prometheus.
pub fn error(status: u16, error_type: &str, error: &str) -> Response<Body> {
    let body = serde_json::json!({"status": "error", "errorType": error_type, "error": error}).to_string();
    Response::builder().status(status).body(body.into()).expect("a response")
}

impl Fake {
    /// Answers at once. `script` gets the number of the request and the request.
    pub async fn start<R: IntoResponse>(
        script: impl Fn(usize, &RecordedRequest) -> R + Send + Sync + 'static,
    ) -> Fake {
        Self::start_async(move |number, asked| {
            let reply = script(number, &asked).into_response();
            async move { reply }
        })
        .await
    }

    pub async fn start_async<F>(script: impl Fn(usize, RecordedRequest) -> F + Send + Sync + 'static) -> Fake
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let (listener, address) = listen().await;
        let url = format!("http://{address}");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Script> = Arc::new(move |number, request| Box::pin(script(number, request)));
        let app = Router::new().fallback(handle).with_state((asked.clone(), script));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Fake { url, asked, server }
    }

    /// Returns valid responses over HTTPS, with its own certificate; the second value is the certificate, PEM.
    pub async fn start_tls() -> (Fake, String) {
        let (listener, address) = listen().await;
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        install_provider();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .expect("a certificate and its key");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Script> =
            Arc::new(|_, asked| Box::pin(async move { asked.answer().into_response() }));
        let app = Router::new().fallback(handle).with_state((asked.clone(), script));
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                // A client that does not trust the certificate closes the connection.
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let service = hyper_util::service::TowerToHyperService::new(app.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        (Fake { url: format!("https://{address}"), asked, server }, own.cert.pem())
    }

    /// Returns all requests so far.
    pub fn asked(&self) -> Vec<RecordedRequest> {
        self.asked.lock().clone()
    }
}

pub fn install_provider() {
    // Only the first call succeeds.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

async fn handle(State((asked, script)): State<(Log, Arc<Script>)>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let text = |value: &HeaderValue| value.to_str().expect("a text").to_owned();
    let headers: BTreeMap<String, String> =
        request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let authorization = headers.get("authorization").cloned();
    assert_eq!(request.method(), "POST");
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a form");
    let form = format!("http://x/?{}", String::from_utf8_lossy(&body));
    let form = reqwest::Url::parse(&form).expect("a form").query_pairs().into_owned().collect();
    let request = RecordedRequest { path, authorization, headers, form };
    let number = {
        let mut asked = asked.lock();
        asked.push(request.clone());
        asked.len() - 1
    };
    script(number, request).await
}
