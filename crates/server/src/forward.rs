//! Forwarding of requests from other replicas to the leader: only the holder of the Lease has a ledger that every bind goes
//! through.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
/// How long a bind waits for a replica that decides.
const BIND_PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two attempts while no replica decides: the lease is being handed over.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Leadership of this process, and a client for the leader. Cheap to clone.
#[derive(Clone)]
pub struct Forward {
    shared: Arc<Shared>,
}

struct Shared {
    ours: OwnTerm,
    leader: watch::Receiver<Option<Holder>>,
    trust: Trust,
    client: Mutex<Option<(Holder, String, Client)>>,
}

/// Leadership of this process. Each is called for every request.
pub struct OwnTerm {
    /// Returns the term in which this process may begin binds now.
    pub binds: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Returns the term in which this process may begin reviews now.
    pub reviews: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Returns whether decisions that began in this term may still finish.
    pub finishes: Box<dyn Fn(u64) -> bool + Send + Sync>,
    pub begun: BegunDecisions,
}

/// Decisions about requests of others that have begun and not ended. Clones share it.
#[derive(Clone, Default)]
pub struct BegunDecisions {
    pub binds: Begun,
    pub reviews: Begun,
}

/// Counts decisions that have begun and not ended. Clones share it.
#[derive(Clone, Default)]
pub struct Begun(Arc<AtomicUsize>);

/// A decision that has begun; it ends when it is dropped.
pub struct OwnDecision {
    pub term: u64,
    begun: Begun,
}

impl Begun {
    /// Whether all have ended. Where no more may begin, it stays so: the count is raised before the term is looked at.
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    fn begin(&self, term: impl Fn() -> Option<u64>) -> Option<OwnDecision> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut decision = OwnDecision { term: 0, begun: self.clone() };
        decision.term = term()?;
        Some(decision)
    }
}

impl Drop for OwnDecision {
    fn drop(&mut self) {
        self.begun.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BindingResult {
    error: String,
}

/// How long to ask for a leader.
struct Patience {
    most: Duration,
    /// Timeout of one attempt; `None`: what is left.
    attempt: Option<Duration>,
}

/// Where a request that arrived at this process was answered.
pub enum Elsewhere<T = Bytes> {
    /// By the leader.
    Answered(T),
    /// This process decides by now.
    Here,
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
    pub fn new(ours: OwnTerm, leader: watch::Receiver<Option<Holder>>, trust: Trust) -> Self {
        Forward { shared: Arc::new(Shared { ours, leader, trust, client: Mutex::default() }) }
    }

    /// Begins to decide about a bind, if this process may.
    pub fn begin_bind(&self) -> Option<OwnDecision> {
        let OwnTerm { binds, begun, .. } = &self.shared.ours;
        begun.binds.begin(binds)
    }

    /// Begins a review, if this process may.
    pub fn begin_review(&self) -> Option<OwnDecision> {
        let OwnTerm { reviews, begun, .. } = &self.shared.ours;
        begun.reviews.begin(reviews)
    }

    /// Returns whether decisions that began in this term still count.
    pub fn may_finish(&self, term: u64) -> bool {
        (self.shared.ours.finishes)(term)
    }

    /// Posts to the leader until it answers, this process decides itself, or no attempt may begin any more. While the lease changes
    /// hands, no replica decides for a moment.
    ///
    /// # Errors
    /// Why the last attempt failed.
    async fn persist(
        &self,
        path: &str,
        body: Bytes,
        own_term: impl Fn() -> Option<u64>,
        Patience { most, attempt }: Patience,
    ) -> Result<Elsewhere, String> {
        let began = Instant::now();
        loop {
            let timeout = attempt.unwrap_or_else(|| most.saturating_sub(began.elapsed()));
            match self.post(path, body.clone(), timeout).await {
                Ok(answer) => return Ok(Elsewhere::Answered(answer)),
                Err(why) if began.elapsed() + LOOK_AGAIN >= most => return Err(why),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
            if own_term().is_some() {
                return Ok(Elsewhere::Here);
            }
        }
    }

    /// Forwards a bind to the leader. `body` is `ExtenderBindingArgs`. A bind may be repeated.
    ///
    /// # Errors
    /// The error the leader returned, or why no leader could be reached.
    pub async fn bind(&self, body: Bytes) -> Result<Elsewhere<()>, String> {
        let patience = Patience { most: BIND_PATIENCE, attempt: Some(BIND_TIMEOUT) };
        let answered = self.persist("/extender/bind", body, &self.shared.ours.binds, patience).await?;
        let Elsewhere::Answered(answer) = answered else {
            return Ok(Elsewhere::Here);
        };
        let result: BindingResult = serde_json::from_slice(&answer)
            .map_err(|error| format!("cannot decode the leader's response: {error}"))?;
        if result.error.is_empty() { Ok(Elsewhere::Answered(())) } else { Err(result.error) }
    }

    /// Forwards a review to the leader. Both bodies are an `AdmissionReview`.
    ///
    /// # Errors
    /// Why no leader could be reached.
    pub async fn review(&self, body: Bytes, most: Duration) -> Result<Elsewhere, String> {
        let patience = Patience { most, attempt: None };
        self.persist(super::guard::PATH, body, &self.shared.ours.reviews, patience).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_counts_until_it_ends_and_one_that_may_not_begin_does_not() {
        let begun = Begun::default();
        assert!(begun.begin(|| None).is_none() && begun.is_none());
        // It counts while the term is looked at: nobody finds that all have ended, and then one begins.
        let decision = begun.begin(|| (!begun.is_none()).then_some(7)).expect("it may begin");
        assert_eq!((decision.term, begun.is_none()), (7, false));
        drop(decision);
        assert!(begun.is_none());
    }
}
