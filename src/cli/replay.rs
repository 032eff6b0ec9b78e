//! `berth replay`: runs the scheduler again from a recording, or from what other tools kept of a cluster.

mod history;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use clap::Args;

use super::engine_settings::{agent_configs, scheduler_config};
use super::failure::Failure;
use super::output::{Output, answered, written};
use super::progress::{ProgressBars, Stage};
use crate::recording::{
    AnonymiseError, ReadError, ReplayOutcome, ReplayReport, account, against, anonymise, compare, open, read,
    replay as replayed, show, show_accounts, show_settings,
};
use berth_config::Config;
use berth_scheduler::recording::RecordingEntry;

const EXIT_CODES: &str = "Exit codes: 0 every decision is the same, or the comparison is complete; 1 the file cannot be read; 2 the options or \
                          the configuration are invalid; 3 a decision is another one.";
const DIFFERENT: u8 = 3;

/// Options of `berth replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ReplayOptions {
    /// A recording, which berth run makes with recorder.enabled; or what --print printed of one; or a folder, for the latest one in it.
    /// Or two or more dumps (`kubectl get -o json`) of a cluster, in the order of their times: what became of its pods, and what berth
    /// would have done with them. Or a trace of SimKube, with --nodes.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Dump of the cluster in which the pods of a trace of SimKube are placed.
    #[arg(long, value_name = "DUMP", conflicts_with_all = ["print", "against"])]
    pub nodes: Option<PathBuf>,
    /// Do not compare decisions: live through the recorded cluster with this configuration, and with the recorded one, and compare what
    /// comes out.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub config: Vec<PathBuf>,
    /// Do not compare decisions: say where the time of pods went in this recording and in LATER, and what became slower.
    #[arg(long, value_name = "LATER", conflicts_with_all = ["print", "config"])]
    pub against: Option<PathBuf>,
    /// Print the recording as JSON, a record a line, and replay nothing.
    #[arg(long, conflicts_with = "output")]
    pub print: bool,
    /// Print it without the names in it, to show it to others.
    #[arg(long, requires = "print")]
    pub anonymise: bool,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Exit codes: 0 every decision is the same or the comparison is complete, 1 the file cannot be read, 2 the options or the configuration
/// are invalid, 3 a decision is another one.
pub fn replay(options: &ReplayOptions) -> ExitCode {
    // What the scheduler relies on may not hold in a recording that somebody has edited.
    std::panic::catch_unwind(|| carry_out(options)).unwrap_or_else(|_| {
        let why = "the scheduler panicked, as written above: the recording was edited, or it is a bug";
        let files: Vec<_> = options.files.iter().map(|file| file.display().to_string()).collect();
        Failure::Other(anyhow!("{}: {why}", files.join(", "))).exit()
    })
}

fn carry_out(options: &ReplayOptions) -> ExitCode {
    let file = match history::recording(options) {
        Ok(Some(file)) => file,
        Ok(None) => {
            return match history::live_through(options) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => failure.exit(),
            };
        }
        Err(failure) => return failure.exit(),
    };
    if options.print {
        let printed = if options.anonymise { print_anonymised(file) } else { print(file) };
        return match printed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::Other(error).exit(),
        };
    }
    if !options.config.is_empty() {
        return match with_other_settings(options, file) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.exit(),
        };
    }
    if let Some(later) = &options.against {
        return match side_by_side(options, file, later) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::Other(error).exit(),
        };
    }
    match answer(options, file) {
        Ok(ReplayReport { outcome: ReplayOutcome::Same, .. }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DIFFERENT),
        Err(error) => Failure::Other(error).exit(),
    }
}

fn print(file: &Path) -> Result<()> {
    let input = open(file)?;
    written(|out| {
        let printed = read(input, |record| -> Result<(), ReadError> {
            let line = match record.number {
                1 => serde_json::to_string(&record.opening()?),
                _ => serde_json::to_string(&record.parse::<RecordingEntry>()?),
            };
            Ok(writeln!(out, "{}", line.map_err(std::io::Error::other)?)?)
        });
        printed.map(|_| ()).map_err(|error| match error {
            ReadError::Io(error) => error,
            other => std::io::Error::other(other),
        })
    })
    .with_context(|| file.display().to_string())
}

fn print_anonymised(file: &Path) -> Result<()> {
    let input = open(file)?;
    let from_start = || -> io::Result<Watched> {
        let mut again = input.try_clone()?;
        again.rewind()?;
        Ok(Watched::new(again))
    };
    let mut failed = None;
    written(|out| match anonymise(from_start, out) {
        Err(AnonymiseError::Read(ReadError::Io(error))) => Err(error),
        other => {
            failed = other.err();
            Ok(())
        }
    })?;
    failed.map_or(Ok(()), Err).with_context(|| file.display().to_string())
}

fn answer(options: &ReplayOptions, file: &Path) -> Result<ReplayReport> {
    let input = open(file)?;
    let began = Instant::now();
    let report = replayed(Watched::new(input)).with_context(|| file.display().to_string())?;
    let took = began.elapsed();
    answered(options.output, &report, |out| show(&report, took, out))?;
    Ok(report)
}

fn with_other_settings(options: &ReplayOptions, file: &Path) -> Result<(), Failure> {
    let mut config = Config::load(&options.config).map_err(|error| Failure::Input(error.into()))?;
    let report = compare(
        || Ok(Watched::new(open(file)?)),
        |opening| {
            if config.agents == 0 {
                config.agents = opening.agents.len() as u32;
            }
            (scheduler_config(&config), agent_configs(&config))
        },
    );
    let report = report.with_context(|| file.display().to_string())?;
    let names: Vec<_> = options.config.iter().map(|file| format!("with {}", file.display())).collect();
    Ok(answered(options.output, &report, |out| show_settings(&report, &names.join(", "), out))?)
}

fn side_by_side(options: &ReplayOptions, file: &Path, later: &Path) -> Result<()> {
    let files = [file, later];
    let told = |file: &Path| account(Watched::new(open(file)?)).with_context(|| file.display().to_string());
    let comparison = against(told(files[0])?, told(files[1])?);
    let names = files.map(|file| file.display().to_string());
    answered(options.output, &comparison, |out| show_accounts(&comparison, [&names[0], &names[1]], out))
}

/// A recording that is being read, with its progress on a terminal.
struct Watched {
    input: File,
    bytes: usize,
    stage: Option<Stage>,
}

impl Watched {
    fn new(input: File) -> Self {
        let total = input.metadata().map_or(0, |file| file.len() as usize);
        let is_shown = std::io::stderr().is_terminal() && total > 0;
        let stage = is_shown.then(|| ProgressBars::new().stage("recording, KiB", total.div_ceil(1024)));
        Watched { input, bytes: 0, stage }
    }
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(into)?;
        self.bytes += read;
        if let Some(stage) = &mut self.stage {
            stage.set(self.bytes.div_ceil(1024));
        }
        Ok(read)
    }
}
