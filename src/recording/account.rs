//! What happened in a recording: where the time of placed pods went, and what changed since another one.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;

use super::compare::{Row, percent_of, side_by_side};
use super::node_use::NodeUse;
use super::replay::{ReplayEnd, replay_each};
use berth_scheduler::decisions::{ListUse, PlacementDecision};
use berth_scheduler::recording::{Difference, Opening};

const API_VERSION: &str = "against.berth.dev/v1";
/// Decisions that the replayed scheduler remembers; they are read after each entry.
const REMEMBERED_MIN: usize = 1_000;
/// A stage is slower if its 99th percentile grew by this share, and by this many seconds.
const GROWN_SHARE: f64 = 0.2;
const GROWN_S: f64 = 0.02;

/// What happened in one recording.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordingAccount {
    /// Version of berth that made the recording.
    pub recorded_by: String,
    /// Time from the start to the last entry.
    pub seconds: f64,
    /// Mean over the time in which there were nodes.
    pub nodes: f64,
    /// Pods that were placed, and bound.
    pub placed: usize,
    /// Pods without a node at the end.
    pub waiting: usize,
    /// From the arrival of a pod to the choice of its node, over all attempts.
    pub until_choice: StageTimes,
    /// The last choice alone.
    pub choice: StageTimes,
    /// From the choice to the end of the bind, with claims.
    pub bind: StageTimes,
    /// Mean number of attempts of the placed pods.
    pub attempts: f64,
    /// Choices that no longer fit when they were committed.
    pub conflicts: u64,
    /// Placed pods for which a node had been kept, as after preemption.
    pub nominated: usize,
    /// Share of choices whose list of nodes was there already.
    pub list_hits: f64,
    /// Mean requested share of the allocatable CPU of all nodes.
    pub cpu_requested: f64,
    pub memory_requested: f64,
}

/// Seconds that a stage took, of the placed pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageTimes {
    pub median: f64,
    pub p99: f64,
    pub longest: f64,
}

/// Two recordings side by side.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountComparison {
    pub api_version: &'static str,
    pub before: RecordingAccount,
    pub after: RecordingAccount,
    /// What became slower, and what else changed with it.
    pub findings: Vec<String>,
}

/// Gives an account of a recording, which it replays.
///
/// # Errors
/// The recording cannot be read, is of another format, or is decided otherwise by this version.
pub fn account(input: impl Read) -> anyhow::Result<RecordingAccount> {
    let (mut found, mut nodes, mut decisions, mut seen) =
        (RecordingAccount::default(), NodeUse::default(), Vec::new(), 0);
    let (recorded_by, seconds) = (&mut found.recorded_by, &mut found.seconds);
    let begin = |opening: &mut Opening| {
        recorded_by.clone_from(&opening.version);
        let remembered = &mut opening.config.remembered_decisions;
        *remembered = REMEMBERED_MIN.max(*remembered);
    };
    let ReplayEnd { replay, difference, .. } = replay_each(input, begin, |replay, now| {
        *seconds = now.as_secs_f64();
        nodes.sample(replay.scheduler(), now);
        let page = replay.scheduler().decisions().page(seen, usize::MAX, now);
        seen = page.first + page.decisions.len() as u64;
        decisions.extend(page.decisions.into_iter().map(|(decision, _)| decision));
    })?;
    if let Some(Difference { entry, .. }) = difference {
        bail!(
            "entry {entry} is decided otherwise by this version of berth: use the version that made the recording, {}",
            found.recorded_by
        );
    }
    if let Some(replay) = replay {
        found.waiting = replay.scheduler().totals().waiting;
        let means = nodes.means(replay.scheduler(), Duration::from_secs_f64(found.seconds));
        (found.nodes, found.cpu_requested, found.memory_requested) = (means.nodes, means.cpu, means.memory);
    }
    found.count(&decisions);
    Ok(found)
}

impl RecordingAccount {
    fn count(&mut self, decisions: &[PlacementDecision]) {
        let times =
            |of: &dyn Fn(&PlacementDecision) -> Option<f64>| StageTimes::of(decisions.iter().filter_map(of));
        self.placed = decisions.len();
        self.until_choice = times(&|decision| Some(f64::from(decision.waited_ms) / 1e3));
        self.choice =
            times(&|decision| (decision.choice_us > 0).then(|| f64::from(decision.choice_us) / 1e6));
        self.bind = times(&|decision| Some(f64::from(decision.bind_ms) / 1e3));
        let mean = |sum: f64, of: usize| if of > 0 { sum / of as f64 } else { 0.0 };
        self.attempts =
            mean(decisions.iter().map(|decision| f64::from(decision.attempts)).sum(), self.placed);
        self.conflicts = decisions.iter().map(|decision| u64::from(decision.conflicts)).sum();
        let circumstances = decisions.iter().filter_map(|decision| decision.circumstances.as_ref());
        self.nominated = circumstances.filter(|it| it.nominated).count();
        let lists: Vec<_> = decisions.iter().filter_map(|decision| decision.list).collect();
        let hits = lists.iter().filter(|list| **list == ListUse::Hit).count();
        self.list_hits = mean(hits as f64, lists.len());
    }

    /// Returns the number of pods placed a second.
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.placed as f64 / self.seconds } else { 0.0 }
    }
}

impl StageTimes {
    pub(crate) fn of(seconds: impl Iterator<Item = f64>) -> StageTimes {
        let mut all: Vec<f64> = seconds.collect();
        all.sort_by(f64::total_cmp);
        let last = all.len().saturating_sub(1);
        let at = |share: f64| all.get((last as f64 * share).ceil() as usize).copied().unwrap_or(0.0);
        StageTimes { median: at(0.5), p99: at(0.99), longest: at(1.0) }
    }
}

/// Compares what happened in two recordings.
pub fn against(before: RecordingAccount, after: RecordingAccount) -> AccountComparison {
    let findings = findings(&before, &after);
    AccountComparison { api_version: API_VERSION, before, after, findings }
}

/// Returns what became slower, the worst first, each with what else changed that may be its cause.
fn findings(before: &RecordingAccount, after: &RecordingAccount) -> Vec<String> {
    type Stage = (
        &'static str,
        fn(&RecordingAccount) -> &StageTimes,
        fn(&RecordingAccount, &RecordingAccount) -> Vec<String>,
    );
    let stages: [Stage; 3] = [
        ("until a node was chosen", |it| &it.until_choice, while_waiting),
        ("for the choice itself", |it| &it.choice, while_choosing),
        ("to bind at the API server", |it| &it.bind, |_, _| Vec::new()),
    ];
    let mut grown: Vec<(f64, String)> = Vec::new();
    for (what, of, causes) in stages {
        let (was, is) = (of(before).p99, of(after).p99);
        if is - was >= GROWN_S && is >= was * (1.0 + GROWN_SHARE) {
            let causes = causes(before, after);
            let causes = if causes.is_empty() { String::new() } else { format!(": {}", causes.join("; ")) };
            grown.push((
                is - was,
                format!("it took {is:.2} s {what} (99th percentile), before {was:.2} s{causes}"),
            ));
        }
    }
    grown.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut findings: Vec<String> = grown.into_iter().map(|(_, text)| text).collect();
    if after.waiting > before.waiting {
        findings.push(format!("{} pods have no node at the end, before {}", after.waiting, before.waiting));
    }
    findings
}

fn while_waiting(before: &RecordingAccount, after: &RecordingAccount) -> Vec<String> {
    let mut causes = Vec::new();
    if after.attempts > before.attempts * (1.0 + GROWN_SHARE) {
        let text =
            format!("a pod was tried {:.1} times, before {:.1} times", after.attempts, before.attempts);
        causes.push(format!("{text}, as there was no room for it at first"));
    }
    if after.nodes < before.nodes * (1.0 - GROWN_SHARE / 2.0) {
        causes.push(format!("there were {:.0} nodes, before {:.0}", after.nodes, before.nodes));
    }
    for (resource, was, is) in [
        ("CPU", before.cpu_requested, after.cpu_requested),
        ("memory", before.memory_requested, after.memory_requested),
    ] {
        if is > was + 0.05 {
            causes.push(format!(
                "{} of the {resource} was requested, before {}",
                percent_of(is),
                percent_of(was)
            ));
        }
    }
    if after.nominated * before.placed > before.nominated * after.placed {
        causes.push(format!(
            "{} pods waited for room that was made for them, before {}",
            after.nominated, before.nominated
        ));
    }
    if causes.is_empty() && after.rate() > before.rate() * (1.0 + GROWN_SHARE) {
        causes.push(format!("{:.0} pods were placed a second, before {:.0}", after.rate(), before.rate()));
    }
    causes
}

fn while_choosing(before: &RecordingAccount, after: &RecordingAccount) -> Vec<String> {
    let mut causes = Vec::new();
    if after.list_hits < before.list_hits - 0.05 {
        let (is, was) = (percent_of(after.list_hits), percent_of(before.list_hits));
        causes.push(format!("a list of nodes was there already for {is} of the choices, before for {was}"));
    }
    if after.nodes > before.nodes * (1.0 + GROWN_SHARE) {
        causes.push(format!("there were {:.0} nodes, before {:.0}", after.nodes, before.nodes));
    }
    causes
}

/// Writes the comparison for people. `names`: of the two recordings.
///
/// # Errors
/// Writing to `out` fails.
pub fn show_accounts(
    comparison: &AccountComparison,
    names: [&str; 2],
    out: &mut impl Write,
) -> io::Result<()> {
    fn times(times: &StageTimes) -> String {
        format!("{:.2}, {:.2} s", times.median, times.p99)
    }
    let rows: [Row<RecordingAccount>; 14] = [
        ("recorded by berth", |it| it.recorded_by.clone()),
        ("time", |it| format!("{:.1} s", it.seconds)),
        ("nodes", |it| format!("{:.1}", it.nodes)),
        ("pods placed", |it| it.placed.to_string()),
        ("waiting at the end", |it| it.waiting.to_string()),
        ("until the choice: median, p99", |it| times(&it.until_choice)),
        ("choice: median, p99", |it| format!("{:.1}, {:.1} ms", it.choice.median * 1e3, it.choice.p99 * 1e3)),
        ("bind: median, p99", |it| times(&it.bind)),
        ("attempts a pod", |it| format!("{:.1}", it.attempts)),
        ("conflicts", |it| it.conflicts.to_string()),
        ("room was made or kept for", |it| it.nominated.to_string()),
        ("list hits", |it| percent_of(it.list_hits)),
        ("CPU requested", |it| percent_of(it.cpu_requested)),
        ("memory requested", |it| percent_of(it.memory_requested)),
    ];
    let AccountComparison { before, after, findings, .. } = comparison;
    writeln!(out, "{}", side_by_side(&rows, &[(names[0], before), (names[1], after)]))?;
    match &findings[..] {
        [] => writeln!(out, "nothing became slower"),
        all => all.iter().try_for_each(|finding| writeln!(out, "* {finding}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calm() -> RecordingAccount {
        let times = |p99: f64| StageTimes { median: p99 / 2.0, p99, longest: p99 };
        RecordingAccount {
            recorded_by: "0.1.0".to_owned(),
            seconds: 100.0,
            nodes: 10.0,
            placed: 100,
            until_choice: times(0.1),
            choice: times(0.001),
            bind: times(0.01),
            attempts: 1.0,
            list_hits: 0.95,
            cpu_requested: 0.5,
            memory_requested: 0.3,
            ..RecordingAccount::default()
        }
    }

    fn p99(p99: f64) -> StageTimes {
        StageTimes { p99, ..StageTimes::default() }
    }

    fn full() -> RecordingAccount {
        RecordingAccount {
            until_choice: p99(12.0),
            bind: p99(0.5),
            attempts: 6.3,
            cpu_requested: 0.96,
            nodes: 8.0,
            waiting: 7,
            ..calm()
        }
    }

    #[test]
    fn the_example_on_the_page_is_what_two_recordings_make() {
        let mut out = Vec::new();
        let names = ["tuesday.jsonl", "today.jsonl"];
        show_accounts(&against(calm(), full()), names, &mut out).expect("written");
        let out = String::from_utf8(out).expect("text");
        let page = include_str!("../../docs/replay.md");
        assert!(page.contains(&format!("```\n{out}```\n")), "{out}");
    }

    #[test]
    fn the_slowest_stage_comes_first_with_what_changed_besides() {
        let found = findings(&calm(), &full());
        assert_eq!(
            found,
            [
                "it took 12.00 s until a node was chosen (99th percentile), before 0.10 s: a pod was tried 6.3 times, before 1.0 \
                 times, as there was no room for it at first; there were 8 nodes, before 10; 96.0 % of the CPU was requested, \
                 before 50.0 %",
                "it took 0.50 s to bind at the API server (99th percentile), before 0.01 s",
                "7 pods have no node at the end, before 0",
            ]
        );
        assert_eq!(findings(&full(), &calm()), [""; 0], "it became faster");
    }

    #[test]
    fn more_pods_more_classes_and_preemption_are_named_as_causes() {
        let crowd = RecordingAccount { until_choice: p99(1.0), placed: 1_000, ..calm() };
        assert!(findings(&calm(), &crowd)[0].ends_with(": 10 pods were placed a second, before 1"));
        let preempting = RecordingAccount { until_choice: p99(1.0), nominated: 5, ..calm() };
        assert!(
            findings(&calm(), &preempting)[0]
                .ends_with("5 pods waited for room that was made for them, before 0")
        );
        let varied = RecordingAccount { choice: p99(0.2), list_hits: 0.2, nodes: 100.0, ..calm() };
        assert!(findings(&calm(), &varied)[0].ends_with(
            ": a list of nodes was there already for 20.0 % of the choices, before for 95.0 %; there were 100 nodes, before 10"
        ));
    }

    #[test]
    fn small_differences_are_no_findings() {
        let alike = RecordingAccount { until_choice: p99(0.115), bind: p99(0.025), ..calm() };
        assert_eq!(findings(&calm(), &alike), [""; 0]);
    }
}
