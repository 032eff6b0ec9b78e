//! Leader elector: acquires and renews the lease. The rules are in `lease.rs`.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Throttle;
use super::lease::{self, LeaseConfig, LeaseConfigError, LeaseRecord, LeaseStep, Observed};
use berth_model::with_causes;

const AFTER_CONFLICT: Duration = Duration::from_millis(100);
/// Pause of a candidate while the holder is about to release the lease, and of a former holder that looks for its successor.
const HANDOVER_PAUSE: Duration = Duration::from_millis(50);

/// Timeout of a release.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// A candidate for the lease.
///
/// Leadership is published as `true` only while no other candidate can hold the lease, provided that this task is
/// scheduled: a receiver has `lease duration - renew deadline` (5 s) to act on a `false`. When the task ends for any
/// reason, `false` is published.
pub struct Elector {
    api: Api<Lease>,
    config: LeaseConfig,
    leading: Published,
    started: Instant,
    observed: Option<Observed>,
    /// The object read or written last. Its resource version makes a write fail after a concurrent change.
    seen: Option<Lease>,
    /// End of leadership unless renewed.
    lead_until: Option<Instant>,
    warnings: Throttle,
    deadline: Deadline,
    holder: watch::Sender<Option<Holder>>,
    exit: LeaseExit,
    rounds: Arc<AtomicU64>,
    /// Time of the last renewal, in seconds since 1970.
    renewed: Arc<AtomicI64>,
    /// From the released lease that was read last: the version up to which the former holder knew all binds.
    handed_over: Option<u64>,
}

/// How a process gives up its lease at shutdown. Clones share it.
#[derive(Debug, Clone)]
pub struct LeaseExit {
    leaving: watch::Sender<bool>,
    released: watch::Sender<bool>,
    keep: Arc<AtomicBool>,
    /// 0: unknown.
    binds_known: Arc<AtomicU64>,
}

impl Default for LeaseExit {
    fn default() -> Self {
        LeaseExit {
            leaving: watch::Sender::new(false),
            released: watch::Sender::new(false),
            keep: Arc::default(),
            binds_known: Arc::default(),
        }
    }
}

impl LeaseExit {
    /// Announces in the lease that it will be released, so that candidates look often. From now on this process no longer
    /// acquires it.
    pub fn announce(&self) {
        self.leaving.send_replace(true);
    }

    /// Lets the lease expire at shutdown instead of being released: a request in flight may still take effect.
    pub fn keep_if(&self, keep: bool) {
        self.keep.store(keep, Ordering::Release);
    }

    /// Tells the successor that no bind of this process is newer than this resource version of pods.
    pub fn set_binds_known(&self, version: u64) {
        self.binds_known.store(version, Ordering::Release);
    }

    /// Waits until the lease is released, or is left to expire, some seconds at most.
    pub async fn released(&self) {
        let mut released = self.released.subscribe();
        let _ = tokio::time::timeout(2 * RELEASE_MAX, released.wait_for(|released| *released)).await;
    }

    fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }
}

/// The holder of a lease, as this process sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub identity: String,
    /// The address where it serves HTTPS, if announced.
    pub address: Option<SocketAddr>,
}

/// The annotation of a lease with the holder's address.
const ADDRESS: &str = "berth.dev/address";
/// The annotation of a lease that its holder is about to release.
const LEAVING: &str = "berth.dev/leaving";
/// The annotation of a released lease with the resource version up to which its former holder had seen all binds.
const BINDS_KNOWN: &str = "berth.dev/binds-known";
/// The label of member leases with the name of their group.
pub(super) const MEMBER_OF: &str = "berth.dev/member-of";

/// The end of leadership unless renewed, to check right before an action of the leader. Clones share it.
///
/// A process that was suspended may find its leadership flag still set when it resumes; the clock kept running meanwhile.
#[derive(Clone, Default)]
pub struct Deadline(Arc<Mutex<Term>>);

#[derive(Default)]
struct Term {
    number: u64,
    until: Option<Instant>,
    handed_over: Option<u64>,
}

impl Deadline {
    /// Whether leadership has not expired.
    pub fn is_ahead(&self) -> bool {
        self.term().is_some()
    }

    /// Returns the number of the current term of leadership, if it has not expired. A process that loses leadership and wins it
    /// again has a new term: decisions of the previous term are invalid.
    pub fn term(&self) -> Option<u64> {
        let term = self.0.lock();
        term.until.is_some_and(|until| Instant::now() < until).then_some(term.number)
    }

    /// Returns the resource version of pods up to which the predecessor had seen all binds when it released the lease to this term.
    pub fn handed_over(&self) -> Option<u64> {
        self.0.lock().handed_over
    }

    pub(super) fn set(&self, until: Option<Instant>, handed_over: Option<u64>) {
        let mut term = self.0.lock();
        let lapsed = term.until.is_none_or(|until| until <= Instant::now());
        if until.is_some() && lapsed {
            term.number += 1;
            term.handed_over = handed_over;
        }
        term.until = until;
    }
}

/// The published leadership. Dropping it publishes `false`, so receivers don't rely on an election that no longer runs.
struct Published(watch::Sender<bool>);

impl Drop for Published {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Elector {
    /// Creates a candidate. `client` must not retry by itself: a late renewal is worse than a failed one.
    ///
    /// # Errors
    /// The configuration is unsafe.
    pub fn new(
        client: Client,
        config: LeaseConfig,
    ) -> Result<(Self, watch::Receiver<bool>), LeaseConfigError> {
        config.check()?;
        let (sender, receiver) = watch::channel(false);
        let elector = Elector {
            api: Api::namespaced(client, &config.namespace),
            config,
            leading: Published(sender),
            started: Instant::now(),
            observed: None,
            seen: None,
            lead_until: None,
            warnings: Throttle::default(),
            deadline: Deadline::default(),
            holder: watch::Sender::new(None),
            exit: LeaseExit::default(),
            rounds: Arc::default(),
            renewed: Arc::default(),
            handed_over: None,
        };
        Ok((elector, receiver))
    }

    /// Returns the deadline to check right before anything that only the leader may do.
    pub fn deadline(&self) -> Deadline {
        self.deadline.clone()
    }

    /// Returns a receiver of the current holder, which may be this process.
    pub fn holder(&self) -> watch::Receiver<Option<Holder>> {
        self.holder.subscribe()
    }

    /// Has the time of each renewal stored here, in seconds since 1970.
    pub fn with_renewed(self, renewed: Arc<AtomicI64>) -> Self {
        Elector { renewed, ..self }
    }

    /// Returns the number of rounds so far. One takes no longer than the renew deadline and the retry period.
    pub fn rounds(&self) -> Arc<AtomicU64> {
        self.rounds.clone()
    }

    pub fn exit(&self) -> LeaseExit {
        self.exit.clone()
    }

    /// Competes for the lease until `stop` resolves, then releases it if held. No failure of the API server ends this: the loss of the
    /// lease is published, and the candidate keeps trying.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        self.compete(stop).await;
    }

    /// The same, and then publishes who holds the lease next. Never returns.
    pub async fn run_and_observe(mut self, stop: impl Future<Output = ()>) {
        self.compete(stop).await;
        loop {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let pause = match self.read().await {
                Ok(()) if self.holder.borrow().is_some() => self.config.retry_period / 2,
                _ => HANDOVER_PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn compete(&mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut leaving = self.exit.leaving.subscribe();
        loop {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = self.round() => {}
                _ = leaving.changed() => {}
                () = &mut stop => break,
            }
        }
        self.release().await;
        self.exit.released.send_replace(true);
    }

    async fn read(&mut self) -> kube::Result<()> {
        self.seen = self.api.get_opt(&self.config.name).await?;
        match &self.seen {
            Some(lease) => Observed::update(&mut self.observed, record_of(lease), self.started.elapsed()),
            None => self.observed = None,
        }
        self.publish_holder();
        Ok(())
    }

    /// Makes one attempt at the lease, then pauses. Steps down if leadership expires meanwhile.
    ///
    /// Cancel safe: the next attempt reads what a cancelled request did to the lease.
    async fn round(&mut self) {
        // Until leadership ends; a candidate has the same time, so that a lost connection does not block it.
        let deadline = self.lead_until.unwrap_or_else(|| Instant::now() + self.config.renew_deadline);
        let pause = match tokio::time::timeout_at(deadline, self.try_once()).await {
            Ok(Ok(pause)) => pause,
            Ok(Err(error)) => {
                self.seen = None;
                self.warn(&error);
                self.config.retry_period
            }
            Err(_) => {
                self.seen = None;
                tracing::warn!(
                    lease = self.config.name,
                    "the API server did not answer a lease request before the deadline"
                );
                Duration::ZERO
            }
        };
        let next_look = Instant::now() + pause;
        if let Some(until) = self.lead_until
            && until <= next_look
        {
            tokio::time::sleep_until(until).await;
            self.step_down();
        }
        tokio::time::sleep_until(next_look).await;
    }

    /// Reads the lease if its newest version is not known, and writes it if this process may hold it. Returns the pause
    /// before the next attempt.
    async fn try_once(&mut self) -> kube::Result<Duration> {
        if self.seen.is_none() || self.lead_until.is_none() {
            self.read().await?;
            let released = self.seen.as_ref().filter(|lease| record_of(lease).holder.is_empty());
            self.handed_over = released.and_then(|lease| annotation(lease, BINDS_KNOWN)?.parse().ok());
        }
        let is_candidate = self.lead_until.is_none();
        if is_candidate && self.exit.is_leaving() {
            return Ok(self.pause_of_a_candidate());
        }
        let sent = Instant::now();
        let step =
            lease::evaluate(self.observed.as_ref(), &self.config, self.started.elapsed(), Timestamp::now());
        let (written, beaten) = match step {
            LeaseStep::Wait => {
                self.step_down();
                return Ok(self.pause_of_a_candidate());
            }
            LeaseStep::Create(record) => {
                let lease = self.lease_with(None, &record);
                (self.api.create(&PostParams::default(), &lease).await, [409, 409])
            }
            LeaseStep::Replace(record) => (self.replace(self.seen.as_ref(), &record).await, [409, 404]),
        };
        match written {
            Ok(lease) => {
                Observed::update(&mut self.observed, record_of(&lease), self.started.elapsed());
                self.seen = Some(lease);
                self.publish_holder();
                self.lead(sent + self.config.renew_deadline);
                Ok(self.config.retry_period)
            }
            // Another client wrote or deleted it first: read it again soon.
            Err(kube::Error::Api(status)) if beaten.contains(&status.code) => {
                self.seen = None;
                Ok(AFTER_CONFLICT)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the pause of a candidate: half the retry period, so that it observes each renewal soon, or the time until the lease
    /// expires if that is shorter.
    fn pause_of_a_candidate(&self) -> Duration {
        let expires =
            self.observed.as_ref().map(|lease| lease.expires_in(&self.config, self.started.elapsed()));
        let is_leaving = self.seen.as_ref().is_some_and(|lease| annotation(lease, LEAVING).is_some());
        let pause = if is_leaving { HANDOVER_PAUSE } else { self.config.retry_period / 2 };
        expires.map_or(pause, |expires| pause.min(expires + Duration::from_millis(1)))
    }

    fn publish_holder(&self) {
        let holder = self.seen.as_ref().and_then(|lease| {
            let identity = record_of(lease).holder;
            let address = annotation(lease, ADDRESS).and_then(|address| address.parse().ok());
            (!identity.is_empty()).then_some(Holder { identity, address })
        });
        self.holder.send_if_modified(|known| std::mem::replace(known, holder.clone()) != holder);
    }

    async fn replace(&self, seen: Option<&Lease>, record: &LeaseRecord) -> kube::Result<Lease> {
        let lease = self.lease_with(seen, record);
        let name = &self.config.name;
        self.api.replace(name, &PostParams::default(), &lease).await
    }

    fn lease_with(&self, seen: Option<&Lease>, record: &LeaseRecord) -> Lease {
        let mut lease = seen.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                namespace: Some(self.config.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let is_released = record.holder.is_empty();
        let known = self.exit.binds_known.load(Ordering::Acquire);
        let annotations = lease.metadata.annotations.get_or_insert_default();
        for (name, value) in [
            (ADDRESS, self.config.address.map(|address| address.to_string())),
            (LEAVING, (!is_released && self.exit.is_leaving()).then(|| "true".to_owned())),
            (BINDS_KNOWN, (is_released && known > 0).then(|| known.to_string())),
        ] {
            match value {
                Some(value) => annotations.insert(name.to_owned(), value),
                None => annotations.remove(name),
            };
        }
        if let Some(group) = &self.config.member_of {
            lease.metadata.labels.get_or_insert_default().insert(MEMBER_OF.to_owned(), group.clone());
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(record.holder.clone()),
            lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
            acquire_time: record.acquired.map(MicroTime),
            renew_time: record.renewed.map(MicroTime),
            lease_transitions: Some(record.transitions),
            ..LeaseSpec::default()
        });
        lease
    }

    fn lead(&mut self, until: Instant) {
        // The renewal succeeded, but its answer came after the deadline that it granted, or this process did not run
        // when the previous one passed: receivers must observe the end of the term before the next one begins.
        let now = Instant::now();
        if until <= now || self.lead_until.is_some_and(|ended| ended <= now) {
            return self.step_down();
        }
        self.lead_until = Some(until);
        self.deadline.set(self.lead_until, self.handed_over);
        self.renewed.store(Timestamp::now().as_second(), Ordering::Relaxed);
        if self.publish(true) {
            tracing::info!(lease = self.config.name, identity = self.config.identity, "leading");
        }
    }

    /// Publishes leadership and returns whether it changed.
    fn publish(&self, leading: bool) -> bool {
        self.leading.0.send_if_modified(|before| std::mem::replace(before, leading) != leading)
    }

    fn step_down(&mut self) {
        self.lead_until = None;
        self.deadline.set(None, None);
        if self.publish(false) {
            let holder = self.observed.as_ref().map(|it| it.record.holder.as_str());
            tracing::warn!(lease = self.config.name, holder, "no longer leading");
        }
    }

    /// Releases the lease, so that another candidate need not wait for it to expire. One attempt: expiry is the fallback.
    async fn release(&mut self) {
        self.lead_until = None;
        self.deadline.set(None, None);
        self.publish(false);
        if self.exit.keep.load(Ordering::Acquire) {
            tracing::info!(lease = self.config.name, "not releasing the lease, it will expire");
            return;
        }
        let error = match tokio::time::timeout(RELEASE_MAX, self.try_release()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => with_causes(&error),
            Err(_) => "no answer".to_owned(),
        };
        tracing::warn!(lease = self.config.name, error, "cannot release the lease: it expires");
    }

    /// Releases the lease if held. Reads it first: the stop may have cancelled a write, so the cached version may be stale.
    async fn try_release(&self) -> kube::Result<()> {
        let Some(lease) = self.api.get_opt(&self.config.name).await? else {
            return Ok(());
        };
        let record = record_of(&lease);
        if record.holder != self.config.identity {
            return Ok(());
        }
        if self.config.member_of.is_some() {
            // No other process competes for a member lease.
            return self.api.delete(&self.config.name, &DeleteParams::default()).await.map(|_| ());
        }
        let record = lease::released(&record, Timestamp::now());
        self.replace(Some(&lease), &record).await?;
        tracing::info!(lease = self.config.name, "released the lease");
        Ok(())
    }

    fn warn(&mut self, error: &kube::Error) {
        if !self.warnings.is_due() {
            return;
        }
        let (namespace, name) = (&self.config.namespace, &self.config.name);
        let error_text = with_causes(error);
        match error {
            kube::Error::Api(status) if status.is_forbidden() => tracing::warn!(
                namespace,
                lease = name,
                error = error_text,
                "berth's service account may not get, create or update leases in {namespace}: check its Role; retrying"
            ),
            _ => {
                tracing::warn!(namespace, lease = name, error = error_text, "lease request failed, retrying")
            }
        }
    }
}

fn annotation<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) fn record_of(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(
            spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default(),
        ),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_though_nobody_gets_to_run_the_election() {
        let deadline = Deadline::default();
        assert!(!deadline.is_ahead());
        deadline.set(Some(Instant::now() + Duration::from_secs(2)), None);
        assert!(deadline.is_ahead());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!deadline.is_ahead());
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_that_was_lost_and_won_again_is_another_term() {
        let deadline = Deadline::default();
        assert_eq!(deadline.term(), None);
        let lead = || deadline.set(Some(Instant::now() + Duration::from_secs(2)), None);
        lead();
        let first = deadline.term();
        tokio::time::advance(Duration::from_secs(1)).await;
        lead();
        assert_eq!(deadline.term(), first, "renewed in time");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(deadline.term(), None);
        lead();
        assert!(deadline.term() > first, "renewed too late");
        deadline.set(None, None);
        lead();
        assert!(deadline.term() > first.map(|term| term + 1));
    }

    fn answer(status: u16, body: &impl serde::Serialize) -> Response<Body> {
        let body = serde_json::to_vec(body).expect("JSON");
        Response::builder().status(status).body(Body::from(body)).expect("a response")
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_is_answered_after_the_term_has_ended_begins_a_term_that_receivers_observe() {
        let (answers, queue) = mpsc::unbounded_channel::<Response<Body>>();
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let service = tower::service_fn(move |_: Request<Body>| {
            let queue = queue.clone();
            async move { Ok::<_, Infallible>(queue.lock().await.recv().await.expect("an answer")) }
        });
        let config = LeaseConfig::new("ns", "berth", "me");
        let (mut elector, leading) =
            Elector::new(Client::new(service, "ns"), config.clone()).expect("a good configuration");
        let missing =
            serde_json::json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
        let record = LeaseRecord {
            holder: "me".to_owned(),
            duration: config.duration,
            acquired: None,
            renewed: None,
            transitions: 0,
        };
        let lease = elector.lease_with(None, &record);
        answers.send(answer(404, &missing)).expect("sent");
        answers.send(answer(201, &lease)).expect("sent");
        elector.try_once().await.expect("leads");
        let term = elector.deadline.term();
        assert!(*leading.borrow() && term.is_some());

        // The process does not run when the term ends; when it runs again, the answer is there.
        tokio::time::advance(config.retry_period).await;
        let deadline = elector.deadline();
        let mut round = Box::pin(elector.round());
        for _ in 0..10 {
            assert!(futures::poll!(&mut round).is_pending());
            tokio::task::yield_now().await;
        }
        tokio::time::advance(config.renew_deadline - config.retry_period + Duration::from_millis(1)).await;
        answers.send(answer(200, &lease)).expect("sent");
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut round).is_pending(), "it pauses");
        assert!(!*leading.borrow() && deadline.term().is_none(), "receivers still have {term:?}");
        answers.send(answer(200, &lease)).expect("sent");
        answers.send(answer(200, &lease)).expect("sent");
        round.await;
        elector.try_once().await.expect("leads again");
        assert!(*leading.borrow() && deadline.term() > term);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_leaves_is_looked_at_often_and_hands_over_what_it_knows() {
        let (answers, queue) = mpsc::unbounded_channel::<Response<Body>>();
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let service = tower::service_fn(move |_: Request<Body>| {
            let queue = queue.clone();
            async move { Ok::<_, Infallible>(queue.lock().await.recv().await.expect("an answer")) }
        });
        let client = Client::new(service, "ns");
        let candidate = |name: &str| {
            let config = LeaseConfig::new("ns", "berth", name);
            Elector::new(client.clone(), config).expect("a good configuration").0
        };
        let (old, mut new, mut leaving) = (candidate("old"), candidate("new"), candidate("leaving"));
        let record = |holder: &str| LeaseRecord {
            holder: holder.to_owned(),
            duration: Duration::from_secs(15),
            acquired: None,
            renewed: None,
            transitions: 0,
        };
        let retry = new.config.retry_period;
        answers.send(answer(200, &old.lease_with(None, &record("old")))).expect("sent");
        assert_eq!(new.try_once().await.expect("read"), retry / 2);
        old.exit().announce();
        let announced = old.lease_with(None, &record("old"));
        answers.send(answer(200, &announced)).expect("sent");
        assert_eq!(new.try_once().await.expect("read"), HANDOVER_PAUSE);

        old.exit().set_binds_known(77);
        let released = old.lease_with(Some(&announced), &record(""));
        assert!(annotation(&released, LEAVING).is_none(), "{released:?}");
        leaving.exit().announce();
        answers.send(answer(200, &released)).expect("sent");
        leaving.try_once().await.expect("read");
        assert_eq!(leaving.deadline.term(), None, "it would have to release it again");
        let taken = new.lease_with(Some(&released), &record("new"));
        answers.send(answer(200, &released)).expect("sent");
        answers.send(answer(200, &taken)).expect("sent");
        new.try_once().await.expect("leads");
        assert_eq!((new.deadline.term(), new.deadline.handed_over()), (Some(1), Some(77)));
        assert!(annotation(&taken, BINDS_KNOWN).is_none(), "it says nothing about later binds");

        // Of a lease that was left to expire, nothing is known.
        let mut third = candidate("third");
        answers.send(answer(200, &taken)).expect("sent");
        third.try_once().await.expect("read");
        tokio::time::advance(Duration::from_secs(15)).await;
        answers.send(answer(200, &taken)).expect("sent");
        answers.send(answer(200, &third.lease_with(Some(&taken), &record("third")))).expect("sent");
        third.try_once().await.expect("leads");
        assert_eq!((third.deadline.term(), third.deadline.handed_over()), (Some(1), None));
    }
}
