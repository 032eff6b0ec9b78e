//! Bounded writer of the statuses of Allocations and PodGroups.
//!
//! Each status is compared with the object first, and only differences are written: a repeated status costs a read.
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
use http::Method;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client;
use super::report_json::{EventBody, Regarding, instance, note_of};
use super::retry::{self, Abandoned, BACKOFF, Failure, retry};
use super::{PodGroupVersion, Throttle};
use berth_scheduler::gang::{AllocationKind, GangStatus, Phase};
use line::Line;
use status_json::{Change, Current, change, path};

/// At about 1 KiB a status this is 16 MiB at worst.
const WAITING_MAX: usize = 16_384;
const IN_FLIGHT_MAX: usize = 4;
/// Minimum interval between writes of one allocation: each bind of one of its pods changes the status.
const PAUSE: Duration = Duration::from_millis(250);

/// Results of status writes.
#[derive(Debug, Default)]
pub struct StatusCounters {
    pub written: AtomicU64,
    /// The object had this status already.
    pub unchanged: AtomicU64,
    /// The object is gone, or was recreated.
    pub gone: AtomicU64,
    /// Further attempts.
    pub retried: AtomicU64,
    /// Rejected, or retried too often.
    failed: AtomicU64,
}

/// Takes statuses from any thread. Clones share one line.
#[derive(Clone)]
pub struct AllocationWriter {
    shared: Arc<Shared>,
}

struct Shared {
    line: Mutex<Line>,
    /// Something was pushed.
    pushed: Notify,
    counters: StatusCounters,
    /// Version of `podgroups.scheduling.k8s.io` that is read.
    version: Mutex<PodGroupVersion>,
}

impl Default for AllocationWriter {
    fn default() -> Self {
        AllocationWriter {
            shared: Arc::new(Shared {
                line: Mutex::new(Line::new(WAITING_MAX)),
                pushed: Notify::new(),
                counters: StatusCounters::default(),
                version: Mutex::default(),
            }),
        }
    }
}

impl AllocationWriter {
    /// Queues a status. Never waits for the network.
    pub fn enqueue(&self, status: GangStatus) {
        self.shared.line.lock().push(status);
        self.shared.pushed.notify_one();
    }

    /// Sets the version in which PodGroups of `scheduling.k8s.io` are written.
    pub fn use_version(&self, version: PodGroupVersion) {
        *self.shared.version.lock() = version;
    }

    /// Statuses waiting.
    pub fn waiting(&self) -> usize {
        self.shared.line.lock().len()
    }

    /// Statuses that will never be written.
    pub fn dropped(&self) -> u64 {
        self.shared.line.lock().dropped() + self.shared.counters.failed.load(Relaxed)
    }

    pub fn counters(&self) -> &StatusCounters {
        &self.shared.counters
    }

    /// Writes statuses until `stop` resolves, then the remaining ones for at most `flush`.
    ///
    /// `client` must not retry by itself ([`client::without_retries`]). `host` is the suffix of the events' reporting instance.
    pub async fn run(&self, client: Client, host: &str, stop: impl Future<Output = ()>, flush: Duration) {
        let writer = Writer { client, host, shared: &self.shared, warnings: Throttle::default() };
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
                    tracing::warn!(left, "shutting down with unwritten statuses of allocations");
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

/// Result of an attempt that was not a failure.
enum Outcome {
    Written {
        is_new_phase: bool,
    },
    Unchanged,
    /// The object is gone, or has another uid.
    Gone,
}

struct Writer<'a> {
    client: Client,
    host: &'a str,
    shared: &'a Shared,
    warnings: Throttle,
}

impl Writer<'_> {
    /// Writes a status until it is settled or a newer one replaces it, and counts the result.
    async fn deliver(&self, status: GangStatus) {
        let (counters, line) = (&self.shared.counters, &self.shared.line);
        let fence = |attempt| {
            let is_current = attempt == 1 || !line.lock().is_outdated(&status.uid);
            counters.retried.fetch_add(u64::from(is_current && attempt > 1), Relaxed);
            is_current
        };
        match retry(BACKOFF, &status.name.name, fence, || self.attempt(&status)).await {
            Ok(Outcome::Written { is_new_phase }) => {
                counters.written.fetch_add(1, Relaxed);
                if is_new_phase {
                    self.send_event(&status).await;
                }
            }
            Ok(Outcome::Unchanged) => drop(counters.unchanged.fetch_add(1, Relaxed)),
            Ok(Outcome::Gone) => drop(counters.gone.fetch_add(1, Relaxed)),
            Err(Abandoned::Stopped) => {}
            Err(Abandoned::Failed(why)) => {
                counters.failed.fetch_add(1, Relaxed);
                self.warn(&status, "dropped a status; if it was forbidden, allow berth's ClusterRole to get the object and to patch its /status", &why);
            }
        }
        line.lock().done(&status.uid, Instant::now(), PAUSE);
    }

    /// Reads the object, and writes the difference.
    async fn attempt(&self, status: &GangStatus) -> Result<Outcome, Failure> {
        let version = *self.shared.version.lock();
        let path = path(status, version);
        let read = client::request(Method::GET, &path).body(Body::empty());
        let read = retry::send(&self.client, read.map_err(|error| error.to_string())).await;
        let Some(body) = read.settled()? else { return Ok(Outcome::Gone) };
        let current: Current = serde_json::from_slice(&body)
            .map_err(|error| Failure::Final(format!("the object cannot be read: {error}")))?;
        if current.metadata.uid != *status.uid {
            return Ok(Outcome::Gone);
        }
        let Some(change) = change(status, version, &current, Timestamp::now()) else {
            return Ok(Outcome::Unchanged);
        };
        let Change { content_type, patch, is_new_phase } = change;
        let write = client::json_request(Method::PATCH, &format!("{path}/status"), content_type, &patch);
        let written = retry::send(&self.client, write).await.settled()?;
        Ok(written.map_or(Outcome::Gone, |_| Outcome::Written { is_new_phase }))
    }

    /// Sends the event about the phase of an Allocation.
    async fn send_event(&self, status: &GangStatus) {
        let Some(said) = event_of(status) else { return };
        let name = &status.name;
        let regarding = Regarding {
            api_version: "berth.dev/v1alpha1",
            kind: "Allocation",
            namespace: &name.namespace,
            name: &name.name,
            uid: &status.uid,
        };
        let instance = instance("berth", self.host);
        let body = EventBody::about(regarding, said, ("berth", instance), Timestamp::now());
        let create = || async { retry::send(&self.client, body.request()).await.created() };
        if let Err(Abandoned::Failed(why)) = retry(BACKOFF, &name.name, |_| true, create).await {
            self.warn(status, "dropped an event", &why);
        }
    }

    fn warn(&self, status: &GangStatus, what: &str, why: &str) {
        if self.warnings.is_due() {
            let name = &status.name;
            tracing::warn!(kind = ?name.kind, namespace = %name.namespace, name = %name.name, error = why, "{what}");
        }
    }
}

/// Returns type, reason, action and note of the event about this phase.
fn event_of(status: &GangStatus) -> Option<(&'static str, &'static str, &'static str, String)> {
    if status.name.kind != AllocationKind::Allocation {
        return None;
    }
    let note = || note_of(&status.message);
    Some(match status.phase {
        Phase::Pending | Phase::Scheduling | Phase::LimitReached => return None,
        Phase::Scheduled => {
            let sum = |of: fn(&berth_scheduler::gang::GangRoleStatus) -> u32| {
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
