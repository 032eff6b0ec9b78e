//! Replays a recording, and says what came out of it.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::Serialize;

use super::read::{Ending, ReadError, read};
use crate::explain::show::counted;
use berth_scheduler::recording::{Difference, Opening, RecordingEntry, Replay};

const API_VERSION: &str = "replay.berth.dev/v1";

/// What a replay found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    pub api_version: &'static str,
    /// Version of berth that made the recording.
    pub recorded_by: String,
    pub agents: usize,
    /// Time from the start to the last entry.
    pub seconds: f64,
    pub entries: u64,
    pub decisions: u64,
    /// Whether the recording ends within a block.
    pub cut_off: bool,
    pub outcome: ReplayOutcome,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum ReplayOutcome {
    /// Each decision was the same.
    Same,
    Different(DecidedOtherwise),
}

/// The first decision that differs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedOtherwise {
    /// Number of the entry, from 1.
    pub entry: u64,
    /// Seconds since the start.
    pub at: f64,
    pub recorded: Vec<String>,
    pub replayed: Vec<String>,
}

impl From<Difference> for DecidedOtherwise {
    fn from(difference: Difference) -> Self {
        let Difference { entry, at, recorded, replayed } = difference;
        DecidedOtherwise { entry, at: at.as_secs_f64(), recorded, replayed }
    }
}

/// Why a replay ends before the recording.
enum Stop {
    Read(ReadError),
    Different(Difference),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Stop::Read(error)
    }
}

/// How a replay ended.
pub(super) struct ReplayEnd {
    pub replay: Option<Replay>,
    pub ending: Ending,
    pub difference: Option<Difference>,
}

/// Replays a recording up to the first difference. `begin` may change what it begins with; `visit` gets the replay after each entry that is
/// the same, and the time since the start.
///
/// # Errors
/// The recording cannot be read, or is of another format.
pub(super) fn replay_each(
    input: impl Read,
    mut begin: impl FnMut(&mut Opening),
    mut visit: impl FnMut(&Replay, Duration),
) -> Result<ReplayEnd, ReadError> {
    let mut under_way: Option<Replay> = None;
    let ended = read(input, |record| {
        let Some(replay) = &mut under_way else {
            let mut opening = record.opening()?;
            begin(&mut opening);
            under_way = Some(Replay::begin(opening).map_err(ReadError::from)?);
            return Ok(());
        };
        let entry: RecordingEntry = record.parse()?;
        let now = Duration::from_nanos(entry.at);
        if let Some(difference) = replay.hear(entry).map_err(ReadError::from)? {
            return Err(Stop::Different(difference));
        }
        visit(replay, now);
        Ok(())
    });
    let (ending, difference) = match ended {
        Ok(ending) => (ending, None),
        Err(Stop::Different(difference)) => (Ending::Whole, Some(difference)),
        Err(Stop::Read(error)) => return Err(error),
    };
    Ok(ReplayEnd { replay: under_way, ending, difference })
}

/// Replays a recording up to the first difference.
///
/// # Errors
/// The recording cannot be read, or is of another format.
pub fn replay(input: impl Read) -> anyhow::Result<ReplayReport> {
    let (mut recorded_by, mut agents, mut last) = (String::new(), 0, Duration::ZERO);
    let begin = |opening: &mut Opening| {
        (recorded_by, agents) = (opening.version.clone(), opening.agents.len());
    };
    let ReplayEnd { replay, ending, difference } = replay_each(input, begin, |_, now| last = now)?;
    let last = difference.as_ref().map_or(last, |difference| difference.at);
    let (entries, decisions) = replay.map_or((0, 0), |replay| (replay.entries(), replay.decisions()));
    Ok(ReplayReport {
        api_version: API_VERSION,
        recorded_by,
        agents,
        seconds: last.as_secs_f64(),
        entries,
        decisions,
        cut_off: ending == Ending::CutOff,
        outcome: difference
            .map_or(ReplayOutcome::Same, |difference| ReplayOutcome::Different(difference.into())),
    })
}

/// Writes the report for people. `took`: the time of the replay.
///
/// # Errors
/// Writing to `out` fails.
pub fn show(report: &ReplayReport, took: Duration, out: &mut impl Write) -> io::Result<()> {
    let ReplayReport { recorded_by, agents, seconds, entries, decisions, .. } = report;
    let agents = counted(*agents, "agent");
    writeln!(out, "recorded by berth {recorded_by} with {agents}, over {seconds:.1} s")?;
    let took = took.as_secs_f64();
    let speed = if took > 0.0 { seconds / took } else { 0.0 };
    writeln!(
        out,
        "{entries} entries with {decisions} decisions replayed in {took:.1} s, {speed:.0} times as fast"
    )?;
    if report.cut_off {
        writeln!(out, "it ends within a block: the process was killed, or the disk was full")?;
    }
    match &report.outcome {
        ReplayOutcome::Same => writeln!(out, "every decision is the same"),
        ReplayOutcome::Different(DecidedOtherwise { entry, at, recorded, replayed }) => {
            writeln!(out, "entry {entry}, {at:.3} s after the start, is decided otherwise")?;
            let words = |all: &[String]| match all {
                [] => "nothing".to_owned(),
                all => all.join("; "),
            };
            writeln!(out, "  then: {}", words(recorded))?;
            writeln!(out, "  now:  {}", words(replayed))
        }
    }
}
