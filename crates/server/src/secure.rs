//! HTTPS server: a router on a listener, with certificates that can change while it serves.
//!
//! Must not know: the routes, and who has access to them.

mod connection;
mod connection_slots;
mod material;
mod validity;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use berth_config::Serving;
use berth_kube_io::certificates::Issued;
use connection_slots::ConnectionSlots;
pub(crate) use connection_slots::{ClientGroup, mark_admitted};
use material::{Material, Seen};

/// Interval between checks of the certificate files.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Pause after a failed accept, mostly because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A verified client certificate; an extension of each request of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Empty if the certificate has none or several.
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// An HTTPS server. Clones are the same server.
#[derive(Clone)]
pub struct Secure(Arc<Shared>);

struct Shared {
    /// Configuration of new connections. When it changes, older connections are shut down gracefully: their client certificates were
    /// verified by CAs that may no longer be trusted.
    tls: watch::Sender<Arc<ServerConfig>>,
    material: Mutex<Material>,
    connections_max: usize,
    counters: Arc<TlsCounters>,
    draining: Arc<AtomicBool>,
}

/// Counters for metrics.
#[derive(Debug, Default)]
pub struct TlsCounters {
    pub open: AtomicUsize,
    /// Connections without an admitted request that were closed to make room for newer ones.
    pub closed_for_newer: AtomicU64,
    pub handshake_failures: AtomicU64,
    /// Expiry of the serving certificate, in seconds since 1970.
    pub certificate_expiry: AtomicI64,
}

impl TlsCounters {
    /// Whether the serving certificate has expired, so that clients that verify it refuse it.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.certificate_expiry.load(Relaxed) <= now.as_second()
    }
}

impl Secure {
    /// Reads the certificate files, or issues a certificate if none is configured.
    ///
    /// # Errors
    /// A file is unusable; the text says which and why.
    pub fn new(config: &Serving) -> anyhow::Result<Secure> {
        let now = Timestamp::now();
        let (mut material, tls) = Material::new(config, now)?;
        warn_of(&mut material, now);
        let counters = TlsCounters::default();
        counters.certificate_expiry.store(material.expiry().as_second(), Relaxed);
        Ok(Secure(Arc::new(Shared {
            tls: watch::Sender::new(tls),
            material: Mutex::new(material),
            connections_max: config.max_connections as usize,
            counters: Arc::new(counters),
            draining: Arc::default(),
        })))
    }

    /// Asks clients, with each answer, to close their HTTP/1 connections: they connect to another replica before this one stops. An
    /// HTTP/2 connection can be ended at any time without the loss of a request.
    pub fn drain(&self) {
        self.0.draining.store(true, Relaxed);
    }

    pub fn counters(&self) -> Arc<TlsCounters> {
        self.0.counters.clone()
    }

    /// Returns the serving certificate with its intermediates, and the CAs if berth issued them, PEM. Replicas that share the
    /// certificate verify each other with it.
    pub fn chain(&self) -> String {
        let material = self.0.material.lock();
        let Issued { certificate, authorities, .. } = material.shown();
        format!("{}\n{}", authorities.trim_end(), certificate)
    }

    /// Serves this certificate from now on; the caller renews it.
    ///
    /// # Errors
    /// The certificate is unusable; the previous one stays.
    pub fn install(&self, issued: &Issued) -> anyhow::Result<()> {
        let mut material = self.0.material.lock();
        let tls = material.install(issued)?;
        self.begin(&material, tls);
        Ok(())
    }

    /// Checks the files at an interval, and renews a certificate that berth issued. Never ends.
    pub async fn watch_files(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look(Timestamp::now());
        }
    }

    fn look(&self, now: Timestamp) {
        let mut material = self.0.material.lock();
        match material.look(now) {
            Seen::Same => {}
            Seen::New(tls) => {
                self.begin(&material, tls);
                tracing::info!(expires = %material.expiry(), "reloaded the serving certificates");
            }
            Seen::Unusable(error) => tracing::warn!(
                error = format!("{error:#}"),
                expires = %material.expiry(),
                "the changed certificate files are unusable; the previous certificates stay in use until they are fixed"
            ),
        }
        warn_of(&mut material, now);
    }

    fn begin(&self, material: &Material, tls: Arc<ServerConfig>) {
        self.0.counters.certificate_expiry.store(material.expiry().as_second(), Relaxed);
        self.0.tls.send_replace(tls);
    }

    /// Serves until `stop` resolves; requests in flight then get some seconds to end.
    pub async fn serve(&self, listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
        let slots = ConnectionSlots::new(self.0.connections_max);
        let stopping = watch::Sender::new(false);
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (slot, closed) = slots.take(peer.ip());
            let ends = connection::Ends {
                tls: self.0.tls.subscribe(),
                stopping: stopping.subscribe(),
                draining: self.0.draining.clone(),
            };
            let (router, counters) = (router.clone(), self.0.counters.clone());
            connections.spawn(async move {
                let _open = Open::new(&counters.open);
                let served = tokio::select! {
                    served = connection::serve(stream, router, slot, ends) => served,
                    Ok(()) = closed => {
                        counters.closed_for_newer.fetch_add(1, Relaxed);
                        return;
                    }
                };
                if let Err(error) = served {
                    counters.handshake_failures.fetch_add(1, Relaxed);
                    tracing::debug!(%peer, error, "TLS handshake failed");
                }
            });
        }
        drop(listener);
        stopping.send_replace(true);
        while connections.join_next().await.is_some() {}
    }
}

/// Logs a warning if clients refuse the serving certificate, or will soon.
fn warn_of(material: &mut Material, now: Timestamp) {
    if let Some((trouble, remedy)) = material.trouble(now) {
        tracing::warn!(expires = %material.expiry(), remedy, "{}", trouble.text());
    }
}

/// Counts a connection while it is open.
struct Open<'a>(&'a AtomicUsize);

impl Open<'_> {
    fn new(open: &AtomicUsize) -> Open<'_> {
        open.fetch_add(1, Relaxed);
        Open(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
