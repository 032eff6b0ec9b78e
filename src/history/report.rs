//! What became of the pods of a history, by itself and with settings of berth.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::ClusterHistory;
use super::happened::as_it_happened;
use crate::recording::{PodWaits, Rerun, RunResult, RunTimes, show_runs, waits_that_differ};
use berth_scheduler::agent::AgentConfig;
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::recording::Opening;
use berth_scheduler::scheduler::SchedulerConfig;

const API_VERSION: &str = "history.berth.dev/v1";

/// See the module documentation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    pub api_version: &'static str,
    /// Where the history is from.
    pub source: String,
    /// Time from the beginning to the end.
    pub seconds: f64,
    pub runs: Vec<HistoryRun>,
    /// Pods whose waits differ most between the first run and the second.
    pub waits: Vec<PodWaits>,
    /// What could not be used.
    pub notes: Vec<String>,
}

/// One way in which it went.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRun {
    pub name: String,
    #[serde(flatten)]
    pub result: RunResult,
}

/// Settings and their name.
pub type NamedSettings = (String, SchedulerConfig, Vec<AgentConfig>);

/// Lives through a history as it happened, if that is known, and with each of these settings.
pub fn live(history: &ClusterHistory, settings: &[NamedSettings]) -> HistoryReport {
    let mut runs: Vec<(String, RunResult, BTreeMap<Arc<str>, Duration>)> = Vec::new();
    if history.has_placements {
        let (result, waits) = as_it_happened(history);
        runs.push(("as it happened".to_owned(), result, waits));
    }
    let mut times = history.run_times.clone();
    history.entries.iter().for_each(|entry| times.hear(entry));
    let times = Arc::new(times);
    for (name, config, agents) in settings {
        let (result, waits) = with_settings(history, &times, config, agents);
        runs.push((name.clone(), result, waits));
    }
    let waits = match &runs[..] {
        [(_, _, ours), (_, _, theirs), ..] => waits_that_differ(ours, theirs),
        _ => Vec::new(),
    };
    let end = history.entries.last().map_or(0, |entry| entry.at);
    HistoryReport {
        api_version: API_VERSION,
        source: history.source.clone(),
        seconds: Duration::from_nanos(end).as_secs_f64(),
        runs: runs.into_iter().map(|(name, result, _)| HistoryRun { name, result }).collect(),
        waits,
        notes: history.notes.clone(),
    }
}

/// Lives through a history with these settings, which place the pods of all schedulers.
fn with_settings(
    history: &ClusterHistory,
    times: &Arc<RunTimes>,
    config: &SchedulerConfig,
    agents: &[AgentConfig],
) -> (RunResult, BTreeMap<Arc<str>, Duration>) {
    let names = history.scheduler_names.iter().chain(config.scheduler_names.iter()).cloned();
    let config = SchedulerConfig {
        scheduler_names: names.collect(),
        objects: history.objects.clone(),
        ..config.clone()
    };
    let opening = Opening::new(config.clone(), agents.to_vec(), Estimator::default());
    let mut run = Rerun::begin(config, agents, &opening, times.clone());
    history.entries.iter().for_each(|entry| run.hear(entry));
    run.finish()
}

/// Writes the report for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn show_history(report: &HistoryReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}, over {:.0} s", report.source, report.seconds)?;
    let runs: Vec<_> = report.runs.iter().map(|run| (run.name.as_str(), &run.result)).collect();
    show_runs(&runs, &report.waits, out)
}
