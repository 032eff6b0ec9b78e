//! Fencing of leader-only requests: their connections refuse to write after the end of leadership.
//!
//! A check before the request is not enough: a process that is suspended between the check and the write would still send the
//! request when it resumes. Here the connection itself checks, with only a system call between the check and the write. Data that
//! the kernel accepted before is sent at once; the API server is asked to abort such a request (`?timeout=`) before another
//! process can lead.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kube::client::ConfigExt;
use tokio::net::TcpStream;
use tower::{Service, ServiceBuilder, ServiceExt};

use super::client::SERVER_TIMEOUT;
use super::{Deadline, LeaseConfig};

/// The deadline for sending requests, and the API server's timeout per request.
#[derive(Clone)]
pub struct Fence {
    deadline: Deadline,
    server_timeout: Duration,
}

/// Part of the gap between the renew deadline and the expiry of the lease that is reserved for requests in transit.
const ON_THE_WAY: Duration = Duration::from_secs(1);

impl Fence {
    pub fn new(deadline: Deadline, lease: &LeaseConfig) -> Fence {
        let slack = lease.duration.saturating_sub(lease.renew_deadline);
        let server_timeout = slack.saturating_sub(ON_THE_WAY).max(slack / 2).min(SERVER_TIMEOUT);
        Fence { deadline, server_timeout }
    }

    /// Returns the timeout that is sent to the API server.
    pub(crate) fn server_timeout(&self) -> Duration {
        self.server_timeout
    }

    /// Returns a client that sends every request once, and none after the deadline.
    ///
    /// # Errors
    /// The configuration is invalid: unreadable certificates, or a proxy.
    pub fn client(&self, config: kube::Config) -> kube::Result<Client> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(config.connect_timeout);
        let connector = Fenced { inner: http, deadline: self.deadline.clone() };
        let connector = config.rustls_https_connector_with_connector(connector)?;
        let sender = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(tower::BoxError::from)
            .service(sender);
        Ok(Client::new(service.boxed(), config.default_namespace.clone()))
    }
}

/// A fenced connector or connection. Clones of a connector share the deadline.
#[derive(Clone)]
struct Fenced<T> {
    inner: T,
    deadline: Deadline,
}

impl Service<Uri> for Fenced<HttpConnector> {
    type Response = Fenced<TokioIo<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connecting, deadline) = (self.inner.call(to), self.deadline.clone());
        Box::pin(async move { Ok(Fenced { inner: connecting.await?, deadline }) })
    }
}

impl<T> Fenced<T> {
    fn check(&self) -> io::Result<()> {
        match self.deadline.is_ahead() {
            true => Ok(()),
            false => Err(io::Error::other("leadership ended before the request was sent")),
        }
    }
}

impl<T: Read + Unpin> Read for Fenced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Fenced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }
}

impl<T: Connection> Connection for Fenced<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::TokioIo;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_connection_writes_nothing_once_the_deadline_has_passed() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let deadline = Deadline::default();
        deadline.set(Some(Instant::now() + Duration::from_secs(2)), None);
        let mut stream = Fenced { inner: TokioIo::new(ours), deadline };
        let mut write = async |bytes: &'static [u8]| {
            poll_fn(|context| Pin::new(&mut stream).poll_write(context, bytes)).await
        };
        assert_eq!(write(b"first").await.expect("we lead"), 5);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(write(b"late").await.is_err());
        drop(stream);
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).await.expect("the other end reads");
        assert_eq!(arrived, b"first");
    }

    #[test]
    fn the_api_server_gives_a_request_up_before_another_can_lead() {
        let lease = LeaseConfig::new("ns", "berth", "me");
        let fence = Fence::new(Deadline::default(), &lease);
        assert_eq!(fence.server_timeout(), Duration::from_secs(4));
        let close = LeaseConfig { renew_deadline: Duration::from_millis(14_500), ..lease };
        assert_eq!(Fence::new(Deadline::default(), &close).server_timeout(), Duration::from_millis(250));
    }
}
