//! One run: a workload, a subject, a fresh control plane.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_telemetry::process::{ProcessUsage, usage_of};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Serialize;

use crate::audit::Decisions;
use crate::cluster::Cluster;
use crate::lived_in;
use crate::subject::{Inner, Running, Subject};
use crate::workload::{Size, Workload};

/// Results of a run. A decision is a bind, or the unschedulable condition of a pod that fits nowhere. Seconds are wall time.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    pub workload: &'static str,
    pub subject: Subject,
    /// Bound pods.
    pub bound: usize,
    /// Pods that fit nowhere and got the condition.
    pub told: usize,
    /// Decisions after the first one, per second from the first write to any pod to the last decision.
    pub decisions_per_second: f64,
    /// From the start of the process.
    pub seconds_to_last_decision: f64,
    /// CPU from the start of the process to the last decision, divided by all pods.
    pub cpu_us_per_pod_at_last_decision: f64,
    /// The same, until the last event was written.
    pub cpu_us_per_pod: f64,
    /// CPU of kube-apiserver, until the last event was written.
    pub api_server_cpu_us_per_pod: f64,
    pub peak_resident_mb: f64,
    pub binds_refused: usize,
    pub events_at_last_decision: usize,
    pub events: usize,
    /// From the last decision to the last event.
    pub seconds_to_last_event: f64,
    /// berth's own counters, at the last decision.
    pub inner: Option<Inner>,
}

impl Run {
    pub fn summary(&self) -> String {
        format!(
            "{:.0} pods/s, {:.0} us a pod, {:.0} MB, last event after {:.1} s",
            self.decisions_per_second, self.cpu_us_per_pod, self.peak_resident_mb, self.seconds_to_last_event
        )
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time without a write to any pod. It does not count decisions: kube-scheduler preempts for all waiting pods, which takes
/// minutes, before it retries the first pod whose victims are gone.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// Maximum time of a run.
const RUN_LIMIT: Duration = Duration::from_secs(3600);
const EVENT_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time without a new event; kube-scheduler drops events when it has too many, so fewer than expected may come.
const EVENT_STALL_LIMIT: Duration = Duration::from_secs(5);

/// Resource usage of the subject and the API server at a point in time.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    subject: ProcessUsage,
    api_server: ProcessUsage,
}

impl Sample {
    fn take(cluster: &Cluster, running: &Running) -> Result<Self> {
        let of = |pid: u32| usage_of(&pid.to_string()).context("a process has ended while it was measured");
        Ok(Sample {
            at: Instant::now(),
            subject: of(running.process.pid())?,
            api_server: of(cluster.control_plane.api_server_pid())?,
        })
    }
}

pub async fn measure(
    workload: &'static Workload,
    subject: Subject,
    size: Size,
    progress: &ProgressBar,
) -> Result<Run> {
    let cluster = Cluster::start(workload, size, subject.scheduler_name(), progress).await?;
    let pods = workload.pod_count(size.pods);
    let mut decisions = Decisions::new(workload, &cluster.audit_log)?;
    let api_server_before = usage_of(&cluster.control_plane.api_server_pid().to_string()).unwrap_or_default();

    progress.set_message("scheduling");
    progress.set_length(pods as u64);
    progress.set_position(0);
    let started = Timestamp::now();
    let churn = workload.lived_in.then(|| tokio::spawn(lived_in::churn(cluster.client.clone(), size.nodes)));
    let mut running = subject.start(&cluster).await?;
    await_decisions(&mut running, &mut decisions, pods, progress).await?;
    let decided = Sample::take(&cluster, &running)?;
    if let Some(churn) = churn {
        ensure!(!churn.is_finished(), "the pods of another scheduler could not be created");
        churn.abort();
    }
    let inner = running.inner().await?;
    let events_at_last_decision = cluster.event_count().await?;

    let expected = if subject.writes_events() { pods * workload.events_per_pod() } else { 0 };
    let (events, written) =
        await_events(&cluster, &running, decided, events_at_last_decision, expected, progress).await?;
    if !subject.is_null() {
        progress.set_message("checking");
        cluster.check_placements().await?;
    }
    let (first, last) = decisions.first_and_last().context("no pod was bound")?;
    let per_pod = |cpu: Duration| cpu.as_secs_f64() * 1e6 / pods as f64;
    Ok(Run {
        workload: workload.name,
        subject,
        bound: decisions.bound(),
        told: decisions.count() - decisions.bound(),
        decisions_per_second: (decisions.count() - 1) as f64 / last.duration_since(first).as_secs_f64(),
        seconds_to_last_decision: last.duration_since(started).as_secs_f64(),
        cpu_us_per_pod_at_last_decision: per_pod(decided.subject.cpu),
        cpu_us_per_pod: per_pod(written.subject.cpu),
        api_server_cpu_us_per_pod: per_pod(written.api_server.cpu.saturating_sub(api_server_before.cpu)),
        peak_resident_mb: written.subject.peak_resident_bytes as f64 / 1e6,
        binds_refused: decisions.refused,
        events_at_last_decision,
        events,
        seconds_to_last_event: (written.at - decided.at).as_secs_f64(),
        inner,
    })
}

/// Returns when all pods are bound or have the unschedulable condition.
async fn await_decisions(
    running: &mut Running,
    decisions: &mut Decisions,
    pods: usize,
    progress: &ProgressBar,
) -> Result<()> {
    let started = Instant::now();
    let mut seen = (0, started);
    loop {
        decisions.read_on()?;
        if decisions.count() == pods {
            return Ok(());
        }
        if decisions.writes > seen.0 {
            seen = (decisions.writes, Instant::now());
            progress.set_position(decisions.count() as u64);
        }
        let has_ended = running.process.has_exited();
        if has_ended || seen.1.elapsed() > STALL_LIMIT || started.elapsed() > RUN_LIMIT {
            let what = if has_ended { "has ended" } else { "has stalled" };
            let log = running.process.log().tail();
            let (decided, writes) = (decisions.count(), decisions.writes);
            bail!(
                "the scheduler {what} with {decided} of {pods} pods decided and {writes} writes to pods; its log:\n{log}"
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the number of events and the usage when the last of them was observed: once there are `expected` events, or no more
/// come. `decided` is the sample that was taken at `events` events.
async fn await_events(
    cluster: &Cluster,
    running: &Running,
    decided: Sample,
    mut events: usize,
    expected: usize,
    progress: &ProgressBar,
) -> Result<(usize, Sample)> {
    progress.set_message("waiting for events");
    progress.set_position(events as u64);
    let mut last = decided;
    while events < expected && last.at.elapsed() < EVENT_STALL_LIMIT {
        tokio::time::sleep(EVENT_POLL_INTERVAL).await;
        let now = cluster.event_count().await?;
        if now > events {
            events = now;
            last = Sample::take(cluster, running)?;
            progress.set_position(events as u64);
        }
    }
    Ok((events, last))
}
