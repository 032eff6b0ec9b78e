//! HTTPS: a router on a listener, with certificates that can change while it serves.
//!
//! May not know: what is served, and who may have it.

mod connection;
mod material;
mod validity;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use berth_config::Serving;
use berth_kube_io::certificates::Issued;
use material::{Material, Seen};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after a failed accept: out of file descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client certificate that was shown and verified; an extension of each request of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Empty when the certificate has none, or several.
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// Serves HTTPS. Clones are the same server.
#[derive(Clone)]
pub struct Secure(Arc<Shared>);

struct Shared {
    /// What a new connection begins with. When it changes, older connections end in order: their client certificates were
    /// verified by CAs that may no longer count.
    tls: watch::Sender<Arc<ServerConfig>>,
    material: Mutex<Material>,
    connections_max: usize,
    counters: Arc<Counters>,
}

/// What the server did, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub open: AtomicUsize,
    /// Connections closed at once, as there were too many.
    pub refused: AtomicU64,
    pub handshake_failures: AtomicU64,
    /// When the certificate that is shown ends, in seconds since 1970.
    pub certificate_expiry: AtomicI64,
}

impl Counters {
    /// Whether clients that look at the certificate refuse it.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.certificate_expiry.load(Relaxed) <= now.as_second()
    }
}

impl Secure {
    /// Reads the files, or makes a certificate when none is given.
    ///
    /// # Errors
    /// A file that cannot be used; the text says which and why.
    pub fn new(config: &Serving) -> anyhow::Result<Secure> {
        let now = Timestamp::now();
        let (mut material, tls) = Material::new(config, now)?;
        warn_of(&mut material, now);
        let counters = Counters::default();
        counters.certificate_expiry.store(material.expiry().as_second(), Relaxed);
        Ok(Secure(Arc::new(Shared {
            tls: watch::Sender::new(tls),
            material: Mutex::new(material),
            connections_max: config.max_connections as usize,
            counters: Arc::new(counters),
        })))
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.0.counters.clone()
    }

    /// The certificate that is shown with what leads to its CA, and the CAs if berth made them, PEM: by it, replicas that share
    /// it know each other.
    pub fn chain(&self) -> String {
        let material = self.0.material.lock();
        let Issued { certificate, authorities, .. } = material.shown();
        format!("{}\n{}", authorities.trim_end(), certificate)
    }

    /// Shows this certificate from now on, which somebody else renews.
    ///
    /// # Errors
    /// When it cannot be used; the one before stays.
    pub fn install(&self, issued: &Issued) -> anyhow::Result<()> {
        let mut material = self.0.material.lock();
        let tls = material.install(issued)?;
        self.begin(&material, tls);
        Ok(())
    }

    /// Looks at the files from time to time, and renews a certificate that berth made. Never ends.
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
                tracing::info!(expires = %material.expiry(), "the certificates of HTTPS were read again");
            }
            Seen::Unusable(error) => tracing::warn!(
                error = format!("{error:#}"),
                expires = %material.expiry(),
                "the certificates of HTTPS changed and cannot be used; the ones before stay until the files are right"
            ),
        }
        warn_of(&mut material, now);
    }

    fn begin(&self, material: &Material, tls: Arc<ServerConfig>) {
        self.0.counters.certificate_expiry.store(material.expiry().as_second(), Relaxed);
        self.0.tls.send_replace(tls);
    }

    /// Serves until `stop` resolves; requests under way then get some seconds to end.
    pub async fn serve(&self, listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
        let slots = Arc::new(Semaphore::new(self.0.connections_max));
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
            // Without a slot the connection is closed by being dropped.
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                self.0.counters.refused.fetch_add(1, Relaxed);
                continue;
            };
            let ends = connection::Ends { tls: self.0.tls.subscribe(), stopping: stopping.subscribe() };
            let (router, counters) = (router.clone(), self.0.counters.clone());
            connections.spawn(async move {
                let _open = Open::new(&counters.open);
                if let Err(error) = connection::serve(stream, router, ends).await {
                    counters.handshake_failures.fetch_add(1, Relaxed);
                    tracing::debug!(%peer, error, "a TLS handshake failed");
                }
                drop(slot);
            });
        }
        drop(listener);
        stopping.send_replace(true);
        while connections.join_next().await.is_some() {}
    }
}

/// Tells of a certificate that nobody accepts, or soon nobody will.
fn warn_of(material: &mut Material, now: Timestamp) {
    if let Some((trouble, remedy)) = material.trouble(now) {
        tracing::warn!(expires = %material.expiry(), remedy, "{}", trouble.text());
    }
}

/// Counts a connection while it is there.
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
