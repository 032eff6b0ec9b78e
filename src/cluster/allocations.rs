//! Writer of allocation statuses: bounded and asynchronous to the decisions.
//!
//! Each status is compared with the object first and only the difference is written, so a repeated status costs only a read.
//! Statuses that are not written are counted as dropped.

mod line;
mod status_json;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Method, StatusCode};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::PodGroupVersion;
use super::client::{self, Answer};
use super::report_json::{EventBody, Regarding, note_of};
use crate::gang::{AllocationKind, AllocationStatus, Phase};
use line::Line;
use status_json::{Change, Current, change, path};

/// At about 1 KiB a status this is 16 MiB at worst.
const WAITING_MAX: usize = 16_384;
const IN_FLIGHT_MAX: usize = 4;
/// Minimum interval between two writes of one allocation: each bind of a member pod changes its status.
const PAUSE: Duration = Duration::from_millis(250);

/// Attempts per status or event; with their pauses about 8 s.
const ATTEMPTS_MAX: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Minimum interval between warnings about rejected statuses.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Counters of status writes, by result.
#[derive(Debug, Default)]
pub struct StatusCounters {
    pub written: AtomicU64,
    /// The object already had the status.
    pub unchanged: AtomicU64,
    /// The object was deleted or recreated.
    pub gone: AtomicU64,
    /// Retries.
    pub retried: AtomicU64,
    /// Refused, or out of attempts.
    failed: AtomicU64,
}

/// Accepts statuses from any thread. Clones share one queue.
#[derive(Clone)]
pub struct Allocations {
    shared: Arc<Shared>,
}

struct Shared {
    line: Mutex<Line>,
    /// Something was pushed.
    pushed: Notify,
    counters: StatusCounters,
    /// The API version of `podgroups.scheduling.k8s.io` that is used.
    version: Mutex<PodGroupVersion>,
}

impl Default for Allocations {
    fn default() -> Self {
        Allocations {
            shared: Arc::new(Shared {
                line: Mutex::new(Line::new(WAITING_MAX)),
                pushed: Notify::new(),
                counters: StatusCounters::default(),
                version: Mutex::default(),
            }),
        }
    }
}

impl Allocations {
    /// Queues a status. Never waits for the network.
    pub fn tell(&self, status: AllocationStatus) {
        self.shared.line.lock().push(status);
        self.shared.pushed.notify_one();
    }

    /// Sets the version in which PodGroups of `scheduling.k8s.io` are written from now on.
    pub fn use_version(&self, version: PodGroupVersion) {
        *self.shared.version.lock() = version;
    }

    /// Number of waiting statuses.
    pub fn waiting(&self) -> usize {
        self.shared.line.lock().len()
    }

    /// Number of statuses that were dropped and will never be written.
    pub fn dropped(&self) -> u64 {
        self.shared.line.lock().dropped() + self.shared.counters.failed.load(Relaxed)
    }

    pub fn counters(&self) -> &StatusCounters {
        &self.shared.counters
    }

    /// Writes statuses until `stop` resolves, then flushes the rest for at most `flush`.
    ///
    /// `client` must not retry by itself ([`client::without_retries`]). `host` ends the events' reporting instance.
    pub async fn run(&self, client: Client, host: &str, stop: impl Future<Output = ()>, flush: Duration) {
        let writer = Writer { client, host, shared: &self.shared, last_warning: Mutex::new(None) };
        let mut stop = std::pin::pin!(stop);
        let mut flush_until: Option<Instant> = None;
        let mut in_flight = FuturesUnordered::new();
        loop {
            if flush_until.is_some() {
                self.shared.line.lock().hurry();
            }
            while in_flight.len() < IN_FLIGHT_MAX {
                let Some(status) = self.shared.line.lock().take(Instant::now()) else {
                    break;
                };
                in_flight.push(writer.deliver(status));
            }
            if flush_until.is_some() && in_flight.is_empty() {
                return;
            }
            let rests = self.waiting() > 0 && in_flight.len() < IN_FLIGHT_MAX;
            tokio::select! {
                Some(()) = in_flight.next() => {}
                () = self.shared.pushed.notified() => {}
                () = &mut stop, if flush_until.is_none() => flush_until = Some(Instant::now() + flush),
                () = tokio::time::sleep(PAUSE / 4), if rests => {}
                () = until(flush_until) => {
                    let left = in_flight.len() + self.shared.line.lock().drop_all();
                    self.shared.counters.failed.fetch_add(in_flight.len() as u64, Relaxed);
                    tracing::warn!(left, "shutting down with unwritten allocation statuses");
                    return;
                }
            }
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The result of one attempt.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Written,
    Unchanged,
    Gone,
    /// The API server is overloaded or has no leader, did not answer, or reported a write conflict.
    TryAgain {
        after: Option<Duration>,
        why: String,
    },
    Refused(String),
}

/// Maps an answer to a verdict.
fn verdict(answer: &Answer) -> Verdict {
    match answer.status {
        status if status.is_success() => Verdict::Written,
        StatusCode::NOT_FOUND => Verdict::Gone,
        // The object was recreated since it was read.
        StatusCode::UNPROCESSABLE_ENTITY if answer.message().contains("metadata.uid") => Verdict::Gone,
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => again(answer),
        status if status.is_server_error() => again(answer),
        _ => Verdict::Refused(answer.message()),
    }
}

fn again(answer: &Answer) -> Verdict {
    Verdict::TryAgain { after: answer.retry_after, why: answer.message() }
}

struct Writer<'a> {
    client: Client,
    host: &'a str,
    shared: &'a Shared,
    last_warning: Mutex<Option<Instant>>,
}

impl Writer<'_> {
    /// Sends a status with retries and counts the result.
    async fn deliver(&self, status: AllocationStatus) {
        let counters = &self.shared.counters;
        for attempt in 1.. {
            let mut is_news = false;
            let (after, why) = match self.attempt(&status, &mut is_news).await {
                Verdict::Written => {
                    counters.written.fetch_add(1, Relaxed);
                    if is_news {
                        self.tell_people(&status).await;
                    }
                    break;
                }
                Verdict::Unchanged => {
                    counters.unchanged.fetch_add(1, Relaxed);
                    break;
                }
                Verdict::Gone => {
                    counters.gone.fetch_add(1, Relaxed);
                    break;
                }
                Verdict::TryAgain { after, why } if attempt < ATTEMPTS_MAX => (after, why),
                Verdict::TryAgain { why, .. } | Verdict::Refused(why) => {
                    counters.failed.fetch_add(1, Relaxed);
                    self.warn(&status, "dropped an allocation status; if it was forbidden, allow get on the object and patch on its /status in berth's ClusterRole", &why);
                    break;
                }
            };
            tracing::debug!(allocation = %status.name.name, attempt, why, "status write failed, retrying");
            wait(attempt, after).await;
            if self.shared.line.lock().is_outdated(&status.uid) {
                break;
            }
            counters.retried.fetch_add(1, Relaxed);
        }
        self.shared.line.lock().done(&status.uid, Instant::now(), PAUSE);
    }

    /// Reads the object and writes the difference. Sets `is_news` if the phase changed, which needs an event.
    async fn attempt(&self, status: &AllocationStatus, is_news: &mut bool) -> Verdict {
        let version = *self.shared.version.lock();
        let path = path(status, version);
        let request = client::request(Method::GET, &path).body(Body::empty());
        let answer = match self.exchange(request.map_err(|error| error.to_string())).await {
            Ok(answer) if answer.status.is_success() => answer,
            Ok(answer) => return verdict(&answer),
            Err(verdict) => return verdict,
        };
        let current: Current = match serde_json::from_slice(&answer.body) {
            Ok(current) => current,
            Err(error) => return Verdict::Refused(format!("the object cannot be parsed: {error}")),
        };
        if current.metadata.uid != *status.uid {
            return Verdict::Gone;
        }
        let Some(change) = change(status, version, &current, Timestamp::now()) else {
            return Verdict::Unchanged;
        };
        let Change { content_type, patch, is_new_phase } = change;
        *is_news = is_new_phase;
        let request = client::json_request(Method::PATCH, &format!("{path}/status"), content_type, &patch);
        match self.exchange(request).await {
            Ok(answer) => verdict(&answer),
            Err(verdict) => verdict,
        }
    }

    async fn exchange(&self, request: Result<http::Request<Body>, String>) -> Result<Answer, Verdict> {
        let request =
            request.map_err(|why| Verdict::Refused(format!("the request cannot be built: {why}")))?;
        let answer = client::exchange(&self.client, request).await;
        answer.map_err(|why| Verdict::TryAgain { after: None, why })
    }

    /// Sends the event about the phase of an `Allocation`.
    async fn tell_people(&self, status: &AllocationStatus) {
        let Some(told) = told(status) else { return };
        let name = &status.name;
        let regarding = Regarding {
            api_version: "berth.dev/v1alpha1",
            kind: "Allocation",
            namespace: &name.namespace,
            name: &name.name,
            uid: &status.uid,
        };
        let body = EventBody::about(regarding, told, ("berth", self.host), Timestamp::now());
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", name.namespace);
        for attempt in 1..=ATTEMPTS_MAX {
            let request = client::json_request(Method::POST, &path, "application/json", &body);
            let verdict = match self.exchange(request).await {
                // An earlier attempt arrived.
                Ok(answer) if answer.status == StatusCode::CONFLICT => Verdict::Written,
                Ok(answer) => verdict(&answer),
                Err(verdict) => verdict,
            };
            match verdict {
                Verdict::TryAgain { after, .. } if attempt < ATTEMPTS_MAX => wait(attempt, after).await,
                Verdict::TryAgain { why, .. } | Verdict::Refused(why) => {
                    return self.warn(status, "dropped an event", &why);
                }
                _ => return,
            }
        }
    }

    fn warn(&self, status: &AllocationStatus, what: &str, why: &str) {
        let mut last = self.last_warning.lock();
        let now = Instant::now();
        if last.is_none_or(|last| now - last >= WARN_EVERY) {
            *last = Some(now);
            let name = &status.name;
            tracing::warn!(kind = ?name.kind, namespace = %name.namespace, name = %name.name, error = why, "{what}");
        }
    }
}

async fn wait(attempt: u32, after: Option<Duration>) {
    let pause = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(16));
    tokio::time::sleep(after.unwrap_or(pause).max(pause).min(LONGEST_PAUSE)).await;
}

/// Returns the type, reason, action and note of the event about this phase.
fn told(status: &AllocationStatus) -> Option<(&'static str, &'static str, &'static str, String)> {
    if status.name.kind != AllocationKind::Allocation {
        return None;
    }
    let note = || note_of(&status.message);
    Some(match status.phase {
        Phase::Pending | Phase::Scheduling => return None,
        Phase::Scheduled => {
            let sum = |of: fn(&crate::gang::RoleStatus) -> u32| {
                status.roles.iter().map(|role| u64::from(of(role))).sum::<u64>()
            };
            let (bound, members) = (sum(|role| role.bound), sum(|role| role.members));
            let minimum = sum(|role| role.minimum);
            (
                "Normal",
                "Scheduled",
                "Binding",
                format!("{bound} of {members} pods are bound, the minimum is {minimum}"),
            )
        }
        Phase::Unschedulable => ("Warning", "FailedScheduling", "Scheduling", note()),
        Phase::TimedOut => ("Warning", "TimedOut", "Scheduling", note()),
        Phase::Invalid => ("Warning", "Invalid", "Scheduling", note()),
    })
}
