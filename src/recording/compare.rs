//! Compares two settings on a recording.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::read::{ReadError, read};
use super::rerun::{Rerun, RunResult, RunTimes};
use crate::columns;
use berth_scheduler::agent::AgentConfig;
use berth_scheduler::recording::{Opening, RecordingEntry};
use berth_scheduler::scheduler::SchedulerConfig;

const API_VERSION: &str = "compare.berth.dev/v1";
/// Maximum number of pods listed with their waits.
const PODS_MAX: usize = 10;
/// Difference between two waits below which it does not count.
const ALIKE: Duration = Duration::from_millis(100);

/// What two settings make of the same cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsReport {
    pub api_version: &'static str,
    /// Version of berth that made the recording.
    pub recorded_by: String,
    /// Time from the start to the last entry.
    pub seconds: f64,
    pub as_recorded: RunResult,
    pub with_config: RunResult,
    /// Pods whose waits differ most.
    pub waits: Vec<PodWaits>,
}

/// How long a pod waited, in seconds; without a node until the end of the recording.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodWaits {
    pub pod: Arc<str>,
    pub as_recorded: f64,
    pub with_config: f64,
}

/// Lives through a recording with its own settings, and with those that `other` returns. Opens it twice: what pods did is known only at
/// its end.
///
/// # Errors
/// The recording cannot be read, or is of another format.
pub fn compare<R: Read>(
    open: impl Fn() -> anyhow::Result<R>,
    other: impl FnOnce(&Opening) -> (SchedulerConfig, Vec<AgentConfig>),
) -> anyhow::Result<SettingsReport> {
    let (mut opening, mut times) = (None, RunTimes::default());
    read(open()?, |record| -> Result<(), ReadError> {
        match record.number {
            1 => opening = Some(record.opening()?),
            _ => times.hear(&record.parse()?),
        }
        Ok(())
    })?;
    let (opening, times) = (opening.ok_or(ReadError::NoRecording)?, Arc::new(times));
    let (config, agents) = other(&opening);
    let mut again = Rerun::begin(opening.config.clone(), &opening.agents, &opening, times.clone());
    let mut with_config = Rerun::begin(config, &agents, &opening, times);
    let mut last = Duration::ZERO;
    read(open()?, |record| -> Result<(), ReadError> {
        if record.number > 1 {
            let entry: RecordingEntry = record.parse()?;
            last = Duration::from_nanos(entry.at);
            again.hear(&entry);
            with_config.hear(&entry);
        }
        Ok(())
    })?;
    let ((as_recorded, ours), (with_config, theirs)) = (again.finish(), with_config.finish());
    Ok(SettingsReport {
        api_version: API_VERSION,
        recorded_by: opening.version,
        seconds: last.as_secs_f64(),
        as_recorded,
        with_config,
        waits: waits_that_differ(&ours, &theirs),
    })
}

/// Returns the pods whose waits differ most, the greatest difference first.
pub fn waits_that_differ(
    ours: &BTreeMap<Arc<str>, Duration>,
    theirs: &BTreeMap<Arc<str>, Duration>,
) -> Vec<PodWaits> {
    let both = ours.iter().filter_map(|(pod, ours)| Some((pod, *ours, *theirs.get(pod)?)));
    let mut all: Vec<_> = both.filter(|(_, a, b)| a.abs_diff(*b) >= ALIKE).collect();
    all.sort_by_key(|(pod, a, b)| (std::cmp::Reverse(a.abs_diff(*b)), *pod));
    let waits = |(pod, a, b): (&Arc<str>, Duration, Duration)| PodWaits {
        pod: pod.clone(),
        as_recorded: a.as_secs_f64(),
        with_config: b.as_secs_f64(),
    };
    all.into_iter().take(PODS_MAX).map(waits).collect()
}

/// Writes the report for people. `other`: the name of the other settings.
///
/// # Errors
/// Writing to `out` fails.
pub fn show_settings(report: &SettingsReport, other: &str, out: &mut impl Write) -> io::Result<()> {
    let SettingsReport { recorded_by, seconds, as_recorded, with_config, waits, .. } = report;
    writeln!(out, "recorded by berth {recorded_by}, over {seconds:.1} s")?;
    show_runs(&[("as recorded", as_recorded), (other, with_config)], waits, out)
}

/// Writes a column for each run with its name, and the waits that differ between the first two.
///
/// # Errors
/// Writing to `out` fails.
pub fn show_runs(runs: &[(&str, &RunResult)], waits: &[PodWaits], out: &mut impl Write) -> io::Result<()> {
    let rows: [Row<RunResult>; 11] = [
        ("pods that came", |run| run.pods.to_string()),
        ("placed", |run| run.placed.to_string()),
        ("waiting at the end", |run| run.waiting.to_string()),
        ("wait, median", |run| format!("{:.2} s", run.wait_median)),
        ("wait, 99th percentile", |run| format!("{:.2} s", run.wait_p99)),
        ("wait, longest", |run| format!("{:.2} s", run.wait_max)),
        ("preempted pods", |run| run.preempted.map_or_else(|| "-".to_owned(), |pods| pods.to_string())),
        ("CPU requested", |run| percent_of(run.cpu_requested)),
        ("memory requested", |run| percent_of(run.memory_requested)),
        ("nodes in use", |run| format!("{:.1}", run.nodes_in_use)),
        ("free CPU on empty nodes", |run| percent_of(run.free_cpu_on_empty_nodes)),
    ];
    write!(out, "{}", side_by_side(&rows, runs))?;
    if waits.is_empty() {
        return Ok(());
    }
    writeln!(out, "\npods whose waits differ most:")?;
    let cells = waits.iter().map(|of| {
        let wait = |seconds: f64| format!("{seconds:.1} s");
        [of.pod.to_string(), wait(of.as_recorded), wait(of.with_config)]
    });
    let all: Vec<[String; 3]> = cells.collect();
    write!(out, "{}", columns::table(&all, &columns::widths(&all), &[0]))
}

/// Name, and the text of its cells.
pub(super) type Row<T> = (&'static str, fn(&T) -> String);

/// Returns a table with a column for each thing with its name.
pub(super) fn side_by_side<T>(rows: &[Row<T>], things: &[(&str, &T)]) -> String {
    let line = |first: &str, cell: &dyn Fn(&(&str, &T)) -> String| -> Vec<String> {
        [first.to_owned()].into_iter().chain(things.iter().map(cell)).collect()
    };
    let head = line("", &|(name, _)| (*name).to_owned());
    let cells = rows.iter().map(|(name, cell)| line(name, &|(_, thing)| cell(thing)));
    let all: Vec<Vec<String>> = [head].into_iter().chain(cells).collect();
    columns::table(&all, &columns::widths(&all), &[0])
}

pub(super) fn percent_of(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
