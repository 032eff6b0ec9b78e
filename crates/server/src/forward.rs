//! Forwarding of requests from other replicas to the leader: only the holder of the Lease has a ledger that every bind goes
//! through.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::Mutex;
use reqwest::{Certificate, Client};
use serde::Deserialize;
use tokio::sync::watch;

use berth_kube_io::Holder;

/// A forwarded request is not forwarded again: otherwise two replicas that take each other for the leader would loop.
pub const FORWARDED: &str = "berth-forwarded";

/// A bind takes as long as the API server takes.
const BIND_TIMEOUT: Duration = Duration::from_secs(20);
/// The API server's timeout for a review is 1 s.
const REVIEW_TIMEOUT: Duration = Duration::from_millis(900);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Leadership of this process, and a client for the leader. Cheap to clone.
#[derive(Clone)]
pub struct Forward {
    shared: Arc<Shared>,
}

struct Shared {
    own_term: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    leader: watch::Receiver<Option<Holder>>,
    trust: Trust,
    client: Mutex<Option<(Holder, String, Client)>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BindingResult {
    error: String,
}

/// TLS trust and credentials between replicas.
pub struct Trust {
    /// The CAs of the replicas' certificates, PEM.
    pub ca: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// A DNS name that the replicas' certificates are valid for.
    pub name: String,
    /// The file with berth's service account token, which the extender of the other replica requires.
    pub token_file: Option<PathBuf>,
}

impl Forward {
    /// `ours` is called for each request and returns the term in which this process leads now.
    pub fn new(
        ours: impl Fn() -> Option<u64> + Send + Sync + 'static,
        leader: watch::Receiver<Option<Holder>>,
        trust: Trust,
    ) -> Self {
        Forward {
            shared: Arc::new(Shared { own_term: Box::new(ours), leader, trust, client: Mutex::default() }),
        }
    }

    /// Returns the term in which this process leads, if it does.
    pub fn own_term(&self) -> Option<u64> {
        (self.shared.own_term)()
    }

    /// Forwards a bind to the leader. `body` is `ExtenderBindingArgs`.
    ///
    /// # Errors
    /// The error the leader returned, or why the leader could not be reached.
    pub async fn bind(&self, body: Bytes) -> Result<(), String> {
        let answer = self.post("/extender/bind", body, BIND_TIMEOUT).await?;
        let result: BindingResult = serde_json::from_slice(&answer)
            .map_err(|error| format!("cannot decode the leader's response: {error}"))?;
        if result.error.is_empty() { Ok(()) } else { Err(result.error) }
    }

    /// Forwards a review to the leader. Both bodies are an `AdmissionReview`.
    ///
    /// # Errors
    /// Why the leader could not be reached.
    pub async fn review(&self, body: Bytes) -> Result<Bytes, String> {
        self.post(super::guard::PATH, body, REVIEW_TIMEOUT).await
    }

    async fn post(&self, path: &str, body: Bytes, timeout: Duration) -> Result<Bytes, String> {
        let (leader, client) = self.client()?;
        let port = leader.address.map_or(0, |address| address.port());
        let url = format!("https://{}:{port}{path}", self.shared.trust.name);
        let mut request = client.post(url).timeout(timeout).header(FORWARDED, "1").body(body);
        if let Some(file) = &self.shared.trust.token_file {
            // Blocking is fine: a small file in memory.
            let token = std::fs::read_to_string(file);
            request = request.bearer_auth(token.map_err(|error| error.to_string())?.trim());
        }
        let explain = |error: reqwest::Error| {
            format!("cannot reach the leader {}: {}", leader.identity, berth_model::with_causes(&error))
        };
        let answer = request.send().await.map_err(explain)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(explain)?;
        match status.is_success() {
            true => Ok(body),
            false => Err(format!("the leader {} returned {status}", leader.identity)),
        }
    }

    /// Returns the leader and a client that reaches it.
    fn client(&self) -> Result<(Holder, Client), String> {
        let Some(leader) = self.shared.leader.borrow().clone() else {
            return Err("no berth replica is the leader now; retry".to_owned());
        };
        let Some(address) = leader.address else {
            return Err(format!("the leader {} does not publish its HTTPS address", leader.identity));
        };
        let trust = &self.shared.trust;
        let ca = (trust.ca)().ok_or("no CA to verify the leader's certificate with")?;
        let mut known = self.shared.client.lock();
        if let Some((of, by, client)) = &*known
            && *of == leader
            && *by == ca
        {
            return Ok((leader, client.clone()));
        }
        let explain = |error: reqwest::Error| format!("cannot create a client for the leader: {error}");
        let mut builder = Client::builder()
            .resolve(&trust.name, address)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(60));
        for certificate in Certificate::from_pem_bundle(ca.as_bytes()).map_err(explain)? {
            builder = builder.add_root_certificate(certificate);
        }
        let client = builder.build().map_err(explain)?;
        *known = Some((leader.clone(), ca, client.clone()));
        Ok((leader, client))
    }
}
