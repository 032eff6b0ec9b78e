//! One connection: the handshake, its requests, and the conditions that close it.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::ClientCertificate;
use super::connection_slots::ConnectionSlot;
use berth_kube_io::certificates::Certificate;

const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Timeout of a request head; an idle HTTP/1 keep-alive connection is closed after it, too.
const HEADER_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of an HTTP/1 request head; HTTP/2 has a limit of 16 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Idle timeout of a connection; the actual time is up to twice that.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Timeout of a request, its body included.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Time for requests in flight when the connection is shut down.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Concurrent requests of one HTTP/2 connection: the most that an API server opens to one webhook.
const STREAMS_MAX: u32 = 250;

/// Signals that close a connection from outside.
pub(super) struct Ends {
    pub tls: watch::Receiver<Arc<ServerConfig>>,
    pub stopping: watch::Receiver<bool>,
    /// Whether clients are asked to close HTTP/1 connections.
    pub draining: Arc<AtomicBool>,
}

/// Serves until one side closes the connection.
///
/// # Errors
/// The handshake failed; the text says why. HTTP errors are ignored.
pub(super) async fn serve(
    stream: TcpStream,
    router: Router,
    slot: ConnectionSlot,
    mut ends: Ends,
) -> Result<(), String> {
    // Responses are small, and clients wait for them.
    let _ = stream.set_nodelay(true);
    let tls = ends.tls.borrow_and_update().clone();
    let stream = match timeout(HANDSHAKE_MAX, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("not done within {} s", HANDSHAKE_MAX.as_secs())),
    };
    let shown = certificate_of(&stream)?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let activity = Arc::new(Activity::default());
    let service = Connection {
        router: TowerToHyperService::new(router),
        client: shown.as_ref().map(|certificate| ClientCertificate {
            common_name: certificate.common_name.clone(),
            organizations: certificate.organizations.clone(),
        }),
        slot,
        activity: activity.clone(),
        closes: (!is_http2).then(|| ends.draining.clone()),
    };
    let http = http(is_http2);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return Ok(()),
        () = ended(&mut ends, shown.as_ref(), &activity) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(CLOSE_MAX, connection).await;
    Ok(())
}

/// Sets the HTTP limits for the negotiated version: detecting it from the first bytes would have no limits.
fn http(is_http2: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_MAX).max_buf_size(HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    if is_http2 { builder.http2_only() } else { builder.http1_only() }
}

/// Returns the client certificate, which the handshake has verified.
fn certificate_of(stream: &TlsStream<TcpStream>) -> Result<Option<Certificate>, String> {
    let Some(der) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) else {
        return Ok(None);
    };
    let unreadable = || "cannot decode the client's certificate".to_owned();
    Certificate::from_der(der).map(Some).ok_or_else(unreadable)
}

/// Resolves when the connection must be closed.
async fn ended(ends: &mut Ends, client: Option<&Certificate>, activity: &Activity) {
    tokio::select! {
        _ = ends.tls.changed() => {}
        _ = ends.stopping.wait_for(|stopping| *stopping) => {}
        () = activity.is_idle() => {}
        () = expired(client) => {}
    }
}

async fn expired(client: Option<&Certificate>) {
    match client {
        Some(certificate) => sleep(certificate.left(Timestamp::now())).await,
        None => std::future::pending().await,
    }
}

/// Requests in flight and idle time of one connection.
#[derive(Default)]
struct Activity {
    begun: AtomicU64,
    running: AtomicUsize,
}

impl Activity {
    async fn is_idle(&self) {
        loop {
            let before = self.begun.load(Relaxed);
            sleep(IDLE_MAX).await;
            if self.running.load(Relaxed) == 0 && self.begun.load(Relaxed) == before {
                return;
            }
        }
    }
}

/// A request in flight; it also ends when it is dropped.
struct Running(Arc<Activity>);

impl Running {
    fn new(activity: &Arc<Activity>) -> Running {
        activity.begun.fetch_add(1, Relaxed);
        activity.running.fetch_add(1, Relaxed);
        Running(activity.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// The router as a service of one connection.
struct Connection {
    router: TowerToHyperService<Router>,
    client: Option<ClientCertificate>,
    slot: ConnectionSlot,
    activity: Arc<Activity>,
    /// Of HTTP/1: whether clients are asked to close it.
    closes: Option<Arc<AtomicBool>>,
}

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.clone());
        }
        request.extensions_mut().insert(self.slot.clone());
        let running = Running::new(&self.activity);
        let (answer, closes) = (self.router.call(request), self.closes.clone());
        Box::pin(async move {
            let answer = timeout(REQUEST_MAX, answer).await;
            drop(running);
            let mut answer = answer.unwrap_or_else(|_| {
                let why = format!("the request took longer than {} s\n", REQUEST_MAX.as_secs());
                Ok((StatusCode::REQUEST_TIMEOUT, why).into_response())
            });
            if let (Ok(answer), Some(true)) = (&mut answer, closes.map(|closes| closes.load(Relaxed))) {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        })
    }
}
