//! One connection: the handshake, its requests, and the reasons for its end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
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
use berth_kube_io::certificates::Certificate;

const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long the head of a request may take; a kept HTTP/1 connection without a request ends after it, too.
const HEADER_MAX: Duration = Duration::from_secs(10);
/// Bytes of the head of an HTTP/1 request; HTTP/2 has a limit of 16 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// A connection without a request for so long, up to twice that, ends.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a request may take, its body included.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// How long requests under way may take when the connection shall end.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Requests of one HTTP/2 connection at the same time: what an API server opens to one webhook at most.
const STREAMS_MAX: u32 = 250;

/// What ends a connection from outside.
pub(super) struct Ends {
    pub tls: watch::Receiver<Arc<ServerConfig>>,
    pub stopping: watch::Receiver<bool>,
}

/// Serves until one side has enough of it.
///
/// # Errors
/// When there was no handshake; the text says why. Errors of HTTP concern nobody.
pub(super) async fn serve(stream: TcpStream, router: Router, mut ends: Ends) -> Result<(), String> {
    // Answers are small, and waited for.
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
        activity: activity.clone(),
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

/// The limits of HTTP, with the version that was negotiated: the look at the first bytes would have none.
fn http(is_http2: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_MAX).max_buf_size(HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    if is_http2 { builder.http2_only() } else { builder.http1_only() }
}

/// The certificate that the client showed, which the handshake has verified.
fn certificate_of(stream: &TlsStream<TcpStream>) -> Result<Option<Certificate>, String> {
    let Some(der) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) else {
        return Ok(None);
    };
    let unreadable = || "the client's certificate cannot be read".to_owned();
    Certificate::from_der(der).map(Some).ok_or_else(unreadable)
}

/// Resolves when the connection shall end.
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

/// The requests of one connection.
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

/// A request under way; it may also end by being forgotten.
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

/// The router, as one connection sees it.
struct Connection {
    router: TowerToHyperService<Router>,
    client: Option<ClientCertificate>,
    activity: Arc<Activity>,
}

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.clone());
        }
        let running = Running::new(&self.activity);
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = timeout(REQUEST_MAX, answer).await;
            drop(running);
            answer.unwrap_or_else(|_| {
                let why = format!("the request took longer than {} s\n", REQUEST_MAX.as_secs());
                Ok((StatusCode::REQUEST_TIMEOUT, why).into_response())
            })
        })
    }
}
