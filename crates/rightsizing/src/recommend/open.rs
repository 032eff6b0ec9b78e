//! Memory windows that are still open when a checkpoint is written.
//!
//! Upstream leaves their peaks out of the checkpoint, so that a container does not get two peaks in one window when it
//! goes on after a restart, and so forgets up to a day of memory. Here the checkpoint is the same, and the open windows
//! are kept beside it, to be stored where upstream does not look (an annotation).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Shapes, Span};
use super::amount::Amount;
use super::checkpoint::{CheckpointError, CheckpointStatus, HistogramCheckpoint};
use super::container::ContainerState;
use super::histogram::UsageHistogram;
use super::time::{NEVER, UnixNanos};

/// Containers whose window is kept one by one; an annotation has room for a few times as many. Of the others only
/// the peaks are kept, so that they get a second one in that window after a restart.
pub const NAMED_MAX: usize = 128;

/// What a checkpoint of upstream's has no room for. All times are exact.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenWindows {
    /// When the checkpoint beside was written. Beside a later one of upstream's, which leaves annotations alone, they are of no use.
    #[serde(default)]
    pub saved_at: UnixNanos,
    /// By the uid of the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, OpenWindow>,
    /// Peaks of those beyond [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<HistogramCheckpoint>,
    /// Memory samples that the aggregate had, which upstream does not count: first, last, count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_samples: Option<(UnixNanos, UnixNanos, u64)>,
}

/// One container's open window. Times in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenWindow {
    pub end: UnixNanos,
    /// Highest usage, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Amount>,
    /// Highest need after an OOM kill, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_peak: Option<Amount>,
    /// When its last memory sample was.
    pub last_memory: UnixNanos,
    /// When its last CPU sample was, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cpu: Option<UnixNanos>,
}

/// A checkpoint as upstream would write it, and what must be stored beside it to lose nothing. `running` are the
/// containers that feed the aggregate, with their pod's uid.
pub fn save<'a>(
    aggregate: &Aggregate,
    running: impl IntoIterator<Item = (&'a str, &'a ContainerState)>,
    now: UnixNanos,
) -> (CheckpointStatus, OpenWindows) {
    let mut closed = aggregate.clone();
    let mut others = UsageHistogram::new(aggregate.memory.options());
    let mut windows = OpenWindows { saved_at: now, ..OpenWindows::default() };
    for (uid, state) in running {
        let Some((peak, end)) = state.open_peak(now) else { continue };
        closed.subtract_peak(peak, end);
        if windows.containers.len() < NAMED_MAX {
            windows.containers.insert(uid.into(), OpenWindow::of(state));
        } else {
            others.add(peak as f64, end);
        }
    }
    windows.others = (!others.is_empty()).then(|| others.save());
    let Span { first, last, count } = aggregate.memory_span;
    windows.memory_samples = (count > 0).then_some((first, last, count));
    (CheckpointStatus::save(&closed, now), windows)
}

/// What [`save`] was given: the aggregate with the peaks of open windows, and the containers that had them. Windows
/// that cannot be, by their times or amounts, are left out.
pub fn load(
    status: &CheckpointStatus,
    windows: &OpenWindows,
    shapes: &Shapes,
    window_ns: i64,
    now: UnixNanos,
) -> Result<(Aggregate, BTreeMap<String, ContainerState>), CheckpointError> {
    let mut aggregate = status.load(shapes, window_ns, now)?;
    if !windows.are_of(status) {
        return Ok((aggregate, BTreeMap::new()));
    }
    if let Some(others) = &windows.others {
        let others = CheckpointStatus { memory_histogram: others.clone(), ..status.without_samples() };
        aggregate.memory.merge(&others.load(shapes, window_ns, now)?.memory);
    }
    if let Some((first, last, count)) = windows.memory_samples
        && NEVER < first
        && first <= last
        && last <= now
    {
        aggregate.memory_span = Span { first, last, count };
    }
    let mut running = BTreeMap::new();
    for (uid, window) in &windows.containers {
        let Some(state) = window.state(window_ns, now) else { continue };
        if let Some(peak) = state.memory_peak.max(state.oom_peak) {
            aggregate.add_peak(peak, state.window_end);
        }
        running.insert(uid.clone(), state);
    }
    Ok((aggregate, running))
}

impl OpenWindows {
    /// Checkpoints have whole seconds.
    fn are_of(&self, status: &CheckpointStatus) -> bool {
        const SECOND_NS: i64 = 1_000_000_000;
        self.saved_at.div_euclid(SECOND_NS) == status.last_update_time.div_euclid(SECOND_NS)
    }
}

impl OpenWindow {
    fn of(state: &ContainerState) -> Self {
        Self {
            end: state.window_end,
            peak: state.memory_peak,
            oom_peak: state.oom_peak,
            last_memory: state.last_memory,
            last_cpu: (state.last_cpu != NEVER).then_some(state.last_cpu),
        }
    }

    /// The container as it was, if that can be.
    fn state(&self, window_ns: i64, now: UnixNanos) -> Option<ContainerState> {
        let last_cpu = self.last_cpu.unwrap_or(NEVER);
        let state = ContainerState {
            last_cpu,
            last_memory: self.last_memory,
            window_end: self.end,
            memory_peak: self.peak,
            oom_peak: self.oom_peak,
        };
        let times_can_be = NEVER < self.end
            && self.end <= now.saturating_add(window_ns)
            && self.last_memory <= now
            && last_cpu <= now;
        let peak_can_be = self.peak >= Some(0) || self.oom_peak >= Some(0);
        let none_negative =
            self.peak.is_none_or(|peak| peak >= 0) && self.oom_peak.is_none_or(|peak| peak >= 0);
        (times_can_be && peak_can_be && none_negative).then_some(state)
    }
}
