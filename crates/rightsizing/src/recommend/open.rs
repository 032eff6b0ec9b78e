//! Memory windows that are still open when a checkpoint is written.
//!
//! Upstream leaves their peaks out of the checkpoint, so that a container does not get two peaks in one window
//! after a restart. It therefore loses up to a day of memory peaks. Here the checkpoint has the same content, and
//! the open windows are stored beside it in an annotation, which upstream ignores.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Shapes, Span};
use super::amount::Amount;
use super::checkpoint::CheckpointStatus;
use super::container::ContainerState;
use super::histogram::UsageHistogram;
use super::histogram_checkpoint::{CheckpointError, HistogramCheckpoint};
use super::time::{NEVER, UnixNanos};

/// Maximum number of containers whose window is stored individually; an annotation has room for a few times this
/// number. For the remaining containers only the peaks are stored, so that they get a second peak in that window
/// after a restart.
pub const NAMED_MAX: usize = 128;

/// State that an upstream checkpoint has no field for. All times are exact.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenWindows {
    /// Time at which the checkpoint was written. The windows are ignored when the checkpoint is newer: upstream
    /// rewrites checkpoints and keeps their annotations.
    #[serde(default)]
    pub saved_at: UnixNanos,
    /// By pod uid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, OpenWindow>,
    /// Peaks of the containers beyond [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<HistogramCheckpoint>,
    /// Memory samples of the aggregate, which upstream does not count: first, last, count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_samples: Option<(UnixNanos, UnixNanos, u64)>,
}

/// Open window of one container. Times are in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenWindow {
    pub end: UnixNanos,
    /// Highest usage, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Amount>,
    /// Highest memory needed after an OOM kill, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_peak: Option<Amount>,
    /// Time of the last memory sample.
    pub last_memory: UnixNanos,
    /// Time of the last CPU sample, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cpu: Option<UnixNanos>,
}

/// Returns the checkpoint as upstream would write it, and the state to store beside it so that nothing is lost.
/// `running` are the containers that feed the aggregate, with their pod's uid.
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

/// Restores what [`save`] was given: the aggregate including the peaks of open windows, and the containers with an
/// open window. Windows with invalid times or amounts are left out.
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
    /// Returns whether the windows were saved with this checkpoint. Checkpoint times are whole seconds.
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

    /// Returns the state of the container, or `None` if the window is invalid.
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
